"""Warm-up: what happens once, such as first use, compilation, and the capture of graphs.

Compilation and capture of graphs are warm-up as a rule, and from when on they come again:

* Something is compiled *again* if its names say so (`Torch-Compiled Region: 0/1` is the second code
  of the first region); if a region was run quickly three times before; or if a tenth of all GPU
  work has run since the last compilation, and most of what runs later consists of kernels that ran
  before: the program had its code already.
* A graph is captured *again* after graphs were launched, if a tenth of all GPU work has run since
  the last capture, or if graphs are hardly launched more often than captured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.analysis.coverage.benchmarks import (
    benchmark_ranges,
    find_benchmarks,
    find_named_warm_up,
    named_warm_up_ranges,
)
from tracelens_ext.analysis.iterations.selection import Iterations, find_iterations
from tracelens_ext.lazy import pd
from tracelens_ext.trace import (
    LAUNCH_KINDS,
    NONE,
    BoolArray,
    EventKind,
    Int64Array,
    Trace,
)
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.gpu_events import GpuEvents, busy_within, find_tracks
from tracelens_ext.trace.grouping import maxima, minima, number_groups, sums
from tracelens_ext.trace.intervals import covered
from tracelens_ext.trace.launches import captures, device_index_of_calls, find_launches
from tracelens_ext.trace.nesting import ROOT, nearest_above


class WarmUp(StrEnum):
    """What kind of warm-up something is, in words."""

    FIRST_USE = "first use"
    CAPTURE = "graph capture"
    CODE_LOADING = "module loading"
    CONTEXT = "context creation"
    INSTANTIATION = "graph instantiation"
    COMPILATION = "compilation"
    SEARCH = "search for the best convolution algorithm"
    AUTOTUNING = "autotuning"
    FIRST_LAUNCH = "first launch of a kernel"
    NAMED = "range of the program"


_NEVER: Final = np.iinfo(np.int64).max
_OPERATIONS: Final = (EventKind.CPU_OP, EventKind.USER_ANNOTATION)

#: A call is long, and a slow run of a compiled region is a compilation, from this on.
_LONG_NS: Final = 5_000_000
#: Calls of one name, at least, that are spread over the wall.
_FEWEST_SPREAD: Final = 3
#: The first launch of a kernel loads its module if it takes so many times as long as later ones …
_TIMES_LATER_LAUNCHES: Final = 5
#: … and this long at least, ns; that of a kernel that is launched once only, longer.
_LEAST_FIRST_LAUNCH_NS: Final = 50_000
_LEAST_ONLY_LAUNCH_NS: Final = 200_000
#: First launches that take less of the wall time together, as a share, change nothing.
_LEAST_FIRST_LAUNCHES_SHARE: Final = 0.01
#: Of the most idle time that an iteration has.
_LEAST_SHARE_THAT_COMES_BACK: Final = 0.2
_TIMES_THE_SHORTEST_RUN: Final = 10
#: Of all GPU time, since the last compilation or capture.
_LONG_AFTER_SHARE: Final = 0.1
#: At most so many launches for each capture, of graphs that are captured for each use.
_LAUNCHES_OF_A_CAPTURE: Final = 1.5

#: What waits for the GPU, copies, or launches a graph may be long whenever it is called.
_WAITS: Final = re.compile(r".*(?:Synchronize|Memcpy|GraphLaunch|Query|EventElapsed)")
_MEMORY: Final = re.compile(r"(?i).*(?:alloc|free)")
_LOADS_CODE: Final = re.compile(r"(?:cuda|hip|cu)(?:Module|Library)Load")
_CREATES_CONTEXT: Final = re.compile(
    r"(?:cu|hip)(?:Init$|CtxCreate|DevicePrimaryCtxRetain)"
)
_SEARCHES: Final = re.compile(r"cudnn(?:Find|Get)\w*Algorithm")
_INSTANTIATES: Final = re.compile(r"(?:cuda|hip|cu)GraphInstantiate")
_COMPILED_REGION: Final = re.compile(r"Torch-Compiled Region|CompiledFunction$")
#: Operations and annotations around a compilation.
_COMPILING_OPERATION: Final = re.compile(
    r"(?i).*(?:dynamo_timed|\bcompile_fx|async_compile|triton.*compile|xlacompile"
    r"|\b(?:re|jit[_ ]|backend_)?compil(?:e|ing|ation)\b)"
)
_COMPILING_FRAME: Final = re.compile(
    r".*(?:_dynamo[/\\]convert_frame\.py\(\d+\): _compile$|_inductor[/\\]compile_fx\.py"
    r"|triton[/\\]compiler[/\\]compiler\.py\(\d+\): compile$|\bbackend_compile)"
)
_COMPILES_AGAIN: Final = re.compile(r"(?i).*recompil|Torch-Compiled Region: \d+/[1-9]")


class _Spans(NamedTuple):
    """When each of d devices works first and last, ns since the trace's first event."""

    start: Int64Array  #: (d,)
    end: Int64Array  #: (d,)


