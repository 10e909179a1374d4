"""Checking rule packs, and drafting rules for the kernels that no rule knows."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from tracelens_ext.categorize.matcher import (
    LONG_NAME,
    BoundPack,
    BoundRule,
    Matcher,
    RuleTimeoutError,
    requirements,
)
from tracelens_ext.categorize.rules import RulePack

Severity = Literal["error", "warning"]
_SLOW_SECONDS: Final = 0.1
_HANG_SECONDS: Final = 0.6
_PLAIN: Final = re.compile(r"[\w :<>,&-]+")
_FILLERS: Final = ("a", "_", "0", "A0_", "x::", ", ", "<")


@dataclass(frozen=True, slots=True)
class RuleProblem:
    """Something wrong with a rule."""

    #: `error` when the rule does not do what its author says; else `warning`
    severity: Severity
    place: str  #: the file (or pack) and the number of the rule
    problem: str  #: what is wrong


def check_packs(packs: Sequence[BoundPack]) -> list[RuleProblem]:
    """Check packs that take part together, in order of precedence; a selectable one for itself.

    Examples must be found by their rule and end up in its category, no not-example be found; each
    rule must be able to win; no pattern may take long on a text made to slow it down.
    """
    findings: list[RuleProblem] = []
    together = [bound for bound in packs if not bound.pack.selectable]
    kinds = [[b for b in together if b.pack.kind == kind] for kind in ("kernel", "op")]
    for group in [*kinds, *([bound] for bound in packs if bound.pack.selectable)]:
        rules = [bound for pack in group for bound in pack.bound_rules()]
        matcher = Matcher(rules)
        for bound, hidden_by in zip(rules, _hidden(rules), strict=True):
            place = bound.pack.where(bound.rule)
            problems = _problems(bound, matcher, hidden_by)
            findings += [RuleProblem(severity, place, problem) for severity, problem in problems]
    return findings


def check_pack(pack: RulePack) -> list[RuleProblem]:
    """Check one pack for itself, as its author does in a test; see `check_packs`.

    Example:
        >>> check_pack(load_pack("my_rules.toml"))
        []
    """
    return check_packs([BoundPack(pack, "rules")])


def _hidden(rules: Sequence[BoundRule]) -> Iterator[BoundRule | None]:
    """For each rule an earlier one that is known to find every name it finds; else None."""
    earlier: list[tuple[BoundRule, list[str]]] = []
    for bound in rules:
        rule = bound.rule
        same_case = [] if "(?" in rule.pattern else requirements(rule.pattern)
        hiding = (
            first
            for first, words in earlier
            if first.rule.cpu_op in (None, rule.cpu_op)
            and (
                first.rule.pattern == rule.pattern
                or first.rule.takes_any_name
                or any(all(any(w in text for w in words) for text in each) for each in same_case)
            )
        )
        yield next(hiding, None)
        words = rule.pattern.split("|")
        earlier.append((bound, words if all(map(_PLAIN.fullmatch, words)) else []))


def _problems(
    bound: BoundRule, matcher: Matcher, hidden_by: BoundRule | None
) -> Iterator[tuple[Severity, str]]:
    if bound.rule.category == TO_DO:
        yield "error", f"its category is still {TO_DO}: name one"
    if (slow := _slowest(bound)) >= _SLOW_SECONDS:
        hangs = slow >= _HANG_SECONDS
        problem = f"pattern takes {'over ' * hangs}{slow:.1f} s on a name of {LONG_NAME} characters"
        yield "error" if hangs else "warning", f"{problem}; make repeated parts exclude one another"
        if hangs:
            return  # the other checks would search with this pattern, again and again
    try:
        yield from _problems_of_examples(bound, matcher, hidden_by)
        for example in bound.rule.not_examples:
            op = example.cpu_op
            if bound.finds(example.name) and (op is None or bound.allows(op)):
                yield "error", f"finds its not_example {example.name!r}"
    except RuleTimeoutError as error:
        yield "error", f"cannot be checked: {error}"


def _problems_of_examples(
    bound: BoundRule, matcher: Matcher, hidden_by: BoundRule | None
) -> Iterator[tuple[Severity, str]]:
    pack = bound.pack
    rule = bound.rule
    winners = list[BoundRule]()
    is_map = pack.selectable and not (pack.source or "").endswith(".toml")  # holds no examples
    if not rule.examples and rule.is_known and not is_map:
        yield "warning", "has no examples, so nothing proves that it works"
    for name, op in ((example.name, example.cpu_op) for example in rule.examples):
        named = f"its example {name!r}"
        if not bound.finds(name):
            yield "error", f"does not find {named}"
        elif bound.allows(op):
            winner = matcher.winner(name, op)
            winners += [winner] if winner else []
            if winner and winner.rule.category != rule.category:
                goes = f"goes to {winner.id} ({winner.rule.category}), which comes first"
                yield "error", f"{named} {goes}"
        elif op is None:
            needs = 'needs the operation that launched it: {name = "...", cpu_op = "..."}'
            yield "error", f"{named} {needs}"
        else:
            yield "error", f"its condition cpu_op does not find {op!r} of {named}"
    if winners and bound not in winners:
        names = ", ".join(dict.fromkeys(winner.id for winner in winners))
        yield "warning", f"can never win: {names} has all of its examples"
    elif hidden_by is not None:
        finds = f"{hidden_by.id} comes first and finds every name that it finds"
        yield "warning", f"can never win: {finds}"


def _slowest(bound: BoundRule) -> float:
    """The longest search of a name within `LONG_NAME`, in seconds, up to `_HANG_SECONDS`."""
    import regex

    pattern = regex.compile(bound.rule.pattern)
    slowest = 0.0

    def seconds(text: str) -> float:
        started = time.thread_time()
        try:
            pattern.search(text, timeout=_HANG_SECONDS)
        except TimeoutError:
            return _HANG_SECONDS
        return time.thread_time() - started

    for text in _hard_texts(bound):
        took = seconds(text)
        if took >= _SLOW_SECONDS:  # the machine may have been busy with something else
            took = min(took, seconds(text))
        slowest = max(slowest, took)
        if slowest >= _HANG_SECONDS:
            break
    return slowest


def _hard_texts(bound: BoundRule) -> Iterable[str]:
    """Texts that make a pattern with competing repetitions try all of their combinations."""
    needed = [text for texts in requirements(bound.rule.pattern) for text in sorted(texts)]
    starts = ["", *needed[:4]]
    starts += [example.name for example in bound.rule.examples[:2]]
    for start in starts:
        for filler in (*_FILLERS, start or "a "):
            # What comes last fits nothing, so that no repetition succeeds at once.
            yield (start + filler * LONG_NAME)[: LONG_NAME - 1] + "!"


#: The category of a drafted rule; `check_pack` refuses it.
TO_DO: Final = "TODO"
_EXAMPLES: Final = 3
_SHORTEST_STEM: Final = 5
_SUFFIXES: Final = re.compile(r"(?: \[clone [^\]]*\]|\.kd)+$")
_ANONYMOUS: Final = re.compile(r"\(anonymous namespace\)|<unnamed>|\(anonymous\)")
_NUMBERED: Final = re.compile(r"_?\d")


@dataclass
class Unknown:
    """Uncategorised kernels that share a stem."""

    stem: str  #: the text they have in common
    time_ms: float = 0.0  #: their GPU time
    names: dict[str, float] = field(default_factory=dict)  #: GPU time by kernel name
    cpu_ops: set[str] = field(default_factory=set)  #: the operations that launched them


def group_unknown(kernels: Iterable[tuple[str, str, float]]) -> list[Unknown]:
    """Group kernels (name, operation, ms) by the stem of their names, the longest first."""
    groups: dict[str, Unknown] = {}
    for name, cpu_op, time_ms in kernels:
        stem = stem_of(name)
        group = groups.setdefault(stem, Unknown(stem))
        group.time_ms += time_ms
        group.names[name] = group.names.get(name, 0.0) + time_ms
        if cpu_op:
            group.cpu_ops.add(cpu_op)
    return sorted(groups.values(), key=lambda group: (-group.time_ms, group.stem))


def draft_rules(groups: list[Unknown], title: str) -> str:
    """Write a rule for each group, as a TOML file to edit and pass to `--rules`."""
    total = sum(group.time_ms for group in groups) or 1.0
    if not groups:
        return f"# Every kernel in {_one_line(title)} has a category.\n"
    lines = [
        f"# Kernels without a category in {_one_line(title)}.",
        "# Replace each TODO, then: tracelens-ext report TRACE --rules THIS_FILE",
    ]
    for group in groups:
        share = 100 * group.time_ms / total
        kernels = "1 kernel" if len(group.names) == 1 else f"{len(group.names)} kernels"
        lines += ["", f"# {kernels}, {group.time_ms:.3f} ms, {share:.1f} % of what is unknown"]
        if group.cpu_ops:
            lines.append(f"# launched by {_one_line(', '.join(sorted(group.cpu_ops)[:3]))}")
        longest = sorted(group.names, key=lambda name: -group.names[name])[:_EXAMPLES]
        lines += ["[[rule]]", f'category = "{TO_DO}"']
        lines += [f"pattern = {_toml_text(re.escape(group.stem))}", "examples = ["]
        lines += [*(f"    {_toml_text(name)}," for name in longest), "]"]
    return "\n".join([*lines, ""])


def toml_pack(pack: RulePack) -> str:
    """A pack as the text of a rule file."""
    lines = ["[pack]", f"name = {_toml_text(pack.name)}"]
    for rule in pack.rules:
        lines += ["", "[[rule]]"]
        for key in ("category", "pattern", "name", "about", "vendor", "library", "cpu_op"):
            value = getattr(rule, key)
            lines += [f"{key} = {_toml_text(value)}"] if value else []
        lines += [f"priority = {rule.priority}"] if rule.priority else []
    return "\n".join([*lines, ""])


def stem_of(name: str) -> str:
    """What variants of a kernel's name share: the function, cut before its first number."""
    plain = _SUFFIXES.sub("", name)
    function = _mangled_function(plain) if plain.startswith("_Z") else _function(plain)
    number = _NUMBERED.search(function)
    if number and number.start() >= _SHORTEST_STEM:
        function = function[: number.start()]
    return function if function and function in name else name


