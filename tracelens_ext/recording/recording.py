"""`Recording`: how much of the wall time a recording lets anybody judge.

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
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracelens_ext.intervals import outside, union
from tracelens_ext.iterations.iterations import find_iterations
from tracelens_ext.lazy import pd
from tracelens_ext.nesting import ROOT, nearest_above
from tracelens_ext.recording.again import (
    OPERATIONS,
    captured_again_from,
    compilations,
    compiled_again_from,
    instantiations,
    slow_regions,
)
from tracelens_ext.recording.program import Missing, missing_of
from tracelens_ext.trace import LAUNCH_KINDS, NONE, BoolArray, Int64Array
from tracelens_ext.work.gpu_work import GpuWork, busy_within, find_lanes
from tracelens_ext.work.grouping import maxima, minima, sums
from tracelens_ext.work.launches import Launches, captures, find_launches, lane_of_calls, place_of
from tracelens_ext.work.memoize import once_for_each

HOLE, BEFORE, START_UP = "hole", "before", "start_up"

_FEWEST_LOST: Final = 10  # in a row; single ones are lost, or start nothing, in any recording
_FIRST_EVENTS: Final = 10
_WAIT_NS, _WAIT_SHARE = 200_000, 0.05
_NEVER: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class Recording:
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


@once_for_each
def recording_of(work: GpuWork) -> Recording:
    """What the recording of a trace holds."""
    launches, lanes = find_launches(work), find_lanes(work, "device")
    start, end = (int(work.start.min()), int(work.end.max())) if len(work) else (0, 0)
    parts = [_holes(work, launches, lane) for lane in range(len(lanes))]
    start = min([start, *(int(hole["start"].min()) for hole in parts if len(hole))])
    if len(work):
        parts += [_before(work, lane, end - start) for lane in range(len(lanes))]
        parts.append(find_start_up(work, start, end))
    numbers = dict.fromkeys(("device", "start", "end", "count", "row"), "int64")
    columns = {"kind": "str", **numbers, "what": "str"}
    table = _apart(work, pd.concat([pd.DataFrame(columns=[*columns]), *parts]).astype(columns))
    place = [place_of(work, row) for row in table.pop("row").tolist()]
    table["place"] = pd.Series(place, dtype="str")
    lost, missing = launches.rows[launches.lost], missing_of(work.trace)
    return Recording(start, end, table, len(launches.rows), lost, len(lanes), missing)


def _apart(work: GpuWork, parts: pd.DataFrame) -> pd.DataFrame:
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


def _with_idle_time(work: GpuWork, table: pd.DataFrame, name: str) -> pd.DataFrame:
    spans = table[["device", "start", "end"]].to_numpy().T
    return table.assign(**{name: spans[2] - spans[1] - busy_within(work, *spans)})


def _holes(work: GpuWork, launches: Launches, lane: int) -> pd.DataFrame:
    """Where work that was launched on a device was lost."""
    mine = launches.lane == lane
    rows, lost, graph = launches.rows[mine], launches.lost[mine], launches.is_graph[mine]
    edge = np.diff(lost.astype(np.int8), prepend=0, append=0)
    first, after = np.flatnonzero(edge == 1), np.flatnonzero(edge == -1)
    graphs = np.concatenate(([0], np.cumsum(graph)))
    is_hole = (after - first >= _FEWEST_LOST) | (graphs[after] > graphs[first])
    is_hole &= after < len(rows)  # else the end of the recording cut it off
    first, after = first[is_hole], after[is_hole]
    start, end = _queue_times(work, lane, rows[first], rows[after])
    lasts = end > start
    count = (after - first)[lasts]
    what = [f"{n:,} {'launch' if n == 1 else 'launches'} without GPU work" for n in count.tolist()]
    columns = {"start": start[lasts], "end": end[lasts], "row": rows[first[lasts]], "count": count}
    return pd.DataFrame({"kind": HOLE, "device": lane, **columns, "what": what})


def _queue_times(
    work: GpuWork, lane: int, first: Int64Array, after: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """When what a device got before the first of some launches has ended, and the next starts.

    Other streams may start what was launched later all the while: the next is on the stream that
    has most of the work of the launching thread.
    """
    trace, launch = work.trace, work.tree.launch_of_gpu
    events = np.flatnonzero((find_lanes(work, "device").of_gpu == lane) & work.tree.linked)
    events = events[np.argsort(trace.ts[launch[events]], kind="stable")]
    stream = find_lanes(work, "stream").of_gpu[events]
    thread, begun = trace.thread[launch[events]], trace.ts[launch[events]]
    ended = np.maximum.accumulate(np.append(0, work.end[events]))
    start = np.maximum(trace.ts[first], ended[np.searchsorted(begun, trace.ts[first])])
    end, asked = start.copy(), trace.thread[first]
    for number in np.unique(asked).tolist():
        its = thread == number
        mine = stream == np.bincount(stream[its if its.any() else slice(None)]).argmax()
        starts = np.append(work.start[events[mine]], 0)  # nothing comes next: no hole
        starts[:-1] = np.minimum.accumulate(starts[:-1][::-1])[::-1]
        here = asked == number
        end[here] = starts[np.searchsorted(begun[mine], trace.ts[after[here]])]
    return start, end


def _before(work: GpuWork, lane: int, wall: int) -> pd.DataFrame:
    """Where the device's first events wait for work that was launched before the recording."""
    launch = work.tree.launch_of_gpu
    mine = np.flatnonzero(find_lanes(work, "device").of_gpu == lane)
    mine = mine[np.argsort(work.start[mine], kind="stable")][:_FIRST_EVENTS]
    ended = np.maximum.accumulate(np.append(work.start.min(), work.end[mine]))[:-1]
    returned = np.where(launch[mine] == NONE, _NEVER, work.trace.end_of(launch[mine]))
    start, end = np.maximum(ended, returned), work.start[mine]
    long = (start < end) & (end - start > max(_WAIT_NS, int(_WAIT_SHARE * wall)))
    what = "work that was launched before the recording began"
    columns = {"start": start[long], "end": end[long], "row": launch[mine][long]}
    return pd.DataFrame({"kind": BEFORE, "device": lane, **columns, "count": 1, "what": what})


