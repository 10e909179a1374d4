"""GPU events whose recorded end cannot be right.

An event is suspect if it takes most of the GPU time of its device, and if the CPU keeps launching
during it although none of these launches has GPU work in the file. Such an event is not a slow
kernel: the profiler lost events, or wrote a wrong end. The time that it covers cannot be analyzed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from tracelens_ext.trace import Int64Array
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.gpu_events import GpuEvents, find_tracks
from tracelens_ext.trace.grouping import sums
from tracelens_ext.trace.launches import find_launches

#: A suspect event takes more than this share of the GPU time of its device.
_SUSPECT_SHARE: Final = 0.5
#: At least this many launches without GPU work begin during a suspect event. Fewer launches of
#: graphs suffice, because each launches many kernels.
_FEWEST_LOST_LAUNCHES: Final = 10
_FEWEST_LOST_GRAPHS: Final = 3


@dataclass(frozen=True, eq=False)
class SuspectEvents:
    """GPU events whose recorded end cannot be right, s of them.

    Attributes:
        event: index of each among the GPU events, (s,).
        lost_launches: number of launches without GPU work that begin during each, (s,).
    """

    event: Int64Array
    lost_launches: Int64Array


@cached_per_object
def find_suspects(gpu_events: GpuEvents) -> SuspectEvents:
    """Return the GPU events that take most of the GPU time and cover launches without GPU work."""
    device = find_tracks(gpu_events, "device").of_gpu
    total_ns = sums(device, gpu_events.duration, len(find_tracks(gpu_events, "device")))
    events = np.flatnonzero(gpu_events.duration > _SUSPECT_SHARE * total_ns[device])
    launches = find_launches(gpu_events)
    lost_at = gpu_events.trace.ts[launches.rows[launches.lost]]
    is_graph = launches.is_graph[launches.lost]
    lost_launches = _times_during(gpu_events, events, lost_at)
    lost_graphs = _times_during(gpu_events, events, lost_at[is_graph])
    is_suspect = lost_launches >= _FEWEST_LOST_LAUNCHES
    is_suspect |= lost_graphs >= _FEWEST_LOST_GRAPHS
    return SuspectEvents(events[is_suspect], lost_launches[is_suspect])


def _times_during(
    gpu_events: GpuEvents, events: Int64Array, times: Int64Array
) -> Int64Array:
    """Return the number of times, which ascend, that lie within each of k GPU events, (k,)."""
    before_start = np.searchsorted(times, gpu_events.start[events])
    before_end = np.searchsorted(times, gpu_events.end[events])
    return before_end - before_start
