"""GPU time by category of operation, by operation, and by its arguments.

Each of the three tables is made from a launcher table, which its user may have filtered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracelens_ext.analysis.operations.arguments import ARGUMENTS
from tracelens_ext.analysis.operations.launchers import Launchers
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, NS_PER_US, Float64Array, Int64Array, IntArray
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import Groups, group_durations, percent
from tracelens_ext.trace.lookup import values_at

#: Statistics over the operations of a row that are available besides the sum.
METRICS = ("mean", "median", "std", "min", "max")
PERCENTAGE = "Percentage (%)"
CUMULATIVE_PERCENTAGE = "Cumulative Percentage (%)"
PERCENTAGES = (PERCENTAGE, CUMULATIVE_PERCENTAGE)

DIRECT_TIME = "total_direct_kernel_time"
SUBTREE_TIME = "total_subtree_kernel_time"
_TIMES = (DIRECT_TIME, SUBTREE_TIME)
#: Columns that distinguish the rows of `unique_args`.
_UNIQUE_KEY = (
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
    """Return GPU time by operation, longest direct time first.

    The columns are those of the sheet `ops_summary`.
    """
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
    """Return the categories of the operations of each name, as a list in text form."""
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
        launched: the GPU events of the trace and all launchers. With them, two columns describe the
            GPU events that each row launched.
        metrics: statistics over the operations of a row, out of `METRICS`; `sum` is always added.
        group_by_num_kernels: whether operations that launched different numbers of GPU events are
            separate rows, with the number in the column `direct_kernel_count`.

    Raises:
        UsageError: a metric does not exist.
    """
    _check_metrics(metrics)
    key = list(_UNIQUE_KEY)
    if "is_recompute" in launchers:
        key.append("is_recompute")
    if group_by_num_kernels:
        key.append("direct_kernel_count")
    groups = _LauncherGroups(launchers, key)
    columns = groups.keys()
    columns["operation_count"] = groups.count
    shown_metrics = [metric for metric in METRICS if metric in metrics]
    for metric in shown_metrics + ["sum"]:
        for time in _TIMES:
            columns[f"{time}_{metric}"] = groups.statistic(time, metric)
    launcher_row = launchers["UID"].to_numpy()
    columns["ex_UID"] = launcher_row[groups.first]
    if "ts" in launchers:
        first_start = groups.statistic("ts", "min")
        columns["first_occurrence_time"] = first_start - first_start.min(initial=np.inf)
    for name in ("parent_module", "call_stack"):
        if name in launchers:
            columns[name] = launchers[name].iloc[groups.first].tolist()
    if launched is not None:
        gpu_events, all_launchers = launched
        group_of_gpu = _group_of_gpu_events(all_launchers, launcher_row, groups.of_row)
        texts = _launched_texts(
            gpu_events=gpu_events,
            launchers=all_launchers,
            group_of_gpu=group_of_gpu,
            group_count=len(groups.first),
        )
        columns["kernel_details_summary"] = texts.full
        columns["trunc_kernel_details"] = texts.short
    return _longest_first(columns, f"{DIRECT_TIME}_sum")


def _check_metrics(metrics: Sequence[str]) -> None:
    """Raise a `UsageError` if a metric does not exist."""
    unknown = sorted(set(metrics) - set(METRICS) - {"sum"})
    if unknown:
        raise UsageError(
            f"unknown metric {unknown[0]!r}; there are {', '.join(METRICS)}"
        )


