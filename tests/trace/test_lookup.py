"""Look-ups for indices of which some stand for nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens_ext.trace import NONE
from tracelens_ext.trace.lookup import is_within, values_at

VALUES = st.lists(st.integers(-5, 5), max_size=6)
INDICES = st.lists(st.integers(-3, 9), max_size=8)


@given(VALUES, INDICES, st.integers(-9, 9))
def test_an_index_outside_of_the_array_is_missing(
    values: list[int], indices: list[int], missing: int
) -> None:
    expected = []
    for index in indices:
        if 0 <= index < len(values):
            expected.append(values[index])
        else:
            expected.append(missing)
    found = values_at(
        np.array(values, dtype=np.int64), np.array(indices, dtype=np.int64), missing
    )
    assert found.tolist() == expected


def test_none_and_the_index_after_the_last_one_are_missing() -> None:
    assert values_at(np.array([10, 20, 30]), np.array([2, NONE, 0, 3])).tolist() == [
        30,
        -1,
        10,
        -1,
    ]


@pytest.mark.parametrize(
    ("values", "missing"),
    [
        (np.array([True, True]), False),
        (np.array([1, 2], dtype=np.int32), NONE),
        (np.array([1.5, 2.5]), np.nan),
    ],
)
def test_the_type_of_the_values_stays(
    values: np.ndarray[tuple[int], np.dtype[np.generic]], missing: float
) -> None:
    found = values_at(values, np.array([1, NONE]), missing)
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(
        found, np.array([values[1], missing], dtype=values.dtype)
    )


def test_the_values_stay_as_they_were() -> None:
    values = np.array([1, 2, 3])
    found = values_at(values, np.array([NONE, 0, 1]))
    found[:] = 7
    assert values.tolist() == [1, 2, 3]


def test_a_table_of_indices_is_answered_in_its_shape() -> None:
    found = values_at(np.array([7, 8]), np.array([[0, 1], [NONE, 2]]))
    assert found.tolist() == [[7, 8], [NONE, NONE]]


def test_what_is_within_an_array() -> None:
    assert is_within(np.array([7, 8]), np.array([NONE, 0, 1, 2])).tolist() == [
        False,
        True,
        True,
        False,
    ]
