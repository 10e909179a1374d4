"""Group events by columns of codes, and sum, count and label the groups without a Python loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.trace import NS_PER_MS, NS_PER_US

if TYPE_CHECKING:
    from tracelens_ext.trace import BoolArray, Float64Array, Int64Array, IntArray

#: The largest code of a combination of values that is certain to fit an int64.
_MOST_COMBINATIONS = 2**62


class NumberedGroups(NamedTuple):
    """The k distinct combinations of values that m rows have in some columns, ascending."""

    first: Int64Array  #: index of the first row of each group, (k,)
    group_index: Int64Array  #: index of the group of each row, (m,)


def number_groups(keys: Sequence[IntArray]) -> NumberedGroups:
    """Put rows with equal values in all columns into one group, and number the groups.

    The columns [7, 5, 7] and [1, 2, 1] have the groups (5, 2) and (7, 1):

        first [1, 0], group_index [1, 0, 1]

    Args:
        keys: columns of integers, each of shape (m,).
    """
    # The combination so far is one integer, as the digits of a number are: with 3 distinct values
    # in the second column, combination = rank in the first column * 3 + rank in the second.
    combination = np.zeros(len(keys[0]), dtype=np.int64)
    combination_count = 1
    for key in keys:
        key_ranks = dense_ranks(key)
        if combination_count * key_ranks.distinct_count > _MOST_COMBINATIONS:
            # Only numbering the combinations that occur keeps the next product within an int64.
            combination, combination_count = dense_ranks(combination)
        combination = combination * key_ranks.distinct_count + key_ranks.rank
        combination_count = combination_count * key_ranks.distinct_count
    group_index, group_count = dense_ranks(combination)
    first = np.empty(group_count, dtype=np.int64)
    # Rows are assigned last to first: the first row of each group overwrites the others.
    rows_last_to_first = np.arange(len(group_index))[::-1]
    first[group_index[rows_last_to_first]] = rows_last_to_first
    return NumberedGroups(first, group_index)


class DenseRanks(NamedTuple):
    """The rank of each of m integers among the distinct ones, ascending."""

    rank: Int64Array  #: from 0 to `distinct_count` - 1, (m,)
    distinct_count: int


def dense_ranks(values: IntArray) -> DenseRanks:
    """Return the rank of each integer among the distinct ones: [7, 5, 7] → [1, 0, 1]."""
    rank, distinct_values = pd.factorize(values, sort=True)
    return DenseRanks(rank, len(distinct_values))


def sums(group_index: IntArray, values: IntArray, group_count: int) -> Int64Array:
    """Return the exact sum of the values of each group; 0 for an empty one, (group_count,)."""
    result = np.zeros(group_count, dtype=np.int64)
    np.add.at(result, group_index, values)
    return result


def minima(group_index: IntArray, values: IntArray, group_count: int) -> Int64Array:
    """Return the least value of each group, (group_count,); an empty one has the largest int64."""
    result = np.full(group_count, np.iinfo(np.int64).max)
    np.minimum.at(result, group_index, values)
    return result


def maxima(group_index: IntArray, values: IntArray, group_count: int) -> Int64Array:
    """Return the greatest value of each group, (group_count,); an empty one has the least int64."""
    result = np.full(group_count, np.iinfo(np.int64).min)
    np.maximum.at(result, group_index, values)
    return result


@dataclass(frozen=True, eq=False)
class Groups:
    """Statistics of the durations of m events in k groups, the longest total first."""

    #: the values of each key column by group, each shape (k,)
    keys: tuple[IntArray, ...]
    group_index: Int64Array  #: index of the group of each event, shape (m,)
    first: Int64Array  #: index of the first event of each group, (k,)
    count: Int64Array  #: number of events of each group, at least one, (k,)
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
        """Return columns of a table by name, such as `count`, `total_time_ms` and `avg_gap_us`.

        A name is `count`, or begins with `total`, `avg`, `min` or `max` and ends in `ms` or `us`.
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
        """Return the sample standard deviation (n - 1) of each group, ns, (k,).

        A group of a single event has the deviation 0.

        Args:
            duration: the durations of the events that were grouped, ns, (m,).
        """
        # Differences to an integer near the mean are exact, and small enough to be squared. The
        # sum of squares about the mean follows: sum((x - c)²) - count * (mean - c)².
        center = np.rint(self.mean).astype(np.int64)
        distance = (duration - center[self.group_index]).astype(np.float64)
        sum_of_squares = np.bincount(self.group_index, distance * distance, len(self))
        squares = sum_of_squares.astype(np.float64)
        squares -= (self.mean - center) ** 2 * self.count
        degrees_of_freedom = np.maximum(self.count - 1, 1)
        variance = np.maximum(squares, 0) / degrees_of_freedom
        deviation: Float64Array = np.sqrt(variance)
        deviation[self.count == 1] = 0.0
        return deviation


