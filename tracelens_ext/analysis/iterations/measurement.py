"""Iterations one by one: how long each took, what the GPU did, and which of them are odd.

An iteration is a `ProfilerStep#N`, or any annotation of the user's choice. GPU work belongs to the
iteration that launched it, and work whose launch is not in the trace to that during which it
started (`iterations.iterations`); busy time, exposed communication and the times of categories
are of that work. The wall time is the annotation's on the host, and idle time is the part of it in
which the GPU ran nothing at all. Where the host runs ahead of the GPU, busy time can therefore
exceed the wall time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tracelens_ext.analysis.context import AnalysisContext, of_gpu_events
from tracelens_ext.analysis.iterations.selection import Iterations, iteration_at, named_iterations
from tracelens_ext.categorize.user_patterns import Expression
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.conditions import GPU_EVENTS, Condition
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import Table
from tracelens_ext.trace import NONE, NS_PER_MS, BoolArray, Float64Array, Int64Array
from tracelens_ext.trace.busy_time import BusyTime
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.gpu_events import COMMUNICATION, GpuEvents, find_tracks
from tracelens_ext.trace.grouping import number_groups, sums
from tracelens_ext.trace.intervals import covered
from tracelens_ext.trace.launches import find_launches

#: An iteration is odd when it is this many median absolute deviations from the median …
ODD_BEYOND = 3
#: … and this share of the median, and of the median wall time for a time, since iterations that
#: are nearly alike deviate by next to nothing, and what takes no time is odd for nobody …
ODD_AT_LEAST = 0.05
ODD_OF_WALL_TIME = 0.01
#: … of at least this many iterations; of fewer, nobody can tell.
ODD_AMONG = 5
#: What the name of a column with the time of a category ends in.
CATEGORY_ENDING = "_time_ms"
_TIMES = (
    "wall_time_ms",
    "busy_time_ms",
    "computation_time_ms",
    "exposed_comm_time_ms",
    "exposed_memcpy_time_ms",
    "idle_time_ms",
)


@dataclass(frozen=True, eq=False)
class IterationTable:
    """The iterations of a trace; in both tables a row for each device where there are several."""

    frame: pd.DataFrame  #: a row an iteration, by process and start; as the sheet `iterations`
    #: a row a measured column, over whole iterations; as the sheet `iteration_statistics`
    statistics: pd.DataFrame
    notes: tuple[str, ...]  #: what the reader should know, a sentence each

    def __len__(self) -> int:
        return len(self.frame)


@cached_per_object
def iteration_table(work: GpuEvents, annotation: Expression | None = None) -> IterationTable:
    """Measure every iteration; empty where the trace has none.

    `annotation` is searched in the names of annotations (of CPU ops, where it matches none); each
    that matches, and lies in no other, is an iteration. `ProfilerStep#N` by default.
    """
    iterations, labels, nested = named_iterations(work.tree, annotation)
    device = work.trace.device
    devices = np.unique(device[work.counted])
    blocks = [
        _block(work, iterations, labels, number, work.counted & (device == number))
        for number in devices.tolist() or [NONE]
    ]
    frame = pd.concat(blocks, ignore_index=True)
    place = frame["at"].to_numpy()
    device = frame["device"].to_numpy()
    frame = frame[_on_own_devices(work, iterations.process[place], device)]
    frame = frame.sort_values(["at", "device"], ignore_index=True)
    categories = [str(c) for c in frame if is_category_time(str(c))]
    categories.sort(key=lambda column: -float(frame[column].to_numpy().sum()))
    frame["odd"], statistics = _odd_ones(frame, [*_TIMES, "kernels", *categories])
    alone = {"process"} if len(np.unique(iterations.process)) < 2 else set()
    if len(devices) < 2:
        alone.add("device")
        statistics = statistics.drop(columns="device")
    shown = ["iteration", "process", "device", "start_ms", *_TIMES, "kernels"]
    shown += ["launches_without_gpu_work", "whole", "odd", *categories]
    notes = tuple(_notes(work, iterations, nested, statistics))
    return IterationTable(frame[[c for c in shown if c not in alone]], statistics, notes)


def _on_own_devices(work: GpuEvents, process: Int64Array, device: Int64Array) -> BoolArray:
    """Whether each process uses each device, where the trace tells which process uses which."""
    trace = work.trace
    if not trace.conventions.gpu_by_process:
        return np.ones(len(process), dtype=bool)
    of_gpu = trace.process_of_thread[trace.thread[trace.gpu_rows]]
    processes = np.concatenate((of_gpu, process)).astype(np.int64)
    _, pair = number_groups([processes, np.concatenate((trace.device, device))])
    used = np.isin(pair[len(of_gpu) :], pair[: len(of_gpu)])
    return used | ~np.isin(process, of_gpu)  # of a process without GPU work every device


def is_category_time(column: str) -> bool:
    """Whether a column of the table is the summed duration of a category, `CATEGORY_time_ms`."""
    return column.endswith(CATEGORY_ENDING) and column not in _TIMES


def _block(
    work: GpuEvents, iterations: Iterations, labels: list[str], device: int, chosen: BoolArray
) -> pd.DataFrame:
    """All iterations on one device; `at` is the iteration's index."""
    count = len(iterations)
    owner = np.where(chosen, _owner(work, iterations), NONE)
    busy_time = BusyTime(work.start, work.end)

    def busy(part: BoolArray) -> Int64Array:
        return busy_time.by_owner(np.where(part, owner, NONE), count)

    communication = work.is_communication
    computing = ~(communication | work.is_copy)
    computation = busy(computing)
    without_copies = busy(computing | communication)
    whole = busy(np.ones(len(work), dtype=bool))
    start = iterations.start
    end = iterations.end
    ran = covered(work.start[chosen], work.end[chosen], start, end)
    process_labels = list(dict.fromkeys(process for process, _ in work.trace.threads))
    columns: dict[str, object] = {
        "at": np.arange(count),
        "iteration": pd.array(labels, dtype="str"),
        "process": [process_labels[number] for number in iterations.process.tolist()],
        "device": np.full(count, device),
        "start_ms": start / NS_PER_MS,
        "wall_time_ms": (end - start) / NS_PER_MS,
        "busy_time_ms": whole / NS_PER_MS,
        "computation_time_ms": computation / NS_PER_MS,
        "exposed_comm_time_ms": (without_copies - computation) / NS_PER_MS,
        "exposed_memcpy_time_ms": (whole - without_copies) / NS_PER_MS,
        "idle_time_ms": (end - start - ran) / NS_PER_MS,
        "kernels": _counts(owner[work.is_kernel], count),
        "launches_without_gpu_work": _lost(work, iterations, device),
        "whole": iterations.finished & (_counts(iterations.of_gpu[chosen], count) > 0),
    }
    if work.categories is not None:
        code = work.categories.code
        names = work.categories.labels
        mine = owner != NONE
        cell = code[mine] * count + owner[mine]
        times = sums(cell, work.duration[mine], len(names) * count).reshape(len(names), count)
        for at in np.unique(code[_owner(work, iterations) != NONE]).tolist():
            columns[f"{names[at]}{CATEGORY_ENDING}"] = times[at] / NS_PER_MS
    return pd.DataFrame(columns)


