"""The color of each category, which is the same in every workbook, page and chart."""

from __future__ import annotations

import colorsys
import re
import zlib

GREY = "#8b93a1"  # for what is left over or unknown
ONE_COLOR = "#3f7fd4"  # for bars that are not categories

#: Color → the categories that have it, separated by bars. Most people can distinguish the colors on
#: white and on black, above all those of categories that are often next to each other. Categories
#: of engine and model maps, and of operations, have the color of the matching kernel category.
_FIXED = {
    "#3f7fd4": "computation_time|analyzed_computation_time|gemm",
    "#e58a2b": (
        "exposed_comm_time|analyzed_exposed_comm_time|communication|nccl_and_custom_ar"
        "|record_param_comms"
    ),
    "#8d6bc7": (
        "exposed_memcpy_time|analyzed_exposed_memcpy_time|memory ops|non-gpu-h_d_memops"
    ),
    "#aab1bd": "idle_time|analyzed_idle_time|cpu(non-gpu)",
    "#c3c9d2": "micro_idle_time",
    GREY: "macro_idle_time|uncategorized|misc",
    "#5b6472": "other|others",
    "#e8d5a3": "warm_up_time",
    "#e3bfc0": "not_recorded_time",
    "#2f9e73": "flash attention forward|attn|sdpa_fwd|inferenceattention",
    "#9ad0b5": "flash attention backward|linear_attn|sdpa_bwd",
    "#17a2b8": "convolution|conv_fwd",
    "#7fd6de": "fft|conv_bwd",
    "#c9a227": "normalization|norm|norm_fwd|rmsnorm",
    "#e6d27a": "moe_aux|norm_bwd",
    "#d1495b": "elementwise",
    "#e57373": "fused elementwise (compiler-generated)|triton_kernel|triton",
    "#d870ad": "softmax",
    "#f4a6b8": "loss|activation|crossentropy_fwd",
    "#8c6d46": "reduction|reduce",
    "#6c9a2e": "embedding & gather/scatter|kv_cache",
    "#c3e08a": "sort & topk|topk",
    "#86b6ec": "moe routing|moe|moe_fused",
    "#1f5fa8": "moe_gemm|moe_unfused|groupedgemm_fwd",
    "#7986cb": "quantization|quantize|groupedgemm_bwd",
    "#b5651d": "optimizer|multi_tensor_apply",
    "#f0b27a": "rng & dropout|prepare_next|crossentropy_bwd",
    "#a0a65a": "positional encoding|rope|rope_fwd",
    "#4db6ac": "pooling & resampling|all2all|ssm_bwd",
    "#b9a3e3": "recurrent & state space|copy|ssm_fwd",
    "#d7a98c": "sampling & decoding|sampling|rope_bwd",
    "#cf9fd6": "graph",
    "#bfa58a": "runtime",
}
_COLOR_OF = {
    name: color for color, names in _FIXED.items() for name in names.split("|")
}
_NO_NAME = re.compile(r"\((?:unlinked|none|[\d,]+ others)\)")


def is_name(label: str) -> bool:
    """Return True if a label names something, unlike `(unlinked)`, `(none)` or `(12 others)`."""
    return bool(label.strip()) and _NO_NAME.fullmatch(label) is None


def color_of(category: str) -> str:
    """Return the color of a category or a row of the GPU timeline.

    A category without a fixed color, such as one of a plugin, gets a color from a hash of its name.
    """
    if not is_name(category):
        return GREY
    fixed_color = _COLOR_OF.get(category.lower())
    if fixed_color is not None:
        return fixed_color
    number = zlib.crc32(category.encode(errors="replace"))
    hue = number % 360 / 360
    lightness = (0.42, 0.54, 0.66)[number // 360 % 3]
    red_green_blue = colorsys.hls_to_rgb(hue, lightness, 0.5)
    return "#" + "".join(f"{round(255 * part):02x}" for part in red_green_blue)