def group_durations(keys: Sequence[IntArray], duration: Int64Array) -> Groups:
    """Group events by columns of codes; groups come by total duration, then by first event."""
    numbered = number_groups(keys)
    count = len(numbered.first)
    total = sums(numbered.group_index, duration, count)
    order = np.lexsort((numbered.first, -total))
    group_index = inverse_permutation(order)[numbered.group_index]
    first = numbered.first[order]
    return Groups(
        keys=tuple(key[first] for key in keys),
        group_index=group_index,
        first=first,
        count=np.bincount(group_index, minlength=count),
        total=total[order],
        shortest=minima(group_index, duration, count),
        longest=maxima(group_index, duration, count),
    )


#: Column name → the code of each event in that column, and the label that each code stands for.
LabeledColumns = Mapping[str, tuple["IntArray", Sequence[str]]]


class LabeledGroups(NamedTuple):
    """Groups of events, and the key columns of a table with a row for each group."""

    columns: dict[str, object]
    groups: Groups


def group_by_labels(
    keys: LabeledColumns,
    duration: Int64Array,
    chosen: IntArray | BoolArray | slice = slice(None),
) -> LabeledGroups:
    """Group the chosen events by labeled columns, and label the groups.

    Args:
        keys: the columns by which events are grouped, codes of shape (m,).
        duration: ns, (m,).
        chosen: the events that are grouped: indices, a mask or a slice; all by default.
    """
    codes = [code[chosen] for code, _ in keys.values()]
    groups = group_durations(codes, duration[chosen])
    columns: dict[str, object] = {}
    for name, code_of_group in zip(keys, groups.keys, strict=True):
        _, labels = keys[name]
        columns[name] = pd.array(texts(code_of_group, labels), dtype="str")
    return LabeledGroups(columns, groups)


def inverse_permutation(order: Int64Array) -> Int64Array:
    """Return the position of each item in an order: [2, 0, 1] → [1, 2, 0]."""
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    return position


class Recoded(NamedTuple):
    """Codes of new names, which several old codes may share."""

    code: Int64Array  #: index of each item's name in `names`, (m,)
    names: list[str]


def recode(codes: IntArray, new_name: Callable[[int], str]) -> Recoded:
    """Replace codes by codes of new names; old codes with the same new name become one code.

    Args:
        codes: the old code of each item, (m,).
        new_name: returns the new name of an old code; called once for each code that occurs.
    """
    least_code = int(codes.min(initial=0))
    count_of_code = np.bincount(codes - least_code)
    code_of_name: dict[str, int] = {}
    new_code_of_old = np.zeros(len(count_of_code), dtype=np.int64)
    for offset in np.flatnonzero(count_of_code).tolist():
        name = new_name(offset + least_code)
        new_code_of_old[offset] = code_of_name.setdefault(name, len(code_of_name))
    return Recoded(code=new_code_of_old[codes - least_code], names=list(code_of_name))


def texts(codes: IntArray, labels: Sequence[str]) -> list[str]:
    """Return the label of each code."""
    return [labels[code] for code in codes.tolist()]


def joined_labels(
    group_index: IntArray, labels: Mapping[int, str], code: IntArray, group_count: int
) -> list[str]:
    """Return the distinct labels of each group as one text, separated by commas.

    Args:
        group_index: index of the group of each item, (m,).
        labels: code → label; codes without a label are left out.
        code: the code of each item, (m,).
        group_count: the number of groups, and of texts.
    """
    # Each pair of a group and a code once, ascending.
    first_of_pair = number_groups([group_index, code]).first
    groups_of_pairs = group_index[first_of_pair].tolist()
    codes_of_pairs = code[first_of_pair].tolist()
    labels_of_group: list[list[str]] = [[] for _ in range(group_count)]
    for group, code_in_group in zip(groups_of_pairs, codes_of_pairs, strict=True):
        label = labels.get(code_in_group)
        if label is not None:
            labels_of_group[group].append(label)
    return [", ".join(labels_in_group) for labels_in_group in labels_of_group]


def percent(part: IntArray | Float64Array, whole: IntArray | int) -> Float64Array:
    """Return `part` as a percentage of `whole`, and 0 where the whole is 0; shape of `part`."""
    divisor = np.asarray(whole, dtype=np.float64)
    divisor = np.broadcast_to(divisor, part.shape)
    has_whole = divisor != 0
    result = np.zeros(part.shape)
    np.divide(100.0 * part, divisor, out=result, where=has_whole)
    return result
