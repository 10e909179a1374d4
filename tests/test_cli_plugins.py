"""`tracelens-ext plugins`, as a user types it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tracelens_ext.cli import run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_plugins(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["plugins"], ["plugins", "list"]):
        assert run(arguments) == 0
        out = capsys.readouterr().out
        assert out.startswith("builtin  ok  tracelens-ext ")
        assert "rule packs: attention, " in out


def test_plugins_new(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["plugins", "new", "my-kernels"]) == 0
    assert "my-kernels/pyproject.toml" in capsys.readouterr().out
    assert (tmp_path / "my-kernels" / "src" / "my_kernels" / "rules.toml").is_file()
    assert run(["plugins", "new", "my-kernels"]) == 1
    assert run(["plugins", "new", "no good"]) == 2
