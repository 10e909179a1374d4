"""Groups of events, and call paths: their numbers and the sums over them, without a Python loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, NS_PER_MS, NS_PER_US
from tracelens_ext.trace.intervals import stable_order
from tracelens_ext.trace.nesting import ROOT, depths, is_narrow, levels

if TYPE_CHECKING:
    from tracelens_ext.trace import BoolArray, Float64Array, Int32Array, Int64Array, IntArray

_MOST_COMBINATIONS = 2**62


def number_groups(keys: Sequence[IntArray]) -> tuple[Int64Array, Int64Array]:
    """The first place of each combination of columns of integers, ascending; and which each has."""
    number = np.zeros(len(keys[0]), dtype=np.int64)
    bound = 1
    for key in keys:
        code, count = ranks(key)
        if bound * count > _MOST_COMBINATIONS:  # without holes again, before it overflows
            number, bound = ranks(number)
        number = number * count + code
        bound = bound * count
    number, count = ranks(number)
    first = np.empty(count, dtype=np.int64)
    first[number[::-1]] = np.arange(len(number) - 1, -1, -1)  # the last to be written is the first
    return first, number


def ranks(values: IntArray) -> tuple[Int64Array, int]:
    """The place of each integer among the distinct ones, ascending, and how many those are."""
    code, distinct = pd.factorize(values, sort=True)
    return code, len(distinct)


def sums(number: IntArray, values: IntArray, groups: int) -> Int64Array:
    """The exact sum of the values of each group; 0 for an empty one, shape (groups,)."""
    result = np.zeros(groups, dtype=np.int64)
    np.add.at(result, number, values)
    return result


def minima(number: IntArray, values: IntArray, groups: int) -> Int64Array:
    """The least value of each group; the largest int64 for an empty one, shape (groups,)."""
    result = np.full(groups, np.iinfo(np.int64).max)
    np.minimum.at(result, number, values)
    return result


def maxima(number: IntArray, values: IntArray, groups: int) -> Int64Array:
    """The greatest value of each group; the least int64 for an empty one, shape (groups,)."""
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
        """Columns of a table: `count`, and what names such as `total_time_ms`, `avg_gap_us` tell.

        They begin with `total`, `avg`, `min` or `max`, and end in `ms` or `us`.
        """
        ns = {"total": self.total, "avg": self.mean, "min": self.shortest, "max": self.longest}
        per = {"ms": NS_PER_MS, "us": NS_PER_US}
        return {
            name: self.count if name == "count" else ns[name.split("_")[0]] / per[name[-2:]]
            for name in names
        }

    def deviation(self, duration: Int64Array) -> Float64Array:
        """The standard deviation of a sample (n - 1); 0 for a single event, ns, (k,)."""
        # From a whole number near the mean, differences are exact and small.
        centre = np.rint(self.mean).astype(np.int64)
        off = (duration - centre[self.number]).astype(np.float64)
        squares: Float64Array = np.bincount(self.number, off * off, len(self)).astype(np.float64)
        squares -= (self.mean - centre) ** 2 * self.count
        result: Float64Array = np.sqrt(np.maximum(squares, 0) / np.maximum(self.count - 1, 1))
        result[self.count == 1] = 0.0
        return result


def group_durations(keys: Sequence[IntArray], duration: Int64Array) -> Groups:
    """Group events by columns of codes; the groups, by total duration, then by first event."""
    first, number = number_groups(keys)
    total = sums(number, duration, len(first))
    count = len(first)
    order = np.lexsort((first, -total))
    number = inverse(order)[number]
    first = first[order]
    of_keys = tuple(key[first] for key in keys)
    counted = np.bincount(number, minlength=count)
    extremes = (find(number, duration, count) for find in (minima, maxima))
    return Groups(of_keys, number, first, counted, total[order], *extremes)


#: Column of a table → what it holds of each event: codes, and what they stand for.
Labelled = Mapping[str, tuple["IntArray", Sequence[str]]]


def group_labelled(
    keys: Labelled, duration: Int64Array, chosen: IntArray | BoolArray | slice = slice(None)
) -> tuple[dict[str, object], Groups]:
    """Group (chosen) events by what columns hold: the columns of a row a group, and the groups."""
    groups = group_durations([code[chosen] for code, _ in keys.values()], duration[chosen])
    columns = {
        name: pd.array(texts(code, labels), dtype="str")
        for code, (name, (_, labels)) in zip(groups.keys, keys.items(), strict=True)
    }
    return {**columns}, groups


def inverse(order: Int64Array) -> Int64Array:
    """Where each place went: the inverse of a permutation."""
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return place


def renamed(codes: IntArray, name: Callable[[int], str]) -> tuple[Int64Array, list[str]]:
    """Codes by new names, of which several codes may have one; and those names."""
    least = int(codes.min(initial=0))
    labels = dict[str, int]()
    count = np.bincount(codes - least)
    new = [labels.setdefault(name(i + least), len(labels)) if n else 0 for i, n in enumerate(count)]
    return np.array(new, dtype=np.int64)[codes - least], list(labels)


def texts(codes: IntArray, labels: Sequence[str]) -> list[str]:
    """The labels that codes stand for."""
    return [labels[code] for code in codes.tolist()]


def joined(number: IntArray, labels: Mapping[int, str], code: IntArray, groups: int) -> list[str]:
    """The distinct labels of each group as one text; codes without a label are left out."""
    first, _ = number_groups([number, code])
    found: list[list[str]] = [[] for _ in range(groups)]
    for group, each in zip(number[first].tolist(), code[first].tolist(), strict=True):
        if each in labels:
            found[group].append(labels[each])
    return [", ".join(its) for its in found]


def percent(part: IntArray | Float64Array, whole: IntArray | int) -> Float64Array:
    """`part` in percent of `whole`, 0 where that is 0; shape of `part`."""
    divisor = np.broadcast_to(np.asarray(whole, dtype=np.float64), part.shape)
    result = np.zeros(part.shape)
    np.divide(100.0 * part, divisor, out=result, where=divisor != 0)
    return result


# Look-ups among events that are sorted by group (a thread, a stream) and time. Groups are few, so
# a loop over them costs nothing; within one of them numpy does the work.


def by_group_and_time(group: IntArray, time: Int64Array) -> Int64Array:
    """The order by group, then by time. Traces are nearly sorted by time already."""
    order = np.argsort(time, kind="stable")
    return order[stable_order(group[order])]


def items_before(
    group: IntArray, time: Int64Array, asked_group: IntArray, asked_time: Int64Array
) -> Int64Array:
    """How many items, which are sorted by group and time, come before a group and time.

    That is the index of the first of the group that is not earlier, or of what would follow it.
    """
    result = np.empty(len(asked_group), dtype=np.int64)
    least = int(asked_group.min(initial=0))
    count = np.bincount(asked_group - least)
    present = np.flatnonzero(count)
    wanted = (present + least).astype(group.dtype)  # of another type, all groups were converted
    begins, ends = (np.searchsorted(group, wanted, side).tolist() for side in ("left", "right"))
    bounds = np.cumsum(count[present])
    places = np.split(stable_order(asked_group - least), bounds)  # and what is left: nothing
    for begin, end, asked in zip(begins, ends, places, strict=False):
        result[asked] = begin + np.searchsorted(time[begin:end], asked_time[asked])
    return result


def last_before(
    group: IntArray, time: Int64Array, asked_group: IntArray, asked_time: Int64Array
) -> Int64Array:
    """The last item of a group that is earlier than a time, `NONE` without; as `items_before`."""
    at = items_before(group, time, asked_group, asked_time) - 1
    found = at >= 0
    found[found] = group[at[found]] == asked_group[found]
    return np.where(found, at, NONE)


def running_maximum(group: IntArray, values: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The largest value so far within each group, and its place (the last of equals)."""
    place = np.arange(len(values))
    bounds = np.flatnonzero(np.diff(group)) + 1
    for begin, end in zip([0, *bounds], [*bounds, len(values)], strict=True):
        highest = np.maximum.accumulate(values[begin:end])
        place[begin:end][values[begin:end] < highest] = begin
        np.maximum.accumulate(place[begin:end], out=place[begin:end])
    return values[place], place


