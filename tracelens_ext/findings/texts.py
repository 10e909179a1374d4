"""The texts of findings: titles, advice and evidence, as dataclasses beside each detector."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tracelens_ext.findings.finding import Confidence
from tracelens_ext.findings.program_facts import Fact, ProgramFacts

#: Kinds of PyTorch programs that train or infer in a loop of their own.
PYTORCH_JOBS: Final = ("pytorch-training", "pytorch-inference")
#: All kinds of PyTorch programs.
PYTORCH_PROGRAMS: Final = ("pytorch-training", "pytorch-inference", "serving")


class Remedy(Enum):
    """What the fix of a finding changes in the simulated program."""

    #: GPU events become shorter by the attributed time, and the CPU needs no time where the GPU
    #: idles.
    REMOVES_TIME = "goes"
    #: GPU events overlap all other work; they only hold up their own stream.
    OVERLAPS = "overlaps"
    #: The CPU no longer waits for the GPU, and the idle time disappears.
    WAITS_NO_LONGER = "waits no longer"
    #: GPU events disappear, together with their launches and the operations around these.
    REMOVES_LAUNCHES = "launches go"
    #: GPU events become shorter by the attributed time, and slow iterations launch only as much
    #: work as the others.
    REMOVES_EXTRA_LAUNCHES = "extra launches go"


@dataclass(frozen=True)
class EvidenceText:
    """The description of a number that supports a finding.

    Attributes:
        what: what the number means, as a clause; it may contain names in braces.
        unit: such as `ms`, `%`, `GPU events`.
        see: the sheet or the command that shows the number.
    """

    what: str
    unit: str
    see: str


@dataclass(frozen=True)
class Advice:
    """What to change in one kind of program, in words and as code."""

    advice: str
    snippet: str = ""


@dataclass(frozen=True, kw_only=True)
class AdviceVariant:
    """What to change if the program is of some kind and the trace shows some facts.

    Attributes:
        advice: what to change; the first sentence starts with a verb.
        snippet: the change as a line of code; empty if one line is not enough.
        kinds: the kinds of programs that the advice is for; empty for all.
        follows: what the program has to do already. The finding mentions it, because this advice is
            the next best thing to do.
        requires: further facts that the trace has to show.
        excludes: facts that the trace must not show.
    """

    advice: str
    snippet: str = ""
    kinds: Collection[str] = ()
    follows: Collection[Fact] = ()
    requires: Collection[Fact] = ()
    excludes: Collection[Fact] = ()

    def fits(self, kind: str, facts: ProgramFacts) -> bool:
        """Return whether the advice fits a kind of program and the facts about it."""
        if self.kinds and kind not in self.kinds:
            return False
        if not all(facts.shows(fact) for fact in self.follows):
            return False
        if not all(facts.shows(fact) for fact in self.requires):
            return False
        return not any(facts.shows(fact) for fact in self.excludes)

    def text(self, facts: ProgramFacts) -> str:
        """Return the advice, followed by what the program does already."""
        if not self.follows:
            return self.advice
        followed = ", ".join(facts.words(fact) for fact in self.follows)
        return f"{self.advice} Already in use: {followed}."


def first_fitting(
    variants: Sequence[AdviceVariant], kind: str, facts: ProgramFacts
) -> AdviceVariant | None:
    """Return the first variant that fits; None if none does."""
    for variant in variants:
        if variant.fits(kind, facts):
            return variant
    return None


@dataclass(frozen=True, kw_only=True)
class VariantText:
    """The texts of one variant of a finding; None for a text of its `FindingText`.

    Attributes:
        advices: variants of the advice; the first that fits replaces `advice` and `snippet`.
        values: values for the names in braces.
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
    """The texts of a finding.

    In all texts, `{saving}` stands for the attributed time, `{share}` for its share of the analyzed
    time in percent, and other names in braces for the `values` that the detector gives.

    Attributes:
        title: the problem and its cost, such as `Exposed communication: {saving}`.
        advice: what to change; the first sentence starts with a verb.
        snippet: the change as a line of PyTorch code; empty if one line is not enough.
        advices: variants of the advice; the first that fits replaces `advice` and `snippet`. The
            last one fits every program; if nothing is left to advise, it says what to find out.
        confidence: how sure it is that the fix saves this time.
        reason: the reason for the confidence, a clause or a sentence.
        documentation: a command or URL that shows the text about the finding; empty: its section of
            `findings.md`.
        evidence: the descriptions of the numbers, by the names that the detector gives them.
        variants: other texts by name; the detector chooses one.
        advice_for: other advice by kind of program. The kind `other` is for all kinds without an
            entry, except those of PyTorch.
        informs_only: True if the finding attributes no time.
        least_share: the least share of the attributed time that the fix saves, if the saving rests
            on an assumed speed or depends on the code. A detector may give the least saving itself.
        most_share: the share that the fix may save if the assumed speed is too low, or if the gaps
            between launches go with them.
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
