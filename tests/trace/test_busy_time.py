"""Busy time of many groups at once agrees with the union of each group on its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.call_counts import calls_during
from tracelens_ext.trace import NONE
from tracelens_ext.trace.busy_time import BusyTime
from tracelens_ext.trace.intervals import union_length

Interval = tuple[int, int, int]

#: Owner (or nobody), start, duration; small numbers so that intervals meet often.
_INTERVALS = st.lists(
    st.tuples(st.integers(NONE, 4), st.integers(0, 40), st.integers(0, 15)), max_size=40
)
#: Each node's parent comes before it; -1 is no parent.
_FOREST = st.lists(st.integers(0, 100), min_size=5, max_size=5).map(
    lambda numbers: np.array(
        [n % (i + 1) - 1 for i, n in enumerate(numbers)], dtype=np.int32
    )
)


def _columns(intervals: list[Interval]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = np.array(intervals, dtype=np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 1] + table[:, 2]


@given(_INTERVALS)
def test_by_owner_is_the_union_of_each(intervals: list[Interval]) -> None:
    owner, start, end = _columns(intervals)
    busy = BusyTime(start, end).by_owner(owner, 5)
    assert busy.tolist() == [
        union_length(start[owner == i], end[owner == i]) for i in range(5)
    ]


@given(_FOREST, _INTERVALS)
def test_by_subtree_is_the_union_of_all_below(
    parent: np.ndarray, intervals: list[Interval]
) -> None:
    owner, start, end = _columns(intervals)
    busy = BusyTime(start, end).by_subtree(parent, owner)
    for node in range(5):
        below = [_is_below(parent, int(at), node) for at in owner]
        chosen = np.array(below, dtype=bool)
        assert busy[node] == union_length(start[chosen], end[chosen])


def _is_below(parent: np.ndarray, node: int, top: int) -> bool:
    while node not in (NONE, top):
        node = int(parent[node])
    return node == top


@pytest.mark.parametrize("owner_count", [3, 70_000])
def test_times_of_long_traces_do_not_overflow(owner_count: int) -> None:
    start = np.array([2**61, 0, 2**61 + 5], dtype=np.int64)
    owner = np.array([owner_count - 1, 0, owner_count - 1])
    busy = BusyTime(start, start + 10).by_owner(owner, owner_count)
    assert busy[0] == 10
    assert busy[-1] == 15
    assert busy.sum() == 25


def test_owners_of_nothing() -> None:
    empty = np.empty(0, dtype=np.int64)
    busy = BusyTime(empty, empty)
    assert busy.by_owner(empty, 2).tolist() == [0, 0]
    assert busy.by_subtree(np.array([-1, 0], dtype=np.int32), empty).tolist() == [0, 0]


def test_a_deep_forest_takes_no_more_steps_than_a_shallow_one() -> None:
    def calls_for(depth: int) -> int:
        parent = np.arange(-1, depth - 1, dtype=np.int32)
        owner = np.full(20, depth - 1)
        start = np.arange(20)
        busy = BusyTime(start, start + 5)
        assert (busy.by_subtree(parent, owner) == 24).all()
        return calls_during(lambda: busy.by_subtree(parent, owner))

    assert calls_for(20_000) < calls_for(100) * 4


@given(st.lists(st.integers(0, 5), min_size=120, max_size=120), st.data())
def test_narrow_forests_too(up: list[int], data: st.DataObject) -> None:
    parents = [max(node - 1 - levels, -1) for node, levels in enumerate(up)]
    parent = np.array(parents, dtype=np.int32)
    owners = data.draw(st.lists(st.integers(0, 119), min_size=3, max_size=20))
    starts = data.draw(st.lists(st.integers(0, 30), min_size=20, max_size=20))
    start = np.array(starts[: len(owners)])
    end = start + 7
    busy = BusyTime(start, end).by_subtree(parent, np.array(owners))
    for node in (0, 40, 80, 119):
        is_below = np.array([_is_below(parent, owner, node) for owner in owners])
        assert busy[node] == union_length(start[is_below], end[is_below])
