"""Applies rules to names. The first rule that matches decides.

Only patterns that can match a name are searched in it (see `prefilter`), and a pattern is compiled
when it is first needed. Searches with patterns of users and plugins have a time limit.

A categorizer consists of stages. A stage is a `Matcher`, which applies the rules of consecutive
packs, or a `PythonStage`, which calls a function.
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

#: The longest time of a single search.
_SEARCH_SECONDS: Final = 0.8
#: The longest time of n searches with the same pattern is the first number plus n times the
#: second one.
_FIRST_SECONDS: Final = 1.0
_SECONDS_PER_SEARCH: Final = 0.0005
#: Longer names are shortened in messages.
_LONGEST_SHOWN: Final = 80


class TimedPattern:
    """A regular expression in the syntax of `regex` whose searches have a time limit."""

    def __init__(self, expression: str, flags: int = 0) -> None:
        import regex

        self._pattern = regex.compile(expression, flags)
        self._seconds = 0.0
        self._searches = 0

    def search(self, text: str, *, limit_all: bool = True) -> bool:
        """Tell whether the expression occurs in a text.

        Args:
            text: the text.
            limit_all: also limit the time of all searches with this pattern together.

        Raises:
            TimeoutError: the search takes too long, or all searches together do.
        """
        started = time.perf_counter()
        occurs = self._pattern.search(text, timeout=_SEARCH_SECONDS) is not None
        self._searches += 1
        self._seconds += time.perf_counter() - started
        # A hundred thousand searches can take very long even if each of them is within its limit.
        allowed_seconds = _FIRST_SECONDS + self._searches * _SECONDS_PER_SEARCH
        if limit_all and self._seconds > allowed_seconds:
            raise TimeoutError
        return occurs


Origin = Literal["rules", "categorizer", "plugin", "builtin"]
"""Where a pack came from, in order of precedence."""

LONG_NAME: Final = 2_000
"""The most characters of a real kernel name. In longer names, searches with built-in patterns have
a time limit, too."""


class RuleTimeoutError(RuleError):
    """A search with the pattern of a rule takes too long."""

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
    """A rule together with its pack, ready to be applied."""

    rule: Rule
    pack: RulePack  #: the pack that contains the rule
    origin: Origin  #: where the pack came from
    #: True if searches have a time limit; False for patterns that the project's tests have checked
    limited: bool = True
    _timed: dict[str, TimedPattern] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The name of the rule in reports."""
        return self.pack.rule_id(self.rule)

    def finds(self, name: str) -> bool:
        """Tell whether the pattern occurs in the name.

        Raises:
            RuleTimeoutError: the search takes too long.
        """
        return self._occurs("pattern", name)

    def allows(self, cpu_op: str | None) -> bool:
        """Tell whether the launching operation fulfills the rule's condition, if it has one.

        Raises:
            RuleTimeoutError: the search takes too long.
        """
        if self.rule.cpu_op is None:
            return True
        if cpu_op is None:
            return False
        return self._occurs("cpu_op", cpu_op)

    @cached_property
    def verdict(self) -> RuleVerdict:
        """The verdict on kernels that the rule matches."""
        rule = self.rule
        # A catch-all in the user's rules is a decision of the user. A catch-all of a map or a
        # plugin only means that nothing else matched.
        is_decision_of_user = self.origin == "rules" and rule.category != UNCATEGORIZED
        return RuleVerdict(
            category=encodable(rule.category),
            vendor=rule.vendor,
            library=rule.library,
            rule=self.id,
            pack=self.pack.name,
            known=rule.is_known or is_decision_of_user,
        )

    def _occurs(self, field: Literal["pattern", "cpu_op"], text: str) -> bool:
        """Tell whether one of the rule's two expressions occurs in a text."""
        pattern = getattr(self.rule, field)
        if not self.limited and len(text) <= LONG_NAME:
            return _compile_checked(pattern).search(text) is not None
        if field not in self._timed:
            self._timed[field] = _compiled(self, field, pattern)
        try:
            return self._timed[field].search(text, limit_all=self.limited)
        except TimeoutError:
            if not self.limited:
                # The name is too long for a real kernel, so the built-in rule need not match it.
                return False
            raise RuleTimeoutError(bound=self, field=field, text=text) from None


#: Compiles built-in patterns, which need no time limit. `re` is three times as fast as `regex`.
_compile_checked = lru_cache(maxsize=4096)(re.compile)


