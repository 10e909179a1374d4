"""The tables behind the time axis and the call tree of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.report.charts import Chart
from tracelens_ext.sheets.sheet import Sheet

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.lazy import pd
    from tracelens_ext.sheets.options import ReportOptions


def _time_axis(analyzer: TreePerfAnalyzer, _: ReportOptions) -> pd.DataFrame:
    from tracelens_ext.timeline.time_axis import time_axis

    return time_axis(analyzer.work)


def _marks(analyzer: TreePerfAnalyzer, _: ReportOptions) -> pd.DataFrame | None:
    from tracelens_ext.timeline.time_axis import time_axis_marks

    marks = time_axis_marks(analyzer.work)
    return marks if len(marks) else None


def _call_tree(analyzer: TreePerfAnalyzer, _: ReportOptions) -> pd.DataFrame:
    from tracelens_ext.modules.call_tree import call_tree

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
            start_ms, end_ms: since the trace's first event
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
