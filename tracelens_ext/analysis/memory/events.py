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
    call_paths,
    grouping,
    sorted_groups,
)
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.nesting import ROOT, nearest_marked

#: The device number of the CPU's memory; GPUs have theirs.
HOST = -1
#: Sizes and totals beyond this, 256 TB, cannot be right. Sums of smaller ones fit in 64 bits.
_MOST_BYTES = 2**48
_EVENT_NAME = "[memory]"
_NO_NUMBER = np.iinfo(np.int64).min
#: The device type of the CPU; 1 is CUDA, 6 is ROCm.
_CPU_TYPE = 0


@dataclass(frozen=True, eq=False)
class MemoryEvents:
    """The k memory events of a trace, by device (d of them, the CPU first), time and row.

    Attributes:
        row: the row of each event in the trace, (k,).
        time: ns since the trace's first event, (k,).
        thread: index into `Trace.threads`, (k,).
        size: bytes; above 0 allocates, below 0 frees, (k,).
        address: of the block, (k,).
        total: bytes allocated on the device after the event, `NONE` where not recorded, (k,).
        reserved: bytes that the allocator holds after the event, `NONE` likewise, (k,).
        place: index of each event's device in `devices`, (k,).
        devices: number of each device, `HOST` for the CPU, (d,).
        unusable: memory events that lack a size or an address.
    """

    row: Int64Array
    time: Int64Array
    thread: IntArray
    size: Int64Array
    address: Int64Array
    total: Int64Array
    reserved: Int64Array
    place: Int64Array
    devices: Int64Array
    unusable: int

    def __len__(self) -> int:
        return len(self.row)

    @cached_property
    def first(self) -> Int64Array:
        """The first event of each device, (d,)."""
        return np.searchsorted(self.place, np.arange(len(self.devices)))

    @cached_property
    def last(self) -> Int64Array:
        """The last event of each device, (d,)."""
        return (
            np.searchsorted(self.place, np.arange(len(self.devices)), side="right") - 1
        )

    @cached_property
    def has_totals(self) -> BoolArray:
        """Where a total of the device is recorded; elsewhere its levels begin at 0, (d,)."""
        return (
            grouping.maxima(
                group_index=self.place, values=self.total, group_count=len(self.devices)
            )
            >= 0
        )

    @cached_property
    def _unexplained(self) -> Int64Array:
        """What a total has beyond the sum of sizes so far; it changes where events are lost, (k,).

        Where no total is recorded, that of the last one before it, or else of the first after it.
        """
        sum_of_sizes = np.cumsum(self.size)
        recorded = pd.Series(
            pd.arrays.IntegerArray(self.total - sum_of_sizes, self.total == NONE)
        )
        filled = recorded.groupby(self.place).ffill().groupby(self.place).bfill()
        # Of a device without any total: its level is 0 before its first event.
        sum_before_device = (sum_of_sizes - self.size)[self.first]
        without_total = pd.Series(-sum_before_device[self.place], dtype="Int64")
        return filled.fillna(without_total).to_numpy(np.int64)

    @cached_property
    def level(self) -> Int64Array:
        """Bytes allocated on the device after each event, (k,).

        As recorded, or by the sizes since it was; without any total since the first event.
        """
        return np.cumsum(self.size) + self._unexplained

    @cached_property
    def breaks(self) -> Int64Array:
        """Events of each device before which others were lost: their totals do not add up, (d,)."""
        is_same_device = np.diff(self.place) == 0
        is_break = (np.diff(self._unexplained) != 0) & is_same_device
        return np.bincount(self.place[1:][is_break], minlength=len(self.devices))

    @cached_property
    def peak(self) -> Int64Array:
        """The first event of each device at which its level is highest, (d,)."""
        highest = grouping.maxima(
            group_index=self.place, values=self.level, group_count=len(self.devices)
        )
        highest_of_device = highest[self.place]
        at_peak = np.flatnonzero(self.level == highest_of_device)
        return grouping.minima(
            group_index=self.place[at_peak],
            values=at_peak,
            group_count=len(self.devices),
        )

    @cached_property
    def blocks(self) -> Blocks:
        """What the trace saw allocated."""
        event = pd.Series(np.flatnonzero(self.size))
        same_address = [self.place[event], self.address[event]]
        is_allocation = self.size[event] > 0
        allocations = pd.Series(is_allocation).groupby(same_address)
        follows_allocation = allocations.shift(1, fill_value=False)
        events_of_address = event.groupby(same_address)
        next_event = events_of_address.shift(-1, fill_value=NONE)
        frees_older = ~is_allocation & ~follows_allocation
        return Blocks(
            birth=event[is_allocation].to_numpy(),
            death=next_event[is_allocation].to_numpy(),
            older_freed=event[frees_older].to_numpy(),
        )

    def alive_at(self, moments: Int64Array) -> Int64Array:
        """Return the blocks that are alive after one event of each device, ascending.

        Args:
            moments: an event of each device, (d,).
        """
        birth = self.blocks.birth
        death = self.blocks.death
        moment = moments[self.place[birth]]
        is_born = birth <= moment
        is_not_dead = (death == NONE) | (death > moment)
        return np.flatnonzero(is_born & is_not_dead)

    def older_bytes_at(self, moments: Int64Array) -> Int64Array:
        """Return the bytes older than the trace that are allocated after an event, (d,).

        Args:
            moments: an event of each device, (d,).
        """
        freed = self.blocks.older_freed
        freed = freed[freed <= moments[self.place[freed]]]
        freed_bytes = -grouping.sums(
            group_index=self.place[freed],
            values=self.size[freed],
            group_count=len(self.devices),
        )
        bytes_at_begin = (self.level - self.size)[self.first]
        return bytes_at_begin - freed_bytes


