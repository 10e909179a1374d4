"""The alignment of two sequences: as many elements as possible correspond, in order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracelens_ext.analysis.cuda_graphs.sequence_alignment import (
    AlignmentBudget,
    align,
    earliest_places_of,
)
from tracelens_ext.trace import NONE

SHORT_SEQUENCES = st.lists(st.integers(0, 3), max_size=8)
SEQUENCES = st.lists(st.integers(0, 3), max_size=14)


def aligned(
    first: list[int], second: list[int], budget: AlignmentBudget | None = None
) -> list[int]:
    """Return the place in `second` of each element of `first`, `NONE` without one."""
    places: list[int] = align(
        np.array(first, dtype=np.int32),
        np.array(second, dtype=np.int32),
        budget or AlignmentBudget(),
    ).tolist()
    return places


def check_alignment(first: list[int], second: list[int], places: list[int]) -> None:
    """Check that equal elements correspond, in order."""
    for element, place in zip(first, places, strict=True):
        assert place == NONE or second[place] == element
    corresponding = [place for place in places if place != NONE]
    assert corresponding == sorted(set(corresponding))


def longest_length(first: list[int], second: list[int]) -> int:
    """Return the length of a longest common subsequence, by its definition."""
    if not first or not second:
        return 0
    if first[-1] == second[-1]:
        return 1 + longest_length(first[:-1], second[:-1])
    return max(
        longest_length(first[:-1], second),
        longest_length(first, second[:-1]),
    )


@given(SHORT_SEQUENCES, SHORT_SEQUENCES)
def test_as_many_elements_as_possible_correspond(
    first: list[int], second: list[int]
) -> None:
    corresponding = [place for place in aligned(first, second) if place != NONE]
    assert len(corresponding) == longest_length(first, second)


@given(SEQUENCES, SEQUENCES)
def test_equal_elements_correspond_in_order(
    first: list[int], second: list[int]
) -> None:
    check_alignment(first, second, aligned(first, second))


@given(SEQUENCES, SEQUENCES)
def test_equal_elements_correspond_in_order_even_without_a_budget(
    first: list[int], second: list[int]
) -> None:
    places = aligned(first, second, AlignmentBudget(cells=0))
    check_alignment(first, second, places)


@given(st.data(), SEQUENCES)
def test_places_are_the_earliest_places_of_a_subsequence(
    data: st.DataObject, sequence: list[int]
) -> None:
    elements = [element for element in sequence if data.draw(st.booleans())]
    places = earliest_places_of(
        np.array(elements, dtype=np.int32), np.array(sequence, dtype=np.int32)
    ).tolist()
    assert [sequence[place] for place in places] == elements
    next_place = 0
    for element, place in zip(elements, places, strict=True):
        assert element not in sequence[next_place:place]
        next_place = place + 1


def test_a_missing_element_among_equal_layers_has_no_counterpart() -> None:
    layer = [1, 2, 3, 4]
    captured = [0, *layer * 5, 9]
    replayed = [0, *layer * 2, 1, 3, 4, *layer * 2, 9]
    missing_place = 10
    expected = [place for place in range(len(captured)) if place != missing_place]
    assert aligned(replayed, captured) == expected


def test_sequences_beyond_the_budget_only_correspond_at_their_ends() -> None:
    random = np.random.default_rng(0)
    first = random.integers(0, 5, 300).tolist()
    second = random.integers(0, 5, 300).tolist()
    places = aligned(first, second, AlignmentBudget(cells=10_000))
    assert sum(place != NONE for place in places) < 20
