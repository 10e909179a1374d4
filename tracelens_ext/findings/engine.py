"""Runs all detectors on a trace, and a simulation that tells how much each finding saves."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from tracelens_ext.analysis.coverage.coverage import coverage_of
from tracelens_ext.analysis.coverage.program import program_of
from tracelens_ext.analysis.coverage.report_tables import (
    recording_dict,
    recording_lines,
)
from tracelens_ext.analysis.operations.launchers import Launchers
from tracelens_ext.findings.finding import Finding, Findings
from tracelens_ext.findings.inspection import (
    LEAST_SHARE_PERCENT,
    Detector,
    FailedPartError,
    Inspection,
)
from tracelens_ext.findings.ranking import ranked_findings
from tracelens_ext.findings.recording_doubts import (
    has_little_work,
    suspect_sentences,
    too_little_recorded,
)
from tracelens_ext.findings.removal import removed_by
from tracelens_ext.findings.savings import bounded, with_savings
from tracelens_ext.findings.texts import Remedy
from tracelens_ext.findings.time_use import idle_of_unknown_cause, time_use
from tracelens_ext.findings.title_place import with_places_in_titles
from tracelens_ext.findings.wall_time import WallTime
from tracelens_ext.hooks import (
    Offered,
    PluginAnswerError,
    PluginRegistry,
    default_registry,
)
from tracelens_ext.hooks.registry import call_within, time_limit
from tracelens_ext.isolation import PartFailures
from tracelens_ext.roofline.analysis import Roofline
from tracelens_ext.simulation.simulation import Simulation
from tracelens_ext.trace import NS_PER_MS, BoolArray
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import group_durations
from tracelens_ext.trace.intervals import union_length
from tracelens_ext.trace.launches import find_launches

_ID: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
#: The saving of a plugin's finding may exceed the attributed time by rounding.
_ROUNDING_MS: Final = 1e-3
#: The share from which on something counts as most of the analyzed time, or most launches.
_MOST: Final = 0.5
#: The most characters of a kernel's name in sentences.
_NAME_LENGTH: Final = 80
_ALL_FAILED: Final = "Findings that could not be computed may change this result."
_MOST_KERNELS_LACK: Final = (
    "Most launches have no kernel in the recording, so idle time is not analyzed: the "
    "GPU may have been busy."
)


def find_findings(
    gpu_events: GpuEvents,
    find_launchers: Callable[[], Launchers],
    find_roofline: Callable[[], Roofline],
    registry: PluginRegistry | None = None,
    simulate: Callable[[], Simulation] | None = None,
    failures: PartFailures | None = None,
) -> Findings:
    """Return the findings of a trace: what would save the most wall time.

    Args:
        gpu_events: the GPU events.
        find_launchers: finds the operations that launched them; called only if a detector needs it.
        find_roofline: compares those operations with the best case; called only if needed.
        registry: the plugins to ask; None: the installed plugins.
        simulate: simulates the trace; None: the whole recording. If the simulation fails, savings
            are the attributed time.
        failures: collects the detectors and other parts that failed.

    Returns:
        The findings with at least `LEAST_SHARE_PERCENT` of the analyzed time, and the findings that
        only inform. Without GPU events there are no findings.
    """
    program = program_of(gpu_events.trace)
    recording = coverage_of(gpu_events)
    with_recording = partial(
        Findings,
        recording=recording_dict(gpu_events),
        recording_lines=recording_lines(gpu_events),
        program={"kind": program.kind, "because": program.because},
        analyzed_ms=recording.analyzed_ns / NS_PER_MS,
    )
    if not len(gpu_events):
        return with_recording(0.0)
    if registry is None:
        registry = default_registry()
    if failures is None:
        failures = PartFailures()
    if simulate is None:
        simulate = partial(Simulation, gpu_events)
    inspection = Inspection(
        gpu_events,
        find_launchers,
        find_roofline,
        WallTime(gpu_events),
        failures=failures,
    )
    first_sentences = suspect_sentences(gpu_events)
    if _lacks_most_kernels(gpu_events):
        inspection.wall.forgo_idle_time()
        first_sentences.append(_MOST_KERNELS_LACK)
    findings = _ask_detectors(registry, inspection)
    too_little = too_little_recorded(gpu_events)
    if too_little:
        first_sentences.append(too_little)
        findings = _without_rates(gpu_events, findings)
    findings = with_places_in_titles(gpu_events, findings)
    inspection.idle_moments.cache_clear()  # frees memory for the simulation
    simulated = _simulated(findings, simulate, registry, failures)
    has_claims = any(finding.attributed_ms for finding in simulated.findings)
    unknown = _open_question(inspection, first_sentences, has_claims=has_claims)
    if too_little:
        unknown = too_little
    return with_recording(
        recording.wall_ns / NS_PER_MS,
        simulated.findings,
        inspection.notes,
        all_clear=not unknown and not has_claims,
        unknown=unknown,
        first_sentences=first_sentences,
        time_use=_time_use_sentences(inspection),
        idle_by_cause_ms=inspection.wall.classified.idle_by_cause_ms(),
        parts=inspection.wall.idle_time_of_parts(),
        model=simulated.model,
    )


def _open_question(
    inspection: Inspection, first_sentences: list[str], *, has_claims: bool
) -> str:
    """Return a sentence about what the findings leave open; empty if they leave nothing open."""
    failures = inspection.failures
    with failures.isolate("What the findings leave open"), suppress(FailedPartError):
        return _what_is_left_open(inspection, first_sentences, has_claims=has_claims)
    return _ALL_FAILED


def _time_use_sentences(inspection: Inspection) -> list[str]:
    """Return sentences about what the time is spent on; empty if they cannot be computed."""
    failures = inspection.failures
    with failures.isolate("What the time is spent on"), suppress(FailedPartError):
        return time_use(inspection)
    return []


class _Simulated(NamedTuple):
    """Findings with their savings, and the facts about the simulation that gave them."""

    findings: list[Finding]
    model: Mapping[str, object]  #: empty if the simulation failed


def _simulated(
    findings: list[Finding],
    simulate: Callable[[], Simulation],
    registry: PluginRegistry,
    failures: PartFailures,
) -> _Simulated:
    """Simulate how much each finding saves. If this fails, savings are the attributed time."""
    with failures.isolate("The simulation"):
        simulation = simulate()
        tell_claims(simulation, findings, registry)
        return _Simulated(with_savings(simulation, findings), simulation.json_model())
    return _Simulated(bounded(findings), {})


def _without_rates(gpu_events: GpuEvents, findings: list[Finding]) -> list[Finding]:
    """Return the findings that a short recording supports: only those that inform, if any."""
    if has_little_work(gpu_events):
        return []
    return [finding for finding in findings if finding.informs_only]


def _lacks_most_kernels(gpu_events: GpuEvents) -> bool:
    """Return whether most launches have no GPU event in the file.

    The GPU may then have worked while it seems idle.
    """
    launches = find_launches(gpu_events)
    is_lost = launches.lost[launches.is_kernel | launches.is_graph]
    return len(is_lost) > 0 and bool(is_lost.mean() > _MOST)


def tell_claims(
    simulation: Simulation,
    findings: Sequence[Finding],
    registry: PluginRegistry | None = None,
) -> None:
    """Tell a simulation what fixing each finding removes, for the changes `finding:ID`."""
    remedies = {}
    for offered in offered_detectors(registry):
        remedies[offered.item.id] = Remedy(offered.item.remedy or Remedy.REMOVES_TIME)
    claims = {}
    for finding in findings:
        if finding.claim is not None and not finding.informs_only:
            remedy = remedies.get(finding.id, Remedy.REMOVES_TIME)
            claims[finding.id] = removed_by(simulation, finding.claim, remedy)
    simulation.changes.claims = claims


def offered_detectors(
    registry: PluginRegistry | None = None,
) -> list[Offered[Detector]]:
    """Return the detectors of plugins, then the built-in ones.

    A detector of a plugin replaces the built-in detector with the same id.
    """
    if registry is None:
        registry = default_registry()
    all_offered = registry.offers("tracelens_findings", _check_detector)
    all_offered.sort(key=lambda offered: offered.plugin.own)
    by_id: dict[str, Offered[Detector]] = {}
    for offered in all_offered:
        by_id.setdefault(offered.item.id, offered)
    return list(by_id.values())


def _check_detector(item: object) -> None:
    """Check that an item of a plugin is a detector with a valid id.

    Raises:
        PluginAnswerError: it is not.
    """
    if not isinstance(item, Detector):
        kind = type(item).__name__
        raise PluginAnswerError(
            f"tracelens_findings: expected Detector objects, got {kind}"
        )
    if not _ID.fullmatch(item.id):
        raise PluginAnswerError(
            f"detector {item.id!r}: an id is lower case with hyphens"
        )


def _ask_detectors(registry: PluginRegistry, inspection: Inspection) -> list[Finding]:
    """Return the findings of all detectors, the largest expected saving first."""
    kind = program_of(inspection.gpu_events.trace).kind
    findings: list[Finding] = []
    for offered in offered_detectors(registry):
        if kind not in offered.item.kinds:
            continue
        if offered.plugin.own:
            finding = _ask_own(offered.item, inspection)
        else:
            finding = _ask_plugin(registry, offered, inspection)
        if finding is None:
            continue
        if finding.informs_only or finding.share_percent >= LEAST_SHARE_PERCENT:
            findings.append(offered.item.with_advice(finding, kind))
    return ranked_findings(findings)


def _ask_own(detector: Detector, inspection: Inspection) -> Finding | None:
    """Return the finding of a built-in detector; None without one.

    If the detector fails, the failure is recorded and the claims that it made are undone.
    """
    wall = inspection.wall.copy()
    notes = list(inspection.notes)
    part = f"The finding {detector.id}"
    with inspection.failures.isolate(part), suppress(FailedPartError):
        return detector.detect(inspection)
    inspection.wall = wall
    inspection.notes = notes
    return None


def _ask_plugin(
    registry: PluginRegistry, offered: Offered[Detector], inspection: Inspection
) -> Finding | None:
    """Return the finding of a plugin's detector; None without one.

    If the detector fails, the failure is recorded and the claims that it made are undone.
    """
    with registry.guard(offered.plugin.name):
        own_inspection = replace(
            inspection, wall=inspection.wall.copy(), notes=list(inspection.notes)
        )
        detect = partial(offered.item.detect, own_inspection)
        finding: Finding | None = call_within(time_limit(), detect)
        attributed_ns = (
            own_inspection.wall.attributed_ns - inspection.wall.attributed_ns
        )
        _check_finding(offered.item, finding, attributed_ns / NS_PER_MS)
        inspection.wall = own_inspection.wall
        inspection.notes = own_inspection.notes
        return finding
    return None


def _check_finding(detector: Detector, finding: object, attributed_ms: float) -> None:
    """Check the answer of a plugin's detector.

    Raises:
        PluginAnswerError: it is not a valid finding of the detector, or saves more than it claimed.
    """
    if finding is None:
        return
    problem = ""
    if not isinstance(finding, Finding) or finding.id != detector.id:
        problem = "expected a Finding of this id"
    elif finding.wrong_field:
        problem = f"its finding has an invalid {finding.wrong_field}"
    elif finding.saving_ms > attributed_ms + _ROUNDING_MS:
        problem = f"saves {finding.saving_ms:,.3f} ms, of which it claimed {attributed_ms:,.3f} ms"
    if problem:
        raise PluginAnswerError(f"detector {detector.id!r}: {problem}")


def _what_is_left_open(
    inspection: Inspection, first_sentences: list[str], *, has_claims: bool
) -> str:
    """Return a sentence about what is not known, if there are no findings.

    If most of the analyzed time is idle for an unknown cause, `first_sentences` gets a sentence
    about that.
    """
    idle = idle_of_unknown_cause(inspection, _MOST * inspection.analyzed_ns)
    if idle:
        first_sentences.append(idle)
    if has_claims:
        return ""
    return _what_is_unknown(inspection)


def _what_is_unknown(inspection: Inspection) -> str:
    """Return a sentence about what is not known of a trace without findings.

    It is about the largest unknown: idle time, missing shapes, or kernels without a performance
    model. It is empty if most of the analyzed time could be compared with the roofline.
    """
    gpu_events = inspection.gpu_events
    analyzed_ns = inspection.analyzed_ns
    is_analyzed = ~coverage_of(gpu_events).is_set_aside(gpu_events)
    has_model = inspection.by_operation(lambda row: row.roofline_ns is not None) > 0
    if _mean_busy_ns(inspection.wall, is_analyzed & has_model) > _MOST * analyzed_ns:
        return ""
    is_unknown = is_analyzed & ~has_model
    unknown_ns = _mean_busy_ns(inspection.wall, is_unknown)
    idle = idle_of_unknown_cause(inspection, unknown_ns)
    if idle:
        return idle
    if "shapes" in inspection.missing and not inspection.roofline.has_shapes:
        percent = 100 * unknown_ns / analyzed_ns
        how = inspection.missing["shapes"]
        return (
            f"No shapes were recorded, so {percent:.1f} % of the analyzed time cannot "
            f"be compared with the limits of the GPU; record them with {how}."
        )
    if not is_unknown.any():
        return ""
    groups = group_durations(
        [gpu_events.name[is_unknown]], gpu_events.duration[is_unknown]
    )
    unknown_kernels_ns = int(groups.total.sum())
    largest_ns = int(groups.total[0])
    all_ns = max(int(gpu_events.duration[is_analyzed].sum()), 1)
    profiler = inspection.kernel_profiler
    if 2 * largest_ns > unknown_kernels_ns:
        name = _shortened_name(gpu_events.trace.names[int(groups.keys[0][0])])
        percent = 100 * largest_ns / all_ns
        return (
            f"One kernel without a performance model, {name}, takes {percent:.0f} % "
            f"of GPU time; profile it with {profiler}."
        )
    percent = 100 * unknown_kernels_ns / all_ns
    return (
        f"Kernels without a performance model take {percent:.0f} % of GPU time; "
        f"profile them with {profiler}."
    )


def _shortened_name(name: str) -> str:
    """Return a name, cut to the length that sentences allow."""
    if len(name) <= _NAME_LENGTH:
        return name
    return f"{name[: _NAME_LENGTH - 1]}…"


def _mean_busy_ns(wall: WallTime, which: BoolArray) -> float:
    """Return the busy time of some GPU events, (g,), the mean over the devices, ns."""
    gpu_events = wall.gpu_events
    total_ns = 0
    for device_index in range(len(wall.tracks)):
        is_chosen = which & (wall.tracks.of_gpu == device_index)
        total_ns += union_length(gpu_events.start[is_chosen], gpu_events.end[is_chosen])
    return total_ns / max(len(wall.tracks), 1)
