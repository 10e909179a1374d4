"""The packages that add operations to PyTorch, by the first part of an operation's name."""

from __future__ import annotations

from typing import Final

_PACKAGES: Final = {
    "_C": "vllm._C",
    "_C_cache_ops": "vllm._C",
    "_C_custom_ar": "vllm._C",
    "_moe_C": "vllm._moe_C",
    "_rocm_C": "vllm._rocm_C",
    "_vllm_fa2_C": "vllm.vllm_flash_attn",
    "_vllm_fa3_C": "vllm.vllm_flash_attn",
    "_flash_attn_forward": "flash_attn",
    "flash_attn_3": "flash_attn_interface",
    "fbgemm": "fbgemm_gpu",
    "fb": "fbgemm_gpu",
    "quantized": "torch.ao.quantization",
    "xformers_flash": "xformers.ops",
    "xformers": "xformers.ops",
    "tex": "transformer_engine.pytorch",
    "transformer_engine": "transformer_engine.pytorch",
    "mamba": "mamba_ssm",
}


def package_of(name: str) -> str:
    """Return the package to import for an operation, such as `vllm` for `vllm::moe_forward`."""
    namespace, _, _ = name.partition("::")
    return _PACKAGES.get(namespace, namespace)
