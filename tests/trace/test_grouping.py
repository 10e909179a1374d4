"""Groups of events, compared with dicts of lists."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracelens_ext.trace.grouping import dense_ranks, group_durations, number_groups

GROUPS_AND_DURATIONS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(-(10**15), 10**15)), max_size=30
)
#: Integers of all sizes, among them the extremes of int64.
INTEGERS = (
    st.integers(-5, 5)
    | st.integers(0, 10**7)
    | st.sampled_from([-(2**63), -(2**62), 0, 2**62, 2**63 - 2, 2**63 - 1])
)


@given(GROUPS_AND_DURATIONS)
def test_statistics_of_groups_agree_with_lists_of_durations(
    items: list[tuple[int, int]],
) -> None:
    durations_of: dict[int, list[int]] = defaultdict(list)
    for group, duration_ns in items:
        durations_of[group].append(duration_ns)
    code = np.array([group for group, _ in items], dtype=np.int64)
    duration = np.array([duration for _, duration in items], dtype=np.int64)
    groups = group_durations([code], duration)
    codes_of_groups = groups.keys[0]
    assert len(groups) == len(durations_of)
    assert codes_of_groups[groups.group_index].tolist() == code.tolist()
    totals = [sum(durations) for durations in durations_of.values()]
    assert groups.total.tolist() == sorted(totals, reverse=True)
    deviations = groups.deviation(duration)
    for index, group in enumerate(codes_of_groups.tolist()):
        durations = durations_of[group]
        assert groups.count[index] == len(durations)
        assert groups.total[index] == sum(durations)
        assert groups.shortest[index] == min(durations)
        assert groups.longest[index] == max(durations)
        deviation = statistics.stdev(durations) if len(durations) > 1 else 0.0
        assert math.isclose(deviations[index], deviation, rel_tol=1e-9, abs_tol=1e-3)
        assert items[groups.first[index]] == (group, durations[0])


@given(
    st.lists(st.tuples(INTEGERS, INTEGERS), max_size=30),
    st.sampled_from([np.int64, np.int32, np.uint8]),
)
def test_number_groups_numbers_the_sorted_combinations(
    pairs: list[tuple[int, int]], dtype: type[np.integer[Any]]
) -> None:
    bounds = np.iinfo(dtype)
    pairs = [
        (max(bounds.min, min(one, bounds.max)), max(bounds.min, min(two, bounds.max)))
        for one, two in pairs
    ]
    keys = [
        np.array([one for one, _ in pairs], dtype),
        np.array([two for _, two in pairs], dtype),
    ]
    first, number = number_groups(keys)
    distinct = sorted(set(pairs))
    assert number.tolist() == [distinct.index(pair) for pair in pairs]
    assert first.tolist() == [pairs.index(pair) for pair in distinct]


@given(st.lists(INTEGERS, max_size=30))
def test_dense_ranks_are_indices_into_the_distinct_values(values: list[int]) -> None:
    rank, count = dense_ranks(np.array(values, dtype=np.int64))
    distinct = sorted(set(values))
    assert rank.tolist() == [distinct.index(value) for value in values]
    assert count == len(distinct)
