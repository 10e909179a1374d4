"""GPU work that is not the program's own: benchmarks of autotuning, and what it calls warm-up.

A compiler or a library runs several variants of a kernel many times and keeps the fastest one. That
happens once, so these kernels are warm-up and not the program's own work. Signs give them away:

* the host event that launches them is called `do_bench`, `benchmark_all_configs`, `autotune` or
  alike;
* a fill precedes each run of the kernel, because Triton clears the cache by filling a buffer that
  always has the same size: `fill K fill K fill K fill K …` on one stream;
* the operation of a convolution waits for several events: cuDNN and MIOpen measure their algorithms
  so (`torch.backends.cudnn.benchmark = True`).

Programs call a range `warmup` in which they run iterations that they do not measure.

If a recording contains almost nothing but such work, that is the work to analyze.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tracelens_ext.analysis.iterations.iterations import find_iterations
from tracelens_ext.lazy import pd
from tracelens_ext.trace import (
    LAUNCH_KINDS,
    NONE,
    BoolArray,
    EventKind,
    Int64Array,
)
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.gpu_events import GpuEvents, find_tracks
from tracelens_ext.trace.grouping import maxima, minima
from tracelens_ext.trace.intervals import union
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.sorted_groups import by_group_and_time, items_before

BENCHMARK: Final = "benchmarks of autotuning"
NAMED_WARM_UP: Final = "what the program calls warm-up"

#: Operations and annotations that measure variants of kernels.
_BENCHMARK_RANGES: Final = re.compile(
    r"(?i).*(?:\bdo_bench|benchmark_all_configs|benchmark_gpu\b|benchmark_fused"
    r"|autotune_to_one_config|coordinate_descent_tuning|select_algorithm_autotune"
    r"|\bautotun(?:e|ing)\b|_template_autotuning|dynamo_timed)"
)
#: Python frames that measure variants of kernels. The launch of a kernel that is already tuned goes
#: through other frames of the same files.
_BENCHMARK_FRAMES: Final = re.compile(
    r".*(?:triton[/\\]testing\.py\(\d+\): do_bench|autotuner\.py\(\d+\): _bench"
    r"|benchmark_all_configs|autotune_process\.py\(\d+\): benchmark"
    r"|benchmarking\.py\(\d+\): benchmark)"
)
#: A host event that launches fewer GPU events than this measures nothing.
_FEWEST_RUNS: Final = 10
_CONVOLUTIONS: Final = re.compile(
    r"aten::(?:(?:cudnn|miopen)_\w*convolution|convolution_backward)"
)
_WAITS_FOR_EVENT: Final = re.compile(r"(?:cuda|hip)EventSynchronize")
#: A convolution that waits for at least this many events measures algorithms.
_FEWEST_MEASURED: Final = 2
#: Ranges of programs, but not of the schedule of a learning rate.
_WARM_UP_RANGE: Final = re.compile(
    r"(?i)(?!.*(?:lr|learn|schedul))(?:.*[^a-z])?warm[-_ ]?up(?:[^a-z]|$)"
)
#: Names of kernels and memsets that fill a buffer.
_FILL: Final = re.compile(r".*(?:FillFunctor|\bMemset\b|fill_kernel|fillBuffer)")
#: A stream runs a benchmark if at least this many fills in a row each precede the same kernel.
_FEWEST_FILLS: Final = 10
#: Clearing a cache takes at least this long, ns, because caches have tens of megabytes.
_LEAST_FILL_NS: Final = 15_000
#: Fills of the same size differ in length by at most this factor.
_SIMILAR_FACTOR: Final = 1.5
#: If other work takes a smaller share of the GPU time, the benchmarks are the work to analyze.
_LEAST_OTHER_WORK_SHARE: Final = 0.02


@cached_per_object
def find_benchmarks(work: GpuEvents) -> pd.DataFrame:
    """Return the spans of time in which devices run benchmarks of autotuning.

    Returns:
        A table with the columns `device` (an index), `start`, `end` (ns since the trace's first
        event), `row` (of the launch with which the span begins), `count` (of kernels) and `what`.
        It is empty without benchmarks, and if they are the program's regular work.
    """
    events = np.union1d(_launched_by_benchmarks(work), _between_fills(work))
    return _set_aside(work, events, BENCHMARK)


@cached_per_object
def find_named_warm_up(work: GpuEvents) -> pd.DataFrame:
    """Return when devices run what the program calls warm-up; columns as of `find_benchmarks`."""
    events = _launched_within(work, named_warm_up_ranges(work), fewest=1)
    return _set_aside(work, events, NAMED_WARM_UP)


def _set_aside(work: GpuEvents, events: Int64Array, what: str) -> pd.DataFrame:
    """Return the spans of some events; empty if they are the program's regular work."""
    if _are_in_most_iterations(work, events):
        return pd.DataFrame()
    total_ns = int(work.duration.sum())
    other_ns = total_ns - int(work.duration[events].sum())
    if not len(events) or other_ns < _LEAST_OTHER_WORK_SHARE * total_ns:
        return pd.DataFrame()
    return _spans(work, events, what)


