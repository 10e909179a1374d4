"""Aligning two sequences: as many elements as possible correspond, in order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracelens_ext.analysis.cuda_graphs.matching import (
    AlignmentBudget,
    align,
    first_places,
)
from tracelens_ext.trace import NONE

_SEQUENCES = st.lists(st.integers(0, 3), max_size=14)


def _aligned(
    a: list[int], b: list[int], budget: AlignmentBudget | None = None
) -> list[int]:
    first, second = (np.array(each, dtype=np.int32) for each in (a, b))
    places: list[int] = align(first, second, budget or AlignmentBudget()).tolist()
    return places


def _most(a: list[int], b: list[int]) -> int:
    """The length of a longest common subsequence, by definition."""
    if not a or not b:
        return 0
    if a[-1] == b[-1]:
        return 1 + _most(a[:-1], b[:-1])
    return max(_most(a[:-1], b), _most(a, b[:-1]))


@given(st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 3), max_size=8))
def test_as_many_elements_as_possible_correspond(a: list[int], b: list[int]) -> None:
    assert sum(place != NONE for place in _aligned(a, b)) == _most(a, b)


@given(_SEQUENCES, _SEQUENCES)
def test_equal_elements_correspond_in_order(a: list[int], b: list[int]) -> None:
    pairs = [(i, j) for i, j in enumerate(_aligned(a, b)) if j != NONE]
    assert all(a[i] == b[j] for i, j in pairs)
    assert [j for _, j in pairs] == sorted({j for _, j in pairs})


@given(_SEQUENCES, _SEQUENCES)
def test_without_a_budget_what_corresponds_still_does_so_in_order(
    a: list[int], b: list[int]
) -> None:
    pairs = [
        (i, j)
        for i, j in enumerate(_aligned(a, b, AlignmentBudget(cells=0)))
        if j != NONE
    ]
    assert all(a[i] == b[j] for i, j in pairs)
    assert [j for _, j in pairs] == sorted({j for _, j in pairs})


@given(st.data(), _SEQUENCES)
def test_a_subsequence_is_found_as_early_as_can_be(
    data: st.DataObject, b: list[int]
) -> None:
    a = [element for element in b if data.draw(st.booleans())]
    first, second = (np.array(each, dtype=np.int32) for each in (a, b))
    found = first_places(first, second).tolist()
    assert [b[place] for place in found] == a
    for before, place in zip([-1, *found], found, strict=False):
        assert b[place] not in b[before + 1 : place]


def test_a_missing_layer_of_many_equal_ones_is_found() -> None:
    layer = [1, 2, 3, 4]
    captured = [0, *layer * 5, 9]
    replayed = [0, *layer * 2, 1, 3, 4, *layer * 2, 9]
    expected = [i for i in range(len(captured)) if i != 10]
    assert _aligned(replayed, captured) == expected


def test_long_sequences_take_no_more_than_the_budget() -> None:
    rng = np.random.default_rng(0)
    budget = AlignmentBudget(cells=10_000)
    a, b = (rng.integers(0, 5, 300).tolist() for _ in range(2))
    assert sum(place != NONE for place in _aligned(a, b, budget)) < 20
