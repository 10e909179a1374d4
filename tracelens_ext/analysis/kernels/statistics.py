"""Statistics of the counts and durations of kernels, by simplified name."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from tracelens_ext.analysis.iterations.selection import EventFilter
from tracelens_ext.categorize.kernel_names import simple_name
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NS_PER_US, BoolArray, Int64Array
from tracelens_ext.trace.gpu_events import KIND_NAMES, GpuEvents
from tracelens_ext.trace.grouping import (
    Groups,
    LabeledColumns,
    LabeledGroups,
    group_by_labels,
    joined_labels,
    number_groups,
    percent,
    recode,
    texts,
)

#: The names of `SORTS`, spelled out for type checkers.
KernelSort = Literal["count", "total", "duration", "percentage", "duration-percentage"]


class StatisticsSort(NamedTuple):
    """A sort order of the kernel statistics."""

    column: str  #: the column to sort by, descending
    title: str  #: the sort order as a phrase


#: Name of a sort order → the sort order.
SORTS: dict[str, StatisticsSort] = {
    "count": StatisticsSort("count", "count"),
    "total": StatisticsSort("total_time_us", "total duration"),
    "duration": StatisticsSort("avg_time_us", "average duration"),
    "percentage": StatisticsSort("% of GPU events", "percentage of total launches"),
    "duration-percentage": StatisticsSort(
        "% of duration", "percentage of total duration"
    ),
}


def simple_codes(gpu_events: GpuEvents) -> tuple[Int64Array, list[str]]:
    """Return the simplified name of each GPU event: codes, (g,), and the names."""
    return recode(
        gpu_events.name, lambda code: simple_name(gpu_events.trace.names[code])
    )


def kernel_statistics(
    gpu_events: GpuEvents,
    sort: KernelSort = "count",
    *,
    selection: EventFilter | None = None,
) -> pd.DataFrame:
    """Return the counts and durations of the selected GPU events by simplified kernel name.

    Raises:
        UsageError: there is no such sort order.
    """
    _check_sort(sort)
    is_selected = (selection or EventFilter()).of(gpu_events)
    columns, groups = _statistics(gpu_events, is_selected)
    for column, (code, labels) in gpu_events.category_key.items():
        label_of_code = dict(enumerate(labels))
        columns[column] = joined_labels(
            group_index=groups.group_index,
            labels=label_of_code,
            code=code[is_selected],
            group_count=len(groups),
        )
    columns |= _full_name_columns(gpu_events, groups, is_selected)
    return _ranked(columns, sort)


def kernel_full_names(
    gpu_events: GpuEvents,
    sort: KernelSort = "count",
    *,
    selection: EventFilter | None = None,
) -> pd.DataFrame:
    """Return the full names behind the simplified names of `kernel_statistics`.

    The rows have the ranks of `kernel_statistics`; within a rank, the most frequent name is first.

    Raises:
        UsageError: there is no such sort order.
    """
    _check_sort(sort)
    is_selected = (selection or EventFilter()).of(gpu_events)
    statistics, _ = _statistics(gpu_events, is_selected)
    ranked = _ranked(statistics, sort)
    keys: LabeledColumns = {
        "kernel_name": simple_codes(gpu_events),
        "kind": (gpu_events.kind, KIND_NAMES),
        "full_name": (gpu_events.name, gpu_events.trace.names),
    }
    columns, groups = group_by_labels(keys, gpu_events.duration, is_selected)
    columns |= groups.figures("count", "total_time_us")
    full_names = pd.DataFrame({**columns, "first": groups.first})
    key = ["kernel_name", "kind"]
    table = ranked[["rank"] + key].merge(full_names, on=key, how="inner")
    table = table.sort_values(["rank", "count", "first"], ascending=[True, False, True])
    columns_shown = ["rank", "kernel_name", "full_name", "count", "total_time_us"]
    return table[columns_shown].reset_index(drop=True)


def _check_sort(sort: str) -> None:
    """Raise a `UsageError` if there is no such sort order."""
    if sort not in SORTS:
        offered = ", ".join(SORTS)
        raise UsageError(f"there is no sort order {sort!r}; choose from {offered}")


def _statistics(gpu_events: GpuEvents, is_selected: BoolArray) -> LabeledGroups:
    """Group the selected GPU events by simplified name and kind.

    Returns:
        The columns `kernel_name`, `count`, those with durations and shares, and `kind`; and the
        groups, one for each row.
    """
    keys: LabeledColumns = {
        "kernel_name": simple_codes(gpu_events),
        "kind": (gpu_events.kind, KIND_NAMES),
    }
    key_columns, groups = group_by_labels(keys, gpu_events.duration, is_selected)
    columns = {
        "kernel_name": key_columns["kernel_name"],
        **groups.figures("count", "avg_time_us", "total_time_us"),
        "std_time_us": groups.deviation(gpu_events.duration[is_selected]) / NS_PER_US,
        "% of GPU events": percent(groups.count, int(is_selected.sum())),
        "% of duration": percent(groups.total, int(groups.total.sum())),
        **groups.figures("min_time_us", "max_time_us"),
        "kind": key_columns["kind"],
    }
    return LabeledGroups(columns, groups)


def _ranked(columns: dict[str, object], sort: KernelSort) -> pd.DataFrame:
    """Return the columns as a table in a sort order, with `rank`, from 1, before them."""
    order = [SORTS[sort].column, "total_time_us", "kernel_name"]
    table = pd.DataFrame(columns)
    table = table.sort_values(order, ascending=[False, False, True], ignore_index=True)
    table.insert(0, "rank", np.arange(1, len(table) + 1))
    return table


def _full_name_columns(
    gpu_events: GpuEvents, groups: Groups, is_selected: BoolArray
) -> dict[str, object]:
    """Return columns with the number of full names of each group, and the most frequent one.

    Of equally frequent names, the one that ran first is shown.
    """
    name = gpu_events.name[is_selected]
    # The full names of a group are its p pairs of a group and a name.
    first_event_of_pair, pair_of_event = number_groups([groups.group_index, name])
    group_of_pair = groups.group_index[first_event_of_pair]
    frequency_of_pair = np.bincount(pair_of_event)
    # Sorted by group, descending frequency and first event, the first pair of each group has its
    # most frequent name.
    sorted_pairs = np.lexsort((first_event_of_pair, -frequency_of_pair, group_of_pair))
    _, first_of_group = np.unique(group_of_pair[sorted_pairs], return_index=True)
    most_frequent_pair_of_group = sorted_pairs[first_of_group]
    example_of_group = name[first_event_of_pair[most_frequent_pair_of_group]]
    return {
        "full_names": np.bincount(group_of_pair, minlength=len(groups)),
        "example_full_name": texts(example_of_group, gpu_events.trace.names),
    }
