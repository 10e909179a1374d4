"""Which texts must a name contain for a pattern to match it?

The answer lets most names skip most patterns. It is conservative: syntax that this module does
not know for certain gives no requirement ("always try"), so the answer to "does the pattern match"
never depends on it. The tests prove that with generated patterns.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

_MAX_DEPTH: Final = 40
_MAX_ALTERNATIVES: Final = 256
_MAX_EXACT: Final = 24
_MAX_REQUIREMENTS: Final = 4
_PLAIN_TEXT: Final = re.compile(r"[A-Za-z0-9_ :<>,=&%@!~;'\"/-]+")
_REPEAT: Final = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_GLOBAL_FLAGS: Final = re.compile(r"\(\?([aimsu]+)\)")
_SCOPED_FLAGS: Final = re.compile(r"\(\?([ims]+):")
_GROUP_NAME: Final = re.compile(r"\(\?P?<([A-Za-z_]\w*)>")
_ZERO_WIDTH_ESCAPES: Final = frozenset("bBAZ")
_CLASS_ESCAPES: Final = frozenset("dDwWsS")
_LOOKAROUNDS: Final = ("(?=", "(?!", "(?<=", "(?<!")
_PLAIN_GROUPS: Final = ("(?:", "(?>")


class Needed(NamedTuple):
    """A text that a name may have to contain.

    Attributes:
        text: the text; lower-cased ASCII when `ignore_case`.
        ignore_case: compare in lower case. That holds for ASCII names only: a few other letters
            match an ASCII letter when case is ignored.
    """

    text: str
    ignore_case: bool = False


Requirement = frozenset[Needed]
"""A name that matches contains at least one of these."""


class _UnknownSyntaxError(Exception):
    """The pattern uses something this module does not model."""


@lru_cache(maxsize=16_384)
def requirements(pattern: str) -> tuple[Requirement, ...]:
    """What every name that `pattern` matches contains.

    Args:
        pattern: a pattern of the `regex` library, version 0 behaviour, compiled without flags.

    Returns:
        Sets of texts: such a name contains at least one text of each set. The most telling come
        first; no set at all when nothing is required or the pattern cannot be judged safely.
    """
    parser = _Parser(pattern)
    try:
        found = parser.whole()
    except _UnknownSyntaxError:
        return ()
    usable = []
    for requirement in found:
        needed = [Needed(text, case or parser.ignore_case) for text, case in requirement]
        if not any(ignore_case and not text.isascii() for text, ignore_case in needed):
            usable.append(
                frozenset(Needed(text.lower() if case else text, case) for text, case in needed)
            )
    usable.sort(key=_rank)
    return tuple(dict.fromkeys(usable))[:_MAX_REQUIREMENTS]


def _rank(requirement: Requirement) -> tuple[int, int, list[Needed]]:
    """Longer texts say more, and fewer of them."""
    shortest = min(len(needed.text) for needed in requirement)
    return -shortest, len(requirement), sorted(requirement)


@dataclass(frozen=True, slots=True)
class _Part:
    """What is known of a part of a pattern.

    Attributes:
        exact: every text it can match, when these are few; else None.
        required: what is required when it matches.
    """

    exact: frozenset[str] | None
    required: tuple[Requirement, ...]


class _Run:
    """A sequence being read: the texts that can stand side by side at its end, and requirements."""

    def __init__(self, *, ignore_case: bool) -> None:
        self._ignore_case = ignore_case
        self._texts = frozenset(("",))
        self._required: list[Requirement] = []
        self._whole = True

    def follow(self, texts: frozenset[str]) -> None:
        """One of these texts comes next, side by side with what came before."""
        joined = frozenset(before + text for before in self._texts for text in texts)
        if len(joined) <= _MAX_EXACT:
            self._texts = joined
        else:
            self.gap()
            self._texts = texts

    def gap(self, required: tuple[Requirement, ...] = ()) -> None:
        """Something comes next of which at most requirements are known."""
        self._whole = False
        self._keep(self._texts)
        self._texts = frozenset(("",))
        self._required += required

    def part(self) -> _Part:
        """What is known of the sequence."""
        exact = self._texts if self._whole else None
        self._keep(self._texts)
        return _Part(exact, tuple(self._required))

    def _keep(self, texts: frozenset[str]) -> None:
        if "" not in texts:
            self._required.append(frozenset(Needed(text, self._ignore_case) for text in texts))


class _Parser:
    """Recursive descent over the pattern syntax that rule packs use."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.ignore_case = False
        self._scoped = False  # inside (?i:...)

    def whole(self) -> tuple[Requirement, ...]:
        part = self._alternatives(0)
        if self.at != len(self.pattern):
            raise _UnknownSyntaxError
        return part.required

    def _alternatives(self, depth: int) -> _Part:
        """Parse up to the closing bracket or the end."""
        if depth > _MAX_DEPTH:
            raise _UnknownSyntaxError
        branches = [self._sequence(depth)]
        while self._next() == "|":
            self.at += 1
            branches.append(self._sequence(depth))
        return branches[0] if len(branches) == 1 else _either(branches)

    def _sequence(self, depth: int) -> _Part:
        run = _Run(ignore_case=self._scoped)
        while (character := self._next()) not in ("", "|", ")"):
            if text := self._plain_text():
                run.follow(frozenset((text,)))
                continue
            if character == "(":
                self._group(run, depth)
            elif character == "[":
                self._character_class()
                self._repeat()
                run.gap()
            elif character == ".":
                self.at += 1
                self._repeat()
                run.gap()
            elif character in "^$":
                self._zero_width(1)
            else:
                self._literal_or_escape(run, character)
        return run.part()

    def _plain_text(self) -> str:
        """Step over characters that stand for themselves, up to one that is repeated."""
        plain = _PLAIN_TEXT.match(self.pattern, self.at)
        if plain is None:
            return ""
        text = plain[0]
        if self.pattern[plain.end() : plain.end() + 1] in ("*", "+", "?", "{"):
            text = text[:-1]
        self.at += len(text)
        return text

    def _literal_or_escape(self, run: _Run, character: str) -> None:
        if character in "*+?{":
            raise _UnknownSyntaxError
        if character == "\\":
            character = self.pattern[self.at + 1 : self.at + 2]
            if character in _ZERO_WIDTH_ESCAPES:
                self._zero_width(2)
                return
            if character in _CLASS_ESCAPES:
                self.at += 2
                self._repeat()
                run.gap()
                return
            if character == "" or character not in string.punctuation:
                raise _UnknownSyntaxError
            self.at += 1
        self.at += 1
        self._repeated(run, _Part(frozenset((character,)), ()))

    def _group(self, run: _Run, depth: int) -> None:
        rest = self.pattern[self.at : self.at + 4]
        if flags := _GLOBAL_FLAGS.match(self.pattern, self.at):
            # Version 0: flags hold for the whole pattern wherever they stand.
            self.ignore_case |= "i" in flags[1]
            self._zero_width(len(flags[0]))
            return
        if opening := next((o for o in _LOOKAROUNDS if rest.startswith(o)), None):
            self._inside(len(opening), depth)
            self._zero_width(0)
            return
        if opening := next((o for o in _PLAIN_GROUPS if rest.startswith(o)), None):
            part = self._inside(len(opening), depth)
        elif scope := _SCOPED_FLAGS.match(self.pattern, self.at):
            outside, self._scoped = self._scoped, self._scoped or "i" in scope[1]
            part = self._inside(len(scope[0]), depth)
            if self._scoped != outside:  # its texts cannot be joined with those around it
                part = _Part(None, part.required)
            self._scoped = outside
        elif named := _GROUP_NAME.match(self.pattern, self.at):
            part = self._inside(len(named[0]), depth)
        elif rest.startswith(("(?", "(*")):
            raise _UnknownSyntaxError
        else:
            part = self._inside(1, depth)
        self._repeated(run, part)

    def _repeated(self, run: _Run, part: _Part) -> None:
        """Append a part as often as the quantifier after it says."""
        least, most = self._repeat()
        if part.exact is None or most is None or most > 1:
            if least > 0 and part.exact is not None:
                run.follow(part.exact)
            run.gap(part.required if least > 0 else ())
        elif most == 1:
            run.follow(part.exact if least == 1 else part.exact | {""})

    def _inside(self, opening: int, depth: int) -> _Part:
        self.at += opening
        part = self._alternatives(depth + 1)
        if self._next() != ")":
            raise _UnknownSyntaxError
        self.at += 1
        return part

    def _character_class(self) -> None:
        """Step over `[...]`; its contents do not matter, where it ends does."""
        self.at += 1
        if self._next() == "^":
            self.at += 1
        if self._next() == "]":
            self.at += 1
        while (character := self._next()) != "]":
            if character == "" or self.pattern.startswith("[:", self.at):
                raise _UnknownSyntaxError
            self.at += 2 if character == "\\" else 1
        self.at += 1

    def _zero_width(self, length: int) -> None:
        """Step over an assertion; a repeated assertion is nothing a rule needs."""
        self.at += length
        if self._next() in ("*", "+", "?", "{"):
            raise _UnknownSyntaxError

    def _repeat(self) -> tuple[int, int | None]:
        """How often the atom just parsed occurs: least and most, None for without end."""
        character = self._next()
        if character == "" or character not in "*+?{":
            return 1, 1
        if character == "{":
            counts = _REPEAT.match(self.pattern, self.at)
            if counts is None:
                raise _UnknownSyntaxError
            self.at += len(counts[0])
            least = int(counts[1])
            most = least if counts[2] is None else int(counts[2]) if counts[2] else None
        else:
            self.at += 1
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[character]
        if self._next() in ("?", "+"):  # lazy or possessive: which match, not whether one is there
            self.at += 1
        if self._next() in ("*", "+", "?", "{"):
            raise _UnknownSyntaxError
        return least, most

    def _next(self) -> str:
        return self.pattern[self.at : self.at + 1]


def _either(branches: list[_Part]) -> _Part:
    """What is known of several alternatives."""
    exact: frozenset[str] | None = frozenset()
    texts: set[Needed] = set()
    all_require = True
    for branch in branches:
        exact = None if exact is None or branch.exact is None else exact | branch.exact
        if branch.required:
            best: Requirement = min(branch.required, key=_rank)
            texts |= best
        else:
            all_require = False
    if exact is not None and len(exact) > _MAX_EXACT:
        exact = None
    required = all_require and len(texts) <= _MAX_ALTERNATIVES
    return _Part(exact, (frozenset(texts),) if required else ())
