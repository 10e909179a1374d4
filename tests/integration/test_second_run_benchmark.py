"""The benchmark of second runs: its table has every command, and times of real runs."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.simulated_job import write_demo_trace

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        not hasattr(os, "sched_setaffinity"),
        reason="needs a system that can choose cores",
    ),
]
FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def second_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("second_run")
    sys.modules.pop("second_run", None)


def test_the_table_of_a_small_trace(
    second_run: Any,  # a module
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert {"report", "kernels", "gaps", "iterations", "tree"} < set(
        second_run.COMMANDS
    )
    monkeypatch.setattr(
        second_run, "COMMANDS", {"report": second_run.COMMANDS["report"]}
    )
    trace = write_demo_trace(tmp_path / "a.json", steps=1)
    header, rule, row = second_run.table(trace, 1).splitlines()
    assert header.count("|") == rule.count("|") == row.count("|") == 5
    name, *times = (cell.strip() for cell in row.strip("|").split("|"))
    assert name == "report"
    first, second, ratio = map(float, times)
    assert first > 0.05
    assert ratio == pytest.approx(second / first, abs=0.05)
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
