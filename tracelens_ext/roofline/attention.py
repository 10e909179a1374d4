"""Attention: two matrix products forward and five backward, over the visible pairs.

A pair is a query and a key that the query sees. A window limits how far before and after its own
position a query sees keys; a causal mask hides all keys behind its position. With fewer queries
than keys, the last query is at the last key ("bottom right"), or the first at the first ("top
left").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tracelens_ext.roofline.operation import Cost, Engine, Models, bytes_read, require

if TYPE_CHECKING:
    from tracelens_ext.roofline.operation import Operation, Tensor

MODELS = Models()


class _Positions(NamedTuple):
    """The positions of the arguments of an attention operation; None: no such argument."""

    query: int  #: Q; K and V follow
    causal: int  #: the causal flag, or the kind of mask: 0 without a mask
    heads_first: bool  #: True: tensors are [B, H, N, D]; False: [B, N, H, D]
    lengths: int | None = None  #: the cumulative lengths of sequences
    #: The size of the window before the query; the size behind it follows. Negative: no limit.
    window: int | None = None
    #: True if a causal mask puts the first query at the first key
    top_left: bool = False


_FLASH_FORWARD: Final = _Positions(query=0, causal=5, heads_first=False, window=6)
_MHA_BACKWARD: Final = _Positions(query=1, causal=8, heads_first=False, window=9)
#: Backward passes have the gradient as their first argument, before Q.
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
#: The kind of mask of `_efficient_attention_*` that puts the first query at the first key.
_TOP_LEFT_MASK: Final = 1


@MODELS.add(*_POSITIONS)
def attention(operation: Operation) -> Cost:
    """Forward 2·B·H·P·(d_qk + d_v) for P visible pairs, backward 2.5 times as much.

    K and V may have fewer heads than Q (grouped queries). A causal mask leaves Nq·Nkv - Nq²/2
    pairs. Keys and values that no query sees are not read.
    """
    positions = _POSITIONS[operation.name]
    query, key, value = _tensors(operation, positions)
    causal = operation.value(positions.causal)
    require(causal is not None, "whether the mask is causal is not recorded")
    if positions.heads_first:
        head_dimension = 1
        position_dimension = 2
    else:
        head_dimension = 2
        position_dimension = 1
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
    if is_backward:
        flops = flops * 5 // 2
        # The gradient of the result is read, too; the gradients of Q, K and V are written.
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


class _Tensors(NamedTuple):
    """The tensors of an attention operation, each with four dimensions."""

    query: Tensor
    key: Tensor
    value: Tensor


def _tensors(operation: Operation, positions: _Positions) -> _Tensors:
    """Return Q, K and V; raise `NoModelError` if the sequences have different lengths."""
    tensors = _Tensors(
        query=operation.need(positions.query),
        key=operation.need(positions.query + 1),
        value=operation.need(positions.query + 2),
    )
    lengths = None
    if positions.lengths is not None:
        lengths = operation.tensor(positions.lengths)
    have_heads = all(len(tensor.dims) == 4 for tensor in tensors)
    require(
        have_heads and lengths is None,
        "the sequences have different lengths, which are not recorded",
    )
    return tensors


class _Visible(NamedTuple):
    """How much of the keys the queries see."""

    pairs_twice: int  #: twice the number of visible pairs, which may end on a half
    keys: int  #: the number of keys that at least one query sees


def _visible(
    operation: Operation, positions: _Positions, query_length: int, key_length: int
) -> _Visible:
    """Count the pairs and keys that are visible through the window and the mask."""
    # How many keys before and behind its own position a query sees; negative: all.
    window_before = operation.whole(positions.window, -1)
    window_behind = -1
    if "_efficient_" in operation.name:
        # Its window counts the query itself, and has no size behind the query.
        window_before -= 1
    elif positions.window is not None:
        window_behind = operation.whole(positions.window + 1, -1)
    mask = operation.value(positions.causal)
    if mask:
        window_behind = 0
    is_top_left = positions.top_left or (
        "_efficient_attention_" in operation.name and mask == _TOP_LEFT_MASK
    )
    # The key at which the first query is.
    offset = key_length - query_length
    if mask and is_top_left:
        offset = 0

    pairs_twice = 2 * query_length * key_length
    end_of_keys = key_length
    if window_behind >= 0:
        shift = offset + window_behind
        pairs_twice = _pairs_below_twice(shift, query_length, key_length)
        end_of_keys = min(max(query_length + shift, 0), key_length)
    first_key = 0
    if window_before >= 0:
        shift = offset - window_before
        pairs_twice -= _pairs_below_twice(shift, query_length, key_length)
        first_key = max(shift, 0)
    return _Visible(pairs_twice, max(end_of_keys - first_key, 0))


def _pairs_below_twice(shift: int, query_length: int, key_length: int) -> int:
    """Return twice the pairs of query q and a key before q + shift, as an area.

    Positions are continuous: the pairs are the area below the line key = query + shift. With 3
    queries, 4 keys and a shift of 1, twice the area is 4² - 1² = 15, so there are 7.5 pairs.
    """
    area_to_last_query = _area_below_diagonal_twice(query_length + shift, key_length)
    return area_to_last_query - _area_below_diagonal_twice(shift, key_length)


def _area_below_diagonal_twice(end: int, key_length: int) -> int:
    """Return twice the area below the diagonal from 0 to `end`, at most `key_length` high.

    For an end of 6 and 4 keys this is the triangle 4² and the rectangle 2·4·(6 - 4).
    """
    triangle_side = min(max(end, 0), key_length)
    rectangle_width = max(end - key_length, 0)
    return triangle_side * triangle_side + 2 * key_length * rectangle_width
