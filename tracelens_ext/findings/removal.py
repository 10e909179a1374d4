"""What goes from the simulated program when the problem of a finding is fixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from tracelens_ext.analysis.iterations.selection import named_iterations
from tracelens_ext.findings.finding import Claim, Intervals
from tracelens_ext.findings.texts import Remedy
from tracelens_ext.simulation.dependency_graph import DependencyGraph
from tracelens_ext.simulation.scenarios import Removed
from tracelens_ext.simulation.simulation import Simulation
from tracelens_ext.trace import NONE, BoolArray, Int64Array
from tracelens_ext.trace.gpu_events import find_gaps
from tracelens_ext.trace.grouping import sums
from tracelens_ext.trace.lookup import values_at

#: Starts and ends of times of one clock of the CPU, since the window's start.
Spans = tuple[Int64Array, Int64Array]
#: What is left of the CPU's time where it gets rid of a part only.
_PARTLY: Final = 0.5


def removed_by(simulation: Simulation, claim: Claim, remedy: Remedy) -> Removed:
    """Return what goes with the attributed time of a finding.

    GPU events become shorter by it, and the CPU needs no time while the GPU idles. What overlaps
    leaves its streams. Gaps between kernels that were called in time get shorter. Where launches
    go, so does the time in their operations. Where the CPU
    waited, the idle time goes to its end: also what the call needs to return, and the launch after
    it to start.
    """
    program = simulation.program
    is_busy = claim.intervals.event != NONE
    shorter = _shorter_nodes(program, claim.intervals.chosen(is_busy))
    beside: BoolArray | None = None
    if remedy is Remedy.OVERLAPS:
        beside = shorter > 0
        shorter = np.where(beside, program.duration - program.waiting, 0)

    is_in_window = claim.intervals.end > program.window[0]
    idle = claim.intervals.chosen(~is_busy & is_in_window)
    clock = np.where(idle.thread == NONE, 0, program.clocks.of_thread[idle.thread])
    host_times = _HostTimes(program, clock, idle.start, idle.end)
    if remedy is Remedy.REMOVES_LAUNCHES:
        host_times.add(_operations_of_launches(program, shorter))
    if remedy is Remedy.REMOVES_EXTRA_LAUNCHES:
        host_times.add(_operations_of_extra_launches(program, claim.events))
    gaps = find_gaps(program.work, "device")
    event_after = gaps.after[idle.gap]
    node_after = program.node_of_event[event_after]
    sooner: Int64Array | int = 0
    tail: Int64Array | int = 0
    standstill: Int64Array | int = 0
    freed: BoolArray | None = None
    if len(idle.gap) and program.standstill.any():
        standstill = _sums_of_nodes(program, node_after, idle.end - idle.start)
    if remedy is Remedy.WAITS_NO_LONGER:
        start = idle.start - program.window[0]
        end = idle.end - program.window[0]
        sooner = _sooner_starts(simulation, node_after, start, end)
        blocks = _blocks_before(program, clock, end)
        tail = _shorter_tails(simulation, blocks, start)
        freed = np.zeros(len(program.block_start), dtype=bool)
        freed[blocks[blocks != NONE]] = True
    return Removed(
        shorter=shorter,
        beside=beside,
        host=host_times.by_clock(),
        sooner=sooner,
        tail=tail,
        standstill=standstill,
        shorter_gap=_shorter_gaps(program, node_after, idle),
        freed_blocks=freed,
    )


def partly_removed(removed: Removed) -> Removed:
    """Return what goes if the CPU gets rid of half of its time only, and still waits."""
    return replace(
        removed,
        freed_blocks=None,
        host_factor=_PARTLY,
        sooner=removed.sooner // 2,
        tail=removed.tail // 2,
        standstill=removed.standstill // 2,
        shorter_gap=removed.shorter_gap // 2,
    )


def _sums_of_nodes(
    program: DependencyGraph, node: Int64Array, ns: Int64Array
) -> Int64Array:
    """Return the sum of each node; what is of no node (`NONE`) is left out, (n,)."""
    return sums(node + 1, ns, len(program.duration) + 1)[1:]


def _shorter_gaps(
    program: DependencyGraph, node_after: Int64Array, idle: Intervals
) -> Int64Array | int:
    """Return by how much the gap before each node is shorter, ns, (n,).

    Idle time before work that was called long before is a gap between two kernels on the GPU.
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
    """Return the rows of operations whose launches go: of events that lose most of their time.

    Of a launch that no operation encloses it is the launch itself.
    """
    trace = program.work.trace
    loses_most = 2 * shorter > program.duration
    has_launch = program.launch != NONE
    nodes = np.flatnonzero(loses_most & has_launch)
    event = program.event[nodes]
    launch = program.launch[nodes]
    operation = program.work.tree.cpu_op_of_gpu[event]
    outermost_row = np.where(operation == NONE, launch, operation)
    rows = np.unique(outermost_row)
    is_recorded = rows < trace.recorded
    return rows[is_recorded]


