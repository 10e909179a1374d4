"""`Coverage`: how much of the wall time of a recording can be analyzed.

All devices have the same wall time. It runs from the first start of GPU work to the last end. If
events were dropped before the first GPU event, it starts with the launch of the first of them.

Time that cannot be analyzed is divided into *parts*. Each part belongs to one device:

* `dropped_events`: the device ran work whose events are missing. At least ten launches in a row,
  or one graph launch, have no GPU event. The part begins when the device has finished its earlier
  work and the first of these launches has begun. It ends when the first work that was launched
  later starts. Launches after the last one with GPU work do not count: the end of the recording
  cut them off. See `unrecorded`.
* `pre_recording`: the device ran work that was launched before the recording. One of its first
  events started long after its launch had returned, while the device seemed to be idle.
* `warm_up`: work that happens once and does not come back in later iterations. See `warm_up`.

The parts of a device do not overlap, lie within the wall time, and set idle time of the device
aside. No finding is about idle time in a part, because it is either not recorded or warm-up.

Two kinds of parts set GPU work aside as well (`has_work`): GPU work that is warm-up (see
`warm_up_work`), and events with a wrong end (see `suspects`), which count as dropped events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracelens_ext.analysis.coverage.part_kinds import (
    DROPPED_EVENTS,
    PRE_RECORDING,
    WARM_UP,
)
from tracelens_ext.analysis.coverage.program import Missing, missing_of
from tracelens_ext.analysis.coverage.unrecorded import (
    dropped_event_parts,
    pre_recording_parts,
    suspect_parts,
)
from tracelens_ext.analysis.coverage.warm_up import find_warm_up
from tracelens_ext.analysis.coverage.warm_up_work import (
    find_benchmarks,
    find_named_warm_up,
)
from tracelens_ext.lazy import pd
from tracelens_ext.trace import BoolArray, Int64Array, IntArray
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.gpu_events import GpuEvents, busy_within, find_tracks
from tracelens_ext.trace.intervals import DisjointIntervals, outside, union
from tracelens_ext.trace.launches import find_launches, place_of

#: The columns of parts before they are made disjoint, and their types. `row` is the row of the
#: trace that gives a part its `place`; the others are those of `Coverage.parts`.
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
    """The time of a recording that can be analyzed, and the parts that cannot.

    Attributes:
        wall_start: start of the wall time, ns since the trace's first event; 0 without GPU events.
        wall_end: end of the wall time, ns since the trace's first event; 0 without GPU events.
        parts: the time that cannot be analyzed, sorted by device and start. Columns:

            * `kind`: `dropped_events`, `pre_recording` or `warm_up`;
            * `device`: an index into `find_tracks(work, "device")`;
            * `start`, `end`: ns since the trace's first event;
            * `has_work`: True if the GPU work in the part is set aside, too;
            * `ns`: time that the part sets aside: the device's idle time in it, or all of its time
              if `has_work`;
            * `busy_ns`: the part of `ns` in which the device is busy;
            * `count`: number of launches or calls that the part is about;
            * `what`: what happens in it, in words;
            * `place`: the operation, annotation or frame in which it begins.
        launch_count: number of launches of kernels, graphs and copies.
        unmatched_rows: rows of the launches that have no GPU event, by time.
        devices: number of devices.
        missing: data that was not recorded, although the tool could have recorded it.
    """

    wall_start: int
    wall_end: int
    parts: pd.DataFrame
    launch_count: int
    unmatched_rows: Int64Array
    devices: int
    missing: tuple[Missing, ...]

    @property
    def unmatched_launches(self) -> int:
        """The number of launches that have no GPU event."""
        return len(self.unmatched_rows)

    @property
    def wall_ns(self) -> int:
        """The length of the wall time, ns."""
        return self.wall_end - self.wall_start

    def mean_ns(self, *kinds: str) -> float:
        """Return the time that parts of these kinds set aside, ns, as the mean over devices."""
        is_chosen = self.parts["kind"].isin(kinds)
        set_aside_ns = self.parts.loc[is_chosen, "ns"]
        return float(set_aside_ns.sum()) / max(self.devices, 1)

    @property
    def busy_set_aside_ns(self) -> float:
        """The busy time that parts set aside, ns, as the mean over devices."""
        return float(self.parts["busy_ns"].sum()) / max(self.devices, 1)

    def is_set_aside(self, gpu_events: GpuEvents) -> BoolArray:
        """Return a mask of the g GPU events that start in a part that sets work aside, (g,)."""
        device = find_tracks(gpu_events, "device").of_gpu
        is_in_part = np.zeros(len(gpu_events), dtype=bool)
        parts = self.parts[self.parts["has_work"]]
        columns = (parts["device"], parts["start"], parts["end"])
        for device_index, start, end in zip(*columns, strict=True):
            is_within = (gpu_events.start >= start) & (gpu_events.start < end)
            is_in_part |= is_within & (device == device_index)
        return is_in_part

    @property
    def analyzed_ns(self) -> float:
        """The analyzed time, ns, as the mean over devices; findings are about it alone."""
        return self.wall_ns - self.mean_ns(DROPPED_EVENTS, PRE_RECORDING, WARM_UP)


@cached_per_object
def coverage_of(gpu_events: GpuEvents) -> Coverage:
    """Find how much of the wall time of a recording can be analyzed."""
    launches = find_launches(gpu_events)
    device_count = len(find_tracks(gpu_events, "device"))
    parts = [
        dropped_event_parts(gpu_events, launches, device_index)
        for device_index in range(device_count)
    ]
    wall_start = 0
    wall_end = 0
    if len(gpu_events):
        starts = [int(gpu_events.start.min())]
        starts += [int(dropped["start"].min()) for dropped in parts if len(dropped)]
        wall_start = min(starts)
        wall_end = int(gpu_events.end.max())
        parts += [
            pre_recording_parts(gpu_events, device_index, wall_end - wall_start)
            for device_index in range(device_count)
        ]
        parts.append(suspect_parts(gpu_events))
        for warm_up_work in (
            find_benchmarks(gpu_events),
            find_named_warm_up(gpu_events),
        ):
            parts.append(warm_up_work.assign(kind=WARM_UP, has_work=True))
        parts.append(
            find_warm_up(gpu_events, wall_start, wall_end).assign(kind=WARM_UP)
        )
    return Coverage(
        wall_start=wall_start,
        wall_end=wall_end,
        parts=_disjoint_parts(gpu_events, _concatenate_parts(parts)),
        launch_count=len(launches.rows),
        unmatched_rows=launches.rows[launches.lost],
        devices=device_count,
        missing=missing_of(gpu_events.trace),
    )


def _concatenate_parts(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Return the parts of several tables as one, with all columns in their types.

    Tables without the column `has_work` are about idle time only.
    """
    no_parts = pd.DataFrame(columns=list(_PART_COLUMNS))
    table = pd.concat([no_parts, *tables])[list(_PART_COLUMNS)]
    has_work = table["has_work"].eq(True)
    return table.assign(has_work=has_work).astype(_PART_COLUMNS)


