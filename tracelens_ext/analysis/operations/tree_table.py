"""The call tree with GPU time: what ran below what, equal siblings merged.

The leaves are GPU events, under the calls that launched them; what launched nothing is not in it.
The time of a node is the busy-time union of the GPU events at and below it, so children that
overlap on the GPU may add up to more than their parent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens_ext.categorize.user_patterns import Expression, UserPattern, user_pattern
from tracelens_ext.lazy import pd
from tracelens_ext.text import NO_NAME
from tracelens_ext.trace import (
    LAUNCH_KINDS,
    NONE,
    NS_PER_MS,
    BoolArray,
    EventKind,
    Float64Array,
    Int32Array,
    Int64Array,
    IntArray,
)
from tracelens_ext.trace.busy_time import BusyTime
from tracelens_ext.trace.call_tree import UNLINKED
from tracelens_ext.trace.gpu_events import KIND_LABELS, GpuEvents
from tracelens_ext.trace.grouping import CallPaths, find_paths, inverse, sums, texts
from tracelens_ext.trace.intervals import union_length
from tracelens_ext.trace.nesting import ROOT, depths, nearest_marked, preorder, summed_up

_STEP = re.compile(r"ProfilerStep#[0-9]+")
_ANY_STEP = "ProfilerStep#*"
_OTHER = "(other)"
_KIND_LABELS = {
    EventKind.CPU_OP: "cpu_op",
    EventKind.USER_ANNOTATION: "annotation",
    EventKind.PYTHON_FUNCTION: "python",
    **dict.fromkeys(LAUNCH_KINDS, "launch"),
    **KIND_LABELS,
}
# Two numbers at the end of a line mean a difference to flame-graph tools.
_NUMBER_AT_END = re.compile(r" ([0-9]+(?:\.[0-9]*)?)$")
_SEPARATORS = str.maketrans({";": ":", "\n": " ", "\r": " "})


@dataclass(frozen=True, eq=False)
class MergedTree:
    """A call tree with GPU time, k nodes, parents before children, longest sibling first."""

    parent: Int32Array  #: node → its parent, `ROOT` without one, (k,)
    depth: Int32Array  #: number of ancestors, (k,)
    name: Int64Array  #: index into `names`, (k,)
    names: list[str]  #: what nodes are called
    kind: npt.NDArray[np.uint8]  #: an `EventKind`; `OTHER` for a thread and for `(unlinked)`, (k,)
    count: Int64Array  #: events that a node stands for, (k,)
    gpu_events: Int64Array  #: GPU events at and below it, (k,)
    busy_ns: Int64Array  #: their busy-time union, ns, (k,)
    self_ns: Int64Array  #: summed durations of a node that is GPU events, else 0, ns, (k,)
    total_ns: int  #: busy-time union of all GPU events of the trace

    def __len__(self) -> int:
        return len(self.parent)

    def label(self, node: int) -> str:
        """What a node is called."""
        return self.names[int(self.name[node])]

    def percent(self) -> Float64Array:
        """The share of each node in the GPU's busy time, 0 to 100, (k,)."""
        return 100.0 * self.busy_ns / max(self.total_ns, 1)

    def kept(self, depth: int | None = None, min_percent: float = 0.0) -> BoolArray:
        """Which nodes are within a depth (levels, 1 for the roots alone) and over a share, (k,)."""
        keep: BoolArray = self.percent() >= min_percent
        if depth is not None:
            keep &= self.depth < depth
        return keep


def call_tree_table(
    work: GpuEvents, op: str | re.Pattern[str] | None = None, *, merge: bool = True
) -> pd.DataFrame:
    """The call tree with GPU time, a row a node, parents before children, as the sheet `tree`.

    `op`: a regular expression; only what is at or below host events whose name it matches. With
    `merge` siblings of one name are one row.
    """
    return tree_rows(merged_tree(work, op=op, merge=merge))


