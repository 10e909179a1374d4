"""Two traces place by place: which operations of one stand for which of the other.

First those of the same path, outermost operation and shapes are compared, then those of other
shapes, then those whose names differ in a number. Where the operations inside differ, their common
ancestor is the place. What is left is paired by its operation, then by what ran before it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracelens_ext.compare.places import Place, Work, normal
from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

_MOST_KERNELS = 8  # that a cell names

#: A place with GPU work of its own.
_Leaf = tuple[Place, Work]


@dataclass
class _Side:
    """One trace's part of a row."""

    operations: dict[str, None] = field(default_factory=dict)  #: in order
    kernels: dict[str, tuple[int, int]] = field(default_factory=dict)
    calls: int = 0

    def add(self, leaves: Sequence[_Leaf], operation: str, calls: int) -> None:
        """Add what was launched at some places."""
        self.calls += calls
        for _, work in leaves:
            self.operations[operation or work.label] = None
            for name, (count, ns) in work.kernels.items():
                before = self.kernels.get(name, (0, 0))
                self.kernels[name] = before[0] + count, before[1] + ns

    @property
    def count(self) -> int:
        return sum(count for count, _ in self.kernels.values())

    @property
    def ns(self) -> int:
        return sum(ns for _, ns in self.kernels.values())

    @property
    def text(self) -> str:
        """Its kernels with their counts, the longest first."""
        names = sorted(self.kernels.items(), key=lambda each: (-each[1][1], each[0]))
        shown = [f"{name} × {count}" for name, (count, _) in names[:_MOST_KERNELS]]
        more = [f"{len(names) - _MOST_KERNELS} more"] if len(names) > _MOST_KERNELS else []
        return "; ".join(shown + more)


@dataclass
class _Matching:
    """The pairs that were found, and what is left of both traces."""

    known: tuple[Mapping[Place, Work], Mapping[Place, Work]]
    left: tuple[list[_Leaf], list[_Leaf]]
    pairs: list[tuple[list[_Leaf], list[_Leaf], tuple[str, ...]]] = field(default_factory=list)

    def match(self, key: Callable[[Place], Hashable]) -> None:
        """Compare the chains of places of one key; what they do not share goes on."""
        groups: dict[Hashable, tuple[list[_Leaf], list[_Leaf]]] = defaultdict(lambda: ([], []))
        for side in (0, 1):
            for leaf in self.left[side]:
                groups[key(leaf[0])][side].append(leaf)
        self.left = ([], [])
        for group in groups.values():
            rest = self._chains(group) if all(group) else group
            for side in (0, 1):
                self.left[side].extend(rest[side])

    def _chains(self, group: tuple[list[_Leaf], list[_Leaf]]) -> tuple[list[_Leaf], list[_Leaf]]:
        """Pair equal chains, then what is left below the innermost common ancestor."""
        deepest = max(len(place.chain) for side in group for place, _ in side)
        for depth in range(deepest, 0, -1):
            for equal in (True, False):
                group = self._at(group, depth, equal=equal)
                if not all(group):
                    return group
        return group

    def _at(
        self, group: tuple[list[_Leaf], list[_Leaf]], depth: int, *, equal: bool
    ) -> tuple[list[_Leaf], list[_Leaf]]:
        below: dict[tuple[str, ...], tuple[list[_Leaf], list[_Leaf]]] = defaultdict(
            lambda: ([], [])
        )
        rest: tuple[list[_Leaf], list[_Leaf]] = ([], [])
        for side in (0, 1):
            for leaf in group[side]:
                chain = tuple(map(normal, leaf[0].chain))
                fits = len(chain) == depth if equal else len(chain) >= depth
                (below[chain[:depth]] if fits else rest)[side].append(leaf)
        for prefix, both in below.items():
            if all(both):
                self.pairs.append((*both, () if equal else prefix))
            else:
                for side in (0, 1):
                    rest[side].extend(both[side])
        return rest

    def pair(self, keys: Sequence[Callable[[_Leaf], Hashable]]) -> None:
        """Pair what is left where its key, one of each trace, is equal."""
        groups: dict[Hashable, tuple[list[_Leaf], list[_Leaf]]] = defaultdict(lambda: ([], []))
        for side in (0, 1):
            for leaf in self.left[side]:
                groups[keys[side](leaf)][side].append(leaf)
        self.left = ([], [])
        for both in groups.values():
            if all(both):
                self.pairs.append((*both, ()))
            else:
                for side in (0, 1):
                    self.left[side].extend(both[side])

    def calls(self, side: int, leaves: Sequence[_Leaf], ancestor: tuple[str, ...]) -> int:
        """The calls of some places, or of what encloses them."""
        if not ancestor:
            return sum(work.calls for _, work in leaves)
        above = {
            Place(place.path, place.backward, place.chain[: len(ancestor)], place.shapes)
            for place, _ in leaves
        }
        return sum(self.known[side][place].calls for place in above)


