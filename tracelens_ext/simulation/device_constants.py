"""The usual delays of each device (latency, gap, tail), and delays that nothing explains."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.simulation.blocking_calls import Blocks
from tracelens_ext.simulation.nodes import Nodes
from tracelens_ext.trace import BoolArray, Int64Array, IntArray
from tracelens_ext.trace.gpu_events import GpuTracks
from tracelens_ext.trace.integer_sorting import begins_run
from tracelens_ext.trace.intervals import DisjointIntervals, covered, overlaps_any

#: Longer delays of launches do not count in the measurement of the latency.
_LONGEST_LATENCY_NS: Final = 1_000_000
#: A call usually returns some microseconds after the work that it waits for. If it takes longer, it
#: waited for something else that is not in the file, and takes as long in every replay.
_LONGEST_TAIL_NS: Final = 200_000
#: A device that does nothing for longer than this, though it has work, waits for something that is
#: not in the file, and does so in every replay.
_SHORTEST_STANDSTILL_NS: Final = 200_000
#: The device may be busy for this share of a standstill at most.
_BUSY_IN_STANDSTILL: Final = 0.1
#: The latency is this quantile of the delays of launches.
_LATENCY_QUANTILE: Final = 0.2
_MEDIAN: Final = 0.5


class DeviceConstants(NamedTuple):
    """The usual delays of a device, ns."""

    latency: int  #: from a call to the start of its work on an idle stream
    gap: int  #: between two nodes on a busy stream
    tail: int  #: from the end of the awaited work to the return of the call


#: The delays of a device that the window does not show.
_USUAL: Final = DeviceConstants(latency=5_000, gap=1_000, tail=5_000)


class Returns(NamedTuple):
    """The returns of c calls that wait for work. Times are ns since the window's start."""

    block: Int64Array  #: the number of the call, (c,)
    device: IntArray  #: the device of the first node that it waits for, (c,)
    start: Int64Array  #: (c,)
    end: Int64Array  #: (c,)
    work_end: Int64Array  #: the end of all work that it waits for, (c,)

    @property
    def tail(self) -> Int64Array:
        """The time from the end of the work, or from the call, to the return, ns, (c,)."""
        return self.end - np.maximum(self.start, self.work_end)

    @property
    def is_unusual(self) -> BoolArray:
        """True if the tail is unusually long, (c,)."""
        return self.tail > _LONGEST_TAIL_NS


def find_returns(nodes: Nodes, blocks: Blocks, tracks: GpuTracks) -> Returns:
    """Return the returns of the blocking calls that wait for work."""
    block, node = blocks.awaited.T
    first = np.flatnonzero(begins_run(block))
    # The maximum of each run of pairs that belong to the same block.
    work_end = nodes.reach[node]
    if len(first):
        work_end = np.maximum.reduceat(work_end, first)
    block = block[first]
    return Returns(
        block=block,
        device=tracks.device[nodes.track[node[first]]],
        start=blocks.start[block],
        end=blocks.end[block],
        work_end=work_end,
    )


def unusual_tails(returns: Returns, block_count: int) -> Int64Array:
    """Return the tail of each block if it is unusually long, else 0, ns, (b,)."""
    tail = np.zeros(block_count, dtype=np.int64)
    tail[returns.block[returns.is_unusual]] = returns.tail[returns.is_unusual]
    return tail


def measure_constants(
    nodes: Nodes, returns: Returns, tracks: GpuTracks
) -> dict[int, DeviceConstants]:
    """Return the usual delays of each device, by its number."""
    device_of_node = tracks.device[nodes.track]
    delay = nodes.start - nodes.call
    is_short = delay < _LONGEST_LATENCY_NS
    starts_idle = _starts_idle_stream(nodes) & is_short
    follows_work = nodes.follows_event & nodes.follows
    gap = nodes.start - nodes.reach_before
    constants: dict[int, DeviceConstants] = {}
    for device in np.unique(tracks.device).tolist():
        is_of_device = device_of_node == device
        latency = _quantile(
            sample=delay[starts_idle & is_of_device],
            share=_LATENCY_QUANTILE,
            default=_USUAL.latency,
        )
        # A node called long before the end of the node before it was in the queue at this end, so
        # the time between the two is the gap of a busy stream.
        latest_call = nodes.reach_before - 2 * latency
        is_queued = follows_work & (nodes.call < latest_call)
        constants[device] = DeviceConstants(
            latency=latency,
            gap=_quantile(
                sample=gap[is_queued & is_of_device], share=_MEDIAN, default=_USUAL.gap
            ),
            tail=_tail_of_device(returns, device),
        )
    return constants


