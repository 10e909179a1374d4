"""Work that is no work of the program: benchmarks of autotuning, and what is called warm-up.

A compiler, or a library, runs several candidates of a kernel many times and keeps the fastest. That
happens once, so these kernels are warm-up and no work of the program. They are known by the host
event that launches them (`do_bench`, `benchmark_all_configs`, `autotune`), or by what Triton does
between two runs: it fills a buffer of always the same size to clear the cache.

    stream   fill K fill K fill K fill K …

cuDNN and MIOpen measure algorithms of a convolution within its operation, which then waits for the
event after each of them (`torch.backends.cudnn.benchmark = True`).

Programs call a range of theirs `warmup` where they run iterations that they do not measure.

A recording of such work alone has nothing else to analyze: there it is the work.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tracelens_ext.analysis.iterations.selection import find_iterations
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
from tracelens_ext.trace.grouping import maxima, minima, sums
from tracelens_ext.trace.intervals import union
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.sorted_groups import by_group_and_time, items_before

BENCHMARK: Final = "benchmarks of autotuning"
NAMED_WARM_UP: Final = "what the program calls warm-up"

_BENCHMARKS: Final = re.compile(
    r"(?i).*(?:\bdo_bench|benchmark_all_configs|benchmark_gpu\b|benchmark_fused"
    r"|autotune_to_one_config|coordinate_descent_tuning|select_algorithm_autotune"
    r"|\bautotun(?:e|ing)\b|_template_autotuning|dynamo_timed)"
)
#: Frames of Python in which candidates are measured; the launch of a tuned kernel has others.
_BENCHMARK_FRAMES: Final = re.compile(
    r".*(?:triton[/\\]testing\.py\(\d+\): do_bench|autotuner\.py\(\d+\): _bench"
    r"|benchmark_all_configs|autotune_process\.py\(\d+\): benchmark"
    r"|benchmarking\.py\(\d+\): benchmark)"
)
#: A range in which fewer GPU events are launched measures nothing.
_FEWEST_RUNS: Final = 10
_CONVOLUTIONS: Final = re.compile(
    r"aten::(?:(?:cudnn|miopen)_\w*convolution|convolution_backward)"
)
_WAITS_FOR_EVENT: Final = re.compile(r"(?:cuda|hip)EventSynchronize")
#: A convolution that waits for so many events measures algorithms.
_FEWEST_MEASURED: Final = 2
#: Ranges of programs, not of the schedule of a learning rate.
_WARM_UP_RANGE: Final = re.compile(
    r"(?i)(?!.*(?:lr|learn|schedul))(?:.*[^a-z])?warm[-_ ]?up(?:[^a-z]|$)"
)
_FILL: Final = re.compile(r".*(?:FillFunctor|\bMemset\b|fill_kernel|fillBuffer)")
#: So many fills in a row, each before the same kernel, clear the cache between measurements.
_FEWEST_FILLS: Final = 10
#: Clearing a cache takes longer than this, ns: it has tens of megabytes.
_LEAST_FILL_NS: Final = 15_000
#: Lengths of fills of one size differ by less.
_SIMILAR_FACTOR: Final = 1.5
#: Where less of the GPU time is left, as a share, the benchmarks are the program.
_LEAST_WORK_LEFT: Final = 0.02


@cached_per_object
def find_benchmarks(work: GpuEvents) -> pd.DataFrame:
    """Return the times in which devices run benchmarks of autotuning; they may overlap.

    Returns:
        `device` (an index), `start`, `end` (ns since the trace's first event), `row` (the host
        event in which it begins), `count` (kernels) and `what`; empty if benchmarks are all that
        there is.
    """
    events = np.union1d(_launched_by_benchmarks(work), _between_fills(work))
    return _set_aside(work, events, BENCHMARK)


@cached_per_object
def find_named_warm_up(work: GpuEvents) -> pd.DataFrame:
    """Return when devices run what the program calls warm-up; columns as of `find_benchmarks`."""
    events = _launched_within(work, named_warm_up_ranges(work), fewest=1)
    return _set_aside(work, events, NAMED_WARM_UP)


def _set_aside(work: GpuEvents, events: Int64Array, what: str) -> pd.DataFrame:
    """Return when devices run some events that are not the program's work; empty if they are."""
    if _are_in_most_iterations(work, events):
        return pd.DataFrame()
    total_ns = int(work.duration.sum())
    left_ns = total_ns - int(work.duration[events].sum())
    if not len(events) or left_ns < _LEAST_WORK_LEFT * total_ns:
        return pd.DataFrame()
    return _spans(work, events, what)


def benchmark_ranges(work: GpuEvents) -> Int64Array:
    """Return the rows of the host events that measure candidates."""
    return np.append(_named_benchmarks(work), measuring_convolutions(work))


