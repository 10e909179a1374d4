"""Scripts under real PyTorch: what they record is what they were made of.

PyTorch is imported by another interpreter if `TRACELENS_EXT_TORCH_PYTHON` names one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.conftest import SHARED
from tests.support.round_trip import is_judged, round_trip
from tests.support.simulated_job import write_demo_trace
from tracelens_ext import TreePerfAnalyzer

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens_ext.reproduce.specification import Specification

pytestmark = [pytest.mark.torch, pytest.mark.process]

#: Traces of both vendors: training, inference, `torch.compile`, old and new profilers.
REAL_TRACES = [
    "traces/edge/amd_mi250.json.gz",
    "traces/amd/Falconsai_nsfw_image_detection__1016002.json.gz",
    "traces/amd/facebook_timesformer-base-finetuned-k400__1016002.json.gz",
    "traces/nvidia/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "traces/nvidia/gaunernst_bert-small-uncased__1016001.json.gz",
    "traces/nvidia/torch_compile_triton.json.gz",
    "traces/graphs/vllm_decode_hip_graph.json.gz",
    "ranks/rank0.json.gz",
]


def _judged(path: Path) -> Specification:
    """Return the operations of a trace whose arguments were recorded in full."""
    specification = TreePerfAnalyzer(path).reproduction(top=0).specification
    judged = tuple(filter(is_judged, specification.operations))
    return replace(specification, operations=judged)


def _unequal(specification: Specification, folder: Path) -> dict[int, str]:
    """Return the operations that no run records as the trace has them, and why.

    An operation that the meta device cannot run counts by its run on the CPU.
    """
    result = round_trip(specification, folder / "meta")
    did_not_run = {
        number
        for number, problem in result.problems.items()
        if problem.startswith(("failed", "skipped"))
    }
    remaining = tuple(
        operation
        for operation in specification.operations
        if operation.number in did_not_run or operation.number not in result.equal
    )
    if not remaining:
        return {}
    on_cpu = round_trip(
        replace(specification, operations=remaining), folder / "cpu", "cpu"
    )
    return on_cpu.problems


def test_a_script_runs_the_operations_of_a_training_job(
    tmp_path: Path,
) -> None:
    path = tmp_path / "trace.json.gz"
    write_demo_trace(path, steps=1)
    specification = _judged(path)
    assert len(specification.operations) > 50
    for problem in _unequal(specification, tmp_path).values():
        assert "PyTorch's profiler records lists of more than 30" in problem


@pytest.mark.real_data
@pytest.mark.parametrize("name", REAL_TRACES)
def test_a_script_runs_the_operations_of_a_real_trace(
    name: str, tmp_path: Path
) -> None:
    specification = _judged(SHARED / name)
    for problem in _unequal(specification, tmp_path).values():
        assert "recorded empty" in problem or "lists of at most 30" in problem
