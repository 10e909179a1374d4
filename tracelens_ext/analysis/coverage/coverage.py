"""`Coverage`: how much of the wall time of a recording can be analyzed.

The wall runs from the first start of GPU work to its last end, one for all devices; where a hole
lies before all GPU work, from that hole's first launch. What cannot be analyzed of it are *parts*:

* `dropped_events`: dropped GPU events. Ten launches or more in a row of one device, or one graph
  launch, have no GPU event. It begins when the device's work before it has ended and its first
  launch has begun; it ends when the first work that was launched after it starts. What was launched
  after the last launch with work was cut off by the end of the recording.
* `pre_recording`: work of before the recording. One of the device's first events started long
  after its launch had returned, the device idle in between: it waited for what is not in the file.
* `warm_up`: warm-up, what happens once and not in later iterations; see `warm_up.find_warm_up`.

Parts of one device do not overlap, lie in the wall, and contain idle time of the device: the idle
time within them is not recorded (`dropped_events`, `pre_recording`) or warm-up (`warm_up`), and no
finding's.

Of two kinds of parts the GPU work is set aside as well, and no finding's: benchmarks of autotuning
(`benchmarks`), which are warm-up, and events with a wrong end (`suspects`), which are holes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.analysis.coverage.benchmarks import (
    find_benchmarks,
    find_named_warm_up,
)
from tracelens_ext.analysis.coverage.program import Missing, missing_of
from tracelens_ext.analysis.coverage.suspects import find_suspects
from tracelens_ext.analysis.coverage.warm_up import find_warm_up
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, BoolArray, Int64Array, IntArray
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.gpu_events import GpuEvents, busy_within, find_tracks
from tracelens_ext.trace.intervals import outside, union
from tracelens_ext.trace.launches import Launches, find_launches, place_of
from tracelens_ext.trace.lookup import values_at

#: The kinds of parts, as tables and JSON call them.
DROPPED_EVENTS = "dropped_events"
PRE_RECORDING = "pre_recording"
WARM_UP = "warm_up"

#: Single launches are lost, or start nothing, in any recording.
_FEWEST_LOST_IN_A_ROW: Final = 10
_FIRST_EVENTS: Final = 10
_LEAST_WAIT_NS = 200_000
_LEAST_WAIT_SHARE = 0.05
_NEVER: Final = np.iinfo(np.int64).max
_PART_COLUMNS = {
    "kind": "str",
    "device": "int64",
    "start": "int64",
    "end": "int64",
    "count": "int64",
    "row": "int64",
    "what": "str",
    "has_work": "bool",
}


@dataclass(frozen=True, eq=False)
class Coverage:
    """What a recording contains of p devices.

    Attributes:
        wall_start: ns since the trace's first event; 0 without GPU events, as `wall_end`.
        wall_end: likewise.
        parts: what cannot be analyzed, by device and start. Columns `kind` (`dropped_events`,
            `pre_recording` or `warm_up`), `device` (an index into `find_tracks(work, "device")`),
            `start`, `end` (ns since the trace's first event), `ns` (the device's idle time in it,
            or all of its time where `has_work`), `busy_ns` (how much of `ns` the device is busy),
            `count` (launches or calls), `what`, `place` (texts), `has_work` (whether the GPU work
            in it is set aside, too).
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
    def unmatched_launches(self) -> int:
        """The number of launches that have no GPU event."""
        return len(self.lost)

    @property
    def wall_ns(self) -> int:
        """The length of the wall, ns."""
        return self.wall_end - self.wall_start

    def mean_ns(self, *kinds: str) -> float:
        """Return the time that parts of some kinds set aside, the mean over the devices, ns."""
        is_chosen = self.parts["kind"].isin(kinds)
        set_aside_ns = self.parts.loc[is_chosen, "ns"]
        return float(set_aside_ns.sum()) / max(self.devices, 1)

    @property
    def busy_set_aside_ns(self) -> float:
        """The busy time among what is set aside, the mean over the devices, ns."""
        return float(self.parts["busy_ns"].sum()) / max(self.devices, 1)

    def set_aside(self, work: GpuEvents) -> BoolArray:
        """Return which GPU events start in parts whose work is set aside, (g,)."""
        device = find_tracks(work, "device").of_gpu
        is_set_aside = np.zeros(len(work), dtype=bool)
        parts = self.parts[self.parts["has_work"]]
        columns = (parts["device"], parts["start"], parts["end"])
        for number, start, end in zip(*columns, strict=True):
            is_within = (work.start >= start) & (work.start < end)
            is_set_aside |= is_within & (device == number)
        return is_set_aside

    @property
    def analyzed_ns(self) -> float:
        """The analyzed time, which findings are about, the mean over the devices, ns."""
        return self.wall_ns - self.mean_ns(DROPPED_EVENTS, PRE_RECORDING, WARM_UP)