def _spans_of_devices(work: GpuEvents, wall_start: int) -> _Spans:
    """Return from when to when each device works.

    The wall begins earlier than all work where its first work was dropped: so does the span of the
    device that works first.
    """
    tracks = find_tracks(work, "device")
    start = minima(tracks.of_gpu, work.start, len(tracks))
    end = maxima(tracks.of_gpu, work.end, len(tracks))
    is_first = start == start.min()
    return _Spans(start=np.where(is_first, wall_start, start), end=end)


def find_warm_up(work: GpuEvents, wall_start: int, wall_end: int) -> pd.DataFrame:
    """Return the warm-up of all devices in the wall; its parts may overlap.

    * A call of the runtime or driver during which the device has nothing to do for over 5 ms, other
      than waits, copies and graph launches: a library is loaded, a context created, the first
      memory allocated (if anything else warms up). A launch is one only where its kernel is
      launched for the first time. What lies between several in one operation is warm-up, too.
    * The first launch of a kernel whose module it loads, however short.
    * Loading of code, capture and instantiation of graphs, compilation, cuDNN's search.
    * A range that the program calls warm-up.
    * A compiled region that takes over ten times the shortest of its name.

    What comes back is not warm-up: what is compiled or captured again; what the last iteration has,
    too; and where nothing tells iterations, long calls of one name that are spread over more than
    half of the wall.

    Returns:
        `device` (an index), `start`, `end` (ns), `row` (the host event), `count` and `what`.
    """
    candidates = list(_candidates(work))
    if not candidates:
        return pd.DataFrame()
    table = pd.concat(candidates, ignore_index=True)
    table = table.assign(device=device_index_of_calls(work, table["row"].to_numpy()))
    table = table[table["device"] != NONE]
    device = table["device"].to_numpy()
    spans = _spans_of_devices(work, wall_start)
    table = table.assign(
        start=table["start"].clip(spans.start[device]),
        end=table["end"].clip(upper=spans.end[device]),
    )
    table = table[table["end"] > table["start"]]
    table = _that_leave_the_gpu_idle(work, table)
    table = _without_memory_alone(work, table)
    comes_again_from = _comes_again_from(work, table, wall_end)
    table = table[table["start"] < comes_again_from]
    half_wall = (wall_end - wall_start) // 2
    comes_back = _comes_back(work, table, half_wall)
    is_first_launch = table["what"] == WarmUp.FIRST_LAUNCH.value
    table = table[is_first_launch | ~comes_back]
    table = _without_few_first_launches(work, table)
    table = _joined_within_operations(work, table)
    names = [work.trace.name_of(row) for row in table["row"].tolist()]
    what = [f"{kind}: {name}" for kind, name in zip(table["what"], names, strict=True)]
    return table[["device", "start", "end", "row"]].assign(count=1, what=what)


def _candidates(work: GpuEvents) -> Iterator[pd.DataFrame]:
    """Yield what may be warm-up: `what` it is, the `row` of the host event, `start` and `end`."""
    trace = work.trace
    capture_begins, capture_ends = captures(trace)
    calls = trace.rows_of(*LAUNCH_KINDS)
    is_long = trace.dur[calls] > _LONG_NS
    long_calls = np.setdiff1d(calls[is_long], instantiations(trace))
    is_wait = trace.named(trace.name[long_calls], _WAITS.match)
    first_uses = long_calls[~is_wait]
    yield from _spans(trace, WarmUp.FIRST_USE, first_uses)
    yield from _spans(
        trace=trace, what=WarmUp.CAPTURE, rows=capture_begins, last_rows=capture_ends
    )
    yield from _spans(
        trace=trace,
        what=WarmUp.CODE_LOADING,
        rows=trace.rows_named(_LOADS_CODE, *LAUNCH_KINDS),
    )
    contexts = trace.rows_named(_CREATES_CONTEXT, *LAUNCH_KINDS)
    yield from _spans(trace, WarmUp.CONTEXT, contexts)
    yield from _spans(
        trace=trace, what=WarmUp.INSTANTIATION, rows=instantiations(trace)
    )
    yield from _spans(trace=trace, what=WarmUp.COMPILATION, rows=compilations(trace))
    yield from _spans(trace=trace, what=WarmUp.COMPILATION, rows=slow_regions(trace))
    searches = trace.rows_named(_SEARCHES, *_OPERATIONS)
    yield from _spans(trace, WarmUp.SEARCH, searches)
    yield from _spans(
        trace=trace, what=WarmUp.FIRST_LAUNCH, rows=slow_first_launches(work)
    )
    if len(find_benchmarks(work)):
        yield from _spans(
            trace=trace, what=WarmUp.AUTOTUNING, rows=benchmark_ranges(work)
        )
    if len(find_named_warm_up(work)):
        yield from _spans(trace, WarmUp.NAMED, named_warm_up_ranges(work))


