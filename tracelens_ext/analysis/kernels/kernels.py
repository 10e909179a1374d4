"""GPU events by name, operation, category, source, layer; one by one; short and unlinked ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np

from tracelens_ext.analysis.iterations.selection import Selection
from tracelens_ext.analysis.modules import module_of_gpu
from tracelens_ext.analysis.operations.launchers import (
    busy_below,
    op_argument,
    op_categories,
    recomputed,
)
from tracelens_ext.analysis.timeline.timeline import total_time_ns
from tracelens_ext.categorize.kernel_names import simple_name
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.trace import (
    NONE,
    NS_PER_MS,
    NS_PER_US,
    BoolArray,
    EventKind,
    Int64Array,
    IntArray,
)
from tracelens_ext.trace.call_tree import UNLINKED
from tracelens_ext.trace.gpu_events import KIND_NAMES, GpuEvents
from tracelens_ext.trace.grouping import (
    Groups,
    Labelled,
    group_labelled,
    joined,
    maxima,
    minima,
    number_groups,
    percent,
    renamed,
    sums,
    texts,
)
from tracelens_ext.trace.nesting import ROOT, nearest_marked

_OPERATIONS_SHOWN = 3
#: Column → argument of the CPU op.
ARGUMENTS = {
    "Input dims": "Input Dims",
    "Input types": "Input type",
    "Input strides": "Input Strides",
    "Concrete Inputs": "Concrete Inputs",
}


def kernel_summary(work: GpuEvents) -> pd.DataFrame:
    """GPU time by operation and kernel; every GPU event is in it. Longest total first."""
    return _summary(work)[0]


def _summary(work: GpuEvents) -> tuple[pd.DataFrame, Groups]:
    again = recomputed(work)
    keys: dict[str, tuple[IntArray, Sequence[str]]] = {
        "cpu_op": work.tree.cpu_op_label_of_gpu,
        **work.category_key,
        "kernel_name": (work.name, work.trace.names),
        "kind": (work.kind, KIND_NAMES),
    }
    if again.any():
        keys["is_recompute"] = again.astype(np.int64), ("", "yes")
    columns, groups = group_labelled(keys, work.duration)
    if again.any():
        columns["is_recompute"] = groups.keys[-1].astype(bool)
    columns |= groups.figures("count", "total_time_ms", "avg_time_us", "min_time_us", "max_time_us")
    columns["% of GPU time"] = percent(groups.total, int(work.duration.sum()))
    columns["kind"] = columns.pop("kind")
    return pd.DataFrame(columns), groups


def kernel_names(work: GpuEvents) -> pd.DataFrame:
    """GPU time by kernel, whatever launched it; columns as the sheet `kernels`, longest first."""
    key = ["kernel_name", "kind"]
    summary = kernel_summary(work)
    parts = summary.groupby(key, sort=False)
    columns = {"total_time_ms": "sum", "% of GPU time": "sum", "count": "sum"}
    columns |= {"min_time_us": "min", "max_time_us": "max"}
    columns |= {"kernel_category": "first"} if work.categories else {}
    frame = parts.agg(columns)
    launched = summary.drop_duplicates([*key, "cpu_op"])
    several = launched.duplicated(key, keep=False)  # few kernels are of several operations
    joined = launched[several].groupby(key, sort=False)["cpu_op"].agg(_largest_operations)
    operations = pd.concat([launched[~several].set_index(key)["cpu_op"], joined])
    frame.insert(0, "operations", operations.reindex(frame.index))
    frame = frame.reset_index()
    frame["avg_time_us"] = frame["total_time_ms"] / frame["count"] * (NS_PER_MS / NS_PER_US)
    return frame.sort_values("total_time_ms", ascending=False, kind="stable", ignore_index=True)


def _largest_operations(operations: pd.Series) -> str:
    """The operations of a kernel, the one with the most time first."""
    names = list(dict.fromkeys(operations.tolist()))
    names = [name for name in names if name != UNLINKED] or names
    more = len(names) - _OPERATIONS_SHOWN
    return ", ".join(names[:_OPERATIONS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def kernel_detail(work: GpuEvents) -> pd.DataFrame:
    """As `kernel_summary`, with what TraceLens's sheet of kernels tells as well."""
    frame, groups = _summary(work)
    category, labels = _parent_op_category(work)
    stream = work.trace.stream
    streams = {each: str(each) for each in np.unique(stream[stream >= 0]).tolist()}
    frame["op category"] = texts(category[groups.first], labels)
    frame["streams"] = joined(groups.number, streams, stream, len(groups))
    frame["% of total time"] = percent(groups.total, total_time_ns(work))
    return frame


def gpu_time_by_category(work: GpuEvents) -> pd.DataFrame:
    """GPU time by category, longest first; every GPU event is in it."""
    found = work.needed_categories
    columns, groups = group_labelled({"kernel_category": (found.code, found.labels)}, work.duration)
    named, _ = number_groups([groups.number, work.name])
    columns |= groups.figures("count", "total_time_ms", "avg_time_us")
    columns["kernel_names"] = np.bincount(groups.number[named], minlength=len(groups))
    columns["% of GPU time"] = percent(groups.total, int(work.duration.sum()))
    return pd.DataFrame(columns)


