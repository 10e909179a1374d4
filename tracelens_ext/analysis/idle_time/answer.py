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
#: Durations of at least this many ms are shown in seconds.
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
    beginning = _beginning(classified, selection)
    before_category = ""
    if selection.category:
        before_category = f" before work of the category {selection.category}"
    idle_of_cause = _idle_of_cause(classified)
    idle_ns = int(idle_of_cause.sum())
    if not idle_ns:
        return (
            f"{beginning} never idle{before_category} between the first and the last "
            "event."
        )
    together = " together" if _has_several_tracks(classified) else ""
    idle_time = duration_with_unit(idle_ns)
    observed_ns = observed_time(gpu_events, classified)
    observed_time_text = duration_with_unit(observed_ns)
    share = _share_text(idle_ns, observed_ns)
    causes = _shares_of_causes(idle_of_cause)
    return (
        f"{beginning}{together} idle{before_category} for {idle_time} of "
        f"{observed_time_text} ({share}): {causes}."
    )


def _has_several_tracks(classified: ClassifiedGaps) -> bool:
    """Tell whether events on more than one device or stream are selected."""
    return bool(np.count_nonzero(classified.events) > 1)


def _beginning(classified: ClassifiedGaps, selection: EventFilter) -> str:
    """Return the subject and the verb, such as `In ProfilerStep#3 the 2 GPUs were`."""
    subject = _subject(classified, selection)
    step = ""
    if selection.step is not None:
        step = f"in ProfilerStep#{selection.step} "
    verb = "were" if _has_several_tracks(classified) else "was"
    words = f"{step}{subject} {verb}"
    return words[0].upper() + words[1:]


def _idle_of_cause(classified: ClassifiedGaps) -> Int64Array:
    """Return the idle time of each cause, ns, (causes,)."""
    intervals = classified.within
    same_group = np.zeros_like(intervals.gap)
    idle_by_group = time_by_cause(intervals, same_group, group_count=1)
    idle_of_cause: Int64Array = idle_by_group[0]
    return idle_of_cause


def _share_text(idle_ns: int, observed_ns: int) -> str:
    """Return the idle time as a share of the observed time, such as `12.5 %`."""
    if idle_ns < observed_ns * _MIN_SHARE_SHOWN:
        return "<0.1 %"
    return f"{100 * idle_ns / observed_ns:.1f} %"


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

    The observed time of a device or stream lasts from the first start to the last end of its
    selected events, like `total_time` of the timeline. If the first selected event ends a gap, the
    observed time begins with that gap.
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


def duration_with_unit(nanoseconds: int, same_unit_as: int | None = None) -> str:
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
