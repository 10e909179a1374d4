"""Adding a command is one file and one name, as the page on the architecture shows it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.docs_helpers import documented_addition
from tests.support.make_trace import TraceMaker
from tracelens_ext.cli import commands, run


def test_adding_a_command_is_one_file_and_one_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, new, before, after = documented_addition("cli/commands", "__init__.py")
    command = Path(name).stem
    (tmp_path / name).write_text(new)
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    source = Path(commands.__file__).read_text(encoding="utf-8")
    assert source.count(before) == 1
    assert after == before.replace(
        '    "kernels",\n', f'    "kernels",\n    "{command}",\n'
    )
    monkeypatch.setattr(commands, "MODULES", [*commands.MODULES, command])

    assert run(["--help"]) == 0
    assert "Show the GPU events that take longest." in capsys.readouterr().out
    maker = TraceMaker()
    for number, us in enumerate((10, 30, 20)):
        maker.launched(
            f"kernel{us}", 100 * number + 20, us, correlation=number, at=100 * number
        )
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(maker.document()))
    assert run([command, str(trace), "--top", "2", "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert out.index("kernel30") < out.index("kernel20")
    assert "kernel10" not in out
    monkeypatch.delitem(sys.modules, f"{commands.__name__}.{command}")
    monkeypatch.delattr(commands, command)


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
        "tracelens-ext: standard output is closed; open it, or redirect it to "
        "/dev/null\n"
    )
