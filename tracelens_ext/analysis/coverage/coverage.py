"""`Coverage`: how much of the wall time a recording lets anybody judge.

The wall runs from the first start of GPU work to its last end, one for all devices; where a hole
lies before all GPU work, from that hole's first launch. What cannot be judged of it are *parts*:

* `hole`: lost GPU work. Ten launches or more in a row of one device, or one graph launch, have no
  GPU event. It begins when the device's work before it has ended and its first launch has begun; it
  ends when the first work that was launched after it starts. What was launched after the last
  launch with work was cut off by the end of the recording.
* `before`: work of before the recording. One of the device's first events started long after its
  launch had returned, the device idle in between: it waited for what is not in the file.
* `start_up`: what happens once and not in later iterations; see `find_start_up`.

Parts of one device have nothing in common, lie in the wall, and hold idle time of the device: the
idle time within them is `not_recorded` (`hole`, `before`) or `start_up`, and no finding's.

Compilation and capture of graphs are start-up as a rule, and from when on they come again:

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
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracelens_ext.analysis.coverage.program import Missing, missing_of
from tracelens_ext.analysis.iterations.selection import find_iterations
from tracelens_ext.lazy import pd
from tracelens_ext.trace import LAUNCH_KINDS, NONE, BoolArray, EventKind, Int64Array, Trace
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.gpu_events import GpuEvents, busy_within, find_tracks
from tracelens_ext.trace.grouping import maxima, minima, number_groups, sums
from tracelens_ext.trace.intervals import covered, outside, union
from tracelens_ext.trace.launches import (
    Launches,
    captures,
    device_index_of_calls,
    find_launches,
    place_of,
)
from tracelens_ext.trace.nesting import ROOT, nearest_above

HOLE = "hole"
BEFORE = "before"
START_UP = "start_up"

_FEWEST_LOST: Final = 10  # in a row; single ones are lost, or start nothing, in any recording
_FIRST_EVENTS: Final = 10
_WAIT_NS = 200_000
_WAIT_SHARE = 0.05
_NEVER: Final = np.iinfo(np.int64).max
_OPERATIONS: Final = (EventKind.CPU_OP, EventKind.USER_ANNOTATION)


@dataclass(frozen=True, eq=False)
class Coverage:
    """What a recording holds of p devices."""

    wall_start: int  #: ns since the trace's first event; 0 without GPU events, as `wall_end`
    wall_end: int  #: likewise
    #: what cannot be judged, by device and start. Columns `kind` (`hole`, `before` or `start_up`),
    #: `device` (an index into `find_lanes(work, "device")`), `start`, `end` (ns since the trace's
    #: first event), `ns` (the device's idle time in it), `count` (launches or calls), `what`,
    #: `place` (texts)
    parts: pd.DataFrame
    launches: int  #: launches of kernels, graphs and copies
    lost: Int64Array  #: rows of those without GPU work, by time
    devices: int  #: p
    missing: tuple[Missing, ...]  #: what was not recorded by choice

    @property
    def launches_without_gpu_work(self) -> int:
        """How many launches have no GPU event."""
        return len(self.lost)

    @property
    def wall_ns(self) -> int:
        """Length of the wall."""
        return self.wall_end - self.wall_start

    def mean_ns(self, *kinds: str) -> float:
        """Idle time in the parts of some kinds, the mean over the devices."""
        ns = self.parts.loc[self.parts["kind"].isin(kinds), "ns"]
        return float(ns.sum()) / max(self.devices, 1)

    @property
    def judged_ns(self) -> float:
        """The time that findings are about, the mean over the devices."""
        return self.wall_ns - self.mean_ns(HOLE, BEFORE, START_UP)


@cached_per_object
def recording_of(work: GpuEvents) -> Coverage:
    """What the recording of a trace holds."""
    launches = find_launches(work)
    tracks = find_tracks(work, "device")
    start, end = (int(work.start.min()), int(work.end.max())) if len(work) else (0, 0)
    parts = [_holes(work, launches, device_index) for device_index in range(len(tracks))]
    start = min([start, *(int(hole["start"].min()) for hole in parts if len(hole))])
    if len(work):
        parts += [_before(work, device_index, end - start) for device_index in range(len(tracks))]
        parts.append(find_start_up(work, start, end))
    numbers = dict.fromkeys(("device", "start", "end", "count", "row"), "int64")
    columns = {"kind": "str", **numbers, "what": "str"}
    table = _apart(work, pd.concat([pd.DataFrame(columns=[*columns]), *parts]).astype(columns))
    place = [place_of(work, row) for row in table.pop("row").tolist()]
    table["place"] = pd.Series(place, dtype="str")
    lost = launches.rows[launches.lost]
    missing = missing_of(work.trace)
    return Coverage(start, end, table, len(launches.rows), lost, len(tracks), missing)


def _apart(work: GpuEvents, parts: pd.DataFrame) -> pd.DataFrame:
    """The parts without what earlier ones of their device have; those that hold idle time."""
    found = [parts.head(0)]
    for _, of_device in parts.groupby("device"):
        taken = work.start[:0], work.end[:0]
        for kind in (HOLE, BEFORE, START_UP):
            some = of_device[of_device["kind"] == kind]
            some = some.sort_values(["start", "end"], ascending=[True, False])
            end = some["end"].to_numpy()
            reach = np.maximum.accumulate(np.append(0, end))[:-1]
            begin = np.minimum(np.maximum(some["start"].to_numpy(), reach), end)
            begin, end, which = outside(begin, end, *taken)
            taken = union(np.append(taken[0], begin), np.append(taken[1], end))
            found.append(some.iloc[which].assign(start=begin, end=end))
    table = _with_idle_time(work, pd.concat(found), "ns")
    return table[table["ns"] > 0].sort_values(["device", "start"], ignore_index=True)


def _with_idle_time(work: GpuEvents, table: pd.DataFrame, name: str) -> pd.DataFrame:
    spans = table[["device", "start", "end"]].to_numpy().T
    return table.assign(**{name: spans[2] - spans[1] - busy_within(work, *spans)})


def _holes(work: GpuEvents, launches: Launches, device_index: int) -> pd.DataFrame:
    """Where work that was launched on a device was lost."""
    mine = launches.device_index == device_index
    rows = launches.rows[mine]
    lost = launches.lost[mine]
    graph = launches.is_graph[mine]
    first, after = np.flatnonzero(np.diff(lost, prepend=False, append=False)).reshape(-1, 2).T
    graphs = np.append(0, np.cumsum(graph))
    is_hole = (after - first >= _FEWEST_LOST) | (graphs[after] > graphs[first])
    is_hole &= after < len(rows)  # else the end of the recording cut it off
    first = first[is_hole]
    after = after[is_hole]
    start, end = _queue_times(work, device_index, rows[first], rows[after])
    lasts = end > start
    count = (after - first)[lasts]
    what = [f"{n:,} {'launch' if n == 1 else 'launches'} without GPU work" for n in count.tolist()]
    columns = {"start": start[lasts], "end": end[lasts], "row": rows[first[lasts]], "count": count}
    return pd.DataFrame({"kind": HOLE, "device": device_index, **columns, "what": what})


def _queue_times(
    work: GpuEvents, device_index: int, first: Int64Array, after: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """When what a device got before the first of some launches has ended, and the next starts.

    Other streams may start what was launched later all the while: the next is on the stream that
    has most of the work of the launching thread.
    """
    trace = work.trace
    launch = work.tree.launch_of_gpu
    events = np.flatnonzero((find_tracks(work, "device").of_gpu == device_index) & work.tree.linked)
    events = events[np.argsort(trace.ts[launch[events]], kind="stable")]
    stream = find_tracks(work, "stream").of_gpu[events]
    thread = trace.thread[launch[events]]
    begun = trace.ts[launch[events]]
    ended = np.maximum.accumulate(np.append(0, work.end[events]))
    start = np.maximum(trace.ts[first], ended[np.searchsorted(begun, trace.ts[first])])
    end = start.copy()
    asked = trace.thread[first]
    for number in np.unique(asked).tolist():
        its = thread == number
        mine = stream == np.bincount(stream[its if its.any() else slice(None)]).argmax()
        starts = np.append(work.start[events[mine]], 0)  # nothing comes next: no hole
        starts[:-1] = np.minimum.accumulate(starts[:-1][::-1])[::-1]
        here = asked == number
        end[here] = starts[np.searchsorted(begun[mine], trace.ts[after[here]])]
    return start, end


def _before(work: GpuEvents, device_index: int, wall: int) -> pd.DataFrame:
    """Where the device's first events wait for work that was launched before the recording."""
    launch = work.tree.launch_of_gpu
    mine = np.flatnonzero(find_tracks(work, "device").of_gpu == device_index)
    mine = mine[np.argsort(work.start[mine], kind="stable")][:_FIRST_EVENTS]
    ended = np.maximum.accumulate(np.append(work.start.min(), work.end[mine]))[:-1]
    returned = np.where(launch[mine] == NONE, _NEVER, work.trace.end_of(launch[mine]))
    start = np.maximum(ended, returned)
    end = work.start[mine]
    long = (start < end) & (end - start > max(_WAIT_NS, int(_WAIT_SHARE * wall)))
    what = "work that was launched before the recording began"
    columns = {"start": start[long], "end": end[long], "row": launch[mine][long]}
    return pd.DataFrame(
        {"kind": BEFORE, "device": device_index, **columns, "count": 1, "what": what}
    )


