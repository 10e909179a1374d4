"""What goes from the simulated program when the problem of a finding is fixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from tracelens_ext.analysis.iterations.named_iterations import named_iterations
from tracelens_ext.findings.finding import Claim, Intervals
from tracelens_ext.findings.texts import Remedy
from tracelens_ext.simulation.change import DelaySavings
from tracelens_ext.simulation.dependency_graph import DependencyGraph
from tracelens_ext.simulation.scenarios import Removed
from tracelens_ext.simulation.simulation import Simulation
from tracelens_ext.trace import NONE, BoolArray, Int64Array
from tracelens_ext.trace.gpu_events import find_gaps
from tracelens_ext.trace.grouping import sums
from tracelens_ext.trace.intervals import DisjointIntervals
from tracelens_ext.trace.lookup import values_at

#: The share of the CPU's time that remains if the CPU becomes only partly faster.
_PARTLY: Final = 0.5


def removed_by(simulation: Simulation, claim: Claim, remedy: Remedy) -> Removed:
    """Return what the fix of a finding removes from the program.

    Within the attributed time, GPU events become shorter, and the CPU needs no time where the GPU
    idles. The gap before a kernel that had been called in time becomes shorter, too. The remedy
    decides what else is removed:

    * If work overlaps, it no longer holds up other streams.
    * If launches disappear, the CPU time of the operations around them disappears, too.
    * If the CPU no longer waits, all of the idle time disappears: also the time that the call needs
      to return, and the latency of the launch after it.
    """
    program = simulation.program
    is_busy = claim.intervals.event != NONE
    shorter = _shorter_nodes(program, claim.intervals.chosen(is_busy))
    overlapped: BoolArray | None = None
    if remedy is Remedy.OVERLAPS:
        overlapped = shorter > 0
        shorter = np.where(overlapped, program.duration - program.waiting, 0)

    is_in_window = claim.intervals.end > program.window[0]
    idle = claim.intervals.chosen(~is_busy & is_in_window)
    clock = np.where(idle.thread == NONE, 0, program.clocks.of_thread[idle.thread])
    host_times = _HostTimes(program, clock, idle.start, idle.end)
    if remedy is Remedy.REMOVES_LAUNCHES:
        host_times.add(_operations_of_launches(program, shorter))
    if remedy is Remedy.REMOVES_EXTRA_LAUNCHES:
        host_times.add(_operations_of_extra_launches(program, claim.events))
    gaps = find_gaps(program.gpu_events, "device")
    event_after = gaps.after[idle.gap]
    node_after = program.node_of_event[event_after]
    delays = DelaySavings(gap=_shorter_gaps(program, node_after, idle))
    if len(idle.gap) and program.standstill.any():
        standstill = _sums_of_nodes(program, node_after, idle.end - idle.start)
        delays = replace(delays, standstill=standstill)
    avoidable_blocks: BoolArray | None = None
    if remedy is Remedy.WAITS_NO_LONGER:
        start = idle.start - program.window[0]
        end = idle.end - program.window[0]
        blocks = _blocks_before(program, clock, end)
        delays = replace(
            delays,
            latency=_shorter_latencies(simulation, node_after, start, end),
            tail=_shorter_tails(simulation, blocks, start),
        )
        avoidable_blocks = np.zeros(len(program.block_start), dtype=bool)
        avoidable_blocks[blocks[blocks != NONE]] = True
    return Removed(
        shorter=shorter,
        overlapped=overlapped,
        host_intervals=host_times.by_clock(),
        delays=delays,
        avoidable_blocks=avoidable_blocks,
    )


def partly_removed(removed: Removed) -> Removed:
    """Return what disappears if the CPU saves only half of its time, and still waits."""
    return replace(
        removed,
        avoidable_blocks=None,
        host_factor=_PARTLY,
        delays=removed.delays.halved(),
    )


def _sums_of_nodes(
    program: DependencyGraph, node: Int64Array, ns: Int64Array
) -> Int64Array:
    """Return the sum of the values of each node, (n,); values of the node `NONE` are dropped."""
    return sums(node + 1, ns, len(program.duration) + 1)[1:]


def _shorter_gaps(
    program: DependencyGraph, node_after: Int64Array, idle: Intervals
) -> Int64Array | int:
    """Return by how much the gap before each node becomes shorter, ns, (n,).

    Only idle time before a node that had been called by then is such a gap: the GPU had work.
    """
    if not len(idle.gap):
        return 0
    call = values_at(program.call, node_after)
    called_at = call + program.window[0]
    is_called_before = called_at <= idle.start
    is_called_before &= node_after != NONE
    is_called_before &= call != NONE
    idle_ns = idle.end - idle.start
    length = np.where(is_called_before, idle_ns, 0)
    return _sums_of_nodes(program, node_after, length)


def _shorter_nodes(program: DependencyGraph, busy: Intervals) -> Int64Array:
    """Return by how much each node becomes shorter, ns, (n,)."""
    node = program.node_of_event[busy.event]
    return _sums_of_nodes(program, node, busy.end - busy.start)


def _operations_of_launches(
    program: DependencyGraph, shorter: Int64Array
) -> Int64Array:
    """Return the rows of the operations whose launches disappear.

    These are the operations that launched the nodes that lose most of their time. A launch outside
    of all operations counts itself.
    """
    trace = program.gpu_events.trace
    loses_most = 2 * shorter > program.duration
    has_launch = program.launch != NONE
    nodes = np.flatnonzero(loses_most & has_launch)
    event = program.event[nodes]
    launch = program.launch[nodes]
    operation = program.gpu_events.tree.cpu_op_of_gpu[event]
    outermost_row = np.where(operation == NONE, launch, operation)
    rows = np.unique(outermost_row)
    is_recorded = rows < trace.recorded
    return rows[is_recorded]


def _operations_of_extra_launches(
    program: DependencyGraph, events: Int64Array
) -> Int64Array:
    """Return the rows of the operations whose launches exceed the usual number in an iteration.

    In each iteration that launched one of the events, these are the last launches, beyond the
    median number in whole iterations. A launch outside of all operations counts itself.
    """
    gpu_events = program.gpu_events
    iterations = named_iterations(gpu_events.tree, None)[0]
    launched_in = iterations.of_gpu
    event_of_launch = np.flatnonzero(gpu_events.tree.linked)
    launch_of_event = gpu_events.tree.launch_of_gpu[event_of_launch]
    _, first = np.unique(launch_of_event, return_index=True)
    event: Int64Array = event_of_launch[first]
    event = event[launched_in[event] != NONE]
    iteration = launched_in[event]
    counts = np.bincount(iteration, minlength=len(iterations))
    if not iterations.whole.any():
        return np.zeros(0, dtype=np.int64)
    usual_count = int(np.median(counts[iterations.whole]))
    rows_of_iterations = [event[:0]]
    slow_iterations = np.unique(launched_in[events])
    for number in slow_iterations[slow_iterations != NONE].tolist():
        events_of_iteration = event[iteration == number]
        launch_row = gpu_events.tree.launch_of_gpu[events_of_iteration]
        launched_at = gpu_events.trace.ts[launch_row]
        order = np.argsort(launched_at, kind="stable")
        extra_events = events_of_iteration[order][usual_count:]
        operation = gpu_events.tree.cpu_op_of_gpu[extra_events]
        launch = gpu_events.tree.launch_of_gpu[extra_events]
        outermost_row = np.where(operation == NONE, launch, operation)
        rows_of_iterations.append(np.unique(outermost_row))
    rows: Int64Array = np.concatenate(rows_of_iterations).astype(np.int64)
    is_recorded = rows < gpu_events.trace.recorded
    return rows[is_recorded]


class _HostTimes:
    """Intervals of CPU time that disappear, with the clock of each."""

    def __init__(
        self,
        program: DependencyGraph,
        clock: Int64Array,
        start: Int64Array,
        end: Int64Array,
    ) -> None:
        self.program = program
        self.clock = clock
        self.start = start
        self.end = end

    def add(self, rows: Int64Array) -> None:
        """Add the times of host events."""
        trace = self.program.gpu_events.trace
        thread = trace.thread[rows]
        clock = self.program.clocks.of_thread[thread]
        start = trace.ts[rows]
        end = trace.end_of(rows)
        self.clock = np.append(self.clock, clock)
        self.start = np.append(self.start, start)
        self.end = np.append(self.end, end)

    def by_clock(self) -> Sequence[DisjointIntervals]:
        """Return the intervals of each clock, ns since the window's start."""
        window_start = self.program.window[0]
        start = np.maximum(self.start - window_start, 0)
        end = np.maximum(self.end - window_start, 0)
        intervals = []
        for clock in range(len(self.program.clocks.end)):
            is_of_clock = self.clock == clock
            intervals.append(
                DisjointIntervals(start=start[is_of_clock], end=end[is_of_clock])
            )
        return intervals


