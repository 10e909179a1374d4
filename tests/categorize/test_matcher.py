"""The matcher answers as a plain loop over the rules would, only faster and never without end."""

from __future__ import annotations

import time

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens_ext.categorize.matcher import BoundRule, Matcher, RuleTimeoutError
from tracelens_ext.categorize.rules import Rule, RulePack

PATTERNS = st.sampled_from(
    [
        "gemm",
        "(?i)gemm",
        "ge+mm",
        "g.*m",
        "^a",
        "copy|fill",
        "(?:nccl|rccl)Dev",
        "é_",
        "ab",
        "x",
        "(?i:conv)_k",
        ".*",
        "kernel_\\d+",
        "(?<!n)ccl",
        "(?i)K",
    ]
)
WORDS = [
    "gemm",
    "GEMM",
    "Gemm",
    "geemm",
    "copy",
    "fill",
    "ncclDev",
    "rcclDev",
    "CONV_k",
    "ab",
    "x",
    "kernel_12",
    "é_",
    "a",
    "\u212a",
    "\ud800",
    "\n",
    "\0",
    "",
]
NAMES = st.lists(st.sampled_from(WORDS), max_size=4).map("".join)
OPS = st.sampled_from([None, "aten::mm", "aten::copy_", "graph"])
CONDITIONS = st.sampled_from([None, None, "aten::", "mm$"])


def bind(rules: list[Rule], *, limited: bool = True) -> list[BoundRule]:
    pack = RulePack("test", tuple(rules))
    return [BoundRule(rule, pack, "rules", limited) for rule in pack.ordered()]


def naive(rules: list[BoundRule], name: str, cpu_op: str | None) -> BoundRule | None:
    for bound in rules:
        condition = bound.rule.cpu_op
        if regex.search(bound.rule.pattern, name) and (
            condition is None
            or (cpu_op is not None and regex.search(condition, cpu_op))
        ):
            return bound
    return None


@settings(max_examples=300, deadline=None)
@given(
    drawn=st.lists(st.tuples(PATTERNS, CONDITIONS, st.integers(-1, 1)), max_size=12),
    kernels=st.lists(
        st.tuples(NAMES, st.lists(OPS, min_size=1, max_size=3)), max_size=12
    ),
    limited=st.booleans(),
)
def test_decisions_are_those_of_a_loop_over_the_rules(
    drawn: list[tuple[str, str | None, int]],
    kernels: list[tuple[str, list[str | None]]],
    limited: bool,
) -> None:
    rules = bind(
        [Rule(f"C{i}", p, cpu_op=c, priority=n) for i, (p, c, n) in enumerate(drawn)],
        limited=limited,
    )
    asked = [(name, op) for name, ops in kernels for op in ops]
    matcher = Matcher(rules)
    expected = [naive(rules, name, op) for name, op in asked]
    assert [matcher.winner(name, op) for name, op in asked] == expected
    assert matcher.decide(asked) == [bound and bound.verdict for bound in expected]


def test_a_hanging_pattern_is_stopped_within_two_seconds_and_named() -> None:
    pack = RulePack("mine", (Rule("Bad", "(a|a|aa)+$", number=7),), source="mine.toml")
    matcher = Matcher([BoundRule(pack.rules[0], pack, "rules")])
    started = time.process_time()
    with pytest.raises(
        RuleTimeoutError, match=r"^mine\.toml: rule 7: pattern: .*too long"
    ):
        matcher.decide([("a" * 60 + "!", None)])
    assert time.process_time() - started < 2


@pytest.mark.usefixtures("impatient")
def test_many_slow_searches_are_stopped_too() -> None:
    pack = RulePack("mine", (Rule("Bad", "(a|a|aa)+$"),))
    matcher = Matcher([BoundRule(pack.rules[0], pack, "rules")])
    names = ["a" * 15 + f"!{i}" for i in range(100_000)]
    started = time.process_time()
    with pytest.raises(RuleTimeoutError):
        matcher.decide((name, None) for name in names)
    assert time.process_time() - started < 5


@pytest.mark.usefixtures("impatient")
def test_a_hanging_condition_is_stopped() -> None:
    pack = RulePack("mine", (Rule("Bad", "kernel", cpu_op="(a|a|aa)+$"),))
    matcher = Matcher([BoundRule(pack.rules[0], pack, "rules")])
    with pytest.raises(RuleTimeoutError, match="cpu_op"):
        matcher.decide([("kernel", "a" * 60 + "!")])


@pytest.mark.usefixtures("impatient")
def test_a_checked_pattern_does_not_match_a_name_that_makes_it_hang() -> None:
    pack = RulePack("built-in", (Rule("Slow", "(a|a|aa)+$"), Rule("Next", "aaa")))
    matcher = Matcher(
        [BoundRule(rule, pack, "builtin", limited=False) for rule in pack.rules]
    )
    started = time.process_time()
    winner = matcher.winner("a" * 5000 + "!", None)
    assert winner is not None
    assert winner.rule.category == "Next"
    assert time.process_time() - started < 2
