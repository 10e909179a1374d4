"""Checking rule packs: their examples, rules that can never win, patterns that take too long."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from tracelens_ext.categorize.matcher import LONG_NAME, BoundRule, Matcher, RuleTimeoutError
from tracelens_ext.categorize.prefilter import requirements
from tracelens_ext.categorize.stages import BoundPack
from tracelens_ext.categorize.suggest import TO_DO

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import regex

    from tracelens_ext.categorize.rules import Example, RulePack

_SLOW_SECONDS: Final = 0.1
_HANG_SECONDS: Final = 0.6
_PLAIN: Final = re.compile(r"[\w :<>,&-]+")
_FILLERS: Final = ("a", "_", "0", "A0_", "x::", ", ", "<")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with a rule."""

    #: `error` when the rule does not do what its author says; else `warning`
    severity: Literal["error", "warning"]
    place: str  #: the file (or pack) and the number of the rule
    problem: str  #: what is wrong


def check_packs(packs: Sequence[BoundPack]) -> list[Finding]:
    """Check packs that take part together.

    Every example must be found by its rule and end up in the rule's category; no not-example may
    be found; some example of every rule must be won by that rule, and no earlier rule may find
    whatever it finds; no pattern may take long on a text made to slow it down.

    Args:
        packs: the packs in order of precedence. Packs of kind `op` are checked apart from the
            others, and a selectable pack for itself, as nothing else is asked before it.

    Returns:
        What is wrong, in the order of the packs and rules.

    Raises:
        RuleError: a pattern is not a regular expression.
    """
    findings: list[Finding] = []
    for group in _groups(packs):
        rules = [bound for pack in group for bound in pack.bound_rules()]
        matcher = Matcher(rules)
        for bound, hidden_by in zip(rules, _hidden(rules), strict=True):
            findings += _check_rule(bound, matcher, hidden_by)
    return findings


def check_pack(pack: RulePack) -> list[Finding]:
    """Check one pack for itself, as its author does in a test; see `check_packs`.

    Example:
        >>> check_pack(load_pack("my_rules.toml"))
        []
    """
    return check_packs([BoundPack(pack, "rules")])


def _groups(packs: Sequence[BoundPack]) -> Iterator[list[BoundPack]]:
    together = [bound for bound in packs if not bound.pack.selectable]
    yield [bound for bound in together if bound.pack.kind == "kernel"]
    yield [bound for bound in together if bound.pack.kind == "op"]
    for bound in packs:
        if bound.pack.selectable:
            yield [bound]


def _hidden(rules: Sequence[BoundRule]) -> Iterator[BoundRule | None]:
    """For each rule an earlier one that finds every name it finds; None where none is known.

    Known are the same pattern, one that takes any name, and plain words of which one is in every
    name that the later pattern finds.
    """
    earlier: list[tuple[BoundRule, list[str]]] = []
    for bound in rules:
        rule = bound.rule
        same_case = [] if "(?" in rule.pattern else requirements(rule.pattern)
        yield next(
            (
                first
                for first, words in earlier
                if first.rule.cpu_op in (None, rule.cpu_op)
                and (
                    first.rule.pattern == rule.pattern
                    or first.rule.takes_any_name
                    or any(all(_has(text, words) for text in texts) for texts in same_case)
                )
            ),
            None,
        )
        words = rule.pattern.split("|")
        earlier.append((bound, words if all(map(_PLAIN.fullmatch, words)) else []))


def _has(text: str, words: Iterable[str]) -> bool:
    return any(word in text for word in words)