def tree_rows(tree: MergedTree, kept: BoolArray | None = None) -> pd.DataFrame:
    """A tree, or some of its nodes, as rows; see `call_tree_table`."""
    kinds = [_KIND_LABELS.get(EventKind(kind), "") for kind in tree.kind.tolist()]
    frame = pd.DataFrame(
        {
            "depth": tree.depth,
            "name": pd.array(texts(tree.name, tree.names), dtype="str"),
            "kind": pd.array(kinds, dtype="str"),
            "count": tree.count,
            "gpu_events": tree.gpu_events,
            "busy_time_ms": tree.busy_ns / NS_PER_MS,
            "% of GPU busy time": tree.percent(),
        }
    )
    return frame if kept is None else frame[kept].reset_index(drop=True)


def merged_tree(work: GpuEvents, *, op: Expression | None = None, merge: bool = True) -> MergedTree:
    """The call tree with GPU time.

    `op`: a regular expression, searched in the names of host events: only the outermost events that
    it matches, as roots, and what is below them. Without it every thread that launches is a root
    when there are several, and GPU events without a launch in the trace are below a root
    `(unlinked)`. With `merge` siblings of one name are one node, `ProfilerStep#N` being one name.
    """
    tree = work.tree
    trace = work.trace
    chosen, taken = _chosen(work, user_pattern(op, "op"))
    rows = tree.rows[chosen]
    threads = np.unique(trace.thread[rows]).tolist() if op is None else []
    threads = threads if len(threads) > 1 else []
    unlinked = [len(work) - int(tree.linked.sum())] if op is None and not tree.linked.all() else []
    known = len(trace.names)
    names = [*trace.names, _ANY_STEP, *(_thread_label(work, each) for each in threads), UNLINKED]
    same = np.arange(known)
    if merge:
        steps = [code for code, each in enumerate(trace.names) if _STEP.fullmatch(each)]
        same[steps if len(steps) > 1 else []] = known
    # The forest: threads, host events, `(unlinked)`, GPU events.
    place = np.full(len(tree.rows) + 1, ROOT, dtype=np.int64)
    place[chosen] = len(threads) + np.arange(len(chosen))
    of_thread = np.full(len(trace.threads), ROOT, dtype=np.int64)
    of_thread[threads] = np.arange(len(threads))
    above = place[tree.parent_position[chosen]]
    above = np.where(above == ROOT, of_thread[trace.thread[rows]], above)
    launch = place[tree.launch_position_of_gpu[taken]]
    launch = np.where(tree.linked[taken], launch, len(threads) + len(rows))
    parts: list[tuple[IntArray, ...]] = [
        _headings(known + 1, [1] * len(threads)),
        (above, same[trace.name[rows]], trace.kind[rows], np.ones_like(rows)),
        _headings(len(names) - 1, unlinked),
        (launch, same[work.name[taken]], work.kind[taken], np.ones_like(taken)),
    ]
    columns = (np.concatenate(each).astype(np.int64) for each in zip(*parts, strict=True))
    parent, name, kind, events = columns
    last = np.arange(len(parent)) >= len(parent) - len(taken)
    key = (last * len(names) + name) * len(EventKind) + kind if merge else np.arange(len(parent))
    paths = find_paths(parent.astype(np.int32), key)
    example = np.zeros(len(paths), dtype=np.int64)
    example[paths.of_node] = np.arange(len(parent))
    count = sums(paths.of_node, events, len(paths))
    owner = np.full(len(work), NONE, dtype=np.int64)
    owner[taken] = paths.of_node[last]
    of_node = {"name": name[example], "kind": kind[example].astype(np.uint8), "count": count}
    return _tree(work, paths, names, owner, of_node)


def _headings(name: int, counts: list[int]) -> tuple[IntArray, ...]:
    """Roots that are no events: parent, name, kind, and events that they stand for."""
    codes = np.arange(name, name + len(counts))
    kind = np.full_like(codes, EventKind.OTHER)
    return np.full_like(codes, ROOT), codes, kind, np.array(counts, dtype=np.int64)


