"""Iterations one by one: how long each took, what the GPU did, and which of them are odd.

An iteration is a `ProfilerStep#N`, or any annotation of the user's choice. GPU work belongs to the
iteration that launched it, and work whose launch is not in the trace to that during which it
started (`iterations.selection`); the time of launched work, exposed communication and the times
of categories are of that work. The wall time is the annotation's on the host; the GPU is busy or
idle in it, whatever it runs. Where the host runs ahead of the GPU, the work that an iteration
launched runs later, and may take longer than its wall time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracelens_ext.analysis.iterations.iterations import Iterations, iteration_at
from tracelens_ext.analysis.iterations.named_iterations import named_iterations
from tracelens_ext.categorize.user_patterns import Expression
from tracelens_ext.lazy import pd
from tracelens_ext.text import counted
from tracelens_ext.trace import NONE, NS_PER_MS, BoolArray, Float64Array, Int64Array
from tracelens_ext.trace.busy_time import BusyTime
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.gpu_events import COMMUNICATION, GpuEvents, find_tracks
from tracelens_ext.trace.grouping import number_groups, sums
from tracelens_ext.trace.intervals import covered
from tracelens_ext.trace.launches import find_launches
from tracelens_ext.trace.lookup import values_at

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
    "idle_time_ms",
    "launched_time_ms",
    "computation_time_ms",
    "exposed_comm_time_ms",
    "exposed_memcpy_time_ms",
)
_STATISTICS_COLUMNS = [
    "column",
    "device",
    "iterations",
    "mean",
    "std",
    "median",
    "mad",
    "min",
    "max",
    "odd",
]


@dataclass(frozen=True, eq=False)
class IterationTable:
    """The iterations of a trace; in both tables a row for each device where there are several.

    Attributes:
        frame: a row for each iteration, by process and start; as the sheet `iterations`.
        statistics: a row for each measured column, over whole iterations; as the sheet
            `iteration_statistics`.
        notes: what the reader should know, a sentence each.
    """

    frame: pd.DataFrame
    statistics: pd.DataFrame
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.frame)


@cached_per_object
def iteration_table(
    work: GpuEvents, annotation: Expression | None = None
) -> IterationTable:
    """Measure every iteration; empty where the trace has none.

    Args:
        work: the GPU events.
        annotation: searched in the names of annotations (of CPU ops, where it matches none); each
            that matches, and lies in no other, is an iteration. `ProfilerStep#N` by default.
    """
    iterations, labels, nested = named_iterations(work.tree, annotation)
    devices = np.unique(work.trace.device[work.counted]).tolist()
    blocks = [_block(work, iterations, device) for device in devices or [NONE]]
    frame = pd.concat(blocks, ignore_index=True)
    index = frame["index"].to_numpy()
    is_used = _uses_device(
        work=work, process=iterations.process[index], device=frame["device"].to_numpy()
    )
    frame = frame[is_used].sort_values(["index", "device"], ignore_index=True)
    frame["iteration"] = pd.array(
        [labels[number] for number in frame["index"]], dtype="str"
    )
    categories = _category_columns(frame)
    oddness = _oddness(frame, [*_TIMES, "kernels", *categories])
    frame["odd"] = oddness.columns
    statistics = oddness.statistics
    columns_shown = ["iteration"]
    if len(np.unique(iterations.process)) > 1:
        columns_shown.append("process")
    if len(devices) > 1:
        columns_shown.append("device")
    else:
        statistics = statistics.drop(columns="device")
    columns_shown += [
        "start_ms",
        *_TIMES,
        "kernels",
        "unmatched_launches",
        "whole",
        "odd",
    ]
    columns_shown += categories
    notes = _notes(
        work=work, iterations=iterations, nested=nested, statistics=statistics
    )
    return IterationTable(
        frame=frame[columns_shown], statistics=statistics, notes=tuple(notes)
    )


def is_category_time(column: str) -> bool:
    """Return whether a column is the summed duration of a category, `CATEGORY_time_ms`."""
    return column.endswith(CATEGORY_ENDING) and column not in _TIMES


def _category_columns(frame: pd.DataFrame) -> list[str]:
    """Return the columns with the times of categories, the longest first."""
    columns = [str(column) for column in frame if is_category_time(str(column))]
    total = {column: float(frame[column].to_numpy().sum()) for column in columns}
    return sorted(columns, key=lambda column: -total[column])


def _uses_device(work: GpuEvents, process: Int64Array, device: Int64Array) -> BoolArray:
    """Return whether each process uses each device, as far as the trace says; (n,).

    A process without GPU work may use every device.
    """
    trace = work.trace
    if not trace.conventions.gpu_by_process:
        return np.ones(len(process), dtype=bool)
    process_of_gpu = trace.process_of_thread[trace.thread[trace.gpu_rows]]
    processes = np.concatenate((process_of_gpu, process)).astype(np.int64)
    devices = np.concatenate((trace.device, device))
    _, pair = number_groups([processes, devices])
    pairs_of_gpu = pair[: len(process_of_gpu)]
    is_used = np.isin(pair[len(process_of_gpu) :], pairs_of_gpu)
    has_no_gpu_work = ~np.isin(process, process_of_gpu)
    return is_used | has_no_gpu_work


def _block(work: GpuEvents, iterations: Iterations, device: int) -> pd.DataFrame:
    """Return all iterations on one device; `index` is the iteration's index."""
    count = len(iterations)
    is_counted = work.counted & (work.trace.device == device)
    iteration_of_gpu = _iteration_of_gpu(work, iterations)
    owner = np.where(is_counted, iteration_of_gpu, NONE)
    computation = ~(work.is_communication | work.is_copy)
    busy_time = BusyTime(start=work.start, end=work.end)
    launched = busy_time.by_owner(owner, count)
    computing = busy_time.by_owner(np.where(computation, owner, NONE), count)
    is_not_copy = computation | work.is_communication
    without_copies = busy_time.by_owner(np.where(is_not_copy, owner, NONE), count)
    wall = iterations.end - iterations.start
    device_busy = covered(
        start=work.start[is_counted],
        end=work.end[is_counted],
        window_start=iterations.start,
        window_end=iterations.end,
    )
    process_labels = list(dict.fromkeys(process for process, _ in work.trace.threads))
    has_gpu_work = _counts(iterations.of_gpu[is_counted], count) > 0
    columns: dict[str, object] = {
        "index": np.arange(count),
        "process": [process_labels[number] for number in iterations.process.tolist()],
        "device": np.full(count, device),
        "start_ms": iterations.start / NS_PER_MS,
        "wall_time_ms": wall / NS_PER_MS,
        "busy_time_ms": device_busy / NS_PER_MS,
        "idle_time_ms": (wall - device_busy) / NS_PER_MS,
        "launched_time_ms": launched / NS_PER_MS,
        "computation_time_ms": computing / NS_PER_MS,
        "exposed_comm_time_ms": (without_copies - computing) / NS_PER_MS,
        "exposed_memcpy_time_ms": (launched - without_copies) / NS_PER_MS,
        "kernels": _counts(owner[work.is_kernel], count),
        "unmatched_launches": _lost_launches(work, iterations, device),
        "whole": iterations.finished & has_gpu_work,
    }
    columns |= _category_times(
        work=work, iteration_of_gpu=iteration_of_gpu, owner=owner, count=count
    )
    return pd.DataFrame(columns)


