"""What a command imports: its own file, and of the rest only what it uses."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import typer.main

from tests.support.comparison_helpers import training, write
from tracelens_ext.cli import commands, run
from tracelens_ext.cli.app import app, offered_commands

if TYPE_CHECKING:
    from pathlib import Path

#: Runs a command with every trace worth keeping, and says which modules were imported.
PROGRAM = """
import sys
from tracelens_ext.cli import run

if "--help" not in sys.argv:
    from tracelens_ext.readers.cache import store as cache

    cache.WORTH_KEEPING = 0
code = run(sys.argv[1:])
print(*sorted(sys.modules), file=sys.stderr)
sys.exit(code)
"""


def imported(*arguments: str, folder: Path) -> set[str]:
    """The modules that a command imports."""
    environment = os.environ | {"TRACELENS_EXT_CACHE_DIR": str(folder / "cache")}
    environment.pop("TRACELENS_EXT_NO_CACHE", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


#: What takes long to import, and belongs to a command that runs.
SLOW = (
    "numpy",
    "pandas",
    "rich",
    "regex",
    "tracelens_ext.analyzer",
    "tracelens_ext.analysis",
)


@pytest.mark.process
@pytest.mark.parametrize(
    "arguments", [["--help"], ["report", "--help"], ["gaps", "--help"]]
)
def test_help_imports_nothing_slow(arguments: list[str], tmp_path: Path) -> None:
    modules = imported(*arguments, folder=tmp_path)
    assert [name for name in SLOW if name in modules] == []


@pytest.mark.process
def test_a_trace_out_of_the_cache_needs_no_reader(tmp_path: Path) -> None:
    write(tmp_path / "a.json", training(3))
    command = ("report", "a.json", "--quiet", "--output", "a.xlsx")
    readers = {f"tracelens_ext.readers.{n}" for n in ("formats", "kineto.reader")}
    first = imported(*command, folder=tmp_path)
    assert readers <= first
    assert "tracelens_ext.readers.nsys.sqlite" not in first, (
        "a reader of another format"
    )
    again = imported(*command, folder=tmp_path)
    assert not readers & again
    assert "tracelens_ext.compare.comparison" not in again
    assert "urllib.request" not in again


def test_every_command_has_its_file_and_its_line_of_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out.partition("Options of every")[0]
    lines = shown[shown.index("Inspect:") :].splitlines()
    groups = [line for line in lines if line[:1].isalpha()]
    assert groups == ["Inspect:", "Diagnose:", "Compare:", "Manage:"]
    listed = [line.split()[0] for line in lines if line.startswith("  ")]
    assert all(
        len(line) < 80 and line.endswith(".") for line in lines if line.startswith("  ")
    )
    group: Any = typer.main.get_command(app)
    assert sorted(listed) == sorted(group.commands)
    assert len(listed) == len(group.commands) >= 14
    for name, command in offered_commands().items():
        stem = name.replace("-", "_")
        assert f"{commands.__name__}.{stem}" in sys.modules
        assert command is sys.modules[f"{commands.__name__}.{stem}"].COMMAND


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["reprot"], "Did you mean 'report'"),
        (["app"], ""),  # a file beside those of the commands
        (["nsys", "stat"], "Did you mean 'stats'?"),
    ],
)
def test_a_command_that_does_not_exist(
    wrong: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(wrong) == 2
    shown = capsys.readouterr().err
    assert f"No such command '{wrong[-1]}'" in shown
    # not in old releases of typer
    if hasattr(typer.main.get_command(app), "suggest_commands"):
        assert said in shown
