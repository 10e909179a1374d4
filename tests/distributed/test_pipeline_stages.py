"""Stages of pipelines: which jobs have them, how users name them, and why they are not found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.fleet_helpers import needs_fleet
from tests.support.pipeline_checks import (
    computation,
    exchanges,
    of_ranks,
    pipelines_in,
    simulated,
)
from tests.support.pipeline_jobs import PipelineJob, Simulation
from tracelens_ext.distributed import run_fleet
from tracelens_ext.distributed.pipeline.stage_names import StageNames
from tracelens_ext.distributed.pipeline.tables import analyze_pipelines
from tracelens_ext.distributed.pipeline.verdicts import (
    find_pipeline_verdicts,
)
from tracelens_ext.errors import UsageError


def test_a_job_without_sends_has_no_pipeline(tmp_path: Path) -> None:
    job = PipelineJob(stages=1, micro_batches=4, iterations=1, data_parallel=2)
    found, _ = simulated(tmp_path, job)
    assert found.iterations == ()
    assert len(found.table()) == 0
    assert find_pipeline_verdicts(found) == []


@pytest.mark.parametrize("ranks", [2, 4])
def test_ring_attention_is_no_pipeline(ranks: int) -> None:
    calls = []
    gpu_events = []
    for step in range(6):
        start = 1000 * step
        for rank in range(ranks):
            following = (rank + 1) % ranks
            before = (rank - 1) % ranks
            calls.append(("send", rank, following, start, start + 100))
            calls.append(("recv", rank, before, start, start + 100))
            gpu_events.append((rank, start, start + 900))
    found = analyze_pipelines(exchanges(calls), of_ranks(computation(gpu_events)))
    assert found.iterations == ()


def test_data_that_is_only_passed_on_is_no_pipeline() -> None:
    calls = []
    for number in range(4):
        start = 1000 * number
        calls.append(("send", 0, 1, start + 500, start + 600))
        calls.append(("recv", 1, 0, start + 500, start + 600))
    gpu_events = [(0, 0, 500), (1, 650, 900), (0, 1000, 1500), (1, 1650, 1900)]
    found = analyze_pipelines(exchanges(calls), of_ranks(computation(gpu_events)))
    assert found.iterations == ()


@pytest.mark.slow
def test_a_rank_without_a_trace_leaves_the_others_their_rows(tmp_path: Path) -> None:
    job = PipelineJob(stages=3, micro_batches=4, iterations=1)
    Simulation(job).write(tmp_path)
    (tmp_path / "rank2.json.gz").unlink()
    found = pipelines_in(tmp_path)
    assert found.table()["stage"].tolist() == [0, 1]
    assert found.table()["micro_batches"].tolist() == [4, 4]
    assert find_pipeline_verdicts(found) == [], "what is not known is not judged"


@pytest.mark.slow
def test_stages_are_named_where_traces_lack_partners_and_groups(tmp_path: Path) -> None:
    job = PipelineJob(
        stages=3, tensor_parallel=2, groups="none", peers="none", iterations=1
    )
    found, _ = simulated(tmp_path, job)
    assert found.iterations == ()
    stages = [[0, 1], [2, 3], [4, 5]]
    found = pipelines_in(tmp_path, stages)
    assert found.table()["micro_batches"].tolist() == [8, 8, 8]
    assert found.stage_of_rank == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2}


@pytest.mark.parametrize(
    ("text", "ranks", "stages"),
    [
        ("2", 4, [[0, 1], [2, 3]]),
        ("0-1/2-3", 4, [[0, 1], [2, 3]]),
        ("0,2/1,3", 4, [[0, 2], [1, 3]]),
        ("3", 4, []),
    ],
)
def test_stages_are_named_by_their_number_or_their_ranks(
    text: str, ranks: int, stages: list[list[int]]
) -> None:
    named = StageNames.of_text(text).stages(range(ranks))
    assert [list(stage) for stage in named] == stages


@pytest.mark.parametrize("text", ["", "1", "0", "a", "0-", "3-1/4", "0/0", "0,1", "٤"])
def test_other_names_of_stages_are_refused_with_what_to_give(text: str) -> None:
    with pytest.raises(UsageError, match="give a number of stages"):
        StageNames.of_text(text)


@needs_fleet
@pytest.mark.parametrize(
    ("job", "named", "reason"),
    [
        (
            PipelineJob(labels="absent"),
            None,
            "do not record what their SendRecv kernels exchange",
        ),
        (
            PipelineJob(peers="none", groups="none", tensor_parallel=2),
            None,
            "Name the stages with --pipeline-stages",
        ),
        (
            PipelineJob(peers="none", groups="none", tensor_parallel=2),
            "3",
            "No sends and receives connect the given pipeline stages",
        ),
    ],
)
def test_a_note_says_why_no_stages_are_found(
    job: PipelineJob, named: str | None, reason: str, tmp_path: Path
) -> None:
    small = replace(job, micro_batches=2, iterations=1)
    Simulation(small).write(tmp_path / "run")
    result = run_fleet(
        [str(tmp_path / "run")],
        tmp_path / "results",
        workers=0,
        pipeline_stages=named,
    )
    assert len(result.tables["pipeline_stages"]) == 0
    assert reason in " ".join(result.notes)
