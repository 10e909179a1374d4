"""The tables of what was recorded: how much can be judged, and GPU work over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.intervals import union
from tracelens_ext.iterations.iterations import find_iterations
from tracelens_ext.lazy import pd
from tracelens_ext.recording.recording import recording_of
from tracelens_ext.recording.told import recording_table
from tracelens_ext.tables.charts import Chart
from tracelens_ext.tables.table import Table
from tracelens_ext.timeline.timeline import MOST_BINS, time_axis
from tracelens_ext.trace import NONE, NS_PER_MS
from tracelens_ext.work.lanes import find_lanes

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer


def _recording(analyzer: TreePerfAnalyzer) -> pd.DataFrame:
    """How much of the wall time the recording lets anybody judge."""
    return recording_table(analyzer.work)


def _marks(analyzer: TreePerfAnalyzer, *, device_peaks: str | None = None) -> pd.DataFrame | None:
    """Iterations of the first process that has any, parts of the recording, findings."""
    work = analyzer.work
    found, recording = find_iterations(work.tree), recording_of(work)
    first, parts = found.process == found.process[:1], recording.parts
    names = np.array([f"ProfilerStep#{number}" for number in found.number], dtype=object)[first]
    steps = {"kind": "iteration", "name": names, "device": NONE, "finding": ""}
    steps |= {"start": found.start[first], "end": found.end[first]}
    device = find_lanes(work, "device").device[parts["device"].to_numpy()]
    kind = parts["kind"].replace({"before": "hole"})
    cuts = parts[["start", "end"]].assign(kind=kind, name=parts["what"], device=device, finding="")
    tables = [pd.DataFrame(steps), cuts]
    bin_ns = recording.wall_ns // MOST_BINS
    for finding in analyzer.findings(device_peaks).findings:
        if finding.claim is not None:
            start, end, *_ = finding.claim.intervals
            start, end = union(start, end + bin_ns)
            row = {"kind": "finding", "name": finding.title, "device": NONE, "finding": finding.id}
            tables.append(pd.DataFrame({**row, "start": start, "end": end - bin_ns}))
    marks = pd.concat([table for table in tables if len(table)] or tables[:1], ignore_index=True)
    for name in ("start", "end"):
        marks[f"{name}_ms"] = marks.pop(name) / NS_PER_MS
    return marks if len(marks) else None


TABLES = [
    Table(
        name="recording",
        shows="How much of the wall time can be judged, and what was not recorded",
        columns="""
            kind: `wall`, what of it is `not_recorded` and `start_up`, and what can be `judged`, as
                means over the devices; `launches` of kernels, graphs and copies, and how many of
                them have no GPU work; then each `hole`, work of `before` the recording and
                `start_up`, the longest first; without GPU work `api_calls` by time; and what is
                `missing`
            device: the number of the device
            start_ms, end_ms: since the start of the wall
            ms: idle time of the device in it
            % of wall time: `ms`, of the wall time
            count [launches]: launches, or calls, that it is about
            what: what it is
            place: the operation, annotation or frame in which it begins
            how: how to record what is missing
            """,
        table=_recording,
        when=(),
    )
]
VIEWS = [
    Table(
        name="time_axis",
        shows="GPU time by category over time",
        columns="""
            device: its number
            category: of the GPU events
            bin: number of a stretch of time, from 0
            start_ms, end_ms: of it, since the trace's first event
            gpu_time_ns [ns]: summed durations of the GPU events in it
            """,
        table=lambda analyzer: time_axis(analyzer.work),
        asked_by="time_axis",
        on_every_page=True,
        charts=[Chart("GPU work over time", "time_axis", "bin", "gpu_time_ns", "time_axis")],
    ),
    Table(
        name="time_axis_marks",
        shows="What is marked on the time axis",
        columns="""
            kind: `iteration`, `hole`, `start_up` or `finding`
            name: what it is
            device: -1 for all
            finding: which kind of finding; empty for what is none
            start_ms, end_ms: since the trace's first event; what a finding claims less than a
                600th of the wall time apart is one stretch
            """,
        table=_marks,
        asked_by="time_axis",
        on_every_page=True,
    ),
]
