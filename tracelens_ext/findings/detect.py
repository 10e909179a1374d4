"""Ask all detectors what they find in a trace."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tracelens_ext.findings.all_clear import ENOUGH, idle_of_unknown_cause, not_known
from tracelens_ext.findings.finding import Finding, Findings, wrong_field
from tracelens_ext.findings.inspection import LEAST_SHARE_PERCENT, Detector, Inspection
from tracelens_ext.findings.savings import remove_claims, with_savings
from tracelens_ext.findings.wall_time import WallTime
from tracelens_ext.hooks import Offered, PluginAnswerError, PluginRegistry, default_registry
from tracelens_ext.hooks.registry import call_within, time_limit
from tracelens_ext.recording.program import program_of
from tracelens_ext.recording.recording import recording_of
from tracelens_ext.recording.told import recording_dict, recording_lines
from tracelens_ext.replay.what_if import Simulation
from tracelens_ext.trace import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracelens_ext.operations.launchers import Launchers
    from tracelens_ext.roofline.found import Roofline
    from tracelens_ext.work.gpu_work import GpuWork

_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_ROUNDING_MS = 1e-3


def find_findings(
    work: GpuWork,
    find_launchers: Callable[[], Launchers],
    find_roofline: Callable[[], Roofline],
    registry: PluginRegistry | None = None,
    simulate: Callable[[], Simulation] | None = None,
) -> Findings:
    """What would save the most wall time of a trace.

    Args:
        work: the GPU events.
        find_launchers: finds the operations that launched them; called if a detector asks.
        find_roofline: finds how good those operations are; likewise.
        registry: the plugins to ask instead of the installed ones.
        simulate: replays the trace; it learns what goes with each finding.

    Returns:
        Findings that claim at least `LEAST_SHARE_PERCENT` of the judged time, and those that only
        inform. None without GPU events.
    """
    program, recording = program_of(work.trace), recording_of(work)
    told = partial(
        Findings,
        recording=recording_dict(work),
        recording_lines=recording_lines(work),
        program={"kind": program.kind, "because": program.because},
        judged_ms=recording.judged_ns / NS_PER_MS,
    )
    if not len(work):
        return told(0.0)
    registry = registry or default_registry()
    inspection = Inspection(work, find_launchers, find_roofline, WallTime(work))
    found: list[Finding] = []
    for offered in offered_detectors(registry):
        if program.kind not in offered.item.kinds:
            continue
        finding = _ask(registry, offered, inspection)
        if finding is not None and (
            finding.informs_only or finding.share_percent >= LEAST_SHARE_PERCENT
        ):
            found.append(offered.item.advised(finding, program.kind))
    found.sort(key=lambda finding: -finding.saving_ms)
    simulation = Simulation(work) if simulate is None else simulate()
    tell_claims(simulation, found, registry)
    found = with_savings(simulation, found)
    claimed = any(finding.claimed_ms for finding in found)
    unknown = "" if claimed else not_known(inspection)
    if claimed and (idle := idle_of_unknown_cause(inspection, ENOUGH * inspection.judged_ns)):
        inspection.note(idle)
    return told(
        recording.wall_ns / NS_PER_MS,
        found,
        inspection.notes,
        all_clear=not unknown and not claimed,
        unknown=unknown,
        idle_by_cause_ms=inspection.wall.classified.idle_by_cause_ms(),
        parts=inspection.wall.parts(),
        model=simulation.model(),
    )


def tell_claims(
    simulation: Simulation, found: Sequence[Finding], registry: PluginRegistry | None = None
) -> None:
    """Tell a simulation what goes with each finding, for `finding:ID`."""
    offered = offered_detectors(registry)
    remove_claims(simulation, found, {each.item.id: each.item.instead for each in offered})


def offered_detectors(registry: PluginRegistry | None = None) -> list[Offered[Detector]]:
    """The detectors of plugins, which know more, then those of this distribution; each id once."""
    registry = registry or default_registry()
    offered = registry.offers("tracelens_findings", _check)
    offered.sort(key=lambda each: each.plugin.own)
    ids: set[str] = set()
    return [
        each
        for each in offered
        if not (each.item.id in ids or ids.add(each.item.id))  # type: ignore[func-returns-value]
    ]


def _check(item: object) -> None:
    if not isinstance(item, Detector):
        kind = type(item).__name__
        raise PluginAnswerError(f"tracelens_findings: expected Detector objects, got {kind}")
    if not _ID.fullmatch(item.id):
        raise PluginAnswerError(f"detector {item.id!r}: an id is lower case with hyphens")


def _ask(
    registry: PluginRegistry, offered: Offered[Detector], inspection: Inspection
) -> Finding | None:
    """What a detector finds; None if it is a plugin's and fails, which is then a problem.

    What a plugin claimed before it failed is nobody's again.
    """
    if offered.plugin.own:
        return offered.item.detect(inspection)
    with registry.guard(offered.plugin.name):
        seen = replace(inspection, wall=inspection.wall.copy(), notes=list(inspection.notes))
        finding = call_within(time_limit(), partial(offered.item.detect, seen))
        claimed = seen.wall.claimed_ns - inspection.wall.claimed_ns
        _check_finding(offered.item, finding, claimed / NS_PER_MS)
        inspection.wall, inspection.notes = seen.wall, seen.notes
        found: Finding | None = finding
        return found
    return None


def _check_finding(detector: Detector, finding: object, claimed_ms: float) -> None:
    """Check what a plugin's detector answers.

    Raises:
        PluginAnswerError: it is no finding of that id, or saves more than it claimed.
    """
    if finding is None:
        return
    if not isinstance(finding, Finding) or finding.id != detector.id:
        raise PluginAnswerError(f"detector {detector.id!r}: expected a Finding of this id")
    wrong = wrong_field(finding)
    if wrong:
        raise PluginAnswerError(f"detector {detector.id!r}: its finding has an odd {wrong}")
    if finding.saving_ms > claimed_ms + _ROUNDING_MS:
        raise PluginAnswerError(
            f"detector {detector.id!r}: saves {finding.saving_ms:,.3f} ms, of which it claimed"
            f" {claimed_ms:,.3f} ms"
        )