def _starts_idle_stream(nodes: Nodes) -> BoolArray:
    """Return which nodes are the first ones of a call to a stream without work, (n,)."""
    by_launch = np.lexsort((nodes.start, nodes.launch))
    ordered_launch = nodes.launch[by_launch]
    is_first_of_launch = np.zeros(len(nodes), dtype=bool)
    is_first_of_launch[by_launch] = begins_run(ordered_launch)
    starts_idle = is_first_of_launch
    starts_idle &= nodes.follows_event
    starts_idle &= nodes.is_called
    starts_idle &= nodes.reach_before <= nodes.call
    return starts_idle


def _tail_of_device(returns: Returns, device: int) -> int:
    """Return the median tail of the calls that had to wait.

    If no call had to wait, it is the median duration of all calls.
    """
    is_chosen = (returns.device == device) & ~returns.is_unusual
    duration = returns.end - returns.start
    usual_duration = _quantile(
        sample=duration[is_chosen], share=_MEDIAN, default=_USUAL.tail
    )
    had_to_wait = is_chosen & (returns.work_end > returns.start)
    after_work = returns.end - returns.work_end
    return _quantile(after_work[had_to_wait], _MEDIAN, usual_duration)


def _quantile(sample: Int64Array, share: float, default: int) -> int:
    """Return a quantile of a sample, rounded down to a value of the sample."""
    if not len(sample):
        return default
    return int(np.quantile(sample, share, method="lower"))


def find_earliest_starts(
    nodes: Nodes, tracks: GpuTracks, latency: Int64Array, waited_until: Int64Array
) -> Int64Array:
    """Return the recorded start of nodes that waited for work that is not in the file, else 0.

    These are nodes that were called before the window and did not follow the work before them at
    once, and the first node of a stream if it started late though its device was mostly idle.

    Args:
        nodes: the n nodes.
        tracks: the streams.
        latency: the latency of the device of each node, ns, (n,).
        waited_until: the ends of waits for work from before the recording.

    Returns:
        The earliest start of each node, ns since the window's start, (n,).
    """
    is_first = ~nodes.follows
    late_ns = 2 * latency
    follows_late = nodes.start - nodes.reach_before > late_ns
    waited = ~nodes.is_called & (is_first | follows_late)
    waited |= np.isin(nodes.start, waited_until)

    device = tracks.device[nodes.track]
    delay = nodes.start - nodes.call
    is_late_first = is_first & nodes.is_called & (delay > late_ns)
    for node in np.flatnonzero(is_late_first).tolist():
        on_device = device == device[node]
        busy_ns = covered(
            start=nodes.start[on_device],
            end=nodes.end[on_device],
            window_start=nodes.call[[node]],
            window_end=nodes.start[[node]],
        )
        waited[node] |= 2 * busy_ns[0] < delay[node]
    return np.where(waited & nodes.is_event, nodes.start, 0)


def find_standstill(
    nodes: Nodes, tracks: GpuTracks, could_start: Int64Array, frozen: DisjointIntervals
) -> Int64Array:
    """Return by how much nodes start late while their device does nothing, ns, (n,).

    A kernel is called at 10 µs and follows a kernel that ends at 20 µs, but starts at 2,000 µs.
    With a gap of 1 µs, it could start at 21 µs, so the standstill is 1,979 µs if nothing else runs
    on the device.

    Args:
        nodes: the n nodes. Only nodes that were called, and do not follow a wait, can be late.
        tracks: the streams.
        could_start: when each node could have started, (n,).
        frozen: times that every replay leaves as recorded; no standstill overlaps them.
    """
    late_ns = nodes.start - could_start
    is_candidate = nodes.follows_event & nodes.is_called
    is_candidate &= late_ns > _SHORTEST_STANDSTILL_NS
    candidates = np.flatnonzero(is_candidate)
    device = tracks.device[nodes.track]
    standstill = np.zeros(len(nodes), dtype=np.int64)
    for number in np.unique(device[candidates]).tolist():
        late_nodes = candidates[device[candidates] == number]
        on_device = device == number
        busy_ns = covered(
            start=nodes.start[on_device],
            end=nodes.end[on_device],
            window_start=could_start[late_nodes],
            window_end=nodes.start[late_nodes],
        )
        stands_still = busy_ns <= _BUSY_IN_STANDSTILL * late_ns[late_nodes]
        late_nodes = late_nodes[stands_still]
        standstill[late_nodes] = late_ns[late_nodes]
    standstill[overlaps_any(could_start, nodes.start, frozen)] = 0
    return standstill
