"""Attention: two products forward, five backward, over the pairs that see each other."""

from __future__ import annotations

from typing import NamedTuple

from tracelens_ext.roofline.operation import Cost, NoModelError, Operation, bytes_read, short_type


class _Places(NamedTuple):
    """Where the arguments of an attention operation are; None: it has no such argument."""

    query: int  #: Q; K and V follow
    causal: int  #: the flag, or the kind of mask: 0 for none
    heads_first: bool  #: [B, H, N, D], else [B, N, H, D]
    lengths: int | None = None  #: the cumulated lengths of sequences
    window: int | None = None  #: the size of a sliding window, negative for none
    backward: bool = False  #: whether it is the backward pass, with the gradient before Q


_FORWARD = {
    "aten::_flash_attention_forward": _Places(0, 8, False, 3, 11),
    "aten::_efficient_attention_forward": _Places(0, 9, False, 4),
    "aten::_cudnn_attention_forward": _Places(0, 10, True, 4),
    "aten::_scaled_dot_product_flash_attention": _Places(0, 4, True),
    "aten::_scaled_dot_product_efficient_attention": _Places(0, 6, True),
    "aten::_scaled_dot_product_cudnn_attention": _Places(0, 6, True),
    "flash_attn::_flash_attn_forward": _Places(0, 5, False, None, 6),
}
_BACKWARD = {
    "aten::_flash_attention_backward": _Places(1, 11, False, 6, 15, True),
    "aten::_efficient_attention_backward": _Places(1, 14, False, 6, None, True),
    "aten::_scaled_dot_product_flash_attention_backward": _Places(1, 11, True, 6, None, True),
    "aten::_scaled_dot_product_efficient_attention_backward": _Places(
        1, 11, True, None, None, True
    ),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Places(1, 14, True, None, None, True),
    "flash_attn::_flash_attn_backward": _Places(1, 11, False, None, 12, True),
}


def attention(op: Operation) -> Cost:
    """Forward 2·B·H·P·(d_qk + d_v) for P pairs of positions, backward 2.5 times that.

    K and V have heads of their own (grouped queries). A causal mask leaves Nq·Nkv - Nq²/2 pairs.
    """
    at = _FORWARD.get(op.name) or _BACKWARD[op.name]
    q, k, v = (op.need(at.query + i) for i in range(3))
    packed = at.lengths is not None and op.tensor(at.lengths) is not None
    if packed or any(len(t.dims) != 4 for t in (q, k, v)):
        raise NoModelError("sequences of several lengths, which are not recorded")
    if at.window is not None and op.whole(at.window, -1) >= 0:
        raise NoModelError("a sliding window")
    causal = op.value(at.causal)
    if causal is None:
        raise NoModelError("whether the mask is causal is not recorded")
    heads, positions = (1, 2) if at.heads_first else (2, 1)
    batch, nq, nkv = q.dims[0], q.dims[positions], k.dims[positions]
    if causal and (nq > nkv or (nq != nkv and "efficient" in op.name)):
        raise NoModelError("a causal mask that is not aligned to the end")
    pairs_twice = 2 * nq * nkv - (nq * nq if causal else 0)
    flops = batch * q.dims[heads] * pairs_twice * (q.dims[3] + v.dims[3])
    result = q.elements // max(1, q.dims[3]) * v.dims[3] * q.item
    moved = bytes_read(q, k, v) + result
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


MODELS = dict.fromkeys((*_FORWARD, *_BACKWARD), attention)
