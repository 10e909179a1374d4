"""Two traces place by place: which operations of one stand for which of the other.

First those of the same path, outermost operation and shapes are compared, then those of other
shapes, then those whose names differ in a number; where the operations inside differ, their common
ancestor is the place. What is left is paired by its operation, then by what ran before it.
"""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.compare.places import normal
from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

    from tracelens_ext.compare.places import Place, Work
    from tracelens_ext.trace import Int64Array

    Leaf = tuple[Place, Work]  # of a place with GPU work of its own
    Both = tuple[list[Leaf], list[Leaf]]
    #: path, direction, operation of A and of B → what was launched there, and its calls
    Rows = dict[tuple[str, bool, str, str], tuple[Both, list[int]]]

_MOST_KERNELS, _MOST_NAMED = 8, 4  # kernels and operations that a cell names
_SCOPES: tuple[Callable[[Place], Hashable], ...] = (
    lambda place: (place.path, place.backward, place.chain[0], place.shapes),
    lambda place: (place.path, place.backward, place.chain[0]),
    lambda place: (place.path, place.backward, normal(place.chain[0])),
)


@dataclass(frozen=True)
class Aligned:
    """One table of all traces: k rows, t traces."""

    keys: pd.DataFrame  #: the columns that name the rows, k of them
    ns: Int64Array  #: time of each row in each trace, of all its iterations together, (k, t)
    count: Int64Array  #: GPU events, likewise
    calls: Int64Array  #: calls of operations, likewise


def align(a: Mapping[Place, Work], b: Mapping[Place, Work]) -> Aligned:
    """The rows of two traces, a row an operation of a path.

    Their keys are `path`, `backward`, `A_operation`, `B_operation`, `A_kernels`, `B_kernels`.
    """
    known = a, b
    left: Both = _leaves(a), _leaves(b)
    rows: Rows = {}
    found: list[tuple[int, Both]] = []  # how long the chain of the common ancestor is, and what
    deepest = max((len(place.chain) for side in left for place, _ in side), default=0)
    for scope in _SCOPES:
        for depth in range(deepest, 0, -1):
            left = _paired(left, _equal_chain(scope, depth), 0, found)
            left = _paired(left, _below(scope, depth), depth, found)
    left = _paired(left, lambda _, each: (each[0].path, each[0].backward, each[0].name), 0, found)
    left = _paired(left, _after(found), 0, found)
    for depth, both in found:
        place = both[0][0][0]
        names = [place.chain[depth - 1]] * 2 if depth else [_operation(each) for each in both]
        key = place.path, place.backward, names[0], names[1]
        held, calls = rows.setdefault(key, (([], []), [0, 0]))
        for side in (0, 1):
            held[side].extend(both[side])
            calls[side] += _calls(known[side], both[side], depth)
    own = {(key[0], key[1], key[2 + side], side): key for key in reversed(rows) for side in (0, 1)}
    for side in (0, 1):  # what is in one trace alone, beside other work of the same operation
        for place, work in left[side]:
            alone = (place.name, "") if side == 0 else ("", place.name)
            key = own.get(
                (place.path, place.backward, place.name, side),
                (place.path, place.backward, *alone),
            )
            held, calls = rows.setdefault(key, (([], []), [0, 0]))
            held[side].append((place, work))
            calls[side] += work.calls
    return _table(rows)


def _leaves(known: Mapping[Place, Work]) -> list[Leaf]:
    return [leaf for leaf in known.items() if leaf[1].kernels]


def _paired(
    left: Both, key: Callable[[int, Leaf], Hashable], depth: int, found: list[tuple[int, Both]]
) -> Both:
    """Pair what has one key, other than None, in both traces; the rest is left."""
    groups: dict[Hashable, Both] = defaultdict(lambda: ([], []))
    for side in (0, 1) if all(left) else ():
        for leaf in left[side]:
            groups[key(side, leaf)][side].append(leaf)
    if not groups:
        return left
    rest: Both = groups.pop(None, ([], []))
    for both in groups.values():
        if all(both):
            found.append((depth, both))
        else:
            rest[0].extend(both[0])
            rest[1].extend(both[1])
    return rest


def _equal_chain(scope: Callable[[Place], Hashable], depth: int) -> Callable[[int, Leaf], Hashable]:
    return lambda _, leaf: (scope(leaf[0]), leaf[0].plain) if len(leaf[0].chain) == depth else None


def _below(scope: Callable[[Place], Hashable], depth: int) -> Callable[[int, Leaf], Hashable]:
    return lambda _, leaf: (
        (scope(leaf[0]), leaf[0].plain[:depth]) if len(leaf[0].chain) >= depth else None
    )


def _after(found: list[tuple[int, Both]]) -> Callable[[int, Leaf], Hashable]:
    """The last pair that ran before a place without a path; all of one path are one."""
    starts = [
        sorted(
            (min(work.first for _, work in both[side]), at) for at, (_, both) in enumerate(found)
        )
        for side in (0, 1)
    ]

    def last(side: int, leaf: Leaf) -> Hashable:
        place, work = leaf
        before = bisect(starts[side], (work.first, -1)) - 1
        slot = starts[side][before][1] if before >= 0 else -1
        return place.path, place.backward, None if place.path else slot

    return last


def _operation(leaves: Iterable[Leaf]) -> str:
    names = list(dict.fromkeys(place.name for place, _ in leaves))
    more = [f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    return " + ".join(names[:_MOST_NAMED] + more)


def _calls(known: Mapping[Place, Work], leaves: Iterable[Leaf], depth: int) -> int:
    """The calls of some places, or of their ancestors of so long a chain."""
    if not depth:
        return sum(work.calls for _, work in leaves)
    above = {replace(place, chain=place.chain[:depth]) for place, _ in leaves}
    return sum(known[place].calls for place in above)


def _table(rows: Rows) -> Aligned:
    """The rows, with the kernels of each side summed by name, the longest first."""
    ns, count, calls = np.zeros((3, len(rows), 2), dtype=np.int64)
    kernels: list[list[str]] = [[], []]
    for row, (held, called) in enumerate(rows.values()):
        calls[row] = called
        for side in (0, 1):
            sums: dict[str, tuple[int, int]] = {}
            for _, work in held[side]:
                for name, own in work.kernels.items():
                    before = sums.get(name, (0, 0))
                    sums[name] = before[0] + own[0], before[1] + own[1]
            ns[row, side] = sum(each for each, _ in sums.values())
            count[row, side] = sum(each for _, each in sums.values())
            order = sorted(sums, key=lambda name: (-sums[name][0], name))
            told = [f"{name} × {sums[name][1]}" for name in order[:_MOST_KERNELS]]
            told += [f"{len(order) - _MOST_KERNELS} more"] * (len(order) > _MOST_KERNELS)
            kernels[side].append("; ".join(told))
    columns = list(zip(*rows, strict=True)) or [()] * 4
    names = ("path", "backward", "A_operation", "B_operation")
    keys = dict(zip(names, columns, strict=True)) | {
        "A_kernels": kernels[0],
        "B_kernels": kernels[1],
    }
    return Aligned(pd.DataFrame(keys), ns, count, calls)
