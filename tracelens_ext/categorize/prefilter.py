"""Which patterns can match which names, by the texts that a pattern needs.

Most names can skip most patterns, and a pattern is compiled only when a name may match it: a
hundred thousand names get their categories in seconds. It changes no answer: syntax that is not
known for certain gives no needed text, and such a pattern is always tried.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

#: What a name that matches has in it, one of these ASCII texts, in upper or lower case.
Requirement = frozenset[str]
_SHORTEST: Final = 3
_MOST_NESTED: Final = 40
_MOST_REQUIREMENTS: Final = 4
# Letters outside ASCII that match an ASCII letter when case is ignored.
_LIKE_ASCII: Final = {0x130: "i", 0x131: "i", 0x17F: "s", 0x212A: "k"}

_ITSELF: Final = r"(?:[^\\()\[|*+?{.^$]|\\[!-/:-@\[-`{-~])"
_CLASS: Final = r"\[\^?\]?(?:\\.|[^\]\\\[]|\[(?!:))*+\]"
# Quantifiers, lazy and possessive ones too.
_MAYBE: Final = r"(?:[*?]|\{0+(?:,\d*)?\})[+?]?+"
_OFTEN: Final = r"(?:\+|\{0*[1-9]\d*(?:,\d*)?\})[+?]?+"
_SYNTAX: Final = {
    "maybe": rf"{_ITSELF}{_MAYBE}",
    "text": rf"{_ITSELF}+(?![*+?{{])|{_ITSELF}(?=[+{{])",
    "often": _OFTEN,
    "anything": rf"(?:\.|\\[dDwWsS]|{_CLASS})(?:{_MAYBE})?+",
    "nothing": r"(?:[\^$]|\\[bBAZ]|\(\?[aimsu]+\))(?![*+?{])",
    "lookaround": r"\(\?<?[=!]",
    "opens": r"\((?:\?[:>]|\?[ims]+:|\?P?<[A-Za-z_]\w*>|(?![?*]))",
    "or": r"\|",
    "maybe_closes": rf"\){_MAYBE}",
    "closes": r"\)",
    "end": r"\Z",
}
_TOKEN: Final = re.compile(
    "|".join(f"(?P<{kind}>{syntax})" for kind, syntax in _SYNTAX.items()) + "|(?P<unknown>.)",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)


class _UnknownSyntaxError(Exception):
    """The pattern uses something this module does not know."""


def fold(name: str) -> str:
    """A name (or a text) in lower case, as they are compared, so that flags do not matter."""
    return name.lower() if name.isascii() else name.translate(_LIKE_ASCII).lower()


def requirements(pattern: str) -> list[Requirement]:
    """Sets of texts: a name that matches a pattern of `regex` has one of each set, both folded.

    The most telling come first; none when the pattern cannot be judged safely.
    """
    if not pattern.isascii():  # upper and lower case are not one letter for one everywhere
        return []
    try:
        found, _ = _read(_TOKEN.finditer(pattern), 0)
    except _UnknownSyntaxError:
        return []
    return sorted(dict.fromkeys(found), key=_rank)[:_MOST_REQUIREMENTS]


def _rank(texts: Requirement) -> tuple[int, int]:
    """Longer texts say more, and fewer of them."""
    return -min(map(len, texts)), len(texts)


def _read(tokens: Iterator[re.Match[str]], depth: int) -> tuple[list[Requirement], str]:
    """What a group (or the pattern) requires, read to its end, and the kind of the token there."""
    if depth > _MOST_NESTED:
        raise _UnknownSyntaxError
    branches: list[list[Requirement]] = []
    required: list[Requirement] = []
    run = ""  # texts that stand side by side
    for token in tokens:
        kind = token.lastgroup or ""
        if kind == "text":
            run += _ESCAPE.sub(r"\1", token[0]) if "\\" in token[0] else token[0]
            continue
        if kind == "lookaround":
            _read(tokens, depth + 1)
        if kind in ("nothing", "lookaround"):
            continue
        if run:
            required.append(frozenset((run,)))
            run = ""
        if kind == "opens":
            inside, closed_by = _read(tokens, depth + 1)
            required += inside if closed_by == "closes" else ()
        elif kind in ("or", "closes", "maybe_closes", "end"):
            branches.append(required)
            required = []
            if kind == "or":
                continue
            if (kind == "end") != (depth == 0):
                break
            return _either(branches), kind
        elif kind == "unknown":
            break
    raise _UnknownSyntaxError


def _either(branches: list[list[Requirement]]) -> list[Requirement]:
    """What several alternatives require: a text of any of them."""
    if len(branches) == 1:
        return branches[0]
    if not all(branches):
        return []
    best = [branch[0] if len(branch) == 1 else min(branch, key=_rank) for branch in branches]
    return [frozenset().union(*best)]


class Prefilter:
    """Finds, for each name, the patterns that may match it.

    Every needed text is filed under the rarest of its three-letter pieces. A name is cut into its
    pieces, and only the texts filed under one of those are looked for.

    Attributes:
        always: the numbers of the patterns that need no text.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        always: list[int] = []
        patterns_of_text: dict[str, list[int]] = {}
        self._further: list[list[list[str]]] = []
        for number, pattern in enumerate(patterns):
            needs = [[fold(text) for text in texts] for texts in requirements(pattern)]
            if not needs or min(map(len, needs[0])) < _SHORTEST:
                always.append(number)
            else:
                for text in needs[0]:
                    patterns_of_text.setdefault(text, []).append(number)
            self._further.append(needs[1:])
        self.always = frozenset(always)
        pieces = {text: sorted(_pieces(text)) for text in patterns_of_text}
        uses = Counter(piece for of_text in pieces.values() for piece in of_text)
        self._filed: dict[str, list[tuple[str, list[int]]]] = {}
        for text, numbers in patterns_of_text.items():
            rarest = min(pieces[text], key=uses.__getitem__)
            self._filed.setdefault(rarest, []).append((text, numbers))
        self._known = frozenset(self._filed)

    def candidates(self, name: str, always: frozenset[int] | None = None) -> Iterator[int]:
        """The numbers of the patterns that may match a name, ascending.

        Of those that need no text only the ones in `always` count, all by default.
        """
        folded = fold(name)
        found = set(self.always if always is None else always)
        for piece in self._known.intersection(_pieces(folded)):
            for text, numbers in self._filed[piece]:
                if text in folded:
                    found.update(numbers)
        for number in sorted(found):
            needs = self._further[number]
            if not needs or all(any(text in folded for text in texts) for texts in needs):
                yield number


def _pieces(text: str) -> Iterator[str]:
    """Each three letters that stand side by side."""
    return map("".join, zip(text, text[1:], text[2:], strict=False))
