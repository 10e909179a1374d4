"""The dependency graph of a trace: GPU work by stream, its dependencies, and blocking calls.

A node is a GPU event, a wait of a stream (which takes no time), or a hole (lost GPU events). A
block is a call that returns when the work that it waits for has ended. Dependencies that the
recorded times contradict are left out. Work only depends on earlier calls, so running everything in
the order of calls respects all dependencies.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from tracelens_ext.simulation.blocking_calls import Blocks, find_blocks
from tracelens_ext.simulation.device_constants import (
    find_earliest_starts,
    find_returns,
    find_standstill,
    measure_constants,
    unusual_tails,
)
from tracelens_ext.simulation.host_clocks import find_clocks
from tracelens_ext.simulation.nodes import (
    Unrecorded,
    nodes_of_events,
    unrecorded_in,
    with_holes,
)
from tracelens_ext.simulation.stream_waits import add_waits
from tracelens_ext.simulation.sync_calls import SyncCalls
from tracelens_ext.simulation.window import Window
from tracelens_ext.trace import NONE, Int64Array
from tracelens_ext.trace.gpu_events import GpuEvents, find_tracks


class DependencyGraph:
    """The n nodes of a window by stream, its b blocks by start, and the clocks of the host.

    Args:
        gpu_events: the GPU events.
        window: the window, ns since the trace's first event.
        device: the only device whose work counts; None: all devices.
        closes: True if host time goes on to the end of the window, after the last call.

    Attributes:
        nodes: the nodes as recorded. The columns `event`, `launch`, `track`, `call`, `key` and
            `start` are attributes of the graph, too; see `Nodes`, (n,).
        tracks: the streams that `track` is an index into.
        clocks: the clock of each thread, and the end of each clock.
        clock: the clock of the call of each node, (n,).
        duration: the recorded duration of each node, ns, (n,).
        waiting: the part of `duration` in which a collective waits for other ranks, ns, (n,).
        earliest: the earliest start of each node, no matter when it was called, (n,).
        waits: pairs of a node and the node that it waits for, (w, 2).
        wait_known: True if the recording tells the pair, (w,).
        block_start, block_end, block_clock: start, end and clock of each block, (b,).
        awaited: pairs of a block and a node that it waits for, (a, 2).
        awaited_known: True if the recording tells the pair, (a,).
        unusual_tail: the time from the end of GPU work to the return of each block if it is
            unusually long, else 0, (b,).
        standstill: the time by which each node starts late, if the device did nothing for an
            unusually long time before it, else 0, (n,).
        contradicted: number of waits that recorded times contradict.
        frozen: times that every replay leaves as recorded.
        constants: latency, gap and tail of each device.
    """

    def __init__(
        self,
        gpu_events: GpuEvents,
        window: Window,
        device: int | None,
        *,
        closes: bool,
    ) -> None:
        self.gpu_events = gpu_events
        self.window = window
        self.tracks = find_tracks(gpu_events, "stream")
        self.clocks = find_clocks(gpu_events, window)
        if closes:
            self.clocks.end[:1] = window.length
        calls = SyncCalls(gpu_events=gpu_events, window=window, tracks=self.tracks)
        unrecorded = unrecorded_in(gpu_events, window)
        self.frozen = unrecorded.frozen
        self._set_nodes(device, calls, unrecorded)
        blocks = self._set_blocks(calls)
        self._set_delays(blocks, unrecorded)

    def _set_nodes(
        self, device: int | None, calls: SyncCalls, unrecorded: Unrecorded
    ) -> None:
        """Find the nodes, and the waits of streams for one another."""
        nodes = nodes_of_events(
            self.gpu_events, self.window, device, self.tracks, self.clocks
        )
        nodes = with_holes(nodes, unrecorded.holes)
        stream_waits = add_waits(nodes, calls)
        nodes = stream_waits.nodes
        self.waits = stream_waits.waits
        self.wait_known = stream_waits.is_known
        self.contradicted = stream_waits.contradicted
        self.nodes = nodes
        self.event = nodes.event
        self.launch = nodes.launch
        self.track = nodes.track
        self.call = nodes.call
        self.key = nodes.key
        self.start = nodes.start
        self.duration = nodes.end - nodes.start
        self.waiting = np.zeros_like(nodes.start)
        # The thread of a node without a launch means nothing; such a node is on the first clock.
        thread_of_launch = self.gpu_events.trace.thread[nodes.launch]
        clock_of_launch = self.clocks.of_thread[thread_of_launch]
        self.clock = np.where(nodes.launch == NONE, 0, clock_of_launch)

    def _set_blocks(self, calls: SyncCalls) -> Blocks:
        """Find the calls that return when the work that they wait for has ended."""
        blocks = find_blocks(
            gpu_events=self.gpu_events,
            nodes=self.nodes,
            calls=calls,
            tracks=self.tracks,
            clocks=self.clocks,
            frozen=self.frozen,
        )
        self.block_start = blocks.start
        self.block_end = blocks.end
        self.block_clock = blocks.clock
        self.awaited = blocks.awaited
        self.awaited_known = blocks.awaited_known
        self.contradicted += blocks.contradicted
        return blocks

    def _set_delays(self, blocks: Blocks, unrecorded: Unrecorded) -> None:
        """Measure the constants of each device, and find the delays that they do not explain."""
        returns = find_returns(self.nodes, blocks, self.tracks)
        self.unusual_tail = unusual_tails(returns, len(blocks.start))
        self.constants = measure_constants(self.nodes, returns, self.tracks)
        self.earliest = find_earliest_starts(
            nodes=self.nodes,
            tracks=self.tracks,
            latency=self.latency,
            waited_until=unrecorded.waited_until,
        )
        self.standstill = find_standstill(
            nodes=self.nodes,
            tracks=self.tracks,
            could_start=self._could_start(),
            frozen=self.frozen,
        )

    @property
    def latency(self) -> Int64Array:
        """The launch latency of the device of each node, ns, (n,)."""
        return self._by_device(
            {device: constants.latency for device, constants in self.constants.items()}
        )

    @property
    def gap(self) -> Int64Array:
        """The gap between two nodes on a busy stream of the device of each node, ns, (n,)."""
        return self._by_device(
            {device: constants.gap for device, constants in self.constants.items()}
        )

    @property
    def tail(self) -> Int64Array:
        """The time from the end of each node to the return of a call that waits, ns, (n,)."""
        return self._by_device(
            {device: constants.tail for device, constants in self.constants.items()}
        )

    def _by_device(self, value_of_device: dict[int, int]) -> Int64Array:
        """Return the value of the device of each node, (n,)."""
        devices = self.tracks.device.tolist()
        value_of_track = [value_of_device[device] for device in devices]
        return np.array(value_of_track, dtype=np.int64)[self.track]

    def _could_start(self) -> Int64Array:
        """Return when each node could have started, after its call and its stream's work, (n,)."""
        nodes = self.nodes
        after_call = np.where(nodes.is_called, nodes.call + self.latency, 0)
        after_work = np.where(nodes.follows, nodes.reach_before + self.gap, 0)
        could_start = np.maximum(after_call, after_work)
        return np.maximum(could_start, self.earliest)

    @cached_property
    def node_of_event(self) -> Int64Array:
        """The node of each GPU event, `NONE` outside the window, (g,)."""
        node_of_event = np.full(len(self.gpu_events), NONE)
        nodes_of_events = np.flatnonzero(self.nodes.is_event)
        events = self.event[nodes_of_events]
        node_of_event[events] = nodes_of_events
        return node_of_event

    @property
    def edges(self) -> dict[str, int]:
        """The number of dependencies of each kind."""
        known_waits = int(self.wait_known.sum())
        return {
            "launch": int(self.nodes.is_called.sum()),
            "stream": int(self.nodes.follows.sum()),
            "wait known": known_waits,
            "wait assumed": len(self.waits) - known_waits,
            "contradicted": self.contradicted,
            "sync": len(self.awaited),
        }
