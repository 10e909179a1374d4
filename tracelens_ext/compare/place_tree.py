"""Builds the tree of the places of two traces, colored by how much their times changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tracelens_ext.analysis.call_tree_chart import NodePath, node_columns
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NS_PER_MS

#: The most places with a node of their own. A page can draw no more; the others share a node.
_MAX_PLACES = 300
_OTHER: NodePath = (("operation", "other"),)


class _Color(NamedTuple):
    """A color whose parts are 0 to 255."""

    red: int
    green: int
    blue: int

    def mixed_with(self, other: _Color, share: float) -> _Color:
        """Return the color between this one (share 0) and another (share 1)."""
        parts = []
        for part, other_part in zip(self, other, strict=True):
            difference = other_part - part
            parts.append(round(part + difference * share))
        return _Color(*parts)

    def as_hex(self) -> str:
        """Return the color as CSS writes it."""
        return f"#{self.red:02x}{self.green:02x}{self.blue:02x}"


_UNCHANGED_COLOR = _Color(red=232, green=234, blue=238)
_SLOWER_COLOR = _Color(red=214, green=69, blue=65)
_FASTER_COLOR = _Color(red=52, green=120, blue=190)
#: The change relative to the longer time from which on a node has the full color.
_FULL_COLOR_CHANGE = 0.5


@dataclass
class _Node:
    """The sums of the times of all places below a node."""

    before_ms: float = 0.0
    after_ms: float = 0.0
    #: the width of the node, ns. Each place is rounded before it is added, so that a node is
    #: exactly as wide as its children together
    ns: int = 0

    def add(self, before_ms: float, after_ms: float) -> None:
        """Add the times of a place."""
        self.before_ms += before_ms
        self.after_ms += after_ms
        self.ns += round((before_ms + after_ms) * NS_PER_MS)

    @property
    def change_ms(self) -> float:
        """The difference between the times of the two traces; positive if it became longer."""
        return self.after_ms - self.before_ms


def place_tree(places: pd.DataFrame, letters: Sequence[str]) -> pd.DataFrame:
    """Return the nodes of the tree with the times of both traces, parents before children.

    The smallest places share the node `other`. The columns are those of the call tree,
    `A_time_ms`, `B_time_ms`, `difference_ms`, `colour` and `hover`.

    Args:
        places: the table `places` of two traces.
        letters: the letters of the two traces.
    """
    before_letter, after_letter = letters
    times = [f"{before_letter}_time_ms", f"{after_letter}_time_ms"]
    nodes = _nodes(places, before_letter, after_letter)
    rows = []
    for node in nodes.values():
        hover = (
            f"{before_letter} {node.before_ms:,.3f} ms, {after_letter} {node.after_ms:,.3f} ms"
            f" ({node.change_ms:+,.3f} ms)"
        )
        rows.append(
            {
                "category": "",
                "gpu_time_ns": node.ns,
                times[0]: node.before_ms,
                times[1]: node.after_ms,
                "difference_ms": node.change_ms,
                "colour": _color(node.before_ms, node.after_ms),
                "hover": hover,
            }
        )
    columns = ["category", "gpu_time_ns"] + times + ["difference_ms", "colour", "hover"]
    figures = pd.DataFrame(rows, columns=columns)
    return pd.concat([pd.DataFrame(node_columns(nodes)), figures], axis=1)


def _nodes(
    places: pd.DataFrame, before_letter: str, after_letter: str
) -> dict[NodePath, _Node]:
    """Return path → node, shorter paths first."""
    before_column = f"{before_letter}_time_ms"
    after_column = f"{after_letter}_time_ms"
    places = places.fillna({before_column: 0.0, after_column: 0.0})
    longer_time = places[[before_column, after_column]].max(axis=1)
    order = longer_time.sort_values(ascending=False, kind="stable").index
    nodes: dict[NodePath, _Node] = {}
    for index, row in enumerate(places.loc[order].to_dict("records")):
        path = _OTHER
        if index < _MAX_PLACES:
            path = _node_path(row, before_letter, after_letter)
        for depth in range(1, len(path) + 1):
            node = nodes.setdefault(path[:depth], _Node())
            node.add(row[before_column], row[after_column])
    return {path: nodes[path] for path in sorted(nodes, key=len)}


def _node_path(
    row: Mapping[Any, Any], before_letter: str, after_letter: str
) -> NodePath:
    """Return the path of a place: its modules, then a node for its operations in both traces."""
    operations = []
    for letter in (before_letter, after_letter):
        operation = row[f"{letter}_operation"]
        if operation and operation not in operations:
            operations.append(operation)
    name = " → ".join(operations)
    if row["backward"]:
        name = f"{name} (backward)"
    nodes = [("module", part) for part in row["path"].split("/") if part]
    nodes.append(("operation", name))
    return tuple(nodes)


def _color(before: float, after: float) -> str:
    """Return the color of a change: red if the time became longer, blue if shorter."""
    larger = max(before, after)
    if not larger:
        return _UNCHANGED_COLOR.as_hex()
    relative_change = (after - before) / larger
    target = _SLOWER_COLOR if relative_change > 0 else _FASTER_COLOR
    intensity = min(abs(relative_change) / _FULL_COLOR_CHANGE, 1.0)
    return _UNCHANGED_COLOR.mixed_with(target, intensity).as_hex()
