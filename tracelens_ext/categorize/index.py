"""Which rules can match which names, found for all names at once.

A rule whose pattern needs one of a few texts (`requirements`) is a candidate for a name only when
the name contains one of them. Testing thousands of texts against a hundred thousand names one by
one would be hundreds of millions of searches; instead every text is stood for by the rarest of its
three-byte pieces, and one pass of numpy over all names finds where those pieces occur. Of several
requirements of a pattern, the one that the fewest names seem to meet is looked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from tracelens_ext.categorize.requirements import Needed, Requirement

    Numbers = NDArray[np.int64]

_PIECE: Final = 3
_SLOTS: Final = 1 << 16
_CHUNK_BYTES: Final = 2_000_000


class LiteralIndex:
    """Finds, for each name, the patterns whose required texts it contains.

    Args:
        needs: for each pattern, what `requirements` said of it.
    """

    def __init__(self, needs: Sequence[Sequence[Requirement]]) -> None:
        self._size = len(needs)
        self._always: list[int] = []
        self._when_not_ascii: list[int] = []
        numbers: dict[Needed, int] = {}
        # One entry a requirement: its pattern; and one a text in it: the text, the requirement.
        self._pattern_of: list[int] = []
        self._text: list[int] = []
        self._requirement_of: list[int] = []
        for pattern, requirements in enumerate(needs):
            usable = [r for r in requirements if _has_pieces(r)]
            if not usable:
                self._always.append(pattern)
            if any(needed.ignore_case for r in usable for needed in r):
                self._when_not_ascii.append(pattern)
            for requirement in usable:
                for needed in requirement:
                    self._text.append(numbers.setdefault(needed, len(numbers)))
                    self._requirement_of.append(len(self._pattern_of))
                self._pattern_of.append(pattern)
        self._needed = list(numbers)
        self._pieces: tuple[Numbers, Numbers] | None = None

    def candidates(self, names: Sequence[str]) -> Iterator[list[int]]:
        """For each name in turn, the patterns that may match it, in ascending order."""
        for chunk in _chunks(names):
            yield from self._chunk_candidates(chunk)

    def _chunk_candidates(self, names: Sequence[str]) -> Iterator[list[int]]:
        import numpy as np

        always = np.array(self._always, dtype=np.int64)
        every_name = np.arange(len(names), dtype=np.int64)
        keys = [np.repeat(every_name, len(always)) * self._size + np.tile(always, len(names))]
        odd = [at for at, name in enumerate(names) if not name.isascii()]
        if odd and self._when_not_ascii:
            unsure = np.array(self._when_not_ascii, dtype=np.int64)
            keys.append(np.repeat(odd, len(unsure)) * self._size + np.tile(unsure, len(odd)))
        if self._needed:
            keys.append(self._found(names))
        name_at, pattern = np.divmod(np.unique(np.concatenate(keys)), max(self._size, 1))
        ends = np.searchsorted(name_at, every_name, side="right").tolist()
        patterns = pattern.tolist()
        start = 0
        for end in ends:
            yield patterns[start:end]
            start = end

    def _found(self, names: Sequence[str]) -> Numbers:
        """Name and pattern, as one number, where a name has a text of the chosen requirement."""
        import numpy as np

        blob, starts = _join(names)
        slots = _slots(blob)
        rarest, estimate = self._rarest_pieces(np.bincount(slots, minlength=_SLOTS))
        text, pattern = self._choose(estimate)
        present = np.unique(text[estimate[text] > 0])
        by_slot = present[np.argsort(rarest[present], kind="stable")]
        name_at, text_at = _verified(
            names, self._needed, *_occurrences(slots, starts, rarest[by_slot], by_slot)
        )
        # A text can serve several patterns: one key for each.
        order = np.argsort(text, kind="stable")
        which, repeated = _matching(text[order], text_at)
        return name_at[repeated] * self._size + pattern[order][which]

    def _choose(self, estimate: Numbers) -> tuple[Numbers, Numbers]:
        """For each pattern the requirement that the fewest names meet: its texts, the pattern."""
        import numpy as np

        text = np.array(self._text, dtype=np.int64)
        requirement = np.array(self._requirement_of, dtype=np.int64)
        pattern = np.array(self._pattern_of, dtype=np.int64)
        load = np.bincount(requirement, weights=estimate[text])
        order = np.lexsort((load, pattern))
        first = np.concatenate(([True], np.diff(pattern[order]) > 0))
        chosen = np.zeros(len(pattern), dtype=bool)
        chosen[order[first]] = True
        kept = chosen[requirement]
        return text[kept], pattern[requirement[kept]]

    def _rarest_pieces(self, occurrences: Numbers) -> tuple[Numbers, Numbers]:
        """The slot of each text's rarest piece, and how often that occurs."""
        import numpy as np

        if self._pieces is None:
            encoded = [_encode(needed.text).lower() for needed in self._needed]
            lengths = np.array([len(text) for text in encoded], dtype=np.int64)
            blob = np.frombuffer(b"".join(encoded), dtype=np.uint8)
            ends = np.repeat(np.cumsum(lengths), lengths)[: 1 - _PIECE]
            whole = np.arange(len(ends)) <= ends - _PIECE  # of one text, not of two
            counts = lengths - _PIECE + 1
            self._pieces = _slots(blob)[whole], np.cumsum(counts) - counts
        slots, starts = self._pieces
        best = np.minimum.reduceat(occurrences[slots] * _SLOTS + slots, starts)
        return best % _SLOTS, best // _SLOTS


