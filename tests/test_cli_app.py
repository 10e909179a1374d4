"""Adding a command is one file and one name, as the page on the architecture shows it."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from categorize_helpers import FakeEntryPoint, plugin
from docs_helpers import documented_addition
from make_trace import TraceMaker

import tracelens_ext.cli
from tracelens_ext.cli import commands as commands_module
from tracelens_ext.cli import run
from tracelens_ext.hooks import Command, PluginRegistry, hookimpl


def test_adding_a_command_is_one_file_and_one_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, new, before, after = documented_addition("cli", "commands.py")
    (tmp_path / name).write_text(new)
    monkeypatch.setattr(tracelens_ext.cli, "__path__", [*tracelens_ext.cli.__path__, str(tmp_path)])
    source = inspect.getsource(commands_module)
    assert source.count(before) == 1
    changed: dict[str, Any] = {}
    exec(source.replace(before, after), changed)  # noqa: S102  # a file of this project
    monkeypatch.setattr(commands_module, "_COMMANDS", changed["_COMMANDS"])

    assert run(["--help"]) == 0
    assert "Show the GPU events that take longest." in capsys.readouterr().out
    maker = TraceMaker()
    for number, us in enumerate((10, 30, 20)):
        maker.launched(f"kernel{us}", 100 * number + 20, us, correlation=number, at=100 * number)
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(maker.document()))
    command = Path(name).stem
    assert run([command, str(trace), "--top", "2", "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert out.index("kernel30") < out.index("kernel20")
    assert "kernel10" not in out
    monkeypatch.delitem(sys.modules, f"tracelens_ext.cli.{command}")
    monkeypatch.delattr(tracelens_ext.cli, command)


def greet(name: str, loud: bool = False) -> None:
    """Greet somebody."""
    typer.echo(f"HELLO {name}" if loud else f"hello {name}")


def test_a_plugin_adds_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @hookimpl
    def tracelens_commands() -> list[object]:
        greeting = f"{__name__}:greet"
        return [
            Command("greet", "Greet somebody.", greeting, "Extend", reads_traces=False),
            Command("absent", "Is not there.", "no_such_module:absent", "Extend"),
            Command("gaps", "Takes a name.", greeting),
            Command("misplaced", "Is of no group.", greeting, "Elsewhere"),
        ]

    registry = PluginRegistry(
        [
            FakeEntryPoint("commands", commands_module, own=True),
            FakeEntryPoint("theirs", plugin(tracelens_commands=tracelens_commands)),
        ]
    )
    monkeypatch.setattr("tracelens_ext.cli.app.default_registry", lambda: registry)
    assert run(["--help"]) == 0
    assert "  greet       Greet somebody.\n" in capsys.readouterr().out
    assert run(["greet", "Ann", "--loud"]) == 0
    assert capsys.readouterr().out == "HELLO Ann\n"
    assert run(["absent"]) == 1
    assert "command 'absent': ModuleNotFoundError" in capsys.readouterr().err
    assert sorted(set(registry.problems)) == [
        "theirs: command 'gaps': there is one already",
        "theirs: command 'misplaced': the group is one of Look, Explain, Compare, Extend",
    ]


@pytest.mark.parametrize("columns", ["0", "19", "-3"])
def test_a_width_that_shows_nothing_is_no_width(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert run(["formats"]) == 0
    usual = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", columns)
    assert run(["formats"]) == 0
    assert capsys.readouterr().out == usual


def test_a_closed_standard_output_is_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout", None)
    assert run(["formats"]) == 1
    assert capsys.readouterr().err == (
        "tracelens-ext: standard output is closed; open it, or send it to /dev/null\n"
    )
