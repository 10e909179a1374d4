"""Statistics of kernels by their simplified name: how often, how long, how evenly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from tracelens_ext.errors import UsageError
from tracelens_ext.iterations.selection import Selection
from tracelens_ext.kernel_names import simple_name
from tracelens_ext.lazy import pd
from tracelens_ext.tables.table import Table
from tracelens_ext.trace import NS_PER_US
from tracelens_ext.work.gpu_work import KIND_NAMES
from tracelens_ext.work.grouping import group_durations, number_groups, percent, texts

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.trace import Int64Array, IntArray
    from tracelens_ext.work.gpu_work import GpuWork

KernelSort = Literal["count", "duration", "percentage", "duration-percentage"]

#: What a sort goes by: the column, and what it is called.
SORTS: dict[str, tuple[str, str]] = {
    "count": ("count", "count"),
    "duration": ("avg_time_us", "average duration"),
    "percentage": ("% of launches", "percentage of total launches"),
    "duration-percentage": ("% of duration", "percentage of total duration"),
}


def simple_codes(work: GpuWork) -> tuple[Int64Array, list[str]]:
    """The simplified name of each GPU event.

    Returns:
        Codes, shape (g,), and the names that they stand for.
    """
    present, code = np.unique(work.name, return_inverse=True)
    names: dict[str, int] = {}
    of_present = [
        names.setdefault(simple_name(work.trace.names[i]), len(names)) for i in present.tolist()
    ]
    return np.array(of_present, dtype=np.int64)[code], list(names)


def kernel_statistics(
    work: GpuWork, *, sort: KernelSort = "count", selection: Selection | None = None
) -> pd.DataFrame:
    """A row a simplified kernel name; every selected GPU event is in one. Runtime calls are not.

    Args:
        work: the GPU events.
        sort: `count`, `duration` (average), `percentage` (of launches) or `duration-percentage`
            (of the summed durations); largest first.
        selection: which events count, all by default.

    Returns:
        Columns `rank`, `kernel_name` (see `kernel_names.simple_name`), `count`, `avg_time_us`,
        `total_time_us`, `std_time_us` (of a sample; 0 for a single event), `% of launches`,
        `% of duration`, `min_time_us`, `max_time_us`, `kind` (kernel, memcpy, memset),
        `kernel_category` when there are categories (several joined by `, `), `full_names` (how
        many names share the simplified one), `example_full_name` (the most frequent of them).

    Raises:
        UsageError: there is no such sort, or nothing that could be selected.
    """
    if sort not in get_args(KernelSort):
        raise UsageError(f"no such sort: {sort!r}; choose from {', '.join(get_args(KernelSort))}")
    mask = (selection or Selection()).of(work)
    simple, names = simple_codes(work)
    duration = work.duration[mask]
    groups = group_durations([simple[mask], work.kind[mask]], duration)
    full, example = _full_names(work.name[mask], groups.number, len(groups))
    columns: dict[str, object] = {
        "kernel_name": texts(groups.keys[0], names),
        "count": groups.count,
        "avg_time_us": groups.mean / NS_PER_US,
        "total_time_us": groups.total / NS_PER_US,
        "std_time_us": groups.deviation(duration) / NS_PER_US,
        "% of launches": percent(groups.count, len(duration)),
        "% of duration": percent(groups.total, int(duration.sum())),
        "min_time_us": groups.shortest / NS_PER_US,
        "max_time_us": groups.longest / NS_PER_US,
        "kind": texts(groups.keys[1], KIND_NAMES),
    }
    if work.categories is not None:
        labels = work.categories.labels
        code = work.categories.code[mask]
        columns["kernel_category"] = _joined(code, groups.number, labels, len(groups))
    columns["full_names"] = full
    columns["example_full_name"] = texts(example, work.trace.names)
    frame = pd.DataFrame(columns)
    frame = frame.sort_values(
        [SORTS[sort][0], "total_time_us", "kernel_name"], ascending=[False, False, True]
    ).reset_index(drop=True)
    frame.insert(0, "rank", np.arange(1, len(frame) + 1))
    return frame


def full_names(
    work: GpuWork, statistics: pd.DataFrame, *, selection: Selection | None = None
) -> pd.DataFrame:
    """A row a full name of the kernels in a table.

    Returns:
        Columns `rank` (as in the table, and in its order), `kernel_name`, `full_name`, `count`,
        `total_time_us`; of each rank the most frequent name first.
    """
    mask = (selection or Selection()).of(work)
    simple, names = simple_codes(work)
    keys: list[IntArray] = [simple[mask], work.kind[mask], work.name[mask]]
    groups = group_durations(keys, work.duration[mask])
    frame = pd.DataFrame(
        {
            "kernel_name": texts(groups.keys[0], names),
            "kind": texts(groups.keys[1], KIND_NAMES),
            "full_name": texts(groups.keys[2], work.trace.names),
            "count": groups.count,
            "total_time_us": groups.total / NS_PER_US,
            "first": groups.first,
        }
    )
    same = ["kernel_name", "kind"]
    frame = statistics[["rank", *same]].merge(frame, on=same, how="inner")
    frame = frame.sort_values(["rank", "count", "first"], ascending=[True, False, True])
    columns = ["rank", "kernel_name", "full_name", "count", "total_time_us"]
    return frame[columns].reset_index(drop=True)


def _full_names(name: np.ndarray, code: Int64Array, size: int) -> tuple[Int64Array, Int64Array]:
    """How many names each group has, and its most frequent one, both (k,)."""
    first, pair = number_groups([code, name])
    often = np.bincount(pair, minlength=len(first))
    group = code[first]
    order = np.lexsort((first, -often, group))
    leading = order[np.unique(group[order], return_index=True)[1]]
    return np.bincount(group, minlength=size).astype(np.int64), name[first[leading]]


def _joined(category: np.ndarray, code: Int64Array, labels: list[str], size: int) -> list[str]:
    """The categories of each group as one text."""
    first, _ = number_groups([code, category])
    of_group: list[list[str]] = [[] for _ in range(size)]
    for group, label in zip(code[first].tolist(), category[first].tolist(), strict=True):
        of_group[group].append(labels[label])
    return [", ".join(found) for found in of_group]


def kernel_table(
    analyzer: TreePerfAnalyzer, sort: KernelSort = "count", *, selection: Selection | None = None
) -> pd.DataFrame:
    """How often and how long kernels ran, by simplified name; only those that are selected."""
    return kernel_statistics(analyzer.work, sort=sort, selection=selection)


def full_name_table(
    analyzer: TreePerfAnalyzer, sort: KernelSort = "count", *, selection: Selection | None = None
) -> pd.DataFrame:
    """The full names behind the simplified ones of `kernels`."""
    of_kernels = kernel_table(analyzer, sort, selection=selection)
    return full_names(analyzer.work, of_kernels, selection=selection)


TABLES = [
    Table(
        name="kernels",
        shows="How often and how long kernels ran, by simplified name",
        columns="""
            rank: by what the table is sorted by; by count
            kernel_name: simplified
            count [GPU events]: how many
            avg_time_us, total_time_us, std_time_us, min_time_us, max_time_us: of a GPU event; `std`
                is that of a sample, 0 for a single event
            % of launches, % of duration: of all that were selected
            kind: `kernel`, `memcpy` or `memset`
            kernel_category: when categories are on; several are joined by a comma
            full_names [names]: that share the simplified one
            example_full_name: the most frequent of them
            """,
        table=kernel_table,
        asked_by="tables",
        method="get_df_kernel_statistics()",
    ),
    Table(
        name="kernel_full_names",
        shows="The names behind the simplified ones of `kernels`",
        columns="""
            rank, kernel_name: of the row of `kernels`
            full_name: of each rank the most frequent first
            count [GPU events]: how many
            total_time_us: summed duration
            """,
        table=full_name_table,
        asked_by="tables",
    ),
]
