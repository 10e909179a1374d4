"""Titles of findings that name the place with most of the finding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from tracelens_ext.analysis.iterations.named_iterations import named_iterations
from tracelens_ext.findings.finding import Finding, Place
from tracelens_ext.findings.summary import TITLE_SHARE, places_of_most_telling_kind
from tracelens_ext.report.tables.short_names import cut_middle
from tracelens_ext.text import NO_OPERATION, ms_text
from tracelens_ext.trace.gpu_events import GpuEvents

_NAME_LENGTH: Final = 48
#: With fewer iterations the title has no time per step.
_FEWEST_ITERATIONS: Final = 2
#: Findings whose titles name a place already, or need none.
_OTHER_TITLES: Final = frozenset({"slow-iterations", "synchronization", "slow-link"})


def with_places_in_titles(
    gpu_events: GpuEvents, findings: Iterable[Finding]
) -> list[Finding]:
    """Return the findings, with the place that has more than half of each in its title."""
    iterations, _, _ = named_iterations(gpu_events.tree, None)
    count = len(iterations)
    result = []
    for finding in findings:
        place = _place_with_most(finding)
        if place is None:
            result.append(finding)
            continue
        name = cut_middle(place.name, _NAME_LENGTH)
        suffix = f", mostly in {name}"
        if name.startswith("before "):
            suffix = f", mostly {name}"
        if count >= _FEWEST_ITERATIONS and place.count >= count:
            suffix += f", {ms_text(place.attributed_ms / count)} per step"
        result.append(replace(finding, title=finding.title + suffix))
    return result


def _place_with_most(finding: Finding) -> Place | None:
    """Return the place to name in the title, or None."""
    if finding.informs_only or finding.id in _OTHER_TITLES:
        return None
    for place in places_of_most_telling_kind(finding)[:1]:
        has_most = place.attributed_ms > TITLE_SHARE * finding.attributed_ms
        is_named = place.name in finding.title or ", mostly" in finding.title
        if has_most and place.name and place.name != NO_OPERATION and not is_named:
            return place
    return None