def _spans(
    trace: Trace, what: WarmUp, rows: Int64Array, last_rows: Int64Array | None = None
) -> Iterator[pd.DataFrame]:
    """Yield a table of events that last until others, themselves by default; nothing for none."""
    if len(rows):
        end = trace.end_of(rows if last_rows is None else last_rows)
        columns = {"what": what.value, "row": rows, "start": trace.ts[rows], "end": end}
        yield pd.DataFrame(columns)


def slow_first_launches(work: GpuEvents) -> Int64Array:
    """Return the first launches of kernels that load their modules, as their length shows.

    They take five times as long as later launches of the same kernel, or over 200 µs where the
    kernel is launched once only.
    """
    trace = work.trace
    events = np.flatnonzero(work.tree.linked & work.is_kernel & ~work.tree.by_graph)
    launch = work.tree.launch_of_gpu[events]
    # Each device loads its own modules.
    device = find_tracks(work, "device").of_gpu[events].astype(np.int64)
    name = device * len(trace.names) + work.name[events]
    order = np.lexsort((trace.ts[launch], name))
    launch = launch[order]
    duration = trace.dur[launch]
    starts = np.flatnonzero(np.diff(name[order], prepend=NONE))
    if not len(starts):
        return launch
    ends = np.append(starts[1:], len(launch))
    is_first = np.zeros(len(launch), dtype=bool)
    is_first[starts] = True
    later = np.where(is_first, _NEVER, duration)
    quickest_later = np.minimum.reduceat(later, starts)
    first_duration = duration[starts]
    is_only = ends - starts == 1
    is_slow = first_duration // _TIMES_LATER_LAUNCHES >= quickest_later
    is_slow &= first_duration >= _LEAST_FIRST_LAUNCH_NS
    is_slow[is_only] = first_duration[is_only] > _LEAST_ONLY_LAUNCH_NS
    is_slow &= first_duration <= _LONG_NS  # longer ones are first uses
    slow: Int64Array = launch[starts[is_slow]]
    return slow


