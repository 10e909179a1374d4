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
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
import numpy.typing as npt

from tracelens_ext.notebook import cell_html, short_repr
from tracelens_ext.trace import HOST_KINDS, LAUNCH_KINDS, NONE, EventKind, Replays, Trace
from tracelens_ext.trace.linking import is_graph_launch, link
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

    rows: Int64Array  #: the host events in tree order: thread by thread, parents first, (m,)
    parent_position: Int32Array  #: position in `rows` → that of the parent, `ROOT` without, (m,)
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
        self._kinds = [k for k in HOST_KINDS if add_python_func or k != EventKind.PYTHON_FUNCTION]
        vars(self).update(self._find_links() if links is None else links)
        if trace.replays is not None:
            vars(self).pop("cpu_op_of_gpu", None)
            self._add_replays(trace.replays)

    def __repr__(self) -> str:
        linked = f"{int(self.linked.sum()):,} of {len(self.linked):,} GPU events linked"
        return short_repr("CallTree", f"{len(self.rows):,} host events, {linked}; {self.trace!r}")

    def _repr_html_(self) -> str:
        """What a notebook shows: the outermost events by the GPU work below them."""
        from tracelens_ext.lazy import pd

        roots = np.flatnonzero(self.parent_position == ROOT)
        launch = self.launch_position_of_gpu[self.linked]
        top = self.rows[roots[np.searchsorted(roots, launch, side="right") - 1]]
        names = pd.Series([self.trace.names[name] for name in self.trace.name[top].tolist()])
        table = names.value_counts().rename_axis("outermost event").reset_index(name="GPU events")
        more = "analyzer.get_df_call_tree() and tracelens-ext tree have all of it."
        return cell_html("Call tree", [repr(self), more], {"GPU events below": table})

    def _find_links(self) -> dict[str, npt.NDArray[Any]]:
        trace = self.trace
        rows = trace.rows_of(*self._kinds)
        launches = np.isin(trace.kind[rows], LAUNCH_KINDS)
        # The parent of two equal intervals has the lower External id; a frame without one encloses,
        # a call without one is enclosed.
        tie = trace.external_id[rows]
        tie = np.where(launches & (tie == NONE), np.iinfo(np.int64).max, tie)
        nesting = nest(trace.thread[rows], trace.ts[rows], trace.end_of(rows), tie, launches)
        order = rows[nesting.order]
        parent = nesting.parent
        return {"rows": order, "parent_position": parent, "launch_of_gpu": link(trace)}

    def with_replays(self, trace: Trace) -> CallTree:
        """The tree of the same trace with `replays`."""
        names = ("rows", "parent_position", "launch_of_gpu")
        links = {name: getattr(self, name) for name in names}
        return CallTree(trace, add_python_func=self.add_python_func, links=links)

    def _add_replays(self, replays: Replays) -> None:
        """Put the events of captures below the launches of their graphs."""
        first = self.trace.recorded
        shown = np.isin(self.trace.kind[first:], self._kinds)
        places = np.flatnonzero(shown)
        above = nearest_marked(replays.parent, shown)[places]
        index = np.full(len(shown) + 1, NONE, dtype=np.int64)
        index[places] = np.arange(len(places))
        launch = self.position[replays.graph_launch[places]].astype(np.int64)
        self.rows, self.parent_position = insert_below(
            self.rows, self.parent_position, first + places, index[above], launch
        )
        del self.position  # of the tree without them

    @property
    def links(self) -> dict[str, npt.NDArray[Any]]:
        """Everything that takes time to find, by the names of the attributes."""
        names = ("rows", "parent_position", "launch_of_gpu", "cpu_op_of_gpu")
        return {name: getattr(self, name) for name in names}

    @cached_property
    def position(self) -> Int32Array:
        """Row → position in `rows`, `NONE` for what is no host event of the tree, (n,)."""
        result = np.full(len(self.trace), NONE, dtype=np.int32)
        result[self.rows] = np.arange(len(self.rows), dtype=np.int32)
        return result

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
        if (replays := self.trace.replays) is None:
            return self.launch_of_gpu
        return np.where(replays.launch_of_gpu != NONE, replays.launch_of_gpu, self.launch_of_gpu)

    @cached_property
    def launch_position_of_gpu(self) -> Int32Array:
        """Position in `rows` of `parent_of_gpu`, `NONE` when unlinked, (g,)."""
        return np.append(self.position, np.int32(NONE))[self.parent_of_gpu]

    @cached_property
    def linked(self) -> BoolArray:
        """Whether each GPU event has a launch in the trace, (g,)."""
        return np.not_equal(self.launch_of_gpu, NONE)

    @cached_property
    def is_operation(self) -> BoolArray:
        """Whether tables attribute GPU work to the event at each position, (m,).

        Annotations that stand for operations are some, unless a CPU op encloses them.
        """
        kind = self.trace.kind[self.rows]
        is_op: BoolArray = kind == EventKind.CPU_OP
        if self.trace.conventions.annotations_are_operations:
            outside = nearest_marked(self.parent_position, is_op) == ROOT
            is_op |= outside & (kind == EventKind.USER_ANNOTATION)
        return is_op

    @cached_property
    def cpu_op_of_gpu(self) -> Int64Array:
        """Row of the innermost CPU op around `parent_of_gpu`, `NONE` without, (g,)."""
        above = nearest_marked(self.parent_position, self.is_operation)
        at = np.append(above, ROOT)[self.launch_position_of_gpu]  # the last is that of `NONE`
        found: Int64Array = np.append(self.rows, NONE)[at]
        return found

    @property
    def op_of_gpu(self) -> Int64Array:
        """Row of the innermost CPU op around each launch, else of the launch, else `NONE`, (g,)."""
        return np.where(self.cpu_op_of_gpu != NONE, self.cpu_op_of_gpu, self.launch_of_gpu)

    @cached_property
    def by_graph(self) -> BoolArray:
        """Whether a graph launch started each GPU event, (g,)."""
        result = self.linked.copy()
        launches = self.trace.name[self.launch_of_gpu[result]]
        result[result] = self.trace.named(launches, is_graph_launch)
        return result

    @cached_property
    def has_captured_op(self) -> BoolArray:
        """Whether the operation of each GPU event is from the capture of its graph, (g,)."""
        return np.greater_equal(self.cpu_op_of_gpu, self.trace.recorded)

    @cached_property
    def by_opaque_graph(self) -> BoolArray:
        """Whether each GPU event is of a graph launch, without a captured operation, (g,)."""
        return self.by_graph & ~self.has_captured_op

    @cached_property
    def by_unknown_graph(self) -> BoolArray:
        """Whether each GPU event is of a graph launch, and nothing tells what it is, (g,)."""
        replays = self.trace.replays
        return self.by_opaque_graph & (True if replays is None else replays.launch_of_gpu == NONE)

    @cached_property
    def cpu_op_label_of_gpu(self) -> tuple[Int32Array, list[str]]:
        """The column `cpu_op` of our tables for each GPU event: codes, (g,), and labels.

        `graph` if a graph launch started it and its capture is not known; else the innermost CPU
        op; else the name of the launch; else `(unlinked)`.
        """
        names = self.trace.names
        op = self.op_of_gpu
        codes = np.where(op != NONE, self.trace.name[op], len(names) + 1).astype(np.int32)
        codes[self.by_opaque_graph] = len(names)
        return codes, [*names, GRAPH, UNLINKED]

    def module_of_gpu(self) -> list[str]:
        """The `nn.Module`s around each GPU event's launch, outermost first, joined by `/`, (g,).

        Empty where there is none. Needs a tree with Python frames, recorded `with_stack=True`.
        """
        names = self.trace.names
        is_module = self.trace.names_matching(lambda name: name.startswith(_MODULE_PREFIX))
        frames = is_module[self.trace.name[self.rows]]
        outer = np.append(nearest_marked(self.parent_position, frames), ROOT)
        paths: dict[int, str] = {ROOT: ""}
        for at in np.flatnonzero(frames).tolist():  # parents come first
            name = names[self.trace.name[self.rows[at]]].removeprefix(_MODULE_PREFIX)
            above = paths[int(outer[at])]
            paths[at] = f"{above}/{name}" if above else name
        return [paths[at] for at in outer[self.launch_position_of_gpu].tolist()]

    # Walking, one event at a time.

    def parent(self, row: int) -> int | None:
        """The event that encloses a host event, or the launch of a GPU event."""
        if (at := int(self.position[row])) != NONE:
            above = int(self.parent_position[at])
            return int(self.rows[above]) if above != ROOT else None
        launch = self.parent_of_gpu[self.trace.gpu_rows == row]
        return int(launch[0]) if len(launch) and launch[0] != NONE else None

    def ancestors(self, row: int) -> Iterator[int]:
        """The events above one, from the innermost outwards."""
        while (above := self.parent(row)) is not None:
            yield (row := above)

    def children(self, row: int) -> list[int]:
        """The host events directly below, by start, then the GPU events that a launch started."""
        at = int(self.position[row])
        if at == NONE:
            return []
        below = np.arange(at + 1, int(self.subtree_end[at]))
        below = below[self.parent_position[below] == at]
        return [*self.rows[below].tolist(), *self._started_by(np.array([row])).tolist()]

    def subtree(self, row: int) -> list[int]:
        """The event itself and the host events below it, parents before children."""
        at = int(self.position[row])
        return [row] if at == NONE else [*map(int, self.rows[at : self.subtree_end[at]])]

    def roots(self) -> list[int]:
        """The host events that no other encloses, thread by thread."""
        return [int(row) for row in self.rows[self.parent_position == ROOT]]

    def gpu_events(self, row: int) -> list[int]:
        """All GPU events that a host event, or anything below it, started, by start."""
        found = self._started_by(np.array(self.subtree(row)))
        return [*map(int, found[np.argsort(self.trace.ts[found], kind="stable")])]

    @cached_property
    def _by_launch(self) -> tuple[Int64Array, Int64Array]:
        """The places of linked GPU events in order of `parent_of_gpu`, and those calls."""
        places = np.flatnonzero(self.linked)
        places = places[np.argsort(self.parent_of_gpu[places], kind="stable")]
        return places, self.parent_of_gpu[places]

    def _started_by(self, rows: IntArray) -> IntArray:
        places, launches = self._by_launch
        first, last = (np.searchsorted(launches, rows, side) for side in ("left", "right"))
        those = [places[a:b] for a, b in zip(first.tolist(), last.tolist(), strict=True) if a < b]
        return self.trace.gpu_rows[np.concatenate(those)] if those else np.empty(0, dtype=np.int64)

    def format_subtree(self, row: int, *, max_depth: int | None = None) -> str:
        """The tree below an event as indented text: name, kind and duration in µs a line."""
        lines: list[str] = []
        stack = [(row, 0)]
        while stack:
            event, level = stack.pop()
            kind = EventKind(self.trace.kind[event]).name.lower()
            about = f"[{kind}, {self.trace.dur[event] / 1000:,.3f} µs]"
            lines.append(f"{'  ' * level}{self.trace.name_of(event)}  {about}")
            if max_depth is None or level < max_depth:
                stack += [(child, level + 1) for child in reversed(self.children(event))]
        return "\n".join(lines)

    def print_subtree(
        self, row: int, *, max_depth: int | None = None, file: TextIO | None = None
    ) -> None:
        """Write `format_subtree` to a file, standard output unless told otherwise."""
        (file or sys.stdout).write(self.format_subtree(row, max_depth=max_depth) + "\n")

    # Forward and backward.

    @cached_property
    def forward_of_backward(self) -> dict[int, int]:
        """Row of a backward CPU op → row of the forward op that made its autograd node.

        PyTorch gives both one sequence number; the backward op, and no op that merely runs under
        the node, names the forward thread. Of several forward ops the last to start before made it.
        """
        trace = self.trace
        number = trace.arg("Sequence number")
        forward_thread = trace.arg("Fwd thread id")
        rows = number.rows[number.values >= 0]
        sequence = number.values[number.values >= 0]
        backward = forward_thread.at(rows) > 0
        order = np.lexsort((backward, trace.ts[rows], sequence))
        rows = rows[order]
        sequence = sequence[order]
        backward = backward[order]
        last_forward = np.maximum.accumulate(np.where(backward, -1, np.arange(len(rows))))
        found = np.flatnonzero(backward & (last_forward >= 0))
        found = found[sequence[last_forward[found]] == sequence[found]]
        made_by = rows[last_forward[found]]
        return dict(zip(rows[found].tolist(), made_by.tolist(), strict=True))
