"""Aligns two traces: pairs the places of one with the corresponding places of the other.

Places are paired in several rounds, the most reliable first:

1. By path, outermost operation, shapes and the chain of operations. If only the beginnings of two
   chains are equal, the places are paired at their common ancestor.
2. In the same way without the shapes.
3. In the same way without the numbers of instances in the names.
4. By path and innermost operation.
5. By path and the pair that ran before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tracelens_ext.compare.program_places import (
    PlacesWithWork,
    PlaceWork,
    ProgramPlace,
    without_instance_numbers,
)
from tracelens_ext.lazy import pd
from tracelens_ext.trace import Float64Array, Int64Array

#: How many kernels and operations a cell of the table names.
_MAX_NAMED_KERNELS = 8
_MAX_NAMED_OPERATIONS = 4


@dataclass(frozen=True)
class Aligned:
    """A table with the figures of all traces: k rows, t traces.

    The figures of a trace are sums over all of its iterations.
    """

    keys: pd.DataFrame  #: the columns that identify the rows, k rows
    ns: Int64Array  #: GPU time, (k, t)
    count: Int64Array  #: number of GPU events, (k, t)
    calls: Int64Array  #: number of calls of operations, (k, t)

    @cached_property
    def names(self) -> list[str]:
        """The name of each row, without its device or category, (k,)."""
        return self.keys.iloc[:, -1].astype(str).tolist()

    def work_and_speed(self, trace: int) -> WorkAndSpeed:
        """Return how much work a trace did and how fast, compared with the first trace.

        The amount of work is the median ratio of calls over the rows, weighted by the first
        trace's time.
        """
        in_both = self.ns[:, 0] > 0
        in_both &= self.ns[:, trace] > 0
        in_both &= self.calls[:, 0] > 0
        in_both &= self.calls[:, trace] > 0
        if not in_both.any():
            return WorkAndSpeed(None, None)
        baseline_ns = self.ns[in_both, 0]
        baseline_calls = self.calls[in_both, 0]
        trace_ns = self.ns[in_both, trace]
        ratio = self.calls[in_both, trace] / baseline_calls
        # The time that the first trace would take for as many calls.
        expected_ns = (baseline_ns * ratio).sum()
        speed = float(trace_ns.sum() / expected_ns)
        work = _weighted_median(ratio, baseline_ns)
        return WorkAndSpeed(work, speed)


class WorkAndSpeed(NamedTuple):
    """The ratios of a trace to the baseline; None if the two share no row."""

    work: float | None  #: ratio of the amounts of work
    speed: float | None  #: ratio of the GPU times for the same work


def _weighted_median(values: Float64Array, weights: Int64Array) -> float:
    """Return the median of values, each of which counts as often as its weight."""
    order = np.argsort(values)
    running_weight = np.cumsum(weights[order])
    middle = np.searchsorted(running_weight, running_weight[-1] / 2)
    return float(values[order][middle])


class Side(IntEnum):
    """One of the two traces."""

    A = 0
    B = 1


class _Leaf(NamedTuple):
    """A place at which GPU work was launched directly."""

    place: ProgramPlace
    work: PlaceWork


@dataclass
class _PlacesOfBoth:
    """Places of trace A and places of trace B."""

    a: list[_Leaf] = field(default_factory=list)
    b: list[_Leaf] = field(default_factory=list)

    def of(self, side: Side) -> list[_Leaf]:
        """Return the places of one trace."""
        return self.a if side is Side.A else self.b


class _PairedPlaces(NamedTuple):
    """Places of trace A and the corresponding places of trace B."""

    sides: _PlacesOfBoth
    depth: int  #: the length of the chain of their common ancestor; 0 if they have none


#: A function that returns the key by which a place is paired; None if the place takes no part.
_Key = Callable[[Side, _Leaf], Hashable]


# The outermost operation is the first of the chain.


def _path_operation_and_shapes(place: ProgramPlace) -> Hashable:
    return (place.path, place.backward, place.chain[0], place.shapes)


def _path_and_operation(place: ProgramPlace) -> Hashable:
    return (place.path, place.backward, place.chain[0])


def _path_and_plain_operation(place: ProgramPlace) -> Hashable:
    return (place.path, place.backward, without_instance_numbers(place.chain[0]))


#: What two places must have in common besides their chains, in the order of the rounds.
_SCOPES = (_path_operation_and_shapes, _path_and_operation, _path_and_plain_operation)


class _Pairing:
    """Pairs the places of two traces, round by round."""

    def __init__(self, places_a: PlacesWithWork, places_b: PlacesWithWork) -> None:
        self.remaining = _PlacesOfBoth(a=_leaves(places_a), b=_leaves(places_b))
        self.pairs: list[_PairedPlaces] = []

    def run(self) -> None:
        """Pair all places that can be paired, in the rounds that the module describes."""
        chain_lengths = [
            len(leaf.place.chain) for leaf in self.remaining.a + self.remaining.b
        ]
        for scope in _SCOPES:
            # Longer chains first: places are paired at their nearest common ancestor.
            for depth in range(max(chain_lengths, default=0), 0, -1):
                self._pair_by(_chain_key(scope, depth, with_longer=False))
                self._pair_by(_chain_key(scope, depth, with_longer=True), depth)
        self._pair_by(_operation_key)
        self._pair_by(_predecessor_key(self.pairs))

    def _pair_by(self, key_of: _Key, depth: int = 0) -> None:
        """Pair the remaining places of both traces that have the same key."""
        if not self.remaining.a or not self.remaining.b:
            return
        groups: dict[Hashable, _PlacesOfBoth] = defaultdict(_PlacesOfBoth)
        for side in Side:
            for leaf in self.remaining.of(side):
                group = groups[key_of(side, leaf)]
                group.of(side).append(leaf)
        # Places without a key remain, and so do those whose key only one trace has.
        remaining = groups.pop(None, _PlacesOfBoth())
        for group in groups.values():
            is_in_both = bool(group.a and group.b)
            if is_in_both:
                self.pairs.append(_PairedPlaces(group, depth))
                continue
            remaining.a.extend(group.a)
            remaining.b.extend(group.b)
        self.remaining = remaining


def _leaves(places: PlacesWithWork) -> list[_Leaf]:
    """Return the places at which GPU work was launched directly."""
    return [_Leaf(place, work) for place, work in places.items() if work.kernels]


def _chain_key(
    scope: Callable[[ProgramPlace], Hashable], depth: int, *, with_longer: bool
) -> _Key:
    """Return a key for places whose chains have a certain length.

    Args:
        scope: what the places must have in common besides their chains.
        depth: the length of the chains.
        with_longer: longer chains take part, too, with their beginnings.
    """

    def key(_side: Side, leaf: _Leaf) -> Hashable:
        length = len(leaf.place.chain)
        takes_part = length == depth or (with_longer and length > depth)
        if not takes_part:
            return None
        beginning = leaf.place.plain[:depth]
        return (scope(leaf.place), beginning)

    return key


def _operation_key(_side: Side, leaf: _Leaf) -> Hashable:
    """Return the path and the innermost operation of a place."""
    return (leaf.place.path, leaf.place.backward, leaf.place.name)


def _predecessor_key(pairs: Sequence[_PairedPlaces]) -> _Key:
    """Return a key by what ran before a place.

    Places without a path are paired if the same pair of places started last before them. All
    remaining places of a path are paired, whenever they ran.
    """
    starts_of_side: dict[Side, list[int]] = {}
    pairs_of_side: dict[Side, list[int]] = {}
    for side in Side:
        first_start = [
            min(leaf.work.first_start for leaf in pair.sides.of(side)) for pair in pairs
        ]
        order = sorted(range(len(pairs)), key=lambda pair: (first_start[pair], pair))
        starts_of_side[side] = [first_start[pair] for pair in order]
        pairs_of_side[side] = order

    def key(side: Side, leaf: _Leaf) -> Hashable:
        place = leaf.place
        if place.path:
            return (place.path, place.backward, None)
        earlier_pairs = bisect_left(starts_of_side[side], leaf.work.first_start)
        if not earlier_pairs:
            return (place.path, place.backward, -1)
        last_pair = pairs_of_side[side][earlier_pairs - 1]
        return (place.path, place.backward, last_pair)

    return key


class _RowKey(NamedTuple):
    """The identity of a row: a path, and the operation of each trace, empty if it has none."""

    path: str
    backward: bool
    operation_a: str
    operation_b: str


_Rows = Mapping[_RowKey, Sequence[_PairedPlaces]]


def align(places_a: PlacesWithWork, places_b: PlacesWithWork) -> Aligned:
    """Align the places of two traces; return a row for each operation of a path."""
    pairing = _Pairing(places_a, places_b)
    pairing.run()
    rows: dict[_RowKey, list[_PairedPlaces]] = defaultdict(list)
    for pair in pairing.pairs:
        rows[_row_of_pair(pair)].append(pair)
    row_of_operation = {}
    for row in reversed(rows):
        row_of_operation[row.path, row.backward, row.operation_a, Side.A] = row
        row_of_operation[row.path, row.backward, row.operation_b, Side.B] = row
    # Places that only one trace has join the row of their operation, if there is one.
    for side in Side:
        for leaf in pairing.remaining.of(side):
            place = leaf.place
            unpaired = _PairedPlaces(_PlacesOfBoth(), depth=0)
            unpaired.sides.of(side).append(leaf)
            shared_row = row_of_operation.get(
                (place.path, place.backward, place.name, side)
            )
            own_row = _RowKey(
                path=place.path,
                backward=place.backward,
                operation_a=place.name if side is Side.A else "",
                operation_b=place.name if side is Side.B else "",
            )
            rows[shared_row or own_row].append(unpaired)
    return _table(rows, places_a, places_b)


def _row_of_pair(pair: _PairedPlaces) -> _RowKey:
    """Return the row of a pair: that of the common ancestor, or of the operations of both sides."""
    place = pair.sides.a[0].place
    if pair.depth:
        ancestor = place.chain[pair.depth - 1]
        return _RowKey(
            path=place.path,
            backward=place.backward,
            operation_a=ancestor,
            operation_b=ancestor,
        )
    operations = []
    for side in Side:
        names = list(dict.fromkeys(leaf.place.name for leaf in pair.sides.of(side)))
        operations.append(_listed(names, _MAX_NAMED_OPERATIONS, " + "))
    return _RowKey(place.path, place.backward, *operations)


def _listed(names: Sequence[str], most: int, separator: str) -> str:
    """Return the first names as a text, with the number of those that are left out."""
    first_names = list(names[:most])
    if len(names) > most:
        first_names.append(f"{len(names) - most} more")
    return separator.join(first_names)


def _table(rows: _Rows, places_a: PlacesWithWork, places_b: PlacesWithWork) -> Aligned:
    """Return the rows as a table; the kernels of each side are added up by name."""
    shape = (len(rows), len(Side))
    ns = np.zeros(shape, dtype=np.int64)
    count = np.zeros(shape, dtype=np.int64)
    calls = np.zeros(shape, dtype=np.int64)
    kernels: dict[Side, list[str]] = {Side.A: [], Side.B: []}
    for row, pairs in enumerate(rows.values()):
        for side, places in ((Side.A, places_a), (Side.B, places_b)):
            leaves_of_pairs = [(pair.sides.of(side), pair.depth) for pair in pairs]
            calls[row, side] = sum(
                _call_count(places, leaves, depth) for leaves, depth in leaves_of_pairs
            )
            ns_of_kernel: Counter[str] = Counter()
            count_of_kernel: Counter[str] = Counter()
            for leaves, _ in leaves_of_pairs:
                for leaf in leaves:
                    for name, (kernel_ns, kernel_count) in leaf.work.kernels.items():
                        ns_of_kernel[name] += kernel_ns
                        count_of_kernel[name] += kernel_count
            ns[row, side] = ns_of_kernel.total()
            count[row, side] = count_of_kernel.total()
            kernels[side].append(_kernel_text(ns_of_kernel, count_of_kernel))
    keys = {
        "path": [row.path for row in rows],
        "backward": [row.backward for row in rows],
        "A_operation": [row.operation_a for row in rows],
        "B_operation": [row.operation_b for row in rows],
        "A_kernels": kernels[Side.A],
        "B_kernels": kernels[Side.B],
    }
    return Aligned(keys=pd.DataFrame(keys), ns=ns, count=count, calls=calls)


def _kernel_text(
    ns_of_kernel: Mapping[str, int], count_of_kernel: Mapping[str, int]
) -> str:
    """Return the kernels of a row as a text, longest first, each with its count."""
    names = sorted(ns_of_kernel, key=lambda name: (-ns_of_kernel[name], name))
    texts = [f"{name} × {count_of_kernel[name]}" for name in names]
    return _listed(texts, _MAX_NAMED_KERNELS, "; ")


def _call_count(places: PlacesWithWork, leaves: Iterable[_Leaf], depth: int) -> int:
    """Return how often some places were called, or their ancestors with chains of length `depth`.

    With `depth` 0, the places themselves count. Places with a common ancestor count once.
    """
    if not depth:
        return sum(leaf.work.calls for leaf in leaves)
    ancestors = set()
    for leaf in leaves:
        chain = leaf.place.chain[:depth]
        ancestors.add(replace(leaf.place, chain=chain))
    return sum(places[ancestor].calls for ancestor in ancestors)