def _disjoint_parts(gpu_events: GpuEvents, parts: pd.DataFrame) -> pd.DataFrame:
    """Return the parts without overlaps, as in `Coverage.parts`.

    Time that several parts of a device claim goes to the first in this order: parts that set work
    aside, dropped events, work of before the recording, warm-up. Within one of these groups, it
    goes to the part that starts first. Parts that set no time aside are left out.
    """
    no_time = np.zeros(0, dtype=np.int64)
    pieces = [parts.head(0)]
    for _, parts_of_device in parts.groupby("device"):
        occupied = DisjointIntervals(start=no_time, end=no_time)
        for group in _by_precedence(parts_of_device):
            spans = _successive(group)
            start, end, part_index = outside(
                start=spans.start,
                end=spans.end,
                other_start=occupied.start,
                other_end=occupied.end,
            )
            occupied = union(
                start=np.append(occupied.start, start), end=np.append(occupied.end, end)
            )
            pieces.append(group.iloc[part_index].assign(start=start, end=end))
    return _with_time_and_place(gpu_events, pd.concat(pieces))


def _by_precedence(parts: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield the parts in groups, in the order in which they keep their time, each by start."""
    has_work = parts["has_work"]
    kind = parts["kind"]
    masks = [has_work]
    masks += [
        ~has_work & (kind == later)
        for later in (DROPPED_EVENTS, PRE_RECORDING, WARM_UP)
    ]
    for mask in masks:
        yield parts[mask].sort_values(["start", "end"], ascending=[True, False])


def _with_time_and_place(gpu_events: GpuEvents, parts: pd.DataFrame) -> pd.DataFrame:
    """Return disjoint parts with the time that they set aside and the place where they begin."""
    spans = parts[["device", "start", "end"]].to_numpy()
    device_index = spans[:, 0]
    start = spans[:, 1]
    end = spans[:, 2]
    idle_ns = idle_within(
        gpu_events=gpu_events, device_index=device_index, start=start, end=end
    )
    busy_ns = np.where(parts["has_work"], end - start - idle_ns, 0)
    parts = parts.assign(busy_ns=busy_ns, ns=idle_ns + busy_ns)
    parts = parts[parts["ns"] > 0].sort_values(["device", "start"], ignore_index=True)
    places = [place_of(gpu_events, row) for row in parts.pop("row").tolist()]
    parts["place"] = pd.Series(places, dtype="str")
    return parts


class _Spans(NamedTuple):
    """Spans of time, ns since the trace's first event."""

    start: Int64Array
    end: Int64Array


def _successive(parts: pd.DataFrame) -> _Spans:
    """Return the span of each part, sorted by start, less the time of the parts before it.

    Parts 0 to 5, 2 to 4, 3 to 8 become 0 to 5, 4 to 4, 5 to 8.
    """
    end = parts["end"].to_numpy()
    latest_end = np.maximum.accumulate(np.append(0, end))
    end_before = latest_end[:-1]
    start = np.maximum(parts["start"].to_numpy(), end_before)
    start = np.minimum(start, end)
    return _Spans(start, end)


def idle_within(
    gpu_events: GpuEvents, device_index: IntArray, start: Int64Array, end: Int64Array
) -> Int64Array:
    """Return the idle time of a device in each of k spans of time, ns, (k,).

    Args:
        gpu_events: the GPU events.
        device_index: the device of each span, an index into the tracks of devices, (k,).
        start: ns since the trace's first event, (k,).
        end: ns since the trace's first event, (k,).
    """
    busy_ns = busy_within(
        gpu_events=gpu_events, device_index=device_index, start=start, end=end
    )
    return end - start - busy_ns
