"""Fused norms, gates and rotary embeddings of serving engines and of aiter."""

from __future__ import annotations

from typing import Final

from tracelens_ext.roofline.operation import Cost, NoModelError, Operation, bytes_read, short_type

#: Operations an element, conventions: those of a norm, with an addition; of a gate; of a rotation.
_NORM, _GATE, _ROTATION = 7, 12, 3


def norm(op: Operation) -> Cost:
    """A norm of [.., N]; with an addition it reads the residual, too, and writes the sum.

    Results that are no arguments are as the input. Of the arguments of that shape those that are
    written come first (`out`), last (`residual_out`), or are the inputs themselves.
    """
    matrices = [t for t in op.tensors if len(t.dims) > 1]
    if not matrices:
        op.need(0)
        raise NoModelError("the recorded shapes are not those of a norm")
    same = [t for t in matrices if t.dims == matrices[0].dims]
    adds = "add" in op.plain_name
    x = same[1] if len(same) > 1 + adds else same[0]
    result = same[0] if len(same) > 1 + adds else x
    vectors = [t for t in op.tensors if len(t.dims) == 1]
    passes = bytes_read(x, *vectors) + result.written + (2 * x.written if adds else 0)
    return Cost(
        "Normalization",
        (_NORM + adds) * x.elements,
        passes,
        short_type(x.kind),
        parameters={"op_shape": x.dims, "dtype_in": x.kind, "stride_input": x.strides},
    )


def gated(op: Operation) -> Cost:
    """`silu_and_mul`: one half of the input goes through a function and scales the other."""
    x = max(op.leading(2), key=lambda tensor: tensor.elements)
    out = next((t for t in op.leading(2) if 2 * t.elements == x.elements), None)
    moved = x.read + (out.written if out else x.elements // 2 * x.item)
    return Cost("UnaryElementwise", _GATE * (x.elements // 2), moved, short_type(x.kind))


def rotary(op: Operation) -> Cost:
    """`rotary_embedding`: positions, Q, perhaps K, the size of a head, a cache of angles; in place.

    Only the first elements of a head are turned where the angles are fewer.
    """
    positions, cache, head = op.need(0), op.need(4), op.whole(3)
    turned = [t for t in (op.need(1), op.tensor(2)) if t is not None]
    if not cache.dims or head <= 0:
        raise NoModelError("the size of a head is not recorded")
    share = min(cache.dims[-1], head) / head
    elements = int(sum(t.elements for t in turned) * share)
    angles = min(positions.elements * cache.dims[-1], cache.elements) * cache.item
    moved = positions.read + angles + 2 * elements * turned[0].item
    return Cost("BinaryElementwise", _ROTATION * elements, moved, short_type(turned[0].kind))


_LIBRARIES: Final = ("_C", "aiter", "vllm", "sgl_kernel", "flashinfer")
_NAMES: Final = {
    norm: "rms_norm* rmsnorm* fused_add_rms* gemma_rms* gemma_fused_add* layernorm2d* layer_norm*"
    " rocm_aiter_rms* add_rmsnorm*",
    gated: "silu_and_mul* gelu_and_mul* gelu_tanh_and_mul*",
    rotary: "rotary_embedding",
}
MODELS = {
    f"{library}::{name}": model
    for model, names in _NAMES.items()
    for name in names.split()
    for library in _LIBRARIES
}
