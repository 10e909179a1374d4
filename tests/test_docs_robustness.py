"""`docs/robustness.md` is true: its command runs, and it names every reason to drop an event."""

from __future__ import annotations

import gzip
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from broken_input_helpers import corpus, expectation
from make_trace import LAYOUTS, cuda_graph_example

from tracelens_ext.cli import run

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "robustness.md").read_text(encoding="utf-8")


def test_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = LAYOUTS["kineto"](cuda_graph_example()).encode()
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(whole[:-100]))
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"^```console\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE)
    words = shlex.split(block.removeprefix("$ tracelens-ext "))
    assert run([word for word in words if word != "--salvage"]) == 1
    assert run(words) == 0
    assert "Salvaged (the JSON ends in the middle, after 4 events)" in capfd.readouterr().err


def test_every_reason_to_drop_is_named() -> None:
    section = TEXT.split("## Dropped")[1].split("## ")[0]
    named = set(re.findall(r"^\| `([^`]+)` \|", section, flags=re.MULTILINE))
    sources = [path.read_text(encoding="utf-8") for path in ROOT.glob("tracelens_ext/readers/*.py")]
    counted = re.findall(r"""dropped\[\s*"([^"]+)"\s*\]""", "\n".join(sources))
    assert set(counted) <= named
    seen = {reason for path in corpus() for reason in expectation(path).get("dropped", ())}
    assert seen <= named
    assert len(named) >= 5
