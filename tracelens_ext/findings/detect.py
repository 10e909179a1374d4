"""Ask all detectors what they find in a trace."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from tracelens_ext.findings.finding import Finding, Findings, wrong_field
from tracelens_ext.findings.inspection import LEAST_SHARE_PERCENT, Detector, Inspection
from tracelens_ext.findings.savings import removed, with_savings
from tracelens_ext.findings.wall_time import WallTime
from tracelens_ext.gaps.causes import UNKNOWN
from tracelens_ext.hooks import Offered, PluginAnswerError, PluginRegistry, default_registry
from tracelens_ext.hooks.registry import call_within, time_limit
from tracelens_ext.intervals import union_length
from tracelens_ext.operations.launchers import Launchers
from tracelens_ext.recording.program import program_of
from tracelens_ext.recording.recording import recording_of
from tracelens_ext.recording.told import recording_dict, recording_lines
from tracelens_ext.replay.what_if import Simulation
from tracelens_ext.roofline.found import Roofline
from tracelens_ext.trace import NS_PER_MS, BoolArray
from tracelens_ext.work.gpu_work import GpuWork, find_lanes
from tracelens_ext.work.grouping import group_durations

_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_ROUNDING_MS = 1e-3
_ENOUGH: Final = 0.5  # of the judged time
_NAME: Final = 80  # characters of a kernel


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
    unknown = "" if claimed else _not_known(inspection)
    if claimed and (idle := _idle_of_unknown_cause(inspection, _ENOUGH * inspection.judged_ns)):
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
    """Tell a simulation what goes with each finding that claims time, for `finding:ID`."""
    instead = {each.item.id: each.item.instead for each in offered_detectors(registry)}
    simulation.changes.claims = {
        each.id: removed(simulation, each.claim, instead.get(each.id, ""))
        for each in found
        if each.claim is not None and not each.informs_only
    }


def offered_detectors(registry: PluginRegistry | None = None) -> list[Offered[Detector]]:
    """The detectors of plugins, which know more, then those of this distribution; each id once."""
    offered = (registry or default_registry()).offers("tracelens_findings", _check)
    offered.sort(key=lambda each: each.plugin.own)
    first = {each.item.id: each for each in reversed(offered)}
    return [each for each in offered if first[each.item.id] is each]


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
        finding: Finding | None = call_within(time_limit(), partial(offered.item.detect, seen))
        claimed = seen.wall.claimed_ns - inspection.wall.claimed_ns
        _check_finding(offered.item, finding, claimed / NS_PER_MS)
        inspection.wall, inspection.notes = seen.wall, seen.notes
        return finding
    return None


def _check_finding(detector: Detector, finding: object, claimed_ms: float) -> None:
    """Refuse what is no finding of a plugin's detector, or saves more than it claimed."""
    problem = ""
    if not isinstance(finding, Finding) or finding.id != detector.id:
        problem = "" if finding is None else "expected a Finding of this id"
    elif wrong := wrong_field(finding):
        problem = f"its finding has an odd {wrong}"
    elif finding.saving_ms > claimed_ms + _ROUNDING_MS:
        saves = f"saves {finding.saving_ms:,.3f} ms"
        problem = f"{saves}, of which it claimed {claimed_ms:,.3f} ms"
    if problem:
        raise PluginAnswerError(f"detector {detector.id!r}: {problem}")


def _not_known(inspection: Inspection) -> str:
    """What is not known of a trace without findings; empty where over half was compared.

    Of the idle time, the kernels without a model and the shapes, what is worth most.
    """
    work, judged = inspection.work, inspection.judged_ns
    known = inspection.by_operation(lambda row: row.roofline_ns is not None) > 0
    if _busy(work, known) > _ENOUGH * judged:
        return ""
    missing = inspection.missing
    unmodelled = _busy(work, ~known)
    if told := _idle_of_unknown_cause(inspection, unmodelled):
        return told
    if "shapes" in missing and not inspection.roofline.has_shapes:
        share = 100 * unmodelled / judged
        return (
            f"No shapes were recorded: {share:.1f} % of the judged time cannot be compared with"
            f" anything: {missing['shapes']}."
        )
    groups = group_durations([work.name[~known]], work.duration[~known])
    time, largest, what, shown = int(groups.total.sum()), int(groups.total[0]), "work", ""
    if 2 * largest > time:
        time, what, name = largest, "one kernel", work.trace.names[int(groups.keys[0][0])]
        shown = f", {name if len(name) <= _NAME else f'{name[: _NAME - 1]}…'}"
    share = 100 * time / max(int(work.duration.sum()), 1)
    return (
        f"{share:.0f} % of GPU time is {what} that no model knows{shown}: profile it with"
        f" {inspection.kernel_profiler}."
    )


def _idle_of_unknown_cause(inspection: Inspection, least_ns: float) -> str:
    """How much idle time has no cause, if it is so much at least; else empty."""
    pieces = inspection.wall.classified.pieces
    idle = inspection.wall.mean_ms((pieces.end - pieces.start)[pieces.cause == UNKNOWN]) * NS_PER_MS
    if idle < least_ns:
        return ""
    how = inspection.missing.get("API calls")
    return (
        f"The GPU is idle for {100 * idle / inspection.judged_ns:.1f} % of the judged time, and why"
        f" is not recorded{f': {how}' if how else ''}."
    )


def _busy(work: GpuWork, which: BoolArray) -> float:
    """How long some GPU events run, the mean over the devices, ns."""
    lanes = find_lanes(work, "device")
    mine = [which & (lanes.of_gpu == lane) for lane in range(len(lanes))]
    return sum(union_length(work.start[m], work.end[m]) for m in mine) / max(len(lanes), 1)