def _operations_of_extra_launches(
    program: DependencyGraph, events: Int64Array
) -> Int64Array:
    """Return the rows of operations whose launches are more than an iteration usually has.

    They are the last ones of each iteration that launched one of the events. Of a launch that no
    operation encloses it is the launch itself.
    """
    work = program.work
    iterations = named_iterations(work.tree, None)[0]
    launched_in = iterations.of_gpu
    event_of_launch = np.flatnonzero(work.tree.linked)
    launch_of_event = work.tree.launch_of_gpu[event_of_launch]
    _, first = np.unique(launch_of_event, return_index=True)
    event: Int64Array = event_of_launch[first]
    event = event[launched_in[event] != NONE]
    iteration = launched_in[event]
    counts = np.bincount(iteration, minlength=len(iterations))
    if not iterations.whole.any():
        return np.zeros(0, dtype=np.int64)
    usual = int(np.median(counts[iterations.whole]))
    rows = [event[:0]]
    slow = np.unique(launched_in[events])
    for number in slow[slow != NONE].tolist():
        of_iteration = event[iteration == number]
        launch_row = work.tree.launch_of_gpu[of_iteration]
        launched_at = work.trace.ts[launch_row]
        order = np.argsort(launched_at, kind="stable")
        extra = of_iteration[order][usual:]
        operation = work.tree.cpu_op_of_gpu[extra]
        launch = work.tree.launch_of_gpu[extra]
        outermost_row = np.where(operation == NONE, launch, operation)
        rows.append(np.unique(outermost_row))
    chosen: Int64Array = np.concatenate(rows).astype(np.int64)
    is_recorded = chosen < work.trace.recorded
    return chosen[is_recorded]


class _HostTimes:
    """Times of the CPU that go, with the clock of each."""

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
        trace = self.program.work.trace
        thread = trace.thread[rows]
        clock = self.program.clocks.of_thread[thread]
        start = trace.ts[rows]
        end = trace.end_of(rows)
        self.clock = np.append(self.clock, clock)
        self.start = np.append(self.start, start)
        self.end = np.append(self.end, end)

    def by_clock(self) -> Sequence[Spans]:
        """Return the times of each clock since the window's start."""
        window_start = self.program.window[0]
        start = np.maximum(self.start - window_start, 0)
        end = np.maximum(self.end - window_start, 0)
        result = []
        for clock in range(len(self.program.clocks.end)):
            is_of_clock = self.clock == clock
            spans = (start[is_of_clock], end[is_of_clock])
            result.append(spans)
        return result


def _sooner_starts(
    simulation: Simulation, node_after: Int64Array, start: Int64Array, end: Int64Array
) -> Int64Array:
    """Return by how much each node starts sooner after its call: at most its latency, ns, (n,).

    That is the part of the idle time before it in which it was called already.
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
    """Return the last block of its clock that began before the end of each idle time, `NONE`."""
    result = np.full(len(end), NONE, dtype=np.int64)
    for number in range(len(program.clocks.end)):
        is_of_clock = clock == number
        blocks = np.flatnonzero(program.block_clock == number)
        block_start = program.block_start[blocks]
        blocks_before = np.searchsorted(block_start, end[is_of_clock])
        result[is_of_clock] = values_at(blocks, blocks_before - 1)
    return result


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
