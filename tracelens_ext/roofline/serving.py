"""Attention of serving engines, whose sequence lengths the annotation of the step tells.

Arguments of these operations hold the tokens of all requests one after another, and the cache of
keys and values of the whole engine; how long each sequence is, is in neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tracelens_ext.roofline.operation import Cost, NoModelError, Operation, Tensor, short_type

if TYPE_CHECKING:
    from tracelens_ext.serving.annotations import Batch

_FAMILY: Final = "InferenceAttention_fwd"
#: Where the query is among the arguments; keys and values follow. Other operations begin with it.
_QUERY: Final = {
    "_C::paged_attention_v1": 1,
    "_C::paged_attention_v2": 4,
    "_rocm_C::paged_attention": 4,
}
#: Operations with several buffers before the query, which is the first tensor of three dimensions.
_AFTER_BUFFERS: Final = "flashinfer::"
_MLA: Final = "vllm::unified_mla_attention*"


@dataclass(frozen=True)
class _Heads:
    """What attention works on."""

    query: int  #: heads of the query
    keys: int  #: heads of keys and values; 1 where all heads share a latent vector
    d_qk: int  #: elements of a query and of a key
    d_v: int  #: elements of a value
    cached: int  #: elements of the cache for a token and head
    kind: str  #: the type of the query
    cache_item: int  #: bytes of an element of the cache


def attention(op: Operation) -> Cost:
    """Prompts 2·H·(d_qk + d_v)·(Σ q·k - Σ q²/2), generation 2·H·(d_qk + d_v)·Σ k.

    With q and k the lengths of queries and keys of each request (several queries a request, as in
    speculative decoding, each see the keys: Σ q·k). Bytes: Q and the result, K and V of the tokens
    of the step, and the cache of those before.
    """
    batch, heads = _lengths(op), _heads(op)
    return _cost(heads, batch, _pairs_twice(batch) * heads.query * (heads.d_qk + heads.d_v))


def latent_attention(op: Operation) -> Cost:
    """The same of multi-head latent attention (DeepSeek-V2, 2024): all heads share the cache.

    Arguments are Q [T, H, d], the latent vectors [T, c], the rotary part of keys [T, 1, r], and the
    result [T, H·d_v]. Prompts are computed with heads of their own; generation attends to the
    latent vectors themselves, so that d_qk is c + r and d_v is c.
    """
    batch = _lengths(op)
    q, latent, rotary, result = (op.need(i) for i in range(4))
    if len(q.dims) != 3 or not latent.dims or not rotary.dims:
        raise NoModelError("the recorded shapes are not those of latent attention")
    tokens, heads = q.dims[:2]
    c, r = latent.dims[-1], rotary.dims[-1]
    d_v = result.elements // max(1, tokens * heads)
    prompts = 2 * (batch.context.products or 0) - (batch.context.squares or 0)
    flops = heads * (q.dims[2] + d_v) * prompts + heads * (c + r + c) * _generated_twice(batch)
    shape = _Heads(heads, 1, q.dims[2], d_v, c + r, q.kind, latent.item)
    return _cost(shape, batch, flops)


def _lengths(op: Operation) -> Batch:
    if op.batch is None:
        raise NoModelError("the lengths of its sequences: no annotation of a serving engine")
    if not op.batch.has_lengths:
        raise NoModelError(
            "the lengths of its sequences: the engine's annotation lacks them (vLLM's"
            " detailed_trace_annotation, SGLang's roofline_annotations)"
        )
    return op.batch


def _pairs_twice(batch: Batch) -> int:
    """Twice the pairs of positions that see each other."""
    context = batch.context
    return 2 * (context.products or 0) - (context.squares or 0) + _generated_twice(batch)


def _generated_twice(batch: Batch) -> int:
    group = batch.generation
    one_each = group.tokens == group.requests and group.keys is not None
    return 2 * ((group.keys if one_each else group.products) or 0)


def _heads(op: Operation) -> _Heads:
    """Heads and sizes, from Q [T, H, d] and K and V of the step or of the paged cache.

    Caches are [pages, page, heads, d], or of five dimensions [pages, heads, d/x, page, x] with V
    [pages, heads, d, page].
    """
    first = _QUERY.get(op.name, 0)
    if op.name.startswith(_AFTER_BUFFERS):
        first = next((i for i in range(len(op.types)) if _has_heads(op.tensor(i))), 0)
    q, k, v = (op.need(first + i) for i in range(3))
    if len(q.dims) != 3 or not 3 <= len(k.dims) <= 5 or not 3 <= len(v.dims) <= 5:
        raise NoModelError("the recorded shapes are not those of attention")
    if len(k.dims) == 5:
        keys, d_qk, d_v = k.dims[1], q.dims[2], v.dims[2]
    else:
        keys, d_qk, d_v = k.dims[-2], k.dims[-1], v.dims[-1]
    return _Heads(q.dims[1], keys, d_qk, d_v, d_qk + d_v, q.kind, k.item)


def _has_heads(tensor: Tensor | None) -> bool:
    return tensor is not None and len(tensor.dims) == 3


def _cost(heads: _Heads, batch: Batch, flops: int) -> Cost:
    context, generation = batch.context, batch.generation
    tokens, keys = batch.tokens, (context.keys or 0) + (generation.keys or 0)
    item = Tensor((), heads.kind).item
    computed = heads.query * (heads.d_qk + heads.d_v) + heads.keys * heads.cached
    before = max(keys - tokens, 0) * heads.keys * heads.cached * heads.cache_item
    return Cost(
        family=_FAMILY,
        flops=flops,
        bytes=tokens * computed * item + before,
        data_type=short_type(heads.kind),
        engine="matrix",
        parameters={
            "N_Q": tokens,
            "H_Q": heads.query,
            "H_KV": heads.keys,
            "d_h_qk": heads.d_qk,
            "d_h_v": heads.d_v,
            **_sums("c", context.tokens, context.keys, context.squares, context.products),
            **_sums(
                "g", generation.tokens, generation.keys, generation.squares, generation.products
            ),
            "dtype_Q": heads.kind,
        },
    )


def _sums(letter: str, *sums: int | None) -> dict[str, object]:
    names = ("sq", "sk", "sqsq", "sqsk")
    return {f"{letter}_{name}": number for name, number in zip(names, sums, strict=True)}


#: Beginnings of names, of which a `*` says that more may follow.
_BY_LENGTHS: Final = (
    *("vllm::unified_attention*", "sglang::unified_attention*", *_QUERY),
    *("_vllm_fa2_C::varlen_fwd", "_vllm_fa3_C::fwd", "flash_attn::_flash_attn_varlen_forward"),
    *("sgl_kernel::fwd", "aiter::mha_varlen_fwd", "aiter::fmha_v3_varlen_fwd"),
    *("aiter::pa_fwd_asm", "flashinfer::batch_prefill*", "flashinfer::batch_decode*"),
)
MODELS = {**dict.fromkeys(_BY_LENGTHS, attention), _MLA: latent_attention}


def takes_lengths(name: str) -> bool:
    """Whether the model of an operation is told the lengths of sequences."""
    return name in MODELS or any(
        each.endswith("*") and name.startswith(each[:-1]) for each in MODELS
    )
