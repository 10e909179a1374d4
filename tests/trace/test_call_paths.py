"""Nodes have one path exactly when their names from the root down are the same."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracelens_ext.trace.call_paths import find_paths
from tracelens_ext.trace.nesting import ROOT, nearest_above, nearest_marked

_LABELS = ["a", "b", "c"]


@st.composite
def _forests(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    size = draw(st.integers(0, 25))
    parent = [draw(st.integers(ROOT, i - 1)) for i in range(size)]
    name = [draw(st.integers(0, len(_LABELS) - 1)) for _ in range(size)]
    return np.array(parent, dtype=np.int32), np.array(name, dtype=np.int32)


def _spelled(parent: np.ndarray, name: np.ndarray, node: int) -> str:
    above = int(parent[node])
    own = _LABELS[name[node]]
    return own if above == ROOT else f"{_spelled(parent, name, above)}/{own}"


@given(_forests())
def test_paths_are_spelled_from_the_root(forest: tuple[np.ndarray, np.ndarray]) -> None:
    parent, name = forest
    paths = find_paths(parent, name)
    texts = paths.texts(_LABELS, "/")
    assert [texts[i] for i in paths.of_node] == [
        _spelled(parent, name, node) for node in range(len(parent))
    ]
    assert len(set(texts)) == len(paths) == len(texts)
    assert all(above < path for path, above in enumerate(paths.parent.tolist()))


@given(_forests(), st.lists(st.booleans(), min_size=25, max_size=25))
def test_nearest_above_agrees_with_the_search_for_all(
    forest: tuple[np.ndarray, np.ndarray], flags: list[bool]
) -> None:
    parent, _ = forest
    marked = np.array(flags[: len(parent)], dtype=bool)
    nodes = np.arange(len(parent))[::2]
    assert nearest_above(parent, nodes, marked).tolist() == (
        nearest_marked(parent, marked)[nodes].tolist()
    )