@cached_per_object
def recording_of(work: GpuEvents) -> Coverage:
    """Return what the recording of a trace contains."""
    launches = find_launches(work)
    device_count = len(find_tracks(work, "device"))
    holes = [
        _holes(work, launches, device_index) for device_index in range(device_count)
    ]
    wall_start = 0
    wall_end = 0
    parts = list(holes)
    if len(work):
        first_start = int(work.start.min())
        wall_end = int(work.end.max())
        starts_of_holes = [
            int(of_device["start"].min()) for of_device in holes if len(of_device)
        ]
        wall_start = min([first_start, *starts_of_holes])
        length = wall_end - wall_start
        parts += [
            _before(work, device_index, length) for device_index in range(device_count)
        ]
        parts.append(_suspect_parts(work))
        for set_aside in (find_benchmarks(work), find_named_warm_up(work)):
            parts.append(set_aside.assign(kind=WARM_UP, has_work=True))
        parts.append(find_warm_up(work, wall_start, wall_end).assign(kind=WARM_UP))
    return Coverage(
        wall_start=wall_start,
        wall_end=wall_end,
        parts=_without_overlaps(work, _part_table(parts)),
        launches=len(launches.rows),
        lost=launches.rows[launches.lost],
        devices=device_count,
        missing=missing_of(work.trace),
    )


def _part_table(parts: list[pd.DataFrame]) -> pd.DataFrame:
    no_parts = pd.DataFrame(columns=list(_PART_COLUMNS))
    parts.insert(0, no_parts)
    table = pd.concat(parts)[list(_PART_COLUMNS)]
    has_work = table["has_work"].eq(True)
    return table.assign(has_work=has_work).astype(_PART_COLUMNS)


def _suspect_parts(work: GpuEvents) -> pd.DataFrame:
    """Return the times of the GPU events whose recorded end cannot be right."""
    suspects = find_suspects(work)
    if not len(suspects.event):
        return pd.DataFrame()
    launch = work.tree.launch_of_gpu[suspects.event]
    return pd.DataFrame(
        {
            "kind": DROPPED_EVENTS,
            "device": find_tracks(work, "device").of_gpu[suspects.event],
            "start": work.start[suspects.event],
            "end": work.end[suspects.event],
            "row": np.where(launch == NONE, work.rows[suspects.event], launch),
            "count": suspects.lost_launches,
            "what": "an event that ends too late, over launches without GPU work",
            "has_work": True,
        }
    )


def _without_overlaps(work: GpuEvents, parts: pd.DataFrame) -> pd.DataFrame:
    """Return the parts without what earlier ones of their device have, and with their place.

    Those that set time aside are kept. What sets work aside comes first, then holes, then work of
    before the recording, then warm-up.
    """
    chosen = [parts.head(0)]
    for _, of_device in parts.groupby("device"):
        taken = _Spans(start=work.start[:0], end=work.end[:0])
        has_work = of_device["has_work"]
        kinds = of_device["kind"]
        for is_next in (
            has_work,
            ~has_work & (kinds == DROPPED_EVENTS),
            ~has_work & (kinds == PRE_RECORDING),
            ~has_work & (kinds == WARM_UP),
        ):
            of_kind = of_device[is_next]
            of_kind = of_kind.sort_values(["start", "end"], ascending=[True, False])
            apart = _successive(of_kind)
            start, end, which = outside(
                start=apart.start, end=apart.end, first=taken.start, last=taken.end
            )
            taken_start, taken_end = union(
                np.append(taken.start, start), np.append(taken.end, end)
            )
            taken = _Spans(taken_start, taken_end)
            chosen.append(of_kind.iloc[which].assign(start=start, end=end))
    table = pd.concat(chosen)
    spans = table[["device", "start", "end"]].to_numpy()
    idle_ns = idle_within(
        work=work, device_index=spans[:, 0], start=spans[:, 1], end=spans[:, 2]
    )
    busy_ns = spans[:, 2] - spans[:, 1] - idle_ns
    table["busy_ns"] = np.where(table["has_work"], busy_ns, 0)
    table["ns"] = idle_ns + table["busy_ns"]
    table = table[table["ns"] > 0].sort_values(["device", "start"], ignore_index=True)
    places = [place_of(work, row) for row in table.pop("row").tolist()]
    table["place"] = pd.Series(places, dtype="str")
    return table


class _Spans(NamedTuple):
    """Spans of time, ns since the trace's first event."""

    start: Int64Array
    end: Int64Array


def _successive(parts: pd.DataFrame) -> _Spans:
    """Return the spans of parts, by start, each without what the ones before it have.

    Parts 0 to 5, 2 to 4, 3 to 8 become 0 to 5, 4 to 4, 5 to 8.
    """
    end = parts["end"].to_numpy()
    latest_end = np.maximum.accumulate(np.append(0, end))
    end_before = latest_end[:-1]
    start = np.maximum(parts["start"].to_numpy(), end_before)
    start = np.minimum(start, end)
    return _Spans(start, end)


