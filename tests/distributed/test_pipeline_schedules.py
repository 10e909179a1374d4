"""Schedules of pipelines: how they are recognized, their micro-batches, and their simulation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.pipeline_checks import (
    simulated,
)
from tests.support.pipeline_jobs import PipelineJob
from tracelens_ext.distributed.pipeline.schedules import (
    Schedule,
    ScheduleKind,
    simulated_window,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "kind", "ideal"),
    [
        ("1f1b", ScheduleKind.ONE_FORWARD_ONE_BACKWARD, 3 / 11),
        ("gpipe", ScheduleKind.GPIPE, 3 / 11),
        ("interleaved", ScheduleKind.INTERLEAVED, 3 / 19),
        ("zero_bubble", ScheduleKind.ZERO_BUBBLE, 3 / 27),
    ],
)
def test_schedules_are_recognized(
    schedule: str, kind: ScheduleKind, ideal: float, tmp_path: Path
) -> None:
    job = PipelineJob(schedule=schedule, iterations=1)
    found, _ = simulated(tmp_path, job)
    (iteration,) = found.iterations
    assert iteration.schedule.kind is kind
    assert iteration.schedule.micro_batches == 8
    assert iteration.schedule.ideal_bubble_percent == pytest.approx(100 * ideal)


@pytest.mark.slow
@pytest.mark.parametrize(
    "job",
    [
        PipelineJob(stages=2, schedule="interleaved", iterations=1),
        PipelineJob(stages=2, schedule="interleaved", is_batched=True, iterations=1),
        PipelineJob(stages=2, schedule="gpipe", stage_factors={1: 1.6}, iterations=1),
    ],
)
def test_micro_batches_that_pass_together_or_queue_are_all_counted(
    job: PipelineJob, tmp_path: Path
) -> None:
    found, _ = simulated(tmp_path, job)
    assert found.table()["micro_batches"].tolist() == [8, 8]


@pytest.mark.slow
def test_two_stages_with_several_possible_numbers_of_chunks(tmp_path: Path) -> None:
    """84 transfers are 12 micro-batches of 4 chunks, or 28 of 2."""
    job = PipelineJob(
        stages=2, schedule="interleaved", chunks=4, micro_batches=12, iterations=1
    )
    found, _ = simulated(tmp_path, job)
    (iteration,) = found.iterations
    assert iteration.schedule.micro_batches == 12
    assert iteration.schedule.chunks == 4


def test_interleaved_stages_take_turns_with_whole_groups_of_micro_batches() -> None:
    schedule = Schedule(ScheduleKind.INTERLEAVED, 8, 8, 3)
    assert schedule.can_be_simulated
    assert not replace(schedule, micro_batches=11).can_be_simulated


@pytest.mark.parametrize("chunks", [2, 3])
@pytest.mark.parametrize("stages", [2, 4, 8])
def test_an_even_pipeline_is_simulated_with_its_ideal_bubble(
    stages: int, chunks: int
) -> None:
    for schedule in (
        Schedule(ScheduleKind.ONE_FORWARD_ONE_BACKWARD, stages, 16),
        Schedule(ScheduleKind.GPIPE, stages, 16),
        Schedule(ScheduleKind.INTERLEAVED, stages, 16, chunks),
    ):
        even = np.full(stages, 100.0)
        window = simulated_window(schedule, even, np.zeros(stages))
        bubble = 100.0 * (1.0 - 100.0 / window)
        assert bubble == pytest.approx(schedule.ideal_bubble_percent)
