"""`tracelens-ext rules`, as a user types it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.categorize_helpers import write_pack
from tracelens_ext.categorize import KernelCategorizer, load_pack
from tracelens_ext.cli import run

if TYPE_CHECKING:
    from pathlib import Path

TRACE = {
    "traceEvents": [
        {
            "ph": "X",
            "cat": "kernel",
            "name": name,
            "pid": 0,
            "tid": 7,
            "ts": at * 99,
            "dur": dur,
            "args": {"device": 0, "stream": 7, "correlation": at},
        }
        for at, (name, dur) in enumerate(
            [
                ("kernel_mha", 50),
                ("zz_unheard_of_64x64", 20),
                ("zz_unheard_of_32x32", 10),
                ("qqq_mystery", 5),
            ],
            start=1,
        )
    ]
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_rules_list(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    write_pack(tmp_path, "mine", ("Mine", "zz"))
    assert run(["rules", "list", "--rules", "mine.toml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[0] == "rule"
    assert lines[2].split() == ["mine:1", "Mine", "rules", "zz"]
    assert len(lines) > 50
    assert run(["rules", "list", "--category", "FFT", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows
    assert {row["category"] for row in rows} == {"FFT"}
    assert run(["rules", "list", "--pack", "atention"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no rule belongs to 'atention'; similar: attention" in captured.err


def test_rules_check_of_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_pack(tmp_path, "mine", ("Mine", "zz"))
    assert run(["rules", "check", "mine.toml"]) == 0
    out = capsys.readouterr().out
    assert "warning: mine.toml: rule 1: has no examples" in out
    assert out.endswith("1 packs, 1 rules, 0 examples: 0 errors, 1 warnings\n")
    assert run(["rules", "check", "--strict", "mine.toml"]) == 1
    with (tmp_path / "mine.toml").open("a", encoding="utf-8") as file:
        file.write("examples = ['other']\n")
    assert run(["rules", "check", "mine.toml"]) == 1
    assert (
        "error: mine.toml: rule 1: does not match its example 'other'"
        in capsys.readouterr().out
    )


@pytest.mark.slow
def test_rules_check_of_everything_installed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["rules", "check"]) == 0
    assert " 0 errors, " in capsys.readouterr().out


def test_rules_suggest(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(json.dumps(TRACE), encoding="utf-8")
    assert run(["rules", "suggest", "trace.json", "-o", "draft.toml"]) == 0
    rules = load_pack("draft.toml").rules
    assert [(rule.category, rule.pattern) for rule in rules] == [
        ("TODO", "zz_unheard_of"),
        ("TODO", "qqq_mystery"),
    ]
    assert [e.name for e in rules[0].examples] == [
        "zz_unheard_of_64x64",
        "zz_unheard_of_32x32",
    ]
    assert run(["rules", "suggest", "trace.json", "-o", "draft.toml"]) == 1
    assert "draft.toml: already exists" in capsys.readouterr().err
    assert run(["rules", "check", "draft.toml"]) == 1, "nobody named a category yet"
    assert "its category is still TODO" in capsys.readouterr().out
    assert run(["rules", "suggest", "trace.json", "--rules", "draft.toml"]) == 0
    assert capsys.readouterr().out == "# Every kernel in trace.json has a category.\n"
    assert run(["rules", "suggest", "trace.json", "--top", "1"]) == 0
    assert capsys.readouterr().out.count("[[rule]]") == 1


def test_show_a_pack_to_start_from(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    names = ["Cijk_gemm_x", "nvjet_tst_64x8", "zzz"]
    for pack in ("gemm", "jax", "vllm:llama"):  # a file, a pack made in Python, a map
        assert run(["rules", "show", pack]) == 0
        copy = tmp_path / "copy.toml"
        copy.write_text(capsys.readouterr().out, encoding="utf-8")
        chosen = KernelCategorizer.create(categorizer=pack).categorize(names).category
        assert (
            KernelCategorizer.create(rules=[copy]).categorize(names).category == chosen
        )
    assert run(["rules", "show", "gem"]) == 2
    assert "there is no pack called 'gem'; similar: gemm" in capsys.readouterr().err
    assert run(["rules", "show", "jkl"]) == 2
    assert (
        "there is no pack called 'jkl'; known: attention, " in capsys.readouterr().err
    )


def test_a_pack_can_be_switched_off(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "nvjet_tst_64x8", "--disable-pack", "gemm"]) == 0
    assert capsys.readouterr().out.startswith("category  Uncategorized\n")
    assert run(["rules", "list", "--disable-pack", "gemm", "--pack", "gemm"]) == 2
    assert run(["explain", "x", "--disable-pack", "gem"]) == 2
    assert (
        "there is no pack called 'gem'; known: attention, " in capsys.readouterr().err
    )


def test_the_list_says_what_long_rules_are_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["rules", "list", "--pack", "convolution"]) == 0
    out = capsys.readouterr().out
    assert "MIOpen transposes, sets and casts" in out
    assert max(map(len, out.splitlines())) < 200
