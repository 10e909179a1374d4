"""Select the patterns that may match a name, by texts that a matching name must contain.

Most names can skip most patterns, so a hundred thousand names get their categories in seconds. That
changes no answer: syntax that is not known for certain gives no needed text, and such a pattern is
always tried.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

#: A name that matches contains one of these ASCII texts, in upper or lower case.
Requirement = frozenset[str]
_SHORTEST_TEXT: Final = 3
_MOST_NESTED: Final = 40
_MOST_REQUIREMENTS: Final = 4
# Letters outside ASCII that match an ASCII letter when case is ignored.
_LIKE_ASCII: Final = {0x130: "i", 0x131: "i", 0x17F: "s", 0x212A: "k"}

_ITSELF: Final = r"(?:[^\\()\[|*+?{.^$]|\\[!-/:-@\[-`{-~])"
_CLASS: Final = r"\[\^?\]?(?:\\.|[^\]\\\[]|\[(?!:))*+\]"
# Quantifiers, lazy and possessive ones too.
_MAYBE: Final = r"(?:[*?]|\{0+(?:,\d*)?\})[+?]?+"
_OFTEN: Final = r"(?:\+|\{0*[1-9]\d*(?:,\d*)?\})[+?]?+"
#: What a part of a pattern is; the first syntax that fits counts.
_SYNTAX: Final = {
    # `a?`, `a*`, `a{0,3}`: a character that need not be there.
    "maybe": rf"{_ITSELF}{_MAYBE}",
    # `abc`, up to a character that a quantifier repeats; in `ab+c` that is `ab`.
    "text": rf"{_ITSELF}+(?![*+?{{])|{_ITSELF}(?=[+{{])",
    # `+`, `{2,}`: repeats of the character before.
    "often": _OFTEN,
    # `.`, `\w`, `[a-z]`, with or without a quantifier.
    "anything": rf"(?:\.|\\[dDwWsS]|{_CLASS})(?:{_MAYBE})?+",
    # `^`, `\b`, `(?i)`: what matches no character.
    "nothing": r"(?:[\^$]|\\[bBAZ]|\(\?[aimsu]+\))(?![*+?{])",
    "lookaround": r"\(\?<?[=!]",
    # `(`, `(?:`, `(?P<name>`: the beginning of a group.
    "opens": r"\((?:\?[:>]|\?[ims]+:|\?P?<[A-Za-z_]\w*>|(?![?*]))",
    "or": r"\|",
    "maybe_closes": rf"\){_MAYBE}",
    "closes": r"\)",
    "end": r"\Z",
}
_TOKEN: Final = re.compile(
    "|".join(f"(?P<{kind}>{syntax})" for kind, syntax in _SYNTAX.items())
    + "|(?P<unknown>.)",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_ENDS_OF_BRANCH: Final = ("or", "closes", "maybe_closes", "end")


def fold(name: str) -> str:
    """Return a name or a text in lower case.

    Comparing such texts works for patterns with and without IGNORECASE.
    """
    if name.isascii():
        return name.lower()
    return name.translate(_LIKE_ASCII).lower()


def requirements(pattern: str) -> list[Requirement]:
    """Return sets of texts: a name that a pattern matches has one of each set, both folded.

    The most telling come first; none when the pattern cannot be judged safely.
    """
    # Outside of ASCII, the lower case of a letter may be several letters.
    if not pattern.isascii():
        return []
    try:
        group = _read_group(_TOKEN.finditer(pattern), depth=0)
    except _UnknownSyntaxError:
        return []
    distinct = dict.fromkeys(group.required)
    return sorted(distinct, key=_telling_first)[:_MOST_REQUIREMENTS]


def _telling_first(texts: Requirement) -> tuple[int, int]:
    """Return the sort key of a set of texts: longer texts first, then fewer alternatives."""
    shortest = min(len(text) for text in texts)
    return -shortest, len(texts)


class _UnknownSyntaxError(ValueError):
    """A pattern has syntax that is not known here."""


class _PatternGroup(NamedTuple):
    """What a group, or the whole pattern, requires."""

    required: list[Requirement]
    closed_by: str  #: the kind of the token at its end


def _read_group(tokens: Iterator[re.Match[str]], depth: int) -> _PatternGroup:
    """Read a group, or the pattern (depth 0), to its end."""
    if depth > _MOST_NESTED:
        raise _UnknownSyntaxError
    branches: list[list[Requirement]] = []
    branch: list[Requirement] = []
    run = ""  # texts that stand side by side
    for token in tokens:
        kind = token.lastgroup or ""
        if kind == "text":
            run += _ESCAPE.sub(r"\1", token[0])
            continue
        if kind == "lookaround":
            # What it requires is skipped: it matches no character, and may be negative.
            _read_group(tokens, depth + 1)
            continue
        if kind == "nothing":
            continue
        # Any other part interrupts the text.
        if run:
            branch.append(frozenset((run,)))
            run = ""
        if kind == "unknown":
            raise _UnknownSyntaxError
        if kind == "opens":
            inner = _read_group(tokens, depth + 1)
            # A group that may be absent, as in `(ab)?`, requires nothing.
            if inner.closed_by == "closes":
                branch += inner.required
        elif kind in _ENDS_OF_BRANCH:
            branches.append(branch)
            branch = []
            if kind != "or":
                return _closed_group(branches, kind, depth)
    raise _UnknownSyntaxError


def _closed_group(
    branches: list[list[Requirement]], closed_by: str, depth: int
) -> _PatternGroup:
    is_end_of_pattern = closed_by == "end"
    is_whole_pattern = depth == 0
    if is_end_of_pattern != is_whole_pattern:
        raise _UnknownSyntaxError
    return _PatternGroup(_required_by_any(branches), closed_by)


def _required_by_any(branches: list[list[Requirement]]) -> list[Requirement]:
    """Return what several alternatives require: a text of any of them."""
    if len(branches) == 1:
        return branches[0]
    if not all(branches):
        return []
    most_telling = [min(branch, key=_telling_first) for branch in branches]
    return [frozenset[str]().union(*most_telling)]


class _FiledText(NamedTuple):
    """A needed text, and the numbers of the patterns that need it."""

    text: str
    patterns: list[int]


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
        self._further_needs: list[list[list[str]]] = []
        for number, pattern in enumerate(patterns):
            needs = [[fold(text) for text in texts] for texts in requirements(pattern)]
            self._further_needs.append(needs[1:])
            if not needs or min(len(text) for text in needs[0]) < _SHORTEST_TEXT:
                always.append(number)
                continue
            for text in needs[0]:
                patterns_of_text.setdefault(text, []).append(number)
        self.always = frozenset(always)
        self._texts_of_piece = _file_by_rarest_piece(patterns_of_text)
        self._known_pieces = frozenset(self._texts_of_piece)

    def candidates(
        self, name: str, always: frozenset[int] | None = None
    ) -> Iterator[int]:
        """Yield the numbers of the patterns that may match a name, ascending.

        Args:
            name: the name.
            always: which patterns count of those that need no text; None: all of them.
        """
        folded = fold(name)
        if always is None:
            always = self.always
        numbers = set(always)
        pieces = self._known_pieces.intersection(_pieces(folded))
        for piece in pieces:
            for text, patterns in self._texts_of_piece[piece]:
                if text in folded:
                    numbers.update(patterns)
        for number in sorted(numbers):
            needs = self._further_needs[number]
            if not needs or all(
                any(text in folded for text in texts) for texts in needs
            ):
                yield number


def _file_by_rarest_piece(
    patterns_of_text: dict[str, list[int]],
) -> dict[str, list[_FiledText]]:
    """File each text under the piece of it that the fewest texts have."""
    pieces_of_text = {text: sorted(_pieces(text)) for text in patterns_of_text}
    uses: Counter[str] = Counter()
    for pieces in pieces_of_text.values():
        uses.update(pieces)
    filed: dict[str, list[_FiledText]] = {}
    for text, patterns in patterns_of_text.items():
        rarest = min(pieces_of_text[text], key=uses.__getitem__)
        filed.setdefault(rarest, []).append(_FiledText(text, patterns))
    return filed


def _pieces(text: str) -> Iterator[str]:
    """Return each three letters that stand side by side."""
    return map("".join, zip(text, text[1:], text[2:], strict=False))
