"""Schedules of pipelines: their ideal bubbles, and a simulation of an iteration.

With p stages, m micro-batches and v chunks of a stage, the bubble is this share of an iteration if
all stages take equally long:

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

#: The assumed part of a micro-batch's computation that is its forward pass.
_FORWARD_SHARE = 1 / 3


class ScheduleKind(StrEnum):
    """The order in which stages do their work."""

    ONE_FORWARD_ONE_BACKWARD = "1F1B"
    GPIPE = "GPipe"
    INTERLEAVED = "interleaved 1F1B"
    ZERO_BUBBLE = "zero bubble"
    FORWARD_ONLY = "forward only"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Schedule:
    """The schedule of an iteration."""

    kind: ScheduleKind
    stages: int
    micro_batches: int
    chunks: int = 1  #: the parts of the model that each stage has

    @property
    def ideal_bubble_percent(self) -> float:
        """The bubble as a share of the iteration, if all stages take equally long.

        It is NaN for an unknown schedule.
        """
        waiting_stages = self.stages - 1
        work = self.micro_batches * self.chunks
        if self.kind is ScheduleKind.UNKNOWN or not work:
            return np.nan
        if self.kind is ScheduleKind.ZERO_BUBBLE:
            work *= 3
        return 100.0 * waiting_stages / (work + waiting_stages)

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
            # Each chunk runs groups of as many micro-batches as there are stages.
            return self.micro_batches % self.stages == 0
        return self.kind in (
            ScheduleKind.ONE_FORWARD_ONE_BACKWARD,
            ScheduleKind.GPIPE,
            ScheduleKind.FORWARD_ONLY,
        )


# Simulation.


class _Work(NamedTuple):
    """The forward or backward pass of a micro-batch through one chunk of one stage.

    Activations pass through the places 0, 1, 2 and so on. With p stages, chunk c of stage s is
    place c p + s.
    """

    is_forward: bool
    micro_batch: int
    place: int


def simulated_window(
    schedule: Schedule, computation: Float64Array, transfer: Float64Array
) -> float:
    """Return how long an iteration would last, in the unit of the arguments.

    A stage begins to receive when it has done its previous work, and computes when the transfer is
    over. Sends do not hold it up. A forward pass takes a third of a micro-batch's computation.

    Args:
        schedule: a schedule that `can_be_simulated`.
        computation: the computation of each stage in the iteration, (p,).
        transfer: the duration of a transfer between each stage and the next one, (p - 1,). If the
            last stage sends to the first one, (p,).

    Raises:
        ValueError: all stages wait for one another.
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
    """A simulated iteration that is under way."""

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
        #: when each stage has done its work so far
        self.free_at = [0.0] * schedule.stages

    @property
    def is_over(self) -> bool:
        """True if no work is left."""
        return not any(self._remaining)

    def advance(self, stage: int) -> bool:
        """Do the work of a stage until it has to wait; return whether it did any."""
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
        """Return when a stage can begin some work; None if its input is not computed yet."""
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
    """Return the work that produces the input of some work; None for the first of a direction."""
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
    """Return the forward work of the warm-up, then forward and backward work in turn."""
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
