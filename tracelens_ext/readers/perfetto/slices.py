"""Matches the begins of slices with their ends."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from tracelens_ext.trace import NONE, BoolArray, Int64Array


def match_ends(is_begin: BoolArray, track: Int64Array, time: Int64Array) -> Int64Array:
    """Return the index of the end of each begin, (n,); `NONE` for unmatched begins, and for ends.

    The slices of a track are nested: an end belongs to the latest begin that has no end yet.

    The order of the events is that of the file, if the times of every track ascend. Otherwise, the
    file may have all begins of some slices, and then their ends in the order of the begins: such
    runs are matched first. The remaining events are matched in the order of their times, an end
    before a begin at the same time.

    Args:
        is_begin: whether each event begins a slice (or ends one), (n,).
        track: the track of each event, (n,).
        time: the time of each event, ns, (n,).
    """
    end_of_begin = np.full(len(is_begin), NONE, dtype=np.int64)
    by_track = np.argsort(track, kind="stable")
    is_same_track = np.diff(track[by_track]) == 0
    is_earlier = np.diff(time[by_track]) < 0
    if not (is_same_track & is_earlier).any():
        _match_nested(by_track, is_begin, track, end_of_begin)
        return end_of_begin
    _match_runs(is_begin, track, time, end_of_begin)
    is_unmatched = end_of_begin == NONE
    is_unmatched[end_of_begin[end_of_begin != NONE]] = False
    unmatched = np.flatnonzero(is_unmatched)
    by_time = np.lexsort((is_begin[unmatched], time[unmatched], track[unmatched]))
    _match_nested(unmatched[by_time], is_begin, track, end_of_begin)
    return end_of_begin


def _match_runs(
    is_begin: BoolArray, track: Int64Array, time: Int64Array, end_of_begin: Int64Array
) -> None:
    """Match a run of begins with the run of as many ends that follows it, in place.

    Example: of B B B E E E, the first begin is matched with the first end, the second with the
    second, the third with the third. A run is matched only if each begin has the track of its end
    and does not begin later, and if no slice crosses the previous one.
    """
    is_change = np.diff(is_begin, prepend=not is_begin[0])
    bounds = np.append(np.flatnonzero(is_change), len(is_begin))
    run_size = np.diff(bounds)
    is_followed_by_as_many = run_size[:-1] == run_size[1:]
    runs = np.flatnonzero(is_begin[bounds[:-2]] & is_followed_by_as_many)
    if not len(runs):
        return
    size = run_size[runs]
    # The begins of these runs one after another: runs of 3 and 2 have the indices 0 1 2, 0 1.
    stop_of_run = np.cumsum(size)
    start_of_run = stop_of_run - size
    index_in_run = np.arange(stop_of_run[-1]) - np.repeat(start_of_run, size)
    begin = np.repeat(bounds[runs], size) + index_in_run
    end = begin + np.repeat(size, size)
    fits = (track[begin] == track[end]) & (time[begin] <= time[end])
    fits[1:] &= ~_crosses_previous(
        begin=begin, track=track[begin], start_time=time[begin], end_time=time[end]
    )
    run_fits = np.logical_and.reduceat(fits, start_of_run)
    is_matched = np.repeat(run_fits, size)
    end_of_begin[begin[is_matched]] = end[is_matched]


def _crosses_previous(
    begin: Int64Array, track: Int64Array, start_time: Int64Array, end_time: Int64Array
) -> BoolArray:
    """Return whether each slice but the first crosses the previous slice of its run and track.

    Two slices cross if they overlap, but neither contains the other.

    Args:
        begin: index of the event that begins each of s slices, (s,).
        track: track of each slice, (s,).
        start_time: ns, (s,).
        end_time: ns, (s,).

    Returns:
        An array of shape (s - 1,).
    """
    overlaps = start_time[1:] < end_time[:-1]
    ends_later = end_time[:-1] < end_time[1:]
    is_next_event = np.diff(begin) == 1
    is_same_track = np.diff(track) == 0
    starts_later = start_time[1:] >= start_time[:-1]
    crosses: BoolArray = (
        overlaps & ends_later & is_next_event & is_same_track & starts_later
    )
    return crosses


def _match_nested(
    order: Int64Array, is_begin: BoolArray, track: Int64Array, end_of_begin: Int64Array
) -> None:
    """Match events as nested slices of their tracks, in place; skip ends without a begin.

    Args:
        order: indices of the events to match, in order within each track.
        is_begin: whether each event begins a slice, (n,).
        track: the track of each event, (n,).
        end_of_begin: the result, (n,).
    """
    open_begins: dict[int, list[int]] = defaultdict(list)
    matched_begins: list[int] = []
    matched_ends: list[int] = []
    is_begin_in_order = is_begin[order].tolist()
    track_in_order = track[order].tolist()
    events = zip(order.tolist(), is_begin_in_order, track_in_order, strict=True)
    for event, begins, track_of_event in events:
        stack = open_begins[track_of_event]
        if begins:
            stack.append(event)
        elif stack:
            matched_begins.append(stack.pop())
            matched_ends.append(event)
    end_of_begin[matched_begins] = matched_ends