def _occurrences(
    slots: Numbers, starts: Numbers, wanted: Numbers, texts: Numbers
) -> tuple[Numbers, Numbers]:
    """Where pieces occur: name and text, each pair once, by text.

    Args:
        slots: the slot of the piece at each byte of the joined names.
        starts: where each name starts.
        wanted: slots, ascending.
        texts: the text that each of them stands for.
    """
    import numpy as np

    is_wanted = np.zeros(_SLOTS, dtype=bool)
    is_wanted[wanted] = True
    hits = np.flatnonzero(is_wanted[slots])
    which, repeated = _matching(wanted, slots[hits])
    name_of_hit = np.searchsorted(starts, hits, side="right") - 1
    pairs = np.unique(texts[which] * len(starts) + name_of_hit[repeated])
    text_at, name_at = np.divmod(pairs, len(starts))
    return name_at, text_at


def _matching(ascending: Numbers, wanted: Numbers) -> tuple[Numbers, Numbers]:
    """Every pair of equal entries: places in `ascending`, and places in `wanted`."""
    import numpy as np

    first = np.searchsorted(ascending, wanted, side="left")
    count = np.searchsorted(ascending, wanted, side="right") - first
    step = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return np.repeat(first, count) + step, np.repeat(np.arange(len(wanted)), count)


def _verified(
    names: Sequence[str], needed: Sequence[Needed], name_at: Numbers, text_at: Numbers
) -> tuple[Numbers, Numbers]:
    """Those of the pairs, ordered by text, where the name does contain the text."""
    import numpy as np

    lowered = [name.lower() for name in names]
    ends = np.flatnonzero(np.diff(text_at, append=-1)) + 1
    inside: list[bool] = []
    start = 0
    places = name_at.tolist()
    for end in ends.tolist():
        text, ignore_case = needed[int(text_at[start])]
        searched = lowered if ignore_case else names
        inside += [text in searched[at] for at in places[start:end]]
        start = end
    kept = np.array(inside, dtype=bool)
    return name_at[kept], text_at[kept]


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _has_pieces(requirement: Requirement) -> bool:
    """Whether every text is long enough for a piece."""
    shortest = min([needed.text for needed in requirement], key=len)
    if len(shortest) >= _PIECE:
        return True
    return min(len(_encode(needed.text)) for needed in requirement) >= _PIECE


def _chunks(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Split the names so that one pass needs little memory."""
    start = size = 0
    for at, name in enumerate(names):
        size += len(name)
        if size > _CHUNK_BYTES:
            yield names[start : at + 1]
            start, size = at + 1, 0
    if start < len(names):
        yield names[start:]


def _join(names: Sequence[str]) -> tuple[NDArray[np.uint8], Numbers]:
    """All names in one array of bytes, ASCII letters lowered, and where each name starts.

    A piece that straddles two names is harmless: every hit is checked against the name itself.
    """
    import numpy as np

    encoded = [_encode(name) for name in names]
    lengths = np.array([len(name) + 1 for name in encoded], dtype=np.int64)
    blob = np.frombuffer(b"\n".join(encoded).lower() + b"\n", dtype=np.uint8)
    return blob, np.cumsum(lengths) - lengths


def _slots(blob: NDArray[np.uint8]) -> Numbers:
    """A hash, below `_SLOTS`, of the piece that starts at each byte."""
    import numpy as np

    wide = blob.astype(np.uint32)
    key = wide[:-2] | (wide[1:-1] << 8) | (wide[2:] << 16)
    return ((key * np.uint32(2_654_435_761)) >> np.uint32(16)).astype(np.int64)
