"""Ask all detectors what they find in a trace, and a replay of it what that saves."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, get_args

import numpy as np

from tracelens_ext.analysis.coverage.coverage import recording_of
from tracelens_ext.analysis.coverage.program import program_of
from tracelens_ext.analysis.coverage.report_tables import recording_dict, recording_lines
from tracelens_ext.analysis.idle_time.causes import Cause
from tracelens_ext.analysis.operations.launchers import Launchers
from tracelens_ext.findings.finding import Claim, Confidence, Finding, Findings, saving_text
from tracelens_ext.findings.inspection import (
    LEAST_SHARE_PERCENT,
    Detector,
    FailedPartError,
    Inspection,
)
from tracelens_ext.findings.texts import Remedy
from tracelens_ext.findings.wall_time import WallTime
from tracelens_ext.hooks import Offered, PluginAnswerError, PluginRegistry, default_registry
from tracelens_ext.hooks.registry import call_within, time_limit
from tracelens_ext.isolation import PartFailures
from tracelens_ext.roofline.analysis import Roofline
from tracelens_ext.simulation.scenarios import Named, Removed
from tracelens_ext.simulation.simulation import Simulation
from tracelens_ext.trace import NONE, NS_PER_MS, BoolArray
from tracelens_ext.trace.gpu_events import GpuEvents, find_gaps, find_tracks
from tracelens_ext.trace.grouping import group_durations, sums
from tracelens_ext.trace.intervals import union_length

_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_ROUNDING_MS = 1e-3
_ENOUGH: Final = 0.5  # of the judged time
_NAME: Final = 80  # characters of a kernel
_ALL_FAILED: Final = "What the findings leave open is not known."


def find_findings(
    work: GpuEvents,
    find_launchers: Callable[[], Launchers],
    find_roofline: Callable[[], Roofline],
    registry: PluginRegistry | None = None,
    simulate: Callable[[], Simulation] | None = None,
    failures: PartFailures | None = None,
) -> Findings:
    """What would save the most wall time of a trace.

    Args:
        work: the GPU events.
        find_launchers: finds the operations that launched them; called if a detector asks.
        find_roofline: finds how good those operations are; likewise.
        registry: the plugins to ask instead of the installed ones.
        simulate: replays the trace; it learns what goes with each finding.
        failures: takes the sentences about detectors, the roofline and the simulation that failed;
            without the simulation, savings are the attributed time.

    Returns:
        Findings that claim at least `LEAST_SHARE_PERCENT` of the judged time, and those that only
        inform. None without GPU events.
    """
    program = program_of(work.trace)
    recording = recording_of(work)
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
    failures = PartFailures() if failures is None else failures
    inspection = Inspection(work, find_launchers, find_roofline, WallTime(work), failures=failures)
    found: list[Finding] = []
    for offered in offered_detectors(registry):
        if program.kind not in offered.item.kinds:
            continue
        finding = _ask(registry, offered, inspection, failures)
        if finding and (finding.informs_only or finding.share_percent >= LEAST_SHARE_PERCENT):
            found.append(offered.item.with_advice(finding, program.kind))
    found.sort(key=lambda finding: -finding.saving_ms)
    inspection.idle_moments.cache_clear()  # a replay needs memory, too
    model: Mapping[str, object] = {}
    with failures.isolate("The simulation"):
        simulation = Simulation(work) if simulate is None else simulate()
        tell_claims(simulation, found, registry)
        found = _with_savings(simulation, found)
        model = simulation.model()
    claimed = any(finding.claimed_ms for finding in found)
    unknown = _ALL_FAILED
    with failures.isolate("What the findings leave open"), suppress(FailedPartError):
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
        model=model,
    )


def tell_claims(
    simulation: Simulation, found: Sequence[Finding], registry: PluginRegistry | None = None
) -> None:
    """Tell a simulation what goes with each finding that claims time, for `finding:ID`."""
    remedies = {each.item.id: Remedy(each.item.remedy) for each in offered_detectors(registry)}
    simulation.changes.claims = {
        each.id: _removed(simulation, each.claim, remedies.get(each.id, Remedy.REMOVES_TIME))
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
    registry: PluginRegistry,
    offered: Offered[Detector],
    inspection: Inspection,
    failures: PartFailures,
) -> Finding | None:
    """What a detector finds; None if it fails, which is then reported.

    What it claimed before it failed is nobody's again.
    """
    if offered.plugin.own:
        wall = inspection.wall.copy()
        notes = list(inspection.notes)
        with failures.isolate(f"The finding {offered.item.id}"), suppress(FailedPartError):
            return offered.item.detect(inspection)
        inspection.wall = wall
        inspection.notes = notes
        return None
    with registry.guard(offered.plugin.name):
        seen = replace(inspection, wall=inspection.wall.copy(), notes=list(inspection.notes))
        finding: Finding | None = call_within(time_limit(), partial(offered.item.detect, seen))
        claimed = seen.wall.claimed_ns - inspection.wall.claimed_ns
        _check_finding(offered.item, finding, claimed / NS_PER_MS)
        inspection.wall = seen.wall
        inspection.notes = seen.notes
        return finding
    return None


def _check_finding(detector: Detector, finding: object, claimed_ms: float) -> None:
    """Refuse what is no finding of a plugin's detector, or saves more than it claimed."""
    problem = ""
    if not isinstance(finding, Finding) or finding.id != detector.id:
        problem = "" if finding is None else "expected a Finding of this id"
    elif wrong := finding.wrong_field:
        problem = f"its finding has an odd {wrong}"
    elif finding.saving_ms > claimed_ms + _ROUNDING_MS:
        problem = f"saves {finding.saving_ms:,.3f} ms, of which it claimed {claimed_ms:,.3f} ms"
    if problem:
        raise PluginAnswerError(f"detector {detector.id!r}: {problem}")