def _named_benchmarks(work: GpuEvents) -> Int64Array:
    """Return the rows of the host events whose names say that they measure candidates."""
    trace = work.trace
    return np.append(
        trace.rows_named(_BENCHMARKS, EventKind.CPU_OP, EventKind.USER_ANNOTATION),
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
    measures = waits_before_end - waits_before_start >= _FEWEST_MEASURED
    return convolutions[measures]


def named_warm_up_ranges(work: GpuEvents) -> Int64Array:
    """Return the rows of the ranges of the program whose names say that they are warm-up."""
    return work.trace.rows_named(
        _WARM_UP_RANGE, EventKind.CPU_OP, EventKind.USER_ANNOTATION
    )


def _launched_by_benchmarks(work: GpuEvents) -> Int64Array:
    """Return the GPU events that host events launch which measure candidates."""
    by_name = _launched_within(work, _named_benchmarks(work), fewest=_FEWEST_RUNS)
    by_convolutions = _launched_within(work, measuring_convolutions(work), fewest=1)
    return np.union1d(by_name, by_convolutions)


def _launched_within(work: GpuEvents, ranges: Int64Array, fewest: int) -> Int64Array:
    """Return the GPU events that are launched in host events which launch so many at least."""
    trace = work.trace
    events = np.flatnonzero(work.tree.linked)
    launch = work.tree.launch_of_gpu[events]
    is_within = np.zeros(len(events), dtype=bool)
    for thread in np.unique(trace.thread[ranges]).tolist():
        rows = ranges[trace.thread[ranges] == thread]
        within = union(trace.ts[rows], trace.end_of(rows))
        place = np.searchsorted(within.start, trace.ts[launch], side="right") - 1
        ends = values_at(within.end, place, missing=0)
        is_of_range = (trace.thread[launch] == thread) & (trace.ts[launch] < ends)
        runs = np.bincount(place[is_of_range], minlength=len(within.start))
        is_within |= is_of_range & (values_at(runs, place, missing=0) >= fewest)
    return events[is_within]


def _between_fills(work: GpuEvents) -> Int64Array:
    """Return the GPU events of streams on which fills alternate with one kernel."""
    is_fill = work.trace.named(work.name, _FILL.match)
    is_fill &= work.duration >= _LEAST_FILL_NS
    if int(is_fill.sum()) < _FEWEST_FILLS:
        return np.zeros(0, dtype=np.int64)
    stream = find_tracks(work, "stream").of_gpu
    order = np.lexsort((work.start, stream))
    found = []
    for number in np.unique(stream[is_fill]).tolist():
        of_stream = order[stream[order] == number]
        found.append(_alternating(work, of_stream, is_fill[of_stream]))
    return np.concatenate(found)


def _alternating(work: GpuEvents, events: Int64Array, is_fill: BoolArray) -> Int64Array:
    """Return the events of a stream, in order, that belong to runs of a fill and a kernel.

    Of `F K F K F K X` the first six: each of them equals the one two before it.
    """
    name = work.name[events]
    duration = work.duration[events]
    is_repeated = name[2:] == name[:-2]
    longer = np.maximum(duration[2:], duration[:-2])
    shorter = np.minimum(duration[2:], duration[:-2])
    is_similar = longer <= _SIMILAR_FACTOR * shorter
    is_repeated &= is_similar | ~is_fill[2:]
    is_repeated &= is_fill[2:] != is_fill[1:-1]
    changes = np.flatnonzero(np.diff(is_repeated, prepend=False, append=False))
    first = changes[::2]
    after = changes[1::2] + 2
    chosen = [np.zeros(0, dtype=np.int64)]
    for begin, end in zip(first.tolist(), after.tolist(), strict=True):
        if int(is_fill[begin:end].sum()) >= _FEWEST_FILLS:
            chosen.append(events[begin:end])
    return np.concatenate(chosen)


def _are_in_most_iterations(work: GpuEvents, events: Int64Array) -> bool:
    """Return True if most iterations contain such events, which are the program's work then."""
    iterations = find_iterations(work.tree)
    count = len(iterations)
    if count < 2:
        return False
    step = iterations.started_in[events]
    steps_with_events = np.unique(step[step != NONE])
    return 2 * len(steps_with_events) > count


def _spans(work: GpuEvents, events: Int64Array, what: str) -> pd.DataFrame:
    """Return from when to when devices run chosen events, without other work in between."""
    device_of_event = find_tracks(work, "device").of_gpu
    is_chosen = np.zeros(len(work), dtype=bool)
    is_chosen[events] = True
    tables = []
    for device in np.unique(device_of_event[events]).tolist():
        of_device = np.flatnonzero(device_of_event == device)
        of_device = of_device[np.argsort(work.start[of_device], kind="stable")]
        run = np.cumsum(np.diff(is_chosen[of_device], prepend=False)) - 1
        kept = is_chosen[of_device]
        _, number = np.unique(run[kept], return_inverse=True)
        chosen = of_device[kept]
        count = int(number.max()) + 1
        start = minima(number, work.start[chosen], count)
        first = np.searchsorted(number, np.arange(count))
        row = work.tree.launch_of_gpu[chosen[first]]
        tables.append(
            pd.DataFrame(
                {
                    "device": device,
                    "start": start,
                    "end": maxima(number, work.end[chosen], count),
                    "row": np.where(row == NONE, work.rows[chosen[first]], row),
                    "count": sums(number, np.ones_like(number), count),
                    "what": what,
                }
            )
        )
    return pd.concat(tables, ignore_index=True)