class _LauncherGroups:
    """The k groups of the n rows of a launcher table, in the order of their first rows.

    Args:
        table: the launcher table.
        key: the columns in which the rows of a group are equal.

    Attributes:
        of_row: index of the group of each row, (n,).
        first: index of the first row of each group, (k,).
        count: number of rows of each group, (k,).
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
        """Return the values of the key columns of each group."""
        return {
            column: self._table[column].iloc[self.first].tolist()
            for column in self._key
        }

    def statistic(self, column: str, metric: str) -> Float64Array:
        """Return a statistic of a column for each group, (k,); `std` of a single row is NaN."""
        return self._grouped[column].agg(metric).to_numpy(dtype=np.float64)


def kernel_details(
    gpu_events: GpuEvents, launchers: Launchers
) -> list[list[dict[str, object]]]:
    """Return the GPU events of each launcher: `name`, `dur` (µs) and `stream`, in file order."""
    details: list[list[dict[str, object]]] = [[] for _ in range(len(launchers))]
    events = zip(
        launchers.of_gpu.tolist(),
        gpu_events.name.tolist(),
        (gpu_events.duration / NS_PER_US).tolist(),
        gpu_events.trace.stream.tolist(),
        strict=True,
    )
    for launcher, name, duration, stream in events:
        if launcher != NONE:
            event = {
                "name": gpu_events.trace.names[name],
                "dur": duration,
                "stream": stream,
            }
            details[launcher].append(event)
    return details


def _group_of_gpu_events(
    launchers: Launchers, launcher_row: IntArray, group_of_row: IntArray
) -> Int64Array:
    """Return the group of the launcher of each GPU event, (g,).

    The group is `NONE` if the launcher table has no row for the launcher. If the table has several
    rows for it, the first one counts.

    Args:
        launchers: all launchers of the trace.
        launcher_row: row in the trace of the launcher in each row of a launcher table, (n,).
        group_of_row: the group of each row of the launcher table, (n,).
    """
    groups = pd.Series(group_of_row, launcher_row)
    group_of_launcher = groups.groupby(level=0).first()
    group_of_launcher = group_of_launcher.reindex(launchers.rows, fill_value=NONE)
    return values_at(group_of_launcher.to_numpy(), launchers.of_gpu)


class _LaunchedTexts(NamedTuple):
    """The GPU events of each group of launchers by name and stream, longest total first.

    Each text is a list of dictionaries, as a Python literal.
    """

    full: list[str]  #: with full names and all statistics, µs
    short: list[str]  #: with short names and only the mean, µs


def _launched_texts(
    gpu_events: GpuEvents,
    launchers: Launchers,
    group_of_gpu: IntArray,
    group_count: int,
) -> _LaunchedTexts:
    """Describe the GPU events of each group of launchers.

    Args:
        gpu_events: the GPU events.
        launchers: all launchers of the trace.
        group_of_gpu: the group of each GPU event, `NONE` for an event without one, (g,).
        group_count: the number of groups.
    """
    events = np.flatnonzero(group_of_gpu != NONE)
    launcher_row = launchers.rows[launchers.of_gpu[events]]
    # The order of launchers decides between kernels with the same total.
    events = events[np.argsort(launcher_row, kind="stable")]
    keys = [
        group_of_gpu[events],
        gpu_events.name[events],
        gpu_events.trace.stream[events],
    ]
    kernels = group_durations(keys, gpu_events.duration[events])
    group_of_kernel, name_of_kernel, stream_of_kernel = kernels.keys
    full: list[list[dict[str, object]]] = [[] for _ in range(group_count)]
    short: list[list[dict[str, object]]] = [[] for _ in range(group_count)]
    rows = zip(
        group_of_kernel.tolist(),
        name_of_kernel.tolist(),
        stream_of_kernel.tolist(),
        _statistics_of_kernels(kernels),
        strict=True,
    )
    for group, name, stream, statistics in rows:
        full_name = gpu_events.trace.names[name]
        full[group].append({"name": full_name, "stream": stream} | statistics)
        short[group].append(
            {
                "name": _shortened_name(full_name),
                "stream": stream,
                "count": statistics["count"],
                "mean_duration_us": statistics["mean_duration_us"],
            }
        )
    return _LaunchedTexts(full=list(map(str, full)), short=list(map(str, short)))


def _statistics_of_kernels(kernels: Groups) -> Iterator[dict[str, object]]:
    """Yield the count and the durations of each group, µs, as full texts show them."""
    rows = zip(
        kernels.count.tolist(),
        (kernels.total / NS_PER_US).tolist(),
        (kernels.mean / NS_PER_US).tolist(),
        (kernels.shortest / NS_PER_US).tolist(),
        (kernels.longest / NS_PER_US).tolist(),
        strict=True,
    )
    for count, total, mean, shortest, longest in rows:
        yield {
            "count": count,
            "total_duration_us": total,
            "mean_duration_us": round(mean, 3),
            "min_duration_us": shortest,
            "max_duration_us": longest,
        }


def _shortened_name(name: str) -> str:
    """Return a name cut off to the length that short texts allow."""
    if len(name) <= _SHORT_NAME_LENGTH:
        return name
    return name[: _SHORT_NAME_LENGTH - 1] + "…"


def _longest_first(columns: dict[str, Any], time_column: str) -> pd.DataFrame:
    """Return columns as a table, longest time first, with columns of percentages."""
    order = np.argsort(-columns[time_column], kind="stable")
    time = columns[time_column][order]
    frame = pd.DataFrame(columns).iloc[order]
    frame = frame.reset_index(drop=True)
    frame[PERCENTAGE] = percent(time, time.sum())
    frame[CUMULATIVE_PERCENTAGE] = frame[PERCENTAGE].cumsum()
    return frame