@dataclass(frozen=True, eq=False)
class Blocks:
    """The b blocks that the trace saw allocated: indices of memory events, in their order.

    Attributes:
        birth: the allocation of each block, (b,).
        death: the next event at its address, `NONE` where none follows, (b,).
        older_freed: the frees of blocks that the trace did not see allocated.
    """

    birth: Int64Array
    death: Int64Array
    older_freed: Int64Array


def has_memory_events(trace: Trace) -> bool:
    """Tell whether the profiler recorded memory events."""
    return "Addr" in trace.args and _EVENT_NAME in trace.names


def read_memory_events(trace: Trace) -> MemoryEvents:
    """Return the memory events of a trace; none of a trace that has none."""
    rows = np.empty(0, dtype=np.int64)
    if has_memory_events(trace):
        rows = trace.rows_of(EventKind.INSTANT)
        name = trace.names.index(_EVENT_NAME)
        rows = rows[trace.name[rows] == name]
    size = trace.arg("Bytes").at(rows, _NO_NUMBER)
    address = trace.arg("Addr").at(rows, _NO_NUMBER)
    is_usable = np.abs(size) < _MOST_BYTES
    is_usable &= size != _NO_NUMBER
    is_usable &= address != _NO_NUMBER
    rows = rows[is_usable]
    device_number = trace.arg("Device Id").at(rows)
    device_type = trace.arg("Device Type").at(rows)
    is_host = device_type == _CPU_TYPE
    device_number = np.where(is_host, HOST, device_number)
    first, place = grouping.number_groups([device_number])
    order = sorted_groups.by_group_and_time(place, trace.ts[rows])
    rows = rows[order]
    return MemoryEvents(
        row=rows,
        time=trace.ts[rows],
        thread=trace.thread[rows],
        size=size[is_usable][order],
        address=address[is_usable][order],
        total=_recorded_bytes(trace, "Total Allocated", rows),
        reserved=_recorded_bytes(trace, "Total Reserved", rows),
        place=place[order],
        devices=device_number[first],
        unusable=int((~is_usable).sum()),
    )


def _recorded_bytes(trace: Trace, argument: str, rows: Int64Array) -> Int64Array:
    """Return a number of bytes of some events, `NONE` where it is missing or cannot be right."""
    values = trace.arg(argument).at(rows)
    return np.where((values < 0) | (values >= _MOST_BYTES), NONE, values)


