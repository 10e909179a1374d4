"""Markers on the time axis of a report: iterations, parts of the recording, and findings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracelens_ext.analysis.coverage.coverage import coverage_of
from tracelens_ext.analysis.iterations.iterations import find_iterations
from tracelens_ext.analysis.timeline.timeline_bins import MAX_BINS
from tracelens_ext.findings.context import FindingsContext
from tracelens_ext.findings.finding import Claim, Finding
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.table import Table
from tracelens_ext.trace import NONE, NS_PER_MS, Float64Array
from tracelens_ext.trace.gpu_events import GpuEvents, find_tracks
from tracelens_ext.trace.intervals import DisjointIntervals, covered, union

#: A finding with more intervals than this is shown in bins, with the share of each bin.
_MOST_INTERVALS = 300


def timeline_markers(
    context: FindingsContext, *, device_peaks: str | None = None
) -> pd.DataFrame | None:
    """Return iterations of the first process that has any, parts of the recording, findings."""
    gpu_events = context.gpu_events
    tables = [_iteration_markers(gpu_events), _recording_markers(gpu_events)]
    findings: Sequence[Finding] = ()
    with context.failures.isolate("The findings on the time axis"):
        findings = context.findings(device_peaks).findings
    tables.extend(
        _finding_markers(gpu_events, finding, finding.claim)
        for finding in findings
        if finding.claim is not None
    )
    with_rows = [table for table in tables if len(table)]
    if not with_rows:
        return None
    markers = pd.concat(with_rows, ignore_index=True)
    for name in ("start", "end"):
        markers[f"{name}_ms"] = markers.pop(name) / NS_PER_MS
    return markers


def _iteration_markers(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return the iterations of the first process that has any."""
    iterations = find_iterations(gpu_events.tree)
    is_of_first_process = iterations.process == iterations.process[:1]
    names = [f"ProfilerStep#{number}" for number in iterations.number]
    return pd.DataFrame(
        {
            "kind": "iteration",
            "name": np.array(names, dtype=object)[is_of_first_process],
            "device": NONE,
            "finding": "",
            "covered_percent": 100.0,
            "start": iterations.start[is_of_first_process],
            "end": iterations.end[is_of_first_process],
        }
    )


def _recording_markers(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return the parts of the recording without recorded work, and warm-up."""
    parts = coverage_of(gpu_events).parts
    return parts[["start", "end"]].assign(
        kind=parts["kind"].replace({"pre_recording": "dropped_events"}),
        name=parts["what"],
        device=find_tracks(gpu_events, "device").device[parts["device"].to_numpy()],
        finding="",
        covered_percent=100.0,
    )


def _finding_markers(
    gpu_events: GpuEvents, finding: Finding, claim: Claim
) -> pd.DataFrame:
    """Return the intervals of a finding; if there are too many, bins with the share of each."""
    intervals = union(claim.intervals.start, claim.intervals.end)
    covered_percent = np.full(len(intervals.start), 100.0)
    if len(intervals.start) > _MOST_INTERVALS:
        intervals, covered_percent = _binned(gpu_events, intervals)
    return pd.DataFrame(
        {
            "kind": "finding",
            "name": finding.title,
            "device": NONE,
            "finding": finding.id,
            "covered_percent": covered_percent,
            "start": intervals.start,
            "end": intervals.end,
        }
    )


def _binned(
    gpu_events: GpuEvents, intervals: DisjointIntervals
) -> tuple[DisjointIntervals, Float64Array]:
    """Return the bins that intervals overlap, and the percentage of each bin that they cover.

    Drawn as they are, thousands of short intervals would look like one that covers everything.
    """
    first_work = int(gpu_events.start.min())
    last_work = int(gpu_events.end.max())
    first = min(first_work, int(intervals.start[0]))
    last = max(last_work, int(intervals.end[-1]))
    edges = np.linspace(first, last, MAX_BINS + 1).astype(np.int64)
    bin_start = edges[:-1]
    bin_end = edges[1:]
    covered_ns = covered(
        start=intervals.start,
        end=intervals.end,
        window_start=bin_start,
        window_end=bin_end,
    )
    is_covered = covered_ns > 0
    length_ns = np.maximum(bin_end - bin_start, 1)
    covered_percent = 100.0 * covered_ns / length_ns
    bins = DisjointIntervals(start=bin_start[is_covered], end=bin_end[is_covered])
    return bins, covered_percent[is_covered]


TIMELINE_MARKERS = Table(
    name="timeline_markers",
    description="Marks on the time axis of the HTML page",
    columns=[
        Column(
            "kind",
            "kind of the mark: `iteration`, `dropped_events`, `warm_up` or `finding`",
        ),
        Column(
            "name",
            "name of the iteration, what happened in the part of the "
            "recording, or title of the finding",
        ),
        Column("device", "number of the device; -1 for all devices"),
        Column(
            "finding", "kind of finding, such as `host-bound`; empty for other marks"
        ),
        Column(
            "covered_percent",
            "share of the interval that belongs to the finding: less than 100 "
            "only for a finding with more than 300 intervals, which is shown "
            "in 600 bins",
        ),
        Column("start_ms", "start of the interval, since the first event of the trace"),
        Column("end_ms", "end of the interval, since the first event of the trace"),
    ],
    build=timeline_markers,
    options=["device_peaks"],
    enabled_by="timeline_bins",
    on_every_page=True,
)
