"""The table `pipeline_stages`: where the time of each stage goes in each iteration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tracelens_ext.distributed.pipeline.intervals import Intervals
from tracelens_ext.distributed.pipeline.recognition import recognize
from tracelens_ext.distributed.pipeline.schedules import Schedule
from tracelens_ext.distributed.pipeline.stages import (
    Pipeline,
    find_pipelines,
    named_pipelines,
)
from tracelens_ext.distributed.pipeline.times import (
    StageTimes,
    TimeKind,
    groups_within_pipeline,
    iteration_times,
)
from tracelens_ext.distributed.pipeline.transfers import match_transfers
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NS_PER_MS

#: The name of the table.
STAGES_TABLE = "pipeline_stages"
#: Column with a time in ms → the kind of the time.
TIME_COLUMNS = {
    "computation_ms": TimeKind.COMPUTATION,
    "transfer_ms": TimeKind.TRANSFER,
    "wait_previous_ms": TimeKind.WAIT_PREVIOUS,
    "wait_next_ms": TimeKind.WAIT_NEXT,
    "warmup_ms": TimeKind.WARMUP,
    "drain_ms": TimeKind.DRAIN,
}
_COLUMN_TYPES = {
    "stage": "int64",
    "iteration": "str",
    "micro_batches": "int64",
    **dict.fromkeys(TIME_COLUMNS, "float64"),
    "bubble_ms": "float64",
    "bubble_percent": "float64",
    "ideal_bubble_percent": "float64",
}


@dataclass(frozen=True)
class PipelineIteration:
    """An iteration of one pipeline."""

    pipeline: Pipeline
    iteration: str
    schedule: Schedule
    times: Sequence[StageTimes]  #: of the ranks that have traces
    calls: pd.DataFrame  #: of `match_transfers`, only those of the iteration


@dataclass(frozen=True)
class PipelineJob:
    """All iterations of all pipelines of a job; a job without a pipeline has none."""

    iterations: Sequence[PipelineIteration] = field(default_factory=tuple)

    @property
    def stage_of_rank(self) -> dict[int, int]:
        """The stage of each rank of a pipeline."""
        stages: dict[int, int] = {}
        for iteration in self.iterations:
            ranks = iteration.pipeline.ranks
            stages.update(zip(ranks, range(len(ranks)), strict=True))
        return stages

    def table(self) -> pd.DataFrame:
        """Return the table `pipeline_stages`: the means over ranks by stage and iteration."""
        rows = []
        for iteration in self.iterations:
            rows.extend(_rows(iteration))
        frame = pd.DataFrame(rows, columns=list(_COLUMN_TYPES))
        frame = frame.astype(_COLUMN_TYPES)
        if not len(frame):
            return frame
        groups = frame.groupby(["iteration", "stage"], sort=False)
        means = groups.mean().reset_index()
        means["micro_batches"] = groups["micro_batches"].max().to_numpy()
        number = pd.to_numeric(means["iteration"], errors="coerce")
        means = means.assign(number=number)
        means = means.sort_values(
            ["number", "iteration", "stage"], kind="stable", ignore_index=True
        )
        return means[list(_COLUMN_TYPES)].astype(_COLUMN_TYPES)


def analyze_pipelines(
    calls: pd.DataFrame,
    activity_of: Callable[[Sequence[int]], pd.DataFrame],
    stages: Sequence[Sequence[int]] = (),
) -> PipelineJob:
    """Find the pipelines of a job and measure where the time of their stages goes.

    Args:
        calls: `pipeline_calls` of all ranks.
        activity_of: a function that returns `pipeline_activity` of some ranks, because the table of
            all ranks may not fit into memory.
        stages: the ranks of each stage; empty to find them.
    """
    if not len(calls):
        return PipelineJob()
    transfers = match_transfers(calls, stages)
    calls = transfers.calls
    if not len(calls):
        return PipelineJob()

    def on_common_clock(ranks: Sequence[int]) -> pd.DataFrame:
        activity = activity_of(ranks)
        offset = activity["rank"].map(transfers.offset_of_rank).fillna(0)
        offset = offset.astype("int64")
        return activity.assign(
            start=activity["start"] - offset, end=activity["end"] - offset
        )

    if stages:
        pipelines = named_pipelines(stages, calls)
    else:
        pipelines = find_pipelines(calls, on_common_clock)
    iterations = []
    for pipeline in pipelines:
        own_calls = calls[calls["rank"].isin(pipeline.ranks)]
        own_activity = on_common_clock(pipeline.ranks)
        groups_within = groups_within_pipeline(own_calls, own_activity)
        for name in sorted(set(own_calls["iteration"])):
            iteration = _iteration(
                pipeline=pipeline,
                calls=own_calls[own_calls["iteration"] == name],
                activity=own_activity[own_activity["iteration"] == name],
                name=name,
                groups_within=groups_within,
            )
            if iteration is not None:
                iterations.append(iteration)
    return PipelineJob(tuple(iterations))


def _iteration(
    pipeline: Pipeline,
    calls: pd.DataFrame,
    activity: pd.DataFrame,
    name: str,
    groups_within: Mapping[int, set[str]],
) -> PipelineIteration | None:
    """Return an iteration of a pipeline; None if fewer than two stages recorded it."""
    times = iteration_times(
        pipeline=pipeline,
        calls=calls,
        activity=activity,
        iteration=name,
        groups_within=groups_within,
    )
    if not times:
        return None
    computations: dict[int, Intervals] = {
        rank.rank: rank.intervals[TimeKind.COMPUTATION] for rank in times
    }
    schedule = recognize(
        pipeline=pipeline,
        calls=calls,
        computations=computations,
    )
    if not schedule.micro_batches:
        return None
    return PipelineIteration(
        pipeline=pipeline, iteration=name, schedule=schedule, times=times, calls=calls
    )


def _rows(iteration: PipelineIteration) -> list[dict[str, object]]:
    """Return a row of the table for each rank of an iteration."""
    rows = []
    for times in iteration.times:
        row: dict[str, object] = {
            "stage": times.stage,
            "iteration": times.iteration,
            "micro_batches": iteration.schedule.micro_batches,
        }
        for column, kind in TIME_COLUMNS.items():
            row[column] = times.time(kind) / NS_PER_MS
        row["bubble_ms"] = times.bubble / NS_PER_MS
        percent = np.nan
        if times.window > 0:
            percent = 100.0 * times.bubble / times.window
        row["bubble_percent"] = percent
        row["ideal_bubble_percent"] = iteration.schedule.ideal_bubble_percent
        rows.append(row)
    return rows
