"""The causes of idle time after a launch has returned: dependency, launch overhead or unknown."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tracelens_ext.analysis.idle_time.causes import Cause
from tracelens_ext.analysis.idle_time.gpu_calls import (
    LONG_AGO,
    GapLaunches,
    gpu_calls,
    last_call_before,
)
from tracelens_ext.trace import (
    LAUNCH_KINDS,
    NONE,
    BoolArray,
    Int64Array,
    IntArray,
    sorted_groups,
)
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.gpu_events import (
    Gaps,
    GpuEvents,
    Scope,
    find_gaps,
    find_tracks,
)
from tracelens_ext.trace.lookup import values_at

#: An event that waits for work on another stream starts at most this long after that work.
DEPENDENCY_LATENCY_NS = 5_000

#: The least number of launches from which the latency limit of a device is computed.
_MIN_LATENCY_SAMPLES = 5
#: The latency limit of a device with fewer launches.
_DEFAULT_LATENCY_NS = 20_000
_MIN_LATENCY_NS = 10_000
_MAX_LATENCY_NS = 100_000
#: An end before all gaps. Half of `LONG_AGO`, so that the time since then fits into int64.
_NO_END = LONG_AGO // 2


def causes_after_launch(
    gpu_events: GpuEvents, gaps: Gaps, launches: GapLaunches
) -> IntArray:
    """Return why each gap continues after its launch has returned, codes of causes, (k,).

    * Dependency: the event after the gap waits for another stream. The thread called for a stream
      to wait since its previous launch, or work on another stream ended at most
      `DEPENDENCY_LATENCY_NS` before the event started.
    * Launch overhead: the launch began during the gap, or the event started within the usual
      latency after the launch returned. The trace must have launches of the device.
    * Unknown: everything else.

    A gap with both is a dependency. However, a call for a stream to wait does not count if the
    launch began during the gap and the event started within the usual latency: an event without a
    dependency starts no earlier, so the wait did not delay it.
    """
    device_index = find_tracks(gpu_events, "device").of_gpu[gaps.after]
    after_launch = gaps.end - launches.returned
    is_short = after_launch <= launch_latency_limit(gpu_events)[device_index]
    is_launched_within = launches.begin >= gaps.start
    is_launch_known = _has_launches(gpu_events)[device_index]
    is_overhead = (is_short | is_launched_within) & is_launch_known
    cause = np.full(len(gaps), Cause.UNKNOWN.code, dtype=np.int8)
    cause[is_overhead] = Cause.LAUNCH_OVERHEAD.code
    # The trace does not contain which stream a wait is for. It is taken to be the stream of the
    # next launch on the thread.
    calls = gpu_calls(gpu_events)
    last_wait = last_call_before(gpu_events, calls.stream_waits, launches)
    last_launch = last_call_before(gpu_events, calls.launches, launches)
    waits_for_stream = (last_wait > last_launch) & ~(is_short & is_launched_within)
    after_return = replace(gaps, start=launches.returned)
    since_other_work = gaps.end - _last_end_on_other_streams(gpu_events, after_return)
    depends = waits_for_stream | (since_other_work <= DEPENDENCY_LATENCY_NS)
    cause[depends] = Cause.DEPENDENCY.code
    return cause


@cached_per_object
def launch_latency_limit(gpu_events: GpuEvents) -> Int64Array:
    """Return the usual upper limit of the time from a launch to the event on an idle stream.

    It is twice the lower quartile of this time over all events of a device that were launched while
    their stream was idle. Events that wait for other work have longer times, which only affects the
    upper part of the distribution. The limit lies between `_MIN_LATENCY_NS` and `_MAX_LATENCY_NS`.
    A device with fewer than `_MIN_LATENCY_SAMPLES` of these events has `_DEFAULT_LATENCY_NS`.

    Returns:
        The limit for each device, ns, (devices,).
    """
    tracks = find_tracks(gpu_events, "device")
    gaps = find_gaps(gpu_events, "stream")
    launch = gpu_events.tree.launch_of_gpu[gaps.after]
    launch_time = gpu_events.trace.ts[launch]
    found_idle_stream = (launch != NONE) & (launch_time >= gaps.start)
    latency_of_event = (gaps.end - launch_time)[found_idle_stream]
    device_index = tracks.of_gpu[gaps.after[found_idle_stream]]
    limit = np.full(len(tracks), _DEFAULT_LATENCY_NS, dtype=np.int64)
    for device in range(len(tracks)):
        latencies = latency_of_event[device_index == device]
        if len(latencies) >= _MIN_LATENCY_SAMPLES:
            twice_lower_quartile = 2 * int(np.quantile(latencies, 0.25))
            limit[device] = np.clip(
                twice_lower_quartile, _MIN_LATENCY_NS, _MAX_LATENCY_NS
            )
    return limit


def _has_launches(gpu_events: GpuEvents) -> BoolArray:
    """Return whether the trace has launches of the GPU work of each device, (devices,).

    If launches were recorded but none is linked to a GPU event, they may belong to any device.
    """
    tracks = find_tracks(gpu_events, "device")
    device_of_linked = tracks.of_gpu[gpu_events.tree.linked]
    linked_events = np.bincount(device_of_linked, minlength=len(tracks))
    if linked_events.any():
        return linked_events > 0
    has_launches = gpu_events.trace.count_of(*LAUNCH_KINDS) > 0
    return np.full(len(tracks), has_launches)


class _EventEnds(NamedTuple):
    """The ends of all GPU events, by track and time."""

    track: Int64Array  #: (g,)
    end: Int64Array  #: ns, (g,)


@cached_per_object
def _event_ends(gpu_events: GpuEvents, scope: Scope) -> _EventEnds:
    """Return the ends of all GPU events on tracks of a scope."""
    track = find_tracks(gpu_events, scope).of_gpu
    order = sorted_groups.by_group_and_time(track, gpu_events.end)
    return _EventEnds(track=track[order], end=gpu_events.end[order])


def _last_end_on_other_streams(gpu_events: GpuEvents, gaps: Gaps) -> Int64Array:
    """Return when the last event on another stream of the device ended during each gap, ns, (k,).

    An event that ends during a gap, before its end, always ran on another stream. An event that
    ends exactly with the gap may be on the gap's own stream: the event after the gap, if it has no
    length. Such an event does not count. Without a result, the end is long before all gaps.
    """
    own_scope = gaps.tracks.scope
    ended_before = _count_ended(gpu_events, gaps, "device", before=gaps.end)
    ended_with = _count_ended(gpu_events, gaps, "device", before=gaps.end + 1)
    device_events_ending_with_gap = ended_with - ended_before
    own_events_ending_with_gap = _count_ended(
        gpu_events, gaps, own_scope, before=gaps.end + 1
    ) - _count_ended(gpu_events, gaps, own_scope, before=gaps.end)
    other_event_ends_with_gap = (
        device_events_ending_with_gap > own_events_ending_with_gap
    )
    last = np.where(other_event_ends_with_gap, ended_with, ended_before) - 1
    ends = _event_ends(gpu_events, "device")
    device_of_gap = find_tracks(gpu_events, "device").of_gpu[gaps.after]
    last_end = values_at(ends.end, last, missing=_NO_END)
    is_on_device = values_at(ends.track, last) == device_of_gap
    return np.where(is_on_device & (last_end > gaps.start), last_end, _NO_END)


def _count_ended(
    gpu_events: GpuEvents, gaps: Gaps, scope: Scope, before: Int64Array
) -> Int64Array:
    """Return the number of events that ended before a time on the track of each gap, (k,).

    All events on earlier tracks count, too. So the number is also the index in `_event_ends` of the
    first event that ended later.

    Args:
        gpu_events: the GPU events.
        gaps: the gaps.
        scope: the scope of the tracks.
        before: the time for each gap, ns, (k,).
    """
    track = find_tracks(gpu_events, scope).of_gpu[gaps.after]
    ends = _event_ends(gpu_events, scope)
    return sorted_groups.items_before(
        group=ends.track, time=ends.end, query_group=track, query_time=before
    )
