"""Aligning the kernels of a CUDA graph: as many as possible correspond, in order."""

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
    first = np.array(a, dtype=np.int32)
    second = np.array(b, dtype=np.int32)
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
    _check_alignment(a, b, _aligned(a, b))


@given(_SEQUENCES, _SEQUENCES)
def test_equal_elements_correspond_in_order_without_a_budget(
    a: list[int], b: list[int]
) -> None:
    _check_alignment(a, b, _aligned(a, b, AlignmentBudget(cells=0)))


def _check_alignment(a: list[int], b: list[int], places: list[int]) -> None:
    """Check that each element of `a` has an equal element of `b` or none, in ascending order."""
    for element, place in zip(a, places, strict=True):
        assert place == NONE or b[place] == element
    used_places = [place for place in places if place != NONE]
    assert used_places == sorted(set(used_places))


@given(st.data(), _SEQUENCES)
def test_a_subsequence_is_found_as_early_as_can_be(
    data: st.DataObject, b: list[int]
) -> None:
    a = [element for element in b if data.draw(st.booleans())]
    first = np.array(a, dtype=np.int32)
    second = np.array(b, dtype=np.int32)
    places = first_places(first, second).tolist()
    assert [b[place] for place in places] == a
    for previous_place, place in zip([-1, *places], places, strict=False):
        assert b[place] not in b[previous_place + 1 : place]


def test_a_missing_layer_of_many_equal_ones_is_found() -> None:
    layer = [1, 2, 3, 4]
    captured = [0, *layer * 5, 9]
    replayed = [0, *layer * 2, 1, 3, 4, *layer * 2, 9]
    expected = [i for i in range(len(captured)) if i != 10]
    assert _aligned(replayed, captured) == expected


def test_long_sequences_take_no_more_than_the_budget() -> None:
    rng = np.random.default_rng(0)
    budget = AlignmentBudget(cells=10_000)
    a = rng.integers(0, 5, 300).tolist()
    b = rng.integers(0, 5, 300).tolist()
    assert sum(place != NONE for place in _aligned(a, b, budget)) < 20
