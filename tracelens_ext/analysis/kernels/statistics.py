"""How often and how long kernels ran, by simplified name."""

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
    """What a sort of kernel statistics goes by."""

    column: str
    title: str


#: What each sort goes by.
SORTS: dict[str, StatisticsSort] = {
    "count": StatisticsSort("count", "count"),
    "total": StatisticsSort("total_time_us", "total duration"),
    "duration": StatisticsSort("avg_time_us", "average duration"),
    "percentage": StatisticsSort("% of GPU events", "percentage of total launches"),
    "duration-percentage": StatisticsSort(
        "% of duration", "percentage of total duration"
    ),
}


def simple_codes(work: GpuEvents) -> tuple[Int64Array, list[str]]:
    """Return the simplified name of each GPU event: codes, (g,), and the names."""
    return recode(work.name, lambda code: simple_name(work.trace.names[code]))


def kernel_statistics(
    work: GpuEvents, sort: KernelSort = "count", *, selection: EventFilter | None = None
) -> pd.DataFrame:
    """How often and how long kernels ran, by simplified name; only events that are selected."""
    if sort not in SORTS:
        offered = ", ".join(SORTS)
        raise UsageError(f"there is no sort order {sort!r}; choose from {offered}")
    is_selected = (selection or EventFilter()).of(work)
    keys: LabeledColumns = {
        "kernel_name": simple_codes(work),
        "kind": (work.kind, KIND_NAMES),
    }
    columns, groups = group_by_labels(keys, work.duration, is_selected)
    columns |= {
        **groups.figures("count", "avg_time_us", "total_time_us"),
        "std_time_us": groups.deviation(work.duration[is_selected]) / NS_PER_US,
        "% of GPU events": percent(groups.count, int(is_selected.sum())),
        "% of duration": percent(groups.total, int(groups.total.sum())),
        **groups.figures("min_time_us", "max_time_us"),
        "kind": columns.pop("kind"),
    }
    for column, (code, labels) in work.category_key.items():
        label_of_code = dict(enumerate(labels))
        columns[column] = joined_labels(
            group_index=groups.group_index,
            labels=label_of_code,
            code=code[is_selected],
            group_count=len(groups),
        )
    columns |= _full_name_columns(work, groups, is_selected)
    order = [SORTS[sort].column, "total_time_us", "kernel_name"]
    frame = pd.DataFrame(columns)
    frame = frame.sort_values(order, ascending=[False, False, True], ignore_index=True)
    frame.insert(0, "rank", np.arange(1, len(frame) + 1))
    return frame


def _full_name_columns(
    work: GpuEvents, groups: Groups, is_selected: BoolArray
) -> dict[str, object]:
    """Return how many full names each group has, and the most frequent one.

    Of equally frequent ones it is the one that ran first.
    """
    name = work.name[is_selected]
    first, full_name = number_groups([groups.group_index, name])
    group_of_full_name = groups.group_index[first]
    frequency = np.bincount(full_name)
    by_group_and_frequency = np.lexsort((first, -frequency, group_of_full_name))
    _, first_of_group = np.unique(
        group_of_full_name[by_group_and_frequency], return_index=True
    )
    most_frequent = by_group_and_frequency[first_of_group]
    example = name[first[most_frequent]]
    return {
        "full_names": np.bincount(group_of_full_name, minlength=len(groups)),
        "example_full_name": texts(example, work.trace.names),
    }


def kernel_full_names(
    work: GpuEvents, sort: KernelSort = "count", *, selection: EventFilter | None = None
) -> pd.DataFrame:
    """The full names behind the simplified ones of `kernel_statistics`."""
    statistics = kernel_statistics(work, sort, selection=selection)
    keys: LabeledColumns = {
        "kernel_name": simple_codes(work),
        "kind": (work.kind, KIND_NAMES),
        "full_name": (work.name, work.trace.names),
    }
    is_selected = (selection or EventFilter()).of(work)
    columns, groups = group_by_labels(keys, work.duration, is_selected)
    columns |= groups.figures("count", "total_time_us")
    full_names = pd.DataFrame({**columns, "first": groups.first})
    shared = ["kernel_name", "kind"]
    frame = statistics[["rank"] + shared].merge(full_names, on=shared, how="inner")
    frame = frame.sort_values(["rank", "count", "first"], ascending=[True, False, True])
    columns_shown = ["rank", "kernel_name", "full_name", "count", "total_time_us"]
    return frame[columns_shown].reset_index(drop=True)
