"""Which texts must a name contain for a pattern to match it?

The answer lets most names skip most patterns. It is conservative: syntax that this module does
not know for certain gives no requirement ("always try"), so the answer to "does the pattern match"
never depends on it. The tests prove that with generated patterns. A change of what this module
answers for the rules of the project is a change of `requirements.json` (`make requirements`).
"""

from __future__ import annotations

import re
import string
from itertools import repeat, starmap
from typing import Final, NamedTuple

from tracelens_ext.categorize.requirements import Needed, Requirement

_MAX_DEPTH: Final = 40
_MAX_ALTERNATIVES: Final = 256
_MAX_EXACT: Final = 24
_MAX_REQUIREMENTS: Final = 4
# The syntax that is known, in pieces.
_PLAIN: Final = r"[A-Za-z0-9_ :<>,=&%@!~;'\"/-]"
_ESCAPED: Final = rf"\\[{re.escape(string.punctuation)}]"
_CLASS: Final = r"\[\^?\]?(?:\\.|[^\]\\\[]|\[(?!:))*+\]"
_QUANTIFIER: Final = r"(?:[*+?]|\{\d+(?:,\d*)?\})?+[?+]?+"  # lazy and possessive ones too
_ONCE: Final = r"(?![*+?{])"
_LOOKAROUND: Final = r"\(\?<?[=!]"
_SIMPLE_LOOKAROUND: Final = rf"{_LOOKAROUND}(?:[^()\[\]\\]|\\.|{_CLASS})*+\)"
_ZERO_WIDTH: Final = rf"(?:[\^$]|\\[bBAZ]|{_SIMPLE_LOOKAROUND}){_ONCE}"
_GROUP: Final = r"\((?:\?[:>]|\?P?<[A-Za-z_]\w*>|(?![?*]))"
_SCOPE: Final = r"\(\?(?P<{}>[ims]+):"
_ITEM: Final = re.compile(
    rf"(?P<text>(?:{_PLAIN}+{_ONCE}|(?!\\\|){_ESCAPED}{_ONCE}|{_ZERO_WIDTH})+)"
    rf"|(?P<anything>(?:(?:\.|\\[dDwWsS]|{_CLASS}){_QUANTIFIER})++{_ONCE})"
    rf"|(?P<group>{_GROUP})"
    r"|(?P<end>[|)]|\Z)"
    rf"|(?P<character>{_ESCAPED}|[^\\()\[|*+?{{.^$])"
    rf"|(?P<lookaround>{_LOOKAROUND})"
    rf"|(?P<scope>{_SCOPE.format('scoped_flags')})"
    rf"|(?P<flags>\(\?(?P<global_flags>[aimsu]+)\){_ONCE})",
    re.DOTALL,
)
_BRANCH: Final = rf"(?:{_PLAIN}++|(?!\\\|){_ESCAPED}|{_ZERO_WIDTH})++"
_PLAIN_BRANCHES: Final = re.compile(rf"{_BRANCH}(?:\|{_BRANCH})*(?=[|)]|\Z)", re.DOTALL)
_NOT_ITSELF: Final = re.compile(rf"\\([{re.escape(string.punctuation)}])|{_ZERO_WIDTH}", re.DOTALL)
# What counts for where a group ends; the last is what should not be there.
_BRACKET: Final = re.compile(
    rf"(?P<neither>\\.|{_CLASS})"
    rf"|(?P<opens>{_LOOKAROUND}|{_GROUP}|{_SCOPE.format('inner_flags')})"
    r"|(?P<closes>\))"
    r"|[(\[\\]",
    re.DOTALL,
)
_REPEAT: Final = re.compile(r"(?:([*+?])|\{(\d+)(,?)(\d*)\})[?+]?")
_MAY_NOT: Final = re.compile(r"[\\(^$]")
_QUANTIFIERS: Final = frozenset("*+?{")
_SIGNS: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


_Texts = frozenset[tuple[str, bool]]
"""A requirement while it is made: texts, each with whether case is ignored."""


