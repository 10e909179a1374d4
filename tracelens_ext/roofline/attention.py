"""Attention: two products forward, five backward, over the pairs that see each other.

A query sees the keys from a window's size before its own position to as many after it, or to itself
with a causal mask. Its position counts from the end of the keys, or from their beginning.
"""

from __future__ import annotations

from typing import NamedTuple

from tracelens_ext.roofline.operation import (
    Cost,
    NoModelError,
    Operation,
    bytes_read,
    short_type,
)


class _Places(NamedTuple):
    """Where the arguments of an attention operation are; None: it has no such argument."""

    query: int  #: Q; K and V follow
    causal: int  #: the flag, or the kind of mask: 0 for none
    heads_first: bool  #: [B, H, N, D], else [B, N, H, D]
    lengths: int | None = None  #: the cumulated lengths of sequences
    window: int | None = None  #: the window to the left; to the right follows; negative for none
    backward: bool = False  #: whether it is the backward pass, with the gradient before Q
    top_left: bool = False  #: whether a causal mask counts from the beginning of the keys


_FORWARD = {
    "aten::_flash_attention_forward": _Places(0, 8, False, 3, 11),
    "aten::_efficient_attention_forward": _Places(0, 9, False, 4, 13),
    "aten::_cudnn_attention_forward": _Places(0, 10, True, 4),
    "aten::_scaled_dot_product_flash_attention": _Places(0, 4, True),
    "aten::_scaled_dot_product_efficient_attention": _Places(0, 6, True, top_left=True),
    "aten::_scaled_dot_product_cudnn_attention": _Places(0, 6, True),
    **dict.fromkeys(
        (
            *("flash_attn::_flash_attn_forward", "aiter::_flash_attn_forward"),
            *("aiter::mha_fwd", "aiter::fmha_v3_fwd"),
        ),
        _Places(0, 5, False, None, 6),
    ),
}
_BACKWARD = {
    "aten::_flash_attention_backward": _Places(1, 11, False, 6, 15, True),
    "aten::_efficient_attention_backward": _Places(1, 14, False, 6, 18, True),
    "aten::_scaled_dot_product_flash_attention_backward": _Places(1, 11, True, 6, None, True),
    "aten::_scaled_dot_product_efficient_attention_backward": _Places(
        1, 11, True, None, None, True, True
    ),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Places(1, 14, True, None, None, True),
    "flash_attn::_flash_attn_backward": _Places(1, 11, False, None, 12, True),
    "aiter::_flash_attn_backward": _Places(1, 12, False, None, 13, True),
    **dict.fromkeys(("aiter::mha_bwd", "aiter::fmha_v3_bwd"), _Places(1, 8, False, None, 9, True)),
}


def attention(op: Operation) -> Cost:
    """Forward 2·B·H·P·(d_qk + d_v) for P pairs of positions, backward 2.5 times that.

    K and V have heads of their own (grouped queries). A causal mask leaves Nq·Nkv - Nq²/2 pairs; of
    keys that no query sees nothing is read.
    """
    at = _FORWARD.get(op.name) or _BACKWARD[op.name]
    q, k, v = (op.need(at.query + i) for i in range(3))
    packed = at.lengths is not None and op.tensor(at.lengths) is not None
    if packed or any(len(t.dims) != 4 for t in (q, k, v)):
        raise NoModelError("sequences of several lengths, which are not recorded")
    causal = op.value(at.causal)
    if causal is None:
        raise NoModelError("whether the mask is causal is not recorded")
    heads, positions = (1, 2) if at.heads_first else (2, 1)
    batch, nq, nkv = q.dims[0], q.dims[positions], k.dims[positions]
    pairs_twice, seen = _pairs(op, at, nq, nkv)
    flops = batch * q.dims[heads] * pairs_twice * (q.dims[3] + v.dims[3])
    result = q.elements // max(1, q.dims[3]) * v.dims[3] * q.item
    moved = bytes_read(q) + bytes_read(k, v) * seen // max(nkv, 1) + result
    if at.backward:  # also reads the gradient of the result, and writes those of Q, K and V
        flops = flops * 5 // 2
        moved += result + q.written + k.written + v.written
    return Cost(
        family="SDPA_bwd" if at.backward else "SDPA_fwd",
        flops=flops,
        bytes=moved,
        data_type=short_type(q.kind),
        engine="matrix",
        parameters={
            "B": batch,
            "N_Q": nq,
            "H_Q": q.dims[heads],
            "N_KV": nkv,
            "H_KV": k.dims[heads],
            "d_h_qk": q.dims[3],
            "d_h_v": v.dims[3],
            "causal": bool(causal),
            "dtype_A_B": (q.kind, k.kind),
        },
    )


def _pairs(op: Operation, at: _Places, nq: int, nkv: int) -> tuple[int, int]:
    """Twice the pairs of positions that see each other, and how many keys any query sees."""
    left, right = op.whole(at.window, -1), -1
    if "_efficient_" in op.name:  # the window counts the query itself, and looks back alone
        left -= 1
    elif at.window is not None:
        right = op.whole(at.window + 1, -1)
    kind = op.value(at.causal)
    right = 0 if kind else right
    top_left = kind and (at.top_left or ("_efficient_attention_" in op.name and kind == 1))
    offset = 0 if top_left else nkv - nq

    def below(shift: int) -> int:
        """Twice the pairs of a query and a key that comes before its position and a shift."""

        def area(end: int) -> int:
            inside = min(max(end, 0), nkv)
            return inside * inside + 2 * nkv * max(end - nkv, 0)

        return area(nq + shift) - area(shift)

    pairs = 2 * nq * nkv if right < 0 else below(offset + right)
    if left >= 0:
        pairs -= below(offset - left)
    first = max(offset - left, 0) if left >= 0 else 0
    last = nkv if right < 0 else min(max(nq + offset + right, 0), nkv)
    return pairs, max(last - first, 0)


MODELS = dict.fromkeys((*_FORWARD, *_BACKWARD), attention)
