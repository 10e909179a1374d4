"""Schedules of pipelines: their ideal bubble, and how long an iteration with one lasts.

With p stages, m micro-batches and v chunks of a stage, and stages that take equally long, the
bubble is this share of an iteration:

* 1F1B and GPipe: (p - 1) / (m + p - 1) (Huang et al., GPipe, 2019, section 2.3);
* interleaved 1F1B: (p - 1) / (v m + p - 1) (Narayanan et al., Efficient Large-Scale Language Model
  Training on GPU Clusters, 2021, section 2.2.2);
* zero bubble (ZB-H1), where the gradients of inputs and of weights take as long as the forward
  pass: (p - 1) / (3 m + p - 1) (Qi et al., Zero Bubble Pipeline Parallelism, 2023, table 1).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from tracelens_ext.trace import Float64Array

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
    def forward_share(self) -> float:
        """The part of a micro-batch's computation that is its forward pass, by estimate."""
        if self.kind is ScheduleKind.FORWARD_ONLY:
            return 1.0
        return _FORWARD_SHARE

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

    Raises:
        ValueError: each stage waits for another one.
    """
    run = _Run(
        schedule=schedule,
        computation=computation,
        transfer=transfer,
    )
    stages = range(schedule.stages)
    while not run.is_over:
        progress = [run.advance(stage) for stage in stages]
        if not any(progress):
            raise ValueError("the work cannot be ordered consistently")
    return max(run.free_at)


class _Run:
    """An iteration under way in a simulation."""

    def __init__(
        self, schedule: Schedule, computation: Float64Array, transfer: Float64Array
    ) -> None:
        stages = range(schedule.stages)
        work_of_stage = schedule.micro_batches * schedule.chunks
        self._schedule = schedule
        self._transfer = transfer
        self._length_of_work = computation / work_of_stage
        self._forward_share = schedule.forward_share
        self._remaining = [deque(work_order(schedule, stage)) for stage in stages]
        self._done_at: dict[_Work, float] = {}
        self.free_at = [
            0.0
        ] * schedule.stages  #: when each stage has done its work so far

    @property
    def is_over(self) -> bool:
        """True if no work is left."""
        return not any(self._remaining)

    def advance(self, stage: int) -> bool:
        """Do the work of a stage until it has to wait; tell whether it did any."""
        remaining = self._remaining[stage]
        has_worked = False
        while remaining:
            start = self._start_of(remaining[0], stage)
            if start is None:
                break
            work = remaining.popleft()
            end = start + self._length(work, stage)
            self.free_at[stage] = end
            self._done_at[work] = end
            has_worked = True
        return has_worked

    def _start_of(self, work: _Work, stage: int) -> float | None:
        """Return when some work can begin; None while what it needs is not done."""
        free = self.free_at[stage]
        places = self._schedule.stages * self._schedule.chunks
        needed = _needed(work, places)
        if needed is None:
            return free
        sent = self._done_at.get(needed)
        if sent is None:
            return None
        transfer = _transfer_time(
            transfer=self._transfer,
            source=needed.place,
            target=work.place,
            stages=self._schedule.stages,
        )
        return max(free, sent) + transfer

    def _length(self, work: _Work, stage: int) -> float:
        share = self._forward_share
        if not work.is_forward:
            share = 1.0 - share
        return float(self._length_of_work[stage]) * share


def _needed(work: _Work, places: int) -> _Work | None:
    """Return the work at another stage that some work needs."""
    if work.is_forward:
        if work.place == 0:
            return None
        return _Work(
            is_forward=True,
            micro_batch=work.micro_batch,
            place=work.place - 1,
        )
    if work.place == places - 1:
        return None
    return _Work(
        is_forward=False,
        micro_batch=work.micro_batch,
        place=work.place + 1,
    )


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
    forward = [
        _Work(
            is_forward=True,
            micro_batch=number,
            place=stage,
        )
        for number in range(count)
    ]
    if schedule.kind is ScheduleKind.FORWARD_ONLY:
        return forward
    backward = [
        _Work(
            is_forward=False,
            micro_batch=number,
            place=stage,
        )
        for number in range(count)
    ]
    warmup = count
    if schedule.kind is ScheduleKind.ONE_FORWARD_ONE_BACKWARD:
        warmup = min(schedule.stages - stage - 1, count)
    return _alternating(
        forward=forward,
        backward=backward,
        warmup=warmup,
    )


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
    last_chunk = schedule.chunks - 1
    forward: list[_Work] = []
    backward: list[_Work] = []
    for first in range(0, schedule.micro_batches, stages):
        after_last = min(first + stages, schedule.micro_batches)
        numbers = range(first, after_last)
        for chunk in range(schedule.chunks):
            place = chunk * stages + stage
            backward_place = (last_chunk - chunk) * stages + stage
            forward += [
                _Work(
                    is_forward=True,
                    micro_batch=number,
                    place=place,
                )
                for number in numbers
            ]
            backward += [
                _Work(
                    is_forward=False,
                    micro_batch=number,
                    place=backward_place,
                )
                for number in numbers
            ]
    warmup = (stages - stage - 1) * 2 + last_chunk * stages
    warmup = min(warmup, len(forward))
    return _alternating(
        forward=forward,
        backward=backward,
        warmup=warmup,
    )
