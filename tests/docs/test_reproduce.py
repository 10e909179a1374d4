"""The commands of docs/how-to/reproduce.md run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.docs_helpers import commands_of, page_text
from tests.support.simulated_job import write_demo_trace
from tracelens_ext.cli import run

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMMANDS = commands_of(page_text("reproduce.md"))


@pytest.fixture
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    write_demo_trace(tmp_path / "trace.json.gz", steps=1)
    write_demo_trace(tmp_path / "other.json.gz", steps=2)
    yield


@pytest.mark.usefixtures("_folder")
def test_the_commands_run_one_after_the_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert len(_COMMANDS) == 6
    for command in _COMMANDS:
        arguments, _, redirected = command.partition(" > ")
        assert run(shlex.split(arguments)) == 0, command
        printed = capsys.readouterr().out
        if redirected:
            Path(redirected).write_text(printed, encoding="utf-8")
        else:
            compile(Path("bench.py").read_text(encoding="utf-8"), "bench.py", "exec")
