"""Checking packs: each fault is found and named."""

from __future__ import annotations

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


def findings(*rules: Rule) -> list[tuple[str, str]]:
    numbered = [
        Rule(
            **{field: getattr(rule, field) for field in Rule.__slots__}
            | {"number": number}
        )
        for number, rule in enumerate(rules, start=1)
    ]
    return [(f.place, f.problem) for f in check_pack(RulePack("x", tuple(numbered)))]


def names(*texts: str) -> tuple[Example, ...]:
    return tuple(Example(text) for text in texts)


def test_a_correct_pack_has_no_problems() -> None:
    assert (
        findings(
            Rule("A", "foo_", examples=names("foo_1"), not_examples=names("bar")),
            Rule("B", "bar", cpu_op="mm", examples=(Example("bar", "aten::mm"),)),
            Rule("C", "bar", examples=names("bar"), not_examples=(Example("foo"),)),
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
            [Rule("A", "foo", examples=names("bar"))],
            "rule 1: does not match its example 'bar'",
        ),
        (
            [Rule("A", "foo", examples=names("foo"), not_examples=names("xfoo"))],
            "rule 1: matches its not_example 'xfoo'",
        ),
        (
            [
                Rule("A", "f", examples=names("f")),
                Rule("B", "foo|o", examples=names("foo", "o")),
            ],
            "rule 2: its example 'foo' goes to x:1 (A), which comes first",
        ),
        (
            [
                Rule("A", "f", examples=names("f")),
                Rule("A", "foo", examples=names("foo")),
            ],
            "rule 2: can never match: x:1 matches all of its examples",
        ),
        (
            [Rule("A", "f", cpu_op="mm", examples=names("f"))],
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
            [Rule("A", "(a|a|aa)+$", examples=names("aa"))],
            "rule 1: pattern takes over 0.2 s on a name of 2000 characters",
        ),
    ],
)
def test_each_problem_is_found(
    rules: list[Rule], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracelens_ext.categorize.check._HANG_SECONDS", 0.2)
    found = [f"{place.split(': ', 1)[1]}: {text}" for place, text in findings(*rules)]
    assert len(found) == 1
    assert found[0].startswith(problem)


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
    found = [
        problem
        for _, problem in findings(first, second)
        if "can never match" in problem
    ]
    expected = "can never match: x:1 comes first and matches every name that it matches"
    assert found == [expected] * hidden


def test_rules_of_other_packs_can_take_the_examples() -> None:
    first = RulePack("first", (Rule("A", "foo", examples=names("foo")),))
    second = RulePack("second", (Rule("B", "foo_", examples=names("foo_")),))
    for_choice = RulePack(
        "third", (Rule("C", "foo", examples=names("foo")),), selectable=True
    )
    of_ops = RulePack("fourth", (Rule("D", "foo", examples=names("foo")),), kind="op")
    packs = [BoundPack(pack, "rules") for pack in (first, second, for_choice, of_ops)]
    assert [(f.severity, f.place) for f in check_packs(packs)] == [
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
