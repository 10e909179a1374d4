"""The `[memory]` events of a trace, and the blocks that they allocate and free.

PyTorch records one for each allocation (`Bytes` above 0) and each free (below 0), with the address,
the device, and what was allocated and reserved on it after the event, when it is told to profile
memory. Format: `reportMemoryUsageToProfiler` and the allocation events of
`torch/csrc/profiler/collection.cpp`.

Addresses are used again and again: a block lives from its allocation to the next event at its
address. That is its free; where it is another allocation, the profiler has lost the free.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tracelens_ext.analysis.idle_time.cpu_activity import nested_events
from tracelens_ext.analysis.modules import MODULE_PREFIX, SEPARATOR, class_names
from tracelens_ext.lazy import pd
from tracelens_ext.trace import (
    NONE,
    BoolArray,
    EventKind,
    Int32Array,
    Int64Array,
    IntArray,
    Trace,
    grouping,
)
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.nesting import ROOT, nearest_marked

#: The number of the host; GPUs have theirs.
HOST = -1
#: Sizes and totals beyond this, 256 TB, are no such numbers: sums of them fit in 64 bits.
_MOST_BYTES = 2**48
_NAME = "[memory]"
_NO_NUMBER = np.iinfo(np.int64).min


@dataclass(frozen=True, eq=False)
class MemoryEvents:
    """The memory events of a trace, k of them, by device (d, the host first), time and place."""

    row: Int64Array  #: of each event in the trace, (k,)
    time: Int64Array  #: ns since the trace's first event, (k,)
    thread: IntArray  #: index into `Trace.threads`, (k,)
    size: Int64Array  #: bytes; above 0 allocates, below 0 frees, (k,)
    address: Int64Array  #: (k,)
    total: Int64Array  #: allocated on the device after the event, `NONE` where not recorded, (k,)
    reserved: Int64Array  #: likewise, what the allocator holds, (k,)
    place: Int64Array  #: index of each event's device, (k,)
    devices: Int64Array  #: number of each device, `HOST` for the host, (d,)
    unusable: int  #: memory events that lack a size or an address

    def __len__(self) -> int:
        return len(self.row)

    @cached_property
    def first(self) -> Int64Array:
        """The first event of each device, (d,)."""
        return np.searchsorted(self.place, np.arange(len(self.devices)))

    @cached_property
    def last(self) -> Int64Array:
        """The last event of each device, (d,)."""
        return np.searchsorted(self.place, np.arange(len(self.devices)), side="right") - 1

    @cached_property
    def has_totals(self) -> BoolArray:
        """Whether a total is recorded of each device; else its levels begin at 0, (d,)."""
        return grouping.maxima(self.place, self.total, len(self.devices)) >= 0

    @cached_property
    def _gap(self) -> Int64Array:
        """What a total has beyond the sum of sizes so far; it changes where events are lost, (k,).

        Where no total is recorded, that of the last one before it, or else of the first after it.
        """
        changes = np.cumsum(self.size)
        known = pd.Series(pd.arrays.IntegerArray(self.total - changes, self.total == NONE))
        gap = known.groupby(self.place).ffill().groupby(self.place).bfill()
        begins = (self.size - changes)[self.first][self.place]
        return gap.fillna(pd.Series(begins, dtype="Int64")).to_numpy(np.int64)

    @cached_property
    def level(self) -> Int64Array:
        """Bytes allocated on the device after each event, (k,).

        As recorded, or by the sizes since it was; without any total since the first event.
        """
        return np.cumsum(self.size) + self._gap

    @cached_property
    def breaks(self) -> Int64Array:
        """Events of each device before which others were lost: their totals do not add up, (d,)."""
        changes = (np.diff(self._gap) != 0) & (np.diff(self.place) == 0)
        return np.bincount(self.place[1:][changes], minlength=len(self.devices))

    @cached_property
    def peak(self) -> Int64Array:
        """The first event of each device at which its level is highest, (d,)."""
        highest = grouping.maxima(self.place, self.level, len(self.devices))
        at = np.flatnonzero(self.level == highest[self.place])
        return grouping.minima(self.place[at], at, len(self.devices))

    @cached_property
    def blocks(self) -> Blocks:
        """What the trace saw allocated."""
        event = pd.Series(np.flatnonzero(self.size))
        chain = [self.place[event], self.address[event]]
        allocates = self.size[event] > 0
        after_block = pd.Series(allocates).groupby(chain).shift(1, fill_value=False)
        follower = event.groupby(chain).shift(-1, fill_value=NONE)
        freed = event[~allocates & ~after_block].to_numpy()
        return Blocks(event[allocates].to_numpy(), follower[allocates].to_numpy(), freed)

    def alive_at(self, moments: Int64Array) -> Int64Array:
        """The blocks that are alive after one event of each device, ascending."""
        birth = self.blocks.birth
        death = self.blocks.death
        moment = moments[self.place[birth]]
        return np.flatnonzero((birth <= moment) & ((death == NONE) | (death > moment)))

    def older_bytes_at(self, moments: Int64Array) -> Int64Array:
        """Bytes older than the trace that are still allocated after an event of a device, (d,)."""
        freed = self.blocks.older_freed
        freed = freed[freed <= moments[self.place[freed]]]
        before = (self.level - self.size)[self.first]  # allocated when the trace begins
        return before + grouping.sums(self.place[freed], self.size[freed], len(self.devices))


@dataclass(frozen=True, eq=False)
class Blocks:
    """Blocks that the trace saw allocated, b of them: indices of memory events, in their order."""

    birth: Int64Array  #: the allocation of each, (b,)
    death: Int64Array  #: the next event at its address, `NONE` where none follows, (b,)
    older_freed: Int64Array  #: the frees of blocks that the trace did not see allocated


def has_memory_events(trace: Trace) -> bool:
    """Whether the profiler recorded memory events."""
    return "Addr" in trace.args and _NAME in trace.names


def read_memory_events(trace: Trace) -> MemoryEvents:
    """The memory events of a trace; none of a trace that has none."""
    rows = trace.rows_of(EventKind.INSTANT) if has_memory_events(trace) else np.empty(0, np.int64)
    if len(rows):
        rows = rows[trace.name[rows] == trace.names.index(_NAME)]
    size, address = (trace.arg(name).at(rows, _NO_NUMBER) for name in ("Bytes", "Addr"))
    usable = (np.abs(size) < _MOST_BYTES) & (size != _NO_NUMBER) & (address != _NO_NUMBER)
    rows = rows[usable]
    size = size[usable]
    address = address[usable]
    number, kind = (trace.arg(name).at(rows) for name in ("Device Id", "Device Type"))
    number = np.where(kind == 0, HOST, number)  # 1 is CUDA, 6 is ROCm
    first, place = grouping.number_groups([number])
    order = grouping.by_group_and_time(place, trace.ts[rows])
    rows = rows[order]
    totals = (trace.arg(name).at(rows) for name in ("Total Allocated", "Total Reserved"))
    total, reserved = (np.where((t < 0) | (t >= _MOST_BYTES), NONE, t) for t in totals)
    of = {"row": rows, "time": trace.ts[rows], "thread": trace.thread[rows], "size": size[order]}
    of |= {"address": address[order], "total": total, "reserved": reserved, "place": place[order]}
    return MemoryEvents(**of, devices=number[first], unusable=int((~usable).sum()))


_OPTIMIZER = re.compile(r"Optimizer\.(step|zero_grad)#")
_BACKWARD = "autograd::engine::evaluate_function"
#: Annotations around a step, which profilers before 2023 record as operations.
_STEP = "ProfilerStep#"
#: A frame of the user's program: a place in a file that is not PyTorch's.
_USER_FRAME = re.compile(r"(?!.*(?:^|[/\\])torch[/\\]).*\.py\(\d+\): ", re.DOTALL)
NO_OPERATION = "(no operation)"


class _Around(NamedTuple):
    """The host events around some moments, as a tree of r events and the moments, its leaves."""

    rows: Int64Array  #: the events in tree order, (r,)
    parent: Int32Array  #: place of each one's parent in `rows`, `ROOT` without one, (r,)
    of_moment: Int64Array  #: place of the innermost event around each moment, or `ROOT`, (k,)

    @classmethod
    def of(cls, trace: Trace, rows: Int64Array, thread: IntArray, time: Int64Array) -> _Around:
        """The nearest earlier of some events that ends no sooner, and those around it."""
        rows, parent = nested_events(trace, rows)
        ends = trace.end_of(rows)
        at = grouping.last_before(trace.thread[rows], trace.ts[rows], thread, time + 1)
        climbing = np.flatnonzero(at != ROOT)
        while len(climbing := climbing[ends[at[climbing]] < time[climbing]]):
            at[climbing] = parent[at[climbing]]
            climbing = climbing[at[climbing] != ROOT]
        return cls(rows, parent, at)

    def nearest(self, marked: BoolArray) -> Int64Array:
        """Place of the nearest marked event around each moment, `ROOT` without one, (k,)."""
        above = nearest_marked(self.parent, marked)
        places: Int64Array = np.append(np.where(marked, np.arange(len(marked)), above), ROOT)
        return places[self.of_moment]

    def rows_at(self, places: Int64Array) -> Int64Array:
        """The rows of places, `NONE` for `ROOT`."""
        return np.append(self.rows, NONE)[places]


def find_owners(
    tree: CallTree, events: MemoryEvents
) -> tuple[dict[str, tuple[Int64Array, list[str]]], Int64Array]:
    """Find who was at work at each memory event: operation, phase, `nn.Module`, Python frame.

    The events carry a thread and a time, so it is whoever encloses that moment on that thread. The
    backward pass runs on a thread of its own, without Python: module and frame are those of the
    forward operation whose gradient is computed.

    By column: codes, (k,), and labels, of which `NONE` is the last. And when the outermost
    operation ended, ns since the trace's first event; `NONE` without one, (k,).
    """
    trace = tree.trace
    thread = events.thread
    time = events.time
    kinds = (EventKind.CPU_OP, EventKind.USER_ANNOTATION)
    hosts = _Around.of(trace, trace.rows_of(*kinds), thread, time)
    is_op = trace.kind[hosts.rows] == EventKind.CPU_OP
    named = is_op & ~trace.named(trace.name[hosts.rows], lambda name: name.startswith(_STEP))
    outer = hosts.rows_at(_outermost(hosts, named)[hosts.nearest(named)])
    thread, time = _where_forward(tree, hosts, events)
    frames = trace.rows_of(EventKind.PYTHON_FUNCTION)
    modules, inner = (
        _Around.of(trace, frames[trace.named(trace.name[frames], test)], thread, time)
        for test in (lambda name: name.startswith(MODULE_PREFIX), _USER_FRAME.match)
    )
    operations = [*trace.names, NO_OPERATION]

    def name(rows: Int64Array) -> Int64Array:
        return np.where(rows != NONE, trace.name[rows], NONE).astype(np.int64)

    owners = {
        "phase": (_phases(trace, hosts, is_op), ["", "forward", "backward", "optimizer"]),
        "operation": (name(hosts.rows_at(hosts.nearest(is_op))), operations),
        "outer_operation": (name(outer), operations),
        "module": _module_paths(trace, modules),
        "python_frame": (name(inner.rows_at(inner.of_moment)), [*trace.names, ""]),
    }
    return owners, np.where(outer != NONE, trace.end_of(outer), NONE)


def _outermost(around: _Around, marked: BoolArray) -> Int64Array:
    """The outermost marked event around each one or itself; and `ROOT` for `ROOT`, (r + 1,)."""
    above = nearest_marked(around.parent, marked)
    top: Int64Array = np.append(np.where(above == ROOT, np.arange(len(above)), above), ROOT)
    while not np.array_equal(top, higher := top[top]):
        top = higher
    return top


def _phases(trace: Trace, hosts: _Around, is_op: BoolArray) -> Int64Array:
    """None, forward, backward or optimizer: by names, and by autograd's own mark on operations."""
    names = trace.name[hosts.rows]
    phase = np.zeros(len(hosts.of_moment), dtype=np.int64)
    optimizer = trace.named(names, _OPTIMIZER.match)
    backward = trace.named(names, lambda name: name.startswith(_BACKWARD))
    backward |= trace.arg("Fwd thread id").at(hosts.rows) > 0
    for number, marked in enumerate((is_op, backward & is_op, optimizer), 1):
        phase[hosts.nearest(marked) != ROOT] = number
    return phase