def outermost(group: IntArray, end: Int64Array) -> BoolArray:
    """Which ranges lie in no other of their group; they come by group, start and descending end."""
    keep: BoolArray = np.ones(len(group), dtype=bool)
    reach = running_maximum(group, end)[0]
    keep[1:] = (end[1:] > reach[:-1]) | (np.diff(group) != 0)
    return keep


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
        """Each path as its names, outermost first, joined."""
        result: list[str] = []
        for parent, name in zip(self.parent.tolist(), self.name.tolist(), strict=True):
            label = labels[name]
            result.append(label if parent == ROOT else result[parent] + separator + label)
        return result


def find_paths(parent: Int32Array, name: IntArray) -> CallPaths:
    """Number the distinct paths of a forest, one level of depth after the other."""
    names = int(name.max(initial=0)) + 1
    of_node = np.full(len(parent), ROOT, dtype=np.int64)
    depth = depths(parent)
    if is_narrow(depth):
        known_paths: dict[tuple[int, int], int] = {}
        order = np.argsort(depth, kind="stable")
        numbers = [*of_node.tolist(), ROOT]
        for node, up, code in zip(
            order.tolist(), parent[order].tolist(), name[order].tolist(), strict=True
        ):
            numbers[node] = known_paths.setdefault((numbers[up], code), len(known_paths))
        above, last = np.array([*known_paths], dtype=np.int64).reshape(-1, 2).T
        return CallPaths(np.array(numbers[:-1], dtype=np.int64), above, last)
    pairs: list[IntArray] = [np.empty(0, dtype=np.int64)]
    known = 0
    for level in levels(depth):
        above = np.where(parent[level] == ROOT, ROOT, of_node[parent[level]])
        distinct, which = np.unique((above + 1) * names + name[level], return_inverse=True)
        of_node[level] = which + known
        pairs.append(distinct)
        known += len(distinct)
    above, last = np.divmod(np.concatenate(pairs), names)
    return CallPaths(of_node, above - 1, last)
