"""GPU time by category of operation, by operation, and by its arguments.

Each of the three is a function of a launcher table, which may have been filtered by its user.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tracelens_ext.analysis.operations.arguments import ARGUMENTS
from tracelens_ext.analysis.operations.launchers import Launchers
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, NS_PER_US, Float64Array, Int64Array, IntArray
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import group_durations, percent
from tracelens_ext.trace.lookup import values_at

#: Statistics over the operations of a row, besides their sum.
METRICS = ("mean", "median", "std", "min", "max")
PERCENTAGE = "Percentage (%)"
CUMULATIVE_PERCENTAGE = "Cumulative Percentage (%)"
PERCENTAGES = (PERCENTAGE, CUMULATIVE_PERCENTAGE)

DIRECT_TIME = "total_direct_kernel_time"
SUBTREE_TIME = "total_subtree_kernel_time"
_TIMES = (DIRECT_TIME, SUBTREE_TIME)
_UNIQUE = (
    "name",
    "op category",
    "process_name",
    "process_label",
    "thread_name",
) + ARGUMENTS
_SHORT_NAME_LENGTH = 64


def summary_by_category(launchers: pd.DataFrame) -> pd.DataFrame:
    """Return GPU time by category of operation, longest first.

    The columns are those of the sheet `ops_summary_by_category`.
    """
    groups = _LauncherGroups(launchers, ["op category"])
    columns = groups.keys()
    columns["Count"] = groups.count
    columns[f"{DIRECT_TIME}_ms"] = groups.statistic(DIRECT_TIME, "sum") / 1e3
    return _longest_first(columns, f"{DIRECT_TIME}_ms")


def summary(launchers: pd.DataFrame) -> pd.DataFrame:
    """Return GPU time by operation, as the sheet `ops_summary`; longest direct time first."""
    groups = _LauncherGroups(launchers, ["name"])
    columns = groups.keys()
    for time in _TIMES:
        columns[f"{time}_sum"] = groups.statistic(time, "sum")
    for time in _TIMES:
        columns[f"{time}_ms"] = columns[f"{time}_sum"] / 1e3
    columns["Count"] = groups.count
    columns["Categories"] = _categories_of_names(launchers)
    return _longest_first(columns, f"{DIRECT_TIME}_sum")


def _categories_of_names(launchers: pd.DataFrame) -> list[str]:
    """Return the categories of the operations of each name, as the text of a list."""
    groups = _LauncherGroups(launchers, ["name", "op category"])
    pairs = pd.DataFrame(groups.keys())
    pairs_of_name = pairs.groupby("name", sort=False)
    categories = pairs_of_name["op category"]
    result: list[str] = categories.agg(lambda labels: str(sorted(labels))).tolist()
    return result


def unique_args(
    launchers: pd.DataFrame,
    launched: tuple[GpuEvents, Launchers] | None = None,
    *,
    metrics: Sequence[str] = METRICS,
    group_by_num_kernels: bool = False,
) -> pd.DataFrame:
    """Return GPU time by operation, its arguments and thread, longest direct time first.

    The columns are those of the sheet `ops_unique_args`.

    Args:
        launchers: rows of a launcher table.
        launched: the GPU events of the trace and their launchers, to describe what was launched.
        metrics: statistics over the operations of a row, some of `METRICS`; `sum` always is one.
        group_by_num_kernels: whether operations that launched different numbers of GPU events are
            rows of their own, with the number in a column `direct_kernel_count`.

    Raises:
        UsageError: there is no such metric.
    """
    unknown = sorted(set(metrics) - set(METRICS) - {"sum"})
    if unknown:
        raise UsageError(
            f"unknown metric {unknown[0]!r}; there are {', '.join(METRICS)}"
        )
    key = list(_UNIQUE)
    if "is_recompute" in launchers:
        key.append("is_recompute")
    if group_by_num_kernels:
        key.append("direct_kernel_count")
    groups = _LauncherGroups(launchers, key)
    columns = groups.keys()
    columns["operation_count"] = groups.count
    shown_metrics = [metric for metric in METRICS if metric in metrics]
    shown_metrics.append("sum")
    for metric in shown_metrics:
        for time in _TIMES:
            columns[f"{time}_{metric}"] = groups.statistic(time, metric)
    event = launchers["UID"].to_numpy()
    columns["ex_UID"] = event[groups.first]
    if "ts" in launchers:
        first_start = groups.statistic("ts", "min")
        columns["first_occurrence_time"] = first_start - first_start.min(initial=np.inf)
    for name in ("parent_module", "call_stack"):
        if name in launchers:
            columns[name] = launchers[name].iloc[groups.first].tolist()
    if launched is not None:
        work, all_launchers = launched
        group_of_gpu = _group_of_gpu_events(all_launchers, event, groups.of_row)
        described = _launched_texts(
            work=work,
            launchers=all_launchers,
            group_of_gpu=group_of_gpu,
            group_count=len(groups.first),
        )
        columns["kernel_details_summary"] = described.full
        columns["trunc_kernel_details"] = described.short
    return _longest_first(columns, f"{DIRECT_TIME}_sum")


class _LauncherGroups:
    """Rows of a launcher table that are equal in some columns, k groups by first occurrence.

    Attributes:
        of_row: the group of each row, shape (n,).
        first: the first row of each group, (k,).
        count: rows of each group, (k,).
    """

    def __init__(self, table: pd.DataFrame, key: Sequence[str]) -> None:
        self._table = table
        self._key = key
        grouped = table.groupby(list(key), sort=False, observed=True, dropna=False)
        self.of_row = grouped.ngroup().to_numpy()
        _, self.first, self.count = np.unique(
            self.of_row, return_index=True, return_counts=True
        )
        self._grouped = table.groupby(self.of_row)

    def keys(self) -> dict[str, Any]:
        """Return what the groups have in common, column by column."""
        return {
            column: self._table[column].iloc[self.first].tolist()
            for column in self._key
        }

    def statistic(self, column: str, metric: str) -> Float64Array:
        """Return a statistic of each group's numbers, (k,); `std` is NaN for a group of one."""
        return self._grouped[column].agg(metric).to_numpy(dtype=np.float64)


