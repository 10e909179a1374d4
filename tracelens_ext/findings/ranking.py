"""The order of findings: the largest expected saving comes first.

The expected saving is the saving weighted by the confidence. So a finding of low confidence never
ranks above one of high confidence that saves at least a third as much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, get_args

from tracelens_ext.findings.finding import Confidence, Finding

#: The part of a saving that is expected, by the confidence.
_WEIGHTS: Final[Mapping[Confidence, float]] = {
    "high": 1.0,
    "medium": 2 / 3,
    "low": 1 / 3,
}
#: The levels of confidence, the highest first.
LEVELS: Final[tuple[Confidence, ...]] = get_args(Confidence)


def expected_saving_ms(finding: Finding) -> float:
    """Return the saving of a finding, weighted by the confidence in it."""
    return finding.saving_ms * _WEIGHTS.get(finding.confidence, 1 / 3)


def ranked_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings by expected saving; if equal, the higher confidence comes first."""

    def key(finding: Finding) -> tuple[float, int]:
        return -expected_saving_ms(finding), LEVELS.index(finding.confidence)

    return sorted(findings, key=key)
