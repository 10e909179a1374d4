"""Benchmarks of autotuning: kernels that run only to be measured.

A compiler or a library runs several variants of a kernel many times and keeps the fastest one.
`benchmark_events` returns these kernels, and `benchmark_ranges` the host events that measure them.
Three signs give the kernels away:

* the host event that launches them is called `do_bench`, `benchmark_all_configs`, `autotune` or
  alike;
* a fill precedes each run of the kernel, because Triton clears the cache by filling a buffer that
  always has the same size: `fill K fill K fill K fill K …` on one stream;
* the operation of a convolution waits for several events. This is how cuDNN and MIOpen measure
  their algorithms with `torch.backends.cudnn.benchmark = True`.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tracelens_ext.trace import LAUNCH_KINDS, BoolArray, EventKind, Int64Array
from tracelens_ext.trace.gpu_events import GpuEvents, find_tracks
from tracelens_ext.trace.intervals import union
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.sorted_groups import by_group_and_time, items_before

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
#: Operations of convolutions, whose library may measure several algorithms.
_CONVOLUTIONS: Final = re.compile(
    r"aten::(?:(?:cudnn|miopen)_\w*convolution|convolution_backward)"
)
_WAITS_FOR_EVENT: Final = re.compile(r"(?:cuda|hip)EventSynchronize")
#: A convolution that waits for at least this many events measures algorithms.
_FEWEST_WAITS: Final = 2
#: Names of kernels and memsets that fill a buffer.
_FILL: Final = re.compile(r".*(?:FillFunctor|\bMemset\b|fill_kernel|fillBuffer)")
#: A stream runs a benchmark if at least this many fills in a row each precede the same kernel.
_FEWEST_FILLS: Final = 10
#: Clearing a cache takes at least this long, ns, because caches have tens of megabytes.
_LEAST_FILL_NS: Final = 15_000
#: Fills of the same size differ in length by at most this factor.
_SIMILAR_FACTOR: Final = 1.5


def benchmark_ranges(gpu_events: GpuEvents) -> Int64Array:
    """Return the rows of the host events that measure variants of kernels."""
    return np.append(_named_benchmarks(gpu_events), _measuring_convolutions(gpu_events))


def _named_benchmarks(gpu_events: GpuEvents) -> Int64Array:
    """Return the rows of the host events that measure variants of kernels, by their names."""
    trace = gpu_events.trace
    return np.append(
        trace.rows_named(
            _BENCHMARK_RANGES, EventKind.CPU_OP, EventKind.USER_ANNOTATION
        ),
        trace.rows_named(_BENCHMARK_FRAMES, EventKind.PYTHON_FUNCTION),
    )


def _measuring_convolutions(gpu_events: GpuEvents) -> Int64Array:
    """Return the rows of convolutions in which a library measures its algorithms."""
    trace = gpu_events.trace
    convolutions = trace.rows_named(_CONVOLUTIONS, EventKind.CPU_OP)
    waits = trace.rows_named(_WAITS_FOR_EVENT, *LAUNCH_KINDS)
    if not len(convolutions) or not len(waits):
        return convolutions[:0]
    waits = waits[by_group_and_time(trace.thread[waits], trace.ts[waits])]
    thread_of_wait = trace.thread[waits]
    start_of_wait = trace.ts[waits]
    thread = trace.thread[convolutions]
    waits_before_end = items_before(
        group=thread_of_wait,
        time=start_of_wait,
        query_group=thread,
        query_time=trace.end_of(convolutions),
    )
    waits_before_start = items_before(
        group=thread_of_wait,
        time=start_of_wait,
        query_group=thread,
        query_time=trace.ts[convolutions],
    )
    waits_within = waits_before_end - waits_before_start
    result: Int64Array = convolutions[waits_within >= _FEWEST_WAITS]
    return result


def benchmark_events(gpu_events: GpuEvents) -> Int64Array:
    """Return the GPU events that belong to benchmarks by any of the three signs."""
    return np.union1d(
        _launched_by_benchmarks(gpu_events), _alternating_with_fills(gpu_events)
    )


def _launched_by_benchmarks(gpu_events: GpuEvents) -> Int64Array:
    """Return the GPU events that were launched within `benchmark_ranges`."""
    by_name = launched_within(
        gpu_events, _named_benchmarks(gpu_events), fewest=_FEWEST_RUNS
    )
    by_convolutions = launched_within(
        gpu_events, _measuring_convolutions(gpu_events), fewest=1
    )
    return np.union1d(by_name, by_convolutions)


def _alternating_with_fills(gpu_events: GpuEvents) -> Int64Array:
    """Return the GPU events of streams on which fills alternate with one kernel."""
    is_fill = gpu_events.trace.named(gpu_events.name, _FILL.match)
    is_fill &= gpu_events.duration >= _LEAST_FILL_NS
    if int(is_fill.sum()) < _FEWEST_FILLS:
        return np.zeros(0, dtype=np.int64)
    stream = find_tracks(gpu_events, "stream").of_gpu
    by_stream_and_start = np.lexsort((gpu_events.start, stream))
    benchmarks = []
    for stream_index in np.unique(stream[is_fill]).tolist():
        is_of_stream = stream[by_stream_and_start] == stream_index
        events = by_stream_and_start[is_of_stream]
        benchmarks.append(_alternating_events(gpu_events, events, is_fill[events]))
    return np.concatenate(benchmarks)


def _alternating_events(
    gpu_events: GpuEvents, events: Int64Array, is_fill: BoolArray
) -> Int64Array:
    """Return the events of one stream that alternate between fills and one kernel.

    Of `F K F K F K X`, these are the first six. From the third one on, each of them repeats the
    event two before it: it has the same name, and a fill has a similar length, too.

    Args:
        gpu_events: the GPU events.
        events: the events of the stream, by start, (n,).
        is_fill: which of them are fills, (n,).
    """
    name = gpu_events.name[events]
    duration = gpu_events.duration[events]
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


def launched_within(
    gpu_events: GpuEvents, ranges: Int64Array, fewest: int
) -> Int64Array:
    """Return the GPU events that were launched within host events.

    Args:
        gpu_events: the GPU events.
        ranges: the rows of the host events.
        fewest: a host event that launches fewer GPU events than this does not count.
    """
    trace = gpu_events.trace
    events = np.flatnonzero(gpu_events.tree.linked)
    launch = gpu_events.tree.launch_of_gpu[events]
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