# Who was at work at each memory event.

_OPTIMIZER = re.compile(r"Optimizer\.(step|zero_grad)#")
_BACKWARD = "autograd::engine::evaluate_function"
#: Annotations around a step, which profilers before 2023 record as operations.
_STEP = "ProfilerStep#"
#: A frame of the user's program: a place in a file that is not PyTorch's.
_USER_FRAME = re.compile(r"(?!.*(?:^|[/\\])torch[/\\]).*\.py\(\d+\): ", re.DOTALL)
NO_OPERATION = "(no operation)"


class _Enclosing(NamedTuple):
    """The CPU events around k moments: a tree of r events, of which the moments are leaves.

    Attributes:
        rows: the events in tree order, (r,).
        parent: place of each event's parent in `rows`, `ROOT` without one, (r,).
        of_moment: place of the innermost event around each moment, or `ROOT`, (k,).
    """

    rows: Int64Array
    parent: Int32Array
    of_moment: Int64Array

    @classmethod
    def find(
        cls, trace: Trace, rows: Int64Array, thread: IntArray, time: Int64Array
    ) -> _Enclosing:
        """Return those of some events that enclose moments of threads.

        The innermost one is the nearest earlier event that ends no sooner than the moment: from
        the last event that begins before it, climb to parents until one does.
        """
        rows, parent = nested_events(trace, rows)
        end = trace.end_of(rows)
        place = sorted_groups.last_before(
            group=trace.thread[rows],
            time=trace.ts[rows],
            query_group=thread,
            query_time=time + 1,
        )
        climbing = np.flatnonzero(place != ROOT)
        while len(climbing):
            climbing = climbing[end[place[climbing]] < time[climbing]]
            place[climbing] = parent[place[climbing]]
            climbing = climbing[place[climbing] != ROOT]
        return cls(rows, parent, place)

    def nearest(self, marked: BoolArray) -> Int64Array:
        """Return the place of the nearest marked event around each moment, or `ROOT`, (k,).

        Args:
            marked: which events are marked, (r,).
        """
        nearest_above = nearest_marked(self.parent, marked)
        nearest_or_self = np.where(marked, np.arange(len(marked)), nearest_above)
        return values_at(nearest_or_self, self.of_moment, missing=ROOT)

    def outermost(self, marked: BoolArray) -> Int64Array:
        """Return the place of the outermost marked event around each moment, or `ROOT`, (k,)."""
        nearest_above = nearest_marked(self.parent, marked)
        itself = np.arange(len(marked))
        top = np.where(nearest_above == ROOT, itself, nearest_above)
        while True:
            higher = top[top]
            if np.array_equal(top, higher):
                break
            top = higher
        return values_at(top, self.nearest(marked), missing=ROOT)

    def rows_at(self, places: Int64Array) -> Int64Array:
        """Return the rows of places, `NONE` for `ROOT`."""
        return values_at(self.rows, places)


#: Codes of each memory event, (k,), and the labels that they stand for; `NONE` is the last label.
CodesAndLabels = tuple[Int64Array, list[str]]


