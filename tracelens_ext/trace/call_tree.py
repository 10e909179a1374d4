"""`CallTree`: who encloses whom on a host thread, and which launch started which GPU work.

Host events (CPU ops, annotations, runtime calls and, when asked for, Python frames) nest by time
on their thread. A GPU event hangs under the launch that carries its correlation id; a graph launch
owns every GPU event of its graph. Where the capture of a graph is known (`Trace.replays`), its
events are below the graph launch, and a GPU event hangs under the captured launch that it replays.
GPU events without a launch in the trace stay, unlinked.
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

UNLINKED = "(unlinked)"
GRAPH = "graph"

_MODULE_PREFIX = "nn.Module: "


class CallTree:
    """The call tree of a trace.

    An event is identified by its row in the trace. Arrays whose names end in `_of_gpu` have one
    entry for each event of `trace.gpu_rows`, in that order. `links` are those of a tree of the same
    trace (without replays) and the same frames.

    Raises MergedRanksError where several ranks in the file reuse each other's correlation ids.
    """

    #: the host events in tree order: thread by thread, parents first, (m,)
    rows: Int64Array
    #: position in `rows` → that of the parent, `ROOT` without, (m,)
    parent_position: Int32Array
    #: row of each GPU event's launch, `NONE` when unlinked; that of a graph for its events, (g,)
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
        """What a notebook shows: the outermost events by the GPU work below them."""
        from tracelens_ext.lazy import pd

        roots = np.flatnonzero(self.parent_position == ROOT)
        launch = self.launch_position_of_gpu[self.linked]
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
        # The parent of two equal intervals has the lower External id; a frame without one encloses,
        # a call without one is enclosed.
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
        """Put the events of captures below the launches of their graphs."""
        first_row = self.trace.recorded
        is_in_tree = np.isin(self.trace.kind[first_row:], self._kinds)
        places = np.flatnonzero(is_in_tree)
        place_above = nearest_marked(replays.parent, is_in_tree)[places]
        index_of_place = np.full(len(is_in_tree), NONE, dtype=np.int64)
        index_of_place[places] = np.arange(len(places))
        owner = self.position[replays.graph_launch[places]].astype(np.int64)
        inserted = insert_below(
            self.rows,
            self.parent_position,
            new=first_row + places,
            above=values_at(index_of_place, place_above),
            owner=owner,
        )
        self.rows = inserted.rows
        self.parent_position = inserted.parent
        del self.position  # of the tree without them

    @property
    def links(self) -> dict[str, npt.NDArray[Any]]:
        """Everything that takes time to find, by the names of the attributes."""
        names = ("rows", "parent_position", "launch_of_gpu", "cpu_op_of_gpu")
        return {name: getattr(self, name) for name in names}

    @cached_property
    def position(self) -> Int32Array:
        """Row → position in `rows`, `NONE` for what is no host event of the tree, (n,)."""
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
        """Row of the call that each GPU event hangs under, `NONE` when unlinked, (g,).

        The captured launch that it replays, where that is known; else its launch.
        """
        replays = self.trace.replays
        if replays is None:
            return self.launch_of_gpu
        is_known = replays.launch_of_gpu != NONE
        return np.where(is_known, replays.launch_of_gpu, self.launch_of_gpu)

    @cached_property
    def launch_position_of_gpu(self) -> Int32Array:
        """Position in `rows` of `parent_of_gpu`, `NONE` when unlinked, (g,)."""
        return values_at(self.position, self.parent_of_gpu)

    @cached_property
    def linked(self) -> BoolArray:
        """True for GPU events with a launch in the trace, (g,)."""
        return np.not_equal(self.launch_of_gpu, NONE)

    @cached_property
    def is_operation(self) -> BoolArray:
        """True for positions of events to which tables attribute GPU work, (m,).

        Annotations that stand for operations are some, unless a CPU op encloses them.
        """
        kind = self.trace.kind[self.rows]
        is_op: BoolArray = kind == EventKind.CPU_OP
        if self.trace.conventions.annotations_are_operations:
            is_outside = nearest_marked(self.parent_position, is_op) == ROOT
            is_op |= is_outside & (kind == EventKind.USER_ANNOTATION)
        return is_op

    @cached_property
    def cpu_op_of_gpu(self) -> Int64Array:
        """Row of the innermost CPU op around `parent_of_gpu`, `NONE` without, (g,)."""
        op_above = nearest_marked(self.parent_position, self.is_operation)
        position = values_at(op_above, self.launch_position_of_gpu, missing=ROOT)
        return values_at(self.rows, position)

    @property
    def op_of_gpu(self) -> Int64Array:
        """Row of the innermost CPU op around each launch, else of the launch, else `NONE`, (g,)."""
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
        """True for GPU events of a graph launch, without a captured operation, (g,)."""
        return self.by_graph & ~self.has_captured_op

    @cached_property
    def by_unknown_graph(self) -> BoolArray:
        """True for GPU events of a graph launch of which nothing tells what they are, (g,)."""
        replays = self.trace.replays
        if replays is None:
            return self.by_opaque_graph
        is_unknown: BoolArray = replays.launch_of_gpu == NONE
        return self.by_opaque_graph & is_unknown

    @cached_property
    def cpu_op_label_of_gpu(self) -> tuple[Int32Array, list[str]]:
        """The column `cpu_op` of our tables for each GPU event: codes, (g,), and labels.

        `graph` if a graph launch started it and its capture is not known; else the innermost CPU
        op; else the name of the launch; else `(unlinked)`.
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

        Empty where there is none. Needs a tree with Python frames, recorded `with_stack=True`.
        """
        names = self.trace.names
        is_module_name = self.trace.names_matching(
            lambda name: name.startswith(_MODULE_PREFIX)
        )
        name_codes = self.trace.name[self.rows]
        is_module = is_module_name[name_codes]
        module_above = nearest_marked(self.parent_position, is_module)
        path_of_module: dict[int, str] = {ROOT: ""}
        for position in np.flatnonzero(is_module).tolist():  # parents come first
            name = names[name_codes[position]]
            path = name.removeprefix(_MODULE_PREFIX)
            path_above = path_of_module[int(module_above[position])]
            if path_above:
                path = f"{path_above}/{path}"
            path_of_module[position] = path
        modules = values_at(module_above, self.launch_position_of_gpu, missing=ROOT)
        return [path_of_module[module] for module in modules.tolist()]

    # Walking, one event at a time.

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
        """Yield the events above one, from the innermost outwards."""
        row_above = self.parent(row)
        while row_above is not None:
            yield row_above
            row_above = self.parent(row_above)

    def children(self, row: int) -> list[int]:
        """Return the host events directly below, by start, then the GPU events of a launch."""
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
        """Return the host events that no other encloses, thread by thread."""
        rows: list[int] = self.rows[self.parent_position == ROOT].tolist()
        return rows

    def gpu_events(self, row: int) -> list[int]:
        """Return all GPU events that a host event, or anything below it, started, by start."""
        host_events = np.array(self.subtree(row))
        started = self._started_by(host_events)
        start = self.trace.ts[started]
        order = np.argsort(start, kind="stable")
        by_start: list[int] = started[order].tolist()
        return by_start

    @cached_property
    def _by_launch(self) -> _StartedWork:
        """The linked GPU events in order of `parent_of_gpu`."""
        places = np.flatnonzero(self.linked)
        places = places[np.argsort(self.parent_of_gpu[places], kind="stable")]
        return _StartedWork(places, self.parent_of_gpu[places])

    def _started_by(self, rows: IntArray) -> IntArray:
        """Return the GPU events that hang under some calls, call by call."""
        calls = self._by_launch.calls
        first = np.searchsorted(calls, rows, "left").tolist()
        behind = np.searchsorted(calls, rows, "right").tolist()
        started = [np.empty(0, dtype=np.int64)]
        for begin, end in zip(first, behind, strict=True):
            places = self._by_launch.places[begin:end]
            started.append(places)
        all_places = np.concatenate(started)
        return self.trace.gpu_rows[all_places]

    def format_subtree(self, row: int, *, max_depth: int | None = None) -> str:
        """Return the tree below an event as indented text: name, kind and duration a line."""
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
        """Write `format_subtree` to a file, standard output unless told otherwise."""
        text = self.format_subtree(row, max_depth=max_depth)
        output = file or sys.stdout
        output.write(text)
        output.write("\n")

    # Forward and backward.

    @cached_property
    def forward_of_backward(self) -> dict[int, int]:
        """Row of a backward CPU op → row of the forward op that made its autograd node.

        PyTorch gives both one sequence number; the backward op, and no op that merely runs under
        the node, names the forward thread. Of several forward ops the last to start before made it.
        """
        trace = self.trace
        number = trace.arg("Sequence number")
        has_number = number.values >= 0
        rows = number.rows[has_number]
        sequence = number.values[has_number]
        forward_thread = trace.arg("Fwd thread id").at(rows)
        is_backward = forward_thread > 0
        order = np.lexsort((is_backward, trace.ts[rows], sequence))
        rows = rows[order]
        sequence = sequence[order]
        is_backward = is_backward[order]

        place_of_forward = np.where(is_backward, NONE, np.arange(len(rows)))
        last_forward = np.maximum.accumulate(place_of_forward)
        has_forward = last_forward != NONE
        backward = np.flatnonzero(is_backward & has_forward)
        forward = last_forward[backward]
        has_same_number = sequence[forward] == sequence[backward]
        backward_rows = rows[backward[has_same_number]].tolist()
        forward_rows = rows[forward[has_same_number]].tolist()
        return dict(zip(backward_rows, forward_rows, strict=True))


class _StartedWork(NamedTuple):
    """Linked GPU events in order of the call that they hang under."""

    places: Int64Array  #: in `trace.gpu_rows`
    calls: Int64Array  #: rows of the calls, ascending
