"""The `ops_*` tables: GPU time by category of operation, by operation, by its arguments.

Each is a function of a launcher table, which may have been filtered by its user. `cpu_ops` is what
a trace without a GPU can tell: the time that the host spent in operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.nesting import ROOT, nearest_marked
from tracelens_ext.operations.launchers import ARGUMENTS, Launchers
from tracelens_ext.trace import NS_PER_MS, NS_PER_US, Float64Array
from tracelens_ext.work.busy_time import BusyTime
from tracelens_ext.work.gpu_work import GpuWork
from tracelens_ext.work.grouping import group_durations, percent, sums, texts

METRICS = ("mean", "median", "std", "min", "max")
PERCENTAGES = ("Percentage (%)", "Cumulative Percentage (%)")

_DIRECT, _SUBTREE = "total_direct_kernel_time", "total_subtree_kernel_time"
_UNIQUE = ("name", "op category", "process_name", "process_label", "thread_name", *ARGUMENTS)
_SHORT_NAME = 64


def summary_by_category(launchers: pd.DataFrame) -> pd.DataFrame:
    """GPU time by category of operation, as the sheet `ops_summary_by_category`; longest first."""
    groups = _Groups(launchers, ["op category"])
    time = groups.statistic(_DIRECT, "sum") / 1e3
    columns = {**groups.keys(), "Count": groups.count, f"{_DIRECT}_ms": time}
    return _longest_first(columns, f"{_DIRECT}_ms")


def summary(launchers: pd.DataFrame) -> pd.DataFrame:
    """GPU time by operation, as the sheet `ops_summary`; longest direct time first."""
    groups = _Groups(launchers, ["name"])
    sums = {column: groups.statistic(column, "sum") for column in (_DIRECT, _SUBTREE)}
    pairs = pd.DataFrame(_Groups(launchers, ["name", "op category"]).keys())
    categories = pairs.groupby("name")["op category"].agg(lambda its: str(sorted(its)))
    columns = {
        **groups.keys(),
        **{f"{column}_sum": time for column, time in sums.items()},
        **{f"{column}_ms": time / 1e3 for column, time in sums.items()},
        "Count": groups.count,
        "Categories": [categories[name] for name in groups.keys()["name"]],
    }
    return _longest_first(columns, f"{_DIRECT}_sum")


def unique_args(
    launchers: pd.DataFrame,
    kernels: LaunchedKernels | None = None,
    *,
    metrics: Sequence[str] = METRICS,
    group_by_num_kernels: bool = False,
) -> pd.DataFrame:
    """GPU time by operation, its arguments and thread, as the sheet `ops_unique_args`.

    The longest direct time is first. `kernels`: what each launched; None for no columns about it.
    `metrics`: statistics over the operations of a row, some of `METRICS`; `sum` always is one. With
    `group_by_num_kernels` operations that launched different numbers of GPU events are rows of
    their own, with the number in a column `direct_kernel_count`.
    """
    if unknown := sorted(set(metrics) - {*METRICS, "sum"}):
        raise UsageError(f"unknown metric {unknown[0]!r}; there are {', '.join(METRICS)}")
    further = ["is_recompute"] if "is_recompute" in launchers else []
    further += ["direct_kernel_count"] if group_by_num_kernels else []
    groups = _Groups(launchers, [*_UNIQUE, *further])
    uids = launchers["UID"].to_numpy()
    columns: dict[str, object] = {**groups.keys(), "operation_count": groups.count}
    for metric in (*(m for m in METRICS if m in metrics), "sum"):
        for column in (_DIRECT, _SUBTREE):
            columns[f"{column}_{metric}"] = groups.statistic(column, metric)
    columns["ex_UID"] = uids[groups.first]
    if "ts" in launchers:
        first = groups.statistic("ts", "min")
        columns["first_occurrence_time"] = first - first.min(initial=np.inf)
    for name in ("parent_module", "call_stack"):
        if name in launchers:
            columns[name] = launchers[name].iloc[groups.first].tolist()
    if kernels is not None:
        details, short = kernels.describe(uids, groups.of_row, len(groups.first))
        columns |= {"kernel_details_summary": details, "trunc_kernel_details": short}
    return _longest_first(columns, f"{_DIRECT}_sum")


class _Groups:
    """Rows of a launcher table that are equal in some columns, k groups by first occurrence.

    Attributes:
        of_row: the group of each row, shape (n,).
        first: the first row of each group, (k,).
        count: rows of each group, (k,).
    """

    def __init__(self, table: pd.DataFrame, by: Sequence[str]) -> None:
        self._table, self._by = table, by
        grouped = table.groupby([*by], sort=False, observed=True, dropna=False)
        self.of_row = grouped.ngroup().to_numpy()
        _, self.first, self.count = np.unique(self.of_row, return_index=True, return_counts=True)
        self._grouped = table.groupby(self.of_row)

    def keys(self) -> dict[str, list[str]]:
        """What the groups have in common, column by column."""
        return {column: self._table[column].iloc[self.first].tolist() for column in self._by}

    def statistic(self, column: str, metric: str) -> Float64Array:
        """A statistic of each group's numbers, (k,); `std` is NaN for a group of one."""
        return self._grouped[column].agg(metric).to_numpy(dtype=np.float64)


