"""A detector, and the decorator that makes one of a function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, get_args

from tracelens_ext.analysis.coverage.program import PYTORCH, Kind
from tracelens_ext.findings.texts import Advice, FindingText, Remedy

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding

#: Attributes time of an `inspection.Inspection` and tells what it found; None for nothing. (The
#: module of that class offers the ones of this module to plugins, so it cannot be named here.)
Detect = Callable[[Any], "Finding | None"]


@dataclass(frozen=True)
class Detector:
    """Looks for one kind of finding.

    Attributes:
        id: of the findings, lower case with hyphens.
        detect: attributes time of the inspected trace and tells what it found; None for nothing.
            Detectors are asked one after another, and what one has no later one can have.
        remedy: what happens to the attributed time when the problem is fixed; the value of a
            `Remedy` does, too.
        kinds: the kinds of programs in which it is looked for.
        advice: what to change, and that as code, by kind of program, instead of what `detect` says;
            `other` is for kinds that are not named, except those of PyTorch.
    """

    id: str
    detect: Detect
    remedy: Remedy | str = Remedy.REMOVES_TIME
    kinds: Collection[str] = get_args(Kind)
    advice: Mapping[str, Advice | Sequence[str]] = field(default_factory=dict)

    def with_advice(self, finding: Finding, kind: Kind) -> Finding:
        """Return one of its findings with the advice for a kind of program."""
        advice = self.advice.get(kind)
        if advice is None and kind not in PYTORCH:
            advice = self.advice.get("other")
        if not advice:
            return finding
        if not isinstance(advice, Advice):
            advice = Advice(*advice)
        return replace(finding, advice=advice.advice, snippet=advice.snippet)


def detector(
    ident: str,
    text: FindingText,
    *,
    remedy: Remedy = Remedy.REMOVES_TIME,
    kinds: Collection[str] = get_args(Kind),
) -> Callable[[Detect], Detector]:
    """Make a detector of a function; `order.DETECTORS` has all of this distribution.

    Args:
        ident: the id of its findings.
        text: what they say.
        remedy: what happens to the attributed time when the problem is fixed.
        kinds: the kinds of programs in which it is looked for.
    """

    def make(detect: Detect) -> Detector:
        return Detector(
            id=ident, detect=detect, remedy=remedy, kinds=kinds, advice=text.advice_for
        )

    return make