def _check_rule(
    bound: BoundRule, matcher: Matcher, hidden_by: BoundRule | None
) -> Iterator[Finding]:
    place = bound.pack.where(bound.rule)
    if bound.rule.category == TO_DO:
        yield Finding("error", place, f"its category is still {TO_DO}: name one")
    slow = _slowest(bound)
    if slow is not None:
        yield Finding("error" if slow >= _HANG_SECONDS else "warning", place, _too_slow(slow))
        if slow >= _HANG_SECONDS:
            return  # the other checks would search with this pattern, again and again
    try:
        yield from _check_examples(bound, matcher, place, hidden_by)
        for example in bound.rule.not_examples:
            if bound.finds(example.name) and (
                example.cpu_op is None or bound.allows(example.cpu_op)
            ):
                yield Finding("error", place, f"finds its not_example {example.name!r}")
    except RuleTimeoutError as error:
        yield Finding("error", place, f"cannot be checked: {error}")


def _check_examples(
    bound: BoundRule, matcher: Matcher, place: str, hidden_by: BoundRule | None
) -> Iterator[Finding]:
    examples = bound.rule.examples
    pack = bound.pack
    is_map = pack.selectable and not (pack.source or "").endswith(".toml")  # holds no examples
    if not examples and bound.rule.is_known and not is_map:
        yield Finding("warning", place, "has no examples, so nothing proves that it works")
    winners = []
    for example in examples:
        problem = _not_found(bound, example)
        if problem is not None:
            yield Finding("error", place, problem)
            continue
        winner = matcher.winner(example.name, example.cpu_op)
        winners.append(winner)
        if winner is not None and winner.rule.category != bound.rule.category:
            yield Finding(
                "error",
                place,
                f"its example {example.name!r} goes to {winner.id} ({winner.rule.category}), "
                "which comes first",
            )
    if winners and all(winner is not bound for winner in winners):
        names = ", ".join(dict.fromkeys(winner.id for winner in winners if winner is not None))
        yield Finding("warning", place, f"can never win: {names} has all of its examples")
    elif hidden_by is not None:
        finds = f"{hidden_by.id} comes first and finds every name that it finds"
        yield Finding("warning", place, f"can never win: {finds}")


def _not_found(bound: BoundRule, example: Example) -> str | None:
    """Why the rule by itself does not take its own example."""
    if not bound.finds(example.name):
        return f"does not find its example {example.name!r}"
    if bound.allows(example.cpu_op):
        return None
    if example.cpu_op is None:
        return (
            f"its example {example.name!r} needs the operation that launched it: "
            '{name = "...", cpu_op = "..."}'
        )
    return f"its condition cpu_op does not find {example.cpu_op!r} of its example {example.name!r}"


def _slowest(bound: BoundRule) -> float | None:
    """The longest search, in seconds, when it is too long.

    Names above `LONG_NAME` characters are searched under a time limit, so shorter ones matter.
    """
    import regex

    pattern = regex.compile(bound.rule.pattern)
    slowest = 0.0
    for text in _hard_texts(bound):
        # The quicker of two: the machine may have been busy with something else.
        seconds = min(_seconds(pattern, text) for _ in range(2))
        if seconds > slowest:
            slowest = seconds
        if slowest >= _HANG_SECONDS:
            break
    return slowest if slowest >= _SLOW_SECONDS else None


def _seconds(pattern: regex.Pattern[str], text: str) -> float:
    started = time.thread_time()
    try:
        pattern.search(text, timeout=_HANG_SECONDS)
    except TimeoutError:
        return _HANG_SECONDS
    return time.thread_time() - started


def _hard_texts(bound: BoundRule) -> Iterable[str]:
    """Texts that make a pattern with competing repetitions try all of their combinations."""
    needed = [text for texts in requirements(bound.rule.pattern) for text in sorted(texts)]
    starts = ["", *needed[:4]]
    starts += [example.name for example in bound.rule.examples[:2]]
    for start in starts:
        for filler in (*_FILLERS, start or "a "):
            # What comes last fits nothing, so that no repetition succeeds at once.
            yield (start + filler * LONG_NAME)[: LONG_NAME - 1] + "!"


def _too_slow(seconds: float) -> str:
    at_least = "over " if seconds >= _HANG_SECONDS else ""
    return (
        f"pattern takes {at_least}{seconds:.1f} s on a name of {LONG_NAME} characters; make "
        "repeated parts exclude one another"
    )