def _function(name: str) -> str:
    """The qualified name of a demangled function, from behind any unnamed namespace."""
    # Same length, so that what follows can be cut out of the name as it is.
    masked = _ANONYMOUS.sub(lambda match: "\0" * len(match[0]), name)
    end = min((at for at in map(masked.find, "<(") if at > 0), default=len(masked))
    start = max(masked.rfind(" ", 0, end), masked.rfind("\0", 0, end)) + 1
    return name[start:end].lstrip(":")


def _mangled_function(name: str) -> str:
    """The last part of the qualified name at the head of an Itanium-mangled name."""
    at = name.find("N") + 1 if name.startswith("_ZN") else 2
    last = ""
    while digits := re.match(r"(?:K|L|St)?(\d+)", name[at:]):
        at += len(digits[0])
        length = int(digits[1])
        part = name[at : at + length]
        last = last if part.startswith("_GLOBAL__N") else part
        at += length
    return last


def _toml_text(text: str) -> str:
    """A TOML string: literal where possible, so that patterns need no doubled backslashes."""
    if text.isprintable() and "'" not in text:
        return f"'{text}'"
    clean = text.encode("utf-8", "replace").decode("utf-8").replace("\x7f", "\ufffd")
    return json.dumps(clean, ensure_ascii=False)


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else "\ufffd" for c in text)
