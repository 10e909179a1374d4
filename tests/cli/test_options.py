"""Groups of options: what stands for them on the command line, and what a command gets."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import pytest
import typer
from typer.main import get_command

from tracelens_ext.cli import run
from tracelens_ext.cli.app import build_command, offered_commands
from tracelens_ext.cli.options import AnalysisOptions, ReadingFlags, with_option_groups
from tracelens_ext.cli.screen import Part, folded, show, trace_report
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.settings import ReadingOptions


@dataclass(frozen=True)
class Inner:
    depth: Annotated[
        int, typer.Option("--depth", "-d", min=1, max=9, help="How deep.")
    ] = 3
    not_an_option: int = 7


@dataclass(frozen=True)
class Outer:
    inner: Inner
    host: Annotated[bool, typer.Option("--host/--no-host", help="With the host.")] = (
        True
    )


def made(command: Any) -> Any:
    app = typer.Typer()
    app.command()(with_option_groups(command))
    return get_command(app)


def params(command: Any) -> dict[str, Any]:
    return {parameter.name: parameter for parameter in command.params}


def test_the_fields_of_a_dataclass_and_of_those_within_are_options() -> None:
    calls: list[object] = []

    def command(trace: Path, *, outer: Outer, force: bool = False) -> None:
        """Do it."""
        calls.append((trace, outer, force))

    click = made(command)
    options = params(click)
    assert click.help == "Do it."
    assert list(options)[:4] == ["trace", "depth", "host", "force"]
    assert options["depth"].opts == ["--depth", "-d"]
    assert options["host"].secondary_opts == ["--no-host"]
    with pytest.raises(Exception, match=r"range|less than or equal"):
        click(["t", "-d", "10"], standalone_mode=False)
    click(["t", "-d", "4", "--no-host"], standalone_mode=False)
    assert calls == [(Path("t"), Outer(Inner(4), host=False), False)]


def test_a_plugins_command_gets_the_options_about_reading() -> None:
    calls: list[ReadingOptions] = []

    def command(*, reading: ReadingOptions) -> None:
        calls.append(reading)

    made(command)(["--jobs", "3", "--no-cache"], standalone_mode=False)
    assert calls == [ReadingFlags(jobs=3, no_cache=True)]


def test_analysis_options_bring_rules_captures_and_reading() -> None:
    def command(*, analysis: AnalysisOptions) -> None:
        pass

    options = params(made(command))
    assert {"rules", "categorizer", "capture", "kernel_annotations", "notes"} <= set(
        options
    )
    assert "kernel_categories" not in options
    assert options["notes"].help == "Print all notes instead of the first five lines."


@pytest.mark.parametrize("name", ["kernels", "rules"])
def test_a_command_looked_at_by_itself_still_has_both_help_options(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands are kept, and each keeps the help option that it was first asked for."""
    build_command.cache_clear()
    command = build_command(offered_commands()[name])
    assert command.get_params(typer.Context(command))
    assert run([name, "-h"]) == 0
    assert "Examples:" in capsys.readouterr().out


def test_every_option_of_a_report_is_one_of_the_command() -> None:
    options = params(build_command(offered_commands()["report"]))
    for field in fields(ReportOptions):
        assert options[field.name].default == field.default
        assert field.metadata["meaning"] in options[field.name].help


def test_an_option_about_reading_has_the_default_of_the_library() -> None:
    flags = {field.name: field.default for field in fields(ReadingFlags)}
    for field in fields(ReadingOptions):
        assert flags[field.name] == field.default


def test_no_number_is_parted_from_its_unit() -> None:
    text = "word " * 7 + "it is 12 ms and 34 % of 5.6 GB"
    for width in range(40, 60):
        lines = folded(text, width)
        assert " ".join(lines) == text.strip()
        assert not any(line.startswith(("ms", "%", "GB")) for line in lines)


def test_a_report_is_shown_or_printed_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    frame = pd.DataFrame({"name": ["a", "b"], "count": [1, 2]})
    report = trace_report("T", "t.json", {"x": frame}, ["A note."])
    blocks = [
        "one two " * 8,
        ["as " * 20],
        Part("X", frame, ["count"], 1),
        Part("Empty", frame[:0]),
    ]
    show(report, blocks)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:2])) <= 40
    assert "as " * 20 in lines
    at = lines.index("X")
    assert lines[at - 1] == ""
    assert [line.strip() for line in lines[at + 1 : at + 4 : 2]] == ["count", "1"]
    assert "1 more row not shown" in lines
    assert "Empty" not in lines
    assert lines[-2:] == ["", "A note."]
    show(report, blocks, json=True)
    assert '"name":"b"' in capsys.readouterr().out


@pytest.mark.process
@pytest.mark.parametrize(
    ("command", "text"),
    [
        ([], "Show why the GPU was idle."),
        (["report"], "Write the sheets about idle time and its causes."),
        (["kernels"], "Only kernels of this category, such as GEMM."),
    ],
    ids=["program", "report", "kernels"],
)
def test_help_needs_no_docstrings(command: list[str], text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-OO", "-m", "tracelens_ext", *command, "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert text in " ".join(done.stdout.split())
