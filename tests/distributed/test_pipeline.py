"""Pipelines: simulated jobs give the bubbles, waits, transfers and verdicts that are true."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pandas as pd
import pytest

from tests.support.fleet_helpers import needs_fleet
from tests.support.pipeline_jobs import PipelineJob, Simulation
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.cli import run
from tracelens_ext.distributed.pipeline.extract import (
    ACTIVITY,
    CALLS,
    pipeline_tables,
)
from tracelens_ext.distributed.pipeline.schedules import ScheduleKind
from tracelens_ext.distributed.pipeline.tables import (
    PipelineJob as FoundPipelines,
)
from tracelens_ext.distributed.pipeline.tables import analyze_pipelines
from tracelens_ext.distributed.pipeline.verdicts import find_pipeline_verdicts
from tracelens_ext.distributed.rank_numbers import RankSource, TraceRanks
from tracelens_ext.distributed.verdicts import VerdictKind

PAGE = Path(__file__).resolve().parents[2] / "docs" / "fleet.md"
#: A time may be off by so much of itself, or by so many ms.
TOLERANCE = 0.02
TOLERANCE_MS = 0.02
TIMES = (
    "computation",
    "transfer",
    "wait_previous",
    "wait_next",
    "warmup",
    "drain",
    "bubble",
)


def pipelines_in(folder: Path, stages: list[list[int]] | None = None) -> FoundPipelines:
    """Return the pipelines that the traces in a folder show."""
    calls = []
    activity = []
    for path in sorted(folder.glob("rank*")):
        rank = int(path.name.removeprefix("rank").partition(".")[0])
        events = TreePerfAnalyzer(path, use_kernel_name_categories=True).work
        tables = pipeline_tables(events, TraceRanks(rank, RankSource.METADATA, {}))
        calls.append(tables[CALLS])
        activity.append(tables[ACTIVITY])
    return analyze_pipelines(
        pd.concat(calls, ignore_index=True),
        pd.concat(activity, ignore_index=True),
        stages or [],
    )


def simulated(
    folder: Path, job: PipelineJob
) -> tuple[FoundPipelines, dict[tuple[int, int], dict[str, float]]]:
    """Return the pipelines found in a simulated job, and its true times."""
    simulation = Simulation(job)
    simulation.write(folder)
    return pipelines_in(folder), simulation.averages()


def assert_true(
    found: FoundPipelines,
    truth: dict[tuple[int, int], dict[str, float]],
    job: PipelineJob,
) -> None:
    """Check a table against the truth."""
    table = found.table()
    assert len(table) == len(truth)
    for row in table.to_dict("records"):
        true = truth[row["stage"], int(row["iteration"] or 3)]
        assert row["micro_batches"] == job.micro_batches
        for name in TIMES:
            expected = pytest.approx(true[name], rel=TOLERANCE, abs=TOLERANCE_MS)
            assert row[f"{name}_ms"] == expected, (name, row["stage"])
        share = 100 * true["bubble"] / true["window"]
        assert row["bubble_percent"] == pytest.approx(share, rel=TOLERANCE)


def test_the_time_of_each_stage_is_what_was_simulated(tmp_path: Path) -> None:
    job = PipelineJob(micro_batches=4, iterations=1)
    found, truth = simulated(tmp_path, job)
    assert_true(found, truth, job)
    assert [verdict.verdict for verdict in find_pipeline_verdicts(found)] == [
        VerdictKind.TOO_FEW_MICRO_BATCHES
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "job",
    [
        PipelineJob(),
        PipelineJob(is_batched=True),
        PipelineJob(stages=2, micro_batches=4, tensor_parallel=2, peers="relative"),
        PipelineJob(schedule="gpipe", peers="annotation"),
        PipelineJob(stage_factors={2: 1.4}, peers="none", iterations=1),
        PipelineJob(link_factors={frozenset((1, 2)): 5.0}, iterations=1),
        PipelineJob(is_batched=True, labels="before", clock_offset_us=3000.0),
        PipelineJob(groups="pair", peers="none", clock_offset_us=-2000.0),
        PipelineJob(data_parallel=2, optimizer_us=4000.0, labels="record"),
        PipelineJob(iterations=1, has_iterations=False, micro_batches=4),
    ],
)
def test_variants_of_recordings_have_their_true_times(
    job: PipelineJob, tmp_path: Path
) -> None:
    found, truth = simulated(tmp_path, job)
    assert_true(found, truth, job)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stages", "micro_batches", "is_batched", "seed"),
    [
        (stages, micro_batches, is_batched, stages + micro_batches)
        for stages, micro_batches, is_batched in itertools.product(
            (2, 4, 8), (4, 8, 32), (False, True)
        )
    ],
)
def test_jobs_of_all_sizes_have_their_true_times(
    stages: int, micro_batches: int, is_batched: bool, seed: int, tmp_path: Path
) -> None:
    job = PipelineJob(
        stages=stages,
        micro_batches=micro_batches,
        is_batched=is_batched,
        iterations=1,
        seed=seed,
    )
    found, truth = simulated(tmp_path, job)
    assert_true(found, truth, job)
    ideal = 100 * (stages - 1) / (micro_batches + stages - 1)
    assert found.table()["ideal_bubble_percent"].tolist() == pytest.approx(
        [ideal] * stages
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
    ("job", "expected"),
    [
        (PipelineJob(stages=2, micro_batches=4), ["too_few_micro_batches"]),
        (PipelineJob(stages=2, micro_batches=16), []),
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


def test_a_job_without_sends_has_no_pipeline(tmp_path: Path) -> None:
    job = PipelineJob(stages=1, micro_batches=4, iterations=1, data_parallel=2)
    found, _ = simulated(tmp_path, job)
    assert found.iterations == ()
    assert len(found.table()) == 0
    assert find_pipeline_verdicts(found) == []


@pytest.mark.slow
@needs_fleet
def test_the_example_of_the_page_is_what_the_program_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    job = PipelineJob(iterations=1, stage_factors={2: 1.3}, noise=0.0)
    Simulation(job).write(tmp_path / "run")
    assert run(["fleet", "run", "-o", "results", "--workers", "0", "--quiet"]) == 0
    assert run(["ranks", "results", "--top", "0"]) == 0
    printed = capsys.readouterr().out
    (example,) = re.findall(
        r"^```text\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    lines = [line.rstrip() for line in printed.splitlines()]
    for line in example.splitlines():
        assert line in lines