_LONG_NS: Final = 5_000_000
_SPREAD: Final = 3  # calls of one name at least that are spread
_COMES_BACK: Final = 0.2  # of the most that an iteration has

_FIRST_USE: Final = "first use"
_COMPILATION, _CAPTURE = "compilation", "capture of a graph"
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


def find_start_up(work: GpuWork, start: int, end: int) -> pd.DataFrame:
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
    found = [
        pd.DataFrame({"what": what, "row": rows, "start": trace.ts[rows], "end": ends})
        for what, rows, ends in _candidates(work)
        if len(rows)
    ]
    if not found:
        return pd.DataFrame()
    table = pd.concat(found, ignore_index=True)
    table = table.assign(start=table["start"].clip(start), end=table["end"].clip(upper=end))
    table["device"] = lane_of_calls(work, table["row"].to_numpy())
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
    at = work.tree.position[uses["row"].to_numpy()]
    op = nearest_above(work.tree.parent_position, at, work.tree.is_operation)
    ends = uses.assign(op=op).groupby(["device", "op"])["end"].transform("max")
    table.loc[uses.index[op != ROOT], "end"] = ends[op != ROOT]
    both = zip(table["what"], table["row"].tolist(), strict=True)
    what = [f"{what}: {trace.name_of(row)}" for what, row in both]
    return table[["device", "start", "end", "row"]].assign(kind=START_UP, count=1, what=what)


def _candidates(work: GpuWork) -> Iterator[tuple[str, Int64Array, Int64Array]]:
    """What it is called, the host events, and when each ends."""
    trace = work.trace
    calls = trace.rows_of(*LAUNCH_KINDS)
    long = np.setdiff1d(calls[trace.dur[calls] > _LONG_NS], instantiations(trace))
    long = long[~trace.named(trace.name[long], _WAITS.match)]
    yield _FIRST_USE, long, trace.end_of(long)
    yield _CAPTURE, *captures(trace)
    for what, rows in (
        *((what, trace.rows_named(its, *LAUNCH_KINDS)) for what, its in _CALLS.items()),
        (_INSTANTIATION, instantiations(trace)),
        (_COMPILATION, compilations(trace)),
        (_COMPILATION, slow_regions(trace)),
        ("search for the best convolution", trace.rows_named(_SEARCH, *OPERATIONS)),
    ):
        yield what, rows, trace.end_of(rows)


def _launched_before(work: GpuWork, rows: Int64Array) -> BoolArray:
    """Whether each is a launch of a kernel that was launched before."""
    trace, events = work.trace, np.flatnonzero(work.tree.linked & work.is_kernel)
    launch, name = work.tree.launch_of_gpu[events], work.name[events]
    order = np.lexsort((trace.ts[launch], name))
    first = np.diff(name[order], prepend=NONE) != 0
    return np.isin(rows, launch) & ~np.isin(rows, launch[order[first]])


def _comes_back(work: GpuWork, table: pd.DataFrame, half: int) -> BoolArray:
    """Whether what each row is about comes back later."""
    trace, iterations = work.trace, find_iterations(work.tree)
    names = trace.name[table["row"].to_numpy()]
    groups = table.groupby([table["what"], names], sort=False).ngroup().to_numpy()
    count = int(groups.max(initial=-1)) + 1
    start, idle = table["start"].to_numpy(), table["idle"].to_numpy()
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
