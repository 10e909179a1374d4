"""Times of pipelines: simulated jobs give the bubbles, waits and transfers that are true."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.docs_helpers import code_blocks, page_text
from tests.support.fleet_helpers import needs_fleet
from tests.support.pipeline_checks import (
    TOLERANCE,
    assert_true,
    computation,
    exchanges,
    of_ranks,
    simulated,
)
from tests.support.pipeline_jobs import PipelineJob, Simulation
from tracelens_ext.cli import run
from tracelens_ext.distributed.pipeline.chart import stage_timeline
from tracelens_ext.distributed.pipeline.tables import (
    PipelineJob as FoundPipelines,
)
from tracelens_ext.distributed.pipeline.tables import analyze_pipelines
from tracelens_ext.distributed.pipeline.verdicts import (
    find_pipeline_verdicts,
)
from tracelens_ext.distributed.verdicts import VerdictKind


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
        PipelineJob(is_batched=True, labels="none", iterations=1),
        PipelineJob(groups="pair", peers="none", clock_offset_us=-2000.0),
        PipelineJob(data_parallel=2, optimizer_us=4000.0, labels="record"),
        PipelineJob(iterations=1, has_iterations=False, micro_batches=4),
        PipelineJob(micro_batches=1),
        PipelineJob(groups="none", peers="none", iterations=1),
        PipelineJob(
            peers="none", noise=0.0, iterations=1
        ),  # several stages end at once
        PipelineJob(
            schedule="interleaved",
            is_batched=True,
            micro_batches=16,
            iterations=1,
            link_factors={frozenset((1, 2)): 6.0},
        ),
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
            (2, 8), (4, 16), (False, True)
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
    "job",
    [
        PipelineJob(
            micro_batches=16,
            stage_factors={2: 1.5},
            noise=0.0,
            clock_offset_us=30_000.0,
        ),
        PipelineJob(
            stage_factors={3: 1.5},
            link_factors={frozenset((1, 2)): 5.0},
            transfer_us=150.0,
        ),
    ],
)
def test_clocks_follow_the_links_that_tell_most(
    job: PipelineJob, tmp_path: Path
) -> None:
    """The kernels of the first and the last stage end far apart: their link tells little."""
    job = replace(job, schedule="interleaved", is_batched=True, iterations=1)
    found, truth = simulated(tmp_path, job)
    expected = [truth[stage, 3]["bubble"] for stage in range(job.stages)]
    assert found.table()["bubble_ms"].tolist() == pytest.approx(expected, rel=TOLERANCE)


def test_an_announced_shape_holds_its_sender_up_and_the_tensor_does_not() -> None:
    calls = [
        ("send", 0, 1, 1000, 1010),  # the shape; then the rank computes again
        ("recv", 1, 0, 0, 1010),
        ("send", 0, 1, 1010, 1110),
        ("recv", 1, 0, 1010, 1110),
        ("send", 1, 0, 2110, 2210),
        ("recv", 0, 1, 2010, 2210),
    ]
    elements = [3.0, 3.0, 9000.0, 9000.0, 9000.0, 9000.0]
    work = [(0, 0, 1000), (0, 1010, 2010), (1, 1110, 2110), (0, 2210, 3000)]
    found = analyze_pipelines(
        exchanges(calls).assign(elements=elements), of_ranks(computation(work))
    )
    (first, _) = found.table().to_dict("records")
    assert first["transfer_ms"] == pytest.approx(0.010 + 0.100)


@pytest.mark.slow
def test_without_marked_steps_the_optimizer_ends_an_iteration(tmp_path: Path) -> None:
    job = PipelineJob(
        stages=2, micro_batches=4, optimizer_us=500.0, has_iterations=False
    )
    found, truth = simulated(tmp_path, job)
    table = found.table()
    assert table["iteration"].tolist() == ["1", "1", "2", "2"]
    assert table["micro_batches"].tolist() == [4] * 4
    expected = [
        truth[stage, iteration]["bubble"] for iteration in (3, 4) for stage in (0, 1)
    ]
    assert table["bubble_ms"].tolist() == pytest.approx(expected, rel=TOLERANCE)


@pytest.mark.slow
def test_clocks_are_aligned_where_batches_end_late(tmp_path: Path) -> None:
    """With one micro-batch, as many kernels end far apart as end together."""
    job = PipelineJob(stages=2, micro_batches=1, is_batched=True, iterations=2)
    found, truth = simulated(tmp_path, job)
    assert_true(found, truth, job)


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
    (example,) = code_blocks(page_text("many-ranks.md"), "text")
    lines = [line.rstrip() for line in printed.splitlines()]
    for line in example.splitlines():
        assert line in lines


@pytest.mark.slow
def test_the_chart_has_each_kind_of_each_stage(tmp_path: Path) -> None:
    job = PipelineJob(stages=2, micro_batches=4, iterations=1)
    found, truth = simulated(tmp_path, job)
    (figure,) = stage_timeline(found)
    assert "1F1B with 4 micro-batches: the bubble is 20." in figure.summary
    names = [name for name, _ in figure.legend]
    (computed, *_) = figure.spec["data"]
    assert names[0] == "computation"
    of_first = [
        length
        for stage, length in zip(computed["y"], computed["x"], strict=True)
        if stage == 0
    ]
    assert sum(of_first) == pytest.approx(truth[0, 3]["computation"], rel=0.01)
    assert stage_timeline(FoundPipelines()) == []
