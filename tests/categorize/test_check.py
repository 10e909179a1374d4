"""Checking packs: each problem is found and named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tracelens_ext.categorize import (
    Example,
    Rule,
    RulePack,
    RuleProblem,
    builtin_categorizer,
    check_pack,
)
from tracelens_ext.categorize.check import check_packs
from tracelens_ext.categorize.matcher import BoundPack


def problems_of(*rules: Rule) -> list[tuple[str, str]]:
    """Check a pack of rules; return place and text of each problem."""
    numbered_rules = tuple(
        replace(rule, number=number) for number, rule in enumerate(rules, start=1)
    )
    problems = check_pack(RulePack("x", numbered_rules))
    return [(problem.place, problem.problem) for problem in problems]


def examples(*names: str) -> tuple[Example, ...]:
    return tuple(Example(name) for name in names)


def test_a_correct_pack_has_no_problems() -> None:
    assert (
        problems_of(
            Rule("A", "foo_", examples=examples("foo_1"), not_examples=examples("bar")),
            Rule("B", "bar", cpu_op="mm", examples=(Example("bar", "aten::mm"),)),
            Rule("C", "bar", examples=examples("bar"), not_examples=(Example("foo"),)),
            Rule("misc", ".*"),
        )
        == []
    )


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        (
            [Rule("A", "foo")],
            "rule 1: has no examples, so nothing shows that it works",
        ),
        (
            [Rule("A", "foo", examples=examples("bar"))],
            "rule 1: does not match its example 'bar'",
        ),
        (
            [Rule("A", "foo", examples=examples("foo"), not_examples=examples("xfoo"))],
            "rule 1: matches its not_example 'xfoo'",
        ),
        (
            [
                Rule("A", "f", examples=examples("f")),
                Rule("B", "foo|o", examples=examples("foo", "o")),
            ],
            "rule 2: its example 'foo' goes to x:1 (A), which comes first",
        ),
        (
            [
                Rule("A", "f", examples=examples("f")),
                Rule("A", "foo", examples=examples("foo")),
            ],
            "rule 2: can never match: x:1 matches all of its examples",
        ),
        (
            [Rule("A", "f", cpu_op="mm", examples=examples("f"))],
            "rule 1: its example 'f' needs the operation that launched it",
        ),
        (
            [Rule("A", "f", cpu_op="mm", examples=(Example("f", "aten::add"),))],
            (
                "rule 1: its condition cpu_op does not match 'aten::add' of its example "
                "'f'"
            ),
        ),
        (
            [Rule("A", "(a|a|aa)+$", examples=examples("aa"))],
            "rule 1: pattern takes over 0.2 s on a name of 2000 characters",
        ),
    ],
)
def test_each_problem_is_found(
    rules: list[Rule], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracelens_ext.categorize.check._HANG_SECONDS", 0.2)
    ((place, text),) = problems_of(*rules)
    _, _, rule = place.partition(": ")
    assert f"{rule}: {text}".startswith(problem)


@pytest.mark.parametrize(
    ("first", "second", "hidden"),
    [
        (Rule("A", "foo"), Rule("B", "foo"), True),
        (Rule("A", "foo"), Rule("B", "foo", cpu_op="mm"), True),
        (Rule("A", "foo", cpu_op="mm"), Rule("B", "foo"), False),
        (Rule("A", ".*"), Rule("B", "bar"), True),
        (Rule("A", "foo|ba"), Rule("B", r"food\d|bar"), True),
        (Rule("A", "foo|ba"), Rule("B", r"food\d|rab"), False),
        (Rule("A", "foo"), Rule("B", "(?i)food"), False),
        (Rule("A", "foo"), Rule("B", "food", priority=1), False),
    ],
)
def test_a_rule_that_an_earlier_rule_hides_is_reported(
    first: Rule, second: Rule, hidden: bool
) -> None:
    problem = "can never match: x:1 comes first and matches every name that it matches"
    texts = [text for _, text in problems_of(first, second)]
    assert (problem in texts) == hidden


def test_rules_of_other_packs_can_take_the_examples() -> None:
    first = RulePack("first", (Rule("A", "foo", examples=examples("foo")),))
    second = RulePack("second", (Rule("B", "foo_", examples=examples("foo_")),))
    selectable = RulePack(
        "third", (Rule("C", "foo", examples=examples("foo")),), selectable=True
    )
    operations = RulePack(
        "fourth", (Rule("D", "foo", examples=examples("foo")),), kind="op"
    )
    packs = [
        BoundPack(pack, "rules") for pack in (first, second, selectable, operations)
    ]
    problems = [(problem.severity, problem.place) for problem in check_packs(packs)]
    assert problems == [
        ("error", "pack 'second': rule 1"),
        ("warning", "pack 'second': rule 1"),
    ]


def test_the_built_in_packs_load() -> None:
    built_in = builtin_categorizer()
    assert built_in.problems == []
    assert len(built_in.packs) > 10


def test_a_problem_is_a_plain_value() -> None:
    assert RuleProblem("error", "x: rule 1", "p") == RuleProblem(
        "error", "x: rule 1", "p"
    )