def benchmark_ranges(work: GpuEvents) -> Int64Array:
    """Return the rows of the host events that measure variants of kernels."""
    return np.append(_named_benchmarks(work), measuring_convolutions(work))


def _named_benchmarks(work: GpuEvents) -> Int64Array:
    """Return the rows of the host events that measure variants of kernels, by their names."""
    trace = work.trace
    return np.append(
        trace.rows_named(
            _BENCHMARK_RANGES, EventKind.CPU_OP, EventKind.USER_ANNOTATION
        ),
        trace.rows_named(_BENCHMARK_FRAMES, EventKind.PYTHON_FUNCTION),
    )


def measuring_convolutions(work: GpuEvents) -> Int64Array:
    """Return the rows of convolutions in which a library measures its algorithms."""
    trace = work.trace
    convolutions = trace.rows_named(_CONVOLUTIONS, EventKind.CPU_OP)
    waits = trace.rows_named(_WAITS_FOR_EVENT, *LAUNCH_KINDS)
    if not len(convolutions) or not len(waits):
        return convolutions[:0]
    waits = waits[by_group_and_time(trace.thread[waits], trace.ts[waits])]
    thread_of_wait = trace.thread[waits]
    begin_of_wait = trace.ts[waits]
    thread = trace.thread[convolutions]
    waits_before_end = items_before(
        thread_of_wait, begin_of_wait, thread, trace.end_of(convolutions)
    )
    waits_before_start = items_before(
        thread_of_wait, begin_of_wait, thread, trace.ts[convolutions]
    )
    waits_within = waits_before_end - waits_before_start
    result: Int64Array = convolutions[waits_within >= _FEWEST_MEASURED]
    return result


def named_warm_up_ranges(work: GpuEvents) -> Int64Array:
    """Return the rows of the ranges of the program whose names say that they are warm-up."""
    return work.trace.rows_named(
        _WARM_UP_RANGE, EventKind.CPU_OP, EventKind.USER_ANNOTATION
    )


def _launched_by_benchmarks(work: GpuEvents) -> Int64Array:
    """Return the GPU events that were launched within `benchmark_ranges`."""
    by_name = _launched_within(work, _named_benchmarks(work), fewest=_FEWEST_RUNS)
    by_convolutions = _launched_within(work, measuring_convolutions(work), fewest=1)
    return np.union1d(by_name, by_convolutions)


def _launched_within(work: GpuEvents, ranges: Int64Array, fewest: int) -> Int64Array:
    """Return the GPU events launched within host events that launch a certain number at least."""
    trace = work.trace
    events = np.flatnonzero(work.tree.linked)
    launch = work.tree.launch_of_gpu[events]
    launch_time = trace.ts[launch]
    is_within = np.zeros(len(events), dtype=bool)
    for thread in np.unique(trace.thread[ranges]).tolist():
        rows = ranges[trace.thread[ranges] == thread]
        outermost = union(trace.ts[rows], trace.end_of(rows))
        # The last range that began before the launch; the launch is in it unless it has ended.
        latest = np.searchsorted(outermost.start, launch_time, side="right") - 1
        end_of_latest = values_at(outermost.end, latest, missing=0)
        is_inside = (trace.thread[launch] == thread) & (launch_time < end_of_latest)
        runs_of_range = np.bincount(latest[is_inside], minlength=len(outermost.start))
        has_enough_runs = values_at(runs_of_range, latest, missing=0) >= fewest
        is_within |= is_inside & has_enough_runs
    return events[is_within]