def find_owners(
    tree: CallTree, events: MemoryEvents
) -> tuple[dict[str, CodesAndLabels], Int64Array]:
    """Find who was at work at each memory event: operation, phase, `nn.Module`, Python frame.

    The events carry a thread and a time, so it is whoever encloses that moment on that thread. The
    backward pass runs on a thread of its own, without Python: module and frame are those of the
    forward operation whose gradient is computed.

    Returns:
        Codes and labels by column; and when the outermost operation around each event ended, ns
        since the trace's first event, `NONE` without one, (k,).
    """
    trace = tree.trace
    operation_rows = trace.rows_of(EventKind.CPU_OP, EventKind.USER_ANNOTATION)
    operations = _Enclosing.find(trace, operation_rows, events.thread, events.time)
    is_op = trace.kind[operations.rows] == EventKind.CPU_OP
    is_step = trace.named(
        trace.name[operations.rows], lambda name: name.startswith(_STEP)
    )
    innermost = operations.rows_at(operations.nearest(is_op))
    outermost = operations.rows_at(operations.outermost(is_op & ~is_step))

    thread, time = _where_forward(tree, operations, events)
    frame_rows = trace.rows_of(EventKind.PYTHON_FUNCTION)
    is_module = trace.named(
        trace.name[frame_rows], lambda name: name.startswith(MODULE_PREFIX)
    )
    is_user_frame = trace.named(trace.name[frame_rows], _USER_FRAME.match)
    modules = _Enclosing.find(trace, frame_rows[is_module], thread, time)
    user_frames = _Enclosing.find(trace, frame_rows[is_user_frame], thread, time)

    python_frame = user_frames.rows_at(user_frames.of_moment)
    operation_labels = trace.names + [NO_OPERATION]
    frame_labels = trace.names + [""]
    owners = {
        "phase": (
            _phases(trace, operations, is_op),
            ["", "forward", "backward", "optimizer"],
        ),
        "operation": (_name_codes(trace, innermost), operation_labels),
        "outer_operation": (_name_codes(trace, outermost), operation_labels),
        "module": _module_paths(trace, modules),
        "python_frame": (_name_codes(trace, python_frame), frame_labels),
    }
    outer_end = np.where(outermost != NONE, trace.end_of(outermost), NONE)
    return owners, outer_end


def _name_codes(trace: Trace, rows: Int64Array) -> Int64Array:
    """Return the name code of each row, `NONE` for `NONE`."""
    return values_at(trace.name, rows).astype(np.int64)


def _phases(trace: Trace, operations: _Enclosing, is_op: BoolArray) -> Int64Array:
    """Return the phase of each moment: 0 for none, 1 forward, 2 backward, 3 optimizer, (k,).

    Names tell the phase, and the mark that autograd sets on its operations.
    """
    names = trace.name[operations.rows]
    is_optimizer = trace.named(names, _OPTIMIZER.match)
    is_backward = trace.named(names, lambda name: name.startswith(_BACKWARD))
    forward_thread = trace.arg("Fwd thread id").at(operations.rows)
    is_backward |= forward_thread > 0
    phase = np.zeros(len(operations.of_moment), dtype=np.int64)
    operations_of_phases = (is_op, is_backward & is_op, is_optimizer)
    for number, marked in enumerate(operations_of_phases, start=1):
        nearest = operations.nearest(marked)
        phase[nearest != ROOT] = number
    return phase


def _where_forward(
    tree: CallTree, operations: _Enclosing, events: MemoryEvents
) -> tuple[IntArray, Int64Array]:
    """Return thread and time of each event; in the backward pass those of the forward operation."""
    trace = tree.trace
    forward_of_row = np.full(len(trace), NONE, dtype=np.int64)
    backward_rows = list(tree.forward_of_backward)
    forward_of_row[backward_rows] = list(tree.forward_of_backward.values())
    forward = forward_of_row[operations.rows]
    nearest = operations.nearest(forward != NONE)
    forward_of_event = values_at(forward, nearest)
    is_backward = nearest != ROOT
    thread = np.where(is_backward, trace.thread[forward_of_event], events.thread)
    time = np.where(is_backward, trace.ts[forward_of_event], events.time)
    return thread, time


def _module_paths(trace: Trace, modules: _Enclosing) -> CodesAndLabels:
    """Return the path of module classes around each moment; the last label is empty."""
    used_names, codes = np.unique(trace.name[modules.rows], return_inverse=True)
    names = [
        trace.names[code].removeprefix(MODULE_PREFIX) for code in used_names.tolist()
    ]
    labels, codes = class_names(names, codes.astype(np.int64))
    paths = call_paths.find_paths(modules.parent, codes)
    path_of_moment = values_at(paths.of_node, modules.of_moment)
    return path_of_moment, paths.texts(labels, SEPARATOR) + [""]
