"""Checking rule packs: their examples, rules that can never win, patterns that take too long."""

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
_SLOW_SECONDS: Final = 0.1
_HANG_SECONDS: Final = 0.6
_PLAIN: Final = re.compile(r"[\w :<>,&-]+")
_FILLERS: Final = ("a", "_", "0", "A0_", "x::", ", ", "<")
_MOST_STARTS: Final = 4
_MOST_EXAMPLES: Final = 2


@dataclass(frozen=True, slots=True)
class RuleProblem:
    """Something wrong with a rule."""

    #: `error` when the rule does not do what its author says; else `warning`
    severity: Severity
    place: str  #: the file (or pack) and the number of the rule
    problem: str  #: what is wrong


class _Problem(NamedTuple):
    """Something wrong with the rule that is looked at."""

    severity: Severity
    text: str


def _error(text: str) -> _Problem:
    return _Problem("error", text)


def _warning(text: str) -> _Problem:
    return _Problem("warning", text)


def check_packs(packs: Sequence[BoundPack]) -> list[RuleProblem]:
    """Check packs that take part together, in order of precedence; a selectable one for itself.

    Examples must be found by their rule and end up in its category, no not-example be found; each
    rule must be able to win; no pattern may take long on a text made to slow it down.
    """
    together = [bound for bound in packs if not bound.pack.selectable]
    groups = [
        [bound for bound in together if bound.pack.kind == "kernel"],
        [bound for bound in together if bound.pack.kind == "op"],
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
    """Check one pack for itself, as its author does in a test; see `check_packs`.

    Example:
        >>> check_pack(load_pack("my_rules.toml"))
        []
    """
    return check_packs([BoundPack(pack, "rules")])


class _EarlierRule(NamedTuple):
    """A rule that comes before others."""

    bound: BoundRule
    words: list[str]  #: the alternatives of its pattern, if all are plain texts


def _hiding_rules(rules: Sequence[BoundRule]) -> Iterator[BoundRule | None]:
    """Yield, for each rule, an earlier one that is known to find every name it finds; else None."""
    earlier_rules: list[_EarlierRule] = []
    for bound in rules:
        pattern = bound.rule.pattern
        needed_texts = [] if "(?" in pattern else requirements(pattern)
        hiding = None
        for earlier in earlier_rules:
            if _hides(earlier, bound, needed_texts):
                hiding = earlier.bound
                break
        yield hiding
        words = pattern.split("|")
        are_plain = all(_PLAIN.fullmatch(word) for word in words)
        earlier_rules.append(_EarlierRule(bound, words if are_plain else []))


def _hides(
    earlier: _EarlierRule, bound: BoundRule, needed_texts: Sequence[frozenset[str]]
) -> bool:
    """Return whether an earlier rule is known to find every name that a rule finds.

    `needed_texts` are sets of texts, of each of which a name has one that the rule finds: a rule
    for `gemm` hides one whose names contain `hgemm` or `sgemm`.
    """
    rule = earlier.bound.rule
    if rule.cpu_op not in (None, bound.rule.cpu_op):
        return False
    if rule.takes_any_name or rule.pattern == bound.rule.pattern:
        return True
    for texts in needed_texts:
        if all(any(word in text for word in earlier.words) for text in texts):
            return True
    return False


def _problems(
    bound: BoundRule, matcher: Matcher, hidden_by: BoundRule | None
) -> Iterator[_Problem]:
    """Yield what is wrong with a rule."""
    if bound.rule.category == TO_DO:
        yield _error(f"its category is still {TO_DO}: choose one")
    slowest_seconds = _slowest_search(bound)
    if slowest_seconds >= _HANG_SECONDS:
        yield _error(_slow_text(f"over {slowest_seconds:.1f} s"))
        return  # the other checks would search with this pattern, again and again
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
    for example in bound.rule.not_examples:
        if not bound.finds(example.name):
            continue
        is_allowed = example.cpu_op is None or bound.allows(example.cpu_op)
        if is_allowed:
            yield _error(f"matches its not_example {example.name!r}")


def _problems_of_examples(
    bound: BoundRule, matcher: Matcher, hidden_by: BoundRule | None
) -> Iterator[_Problem]:
    """Yield examples that are not found, or go elsewhere; and whether the rule can win at all."""
    rule = bound.rule
    is_file = (bound.pack.source or "").endswith(".toml")
    may_have_examples = is_file or not bound.pack.selectable  # maps have none
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
    """Return the longest search of a name within `LONG_NAME`, in seconds, up to `_HANG_SECONDS`."""
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
        # the machine may have been busy with something else
        if seconds >= _SLOW_SECONDS:
            seconds = min(seconds, seconds_to_search(text))
        slowest = max(slowest, seconds)
        if slowest >= _HANG_SECONDS:
            break
    return slowest


def _hard_texts(bound: BoundRule) -> Iterable[str]:
    """Yield texts that make a pattern with competing repetitions try all of their combinations."""
    needed = [
        text for texts in requirements(bound.rule.pattern) for text in sorted(texts)
    ]
    starts = [""] + needed[:_MOST_STARTS]
    starts += [example.name for example in bound.rule.examples[:_MOST_EXAMPLES]]
    for start in starts:
        for filler in _FILLERS + (start or "a ",):
            # What comes last fits nothing, so that no repetition succeeds at once.
            filled = (start + filler * LONG_NAME)[: LONG_NAME - 1]
            yield f"{filled}!"
