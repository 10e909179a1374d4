"""The categorizer: order of precedence, order of decisions, plugins that fail."""

from __future__ import annotations

import pickle
import random
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

from tests.support.categorize_helpers import (
    FakeEntryPoint,
    plugin,
    registry,
    write_pack,
)
from tracelens_ext.categorize import (
    KernelCategorizer,
    Rule,
    RulePack,
    categorize_kernels,
    hookimpl,
)
from tracelens_ext.errors import RuleError, UsageError
from tracelens_ext.hooks import PluginRegistry

if TYPE_CHECKING:
    from pathlib import Path


def packs_plugin(*packs: object) -> object:
    @hookimpl
    def tracelens_rule_packs() -> list[object]:
        return list(packs)

    return plugin(tracelens_rule_packs=tracelens_rule_packs)


def python_plugin(
    answer: Any, priority: int = 0, *, selectable: bool = False
) -> object:
    @hookimpl(priority=priority, selectable=selectable)
    def tracelens_categorize_kernels(table: pd.DataFrame) -> Any:
        return answer(table) if callable(answer) else answer

    return plugin(tracelens_categorize_kernels=tracelens_categorize_kernels)


def pack(name: str, *patterns: str, **options: Any) -> RulePack:
    rules = tuple(
        Rule(f"{name} {p}", p, number=i) for i, p in enumerate(patterns, start=1)
    )
    return RulePack(name, rules, **options)


def test_the_order_of_precedence(tmp_path: Path) -> None:
    plugins = PluginRegistry(
        [
            FakeEntryPoint(
                "builtin", packs_plugin(pack("own", "k", "d", "e")), own=True
            ),
            FakeEntryPoint(
                "zebra", packs_plugin(pack("zebra", "k1", "k2", "k3", "k4"))
            ),
            FakeEntryPoint(
                "chosen", packs_plugin(pack("pick", "k1", "k2", selectable=True))
            ),
        ]
    )
    rules = [
        write_pack(tmp_path, "first", ("mine", "k1")),
        write_pack(tmp_path, "second", ("late", "k")),
    ]
    names = ["k1", "k2", "k3", "k5", "zzz"]
    user = [rules[0]]
    second = [rules[1]]
    created = KernelCategorizer.create(rules=user, categorizer="pick", registry=plugins)
    assert created.categorize(names).category == [
        "mine",
        "pick k2",
        "zebra k3",
        "own k",
        "Uncategorized",
    ]
    both = KernelCategorizer.create(rules=user + second, registry=plugins)
    assert both.categorize(names).category == [
        "mine",
        "late",
        "late",
        "late",
        "Uncategorized",
    ]
    plain = KernelCategorizer.create(registry=plugins)
    assert plain.categorize(names).category == [
        "zebra k1",
        "zebra k2",
        "zebra k3",
        "own k",
        "Uncategorized",
    ]


def test_precedence_among_plugins_is_priority_then_name_and_never_registration_order() -> (
    None
):
    entry_points = [
        FakeEntryPoint("p1", packs_plugin(pack("beta", "k"), pack("alpha", "k|low"))),
        FakeEntryPoint("p2", packs_plugin(pack("high", "k1", priority=5))),
        FakeEntryPoint(
            "p3",
            python_plugin(
                lambda t: ["py" if "2" in n else None for n in t["kernel_name"]],
                priority=9,
            ),
        ),
        FakeEntryPoint(
            "p4", python_plugin(lambda t: ["py late"] * len(t), priority=-1)
        ),
    ]
    expected = ["high k1", "py", "alpha k|low", "alpha k|low", "py late"]
    for seed in range(6):
        random.Random(seed).shuffle(entry_points)
        categorizer = KernelCategorizer.create(registry=PluginRegistry(entry_points))
        assert (
            categorizer.categorize(["k1", "k12", "k3", "low", "zzz"]).category
            == expected
        )
        assert categorizer.problems == []


