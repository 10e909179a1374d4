"""The sentence about idle time: how long the GPU was idle, its share, and the causes."""

from __future__ import annotations

import numpy as np

from tracelens_ext.analysis.coverage.missing_gpu_work import no_gpu_work
from tracelens_ext.analysis.idle_time.causes import CAUSES, time_by_cause
from tracelens_ext.analysis.idle_time.classification import ClassifiedGaps
from tracelens_ext.analysis.iterations.selection import EventFilter
from tracelens_ext.trace import NS_PER_MS, NS_PER_US, Int64Array
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import maxima, minima

#: The least share that is not shown as 0.0 %.
_MIN_SHARE_SHOWN = 0.0005
#: Times of this length and more are shown in seconds, ms.
_MIN_MS_AS_SECONDS = 1e4


def idle_time_answer(
    gpu_events: GpuEvents, classified: ClassifiedGaps, selection: EventFilter
) -> str:
    """Return a sentence about the idle time of the selected devices or streams.

    For example: `The GPU was idle for 1.250 ms of 10.000 ms (12.5 %): host 75.0 %, unknown 25.0 %.`
    """
    if not len(gpu_events):
        return no_gpu_work(gpu_events)
    if not classified.events.any():
        return f"No GPU event matches {selection.text}."
    has_several_tracks = np.count_nonzero(classified.events) > 1
    subject = _subject(classified, selection)
    if selection.step is not None:
        subject = f"in ProfilerStep#{selection.step} {subject}"
    verb = "were" if has_several_tracks else "was"
    subject = f"{subject[0].upper()}{subject[1:]} {verb}"
    before_category = ""
    if selection.category:
        before_category = f" before work of the category {selection.category}"
    intervals = classified.within
    all_in_one_group = np.zeros_like(intervals.gap)
    idle_of_cause = time_by_cause(intervals, all_in_one_group, 1)[0]
    idle_ns = int(idle_of_cause.sum())
    if not idle_ns:
        return (
            f"{subject} never idle{before_category} between the first and the last "
            "event."
        )
    observed_ns = observed_time(gpu_events, classified)
    share = "<0.1 %"
    if idle_ns >= observed_ns * _MIN_SHARE_SHOWN:
        share = f"{100 * idle_ns / observed_ns:.1f} %"
    together = " together" if has_several_tracks else ""
    idle_part = (
        f"{subject}{together} idle{before_category} for {duration_text(idle_ns)}"
    )
    causes = _shares_of_causes(idle_of_cause)
    return f"{idle_part} of {duration_text(observed_ns)} ({share}): {causes}."


def _shares_of_causes(idle_of_cause: Int64Array) -> str:
    """Return the shares of the causes in the idle time, largest first: `host 75.0 %, unknown …`.

    Args:
        idle_of_cause: the idle time of each cause, ns, (causes,).
    """
    total_ns = int(idle_of_cause.sum())
    shares = []
    for code in np.argsort(-idle_of_cause, kind="stable").tolist():
        idle_ns = int(idle_of_cause[code])
        if idle_ns and idle_ns >= total_ns * _MIN_SHARE_SHOWN:
            cause = CAUSES[code].replace("_", " ")
            shares.append(f"{cause} {100.0 * idle_ns / total_ns:.1f} %")
    return ", ".join(shares)


def observed_time(gpu_events: GpuEvents, classified: ClassifiedGaps) -> int:
    """Return the time that the idle time is a part of, ns, summed over the devices or streams.

    On each of them, it lasts from the first start to the last end of the selected events, like
    `total_time` of the timeline. If the first selected event ends a gap, it begins with that gap.
    """
    gaps = classified.gaps
    selected = classified.selected
    track = gaps.tracks.of_gpu[selected]
    track_count = len(gaps.tracks)
    tracks_of_starts = np.append(track, gaps.track)
    starts = np.append(gpu_events.start[selected], gaps.start)
    first_start = minima(tracks_of_starts, starts, track_count)
    last_end = maxima(track, gpu_events.end[selected], track_count)
    has_events = classified.events > 0
    return int((last_end - first_start)[has_events].sum())


def _subject(classified: ClassifiedGaps, selection: EventFilter) -> str:
    """Return the subject of the sentence, such as `the GPU` or `the 4 streams of device 1`."""
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


def duration_text(nanoseconds: int, same_unit_as: int | None = None) -> str:
    """Return a duration with its unit, `ns`, `μs`, `ms` or `s`.

    Args:
        nanoseconds: the duration.
        same_unit_as: another duration, ns, that determines the unit; by default the duration
            itself.
    """
    size = nanoseconds if same_unit_as is None else same_unit_as
    if size < NS_PER_US:
        return f"{nanoseconds} ns"
    if size < NS_PER_MS:
        return f"{nanoseconds / NS_PER_US:.3f} μs"
    milliseconds = nanoseconds / NS_PER_MS
    if size < _MIN_MS_AS_SECONDS * NS_PER_MS:
        return f"{milliseconds:,.3f} ms"
    return f"{milliseconds / 1e3:,.3f} s"