def idle_within(
    work: GpuEvents, device_index: IntArray, start: Int64Array, end: Int64Array
) -> Int64Array:
    """Return how long a device is idle in each span of time, ns, (k,)."""
    return (
        end
        - start
        - busy_within(gpu_events=work, device_index=device_index, start=start, end=end)
    )


def _holes(work: GpuEvents, launches: Launches, device_index: int) -> pd.DataFrame:
    """Return where work that was launched on a device was lost.

    Of launches `w l l w l w` (with work, lost), runs begin at 1 and 4 and are followed by 3 and 5.
    """
    is_of_device = launches.device_index == device_index
    rows = launches.rows[is_of_device]
    is_lost = launches.lost[is_of_device]
    changes = np.flatnonzero(np.diff(is_lost, prepend=False, append=False))
    first = changes[::2]
    after = changes[1::2]
    graphs_before = np.append(0, np.cumsum(launches.is_graph[is_of_device]))
    has_graph = graphs_before[after] > graphs_before[first]
    is_long = after - first >= _FEWEST_LOST_IN_A_ROW
    is_followed = after < len(rows)  # else the end of the recording cut it off
    is_hole = (is_long | has_graph) & is_followed
    first = first[is_hole]
    after = after[is_hole]
    start, end = _queue_times(
        work=work, device_index=device_index, first=rows[first], after=rows[after]
    )
    holes = pd.DataFrame(
        {
            "kind": DROPPED_EVENTS,
            "device": device_index,
            "start": start,
            "end": end,
            "row": rows[first],
            "count": after - first,
        }
    )
    holes = holes[holes["end"] > holes["start"]]
    return holes.assign(
        what=[_lost_launches(count) for count in holes["count"].tolist()]
    )


def _lost_launches(count: int) -> str:
    return f"{count:,} {'launch' if count == 1 else 'launches'} without GPU work"


def _queue_times(
    work: GpuEvents, device_index: int, first: Int64Array, after: Int64Array
) -> _Spans:
    """Return from when to when a device had nothing of what was launched between some launches.

    From the end of what it got before the first of them to the start of the next. Other streams may
    start what was launched later all the while: the next is on the stream that has most of the work
    of the launching thread.

    Args:
        work: the GPU events.
        device_index: the device.
        first: rows of the first lost launches, (k,).
        after: rows of the first launches with work after those, (k,).
    """
    trace = work.trace
    launch = work.tree.launch_of_gpu
    is_of_device = find_tracks(work, "device").of_gpu == device_index
    events = np.flatnonzero(is_of_device & work.tree.linked)
    events = events[np.argsort(trace.ts[launch[events]], kind="stable")]
    launched_at = trace.ts[launch[events]]
    thread = trace.thread[launch[events]]
    stream = find_tracks(work, "stream").of_gpu[events]
    ended = np.maximum.accumulate(np.append(0, work.end[events]))
    start = np.maximum(
        trace.ts[first], ended[np.searchsorted(launched_at, trace.ts[first])]
    )
    end = start.copy()  # where nothing comes next there is no hole
    thread_of_first = trace.thread[first]
    for number in np.unique(thread_of_first).tolist():
        is_of_thread = thread == number
        candidates = stream[is_of_thread] if is_of_thread.any() else stream
        main_stream = np.bincount(candidates).argmax()
        is_on_main_stream = stream == main_stream
        starts = work.start[events[is_on_main_stream]]
        next_start = np.minimum.accumulate(starts[::-1])[::-1]
        pairs = np.flatnonzero(thread_of_first == number)
        following = np.searchsorted(
            launched_at[is_on_main_stream], trace.ts[after[pairs]]
        )
        end[pairs] = values_at(next_start, following, missing=0)
    return _Spans(start, end)


def _before(work: GpuEvents, device_index: int, wall: int) -> pd.DataFrame:
    """Return where the device's first events wait for work of before the recording."""
    events = np.flatnonzero(find_tracks(work, "device").of_gpu == device_index)
    events = events[np.argsort(work.start[events], kind="stable")][:_FIRST_EVENTS]
    launch = work.tree.launch_of_gpu[events]
    ended = np.maximum.accumulate(np.append(work.start.min(), work.end[events]))[:-1]
    returned = np.where(launch == NONE, _NEVER, work.trace.end_of(launch))
    start = np.maximum(ended, returned)
    end = work.start[events]
    least_wait = max(_LEAST_WAIT_NS, int(_LEAST_WAIT_SHARE * wall))
    # A launch that never returned starts after its event: the difference would overflow.
    waits = np.flatnonzero(start < end)
    waits = waits[end[waits] - start[waits] > least_wait]
    return pd.DataFrame(
        {
            "kind": PRE_RECORDING,
            "device": device_index,
            "start": start[waits],
            "end": end[waits],
            "row": launch[waits],
            "count": 1,
            "what": "work that was launched before the recording began",
        }
    )
