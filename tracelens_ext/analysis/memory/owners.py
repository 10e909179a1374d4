"""The owners of memory: the operation, phase, `nn.Module` and Python frame around memory events."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tracelens_ext.analysis.idle_time.cpu_activity import nested_events
from tracelens_ext.analysis.memory.events import MemoryEvents
from tracelens_ext.analysis.modules import MODULE_PREFIX, SEPARATOR, module_paths
from tracelens_ext.trace import (
    NONE,
    BoolArray,
    EventKind,
    Int32Array,
    Int64Array,
    IntArray,
    Trace,
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
    rows = trace.rows_of(EventKind.CPU_OP, EventKind.USER_ANNOTATION)
    ops_and_annotations = _EnclosingEvents.find(trace, rows, events.thread, events.time)
    is_op = trace.kind[ops_and_annotations.rows] == EventKind.CPU_OP
    outermost = _outermost_operations(trace, ops_and_annotations, is_op)
    operation_owners = _operation_owners(trace, ops_and_annotations, is_op, outermost)
    moments = _moments_of_python_frames(tree, ops_and_annotations, events)
    python_owners = _python_owners(trace, moments)

    outer_end = np.full(len(outermost), NONE, dtype=np.int64)
    has_operation = outermost != NONE
    outer_end[has_operation] = trace.end_of(outermost[has_operation])
    return EventOwners({**operation_owners, **python_owners}, outer_end)


def _outermost_operations(
    trace: Trace, ops_and_annotations: _EnclosingEvents, is_op: BoolArray
) -> Int64Array:
    """Return the row of the outermost operation around each moment, `NONE` without one, (k,)."""
    is_step = trace.named(
        trace.name[ops_and_annotations.rows], lambda name: name.startswith(_STEP)
    )
    outermost = ops_and_annotations.outermost(is_op & ~is_step)
    return ops_and_annotations.rows_at(outermost)


def _operation_owners(
    trace: Trace,
    ops_and_annotations: _EnclosingEvents,
    is_op: BoolArray,
    outermost: Int64Array,
) -> Owners:
    """Return the phase, the innermost and the outermost operation around each moment.

    Args:
        trace: the trace.
        ops_and_annotations: the CPU ops and annotations around k moments, r nodes.
        is_op: marks the nodes that are CPU ops, (r,).
        outermost: the row of the outermost operation around each moment, `NONE` without one, (k,).
    """
    innermost = ops_and_annotations.rows_at(ops_and_annotations.nearest(is_op))
    labels = trace.names + [NO_OPERATION]
    phases = _phases(trace, ops_and_annotations, is_op)
    return {
        "phase": LabelledCodes(phases, _PHASES),
        "operation": LabelledCodes(_name_codes(trace, innermost), labels),
        "outer_operation": LabelledCodes(_name_codes(trace, outermost), labels),
    }


def _python_owners(trace: Trace, moments: _Moments) -> Owners:
    """Return the module path and the Python frame of the user's program around each moment."""
    frame_rows = trace.rows_of(EventKind.PYTHON_FUNCTION)
    frame_names = trace.name[frame_rows]
    is_module = trace.named(frame_names, lambda name: name.startswith(MODULE_PREFIX))
    is_user_frame = trace.named(frame_names, _USER_FRAME.match)
    modules = _EnclosingEvents.find(
        trace, frame_rows[is_module], moments.thread, moments.time
    )
    user_frames = _EnclosingEvents.find(
        trace, frame_rows[is_user_frame], moments.thread, moments.time
    )

    paths, class_labels = module_paths(
        trace, modules.rows, modules.parent, instances=False
    )
    path_labels = paths.texts(class_labels, SEPARATOR) + [""]
    path_codes = values_at(paths.of_node, modules.innermost)
    innermost_frame = user_frames.rows_at(user_frames.innermost)
    return {
        "module": LabelledCodes(path_codes, path_labels),
        "python_frame": LabelledCodes(
            _name_codes(trace, innermost_frame), trace.names + [""]
        ),
    }


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
        # by then is replaced by its parent, until one still runs. `last_before` leaves out an event
        # that begins exactly at the queried time; 1 ns later, it is included.
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


def _phases(
    trace: Trace, ops_and_annotations: _EnclosingEvents, is_op: BoolArray
) -> Int64Array:
    """Return the phase of each moment, as an index into `_PHASES`, (k,).

    The optimizer has annotations with its name. Operations of the backward pass have names of
    autograd's engine, or the forward thread as an argument. All other operations count as forward.
    """
    names = trace.name[ops_and_annotations.rows]
    is_optimizer = trace.named(names, _OPTIMIZER.match)
    is_backward = trace.named(names, lambda name: name.startswith(_BACKWARD))
    forward_thread = trace.arg("Fwd thread id").at(ops_and_annotations.rows)
    is_backward |= forward_thread > 0
    phase = np.zeros(len(ops_and_annotations.innermost), dtype=np.int64)
    # Later phases overwrite earlier ones: a backward operation is an operation, too.
    operations_of_phases = (is_op, is_backward & is_op, is_optimizer)
    for phase_index, marked in enumerate(operations_of_phases, start=1):
        nearest = ops_and_annotations.nearest(marked)
        phase[nearest != ROOT] = phase_index
    return phase


class _Moments(NamedTuple):
    """Where to look for Python frames around each of k memory events."""

    thread: IntArray  #: (k,)
    time: Int64Array  #: ns since the trace's first event, (k,)


def _moments_of_python_frames(
    tree: CallTree, ops_and_annotations: _EnclosingEvents, events: MemoryEvents
) -> _Moments:
    """Return thread and time of each event, or of its forward operation in the backward pass."""
    trace = tree.trace
    forward_of_row = np.full(len(trace), NONE, dtype=np.int64)
    backward_rows = list(tree.forward_of_backward)
    forward_of_row[backward_rows] = list(tree.forward_of_backward.values())
    forward_of_node = forward_of_row[ops_and_annotations.rows]
    backward_node = ops_and_annotations.nearest(forward_of_node != NONE)
    forward_of_event = values_at(forward_of_node, backward_node)
    is_backward = backward_node != ROOT
    forward_thread = values_at(trace.thread, forward_of_event)
    forward_time = values_at(trace.ts, forward_of_event)
    return _Moments(
        thread=np.where(is_backward, forward_thread, events.thread),
        time=np.where(is_backward, forward_time, events.time),
    )
