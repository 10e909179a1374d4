"""Pair the places of two traces that stand for each other.

Places are aligned by path, outermost operation and shapes, then without shapes, then without
numbers; where the operations inside differ, at their common ancestor. The rest is paired by
operation, then by what ran before.
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

#: Kernels and operations that a cell names.
_MAX_NAMED_KERNELS = 8
_MAX_NAMED_OPERATIONS = 4


@dataclass(frozen=True)
class Aligned:
    """One table of all traces: k rows, t traces."""

    keys: pd.DataFrame  #: the columns that name the rows, k of them
    #: time of each row in each trace, of all its iterations together, (k, t)
    ns: Int64Array
    count: Int64Array  #: GPU events, likewise
    calls: Int64Array  #: calls of operations, likewise

    @cached_property
    def names(self) -> list[str]:
        """What each row is called, without its device or category, (k,)."""
        return self.keys.iloc[:, -1].astype(str).tolist()

    def work_and_speed(self, trace: int) -> WorkAndSpeed:
        """Return how much work a trace did and how fast, beside A.

        The amount is the median ratio of calls, weighted by A's time.
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
        expected_ns = (baseline_ns * ratio).sum()  # of as many calls of A
        speed = float(trace_ns.sum() / expected_ns)
        work = _weighted_median(ratio, baseline_ns)
        return WorkAndSpeed(work, speed)


class WorkAndSpeed(NamedTuple):
    """The ratio of a trace to the baseline; None where nothing can be compared."""

    work: float | None  #: amount of work
    speed: float | None  #: GPU time for the same work


def _weighted_median(values: Float64Array, weights: Int64Array) -> float:
    """Return the value at which half of the weight is reached."""
    order = np.argsort(values)
    running_weight = np.cumsum(weights[order])
    middle = np.searchsorted(running_weight, running_weight[-1] / 2)
    return float(values[order][middle])


class Side(IntEnum):
    """One of the two traces."""

    A = 0
    B = 1


class _Leaf(NamedTuple):
    """A place with GPU work of its own."""

    place: ProgramPlace
    work: PlaceWork


@dataclass
class _BothSides:
    """Places of both traces."""

    a: list[_Leaf] = field(default_factory=list)
    b: list[_Leaf] = field(default_factory=list)

    def of(self, side: Side) -> list[_Leaf]:
        """Return the places of one trace."""
        return self.a if side is Side.A else self.b


class _Pair(NamedTuple):
    """Places of both traces that stand for each other."""

    sides: _BothSides
    depth: int  #: how long the chain of their common ancestor is; 0 if they have none


#: What tells places apart, by the trace that they are of; None for those that are not compared.
_Key = Callable[[Side, _Leaf], Hashable]


def _by_shapes(place: ProgramPlace) -> Hashable:
    return (place.path, place.backward, place.chain[0], place.shapes)


def _by_outermost(place: ProgramPlace) -> Hashable:
    return (place.path, place.backward, place.chain[0])


def _by_plain_outermost(place: ProgramPlace) -> Hashable:
    return (place.path, place.backward, without_instance_numbers(place.chain[0]))


#: What must be equal of two places besides their operations, the most demanding first.
_SCOPES = (_by_shapes, _by_outermost, _by_plain_outermost)


class _Pairing:
    """Pairs the places of two traces, step by step."""

    def __init__(self, places_a: PlacesWithWork, places_b: PlacesWithWork) -> None:
        self.remaining = _BothSides(a=_leaves(places_a), b=_leaves(places_b))
        self.pairs: list[_Pair] = []

    def run(self) -> None:
        """Pair what can be paired, the surest first."""
        lengths = [
            len(leaf.place.chain) for leaf in self.remaining.a + self.remaining.b
        ]
        for scope in _SCOPES:
            for depth in range(max(lengths, default=0), 0, -1):
                self._pair_by(_chain_key(scope, depth, deeper=False))
                self._pair_by(_chain_key(scope, depth, deeper=True), depth)
        self._pair_by(_operation_key)
        self._pair_by(_predecessor_key(self.pairs))

    def _pair_by(self, key: _Key, depth: int = 0) -> None:
        """Pair the places that have one key in both traces."""
        if not self.remaining.a or not self.remaining.b:
            return
        groups: dict[Hashable, _BothSides] = defaultdict(_BothSides)
        for side in Side:
            for leaf in self.remaining.of(side):
                group = groups[key(side, leaf)]
                group.of(side).append(leaf)
        remaining = groups.pop(None, _BothSides())
        for group in groups.values():
            is_in_both = bool(group.a and group.b)
            if is_in_both:
                self.pairs.append(_Pair(group, depth))
                continue
            remaining.a.extend(group.a)
            remaining.b.extend(group.b)
        self.remaining = remaining


