"""Schedules of pipelines: recognized from what a job recorded, their ideal bubble, and simulated.

With p stages, m micro-batches and v chunks of a stage, and stages that take equally long, the
bubble is this share of an iteration:

* 1F1B and GPipe: (p - 1) / (m + p - 1) (Huang et al., GPipe, 2019, section 2.3);
* interleaved 1F1B: (p - 1) / (v m + p - 1) (Narayanan et al., Efficient Large-Scale Language Model
  Training on GPU Clusters, 2021, section 2.2.2);
* zero bubble (ZB-H1), where the gradients of inputs and of weights take as long as the forward
  pass: (p - 1) / (3 m + p - 1) (Qi et al., Zero Bubble Pipeline Parallelism, 2023, table 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from tracelens_ext.distributed.pipeline.stages import Pipeline
from tracelens_ext.distributed.pipeline.times import Intervals
from tracelens_ext.distributed.pipeline.transfers import RECEIVE, SEND
from tracelens_ext.lazy import pd
from tracelens_ext.trace import Float64Array, Int64Array
from tracelens_ext.trace.intervals import covered

#: Two sends with less computation in between are of one micro-batch.
_MIN_COMPUTATION_NS = 1_000
#: The share of a micro-batch's computation that the last stage still has after its last gradient,
#: where gradients of weights are computed apart.
_MIN_LATE_COMPUTATION = 0.2
#: A second chunk's forward pass takes at most so many times as long as the first one's.
_SAME_WORK_FACTOR = 1.4
_MAX_CHUNKS = 64
#: The part of a micro-batch's computation that is its forward pass, where nothing tells.
_FORWARD_SHARE = 1 / 3


class ScheduleKind(StrEnum):
    """In which order stages do their work."""

    ONE_FORWARD_ONE_BACKWARD = "1F1B"
    GPIPE = "GPipe"
    INTERLEAVED = "interleaved 1F1B"
    ZERO_BUBBLE = "zero bubble"
    FORWARD_ONLY = "forward only"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Schedule:
    """What is known of the schedule of an iteration."""

    kind: ScheduleKind
    stages: int
    micro_batches: int
    chunks: int = 1  #: of a stage

    @property
    def ideal_bubble_percent(self) -> float:
        """The share of the bubble if all stages take equally long; NaN if it is not known."""
        more_stages = self.stages - 1
        work = self.micro_batches * self.chunks
        if self.kind is ScheduleKind.UNKNOWN or not work:
            return np.nan
        if self.kind is ScheduleKind.ZERO_BUBBLE:
            work *= 3
        return 100.0 * more_stages / (work + more_stages)

    @property
    def can_be_simulated(self) -> bool:
        """True if the order of the work of each stage is known."""
        if self.micro_batches == 0:
            return False
        if self.kind is ScheduleKind.INTERLEAVED:
            # Stages take turns with groups of as many micro-batches as there are stages.
            return self.micro_batches % self.stages == 0
        return self.kind in (
            ScheduleKind.ONE_FORWARD_ONE_BACKWARD,
            ScheduleKind.GPIPE,
            ScheduleKind.FORWARD_ONLY,
        )


# Recognition.


class _Direction(NamedTuple):
    """The transfers from one rank to another."""

    micro_batches: int  #: several tensors of one are counted once
    #: of the sends, or of the receives where those show more, ns
    starts: Int64Array
    ends: Int64Array


def recognize(
    pipeline: Pipeline, calls: pd.DataFrame, computations: dict[int, Intervals]
) -> Schedule:
    """Return the schedule of an iteration.

    Args:
        pipeline: whose ranks.
        calls: of `match_transfers`, of the iteration.
        computations: rank → its computation in the pipeline.
    """
    count = len(pipeline.ranks)
    forward = []
    backward = []
    for earlier, later in zip(pipeline.ranks, pipeline.ranks[1:], strict=False):
        forward.append(_direction(calls, computations, earlier, later))
        backward.append(_direction(calls, computations, later, earlier))
    micro_batches = _usual([direction.micro_batches for direction in forward])
    if pipeline.is_ring:
        wrapped = _direction(calls, computations, pipeline.ranks[-1], pipeline.ranks[0])
        return _interleaved(count, micro_batches, wrapped.micro_batches)
    if _usual([direction.micro_batches for direction in backward]) == 0:
        return Schedule(ScheduleKind.FORWARD_ONLY, count, micro_batches)
    if count == 2 and _computes_two_chunks(pipeline, calls, computations):
        return _interleaved_on_two_stages(micro_batches)
    kind = _kind_of_chain(pipeline, forward[0], backward[0], micro_batches)
    if kind is ScheduleKind.ONE_FORWARD_ONE_BACKWARD and _has_late_work(
        pipeline, calls, computations, micro_batches
    ):
        kind = ScheduleKind.ZERO_BUBBLE
    return Schedule(kind, count, micro_batches)


def _usual(counts: Sequence[int]) -> int:
    """Return the median of the counts of transfers, those without traces left out."""
    known = [count for count in counts if count]
    return int(np.median(known)) if known else 0


def _direction(
    calls: pd.DataFrame, computations: dict[int, Intervals], source: int, target: int
) -> _Direction:
    """Return the transfers from one rank to another.

    Sends that queue behind one another have no computation in between; their receives do. So the
    side that shows more micro-batches counts.
    """
    is_of_link = (calls["source"] == source) & (calls["target"] == target)
    of_link = calls[is_of_link]
    sends = of_link[of_link["direction"] == SEND]
    receives = of_link[of_link["direction"] == RECEIVE]
    from_sends = _micro_batches_of(sends, "start", computations.get(source))
    from_receives = _micro_batches_of(receives, "end", computations.get(target))
    if from_receives.micro_batches > from_sends.micro_batches:
        return from_receives
    return from_sends


def _micro_batches_of(
    calls: pd.DataFrame, instant: str, computation: Intervals | None
) -> _Direction:
    """Return the micro-batches that one side of a link shows.

    Args:
        calls: the sends, or the receives, of the link.
        instant: the column before and after which the rank computes.
        computation: of the rank; None if it has no trace.
    """
    parts = calls.groupby("kernel", sort=False)["kernel"].transform("size")
    kernels = calls.assign(parts=parts).drop_duplicates("kernel")
    kernels = kernels.sort_values("start", kind="stable")
    starts = kernels["start"].to_numpy(np.int64)
    ends = kernels["end"].to_numpy(np.int64)
    if not len(kernels):
        return _Direction(0, starts, ends)
    # All batches have the tensors of one micro-batch. Those with a multiple of them pass on
    # several, as two chunks of interleaved stages do.
    tensors = int(kernels["parts"].min())
    passed_on = kernels["parts"].to_numpy(np.int64) // tensors
    is_first = np.ones(len(kernels), dtype=bool)
    if computation is not None:
        instants = kernels[instant].to_numpy(np.int64)
        computed = covered(
            computation.start, computation.end, instants[:-1], instants[1:]
        )
        is_first[1:] = computed >= _MIN_COMPUTATION_NS
    count = int(passed_on[is_first].sum())
    return _Direction(count, starts[is_first], ends[is_first])


def _interleaved(stages: int, forward: int, wrapped: int) -> Schedule:
    """Return the schedule of a ring: all chunks but the last pass the wrap-around."""
    micro_batches = forward - wrapped
    if micro_batches <= 0 or forward % micro_batches:
        return Schedule(ScheduleKind.UNKNOWN, stages, max(micro_batches, 0))
    chunks = forward // micro_batches
    if chunks < 2:
        return Schedule(ScheduleKind.UNKNOWN, stages, micro_batches)
    return Schedule(ScheduleKind.INTERLEAVED, stages, micro_batches, chunks)


def _computes_two_chunks(
    pipeline: Pipeline, calls: pd.DataFrame, computations: dict[int, Intervals]
) -> bool:
    """Tell whether the first of two stages sends on what it first receives.

    Of two stages the wrap-around is the same link. After its first receive, the first stage of an
    interleaved schedule computes another forward pass and sends it; that of a plain one computes a
    backward pass before the next forward pass.
    """
    rank = pipeline.ranks[0]
    own = computations.get(rank)
    rows = calls[calls["rank"] == rank]
    sends = np.sort(rows.loc[rows["direction"] == SEND, "start"].to_numpy(np.int64))
    receives = rows.loc[rows["direction"] == RECEIVE, "end"].to_numpy(np.int64)
    if own is None or not len(sends) or not len(receives):
        return False
    first_receive = receives.min()
    later_sends = sends[sends > first_receive]
    if not len(later_sends):
        return False
    limits = np.array([own.start.min(), first_receive], dtype=np.int64)
    ends = np.array([sends[0], later_sends[0]], dtype=np.int64)
    computed = covered(own.start, own.end, limits, ends)
    return bool(computed[1] <= _SAME_WORK_FACTOR * computed[0])


def _interleaved_on_two_stages(transfers: int) -> Schedule:
    """Return the interleaved schedule of two stages with so many transfers each way.

    A stage passes on m micro-batches 2 v - 1 times; m is a multiple of the number of stages.
    """
    for chunks in range(2, _MAX_CHUNKS):
        micro_batches = transfers // (2 * chunks - 1)
        is_exact = micro_batches * (2 * chunks - 1) == transfers
        if micro_batches and is_exact and micro_batches % 2 == 0:
            return Schedule(ScheduleKind.INTERLEAVED, 2, micro_batches, chunks)
    return Schedule(ScheduleKind.UNKNOWN, 2, transfers)


def _kind_of_chain(
    pipeline: Pipeline, forward: _Direction, backward: _Direction, micro_batches: int
) -> ScheduleKind:
    """Return the kind of schedule, by how many micro-batches the first stage has under way."""
    under_way = np.arange(1, len(forward.starts) + 1)
    under_way = under_way - np.searchsorted(np.sort(backward.ends), forward.starts)
    most = int(under_way.max(initial=0))
    stages = len(pipeline.ranks)
    # A gradient may arrive while the last forward pass before it is computed.
    if min(stages - 1, micro_batches) <= most <= stages:
        return ScheduleKind.ONE_FORWARD_ONE_BACKWARD
    if most == micro_batches:
        return ScheduleKind.GPIPE
    return ScheduleKind.UNKNOWN


def _has_late_work(
    pipeline: Pipeline,
    calls: pd.DataFrame,
    computations: dict[int, Intervals],
    micro_batches: int,
) -> bool:
    """Tell whether the last stage computes after it has sent its last gradient."""
    rank = pipeline.ranks[-1]
    own = computations.get(rank)
    is_send = (calls["rank"] == rank) & (calls["direction"] == SEND)
    if own is None or not is_send.any() or not len(own.end):
        return False
    last_send = int(calls.loc[is_send, "start"].max())
    after = np.array([last_send], dtype=np.int64)
    end = np.array([max(int(own.end.max()), last_send)], dtype=np.int64)
    late = int(covered(own.start, own.end, after, end)[0])
    return late >= _MIN_LATE_COMPUTATION * own.length / max(micro_batches, 1)


# Simulation.


class _Work(NamedTuple):
    """A micro-batch at a place of the pipeline: chunk times stages, plus stage."""

    is_forward: bool
    micro_batch: int
    place: int


def simulated_window(
    schedule: Schedule, computation: Float64Array, transfer: Float64Array
) -> float:
    """Return how long an iteration would last, in the unit of the arguments.

    A stage receives when it has done what comes before, and computes when the transfer is over;
    sends do not hold it up. A forward pass takes a third of a micro-batch's computation.

    Args:
        schedule: one that `can_be_simulated`.
        computation: of each stage in the iteration, (p,).
        transfer: how long one between each stage and the next takes, (p - 1,) or, for the
            wrap-around too, (p,).
    """
    stages = schedule.stages
    places = stages * schedule.chunks
    per_work = computation / (schedule.micro_batches * schedule.chunks)
    orders = [work_order(schedule, stage) for stage in range(stages)]
    has_backward = schedule.kind is not ScheduleKind.FORWARD_ONLY
    forward_share = _FORWARD_SHARE if has_backward else 1.0
    done: dict[_Work, float] = {}
    free = [0.0] * stages
    next_work = [0] * stages
    remaining = sum(len(order) for order in orders)
    while remaining:
        before = remaining
        for stage, order in enumerate(orders):
            while next_work[stage] < len(order):
                work = order[next_work[stage]]
                needed = _needed(work, places)
                start = free[stage]
                if needed is not None:
                    if needed not in done:
                        break
                    start = max(start, done[needed])
                    start += _transfer_time(transfer, needed.place, work.place, stages)
                share = forward_share if work.is_forward else 1.0 - forward_share
                free[stage] = start + float(per_work[stage]) * share
                done[work] = free[stage]
                next_work[stage] += 1
                remaining -= 1
        if remaining == before:
            raise ValueError("the work cannot be ordered consistently")
    return max(free)


def _needed(work: _Work, places: int) -> _Work | None:
    """Return the work at another stage that some work needs."""
    if work.is_forward:
        if work.place == 0:
            return None
        return _Work(True, work.micro_batch, work.place - 1)
    if work.place == places - 1:
        return None
    return _Work(False, work.micro_batch, work.place + 1)


def _transfer_time(
    transfer: Float64Array, source: int, target: int, stages: int
) -> float:
    """Return how long a transfer between two neighboring places takes."""
    link = min(source, target) % stages
    return float(transfer[min(link, len(transfer) - 1)])


def work_order(schedule: Schedule, stage: int) -> list[_Work]:
    """Return the order in which a stage does its work."""
    count = schedule.micro_batches
    if schedule.kind is ScheduleKind.INTERLEAVED:
        return _interleaved_order(schedule, stage)
    forward = [_Work(True, number, stage) for number in range(count)]
    if schedule.kind is ScheduleKind.FORWARD_ONLY:
        return forward
    backward = [_Work(False, number, stage) for number in range(count)]
    warmup = count
    if schedule.kind is ScheduleKind.ONE_FORWARD_ONE_BACKWARD:
        warmup = min(schedule.stages - stage - 1, count)
    return _alternating(forward, backward, warmup)


def _alternating(
    forward: Sequence[_Work], backward: Sequence[_Work], warmup: int
) -> list[_Work]:
    """Return some forward work, then one forward and one backward in turn, then the rest."""
    order = list(forward[:warmup])
    for number, work in enumerate(backward):
        order.extend(forward[number + warmup : number + warmup + 1])
        order.append(work)
    return order


def _interleaved_order(schedule: Schedule, stage: int) -> list[_Work]:
    """Return the order of Megatron-LM's interleaved schedule."""
    stages = schedule.stages
    chunks = schedule.chunks
    forward: list[_Work] = []
    backward: list[_Work] = []
    for first in range(0, schedule.micro_batches, stages):
        numbers = range(first, min(first + stages, schedule.micro_batches))
        for chunk in range(chunks):
            place = chunk * stages + stage
            last_place = (chunks - 1 - chunk) * stages + stage
            forward.extend(_Work(True, number, place) for number in numbers)
            backward.extend(_Work(False, number, last_place) for number in numbers)
    warmup = (stages - stage - 1) * 2 + (chunks - 1) * stages
    return _alternating(forward, backward, min(warmup, len(forward)))
