"""The tables of CPU time, which a report contains if its trace has no GPU work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from tracelens_ext.analysis.context import AnalysisContext, of_gpu_events
from tracelens_ext.analysis.cpu_time.activities import (
    DATA_LOADER,
    Activity,
    time_by_activity,
    working_frames,
)
from tracelens_ext.analysis.cpu_time.iterations import cpu_iterations
from tracelens_ext.analysis.idle_time.cpu_activity import event_labels
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.conditions import NO_GPU_EVENTS, Condition
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import Table
from tracelens_ext.report.tables.views import AnswerView
from tracelens_ext.trace import NS_PER_MS, EventKind, Int64Array, Trace
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import (
    group_durations,
    maxima,
    minima,
    percent,
    sums,
    texts,
)
from tracelens_ext.trace.nesting import ROOT, nest

#: Each activity in words, for the terminal and the first sheet.
_DESCRIPTIONS = {
    Activity.DATA_LOADING: "waiting for the next batch",
    Activity.OPTIMIZER: "optimizer steps",
    Activity.BACKWARD: "backward pass",
    Activity.OPERATIONS: "all other CPU operations",
    Activity.PYTHON: "Python between operations",
    Activity.NOT_RECORDED: "no event in the trace",
}


def cpu_timeline(gpu_events: GpuEvents) -> pd.DataFrame | None:
    """Return the CPU time by activity; None without CPU events.

    The window of each process begins with its first CPU event and ends with its last one. Times
    are summed over processes.
    """
    trace = gpu_events.trace
    rows = _cpu_rows(trace)
    if not len(rows):
        return None
    process_of_row = trace.process_of_thread[trace.thread[rows]].astype(np.int64)
    processes, window_of_row = np.unique(process_of_row, return_inverse=True)
    start = minima(window_of_row, trace.ts[rows], len(processes))
    end = maxima(window_of_row, trace.end_of(rows), len(processes))
    times = time_by_activity(trace=trace, process=processes, start=start, end=end)
    wall_time = int((end - start).sum())
    records = []
    for activity, time in times.items():
        total = int(time.sum())
        share = 100.0 * total / wall_time if wall_time else 0.0
        description = _DESCRIPTIONS[activity]
        records.append((activity.value, description, total / NS_PER_MS, share))
    records.append(
        ("wall_time", "from first to last event", wall_time / NS_PER_MS, 100.0)
    )
    columns = ["activity", "description", "time_ms", "% of wall time"]
    return pd.DataFrame(records, columns=columns)


def _cpu_rows(trace: Trace) -> Int64Array:
    """Return the rows of operations, annotations and Python frames."""
    kinds = (EventKind.CPU_OP, EventKind.USER_ANNOTATION, EventKind.PYTHON_FUNCTION)
    return trace.rows_of(*kinds)


def cpu_data_loading(gpu_events: GpuEvents) -> pd.DataFrame | None:
    """Return the time spent waiting for batches, by data loader; None without any."""
    trace = gpu_events.trace
    rows = trace.rows_of(EventKind.USER_ANNOTATION, EventKind.CPU_OP)
    rows = rows[trace.named(trace.name[rows], DATA_LOADER.match)]
    if not len(rows):
        return None
    duration = trace.dur[rows]
    groups = group_durations([trace.name[rows]], duration)
    cpu_rows = _cpu_rows(trace)
    wall_time = int(trace.end_of(cpu_rows).max() - trace.ts[cpu_rows].min())
    frame = pd.DataFrame(
        {
            "data_loader": texts(groups.keys[0], trace.names),
            "batches": groups.count,
            "total_time_ms": groups.total / NS_PER_MS,
            "avg_time_ms": groups.total / NS_PER_MS / groups.count,
            "max_time_ms": groups.longest / NS_PER_MS,
            "% of wall time": percent(groups.total, wall_time),
        }
    )
    return frame.sort_values(
        "total_time_ms", ascending=False, ignore_index=True, kind="stable"
    )


def cpu_python_frames(gpu_events: GpuEvents) -> pd.DataFrame | None:
    """Return the total and self time of each Python frame, longest self time first.

    Frames of threads that run no operations are left out. Returns None if none remain.
    """
    trace = gpu_events.trace
    rows = working_frames(trace)
    if not len(rows):
        return None
    start = trace.ts[rows]
    end = trace.end_of(rows)
    nesting = nest(
        thread=trace.thread[rows],
        start=start,
        end=end,
        tie=trace.external_id[rows],
        childless=np.zeros(len(rows), dtype=bool),
    )
    frames = rows[nesting.order]
    duration = trace.dur[frames]
    has_parent = nesting.parent != ROOT
    time_of_children = sums(
        group_index=nesting.parent[has_parent],
        values=duration[has_parent],
        group_count=len(frames),
    )
    self_time = np.maximum(duration - time_of_children, 0)
    name_code, names = event_labels(trace, frames)
    groups = group_durations([name_code], duration)
    self_time_of_group = sums(
        group_index=groups.group_index, values=self_time, group_count=len(groups)
    )
    frame = pd.DataFrame(
        {
            "python_frame": texts(groups.keys[0], names),
            "count": groups.count,
            "total_time_ms": groups.total / NS_PER_MS,
            "self_time_ms": self_time_of_group / NS_PER_MS,
            "% of Python time": percent(self_time_of_group, int(self_time.sum())),
        }
    )
    return frame.sort_values(
        "self_time_ms", ascending=False, ignore_index=True, kind="stable"
    )


def _cpu_iterations(
    gpu_events: GpuEvents, annotation: str | None = None
) -> pd.DataFrame:
    return cpu_iterations(gpu_events.tree, annotation).frame.copy()


def _iteration_notes(
    context: AnalysisContext,
    options: ReportOptions,
    tables: Mapping[str, pd.DataFrame],
) -> Iterable[str]:
    if "cpu_iterations" not in tables:
        return []
    return cpu_iterations(context.gpu_events.tree, options.annotation).notes


def _has_iterations(context: AnalysisContext, options: ReportOptions) -> bool:
    return len(cpu_iterations(context.gpu_events.tree, options.annotation)) > 0


def _has_data_loading(context: AnalysisContext, _options: ReportOptions) -> bool:
    return cpu_data_loading(context.gpu_events) is not None


def _has_python_frames(context: AnalysisContext, _options: ReportOptions) -> bool:
    return len(working_frames(context.trace)) > 0


_HAS_ITERATIONS = Condition("it has iterations", _has_iterations)
_HAS_DATA_LOADING = Condition("it has a PyTorch data loader", _has_data_loading)
_HAS_PYTHON_FRAMES = Condition("Python frames were recorded", _has_python_frames)

CPU_TIMELINE = Table(
    name="cpu_timeline",
    description="CPU time by activity",
    columns=[
        Column(
            "activity",
            "name of the activity; activities do not overlap, and add up to "
            "the `wall_time`",
        ),
        Column("description", "the activity in words"),
        Column(
            "time_ms",
            (
                "time during which any thread of a process did this, and none did "
                "what a row above shows, summed over the processes"
            ),
        ),
        Column("% of wall time", "share of the `wall_time`", unit="%"),
    ],
    build=of_gpu_events(cpu_timeline),
    requires=[NO_GPU_EVENTS],
    charts=[
        Chart(
            title="CPU time by activity",
            sheet="cpu_timeline",
            label_column="description",
            value_column="time_ms",
            only=tuple(_DESCRIPTIONS.values()),
        )
    ],
    answer=AnswerView(
        title="CPU time",
        condition=NO_GPU_EVENTS,
        columns=("activity", "description", "time_ms", "% of wall time"),
    ),
)
CPU_ITERATIONS = Table(
    name="cpu_iterations",
    description="CPU time of each iteration, and the outliers",
    columns=[
        Column("iteration", "name of the iteration, which is that of its annotation"),
        Column(
            "process",
            "process of the iteration; present only if several processes have iterations",
        ),
        Column(
            "start_ms", "start of the iteration, since the first event of the trace"
        ),
        Column(
            "wall_time_ms",
            "duration of the annotation: the sum of the next six columns",
        ),
        Column("data_loading_ms", "time waiting for the next batch"),
        Column(
            "optimizer_ms", "time in optimizer steps and in setting gradients to zero"
        ),
        Column("backward_ms", "time in the backward pass"),
        Column(
            "other_operations_ms",
            "time in all other CPU operations, such as those of the forward pass",
        ),
        Column("python_ms", "time in Python frames outside of operations"),
        Column("not_recorded_ms", "time without any event in the trace"),
        Column(
            "cpu_ops",
            "number of operations that started in the iteration",
            unit="operations",
        ),
        Column(
            "whole",
            "True if the iteration ended before the recording did, and ran an "
            "operation",
        ),
        Column(
            "odd", "columns in which the iteration is an outlier, separated by commas"
        ),
    ],
    build=of_gpu_events(_cpu_iterations),
    options=["annotation"],
    requires=[NO_GPU_EVENTS, _HAS_ITERATIONS],
    charts=[
        Chart(
            title="Wall time of iterations",
            sheet="cpu_iterations",
            label_column="iteration",
            value_column="wall_time_ms",
        )
    ],
    notes=_iteration_notes,
    answer=AnswerView(
        title="Iterations",
        condition=NO_GPU_EVENTS,
        columns=(
            "iteration",
            "wall_time_ms",
            "data_loading_ms",
            "other_operations_ms",
            "backward_ms",
            "optimizer_ms",
            "python_ms",
        ),
    ),
)
CPU_DATA_LOADING = Table(
    name="cpu_data_loading",
    description="Time spent waiting for batches, by data loader",
    columns=[
        Column(
            "data_loader",
            "name of the annotation that PyTorch puts around fetching a batch",
        ),
        Column("batches", "number of batches fetched", unit="batches"),
        Column("total_time_ms", "total time waiting for batches"),
        Column("avg_time_ms", "mean time waiting for a batch"),
        Column("max_time_ms", "longest time waiting for a batch"),
        Column(
            "% of wall time",
            "share of the time from the first CPU event to the end of the last one",
        ),
    ],
    build=of_gpu_events(cpu_data_loading),
    requires=[NO_GPU_EVENTS, _HAS_DATA_LOADING],
)
CPU_PYTHON_FRAMES = Table(
    name="cpu_python_frames",
    description="CPU time by Python frame",
    columns=[
        Column("python_frame", "file, line and name of the function"),
        Column("count", "number of calls", unit="calls"),
        Column(
            "total_time_ms",
            "total duration of the calls; a call inside another of the same "
            "frame counts twice",
        ),
        Column(
            "self_time_ms",
            "time in the frame itself, including its operations, but not the "
            "frames that it called",
        ),
        Column(
            "% of Python time",
            "`self_time_ms` as a share of the self times of all frames",
        ),
    ],
    build=of_gpu_events(cpu_python_frames),
    requires=[NO_GPU_EVENTS, _HAS_PYTHON_FRAMES],
    answer=AnswerView(
        title="Top Python frames",
        condition=NO_GPU_EVENTS,
        columns=("python_frame", "count", "total_time_ms", "self_time_ms"),
    ),
)