def _lost(work: GpuEvents, iterations: Iterations, device: int) -> Int64Array:
    """How many launches for a device have no GPU work, by iteration."""
    launches = find_launches(work)
    trace = work.trace
    number = np.append(find_tracks(work, "device").device, device)  # of an unknown one any
    rows = launches.rows[launches.lost & (number[launches.device_index] == device)]
    process = trace.process_of_thread[trace.thread[rows]]
    steps = iterations.process, iterations.start, iterations.end
    return _counts(iteration_at(steps, process, trace.ts[rows]), len(iterations))


def _owner(work: GpuEvents, iterations: Iterations) -> Int64Array:
    """The iteration that each GPU event counts in, an index, `NONE` for none, (g,)."""
    by_time = work.counted & ~work.tree.linked
    return np.where(by_time, iterations.started_in, iterations.of_gpu)


def _counts(owner: Int64Array, count: int) -> Int64Array:
    return np.bincount(owner[owner != NONE], minlength=count).astype(np.int64)


def _odd_ones(frame: pd.DataFrame, measured: list[str]) -> tuple[list[str], pd.DataFrame]:
    """In which columns each row is odd, and the statistics of the columns."""
    odd_in: list[list[str]] = [[] for _ in range(len(frame))]
    rows = []
    for device, whole in frame[frame["whole"]].groupby("device"):
        wall = ODD_OF_WALL_TIME * float(whole["wall_time_ms"].median()) * NS_PER_MS
        for column in measured:
            values = whole[column].to_numpy(dtype=np.float64)
            # Times are whole ns: rounding must not make two equal ones differ.
            exact = np.round(values * NS_PER_MS)
            odd, mad = odd_among(exact, 0.0 if column == "kernels" else wall)
            for at in whole.index[odd]:
                odd_in[at].append(column)
            std = values.std(ddof=1) if len(values) > 1 else 0.0
            spread = values.mean(), std, np.median(values), mad / NS_PER_MS
            extremes = values.min(), values.max()
            rows.append((column, device, len(values), *spread, *extremes, int(odd.sum())))
    names = ["column", "device", "iterations", "mean", "std", "median", "mad", "min", "max", "odd"]
    return [", ".join(columns) for columns in odd_in], pd.DataFrame(rows, columns=names)