def test_within_a_pack_priority_comes_before_position() -> None:
    rules = (
        Rule("a", "k", number=1),
        Rule("b", "k", priority=1, number=2),
        Rule("c", "k", number=3),
    )
    categorizer = KernelCategorizer.create(
        registry=registry(p=packs_plugin(RulePack("x", rules)))
    )
    assert categorizer.categorize(["k"]).rule == ["x:2"]


def test_decisions_are_in_the_order_of_the_names() -> None:
    rules = (
        Rule("A", "a", vendor="nvidia", library="lib", number=1),
        Rule("B", "b", name="bees", number=2),
        Rule("OnlyMm", "mm", cpu_op="aten::mm$", number=3),
    )
    categorizer = KernelCategorizer.create(
        registry=registry(p=packs_plugin(RulePack("x", rules)))
    )
    names = ["b", "a", "zzz", "mm", "mm", "a", "mm"]
    ops: list[Any] = ["op", None, "op", "aten::mm", "aten::addmm_", "op", np.nan]
    decisions = categorizer.categorize(names, ops)
    assert decisions.category == [
        "B",
        "A",
        "Uncategorized",
        "OnlyMm",
        "Uncategorized",
        "A",
        "Uncategorized",
    ]
    assert decisions.vendor[:3] == [None, "nvidia", None]
    assert decisions.library[:3] == [None, "lib", None]
    assert decisions.rule[:4] == ["bees", "x:1", None, "x:3"]
    assert decisions.pack[:3] == ["x", "x", None]
    assert decisions.known[:3] == [True, True, False]
    frame = decisions.to_frame()
    assert list(frame) == ["kernel_category", "vendor", "library", "rule", "pack"]
    assert frame["kernel_category"].tolist() == decisions.category
    assert frame["vendor"].tolist()[2] is None


def test_only_a_catch_all_without_a_condition_leaves_kernels_unknown() -> None:
    rules = (
        Rule("By operation", ".", cpu_op="mm", number=1),
        Rule("Uncategorized", "guard", number=2),
        Rule("misc", ".*", number=3),
    )
    categorizer = KernelCategorizer.create(
        registry=registry(p=packs_plugin(RulePack("x", rules)))
    )
    decisions = categorizer.categorize(["k", "guard", "k"], ["aten::mm", None, None])
    assert decisions.category == ["By operation", "Uncategorized", "misc"]
    assert decisions.known == [True, False, False]


def test_a_catch_all_in_a_rule_file_of_the_user_is_a_decision(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('[[rule]]\ncategory = "Mine"\npattern = ".*"\n')
    decisions = KernelCategorizer.create(rules=[tmp_path / "mine.toml"]).categorize(
        ["k"]
    )
    assert (decisions.category, decisions.known) == (["Mine"], [True])


def test_each_distinct_kernel_is_categorized_once_and_a_function_is_called_once() -> (
    None
):
    tables: list[pd.DataFrame] = []

    def answer(table: pd.DataFrame) -> list[None]:
        tables.append(table)
        return [None] * len(table)

    categorizer = KernelCategorizer.create(registry=registry(p=python_plugin(answer)))
    categorizer.categorize(["a", "b", "a", "a"], ["op", None, "op", "other"])
    assert [list(table) for table in tables] == [["kernel_name", "cpu_op"]]
    assert tables[0].values.tolist() == [["a", "op"], ["b", None], ["a", "other"]]


def test_operations_have_packs_of_their_own() -> None:
    op_pack = RulePack("ops", (Rule("GEMM", "aten::(add)?mm"),), kind="op")
    categorizer = KernelCategorizer.create(
        registry=registry(p=packs_plugin(op_pack, pack("k", "aten")))
    )
    assert categorizer.categorize_ops(["aten::mm", "x", "aten::addmm"]) == [
        "GEMM",
        "other",
        "GEMM",
    ]
    assert categorizer.categorize(["aten::mm"]).category == ["k aten"]
    assert KernelCategorizer.create(registry=registry()).categorize_ops(["a"]) == [
        "other"
    ]


@pytest.mark.parametrize(
    "answer",
    [
        ["A", None],
        ("A", np.nan),
        pd.Series(["A", pd.NA]),
        np.array(["A", None], dtype=object),
        pd.Series(["A", ""]),
    ],
)
def test_a_function_returns_a_column_with_none_for_unknown_kernels(answer: Any) -> None:
    categorizer = KernelCategorizer.create(
        categorizer=lambda _table: answer,
        registry=registry(p=packs_plugin(pack("x", "k"))),
    )
    assert categorizer.categorize(["k1", "k2"]).category == ["A", "x k"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (["A"], "expected 2 categories, one per row of the table, got 1"),
        ("AB", "expected a column of 2 categories, got str"),
        (None, "expected a column of 2 categories, got NoneType"),
        ([1, 2], "expected categories as strings or None, got 1"),
    ],
)
def test_invalid_results_of_functions(answer: Any, message: str) -> None:
    def mine(_table: pd.DataFrame) -> Any:
        return answer

    categorizer = KernelCategorizer.create(categorizer=mine, registry=registry())
    with pytest.raises(UsageError, match=f"categorizer mine: {message}"):
        categorizer.categorize(["k1", "k2"])
    stranger = KernelCategorizer.create(
        registry=registry(theirs=python_plugin(answer), p=packs_plugin(pack("x", "k")))
    )
    assert stranger.categorize(["k1", "k2"]).category == ["x k", "x k"]
    assert len(stranger.problems) == 1
    assert stranger.problems[0].startswith("theirs: ")
    assert message in stranger.problems[0]


