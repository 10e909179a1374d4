"""Lanes: viewers draw events of a track only where they nest, and drop others silently."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tracelens_ext.trace import Int64Array, IntArray


#: Lanes of a track that are asked one by one; of what further ones hold, nothing is nested.
_MOST_ASKED = 64


def fit_lanes(track: IntArray, start: Int64Array, end: Int64Array) -> Int64Array:
    """The lane of each event on its track: the first that takes it, by start, longest first.

    A lane takes an event that lies within the one that is open there, or begins after its end.

    Args:
        track: number of each event's track, shape (n,).
        start: ns, (n,).
        end: no less than `start`, (n,).

    Returns:
        0 for the first lane of a track, and so on, (n,).
    """
    lane = np.zeros(len(track), dtype=np.int64)
    order = np.lexsort((-end, start, track))
    for events in np.split(order, np.flatnonzero(np.diff(track[order])) + 1):
        if (start[events[1:]] < np.maximum.accumulate(end[events])[:-1]).any():
            lane[events] = _lanes_of_track(start[events].tolist(), end[events].tolist())
    return lane


def _lanes_of_track(starts: list[int], ends: list[int]) -> list[int]:
    open_in: list[list[int]] = []  # of each lane the ends of what is open, outermost first
    further: list[tuple[int, int]] = []  # (end, lane) of each lane beyond, a heap
    result = []
    for start, end in zip(starts, ends, strict=True):
        lane = 0
        while lane < len(open_in):
            stack = open_in[lane]
            while stack and stack[-1] <= start:
                stack.pop()
            if not stack or end <= stack[-1]:
                break
            lane += 1
        else:
            if lane == _MOST_ASKED:
                free = further and further[0][0] <= start
                lane = heappop(further)[1] if free else _MOST_ASKED + len(further)
                heappush(further, (end, lane))
                result.append(lane)
                continue
            open_in.append([])
        open_in[lane].append(end)
        result.append(lane)
    return result