class _UnknownSyntaxError(Exception):
    """The pattern uses something this module does not model."""


def parse_requirements(pattern: str) -> tuple[Requirement, ...]:
    """What `requirements.requirements` says of a pattern, found by reading the pattern."""
    parser = _Parser(pattern)
    try:
        found = parser.whole()
    except _UnknownSyntaxError:
        return ()
    usable = []
    for texts in found:
        if parser.ignore_case or any(ignore_case for _, ignore_case in texts):
            made = [(text, case or parser.ignore_case) for text, case in texts]
            if any(ignore_case and not text.isascii() for text, ignore_case in made):
                continue
            texts = frozenset((text.lower() if case else text, case) for text, case in made)
        usable.append(texts)
    usable.sort(key=_rank)
    best = list(dict.fromkeys(usable))[:_MAX_REQUIREMENTS]
    return tuple(frozenset(starmap(Needed, texts)) for texts in best)


def _rank(texts: _Texts) -> tuple[int, int, list[tuple[str, bool]]]:
    """Longer texts say more, and fewer of them."""
    return -min([len(text) for text, _ in texts]), len(texts), sorted(texts)


class _Part(NamedTuple):
    """What is known of a part of a pattern.

    Attributes:
        exact: every text it can match, when these are few; else None.
        required: what is required when it matches.
    """

    exact: frozenset[str] | None
    required: tuple[_Texts, ...]


_EMPTY: Final = frozenset(("",))


class _Run:
    """A sequence being read: the texts that can stand side by side at its end, and requirements."""

    __slots__ = ("_ignore_case", "_required", "_texts", "_whole")

    def __init__(self, *, ignore_case: bool) -> None:
        self._ignore_case = ignore_case
        self._texts = _EMPTY
        self._required: list[_Texts] = []
        self._whole = True

    def follow(self, texts: frozenset[str]) -> None:
        """One of these texts comes next, side by side with what came before."""
        if self._texts is _EMPTY:
            self._texts = texts
            return
        joined = frozenset([before + text for before in self._texts for text in texts])
        if len(joined) <= _MAX_EXACT:
            self._texts = joined
        else:
            self.gap()
            self._texts = texts

    def gap(self, required: tuple[_Texts, ...] = ()) -> None:
        """Something comes next of which at most requirements are known."""
        self._whole = False
        if self._texts is not _EMPTY:
            self._keep(self._texts)
            self._texts = _EMPTY
        self._required += required

    def part(self) -> _Part:
        """What is known of the sequence."""
        exact = self._texts if self._whole else None
        self._keep(self._texts)
        return _Part(exact, tuple(self._required))

    def _keep(self, texts: frozenset[str]) -> None:
        if "" not in texts:
            self._required.append(frozenset(zip(texts, repeat(self._ignore_case))))


