"""Attention in serving engines, whose cost depends on the lengths of the sequences in a step.

The arguments of these operations hold the tokens of all requests one after another, and the cache
of keys and values of the whole engine. They do not tell how long each sequence is, but the
annotation of the step does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tracelens_ext.analysis.serving.annotations import Batch
from tracelens_ext.roofline.operation import Cost, Engine, Models, require, required

if TYPE_CHECKING:
    from tracelens_ext.roofline.operation import Operation, Tensor

MODELS = Models()
#: Positions of the query among the arguments; keys and values follow. In other operations the query
#: is the first argument.
_QUERY_POSITIONS: Final = {
    "_C::paged_attention_v1": 1,
    "_C::paged_attention_v2": 4,
    "_rocm_C::paged_attention": 4,
}


class _Heads(NamedTuple):
    """The numbers of heads, and the sizes of their vectors."""

    queries: int  #: number of heads of the queries
    keys: int  #: number of heads of keys and values
    query_size: int  #: size of a query or key vector
    value_size: int  #: size of a value vector


@MODELS.add(
    "_C::paged_attention_v1",
    "_C::paged_attention_v2",
    "_rocm_C::paged_attention",
    "vllm::unified_attention*",
    "sglang::unified_attention*",
    "_vllm_fa2_C::varlen_fwd",
    "_vllm_fa3_C::fwd",
    "sgl_kernel::fwd",
    "flash_attn::_flash_attn_varlen_forward",
    "aiter::mha_varlen_fwd",
    "aiter::fmha_v3_varlen_fwd",
    "aiter::pa_fwd_asm",
    "flashinfer::batch_prefill*",
    "flashinfer::batch_decode*",
)
def attention_by_lengths(operation: Operation) -> Cost:
    """Prompts take 2·H·(d_qk + d_v)·(Σ q·k - Σ q²/2), generation takes 2·H·(d_qk + d_v)·Σ k.

    The sums go over requests with q queries and k keys. If requests generate several tokens in a
    step, as in speculative decoding, each query sees all keys, and Σ q·k replaces Σ k. Bytes: Q and
    the result, K and V of the tokens in the step, and the cached K and V of earlier tokens.

    The arguments are Q [T, H, d], and K and V of the step or of the paged cache: [pages, page,
    heads, d], or with five dimensions K [pages, heads, d/x, page, x] and V [pages, heads, d, page].
    """
    batch = _batch_with_lengths(operation)
    position = _query_position(operation)
    query = operation.need(position)
    key = operation.need(position + 1)
    value = operation.need(position + 2)
    has_known_layout = (
        len(query.dims) == 3 and 3 <= len(key.dims) <= 5 and 3 <= len(value.dims) <= 5
    )
    require(has_known_layout, "the recorded shapes do not match attention")
    if len(key.dims) == 5:
        heads = _Heads(
            queries=query.dims[1],
            keys=key.dims[1],
            query_size=query.dims[2],
            value_size=value.dims[2],
        )
    else:
        heads = _Heads(
            queries=query.dims[1],
            keys=key.dims[-2],
            query_size=key.dims[-1],
            value_size=value.dims[-1],
        )
    vector_sizes = heads.query_size + heads.value_size
    pairs_twice = _prompt_pairs_twice(batch) + _generation_pairs_twice(batch)
    flops = pairs_twice * heads.queries * vector_sizes
    return _cost(
        batch=batch,
        flops=flops,
        query=query,
        heads=heads,
        cached_elements=heads.keys * vector_sizes,
        cached_element_bytes=key.element_bytes,
    )


attention_by_lengths.__name__ = "attention"  # the name of the model in tables


def _query_position(operation: Operation) -> int:
    """Return the position of the query among the arguments; keys and values follow."""
    if operation.name.startswith("flashinfer::"):
        # Several buffers come first; the query is the first tensor with three dimensions.
        for position in range(len(operation.types)):
            tensor = operation.tensor(position)
            if tensor is None:
                continue
            if len(tensor.dims) == 3:
                return position
    return _QUERY_POSITIONS.get(operation.name, 0)


@MODELS.add("vllm::unified_mla_attention*")
def latent_attention(operation: Operation) -> Cost:
    """Multi-head latent attention (DeepSeek-V2, 2024), in which all heads share one cache.

    The formulas are those of `attention_by_lengths`. The arguments are Q [T, H, d], the latent
    vectors [T, c], the rotary part of keys [T, 1, r], and the result [T, H·d_v]. Prompts are
    computed with the keys and values of each head. Generation attends to the latent vectors
    themselves, so that d_qk is c + r and d_v is c.
    """
    batch = _batch_with_lengths(operation)
    query = operation.need(0)
    latent = operation.need(1)
    rotary = operation.need(2)
    result = operation.need(3)
    fits = len(query.dims) == 3 and latent.dims and rotary.dims
    require(fits, "the recorded shapes do not match latent attention")
    tokens, head_count, query_size = query.dims
    latent_size = latent.dims[-1]
    rotary_size = rotary.dims[-1]
    value_size = result.elements // max(1, tokens * head_count)
    cached_size = latent_size + rotary_size
    flops_of_prompts = (query_size + value_size) * _prompt_pairs_twice(batch)
    flops_of_generation = (cached_size + latent_size) * _generation_pairs_twice(batch)
    flops = head_count * (flops_of_prompts + flops_of_generation)
    heads = _Heads(
        queries=head_count, keys=1, query_size=query_size, value_size=value_size
    )
    return _cost(
        batch=batch,
        flops=flops,
        query=query,
        heads=heads,
        cached_elements=cached_size,
        cached_element_bytes=latent.element_bytes,
    )


def takes_lengths(name: str) -> bool:
    """Return whether the model of an operation needs the lengths of sequences."""
    if name in MODELS:
        return True
    return any(
        pattern.endswith("*") and name.startswith(pattern.removesuffix("*"))
        for pattern in MODELS
    )


def _batch_with_lengths(operation: Operation) -> Batch:
    """Return the batch of the step that an operation belongs to.

    Raises:
        NoModelError: there is no annotation of the step, or it lacks the lengths.
    """
    reason = "the lengths of its sequences: "
    batch = required(operation.batch, f"{reason}no annotation of a serving engine")
    reason += (
        "the engine's annotation lacks them (vLLM's detailed_trace_annotation, SGLang's"
    )
    require(batch.has_lengths, f"{reason} roofline_annotations)")
    return batch


def _prompt_pairs_twice(batch: Batch) -> int:
    """Return twice the pairs of a query and a visible key in prompts: 2·Σ q·k - Σ q²."""
    context = batch.context
    return 2 * (context.query_key_products or 0) - (context.query_squares or 0)


def _generation_pairs_twice(batch: Batch) -> int:
    """Return twice the pairs of a query and a visible key in generation: 2·Σ k, or 2·Σ q·k."""
    group = batch.generation
    has_one_token_each = group.tokens == group.requests and group.key_tokens is not None
    if has_one_token_each:
        return 2 * (group.key_tokens or 0)
    return 2 * (group.query_key_products or 0)


def _cost(
    batch: Batch,
    flops: int,
    query: Tensor,
    heads: _Heads,
    cached_elements: int,
    cached_element_bytes: int,
) -> Cost:
    """Return the cost of attention in a step.

    Args:
        batch: the requests in the step.
        flops: floating point operations.
        query: the query.
        heads: the heads.
        cached_elements: elements that the cache holds for each token.
        cached_element_bytes: size of such an element.
    """
    context = batch.context
    generation = batch.generation
    tokens = batch.tokens
    key_tokens = (context.key_tokens or 0) + (generation.key_tokens or 0)
    earlier_tokens = key_tokens - tokens
    query_elements = heads.queries * (heads.query_size + heads.value_size)
    moved = tokens * (query_elements + cached_elements) * query.element_bytes
    moved += max(earlier_tokens, 0) * cached_elements * cached_element_bytes
    return Cost(
        family="InferenceAttention_fwd",
        flops=flops,
        bytes=moved,
        data_type=query.short_type,
        engine=Engine.MATRIX.value,
        parameters={
            "N_Q": tokens,
            "H_Q": heads.queries,
            "H_KV": heads.keys,
            "d_h_qk": heads.query_size,
            "d_h_v": heads.value_size,
            "c_sq": context.tokens,
            "c_sk": context.key_tokens,
            "c_sqsq": context.query_squares,
            "c_sqsk": context.query_key_products,
            "g_sq": generation.tokens,
            "g_sk": generation.key_tokens,
            "g_sqsq": generation.query_squares,
            "g_sqsk": generation.query_key_products,
            "dtype_Q": query.kind,
        },
    )