def _compiled(bound: BoundRule, field: str, pattern: str) -> TimedPattern:
    """Compile a pattern of a user or a plugin.

    Raises:
        RuleError: the pattern is not a regular expression, or it is too large.
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


# The prefilter is cached because the analyzers of a process usually have the same rules.
_prefilter_of = lru_cache(maxsize=16)(Prefilter)


class Matcher:
    """Applies rules in order of precedence; a prefilter skips rules that cannot match."""

    def __init__(self, rules: Iterable[BoundRule]) -> None:
        self.rules = tuple(rules)
        #: operation → indices of the rules that need no text and do not exclude the operation
        self._always: dict[str | None, frozenset[int]] = {}

    def decide(self, kernels: Iterable[Kernel]) -> list[RuleVerdict | None]:
        """Return the verdict of the first matching rule on each kernel; None if none matches.

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
        """Return the first rule that matches a kernel; None if none matches.

        Raises:
            RuleError: a rule fails.
        """
        if cpu_op not in self._always:
            self._always[cpu_op] = self._rules_without_text(cpu_op)
        for number in self._prefilter.candidates(name, self._always[cpu_op]):
            bound = self.rules[number]
            if bound.finds(name) and bound.allows(cpu_op):
                return bound
        return None

    def _rules_without_text(self, cpu_op: str | None) -> frozenset[int]:
        """Return the indices of the rules that need no text and do not exclude an operation.

        Only built-in rules that match any name are checked here. Searches with other patterns may
        take too long, so they wait until it is the rule's turn.
        """
        numbers = []
        for number in self._prefilter.always:
            bound = self.rules[number]
            can_be_checked = not bound.limited and bound.rule.takes_any_name
            if not can_be_checked or bound.allows(cpu_op):
                numbers.append(number)
        return frozenset(numbers)

    def candidates(self, name: str) -> Iterator[BoundRule]:
        """Return the rules that may match the name, in order of precedence."""
        return (self.rules[number] for number in self._prefilter.candidates(name))

    @cached_property
    def _prefilter(self) -> Prefilter:
        return _prefilter_of(tuple(bound.rule.pattern for bound in self.rules))


#: How a function must be written, for error messages.
_FUNCTION_HELP: Final = (
    "it is called once, with a table whose columns are kernel_name and cpu_op, and "
    "returns a category or None for each row; give a function f of one name as lambda "
    "table: [f(name) for name in table.kernel_name]"
)


@dataclass(frozen=True)
class PythonStage:
    """A Python categorizer of a plugin, or a function that the caller passed."""

    name: str  #: the name of the plugin or of the function
    #: the function, which gets the table of kernels and returns a column of categories
    call: Callable[[pd.DataFrame], Any]
    #: True for a function of the caller, whose errors are raised; those of plugins are noted
    raises_errors: bool = False
    priority: int = 0  #: plugins with a higher priority are tried first
    selectable: bool = False  #: True if the plugin is used only when a user chooses it

    def decide(self, kernels: Sequence[Kernel]) -> list[RuleVerdict | None]:
        """Return the verdict of the function on each kernel; None for kernels without a category.

        Raises:
            UsageError: the function does not return a category or None for each kernel.
        """
        table = pd.DataFrame(kernels, columns=["kernel_name", "cpu_op"], dtype="object")
        title = f"categorizer {self.name}"
        try:
            categories = self.call(table)
        except Exception as error:
            if self.raises_errors:
                error.add_note(f"{title}: {_FUNCTION_HELP}")
            raise
        problem = _problem_of_result(categories, len(kernels))
        if problem:
            raise UsageError(f"{title}: {problem}; {_FUNCTION_HELP}")
        verdicts = [self._verdict(category) for category in list(categories)]
        if self.raises_errors and verdicts and not any(verdicts):
            message = f"has no category for any of {len(kernels)} kernels"
            text = f"{title}: {message}; {_FUNCTION_HELP}"
            warnings.warn(text, UserWarning, stacklevel=2)
        return verdicts

    def _verdict(self, category: Any) -> RuleVerdict | None:  # noqa: ANN401
        """Return a category as a verdict; None for a missing one."""
        if isinstance(category, str) and category:
            return RuleVerdict(
                category=encodable(category),
                rule=self.name,
                pack=self.name,
                known=category != UNCATEGORIZED,
            )
        # Columns have None, NaN, NaT or NA for missing entries.
        is_missing = pd.api.types.is_scalar(category) and pd.isna(category)
        if is_missing or category == "":
            return None
        expected = "expected categories as strings or None"
        raise UsageError(f"categorizer {self.name}: {expected}, got {category!r}")


def _problem_of_result(result: object, count: int) -> str:
    """Return why the result of a function is not a column of `count` entries; empty if it is."""
    if isinstance(result, (str, bytes)) or not isinstance(result, Sized):
        return f"expected a column of {count} categories, got {type(result).__name__}"
    if len(result) != count:
        return (
            f"expected {count} categories, one per row of the table, got {len(result)}"
        )
    return ""


@dataclass(frozen=True)
class BoundPack:
    """A rule pack that is used in a run."""

    pack: RulePack
    origin: Origin  #: where the pack came from
    #: True if searches have a time limit; False for packs that the project's tests have checked
    limited: bool = True

    @property
    def name(self) -> str:
        """The name of the pack."""
        return self.pack.name

    @property
    def priority(self) -> int:
        """The priority of the pack among those of its origin."""
        return self.pack.priority

    def bound_rules(self) -> list[BoundRule]:
        """Return the rules of the pack in the order in which they are tried."""
        rules = self.pack.ordered()
        return [
            BoundRule(
                rule=rule, pack=self.pack, origin=self.origin, limited=self.limited
            )
            for rule in rules
        ]


Source = BoundPack | PythonStage
Stage = Matcher | PythonStage