class LaunchedKernels:
    """Which GPU events each launcher launched, to be described group by group."""

    def __init__(self, work: GpuWork, launchers: Launchers) -> None:
        chosen = np.flatnonzero(launchers.of_gpu >= 0)
        chosen = chosen[np.argsort(launchers.rows[launchers.of_gpu[chosen]], kind="stable")]
        self._uid = launchers.rows[launchers.of_gpu[chosen]]
        self._name = work.name[chosen]
        self._stream = work.trace.stream[chosen]
        self._duration = work.duration[chosen]
        self._labels = work.trace.names

    def of_each(self, uids: np.ndarray) -> list[list[dict[str, object]]]:
        """The GPU events of each launcher: `name`, `dur` (µs) and `stream`, in file order."""
        first, last = (np.searchsorted(self._uid, uids, side) for side in ("left", "right"))
        columns = (self._name.tolist(), self._duration.tolist(), self._stream.tolist())
        events = [
            {"name": self._labels[name], "dur": duration / NS_PER_US, "stream": stream}
            for name, duration, stream in zip(*columns, strict=True)
        ]
        return [events[a:b] for a, b in zip(first.tolist(), last.tolist(), strict=True)]

    def describe(
        self, uids: np.ndarray, group: np.ndarray, groups: int
    ) -> tuple[list[str], list[str]]:
        """What each group of launchers launched, by name and stream, longest total first.

        For each group a list of dictionaries as a Python literal, with full names and statistics in
        µs; and the same with short names and the mean alone.
        """
        order = np.argsort(uids)
        place = np.minimum(np.searchsorted(uids, self._uid, sorter=order), max(len(uids) - 1, 0))
        full: list[list[str]] = [[] for _ in range(groups)]
        short: list[list[str]] = [[] for _ in range(groups)]
        if not len(uids):
            return [], []
        place = order[place]
        known = np.flatnonzero(uids[place] == self._uid)
        sums = group_durations(
            [group[place[known]], self._name[known], self._stream[known]], self._duration[known]
        )
        times = (sums.total, sums.mean, sums.shortest, sums.longest)
        columns = (*sums.keys, sums.count, *(time / NS_PER_US for time in times))
        for number, code, stream, count, total, mean, shortest, longest in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            name = self._labels[code]
            cut = name if len(name) <= _SHORT_NAME else name[: _SHORT_NAME - 1] + "…"
            about = f"'stream': {stream}, 'count': {count}"
            about_one = f"'mean_duration_us': {round(mean, 3)}"
            full[number].append(
                f"{{'name': {name!r}, {about}, 'total_duration_us': {total}, {about_one},"
                f" 'min_duration_us': {shortest}, 'max_duration_us': {longest}}}"
            )
            short[number].append(f"{{'name': {cut!r}, {about}, {about_one}}}")
        return [f"[{', '.join(its)}]" for its in full], [f"[{', '.join(its)}]" for its in short]


def _longest_first(columns: dict[str, Any], by: str) -> pd.DataFrame:
    """The table, longest time first, with percentages."""
    order = np.argsort(-columns[by], kind="stable")
    time, (share, running) = columns[by][order], PERCENTAGES
    frame = pd.DataFrame(columns).iloc[order].reset_index(drop=True)
    frame[share] = percent(time, time.sum())
    frame[running] = frame[share].cumsum()
    return frame


def cpu_ops(work: GpuWork) -> pd.DataFrame:
    """Host time by CPU op, as the sheet `cpu_ops`; longest self time first."""
    tree, trace = work.tree, work.trace
    is_op = tree.is_operation & (tree.rows < trace.recorded)  # what a graph replays takes no time
    above = nearest_marked(tree.parent_position, is_op)
    duration = trace.dur[tree.rows]
    inner = np.flatnonzero(is_op & (above != ROOT))
    start = trace.ts[tree.rows][inner]
    below = BusyTime(start, start + duration[inner]).by_owner(above[inner], len(tree.rows))
    names, self_time = trace.name[tree.rows][is_op], (duration - below)[is_op]
    duration = duration[is_op]
    total = group_durations([names], duration)
    own = sums(total.number, self_time, len(total))
    frame = pd.DataFrame(
        {
            "cpu_op": texts(total.keys[0], trace.names),
            "count": total.count,
            "total_time_ms": total.total / NS_PER_MS,
            "self_time_ms": own / NS_PER_MS,
            "avg_time_us": total.total / 1e3 / total.count,
            "% of CPU op time": percent(own, int(self_time.sum())),
        }
    )
    return frame.iloc[np.argsort(-own, kind="stable")].reset_index(drop=True)