def kernel_details(
    work: GpuEvents, launchers: Launchers
) -> list[list[dict[str, object]]]:
    """Return the GPU events of each launcher: `name`, `dur` (µs) and `stream`, in file order."""
    details: list[list[dict[str, object]]] = [[] for _ in range(len(launchers))]
    events = zip(
        launchers.of_gpu.tolist(),
        work.name.tolist(),
        (work.duration / NS_PER_US).tolist(),
        work.trace.stream.tolist(),
        strict=True,
    )
    for launcher, name, duration, stream in events:
        if launcher != NONE:
            event = {"name": work.trace.names[name], "dur": duration, "stream": stream}
            details[launcher].append(event)
    return details


def _group_of_gpu_events(
    launchers: Launchers, event: IntArray, group_of_row: IntArray
) -> Int64Array:
    """Return the group of each GPU event's launcher, `NONE` where it is in no row, (g,).

    Args:
        launchers: all launchers of the trace.
        event: the event of each row of a launcher table; the first of equal rows counts.
        group_of_row: the group of each row.
    """
    group_of_event = pd.Series(group_of_row, event).groupby(level=0).first()
    group_of_launcher = group_of_event.reindex(
        launchers.rows, fill_value=NONE
    ).to_numpy()
    return values_at(group_of_launcher, launchers.of_gpu)


class _LaunchedTexts(NamedTuple):
    """What each group of launchers launched, by name and stream, longest total first.

    Lists of dictionaries as Python literals.
    """

    full: list[str]  #: with full names and all statistics, µs
    short: list[str]  #: with short names and the mean alone


def _launched_texts(
    work: GpuEvents, launchers: Launchers, group_of_gpu: IntArray, group_count: int
) -> _LaunchedTexts:
    chosen = np.flatnonzero(group_of_gpu != NONE)
    launch_order = launchers.rows[launchers.of_gpu[chosen]]
    chosen = chosen[np.argsort(launch_order, kind="stable")]
    keys = [group_of_gpu[chosen], work.name[chosen], work.trace.stream[chosen]]
    kernels = group_durations(keys, work.duration[chosen])
    rows = zip(
        *(key.tolist() for key in kernels.keys),
        kernels.count.tolist(),
        (kernels.total / NS_PER_US).tolist(),
        (kernels.mean / NS_PER_US).tolist(),
        (kernels.shortest / NS_PER_US).tolist(),
        (kernels.longest / NS_PER_US).tolist(),
        strict=True,
    )
    full: list[list[dict[str, object]]] = [[] for _ in range(group_count)]
    short: list[list[dict[str, object]]] = [[] for _ in range(group_count)]
    for group, name, stream, count, total, mean, shortest, longest in rows:
        full_name = work.trace.names[name]
        rounded_mean = round(mean, 3)
        full[group].append(
            {
                "name": full_name,
                "stream": stream,
                "count": count,
                "total_duration_us": total,
                "mean_duration_us": rounded_mean,
                "min_duration_us": shortest,
                "max_duration_us": longest,
            }
        )
        short[group].append(
            {
                "name": _shortened(full_name),
                "stream": stream,
                "count": count,
                "mean_duration_us": rounded_mean,
            }
        )
    return _LaunchedTexts(full=list(map(str, full)), short=list(map(str, short)))


def _shortened(name: str) -> str:
    if len(name) <= _SHORT_NAME_LENGTH:
        return name
    return name[: _SHORT_NAME_LENGTH - 1] + "…"


def _longest_first(columns: dict[str, Any], time_column: str) -> pd.DataFrame:
    """Return the table, longest time first, with percentages."""
    order = np.argsort(-columns[time_column], kind="stable")
    time = columns[time_column][order]
    frame = pd.DataFrame(columns).iloc[order]
    frame = frame.reset_index(drop=True)
    frame[PERCENTAGE] = percent(time, time.sum())
    frame[CUMULATIVE_PERCENTAGE] = frame[PERCENTAGE].cumsum()
    return frame
