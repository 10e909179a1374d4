"""Gaps with their causes: what all tables of idle time are made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, get_args

import numpy as np

from tracelens_ext.errors import UsageError
from tracelens_ext.gaps.causes import CAUSES, Pieces, divide_gaps
from tracelens_ext.iterations.selection import Selection
from tracelens_ext.recording.told import no_gpu_work
from tracelens_ext.trace import NONE, NS_PER_MS, NS_PER_US
from tracelens_ext.work.grouping import maxima, minima, sums
from tracelens_ext.work.lanes import Gaps, Scope, find_gaps

if TYPE_CHECKING:
    from tracelens_ext.trace import BoolArray, Int64Array
    from tracelens_ext.work.gpu_work import GpuWork


@dataclass(frozen=True, eq=False)
class ClassifiedGaps:
    """Gaps with their causes, k of them."""

    work: GpuWork  #: the GPU events
    gaps: Gaps  #: the gaps: when each began and ended, and between which events
    pieces: Pieces  #: the gaps divided by cause; of whole devices, unless selected, with edges
    launch: Int64Array  #: row of the launch of the event after, `NONE` without, (k,)
    returned: Int64Array  #: until when each may be the host's: its launch had returned, (k,)
    synchronising: Int64Array  #: row of the synchronising call that ran, `NONE` without, (k,)
    selected: BoolArray  #: which GPU events are selected, (g,)
    events: Int64Array  #: how many of those each lane has, (p,)

    def __len__(self) -> int:
        return len(self.gaps)

    @cached_property
    def cause(self) -> Int64Array:
        """The cause of most of each gap, an index into `CAUSES`, (k,)."""
        return self.main_cause(np.arange(len(self)), len(self))

    def main_cause(self, group: Int64Array, groups: int) -> Int64Array:
        """The cause of most of the idle time of each group of gaps, `group` being each gap's."""
        in_gaps = self.pieces.chosen(self.pieces.gap != NONE)
        cell = group[in_gaps.gap] * len(CAUSES) + in_gaps.cause
        cells = sums(cell, in_gaps.end - in_gaps.start, groups * len(CAUSES))
        main: Int64Array = cells.reshape(groups, len(CAUSES)).argmax(axis=1)
        return main

    def idle_by_cause_ms(self) -> dict[int | str, dict[str, float]]:
        """The idle time of each device by cause; without a selection that is all of its wall."""
        pieces, lanes = self.pieces, self.gaps.lanes
        cell = pieces.lane * len(CAUSES) + pieces.cause
        cells = sums(cell, pieces.end - pieces.start, len(lanes) * len(CAUSES)) / NS_PER_MS
        rows = cells.reshape(len(lanes), len(CAUSES)).tolist()
        times = [dict(zip(CAUSES, row, strict=True)) for row in rows]
        return dict(zip(lanes.device_labels, times, strict=True))


def classify_gaps(
    work: GpuWork, scope: Scope = "stream", selection: Selection | None = None
) -> ClassifiedGaps:
    """Find the gaps and their causes.

    A gap is selected when the event after it is. (The gaps of a device belong to no stream: its
    number does not restrict them.)
    """
    if scope not in (scopes := get_args(Scope)):
        raise UsageError(f"no such scope: {scope!r}; choose from {', '.join(scopes)}")
    asked = selection or Selection()
    selected = asked.of(work)
    if scope == "device" and asked.stream is not None:
        selected = replace(asked, stream=None).of(work)
    gaps, division = find_gaps(work, scope), divide_gaps(work, scope)
    events = np.bincount(gaps.lanes.of_gpu[selected], minlength=len(gaps.lanes))
    if not selected.all():
        chosen = selected[gaps.after]
        gaps, division = gaps.chosen(chosen), division.chosen(chosen)
    return ClassifiedGaps(work, gaps, *division, selected=selected, events=events)


_WORTH_SAYING = 0.0005  # of the idle time: less would be shown as 0.0 %


def answer(classified: ClassifiedGaps, selection: Selection | None = None) -> str:
    """How long the GPU (or the streams) was idle, of how long, and why."""
    chosen = selection or Selection()
    if not len(classified.work):
        return no_gpu_work(classified.work)
    if not classified.events.any():
        return f"No GPU event is selected: none is of {chosen.text}."
    who, several = _who(classified, chosen)
    subject = f"In ProfilerStep#{chosen.pstep} {who}" if chosen.pstep is not None else who
    subject = subject[0].upper() + subject[1:]
    pieces = classified.pieces.chosen(classified.pieces.gap != NONE)
    idle = sums(pieces.cause, pieces.end - pieces.start, len(CAUSES))
    total = int(idle.sum())
    before = f" before work of the category {chosen.category}" if chosen.category else ""
    if not total:
        was = "were" if several else "was"
        return f"{subject} {was} never idle{before} between the first and the last event."
    was = "were together" if several else "was"
    order = [int(i) for i in np.argsort(-idle, kind="stable") if idle[i]]
    shown = [i for i in order if idle[i] >= total * _WORTH_SAYING]
    shares = ", ".join(
        f"{CAUSES[i].replace('_', ' ')} {100.0 * idle[i] / total:.1f} %" for i in shown
    )
    span = watched_time(classified)
    percent = f"{100 * total / span:.1f} %" if total >= span * _WORTH_SAYING else "<0.1 %"
    return (
        f"{subject} {was} idle{before} for {in_words(total)} of {in_words(span)}"
        f" ({percent}): {shares}."
    )


def watched_time(classified: ClassifiedGaps) -> int:
    """The time that idle time is a part of, ns, summed over the devices or streams.

    From the first start to the last end of the selected events, as `total_time` of the timeline;
    and where the first of them ends a gap, from the beginning of that.
    """
    work, lanes, selected = classified.work, classified.gaps.lanes, classified.selected
    lane = lanes.of_gpu[selected]
    first = minima(lane, work.start[selected], len(lanes))
    np.minimum.at(first, classified.gaps.lane, classified.gaps.start)
    last = maxima(lane, work.end[selected], len(lanes))
    used = classified.events > 0
    return int((last[used] - first[used]).sum())


def _who(classified: ClassifiedGaps, selection: Selection) -> tuple[str, bool]:
    """Who was idle, and whether that is several."""
    count = int(np.count_nonzero(classified.events))
    device = f"device {selection.device}" if selection.device is not None else ""
    if classified.gaps.lanes.scope == "device":
        one, several = device or "the GPU", f"the {count} GPUs"
    else:
        of_device = f" of {device}" if device else ""
        number = f" {selection.stream}" if selection.stream is not None else ""
        one = f"stream{number}{of_device}" if number else f"the stream{of_device}"
        several = f"the {count} streams{number}{of_device}"
    return (several, True) if count > 1 else (one, False)


def in_words(nanoseconds: int, like: int | None = None) -> str:
    """A time in the unit that shows its digits, or those of another time."""
    size = nanoseconds if like is None else like
    if size < NS_PER_US:
        return f"{nanoseconds} ns"
    if size < NS_PER_MS:
        return f"{nanoseconds / NS_PER_US:.3f} μs"
    if size < 1e4 * NS_PER_MS:
        return f"{nanoseconds / NS_PER_MS:,.3f} ms"
    return f"{nanoseconds / NS_PER_MS / 1e3:,.3f} s"