def _without_few_first_launches(work: GpuEvents, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table without first launches of kernels where these take hardly any time.

    That is so on a device on which they are a small share of its own time.
    """
    tracks = find_tracks(work, "device")
    count = len(tracks)
    first_start = minima(tracks.of_gpu, work.start, count)
    last_end = maxima(tracks.of_gpu, work.end, count)
    is_first_launch = (table["what"] == WarmUp.FIRST_LAUNCH.value).to_numpy()
    device = table["device"].to_numpy().astype(np.int64)
    idle = np.where(is_first_launch, table["idle"].to_numpy(), 0)
    idle_of_device = sums(group_index=device, values=idle, group_count=count)
    is_much = idle_of_device >= _LEAST_FIRST_LAUNCHES_SHARE * (last_end - first_start)
    return table[~is_first_launch | is_much[device]]


def _that_leave_the_gpu_idle(work: GpuEvents, table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows during which the device is idle, with that time as `idle`, ns.

    A first use counts from 5 ms on, and not if it launches a kernel that ran before.
    """
    device = table["device"].to_numpy()
    start = table["start"].to_numpy()
    end = table["end"].to_numpy()
    busy = busy_within(gpu_events=work, device_index=device, start=start, end=end)
    idle = end - start - busy
    is_first_use = table["what"] == WarmUp.FIRST_USE.value
    least_idle = np.where(is_first_use, _LONG_NS, 0)
    launched_before = _launched_before(work, table["row"].to_numpy())
    is_not_first = is_first_use & launched_before
    is_chosen = (idle > least_idle) & ~is_not_first
    chosen: pd.DataFrame = table.assign(idle=idle)[is_chosen]
    return chosen


def _launched_before(work: GpuEvents, rows: Int64Array) -> BoolArray:
    """Return whether each event is a launch of a kernel that was launched before."""
    trace = work.trace
    events = np.flatnonzero(work.tree.linked & work.is_kernel)
    launch = work.tree.launch_of_gpu[events]
    name = work.name[events]
    by_name_and_time = np.lexsort((trace.ts[launch], name))
    is_first_of_name = np.diff(name[by_name_and_time], prepend=NONE) != 0
    first_launches = launch[by_name_and_time[is_first_of_name]]
    is_launch = np.isin(rows, launch)
    return is_launch & ~np.isin(rows, first_launches)


def _without_memory_alone(work: GpuEvents, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table, or nothing if all of it is about memory: the allocator just asks again."""
    trace = work.trace
    names = trace.name[table["row"].to_numpy()]
    is_about_memory = trace.named(names, _MEMORY.match)
    if is_about_memory.all():
        return table.head(0)
    return table


def _comes_again_from(work: GpuEvents, table: pd.DataFrame, wall_end: int) -> list[int]:
    """Return from when on each kind of warm-up comes again, for each row."""
    captured_again = captured_again_from(work)
    again_from = {
        WarmUp.COMPILATION.value: compiled_again_from(work),
        WarmUp.CAPTURE.value: captured_again,
        WarmUp.INSTANTIATION.value: captured_again,
    }
    return [again_from.get(what, wall_end) for what in table["what"]]


def _joined_within_operations(work: GpuEvents, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with first uses that last until the last of their operation ends."""
    tree = work.tree
    uses = table[table["what"] == WarmUp.FIRST_USE.value]
    position = tree.position[uses["row"].to_numpy()]
    operation = nearest_above(
        parent=tree.parent_position, nodes=position, marked=tree.is_operation
    )
    uses = uses.assign(operation=operation)
    uses = uses[uses["operation"] != ROOT]
    end = uses.groupby(["device", "operation"])["end"].transform("max")
    table = table.copy()
    table.loc[end.index, "end"] = end
    return table


def _comes_back(work: GpuEvents, table: pd.DataFrame, half_wall: int) -> BoolArray:
    """Return whether what each row is about comes back later."""
    names = work.trace.name[table["row"].to_numpy()]
    group = (
        table.groupby([table["what"], names], sort=False)
        .ngroup()
        .to_numpy()
        .astype(np.int64)
    )
    iterations = find_iterations(work.tree)
    if len(iterations) > 1:
        return _in_last_iteration(iterations, group, table)
    is_first_use = (table["what"] == WarmUp.FIRST_USE.value).to_numpy()
    start = table["start"].to_numpy()
    is_spread = _is_spread(group, start, half_wall)
    return is_spread & is_first_use


def _is_spread(group: Int64Array, start: Int64Array, half_wall: int) -> BoolArray:
    """Return whether the group of each row is of several calls that are far apart."""
    count = int(group.max(initial=-1)) + 1
    first_start = minima(group, start, count)
    last_start = maxima(group, start, count)
    is_far_apart = last_start - first_start > half_wall
    calls = np.bincount(group, minlength=count)
    has_several = calls >= _FEWEST_SPREAD
    is_spread: BoolArray = is_far_apart & has_several
    return is_spread[group]


def _in_last_iteration(
    iterations: Iterations, group: Int64Array, table: pd.DataFrame
) -> BoolArray:
    """Return whether the group of each row takes its time in the last whole iteration, too."""
    count = int(group.max(initial=-1)) + 1
    order = np.argsort(iterations.start, kind="stable")
    # Step 0 is before all iterations, step i is in iteration i - 1, or after it.
    step = np.searchsorted(
        iterations.start[order], table["start"].to_numpy(), side="right"
    )
    steps = len(order) + 1
    cell = group * steps + step
    idle = sums(
        group_index=cell, values=table["idle"].to_numpy(), group_count=count * steps
    ).reshape(count, steps)
    most_of_group = idle.max(axis=1, keepdims=True)
    least = np.maximum(_LEAST_SHARE_THAT_COMES_BACK * most_of_group, 1)
    takes_time = idle >= least
    whole = np.flatnonzero(iterations.whole[order])
    last_step = int(whole.max(initial=0)) + 1
    steps_with_time = takes_time[:, 1:].sum(axis=1)
    is_in_several = steps_with_time > 1
    comes_back: BoolArray = takes_time[:, last_step] & is_in_several
    return comes_back[group]


@cached_per_object
def compilations(trace: Trace) -> Int64Array:
    """Return the rows of the host events that are compilations by their names."""
    frames = trace.rows_named(_COMPILING_FRAME, EventKind.PYTHON_FUNCTION)
    operations = trace.rows_named(_COMPILING_OPERATION, *_OPERATIONS)
    return np.append(frames, operations)


def slow_regions(trace: Trace) -> Int64Array:
    """Return the rows of runs of compiled regions that take so long that they must compile."""
    rows = trace.rows_named(_COMPILED_REGION, *_OPERATIONS)
    duration = trace.dur[rows]
    first, region = number_groups([trace.name[rows]])
    shortest = minima(group_index=region, values=duration, group_count=len(first))
    least = np.maximum(_TIMES_THE_SHORTEST_RUN * shortest, _LONG_NS)
    is_slow = duration > least[region]
    return rows[is_slow]


def instantiations(trace: Trace) -> Int64Array:
    """Return the rows of the calls that instantiate graphs."""
    return trace.rows_named(_INSTANTIATES, *LAUNCH_KINDS)


@cached_per_object
def compiled_again_from(work: GpuEvents) -> int:
    """Return when something is compiled again for the first time, ns; far ahead for never."""
    trace = work.trace
    times = np.sort(trace.ts[compilations(trace)])
    named = trace.rows_named(_COMPILES_AGAIN, *_OPERATIONS)
    in_named = (
        covered(
            start=trace.ts[named],
            end=trace.end_of(named),
            window_start=times,
            window_end=times + 1,
        )
        > 0
    )
    slow = _slow_after_quick_runs(trace)
    if len(slow) or in_named.any():
        return int(np.append(times[in_named], trace.ts[slow]).min())
    iterations = find_iterations(work.tree)
    if len(iterations) > 1:  # in the first one everything is new
        times = times[times >= iterations.end.min()]
    for time in times[_is_long_after_the_last(work, times)].tolist():
        if _runs_known_kernels_from(work, time):
            return int(time)
    return _NEVER


def _slow_after_quick_runs(trace: Trace) -> Int64Array:
    """Return the slow runs of compiled regions that were run quickly three times before."""
    slow = slow_regions(trace)
    regions = trace.rows_named(_COMPILED_REGION, *_OPERATIONS)
    quick = np.setdiff1d(regions, slow)
    by_name_and_time = np.lexsort((trace.ts[quick], trace.name[quick]))
    quick = quick[by_name_and_time]
    name = trace.name[quick]
    is_third_or_later = name[2:] == name[:-2]
    third_or_later = quick[2:][is_third_or_later]
    names, first = np.unique(trace.name[third_or_later], return_index=True)
    third = third_or_later[first]
    known_from = np.full(len(trace.names), _NEVER)
    known_from[names] = trace.ts[third]
    known_from_of_slow = known_from[trace.name[slow]]
    is_known = trace.ts[slow] > known_from_of_slow
    return slow[is_known]


def _runs_known_kernels_from(work: GpuEvents, time: int) -> bool:
    """Return whether most GPU time from a time on is of kernels that ran before it."""
    is_later = work.start >= time
    known_names = np.unique(work.name[~is_later])
    later_names = work.name[is_later]
    is_known = np.isin(later_names, known_names)
    duration = work.duration[is_later]
    total = int(duration.sum())
    known_ns = int(duration[is_known].sum())
    return total > 0 and known_ns * 2 >= total


@cached_per_object
def captured_again_from(work: GpuEvents) -> int:
    """Return when a graph is captured or instantiated again for the first time, likewise."""
    trace = work.trace
    launches = find_launches(work)
    begun, _ = captures(trace)
    instantiated = instantiations(trace)
    times = np.sort(trace.ts[np.append(begun, instantiated)])
    launched = trace.ts[launches.rows[launches.is_graph]]
    is_late = _is_long_after_the_last(work, times)
    captured_count = max(len(begun), len(instantiated))
    is_for_each_use = 0 < len(launched) <= _LAUNCHES_OF_A_CAPTURE * captured_count
    is_after_launches = times > launched.min(initial=_NEVER)
    is_again = (is_late | is_for_each_use) & is_after_launches
    is_again_from_the_first = is_again.sum() > 2 and is_late[0]
    return int(times[is_again | is_again_from_the_first].min(initial=_NEVER))


def _is_long_after_the_last(work: GpuEvents, times: Int64Array) -> BoolArray:
    """Return before which of some ascending times much GPU time has gone by since the last."""
    by_start = np.argsort(work.start, kind="stable")
    done = np.append(0, np.cumsum(work.duration[by_start]))
    events_before = np.searchsorted(work.start[by_start], times)
    done_before = done[events_before]
    total = max(int(done[-1]), 1)
    since_the_last = np.diff(done_before, prepend=0)
    is_long: BoolArray = since_the_last / total >= _LONG_AFTER_SHARE
    return is_long
