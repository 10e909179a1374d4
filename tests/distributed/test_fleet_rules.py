"""The rules that a fleet sends to its workers, and the key of its options."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING

from tracelens_ext.categorize import KernelCategorizer
from tracelens_ext.distributed.job_options import JobOptions, portable_rules

if TYPE_CHECKING:
    from pathlib import Path


def test_only_maps_are_taken_out_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "def.json").write_text(
        json.dumps({"DEF": {"ABC": {"a": "b"}}}), encoding="utf-8"
    )
    (tmp_path / "trace.json").write_text('{"traceEvents": []}', encoding="utf-8")
    (pack,) = portable_rules((), "DEF:ABC", [tmp_path])["maps"]
    assert pack.name == "DEF:ABC"


def test_a_worker_without_the_files_categorizes_in_the_same_way(tmp_path: Path) -> None:
    rules = tmp_path / "mine.toml"
    substring_map = tmp_path / "map.json"
    rules.write_text(
        '[[rule]]\ncategory = "Mine"\npattern = "^my_"\n', encoding="utf-8"
    )
    substring_map.write_text('{"their_": "Theirs"}', encoding="utf-8")
    sent = pickle.dumps(portable_rules([rules], substring_map, ()))
    rules.unlink()
    substring_map.unlink()
    categorizer = KernelCategorizer.create(**pickle.loads(sent))  # noqa: S301  # our own
    decisions = categorizer.categorize(["my_kernel", "their_one"])
    assert decisions.category == ["Mine", "Theirs"]


def test_the_key_depends_on_the_contents_of_rules_and_not_on_their_folder(
    tmp_path: Path,
) -> None:
    keys = []
    for name, category in (("a", "Mine"), ("b", "Mine"), ("c", "Yours")):
        path = tmp_path / name / "r.toml"
        path.parent.mkdir()
        path.write_text(f'[[rule]]\ncategory = "{category}"\npattern = "^my_"\n')
        keys.append(JobOptions(rules=portable_rules([path], None, ())).key)
    assert keys[0] == keys[1] != keys[2]


def test_the_key_depends_on_disabled_packs() -> None:
    all_packs = portable_rules((), None, ())
    without_gemm = portable_rules((), None, (), ["gemm"])
    assert without_gemm["disabled_packs"] == ["gemm"]
    assert JobOptions(rules=without_gemm).key != JobOptions(rules=all_packs).key
