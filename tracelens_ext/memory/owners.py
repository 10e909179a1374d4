"""Who was at work at each memory event: operation, phase, `nn.Module`, Python frame.

The events carry a thread and a time and nothing else, so it is whoever encloses that moment on that
thread. Only host events that enclose one are nested, far fewer than the trace has. The backward
pass runs on a thread of its own, without Python: module and frame are those of the forward
operation whose gradient is computed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.modules.modules import MODULE_PREFIX, SEPARATOR, class_names
from tracelens_ext.nesting import ROOT, nearest_marked, nest
from tracelens_ext.trace import NONE, EventKind
from tracelens_ext.work.group_search import by_group_and_time, items_before
from tracelens_ext.work.grouping import find_paths

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens_ext.memory.events import MemoryEvents
    from tracelens_ext.trace import BoolArray, Int32Array, Int64Array, IntArray, Trace
    from tracelens_ext.tree import CallTree

PHASES = ["", "forward", "backward", "optimizer"]
FORWARD, BACKWARD, OPTIMIZER = 1, 2, 3

_OPTIMIZER = re.compile(r"Optimizer\.(step|zero_grad)#")
_BACKWARD = "autograd::engine::evaluate_function"
#: Annotations around a step, which profilers before 2023 record as operations.
_STEP = "ProfilerStep#"
#: A frame of the user's program: a place in a file that is not PyTorch's.
_USER_FRAME = re.compile(r"(?!.*(?:^|[/\\])torch[/\\]).*\.py\(\d+\): ", re.DOTALL)


@dataclass(frozen=True, eq=False)
class Owners:
    """Who was at work at each of k memory events: codes of labels, each shape (k,)."""

    operation: Int64Array  #: the innermost CPU op, an index into `names`, `NONE` without
    outer: Int64Array  #: the outermost one, likewise
    outer_end: Int64Array  #: when that one ended, ns since the trace's first event; -1 without
    phase: Int64Array  #: index into `PHASES`
    module: Int64Array  #: index into `modules`
    frame: Int64Array  #: the innermost frame of the user's program, index into `names`, or `NONE`
    names: list[str]  #: the names of the trace's events
    modules: list[str]  #: paths of classes of modules, outermost first; the first is empty


@dataclass(frozen=True, eq=False)
class _Around:
    """The host events around some moments, as a tree of r events and the moments, its leaves."""

    rows: Int64Array  #: the events in tree order, (r,)
    parent: Int32Array  #: place of each one's parent in `rows`, `ROOT` without one, (r,)
    of_moment: Int64Array  #: place of the innermost event around each moment, or `ROOT`, (k,)

    def nearest(self, marked: BoolArray) -> Int64Array:
        """Place of the nearest marked event around each moment, `ROOT` without one, (k,)."""
        here = np.append(np.where(marked, np.arange(len(marked)), -2), ROOT)  # the last for `ROOT`
        above = np.append(nearest_marked(self.parent, marked), ROOT)
        return np.where(here == -2, above, here)[self.of_moment]

    def rows_at(self, places: Int64Array) -> Int64Array:
        """The rows of places, `NONE` for `ROOT`."""
        return np.append(self.rows, NONE)[places]


def find_owners(tree: CallTree, events: MemoryEvents) -> Owners:
    """Find who was at work at each memory event.

    Args:
        tree: the call tree; it need not hold the trace's Python frames.
        events: of the same trace.
    """
    trace = tree.trace
    kinds = (EventKind.CPU_OP, EventKind.USER_ANNOTATION)
    hosts = _around(trace, trace.rows_of(*kinds), events.thread, events.time)
    is_op = trace.kind[hosts.rows] == EventKind.CPU_OP
    operation = hosts.rows_at(hosts.nearest(is_op))
    named = is_op & ~_named(trace, hosts.rows, lambda name: name.startswith(_STEP))
    outer = hosts.rows_at(_outermost(hosts, named)[hosts.nearest(named)])
    thread, time = _where_forward(tree, hosts, events)
    frames = trace.rows_of(EventKind.PYTHON_FUNCTION)
    modules = frames[_named(trace, frames, lambda name: name.startswith(MODULE_PREFIX))]
    users = frames[_named(trace, frames, _USER_FRAME.match)]
    inner = _around(trace, users, thread, time)
    paths, labels = _module_paths(trace, _around(trace, modules, thread, time))
    return Owners(
        operation=_names_of(trace, operation),
        outer=_names_of(trace, outer),
        outer_end=np.where(outer == NONE, -1, trace.end_of(outer)) if len(trace) else outer,
        phase=_phases(trace, hosts, is_op),
        module=paths,
        frame=_names_of(trace, inner.rows_at(inner.of_moment)),
        names=trace.names,
        modules=labels,
    )


def _around(trace: Trace, rows: Int64Array, thread: IntArray, time: Int64Array) -> _Around:
    """Nest those of some events that enclose one moment at least, and the moments."""
    count, moments = 0, len(time)
    if len(rows):
        order = by_group_and_time(thread, time)
        places = thread[order], time[order]
        threads, end = trace.thread[rows], trace.end_of(rows)
        before = items_before(*places, threads, trace.ts[rows])
        rows = rows[items_before(*places, threads, end + 1) > before]
        count = len(rows)
    if not count:
        nothing = np.full(moments, ROOT, dtype=np.int64)
        return _Around(rows[:0], nothing[:0].astype(np.int32), nothing)
    leaf = np.arange(count + moments) >= count
    nesting = nest(
        np.concatenate((trace.thread[rows], thread)),
        np.concatenate((trace.ts[rows], time)),
        np.concatenate((trace.end_of(rows), time)),
        np.concatenate((trace.external_id[rows], np.full(moments, np.iinfo(np.int64).max))),
        leaf,
    )
    events = np.flatnonzero(~leaf[nesting.order])
    place = np.full(len(leaf) + 1, ROOT, dtype=np.int64)  # the last is what `ROOT` picks
    place[events] = np.arange(count)
    parent = place[nesting.parent]
    of_moment = np.empty(moments, dtype=np.int64)
    of_moment[nesting.order[leaf[nesting.order]] - count] = parent[leaf[nesting.order]]
    return _Around(rows[nesting.order[events]], parent[events].astype(np.int32), of_moment)


def _named(trace: Trace, rows: Int64Array, test: Callable[[str], object]) -> BoolArray:
    """Which events have a name that passes a test."""
    return trace.named(trace.name[rows], test)


def _names_of(trace: Trace, rows: Int64Array) -> Int64Array:
    """The names of rows as indices, `NONE` for `NONE`."""
    result = np.full(len(rows), NONE, dtype=np.int64)
    result[rows != NONE] = trace.name[rows[rows != NONE]]
    return result


def _outermost(around: _Around, marked: BoolArray) -> Int64Array:
    """The outermost marked event around each one or itself; and `ROOT` for `ROOT`, (r + 1,)."""
    above = nearest_marked(around.parent, marked)
    places = np.arange(len(above))
    top: Int64Array = np.append(np.where(above == ROOT, places, above), ROOT)
    while not np.array_equal(top, higher := top[top]):
        top = higher
    return top


def _phases(trace: Trace, hosts: _Around, is_op: BoolArray) -> Int64Array:
    """Forward, backward or optimizer: by names, and by autograd's own mark on operations."""
    optimizer = _named(trace, hosts.rows, _OPTIMIZER.match)
    backward = _named(trace, hosts.rows, lambda name: name.startswith(_BACKWARD))
    backward |= trace.arg("Fwd thread id").at(hosts.rows) > 0
    phase: Int64Array = (hosts.nearest(is_op) != ROOT).astype(np.int64) * FORWARD
    phase[hosts.nearest(backward & is_op) != ROOT] = BACKWARD
    phase[hosts.nearest(optimizer) != ROOT] = OPTIMIZER
    return phase


