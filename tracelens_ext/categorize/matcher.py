"""Asking rules about names: the first rule that matches wins.

A name is searched with the patterns that can match it, by the texts that they need: most names can
skip most patterns, and a pattern is compiled only when a name may match it, so a hundred thousand
names get their categories in seconds. That changes no answer: syntax that is not known for certain
gives no needed text, and such a pattern is always tried. Patterns from users and their plugins run
under a time limit. A stage is some neighbouring packs, or a function of a plugin.
"""

from __future__ import annotations

import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Final, Literal

from tracelens_ext.categorize.rules import (
    Kernel,
    Rule,
    RulePack,
    RuleVerdict,
    too_large,
)
from tracelens_ext.errors import RuleError, UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.text import UNCATEGORIZED, encodable

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
    except ValueError:  # syntax that is not known here
        return []
    return sorted(dict.fromkeys(found), key=_rank)[:_MOST_REQUIREMENTS]


def _rank(texts: Requirement) -> tuple[int, int]:
    """Longer texts say more, and fewer of them."""
    return -min(map(len, texts)), len(texts)


def _read(tokens: Iterator[re.Match[str]], depth: int) -> tuple[list[Requirement], str]:
    """What a group (or the pattern) requires, read to its end, and the kind of the token there."""
    if depth > _MOST_NESTED:
        raise ValueError
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
    raise ValueError


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


_SEARCH_SECONDS: Final = 0.8
_FIRST_SECONDS: Final = 1.0
_SECONDS_PER_SEARCH: Final = 0.0005


class TimedPattern:
    """A regular expression, in the syntax of `regex`, whose searches end in time."""

    def __init__(self, expression: str, flags: int = 0) -> None:
        import regex

        self._pattern = regex.compile(expression, flags)
        self._seconds = 0.0
        self._searches = 0

    def search(self, text: str, *, limit_all: bool = True) -> bool:
        """Whether it occurs in a text in time, with `limit_all` in time for all searches."""
        started = time.perf_counter()
        found = self._pattern.search(text, timeout=_SEARCH_SECONDS) is not None
        self._searches += 1
        self._seconds += time.perf_counter() - started
        # One search may be quick enough and a hundred thousand of them still hang the run.
        if limit_all and self._seconds > _FIRST_SECONDS + self._searches * _SECONDS_PER_SEARCH:
            raise TimeoutError
        return found


Origin = Literal["rules", "categorizer", "plugin", "builtin"]
"""Where a pack came from; in this order of precedence."""

LONG_NAME: Final = 2_000
"""No kernel has a longer name; built-in patterns search such names under a time limit too."""


class RuleTimeoutError(RuleError):
    """A pattern backtracks without end."""

    def __init__(self, bound: BoundRule, field: str, text: str) -> None:
        self.bound = bound
        shown = text if len(text) <= 80 else text[:77] + "..."
        pattern = getattr(bound.rule, field)
        super().__init__(
            f"{bound.pack.where(bound.rule)}: {field}: {pattern!r} takes too long on {shown!r}; "
            "make repeated parts exclude one another"
        )


@dataclass(eq=False)
class BoundRule:
    """A rule in its pack, ready to be asked."""

    rule: Rule  #: the rule
    pack: RulePack  #: the pack it is in
    origin: Origin  #: where the pack came from
    #: search under a time limit; False only for patterns the project has vetted
    limited: bool = True
    _timed: dict[str, TimedPattern] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """What reports call the rule."""
        return self.pack.rule_id(self.rule)

    def finds(self, name: str) -> bool:
        """Whether the pattern occurs in the name; RuleTimeoutError where it takes too long."""
        return self._occurs("pattern", name)

    def allows(self, cpu_op: str | None) -> bool:
        """Whether the launching operation fulfils the rule's condition, if it has one."""
        if self.rule.cpu_op is None or cpu_op is None:
            return self.rule.cpu_op is None
        return self._occurs("cpu_op", cpu_op)

    @cached_property
    def verdict(self) -> RuleVerdict:
        """What the rule says of a kernel that it matches."""
        rule = self.rule
        category = encodable(self.rule.category)
        # The user's own catch-all is an answer; that of a map or plugin says that none was found.
        known = rule.is_known or (self.origin == "rules" and rule.category != UNCATEGORIZED)
        return RuleVerdict(category, rule.vendor, rule.library, self.id, self.pack.name, known)

    def _occurs(self, field: Literal["pattern", "cpu_op"], text: str) -> bool:
        pattern = getattr(self.rule, field)
        if not self.limited and len(text) <= LONG_NAME:
            return _vetted(pattern).search(text) is not None
        if field not in self._timed:
            self._timed[field] = _compiled(self, field, pattern)
        try:
            return self._timed[field].search(text, limit_all=self.limited)
        except TimeoutError:
            if not self.limited:  # a vetted pattern is not in so hostile a name
                return False
            raise RuleTimeoutError(self, field, text) from None


_prefilter = lru_cache(maxsize=16)(Prefilter)  # all analyzers of a process have the same rules


#: A built-in pattern needs no time limit, and `re` compiles it three times as fast.
_vetted = lru_cache(maxsize=4096)(re.compile)