def test_a_function_may_have_the_name_of_a_plugin() -> None:
    def py(table: pd.DataFrame) -> list[None]:
        return [None] * len(table)

    categorizer = KernelCategorizer.create(
        categorizer=py, registry=registry(py=python_plugin(["plugin"]))
    )
    with pytest.warns(
        UserWarning, match="categorizer py: has no category for any of 1 kernels"
    ):
        assert categorizer.categorize(["k"]).category == ["plugin"]


def test_the_error_for_a_function_of_one_name_shows_how_to_write_it() -> None:
    def lower(name: Any) -> Any:
        return "GEMM" if "gemm" in name.lower() else None

    def contains(name: Any) -> Any:
        return "GEMM" if "gemm" in name else None

    hint = r"give a function f of one name as lambda table: \[f\(name\) for name in"
    with pytest.raises(UsageError, match=hint):
        KernelCategorizer.create(categorizer=contains, registry=registry()).categorize(
            ["gemm"]
        )
    with pytest.raises(AttributeError) as caught:
        KernelCategorizer.create(categorizer=lower, registry=registry()).categorize(
            ["gemm"]
        )
    (note,) = caught.value.__notes__
    assert re.search(hint, note)
    categorizer = KernelCategorizer.create(
        categorizer=lambda table: [lower(name) for name in table.kernel_name],
        registry=registry(),
    )
    assert categorizer.categorize(["a_gemm"]).category == ["GEMM"]


def test_an_error_in_a_function_of_the_caller_is_raised() -> None:
    def mine(table: pd.DataFrame) -> list[str]:
        return list(table["misspelt"])

    with pytest.raises(KeyError, match="misspelt"):
        KernelCategorizer.create(categorizer=mine, registry=registry()).categorize(
            ["k"]
        )


@pytest.mark.usefixtures("impatient")
def test_a_pack_of_a_plugin_with_a_hanging_pattern_is_left_out() -> None:
    categorizer = KernelCategorizer.create(
        registry=registry(
            bad=packs_plugin(pack("hang", "(a|a|aa)+$")),
            good=packs_plugin(pack("x", "a")),
        )
    )
    assert categorizer.categorize(["a" * 60 + "!", "a"]).category == ["x a", "x a"]
    assert len(categorizer.problems) == 1
    assert "pack 'hang': rule 1: pattern" in categorizer.problems[0]
    assert categorizer.categorize(["a"]).category == ["x a"]


@pytest.mark.usefixtures("impatient")
def test_a_hanging_pattern_of_the_user_is_an_error(tmp_path: Path) -> None:
    path = write_pack(tmp_path, "mine", ("Bad", "(a|a|aa)+$"))
    with pytest.raises(
        RuleError, match=r"mine\.toml: rule 1: pattern: .*takes too long"
    ):
        KernelCategorizer.create(rules=[path], registry=registry()).categorize(
            ["a" * 60 + "!"]
        )


