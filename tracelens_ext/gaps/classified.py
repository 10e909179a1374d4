"""Gaps with their causes: what all tables of idle time are made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, get_args

import numpy as np

from tracelens_ext.errors import UsageError
from tracelens_ext.gaps.causes import CAUSES, find_causes
from tracelens_ext.gaps.find import Gaps, find_gaps
from tracelens_ext.iterations.selection import Selection
from tracelens_ext.work.grouping import sums
from tracelens_ext.work.lanes import Scope

if TYPE_CHECKING:
    from tracelens_ext.trace import BoolArray, Int64Array
    from tracelens_ext.work.gpu_work import GpuWork


@dataclass(frozen=True, eq=False)
class ClassifiedGaps:
    """Gaps with their causes, k of them."""

    work: GpuWork  #: the GPU events
    gaps: Gaps  #: the gaps: when each began and ended, and between which events
    cause: Int64Array  #: of each, an index into `CAUSES`, (k,)
    launch: Int64Array  #: row of the launch of the event after, `NONE` without, (k,)
    synchronising: Int64Array  #: row of the synchronising call that ran, `NONE` without, (k,)
    selected: BoolArray  #: which GPU events are selected, (g,)
    events: Int64Array  #: how many of those each lane has, (p,)

    def __len__(self) -> int:
        return len(self.gaps)

    def main_cause(self, group: Int64Array, groups: int) -> Int64Array:
        """The cause of most of the idle time of each group of gaps.

        Args:
            group: of each gap, 0 to `groups` - 1, (k,).
            groups: how many groups there are.

        Returns:
            Indices into `CAUSES`, (groups,).
        """
        cells = sums(group * len(CAUSES) + self.cause, self.gaps.duration, groups * len(CAUSES))
        main: Int64Array = cells.reshape(groups, len(CAUSES)).argmax(axis=1)
        return main


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
    gaps, causes = find_gaps(work, scope), find_causes(work, scope)
    events = np.bincount(gaps.lanes.of_gpu[selected], minlength=len(gaps.lanes))
    if not selected.all():
        chosen = selected[gaps.after]
        gaps, causes = gaps.chosen(chosen), causes.chosen(chosen)
    return ClassifiedGaps(work, gaps, *causes, selected=selected, events=events)
