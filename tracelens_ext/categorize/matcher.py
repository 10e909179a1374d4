"""Asking rules about names: the first rule that matches wins.

A name is searched with the patterns that can match it (see `prefilter`), and a pattern is compiled
only when a name may match it. Patterns from users and their plugins run under a time limit. A stage
is some neighboring packs, or a function of a plugin.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Final, Literal

from tracelens_ext.categorize.prefilter import Prefilter
from tracelens_ext.categorize.rules import (
    UNCATEGORIZED,
    Kernel,
    Rule,
    RulePack,
    RuleVerdict,
    too_large,
)
from tracelens_ext.errors import RuleError, UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.text import encodable

_SEARCH_SECONDS: Final = 0.8
_FIRST_SECONDS: Final = 1.0
_SECONDS_PER_SEARCH: Final = 0.0005
_LONGEST_SHOWN: Final = 80


class TimedPattern:
    """A regular expression, in the syntax of `regex`, whose searches end in time."""

    def __init__(self, expression: str, flags: int = 0) -> None:
        import regex

        self._pattern = regex.compile(expression, flags)
        self._seconds = 0.0
        self._searches = 0

    def search(self, text: str, *, limit_all: bool = True) -> bool:
        """Return whether it occurs in a text.

        Raises:
            TimeoutError: the search takes too long; with `limit_all`, all searches together do.
        """
        started = time.perf_counter()
        occurs = self._pattern.search(text, timeout=_SEARCH_SECONDS) is not None
        self._searches += 1
        self._seconds += time.perf_counter() - started
        # One search may be quick enough and a hundred thousand of them still hang the run.
        allowed_seconds = _FIRST_SECONDS + self._searches * _SECONDS_PER_SEARCH
        if limit_all and self._seconds > allowed_seconds:
            raise TimeoutError
        return occurs


Origin = Literal["rules", "categorizer", "plugin", "builtin"]
"""Where a pack came from; in this order of precedence."""

LONG_NAME: Final = 2_000
"""No kernel has a longer name; built-in patterns search such names under a time limit too."""


class RuleTimeoutError(RuleError):
    """A pattern backtracks without end."""

    def __init__(self, bound: BoundRule, field: str, text: str) -> None:
        self.bound = bound
        quoted = text
        if len(text) > _LONGEST_SHOWN:
            quoted = text[: _LONGEST_SHOWN - 3] + "..."
        pattern = getattr(bound.rule, field)
        place = bound.pack.where(bound.rule)
        super().__init__(
            f"{place}: {field}: {pattern!r} takes too long on {quoted!r}; make "
            "repeated parts mutually exclusive"
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
        """Return whether the pattern occurs in the name.

        Raises:
            RuleTimeoutError: it takes too long.
        """
        return self._occurs("pattern", name)

    def allows(self, cpu_op: str | None) -> bool:
        """Return whether the launching operation fulfils the rule's condition, if it has one."""
        if self.rule.cpu_op is None:
            return True
        if cpu_op is None:
            return False
        return self._occurs("cpu_op", cpu_op)

    @cached_property
    def verdict(self) -> RuleVerdict:
        """What the rule says of a kernel that it matches."""
        rule = self.rule
        # The user's own catch-all is an answer; that of a map or plugin says that none was found.
        is_answer_of_user = self.origin == "rules" and rule.category != UNCATEGORIZED
        return RuleVerdict(
            category=encodable(rule.category),
            vendor=rule.vendor,
            library=rule.library,
            rule=self.id,
            pack=self.pack.name,
            known=rule.is_known or is_answer_of_user,
        )

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
            raise RuleTimeoutError(bound=self, field=field, text=text) from None


#: A built-in pattern needs no time limit, and `re` compiles it three times as fast.
_vetted = lru_cache(maxsize=4096)(re.compile)


def _compiled(bound: BoundRule, field: str, pattern: str) -> TimedPattern:
    """Return a pattern of a user, ready to be searched.

    Raises:
        RuleError: it is no regular expression, or too large.
    """
    import regex

    where = bound.pack.where(bound.rule)
    problem = too_large(pattern)
    if problem is not None:
        raise RuleError(f"{where}: {field}: {problem}")
    try:
        return TimedPattern(pattern)
    except (regex.error, OverflowError, RecursionError) as error:
        raise RuleError(
            f"{where}: {field}: not a regular expression: {error}"
        ) from None


# all analyzers of a process have the same rules
_prefilter_of = lru_cache(maxsize=16)(Prefilter)


