"""Histograms as text: every value is in a bin or said to be outside."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens_ext.analysis.idle_time.histogram import (
    ascii_lines,
    histogram,
    histogram_lines,
)


def values(*numbers: float) -> np.ndarray:
    return np.array(numbers, dtype=np.float64)


def test_bins_of_one_width() -> None:
    found = histogram(values(1, 2, 3, 4, 11), bins=5)
    assert found.edges.tolist() == [1, 3, 5, 7, 9, 11]
    assert found.counts.tolist() == [2, 2, 0, 0, 1]
    lines = histogram_lines(found)
    assert lines[0] == " 1.0-3.0 μs │" + "█" * 40 + "│ 2"
    assert lines[2] == " 5.0-7.0 μs │" + "░" * 40 + "│ 0"
    assert lines[4] == "9.0-11.0 μs │" + "█" * 20 + "░" * 20 + "│ 1"
    assert histogram_lines(found, bars=False)[0] == " 1.0-3.0 μs: 2"


def test_one_outlier_hides_all_but_not_in_bins_of_one_ratio() -> None:
    many = values(*np.linspace(1, 10, 100), 1_000_000)
    assert histogram(many, bins=6).counts.tolist() == [100, 0, 0, 0, 0, 1]
    found = histogram(many, bins=6, log=True)
    assert found.edges == pytest.approx([1, 10, 100, 1e3, 1e4, 1e5, 1e6])
    assert found.counts.tolist()[:2] in ([99, 1], [100, 0])
    assert found.counts.sum() == 101


def test_bounds_and_what_is_outside() -> None:
    bounded = histogram(values(0.5, 1, 50, 100, 101), bins=2, smallest=1, largest=100)
    assert bounded.below == 1
    assert bounded.counts.tolist() == [2, 1]
    assert bounded.above == 1
    nothing_inside = histogram(values(1, 2), bins=3, smallest=5, largest=9)
    assert nothing_inside.below == 2
    assert nothing_inside.counts.tolist() == []
    assert nothing_inside.above == 0
    assert histogram_lines(nothing_inside) == []
    assert histogram(values(), bins=3).counts.tolist() == []
    assert histogram(values(7, 7), bins=3).counts.tolist() == [2]


def test_a_small_count_is_seen_and_ascii_will_do() -> None:
    lines = histogram_lines(histogram(values(*[1.0] * 10_000, 2), bins=2))
    assert lines[1].count("█") == 1
    plain = ascii_lines(lines)
    assert all(line.isascii() for line in plain)
    assert plain[0].endswith("us |" + "#" * 40 + "| 10000")


def test_narrow_bins_have_labels_that_differ() -> None:
    lines = histogram_lines(histogram(values(0.7, 0.71, 0.8), bins=20), bars=False)
    labels = [line.rsplit(":", 1)[0] for line in lines]
    assert len(set(labels)) == 20


@given(
    st.lists(st.floats(0, 1e9), max_size=40),
    st.integers(1, 30),
    st.booleans(),
    st.none() | st.floats(0, 1e6),
    st.none() | st.floats(1e6, 1e8, exclude_min=True),
)
def test_every_value_is_counted_once(
    drawn: list[float],
    bins: int,
    log: bool,
    smallest: float | None,
    largest: float | None,
) -> None:
    found = histogram(
        values(*drawn), bins=bins, smallest=smallest, largest=largest, log=log
    )
    assert found.below + int(found.counts.sum()) + found.above == len(drawn)
    assert min(found.below, found.above) >= 0
    assert len(found.counts) in (0, 1, bins)
    assert (np.diff(found.edges) >= 0).all()
    if len(found.counts):
        low = found.edges[0]
        high = found.edges[-1]
        assert int(found.counts.sum()) == sum(low <= value <= high for value in drawn)
    assert len(histogram_lines(found)) == len(found.counts)
