"""The tracks that an export adds: iterations, findings, the recording and the critical path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracelens_ext.analysis.coverage.coverage import coverage_of
from tracelens_ext.analysis.iterations.iterations import find_iterations
from tracelens_ext.trace import NS_PER_US
from tracelens_ext.trace.gpu_events import GpuEvents, find_tracks

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer

#: The columns of the critical path that become arguments of its spans.
_SEGMENT_COLUMNS = ("kind", "category", "name", "operation", "stream", "edge", "known")
#: A segment of the critical path has the name of the first of these columns that is not empty.
_SEGMENT_NAMES = ("name", "operation", "kind")


@dataclass(frozen=True)
class Span:
    """An interval of time that an added track shows."""

    lane: str  #: the name of the track
    name: str
    start: int  #: ns since the trace's first event
    end: int  #: ns since the trace's first event
    args: Mapping[str, object] = field(default_factory=dict)  #: further facts, by name


def spans_of(analyzer: TreePerfAnalyzer, *, with_findings: bool) -> list[Span]:
    """Return the spans of a trace.

    A track that fails is left out and recorded in the analyzer's failures.

    Args:
        analyzer: the analyzer of the trace.
        with_findings: True for the tracks that need the findings and the simulation, too.
    """
    failures = analyzer.failures
    spans: list[Span] = []
    with failures.isolate("The track iterations"):
        spans += _iteration_spans(analyzer.gpu_events)
    if not len(analyzer.gpu_events):
        return spans
    with failures.isolate("The track recording"):
        spans += _recording_spans(analyzer.gpu_events)
    if with_findings:
        with failures.isolate("The track findings"):
            spans += _finding_spans(analyzer)
        with failures.isolate("The track critical path"):
            spans += _critical_path_spans(analyzer)
    return spans


def _iteration_spans(gpu_events: GpuEvents) -> list[Span]:
    """Return the iterations of the first process of the trace that has iterations."""
    iterations = find_iterations(gpu_events.tree)
    if not len(iterations):
        return []
    first_process = iterations.process[0]
    is_of_first = iterations.process == first_process
    (of_first,) = is_of_first.nonzero()
    spans = []
    for index in of_first.tolist():
        name = f"iteration {iterations.number[index]}"
        start = int(iterations.start[index])
        end = int(iterations.end[index])
        spans.append(Span(lane="iterations", name=name, start=start, end=end))
    return spans


def _finding_spans(analyzer: TreePerfAnalyzer) -> list[Span]:
    """Return the time that is attributed to each finding, by device."""
    spans = []
    for finding in analyzer.findings().findings:
        claim = finding.claim
        if claim is None:
            continue
        for record in claim.as_records():
            start = claim.wall_start + int(str(record["start_ns"]))
            end = claim.wall_start + int(str(record["end_ns"]))
            args = {
                "device": record["device"],
                "title": finding.title,
                "confidence": finding.confidence,
                "advice": finding.advice,
            }
            spans.append(
                Span(lane="findings", name=finding.id, start=start, end=end, args=args)
            )
    return spans


def _recording_spans(gpu_events: GpuEvents) -> list[Span]:
    """Return the parts of the recording that are not analyzed."""
    devices = find_tracks(gpu_events, "device").device.tolist()
    spans = []
    for part in coverage_of(gpu_events).parts.to_dict("records"):
        args = {
            "device": devices[part["device"]],
            "what": part["what"],
            "place": part["place"],
        }
        spans.append(
            Span(
                lane="recording",
                name=part["kind"],
                start=part["start"],
                end=part["end"],
                args=args,
            )
        )
    return spans


def _critical_path_spans(analyzer: TreePerfAnalyzer) -> list[Span]:
    """Return the segments of the simulated critical path; empty without a simulation."""
    simulation = analyzer.simulation()
    if simulation.state == "unavailable":
        return []
    table = simulation.critical_path_table
    first_time = simulation.program.window[0]
    start = first_time + (table["start_us"] * NS_PER_US).round().astype("int64")
    end = start + (table["duration_us"] * NS_PER_US).round().astype("int64")
    spans = []
    for args, segment_start, segment_end in zip(
        table[list(_SEGMENT_COLUMNS)].to_dict("records"),
        start.tolist(),
        end.tolist(),
        strict=True,
    ):
        texts = {str(column): value for column, value in args.items()}
        name = _segment_name(texts)
        spans.append(
            Span(
                lane="critical path",
                name=name,
                start=segment_start,
                end=segment_end,
                args=texts,
            )
        )
    return spans


def _segment_name(segment: Mapping[str, object]) -> str:
    """Return the name of a segment of the critical path."""
    for column in _SEGMENT_NAMES:
        if segment[column]:
            return str(segment[column])
    return ""