def _not_known(inspection: Inspection) -> str:
    """What is not known of a trace without findings; empty where over half was compared.

    Of the idle time, the kernels without a model and the shapes, what is worth most.
    """
    work = inspection.work
    judged = inspection.judged_ns
    known = inspection.by_operation(lambda row: row.roofline_ns is not None) > 0
    if _busy(work, known) > _ENOUGH * judged:
        return ""
    missing = inspection.missing
    unmodelled = _busy(work, ~known)
    if told := _idle_of_unknown_cause(inspection, unmodelled):
        return told
    if "shapes" in missing and not inspection.roofline.has_shapes:
        part = f"{100 * unmodelled / judged:.1f} % of the judged time"
        how = missing["shapes"]
        return f"No shapes were recorded: {part} cannot be compared with anything: {how}."
    groups = group_durations([work.name[~known]], work.duration[~known])
    time = int(groups.total.sum())
    largest = int(groups.total[0])
    what = "work"
    shown = ""
    if 2 * largest > time:
        time = largest
        what = "one kernel"
        name = work.trace.names[int(groups.keys[0][0])]
        shown = f", {name if len(name) <= _NAME else f'{name[: _NAME - 1]}…'}"
    share = 100 * time / max(int(work.duration.sum()), 1)
    said = f"{share:.0f} % of GPU time is {what} that no model knows{shown}"
    return f"{said}: profile it with {inspection.kernel_profiler}."


def _idle_of_unknown_cause(inspection: Inspection, least_ns: float) -> str:
    """How much idle time has no cause, if it is so much at least; else empty."""
    pieces = inspection.wall.classified.intervals
    idle = (
        inspection.wall.mean_ms((pieces.end - pieces.start)[pieces.cause == Cause.UNKNOWN.code])
        * NS_PER_MS
    )
    if idle < least_ns:
        return ""
    how = inspection.missing.get("API calls")
    said = f"The GPU is idle for {100 * idle / inspection.judged_ns:.1f} % of the judged time"
    return f"{said}, and why is not recorded{f': {how}' if how else ''}."


def _busy(work: GpuEvents, which: BoolArray) -> float:
    """How long some GPU events run, the mean over the devices, ns."""
    tracks = find_tracks(work, "device")
    mine = [which & (tracks.of_gpu == device_index) for device_index in range(len(tracks))]
    return sum(union_length(work.start[m], work.end[m]) for m in mine) / max(len(tracks), 1)


#: An error of the replay below which the edges alone tell how sure a saving is, percent.
_SMALL_ERROR: Final = 3.0
#: A saving that differs by less, as a share, is not told beside the claim.
_SAME = 0.1


