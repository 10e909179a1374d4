"""GPU work that is warm-up: benchmarks of autotuning, and work that the program calls warm-up.

Benchmarks happen once (see `benchmarks`). Many programs run their first iterations, which they do
not measure, in a range that they call `warmup`.

If a recording contains almost nothing but such work, or if most iterations contain it, it is the
regular work of the program.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tracelens_ext.analysis.coverage.benchmarks import (
    benchmark_events,
    launched_within,
)
from tracelens_ext.analysis.iterations.iterations import find_iterations
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, EventKind, Int64Array
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.gpu_events import GpuEvents, find_tracks
from tracelens_ext.trace.grouping import maxima, minima

#: The columns of tables of warm-up; `find_benchmarks` describes them.
WARM_UP_COLUMNS: Final = ("device", "start", "end", "row", "count", "what")
BENCHMARK: Final = "benchmarks of autotuning"
NAMED_WARM_UP: Final = "what the program calls warm-up"

#: Names of ranges for warm-up, but not for the warm-up of a learning rate.
_WARM_UP_RANGE: Final = re.compile(
    r"(?i)(?!.*(?:lr|learn|schedul))(?:.*[^a-z])?warm[-_ ]?up(?:[^a-z]|$)"
)
#: If other work takes a smaller share of the GPU time, the benchmarks are the work to analyze.
_LEAST_OTHER_WORK_SHARE: Final = 0.02


@cached_per_object
def find_benchmarks(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return the spans of time in which devices run benchmarks of autotuning.

    Returns:
        A table with the columns `device` (an index), `start`, `end` (ns since the trace's first
        event), `row` (of the launch with which the span begins), `count` (of kernels) and `what`.
        It is empty without benchmarks, and if they are the program's regular work.
    """
    return _spans_unless_regular(gpu_events, benchmark_events(gpu_events), BENCHMARK)


@cached_per_object
def find_named_warm_up(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return the spans of time in which devices run work that the program itself calls warm-up.

    The columns are those of `find_benchmarks`.
    """
    events = launched_within(gpu_events, named_warm_up_ranges(gpu_events), fewest=1)
    return _spans_unless_regular(gpu_events, events, NAMED_WARM_UP)


def _spans_unless_regular(
    gpu_events: GpuEvents, events: Int64Array, what: str
) -> pd.DataFrame:
    """Return the spans of events as `find_benchmarks`; empty if they are the regular work."""
    no_spans = pd.DataFrame(columns=list(WARM_UP_COLUMNS))
    if _are_in_most_iterations(gpu_events, events):
        return no_spans
    total_ns = int(gpu_events.duration.sum())
    other_ns = total_ns - int(gpu_events.duration[events].sum())
    if not len(events) or other_ns < _LEAST_OTHER_WORK_SHARE * total_ns:
        return no_spans
    return _spans(gpu_events, events, what)


def named_warm_up_ranges(gpu_events: GpuEvents) -> Int64Array:
    """Return the rows of the ranges that the program calls warm-up."""
    return gpu_events.trace.rows_named(
        _WARM_UP_RANGE, EventKind.CPU_OP, EventKind.USER_ANNOTATION
    )


def _are_in_most_iterations(gpu_events: GpuEvents, events: Int64Array) -> bool:
    """Return True if over half of the iterations launch some of these events.

    Such events are the program's regular work.
    """
    iterations = find_iterations(gpu_events.tree)
    count = len(iterations)
    if count < 2:
        return False
    step = iterations.started_in[events]
    steps_with_events = np.unique(step[step != NONE])
    return 2 * len(steps_with_events) > count


def _spans(gpu_events: GpuEvents, events: Int64Array, what: str) -> pd.DataFrame:
    """Return the spans of time in which devices run only chosen events, as `find_benchmarks`."""
    device_of_event = find_tracks(gpu_events, "device").of_gpu
    is_chosen = np.zeros(len(gpu_events), dtype=bool)
    is_chosen[events] = True
    tables = []
    for device in np.unique(device_of_event[events]).tolist():
        events_of_device = np.flatnonzero(device_of_event == device)
        by_start = np.argsort(gpu_events.start[events_of_device], kind="stable")
        events_of_device = events_of_device[by_start]
        is_chosen_of_device = is_chosen[events_of_device]
        chosen = events_of_device[is_chosen_of_device]
        # A span begins with each chosen event that no chosen one directly precedes:
        # chosen  F T T F T  ->  begins  F T F F T  ->  spans of the three chosen events  0 0 1
        begins_span = np.diff(is_chosen_of_device, prepend=False) & is_chosen_of_device
        span = np.cumsum(begins_span[is_chosen_of_device]) - 1
        first = chosen[begins_span[is_chosen_of_device]]
        count = len(first)
        launch = gpu_events.tree.launch_of_gpu[first]
        tables.append(
            pd.DataFrame(
                {
                    "device": device,
                    "start": minima(span, gpu_events.start[chosen], count),
                    "end": maxima(span, gpu_events.end[chosen], count),
                    "row": np.where(launch == NONE, gpu_events.rows[first], launch),
                    "count": np.bincount(span, minlength=count),
                    "what": what,
                }
            )
        )
    return pd.concat(tables, ignore_index=True)
