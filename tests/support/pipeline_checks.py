"""Pipelines found in traces of simulated jobs, and their comparison with the truth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pandas as pd
import pytest

from tests.support.pipeline_jobs import PipelineJob, Simulation
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.distributed.pipeline.extract import (
    ACTIVITY,
    CALLS,
    pipeline_tables,
)
from tracelens_ext.distributed.pipeline.tables import (
    PipelineJob as FoundPipelines,
)
from tracelens_ext.distributed.pipeline.tables import analyze_pipelines
from tracelens_ext.distributed.rank_numbers import RankSource, TraceRanks

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
        events = TreePerfAnalyzer(path, use_kernel_name_categories=True).gpu_events
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
