"""Operations of XLA: what the HLO of a profile of JAX says of an instruction.

The reader counts operations and bytes (`readers/xplane/work.py`), as a fusion is known to the HLO
alone; here they become a cost of one of the families.
"""

from __future__ import annotations

from tracelens_ext.roofline.operation import Cost, NoModelError, Operation, short_type

_FAMILIES = {
    "dot": "GEMM",
    "convolution": "CONV_fwd",
    "convolution of gradients": "CONV_bwd",
    "attention": "SDPA_fwd",
    "attention of gradients": "SDPA_bwd",
}
_GEMM = ("B", "M", "N", "K")
_ATTENTION = ("B", "H_Q", "N_Q", "N_KV", "d_h_qk")


def instruction(op: Operation) -> Cost:
    """A product of the matrix units, or else a fusion, whose bytes are what counts."""
    about = op.attributes
    if "flops" not in about:
        called = about.get("target") or about.get("opcode")
        raise NoModelError(f"the HLO does not say what {called} computes")
    tensors = op.tensors
    kind = max(tensors, key=lambda t: t.written).kind if tensors else ""
    product = about.get("product", "")
    return Cost(
        _FAMILIES.get(product, "XLA"),
        int(about["flops"]),
        int(about["bytes"]),
        short_type(about.get("type", kind)),
        "matrix" if product else "vector",
        _parameters(op, product),
    )


def _parameters(op: Operation, product: str) -> dict[str, object]:
    about = op.attributes
    if product.startswith("convolution") and len(op.tensors) > 1:
        x, weight = op.tensors[:2]
        lists: dict[str, object] = {
            name: tuple(map(int, about[name].split("x")))
            for name in ("stride", "padding", "dilation")
            if name in about
        }
        return {
            "convNd": f"conv{len(x.dims) - 2}d",
            "input_shape": x.dims,
            "filter_shape": weight.dims,
            "output_shape": about.get("result", ""),
            "dtype_input_weight": (x.kind, weight.kind),
            **lists,
        }
    sizes = [int(size) for size in about.get("sizes", "").split("x") if size]
    return dict(zip(_GEMM if product == "dot" else _ATTENTION, sizes, strict=False))


MODELS = {"hlo::*": instruction}
