"""`tracelens-ext fleet`: what it prints, what it exits with; the examples of its page run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.support.docs_helpers import code_blocks, page_text
from tests.support.fleet_helpers import needs_fleet, rank_trace, write_ranks
from tests.support.flight_maker import hang
from tests.support.merging import write_merged
from tracelens_ext.cli import run
from tracelens_ext.cli.commands.fleet import _slowest

PAGE = page_text("many-ranks.md")


@pytest.fixture
def _ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    write_ranks(tmp_path / "run", {0: 100, 1: 110, 2: 300})


def fleet(*arguments: object) -> int:
    return run(["fleet", *map(str, arguments), "--workers", "0"])


@pytest.mark.slow
@needs_fleet
@pytest.mark.usefixtures("_ranks")
def test_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet("run/*.json.gz", "-o", "out") == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert captured.err == ""
    assert lines[1:3] == [
        "3 traces analyzed",
        "GPU busy time: 0.960 ± 0.000 ms (3 GPUs)",
    ]
    assert max(map(len, lines)) <= 80
    at = lines.index("Slowest 3 of 3 ranks, by computation or by the waits they cause")
    slowest = next(line.split() for line in lines[at:] if re.match(r" +\d", line))
    assert slowest[:3] == ["2", "0.600", "76.5%"]
    assert any(line.startswith("Missing rank: rank 3: ") for line in lines)
    assert "Missing: no trace is of rank 3." in lines
    assert fleet("run/*.json.gz", "-o", "out") == 0
    assert "0 traces analyzed, 3 reused from an earlier run" in capsys.readouterr().out
    assert fleet("run", "-o", "out", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["facts"]["Traces analysed"] == 0
    assert [row["rank"] for row in document["tables"]["ranks"]] == [2, 1, 0]
    assert [row["rank"] for row in document["tables"]["failures"]] == [3]


@pytest.mark.slow
@needs_fleet
@pytest.mark.usefixtures("_ranks")
def test_missing_ranks_exit_1_with_strict(capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet("run", "-o", "out", "-q") == 0
    assert fleet("run", "-o", "out", "-q", "--strict") == 1
    assert capsys.readouterr().err == "tracelens-ext: 1 rank has no trace\n"
    write_ranks(Path("run"), {3: 100})
    assert fleet("run", "-o", "out", "-q", "--strict") == 0


@pytest.mark.slow
@needs_fleet
@pytest.mark.usefixtures("_ranks")
def test_a_trace_that_fails_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    whole = rank_trace(3)
    Path("run/rank9.json").write_text(whole[: whole.index("nccl")])
    assert fleet("run", "-o", "out", "-q") == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("tracelens-ext: 1 of 4 traces failed, listed in ")
    assert "failures.parquet: run/rank9.json: " in captured.err
    assert fleet("run", "-o", "out", "-q", "--allow-truncated") == 0, (
        "other options, so it is tried again"
    )


@needs_fleet
@pytest.mark.usefixtures("_ranks")
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run"], 2, "--out"),
        (["none*.json", "-o", "out"], 1, "none*.json: matches no trace"),
        (["run", "-o", ""], 2, "has an empty value"),
        (["run", "-o", "run"], 1, "contains files that tracelens-ext did not write"),
        (
            ["run", "-o", "out", "--categorizer", "nonsense"],
            2,
            "there is no categorizer called 'nonsense'",
        ),
        (["run", "-o", "nonsense://out"], 2, "nonsense://out: cannot be opened"),
    ],
)
def test_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    assert fleet(*arguments) == code
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert not Path("out").exists()


def test_without_the_extra_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib import util

    monkeypatch.setattr(util, "find_spec", lambda _: None)
    assert fleet("run", "-o", "out") == 2
    assert "pip install 'tracelens-ext[fleet]'" in capsys.readouterr().err


@pytest.mark.process
def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys; from tracelens_ext.cli import run; code = run(['fleet', '--help']);"
        "slow = {'pandas', 'numpy', 'dask', 'distributed', 'fsspec', 'rich'} & set(sys.modules);"
        "sys.exit(code or (f'imported: {slow}' if slow else 0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


# The page.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the traces that the page speaks of."""
    here = tmp_path_factory.mktemp("page")
    write_ranks(here / "run", {0: 100, 1: 110, 2: 300, 3: 105})
    write_merged(here / "run", "sglang", here / "merged.json.gz")
    hang().write(here / "dumps")
    return here


def blocks(language: str) -> list[str]:
    return code_blocks(PAGE, language)


@pytest.mark.process
@needs_fleet
def test_the_commands_of_the_page_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    commands = [line[2:] for block in blocks("console") for line in block.splitlines()]
    assert commands
    for command in commands:
        words = shlex.split(command, comments=True)
        assert words[0] == "tracelens-ext"
        assert words[1] in ("fleet", "ranks", "report", "kernels")
        assert run(words[1:]) == 0, command
        assert capsys.readouterr().err == "", command


@pytest.mark.process
@needs_fleet
def test_the_python_of_the_page_runs(folder: Path) -> None:
    for number, code in enumerate(blocks("python")):
        script = folder / f"script{number}.py"
        script.write_text(code, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-W", "error", script.name],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, ""), code


@needs_fleet
@pytest.mark.slow
def test_the_page_names_every_table_and_column(folder: Path) -> None:
    import pandas as pd

    from tracelens_ext.distributed import run_fleet

    run_fleet([folder / "run"], folder / "all", workers=0)
    text = re.sub(r"^```.*?^```$", "", PAGE, flags=re.DOTALL | re.MULTILINE)
    named = set(re.findall(r"`([^`\n]+)`", text))
    for path in (folder / "all").iterdir():
        if path.name.startswith("."):
            continue
        assert path.stem in named, path
        for column in (
            pd.read_parquet(path).columns if path.suffix == ".parquet" else ()
        ):
            assert column in named, (path.stem, column)


@needs_fleet
def test_a_rank_for_which_the_others_wait_is_the_slowest() -> None:
    """All compute for as long; each of the others waits 20 ms for rank 3."""
    ranks = pd.DataFrame({"rank": range(4), "device": 0, "computation_time_ms": 100.0})
    ranks["computation_over_mean_percent"] = ranks["busy_percent"] = 0.0
    origins = pd.DataFrame({"rank": [3, 0], "wait_ms": [60.0, 1.0]})
    shown = _slowest(ranks, origins, 4).frame
    assert shown["rank"].tolist() == [3, 0, 1, 2]
