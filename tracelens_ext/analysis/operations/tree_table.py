"""The call tree with GPU time as a table, and as folded stacks for flame graphs."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from tracelens_ext.analysis.operations.merged_tree import MergedTree, merged_tree
from tracelens_ext.lazy import pd
from tracelens_ext.text import NO_NAME
from tracelens_ext.trace import LAUNCH_KINDS, NS_PER_MS, BoolArray, EventKind
from tracelens_ext.trace.gpu_events import KIND_LABELS, GpuEvents
from tracelens_ext.trace.grouping import sums, texts
from tracelens_ext.trace.nesting import ROOT, nearest_marked

#: Stands for the time of nodes that are not shown and have no node above that is.
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


def call_tree_table(
    gpu_events: GpuEvents,
    op: str | re.Pattern[str] | None = None,
    *,
    merge: bool = True,
) -> pd.DataFrame:
    """Return the call tree with GPU time as the sheet `tree`, with a row for each node.

    Args:
        gpu_events: the GPU events.
        op: a regular expression; only events at or below host events whose name it matches are in
            the tree.
        merge: whether siblings with the same name share a row.
    """
    return tree_rows(merged_tree(gpu_events, op=op, merge=merge))


def tree_rows(tree: MergedTree, kept: BoolArray | None = None) -> pd.DataFrame:
    """Return a tree as the table of `call_tree_table`, with the rows of `kept` nodes only."""
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
    if kept is None:
        return frame
    return frame[kept].reset_index(drop=True)


def folded_stacks(
    tree: MergedTree, *, depth: int | None = None, min_percent: float = 0.0
) -> Iterator[str]:
    """Yield the tree as folded stacks, one line for each: `outermost;…;innermost 1234`.

    The value is the summed duration of GPU events in ns. The values of all lines add up to that of
    the whole tree. Time during which several GPU events run counts for each of them.

    In names, `;` becomes `:`, line ends become spaces, and `_` joins a number at the end to the
    rest of the name. The time of a node that is not shown goes to the nearest node above it that
    is shown, or else to `(other)`.

    Args:
        tree: the tree.
        depth: number of levels to show; all levels by default.
        min_percent: nodes with a smaller share of the GPU's busy time are not shown.
    """
    keep = tree.kept(depth, min_percent)
    kept_above = nearest_marked(tree.parent, keep)
    target = np.where(keep, np.arange(len(tree)), kept_above)
    has_target = target != ROOT
    values = sums(
        group_index=target[has_target],
        values=tree.self_ns[has_target],
        group_count=len(tree),
    )
    remaining = int(tree.self_ns[~has_target].sum())
    # The names from the root to the current node. A node's descendants follow it, so the path of a
    # node is a prefix of the path before it, and its own name.
    path: list[str] = []
    for node in np.flatnonzero(keep).tolist():
        name = tree.label(node).translate(_SEPARATORS).strip()
        name = _NUMBER_AT_END.sub(r"_\1", name)
        path[int(tree.depth[node]) :] = [name or NO_NAME]
        value = int(values[node])
        if value:
            yield f"{';'.join(path)} {value}"
    if remaining:
        yield f"{_OTHER} {remaining}"
