"""What a replay knows of a trace: GPU work by stream, what it waits for, and what blocks the host.

A node is a GPU event, a wait of a stream (of no length), or a hole. A block is a call that returns
when what it waits for is done. An edge holds only where the recorded times do not contradict it.
Work waits for earlier calls only, so the order of calls is an order of all edges.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from tracelens_ext.simulation.blocking_calls import find_blocks
from tracelens_ext.simulation.device_constants import (
    find_earliest_starts,
    find_returns,
    find_standstill,
    measure_constants,
    unusual_tails,
)
from tracelens_ext.simulation.host_clocks import find_clocks
from tracelens_ext.simulation.nodes import nodes_of_events, unrecorded_in, with_holes
from tracelens_ext.simulation.stream_waits import add_waits
from tracelens_ext.simulation.sync_calls import SyncCalls
from tracelens_ext.simulation.window import Window
from tracelens_ext.trace import NONE, Int64Array
from tracelens_ext.trace.gpu_events import GpuEvents, find_tracks


class DependencyGraph:
    """The n nodes of a window by stream, its b blocks by start, and the clocks of the host.

    Args:
        work: the GPU events.
        window: its start and end, ns since the trace's first event.
        device: the only device that is asked about.
        closes: whether the host's time goes on to the end of the window, after the last call.

    Attributes:
        nodes: the columns of the nodes that are recorded. `event`, `launch`, `track`, `call`,
            `key` and `start` are attributes of the graph too; see `Nodes`, (n,).
        tracks: the streams that `track` is an index into.
        clocks: the clock of each thread, and when each clock ends.
        clock: the clock of the call of each node, (n,).
        duration, waiting: as recorded; `waiting` is that for other ranks, (n,).
        earliest: when each node starts at the earliest, whatever was called, (n,).
        waits, wait_known: nodes and what they wait for, (w, 2); whether the recording says so.
        block_start, block_end, block_clock: of each block, (b,).
        awaited, awaited_known: blocks and nodes that they wait for, (a, 2); whether the recording
            says so.
        unusual_tail: how long each block takes after what it waits for, where that is too long to
            be usual; 0 for others, (b,).
        standstill: how long each node starts later than all that it is known to wait for, while the
            device does nothing; 0 for what is usual, (n,).
        contradicted: waits that the recorded times contradict.
        frozen: starts and ends of host time that stays as recorded.
        constants: by device what starting and ending work takes.
    """

    def __init__(
        self,
        work: GpuEvents,
        window: Window,
        device: int | None,
        *,
        closes: bool,
    ) -> None:
        self.work = work
        self.window = window
        self.tracks = find_tracks(work, "stream")
        self.clocks = find_clocks(work, window)
        if closes:
            self.clocks.end[:1] = window.length
        calls = SyncCalls(work=work, window=window, tracks=self.tracks)
        unrecorded = unrecorded_in(work, window)
        self.frozen = unrecorded.frozen

        nodes = nodes_of_events(work, window, device, self.tracks, self.clocks)
        nodes = with_holes(nodes, unrecorded.holes)
        stream_waits = add_waits(nodes, calls)
        nodes = stream_waits.nodes
        self.waits = stream_waits.waits
        self.wait_known = stream_waits.is_known
        self.nodes = nodes
        self.event = nodes.event
        self.launch = nodes.launch
        self.track = nodes.track
        self.call = nodes.call
        self.key = nodes.key
        self.start = nodes.start
        self.duration = nodes.end - nodes.start
        self.waiting = np.zeros_like(nodes.start)
        clock_of_launch = self.clocks.of_thread[work.trace.thread[nodes.launch]]
        self.clock = np.where(nodes.launch == NONE, 0, clock_of_launch)

        blocks = find_blocks(
            work=work,
            nodes=nodes,
            calls=calls,
            tracks=self.tracks,
            clocks=self.clocks,
            frozen=unrecorded.frozen,
        )
        self.block_start = blocks.start
        self.block_end = blocks.end
        self.block_clock = blocks.clock
        self.awaited = blocks.awaited
        self.awaited_known = blocks.awaited_known
        self.contradicted = stream_waits.contradicted + blocks.contradicted

        returns = find_returns(nodes, blocks, self.tracks)
        self.unusual_tail = unusual_tails(returns, len(blocks.start))
        self.constants = measure_constants(nodes, returns, self.tracks)
        self.earliest = find_earliest_starts(
            nodes=nodes,
            tracks=self.tracks,
            latency=self.latency,
            waited_until=unrecorded.waited_until,
        )
        self.standstill = find_standstill(
            nodes=nodes,
            tracks=self.tracks,
            could_start=self._could_start(),
            frozen=unrecorded.frozen,
        )

    @property
    def latency(self) -> Int64Array:
        """How long launches take on the device of each node, ns, (n,)."""
        return self._by_device(
            {device: constants.latency for device, constants in self.constants.items()}
        )

    @property
    def gap(self) -> Int64Array:
        """The time before each node on a busy stream of its device, ns, (n,)."""
        return self._by_device(
            {device: constants.gap for device, constants in self.constants.items()}
        )

    @property
    def tail(self) -> Int64Array:
        """How long a call that waits for each node takes after it, ns, (n,)."""
        return self._by_device(
            {device: constants.tail for device, constants in self.constants.items()}
        )

    def _by_device(self, value_of_device: dict[int, int]) -> Int64Array:
        """Return the value of the device of each node, (n,)."""
        devices = self.tracks.device.tolist()
        of_track = [value_of_device[device] for device in devices]
        return np.array(of_track, dtype=np.int64)[self.track]

    def _could_start(self) -> Int64Array:
        """When each node could start, by its call and by what it is known to wait for, (n,)."""
        nodes = self.nodes
        after_call = np.where(nodes.is_called, nodes.call + self.latency, 0)
        after_work = np.where(nodes.follows, nodes.reach_before + self.gap, 0)
        could_start = np.maximum(after_call, after_work)
        return np.maximum(could_start, self.earliest)

    @cached_property
    def node_of_event(self) -> Int64Array:
        """The node of each GPU event, `NONE` outside the window, (g,)."""
        node_of_event = np.full(len(self.work), NONE)
        nodes_of_events = np.flatnonzero(self.nodes.is_event)
        events = self.event[nodes_of_events]
        node_of_event[events] = nodes_of_events
        return node_of_event

    @property
    def edges(self) -> dict[str, int]:
        """How many edges of each kind there are."""
        known_waits = int(self.wait_known.sum())
        return {
            "launch": int(self.nodes.is_called.sum()),
            "stream": int(self.nodes.follows.sum()),
            "wait known": known_waits,
            "wait assumed": len(self.waits) - known_waits,
            "contradicted": self.contradicted,
            "sync": len(self.awaited),
        }
