"""`tracelens-ext memory`: what it prints, and the examples of its page."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.analysis.test_memory import recorded
from tests.support.docs_helpers import page_text
from tests.support.make_trace import TraceMaker
from tracelens_ext.cli import run


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


def written(maker: TraceMaker) -> str:
    Path("a.json").write_text(json.dumps(maker.document()))
    return "a.json"


@pytest.mark.slow
def test_the_examples_of_the_page(
    demo_trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(demo_trace, "trace.json.gz")
    page = page_text("memory.md")
    (commands,) = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    printed = []
    for command in commands.splitlines():
        assert run(shlex.split(command.removeprefix("$ tracelens-ext "))) == 0
        printed.append(capsys.readouterr().out)
    assert shown in printed[0]
    assert "In use at the peak, by module" in printed[1]
    assert "train.py(60): loss_function" in printed[2]
    tables = json.loads(printed[3])["tables"]
    peak = tables["memory_peaks"][0]["peak_allocated_bytes"]
    assert sum(row["bytes"] for row in tables["memory_at_peak"]) == peak


def test_what_was_there_before_has_its_own_name_whatever_it_is_told_apart_by(
    capsys: pytest.CaptureFixture[str],
) -> None:
    maker = TraceMaker()
    maker.op("aten::[red]mm", 0, 10)
    for event in recorded([(1, 2_000_000, 5), (20, 1_000_000, 6)], before=5_000_000):
        maker.add(event)
    path = written(maker)
    for by in ("operation", "module", "frame", "phase"):
        assert run(["memory", path, "--by", by]) == 0
        out = capsys.readouterr().out
        (line,) = [
            line
            for line in out.splitlines()
            if line.startswith("(before the recording)")
        ]
        assert line.split()[-2:] == ["5.000", "62.5%"]
    assert "aten::[red]mm" in out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "a.json: has no memory events; record it with"),
        (["--device", "3"], "no memory event belongs to device 3; the trace has 0"),
    ],
)
def test_what_cannot_be_answered_is_said_in_one_line(
    options: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 10)
    for event in recorded([(1, 2, 5)]) if options else ():
        maker.add(event)
    assert run(["memory", written(maker), *options]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error