def _compiled(bound: BoundRule, field: str, pattern: str) -> TimedPattern:
    import regex

    where = bound.pack.where(bound.rule)
    if problem := too_large(pattern):
        raise RuleError(f"{where}: {field}: {problem}")
    try:
        return TimedPattern(pattern)
    except (regex.error, OverflowError, RecursionError) as error:
        raise RuleError(f"{where}: {field}: not a regular expression: {error}") from None


class Matcher:
    """Rules in order of precedence, with the prefilter that makes asking them fast."""

    def __init__(self, rules: Iterable[BoundRule]) -> None:
        self.rules = tuple(rules)
        #: of each operation the rules that need no text, without those that exclude it
        self._always: dict[str | None, frozenset[int]] = {}

    def decide(self, kernels: Iterable[Kernel]) -> list[RuleVerdict | None]:
        """The winning rule's verdict for each kernel, or None; RuleError where a rule fails."""
        winners = (self.winner(*kernel) for kernel in kernels)
        return [winner.verdict if winner else None for winner in winners]

    def winner(self, name: str, cpu_op: str | None) -> BoundRule | None:
        """The rule that decides about one kernel; raises as `decide` does."""
        if cpu_op not in self._always:
            self._always[cpu_op] = frozenset(
                number
                for number in self._prefilter.always
                # A pattern that may take too long is asked only when it is its turn.
                if (bound := self.rules[number]).limited
                or not bound.rule.takes_any_name
                or bound.allows(cpu_op)
            )
        for number in self._prefilter.candidates(name, self._always[cpu_op]):
            bound = self.rules[number]
            if bound.finds(name) and bound.allows(cpu_op):
                return bound
        return None

    def candidates(self, name: str) -> Iterator[BoundRule]:
        """The rules that may find the name, in order; the others cannot."""
        return (self.rules[number] for number in self._prefilter.candidates(name))

    @cached_property
    def _prefilter(self) -> Prefilter:
        return _prefilter(tuple(bound.rule.pattern for bound in self.rules))


@dataclass(frozen=True)
class PythonStage:
    """A Python categoriser: a plugin's, or a function the caller passed."""

    name: str  #: the plugin, or the function's own name
    call: Callable[[pd.DataFrame], Any]  #: given the table of kernels, answers a column
    #: True for a function the caller passed: its errors are raised, not noted
    own_risk: bool = False
    priority: int = 0  #: among plugins
    selectable: bool = False  #: when True, it takes part only when a user chooses it

    def decide(self, kernels: Sequence[Kernel]) -> list[RuleVerdict | None]:
        """The function's verdict for each kernel, or None; UsageError for a wrong answer."""
        table = pd.DataFrame(kernels, columns=["kernel_name", "cpu_op"], dtype="object")
        wanted = (
            "it is called once, with a table whose columns are kernel_name and cpu_op, and answers"
            " a category or None for each row; give a function f of one name as"
            " lambda table: [f(name) for name in table.kernel_name]"
        )
        try:
            answer = self.call(table)
        except Exception as error:
            if self.own_risk:
                error.add_note(f"categorizer {self.name}: {wanted}")
            raise
        called = f"categorizer {self.name}"
        number = len(kernels)
        got = ""
        if isinstance(answer, (str, bytes)) or not hasattr(answer, "__len__"):
            got = f"expected a column of {number} categories, got {type(answer).__name__}"
        elif len(answer) != number:
            got = f"expected {number} categories, one a row of the table, got {len(answer)}"
        if got:
            raise UsageError(f"{called}: {got}; {wanted}")
        verdicts = [self._verdict(category) for category in list(answer)]
        if self.own_risk and verdicts and not any(verdicts):
            told = f"{called}: has no category for any of {number} kernels; {wanted}"
            warnings.warn(told, UserWarning, stacklevel=2)
        return verdicts

    def _verdict(self, category: Any) -> RuleVerdict | None:  # noqa: ANN401
        if isinstance(category, str) and category:
            known = category != UNCATEGORIZED
            return RuleVerdict(encodable(category), rule=self.name, pack=self.name, known=known)
        # None, NaN, NaT and NA are the ways in which a column has no entry.
        if (pd.api.types.is_scalar(category) and pd.isna(category)) or category == "":
            return None
        expected = "expected categories as texts or None"
        raise UsageError(f"categorizer {self.name}: {expected}, got {category!r}")


@dataclass(frozen=True)
class BoundPack:
    """A rule pack that takes part in a run."""

    pack: RulePack  #: the pack
    origin: Origin  #: where it came from
    limited: bool = True  #: search its patterns under a time limit; False for vetted packs

    @property
    def name(self) -> str:
        """The pack's name."""
        return self.pack.name

    @property
    def priority(self) -> int:
        """The pack's priority among those of its origin."""
        return self.pack.priority

    def bound_rules(self) -> list[BoundRule]:
        """The pack's rules, in the order they are tried."""
        rules = self.pack.ordered()
        return [BoundRule(rule, self.pack, self.origin, self.limited) for rule in rules]


Source = BoundPack | PythonStage
Stage = Matcher | PythonStage
