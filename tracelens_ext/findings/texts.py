"""What detectors say: titles, advice, evidence, as dataclasses beside each detector."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tracelens_ext.findings.finding import Confidence
from tracelens_ext.findings.program_facts import Fact, ProgramFacts

#: Kinds of programs of PyTorch that train or infer with a loop of their own, and all of PyTorch.
PYTORCH_JOBS: Final = ("pytorch-training", "pytorch-inference")
PYTORCH_PROGRAMS: Final = ("pytorch-training", "pytorch-inference", "serving")


class Remedy(Enum):
    """What happens to what a finding is about when it is fixed, as the simulation models it."""

    #: GPU events are shorter by the attributed time, and the CPU needs no time where the GPU idles.
    REMOVES_TIME = "goes"
    #: GPU events run beside the rest, on their stream.
    OVERLAPS = "overlaps"
    #: The CPU waits no longer for the GPU: the idle time goes up to its end.
    WAITS_NO_LONGER = "waits no longer"
    #: GPU events go together with their launches and the operations around these.
    REMOVES_LAUNCHES = "launches go"
    #: GPU events are shorter by the attributed time, and iterations launch no more than usual.
    REMOVES_EXTRA_LAUNCHES = "extra launches go"


@dataclass(frozen=True)
class EvidenceText:
    """What a number is that supports a finding.

    Attributes:
        what: what the number is, a clause; it may hold names in braces.
        unit: `ms`, `%`, `GPU events` …
        see: the sheet or the command that shows the number.
    """

    what: str
    unit: str
    see: str


@dataclass(frozen=True)
class Advice:
    """What to change in one kind of program, and that as code."""

    advice: str
    snippet: str = ""


@dataclass(frozen=True, kw_only=True)
class AdviceVariant:
    """What to change, where the program is of some kind and the trace shows some facts.

    Attributes:
        advice: what to change; its first sentence starts with a verb.
        snippet: the change as a line of code; empty where no line does it.
        kinds: the kinds of programs that it is for; empty for all.
        follows: what the program does already, so that this is the next best; the finding names it.
        requires: further facts that the trace has to show.
        excludes: facts that it must not show.
    """

    advice: str
    snippet: str = ""
    kinds: Collection[str] = ()
    follows: Collection[Fact] = ()
    requires: Collection[Fact] = ()
    excludes: Collection[Fact] = ()

    def fits(self, kind: str, facts: ProgramFacts) -> bool:
        """Return whether it is for a program of this kind of which a trace shows these facts."""
        if self.kinds and kind not in self.kinds:
            return False
        if not all(facts.shows(fact) for fact in self.follows):
            return False
        if not all(facts.shows(fact) for fact in self.requires):
            return False
        return not any(facts.shows(fact) for fact in self.excludes)

    def text(self, facts: ProgramFacts) -> str:
        """Return the advice with what the program does already."""
        if not self.follows:
            return self.advice
        followed = ", ".join(facts.words(fact) for fact in self.follows)
        return f"{self.advice} Already in use: {followed}."


def first_fitting(
    variants: Sequence[AdviceVariant], kind: str, facts: ProgramFacts
) -> AdviceVariant | None:
    """Return the first variant that fits; None for none."""
    for variant in variants:
        if variant.fits(kind, facts):
            return variant
    return None


@dataclass(frozen=True, kw_only=True)
class VariantText:
    """What one variant of a finding says instead of its `FindingText`; None for the same.

    Attributes:
        advices: instead of `advice` and `snippet`, the first that fits.
        values: what stands for names in braces.
    """

    title: str | None = None
    advice: str | None = None
    snippet: str | None = None
    advices: Sequence[AdviceVariant] = ()
    confidence: Confidence | None = None
    reason: str | None = None
    documentation: str | None = None
    values: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FindingText:
    """What a finding says.

    In all texts, `{saving}` stands for the attributed time, `{share}` for its share of the analyzed
    time in percent, and other names for what the detector tells in `values`.

    Attributes:
        title: the problem and its cost, such as `Exposed communication: {saving}`.
        advice: what to change, whatever the trace shows; its first sentence starts with a verb.
        snippet: the change as a line of code of PyTorch; empty where no line does it.
        advices: instead of `advice` and `snippet`, the first that fits the program and what the
            trace shows; the last fits any, and says what would have to be known if nothing is left
            to advise.
        confidence: how sure it is that the fix saves as much.
        reason: why so sure, or why not, a clause or a sentence.
        documentation: where the text about it is, if that is not its section of `findings.md`.
        evidence: the numbers that it rests on, by the keyword with which the detector tells each.
        variants: other texts, by the name with which the detector asks for them.
        advice_for: what to change, by kind of program, where that is something else; `other` is for
            kinds that are not named, except those of PyTorch.
        informs_only: whether it claims no time.
        least_share: the share of the attributed time that the fix saves at least, where that rests
            on an assumed speed or depends on the code; unless the detector tells.
        most_share: the share that it may save, where the speed that is assumed may be too low, or
            where launches go that leave gaps between them.
    """

    title: str = ""
    advice: str = ""
    snippet: str = ""
    advices: Sequence[AdviceVariant] = ()
    confidence: Confidence = "medium"
    reason: str = ""
    documentation: str = ""
    evidence: Mapping[str, EvidenceText] = field(default_factory=dict)
    variants: Mapping[str, VariantText] = field(default_factory=dict)
    advice_for: Mapping[str, Advice] = field(default_factory=dict)
    informs_only: bool = False
    least_share: float = 1.0
    most_share: float = 1.0
