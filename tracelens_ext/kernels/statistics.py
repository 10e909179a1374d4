"""Kernels by simplified name, by source and layer; short ones, and those without a launch."""

from __future__ import annotations

import re
from typing import Literal, get_args

import numpy as np

from tracelens_ext.errors import UsageError
from tracelens_ext.iterations.iterations import Selection
from tracelens_ext.kernel_names import simple_name
from tracelens_ext.kernels.kernels import ARGUMENTS
from tracelens_ext.lazy import pd
from tracelens_ext.modules.modules import module_of_gpu
from tracelens_ext.nesting import ROOT, nearest_marked
from tracelens_ext.operations.launchers import op_argument
from tracelens_ext.tables.table import GPU_EVENTS, Condition, Table
from tracelens_ext.timeline.timeline import total_time_ns
from tracelens_ext.trace import NS_PER_MS, NS_PER_US, BoolArray, EventKind, Int64Array
from tracelens_ext.work.gpu_work import KIND_NAMES, GpuWork
from tracelens_ext.work.grouping import (
    Labelled,
    group_labelled,
    joined,
    maxima,
    minima,
    number_groups,
    percent,
    renamed,
    texts,
)

KernelSort = Literal["count", "duration", "percentage", "duration-percentage"]

#: What a sort goes by: the column, and what it is called.
SORTS: dict[str, tuple[str, str]] = {
    "count": ("count", "count"),
    "duration": ("avg_time_us", "average duration"),
    "percentage": ("% of launches", "percentage of total launches"),
    "duration-percentage": ("% of duration", "percentage of total duration"),
}


def simple_codes(work: GpuWork) -> tuple[Int64Array, list[str]]:
    """The simplified name of each GPU event."""
    return renamed(work.name, lambda code: simple_name(work.trace.names[code]))


def kernel_statistics(
    work: GpuWork, sort: KernelSort = "count", *, selection: Selection | None = None
) -> pd.DataFrame:
    """How often and how long kernels ran, by simplified name; only events that are selected."""
    if sort not in get_args(KernelSort):
        raise UsageError(f"no such sort: {sort!r}; choose from {', '.join(get_args(KernelSort))}")
    mask = (selection or Selection()).of(work)
    keys: Labelled = {"kernel_name": simple_codes(work), "kind": (work.kind, KIND_NAMES)}
    columns, groups = group_labelled(keys, work.duration, mask)
    name, kind = work.name[mask], columns.pop("kind")
    first, pair = number_groups([groups.number, name])
    full = groups.number[first]  # the group of each full name
    order = np.lexsort((first, -np.bincount(pair), full))
    example = name[first[order[np.unique(full[order], return_index=True)[1]]]]
    columns |= {
        **groups.figures("count", "avg_time_us", "total_time_us"),
        "std_time_us": groups.deviation(work.duration[mask]) / NS_PER_US,
        "% of launches": percent(groups.count, int(mask.sum())),
        "% of duration": percent(groups.total, int(groups.total.sum())),
        **groups.figures("min_time_us", "max_time_us"),
        "kind": kind,
    }
    for column, (code, labels) in work.category_key.items():
        columns[column] = joined(groups.number, dict(enumerate(labels)), code[mask], len(groups))
    columns["full_names"] = np.bincount(full, minlength=len(groups))
    columns["example_full_name"] = texts(example, work.trace.names)
    by = [SORTS[sort][0], "total_time_us", "kernel_name"]
    frame = pd.DataFrame(columns).sort_values(by, ascending=[False, False, True], ignore_index=True)
    frame.insert(0, "rank", np.arange(1, len(frame) + 1))
    return frame


def kernel_full_names(
    work: GpuWork, sort: KernelSort = "count", *, selection: Selection | None = None
) -> pd.DataFrame:
    """The full names behind the simplified ones of `kernel_statistics`."""
    statistics = kernel_statistics(work, sort, selection=selection)
    keys: Labelled = {
        "kernel_name": simple_codes(work),
        "kind": (work.kind, KIND_NAMES),
        "full_name": (work.name, work.trace.names),
    }
    chosen = (selection or Selection()).of(work)
    columns, groups = group_labelled(keys, work.duration, chosen)
    columns |= groups.figures("count", "total_time_us")
    frame = pd.DataFrame({**columns, "first": groups.first})
    same = ["kernel_name", "kind"]
    frame = statistics[["rank", *same]].merge(frame, on=same, how="inner")
    frame = frame.sort_values(["rank", "count", "first"], ascending=[True, False, True])
    shown = ["rank", "kernel_name", "full_name", "count", "total_time_us"]
    return frame[shown].reset_index(drop=True)


#: Python frames that only pass a call on: of PyTorch, Triton, Python itself and its built-ins.
_PASSES_ON = re.compile(
    r"nn\.Module: |<(?!eval_with_key)|(?:.*/)?(?:torch|triton|pybind11)/"
    r"|(?:.*/)?(?:contextlib|functools|threading|multiprocessing/\w+)\.py\("
)


