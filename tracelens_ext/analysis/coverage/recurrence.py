"""Warm-up that comes back, which makes it part of the program's regular work.

Something is compiled *again* in each of these cases:

* Its name says so: `Torch-Compiled Region: 0/1` is the second code of region 0.
* A compiled region takes long although it ran quickly three times before.
* A tenth of all GPU work has run since the last compilation, and kernels that ran before do most of
  the GPU work that follows: the program already had its code.

A graph is captured *again* if graphs were launched before, and if a tenth of all GPU work has run
since the last capture, or if there are hardly more launches of graphs than captures.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tracelens_ext.analysis.coverage.warm_up_events import (
    OPERATIONS,
    WarmUp,
    compilations,
    compiled_regions,
    instantiations,
    slow_regions,
)
from tracelens_ext.analysis.iterations.iterations import Iterations, find_iterations
from tracelens_ext.lazy import pd
from tracelens_ext.trace import BoolArray, Int64Array, Trace
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import maxima, minima, sums
from tracelens_ext.trace.intervals import covered
from tracelens_ext.trace.launches import captures, find_launches

#: A time that no event reaches, for what never happens again.
_NEVER: Final = np.iinfo(np.int64).max
#: Share of all GPU time that must pass between two compilations or captures to call the second one
#: a repetition.
_LONG_AFTER_SHARE: Final = 0.1
#: With at most this many launches per capture, the program captures its graphs for each use.
_LAUNCHES_OF_A_CAPTURE: Final = 1.5
#: Something takes time in an iteration if it takes at least this share of the most time that it
#: takes in any iteration.
_LEAST_SHARE_THAT_COMES_BACK: Final = 0.2
#: Without iterations, something comes back only if it is called at least this often.
_FEWEST_SPREAD: Final = 3
_COMPILES_AGAIN: Final = re.compile(r"(?i).*recompil|Torch-Compiled Region: \d+/[1-9]")


@cached_per_object
def repeated_compilations_begin(gpu_events: GpuEvents) -> int:
    """Return when something is compiled again for the first time, ns.

    The time is far ahead if that never happens.
    """
    trace = gpu_events.trace
    compilation_times = np.sort(trace.ts[compilations(trace)])
    is_named_so = _is_during(trace, _COMPILES_AGAIN, compilation_times)
    slow_runs = _slow_after_quick_runs(trace)
    if len(slow_runs) or is_named_so.any():
        times = np.append(compilation_times[is_named_so], trace.ts[slow_runs])
        return int(times.min())
    iterations = find_iterations(gpu_events.tree)
    if len(iterations) > 1:
        # During the first iteration, everything is compiled for the first time.
        is_later = compilation_times >= iterations.end.min()
        compilation_times = compilation_times[is_later]
    is_late = _is_long_after_the_last(gpu_events, compilation_times)
    for time in compilation_times[is_late].tolist():
        if _runs_known_kernels_from(gpu_events, time):
            return int(time)
    return _NEVER


def _is_during(trace: Trace, pattern: re.Pattern[str], times: Int64Array) -> BoolArray:
    """Return a mask of the k times during which an operation with a matching name runs, (k,)."""
    rows = trace.rows_named(pattern, *OPERATIONS)
    covered_ns = covered(
        start=trace.ts[rows],
        end=trace.end_of(rows),
        window_start=times,
        window_end=times + 1,
    )
    is_during: BoolArray = covered_ns > 0
    return is_during


def _slow_after_quick_runs(trace: Trace) -> Int64Array:
    """Return the slow runs of compiled regions that ran quickly three times before."""
    slow = slow_regions(trace)
    quick = np.setdiff1d(compiled_regions(trace), slow)
    by_name_and_time = np.lexsort((trace.ts[quick], trace.name[quick]))
    quick = quick[by_name_and_time]
    name = trace.name[quick]
    # Sorted by name, a run is the third or a later one if the run two before it has its name.
    is_third_or_later = name[2:] == name[:-2]
    third_or_later = quick[2:][is_third_or_later]
    names, first = np.unique(trace.name[third_or_later], return_index=True)
    third = third_or_later[first]
    third_run_time = np.full(len(trace.names), _NEVER)
    third_run_time[names] = trace.ts[third]
    is_after_third = trace.ts[slow] > third_run_time[trace.name[slow]]
    return slow[is_after_third]


def _runs_known_kernels_from(gpu_events: GpuEvents, time: int) -> bool:
    """Return True if kernels that ran before `time` take most GPU time after it."""
    is_later = gpu_events.start >= time
    known_names = np.unique(gpu_events.name[~is_later])
    later_names = gpu_events.name[is_later]
    is_known = np.isin(later_names, known_names)
    later_duration = gpu_events.duration[is_later]
    total_ns = int(later_duration.sum())
    known_ns = int(later_duration[is_known].sum())
    return total_ns > 0 and known_ns * 2 >= total_ns


@cached_per_object
def repeated_captures_begin(gpu_events: GpuEvents) -> int:
    """Return when a graph is captured or instantiated again for the first time, ns.

    The time is far ahead if that never happens.
    """
    trace = gpu_events.trace
    launches = find_launches(gpu_events)
    capture_begins, _ = captures(trace)
    instantiating_calls = instantiations(trace)
    times = np.sort(trace.ts[np.append(capture_begins, instantiating_calls)])
    graph_launch_times = trace.ts[launches.rows[launches.is_graph]]
    is_late = _is_long_after_the_last(gpu_events, times)
    capture_count = max(len(capture_begins), len(instantiating_calls))
    most_launches = _LAUNCHES_OF_A_CAPTURE * capture_count
    is_for_each_use = 0 < len(graph_launch_times) <= most_launches
    is_after_launches = times > graph_launch_times.min(initial=_NEVER)
    is_again = (is_late | is_for_each_use) & is_after_launches
    if is_again.sum() > 2 and is_late[0]:
        # The program captures again and again, and had run for long before the first capture of
        # the recording: that one is a repetition, too.
        return int(times[0])
    return int(times[is_again].min(initial=_NEVER))


def _is_long_after_the_last(gpu_events: GpuEvents, times: Int64Array) -> BoolArray:
    """Return a mask of the ascending times that much GPU work separates from the time before.

    For the first time, the GPU work since the beginning counts.
    """
    by_start = np.argsort(gpu_events.start, kind="stable")
    # Item i: GPU time of the i events that start first.
    gpu_time_before = np.append(0, np.cumsum(gpu_events.duration[by_start]))
    events_before = np.searchsorted(gpu_events.start[by_start], times)
    gpu_time_until = gpu_time_before[events_before]
    gpu_time_since_last = np.diff(gpu_time_until, prepend=0)
    total = max(int(gpu_time_before[-1]), 1)
    is_long_after: BoolArray = gpu_time_since_last / total >= _LONG_AFTER_SHARE
    return is_long_after


def comes_back(
    gpu_events: GpuEvents, table: pd.DataFrame, half_wall_ns: int
) -> BoolArray:
    """Return a mask of the events that have another event like them later, (k,).

    Events are alike if they have the same name and are the same kind of warm-up. With several
    iterations, events come back if the last iteration has them, too. Without, only first uses can
    be judged: they come back if they are spread over more than half of the wall time.

    Args:
        gpu_events: the GPU events.
        table: k events that may be warm-up, with `what`, `row`, `start` and `idle`.
        half_wall_ns: half of the wall time, ns.
    """
    names = gpu_events.trace.name[table["row"].to_numpy()]
    groups = table.groupby([table["what"], names], sort=False)
    group = groups.ngroup().to_numpy().astype(np.int64)
    iterations = find_iterations(gpu_events.tree)
    if len(iterations) > 1:
        return _in_last_iteration(iterations, group, table)
    is_first_use = (table["what"] == WarmUp.FIRST_USE.value).to_numpy()
    start = table["start"].to_numpy()
    return is_first_use & _is_spread(group, start, half_wall_ns)


def _is_spread(group: Int64Array, start: Int64Array, half_wall_ns: int) -> BoolArray:
    """Return a mask of the events whose group has several calls that are far apart."""
    count = int(group.max(initial=-1)) + 1
    first_start = minima(group, start, count)
    last_start = maxima(group, start, count)
    is_far_apart = last_start - first_start > half_wall_ns
    has_several_calls = np.bincount(group, minlength=count) >= _FEWEST_SPREAD
    is_spread: BoolArray = is_far_apart & has_several_calls
    return is_spread[group]


def _in_last_iteration(
    iterations: Iterations, group: Int64Array, table: pd.DataFrame
) -> BoolArray:
    """Return a mask of the events whose group takes time in the last whole iteration, too.

    The group must also take time in another iteration.
    """
    group_count = int(group.max(initial=-1)) + 1
    by_start = np.argsort(iterations.start, kind="stable")
    # Step 0 is the time before all iterations. Step i is iteration i - 1, by start, with the time
    # until the next one.
    step_count = len(iterations) + 1
    step = np.searchsorted(
        iterations.start[by_start], table["start"].to_numpy(), side="right"
    )
    idle_ns = sums(
        group_index=group * step_count + step,
        values=table["idle"].to_numpy(),
        group_count=group_count * step_count,
    )
    idle_ns_of_group = idle_ns.reshape(group_count, step_count)
    most_ns = idle_ns_of_group.max(axis=1, keepdims=True)
    threshold_ns = np.maximum(_LEAST_SHARE_THAT_COMES_BACK * most_ns, 1)
    takes_time = idle_ns_of_group >= threshold_ns
    whole = np.flatnonzero(iterations.whole[by_start])
    step_of_last_whole = int(whole.max(initial=0)) + 1
    iterations_with_time = takes_time[:, 1:].sum(axis=1)
    is_in_several = iterations_with_time > 1
    group_comes_back: BoolArray = takes_time[:, step_of_last_whole] & is_in_several
    return group_comes_back[group]
