"""Pipelines: simulated jobs give the bubbles, waits, transfers and verdicts that are true."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.support.docs_helpers import code_blocks, page_text
from tests.support.fleet_helpers import needs_fleet
from tests.support.pipeline_jobs import PipelineJob, Simulation
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.cli import run
from tracelens_ext.distributed import run_fleet
from tracelens_ext.distributed.pipeline.averages import AverageIteration
from tracelens_ext.distributed.pipeline.chart import stage_timeline
from tracelens_ext.distributed.pipeline.extract import (
    ACTIVITY,
    CALLS,
    pipeline_tables,
)
from tracelens_ext.distributed.pipeline.schedules import (
    Schedule,
    ScheduleKind,
    simulated_window,
)
from tracelens_ext.distributed.pipeline.stage_names import StageNames
from tracelens_ext.distributed.pipeline.tables import (
    PipelineJob as FoundPipelines,
)
from tracelens_ext.distributed.pipeline.tables import analyze_pipelines
from tracelens_ext.distributed.pipeline.verdicts import (
    find_pipeline_verdicts,
    verdicts_on,
)
from tracelens_ext.distributed.rank_numbers import RankSource, TraceRanks
from tracelens_ext.distributed.verdicts import VerdictKind
from tracelens_ext.errors import UsageError

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
    of_all = pd.concat(activity, ignore_index=True)
    return analyze_pipelines(
        pd.concat(calls, ignore_index=True), of_ranks(of_all), stages or []
    )


def of_ranks(
    activity: pd.DataFrame,
) -> Callable[[Sequence[int]], pd.DataFrame]:
    """Return what selects the activity of some ranks."""
    return lambda ranks: activity[activity["rank"].isin(ranks)]


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


def test_interleaved_stages_take_turns_with_whole_groups_of_micro_batches() -> None:
    schedule = Schedule(ScheduleKind.INTERLEAVED, 8, 8, 3)
    assert schedule.can_be_simulated
    assert not replace(schedule, micro_batches=11).can_be_simulated


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


def average(**changes: object) -> AverageIteration:
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
    (example,) = code_blocks(page_text("many-ranks.md"), "text")
    lines = [line.rstrip() for line in printed.splitlines()]
    for line in example.splitlines():
        assert line in lines


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


def exchanges(
    pairs: Iterable[tuple[str, int, int, int, int]], group: str = "[0, 1, 2, 3]"
) -> pd.DataFrame:
    """Return `pipeline_calls` of (direction, rank, peer, start, end), each a kernel in µs."""
    rows = []
    for kernel, (direction, rank, peer, start, end) in enumerate(pairs):
        rows.append(
            {
                "rank": rank,
                "kernel": kernel,
                "start": start * 1000,
                "end": end * 1000,
                "launch": start * 1000,
                "iteration": "1",
                "direction": direction,
                "peer": float(peer),
                "is_group_rank": False,
                "group_name": "g",
                "group": group,
                "description": "",
                "size": 4.0,
                "elements": 1.0,
                "dtype": "Float",
            }
        )
    return pd.DataFrame(rows)


def computation(intervals: Iterable[tuple[int, int, int]]) -> pd.DataFrame:
    """Return `pipeline_activity` of (rank, start, end), in µs."""
    rows = [
        {
            "rank": rank,
            "kind": "computation",
            "group": "",
            "iteration": "1",
            "start": start * 1000,
            "end": end * 1000,
        }
        for rank, start, end in intervals
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ring_attention_is_no_pipeline(ranks: int) -> None:
    calls = []
    work = []
    for step in range(6):
        start = 1000 * step
        for rank in range(ranks):
            following = (rank + 1) % ranks
            before = (rank - 1) % ranks
            calls.append(("send", rank, following, start, start + 100))
            calls.append(("recv", rank, before, start, start + 100))
            work.append((rank, start, start + 900))
    found = analyze_pipelines(exchanges(calls), of_ranks(computation(work)))
    assert found.iterations == ()


def test_data_that_is_only_passed_on_is_no_pipeline() -> None:
    calls = []
    for number in range(4):
        start = 1000 * number
        calls.append(("send", 0, 1, start + 500, start + 600))
        calls.append(("recv", 1, 0, start + 500, start + 600))
    work = [(0, 0, 500), (1, 650, 900), (0, 1000, 1500), (1, 1650, 1900)]
    found = analyze_pipelines(exchanges(calls), of_ranks(computation(work)))
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
