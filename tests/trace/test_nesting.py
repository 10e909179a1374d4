"""Nesting against the rules said plainly: one event at a time, every pair compared."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.call_counts import calls_during
from tracelens_ext.trace.nesting import (
    LATE_END_NS,
    ROOT,
    Nesting,
    depths,
    insert_below,
    nearest_marked,
    nest,
    subtree_ends,
)


@dataclass(frozen=True)
class Interval:
    """`tie` is the External id, or what stands for one; `call` says that it is a runtime call."""

    thread: int
    start: int
    end: int
    tie: int = 0
    call: bool = False


def nested(intervals: list[Interval]) -> Nesting:
    return nest(
        np.array([i.thread for i in intervals], dtype=np.int32),
        np.array([i.start for i in intervals], dtype=np.int64),
        np.array([i.end for i in intervals], dtype=np.int64),
        np.array([i.tie for i in intervals], dtype=np.int64),
        np.array([i.call for i in intervals], dtype=bool),
    )


def parents(intervals: list[Interval]) -> list[int]:
    """Index of each interval → index of its parent."""
    nesting = nested(intervals)
    result = [ROOT] * len(intervals)
    for at, above in zip(nesting.order.tolist(), nesting.parent.tolist(), strict=True):
        result[at] = int(nesting.order[above]) if above != ROOT else ROOT
    return result


def rank(interval: Interval, index: int) -> tuple[int, int, int, int, int]:
    """Where an interval stands in tree order."""
    return interval.thread, interval.start, -interval.end, interval.tie, index


def strict_parents(intervals: list[Interval]) -> list[int]:
    """Of all that enclose an interval, the innermost: last to start, first to end."""

    def may_enclose(outer: int, inner: int) -> bool:
        a = intervals[outer]
        b = intervals[inner]
        if outer == inner or a.thread != b.thread:
            return False
        if (a.start, a.end) == (b.start, b.end):
            return not (a.call and b.call) and (a.tie, outer) < (b.tie, inner)
        return a.start <= b.start and b.end <= a.end

    everyone = range(len(intervals))
    return [
        max(
            (outer for outer in everyone if may_enclose(outer, inner)),
            key=lambda outer: rank(intervals[outer], outer),
            default=ROOT,
        )
        for inner in everyone
    ]


def cut_once(intervals: list[Interval], recorded: list[Interval]) -> list[Interval]:
    """The intervals, of which those that end a little after the sibling before them end with it."""
    parent = strict_parents(intervals)
    order = sorted(
        range(len(intervals)), key=lambda index: rank(intervals[index], index)
    )
    sibling = {}
    for place, index in enumerate(order):
        for other in order[:place]:
            if (parent[other], intervals[other].thread) == (
                parent[index],
                intervals[index].thread,
            ):
                sibling[index] = other
    late = set()
    for index, other in sibling.items():
        end = intervals[other].end
        late_in_all = recorded[index].end - end
        is_little = (
            late_in_all <= LATE_END_NS and late_in_all < end - intervals[index].start
        )
        if intervals[index].end > end and is_little:
            late.add(index)
    cut = {
        index: intervals[sibling[index]].end
        for index in late
        if sibling[index] not in late
    }
    for index in order:
        if parent[index] in cut:
            cut[index] = min(cut.get(index, intervals[index].end), cut[parent[index]])
    return [
        replace(interval, end=cut[index])
        if index in cut and cut[index] > interval.start
        else interval
        for index, interval in enumerate(intervals)
    ]


def naive_parents(intervals: list[Interval]) -> list[int]:
    cut = intervals
    for _ in range(4):
        cut = cut_once(cut, intervals)
    return strict_parents(cut)


#: Few distinct times, so that equal, touching, overlapping and empty intervals are common; of
#: some an interval may be late by much or by little.
intervals = st.lists(
    st.builds(
        lambda thread, start, length, tie, call: Interval(
            thread, 400 * start, 400 * (start + length), tie, call
        ),
        st.integers(0, 1),
        st.integers(0, 8),
        st.integers(0, 8),
        st.integers(-1, 3),
        st.booleans(),
    ),
    max_size=14,
)


@given(intervals)
@example([])
@example([Interval(0, 0, 10), Interval(0, 5, 15), Interval(0, 6, 9)])
@example(
    [
        Interval(0, 0, 5, call=True),
        Interval(0, 0, 5, call=True),
        Interval(0, 0, 5, tie=9),
    ]
)
@settings(max_examples=500)
def test_parents_are_those_of_the_rules(given_intervals: list[Interval]) -> None:
    assert parents(given_intervals) == naive_parents(given_intervals)


def test_what_ends_a_little_late_stays_below() -> None:
    outer = Interval(0, 0, 10_000)
    assert parents([outer, Interval(0, 5_000, 11_000)]) == [ROOT, 0]
    assert parents([outer, Interval(0, 5_000, 11_001)]) == [ROOT, ROOT]
    # What begins at the end of another one, or just before it, follows it.
    assert parents([outer, Interval(0, 10_000, 10_500)]) == [ROOT, ROOT]
    assert parents([outer, Interval(0, 9_900, 10_300)]) == [ROOT, ROOT]
    # What is late itself may have children, but not beyond the end of what it is in.
    late = Interval(0, 9_000, 10_400)
    assert parents([outer, late, Interval(0, 9_100, 10_300)]) == [ROOT, 0, 1]
    assert parents([outer, late, Interval(0, 10_100, 10_300)]) == [ROOT, 0, ROOT]


@given(intervals)
@settings(max_examples=200)
def test_what_must_hold_of_any_tree(given_intervals: list[Interval]) -> None:
    nesting = nested(given_intervals)
    parent = nesting.parent.tolist()
    depth = depths(nesting.parent)
    ends = subtree_ends(nesting.parent, depths(nesting.parent))
    ordered = [given_intervals[i] for i in nesting.order.tolist()]
    # none is lost
    assert sorted(nesting.order.tolist()) == list(range(len(given_intervals)))
    assert [i.thread for i in ordered] == sorted(i.thread for i in ordered)
    for at, above in enumerate(parent):
        chain = ancestors(parent, at)
        assert depth[at] == len(chain)
        if above != ROOT:
            assert above < at
            assert ordered[above].thread == ordered[at].thread
            assert ordered[above].start <= ordered[at].start
            assert ordered[at].end <= ordered[above].end + LATE_END_NS
        below = [i for i in range(len(parent)) if at in ancestors(parent, i)]
        # one range, just after the event
        assert below == list(range(at + 1, int(ends[at])))


def ancestors(parent: list[int], at: int) -> list[int]:
    chain = []
    while (at := parent[at]) != ROOT:
        chain.append(at)
    return chain


@given(intervals, st.lists(st.booleans(), min_size=14, max_size=14))
def test_nearest_marked(given_intervals: list[Interval], marks: list[bool]) -> None:
    nesting = nested(given_intervals)
    marked = np.array(marks[: len(given_intervals)], dtype=bool)
    parent = nesting.parent.tolist()
    found = nearest_marked(nesting.parent, marked).tolist()
    assert found == [
        next((a for a in ancestors(parent, i) if marked[a]), ROOT)
        for i in range(len(parent))
    ]
    assert nesting.parent.tolist() == parent  # untouched


# The rules one by one.


def test_inside_beside_and_touching() -> None:
    assert parents([Interval(0, 0, 10), Interval(0, 2, 4), Interval(0, 3, 4)]) == [
        ROOT,
        0,
        1,
    ]
    assert parents([Interval(0, 0, 5), Interval(0, 5, 9)]) == [ROOT, ROOT]
    # empty, at the end
    assert parents([Interval(0, 0, 5), Interval(0, 5, 5)]) == [ROOT, 0]


def test_overlapping_events_are_siblings() -> None:
    assert parents([Interval(0, 0, 10), Interval(0, 5, 15)]) == [ROOT, ROOT]
    inside_both = [Interval(0, 0, 10), Interval(0, 5, 15), Interval(0, 6, 9)]
    assert parents(inside_both) == [ROOT, ROOT, 1]


def test_threads_are_apart() -> None:
    assert parents([Interval(1, 0, 10), Interval(0, 2, 4), Interval(1, 3, 4)]) == [
        ROOT,
        ROOT,
        0,
    ]


def test_of_equal_events_the_lower_id_is_the_parent_then_the_first() -> None:
    assert parents([Interval(0, 0, 5, tie=2), Interval(0, 0, 5, tie=1)]) == [1, ROOT]
    assert parents([Interval(0, 0, 5, tie=1), Interval(0, 0, 5, tie=1)]) == [ROOT, 0]


def test_equal_calls_are_siblings() -> None:
    calls = [Interval(0, 0, 5, call=True), Interval(0, 0, 5, call=True)]
    assert parents(calls) == [ROOT, ROOT]
    op = Interval(0, 0, 5, tie=-1)
    assert parents([*calls, op]) == [2, 2, ROOT]


def test_calls_that_are_not_equal_nest() -> None:
    runtime = Interval(0, 0, 5, call=True)
    driver = Interval(0, 1, 4, call=True)
    assert parents([runtime, driver]) == [ROOT, 0]


# Size.


def test_three_thousand_nested_events() -> None:
    count = 3000
    tower = [Interval(0, i, 2 * count - i) for i in reversed(range(count))]
    nesting = nested(tower)
    depth = depths(nesting.parent)
    assert nesting.parent.tolist() == list(range(-1, count - 1))
    assert depth.tolist() == list(range(count))
    assert subtree_ends(nesting.parent, depth).tolist() == [count] * count
    only_root = np.arange(count) == 0
    assert nearest_marked(nesting.parent, only_root).tolist() == [ROOT] + [0] * (
        count - 1
    )


def nested_siblings(count: int) -> Nesting:
    """Nest intervals that follow one another within one that encloses them all."""
    sibling_start = 10 * np.arange(count)
    return nest(
        thread=np.zeros(count + 1, dtype=np.int32),
        start=np.append(0, sibling_start),
        end=np.append(10 * count, sibling_start + 9),
        tie=np.zeros(count + 1, dtype=np.int64),
        childless=np.zeros(count + 1, dtype=bool),
    )


def test_many_siblings_are_below_the_event_around_them() -> None:
    count = 1_000
    nesting = nested_siblings(count)
    ends = subtree_ends(nesting.parent, depths(nesting.parent))
    assert nesting.parent.tolist() == [ROOT] + [0] * count
    assert ends.tolist() == [count + 1] + list(range(2, count + 2))


def test_many_siblings_take_few_further_steps() -> None:
    few = calls_during(lambda: nested_siblings(100))
    many = calls_during(lambda: nested_siblings(20_000))
    assert many < 4 * few


def test_more_threads_than_sixteen_bits_count() -> None:
    count = 70_000
    thread = np.arange(count, dtype=np.int32)[::-1].copy()
    zeros = np.zeros(count, dtype=np.int64)
    nesting = nest(thread, zeros, zeros + 1, zeros, zeros.astype(bool))
    assert (nesting.parent == ROOT).all()
    assert nesting.order.tolist() == list(range(count))[::-1]


@given(st.data())
def test_events_that_are_put_in_stand_below_their_owners(data: st.DataObject) -> None:
    """A forest in tree order, and further ones below some of its nodes."""

    def forest(size: int) -> list[int]:
        parent: list[int] = []
        for at in range(size):
            chain = [ROOT]
            above = at - 1 if at else ROOT
            while above != ROOT:
                chain.append(above)
                above = parent[above]
            parent.append(data.draw(st.sampled_from(chain)))
        return parent

    parent = forest(data.draw(st.integers(1, 8)))
    owners = data.draw(
        st.lists(st.integers(0, len(parent) - 1), unique=True, max_size=3)
    )
    new = list[int]()
    above = list[int]()
    owner = list[int]()
    for node in owners:
        further = forest(data.draw(st.integers(1, 4)))
        first = len(new)
        above += [up if up == ROOT else first + up for up in further]
        owner += [node] * len(further)
        new += [100 + first + i for i in range(len(further))]
    rows, parents = insert_below(
        np.arange(len(parent)),
        np.array(parent, dtype=np.int32),
        np.array(new, dtype=np.int64),
        np.array(above, dtype=np.int64),
        np.array(owner, dtype=np.int64),
    )
    expected = dict(enumerate(parent))
    for i, row in enumerate(new):
        expected[row] = owner[i] if above[i] == ROOT else new[above[i]]
    place = {row: at for at, row in enumerate(rows.tolist())}
    assert sorted(place) == sorted(expected)
    for row, at in place.items():
        up = int(parents[at])
        assert (int(rows[up]) if up != ROOT else ROOT) == expected[row]
        assert up < at
    ends = subtree_ends(parents, depths(parents))
    for row, at in place.items():  # a subtree is a contiguous range
        below = [other for other, there in place.items() if at < there < ends[at]]
        assert all(_is_below(other, row, expected) for other in below)
        assert len(below) == sum(_is_below(other, row, expected) for other in expected)


def _is_below(row: int, other: int, parent: dict[int, int]) -> bool:
    while (row := parent[row]) != ROOT:
        if row == other:
            return True
    return False