def _between_fills(work: GpuEvents) -> Int64Array:
    """Return the GPU events of streams on which fills alternate with one kernel."""
    is_fill = work.trace.named(work.name, _FILL.match)
    is_fill &= work.duration >= _LEAST_FILL_NS
    if int(is_fill.sum()) < _FEWEST_FILLS:
        return np.zeros(0, dtype=np.int64)
    stream = find_tracks(work, "stream").of_gpu
    by_stream_and_start = np.lexsort((work.start, stream))
    benchmarks = []
    for stream_index in np.unique(stream[is_fill]).tolist():
        is_of_stream = stream[by_stream_and_start] == stream_index
        events = by_stream_and_start[is_of_stream]
        benchmarks.append(_alternating(work, events, is_fill[events]))
    return np.concatenate(benchmarks)


def _alternating(work: GpuEvents, events: Int64Array, is_fill: BoolArray) -> Int64Array:
    """Return the events of one stream that alternate between fills and one kernel.

    Of `F K F K F K X`, these are the first six. From the third one on, each of them repeats the
    event two before it: it has the same name, and a fill has a similar length, too.

    Args:
        work: the GPU events.
        events: the events of the stream, by start, (n,).
        is_fill: which of them are fills, (n,).
    """
    name = work.name[events]
    duration = work.duration[events]
    longer = np.maximum(duration[2:], duration[:-2])
    shorter = np.minimum(duration[2:], duration[:-2])
    has_similar_length = longer <= _SIMILAR_FACTOR * shorter
    # Item i: whether event i + 2 repeats event i.
    is_repetition = name[2:] == name[:-2]
    is_repetition &= has_similar_length | ~is_fill[2:]
    is_repetition &= is_fill[2:] != is_fill[1:-1]
    changes = np.flatnonzero(np.diff(is_repetition, prepend=False, append=False))
    run_start = changes[::2]
    run_end = changes[1::2] + 2
    benchmarks = [np.zeros(0, dtype=np.int64)]
    for start, end in zip(run_start.tolist(), run_end.tolist(), strict=True):
        if int(is_fill[start:end].sum()) >= _FEWEST_FILLS:
            benchmarks.append(events[start:end])
    return np.concatenate(benchmarks)


def _are_in_most_iterations(work: GpuEvents, events: Int64Array) -> bool:
    """Return True if over half of the iterations launch some of these events.

    Such events are the program's regular work.
    """
    iterations = find_iterations(work.tree)
    count = len(iterations)
    if count < 2:
        return False
    step = iterations.started_in[events]
    steps_with_events = np.unique(step[step != NONE])
    return 2 * len(steps_with_events) > count


def _spans(work: GpuEvents, events: Int64Array, what: str) -> pd.DataFrame:
    """Return the spans of time in which devices run only chosen events, as `find_benchmarks`."""
    device_of_event = find_tracks(work, "device").of_gpu
    is_chosen = np.zeros(len(work), dtype=bool)
    is_chosen[events] = True
    tables = []
    for device in np.unique(device_of_event[events]).tolist():
        events_of_device = np.flatnonzero(device_of_event == device)
        by_start = np.argsort(work.start[events_of_device], kind="stable")
        events_of_device = events_of_device[by_start]
        is_chosen_of_device = is_chosen[events_of_device]
        chosen = events_of_device[is_chosen_of_device]
        # A span begins with each chosen event that no chosen one directly precedes:
        # chosen  F T T F T  ->  begins  F T F F T  ->  spans of the three chosen events  0 0 1
        begins_span = np.diff(is_chosen_of_device, prepend=False) & is_chosen_of_device
        span = np.cumsum(begins_span[is_chosen_of_device]) - 1
        first = chosen[begins_span[is_chosen_of_device]]
        count = len(first)
        launch = work.tree.launch_of_gpu[first]
        tables.append(
            pd.DataFrame(
                {
                    "device": device,
                    "start": minima(span, work.start[chosen], count),
                    "end": maxima(span, work.end[chosen], count),
                    "row": np.where(launch == NONE, work.rows[first], launch),
                    "count": np.bincount(span, minlength=count),
                    "what": what,
                }
            )
        )
    return pd.concat(tables, ignore_index=True)