def align(a: Mapping[Place, Work], b: Mapping[Place, Work]) -> pd.DataFrame:
    """The rows of two traces, a row an operation of a path; times in ns, of whole recordings.

    Returns:
        `path`, `backward`, and of each trace `A_operation`, `A_kernels`, `A_calls`, `A_count`,
        `A_ns`.
    """
    matching = _Matching((a, b), (_leaves(a), _leaves(b)))
    matching.match(lambda p: (p.path, p.backward, p.chain[0], p.shapes))
    matching.match(lambda p: (p.path, p.backward, p.chain[0]))
    matching.match(lambda p: (p.path, p.backward, normal(p.chain[0])))
    by_operation = lambda leaf: (leaf[0].path, leaf[0].backward, leaf[1].label)  # noqa: E731
    matching.pair([by_operation, by_operation])
    matching.pair([_slots(matching.pairs, side) for side in (0, 1)])
    rows: dict[tuple[str, bool, str, str], tuple[_Side, _Side]] = {}
    own: dict[tuple[str, bool, str], tuple[str, bool, str, str]] = {}
    for *both, ancestor in matching.pairs:
        place = both[0][0][0]
        names = [_operation(leaves, ancestor) for leaves in both]
        key = (place.path, place.backward, names[0], names[1])
        sides = rows.setdefault(key, (_Side(), _Side()))
        for side in (0, 1):
            own.setdefault((place.path, place.backward, names[side]), key)
            calls = matching.calls(side, both[side], ancestor)
            sides[side].add(both[side], names[side], calls)
    for side in (0, 1):
        for place, work in matching.left[side]:
            names = [work.label, ""] if side == 0 else ["", work.label]
            key = own.get(
                (place.path, place.backward, work.label),
                (place.path, place.backward, names[0], names[1]),
            )
            sides = rows.setdefault(key, (_Side(), _Side()))
            sides[side].add([(place, work)], "", work.calls)
    return _table(rows)


def _leaves(known: Mapping[Place, Work]) -> list[_Leaf]:
    return [leaf for leaf in known.items() if leaf[1].kernels]


def _operation(leaves: Iterable[_Leaf], ancestor: tuple[str, ...]) -> str:
    """What a row calls the operation: the common ancestor, or what launched."""
    if ancestor:
        return ancestor[-1]
    labels = list(dict.fromkeys(work.label for _, work in leaves))
    alike = {normal(label) for label in labels}
    return labels[0] if len(labels) == 1 else " + ".join(sorted(alike))


def _slots(
    pairs: Sequence[tuple[list[_Leaf], list[_Leaf], tuple[str, ...]]], side: int
) -> Callable[[_Leaf], Hashable]:
    """The last pair of its path that ran before a place; in a module they all are one."""
    starts: dict[tuple[str, bool], list[tuple[int, int]]] = defaultdict(list)
    for at, pair in enumerate(pairs):
        place = pair[side][0][0]
        first = min(work.first for _, work in pair[side])
        starts[place.path, place.backward].append((first, at))

    def slot(leaf: _Leaf) -> Hashable:
        place, work = leaf
        if place.path:
            return place.path, place.backward
        before = [each for each in starts["", place.backward] if each[0] < work.first]
        return "", place.backward, max(before, default=(0, -1))[1]

    return slot


def _table(rows: Mapping[tuple[str, bool, str, str], tuple[_Side, _Side]]) -> pd.DataFrame:
    columns: dict[str, list[object]] = {
        "path": [path for path, *_ in rows],
        "backward": [backward for _, backward, *_ in rows],
    }
    for at, letter in enumerate("AB"):
        columns[f"{letter}_operation"] = [key[2 + at] for key in rows]
        for name in ("kernels", "calls", "count", "ns"):
            attribute = "text" if name == "kernels" else name
            columns[f"{letter}_{name}"] = [getattr(sides[at], attribute) for sides in rows.values()]
    kinds = {f"{letter}_{name}": "int64" for letter in "AB" for name in ("calls", "count", "ns")}
    return pd.DataFrame(columns).astype(kinds)