def _category_times(
    work: GpuEvents, iteration_of_gpu: Int64Array, owner: Int64Array, count: int
) -> dict[str, object]:
    """Return a column for each category that occurs in an iteration on any device.

    Args:
        work: the GPU events.
        iteration_of_gpu: the iteration of each GPU event, `NONE` for none, (g,).
        owner: the same for the events of one device, `NONE` for all others, (g,).
        count: how many iterations there are.
    """
    categories = work.categories
    if categories is None:
        return {}
    labels = categories.labels
    is_owned = owner != NONE
    cell = categories.code[is_owned] * count + owner[is_owned]
    time_of_cell = sums(
        group_index=cell,
        values=work.duration[is_owned],
        group_count=len(labels) * count,
    )
    times = time_of_cell.reshape(len(labels), count)
    is_in_iteration = iteration_of_gpu != NONE
    occurring = np.unique(categories.code[is_in_iteration]).tolist()
    return {
        f"{labels[code]}{CATEGORY_ENDING}": times[code] / NS_PER_MS
        for code in occurring
    }


def _lost_launches(work: GpuEvents, iterations: Iterations, device: int) -> Int64Array:
    """Return how many launches for a device have no GPU work, by iteration, (k,).

    A launch whose device is not known counts for each.
    """
    launches = find_launches(work)
    trace = work.trace
    device_numbers = find_tracks(work, "device").device
    number = values_at(device_numbers, launches.device_index, missing=device)
    is_of_device = number == device
    rows = launches.rows[launches.lost & is_of_device]
    process = trace.process_of_thread[trace.thread[rows]].astype(np.int64)
    iteration = iteration_at(
        spans=iterations.spans, process=process, time=trace.ts[rows]
    )
    return _counts(iteration, len(iterations))


def _iteration_of_gpu(work: GpuEvents, iterations: Iterations) -> Int64Array:
    """Return the iteration that each GPU event counts in, an index, `NONE` for none, (g,)."""
    counts_by_time = work.counted & ~work.tree.linked
    return np.where(counts_by_time, iterations.started_in, iterations.of_gpu)


