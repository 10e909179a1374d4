"""`Recording`: how much of the wall time a recording lets anybody judge.

The wall runs from the first start of GPU work to its last end, one for all devices; where a hole
lies before all GPU work, from that hole's first launch. What cannot be judged of it are *parts*:

* `hole`: lost GPU work. Ten launches or more in a row of one device, or one graph launch, have no
  GPU event. It begins when the device's work before it has ended and its first launch has begun; it
  ends when the first work that was launched after it starts. What was launched after the last
  launch with work was cut off by the end of the recording.
* `before`: work of before the recording. One of the device's first events started long after its
  launch had returned, the device idle in between: it waited for what is not in the file.
* `start_up`: what happens once and not in later iterations; see `start_up`.

Parts of one device have nothing in common, lie in the wall, and hold idle time of the device: the
idle time within them is `not_recorded` (`hole`, `before`) or `start_up`, and no finding's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.intervals import covered, outside, union
from tracelens_ext.lazy import pd
from tracelens_ext.recording.missing import Missing, missing_of
from tracelens_ext.recording.start_up import find_start_up
from tracelens_ext.trace import NONE
from tracelens_ext.work.lanes import Launches, find_lanes, find_launches, place_of
from tracelens_ext.work.memoize import once_for_each

if TYPE_CHECKING:
    from tracelens_ext.trace import Int64Array
    from tracelens_ext.work.gpu_work import GpuWork

HOLE, BEFORE, START_UP = "hole", "before", "start_up"

_FEWEST_LOST: Final = 10  # in a row; single ones are lost, or start nothing, in any recording
_FIRST_EVENTS: Final = 10
_WAIT_NS, _WAIT_SHARE = 200_000, 0.05
_NEVER: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class Recording:
    """What a recording holds of p devices.

    Attributes:
        wall_start: ns since the trace's first event; 0 without GPU events, as `wall_end`.
        wall_end: likewise.
        parts: what cannot be judged, by device and start. Columns `kind` (`hole`, `before` or
            `start_up`), `device` (an index into `find_lanes(work, "device")`), `start`, `end` (ns
            since the trace's first event), `ns` (the device's idle time in it), `count` (launches
            or calls), `what`, `place` (texts).
        launches: launches of kernels, graphs and copies.
        lost: rows of those without GPU work, by time.
        devices: p.
        missing: what was not recorded by choice.
    """

    wall_start: int
    wall_end: int
    parts: pd.DataFrame
    launches: int
    lost: Int64Array
    devices: int
    missing: tuple[Missing, ...]

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
        chosen = self.parts["kind"].isin(kinds)
        return float(self.parts.loc[chosen, "ns"].sum()) / max(self.devices, 1)

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
    columns = {"kind": "str", "device": "int64", "start": "int64", "end": "int64"}
    columns |= {"count": "int64", "what": "str", "place": "str"}
    table = pd.concat([pd.DataFrame(columns=list(columns)), *parts]).astype(columns)
    lost = launches.rows[launches.lost]
    missing = missing_of(work.trace)
    return Recording(start, end, _apart(work, table), len(launches.rows), lost, len(lanes), missing)


def _apart(work: GpuWork, parts: pd.DataFrame) -> pd.DataFrame:
    """The parts without what earlier ones of their device have; those that hold idle time."""
    lane = find_lanes(work, "device").of_gpu
    found = [parts.assign(ns=0).head(0)]
    for device, of_device in parts.groupby("device"):
        busy = work.start[lane == device], work.end[lane == device]
        taken = busy[0][:0], busy[0][:0]
        for kind in (HOLE, BEFORE, START_UP):
            some = of_device[of_device["kind"] == kind]
            some = some.sort_values(["start", "end"], ascending=[True, False])
            end = some["end"].to_numpy()
            reach = np.maximum.accumulate(np.append(0, end))[:-1]
            begin = np.minimum(np.maximum(some["start"].to_numpy(), reach), end)
            begin, end, which = outside(begin, end, *taken)
            taken = union(np.append(taken[0], begin), np.append(taken[1], end))
            ns = end - begin - covered(*busy, begin, end)
            cut = some.iloc[which].assign(start=begin, end=end, ns=ns)
            found.append(cut[cut["ns"] > 0])
    return pd.concat(found).sort_values(["device", "start"], ignore_index=True)


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
    return _table(work, HOLE, lane, start[lasts], end[lasts], rows[first[lasts]], count, what)


def _queue_times(
    work: GpuWork, lane: int, first: Int64Array, after: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """When what a device got before the first of some launches has ended, and the next starts.

    Other streams may start what was launched later all the while: the next is on the stream that
    has most of the work of the launching thread.

    Args:
        work: the GPU events.
        lane: the device.
        first: the first launch of each run, shape (k,).
        after: the first launch after each, shape (k,).
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
    return _table(work, BEFORE, lane, start[long], end[long], launch[mine][long], 1, what)


def _table(
    work: GpuWork, kind: str, device: int, start: Int64Array, end: Int64Array, rows: Int64Array,
    count: object, what: object,
) -> pd.DataFrame:  # fmt: skip
    place = [place_of(work, row) for row in rows.tolist()]
    columns = {"kind": kind, "device": device, "start": start, "end": end, "count": count}
    return pd.DataFrame({**columns, "what": what, "place": place})
