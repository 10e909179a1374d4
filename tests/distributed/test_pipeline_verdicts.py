"""Verdicts on pipelines: the fault that a simulated job has, and no other."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.fleet_helpers import needs_fleet
from tests.support.pipeline_checks import (
    TOLERANCE,
    simulated,
)
from tests.support.pipeline_jobs import PipelineJob, Simulation
from tracelens_ext.distributed import run_fleet
from tracelens_ext.distributed.pipeline.averages import AverageIteration
from tracelens_ext.distributed.pipeline.schedules import (
    Schedule,
    ScheduleKind,
)
from tracelens_ext.distributed.pipeline.verdicts import (
    find_pipeline_verdicts,
    verdicts_on,
)
from tracelens_ext.distributed.verdicts import VerdictKind


def average(**changes: Any) -> AverageIteration:
    """Return an iteration of three even stages with enough micro-batches."""
    even = AverageIteration(
        schedule=Schedule(ScheduleKind.ONE_FORWARD_ONE_BACKWARD, 3, 16),
        window=3e8,
        computation=np.full(3, 2.4e8),
        transfer=np.array([1e5, 1e5]),
        message_bytes=np.full(2, 8e6),
        transfer_share=0.01,
        bubble_share=0.1,
        ranks_of_stage=[[0], [1], [2]],
    )
    return replace(even, **changes)


def kinds(iteration: AverageIteration) -> list[str]:
    """Return the kinds of the verdicts on an iteration."""
    return [verdict.verdict.value for verdict in verdicts_on(iteration)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (PipelineJob(stages=2, micro_batches=4), ["too_few_micro_batches"]),
        (PipelineJob(stages=2, micro_batches=16), []),
        (PipelineJob(stages=2, micro_batches=16, transfer_us=100.0), []),
        (
            PipelineJob(stages=8, micro_batches=4, stage_factors={5: 1.5}),
            ["uneven_stage", "too_few_micro_batches"],
        ),
        (PipelineJob(stage_factors={2: 1.3}), ["uneven_stage"]),
        (PipelineJob(link_factors={frozenset((0, 1)): 5.0}), ["slow_transfer"]),
        (
            PipelineJob(stages=2, link_factors={frozenset((0, 1)): 6.0}),
            ["slow_transfer"],
        ),
    ],
)
def test_the_verdict_is_what_was_put_in(
    job: PipelineJob, expected: list[str], tmp_path: Path
) -> None:
    found, _ = simulated(tmp_path, job)
    verdicts = find_pipeline_verdicts(found)
    assert [verdict.verdict.value for verdict in verdicts] == expected
    for verdict in verdicts:
        assert verdict.ms is not None
        assert re.search(r"error [+-]0\.\d %", verdict.evidence)


def test_a_link_that_carries_more_bytes_is_not_slow() -> None:
    transfer = np.array([1e5, 5e5])
    sizes = np.array([8e6, 40e6])
    assert kinds(average(transfer=transfer)) == ["slow_transfer"]
    assert kinds(average(transfer=transfer, message_bytes=sizes)) == []


def test_slow_transfers_are_shown_with_their_bandwidth() -> None:
    slow = average(transfer=np.full(2, 1e6))
    (verdict,) = verdicts_on(slow)
    assert verdict.verdict is VerdictKind.SLOW_TRANSFER
    assert verdict.rank is None, "no link is slower than the others"
    assert "1.000 ms each, 8.0 GB/s" in verdict.evidence
    (verdict,) = verdicts_on(replace(slow, message_bytes=np.full(2, np.nan)))
    assert "GB/s" not in verdict.evidence


@pytest.mark.slow
def test_a_slow_stage_is_named_where_moving_its_work_does_not_help(
    tmp_path: Path,
) -> None:
    job = PipelineJob(micro_batches=4, stage_factors={0: 1.3}, iterations=1)
    found, _ = simulated(tmp_path, job)
    verdicts = find_pipeline_verdicts(found)
    assert [verdict.verdict.value for verdict in verdicts] == [
        "uneven_stage",
        "too_few_micro_batches",
    ]
    assert "a stage as fast as the others would save" in verdicts[0].evidence


@pytest.mark.slow
def test_an_interleaved_pipeline_with_few_micro_batches(tmp_path: Path) -> None:
    job = PipelineJob(
        stages=8, micro_batches=8, schedule="interleaved", chunks=3, iterations=1
    )
    job = replace(job, transfer_us=10.0)
    found, _ = simulated(tmp_path, job)
    (verdict,) = find_pipeline_verdicts(found)
    assert verdict.verdict is VerdictKind.TOO_FEW_MICRO_BATCHES
    assert "the same batch in 16 micro-batches" in verdict.evidence


@pytest.mark.slow
def test_a_slow_link_is_found_where_batches_have_transfers_of_several_links(
    tmp_path: Path,
) -> None:
    """The kernels of all stages end late; their clocks must not seem apart for that."""
    job = PipelineJob(
        schedule="interleaved",
        is_batched=True,
        iterations=1,
        link_factors={frozenset((0, 1)): 6.0},
        clock_offset_us=500.0,
    )
    found, truth = simulated(tmp_path, job)
    table = found.table()
    bubbles = [truth[stage, 3]["bubble"] for stage in range(4)]
    assert table["bubble_ms"].tolist() == pytest.approx(bubbles, rel=TOLERANCE)
    (verdict,) = find_pipeline_verdicts(found)
    assert verdict.verdict is VerdictKind.SLOW_TRANSFER
    assert verdict.rank == 0


@pytest.mark.slow
@needs_fleet
def test_ranks_of_a_long_stage_are_not_called_slow_as_well(tmp_path: Path) -> None:
    """With a process group for each two neighbors, the middle stages have equal places in them."""
    job = PipelineJob(
        groups="pair",
        tensor_parallel=2,
        micro_batches=16,
        iterations=1,
        stage_factors={1: 1.6},
    )
    Simulation(job).write(tmp_path / "run")
    result = run_fleet([str(tmp_path / "run")], tmp_path / "results", workers=0)
    assert result.tables["verdicts"]["verdict"].tolist() == ["uneven_stage"]
