"""The tables behind the time axis and the call tree of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.report.charts import Chart
from tracelens_ext.sheets.sheet import Sheet

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.sheets.options import ReportOptions


def _time_axis(analyzer: TreePerfAnalyzer, _: ReportOptions) -> pd.DataFrame:
    from tracelens_ext.timeline.timeline import time_axis

    return time_axis(analyzer.work)


def _marks(analyzer: TreePerfAnalyzer, options: ReportOptions) -> pd.DataFrame | None:
    """Iterations of the first process that has any, parts of the recording, findings."""
    from tracelens_ext.intervals import union
    from tracelens_ext.iterations.iterations import find_iterations
    from tracelens_ext.recording.recording import recording_of
    from tracelens_ext.timeline.timeline import MOST_BINS
    from tracelens_ext.trace import NONE, NS_PER_MS
    from tracelens_ext.work.lanes import find_lanes

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
    for finding in analyzer.findings(options.device_peaks).findings:
        if finding.claim is not None:
            start, end, *_ = finding.claim.intervals
            start, end = union(start, end + bin_ns)
            row = {"kind": "finding", "name": finding.title, "device": NONE, "finding": finding.id}
            tables.append(pd.DataFrame({**row, "start": start, "end": end - bin_ns}))
    marks = pd.concat([table for table in tables if len(table)] or tables[:1], ignore_index=True)
    for name in ("start", "end"):
        marks[f"{name}_ms"] = marks.pop(name) / NS_PER_MS
    return marks if len(marks) else None


def _call_tree(analyzer: TreePerfAnalyzer, _: ReportOptions) -> pd.DataFrame:
    from tracelens_ext.modules.modules import call_tree

    return call_tree(analyzer.work)


SHEETS = [
    Sheet(
        name="time_axis",
        shows="GPU time by category over time",
        columns="""
            device: its number
            category: of the GPU events
            bin: number of a stretch of time, from 0
            start_ms, end_ms: of it, since the trace's first event
            gpu_time_ns [ns]: summed durations of the GPU events in it
            """,
        table=_time_axis,
        asked_by="time_axis",
        on_every_page=True,
        charts=[Chart("GPU work over time", "time_axis", "bin", "gpu_time_ns", "time_axis")],
    ),
    Sheet(
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
    Sheet(
        name="call_tree",
        shows="GPU time by module, operation and kernel, the largest kernels",
        columns="""
            node: its number
            parent: the node above it; -1 at the top
            label: module, operation or kernel; `other` for what is too small to be shown
            kind: `module`, `operation`, `kernel` or `other`
            category: of its kernels, or of most of them
            gpu_time_ns [ns]: summed durations of its GPU events
            """,
        table=_call_tree,
        asked_by="call_tree",
        on_every_page=True,
        charts=[
            Chart("GPU time in the call tree", "call_tree", "label", "gpu_time_ns", "call_tree")
        ],
    ),
]
