"""`tracelens-ext explain`, as a user types it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.categorize_helpers import write_pack
from tracelens_ext.cli import run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_explain(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_pack(tmp_path, "mine", ("Mine", "[z]z_"), ("Later", "zz_u"))
    assert run(["explain", "zz_u[b]{1}", "--rules", "mine.toml"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "category  Mine",
        "rule      mine:1  (mine.toml: rule 1)",
        "pattern   [z]z_",
        "",
        "also match, but have lower precedence:",
        "  Later  mine:2  (mine.toml: rule 2)",
    ]
    (tmp_path / "mine.toml").write_text(
        "[[rule]]\ncategory = 'Mine'\npattern = 'zz_'\ncpu_op = 'mm$'\n",
        encoding="utf-8",
    )
    assert (
        run(["explain", "zz_u", "--rules", "mine.toml", "--cpu-op", "zz::unheard"]) == 0
    )
    out = capsys.readouterr().out
    assert out.startswith("category  Uncategorized\nno rule matches")
    assert (
        "match the name, but require another launching operation:\n"
        "  Mine  mine:1  (mine.toml: rule 1), needs" in out
    )
    assert run(["explain", "zz_u", "--rules", "mine.toml", "--cpu-op", "aten::mm"]) == 0
    assert capsys.readouterr().out.startswith("category  Mine\n")


def test_explain_errors_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "k", "--rules", "absent.toml"]) == 1
    assert "absent.toml: no such file" in capsys.readouterr().err
    assert run(["explain", "k", "--categorizer", "nobody"]) == 2
    captured = capsys.readouterr()
    assert "there is no categorizer called 'nobody'; known: " in captured.err
    assert captured.err.count("\n") == 1


def test_explain_an_operation(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_pack(tmp_path, "mine", ("Mine", "^aten::mm$"), head='[pack]\nkind = "op"\n')
    assert run(["explain", "--op", "aten::mm", "--rules", "mine.toml"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("category  Mine\nrule      mine:1  (mine.toml: rule 1)\n")
    assert "  GEMM  operations:" in out
    assert run(["explain", "--op", "zz::unheard"]) == 0
    assert (
        "takes the category of the first kernel it launches" in capsys.readouterr().out
    )
    for wrong in (["x", "--op", "y"], [], ["--op", "y", "--cpu-op", "z"]):
        assert run(["explain", *wrong]) == 2
