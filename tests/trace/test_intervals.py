"""Unions and gaps of intervals against sets of unit cells."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens_ext.trace.gpu_events import holes
from tracelens_ext.trace.intervals import union, union_length

Interval = tuple[int, int]


def gaps(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    before, after = holes(start, end)
    lengths: np.ndarray = start[after] - end[before]
    return lengths


intervals = st.lists(
    st.tuples(st.integers(-5, 30), st.integers(0, 8)).map(
        lambda i: (i[0], i[0] + i[1])
    ),
    max_size=12,
)
lasting = intervals.map(lambda found: [i for i in found if i[0] < i[1]])


def arrays(given_intervals: list[Interval]) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.array(given_intervals, dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def cells(given_intervals: list[Interval]) -> set[int]:
    """Cell t is the time from t to t + 1."""
    return {cell for start, end in given_intervals for cell in range(start, end)}


@given(intervals)
@settings(max_examples=300)
def test_union(given_intervals: list[Interval]) -> None:
    start, end = union(*arrays(given_intervals))
    merged = list(zip(start.tolist(), end.tolist(), strict=True))
    assert cells(merged) == cells(given_intervals)
    assert all(a_end < b_start for (_, a_end), (b_start, _) in pairwise(merged))
    assert union_length(*arrays(given_intervals)) == len(cells(given_intervals))


@given(lasting)
@settings(max_examples=300)
def test_gaps(given_intervals: list[Interval]) -> None:
    """The runs of empty cells between the first and the last."""
    busy = cells(given_intervals)
    runs: list[int] = []
    for cell in range(min(busy, default=0), max(busy, default=0)):
        if cell in busy:
            continue
        if cell - 1 in busy:
            runs.append(0)
        runs[-1] += 1
    assert gaps(*arrays(given_intervals)).tolist() == runs


@given(intervals.filter(bool))
def test_busy_and_idle_are_all_the_time(given_intervals: list[Interval]) -> None:
    start, end = arrays(given_intervals)
    span = int(end.max() - start.min())
    assert union_length(start, end) + int(gaps(start, end).sum()) == span


@given(intervals)
def test_the_order_does_not_matter_and_nothing_is_changed(
    given_intervals: list[Interval],
) -> None:
    start, end = arrays(given_intervals)
    before = start.copy(), end.copy()
    expected = [part.tolist() for part in union(start, end)]
    assert [part.tolist() for part in union(start[::-1], end[::-1])] == expected
    assert (start == before[0]).all()
    assert (end == before[1]).all()


@pytest.mark.parametrize(
    ("given_intervals", "expected"),
    [
        ([], []),
        ([(3, 3)], [(3, 3)]),
        ([(0, 5), (5, 9)], [(0, 9)]),  # touching
        ([(0, 9), (2, 4), (3, 5)], [(0, 9)]),  # inside
        ([(0, 9), (2, 4), (9, 10), (11, 12)], [(0, 10), (11, 12)]),
        ([(2**62, 2**62 + 1), (2**62 + 1, 2**62 + 2)], [(2**62, 2**62 + 2)]),
    ],
)
def test_unions(given_intervals: list[Interval], expected: list[Interval]) -> None:
    start, end = union(*arrays(given_intervals))
    assert list(zip(start.tolist(), end.tolist(), strict=True)) == expected