#: A call is long, and a slow run of a compiled region is a compilation, from this on.
_LONG_NS: Final = 5_000_000
_SPREAD: Final = 3  # calls of one name at least that are spread
_COMES_BACK: Final = 0.2  # of the most that an iteration has

_FIRST_USE: Final = "first use"
_COMPILATION = "compilation"
_CAPTURE = "capture of a graph"
_INSTANTIATION: Final = "instantiation of a graph"
#: What waits for the GPU, copies, or launches a graph may be long whenever it is called.
_WAITS: Final = re.compile(r".*(?:Synchronize|Memcpy|GraphLaunch|Query|EventElapsed)")
_MEMORY: Final = re.compile(r"(?i).*(?:alloc|free)")
#: Calls that are start-up however short they are.
_CALLS: Final = {
    "loading of code": re.compile(r"(?:cuda|hip|cu)(?:Module|Library)Load"),
    "creation of a context": re.compile(r"(?:cu|hip)(?:Init$|CtxCreate|DevicePrimaryCtxRetain)"),
}
_SEARCH: Final = re.compile(r"cudnn(?:Find|Get)\w*Algorithm")


def find_start_up(work: GpuEvents, start: int, end: int) -> pd.DataFrame:
    """The start-up of all devices in the wall, as `Recording.parts` without `ns`; may overlap.

    * A call of the runtime or driver during which the device has nothing to do for over 5 ms, other
      than waits, copies and graph launches: a library is loaded, a context created, the first
      memory allocated (if anything else starts up). A launch is one only where its kernel is
      launched for the first time. What lies between several in one operation is start-up, too.
    * Loading of code, capture and instantiation of graphs, compilation, cuDNN's search.
    * A compiled region that takes over ten times the shortest of its name.

    What comes back is none: what is compiled or captured `again`; what the last iteration has, too;
    and where nothing tells iterations, long calls of one name that are spread over more than half
    of the wall.
    """
    trace = work.trace
    if not (found := [*_candidates(work)]):
        return pd.DataFrame()
    table = pd.concat(found, ignore_index=True)
    table = table.assign(start=table["start"].clip(start), end=table["end"].clip(upper=end))
    table["device"] = device_index_of_calls(work, table["row"].to_numpy())
    table = table[(table["device"] != NONE) & (table["end"] > table["start"])]
    table = _with_idle_time(work, table, "idle")
    first_use = table["what"] == _FIRST_USE
    again = _launched_before(work, table["row"].to_numpy())
    table = table[(table["idle"] > np.where(first_use, _LONG_NS, 0)) & ~(first_use & again)]
    memory = trace.named(trace.name[table["row"].to_numpy()], _MEMORY.match)
    if memory.all():  # nothing else starts up: the allocator asks again
        table = table[~memory]
    begins = {_COMPILATION: compiled_again_from(work)}
    begins |= dict.fromkeys((_CAPTURE, _INSTANTIATION), captured_again_from(work))
    table = table[table["start"] < [begins.get(what, end) for what in table["what"]]]
    table = table[~_comes_back(work, table, (end - start) // 2)]
    uses = table[table["what"] == _FIRST_USE]
    tree = work.tree
    at = tree.position[uses["row"].to_numpy()]
    uses = uses.assign(op=nearest_above(tree.parent_position, at, tree.is_operation))
    ends = uses[uses["op"] != ROOT].groupby(["device", "op"])["end"].transform("max")
    table.loc[ends.index, "end"] = ends
    both = zip(table["what"], table["row"].tolist(), strict=True)
    what = [f"{what}: {trace.name_of(row)}" for what, row in both]
    return table[["device", "start", "end", "row"]].assign(kind=START_UP, count=1, what=what)


def _candidates(work: GpuEvents) -> Iterator[pd.DataFrame]:
    """What it is called, the host events, and when each begins and ends."""
    trace = work.trace
    (begins, ends) = captures(work.trace)
    calls = trace.rows_of(*LAUNCH_KINDS)
    long = np.setdiff1d(calls[trace.dur[calls] > _LONG_NS], instantiations(trace))
    for what, rows in (
        (_FIRST_USE, long[~trace.named(trace.name[long], _WAITS.match)]),
        (_CAPTURE, begins),
        *((what, trace.rows_named(its, *LAUNCH_KINDS)) for what, its in _CALLS.items()),
        (_INSTANTIATION, instantiations(trace)),
        (_COMPILATION, compilations(trace)),
        (_COMPILATION, slow_regions(trace)),
        ("search for the best convolution", trace.rows_named(_SEARCH, *_OPERATIONS)),
    ):
        if len(rows):
            until = trace.end_of(ends if what == _CAPTURE else rows)
            yield pd.DataFrame({"what": what, "row": rows, "start": trace.ts[rows], "end": until})


def _launched_before(work: GpuEvents, rows: Int64Array) -> BoolArray:
    """Whether each is a launch of a kernel that was launched before."""
    trace = work.trace
    events = np.flatnonzero(work.tree.linked & work.is_kernel)
    launch = work.tree.launch_of_gpu[events]
    name = work.name[events]
    order = np.lexsort((trace.ts[launch], name))
    first = np.diff(name[order], prepend=NONE) != 0
    return np.isin(rows, launch) & ~np.isin(rows, launch[order[first]])


def _comes_back(work: GpuEvents, table: pd.DataFrame, half: int) -> BoolArray:
    """Whether what each row is about comes back later."""
    trace = work.trace
    iterations = find_iterations(work.tree)
    names = trace.name[table["row"].to_numpy()]
    groups = table.groupby([table["what"], names], sort=False).ngroup().to_numpy()
    count = int(groups.max(initial=-1)) + 1
    start = table["start"].to_numpy()
    idle = table["idle"].to_numpy()
    if len(iterations) < 2:
        spread = maxima(groups, start, count) - minima(groups, start, count) > half
        many = np.bincount(groups, minlength=count) >= _SPREAD
        return (spread & many)[groups] & (table["what"] == _FIRST_USE).to_numpy()
    order = np.argsort(iterations.start, kind="stable")
    step = np.searchsorted(iterations.start[order], start, side="right")
    steps = len(order) + 1
    time = sums(groups * steps + step, idle, count * steps).reshape(count, steps)
    enough = time >= np.maximum(_COMES_BACK * time.max(axis=1, keepdims=True), 1)
    last = int(np.flatnonzero(iterations.whole[order]).max(initial=0)) + 1
    result: BoolArray = (enough[:, last] & (enough[:, 1:].sum(axis=1) > 1))[groups]
    return result


_TIMES_THE_SHORTEST: Final = 10
_SINCE_THE_LAST: Final = 0.1  # of the GPU time
_LAUNCHES_A_CAPTURE: Final = 1.5  # at most, of graphs that are captured for each use
_COMPILED_REGION: Final = re.compile(r"Torch-Compiled Region|CompiledFunction$")
_AROUND: Final = re.compile(
    r"(?i).*(?:dynamo_timed|\bcompile_fx|async_compile|triton.*compile|xlacompile"
    r"|\b(?:re|jit[_ ]|backend_)?compil(?:e|ing|ation)\b)"
)
_FRAMES: Final = re.compile(
    r".*(?:_dynamo[/\\]convert_frame\.py\(\d+\): _compile$|_inductor[/\\]compile_fx\.py"
    r"|triton[/\\]compiler[/\\]compiler\.py\(\d+\): compile$|\bbackend_compile)"
)
_AGAIN: Final = re.compile(r"(?i).*recompil|Torch-Compiled Region: \d+/[1-9]")
_INSTANTIATES: Final = re.compile(r"(?:cuda|hip|cu)GraphInstantiate")


@cached_per_object
def compilations(trace: Trace) -> Int64Array:
    """The host events that are compilations by their names."""
    frames = trace.rows_named(_FRAMES, EventKind.PYTHON_FUNCTION)
    return np.append(frames, trace.rows_named(_AROUND, *_OPERATIONS))


def slow_regions(trace: Trace) -> Int64Array:
    """The runs of compiled regions that take so long that they must compile."""
    rows = trace.rows_named(_COMPILED_REGION, *_OPERATIONS)
    _, number = number_groups([trace.name[rows]])
    shortest = minima(number, trace.dur[rows], int(number.max(initial=0)) + 1)[number]
    return rows[trace.dur[rows] > np.maximum(_TIMES_THE_SHORTEST * shortest, _LONG_NS)]


def instantiations(trace: Trace) -> Int64Array:
    """The calls that instantiate graphs."""
    return trace.rows_named(_INSTANTIATES, *LAUNCH_KINDS)


@cached_per_object
def compiled_again_from(work: GpuEvents) -> int:
    """When something is compiled again for the first time, ns; far ahead for never."""
    trace = work.trace
    iterations = find_iterations(work.tree)
    times = np.sort(trace.ts[compilations(trace)])
    named = trace.rows_named(_AGAIN, *_OPERATIONS)
    within = covered(trace.ts[named], trace.end_of(named), times, times + 1) > 0
    slow = slow_regions(trace)
    quick = np.setdiff1d(trace.rows_named(_COMPILED_REGION, *_OPERATIONS), slow)
    quick = quick[np.lexsort((trace.ts[quick], trace.name[quick]))]
    third = quick[2:][trace.name[quick[2:]] == trace.name[quick[:-2]]]  # of its name, or later
    names, first = np.unique(trace.name[third], return_index=True)
    known_from = np.full(len(trace.names), _NEVER)
    known_from[names] = trace.ts[third[first]]
    slow = slow[trace.ts[slow] > known_from[trace.name[slow]]]
    if len(slow) or within.any():
        return int(np.append(times[within], trace.ts[slow]).min())
    if len(iterations) > 1:  # in the first one everything is new
        times = times[times >= iterations.end.min()]
    for time in times[_long_after_the_last(work, times)].tolist():
        after = work.start >= time
        known = np.isin(work.name[after], np.unique(work.name[~after]))
        later = work.duration[after]
        if later[known].sum() * 2 >= later.sum() > 0:
            return int(time)
    return _NEVER


@cached_per_object
def captured_again_from(work: GpuEvents) -> int:
    """When a graph is captured or instantiated again for the first time, likewise."""
    trace = work.trace
    launches = find_launches(work)
    begun = captures(trace)[0]
    made = instantiations(trace)
    times = np.sort(trace.ts[np.append(begun, made)])
    launched = trace.ts[launches.rows[launches.is_graph]]
    late = _long_after_the_last(work, times)
    again = late | (0 < len(launched) <= _LAUNCHES_A_CAPTURE * max(len(begun), len(made)))
    again &= times > launched.min(initial=_NEVER)
    every = again.sum() > 2 and late[0]
    return int(times[again | every].min(initial=_NEVER))


def _long_after_the_last(work: GpuEvents, times: Int64Array) -> BoolArray:
    """Before which of some ascending moments much of the GPU time has gone by since the last."""
    order = np.argsort(work.start, kind="stable")
    done = np.append(0, np.cumsum(work.duration[order]))
    before = done[np.searchsorted(work.start[order], times)]
    return np.diff(before, prepend=0) / max(int(done[-1]), 1) >= _SINCE_THE_LAST