class Matcher:
    """Rules in order of precedence, with the prefilter that makes asking them fast."""

    def __init__(self, rules: Iterable[BoundRule]) -> None:
        self.rules = tuple(rules)
        #: of each operation the rules that need no text, without those that exclude it
        self._always: dict[str | None, frozenset[int]] = {}

    def decide(self, kernels: Iterable[Kernel]) -> list[RuleVerdict | None]:
        """Return the winning rule's verdict for each kernel, or None.

        Raises:
            RuleError: a rule fails.
        """
        verdicts = []
        for kernel in kernels:
            name, cpu_op = kernel
            winner = self.winner(name, cpu_op)
            verdict = winner.verdict if winner else None
            verdicts.append(verdict)
        return verdicts

    def winner(self, name: str, cpu_op: str | None) -> BoundRule | None:
        """Return the rule that decides about one kernel; raises as `decide` does."""
        if cpu_op not in self._always:
            self._always[cpu_op] = self._rules_without_text(cpu_op)
        for number in self._prefilter.candidates(name, self._always[cpu_op]):
            bound = self.rules[number]
            if bound.finds(name) and bound.allows(cpu_op):
                return bound
        return None

    def _rules_without_text(self, cpu_op: str | None) -> frozenset[int]:
        """Return the rules that need no text, without those that exclude an operation."""
        numbers = []
        for number in self._prefilter.always:
            bound = self.rules[number]
            # A pattern that may take too long is asked only when it is its turn.
            needs_name = not bound.rule.takes_any_name
            is_asked_later = bound.limited or needs_name
            if is_asked_later or bound.allows(cpu_op):
                numbers.append(number)
        return frozenset(numbers)

    def candidates(self, name: str) -> Iterator[BoundRule]:
        """Return the rules that may find the name, in order; the others cannot."""
        return (self.rules[number] for number in self._prefilter.candidates(name))

    @cached_property
    def _prefilter(self) -> Prefilter:
        return _prefilter_of(tuple(bound.rule.pattern for bound in self.rules))


_HOW_FUNCTIONS_ANSWER: Final = (
    "it is called once, with a table whose columns are kernel_name and cpu_op, and "
    "returns a category or None for each row; give a function f of one name as lambda "
    "table: [f(name) for name in table.kernel_name]"
)


@dataclass(frozen=True)
class PythonStage:
    """A Python categorizer: a plugin's, or a function the caller passed."""

    name: str  #: the plugin, or the function's own name
    call: Callable[[pd.DataFrame], Any]  #: given the table of kernels, answers a column
    #: True for a function the caller passed: its errors are raised, not noted
    own_risk: bool = False
    priority: int = 0  #: among plugins
    selectable: bool = False  #: when True, it takes part only when a user chooses it

    def decide(self, kernels: Sequence[Kernel]) -> list[RuleVerdict | None]:
        """Return the function's verdict for each kernel, or None.

        Raises:
            UsageError: it answers something else.
        """
        table = pd.DataFrame(kernels, columns=["kernel_name", "cpu_op"], dtype="object")
        called = f"categorizer {self.name}"
        try:
            answer = self.call(table)
        except Exception as error:
            if self.own_risk:
                error.add_note(f"{called}: {_HOW_FUNCTIONS_ANSWER}")
            raise
        problem = _problem_of_answer(answer, len(kernels))
        if problem:
            raise UsageError(f"{called}: {problem}; {_HOW_FUNCTIONS_ANSWER}")
        verdicts = [self._verdict(category) for category in list(answer)]
        if self.own_risk and verdicts and not any(verdicts):
            message = f"has no category for any of {len(kernels)} kernels"
            text = f"{called}: {message}; {_HOW_FUNCTIONS_ANSWER}"
            warnings.warn(text, UserWarning, stacklevel=2)
        return verdicts

    def _verdict(self, category: Any) -> RuleVerdict | None:  # noqa: ANN401
        if isinstance(category, str) and category:
            return RuleVerdict(
                category=encodable(category),
                rule=self.name,
                pack=self.name,
                known=category != UNCATEGORIZED,
            )
        # None, NaN, NaT and NA are the ways in which a column has no entry.
        is_missing = pd.api.types.is_scalar(category) and pd.isna(category)
        if is_missing or category == "":
            return None
        expected = "expected categories as strings or None"
        raise UsageError(f"categorizer {self.name}: {expected}, got {category!r}")


def _problem_of_answer(answer: object, count: int) -> str:
    """Return what is wrong with the answer of a function; empty if it is a column."""
    if isinstance(answer, (str, bytes)) or not isinstance(answer, Sized):
        return f"expected a column of {count} categories, got {type(answer).__name__}"
    if len(answer) != count:
        return (
            f"expected {count} categories, one per row of the table, got {len(answer)}"
        )
    return ""


@dataclass(frozen=True)
class BoundPack:
    """A rule pack that takes part in a run."""

    pack: RulePack  #: the pack
    origin: Origin  #: where it came from
    #: search its patterns under a time limit; False for vetted packs
    limited: bool = True

    @property
    def name(self) -> str:
        """The pack's name."""
        return self.pack.name

    @property
    def priority(self) -> int:
        """The pack's priority among those of its origin."""
        return self.pack.priority

    def bound_rules(self) -> list[BoundRule]:
        """Return the pack's rules, in the order they are tried."""
        rules = self.pack.ordered()
        return [
            BoundRule(
                rule=rule, pack=self.pack, origin=self.origin, limited=self.limited
            )
            for rule in rules
        ]


Source = BoundPack | PythonStage
Stage = Matcher | PythonStage
