"""Programs of all kinds, recorded with a stand-in for PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.record_helpers import INFERENCE, record

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

ITERATIONS = ["ProfilerStep#12", "ProfilerStep#13", "ProfilerStep#14"]


def test_training_is_recorded_and_reported_on(tmp_path: Path) -> None:
    recorded = record(tmp_path)
    assert recorded.exit_code == 0
    assert recorded.output == "done\n"
    assert recorded.marks() == ITERATIONS
    assert recorded.traces == ["rank0.pt.trace.json.gz"]
    assert "report.xlsx" in recorded.files
    assert "Wrote" in recorded.messages
    assert "kineto" not in recorded.messages
    assert "warns" not in recorded.messages


def test_inference_is_recorded_by_calls_of_the_outermost_module(tmp_path: Path) -> None:
    recorded = record(tmp_path, program=INFERENCE)
    assert recorded.marks() == ITERATIONS


def test_exit_codes_are_those_of_the_program(tmp_path: Path) -> None:
    program = "import sys; sys.exit(7)"
    recorded = record(tmp_path, program=program)
    assert recorded.exit_code == 7
    assert "did not import PyTorch" in recorded.messages
    assert recorded.files == []