def _removed(simulation: Simulation, claim: Claim, remedy: Remedy) -> Removed:
    """Kernels become shorter by what is claimed; the host needs no time where the GPU idles.

    What overlaps leaves its streams. Where launches go, so does the time in their operations. Where
    the host waited, the idle time goes to its end: also what the call needs to return, and
    the launch after it to start.
    """
    program = simulation.program
    claimed = claim.intervals
    trace = program.work.trace
    tree = program.work.tree
    began = program.window[0]
    busy = claimed.event != NONE
    of_node = program.node_of_event[claimed.event[busy]]
    ns = (claimed.end - claimed.start)[busy]
    shorter = sums(of_node + 1, ns, len(program.duration) + 1)[1:]  # without those of no node
    if remedy is Remedy.OVERLAPS:
        shorter = np.where(shorter > 0, program.duration - program.waiting, 0)
    beside = (shorter > 0) & (remedy is Remedy.OVERLAPS)
    start, end, _, gap, _, thread = claimed.chosen(~busy & (claimed.end > began))
    of_gap = program.node_of_event[find_gaps(program.work, "device").after[gap]]
    standstill = sums(of_gap + 1, end - start, len(program.duration) + 1)[1:]
    clock = np.where(thread == NONE, 0, program.clocks.of_thread[thread])
    if remedy is Remedy.REMOVES_LAUNCHES:
        gone = np.flatnonzero((2 * shorter > program.duration) & (program.launch != NONE))
        operation = tree.cpu_op_of_gpu[program.event[gone]]
        rows = np.unique(np.where(operation == NONE, program.launch[gone], operation))
        rows = rows[rows < trace.recorded]
        clock = np.append(clock, program.clocks.of_thread[trace.thread[rows]])
        start = np.append(start, trace.ts[rows])
        end = np.append(end, trace.end_of(rows))
    start = start - began
    end = end - began
    mine = [clock == number for number in range(len(program.clocks.end))]
    host = [(np.maximum(start[m], 0), np.maximum(end[m], 0)) for m in mine]
    if remedy is not Remedy.WAITS_NO_LONGER:
        return Removed(shorter, beside, host, standstill=standstill)
    node = program.node_of_event[find_gaps(program.work, "device").after[gap]]
    called = (node != NONE) & (program.call[node] != NONE)
    waited = (end - np.maximum(start, program.call[node]))[called]
    node = node[called]
    sooner = np.clip(sums(node, waited, len(shorter)), 0, simulation.replay.latency)
    tail = np.zeros_like(program.block_start)
    for number, which in enumerate(mine):
        block = np.flatnonzero(program.block_clock == number)
        at = np.searchsorted(program.block_start[block], end[which]) - 1
        after_a_block = at >= 0
        block = block[at[after_a_block]]
        begin = start[which][after_a_block]
        np.add.at(tail, block, program.block_end[block] - begin)
    tail = np.clip(tail, 0, np.maximum(simulation.replay.tail, 0))
    return Removed(shorter, beside, host, sooner, tail, standstill)


def _with_savings(simulation: Simulation, findings: Sequence[Finding]) -> list[Finding]:
    """The findings with what each saves alone, and after those before it, the most first."""
    claims = simulation.changes.claims
    asked = [each for each in findings if each.id in claims]
    if not asked:
        return list(findings)
    # A pass costs much the same for any number of changes. What claims more mostly saves more, so
    # that few sums, if any, are left for a second pass.
    saved = _saved(simulation, [[each] for each in asked] + _first(asked))
    if simulation.state != "good":
        return list(findings)
    alone = np.array([saved[_ids([each])] for each in asked])
    order = np.argsort(-alone, kind="stable")
    asked = [asked[i] for i in order.tolist()]
    saved |= _saved(simulation, [its for its in _first(asked) if _ids(its) not in saved])
    more = np.diff([saved[_ids(its)] for its in _first(asked)], prepend=0)
    both = (np.column_stack((alone[order], more)) / NS_PER_MS).tolist()
    sure, why = _confidence(simulation)
    # the surest first
    levels = get_args(Confidence)
    result = []
    for finding, (saving, together) in zip(asked, both, strict=True):
        # which tells the claim
        share = saving / finding.claimed_ms
        title = finding.title
        low = finding.saving_low_ms
        high = finding.saving_high_ms
        if abs(1 - share) > _SAME:
            told = saving_text(saving, share * finding.share_percent)
            title += f"; without it {told} are saved"
        result.append(
            replace(
                finding,
                title=title,
                saving_ms=saving,
                saving_together_ms=together,
                simulated=True,
                saving_low_ms=None if low is None else low * share,
                saving_high_ms=None if high is None else max(high * share, saving),
                confidence=max(finding.confidence, sure, key=levels.index),
                confidence_reason=f"{finding.confidence_reason}; {why}",
            )
        )
    return result + [each for each in findings if each.id not in claims]


def _first(findings: Sequence[Finding]) -> list[Sequence[Finding]]:
    """The first of some findings, the first two, and so on."""
    return [findings[: i + 1] for i in range(len(findings))]


def _ids(findings: Sequence[Finding]) -> frozenset[str]:
    return frozenset(each.id for each in findings)


def _saved(
    simulation: Simulation, together: Sequence[Sequence[Finding]]
) -> dict[frozenset[str], int]:
    """What is saved without the claims of some findings, whatever their order, ns."""
    if not together:
        return {}
    asked = {_ids(its): its for its in together}
    named = [Named("", tuple((f"finding:{e.id}", 0.0) for e in its)) for its in asked.values()]
    # One change at a time: each has as many numbers as the program.
    saved = simulation.saved(simulation.changes.change(each) for each in named)
    return dict(zip(asked, saved.tolist(), strict=True))


def _confidence(simulation: Simulation) -> tuple[Confidence, str]:
    """How sure a replay is by the edges that its critical path hangs on."""
    known = simulation.known_edges
    error = f"the replay of the trace is {simulation.error_percent:+.1f} % off"
    if known == 1.0:
        level: Confidence = "high" if abs(simulation.error_percent) <= _SMALL_ERROR else "medium"
        return level, f"{error}, by edges that the recording tells"
    return "medium", f"{error}; {100 * (1 - known):.0f} % of the waits it hangs on are assumed"
