"""The schedule of a pipeline, recognized by the sends and receives of an iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tracelens_ext.distributed.pipeline.intervals import Intervals
from tracelens_ext.distributed.pipeline.schedules import Schedule, ScheduleKind
from tracelens_ext.distributed.pipeline.sends_and_receives import RECEIVE, SEND
from tracelens_ext.distributed.pipeline.stages import Pipeline
from tracelens_ext.distributed.table_rows import whole_numbers
from tracelens_ext.lazy import pd
from tracelens_ext.trace import Int64Array

#: Two sends with less computation between them belong to one micro-batch.
_MIN_COMPUTATION_NS = 1_000
#: In zero-bubble schedules, the last stage still computes gradients of weights after its last send:
#: at least this share of the computation of a micro-batch.
_MIN_LATE_COMPUTATION = 0.2
#: Two forward passes differ by at most this factor. Backward passes take longer.
_SAME_WORK_FACTOR = 1.4
_MAX_CHUNKS = 64


class _Direction(NamedTuple):
    """The micro-batches that one rank sends to another one."""

    micro_batches: int  #: how many; several tensors of a micro-batch count once
    starts: Int64Array  #: of the kernel with the first tensor of each micro-batch, ns
    ends: Int64Array


@dataclass(frozen=True)
class _Iteration:
    """The recorded iteration of a pipeline."""

    pipeline: Pipeline
    calls: pd.DataFrame  #: of `match_transfers`
    computations: Mapping[int, Intervals]  #: rank → its computation in the pipeline

    def calls_of(self, rank: int, direction: str) -> pd.DataFrame:
        """Return the sends or the receives of a rank."""
        is_of_rank = self.calls["rank"] == rank
        has_direction = self.calls["direction"] == direction
        return self.calls[is_of_rank & has_direction]

    def direction(self, source: int, target: int) -> _Direction:
        """Return the micro-batches that one rank sends to another one.

        They are counted by the computation between two sends, or between two receives. If sends
        queue behind one another, no computation separates them, but it still separates their
        receives. So the side with more micro-batches is right.
        """
        sends = self.calls_of(source, SEND)
        sends = sends[sends["target"] == target]
        receives = self.calls_of(target, RECEIVE)
        receives = receives[receives["source"] == source]
        of_source = self.computations.get(source)
        of_target = self.computations.get(target)
        from_sends = _micro_batches_of(
            calls=sends,
            instant="start",
            computation=of_source,
        )
        from_receives = _micro_batches_of(
            calls=receives,
            instant="end",
            computation=of_target,
        )
        if from_receives.micro_batches > from_sends.micro_batches:
            return from_receives
        return from_sends


def recognize(
    pipeline: Pipeline, calls: pd.DataFrame, computations: Mapping[int, Intervals]
) -> Schedule:
    """Return the schedule of an iteration.

    Args:
        pipeline: the pipeline.
        calls: of `match_transfers`, only those of the iteration.
        computations: rank → its computation in the pipeline.
    """
    iteration = _Iteration(
        pipeline=pipeline,
        calls=calls,
        computations=computations,
    )
    ranks = pipeline.ranks
    count = len(ranks)
    forward = []
    backward = []
    for earlier, later in pairwise(ranks):
        forward.append(iteration.direction(earlier, later))
        backward.append(iteration.direction(later, earlier))
    micro_batches = _usual_count(forward)
    if pipeline.is_ring:
        wrapped = iteration.direction(ranks[-1], ranks[0])
        return _interleaved(
            stages=count,
            forward=micro_batches,
            wrapped=wrapped.micro_batches,
        )
    if _usual_count(backward) == 0:
        return Schedule(
            kind=ScheduleKind.FORWARD_ONLY,
            stages=count,
            micro_batches=micro_batches,
        )
    if count == 2 and _computes_two_chunks(iteration):
        return _interleaved_on_two_stages(iteration, micro_batches)
    kind = _kind_of_chain(
        stages=count,
        forward=forward[0],
        backward=backward[0],
        micro_batches=micro_batches,
    )
    is_one_forward_one_backward = kind is ScheduleKind.ONE_FORWARD_ONE_BACKWARD
    if is_one_forward_one_backward and _has_late_work(iteration, micro_batches):
        kind = ScheduleKind.ZERO_BUBBLE
    return Schedule(
        kind=kind,
        stages=count,
        micro_batches=micro_batches,
    )


# Micro-batches.


def _usual_count(directions: Sequence[_Direction]) -> int:
    """Return the median number of micro-batches, without links that recorded none."""
    counts = [
        direction.micro_batches for direction in directions if direction.micro_batches
    ]
    if not counts:
        return 0
    return int(np.median(counts))


def _micro_batches_of(
    calls: pd.DataFrame, instant: str, computation: Intervals | None
) -> _Direction:
    """Return the micro-batches of a link by the kernels of one of its two ranks.

    Args:
        calls: the sends, or the receives, of the link.
        instant: `start` to count by the computation before each kernel starts, or `end`.
        computation: the computation of the rank; None if it has no trace.
    """
    kernels = _kernels_with_parts(calls)
    starts = whole_numbers(kernels, "start")
    ends = whole_numbers(kernels, "end")
    if not len(kernels):
        return _Direction(
            micro_batches=0,
            starts=starts,
            ends=ends,
        )
    # The smallest kernel has the tensors of one micro-batch. A kernel with a multiple of them sends
    # several micro-batches at once: those of two chunks of interleaved stages.
    parts = whole_numbers(kernels, "parts")
    count_in_kernel = parts // parts.min()
    is_first = np.ones(len(kernels), dtype=bool)
    if computation is not None:
        instants = whole_numbers(kernels, instant)
        computed = computation.time_within(instants[:-1], instants[1:])
        is_first[1:] = computed >= _MIN_COMPUTATION_NS
    return _Direction(
        micro_batches=int(count_in_kernel[is_first].sum()),
        starts=starts[is_first],
        ends=ends[is_first],
    )


def _kernels_with_parts(calls: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each kernel, in order of start; `parts` is its number of these calls."""
    kernels = calls.groupby("kernel", sort=False)
    calls = calls.assign(parts=kernels["kernel"].transform("size"))
    first_calls = calls.drop_duplicates("kernel")
    return first_calls.sort_values("start", kind="stable")