def _chosen(work: GpuEvents, op: UserPattern | None) -> tuple[Int64Array, Int64Array]:
    """The host events that have GPU work below them, at or below `op`; and GPU events likewise.

    The former are positions of the tree, ascending.
    """
    tree = work.tree
    launch = tree.launch_position_of_gpu
    launches = np.bincount(launch[tree.linked], minlength=len(tree.rows))
    before = np.append(0, np.cumsum(launches))
    needed = before[tree.subtree_end] > before[:-1]
    if op is None:
        return np.flatnonzero(needed), np.arange(len(work))
    found = work.trace.names_matching(op.search)[work.trace.name[tree.rows]]
    needed &= found | (nearest_marked(tree.parent_position, found) != ROOT)
    below = tree.linked.copy()
    below[below] = needed[launch[below]]
    return np.flatnonzero(needed), np.flatnonzero(below)


def _tree(
    work: GpuEvents, paths: CallPaths, names: list[str], owner: Int64Array, columns: dict[str, Any]
) -> MergedTree:
    """The nodes with times, in the order in which they are shown; `owner`: of each GPU event."""
    parent = paths.parent.astype(np.int32)
    depth = depths(parent)
    taken = owner[owner != NONE]
    busy = BusyTime(work.start, work.end).by_subtree(parent, owner)
    columns |= {
        "depth": depth,
        "gpu_events": summed_up(parent, depth, np.bincount(taken, minlength=len(parent))),
        "busy_ns": busy,
        "self_ns": sums(taken, work.duration[owner != NONE], len(parent)),
    }
    # Each node is followed by all below it, longest sibling first.
    size = summed_up(parent, depth, np.ones(len(parent), dtype=np.int64))
    place = preorder(parent, size, np.lexsort((np.arange(len(parent)), -busy, parent)))
    order = inverse(place)
    above = parent[order]
    return MergedTree(
        parent=np.where(above == ROOT, ROOT, place[above]).astype(np.int32),
        names=names,
        total_ns=union_length(work.start, work.end),
        **{name: column[order] for name, column in columns.items()},
    )


def _thread_label(work: GpuEvents, thread: int) -> str:
    process, number = work.trace.threads[thread]
    name = work.trace.thread_names.get((process, number), f"thread {number}")
    many = len({pid for pid, _ in work.trace.threads}) > 1
    process_name = work.trace.process_names.get(process, "process")
    place = process_name if process_name == process else f"{process_name} {process}"
    return f"{name}, {place}" if many else name


def folded_stacks(
    tree: MergedTree, *, depth: int | None = None, min_percent: float = 0.0
) -> Iterator[str]:
    """The tree as folded stacks, a line each: `outermost;…;innermost 1234`.

    The value is the summed duration of GPU events in ns, so the values of all lines add up to that
    of the tree (overlaps on the GPU count as often as they are). `;` in names becomes `:`, line
    ends become blanks, and a number at the end of a name is joined to it by `_`. The time of what
    is deeper than `depth` levels, or has a smaller share than `min_percent`, goes to the last level
    that is kept.
    """
    keep = tree.kept(depth, min_percent)
    above = nearest_marked(tree.parent, keep)
    target = np.where(keep, np.arange(len(tree)), above)
    values = sums(target, tree.self_ns, len(tree) + 1)  # `ROOT` is the last
    path: list[str] = []  # to the node, which its descendants follow: one path is in memory
    for node in np.flatnonzero(keep).tolist():
        name = _NUMBER_AT_END.sub(r"_\1", tree.label(node).translate(_SEPARATORS).strip())
        path[int(tree.depth[node]) :] = [name or NO_NAME]
        if value := int(values[node]):
            yield f"{';'.join(path)} {value}"
    if rest := int(values[-1]):
        yield f"{_OTHER} {rest}"
