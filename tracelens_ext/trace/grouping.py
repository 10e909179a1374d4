"""Groups of events, and call paths: their numbers and the sums over them, without a Python loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, NS_PER_MS, NS_PER_US
from tracelens_ext.trace.intervals import begins_run, stable_order
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.nesting import ROOT, depths, is_narrow, levels

if TYPE_CHECKING:
    from tracelens_ext.trace import (
        BoolArray,
        Float64Array,
        Int32Array,
        Int64Array,
        IntArray,
    )

_MOST_COMBINATIONS = 2**62


class Numbered(NamedTuple):
    """The distinct combinations of columns, ascending, k of them."""

    first: Int64Array  #: the first place of each combination, (k,)
    number: Int64Array  #: the combination at each place, (m,)


def number_groups(keys: Sequence[IntArray]) -> Numbered:
    """Number the combinations of columns of integers, each of shape (m,)."""
    number = np.zeros(len(keys[0]), dtype=np.int64)
    bound = 1
    for key in keys:
        ranked = ranks(key)
        # without holes again, before it overflows
        if bound * ranked.distinct > _MOST_COMBINATIONS:
            number, bound = ranks(number)
        number = number * ranked.distinct + ranked.rank
        bound = bound * ranked.distinct
    number, count = ranks(number)
    first = np.empty(count, dtype=np.int64)
    # the last to be written is the first
    from_behind = np.arange(len(number))[::-1]
    first[number[from_behind]] = from_behind
    return Numbered(first, number)


class Ranked(NamedTuple):
    """The places of integers among the distinct ones, ascending."""

    rank: Int64Array  #: of each integer
    distinct: int  #: how many distinct ones there are


def ranks(values: IntArray) -> Ranked:
    """Return the place of each integer among the distinct ones, and how many those are."""
    code, distinct = pd.factorize(values, sort=True)
    return Ranked(code, len(distinct))


def sums(number: IntArray, values: IntArray, groups: int) -> Int64Array:
    """Return the exact sum of the values of each group; 0 for an empty one, shape (groups,)."""
    result = np.zeros(groups, dtype=np.int64)
    np.add.at(result, number, values)
    return result


def minima(number: IntArray, values: IntArray, groups: int) -> Int64Array:
    """Return the least value of each group; the largest int64 for an empty one, (groups,)."""
    result = np.full(groups, np.iinfo(np.int64).max)
    np.minimum.at(result, number, values)
    return result


def maxima(number: IntArray, values: IntArray, groups: int) -> Int64Array:
    """Return the greatest value of each group; the least int64 for an empty one, (groups,)."""
    result = np.full(groups, np.iinfo(np.int64).min)
    np.maximum.at(result, number, values)
    return result


@dataclass(frozen=True, eq=False)
class Groups:
    """Statistics of the durations of events by group, longest total first, k groups of m events."""

    keys: tuple[IntArray, ...]  #: one array a key column, each shape (k,)
    number: Int64Array  #: the group of each event, shape (m,)
    first: Int64Array  #: index of the group's first event, (k,)
    count: Int64Array  #: events in each group, at least one, (k,)
    total: Int64Array  #: ns, (k,)
    shortest: Int64Array  #: ns, (k,)
    longest: Int64Array  #: ns, (k,)

    def __len__(self) -> int:
        return len(self.count)

    @property
    def mean(self) -> Float64Array:
        """The mean duration of each group, ns, (k,)."""
        return np.divide(self.total, self.count)

    def figures(self, *names: str) -> dict[str, object]:
        """Return columns of a table: `count`, and such as `total_time_ms` and `avg_gap_us`.

        Their names begin with `total`, `avg`, `min` or `max`, and end in `ms` or `us`.
        """
        ns_of = {
            "total": self.total,
            "avg": self.mean,
            "min": self.shortest,
            "max": self.longest,
        }
        ns_per_unit = {"ms": NS_PER_MS, "us": NS_PER_US}
        columns: dict[str, object] = {}
        for name in names:
            if name == "count":
                columns[name] = self.count
                continue
            statistic, *_, unit = name.split("_")
            columns[name] = ns_of[statistic] / ns_per_unit[unit]
        return columns

    def deviation(self, duration: Int64Array) -> Float64Array:
        """Return the standard deviation of a sample (n - 1); 0 for a single event, ns, (k,)."""
        # From a whole number near the mean, differences are exact and small.
        center = np.rint(self.mean).astype(np.int64)
        distance = (duration - center[self.number]).astype(np.float64)
        sum_of_squares = np.bincount(self.number, distance * distance, len(self))
        squares = sum_of_squares.astype(np.float64)
        squares -= (self.mean - center) ** 2 * self.count
        degrees_of_freedom = np.maximum(self.count - 1, 1)
        variance = np.maximum(squares, 0) / degrees_of_freedom
        deviation: Float64Array = np.sqrt(variance)
        deviation[self.count == 1] = 0.0
        return deviation


def group_durations(keys: Sequence[IntArray], duration: Int64Array) -> Groups:
    """Group events by columns of codes; the groups, by total duration, then by first event."""
    numbered = number_groups(keys)
    count = len(numbered.first)
    total = sums(numbered.number, duration, count)
    order = np.lexsort((numbered.first, -total))
    number = inverse(order)[numbered.number]
    first = numbered.first[order]
    return Groups(
        keys=tuple(key[first] for key in keys),
        number=number,
        first=first,
        count=np.bincount(number, minlength=count),
        total=total[order],
        shortest=minima(number, duration, count),
        longest=maxima(number, duration, count),
    )


#: Column of a table → what it holds of each event: codes, and what they stand for.
Labelled = Mapping[str, tuple["IntArray", Sequence[str]]]


class LabelledGroups(NamedTuple):
    """Groups of events, and the columns of a table of them."""

    columns: dict[str, object]
    groups: Groups


def group_labelled(
    keys: Labelled,
    duration: Int64Array,
    chosen: IntArray | BoolArray | slice = slice(None),
) -> LabelledGroups:
    """Group (chosen) events by what columns hold: a row a group, and the groups."""
    codes = [code[chosen] for code, _ in keys.values()]
    groups = group_durations(codes, duration[chosen])
    columns: dict[str, object] = {}
    for name, code_of_group in zip(keys, groups.keys, strict=True):
        _, labels = keys[name]
        columns[name] = pd.array(texts(code_of_group, labels), dtype="str")
    return LabelledGroups(columns, groups)


def inverse(order: Int64Array) -> Int64Array:
    """Return where each place went: the inverse of a permutation."""
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return place


class Renamed(NamedTuple):
    """Codes of names that several old names may share."""

    code: Int64Array
    names: list[str]


def renamed(codes: IntArray, name: Callable[[int], str]) -> Renamed:
    """Return codes by new names; `name` is asked once for each code that occurs."""
    least = int(codes.min(initial=0))
    count_of_code = np.bincount(codes - least)
    code_of_name: dict[str, int] = {}
    new_codes = np.zeros(len(count_of_code), dtype=np.int64)
    for place in np.flatnonzero(count_of_code).tolist():
        new_codes[place] = code_of_name.setdefault(
            name(place + least), len(code_of_name)
        )
    return Renamed(code=new_codes[codes - least], names=list(code_of_name))


def texts(codes: IntArray, labels: Sequence[str]) -> list[str]:
    """Return the labels that codes stand for."""
    return [labels[code] for code in codes.tolist()]


def joined(
    number: IntArray, labels: Mapping[int, str], code: IntArray, groups: int
) -> list[str]:
    """Return the distinct labels of each group as one text; codes without a label are left out."""
    first = number_groups([number, code]).first
    labels_of_group: list[list[str]] = [[] for _ in range(groups)]
    groups_of_pairs = number[first].tolist()
    codes_of_pairs = code[first].tolist()
    for group, code_in_group in zip(groups_of_pairs, codes_of_pairs, strict=True):
        label = labels.get(code_in_group)
        if label is not None:
            labels_of_group[group].append(label)
    return [", ".join(labels_in_group) for labels_in_group in labels_of_group]


def percent(part: IntArray | Float64Array, whole: IntArray | int) -> Float64Array:
    """Return `part` in percent of `whole`, 0 where that is 0; shape of `part`."""
    divisor = np.asarray(whole, dtype=np.float64)
    divisor = np.broadcast_to(divisor, part.shape)
    has_whole = divisor != 0
    result = np.zeros(part.shape)
    np.divide(100.0 * part, divisor, out=result, where=has_whole)
    return result


# Look-ups among events that are sorted by group (a thread, a stream) and time. Groups are few, so
# a loop over them costs nothing; within one of them numpy does the work.


def by_group_and_time(group: IntArray, time: Int64Array) -> Int64Array:
    """Return the order by group, then by time. Traces are nearly sorted by time already."""
    order = np.argsort(time, kind="stable")
    return order[stable_order(group[order])]


def items_before(
    group: IntArray, time: Int64Array, asked_group: IntArray, asked_time: Int64Array
) -> Int64Array:
    """Return how many items come before a group and time.

    That is the index of the first item of the group that is not earlier, or of what would follow
    it. Items of group 1 at times 5 and 8, of group 2 at time 3:

        group [1, 1, 2], time [5, 8, 3]: 1 before group 1 at time 8; 2 before group 2 at time 0

    Args:
        group: the group of each item, ascending, (n,).
        time: ascending within a group, (n,).
        asked_group: of each question, (k,).
        asked_time: of each question, (k,).
    """
    result = np.empty(len(asked_group), dtype=np.int64)
    least = int(asked_group.min(initial=0))
    questions_of_group = np.bincount(asked_group - least)
    present = np.flatnonzero(questions_of_group)
    # of another type, all groups were converted
    wanted = (present + least).astype(group.dtype)
    begins = np.searchsorted(group, wanted, "left").tolist()
    ends = np.searchsorted(group, wanted, "right").tolist()
    last_of_group = np.cumsum(questions_of_group[present])
    by_group = stable_order(asked_group - least)
    questions = np.split(by_group, last_of_group)
    # The last part of the split is empty.
    for begin, end, places in zip(begins, ends, questions, strict=False):
        result[places] = begin + np.searchsorted(time[begin:end], asked_time[places])
    return result


def last_before(
    group: IntArray, time: Int64Array, asked_group: IntArray, asked_time: Int64Array
) -> Int64Array:
    """Return the last item of a group that is earlier than a time, `NONE` without one.

    Arguments are those of `items_before`.
    """
    count_before = items_before(
        group=group, time=time, asked_group=asked_group, asked_time=asked_time
    )
    last = count_before - 1
    group_of_last = values_at(group, last)
    is_of_group = (last >= 0) & (group_of_last == asked_group)
    return np.where(is_of_group, last, NONE)


class RunningMaximum(NamedTuple):
    """The largest value so far within each group."""

    value: Int64Array
    place: Int64Array  #: where it is; the last of equals


def running_maximum(group: IntArray, values: Int64Array) -> RunningMaximum:
    """Return the largest value so far within each group; members of a group are neighbors."""
    place = np.arange(len(values))
    first = np.flatnonzero(begins_run(group)).tolist()
    if not first:
        return RunningMaximum(values[place], place)
    ends = first[1:] + [len(values)]
    for begin, end in zip(first, ends, strict=True):
        values_of_group = values[begin:end]
        place_of_group = place[begin:end]
        highest = np.maximum.accumulate(values_of_group)
        is_lower = values_of_group < highest
        place_of_group[is_lower] = begin
        np.maximum.accumulate(place_of_group, out=place_of_group)
    return RunningMaximum(values[place], place)


def outermost(group: IntArray, end: Int64Array) -> BoolArray:
    """Return which ranges lie in no other of their group.

    Ranges come by group, start and descending end.
    """
    reach = running_maximum(group, end).value
    reach_before = reach[:-1]
    is_outermost = begins_run(group)
    is_outermost[1:] |= end[1:] > reach_before
    return is_outermost


@dataclass(frozen=True, eq=False)
class CallPaths:
    """The distinct paths of a forest, p of them, shorter ones first."""

    of_node: Int64Array  #: the path of each node, shape (m,)
    #: path → the path without its last name, `ROOT` for one of a single name, (p,)
    parent: Int64Array
    name: Int64Array  #: code of the last name of each path, (p,)

    def __len__(self) -> int:
        return len(self.name)

    def texts(self, labels: Sequence[str], separator: str) -> list[str]:
        """Return each path as its names, outermost first, joined."""
        paths: list[str] = []
        parents = self.parent.tolist()
        names = self.name.tolist()
        for parent, name in zip(parents, names, strict=True):
            path = labels[name]
            if parent != ROOT:
                path_above = paths[parent]
                path = path_above + separator + path
            paths.append(path)
        return paths


def find_paths(parent: Int32Array, name: IntArray) -> CallPaths:
    """Number the distinct paths of a forest, one level of depth after the other."""
    depth = depths(parent)
    if is_narrow(depth):
        return _find_paths_one_by_one(parent, name, depth)
    names = int(name.max(initial=0)) + 1
    path_of_node = np.full(len(parent), ROOT, dtype=np.int64)
    # A path is the number of the path above it, plus 1, and its last name, in one number.
    pairs: list[IntArray] = [np.empty(0, dtype=np.int64)]
    paths = 0
    for nodes in levels(depth):
        parents = parent[nodes]
        path_above = np.where(parents == ROOT, ROOT, path_of_node[parents])
        pair = (path_above + 1) * names + name[nodes]
        distinct, number = np.unique(pair, return_inverse=True)
        path_of_node[nodes] = number + paths
        pairs.append(distinct)
        paths = paths + len(distinct)
    all_pairs = np.concatenate(pairs)
    path_above, last_name = np.divmod(all_pairs, names)
    return CallPaths(of_node=path_of_node, parent=path_above - 1, name=last_name)


def _find_paths_one_by_one(
    parent: Int32Array, name: IntArray, depth: Int32Array
) -> CallPaths:
    order = np.argsort(depth, kind="stable")
    nodes = order.tolist()
    parents = parent[order].tolist()
    codes = name[order].tolist()
    number_of_path: dict[tuple[int, int], int] = {}
    path_of_node = [ROOT] * (len(parent) + 1)  # the last is that of `ROOT`, -1
    for node, node_above, code in zip(nodes, parents, codes, strict=True):
        path = (path_of_node[node_above], code)
        path_of_node[node] = number_of_path.setdefault(path, len(number_of_path))
    distinct_paths = np.array(list(number_of_path), dtype=np.int64).reshape(-1, 2)
    path_above, last_name = distinct_paths.T
    return CallPaths(
        of_node=np.array(path_of_node[:-1], dtype=np.int64),
        parent=path_above,
        name=last_name,
    )
