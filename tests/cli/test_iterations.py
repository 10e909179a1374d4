"""`tracelens-ext iterations`: what it prints, and what it says when there are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.comparison_helpers import training, write
from tracelens_ext.cli import run


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setenv("TRACELENS_EXT_CACHE_DIR", str(tmp_path / "cache"))
    maker = training(6)
    slow = next(
        e for e in maker.events if e["name"].startswith("sm90") and e["ts"] > 1400
    )
    slow["dur"] += 25
    maker.annotation("evaluate", 2500, 100)
    write(tmp_path / "a.json", maker)


def iterations(*arguments: object) -> int:
    return run(["iterations", *map(str, arguments)])


def test_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert iterations("a.json") == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    steps = [line.split() for line in lines if line.startswith("ProfilerStep#")]
    assert [step[0] for step in steps] == [f"ProfilerStep#{n}" for n in range(5, 11)]
    assert "Mean and spread of 6 complete iterations, ms" in lines
    at = lines.index(
        "Outliers (more than 3 median absolute deviations and 5% from the median):"
    )
    first, second = lines[at + 1 :]
    assert first.split("; ") == [
        "  ProfilerStep#7: computation_time 0.0650 ms (median 0.0400 ms)",
        "exposed_comm_time 0.0050 ms (median 0.0300 ms);",
    ]
    assert second == "    GEMM_time 0.0650 ms (median 0.0400 ms)"


def test_the_odd_ones_fit_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert iterations("a.json") == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index(
        "Outliers (more than 3 median absolute deviations and 5% from the median):"
    )
    assert lines[at + 1 :] == [
        "  ProfilerStep#7: computation_time 0.0650 ms (median 0.0400 ms);",
        "    exposed_comm_time 0.0050 ms (median 0.0300 ms);",
        "    GEMM_time 0.0650 ms (median 0.0400 ms)",
    ]


def test_a_difference_of_nanoseconds_is_not_odd(
    capsys: pytest.CaptureFixture[str],
) -> None:
    maker = training(6, gemm_us=4000)
    slow = next(
        e for e in maker.events if e["name"].startswith("sm90") and e["ts"] > 1400
    )
    slow["dur"] += 0.1
    write(Path("a.json"), maker)
    assert iterations("a.json") == 0
    assert "GEMM_time 4" not in capsys.readouterr().out


def test_rules_that_call_other_kernels_communication_are_told_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rules = Path("rules.toml")
    rules.write_text(
        '[[rule]]\ncategory = "Communication"\npattern = "^sm90"\n', encoding="utf-8"
    )
    built_in = "exposed_comm_time_ms uses the built-in rules"
    assert iterations("a.json") == 0
    assert built_in not in capsys.readouterr().out
    assert iterations("a.json", "--rules", rules, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    (note,) = document["notes"]
    assert note == (
        f"{built_in}, so that traces can be compared; Communication_time_ms uses the"
        " chosen rules, which classify other GPU events as communication (6 more)."
    )
    first = document["tables"]["iterations"][0]
    assert (first["exposed_comm_time_ms"], first["Communication_time_ms"]) == (
        0.03,
        0.07,
    )
    rules.write_text(
        '[[rule]]\ncategory = "Communication"\npattern = "^sm90"\n'
        '[[rule]]\ncategory = "Mine"\npattern = "nccl"\n',
        encoding="utf-8",
    )
    assert iterations("a.json", "--rules", rules) == 0
    assert "(6 more and 6 fewer)" in " ".join(capsys.readouterr().out.split())
    rules.write_text(
        '[[rule]]\ncategory = "Mine"\npattern = "^sm90"\n', encoding="utf-8"
    )
    assert iterations("a.json", "--rules", rules) == 0
    assert built_in not in capsys.readouterr().out, "the two agree"


def test_top_cuts_the_first_table_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert iterations("a.json", "--top", 2) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("ProfilerStep#")]) == 2
    assert "4 more rows not shown" in lines
    assert any(line.startswith("  ProfilerStep#7: ") for line in lines), (
        "the odd one is named"
    )


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert iterations("a.json", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    rows = document["tables"]["iterations"]
    assert [row["iteration"] for row in rows] == [
        f"ProfilerStep#{n}" for n in range(5, 11)
    ]
    assert [bool(row["odd"]) for row in rows] == [
        False,
        False,
        True,
        False,
        False,
        False,
    ]
    columns = [row["column"] for row in document["tables"]["iteration_statistics"]]
    assert columns[:8] == [
        "wall_time_ms",
        "busy_time_ms",
        "idle_time_ms",
        "launched_time_ms",
        "computation_time_ms",
        "exposed_comm_time_ms",
        "exposed_memcpy_time_ms",
        "kernels",
    ]
    assert "GEMM_time_ms" in columns


def test_annotation(capsys: pytest.CaptureFixture[str]) -> None:
    assert iterations("a.json", "--annotation", "#(5|6)$", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["tables"]["iterations"]
    assert [row["iteration"] for row in rows] == ["ProfilerStep#5", "ProfilerStep#6"]


def test_none_found_tells_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert iterations("a.json", "--annotation", "nothing") == 2
    assert "such as '^ProfilerStep#[0-9]+$'" in capsys.readouterr().err
    maker = training(2, annotated=False)
    write(Path("b.json"), maker)
    assert iterations("b.json") == 2
    assert "has no ProfilerStep#N, nor any other annotation" in capsys.readouterr().err
    maker.annotation("evaluate", 0, 10)
    write(Path("b.json"), maker)
    assert iterations("b.json") == 2
    launches_nothing = "nor any other annotation that launches GPU work"
    assert launches_nothing in capsys.readouterr().err
    maker.annotation("evaluate (all)", 0, 5000)
    write(Path("b.json"), maker)
    assert iterations("b.json") == 2
    assert (
        r"--annotation REGEX, such as '^evaluate \(all\)$'" in capsys.readouterr().err
    )
    assert iterations("b.json", "--annotation", r"^evaluate \(all\)$") == 0


def test_a_wrong_expression(capsys: pytest.CaptureFixture[str]) -> None:
    assert iterations("a.json", "--annotation", "(") == 2
    assert "is not a regular expression" in capsys.readouterr().err
