"""What starting and ending work takes on each device, and what only the recording explains."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.simulation.blocking_calls import Blocks
from tracelens_ext.simulation.nodes import Nodes
from tracelens_ext.trace import BoolArray, Int64Array, IntArray
from tracelens_ext.trace.gpu_events import GpuTracks
from tracelens_ext.trace.intervals import Union, begins_run, covered, overlaps_any

_LONGEST_LATENCY_NS: Final = 1_000_000
#: A call returns some microseconds after what it waits for. One that takes longer has waited for
#: something else, which is not in the file: it takes as long in every replay.
_LONGEST_TAIL_NS: Final = 200_000
#: A device that stands still for longer, though it has work, waits for something that is not in the
#: file: it does so in every replay.
_SHORTEST_STANDSTILL_NS: Final = 200_000
#: What the device does meanwhile, at most, as a share of that time.
_BUSY_IN_STANDSTILL: Final = 0.1
#: The quantile of the delays of launches that is taken as the latency.
_LATENCY_QUANTILE: Final = 0.2
_MEDIAN: Final = 0.5


class DeviceConstants(NamedTuple):
    """What starting and ending work takes on a device, ns."""

    latency: int  #: from a call to the start of its work on an idle stream
    gap: int  #: between two pieces of work of a stream
    tail: int  #: from the end of what a call waits for to its return


#: Where nothing in the window shows it.
_USUAL: Final = DeviceConstants(latency=5_000, gap=1_000, tail=5_000)


class Returns(NamedTuple):
    """When calls return that wait for work, c of them. Times are ns since the window's start."""

    block: Int64Array  #: the number of the call, (c,)
    device: IntArray  #: the device of the first node that it waits for, (c,)
    start: Int64Array
    end: Int64Array
    work_end: Int64Array  #: when all that it waits for has ended, (c,)

    @property
    def tail(self) -> Int64Array:
        """How long each call takes after what it waits for, ns, (c,)."""
        return self.end - np.maximum(self.start, self.work_end)

    @property
    def is_unusual(self) -> BoolArray:
        """True where that is too long to be usual, (c,)."""
        return self.tail > _LONGEST_TAIL_NS


def find_returns(nodes: Nodes, blocks: Blocks, tracks: GpuTracks) -> Returns:
    """Return when blocking calls return."""
    block, node = blocks.awaited.T
    first = np.flatnonzero(begins_run(block))
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
    """How long each block takes after what it waits for; 0 for what is usual, ns, (b,)."""
    tail = np.zeros(block_count, dtype=np.int64)
    tail[returns.block[returns.is_unusual]] = returns.tail[returns.is_unusual]
    return tail


def measure_constants(
    nodes: Nodes, returns: Returns, tracks: GpuTracks
) -> dict[int, DeviceConstants]:
    """Return the constants of each device, by its number."""
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
        # What was called long before the work before it ended was in the queue by then.
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
    """True for the first node of a call that was made when its stream had nothing to do, (n,)."""
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
    """Return the median tail of the calls that had to wait; of all, if none had to."""
    is_chosen = (returns.device == device) & ~returns.is_unusual
    duration = returns.end - returns.start
    usual_duration = _quantile(
        sample=duration[is_chosen], share=_MEDIAN, default=_USUAL.tail
    )
    had_to_wait = is_chosen & (returns.work_end > returns.start)
    after_work = returns.end - returns.work_end
    return _quantile(after_work[had_to_wait], _MEDIAN, usual_duration)


def _quantile(sample: Int64Array, share: float, default: int) -> int:
    """Return a value of a sample that is at least as large as a share of it."""
    if not len(sample):
        return default
    return int(np.quantile(sample, share, method="lower"))


def find_earliest_starts(
    nodes: Nodes, tracks: GpuTracks, latency: Int64Array, waited_until: Int64Array
) -> Int64Array:
    """Return the recorded start of what waited for work that is not in the file; else 0.

    That is what was called before the window and did not follow at once, and the first node of a
    stream that came late though the device had nothing else to do.

    Args:
        nodes: n of them.
        tracks: the streams.
        latency: of the device of each node, ns, (n,).
        waited_until: when waiting for work of before the recording ended.

    Returns:
        A time for each node, ns since the window's start, (n,).
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
    nodes: Nodes, tracks: GpuTracks, could_start: Int64Array, frozen: Union
) -> Int64Array:
    """How long nodes start later than they could, while their device stands still, ns, (n,).

    A kernel that is called at 10 µs, and follows one that ends at 20 µs, starts at 2,000 µs:
    with a gap of 1 µs, the device stands still for 1,979 µs if nothing else runs there.

    Args:
        nodes: n of them, of which those count that were called and follow no wait.
        tracks: the streams.
        could_start: when each could start, by all that it is known to wait for, (n,).
        frozen: times that stay as recorded, in which nothing stands still.
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