def kernel_category_summary(work: GpuEvents) -> pd.DataFrame:
    """GPU time by operation and category, longest first; every GPU event is in it."""
    op, op_labels = work.tree.cpu_op_label_of_gpu
    found = work.needed_categories
    keys: Labelled = {
        "cpu_op": (op, op_labels),
        "kernel_category": (found.code, found.labels),
        "kind": (work.kind, KIND_NAMES),
    }
    columns, groups = group_labelled(keys, work.duration)
    op_total = sums(op, work.duration, len(op_labels))[groups.keys[0]]
    columns |= groups.figures("count", "total_time_ms")
    columns["% of cpu_op time"] = percent(groups.total, op_total)
    columns["% of GPU time"] = percent(groups.total, int(work.duration.sum()))
    order = np.lexsort((-groups.total, groups.keys[0], -op_total))
    columns["kind"] = columns.pop("kind")
    return pd.DataFrame(columns).iloc[order].reset_index(drop=True)


def kernels(
    work: GpuEvents,
    *,
    launcher_detail: bool = False,
    cpu_op_detail: bool = False,
    nn_module_detail: bool = False,
) -> pd.DataFrame:
    """A row a GPU event, in order of start."""
    tree = work.tree
    trace = work.trace
    columns: dict[str, object] = {"cpu_op": texts(*tree.cpu_op_label_of_gpu)}
    columns |= {name: texts(*labelled) for name, labelled in work.category_key.items()}
    columns |= {
        "kernel_name": texts(work.name, trace.names),
        "kind": texts(work.kind, KIND_NAMES),
        "device": trace.device,
        "stream": trace.stream,
        "start_us": work.start / NS_PER_US,
        "duration_us": work.duration / NS_PER_US,
        "correlation": trace.correlation[work.rows],
        "linked": tree.linked,
    }
    if (again := recomputed(work)).any():
        columns["is_recompute"] = again
    if launcher_detail:
        launch = np.where(tree.linked, tree.launch_of_gpu, 0)
        names = texts(trace.name[launch], trace.names) if len(work) else []
        columns["launch"] = pd.Series(names, dtype="str").where(tree.linked)
        for label, value in (
            ("launch_start_us", trace.ts[launch]),
            ("launch_duration_us", trace.dur[launch]),
            ("launch_delay_us", work.start - trace.ts[launch]),
        ):
            columns[label] = np.where(tree.linked, value / NS_PER_US, np.nan)
        columns["Parent cpu_op"] = texts(*work.parent_op)
    if nn_module_detail:
        columns["nn_module"] = tree.module_of_gpu()
    if cpu_op_detail:
        columns |= _cpu_op_detail(work)
    return pd.DataFrame(columns).iloc[np.argsort(work.start, kind="stable")].reset_index(drop=True)


def _cpu_op_detail(work: GpuEvents) -> dict[str, object]:
    """Arguments of the innermost CPU op around each launch; what is below counts in its time."""
    tree = work.tree
    op = work.tree.cpu_op_of_gpu
    ops, number = np.unique(op[op != NONE], return_inverse=True)
    position = tree.position[ops]
    launches = np.sort(tree.launch_position_of_gpu[tree.linked])
    below = np.searchsorted(launches, tree.subtree_end[position])
    busy = np.full(len(work), np.nan)
    kernels = np.full(len(work), NONE, dtype=np.int64)
    busy[op != NONE] = busy_below(work, ops)[number]
    kernels[op != NONE] = (below - np.searchsorted(launches, position))[number]
    share = np.full(len(work), np.nan)
    np.divide(100.0 * work.duration, busy, out=share, where=busy > 0)
    return {
        "Parent cpu_op": texts(*work.parent_op),
        **{name: texts(*op_argument(work.trace, op, of)) for name, of in ARGUMENTS.items()},
        "Parent cpu_op busy time (µs)": busy / NS_PER_US,
        "Parent cpu_op kernel count": pd.Series(kernels, dtype="Int64").where(kernels != NONE),
        "Percent of Parent cpu_op busy time (%)": share,
    }


def reference_kernel_summary(work: GpuEvents) -> pd.DataFrame:
    """The sheet `kernel_summary`, with the columns TraceLens gives it; kernels only."""
    chosen = np.flatnonzero(work.is_kernel)
    streams, stream = np.unique(work.trace.stream, return_inverse=True)
    keys: Labelled = {
        "Parent op category": _parent_op_category(work),
        "Parent cpu_op": work.parent_op,
        "Kernel name": (work.name, work.trace.names),
        **work.category_key,
        "Kernel stream": (stream, list(map(str, streams))),
    }
    columns, groups = group_labelled(keys, work.duration, chosen)
    if not work.trace.count_of(*work.trace.operation_kinds):
        del columns["Parent cpu_op"]
    microseconds = groups.total / NS_PER_US
    columns |= {
        "Kernel stream": streams[groups.keys[-1]],
        "Kernel duration (µs)_sum": microseconds,
        "Kernel duration (µs)_count": groups.count,
        "Kernel duration (µs)_mean": microseconds / groups.count,
        "Kernel duration (µs)_min": groups.shortest / NS_PER_US,
        "Kernel duration (µs)_max": groups.longest / NS_PER_US,
        "Percent of kernels time (%)": percent(groups.total, int(work.duration[chosen].sum())),
        "Percent of total time (%)": percent(groups.total, total_time_ns(work)),
    }
    return pd.DataFrame(columns)


