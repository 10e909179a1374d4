"""The class of detectors, and the decorator that turns a function into a detector."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, get_args

from tracelens_ext.analysis.coverage.program import PYTORCH, Kind
from tracelens_ext.findings.texts import Advice, FindingText, Remedy

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding

#: A function that attributes time of an `inspection.Inspection` and returns its finding, or None.
#: (The argument has no type here, because the module of that class imports this one.)
Detect = Callable[[Any], "Finding | None"]


@dataclass(frozen=True)
class Detector:
    """Looks for one kind of finding.

    Attributes:
        id: the id of the findings, lower case with hyphens.
        detect: attributes time of the inspected trace and returns its finding, or None. Detectors
            run one after another, and a later one cannot attribute time that an earlier one has.
        remedy: what happens to the attributed time when the problem is fixed: a `Remedy` or its
            value.
        kinds: the kinds of programs that the detector is for.
        advice: advice and snippet by kind of program, which replace those of `detect`. The kind
            `other` is for all kinds without an entry, except those of PyTorch.
    """

    id: str
    detect: Detect
    remedy: Remedy | str = Remedy.REMOVES_TIME
    kinds: Collection[str] = get_args(Kind)
    advice: Mapping[str, Advice | Sequence[str]] = field(default_factory=dict)

    def with_advice(self, finding: Finding, kind: Kind) -> Finding:
        """Return a finding of this detector with the advice for a kind of program."""
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
    """Return a decorator that turns a function into a detector.

    `order.DETECTORS` lists all built-in detectors.

    Args:
        ident: the id of the findings.
        text: the texts of the findings.
        remedy: what happens to the attributed time when the problem is fixed.
        kinds: the kinds of programs that the detector is for.
    """

    def make(detect: Detect) -> Detector:
        return Detector(
            id=ident, detect=detect, remedy=remedy, kinds=kinds, advice=text.advice_for
        )

    return make
