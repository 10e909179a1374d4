"""Iterations by wall time and CPU activity, for traces without GPU work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tracelens_ext.analysis.cpu_time.activities import Activity, time_by_activity
from tracelens_ext.analysis.iterations.iterations import Iterations, iteration_at
from tracelens_ext.analysis.iterations.measurement import ODD_AMONG, odd_among
from tracelens_ext.analysis.iterations.named_iterations import named_iterations
from tracelens_ext.categorize.user_patterns import Expression
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, NS_PER_MS, EventKind, Int64Array, Trace
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.call_tree import CallTree

#: A time that differs from the median by less than this share of the median wall time is never
#: reported as unusual.
_LEAST_ODD_SHARE = 0.05
_ACTIVITY_COLUMNS = {
    Activity.DATA_LOADING: "data_loading_ms",
    Activity.OPTIMIZER: "optimizer_ms",
    Activity.BACKWARD: "backward_ms",
    Activity.OPERATIONS: "other_operations_ms",
    Activity.PYTHON: "python_ms",
    Activity.NOT_RECORDED: "not_recorded_ms",
}


@dataclass(frozen=True, eq=False)
class CpuIterations:
    """The iterations of a trace without GPU work.

    Attributes:
        frame: one row per iteration, with the columns of the table `cpu_iterations`.
        notes: sentences about what limits the table, such as incomplete iterations.
    """

    frame: pd.DataFrame
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.frame)


@cached_per_object
def cpu_iterations(
    tree: CallTree, annotation: Expression | None = None
) -> CpuIterations:
    """Return wall time and CPU time by activity of every iteration; empty without iterations.

    Args:
        tree: the call tree.
        annotation: pattern that is searched in the names of annotations to find iterations, as
            for traces with GPU work; `ProfilerStep#N` by default.
    """
    trace = tree.trace
    iterations, labels, nested_count = named_iterations(tree, annotation)
    times = time_by_activity(
        trace=trace,
        process=iterations.process,
        start=iterations.start,
        end=iterations.end,
    )
    operation_count = _operations_started(trace, iterations)
    wall_time = iterations.end - iterations.start
    process_labels = list(dict.fromkeys(process for process, _ in trace.threads))
    columns: dict[str, object] = {
        "iteration": pd.array(labels, dtype="str"),
        "process": [process_labels[index] for index in iterations.process.tolist()],
        "start_ms": iterations.start / NS_PER_MS,
        "wall_time_ms": wall_time / NS_PER_MS,
    }
    for activity, column in _ACTIVITY_COLUMNS.items():
        columns[column] = times[activity] / NS_PER_MS
    columns["cpu_ops"] = operation_count
    columns["whole"] = iterations.finished & (operation_count > 0)
    frame = pd.DataFrame(columns)
    frame["odd"] = _odd_columns(frame)
    if len(np.unique(iterations.process)) < 2:
        frame = frame.drop(columns="process")
    notes = tuple(_notes(frame, nested_count))
    return CpuIterations(frame, notes)


def _operations_started(trace: Trace, iterations: Iterations) -> Int64Array:
    """Return the number of CPU operations that started in each of k iterations, (k,)."""
    rows = trace.rows_of(EventKind.CPU_OP)
    process = trace.process_of_thread[trace.thread[rows]].astype(np.int64)
    iteration = iteration_at(
        spans=iterations.spans, process=process, time=trace.ts[rows]
    )
    is_inside = iteration != NONE
    return np.bincount(iteration[is_inside], minlength=len(iterations)).astype(np.int64)


def _odd_columns(frame: pd.DataFrame) -> list[str]:
    """Return, for each iteration, the names of its unusual columns, joined by commas.

    Whole iterations are compared with each other; an incomplete one gets an empty text.
    """
    is_whole = frame["whole"].to_numpy(dtype=bool)
    whole_rows = np.flatnonzero(is_whole)
    if len(whole_rows) == 0:
        return [""] * len(frame)
    whole = frame.iloc[whole_rows]
    median_wall_time_ms = float(np.median(whole["wall_time_ms"].to_numpy()))
    least_difference_ms = _LEAST_ODD_SHARE * median_wall_time_ms
    odd_columns: list[list[str]] = [[] for _ in range(len(frame))]
    for column in ("wall_time_ms",) + tuple(_ACTIVITY_COLUMNS.values()):
        values = whole[column].to_numpy(dtype=np.float64)
        is_odd = odd_among(values, least_difference_ms).is_odd
        for row in whole_rows[is_odd].tolist():
            odd_columns[row].append(column)
    return [", ".join(columns) for columns in odd_columns]


def _notes(frame: pd.DataFrame, nested_count: int) -> Iterator[str]:
    whole_count = int(frame["whole"].sum())
    incomplete_count = len(frame) - whole_count
    if incomplete_count == 1:
        yield (
            "1 iteration is incomplete: it ran no operation, or the recording ended within it."
        )
    elif incomplete_count:
        yield (
            f"{incomplete_count:,} iterations are incomplete: they ran no operation, or the "
            "recording ended within them."
        )
    if nested_count:
        yield (
            f"{nested_count:,} annotations are nested in another matching annotation and "
            "are ignored."
        )
    if 0 < whole_count < ODD_AMONG:
        yield (
            f"Outliers are only determined for {ODD_AMONG} or more complete iterations."
        )