def kernel_sources(work: GpuWork, *, selection: Selection | None = None) -> pd.DataFrame:
    """Kernels by source line and layer, of an analyzer made with `add_python_func=True`."""
    if not work.tree.add_python_func:
        raise UsageError("this needs TreePerfAnalyzer(…, add_python_func=True)")
    tree, trace = work.tree, work.trace
    mask = (selection or Selection()).of(work)
    positions, number = np.unique(tree.launch_position_of_gpu, return_inverse=True)
    name = trace.name[tree.rows]
    frames = trace.kind[tree.rows] == EventKind.PYTHON_FUNCTION
    is_source = frames & ~trace.named(name, _PASSES_ON.match)
    above = np.append(nearest_marked(tree.parent_position, is_source), ROOT)[positions]
    source = np.append(name, len(trace.names))[above]  # the last are those of `ROOT`
    layer, paths = module_of_gpu(work)
    keys: Labelled = {
        "kernel_name": (work.name, trace.names),
        "cpu_op": tree.cpu_op_label_of_gpu,
        "source": (source[number], [*trace.names, ""]),
        "layer": (layer, [*paths, ""]),
    }
    columns, groups = group_labelled(keys, work.duration, mask)
    columns |= groups.figures("count", "total_time_us", "avg_time_us")
    columns["% of duration"] = percent(groups.total, int(groups.total.sum()))
    return pd.DataFrame(columns)


def short_kernel_histogram(
    work: GpuWork, *, short_kernel_threshold_us: float = 10, short_kernel_histogram_bins: int = 100
) -> pd.DataFrame:
    """How the durations of kernels shorter than the threshold are spread, in bins of one width."""
    duration = work.duration[_short(work, short_kernel_threshold_us)] / 1e3
    if not len(duration):
        return pd.DataFrame({"bin_start": [], "bin_end": [], "count": []})
    count, edges = np.histogram(duration, bins=short_kernel_histogram_bins)
    return pd.DataFrame({"bin_start": edges[:-1], "bin_end": edges[1:], "count": count})


def short_kernels_summary(
    work: GpuWork, threshold_us: float, topk: int | None = None
) -> pd.DataFrame:
    """Short kernels by the CPU op that launched them, its arguments, and their name."""
    arguments = {
        column: op_argument(work.trace, work.tree.cpu_op_of_gpu, name)
        for column, name in ARGUMENTS.items()
        if column != "Input types"
    }
    names = {"Kernel name": (work.name, work.trace.names)}
    keys: Labelled = {"Parent cpu_op": work.parent_op, **arguments, **names}
    columns, groups = group_labelled(keys, work.duration, _short(work, threshold_us))
    duration = "Short Kernel duration (µs)"
    columns |= {
        f"{duration} sum": groups.total / NS_PER_US,
        "Short Kernel count": groups.count,
        f"{duration} mean": groups.total / NS_PER_US / groups.count,
        f"{duration} percent of total time": percent(groups.total, total_time_ns(work)),
    }
    return pd.DataFrame(columns).head(len(groups) if topk is None else topk)


def _short(work: GpuWork, threshold_us: float) -> BoolArray:
    return work.is_kernel & (work.duration < threshold_us * 1000)


def unlinked_kernels(work: GpuWork) -> pd.DataFrame:
    """GPU events without a launch in the trace, by name. Longest total first."""
    chosen = np.flatnonzero(~work.tree.linked)
    has_id = (work.trace.correlation[work.rows] > 0).astype(np.int64)
    keys: Labelled = {
        "kernel_name": (work.name, work.trace.names),
        **work.category_key,
        "kind": (work.kind, KIND_NAMES),
        "reason": (has_id, ["no correlation id", "launch not in the trace"]),
    }
    columns, groups = group_labelled(keys, work.duration, chosen)
    start, end = work.start[chosen], work.end[chosen]
    columns |= groups.figures("count", "total_time_ms", "avg_time_us", "min_time_us", "max_time_us")
    columns |= {
        "% of unlinked time": percent(groups.total, int(groups.total.sum())),
        "% of GPU time": percent(groups.total, int(work.duration.sum())),
        "first_start_ms": minima(groups.number, start, len(groups)) / NS_PER_MS,
        "last_end_ms": maxima(groups.number, end, len(groups)) / NS_PER_MS,
    }
    return pd.DataFrame(columns)


TABLES = [
    Table(
        name="kernel_statistics",
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
        table=kernel_statistics,
        asked_by="tables",
    ),
    Table(
        name="kernel_full_names",
        shows="The names behind the simplified ones of `kernel_statistics`",
        columns="""
            rank, kernel_name: of the row of `kernel_statistics`
            full_name: of each rank the most frequent first
            count [GPU events]: how many
            total_time_us: summed duration
            """,
        table=kernel_full_names,
        asked_by="tables",
    ),
    Table(
        name="kernel_sources",
        shows="Kernels by source line and layer",
        columns="""
            kernel_name: as the trace has it
            cpu_op: that launched it
            source: the innermost Python function around the launch that does not only pass the call
                on: file, the line where it begins, name; empty where none was recorded
            layer: the `nn.Module`s around, outermost first; of a backward operation those of its
                forward operation
            count [GPU events]: how many
            total_time_us: summed duration
            avg_time_us: of a GPU event
            % of duration: of all that were selected
            """,
        table=kernel_sources,
        when=[
            GPU_EVENTS,
            Condition(
                "Python frames are in the call tree",
                lambda analyzer, _: analyzer.tree.add_python_func,
            ),
        ],
        asked_by="tables",
    ),
]
