r"""Which patterns can match which names, found by the texts that a pattern needs.

Most names can skip most patterns: `flash_\w+_kernel` matches no name without `flash_`. That makes
it quick to give a hundred thousand names their categories, and a pattern is compiled only when a
name may match it. It changes no answer: syntax that this module does not know for certain gives
no needed text, and such a pattern is always tried.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Requirement = frozenset[str]
"""A name that matches contains at least one of these ASCII texts, in upper or lower case."""

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
    """Finds, for each name, the patterns that may match it."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._needs = [
            [[fold(text) for text in texts] for texts in requirements(pattern)]
            for pattern in patterns
        ]

    def candidates(self, name: str) -> Iterator[int]:
        """The numbers of the patterns that may match a name, ascending."""
        folded = fold(name)
        for number, needs in enumerate(self._needs):
            for texts in needs:  # plain loops: three times as fast as any() in all()
                for text in texts:
                    if text in folded:
                        break
                else:
                    break
            else:
                yield number
