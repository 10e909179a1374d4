"""GPU events whose recorded end cannot be right.

One event that is most of the GPU time of its device, while the CPU goes on launching and none of
those launches has GPU work in the file, is not a slow kernel. The profiler lost events, or wrote a
wrong end. Nothing can be said of the time that such an event covers.
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

#: An event with more of the GPU time of its device, as a share, is most of it.
_MOST: Final = 0.5
#: So many launches without GPU work, at least, begin during a suspect event; graphs launch many
#: kernels each.
_FEWEST_LOST_LAUNCHES: Final = 10
_FEWEST_LOST_GRAPHS: Final = 3


@dataclass(frozen=True, eq=False)
class SuspectEvents:
    """GPU events whose recorded end cannot be right, s of them.

    Attributes:
        event: their indices among the GPU events, (s,).
        lost_launches: how many launches without GPU work begin during each, (s,).
    """

    event: Int64Array
    lost_launches: Int64Array


@cached_per_object
def find_suspects(work: GpuEvents) -> SuspectEvents:
    """Return the GPU events that cover most of the GPU time, and launches without GPU work."""
    device = find_tracks(work, "device").of_gpu
    total_ns = sums(device, work.duration, len(find_tracks(work, "device")))
    events = np.flatnonzero(work.duration > _MOST * total_ns[device])
    launches = find_launches(work)
    lost_at = work.trace.ts[launches.rows[launches.lost]]
    is_graph = launches.is_graph[launches.lost]
    lost_launches = _begun_during(work, events, lost_at)
    lost_graphs = _begun_during(work, events, lost_at[is_graph])
    is_suspect = lost_launches >= _FEWEST_LOST_LAUNCHES
    is_suspect |= lost_graphs >= _FEWEST_LOST_GRAPHS
    return SuspectEvents(events[is_suspect], lost_launches[is_suspect])


def _begun_during(work: GpuEvents, events: Int64Array, times: Int64Array) -> Int64Array:
    """Return how many of some ascending times lie within each GPU event."""
    before_start = np.searchsorted(times, work.start[events])
    before_end = np.searchsorted(times, work.end[events])
    return before_end - before_start
