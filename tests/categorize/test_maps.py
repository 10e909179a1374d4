"""Engine/model maps and substring maps: the spellings people have."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.categorize_helpers import registry
from tracelens_ext.categorize import KernelCategorizer, load_maps
from tracelens_ext.categorize.maps import (
    load_map_file,
    pack_from_mapping,
    substring_pack,
)
from tracelens_ext.errors import RuleError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

DEF_MAP = {
    "DEF": {"ABC": {"H|I": "gemm", "J|K": "attn", "CUDA mem": "memops", ".*": "misc"}}
}


def categories(categorizer: KernelCategorizer, *names: str) -> list[str]:
    return categorizer.categorize(names).category


def test_substring_map_matches_in_lower_case_the_first_key_first() -> None:
    asked = KernelCategorizer.create(
        categorizer={"xmma_GEMM": "gemm", "fmha_": "fmha", "Fusion": "fusion"},
        registry=registry(),
    )
    names = [
        "sm80_XMMA_gemm_f32",
        "fusion_fmha_1",
        "fusion_2",
        "ncclDevKernel_x",
        "RcclNCCL",
        "zzz",
    ]
    decisions = asked.categorize(names)
    assert decisions.category == ["gemm", "fmha", "fusion", "nccl", "nccl", "others"]
    assert decisions.known == [True, True, True, True, True, False]


def test_nccl_takes_precedence_over_every_key() -> None:
    asked = KernelCategorizer.create(
        categorizer={"reduce": "reduce"}, registry=registry()
    )
    assert categories(asked, "ncclDevKernel_AllReduce", "reduce_kernel") == [
        "nccl",
        "reduce",
    ]


def test_keys_are_texts_and_not_patterns() -> None:
    asked = KernelCategorizer.create(categorizer={"a.b(": "dot"}, registry=registry())
    assert categories(asked, "xa.b(y", "xa_b(y") == ["dot", "others"]


@pytest.mark.parametrize(
    "keys",
    [("ForRangeElemwise", "Elemwise"), ("elemwise", "FORELEMWISE"), ("gemm", "GEMM")],
)
def test_keys_that_contain_one_another_are_refused_with_both_names(
    keys: tuple[str, str],
) -> None:
    with pytest.raises(RuleError) as caught:
        substring_pack(dict.fromkeys(keys, "elementwise"))
    for key in keys:
        assert repr(key.lower()) in str(caught.value)


@pytest.mark.parametrize("bad", [{"a": 1}, {"": "x"}, {"a": ""}, {"a": None}, {1: "a"}])
def test_keys_and_classes_must_be_texts(bad: dict[str, str]) -> None:
    with pytest.raises(RuleError, match="both strings"):
        pack_from_mapping(bad)


def test_an_empty_map_is_refused() -> None:
    with pytest.raises(RuleError, match="is empty"):
        pack_from_mapping({})


def test_engine_map_of_one_model_as_a_mapping() -> None:
    asked = KernelCategorizer.create(categorizer=DEF_MAP, registry=registry())
    decisions = asked.categorize(["xHx", "xIKx", "xKx", "[CUDA memset]", "other"])
    assert decisions.category == ["gemm", "gemm", "attn", "memops", "misc"]
    assert decisions.known == [True, True, True, True, False]


def test_engine_map_of_several_models_must_be_narrowed_down() -> None:
    with pytest.raises(RuleError, match="one engine and model, got DEF:ABC, DEF:XYZ"):
        pack_from_mapping({"DEF": {"ABC": {"a": "b"}, "XYZ": {"a": "b"}}})


def test_maps_are_picked_up_by_being_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "def.json").write_text(json.dumps(DEF_MAP), encoding="utf-8")
    (tmp_path / "two.json").write_text(
        json.dumps({"GHI": {"m": {"x": "y"}, "n": {"x": "z"}}}), encoding="utf-8"
    )
    (tmp_path / "notes.txt").write_text("not a map", encoding="utf-8")
    assert [pack.name for pack in load_maps(tmp_path)] == ["DEF:ABC", "GHI:m", "GHI:n"]
    asked = KernelCategorizer.create(
        categorizer="GHI:n", maps=[tmp_path], registry=registry()
    )
    assert categories(asked, "x", "y") == ["z", "(no pattern)"]


def test_kernels_without_a_pattern_in_an_engine_map_have_one_category() -> None:
    asked = KernelCategorizer.create(categorizer={"DEF": {"ABC": {"nvjet": "b"}}})
    names = [
        "nvjet_tst_64x8",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(int)",
        "Memset (Device)",
    ]
    decisions = asked.categorize(names)
    assert decisions.category == ["b", "(no pattern)", "(no pattern)"]
    assert decisions.known == [True, False, False]


def test_other_json_in_a_folder_of_maps_is_ignored(tmp_path: Path) -> None:
    others = (
        '{"name": "x", "scripts": {"a": "b"}}',
        "[1",
        '{"a": {"b": {"(": "c"}}}',
        "[]",
    )
    for number, text in enumerate(others):
        (tmp_path / f"{number}.json").write_text(text, encoding="utf-8")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "def.json").write_text(json.dumps(DEF_MAP), encoding="utf-8")
    maps = [tmp_path]
    asked = KernelCategorizer.create(
        categorizer="DEF:ABC", maps=maps, registry=registry()
    )
    assert categories(asked, "H") == ["gemm"]
    with pytest.raises(
        UsageError, match=r"ignored: .*0\.json: name: expected .* and 1 more"
    ):
        KernelCategorizer.create(categorizer="DEF:XYZ", maps=maps, registry=registry())


def test_keys_of_a_class_map_are_numbered_as_written() -> None:
    asked = KernelCategorizer.create(
        categorizer={"a": "x", "b": "y"}, registry=registry()
    )
    rules = asked.categorize(["a", "b", "ncclKernel", "zzz"]).rule
    assert rules == [
        "categorizer:1",
        "categorizer:2",
        "categorizer:nccl",
        "categorizer:others",
    ]


def test_maps_in_the_users_configuration_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platformdirs.user_config_path", lambda _name: tmp_path)
    (tmp_path / "def.json").write_text(json.dumps(DEF_MAP), encoding="utf-8")
    (tmp_path / "zbroken.json").write_text("{", encoding="utf-8")
    asked = KernelCategorizer.create(categorizer="DEF:ABC", registry=registry())
    assert categories(asked, "H") == ["gemm"]
    assert len(asked.problems) == 1
    assert asked.problems[0].startswith("configuration folder: ")
    assert "zbroken.json: not valid JSON" in asked.problems[0]


def test_a_given_folder_takes_precedence_over_the_configuration_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "platformdirs.user_config_path", lambda _name: tmp_path / "config"
    )
    for folder, label in (("config", "theirs"), ("named", "mine")):
        (tmp_path / folder).mkdir()
        text = json.dumps({"E": {"M": {"a": label}}})
        (tmp_path / folder / "map.json").write_text(text, encoding="utf-8")
    asked = KernelCategorizer.create(
        categorizer="E:M", maps=[tmp_path / "named"], registry=registry()
    )
    assert categories(asked, "a") == ["mine"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "expected {"),
        ('{"E": []}', "E: expected {"),
        ('{"E": {"M": "x"}}', "E:M: expected {"),
        (
            '{"E": {"M": {"(": "x"}}}',
            "E:M: rule 1: pattern: expected a regular expression",
        ),
        (
            '{"E": {"M": {"a": 5}}}',
            "E:M: rule 1: category: expected a string, got a number (5)",
        ),
    ],
)
def test_broken_maps_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RuleError) as caught:
        load_maps(tmp_path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="no such folder"):
        load_maps(tmp_path / "absent")


def test_a_map_file_can_be_chosen_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "classes.json"
    path.write_text(json.dumps({"xmma_gemm": "gemm"}), encoding="utf-8")
    asked = KernelCategorizer.create(categorizer=path, registry=registry())
    assert categories(asked, "xmma_gemm_f16", "x") == ["gemm", "others"]
    asked = KernelCategorizer.create(categorizer=str(path), registry=registry())
    assert asked.categorize(["xmma_gemm_f16"]).pack == ["classes.json"]


def test_an_unknown_name_lists_those_known(tmp_path: Path) -> None:
    (tmp_path / "def.json").write_text(json.dumps(DEF_MAP), encoding="utf-8")
    with pytest.raises(UsageError, match="did you mean 'DEF:ABC'") as caught:
        KernelCategorizer.create(
            categorizer="DEF:AB", maps=[tmp_path], registry=registry()
        )
    assert caught.value.exit_code == 2


def test_a_key_that_occurs_twice_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_text('{"vllm": {"llama": {"gemm": "a", "attn": "b", "gemm": "c"}}}')
    with pytest.raises(RuleError, match=r"map\.json: the key 'gemm' occurs twice"):
        load_maps(path)
    with pytest.raises(
        RuleError,
        match="the key 'gemm' occurs twice; upper and lower case do not matter",
    ):
        substring_pack({"GEMM": "a", "gemm": "b"})


def test_maps_are_bounded(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="at most 5,000 keys, got 5,001"):
        substring_pack({f"key{n:06}": "c" for n in range(5_001)})
    path = tmp_path / "map.json"
    path.write_text('{"e": {"m": {"a": ' + "1" * 5000 + "}}}")
    with pytest.raises(RuleError, match="contains a number that is too long"):
        load_map_file(path)