def odd_among(values: Float64Array, least: float = 0.0) -> tuple[BoolArray, float]:
    """Which of some ns, or counts, are odd, at least `least` from the median, (k,); their MAD."""
    middle = float(np.median(values))
    away = np.abs(values - middle)
    mad = float(np.median(away))
    odd: BoolArray = away > max(ODD_BEYOND * mad, ODD_AT_LEAST * middle, least)
    return odd if len(values) >= ODD_AMONG else np.zeros(len(values), dtype=bool), mad


def _notes(
    work: GpuEvents, iterations: Iterations, nested: int, statistics: pd.DataFrame
) -> Iterator[str]:
    if unfinished := int((~iterations.whole).sum()):
        yield (
            f"{unfinished:,} of {len(iterations):,} iterations are not whole (launched no GPU work,"
            " or were open when the recording ended) and not in the statistics."
        )
    if nested:
        yield f"{nested:,} annotations lie within another that matches, and do not count."
    outside = _owner(work, iterations) == NONE
    if len(iterations) and outside.any():
        yield (
            f"{work.count_text(outside)} were launched outside of all iterations, or their launch"
            " is not in the trace."
        )
    if (by_time := ~outside & (iterations.of_gpu == NONE)).any():
        yield (
            f"{work.count_text(by_time)} without a launch in the trace count in the iteration"
            " during which they started."
        )
    yield from _note_on_communication(work, ~outside)
    if len(statistics) and int(statistics["iterations"].max()) < ODD_AMONG:
        yield f"No iteration is called odd: that takes {ODD_AMONG} whole ones."


def _note_on_communication(work: GpuEvents, inside: BoolArray) -> Iterator[str]:
    """Say so where the chosen rules call other events communication than the built-in ones do."""
    if work.categories is None or COMMUNICATION not in work.categories.labels:
        return
    chosen = work.categories.code == work.categories.labels.index(COMMUNICATION)
    usual = work.is_communication
    counts = {"more": inside & chosen & ~usual, "fewer": inside & ~chosen & usual}
    if told := " and ".join(f"{each.sum():,} {how}" for how, each in counts.items() if each.any()):
        yield (
            "exposed_comm_time_ms goes by the built-in rules, so that traces can be compared;"
            f" {COMMUNICATION}{CATEGORY_ENDING} by the chosen ones, which call other GPU events"
            f" communication ({told})."
        )


