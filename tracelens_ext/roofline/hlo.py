"""Operations of XLA: what the HLO of a profile of JAX says of an instruction.

`hlo_work.py` counts operations and bytes; here they become a cost of one of the families.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.roofline.operation import Cost, NoModelError, Operation, short_type

if TYPE_CHECKING:
    from tracelens_ext.roofline.hlo_work import Work

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
    about, work = op.attributes, op.work
    if work is None:
        called = about.get("target") or about.get("opcode")
        raise NoModelError(f"the HLO does not say what {called} computes")
    tensors = op.tensors
    kind = max(tensors, key=lambda t: t.written).kind if tensors else ""
    return Cost(
        _FAMILIES.get(work.product, "XLA"),
        work.flops,
        work.bytes,
        short_type(work.kind if work.product else kind),
        "matrix" if work.product else "vector",
        _parameters(op, work),
    )


def _parameters(op: Operation, work: Work) -> dict[str, object]:
    if work.product.startswith("convolution") and len(op.tensors) > 1:
        x, weight = op.tensors[:2]
        return {
            "convNd": f"conv{len(x.dims) - 2}d",
            "input_shape": x.dims,
            "filter_shape": weight.dims,
            "output_shape": op.attributes.get("result", ""),
            "dtype_input_weight": (x.kind, weight.kind),
            **work.windows,
        }
    return dict(zip(_GEMM if work.product == "dot" else _ATTENTION, work.sizes, strict=False))


MODELS = {"hlo::*": instruction}
