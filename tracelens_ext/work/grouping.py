"""Groups of events, and call paths: their numbers and the sums over them, without a Python loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.nesting import ROOT, depths, is_narrow, levels
from tracelens_ext.trace import NS_PER_MS, NS_PER_US

if TYPE_CHECKING:
    from tracelens_ext.trace import BoolArray, Float64Array, Int32Array, Int64Array, IntArray


_MOST_COMBINATIONS = 2**62
_ROOM_A_VALUE = 4  # entries of a table of all values between the least and the greatest
_ROOM_ANYHOW = 1 << 16


def number_groups(keys: Sequence[IntArray]) -> tuple[Int64Array, Int64Array]:
    """Number the distinct combinations of columns of integers, in ascending order.

    The first place of each combination, and the number of each place.
    """
    combined, bound = _from_zero(keys[0])
    for key in keys[1:]:
        code, count = _from_zero(key)
        if bound * count > _MOST_COMBINATIONS:  # without holes again, before it overflows
            combined, bound = ranks(combined)
        combined, bound = combined * count + code, bound * count
    number, count = ranks(combined)
    first = np.empty(count, dtype=np.int64)
    first[number[::-1]] = np.arange(len(number) - 1, -1, -1)  # the last to be written is the first
    return first, number


def _from_zero(values: IntArray) -> tuple[Int64Array, int]:
    """Numbers in the order of the values, from 0 on, and a bound; with holes if that is quicker."""
    if not len(values):
        return np.empty(0, dtype=np.int64), 0
    least, greatest = int(values.min()), int(values.max())
    if greatest - least >= _ROOM_ANYHOW:
        return ranks(values)
    return np.subtract(values, least, dtype=np.int64), greatest - least + 1


def ranks(values: IntArray) -> tuple[Int64Array, int]:
    """The place of each integer among the distinct ones, ascending, and how many those are.

    Where they lie close together nothing is sorted.
    """
    if not len(values):
        return np.empty(0, dtype=np.int64), 0
    least, greatest = int(values.min()), int(values.max())
    if greatest - least >= max(_ROOM_ANYHOW, _ROOM_A_VALUE * len(values)):
        distinct, code = np.unique(values, return_inverse=True)
        return code.astype(np.int64, copy=False), len(distinct)
    from_least = values.astype(np.int64) - least
    there = np.zeros(greatest - least + 1, dtype=bool)
    there[from_least] = True
    rank = np.cumsum(there) - 1
    return rank[from_least], int(rank[-1]) + 1


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
        mean: Float64Array = self.total / self.count
        return mean

    def figures(self, *names: str) -> dict[str, object]:
        """Columns of a table: `count`, and what names such as `total_time_ms`, `avg_gap_us` tell.

        They begin with `total`, `avg`, `min` or `max`, and end in `ms` or `us`.
        """
        ns: dict[str, IntArray | Float64Array] = {"total": self.total, "avg": self.mean}
        ns |= {"min": self.shortest, "max": self.longest}
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
    order = np.lexsort((first, -total))
    number = inverse(order)[number]
    return Groups(
        keys=tuple(key[first[order]] for key in keys),
        number=number,
        first=first[order],
        count=np.bincount(number, minlength=len(order)),
        total=total[order],
        shortest=minima(number, duration, len(order)),
        longest=maxima(number, duration, len(order)),
    )


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
    names = int(name.max()) + 1 if len(name) else 1
    of_node = np.full(len(parent), ROOT, dtype=np.int64)
    depth = depths(parent)
    if is_narrow(depth):
        known_paths: dict[tuple[int, int], int] = {}
        order, numbers = np.argsort(depth, kind="stable"), [*of_node.tolist(), ROOT]
        for node, up, code in zip(
            order.tolist(), parent[order].tolist(), name[order].tolist(), strict=True
        ):
            numbers[node] = known_paths.setdefault((numbers[up], code), len(known_paths))
        above, last = np.array([*known_paths], dtype=np.int64).reshape(-1, 2).T
        return CallPaths(np.array(numbers[:-1], dtype=np.int64), above, last)
    parents: list[Int64Array] = [np.empty(0, dtype=np.int64)]
    last_names: list[Int64Array] = [np.empty(0, dtype=np.int64)]
    known = 0
    for level in levels(depth):
        above = np.where(parent[level] == ROOT, ROOT, of_node[parent[level]])
        pairs = (above + 1) * names + name[level].astype(np.int64)
        distinct, which = np.unique(pairs, return_inverse=True)
        of_node[level] = which + known
        parents.append(distinct // names - 1)
        last_names.append(distinct % names)
        known += len(distinct)
    return CallPaths(of_node, np.concatenate(parents), np.concatenate(last_names))