def _leaves(places: PlacesWithWork) -> list[_Leaf]:
    """Return the places that have GPU work of their own."""
    return [_Leaf(place, work) for place, work in places.items() if work.kernels]


def _chain_key(
    scope: Callable[[ProgramPlace], Hashable], depth: int, *, deeper: bool
) -> _Key:
    """Return a key of chains of some length, or of the beginnings of chains of at least that."""

    def key(_side: Side, leaf: _Leaf) -> Hashable:
        length = len(leaf.place.chain)
        is_compared = length >= depth if deeper else length == depth
        if not is_compared:
            return None
        beginning = leaf.place.plain[:depth]
        return (scope(leaf.place), beginning)

    return key


def _operation_key(_side: Side, leaf: _Leaf) -> Hashable:
    """Return the innermost operation of a place, and its path."""
    return (leaf.place.path, leaf.place.backward, leaf.place.name)


def _predecessor_key(pairs: Sequence[_Pair]) -> _Key:
    """Return a key: the last pair that ran before a place; all places of one path have one key."""
    starts_of_side: dict[Side, list[int]] = {}
    pairs_of_side: dict[Side, list[int]] = {}
    for side in Side:
        first_start = [
            min(leaf.work.first for leaf in pair.sides.of(side)) for pair in pairs
        ]
        order = sorted(range(len(pairs)), key=lambda pair: (first_start[pair], pair))
        starts_of_side[side] = [first_start[pair] for pair in order]
        pairs_of_side[side] = order

    def key(side: Side, leaf: _Leaf) -> Hashable:
        place = leaf.place
        if place.path:
            return (place.path, place.backward, None)
        started_before = bisect_left(starts_of_side[side], leaf.work.first)
        if not started_before:
            return (place.path, place.backward, -1)
        return (place.path, place.backward, pairs_of_side[side][started_before - 1])

    return key


class _RowKey(NamedTuple):
    """What makes a row: a path and an operation of each trace, empty if it has none."""

    path: str
    backward: bool
    operation_a: str
    operation_b: str


_Rows = Mapping[_RowKey, Sequence[_Pair]]


def align(places_a: PlacesWithWork, places_b: PlacesWithWork) -> Aligned:
    """Return the rows of two traces: one for each operation of a path, with its kernels."""
    pairing = _Pairing(places_a, places_b)
    pairing.run()
    rows: dict[_RowKey, list[_Pair]] = defaultdict(list)
    for pair in pairing.pairs:
        rows[_row_of_pair(pair)].append(pair)
    row_of_operation = {}
    for row in reversed(rows):
        row_of_operation[row.path, row.backward, row.operation_a, Side.A] = row
        row_of_operation[row.path, row.backward, row.operation_b, Side.B] = row
    # What is in one trace alone is beside other work of the same operation.
    for side in Side:
        for leaf in pairing.remaining.of(side):
            place = leaf.place
            if side is Side.A:
                own_row = _RowKey(
                    path=place.path,
                    backward=place.backward,
                    operation_a=place.name,
                    operation_b="",
                )
                alone = _Pair(_BothSides(a=[leaf], b=[]), depth=0)
            else:
                own_row = _RowKey(
                    path=place.path,
                    backward=place.backward,
                    operation_a="",
                    operation_b=place.name,
                )
                alone = _Pair(_BothSides(a=[], b=[leaf]), depth=0)
            shared_row = row_of_operation.get(
                (place.path, place.backward, place.name, side)
            )
            rows[shared_row or own_row].append(alone)
    return _table(rows, places_a, places_b)


def _row_of_pair(pair: _Pair) -> _RowKey:
    """Return the row of a pair: the common ancestor, or the operations of both sides."""
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
    """Return the first names, and how many more there are."""
    first_names = list(names[:most])
    if len(names) > most:
        first_names.append(f"{len(names) - most} more")
    return separator.join(first_names)


def _table(rows: _Rows, places_a: PlacesWithWork, places_b: PlacesWithWork) -> Aligned:
    """Return the rows, with the kernels of each side summed by name, the longest first."""
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
    """Return the kernels of a row, the longest first, each with its count."""
    names = sorted(ns_of_kernel, key=lambda name: (-ns_of_kernel[name], name))
    texts = [f"{name} × {count_of_kernel[name]}" for name in names]
    return _listed(texts, _MAX_NAMED_KERNELS, "; ")


def _call_count(places: PlacesWithWork, leaves: Iterable[_Leaf], depth: int) -> int:
    """Return the calls of some places, or of their ancestors whose chains are `depth` long."""
    if not depth:
        return sum(leaf.work.calls for leaf in leaves)
    ancestors = set()
    for leaf in leaves:
        chain = leaf.place.chain[:depth]
        ancestors.add(replace(leaf.place, chain=chain))
    return sum(places[ancestor].calls for ancestor in ancestors)
