"""Attention: two products forward, five backward, over the pairs that see each other.

A query sees the keys from a window's size before its own position to as many after it, or to itself
with a causal mask. Its position counts from the end of the keys, or from their beginning.

That of serving engines is told by the annotation of the step: arguments of its operations hold the
tokens of all requests one after another, and the cache of keys and values of the whole engine; how
long each sequence is, is in neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tracelens_ext.analysis.serving.annotations import Batch
from tracelens_ext.roofline.operation import Cost, Models, bytes_read, known, named

if TYPE_CHECKING:
    from tracelens_ext.roofline.operation import Operation, Tensor

MODELS = Models()


class _Places(NamedTuple):
    """Where the arguments of an attention operation are; None: it has no such argument."""

    query: int  #: Q; K and V follow
    causal: int  #: the flag, or the kind of mask: 0 for none
    heads_first: bool  #: [B, H, N, D], else [B, N, H, D]
    lengths: int | None = None  #: the cumulated lengths of sequences
    window: int | None = None  #: the window to the left; to the right follows; negative for none
    top_left: bool = False  #: whether a causal mask counts from the beginning of the keys


_FLASH = (
    "flash_attn::_flash_attn_forward",
    "aiter::_flash_attn_forward",
    "aiter::mha_fwd",
    "aiter::fmha_v3_fwd",
)
#: Backward passes have the gradient before Q.
_PLACES = {
    "aten::_flash_attention_forward": _Places(0, 8, False, 3, 11),
    "aten::_efficient_attention_forward": _Places(0, 9, False, 4, 13),
    "aten::_cudnn_attention_forward": _Places(0, 10, True, 4),
    "aten::_scaled_dot_product_flash_attention": _Places(0, 4, True),
    "aten::_scaled_dot_product_efficient_attention": _Places(0, 6, True, top_left=True),
    "aten::_scaled_dot_product_cudnn_attention": _Places(0, 6, True),
    **dict.fromkeys(_FLASH, _Places(0, 5, False, None, 6)),
    "aten::_flash_attention_backward": _Places(1, 11, False, 6, 15),
    "aten::_efficient_attention_backward": _Places(1, 14, False, 6, 18),
    "aten::_scaled_dot_product_flash_attention_backward": _Places(1, 11, True, 6),
    "aten::_scaled_dot_product_efficient_attention_backward": _Places(1, 11, True, top_left=True),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Places(1, 14, True),
    "flash_attn::_flash_attn_backward": _Places(1, 11, False, None, 12),
    "aiter::_flash_attn_backward": _Places(1, 12, False, None, 13),
    **dict.fromkeys(("aiter::mha_bwd", "aiter::fmha_v3_bwd"), _Places(1, 8, False, None, 9)),
}


@MODELS.of("attention")(" ".join(_PLACES))
def attention(op: Operation) -> Cost:
    """Forward 2·B·H·P·(d_qk + d_v) for P pairs of positions, backward 2.5 times that.

    K and V have heads of their own (grouped queries). A causal mask leaves Nq·Nkv - Nq²/2 pairs; of
    keys that no query sees nothing is read.
    """
    at = _PLACES[op.name]
    q, k, v = (op.need(at.query + i) for i in range(3))
    packed = at.lengths is not None and op.tensor(at.lengths) is not None
    fits = not packed and all(len(t.dims) == 4 for t in (q, k, v))
    known(fits, "sequences of several lengths, which are not recorded")
    causal = op.value(at.causal)
    known(causal is not None, "whether the mask is causal is not recorded")
    heads, positions = (1, 2) if at.heads_first else (2, 1)
    batch = q.dims[0]
    nq = q.dims[positions]
    nkv = k.dims[positions]
    pairs_twice, seen = _pairs(op, at, nq, nkv)
    flops = batch * q.dims[heads] * pairs_twice * (q.dims[3] + v.dims[3])
    result = q.elements // max(1, q.dims[3]) * v.dims[3] * q.item
    moved = bytes_read(q) + bytes_read(k, v) * seen // max(nkv, 1) + result
    if at.query:  # also reads the gradient of the result, and writes those of Q, K and V
        flops = flops * 5 // 2
        moved += result + q.written + k.written + v.written
    sizes = batch, nq, q.dims[heads], nkv, k.dims[heads], q.dims[3], v.dims[3]
    names = "B N_Q H_Q N_KV H_KV d_h_qk d_h_v causal dtype_A_B"
    shown = named(names, *sizes, bool(causal), (q.kind, k.kind))
    return Cost("SDPA_bwd" if at.query else "SDPA_fwd", flops, moved, q.short, "matrix", shown)


def _pairs(op: Operation, at: _Places, nq: int, nkv: int) -> tuple[int, int]:
    """Twice the pairs of positions that see each other, and how many keys any query sees."""
    left = op.whole(at.window, -1)
    right = -1
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


_of_engines = MODELS.of("serving")
#: Where the query is among the arguments; keys and values follow. Other operations begin with it.
_QUERY: Final = {
    "_C::paged_attention_v1": 1,
    "_C::paged_attention_v2": 4,
    "_rocm_C::paged_attention": 4,
}


@_of_engines(
    "_C::paged_attention_v1 _C::paged_attention_v2 _rocm_C::paged_attention"
    " vllm::unified_attention* sglang::unified_attention* _vllm_fa2_C::varlen_fwd _vllm_fa3_C::fwd"
    " sgl_kernel::fwd flash_attn::_flash_attn_varlen_forward aiter::mha_varlen_fwd"
    " aiter::fmha_v3_varlen_fwd aiter::pa_fwd_asm"
    " flashinfer::batch_prefill* flashinfer::batch_decode*"
)
def attention_by_lengths(op: Operation) -> Cost:
    """Prompts 2·H·(d_qk + d_v)·(Σ q·k - Σ q²/2), generation 2·H·(d_qk + d_v)·Σ k.

    With q and k the lengths of queries and keys of each request (several queries a request, as in
    speculative decoding, each see the keys: Σ q·k). Bytes: Q and the result, K and V of the tokens
    of the step, and the cache of those before.

    Arguments are Q [T, H, d], and K and V of the step or of the paged cache: [pages, page, heads,
    d], or of five dimensions [pages, heads, d/x, page, x] with V [pages, heads, d, page].
    """
    batch = _lengths(op)
    first = _QUERY.get(op.name, 0)
    if op.name.startswith("flashinfer::"):  # several buffers come before
        with_heads = (i for i in range(len(op.types)) if (t := op.tensor(i)) and len(t.dims) == 3)
        first = next(with_heads, 0)
    q, k, v = (op.need(first + i) for i in range(3))
    fits = len(q.dims) == 3 and 3 <= len(k.dims) <= 5 and 3 <= len(v.dims) <= 5
    known(fits, "the recorded shapes are not those of attention")
    keys = k.dims[-2]
    d_qk = k.dims[-1]
    d_v = v.dims[-1]
    if len(k.dims) == 5:
        keys = k.dims[1]
        d_qk = q.dims[2]
        d_v = v.dims[2]
    flops = (_read_twice(batch) + _generated_twice(batch)) * q.dims[1] * (d_qk + d_v)
    return _cost(batch, flops, q, (q.dims[1], keys, d_qk, d_v), keys * (d_qk + d_v), k.item)


attention_by_lengths.__name__ = "attention"  # as tables call it


@_of_engines("vllm::unified_mla_attention*")
def latent_attention(op: Operation) -> Cost:
    """The same of multi-head latent attention (DeepSeek-V2, 2024): all heads share the cache.

    Arguments are Q [T, H, d], the latent vectors [T, c], the rotary part of keys [T, 1, r], and the
    result [T, H·d_v]. Prompts are computed with heads of their own; generation attends to the
    latent vectors themselves, so that d_qk is c + r and d_v is c.
    """
    batch = _lengths(op)
    q, latent, rotary, result = (op.need(i) for i in range(4))
    fits = len(q.dims) == 3 and bool(latent.dims and rotary.dims)
    known(fits, "the recorded shapes are not those of latent attention")
    tokens, heads, d_qk = q.dims
    c = latent.dims[-1]
    r = rotary.dims[-1]
    d_v = result.elements // max(1, tokens * heads)
    flops = (d_qk + d_v) * _read_twice(batch) + (c + r + c) * _generated_twice(batch)
    return _cost(batch, heads * flops, q, (heads, 1, d_qk, d_v), c + r, latent.item)


def takes_lengths(name: str) -> bool:
    """Whether the model of an operation is told the lengths of sequences."""
    told = [each for each, model in MODELS.items() if model is not attention]
    return name in told or any(each[-1] == "*" and name.startswith(each[:-1]) for each in told)


def _lengths(op: Operation) -> Batch:
    why = "the lengths of its sequences: "
    batch = known(op.batch, f"{why}no annotation of a serving engine")
    why += "the engine's annotation lacks them (vLLM's detailed_trace_annotation, SGLang's"
    known(batch.has_lengths, f"{why} roofline_annotations)")
    return batch


def _read_twice(batch: Batch) -> int:
    """Twice the pairs of positions of prompts that see each other."""
    return 2 * (batch.context.products or 0) - (batch.context.squares or 0)


def _generated_twice(batch: Batch) -> int:
    group = batch.generation
    one_each = group.tokens == group.requests and group.keys is not None
    return 2 * ((group.keys if one_each else group.products) or 0)


def _cost(
    batch: Batch, flops: int, q: Tensor, heads: tuple[int, int, int, int], cached: int, item: int
) -> Cost:
    """`heads`: those of Q, those of the keys, and the sizes of both; `cached`: elements a token."""
    context = batch.context
    generation = batch.generation
    tokens = batch.tokens
    keys = (context.keys or 0) + (generation.keys or 0)
    query, _, d_qk, d_v = heads
    moved = tokens * (query * (d_qk + d_v) + cached) * q.item
    moved += max(keys - tokens, 0) * cached * item
    names = "N_Q H_Q H_KV d_h_qk d_h_v c_sq c_sk c_sqsq c_sqsk g_sq g_sk g_sqsq g_sqsk dtype_Q"
    sums = [(g.tokens, g.keys, g.squares, g.products) for g in (context, generation)]
    shown = named(names, tokens, *heads, *sums[0], *sums[1], q.kind)
    return Cost("InferenceAttention_fwd", flops, moved, q.short, "matrix", shown)
