"""Attention: two products forward, five backward, over the pairs that see each other.

A query sees the keys from a window's size before its own position to as many after it, or to itself
with a causal mask. Its position counts from the end of the keys, or from their beginning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tracelens_ext.roofline.operation import Cost, Engine, Models, bytes_read, require

if TYPE_CHECKING:
    from tracelens_ext.roofline.operation import Operation

MODELS = Models()


class _Positions(NamedTuple):
    """Where the arguments of an attention operation are; None: it has no such argument."""

    query: int  #: Q; K and V follow
    causal: int  #: the flag, or the kind of mask: 0 for none
    heads_first: bool  #: [B, H, N, D], else [B, N, H, D]
    lengths: int | None = None  #: the cumulated lengths of sequences
    #: the window to the left; to the right follows; negative for none
    window: int | None = None
    #: True if a causal mask counts from the beginning of the keys
    top_left: bool = False


_FLASH_FORWARD: Final = _Positions(query=0, causal=5, heads_first=False, window=6)
_MHA_BACKWARD: Final = _Positions(query=1, causal=8, heads_first=False, window=9)
#: Backward passes have the gradient before Q.
_POSITIONS: Final = {
    "aten::_flash_attention_forward": _Positions(
        query=0, causal=8, heads_first=False, lengths=3, window=11
    ),
    "aten::_efficient_attention_forward": _Positions(
        query=0, causal=9, heads_first=False, lengths=4, window=13
    ),
    "aten::_cudnn_attention_forward": _Positions(
        query=0, causal=10, heads_first=True, lengths=4
    ),
    "aten::_scaled_dot_product_flash_attention": _Positions(
        query=0, causal=4, heads_first=True
    ),
    "aten::_scaled_dot_product_efficient_attention": _Positions(
        query=0, causal=6, heads_first=True, top_left=True
    ),
    "aten::_scaled_dot_product_cudnn_attention": _Positions(
        query=0, causal=6, heads_first=True
    ),
    "flash_attn::_flash_attn_forward": _FLASH_FORWARD,
    "aiter::_flash_attn_forward": _FLASH_FORWARD,
    "aiter::mha_fwd": _FLASH_FORWARD,
    "aiter::fmha_v3_fwd": _FLASH_FORWARD,
    "aten::_flash_attention_backward": _Positions(
        query=1, causal=11, heads_first=False, lengths=6, window=15
    ),
    "aten::_efficient_attention_backward": _Positions(
        query=1, causal=14, heads_first=False, lengths=6, window=18
    ),
    "aten::_scaled_dot_product_flash_attention_backward": _Positions(
        query=1, causal=11, heads_first=True, lengths=6
    ),
    "aten::_scaled_dot_product_efficient_attention_backward": _Positions(
        query=1, causal=11, heads_first=True, top_left=True
    ),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Positions(
        query=1, causal=14, heads_first=True
    ),
    "flash_attn::_flash_attn_backward": _Positions(
        query=1, causal=11, heads_first=False, window=12
    ),
    "aiter::_flash_attn_backward": _Positions(
        query=1, causal=12, heads_first=False, window=13
    ),
    "aiter::mha_bwd": _MHA_BACKWARD,
    "aiter::fmha_v3_bwd": _MHA_BACKWARD,
}
#: The kind of mask of `_efficient_attention_*` that counts from the beginning of the keys.
_TOP_LEFT_MASK: Final = 1


@MODELS.add(*_POSITIONS)
def attention(operation: Operation) -> Cost:
    """Forward 2·B·H·P·(d_qk + d_v) for P pairs of positions, backward 2.5 times that.

    K and V have heads of their own (grouped queries). A causal mask leaves Nq·Nkv - Nq²/2 pairs; of
    keys that no query sees nothing is read.
    """
    positions = _POSITIONS[operation.name]
    query = operation.need(positions.query)
    key = operation.need(positions.query + 1)
    value = operation.need(positions.query + 2)
    is_packed = (
        positions.lengths is not None
        and operation.tensor(positions.lengths) is not None
    )
    have_heads = all(len(tensor.dims) == 4 for tensor in (query, key, value))
    require(
        have_heads and not is_packed,
        "the sequences have different lengths, which are not recorded",
    )
    causal = operation.value(positions.causal)
    require(causal is not None, "whether the mask is causal is not recorded")
    head_dimension, position_dimension = (1, 2) if positions.heads_first else (2, 1)
    batch = query.dims[0]
    heads = query.dims[head_dimension]
    query_length = query.dims[position_dimension]
    key_length = key.dims[position_dimension]
    visible = _visible(
        operation=operation,
        positions=positions,
        query_length=query_length,
        key_length=key_length,
    )
    flops = batch * heads * visible.pairs_twice * (query.dims[3] + value.dims[3])
    result_elements = query.elements // max(1, query.dims[3]) * value.dims[3]
    result_bytes = result_elements * query.element_bytes
    keys_and_values = bytes_read(key, value) * visible.keys // max(key_length, 1)
    moved = bytes_read(query) + keys_and_values + result_bytes
    is_backward = positions.query > 0
    # also reads the gradient of the result, and writes those of Q, K and V
    if is_backward:
        flops = flops * 5 // 2
        moved += result_bytes + query.written + key.written + value.written
    return Cost(
        family="SDPA_bwd" if is_backward else "SDPA_fwd",
        flops=flops,
        bytes=moved,
        data_type=query.short_type,
        engine=Engine.MATRIX.value,
        parameters={
            "B": batch,
            "N_Q": query_length,
            "H_Q": heads,
            "N_KV": key_length,
            "H_KV": key.dims[head_dimension],
            "d_h_qk": query.dims[3],
            "d_h_v": value.dims[3],
            "causal": bool(causal),
            "dtype_A_B": (query.kind, key.kind),
        },
    )


class _Visible(NamedTuple):
    """What queries see of the keys."""

    pairs_twice: int  #: twice the pairs of positions that see each other
    keys: int  #: how many keys any query sees


def _visible(
    operation: Operation, positions: _Positions, query_length: int, key_length: int
) -> _Visible:
    """Count what queries see through the window and the mask."""
    left = operation.whole(positions.window, -1)
    right = -1
    is_efficient = "_efficient_" in operation.name
    if is_efficient:  # the window counts the query itself, and looks back alone
        left -= 1
    elif positions.window is not None:
        right = operation.whole(positions.window + 1, -1)
    mask = operation.value(positions.causal)
    if mask:
        right = 0
    from_beginning = positions.top_left or (
        "_efficient_attention_" in operation.name and mask == _TOP_LEFT_MASK
    )
    offset = 0 if mask and from_beginning else key_length - query_length

    pairs_twice = 2 * query_length * key_length
    last = key_length
    if right >= 0:
        pairs_twice = _pairs_before_twice(offset + right, query_length, key_length)
        last = min(max(query_length + offset + right, 0), key_length)
    first = 0
    if left >= 0:
        pairs_twice -= _pairs_before_twice(offset - left, query_length, key_length)
        first = max(offset - left, 0)
    return _Visible(pairs_twice, max(last - first, 0))


def _pairs_before_twice(shift: int, query_length: int, key_length: int) -> int:
    """Return twice the pairs of a query and a key that comes before its position and a shift.

    With 3 queries, 4 keys and a shift of 1 the queries see 1, 2 and 3 keys: as areas below a
    diagonal, 4² - 1² = 15 for twice 7.5, as continuous positions are counted.
    """
    whole = _area_twice(query_length + shift, key_length)
    return whole - _area_twice(shift, key_length)


def _area_twice(end: int, key_length: int) -> int:
    """Return twice the area below the diagonal from 0 to an end, cut off at the number of keys."""
    inside = min(max(end, 0), key_length)
    beyond = max(end - key_length, 0)
    return inside * inside + 2 * key_length * beyond