def _counts(owner: Int64Array, count: int) -> Int64Array:
    """Return how often each of some owners occurs; `NONE` does not count."""
    return np.bincount(owner[owner != NONE], minlength=count).astype(np.int64)


class _Oddness(NamedTuple):
    """The odd iterations, and the statistics that they are compared with."""

    columns: list[str]  #: the columns in which each row is odd, joined by a comma
    statistics: pd.DataFrame  #: a row for each measured column and device


def _oddness(frame: pd.DataFrame, measured: list[str]) -> _Oddness:
    odd_columns: list[list[str]] = [[] for _ in range(len(frame))]
    rows = []
    for device, whole in frame[frame["whole"]].groupby("device"):
        least_time = (
            ODD_OF_WALL_TIME * float(whole["wall_time_ms"].median()) * NS_PER_MS
        )
        for column in measured:
            values = whole[column].to_numpy(dtype=np.float64)
            # Times are whole ns: rounding must not make two equal ones differ.
            exact = np.round(values * NS_PER_MS)
            is_odd, deviation = odd_among(
                exact, 0.0 if column == "kernels" else least_time
            )
            for row in whole.index[is_odd]:
                odd_columns[row].append(column)
            rows.append(
                {
                    "column": column,
                    "device": device,
                    "iterations": len(values),
                    "mean": values.mean(),
                    "std": values.std(ddof=1) if len(values) > 1 else 0.0,
                    "median": np.median(values),
                    "mad": deviation / NS_PER_MS,
                    "min": values.min(),
                    "max": values.max(),
                    "odd": int(is_odd.sum()),
                }
            )
    statistics = pd.DataFrame(rows, columns=_STATISTICS_COLUMNS)
    return _Oddness([", ".join(columns) for columns in odd_columns], statistics)


class OddValues(NamedTuple):
    """The odd ones of some values."""

    is_odd: BoolArray  #: (k,)
    deviation: float  #: the median absolute deviation of the values


def odd_among(values: Float64Array, least: float = 0.0) -> OddValues:
    """Return which of some ns, or counts, are odd.

    Args:
        values: what is compared, (k,).
        least: an odd value is at least so far from the median.
    """
    middle = float(np.median(values))
    distance = np.abs(values - middle)
    deviation = float(np.median(distance))
    if len(values) < ODD_AMONG:
        none_is_odd = np.zeros(len(values), dtype=bool)
        return OddValues(none_is_odd, deviation)
    limit = max(ODD_BEYOND * deviation, ODD_AT_LEAST * middle, least)
    is_odd = distance > limit
    return OddValues(is_odd, deviation)


def _notes(
    work: GpuEvents, iterations: Iterations, nested: int, statistics: pd.DataFrame
) -> Iterator[str]:
    unfinished = int((~iterations.whole).sum())
    if unfinished:
        incomplete = counted(unfinished, "iteration is", "iterations are")
        yield (
            f"{incomplete} incomplete and left out of the statistics: no GPU work was "
            "launched, or the recording ended first."
        )
    if nested:
        yield (
            f"{counted(nested, 'annotation')} nested in another matching annotation "
            "do not count as iterations."
        )
    is_outside = _iteration_of_gpu(work, iterations) == NONE
    if len(iterations) and is_outside.any():
        yield (
            f"{work.count_text(is_outside)} were launched outside of all iterations, "
            "or their launch is not in the trace."
        )
    counts_by_time = ~is_outside & (iterations.of_gpu == NONE)
    if counts_by_time.any():
        yield (
            f"{work.count_text(counts_by_time)} without a launch in the trace count "
            "toward the iteration during which they started."
        )
    yield from _note_on_communication(work, ~is_outside)
    if len(statistics) and int(statistics["iterations"].max()) < ODD_AMONG:
        yield (
            f"Outliers are only determined for {ODD_AMONG} or more complete iterations."
        )


def _note_on_communication(work: GpuEvents, is_inside: BoolArray) -> Iterator[str]:
    """Say so where the chosen rules call other events communication than the built-in ones do."""
    categories = work.categories
    if categories is None or COMMUNICATION not in categories.labels:
        return
    is_chosen = categories.code == categories.labels.index(COMMUNICATION)
    is_usual = work.is_communication
    more = int((is_inside & is_chosen & ~is_usual).sum())
    fewer = int((is_inside & ~is_chosen & is_usual).sum())
    differences = []
    if more:
        differences.append(f"{more:,} more")
    if fewer:
        differences.append(f"{fewer:,} fewer")
    if differences:
        yield (
            "exposed_comm_time_ms uses the built-in rules, so that traces can be "
            f"compared; {COMMUNICATION}{CATEGORY_ENDING} uses the chosen rules, which "
            "classify other GPU events as communication "
            f"({' and '.join(differences)})."
        )
