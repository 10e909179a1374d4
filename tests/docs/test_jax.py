"""The examples of docs/how-to/jax.md do what they say; its table names what is read."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.support.docs_helpers import commands_of, page_text
from tests.support.xplane_maker import training
from tracelens_ext.cli import run
from tracelens_ext.readers.xplane.recorded_events import NUMBERS, TEXTS

_TEXT = page_text("jax.md")
_COMMANDS = commands_of(_TEXT)
_CONV = Path(__file__).resolve().parents[3] / "shared" / "jax" / "conv_mi300.xplane.pb"


def test_there_are_examples() -> None:
    assert len(_COMMANDS) == 7


@pytest.mark.parametrize("command", [c for c in _COMMANDS if "fleet" not in c])
def test_commands(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    maker = training()
    for step in range(2):
        maker.event("PjitFunction(step)", 10_000 * (step + 1) + 50, 3_000)
    Path("run.xplane.pb").write_bytes(maker.content)
    assert run(shlex.split(command)) == 0
    assert capsys.readouterr().out


@pytest.mark.real_data
def test_the_roofline_of_a_recorded_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    shutil.copy(_CONV, "run.xplane.pb")
    assert run(["roofline", "run.xplane.pb"]) == 0
    said = {line.rstrip() for line in capsys.readouterr().out.splitlines()}
    (table,) = re.findall(r"```\n(By family.*?)```", _TEXT, re.DOTALL)
    assert set(table.splitlines()) <= said


def test_statistics_that_decide_are_named() -> None:
    decide = {*NUMBERS, *TEXTS} - {"device_id", "program_id", "hlo_module"}
    for name in decide - {"step_num"}:
        assert f"`{name}`" in _TEXT
    assert "step_num" in _TEXT
