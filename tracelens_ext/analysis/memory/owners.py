"""The owners of memory: the operation, phase, `nn.Module` and Python frame around memory events."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tracelens_ext.analysis.idle_time.cpu_activity import nested_events
from tracelens_ext.analysis.memory.events import MemoryEvents
from tracelens_ext.analysis.modules import MODULE_PREFIX, SEPARATOR, class_names
from tracelens_ext.trace import (
    NONE,
    BoolArray,
    EventKind,
    Int32Array,
    Int64Array,
    IntArray,
    Trace,
    call_paths,
    sorted_groups,
)
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.nesting import ROOT, nearest_marked

_OPTIMIZER = re.compile(r"Optimizer\.(step|zero_grad)#")
_BACKWARD = "autograd::engine::evaluate_function"
#: Annotations around a step. Profilers before 2023 record them as operations.
_STEP = "ProfilerStep#"
#: A Python frame of the user's program: its file is not one of PyTorch's.
_USER_FRAME = re.compile(r"(?!.*(?:^|[/\\])torch[/\\]).*\.py\(\d+\): ", re.DOTALL)
NO_OPERATION = "(no operation)"
#: The phases by number; 0 is outside of all operations.
_PHASES = ["", "forward", "backward", "optimizer"]


class LabelledCodes(NamedTuple):
    """The value of one column for each of k memory events."""

    codes: Int64Array  #: index into `labels`, (k,); `NONE` stands for the last label
    labels: list[str]


#: The owners of k memory events by column: operation, phase, module, Python frame …
Owners = Mapping[str, LabelledCodes]


class EventOwners(NamedTuple):
    """The owners of k memory events, and when they end."""

    owners: Owners
    #: when the outermost operation around each event ended, ns since the trace's first event;
    #: `NONE` for an event outside of all operations, (k,)
    outer_end: Int64Array


def find_owners(tree: CallTree, events: MemoryEvents) -> EventOwners:
    """Find the operations, phase, `nn.Module` and Python frame around each memory event.

    The owner of an event is what encloses its time on its thread. The backward pass runs on a
    thread of its own, without Python. There, module and frame are those of the forward operation
    whose gradient is computed.
    """
    trace = tree.trace
    operation_rows = trace.rows_of(EventKind.CPU_OP, EventKind.USER_ANNOTATION)
    operations = _EnclosingEvents.find(
        trace, operation_rows, events.thread, events.time
    )
    is_op = trace.kind[operations.rows] == EventKind.CPU_OP
    is_step = trace.named(
        trace.name[operations.rows], lambda name: name.startswith(_STEP)
    )
    innermost = operations.rows_at(operations.nearest(is_op))
    outermost = operations.rows_at(operations.outermost(is_op & ~is_step))

    python = _python_times(tree, operations, events)
    frame_rows = trace.rows_of(EventKind.PYTHON_FUNCTION)
    is_module = trace.named(
        trace.name[frame_rows], lambda name: name.startswith(MODULE_PREFIX)
    )
    is_user_frame = trace.named(trace.name[frame_rows], _USER_FRAME.match)
    modules = _EnclosingEvents.find(
        trace, frame_rows[is_module], python.thread, python.time
    )
    user_frames = _EnclosingEvents.find(
        trace, frame_rows[is_user_frame], python.thread, python.time
    )

    python_frame = user_frames.rows_at(user_frames.innermost)
    operation_labels = trace.names + [NO_OPERATION]
    frame_labels = trace.names + [""]
    owners = {
        "phase": LabelledCodes(_phases(trace, operations, is_op), _PHASES),
        "operation": LabelledCodes(_name_codes(trace, innermost), operation_labels),
        "outer_operation": LabelledCodes(
            _name_codes(trace, outermost), operation_labels
        ),
        "module": _module_paths(trace, modules),
        "python_frame": LabelledCodes(_name_codes(trace, python_frame), frame_labels),
    }
    outer_end = np.where(outermost != NONE, trace.end_of(outermost), NONE)
    return EventOwners(owners, outer_end)


class _EnclosingEvents(NamedTuple):
    """The events that enclose k moments, in a tree of r nodes.

    Attributes:
        rows: the row of each node in the trace, (r,).
        parent: the parent of each node, `ROOT` for a node without one, (r,).
        innermost: the innermost node around each moment, `ROOT` for a moment outside of all
            events, (k,).
    """

    rows: Int64Array
    parent: Int32Array
    innermost: Int64Array

    @classmethod
    def find(
        cls, trace: Trace, rows: Int64Array, thread: IntArray, time: Int64Array
    ) -> _EnclosingEvents:
        """Find the events that enclose moments.

        Args:
            trace: the trace.
            rows: the events to choose from.
            thread: the thread of each moment, (k,).
            time: the time of each moment, ns since the trace's first event, (k,).
        """
        rows, parent = nested_events(trace, rows)
        end = trace.end_of(rows)
        # The first candidate is the last event that began by the moment. A candidate that has ended
        # by then is replaced by its parent, until one still runs.
        candidate = sorted_groups.last_before(
            group=trace.thread[rows],
            time=trace.ts[rows],
            query_group=thread,
            query_time=time + 1,
        )
        unsettled = np.flatnonzero(candidate != ROOT)
        while len(unsettled):
            has_ended = end[candidate[unsettled]] < time[unsettled]
            unsettled = unsettled[has_ended]
            candidate[unsettled] = parent[candidate[unsettled]]
            unsettled = unsettled[candidate[unsettled] != ROOT]
        return cls(rows, parent, candidate)

    def nearest(self, marked: BoolArray) -> Int64Array:
        """Return the innermost marked node around each moment, or `ROOT`, (k,).

        Args:
            marked: mask of the nodes, (r,).
        """
        nearest_above = nearest_marked(self.parent, marked)
        nearest_or_self = np.where(marked, np.arange(len(marked)), nearest_above)
        return values_at(nearest_or_self, self.innermost, missing=ROOT)

    def outermost(self, marked: BoolArray) -> Int64Array:
        """Return the outermost marked node around each moment, or `ROOT`, (k,).

        Args:
            marked: mask of the nodes, (r,).
        """
        nearest_above = nearest_marked(self.parent, marked)
        itself = np.arange(len(marked))
        top = np.where(nearest_above == ROOT, itself, nearest_above)
        # Each round replaces a node's top by the top of its top, until nothing changes.
        while True:
            higher = top[top]
            if np.array_equal(top, higher):
                break
            top = higher
        return values_at(top, self.nearest(marked), missing=ROOT)

    def rows_at(self, nodes: Int64Array) -> Int64Array:
        """Return the rows of nodes, and `NONE` for `ROOT`."""
        return values_at(self.rows, nodes)


def _name_codes(trace: Trace, rows: Int64Array) -> Int64Array:
    """Return the name code of each row, and `NONE` for the row `NONE`."""
    return values_at(trace.name, rows).astype(np.int64)


def _phases(trace: Trace, operations: _EnclosingEvents, is_op: BoolArray) -> Int64Array:
    """Return the phase of each moment, as an index into `_PHASES`, (k,).

    The optimizer has annotations with its name. Operations of the backward pass have names of
    autograd's engine, or the forward thread as an argument. All other operations count as forward.
    """
    names = trace.name[operations.rows]
    is_optimizer = trace.named(names, _OPTIMIZER.match)
    is_backward = trace.named(names, lambda name: name.startswith(_BACKWARD))
    forward_thread = trace.arg("Fwd thread id").at(operations.rows)
    is_backward |= forward_thread > 0
    phase = np.zeros(len(operations.innermost), dtype=np.int64)
    # Later phases overwrite earlier ones: a backward operation is an operation, too.
    operations_of_phases = (is_op, is_backward & is_op, is_optimizer)
    for phase_index, marked in enumerate(operations_of_phases, start=1):
        nearest = operations.nearest(marked)
        phase[nearest != ROOT] = phase_index
    return phase


class _Moments(NamedTuple):
    """Where to look for Python frames around each of k memory events."""

    thread: IntArray  #: (k,)
    time: Int64Array  #: ns since the trace's first event, (k,)


def _python_times(
    tree: CallTree, operations: _EnclosingEvents, events: MemoryEvents
) -> _Moments:
    """Return thread and time of each event, or of its forward operation in the backward pass."""
    trace = tree.trace
    forward_of_row = np.full(len(trace), NONE, dtype=np.int64)
    backward_rows = list(tree.forward_of_backward)
    forward_of_row[backward_rows] = list(tree.forward_of_backward.values())
    forward = forward_of_row[operations.rows]
    backward_node = operations.nearest(forward != NONE)
    forward_of_event = values_at(forward, backward_node)
    is_backward = backward_node != ROOT
    return _Moments(
        thread=np.where(is_backward, trace.thread[forward_of_event], events.thread),
        time=np.where(is_backward, trace.ts[forward_of_event], events.time),
    )


def _module_paths(trace: Trace, modules: _EnclosingEvents) -> LabelledCodes:
    """Return the path of module classes around each moment; the last label is empty."""
    used_names, name_codes = np.unique(trace.name[modules.rows], return_inverse=True)
    names = [
        trace.names[code].removeprefix(MODULE_PREFIX) for code in used_names.tolist()
    ]
    class_labels, class_codes = class_names(names, name_codes.astype(np.int64))
    paths = call_paths.find_paths(modules.parent, class_codes)
    path_of_moment = values_at(paths.of_node, modules.innermost)
    return LabelledCodes(path_of_moment, paths.texts(class_labels, SEPARATOR) + [""])
