"""What the annotations that serving engines write around their steps say of a step.

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
    """The requests of a step that are in one phase."""

    requests: int = 0  #: how many
    tokens: int = 0  #: the tokens they compute, Σ of the query lengths
    #: Σ of the key lengths; None where the annotation does not say, as for the next two
    keys: int | None = None
    squares: int | None = None  #: Σ of the squares of the query lengths
    products: int | None = None  #: Σ of query length times key length


#: Of a group without requests everything is known.
NOBODY: Final = Group(keys=0, squares=0, products=0)


@dataclass(frozen=True)
class Batch:
    """What a step computes."""

    phase: str  #: `prefill`, `decode`, `mixed`, `diffusion`, or a name that the user gave
    context: Group = NOBODY  #: the requests whose prompt is read
    generation: Group = NOBODY  #: the requests that generate
    #: whether the annotation says how many tokens there are; else each request is taken to generate
    #: one
    counts_tokens: bool = field(default=True, compare=False)

    @property
    def tokens(self) -> int:
        """The tokens of all requests."""
        return self.context.tokens + self.generation.tokens

    @property
    def has_lengths(self) -> bool:
        """Whether the lengths of all sequences are known, as sums."""
        known = self.context.products is not None and self.generation.products is not None
        return known and self.tokens > 0

    @property
    def detail(self) -> int:
        """How much is known: the larger, the more."""
        told_apart = self.phase != MIXED or self.generation.requests > 0
        has_tokens = self.tokens > 0 and told_apart
        return 4 * self.has_lengths + 2 * has_tokens + (has_tokens and self.counts_tokens)


_GROUP: Final = (
    r"(?P<X>\d{1,12})\((?:sq)?(?P<X_sq>\d{1,12})(?:sk(?P<X_sk>\d{1,18})sqsq(?P<X_sqsq>\d{1,18})"
    r"sqsk(?P<X_sqsk>\d{1,18}))?\)"
)
_BOTH: Final = (_GROUP.replace("X", letter) for letter in "cg")
_VLLM: Final = re.compile(r"execute_(?:\d+_)?context_" + "_generation_".join(_BOTH))
#: SGLang names the mode within the brackets, ATOM before them.
_BRACKETS: Final = re.compile(r"(?:step\[(\w+)|(?:\w+_)?(prefill|decode)\[)(.*)\]", re.DOTALL)
_PAIR: Final = re.compile(r"\b(\w+)=(\d{1,18})(?!\d)")
_SUMS: Final = ("sk", "sqsq", "sqsk")
_DIFFUSION: Final = re.compile(r"execute_diffusion_\d+_\d+x\d+")
#: The modes of SGLang's `ForwardMode` that compute tokens.
_MODES: Final = {
    **dict.fromkeys(("extend", "prefill", "split_prefill", "dllm_extend"), PREFILL),
    **dict.fromkeys(("decode", "verify", "target_verify"), DECODE),
    **dict.fromkeys(("draft_extend", "draft_extend_v2"), DECODE),
    "mixed": MIXED,
}


def parse_annotation(name: str) -> Batch | None:
    """The batch that an engine's annotation describes; None for any other name, and for no work."""
    if found := _VLLM.match(name):
        said = {key: int(text) for key, text in found.groupdict().items() if text is not None}
        return _by_requests(Batch("", _group(said, "c"), _group(said, "g")))
    if found := _BRACKETS.match(name):
        mode = _MODES.get((found[1] or found[2]).lower())
        said = {key: int(number) for key, number in _PAIR.findall(found[3])}
        return None if mode is None else _in_brackets(mode, said)
    return Batch(DIFFUSION) if _DIFFUSION.match(name) else None


def _group(said: Mapping[str, int], letter: str) -> Group:
    """A group by its own names: `c` or `g`, and `c_sq` …."""
    sums = (said.get(f"{letter}_{key}") for key in _SUMS)
    group = Group(said.get(letter, 0), said.get(f"{letter}_sq", 0), *sums)
    return NOBODY if not group.requests and not group.tokens else group


def _by_requests(batch: Batch) -> Batch | None:
    """A batch with the phase that its requests are in; None without any."""
    phases = {(True, True): MIXED, (True, False): PREFILL, (False, True): DECODE}
    phase = phases.get((batch.context.requests > 0, batch.generation.requests > 0))
    return None if phase is None else replace(batch, phase=phase)


def _in_brackets(mode: str, said: dict[str, int]) -> Batch | None:
    """The batch of `key=number` pairs.

    `toks` and `tok` count tokens, `bs` requests. Sums without a letter are of the only group, or of
    both where a batch is mixed: then they are filed with the context, as what is asked of attention
    is the same.
    """
    requests = said.get("bs", 0)
    tokens = said.get("toks", said.get("tok"))
    letter = "g" if mode == DECODE else "c"
    if "p" in said and mode == DECODE and said["p"]:  # ATOM's decode path with prompts in it
        generating = said.get("d", requests - said["p"])
        letter = "c"
        said = {**said, "c": said["p"], "g": generating}
        said["g_sq"] = generating * (1 + said.get("spec", 0))
        tokens = max((tokens or 0) - said["g_sq"], 0)
    elif "dec" in said:  # older versions of SGLang
        said |= {"g": said["dec"], "g_sq": said["dec"], "c": max(requests - said["dec"], 0)}
        tokens = said.get("ext", tokens)
    unsaid = mode == MIXED and not ("c" in said and "g" in said)
    for key in _SUMS:
        if key in said:
            said.setdefault(f"{letter}_{key}", said[key])
            said.setdefault(f"{'c' if letter == 'g' else 'g'}_{key}", 0)
    said.setdefault(letter, requests)
    counts_tokens = tokens is not None or "sq" in said or f"{letter}_sq" in said
    if tokens is None:
        tokens = said.get("sq", requests if mode == DECODE else 0)
    said.setdefault(f"{letter}_sq", tokens)
    batch = Batch(mode, _group(said, "c"), _group(said, "g"), counts_tokens)
    if unsaid:  # how many of the requests are in which phase
        return batch if requests else None
    return _by_requests(batch)
