"""Options of a command out of its docstring; what a report's blocks become on a terminal."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import pytest
import typer
from typer.main import get_command

from tracelens_ext.cli.options import AnalysisOptions, with_options
from tracelens_ext.cli.screen import Part, folded, show, trace_report


@dataclass(frozen=True)
class Inner:
    """Of another.

    Options:
        depth -d LEVELS 1..9: How deep.
    """

    depth: int = 3
    not_described: int = 7


@dataclass(frozen=True)
class Outer:
    """Some.

    Options:
        host: With the host.
    """

    inner: Inner
    host: bool = True


def made(command: Any) -> Any:
    app = typer.Typer()
    app.command()(with_options(command))
    return get_command(app)


def params(command: Any) -> dict[str, Any]:
    return {each.name: each for each in command.params}


def test_a_docstring_describes_arguments_options_and_nested_dataclasses() -> None:
    seen: list[object] = []

    def command(trace: Path, limit_us: float = 2, *, outer: Outer) -> None:
        """Do it.

        More of it.

        Operands:
            trace FILE: What is read,
                whole.

        Options:
            limit_us --limit -l US 0.5..: At least.  [default: much]
        """
        seen.append((trace, limit_us, outer))

    click = made(command)
    options = params(click)
    assert click.help == "Do it.\n\nMore of it."
    assert options["trace"].param_type_name == "argument"
    assert options["trace"].help == "What is read, whole."
    assert options["limit_us"].opts == ["--limit", "-l"]
    assert options["limit_us"].metavar == "US"
    assert not options["limit_us"].show_default
    for words in (["-d", "10"], ["-l", "0.4"]):
        with pytest.raises(Exception, match="than or equal to"):
            click(["t", *words], standalone_mode=False)
    assert options["host"].secondary_opts == ["--no-host"]
    assert "not_described" not in options
    click(["t", "-l", "3", "-d", "4", "--no-host"], standalone_mode=False)
    assert seen == [(Path("t"), 3.0, Outer(Inner(4), host=False))]


@pytest.mark.parametrize("indent", ["  ", "    ", "\t"])
def test_a_plugins_docstring_is_indented_as_its_author_likes(indent: str) -> None:
    def command(trace: Path, limit: int = 2) -> None:
        pass

    lines = ["Do it.", "", f"{indent}Options:", f"{indent * 2}limit -l 1..: Rows,"]
    lines += [f"{indent * 3}at most."]
    command.__doc__ = "\n".join(lines)
    limit = params(made(command))["limit"]
    assert (limit.opts, limit.help) == (["--limit", "-l"], "Rows, at most.")


def test_a_strangers_docstring_and_annotated_options_stay_theirs() -> None:
    def command(
        force: Annotated[bool, typer.Option("--force", help="Mine.")] = False,
        *,
        analysis: AnalysisOptions,
    ) -> None:
        """Do it.

        Options:
                no such thing is described here
        """

    options = params(made(command))
    assert options["force"].help == "Mine."
    assert options["notes"].help == "Print every note, not five lines of them."


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
def test_without_docstrings_there_is_a_message() -> None:
    line = "from tracelens_ext.cli import main; main(['formats'])"
    done = subprocess.run(
        [sys.executable, "-OO", "-c", line], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "without -OO" in done.stderr
    assert done.stderr.count("\n") == 1