# Kinds of schedules.


def _interleaved(stages: int, forward: int, wrapped: int) -> Schedule:
    """Return the schedule of a ring of stages.

    With m micro-batches and v chunks, a stage sends m v forward passes to the next stage, and the
    last stage sends m (v - 1) to the first one. The last chunk of the last stage sends none.

    Args:
        stages: the number of stages.
        forward: the number of transfers from a stage to the next one.
        wrapped: the number of transfers from the last stage to the first one.
    """
    micro_batches = max(forward - wrapped, 0)
    unknown = Schedule(
        kind=ScheduleKind.UNKNOWN,
        stages=stages,
        micro_batches=micro_batches,
    )
    if micro_batches == 0 or forward % micro_batches:
        return unknown
    chunks = forward // micro_batches
    if chunks < 2:
        return unknown
    return Schedule(
        kind=ScheduleKind.INTERLEAVED,
        stages=stages,
        micro_batches=micro_batches,
        chunks=chunks,
    )


def _computes_two_chunks(iteration: _Iteration) -> bool:
    """Tell whether the first of two stages runs the second chunk of what it first receives.

    With two stages, the last stage sends to the first one in every schedule. In an interleaved
    schedule, the first stage computes another forward pass between its first receive and its next
    send. In a plain schedule, it computes a backward pass before that, which takes longer.
    """
    rank = iteration.pipeline.ranks[0]
    computation = iteration.computations.get(rank)
    sends = iteration.calls_of(rank, SEND)
    receives = iteration.calls_of(rank, RECEIVE)
    if computation is None or not len(sends) or not len(receives):
        return False
    first_receive = receives["end"].min()
    later_sends = sends[sends["start"] > first_receive]
    if not len(later_sends):
        return False
    starts = [computation.start.min(), first_receive]
    ends = [sends["start"].min(), later_sends["start"].min()]
    first_pass, second_pass = computation.time_within(
        np.array(starts, dtype=np.int64),
        np.array(ends, dtype=np.int64),
    )
    return bool(second_pass <= _SAME_WORK_FACTOR * first_pass)


