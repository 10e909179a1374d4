"""The tables of gaps by the kernels around them.

In all functions, `selection` restricts the gaps to those that end with a selected GPU event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from tracelens_ext.analysis.context import of_gpu_events
from tracelens_ext.analysis.idle_time.causes import CAUSES
from tracelens_ext.analysis.idle_time.classification import classify_gaps
from tracelens_ext.analysis.iterations.selection import EventFilter
from tracelens_ext.analysis.kernels.statistics import simple_codes
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.table import Table
from tracelens_ext.trace import NS_PER_US, IntArray
from tracelens_ext.trace.gpu_events import Gaps, GpuEvents
from tracelens_ext.trace.grouping import (
    LabeledColumns,
    group_by_labels,
    number_groups,
    texts,
)

GapSort = Literal["count", "avg", "avggap", "max", "maxgap", "stdev"]


class PairSort(NamedTuple):
    """A sort order of the pairs of kernels."""

    column: str  #: the column to sort by, descending
    title: str  #: the sort order as a phrase


_BY_AVERAGE = PairSort("avg_gap_us", "average gap duration")
_BY_MAXIMUM = PairSort("max_gap_us", "maximum gap duration")
#: Name of a sort order → the sort order.
PAIR_SORTS: dict[str, PairSort] = {
    "count": PairSort("count", "count"),
    "avg": _BY_AVERAGE,
    "avggap": _BY_AVERAGE,
    "max": _BY_MAXIMUM,
    "maxgap": _BY_MAXIMUM,
    "stdev": PairSort("std_gap_us", "standard deviation of gap duration"),
}


def idle_by_kernel_pair(
    gpu_events: GpuEvents,
    sort: GapSort = "avg",
    *,
    selection: EventFilter | None = None,
) -> pd.DataFrame:
    """Return the gaps of the streams by the simplified names of the kernels around them.

    Raises:
        UsageError: there is no such sort order.
    """
    sorts = get_args(GapSort)
    if sort not in sorts:
        raise UsageError(
            f"there is no sort order {sort!r}; choose from {', '.join(sorts)}"
        )
    classified = classify_gaps(gpu_events, "stream", selection)
    gaps = classified.gaps
    names, labels = simple_codes(gpu_events)
    columns, groups = group_by_labels(
        names_around(gaps=gaps, column="kernel", code=names, labels=labels),
        gaps.duration,
    )
    first_of_full_names, _ = number_groups(
        [groups.group_index, gpu_events.name[gaps.before], gpu_events.name[gaps.after]]
    )
    group_of_full_names = groups.group_index[first_of_full_names]
    cause = classified.main_cause(groups.group_index, len(groups))
    frame = pd.DataFrame(
        {
            **columns,
            **groups.figures("count", "avg_gap_us", "max_gap_us", "min_gap_us"),
            "std_gap_us": groups.deviation(gaps.duration) / NS_PER_US,
            **groups.figures("total_gap_us"),
            "main_cause": pd.array(texts(cause, CAUSES), dtype="str"),
            "full_names": np.bincount(group_of_full_names, minlength=len(groups)),
        }
    )
    keys = [PAIR_SORTS[sort].column, "total_gap_us", "kernel_before", "kernel_after"]
    return frame.sort_values(keys, ascending=[False, False, True, True]).reset_index(
        drop=True
    )


def names_around(
    gaps: Gaps, column: str, code: IntArray, labels: Sequence[str]
) -> LabeledColumns:
    """Return two columns with the names of the GPU events before and after each gap.

    Args:
        gaps: the gaps.
        column: the columns are named `{column}_before` and `{column}_after`.
        code: the name of each GPU event, an index into `labels`, (g,).
        labels: the names.
    """
    return {
        f"{column}_before": (code[gaps.before], labels),
        f"{column}_after": (code[gaps.after], labels),
    }


def gap_full_names(
    gpu_events: GpuEvents,
    sort: GapSort = "avg",
    *,
    selection: EventFilter | None = None,
) -> pd.DataFrame:
    """Return the full names behind the simplified names of `idle_by_kernel_pair`.

    The rows have the ranks of `idle_by_kernel_pair`; within a rank, the most frequent names are
    first.
    """
    gaps = classify_gaps(gpu_events, "stream", selection).gaps
    names, labels = simple_codes(gpu_events)
    keys = {
        **names_around(gaps=gaps, column="kernel", code=names, labels=labels),
        **names_around(
            gaps=gaps,
            column="full_name",
            code=gpu_events.name,
            labels=gpu_events.trace.names,
        ),
    }
    columns, groups = group_by_labels(keys, gaps.duration)
    frame = pd.DataFrame({**columns, **groups.figures("count", "total_gap_us")})
    pairs = idle_by_kernel_pair(gpu_events, sort, selection=selection)[
        ["kernel_before", "kernel_after"]
    ]
    pairs.insert(0, "rank", np.arange(1, len(pairs) + 1))
    order = ["rank", "count", "total_gap_us"]
    return pairs.merge(frame).sort_values(
        order, ascending=[True, False, False], ignore_index=True
    )


_KERNEL_BEFORE = Column(
    "kernel_before", "simplified name of the GPU event before the gaps"
)
_KERNEL_AFTER = Column(
    "kernel_after", "simplified name of the GPU event after the gaps"
)
_COUNT = Column("count", "number of gaps", unit="gaps")
_TOTAL_GAP_US = Column("total_gap_us", "total length of the gaps")

IDLE_BY_KERNEL_PAIR = Table(
    name="idle_by_kernel_pair",
    description="Gaps of the streams by the kernels around them",
    columns=[
        _KERNEL_BEFORE,
        _KERNEL_AFTER,
        _COUNT,
        Column("avg_gap_us", "mean length of a gap"),
        Column("max_gap_us", "length of the longest gap"),
        Column("min_gap_us", "length of the shortest gap"),
        Column(
            "std_gap_us", "sample standard deviation of the lengths; 0 for a single gap"
        ),
        _TOTAL_GAP_US,
        Column("main_cause", "cause of most of the idle time, as in `gap_summary`"),
        Column(
            "full_names",
            "number of pairs of full names with these simplified names",
            unit="pairs",
        ),
    ],
    build=of_gpu_events(idle_by_kernel_pair),
    enabled_by="gaps",
)
GAP_FULL_NAMES = Table(
    name="gap_full_names",
    description="Full kernel names behind the simplified names of `idle_by_kernel_pair`",
    columns=[
        Column("rank", "rank of the pair in `idle_by_kernel_pair`, from 1"),
        _KERNEL_BEFORE,
        _KERNEL_AFTER,
        Column(
            "full_name_before",
            "full name of the GPU event before the gaps; the most frequent "
            "pair of each rank comes first",
        ),
        Column("full_name_after", "full name of the GPU event after the gaps"),
        _COUNT,
        _TOTAL_GAP_US,
    ],
    build=of_gpu_events(gap_full_names),
    enabled_by="tables",
)