def _where_forward(
    tree: CallTree, hosts: _Around, events: MemoryEvents
) -> tuple[IntArray, Int64Array]:
    """Thread and time of each event; in the backward pass those of the forward operation."""
    of_row = np.full(len(tree.trace), NONE, dtype=np.int64)
    of_row[[*tree.forward_of_backward]] = [*tree.forward_of_backward.values()]
    forward = of_row[hosts.rows]
    at = hosts.nearest(forward != NONE)
    made_by = np.append(forward, NONE)[at]
    moved = at != ROOT
    thread = np.where(moved, tree.trace.thread[made_by], events.thread)
    return thread, np.where(moved, tree.trace.ts[made_by], events.time)


def _module_paths(trace: Trace, modules: _Around) -> tuple[Int64Array, list[str]]:
    """The path of module classes around each moment: codes, and labels, the last one empty."""
    used, codes = np.unique(trace.name[modules.rows], return_inverse=True)
    names = [trace.names[code].removeprefix(MODULE_PREFIX) for code in used.tolist()]
    labels, codes = class_names(names, codes.astype(np.int64))
    paths = grouping.find_paths(modules.parent, codes)
    of_moment = np.append(paths.of_node, NONE)[modules.of_moment]
    return of_moment, [*paths.texts(labels, SEPARATOR), ""]
