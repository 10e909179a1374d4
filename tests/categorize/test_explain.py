"""Why a kernel has its category."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.categorize_helpers import plugin, registry, write_pack
from tracelens_ext.categorize import (
    KernelCategorizer,
    Rule,
    RulePack,
    builtin_categorizer,
    hookimpl,
)
from tracelens_ext.categorize.categorizer import explain
from tracelens_ext.errors import RuleError

if TYPE_CHECKING:
    from pathlib import Path


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


def test_explain_returns_the_deciding_rule_and_the_others() -> None:
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


def test_built_in_rules_decide_as_a_loop_over_them_would() -> None:
    built_in = builtin_categorizer()
    rules = [
        bound
        for p in built_in.packs
        for bound in p.bound_rules()
        if p.pack.kind == "kernel"
    ]
    examples = [e for bound in rules for e in bound.rule.examples][::5]
    decisions = built_in.categorize(
        [e.name for e in examples], [e.cpu_op for e in examples]
    )
    for example, rule in zip(examples, decisions.rule, strict=True):
        winner = next(
            (b.id for b in rules if b.finds(example.name) and b.allows(example.cpu_op)),
            None,
        )
        assert winner == rule


def test_explain_agrees_with_categorize_on_every_built_in_example() -> None:
    built_in = builtin_categorizer()
    examples = [
        e for p in built_in.packs for rule in p.pack.rules for e in rule.examples
    ][::7]
    decisions = built_in.categorize(
        [e.name for e in examples], [e.cpu_op for e in examples]
    )
    for example, category, rule in zip(
        examples, decisions.category, decisions.rule, strict=True
    ):
        answer = explain(built_in, example.name, example.cpu_op)
        assert (answer.category, answer.winner and answer.winner.verdict.rule) == (
            category,
            rule,
        )


def test_explain_calls_python_categorizers_and_survives_broken_ones(
    tmp_path: Path,
) -> None:
    @hookimpl
    def tracelens_categorize_kernels() -> list[str]:
        raise RuntimeError("oops")

    asked = KernelCategorizer.create(
        rules=[write_pack(tmp_path, "mine", ("Mine", "nothing_of_the_kind"))],
        categorizer=lambda table: ["Py"] * len(table),
        registry=registry(
            p=plugin(tracelens_categorize_kernels=tracelens_categorize_kernels)
        ),
    )
    answer = explain(asked, "foo")
    assert answer.winner is not None
    assert answer.winner.place == "Python categorizer <lambda>"
    assert asked.problems == ["p: RuntimeError: oops"]


@pytest.mark.usefixtures("impatient")
def test_explain_names_a_hanging_pattern_of_the_user(tmp_path: Path) -> None:
    path = write_pack(tmp_path, "mine", ("Mine", "(a|a|aa)+$"))
    asked = KernelCategorizer.create(rules=[path], registry=registry())
    with pytest.raises(RuleError, match="rule 1"):
        explain(asked, "a" * 60 + "!")
