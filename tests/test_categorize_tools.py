"""The tools around rules: check, explain, suggest."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

import pytest
from categorize_helpers import plugin, registry, write_pack
from hypothesis import given
from hypothesis import strategies as st

from tracelens_ext.categorize import (
    Example,
    Finding,
    KernelCategorizer,
    Rule,
    RulePack,
    builtin_categorizer,
    check_pack,
    hookimpl,
)
from tracelens_ext.categorize.check import check_packs
from tracelens_ext.categorize.explain import explain
from tracelens_ext.categorize.loading import parse_pack
from tracelens_ext.categorize.stages import BoundPack
from tracelens_ext.categorize.suggest import draft_rules, group_unknown, stem_of
from tracelens_ext.errors import RuleError

if TYPE_CHECKING:
    from pathlib import Path


def findings(*rules: Rule) -> list[tuple[str, str]]:
    numbered = [
        Rule(**{field: getattr(rule, field) for field in Rule.__slots__} | {"number": number})
        for number, rule in enumerate(rules, start=1)
    ]
    return [(f.place, f.problem) for f in check_pack(RulePack("x", tuple(numbered)))]


def names(*texts: str) -> tuple[Example, ...]:
    return tuple(Example(text) for text in texts)


def test_a_sound_pack_has_no_findings() -> None:
    assert findings(
        Rule("A", "foo_", examples=names("foo_1"), not_examples=names("bar")),
        Rule("B", "bar", cpu_op="mm", examples=(Example("bar", "aten::mm"),)),
        Rule("C", "bar", examples=names("bar"), not_examples=(Example("foo"),)),
        Rule("misc", ".*"),
    ) == []  # fmt: skip


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ([Rule("A", "foo")], "rule 1: has no examples, so nothing proves that it works"),
        ([Rule("A", "foo", examples=names("bar"))], "rule 1: does not find its example 'bar'"),
        (
            [Rule("A", "foo", examples=names("foo"), not_examples=names("xfoo"))],
            "rule 1: finds its not_example 'xfoo'",
        ),
        (
            [Rule("A", "f", examples=names("f")), Rule("B", "foo|o", examples=names("foo", "o"))],
            "rule 2: its example 'foo' goes to x:1 (A), which comes first",
        ),
        (
            [Rule("A", "f", examples=names("f")), Rule("A", "foo", examples=names("foo"))],
            "rule 2: can never win: x:1 has all of its examples",
        ),
        (
            [Rule("A", "f", cpu_op="mm", examples=names("f"))],
            "rule 1: its example 'f' needs the operation that launched it",
        ),
        (
            [Rule("A", "f", cpu_op="mm", examples=(Example("f", "aten::add"),))],
            "rule 1: its condition cpu_op does not find 'aten::add' of its example 'f'",
        ),
        (
            [Rule("A", "(a|a|aa)+$", examples=names("aa"))],
            "rule 1: pattern takes over 0.6 s on a name of 2000 characters",
        ),
    ],
)
def test_each_fault_is_found(rules: list[Rule], problem: str) -> None:
    found = [f"{place.split(': ', 1)[1]}: {text}" for place, text in findings(*rules)]
    assert len(found) == 1
    assert found[0].startswith(problem)


def test_rules_of_other_packs_can_take_the_examples() -> None:
    first = RulePack("first", (Rule("A", "foo", examples=names("foo")),))
    second = RulePack("second", (Rule("B", "foo_", examples=names("foo_")),))
    for_choice = RulePack("third", (Rule("C", "foo", examples=names("foo")),), selectable=True)
    of_ops = RulePack("fourth", (Rule("D", "foo", examples=names("foo")),), kind="op")
    packs = [BoundPack(pack, "rules") for pack in (first, second, for_choice, of_ops)]
    assert [(f.severity, f.place) for f in check_packs(packs)] == [
        ("error", "pack 'second': rule 1"),
        ("warning", "pack 'second': rule 1"),
    ]


def test_the_built_in_packs_load_and_every_example_holds() -> None:
    built_in = builtin_categorizer()
    assert built_in.problems == []
    assert len(built_in.packs) > 10
    assert [f for f in check_packs(built_in.packs) if f.severity == "error"] == []


def explained_registry() -> KernelCategorizer:
    @hookimpl
    def tracelens_rule_packs() -> list[RulePack]:
        rules = (
            Rule("Conditional", "foo", cpu_op="mm$", number=1),
            Rule("Plain", "foo", vendor="nvidia", library="lib", number=2),
            Rule("Never", "bar", number=3),
            Rule("Catch", "o", number=4),
            Rule("Any name", ".", cpu_op="aten::sort", number=5),
        )
        return [RulePack("x", rules, source="x.toml")]

    return KernelCategorizer.create(
        registry=registry(p=plugin(tracelens_rule_packs=tracelens_rule_packs))
    )


def test_explain_tells_the_winner_and_the_others() -> None:
    answer = explain(explained_registry(), "foo", "aten::add")
    assert answer.category == "Plain"
    assert answer.winner is not None
    assert answer.winner.place == "x.toml: rule 2"
    assert answer.winner.verdict.library == "lib"
    assert [(m.verdict.category, m.holds) for m in answer.others] == [
        ("Conditional", False),
        ("Catch", True),
    ]
    answer = explain(explained_registry(), "foo", "aten::mm")
    assert answer.category == "Conditional"
    assert explain(explained_registry(), "zzz", "aten::sort").category == "Any name"
    assert explain(explained_registry(), "zzz").winner is None
    assert explain(explained_registry(), "zzz").category == "Uncategorized"


def test_built_in_rules_answer_as_a_loop_over_them_would() -> None:
    built_in = builtin_categorizer()
    rules = [bound for p in built_in.packs for bound in p.bound_rules() if p.pack.kind == "kernel"]
    examples = [e for bound in rules for e in bound.rule.examples][::5]
    decisions = built_in.categorize([e.name for e in examples], [e.cpu_op for e in examples])
    for example, rule in zip(examples, decisions.rule, strict=True):
        winner = next(
            (b.id for b in rules if b.finds(example.name) and b.allows(example.cpu_op)), None
        )
        assert winner == rule


def test_explain_agrees_with_categorize_on_every_built_in_example() -> None:
    built_in = builtin_categorizer()
    examples = [e for p in built_in.packs for rule in p.pack.rules for e in rule.examples][::7]
    decisions = built_in.categorize([e.name for e in examples], [e.cpu_op for e in examples])
    for example, category, rule in zip(examples, decisions.category, decisions.rule, strict=True):
        answer = explain(built_in, example.name, example.cpu_op)
        assert (answer.category, answer.winner and answer.winner.verdict.rule) == (category, rule)


def test_explain_asks_python_categorisers_and_survives_broken_ones(tmp_path: Path) -> None:
    @hookimpl
    def tracelens_categorize_kernels() -> list[str]:
        raise RuntimeError("oops")

    asked = KernelCategorizer.create(
        rules=[write_pack(tmp_path, "mine", ("Mine", "nothing_of_the_kind"))],
        categorizer=lambda table: ["Py"] * len(table),
        registry=registry(p=plugin(tracelens_categorize_kernels=tracelens_categorize_kernels)),
    )
    answer = explain(asked, "foo")
    assert answer.winner is not None
    assert answer.winner.place == "Python categoriser <lambda>"
    assert asked.problems == ["p: RuntimeError: oops"]


def test_explain_names_the_users_pattern_without_end(tmp_path: Path) -> None:
    path = write_pack(tmp_path, "mine", ("Mine", "(a|a|aa)+$"))
    asked = KernelCategorizer.create(rules=[path], registry=registry())
    with pytest.raises(RuleError, match="rule 1"):
        explain(asked, "a" * 60 + "!")


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("void my::ns::fused_gelu<float, 4>(float*)", "my::ns::fused_gelu"),
        ("my_kernel_128x64_f16", "my_kernel"),
        ("my_kernel_64x64_bf16.kd", "my_kernel"),
        ("void (anonymous namespace)::hidden_op<2>(int*)", "hidden_op"),
        ("void at::native::<unnamed>::hidden_op<2>(int*)", "hidden_op"),
        ("_ZN2my2ns10fused_geluIfLi4EEEvPf", "fused_gelu"),
        ("_ZN12_GLOBAL__N_19hidden_opEv [clone .kd]", "hidden_op"),
        ("_Z9hidden_opPf", "hidden_op"),
        ("k2", "k2"),
        ("<odd>", "<odd>"),
        ("", ""),
    ],
)
def test_stems(name: str, stem: str) -> None:
    assert stem_of(name) == stem


@given(
    st.lists(
        st.tuples(
            st.text(max_size=30) | st.from_regex(r"(void )?(a|b|ns)::\w{1,9}<.{0,5}>\(.*\)"),
            st.text(max_size=5),
            st.floats(0, 1e6),
        ),
        max_size=8,
    )
)
def test_a_draft_is_a_valid_pack_that_takes_every_kernel(
    kernels: list[tuple[str, str, float]],
) -> None:
    kernels = [kernel for kernel in kernels if kernel[0].strip()]
    groups = group_unknown(kernels)
    text = draft_rules(groups, "trace.json")
    document = tomllib.loads(text)
    if not kernels:
        assert document == {}
        return
    pack = parse_pack(document)
    assert len(pack.rules) == len(groups)
    assert {name for group in groups for name in group.names} == {name for name, _, _ in kernels}
    assert not [f for f in check_pack(pack) if "does not find" in f.problem]


def test_kernels_are_grouped_the_longest_first() -> None:
    groups = group_unknown(
        [
            ("short_kernel_1", "aten::a", 1.0),
            ("long_kernel_64", "aten::b", 2.0),
            ("long_kernel_32", "", 3.0),
            ("long_kernel_64", "aten::c", 0.5),
        ]
    )
    assert [(g.stem, g.time_ms, list(g.names)) for g in groups] == [
        ("long_kernel", 5.5, ["long_kernel_64", "long_kernel_32"]),
        ("short_kernel", 1.0, ["short_kernel_1"]),
    ]
    text = draft_rules(groups, "trace.json")
    assert (
        "# 2 kernels, 5.500 ms, 84.6 % of what is unknown\n# launched by aten::b, aten::c" in text
    )
    assert "pattern = 'long_kernel'\n" in text


def test_a_finding_is_a_plain_value() -> None:
    assert Finding("error", "x: rule 1", "p") == Finding("error", "x: rule 1", "p")
