"""What an export draws in lanes of our own: iterations, and what is said of stretches of time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from tracelens_ext.iterations.iterations import find_iterations
from tracelens_ext.recording.recording import recording_of
from tracelens_ext.trace import NS_PER_US
from tracelens_ext.work.lanes import find_lanes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.work.gpu_work import GpuWork

_OF_SEGMENT = ("kind", "category", "name", "operation", "stream", "edge", "known")
_NAMES = ("name", "operation", "kind")


@dataclass(frozen=True)
class Span:
    """A stretch of time, ns since the trace's first event."""

    lane: str
    name: str
    start: int
    end: int
    args: Mapping[str, object] = field(default_factory=dict)


def spans_of(analyzer: TreePerfAnalyzer, *, with_findings: bool) -> list[Span]:
    """All spans of a trace, or those that need no search and no replay."""
    spans = _iterations(analyzer.work)
    if len(analyzer.work):
        spans += _recording(analyzer.work)
        spans += [*_findings(analyzer), *_critical_path(analyzer)] if with_findings else []
    return spans


def _iterations(work: GpuWork) -> list[Span]:
    """The iterations of the trace's first process that has any."""
    found = find_iterations(work.tree)
    return [
        Span("iterations", f"iteration {number}", int(start), int(end))
        for number, process, start, end in zip(
            found.number, found.process, found.start, found.end, strict=True
        )
        if process == found.process[0]
    ]


def _findings(analyzer: TreePerfAnalyzer) -> list[Span]:
    """What each finding claims, by device."""
    spans = []
    for finding in analyzer.findings().findings:
        if (claim := finding.claim) is None:
            continue
        told = {"title": finding.title, "confidence": finding.confidence, "advice": finding.advice}
        for each in claim.as_records():
            start, end = (claim.wall_start + int(str(each[key])) for key in ("start_ns", "end_ns"))
            args = {"device": each["device"], **told}
            spans.append(Span("findings", finding.id, start, end, args))
    return spans


def _recording(work: GpuWork) -> list[Span]:
    """What of the recording cannot be judged: `hole`, `before`, `start_up`."""
    devices = find_lanes(work, "device").device.tolist()
    return [
        Span(
            *("recording", each["kind"], each["start"], each["end"]),
            {"device": devices[each["device"]], "what": each["what"], "place": each["place"]},
        )
        for each in recording_of(work).parts.to_dict("records")
    ]


def _critical_path(analyzer: TreePerfAnalyzer) -> list[Span]:
    """The segments of the replay's critical path, at the replay's times; none if it is withheld."""
    simulation = analyzer.simulation()
    if simulation.state == "withheld":
        return []
    table, first = simulation.critical_path, simulation.program.window[0]
    start = first + (table["start_us"] * NS_PER_US).round().astype("int64")
    end = start + (table["duration_us"] * NS_PER_US).round().astype("int64")
    args = cast("list[dict[str, object]]", table[list(_OF_SEGMENT)].to_dict("records"))
    return [
        Span("critical path", str(next(filter(None, map(told.get, _NAMES)))), begin, stop, told)
        for begin, stop, told in zip(start.tolist(), end.tolist(), args, strict=True)
    ]
