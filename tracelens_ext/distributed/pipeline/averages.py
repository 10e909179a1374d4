"""One average iteration of a pipeline: what its stages compute, and what its links transfer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracelens_ext.analysis.collectives import element_bytes
from tracelens_ext.distributed.pipeline.schedules import Schedule, simulated_window
from tracelens_ext.distributed.pipeline.tables import PipelineIteration, PipelineJob
from tracelens_ext.distributed.pipeline.times import StageTimes, TimeKind
from tracelens_ext.lazy import pd
from tracelens_ext.trace import Float64Array


@dataclass(frozen=True)
class AverageIteration:
    """The mean of the iterations and replicas of a pipeline; times in ns.

    With p stages, there are p - 1 links between neighbors, and one more where the last stage sends
    to the first one.
    """

    schedule: Schedule
    window: float  #: how long the iteration lasts
    computation: Float64Array  #: of each stage in the iteration, (p,)
    transfer: Float64Array  #: how long one message of each link takes, (links,)
    #: the size of that message, NaN if not recorded, (links,)
    message_bytes: Float64Array
    #: of the iteration that no computation hides; mean of the stages
    transfer_share: float
    bubble_share: float  #: of the iteration, mean of the stages
    ranks_of_stage: Sequence[Sequence[int]]

    @property
    def pass_length(self) -> float:
        """How long a stage takes for the forward pass of a micro-batch, by estimate, ns."""
        of_micro_batch = self.computation.mean() / self.schedule.micro_batches
        return float(of_micro_batch * self.schedule.forward_share)

    def simulated_window(self) -> float:
        """Return how long an iteration with these computations and transfers lasts, ns."""
        return simulated_window(
            schedule=self.schedule,
            computation=self.computation,
            transfer=self.transfer,
        )

    def with_computation(self, computation: Float64Array) -> AverageIteration:
        """Return the same iteration with other computation of its stages."""
        return replace(self, computation=computation)

    def with_transfer(self, transfer: Float64Array) -> AverageIteration:
        """Return the same iteration with links that take another time for a message."""
        return replace(self, transfer=transfer)

    def with_micro_batches(self, count: int) -> AverageIteration:
        """Return the same batch in another number of micro-batches, whose messages are smaller."""
        size = self.schedule.micro_batches / count
        return replace(
            self,
            schedule=replace(self.schedule, micro_batches=count),
            transfer=self.transfer * size,
            message_bytes=self.message_bytes * size,
        )


def average_iteration(job: PipelineJob) -> AverageIteration | None:
    """Return the mean of the iterations with the most frequent schedule.

    It is None for a job without a pipeline, and if no rank of a stage has a trace.
    """
    if not job.iterations:
        return None
    schedules = pd.Series([iteration.schedule for iteration in job.iterations])
    schedule = schedules.value_counts(sort=True).index[0]
    iterations = [
        iteration for iteration in job.iterations if iteration.schedule == schedule
    ]
    rows = [
        _times_in_row(times) for iteration in iterations for times in iteration.times
    ]
    times_of_ranks = pd.DataFrame(rows)
    of_stage = times_of_ranks.groupby("stage").mean().reindex(range(schedule.stages))
    computation = of_stage["computation"].to_numpy(np.float64)
    window = float(times_of_ranks["window"].mean())
    if np.isnan(computation).any() or window <= 0:
        return None
    links = _links(iterations)
    transfer = links["duration"]
    return AverageIteration(
        schedule=schedule,
        window=window,
        computation=computation,
        transfer=transfer.fillna(transfer.median()).to_numpy(np.float64),
        message_bytes=links["bytes"].to_numpy(np.float64),
        transfer_share=float(of_stage["transfer"].mean()) / window,
        bubble_share=float(of_stage["bubble"].mean()) / window,
        ranks_of_stage=_ranks_of_stages(iterations, schedule.stages),
    )


def _times_in_row(times: StageTimes) -> dict[str, float]:
    """Return the times of a rank in an iteration as a row of a table."""
    return {
        "stage": times.stage,
        "window": times.window,
        "computation": times.time(TimeKind.COMPUTATION),
        "transfer": times.time(TimeKind.TRANSFER),
        "bubble": times.bubble,
    }


def _ranks_of_stages(
    iterations: Sequence[PipelineIteration], stages: int
) -> list[list[int]]:
    """Return the ranks of each stage, over all replicas."""
    ranks: list[set[int]] = [set() for _ in range(stages)]
    for iteration in iterations:
        for stage, rank in enumerate(iteration.pipeline.ranks):
            ranks[stage].add(rank)
    return [sorted(ranks_of_stage) for ranks_of_stage in ranks]


def _links(iterations: Sequence[PipelineIteration]) -> pd.DataFrame:
    """Return the median `duration` (ns) and `bytes` of the messages of each link, both ways."""
    messages = pd.concat(map(_messages, iterations), ignore_index=True)
    link_count = iterations[0].schedule.stages - 1
    if iterations[0].pipeline.is_ring:
        link_count += 1
    medians = messages.groupby("link")[["duration", "bytes"]].median()
    return medians.reindex(range(link_count))


def _messages(iteration: PipelineIteration) -> pd.DataFrame:
    """Return a row for each message whose duration is known, without those that announce shapes.

    Returns:
        `link`, its earlier stage, or the last stage for messages between the last and the first;
        `duration` (ns); `bytes`, NaN if not recorded.
    """
    calls = iteration.calls
    ranks = iteration.pipeline.ranks
    stage_of_rank = {rank: stage for stage, rank in enumerate(ranks)}
    source = calls["source"].map(stage_of_rank)
    target = calls["target"].map(stage_of_rank)
    earlier = source.clip(upper=target)
    wraps_around = (source - target).abs() > 1
    messages = pd.DataFrame(
        {
            "link": earlier.mask(wraps_around, len(ranks) - 1),
            "duration": calls["part_end"] - calls["part_begin"],
            "bytes": _bytes_of_messages(calls),
        }
    )
    # The kernel of a batch ends with its last transfer: only that one lasts until the end.
    is_known = calls["is_decisive"] & calls["other_start"].notna()
    is_tensor = ~calls["is_shape"]
    if not is_tensor.any():
        return messages[is_known]
    return messages[is_known & is_tensor]


def _bytes_of_messages(calls: pd.DataFrame) -> pd.Series:
    """Return the size of the message of each call; a message may have several tensors."""
    bytes_of_element = calls["dtype"].map(element_bytes)
    size = calls["elements"] * bytes_of_element
    message = [calls["rank"], calls["kernel"], calls["source"], calls["target"]]
    sizes: pd.Series = size.groupby(message).transform("sum", min_count=1)
    return sizes
