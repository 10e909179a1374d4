"""Sorting by small numbers: as numpy's own stable sort, whatever the numbers are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens_ext.trace.integer_sorting import stable_order

KINDS = [np.uint8, np.int32, np.int64]


EDGES = [-1, 0, 1, 2, 255, 65_535, 65_536, 65_537, 2**31, 2**32 - 1, 2**32, 2**40]


@given(st.lists(st.sampled_from(EDGES), max_size=60))
def test_as_a_stable_sort(numbers: list[int]) -> None:
    array = np.array(numbers, dtype=np.int64)
    assert stable_order(array).tolist() == sorted(
        range(len(numbers)), key=numbers.__getitem__
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_of_number(kind: type[np.integer]) -> None:
    array = np.array([3, 1, 3, 0, 1], dtype=kind)
    assert stable_order(array).tolist() == [3, 1, 4, 0, 2]
    assert array.dtype == kind
