"""`CallTree`: which host event encloses which, and which launch started which GPU event.

Host events (CPU ops, annotations, runtime calls and, on request, Python frames) nest by time on
their thread. The parent of a GPU event is the launch with the same correlation id; a graph launch
is the parent of all GPU events of its graph. If the capture of the graph is known
(`Trace.replays`), the captured host events are below the graph launch, and the parent of a GPU
event is the captured launch that it replays. GPU events without a launch in the trace remain in the
tree as unlinked events.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import numpy as np
import numpy.typing as npt

from tracelens_ext.notebook import cell_html, short_repr
from tracelens_ext.trace import (
    HOST_KINDS,
    LAUNCH_KINDS,
    NONE,
    EventKind,
    Replays,
    Trace,
)
from tracelens_ext.trace.linking import is_graph_launch, link
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.nesting import (
    ROOT,
    depths,
    insert_below,
    nearest_marked,
    nest,
    subtree_ends,
)

if TYPE_CHECKING:
    from tracelens_ext.trace import BoolArray, Int32Array, Int64Array, IntArray

#: Labels of GPU events for which the trace has no launch, and whose launch is a graph launch.
UNLINKED = "(unlinked)"
GRAPH = "graph"

#: How the names of Python frames of `nn.Module`s begin.
_MODULE_PREFIX = "nn.Module: "


class CallTree:
    """The call tree of a trace.

    An event is identified by its row in the trace. Arrays whose names end in `_of_gpu` have one
    entry for each event of `trace.gpu_rows`, in that order.

    Args:
        trace: the trace.
        add_python_func: True for a tree with the Python frames of the trace.
        links: the `links` of an earlier tree of the same trace without replays, with the same
            `add_python_func`. They save the time that finding them takes.

    Raises:
        MergedRanksError: several ranks in the file reuse each other's correlation ids.
    """

    #: the host events in tree order: thread by thread, parents first, (m,)
    rows: Int64Array
    #: position in `rows` of the parent of each host event, `ROOT` for an outermost event, (m,)
    parent_position: Int32Array
    #: row of each GPU event's launch, `NONE` for an unlinked event, (g,); the launch of a graph is
    #: the launch of all of the graph's events
    launch_of_gpu: Int64Array

    def __init__(
        self,
        trace: Trace,
        *,
        add_python_func: bool = False,
        links: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> None:
        self.trace = trace
        self.add_python_func = add_python_func
        self._kinds = list(HOST_KINDS)
        if not add_python_func:
            self._kinds.remove(EventKind.PYTHON_FUNCTION)
        vars(self).update(self._find_links() if links is None else links)
        if trace.replays is not None:
            vars(self).pop("cpu_op_of_gpu", None)
            self._add_replays(trace.replays)

    def __repr__(self) -> str:
        linked_count = int(self.linked.sum())
        linked = f"{linked_count:,} of {len(self.linked):,} GPU events linked"
        host_events = f"{len(self.rows):,} host events"
        return short_repr("CallTree", f"{host_events}, {linked}; {self.trace!r}")

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the outermost events by the number of GPU events below."""
        from tracelens_ext.lazy import pd

        roots = np.flatnonzero(self.parent_position == ROOT)
        launch = self.launch_position_of_gpu[self.linked]
        # In tree order, the outermost event around a launch is the last root before the launch.
        roots_before = np.searchsorted(roots, launch, side="right")
        root_rows = self.rows[roots[roots_before - 1]]
        codes = self.trace.name[root_rows].tolist()
        names = pd.Series([self.trace.names[code] for code in codes])
        table = (
            names.value_counts()
            .rename_axis("outermost event")
            .reset_index(name="GPU events")
        )
        more = "analyzer.get_df_call_tree() and tracelens-ext tree show the whole tree."
        sentences = [repr(self), more]
        return cell_html("Call tree", sentences, {"GPU events below": table})

    def _find_links(self) -> dict[str, npt.NDArray[Any]]:
        trace = self.trace
        rows = trace.rows_of(*self._kinds)
        is_launch = np.isin(trace.kind[rows], LAUNCH_KINDS)
        # Of two equal intervals, the one with the lower External id is the parent. Without an id
        # (-1), a Python frame or annotation is the parent, and a call is the child.
        tie = trace.external_id[rows]
        is_call_without_id = is_launch & (tie == NONE)
        tie = np.where(is_call_without_id, np.iinfo(np.int64).max, tie)
        nesting = nest(
            thread=trace.thread[rows],
            start=trace.ts[rows],
            end=trace.end_of(rows),
            tie=tie,
            childless=is_launch,
        )
        return {
            "rows": rows[nesting.order],
            "parent_position": nesting.parent,
            "launch_of_gpu": link(trace),
        }

    def with_replays(self, trace: Trace) -> CallTree:
        """Return the tree of the same trace with `replays`."""
        names = ("rows", "parent_position", "launch_of_gpu")
        links = {name: getattr(self, name) for name in names}
        return CallTree(trace, add_python_func=self.add_python_func, links=links)

    def _add_replays(self, replays: Replays) -> None:
        """Insert the host events of captures below the launches of their graphs."""
        first_row = self.trace.recorded
        is_in_tree = np.isin(self.trace.kind[first_row:], self._kinds)
        # A replayed event of a kind that is not in the tree is left out: its children hang under
        # the nearest event above it that is in the tree.
        replayed = np.flatnonzero(is_in_tree)
        replayed_above = nearest_marked(replays.parent, is_in_tree)[replayed]
        index_in_tree = np.full(len(is_in_tree), NONE, dtype=np.int64)
        index_in_tree[replayed] = np.arange(len(replayed))
        owner = self.position[replays.graph_launch[replayed]].astype(np.int64)
        inserted = insert_below(
            self.rows,
            self.parent_position,
            new=first_row + replayed,
            above=values_at(index_in_tree, replayed_above),
            owner=owner,
        )
        self.rows = inserted.rows
        self.parent_position = inserted.parent
        # the cached positions in the tree without the inserted events
        del self.position

    @property
    def links(self) -> dict[str, npt.NDArray[Any]]:
        """The attributes that take time to find, by name, for a later tree of the same trace."""
        names = ("rows", "parent_position", "launch_of_gpu", "cpu_op_of_gpu")
        return {name: getattr(self, name) for name in names}

    @cached_property
    def position(self) -> Int32Array:
        """Position in `rows` of each event of the trace, `NONE` if the tree lacks it, (n,)."""
        position = np.full(len(self.trace), NONE, dtype=np.int32)
        position[self.rows] = np.arange(len(self.rows), dtype=np.int32)
        return position

    @cached_property
    def depth(self) -> Int32Array:
        """Number of ancestors of each position, (m,)."""
        return depths(self.parent_position)

    @cached_property
    def subtree_end(self) -> Int64Array:
        """One past the last position of each position's subtree, (m,)."""
        return subtree_ends(self.parent_position, self.depth)

    # GPU events and what launched them.

    @cached_property
    def parent_of_gpu(self) -> Int64Array:
        """Row of the parent of each GPU event, `NONE` for an unlinked event, (g,).

        The parent is the captured launch that the event replays, if known; else its launch.
        """
        replays = self.trace.replays
        if replays is None:
            return self.launch_of_gpu
        is_known = replays.launch_of_gpu != NONE
        return np.where(is_known, replays.launch_of_gpu, self.launch_of_gpu)

    @cached_property
    def launch_position_of_gpu(self) -> Int32Array:
        """Position in `rows` of `parent_of_gpu`, `NONE` for an unlinked event, (g,)."""
        return values_at(self.position, self.parent_of_gpu)

    @cached_property
    def linked(self) -> BoolArray:
        """True for GPU events with a launch in the trace, (g,)."""
        return np.not_equal(self.launch_of_gpu, NONE)

    @cached_property
    def is_operation(self) -> BoolArray:
        """True for positions of events to which tables attribute GPU work, (m,).

        These are the CPU ops, and annotations outside of them in traces whose annotations stand for
        operations.
        """
        kind = self.trace.kind[self.rows]
        is_op: BoolArray = kind == EventKind.CPU_OP
        if self.trace.conventions.annotations_are_operations:
            is_outside = nearest_marked(self.parent_position, is_op) == ROOT
            is_op |= is_outside & (kind == EventKind.USER_ANNOTATION)
        return is_op

    @cached_property
    def cpu_op_of_gpu(self) -> Int64Array:
        """Row of the innermost CPU op around `parent_of_gpu`, `NONE` if there is none, (g,)."""
        op_above = nearest_marked(self.parent_position, self.is_operation)
        position = values_at(op_above, self.launch_position_of_gpu, missing=ROOT)
        return values_at(self.rows, position)

    @property
    def op_of_gpu(self) -> Int64Array:
        """Row of `cpu_op_of_gpu`; the launch if there is no CPU op, `NONE` if unlinked, (g,)."""
        return np.where(
            self.cpu_op_of_gpu != NONE, self.cpu_op_of_gpu, self.launch_of_gpu
        )

    @cached_property
    def by_graph(self) -> BoolArray:
        """True for GPU events that a graph launch started, (g,)."""
        launches = self.launch_of_gpu[self.linked]
        launch_names = self.trace.name[launches]
        is_graph = self.trace.named(launch_names, is_graph_launch)
        by_graph = np.zeros(len(self.linked), dtype=bool)
        by_graph[self.linked] = is_graph
        return by_graph

    @cached_property
    def has_captured_op(self) -> BoolArray:
        """True for GPU events whose operation is from the capture of their graph, (g,)."""
        return np.greater_equal(self.cpu_op_of_gpu, self.trace.recorded)

    @cached_property
    def by_opaque_graph(self) -> BoolArray:
        """True for GPU events of a graph launch whose capture tells no operation for them, (g,)."""
        return self.by_graph & ~self.has_captured_op

    @cached_property
    def by_unknown_graph(self) -> BoolArray:
        """True for GPU events of a graph launch for which no captured launch is known, (g,)."""
        replays = self.trace.replays
        if replays is None:
            return self.by_opaque_graph
        is_unknown: BoolArray = replays.launch_of_gpu == NONE
        return self.by_opaque_graph & is_unknown

    @cached_property
    def cpu_op_label_of_gpu(self) -> tuple[Int32Array, list[str]]:
        """The column `cpu_op` of tables for each GPU event: codes, (g,), and their labels.

        The label is `graph` for an event of a graph launch whose capture tells no operation, else
        the innermost CPU op, else the name of the launch, and `(unlinked)` without a launch.
        """
        names = self.trace.names
        graph_code = len(names)
        unlinked_code = len(names) + 1
        operation = self.op_of_gpu
        has_operation = operation != NONE
        name_codes = self.trace.name[operation]
        codes = np.where(has_operation, name_codes, unlinked_code)
        codes = codes.astype(np.int32)
        codes[self.by_opaque_graph] = graph_code
        labels = names + [GRAPH, UNLINKED]
        return codes, labels

    def module_of_gpu(self) -> list[str]:
        """Return the `nn.Module`s around each GPU event's launch, outermost first, joined by `/`.

        The text is empty for an event outside of all modules. Only a tree with Python frames has
        modules, and only traces that were recorded with `with_stack=True` have Python frames.
        """
        names = self.trace.names
        is_module_name = self.trace.names_matching(
            lambda name: name.startswith(_MODULE_PREFIX)
        )
        name_codes = self.trace.name[self.rows]
        is_module = is_module_name[name_codes]
        module_above = nearest_marked(self.parent_position, is_module)
        path_of_module: dict[int, str] = {ROOT: ""}
        for position in np.flatnonzero(is_module).tolist():  # parents before children
            name = names[name_codes[position]]
            path = name.removeprefix(_MODULE_PREFIX)
            path_above = path_of_module[int(module_above[position])]
            if path_above:
                path = f"{path_above}/{path}"
            path_of_module[position] = path
        modules = values_at(module_above, self.launch_position_of_gpu, missing=ROOT)
        return [path_of_module[module] for module in modules.tolist()]

    # Navigation from event to event.

    def parent(self, row: int) -> int | None:
        """Return the event that encloses a host event, or the launch of a GPU event."""
        position = int(self.position[row])
        if position != NONE:
            position_above = int(self.parent_position[position])
            if position_above == ROOT:
                return None
            return int(self.rows[position_above])
        is_event = self.trace.gpu_rows == row
        launch = self.parent_of_gpu[is_event]
        if not len(launch) or launch[0] == NONE:
            return None
        return int(launch[0])

    def ancestors(self, row: int) -> Iterator[int]:
        """Yield the events that enclose an event, the innermost first."""
        row_above = self.parent(row)
        while row_above is not None:
            yield row_above
            row_above = self.parent(row_above)

    def children(self, row: int) -> list[int]:
        """Return the host events right below an event, by start, then the GPU events it started."""
        position = int(self.position[row])
        if position == NONE:
            return []
        end = int(self.subtree_end[position])
        below = np.arange(position + 1, end)
        is_child = self.parent_position[below] == position
        host_events = self.rows[below[is_child]]
        gpu_events = self._started_by(np.array([row]))
        rows: list[int] = np.concatenate((host_events, gpu_events)).tolist()
        return rows

    def subtree(self, row: int) -> list[int]:
        """Return the event itself and the host events below it, parents before children."""
        position = int(self.position[row])
        if position == NONE:
            return [row]
        end = int(self.subtree_end[position])
        rows: list[int] = self.rows[position:end].tolist()
        return rows

    def roots(self) -> list[int]:
        """Return the outermost host events, thread by thread."""
        rows: list[int] = self.rows[self.parent_position == ROOT].tolist()
        return rows

    def gpu_events(self, row: int) -> list[int]:
        """Return all GPU events that a host event, or an event below it, started, by start."""
        host_events = np.array(self.subtree(row))
        started = self._started_by(host_events)
        start = self.trace.ts[started]
        order = np.argsort(start, kind="stable")
        by_start: list[int] = started[order].tolist()
        return by_start

    @cached_property
    def _linked_by_parent(self) -> _LinkedEvents:
        """The linked GPU events in the order of `parent_of_gpu`."""
        gpu_index = np.flatnonzero(self.linked)
        by_parent = np.argsort(self.parent_of_gpu[gpu_index], kind="stable")
        gpu_index = gpu_index[by_parent]
        return _LinkedEvents(gpu_index, self.parent_of_gpu[gpu_index])

    def _started_by(self, rows: IntArray) -> IntArray:
        """Return the rows of the GPU events whose parents are in `rows`, parent by parent."""
        linked = self._linked_by_parent
        first = np.searchsorted(linked.parent, rows, "left").tolist()
        end = np.searchsorted(linked.parent, rows, "right").tolist()
        started = [np.empty(0, dtype=np.int64)]
        for first_of_parent, end_of_parent in zip(first, end, strict=True):
            started.append(linked.gpu_index[first_of_parent:end_of_parent])
        return self.trace.gpu_rows[np.concatenate(started)]

    def format_subtree(self, row: int, *, max_depth: int | None = None) -> str:
        """Return the tree below an event as indented lines with name, kind and duration."""
        lines: list[str] = []
        stack = [(row, 0)]
        while stack:
            event, level = stack.pop()
            indentation = "  " * level
            name = self.trace.name_of(event)
            kind = EventKind(self.trace.kind[event]).name.lower()
            us = self.trace.dur[event] / 1000
            lines.append(f"{indentation}{name}  [{kind}, {us:,.3f} µs]")
            if max_depth is not None and level >= max_depth:
                continue
            children = reversed(self.children(event))
            stack += [(child, level + 1) for child in children]
        return "\n".join(lines)

    def print_subtree(
        self, row: int, *, max_depth: int | None = None, file: TextIO | None = None
    ) -> None:
        """Write `format_subtree` to a file, by default to standard output."""
        text = self.format_subtree(row, max_depth=max_depth)
        output = file or sys.stdout
        output.write(text)
        output.write("\n")

    # Forward and backward.

    @cached_property
    def forward_of_backward(self) -> dict[int, int]:
        """Row of a backward CPU op → row of the forward op that made its autograd node.

        PyTorch gives both ops the same sequence number. Only the backward op of the node names the
        forward thread; ops that merely run below it do not. If several forward ops have the number,
        the last one that started before the backward op made the node.
        """
        trace = self.trace
        sequence_number = trace.arg("Sequence number")
        has_number = sequence_number.values >= 0
        rows = sequence_number.rows[has_number]
        sequence = sequence_number.values[has_number]
        forward_thread = trace.arg("Fwd thread id").at(rows)
        is_backward = forward_thread > 0
        order = np.lexsort((is_backward, trace.ts[rows], sequence))
        rows = rows[order]
        sequence = sequence[order]
        is_backward = is_backward[order]

        # The ops are sorted by number and time. The last forward op before each op is the running
        # maximum of the indices of forward ops.
        index_of_forward = np.where(is_backward, NONE, np.arange(len(rows)))
        last_forward = np.maximum.accumulate(index_of_forward)
        has_forward = last_forward != NONE
        backward = np.flatnonzero(is_backward & has_forward)
        forward = last_forward[backward]
        has_same_number = sequence[forward] == sequence[backward]
        backward_rows = rows[backward[has_same_number]].tolist()
        forward_rows = rows[forward[has_same_number]].tolist()
        return dict(zip(backward_rows, forward_rows, strict=True))


class _LinkedEvents(NamedTuple):
    """The linked GPU events in the order of their parents, k of them."""

    gpu_index: Int64Array  #: index of each event in `trace.gpu_rows`, (k,)
    parent: Int64Array  #: row of the parent of each event, ascending, (k,)