def _parent_op_category(work: GpuEvents) -> tuple[np.ndarray, list[str]]:
    """The category of the innermost CPU op around each launch, else of the launch, else empty."""
    linked = work.tree.linked
    of_gpu = np.full(len(work), NONE, dtype=np.int64)
    rows, of_gpu[linked] = np.unique(work.tree.op_of_gpu[linked], return_inverse=True)
    code, labels = op_categories(work, rows, of_gpu)
    return np.append(code, len(labels))[of_gpu], [*labels, ""]


KernelSort = Literal["count", "duration", "percentage", "duration-percentage"]

#: What a sort goes by: the column, and what it is called.
SORTS: dict[str, tuple[str, str]] = {
    "count": ("count", "count"),
    "duration": ("avg_time_us", "average duration"),
    "percentage": ("% of launches", "percentage of total launches"),
    "duration-percentage": ("% of duration", "percentage of total duration"),
}


def simple_codes(work: GpuEvents) -> tuple[Int64Array, list[str]]:
    """The simplified name of each GPU event."""
    return renamed(work.name, lambda code: simple_name(work.trace.names[code]))


def kernel_statistics(
    work: GpuEvents, sort: KernelSort = "count", *, selection: Selection | None = None
) -> pd.DataFrame:
    """How often and how long kernels ran, by simplified name; only events that are selected."""
    if sort not in SORTS:
        raise UsageError(f"no such sort: {sort!r}; choose from {', '.join(SORTS)}")
    mask = (selection or Selection()).of(work)
    keys: Labelled = {"kernel_name": simple_codes(work), "kind": (work.kind, KIND_NAMES)}
    columns, groups = group_labelled(keys, work.duration, mask)
    name = work.name[mask]
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
        "kind": columns.pop("kind"),
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
    work: GpuEvents, sort: KernelSort = "count", *, selection: Selection | None = None
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


def kernel_sources(work: GpuEvents, *, selection: Selection | None = None) -> pd.DataFrame:
    """Kernels by source line and layer, of an analyzer made with `add_python_func=True`."""
    if not work.tree.add_python_func:
        raise UsageError("this needs TreePerfAnalyzer(…, add_python_func=True)")
    tree = work.tree
    trace = work.trace
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
    work: GpuEvents,
    *,
    short_kernel_threshold_us: float = 10,
    short_kernel_histogram_bins: int = 100,
) -> pd.DataFrame:
    """How the durations of kernels shorter than the threshold are spread, in bins of one width."""
    duration = work.duration[_short(work, short_kernel_threshold_us)] / 1e3
    if not len(duration):
        return pd.DataFrame({"bin_start": [], "bin_end": [], "count": []})
    count, edges = np.histogram(duration, bins=short_kernel_histogram_bins)
    return pd.DataFrame({"bin_start": edges[:-1], "bin_end": edges[1:], "count": count})


def short_kernels_summary(
    work: GpuEvents, threshold_us: float, topk: int | None = None
) -> pd.DataFrame:
    """Short kernels by the CPU op that launched them, its arguments, and their name."""
    arguments = [of for of in ARGUMENTS.items() if of[0] != "Input types"]
    op = work.tree.cpu_op_of_gpu
    keys: Labelled = {
        "Parent cpu_op": work.parent_op,
        **{column: op_argument(work.trace, op, name) for column, name in arguments},
        "Kernel name": (work.name, work.trace.names),
    }
    columns, groups = group_labelled(keys, work.duration, _short(work, threshold_us))
    duration = "Short Kernel duration (µs)"
    columns |= {
        f"{duration} sum": groups.total / NS_PER_US,
        "Short Kernel count": groups.count,
        f"{duration} mean": groups.total / NS_PER_US / groups.count,
        f"{duration} percent of total time": percent(groups.total, total_time_ns(work)),
    }
    return pd.DataFrame(columns).head(len(groups) if topk is None else topk)


def _short(work: GpuEvents, threshold_us: float) -> BoolArray:
    return work.is_kernel & (work.duration < threshold_us * 1000)


def unlinked_kernels(work: GpuEvents) -> pd.DataFrame:
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
    start = work.start[chosen]
    end = work.end[chosen]
    columns |= {
        **groups.figures("count", "total_time_ms", "avg_time_us", "min_time_us", "max_time_us"),
        "% of unlinked time": percent(groups.total, int(groups.total.sum())),
        "% of GPU time": percent(groups.total, int(work.duration.sum())),
        "first_start_ms": minima(groups.number, start, len(groups)) / NS_PER_MS,
        "last_end_ms": maxima(groups.number, end, len(groups)) / NS_PER_MS,
    }
    return pd.DataFrame(columns)