def _iterations(work: GpuEvents, annotation: str | re.Pattern[str] | None = None) -> pd.DataFrame:
    return iteration_table(work, annotation).frame.copy()


def _statistics(work: GpuEvents, annotation: str | re.Pattern[str] | None = None) -> pd.DataFrame:
    return iteration_table(work, annotation).statistics.copy()


def _report_notes(
    context: AnalysisContext, options: ReportOptions, _: Mapping[str, pd.DataFrame]
) -> Iterable[str]:
    if not options.iterations or not len(context.gpu_events):
        return []
    if not len(found := iteration_table(context.gpu_events, options.annotation)):
        asked = options.annotation
        wanted = "ProfilerStep#N" if asked is None else f"annotation like {asked!r}"
        return [f"The trace has no {wanted}, so there are no tables of iterations."]
    return found.notes


def _enough(context: AnalysisContext, options: ReportOptions) -> bool:
    """Whether there are iterations; if nobody asked for them, two whole ones to be compared."""
    found = iteration_table(context.gpu_events, options.annotation)
    asked = options.iterations or options.names("iterations", "iteration_statistics")
    whole = found.frame[found.frame["whole"]]["iteration"].nunique()
    return len(found) > 0 if asked else whole > 1


_HAS_ITERATIONS = Condition("the trace has iterations (for a page, two whole ones)", _enough)

ITERATIONS = Table(
    name="iterations",
    shows="Time of each iteration, and which are odd",
    columns=[
        Column("iteration", "the annotation's name"),
        Column("process", "where there are several"),
        Column("device", "where there are several"),
        Column("start_ms", "since the trace's first event"),
        Column("wall_time_ms", "of the annotation, on the host"),
        Column(
            "busy_time_ms",
            "of what was launched in it, and what started in it without a launch in the "
            "trace: the sum of the three that follow",
        ),
        Column("computation_time_ms", "kernels that neither communicate nor copy, and memsets"),
        Column(
            "exposed_comm_time_ms",
            "communication (by the built-in rules) that none of those hid",
        ),
        Column("exposed_memcpy_time_ms", "copies that neither hid"),
        Column("idle_time_ms", "of the wall time, while the device ran nothing at all"),
        Column("kernels", "of its GPU work", unit="kernels"),
        Column(
            "launches_without_gpu_work",
            "of kernels, graphs and copies; they were lost, or cut off by the end of the recording",
            unit="launches",
        ),
        Column("whole", "it ended before the recording did, and launched GPU work"),
        Column("odd", "the columns in which it is odd"),
        Column("CATEGORY_time_ms", "when categories are on: summed durations"),
    ],
    table=of_gpu_events(_iterations),
    options=["annotation"],
    when=[GPU_EVENTS, _HAS_ITERATIONS],
    asked_by="iterations",
    charts=[
        Chart("Iterations", "iterations", "iteration", "wall_time_ms", "iterations", on="page")
    ],
    notes=_report_notes,
    on_every_page=True,
)
ITERATION_STATISTICS = Table(
    name="iteration_statistics",
    shows="Mean and spread over whole iterations",
    columns=[
        Column("column", "what was measured, with its unit"),
        Column("device", "where there are several"),
        Column("iterations", "that are whole", unit="iterations"),
        Column("mean", "over them", unit="unit of what is told"),
        Column(
            "std",
            "standard deviation of a sample, 0 for a single iteration",
            unit="unit of what is told",
        ),
        Column("median", "over them", unit="unit of what is told"),
        Column("mad", "median absolute deviation", unit="unit of what is told"),
        Column("min", "the least", unit="unit of what is told"),
        Column("max", "the largest", unit="unit of what is told"),
        Column("odd", "beyond three of `mad`, and 5 %, from the median", unit="iterations"),
    ],
    table=of_gpu_events(_statistics),
    options=["annotation"],
    when=[GPU_EVENTS, _HAS_ITERATIONS],
    asked_by="iterations",
    on_every_page=True,
)
