"""Look-ups among items that are sorted by group and time, compared with plain loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracelens_ext.trace import NONE, Int64Array
from tracelens_ext.trace.sorted_groups import last_before, running_maximum

FAR_TIMES = st.sampled_from([-(2**63), -(2**62), 0, 2**62, 2**63 - 2, 2**63 - 1])
#: A group and a time.
ITEMS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 9) | FAR_TIMES), max_size=20
)
QUERIES = st.lists(
    st.tuples(st.integers(-1, 4), st.integers(-1, 11) | FAR_TIMES), max_size=10
)


def columns(pairs: list[tuple[int, int]]) -> tuple[Int64Array, Int64Array]:
    """Return the groups and the times of pairs as arrays."""
    groups = np.array([group for group, _ in pairs], dtype=np.int64)
    times = np.array([time for _, time in pairs], dtype=np.int64)
    return groups, times


@given(ITEMS, QUERIES)
def test_last_before_is_the_last_item_of_the_group_that_is_earlier(
    items: list[tuple[int, int]], queries: list[tuple[int, int]]
) -> None:
    items = sorted(items)
    expected = []
    for query_group, query_time in queries:
        earlier = [
            index
            for index, (group, time) in enumerate(items)
            if group == query_group and time < query_time
        ]
        expected.append(max(earlier, default=NONE))
    last = last_before(*columns(items), *columns(queries))
    assert last.tolist() == expected


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-4, 4) | FAR_TIMES)))
def test_the_running_maximum_is_the_largest_value_of_the_group_so_far(
    items: list[tuple[int, int]],
) -> None:
    items = sorted(items, key=lambda item: item[0])
    highest, place = running_maximum(*columns(items))
    for index, (group, _) in enumerate(items):
        values_so_far = [
            (value, earlier)
            for earlier, (group_of_value, value) in enumerate(items[: index + 1])
            if group_of_value == group
        ]
        assert (int(highest[index]), int(place[index])) == max(values_so_far)
