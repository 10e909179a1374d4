"""Gaps with their causes: what all tables of idle time are made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, get_args

import numpy as np

from tracelens_ext.errors import UsageError
from tracelens_ext.gaps.causes import CAUSES, divide_gaps
from tracelens_ext.gaps.find import Gaps, find_gaps
from tracelens_ext.iterations.selection import Selection
from tracelens_ext.trace import NONE, NS_PER_MS
from tracelens_ext.work.grouping import sums
from tracelens_ext.work.lanes import Scope

if TYPE_CHECKING:
    from tracelens_ext.gaps.causes import Pieces
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
        """The cause of most of the idle time of each group of gaps.

        Args:
            group: of each gap, 0 to `groups` - 1, (k,).
            groups: how many groups there are.

        Returns:
            Indices into `CAUSES`, (groups,).
        """
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

    Args:
        work: the GPU events.
        scope: `stream`, or `device` for the times when all streams of a device were idle.
        selection: a gap is selected when the event after it is. (The gaps of a device do not
            belong to a stream: its number does not restrict them.)

    Raises:
        UsageError: there is no such scope, or nothing that could be selected.
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