def _where_forward(
    tree: CallTree, hosts: _Around, events: MemoryEvents
) -> tuple[IntArray, Int64Array]:
    """Thread and time of each event; in the backward pass those of the forward operation."""
    thread, time, forward_of = events.thread.copy(), events.time.copy(), tree.forward_of_backward
    if not forward_of:
        return thread, time
    forward_of_row = np.full(len(tree.trace), NONE, dtype=np.int64)
    forward_of_row[list(forward_of)] = list(forward_of.values())
    forward = forward_of_row[hosts.rows]
    at = hosts.nearest(forward != NONE)
    moved = np.flatnonzero(at != ROOT)
    made_by = forward[at[moved]]
    thread[moved], time[moved] = tree.trace.thread[made_by], tree.trace.ts[made_by]
    return thread, time


def _module_paths(trace: Trace, modules: _Around) -> tuple[Int64Array, list[str]]:
    """The path of module classes around each moment: codes, and labels, the first one empty."""
    used, codes = np.unique(trace.name[modules.rows], return_inverse=True)
    names = [trace.names[code].removeprefix(MODULE_PREFIX) for code in used.tolist()]
    labels, codes = class_names(names, codes.astype(np.int64))
    paths = find_paths(modules.parent, codes)
    return np.append(paths.of_node + 1, 0)[modules.of_moment], ["", *paths.texts(labels, SEPARATOR)]
