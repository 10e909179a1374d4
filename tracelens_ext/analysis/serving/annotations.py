"""What the annotations that serving engines write around their steps say about a step.

* vLLM (`gpu_worker.py`): `execute_context_C(S)_generation_G(T)`, and with
  `detailed_trace_annotation` `execute_N_context_C(sqSskKsqsqQsqskP)_generation_G(…)`.
* SGLang (`build_step_span_name`): `step[EXTEND bs=B toks=T]`, `step[DECODE bs=B]`,
  `step[MIXED bs=B]` and modes of speculative decoding; with details `c_sq=` … `g_sqsk=`.
* ATOM: `prefill[bs=B tok=T ctx=[…]]`, `decode[bs=B/PADDED tok=T p=P d=D]`, with details
  `sk= sqsq= sqsk=`.
* `execute_diffusion_B_WxH`.

Of the requests of a group, `sq` sums the query lengths, `sk` the lengths of keys, `sqsq` the
squares of the former, `sqsk` the products of both.
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
class Group:
    """The requests of a step that are in one phase.

    Attributes:
        requests: how many requests there are.
        tokens: the tokens that they compute, the sum of their query lengths.
        keys: the sum of their key lengths; None where the annotation does not say.
        squares: the sum of the squares of their query lengths; None likewise.
        products: the sum of query length times key length; None likewise.
    """

    requests: int = 0
    tokens: int = 0
    keys: int | None = None
    squares: int | None = None
    products: int | None = None


#: A group without requests, about which everything is known.
NOBODY: Final = Group(keys=0, squares=0, products=0)


@dataclass(frozen=True)
class Batch:
    """What a step computes.

    Attributes:
        phase: `prefill`, `decode`, `mixed`, `diffusion`, or a name that the user gave.
        context: the requests whose prompt is read.
        generation: the requests that generate.
        counts_tokens: the annotation says how many tokens there are; otherwise each request is
            assumed to generate one.
    """

    phase: str
    context: Group = NOBODY
    generation: Group = NOBODY
    counts_tokens: bool = field(default=True, compare=False)

    @property
    def tokens(self) -> int:
        """The tokens of all requests."""
        return self.context.tokens + self.generation.tokens

    @property
    def has_lengths(self) -> bool:
        """The lengths of all sequences are known, as sums."""
        if self.context.products is None or self.generation.products is None:
            return False
        return self.tokens > 0

    @property
    def detail(self) -> int:
        """How much is known about the batch: the larger, the more."""
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


#: The requests of one phase in vLLM's annotation; `X` stands for the letter of the phase.
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
#: SGLang names the mode within the brackets, ATOM before them.
_BRACKETS: Final = re.compile(
    r"(?:step\[(\w+)|(?:\w+_)?(prefill|decode)\[)(.*)\]", re.DOTALL
)
_KEY_AND_NUMBER: Final = re.compile(r"\b(\w+)=(\d{1,18})(?!\d)")
_SUMS: Final = ("sk", "sqsq", "sqsk")
_DIFFUSION: Final = re.compile(r"execute_diffusion_\d+_\d+x\d+")
#: The phase of the modes of SGLang's `ForwardMode` that compute tokens.
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
        None for any other name, and for a step without requests.
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
        context=_group(values, _CONTEXT),
        generation=_group(values, _GENERATION),
    )
    return _with_phase_of_requests(batch)


def _group(values: Mapping[str, int], letter: str) -> Group:
    """Return the group of the values whose keys have its letter: `c`, `c_sq`, `c_sk` …."""
    group = Group(
        requests=values.get(letter, 0),
        tokens=values.get(f"{letter}_sq", 0),
        keys=values.get(f"{letter}_sk"),
        squares=values.get(f"{letter}_sqsq"),
        products=values.get(f"{letter}_sqsk"),
    )
    if group.requests == 0 and group.tokens == 0:
        return NOBODY
    return group


def _with_phase_of_requests(batch: Batch) -> Batch | None:
    """Return the batch with the phase that its requests are in; None without requests."""
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
    """Return the batch that `key=number` pairs describe.

    `toks` and `tok` count tokens, `bs` requests. Sums without a letter belong to the only group, or
    to both where a batch is mixed: then they are filed with the context, as attention computes the
    same for both.
    """
    values = {key: int(number) for key, number in _KEY_AND_NUMBER.findall(content)}
    requests = values.get("bs", 0)
    tokens = values.get("toks", values.get("tok"))
    letter = _GENERATION if phase == DECODE else _CONTEXT
    if phase == DECODE and values.get("p"):
        letter = _CONTEXT
        tokens = _split_atom_decode(values, requests, tokens)
    elif "dec" in values:
        tokens = _split_old_sglang(values, requests, tokens)
    phases_are_known = _CONTEXT in values and _GENERATION in values
    _file_sums(values, letter)
    values.setdefault(letter, requests)
    counts_tokens = tokens is not None or "sq" in values or f"{letter}_sq" in values
    if tokens is None:
        one_each = requests if phase == DECODE else 0
        tokens = values.get("sq", one_each)
    values.setdefault(f"{letter}_sq", tokens)
    batch = Batch(
        phase=phase,
        context=_group(values, _CONTEXT),
        generation=_group(values, _GENERATION),
        counts_tokens=counts_tokens,
    )
    if phase == MIXED and not phases_are_known:
        return batch if requests else None
    return _with_phase_of_requests(batch)


def _split_atom_decode(
    values: dict[str, int], requests: int, tokens: int | None
) -> int:
    """Tell apart the prompts in a step of ATOM's decode path; return the tokens of the prompts."""
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
    """Tell apart the requests of older versions of SGLang; return the tokens of the prompts."""
    generating = values["dec"]
    values[_CONTEXT] = max(requests - generating, 0)
    values[_GENERATION] = generating
    values[f"{_GENERATION}_sq"] = generating
    return values.get("ext", tokens)


def _file_sums(values: dict[str, int], letter: str) -> None:
    """File sums that were given without a letter with the group of this letter."""
    other_letter = _CONTEXT if letter == _GENERATION else _GENERATION
    for key in _SUMS:
        if key in values:
            values.setdefault(f"{letter}_{key}", values[key])
            values.setdefault(f"{other_letter}_{key}", 0)