def _shorter_latencies(
    simulation: Simulation, node_after: Int64Array, start: Int64Array, end: Int64Array
) -> Int64Array:
    """Return by how much each node starts sooner after its call: at most its latency, ns, (n,).

    This is the part of the idle time before the node in which the node was already called.

    Args:
        simulation: the simulation of the program.
        node_after: the node that follows each idle time, `NONE` without one.
        start: the start of each idle time, ns since the window's start.
        end: the end of each idle time.
    """
    program = simulation.program
    has_call = program.call[node_after] != NONE
    has_call &= node_after != NONE
    node = node_after[has_call]
    called_at = program.call[node]
    waits_from = np.maximum(start[has_call], called_at)
    waited = end[has_call] - waits_from
    sooner = sums(node, waited, len(program.duration))
    clipped: Int64Array = np.clip(sooner, 0, simulation.replay.latency)
    return clipped


def _blocks_before(
    program: DependencyGraph, clock: Int64Array, end: Int64Array
) -> Int64Array:
    """Return the last block on a clock that began before the end of each idle time.

    Args:
        program: the program, whose blocks are sorted by start.
        clock: the clock to look at for each idle time.
        end: the end of each idle time, ns since the window's start.

    Returns:
        A block for each idle time, `NONE` without one.
    """
    last_blocks = np.full(len(end), NONE, dtype=np.int64)
    for number in range(len(program.clocks.end)):
        is_of_clock = clock == number
        blocks = np.flatnonzero(program.block_clock == number)
        block_start = program.block_start[blocks]
        begun = np.searchsorted(block_start, end[is_of_clock])
        last_blocks[is_of_clock] = values_at(blocks, begun - 1)
    return last_blocks


def _shorter_tails(
    simulation: Simulation, blocks: Int64Array, start: Int64Array
) -> Int64Array:
    """Return by how much each block returns sooner: at most its tail, ns, (b,)."""
    program = simulation.program
    sooner = np.zeros_like(program.block_start)
    has_block = blocks != NONE
    block = blocks[has_block]
    waited = program.block_end[block] - start[has_block]
    np.add.at(sooner, block, waited)
    tail = np.maximum(simulation.replay.tail, 0)
    clipped: Int64Array = np.clip(sooner, 0, tail)
    return clipped
