"""Which end belongs to which begin, where a file has both as packets of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.trace import NONE

if TYPE_CHECKING:
    from tracelens_ext.trace import BoolArray, Int64Array


def ends_of(begins: BoolArray, track: Int64Array, time: Int64Array) -> Int64Array:
    """The end of each begin.

    A track is a stack: an end is that of the last begin that has none yet. The order is that of
    the file, if the times of each track are in order there. A file may also have all begins of a
    kind, then all their ends, the first for the first; what is left is put in order of time, ends
    before begins.

    Args:
        begins: whether each is a begin, shape (k,).
        track: where it is, (k,).
        time: when, (k,).

    Returns:
        The index of the end of each begin, `NONE` without one and for ends, (k,).
    """
    result = np.full(len(begins), NONE, dtype=np.int64)
    order = np.argsort(track, kind="stable")
    same = np.diff(track[order]) == 0
    if not (np.diff(time[order])[same] < 0).any():
        _match(order, begins, track, result)
        return result
    _match_runs(begins, track, time, result)
    taken = np.zeros(len(begins), dtype=bool)
    taken[result[result != NONE]] = True
    left = np.flatnonzero((result == NONE) & ~taken)
    _match(left[np.lexsort((begins[left], time[left], track[left]))], begins, track, result)
    return result


def _match_runs(begins: BoolArray, track: Int64Array, time: Int64Array, result: Int64Array) -> None:
    """Match runs of begins with the ends behind them, if these are as many on the same tracks.

    Unless slices of a track would cross: then its ends are in order of time.
    """
    bounds = np.append(np.flatnonzero(np.diff(begins, prepend=not begins[0])), len(begins))
    size = np.diff(bounds)
    run = np.flatnonzero(begins[bounds[:-2]] & (size[:-1] == size[1:]))
    if not len(run):
        return
    size, last = size[run], np.cumsum(size[run])
    first = np.repeat(bounds[run] - (last - size), size) + np.arange(last[-1])
    second = first + np.repeat(size, size)
    fits = (track[first] == track[second]) & (time[first] <= time[second])
    ends = time[second]
    crosses = (time[first][1:] < ends[:-1]) & (ends[:-1] < ends[1:]) & (np.diff(first) == 1)
    crosses &= (np.diff(track[first]) == 0) & (time[first][1:] >= time[first][:-1])
    fits[1:] &= ~crosses
    whole = np.repeat(np.logical_and.reduceat(fits, last - size), size)
    result[first[whole]] = second[whole]


def _match(order: Int64Array, begins: BoolArray, track: Int64Array, result: Int64Array) -> None:
    """Match what is in order, track by track; ends that nothing began are passed over."""
    while len(order):
        step = np.where(begins[order], 1, -1)
        number = np.cumsum(np.diff(track[order], prepend=track[order[0]]) != 0)
        first = np.flatnonzero(np.diff(number, prepend=-1))
        depth = np.cumsum(step)
        depth -= np.repeat(depth[first] - step[first], np.diff(np.append(first, len(order))))
        # Each track's depths are put below those of the one before it: one pass finds all minima.
        shift = -number * (2 * len(order) + 1)
        least = np.minimum.accumulate(np.minimum(depth, 0) + shift)
        astray = (step < 0) & (depth + shift == least) & (depth < 0)
        astray &= np.append(True, least[1:] < least[:-1])
        if not astray.any():
            break
        order = order[~astray]
    if not len(order):
        return
    level = depth + (step < 0)
    by_level = np.lexsort((np.arange(len(order)), level, number))
    pair = (step[by_level[:-1]] > 0) & (step[by_level[1:]] < 0)
    pair &= np.diff(level[by_level]) == 0
    pair &= np.diff(number[by_level]) == 0
    result[order[by_level[:-1][pair]]] = order[by_level[1:][pair]]
