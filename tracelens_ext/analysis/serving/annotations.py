"""Parses the annotations that serving engines write around their steps.

* vLLM (`gpu_worker.py`): `execute_context_C(S)_generation_G(T)`, and with
  `detailed_trace_annotation` `execute_N_context_C(sqSskKsqsqQsqskP)_generation_G(…)`.
* SGLang (`build_step_span_name`): `step[EXTEND bs=B toks=T]`, `step[DECODE bs=B]`,
  `step[MIXED bs=B]` and modes of speculative decoding; with details `c_sq=` … `g_sqsk=`.
* ATOM: `prefill[bs=B tok=T ctx=[…]]`, `decode[bs=B/PADDED tok=T p=P d=D]`, with details
  `sk= sqsq= sqsk=`.
* xDiT: `execute_diffusion_B_WxH`.

The details are sums over the requests of a group, with q the query length and k the key length of a
request: `sq` is the sum of q, `sk` the sum of k, `sqsq` the sum of q², `sqsk` the sum of q·k.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

PREFILL = "prefill"
DECODE = "decode"
MIXED = "mixed"
DIFFUSION = "diffusion"
OTHER = "other"


@dataclass(frozen=True)
class RequestGroup:
    """The requests of a step that are in one phase.

    Attributes:
        requests: the number of requests.
        tokens: the number of tokens that they compute: the sum of their query lengths.
        key_tokens: the sum of their key lengths; None if the annotation lacks it.
        query_squares: the sum of their squared query lengths; None if the annotation lacks it.
        query_key_products: the sum of query length times key length; None if the annotation lacks
            it.
    """

    requests: int = 0
    tokens: int = 0
    key_tokens: int | None = None
    query_squares: int | None = None
    query_key_products: int | None = None


#: A group without requests, whose sums are all known to be 0.
NO_REQUESTS: Final = RequestGroup(key_tokens=0, query_squares=0, query_key_products=0)


@dataclass(frozen=True)
class Batch:
    """The requests that a step computes.

    Attributes:
        phase: `prefill`, `decode`, `mixed`, `diffusion`, or a name that the user gave.
        context: the requests whose prompts the step reads.
        generation: the requests for which the step generates tokens.
        counts_tokens: the annotation contains the number of tokens; otherwise each request is
            assumed to generate one.
    """

    phase: str
    context: RequestGroup = NO_REQUESTS
    generation: RequestGroup = NO_REQUESTS
    counts_tokens: bool = field(default=True, compare=False)

    @property
    def tokens(self) -> int:
        """The tokens of all requests."""
        return self.context.tokens + self.generation.tokens

    @property
    def has_lengths(self) -> bool:
        """The sums over the lengths of all sequences are known."""
        if self.context.query_key_products is None:
            return False
        if self.generation.query_key_products is None:
            return False
        return self.tokens > 0

    @property
    def detail(self) -> int:
        """The level of detail of the batch, from 0 to 7; the larger, the more is known."""
        phases_are_separate = self.phase != MIXED or self.generation.requests > 0
        has_tokens = self.tokens > 0 and phases_are_separate
        detail = 0
        if self.has_lengths:
            detail += 4
        if has_tokens:
            detail += 2
        if has_tokens and self.counts_tokens:
            detail += 1
        return detail


#: The requests of one phase in vLLM's annotation. `X` stands for `c` (context) or `g` (generation);
#: the names of the groups are the keys that `_request_group` reads.
_VLLM_GROUP: Final = (
    r"(?P<X>\d{1,12})\((?:sq)?(?P<X_sq>\d{1,12})(?:sk(?P<X_sk>\d{1,18})sqsq(?P<X_sqsq>\d{1,18})"
    r"sqsk(?P<X_sqsk>\d{1,18}))?\)"
)
_CONTEXT: Final = "c"
_GENERATION: Final = "g"
_VLLM: Final = re.compile(
    r"execute_(?:\d+_)?context_"
    + _VLLM_GROUP.replace("X", _CONTEXT)
    + "_generation_"
    + _VLLM_GROUP.replace("X", _GENERATION)
)
#: SGLang writes the mode within the brackets, ATOM before them.
_BRACKETS: Final = re.compile(
    r"(?:step\[(\w+)|(?:\w+_)?(prefill|decode)\[)(.*)\]", re.DOTALL
)
_KEY_AND_NUMBER: Final = re.compile(r"\b(\w+)=(\d{1,18})(?!\d)")
_DETAILS: Final = ("sk", "sqsq", "sqsk")
_DIFFUSION: Final = re.compile(r"execute_diffusion_\d+_\d+x\d+")
#: Mode in brackets → phase: the modes of SGLang's `ForwardMode` that compute tokens, and ATOM's.
_PHASE_OF_MODE: Final = {
    "extend": PREFILL,
    "prefill": PREFILL,
    "split_prefill": PREFILL,
    "dllm_extend": PREFILL,
    "decode": DECODE,
    "verify": DECODE,
    "target_verify": DECODE,
    "draft_extend": DECODE,
    "draft_extend_v2": DECODE,
    "mixed": MIXED,
}


def parse_annotation(name: str) -> Batch | None:
    """Return the batch that an engine's annotation describes.

    Returns:
        The batch; None for other annotations, and for a step without requests.
    """
    vllm = _VLLM.match(name)
    if vllm is not None:
        return _vllm_batch(vllm)
    brackets = _BRACKETS.match(name)
    if brackets is not None:
        mode, atom_phase, content = brackets.groups()
        phase = _PHASE_OF_MODE.get((mode or atom_phase).lower())
        if phase is None:
            return None
        return _batch_in_brackets(phase, content)
    if _DIFFUSION.match(name):
        return Batch(DIFFUSION)
    return None


def _vllm_batch(match: re.Match[str]) -> Batch | None:
    values = {
        key: int(text) for key, text in match.groupdict().items() if text is not None
    }
    batch = Batch(
        phase="",
        context=_request_group(values, _CONTEXT),
        generation=_request_group(values, _GENERATION),
    )
    return _with_phase_of_requests(batch)


def _request_group(values: Mapping[str, int], letter: str) -> RequestGroup:
    """Return the group of a letter from the values with the keys `c`, `c_sq`, `c_sk` and so on."""
    group = RequestGroup(
        requests=values.get(letter, 0),
        tokens=values.get(f"{letter}_sq", 0),
        key_tokens=values.get(f"{letter}_sk"),
        query_squares=values.get(f"{letter}_sqsq"),
        query_key_products=values.get(f"{letter}_sqsk"),
    )
    if group.requests == 0 and group.tokens == 0:
        return NO_REQUESTS
    return group


def _with_phase_of_requests(batch: Batch) -> Batch | None:
    """Return the batch with the phase that follows from its requests; None without requests."""
    has_context = batch.context.requests > 0
    has_generation = batch.generation.requests > 0
    if has_context and has_generation:
        return replace(batch, phase=MIXED)
    if has_context:
        return replace(batch, phase=PREFILL)
    if has_generation:
        return replace(batch, phase=DECODE)
    return None


def _batch_in_brackets(phase: str, content: str) -> Batch | None:
    """Return the batch that the `key=number` pairs in brackets describe; None without requests.

    `bs` is the number of requests, `toks` or `tok` the number of tokens. Numbers whose key has no
    letter belong to one group, the default group. In a mixed batch whose details are not separate
    for the two phases, it is the context: attention computes the same for both phases.
    """
    values = {key: int(number) for key, number in _KEY_AND_NUMBER.findall(content)}
    requests = values.get("bs", 0)
    tokens = values.get("toks", values.get("tok"))
    default_group = _GENERATION if phase == DECODE else _CONTEXT
    if phase == DECODE and values.get("p"):
        default_group = _CONTEXT
        tokens = _split_atom_decode(values, requests, tokens)
    elif "dec" in values:
        tokens = _split_old_sglang(values, requests, tokens)
    phases_are_separate = _CONTEXT in values and _GENERATION in values
    _assign_details(values, default_group)
    values.setdefault(default_group, requests)
    tokens_key = f"{default_group}_sq"
    counts_tokens = tokens is not None or "sq" in values or tokens_key in values
    if tokens is None:
        one_each = requests if phase == DECODE else 0
        tokens = values.get("sq", one_each)
    values.setdefault(tokens_key, tokens)
    batch = Batch(
        phase=phase,
        context=_request_group(values, _CONTEXT),
        generation=_request_group(values, _GENERATION),
        counts_tokens=counts_tokens,
    )
    if phase == MIXED and not phases_are_separate:
        return batch if requests else None
    return _with_phase_of_requests(batch)


def _split_atom_decode(
    values: dict[str, int], requests: int, tokens: int | None
) -> int:
    """Separate the prompts from the generating requests in a step of ATOM's decode path.

    Args:
        values: the numbers of the annotation; the numbers of both groups are added.
        requests: the number of requests in the step.
        tokens: the number of tokens in the step; None if unknown.

    Returns:
        The number of tokens of the prompts.
    """
    prompts = values["p"]
    generating = values.get("d", requests - prompts)
    generated_tokens = generating * (1 + values.get("spec", 0))
    values[_CONTEXT] = prompts
    values[_GENERATION] = generating
    values[f"{_GENERATION}_sq"] = generated_tokens
    return max((tokens or 0) - generated_tokens, 0)


def _split_old_sglang(
    values: dict[str, int], requests: int, tokens: int | None
) -> int | None:
    """Separate the two groups in an annotation of an older version of SGLang.

    Args:
        values: the numbers of the annotation; the numbers of both groups are added.
        requests: the number of requests in the step.
        tokens: the number of tokens in the step; None if unknown.

    Returns:
        The number of tokens of the prompts, if known.
    """
    generating = values["dec"]
    values[_CONTEXT] = max(requests - generating, 0)
    values[_GENERATION] = generating
    values[f"{_GENERATION}_sq"] = generating
    return values.get("ext", tokens)


def _assign_details(values: dict[str, int], letter: str) -> None:
    """Assign details whose key has no letter to the group of this letter, and 0 to the other."""
    other_letter = _CONTEXT if letter == _GENERATION else _GENERATION
    for key in _DETAILS:
        if key in values:
            values.setdefault(f"{letter}_{key}", values[key])
            values.setdefault(f"{other_letter}_{key}", 0)
