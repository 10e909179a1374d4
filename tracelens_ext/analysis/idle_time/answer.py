"""The sentence about idle time: how long the GPU was idle, of how long, and why."""

from __future__ import annotations

import numpy as np

from tracelens_ext.analysis.coverage.missing_gpu_work import no_gpu_work
from tracelens_ext.analysis.idle_time.causes import (
    CAUSES,
    ClassifiedGaps,
    time_by_cause,
)
from tracelens_ext.analysis.iterations.selection import EventFilter
from tracelens_ext.trace import NS_PER_MS, NS_PER_US, Int64Array
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import maxima, minima

#: A smaller share would be shown as 0.0 %.
_LEAST_SHARE_SHOWN = 0.0005
_MOST_MS_AS_MS = 1e4


def answer(work: GpuEvents, classified: ClassifiedGaps, selection: EventFilter) -> str:
    """Return how long the GPU (or the streams) was idle, of how long, and why, in a sentence."""
    if not len(work):
        return no_gpu_work(work)
    if not classified.events.any():
        return f"No GPU event matches {selection.text}."
    is_several = np.count_nonzero(classified.events) > 1
    subject = _subject(classified, selection)
    if selection.step is not None:
        subject = f"in ProfilerStep#{selection.step} {subject}"
    subject = f"{subject[0].upper()}{subject[1:]} {'were' if is_several else 'was'}"
    category = selection.category
    before_what = f" before work of the category {category}" if category else ""
    intervals = classified.within
    idle = time_by_cause(intervals, np.zeros_like(intervals.gap), 1)[0]
    total = int(idle.sum())
    if not total:
        return (
            f"{subject} never idle{before_what} between the first and the last event."
        )
    watched = watched_time(work, classified)
    share = "<0.1 %"
    if total >= watched * _LEAST_SHARE_SHOWN:
        share = f"{100 * total / watched:.1f} %"
    together = " together" if is_several else ""
    idle_time = f"{subject}{together} idle{before_what} for {in_words(total)}"
    return f"{idle_time} of {in_words(watched)} ({share}): {_shares_of_causes(idle)}."


def _shares_of_causes(idle: Int64Array) -> str:
    """Return the share of each cause in the idle time, largest first: `host 75.0 %, unknown …`."""
    total = int(idle.sum())
    shares = []
    for code in np.argsort(-idle, kind="stable").tolist():
        time = int(idle[code])
        if time and time >= total * _LEAST_SHARE_SHOWN:
            shares.append(
                f"{CAUSES[code].replace('_', ' ')} {100.0 * time / total:.1f} %"
            )
    return ", ".join(shares)


def watched_time(work: GpuEvents, classified: ClassifiedGaps) -> int:
    """Return the time that idle time is a part of, ns, summed over the devices or streams.

    From the first start to the last end of the selected events, as `total_time` of the timeline;
    and where the first of them ends a gap, from the beginning of that.
    """
    gaps = classified.gaps
    selected = classified.selected
    track = gaps.tracks.of_gpu[selected]
    count = len(gaps.tracks)
    tracks_of_starts = np.append(track, gaps.track)
    starts = np.append(work.start[selected], gaps.start)
    first_start = minima(tracks_of_starts, starts, count)
    last_end = maxima(track, work.end[selected], count)
    has_events = classified.events > 0
    return int((last_end - first_start)[has_events].sum())


def _subject(classified: ClassifiedGaps, selection: EventFilter) -> str:
    """Return what was idle, such as `the GPU` or `the 4 streams of device 1`."""
    count = int(np.count_nonzero(classified.events))
    device = ""
    if selection.device is not None:
        device = f"device {selection.device}"
    if classified.gaps.tracks.scope == "device":
        if count > 1:
            return f"the {count} GPUs"
        return device or "the GPU"
    number = ""
    if selection.stream is not None:
        number = f" {selection.stream}"
    owner = f" of {device}" if device else ""
    if count > 1:
        return f"the {count} streams{number}{owner}"
    if number:
        return f"stream{number}{owner}"
    return f"the stream{owner}"


def in_words(nanoseconds: int, like: int | None = None) -> str:
    """Return a time in the unit that shows its digits, or those of another time."""
    size = nanoseconds if like is None else like
    if size < NS_PER_US:
        return f"{nanoseconds} ns"
    if size < NS_PER_MS:
        return f"{nanoseconds / NS_PER_US:.3f} μs"
    milliseconds = nanoseconds / NS_PER_MS
    if size < _MOST_MS_AS_MS * NS_PER_MS:
        return f"{milliseconds:,.3f} ms"
    return f"{milliseconds / 1e3:,.3f} s"
