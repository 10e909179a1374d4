"""The measurements of each iteration: wall time, GPU time, and whether they are outliers ("odd").

An iteration is a `ProfilerStep#N`, or another annotation that the user chooses. There are two kinds
of measurements:

* Wall time is the duration of the annotation on the CPU. Busy and idle time are parts of it, during
  which the GPU runs or does not run anything, whichever iteration launched it.
* Launched time, computation, exposed communication and copies, and the times of categories are of
  the GPU work of the iteration. Work belongs to the iteration that launched it. If its launch is
  not in the trace, it belongs to the iteration during which it started.

If the CPU runs ahead of the GPU, the work of an iteration runs later, and may take longer than the
wall time of the iteration.
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

#: A value is odd if it differs from the median by more than this many median absolute deviations …
ODD_BEYOND = 3
#: … and by more than this share of the median. Otherwise, tiny differences between iterations that
#: are nearly equal would count.
ODD_AT_LEAST = 0.05
#: A time must also differ by more than this share of the median wall time. Otherwise, times that
#: hardly matter would count.
ODD_OF_WALL_TIME = 0.01
#: Among fewer iterations, none is called odd.
ODD_AMONG = 5
#: The end of the names of columns with the time of a category.
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


#: The columns of the sheet `iterations` that follow the iteration, its process and its device.
_COLUMNS_OF_ALL_TRACES = (
    ["start_ms"] + list(_TIMES) + ["kernels", "unmatched_launches", "whole", "odd"]
)


@dataclass(frozen=True, eq=False)
class IterationTable:
    """The measurements of the iterations of a trace.

    Attributes:
        frame: the sheet `iterations`: a row for each iteration (and device, if there are several),
            by process and start.
        statistics: the sheet `iteration_statistics`: a row for each measured column (and device, if
            there are several), over whole iterations.
        notes: sentences about iterations and GPU work that are left out or counted specially.
    """

    frame: pd.DataFrame
    statistics: pd.DataFrame
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.frame)


@cached_per_object
def iteration_table(
    gpu_events: GpuEvents, annotation: Expression | None = None
) -> IterationTable:
    """Measure every iteration; the tables are empty if the trace has none.

    Args:
        gpu_events: the GPU events.
        annotation: a regular expression that is searched in the names of annotations; if none
            matches, in those of CPU ops. Each outermost match is an iteration. By default,
            iterations are the `ProfilerStep#N`.
    """
    iterations, labels, nested_count = named_iterations(gpu_events.tree, annotation)
    devices = np.unique(gpu_events.trace.device[gpu_events.counted]).tolist()
    blocks = [_block(gpu_events, iterations, device) for device in devices or [NONE]]
    frame = pd.concat(blocks, ignore_index=True)
    index = frame["index"].to_numpy()
    is_used = _uses_device(
        gpu_events=gpu_events,
        process=iterations.process[index],
        device=frame["device"].to_numpy(),
    )
    frame = frame[is_used].sort_values(["index", "device"], ignore_index=True)
    names = [labels[index] for index in frame["index"]]
    frame["iteration"] = pd.array(names, dtype="str")
    categories = _category_columns(frame)
    oddness = _oddness(frame, [*_TIMES, "kernels", *categories])
    frame["odd"] = oddness.columns
    statistics = oddness.statistics
    has_several_processes = len(np.unique(iterations.process)) > 1
    has_several_devices = len(devices) > 1
    columns_shown = ["iteration"]
    if has_several_processes:
        columns_shown.append("process")
    if has_several_devices:
        columns_shown.append("device")
    else:
        statistics = statistics.drop(columns="device")
    columns_shown += _COLUMNS_OF_ALL_TRACES + categories
    notes = _notes(
        gpu_events=gpu_events,
        iterations=iterations,
        nested_count=nested_count,
        statistics=statistics,
    )
    return IterationTable(
        frame=frame[columns_shown], statistics=statistics, notes=tuple(notes)
    )


def is_category_time(column: str) -> bool:
    """Return True for a column with the summed duration of a category, `CATEGORY_time_ms`."""
    return column.endswith(CATEGORY_ENDING) and column not in _TIMES


def _category_columns(frame: pd.DataFrame) -> list[str]:
    """Return the columns with the times of categories, longest total first."""
    columns = [str(column) for column in frame if is_category_time(str(column))]
    total = {column: float(frame[column].to_numpy().sum()) for column in columns}
    return sorted(columns, key=lambda column: -total[column])


def _uses_device(
    gpu_events: GpuEvents, process: Int64Array, device: Int64Array
) -> BoolArray:
    """Return a mask of the pairs of a process and a device in which the process uses the device.

    If the trace does not show which process uses a device, or if a process has no GPU work, it may
    use every device.

    Args:
        gpu_events: the GPU events.
        process: the process of each pair, (n,).
        device: the number of the device of each pair, (n,).
    """
    trace = gpu_events.trace
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


def _block(gpu_events: GpuEvents, iterations: Iterations, device: int) -> pd.DataFrame:
    """Return the measurements of all k iterations on one device.

    The columns are those of the sheet `iterations`, and `index`, the index of the iteration.
    """
    count = len(iterations)
    is_counted = gpu_events.counted & (gpu_events.trace.device == device)
    iteration_of_gpu = _iteration_of_gpu(gpu_events, iterations)
    owner = np.where(is_counted, iteration_of_gpu, NONE)
    computation = ~(gpu_events.is_communication | gpu_events.is_copy)
    busy_time = BusyTime(start=gpu_events.start, end=gpu_events.end)
    launched = busy_time.by_owner(owner, count)
    computing = busy_time.by_owner(np.where(computation, owner, NONE), count)
    is_not_copy = computation | gpu_events.is_communication
    without_copies = busy_time.by_owner(np.where(is_not_copy, owner, NONE), count)
    wall = iterations.end - iterations.start
    device_busy = covered(
        start=gpu_events.start[is_counted],
        end=gpu_events.end[is_counted],
        window_start=iterations.start,
        window_end=iterations.end,
    )
    process_names = list(
        dict.fromkeys(process for process, _ in gpu_events.trace.threads)
    )
    has_gpu_work = _counts(iterations.of_gpu[is_counted], count) > 0
    columns: dict[str, object] = {
        "index": np.arange(count),
        "process": [process_names[index] for index in iterations.process.tolist()],
        "device": np.full(count, device),
        "start_ms": iterations.start / NS_PER_MS,
        "wall_time_ms": wall / NS_PER_MS,
        "busy_time_ms": device_busy / NS_PER_MS,
        "idle_time_ms": (wall - device_busy) / NS_PER_MS,
        "launched_time_ms": launched / NS_PER_MS,
        "computation_time_ms": computing / NS_PER_MS,
        "exposed_comm_time_ms": (without_copies - computing) / NS_PER_MS,
        "exposed_memcpy_time_ms": (launched - without_copies) / NS_PER_MS,
        "kernels": _counts(owner[gpu_events.is_kernel], count),
        "unmatched_launches": _lost_launches(gpu_events, iterations, device),
        "whole": iterations.finished & has_gpu_work,
    }
    columns |= _category_times(
        gpu_events=gpu_events,
        iteration_of_gpu=iteration_of_gpu,
        owner=owner,
        count=count,
    )
    return pd.DataFrame(columns)


def _category_times(
    gpu_events: GpuEvents, iteration_of_gpu: Int64Array, owner: Int64Array, count: int
) -> dict[str, object]:
    """Return a column for each category that occurs in an iteration on any device.

    Args:
        gpu_events: the GPU events.
        iteration_of_gpu: index of the iteration of each GPU event, `NONE` for an event without one,
            (g,).
        owner: the same for the events of one device, and `NONE` for all others, (g,).
        count: the number of iterations.
    """
    categories = gpu_events.categories
    if categories is None:
        return {}
    labels = categories.labels
    is_owned = owner != NONE
    time_of_pair = sums(
        group_index=categories.code[is_owned] * count + owner[is_owned],
        values=gpu_events.duration[is_owned],
        group_count=len(labels) * count,
    )
    time_of_category = time_of_pair.reshape(len(labels), count)
    is_in_iteration = iteration_of_gpu != NONE
    columns: dict[str, object] = {}
    for code in np.unique(categories.code[is_in_iteration]).tolist():
        name = f"{labels[code]}{CATEGORY_ENDING}"
        columns[name] = time_of_category[code] / NS_PER_MS
    return columns


def _lost_launches(
    gpu_events: GpuEvents, iterations: Iterations, device: int
) -> Int64Array:
    """Return the number of launches without GPU work on a device in each iteration, (k,).

    A launch whose device is not known counts for all devices.
    """
    launches = find_launches(gpu_events)
    trace = gpu_events.trace
    device_numbers = find_tracks(gpu_events, "device").device
    device_of_launch = values_at(device_numbers, launches.device_index, missing=device)
    is_of_device = device_of_launch == device
    rows = launches.rows[launches.lost & is_of_device]
    process = trace.process_of_thread[trace.thread[rows]].astype(np.int64)
    iteration = iteration_at(
        spans=iterations.spans, process=process, time=trace.ts[rows]
    )
    return _counts(iteration, len(iterations))


def _iteration_of_gpu(gpu_events: GpuEvents, iterations: Iterations) -> Int64Array:
    """Return the index of the iteration that each GPU event belongs to, or `NONE`, (g,)."""
    counts_by_time = gpu_events.counted & ~gpu_events.tree.linked
    return np.where(counts_by_time, iterations.started_in, iterations.of_gpu)


def _counts(owner: Int64Array, count: int) -> Int64Array:
    """Return how often each index from 0 to `count` - 1 occurs in `owner`, (count,)."""
    return np.bincount(owner[owner != NONE], minlength=count).astype(np.int64)


class _Oddness(NamedTuple):
    """The odd values of iterations, and the statistics that they were compared with."""

    #: names of the columns in which each row is odd, joined by commas
    columns: list[str]
    statistics: pd.DataFrame  #: a row for each measured column and device


def _oddness(frame: pd.DataFrame, measured: list[str]) -> _Oddness:
    """Compare whole iterations on the same device with each other.

    Args:
        frame: a row for each iteration and device.
        measured: the columns to compare.
    """
    odd_columns: list[list[str]] = [[] for _ in range(len(frame))]
    rows = []
    for device, whole in frame[frame["whole"]].groupby("device"):
        median_wall_time_ns = float(whole["wall_time_ms"].median()) * NS_PER_MS
        for column in measured:
            values = whole[column].to_numpy(dtype=np.float64)
            # Times are whole ns. In ms, rounding could make equal times differ.
            exact = np.round(values * NS_PER_MS)
            least_difference = 0.0
            if column != "kernels":
                least_difference = ODD_OF_WALL_TIME * median_wall_time_ns
            is_odd, deviation = odd_among(exact, least_difference)
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
    """Which of k values are odd."""

    is_odd: BoolArray  #: mask of the odd values, (k,)
    deviation: float  #: the median absolute deviation of the values


def odd_among(values: Float64Array, least_difference: float = 0.0) -> OddValues:
    """Find the values that differ from the median by much more than the others do.

    Args:
        values: times, or counts, of iterations, (k,).
        least_difference: an odd value differs from the median by more than this.
    """
    middle = float(np.median(values))
    distance = np.abs(values - middle)
    deviation = float(np.median(distance))
    if len(values) < ODD_AMONG:
        none_is_odd = np.zeros(len(values), dtype=bool)
        return OddValues(none_is_odd, deviation)
    limit = max(ODD_BEYOND * deviation, ODD_AT_LEAST * middle, least_difference)
    is_odd = distance > limit
    return OddValues(is_odd, deviation)


def _notes(
    gpu_events: GpuEvents,
    iterations: Iterations,
    nested_count: int,
    statistics: pd.DataFrame,
) -> Iterator[str]:
    """Yield sentences about iterations and GPU work that are left out or counted specially."""
    incomplete_count = int((~iterations.whole).sum())
    if incomplete_count:
        incomplete = counted(incomplete_count, "iteration is", "iterations are")
        yield (
            f"{incomplete} incomplete and left out of the statistics: no GPU work was "
            "launched, or the recording ended first."
        )
    if nested_count:
        yield (
            f"{counted(nested_count, 'annotation')} nested in another matching annotation "
            "do not count as iterations."
        )
    is_outside = _iteration_of_gpu(gpu_events, iterations) == NONE
    if len(iterations) and is_outside.any():
        yield (
            "Launched outside of all iterations, or without a launch in the trace: "
            f"{gpu_events.count_text(is_outside)}."
        )
    counts_by_time = ~is_outside & (iterations.of_gpu == NONE)
    if counts_by_time.any():
        yield (
            "GPU events without a launch in the trace count toward the iteration "
            f"during which they started: {gpu_events.count_text(counts_by_time)}."
        )
    yield from _note_on_communication(gpu_events, ~is_outside)
    if len(statistics) and int(statistics["iterations"].max()) < ODD_AMONG:
        yield (
            f"Outliers are only determined for {ODD_AMONG} or more complete iterations."
        )


def _note_on_communication(
    gpu_events: GpuEvents, is_inside: BoolArray
) -> Iterator[str]:
    """Yield a sentence if the chosen rules and the built-in rules disagree about communication."""
    categories = gpu_events.categories
    if categories is None or COMMUNICATION not in categories.labels:
        return
    is_chosen = categories.code == categories.labels.index(COMMUNICATION)
    is_builtin = gpu_events.is_communication
    added_count = int((is_inside & is_chosen & ~is_builtin).sum())
    missing_count = int((is_inside & ~is_chosen & is_builtin).sum())
    differences = []
    if added_count:
        differences.append(f"{added_count:,} more")
    if missing_count:
        differences.append(f"{missing_count:,} fewer")
    if differences:
        yield (
            "exposed_comm_time_ms uses the built-in rules, so that traces can be "
            f"compared; {COMMUNICATION}{CATEGORY_ENDING} uses the chosen rules, which "
            "classify other GPU events as communication "
            f"({' and '.join(differences)})."
        )
