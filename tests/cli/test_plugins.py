"""`tracelens-ext plugins`, as a user types it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.categorize_helpers import registry
from tracelens_ext.categorize import load_pack
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


def test_strict_fails_for_a_plugin_with_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["plugins", "--strict"]) == run(["plugins", "list", "--strict"]) == 0
    broken = registry(gone=ImportError("gone"))
    monkeypatch.setattr("tracelens_ext.hooks.load_registry", lambda: broken)
    assert run(["plugins"]) == 0
    assert "gone  FAILED" in capsys.readouterr().out
    assert run(["plugins", "--strict"]) == run(["plugins", "list", "--strict"]) == 1


def test_plugins_new(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["plugins", "new", "my-kernels"]) == 0
    assert "my-kernels/pyproject.toml" in capsys.readouterr().out
    rules = tmp_path / "my-kernels" / "src" / "my_kernels" / "rules.toml"
    # so that two plugins can be told apart
    assert load_pack(rules).name == "my-kernels"
    assert run(["plugins", "new", "my-kernels"]) == 1
    assert run(["plugins", "new", "no good"]) == 2
