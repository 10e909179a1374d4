"""Selects the patterns that can match a name by texts that a matching name must contain.

Most patterns can be skipped for most names, so a hundred thousand names get their categories in
seconds. The results do not change: a pattern with syntax that this module does not know has no
required text, and is always tried.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

#: ASCII texts of which a matching name must contain at least one, in upper or lower case.
Requirement = frozenset[str]
#: Shorter texts occur in too many names.
_MIN_TEXT_LENGTH: Final = 3
#: Patterns whose groups are nested deeper count as unknown syntax.
_MAX_DEPTH: Final = 40
#: How many requirements of a pattern are used.
_MAX_REQUIREMENTS: Final = 4
# Letters outside ASCII that match an ASCII letter if case is ignored.
_FOLDED_TO_ASCII: Final = {0x130: "i", 0x131: "i", 0x17F: "s", 0x212A: "k"}

# A character that matches itself, possibly escaped.
_LITERAL: Final = r"(?:[^\\()\[|*+?{.^$]|\\[!-/:-@\[-`{-~])"
_CLASS: Final = r"\[\^?\]?(?:\\.|[^\]\\\[]|\[(?!:))*+\]"
# Quantifiers that allow zero repetitions, and those that require at least one. Both include their
# lazy and possessive forms.
_OPTIONAL: Final = r"(?:[*?]|\{0+(?:,\d*)?\})[+?]?+"
_REPEATED: Final = r"(?:\+|\{0*[1-9]\d*(?:,\d*)?\})[+?]?+"
#: Kind of a token → its syntax. The first kind that fits is the kind of the token.
_SYNTAX: Final = {
    # `a?`, `a*`, `a{0,3}`: a character that may be absent.
    "optional": rf"{_LITERAL}{_OPTIONAL}",
    # `abc`, up to a character with a quantifier: in `ab+c`, the first text is `ab`.
    "text": rf"{_LITERAL}+(?![*+?{{])|{_LITERAL}(?=[+{{])",
    # `+`, `{2,}`: repetitions of the preceding character.
    "repeated": _REPEATED,
    # `.`, `\w`, `[a-z]`, with or without a quantifier: characters that are not known.
    "class": rf"(?:\.|\\[dDwWsS]|{_CLASS})(?:{_OPTIONAL})?+",
    # `^`, `\b`, `(?i)`: syntax that matches no character.
    "empty": r"(?:[\^$]|\\[bBAZ]|\(\?[aimsu]+\))(?![*+?{])",
    "lookaround": r"\(\?<?[=!]",
    # `(`, `(?:`, `(?P<name>`: the beginning of a group.
    "opens": r"\((?:\?[:>]|\?[ims]+:|\?P?<[A-Za-z_]\w*>|(?![?*]))",
    "or": r"\|",
    # `)?`, `)*`: the end of a group that may be absent.
    "closes_optional": rf"\){_OPTIONAL}",
    "closes": r"\)",
    "end": r"\Z",
}
_TOKEN: Final = re.compile(
    "|".join(f"(?P<{kind}>{syntax})" for kind, syntax in _SYNTAX.items())
    + "|(?P<unknown>.)",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_ENDS_OF_BRANCH: Final = ("or", "closes", "closes_optional", "end")


def fold(name: str) -> str:
    """Return a name or a text in lower case.

    Folded texts can be compared for patterns with and without IGNORECASE.
    """
    if name.isascii():
        return name.lower()
    return name.translate(_FOLDED_TO_ASCII).lower()


def requirements(pattern: str) -> list[Requirement]:
    """Return the requirements of a pattern, the most selective ones first.

    A name that the pattern matches contains a text of each requirement, after both are folded. For
    example, `(foo|bar)[0-9]+gemm` has the requirements {gemm} and {foo, bar}. The list is empty if
    the pattern has no requirements, or has syntax that is not known here.
    """
    # The lower case of a letter outside of ASCII may consist of several letters.
    if not pattern.isascii():
        return []
    try:
        group = _read_group(_TOKEN.finditer(pattern), depth=0)
    except _UnknownSyntaxError:
        return []
    distinct = dict.fromkeys(group.required)
    return sorted(distinct, key=_selectivity_key)[:_MAX_REQUIREMENTS]


def _selectivity_key(texts: Requirement) -> tuple[int, int]:
    """Return the sort key of a requirement: longer texts first, then fewer alternatives."""
    shortest = min(len(text) for text in texts)
    return -shortest, len(texts)


class _UnknownSyntaxError(ValueError):
    """A pattern contains syntax that is not known here."""


class _PatternGroup(NamedTuple):
    """The requirements of a group, or of the whole pattern."""

    required: list[Requirement]
    closed_by: str  #: the kind of the token at the end of the group


def _read_group(tokens: Iterator[re.Match[str]], depth: int) -> _PatternGroup:
    """Read the tokens of a group, or of the whole pattern (depth 0), up to its end.

    Raises:
        _UnknownSyntaxError: the group contains unknown syntax, or is nested too deeply.
    """
    if depth > _MAX_DEPTH:
        raise _UnknownSyntaxError
    branches: list[list[Requirement]] = []  # the alternatives before the current one
    branch: list[Requirement] = []  # the requirements of the current alternative
    text = ""  # the consecutive texts that were read last
    for token in tokens:
        kind = token.lastgroup or ""
        if kind == "text":
            text += _ESCAPE.sub(r"\1", token[0])
            continue
        if kind == "lookaround":
            # It matches no character, and may be negative, so its requirements do not count.
            _read_group(tokens, depth + 1)
            continue
        if kind == "empty":
            continue
        # Any other token ends the text.
        if text:
            branch.append(frozenset((text,)))
            text = ""
        if kind == "unknown":
            raise _UnknownSyntaxError
        if kind == "opens":
            inner_group = _read_group(tokens, depth + 1)
            # A group that may be absent, as in `(ab)?`, requires nothing.
            if inner_group.closed_by == "closes":
                branch += inner_group.required
        elif kind in _ENDS_OF_BRANCH:
            branches.append(branch)
            branch = []
            if kind != "or":
                return _closed_group(branches, kind, depth)
    raise _UnknownSyntaxError


def _closed_group(
    branches: list[list[Requirement]], closed_by: str, depth: int
) -> _PatternGroup:
    """Return a group that a token closes.

    Raises:
        _UnknownSyntaxError: the parentheses do not match.
    """
    is_end_of_pattern = closed_by == "end"
    is_whole_pattern = depth == 0
    if is_end_of_pattern != is_whole_pattern:
        raise _UnknownSyntaxError
    return _PatternGroup(_required_by_any(branches), closed_by)


def _required_by_any(branches: list[list[Requirement]]) -> list[Requirement]:
    """Return the requirements of alternatives.

    A name needs to match only one of the alternatives, so it must contain a text of the most
    selective requirement of one of them. If an alternative requires nothing, all of them together
    do not either.
    """
    if len(branches) == 1:
        return branches[0]
    if not all(branches):
        return []
    most_selective = [min(branch, key=_selectivity_key) for branch in branches]
    return [frozenset[str]().union(*most_selective)]


class _IndexedText(NamedTuple):
    """A required text, and the indices of the patterns that require it."""

    text: str
    patterns: list[int]


class Prefilter:
    """Finds the patterns that can match a name.

    The required texts are indexed by trigrams, which are three consecutive letters. Each text is
    listed under the trigram that occurs in the fewest texts. Only texts that are listed under a
    trigram of a name can occur in the name.

    Attributes:
        always: the indices of the patterns without a required text.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        always: list[int] = []
        patterns_of_text: dict[str, list[int]] = {}
        self._further_requirements: list[list[list[str]]] = []
        for number, pattern in enumerate(patterns):
            folded_requirements = [
                [fold(text) for text in texts] for texts in requirements(pattern)
            ]
            # The first, most selective requirement is indexed. The others are checked afterwards.
            self._further_requirements.append(folded_requirements[1:])
            first_texts = folded_requirements[0] if folded_requirements else []
            shortest_length = min(map(len, first_texts), default=0)
            if shortest_length < _MIN_TEXT_LENGTH:
                always.append(number)
                continue
            for text in first_texts:
                patterns_of_text.setdefault(text, []).append(number)
        self.always = frozenset(always)
        self._texts_of_trigram = _index_by_rarest_trigram(patterns_of_text)
        self._known_trigrams = frozenset(self._texts_of_trigram)

    def candidates(
        self, name: str, always: frozenset[int] | None = None
    ) -> Iterator[int]:
        """Yield the indices of the patterns that can match a name, ascending.

        Args:
            name: the name.
            always: the patterns without a required text that are yielded; None for all of them.
        """
        folded_name = fold(name)
        if always is None:
            always = self.always
        numbers = set(always)
        trigrams = self._known_trigrams.intersection(_trigrams(folded_name))
        for trigram in trigrams:
            for text, patterns in self._texts_of_trigram[trigram]:
                if text in folded_name:
                    numbers.update(patterns)
        for number in sorted(numbers):
            further_requirements = self._further_requirements[number]
            if all(_has_any(folded_name, texts) for texts in further_requirements):
                yield number


def _has_any(name: str, texts: list[str]) -> bool:
    """Tell whether a name contains one of the texts."""
    return any(text in name for text in texts)


def _index_by_rarest_trigram(
    patterns_of_text: dict[str, list[int]],
) -> dict[str, list[_IndexedText]]:
    """List each text under the one of its trigrams that occurs in the fewest texts."""
    trigrams_of_text = {text: sorted(_trigrams(text)) for text in patterns_of_text}
    count_of_trigram: Counter[str] = Counter()
    for trigrams in trigrams_of_text.values():
        count_of_trigram.update(trigrams)
    index: dict[str, list[_IndexedText]] = {}
    for text, patterns in patterns_of_text.items():
        rarest = min(trigrams_of_text[text], key=count_of_trigram.__getitem__)
        index.setdefault(rarest, []).append(_IndexedText(text, patterns))
    return index


def _trigrams(text: str) -> Iterator[str]:
    """Return all sequences of three consecutive letters of a text."""
    return map("".join, zip(text, text[1:], text[2:], strict=False))