def _interleaved_on_two_stages(iteration: _Iteration, transfers: int) -> Schedule:
    """Return the interleaved schedule of two stages.

    With v chunks, a stage sends each of m micro-batches 2 v - 1 times, and m is a multiple of the
    number of stages. If several v are possible, the passes of the first stage before its first
    backward pass decide: they are 2 v or 2 v + 1.

    Args:
        iteration: the recorded iteration.
        transfers: the number of micro-batches that each stage sends to the other one.
    """
    possible = []
    for chunks in range(2, _MAX_CHUNKS):
        times = 2 * chunks - 1
        micro_batches = transfers // times
        is_exact = micro_batches * times == transfers
        is_even = micro_batches % 2 == 0
        if micro_batches and is_exact and is_even:
            possible.append(
                Schedule(
                    kind=ScheduleKind.INTERLEAVED,
                    stages=2,
                    micro_batches=micro_batches,
                    chunks=chunks,
                )
            )
    if not possible:
        return Schedule(
            kind=ScheduleKind.UNKNOWN,
            stages=2,
            micro_batches=transfers,
        )
    likely_chunks = _first_forward_passes(iteration) // 2
    for schedule in possible:
        if schedule.chunks == likely_chunks:
            return schedule
    return possible[0]


def _first_forward_passes(iteration: _Iteration) -> int:
    """Return the number of passes of the first stage before its first backward pass.

    A pass ends with a send. A backward pass takes longer than the first pass.
    """
    rank = iteration.pipeline.ranks[0]
    computation = iteration.computations[rank]
    sends = _micro_batches_of(
        calls=iteration.calls_of(rank, SEND),
        instant="start",
        computation=computation,
    )
    ends = sends.starts
    starts = np.append(computation.start[:1], ends[:-1])
    lengths = computation.time_within(starts, ends)
    is_longer = lengths > _SAME_WORK_FACTOR * lengths[0]
    return int(np.argmax(is_longer)) if is_longer.any() else len(lengths)


def _kind_of_chain(
    stages: int, forward: _Direction, backward: _Direction, micro_batches: int
) -> ScheduleKind:
    """Return the kind of schedule by the largest number of micro-batches that are under way.

    A micro-batch is under way from the first stage's send until its gradient comes back. With 1F1B
    it is at most one for each stage, with GPipe all micro-batches.
    """
    sent_count = np.arange(len(forward.starts)) + 1
    gradient_ends = np.sort(backward.ends)
    returned_count = np.searchsorted(gradient_ends, forward.starts)
    under_way = sent_count - returned_count
    most_under_way = int(under_way.max(initial=0))
    # One less if a gradient arrives during the last forward pass of the warm-up.
    fewest_expected = min(stages - 1, micro_batches)
    if fewest_expected <= most_under_way <= stages:
        return ScheduleKind.ONE_FORWARD_ONE_BACKWARD
    if most_under_way == micro_batches:
        return ScheduleKind.GPIPE
    return ScheduleKind.UNKNOWN


def _has_late_work(iteration: _Iteration, micro_batches: int) -> bool:
    """Tell whether the last stage still computes gradients of weights after its last send."""
    rank = iteration.pipeline.ranks[-1]
    computation = iteration.computations.get(rank)
    sends = iteration.calls_of(rank, SEND)
    if computation is None or not len(sends):
        return False
    last_send = int(sends["start"].max())
    end = int(computation.end.max(initial=last_send))
    late = computation.clipped(last_send, end)
    of_micro_batch = computation.length / max(micro_batches, 1)
    return late.length >= _MIN_LATE_COMPUTATION * of_micro_batch