class _Parser:
    """Recursive descent over the pattern syntax that rule packs use."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.ignore_case = False
        self._scoped = False  # inside (?i:...)

    def whole(self) -> tuple[_Texts, ...]:
        part = self._alternatives(0)
        if self.at != len(self.pattern):
            raise _UnknownSyntaxError
        return part.required

    def _alternatives(self, depth: int) -> _Part:
        """Parse up to the closing bracket or the end."""
        if depth > _MAX_DEPTH:
            raise _UnknownSyntaxError
        plain: list[str] = []
        branches: list[_Part] = []
        while True:
            if texts := _PLAIN_BRANCHES.match(self.pattern, self.at):
                plain += _matched_text(texts[0]).split("|")
                self.at = texts.end()
            else:
                branches.append(self._sequence(depth))
            if not self.pattern.startswith("|", self.at):
                break
            self.at += 1
        if plain:
            known = frozenset(plain)
            texts_of_all = () if "" in known else (frozenset(zip(known, repeat(self._scoped))),)
            branches.append(_Part(known, texts_of_all))
        return branches[0] if len(branches) == 1 and len(plain) < 2 else _either(branches)

    def _sequence(self, depth: int) -> _Part:
        """Parse up to the next alternative."""
        run = _Run(ignore_case=self._scoped)
        while item := _ITEM.match(self.pattern, self.at):
            kind = item.lastgroup
            if kind == "end":
                return run.part()
            self.at = item.end()
            if kind == "text":
                run.follow(frozenset((_matched_text(item[0]),)))
            elif kind == "anything":
                run.gap()
            elif kind == "lookaround":
                self._step_over_group(item.start())
            elif kind == "group":
                self._repeated(run, self._inside(depth))
            elif kind == "character":
                self._repeated(run, _Part(frozenset((_matched_text(item[0]),)), ()))
            elif kind == "scope":
                self._repeated(run, self._inside_scope(depth, item["scoped_flags"]))
            elif kind == "flags":
                # Version 0: flags hold for the whole pattern wherever they stand.
                self.ignore_case |= "i" in item["global_flags"]
        raise _UnknownSyntaxError

    def _inside(self, depth: int) -> _Part:
        """Parse a group from behind its opening bracket."""
        part = self._alternatives(depth + 1)
        if not self.pattern.startswith(")", self.at):
            raise _UnknownSyntaxError
        self.at += 1
        return part

    def _inside_scope(self, depth: int, flags: str) -> _Part:
        """Parse a group with flags of its own."""
        outside, self._scoped = self._scoped, self._scoped or "i" in flags
        part = self._inside(depth)
        if self._scoped != outside:  # its texts cannot be joined with those around it
            part = _Part(None, part.required)
        self._scoped = outside
        return part

    def _step_over_group(self, start: int) -> None:
        """Step over a group whose contents do not matter, only where it ends."""
        unclosed = 0
        for bracket in _BRACKET.finditer(self.pattern, start):
            kind = bracket.lastgroup
            if kind == "opens":
                unclosed += 1
            elif kind == "closes":
                unclosed -= 1
                if not unclosed:
                    self.at = bracket.end()
                    if _REPEAT.match(self.pattern, self.at):  # nothing that a rule needs
                        break
                    return
            elif kind is None:
                break
        raise _UnknownSyntaxError

    def _repeated(self, run: _Run, part: _Part) -> None:
        """Append a part as often as the quantifier after it says."""
        least, most = self._repeat()
        if part.exact is None or most is None or most > 1:
            if least > 0 and part.exact is not None:
                run.follow(part.exact)
            run.gap(part.required if least > 0 else ())
        elif most == 1:
            run.follow(part.exact if least == 1 else part.exact | {""})

    def _repeat(self) -> tuple[int, int | None]:
        """How often the atom just parsed occurs: least and most, None for without end."""
        if self.pattern[self.at : self.at + 1] not in _QUANTIFIERS:
            return 1, 1
        counts = _REPEAT.match(self.pattern, self.at)
        if counts is None:
            raise _UnknownSyntaxError
        self.at = counts.end()
        if self.pattern[self.at : self.at + 1] in _QUANTIFIERS:
            raise _UnknownSyntaxError
        sign, least, comma, most = counts.groups()
        if sign:
            return _SIGNS[sign]
        return int(least), int(most or least) if most or not comma else None


def _either(branches: list[_Part]) -> _Part:
    """What is known of several alternatives."""
    exact: frozenset[str] | None = frozenset()
    texts: set[tuple[str, bool]] = set()
    all_require = True
    for branch in branches:
        exact = None if exact is None or branch.exact is None else exact | branch.exact
        if branch.required:
            first, *others = branch.required
            best: _Texts = min(branch.required, key=_rank) if others else first
            texts |= best
        else:
            all_require = False
    if exact is not None and len(exact) > _MAX_EXACT:
        exact = None
    required = all_require and len(texts) <= _MAX_ALTERNATIVES
    return _Part(exact, (frozenset(texts),) if required else ())


def _matched_text(pattern: str) -> str:
    """What a pattern matches that has nothing but text, escapes and assertions."""
    return _NOT_ITSELF.sub(r"\1", pattern) if _MAY_NOT.search(pattern) else pattern
