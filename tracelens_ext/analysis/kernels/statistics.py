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
    group_by_labels,
    joined_labels,
    number_groups,
    percent,
    recode,
    texts,
)

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
    if sort not in SORTS:
        offered = ", ".join(SORTS)
        raise UsageError(f"there is no sort order {sort!r}; choose from {offered}")
    is_selected = (selection or EventFilter()).of(gpu_events)
    keys: LabeledColumns = {
        "kernel_name": simple_codes(gpu_events),
        "kind": (gpu_events.kind, KIND_NAMES),
    }
    columns, groups = group_by_labels(keys, gpu_events.duration, is_selected)
    columns |= {
        **groups.figures("count", "avg_time_us", "total_time_us"),
        "std_time_us": groups.deviation(gpu_events.duration[is_selected]) / NS_PER_US,
        "% of GPU events": percent(groups.count, int(is_selected.sum())),
        "% of duration": percent(groups.total, int(groups.total.sum())),
        **groups.figures("min_time_us", "max_time_us"),
        "kind": columns.pop("kind"),
    }
    for column, (code, labels) in gpu_events.category_key.items():
        label_of_code = dict(enumerate(labels))
        columns[column] = joined_labels(
            group_index=groups.group_index,
            labels=label_of_code,
            code=code[is_selected],
            group_count=len(groups),
        )
    columns |= _full_name_columns(gpu_events, groups, is_selected)
    order = [SORTS[sort].column, "total_time_us", "kernel_name"]
    frame = pd.DataFrame(columns)
    frame = frame.sort_values(order, ascending=[False, False, True], ignore_index=True)
    frame.insert(0, "rank", np.arange(1, len(frame) + 1))
    return frame


def _full_name_columns(
    gpu_events: GpuEvents, groups: Groups, is_selected: BoolArray
) -> dict[str, object]:
    """Return columns with the number of full names of each group, and the most frequent one.

    Of equally frequent names, the one that ran first is shown.
    """
    name = gpu_events.name[is_selected]
    first, full_name = number_groups([groups.group_index, name])
    group_of_full_name = groups.group_index[first]
    frequency = np.bincount(full_name)
    # Sorted by group, descending frequency and first event, the first full name of each group is
    # its most frequent one.
    order = np.lexsort((first, -frequency, group_of_full_name))
    _, first_of_group = np.unique(group_of_full_name[order], return_index=True)
    most_frequent = order[first_of_group]
    example = name[first[most_frequent]]
    return {
        "full_names": np.bincount(group_of_full_name, minlength=len(groups)),
        "example_full_name": texts(example, gpu_events.trace.names),
    }


def kernel_full_names(
    gpu_events: GpuEvents,
    sort: KernelSort = "count",
    *,
    selection: EventFilter | None = None,
) -> pd.DataFrame:
    """Return the full names behind the simplified names of `kernel_statistics`.

    The rows have the ranks of `kernel_statistics`; within a rank, the most frequent name is first.
    """
    statistics = kernel_statistics(gpu_events, sort, selection=selection)
    keys: LabeledColumns = {
        "kernel_name": simple_codes(gpu_events),
        "kind": (gpu_events.kind, KIND_NAMES),
        "full_name": (gpu_events.name, gpu_events.trace.names),
    }
    is_selected = (selection or EventFilter()).of(gpu_events)
    columns, groups = group_by_labels(keys, gpu_events.duration, is_selected)
    columns |= groups.figures("count", "total_time_us")
    full_names = pd.DataFrame({**columns, "first": groups.first})
    key = ["kernel_name", "kind"]
    frame = statistics[["rank"] + key].merge(full_names, on=key, how="inner")
    frame = frame.sort_values(["rank", "count", "first"], ascending=[True, False, True])
    columns_shown = ["rank", "kernel_name", "full_name", "count", "total_time_us"]
    return frame[columns_shown].reset_index(drop=True)
