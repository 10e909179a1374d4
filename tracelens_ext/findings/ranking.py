"""The order of findings: what is expected to save most comes first.

The expected saving is the saving weighted by the confidence, so that a bound never ranks above a
certain finding whose saving is at least a third of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, get_args

from tracelens_ext.findings.finding import Confidence, Finding

#: How much of a saving is expected, by the confidence in it.
_WEIGHTS: Final[Mapping[Confidence, float]] = {
    "high": 1.0,
    "medium": 2 / 3,
    "low": 1 / 3,
}
#: The surest first.
LEVELS: Final[tuple[Confidence, ...]] = get_args(Confidence)


def expected_saving_ms(finding: Finding) -> float:
    """Return the saving of a finding, weighted by the confidence in it."""
    return finding.saving_ms * _WEIGHTS.get(finding.confidence, 1 / 3)


def ranked_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings by expected saving; of equal ones the surest first."""

    def key(finding: Finding) -> tuple[float, int]:
        return -expected_saving_ms(finding), LEVELS.index(finding.confidence)

    return sorted(findings, key=key)
