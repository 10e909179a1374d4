"""Checks rule packs: their examples, rules that can never match, and patterns that are too slow."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from tracelens_ext.categorize.drafts import TO_DO
from tracelens_ext.categorize.matcher import (
    LONG_NAME,
    BoundPack,
    BoundRule,
    Matcher,
    RuleTimeoutError,
)
from tracelens_ext.categorize.prefilter import requirements
from tracelens_ext.categorize.rules import RulePack

Severity = Literal["error", "warning"]
#: A search that takes this long is a warning.
_SLOW_SECONDS: Final = 0.1
#: A search that takes this long is an error, and is stopped.
_HANG_SECONDS: Final = 0.6
#: An alternative of a pattern that matches only itself.
_PLAIN: Final = re.compile(r"[\w :<>,&-]+")
#: Texts that are repeated to slow down a pattern, and how many texts of the pattern, and how many
#: of its examples, come before them.
_FILLERS: Final = ("a", "_", "0", "A0_", "x::", ", ", "<")
_MAX_STARTS: Final = 4
_MAX_EXAMPLES: Final = 2


@dataclass(frozen=True, slots=True)
class RuleProblem:
    """A problem with a rule."""

    #: `error` if the rule does not do what its author states, `warning` otherwise
    severity: Severity
    place: str  #: the file (or pack) and the number of the rule
    problem: str  #: a description of the problem


class _Problem(NamedTuple):
    """A problem with the rule that is being checked."""

    severity: Severity
    text: str


def _error(text: str) -> _Problem:
    return _Problem("error", text)


def _warning(text: str) -> _Problem:
    return _Problem("warning", text)


def check_packs(packs: Sequence[BoundPack]) -> list[RuleProblem]:
    """Check packs that are used together, in order of precedence, and each selectable pack alone.

    * Each rule must match its examples, and they must get its category.
    * No rule may match its counterexamples (`not_examples`).
    * There must be names that each rule, and no earlier rule, matches.
    * No pattern may take long on a text that is made to slow it down.
    """
    default_packs = [bound for bound in packs if not bound.pack.selectable]
    groups = [
        [bound for bound in default_packs if bound.pack.kind == "kernel"],
        [bound for bound in default_packs if bound.pack.kind == "op"],
    ]
    groups += [[bound] for bound in packs if bound.pack.selectable]
    problems: list[RuleProblem] = []
    for group in groups:
        rules: list[BoundRule] = []
        for pack in group:
            rules += pack.bound_rules()
        matcher = Matcher(rules)
        for bound, hidden_by in zip(rules, _hiding_rules(rules), strict=True):
            place = bound.pack.where(bound.rule)
            problems += [
                RuleProblem(
                    severity=problem.severity, place=place, problem=problem.text
                )
                for problem in _problems(bound, matcher, hidden_by)
            ]
    return problems


def check_pack(pack: RulePack) -> list[RuleProblem]:
    """Check a single pack, as its author does in a test; see `check_packs`.

    Example:
        >>> check_pack(load_pack("my_rules.toml"))
        []
    """
    return check_packs([BoundPack(pack, "rules")])


class _EarlierRule(NamedTuple):
    """A rule that is tried before another one."""

    bound: BoundRule
    #: the alternatives of the pattern if all are plain texts; else empty
    words: list[str]


def _hiding_rules(rules: Sequence[BoundRule]) -> Iterator[BoundRule | None]:
    """Yield for each rule an earlier rule that certainly matches all of its names, or None."""
    earlier_rules: list[_EarlierRule] = []
    for bound in rules:
        pattern = bound.rule.pattern
        required_texts = [] if "(?" in pattern else requirements(pattern)
        hiding_rule = None
        for earlier in earlier_rules:
            if _hides(earlier, bound, required_texts):
                hiding_rule = earlier.bound
                break
        yield hiding_rule
        words = pattern.split("|")
        are_plain = all(_PLAIN.fullmatch(word) for word in words)
        earlier_rules.append(_EarlierRule(bound, words if are_plain else []))


def _hides(
    earlier: _EarlierRule, bound: BoundRule, required_texts: Sequence[frozenset[str]]
) -> bool:
    """Tell whether an earlier rule certainly matches every name that a rule matches.

    For example, a rule for `gemm` hides a rule whose names contain `hgemm` or `sgemm`.

    Args:
        earlier: the earlier rule.
        bound: the rule.
        required_texts: the requirements of the rule's pattern; see `prefilter.requirements`.
    """
    rule = earlier.bound.rule
    if rule.cpu_op not in (None, bound.rule.cpu_op):
        return False
    if rule.takes_any_name or rule.pattern == bound.rule.pattern:
        return True
    for texts in required_texts:
        if all(any(word in text for word in earlier.words) for text in texts):
            return True
    return False


def _problems(
    bound: BoundRule, matcher: Matcher, hidden_by: BoundRule | None
) -> Iterator[_Problem]:
    """Yield the problems of a rule."""
    if bound.rule.category == TO_DO:
        yield _error(f"its category is still {TO_DO}: choose one")
    slowest_seconds = _slowest_search(bound)
    if slowest_seconds >= _HANG_SECONDS:
        yield _error(_slow_text(f"over {slowest_seconds:.1f} s"))
        return  # the other checks would take too long
    if slowest_seconds >= _SLOW_SECONDS:
        yield _warning(_slow_text(f"{slowest_seconds:.1f} s"))
    try:
        yield from _problems_of_examples(bound, matcher, hidden_by)
        yield from _problems_of_not_examples(bound)
    except RuleTimeoutError as error:
        yield _error(f"cannot be checked: {error}")


def _slow_text(seconds: str) -> str:
    return (
        f"pattern takes {seconds} on a name of {LONG_NAME} characters; make repeated "
        "parts mutually exclusive"
    )


def _problems_of_not_examples(bound: BoundRule) -> Iterator[_Problem]:
    """Yield the counterexamples that a rule matches."""
    for example in bound.rule.not_examples:
        if not bound.finds(example.name):
            continue
        is_allowed = example.cpu_op is None or bound.allows(example.cpu_op)
        if is_allowed:
            yield _error(f"matches its not_example {example.name!r}")


def _problems_of_examples(
    bound: BoundRule, matcher: Matcher, hidden_by: BoundRule | None
) -> Iterator[_Problem]:
    """Yield examples that the rule does not categorize, and whether it can match at all."""
    rule = bound.rule
    # Rules of maps cannot have examples.
    is_file = (bound.pack.source or "").endswith(".toml")
    may_have_examples = is_file or not bound.pack.selectable
    if not rule.examples and rule.is_known and may_have_examples:
        yield _warning("has no examples, so nothing shows that it works")
    winners: list[BoundRule] = []
    for example in rule.examples:
        label = f"its example {example.name!r}"
        if not bound.finds(example.name):
            yield _error(f"does not match {label}")
        elif bound.allows(example.cpu_op):
            winner = matcher.winner(example.name, example.cpu_op)
            if winner is None:
                continue
            winners.append(winner)
            if winner.rule.category != rule.category:
                target = f"{winner.id} ({winner.rule.category})"
                yield _error(f"{label} goes to {target}, which comes first")
        elif example.cpu_op is None:
            needed = (
                'needs the operation that launched it: {name = "...", cpu_op = "..."}'
            )
            yield _error(f"{label} {needed}")
        else:
            yield _error(
                f"its condition cpu_op does not match {example.cpu_op!r} of {label}"
            )
    if winners and bound not in winners:
        names = ", ".join(dict.fromkeys(winner.id for winner in winners))
        yield _warning(f"can never match: {names} matches all of its examples")
    elif hidden_by is not None:
        reason = f"{hidden_by.id} comes first and matches every name that it matches"
        yield _warning(f"can never match: {reason}")


def _slowest_search(bound: BoundRule) -> float:
    """Return the time of the slowest search in a hard text, in seconds, at most `_HANG_SECONDS`."""
    import regex

    pattern = regex.compile(bound.rule.pattern)

    def seconds_to_search(text: str) -> float:
        started = time.thread_time()
        try:
            pattern.search(text, timeout=_HANG_SECONDS)
        except TimeoutError:
            return _HANG_SECONDS
        return time.thread_time() - started

    slowest = 0.0
    for text in _hard_texts(bound):
        seconds = seconds_to_search(text)
        # The machine may have been busy with other things, so a slow search is repeated.
        if seconds >= _SLOW_SECONDS:
            seconds = min(seconds, seconds_to_search(text))
        slowest = max(slowest, seconds)
        if slowest >= _HANG_SECONDS:
            break
    return slowest


def _hard_texts(bound: BoundRule) -> Iterable[str]:
    """Yield texts for which a pattern with overlapping repetitions tries all combinations.

    Each of them begins with a text that the pattern requires, followed by a repeated filler.
    """
    required_texts = [
        text for texts in requirements(bound.rule.pattern) for text in sorted(texts)
    ]
    starts = [""] + required_texts[:_MAX_STARTS]
    starts += [example.name for example in bound.rule.examples[:_MAX_EXAMPLES]]
    for start in starts:
        for filler in _FILLERS + (start or "a ",):
            # The last character does not fit, so that no repetition succeeds immediately.
            filled = (start + filler * LONG_NAME)[: LONG_NAME - 1]
            yield f"{filled}!"