def test_plugins_are_chosen_by_name() -> None:
    plugins = registry(
        py=python_plugin(["py"], selectable=True),
        several=packs_plugin(
            pack("s:1", "k", selectable=True), pack("s:2", "k", selectable=True)
        ),
        plain=packs_plugin(pack("zz", "k"), pack("aa", "k")),
        broken=ImportError("no module named nothing"),
    )

    def chosen(name: str) -> list[str]:
        return (
            KernelCategorizer.create(categorizer=name, registry=plugins)
            .categorize(["k"])
            .category
        )

    assert chosen("py") == ["py"]
    assert chosen("s:2") == ["s:2 k"]
    assert chosen("plain") == ["aa k"]
    assert chosen("zz") == ["zz k"]
    with pytest.raises(UsageError, match=r"collection; choose one of: s:1, s:2"):
        chosen("several")
    with pytest.raises(
        UsageError, match="'broken' failed: ImportError: no module named nothing"
    ):
        chosen("broken")
    with pytest.raises(
        UsageError, match="there is no categorizer called 'nobody'; known: "
    ):
        chosen("nobody")
    assert KernelCategorizer.create(registry=plugins).categorize(["k"]).category == [
        "aa k"
    ]


def test_single_values_in_place_of_lists_are_refused() -> None:
    categorizer = KernelCategorizer.create(registry=registry())
    with pytest.raises(UsageError, match="names: expected a list"):
        categorizer.categorize("kernel")
    with pytest.raises(UsageError, match=r"as many cpu_ops as names \(1\), got 2"):
        categorizer.categorize(["a"], ["b", "c"])
    with pytest.raises(UsageError, match="rules: expected a list"):
        KernelCategorizer.create(rules="a.toml", registry=registry())
    with pytest.raises(
        UsageError, match="expected a name, a map or a function, got int"
    ):
        KernelCategorizer.create(categorizer=5, registry=registry())  # type: ignore[arg-type]


def test_an_empty_list_of_kernels() -> None:
    categorizer = KernelCategorizer.create(
        categorizer=lambda _: ["a"], registry=registry()
    )
    assert len(categorizer.categorize([])) == 0
    assert categorizer.categorize([]).to_frame().empty


def test_a_categorizer_can_be_sent_to_another_process(tmp_path: Path) -> None:
    path = write_pack(tmp_path, "mine", ("Mine", "k"))
    categorizer = KernelCategorizer.create(rules=[path], registry=registry())
    categorizer.categorize(["k"])
    copy = pickle.loads(pickle.dumps(categorizer))  # noqa: S301
    assert copy.categorize(["k", "z"]).category == ["Mine", "Uncategorized"]


def test_the_public_function_takes_every_kind_of_categorizer() -> None:
    names = pd.Series(
        ["my_kernel", "nvjet_tst_320x128_64x3_1x2_h_bz_coopB_TNT"], index=[7, 3]
    )
    for categorizer in (
        {"my_": "mine", "nvjet": "GEMM"},
        lambda table: [
            "mine" if name.startswith("my") else None for name in table["kernel_name"]
        ],
        KernelCategorizer.create(categorizer={"my_": "mine", "nvjet": "GEMM"}),
    ):
        answer = categorize_kernels(names, categorizer=categorizer)
        assert answer["kernel_category"].tolist() == ["mine", "GEMM"]
        assert answer.index.tolist() == [0, 1]


def test_the_specified_kernels_keep_their_categories() -> None:
    answer = categorize_kernels(
        [
            "kernel_mha",
            "void tensorrt_llm::common::scaleMatrix<...>",
            "nvjet_tst_320x128_64x3_1x2_h_bz_coopB_TNT",
        ]
    )
    assert answer["kernel_category"].tolist() == [
        "Flash Attention Forward",
        "Memory Ops",
        "GEMM",
    ]
