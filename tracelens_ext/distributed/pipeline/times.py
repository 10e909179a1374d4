"""Where the time of each stage goes in an iteration.

An iteration of a pipeline lasts from the first computation of its first stage to the end of the
last computation of any stage, before gradients are reduced and the optimizer steps. Each
nanosecond of a stage belongs to one of these kinds:

* computation: a kernel computes, whatever else runs;
* wait and transfer: no kernel computes, until a send or receive ends. The stage waits until the
  other rank sends or receives too, and then data is transferred;
* warm-up: the stage waits for its first micro-batch;
* drain: the stage has computed its last micro-batch, and other stages have not;
* the rest: gaps between kernels, and other communication.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from tracelens_ext.distributed.pipeline.activity import (
    COMMUNICATION,
    COMPUTATION,
    OPTIMIZER,
)
from tracelens_ext.distributed.pipeline.intervals import Intervals, window
from tracelens_ext.distributed.pipeline.sends_and_receives import RECEIVE
from tracelens_ext.distributed.pipeline.stages import Pipeline
from tracelens_ext.distributed.table_rows import table_rows, whole_numbers
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, BoolArray, Int64Array

#: A computation may begin this long before the recorded end of the kernel that it waits for.
_TOLERANCE_NS = 25_000
#: A send runs beside other work if other work covers this share of it.
_MIN_COVERED = 0.5
#: Ranks do not wait for their sends if this share of all sends runs beside other work. The share is
#: small, because some schedules have such sends only in the warm-up of the first stage.
_MIN_SHARE_OF_SENDS = 0.002
#: A collective is part of a backward pass if computation covers at least this share of it.
_MIN_COVERED_IN_BACKWARD = 0.5


class TimeKind(StrEnum):
    """A kind of time of a stage."""

    COMPUTATION = "computation"
    TRANSFER = "transfer"
    WAIT_PREVIOUS = "wait_previous"
    WAIT_NEXT = "wait_next"
    WARMUP = "warmup"
    DRAIN = "drain"
    REST = "rest"


#: The kinds of time that are the bubble.
BUBBLE_KINDS = (
    TimeKind.WAIT_PREVIOUS,
    TimeKind.WAIT_NEXT,
    TimeKind.WARMUP,
    TimeKind.DRAIN,
)


@dataclass(frozen=True)
class StageTimes:
    """Where the time of a rank goes in an iteration of its pipeline."""

    stage: int
    rank: int
    iteration: str
    #: when the iteration of the pipeline begins, ns on the common clock
    window_start: int
    window_end: int
    intervals: Mapping[TimeKind, Intervals]  #: of each kind except the rest

    @property
    def window(self) -> int:
        """How long the iteration of the pipeline lasts, ns."""
        return self.window_end - self.window_start

    def time(self, kind: TimeKind) -> int:
        """Return the time of a kind, ns."""
        if kind is not TimeKind.REST:
            return self.intervals[kind].length
        return self.window - sum(part.length for part in self.intervals.values())

    @property
    def bubble(self) -> int:
        """How long the rank waits for the schedule, ns."""
        return sum(self.time(kind) for kind in BUBBLE_KINDS)


@dataclass(frozen=True)
class _RankIteration:
    """What a rank recorded of an iteration, until its part in the pipeline ends."""

    stage: int
    rank: int
    calls: pd.DataFrame  #: its sends and receives; a batch has a row for each of them
    computation: Intervals  #: before gradients are reduced and the optimizer steps
    communication: Intervals  #: communication of other groups before `last_end`
    last_end: int  #: the end of the last computation, ns


def groups_within_pipeline(
    calls: pd.DataFrame, activity: pd.DataFrame
) -> dict[int, set[str]]:
    """Return the process groups in which each rank communicates between micro-batches.

    Groups of tensor parallelism do, for example. Groups that reduce gradients communicate after the
    last micro-batch only.

    Args:
        calls: of `match_transfers`.
        activity: `pipeline_activity`, on the common clock.
    """
    keys = ["rank", "iteration"]
    receives = calls[calls["direction"] == RECEIVE]
    last_receive = receives.groupby(keys)["end"].max()
    last_receive = last_receive.rename("last_receive")
    is_other = activity["kind"] == COMMUNICATION
    others = activity[is_other].join(last_receive, on=keys)
    within = others[others["start"] < others["last_receive"]]
    pairs = within[["rank", "group"]].drop_duplicates()
    groups: dict[int, set[str]] = {}
    for row in table_rows(pairs):
        groups.setdefault(int(row.rank), set()).add(row.group)
    return groups


def iteration_times(
    pipeline: Pipeline,
    calls: pd.DataFrame,
    activity: pd.DataFrame,
    iteration: str,
    groups_within: Mapping[int, set[str]],
) -> list[StageTimes]:
    """Return where the time of each rank goes that recorded an iteration of a pipeline.

    Args:
        pipeline: the pipeline.
        calls: of `match_transfers`, only those of the iteration.
        activity: `pipeline_activity` of the iteration, on the common clock.
        iteration: the number of the iteration.
        groups_within: of `groups_within_pipeline`.

    Returns:
        In the order of the stages; an empty list if fewer than two ranks recorded the iteration.
    """
    recorded_ranks = []
    for stage, rank in enumerate(pipeline.ranks):
        own_calls = calls[calls["rank"] == rank]
        own_activity = activity[activity["rank"] == rank]
        if len(own_calls) and (own_activity["kind"] == COMPUTATION).any():
            groups = groups_within.get(rank, set())
            recorded_ranks.append(
                _iteration_of_rank(
                    pipeline=pipeline,
                    stage=stage,
                    calls=own_calls,
                    activity=own_activity,
                    groups_within=groups,
                )
            )
    if len(recorded_ranks) < 2:
        return []
    first_rank = recorded_ranks[0]
    window_start = int(first_rank.computation.start.min())
    window_end = max(rank.last_end for rank in recorded_ranks)
    unawaited_sends = _unawaited_sends(recorded_ranks)
    times = []
    for rank_iteration in recorded_ranks:
        parts = _intervals_by_kind(
            pipeline=pipeline,
            rank=rank_iteration,
            window_start=window_start,
            window_end=window_end,
            unawaited_sends=unawaited_sends,
        )
        times.append(
            StageTimes(
                stage=rank_iteration.stage,
                rank=rank_iteration.rank,
                iteration=iteration,
                window_start=window_start,
                window_end=window_end,
                intervals=parts,
            )
        )
    return times


def _iteration_of_rank(
    pipeline: Pipeline,
    stage: int,
    calls: pd.DataFrame,
    activity: pd.DataFrame,
    groups_within: set[str],
) -> _RankIteration:
    """Return what a rank recorded of an iteration, until its part in the pipeline ended."""
    kind = activity["kind"]
    computation = Intervals.of_rows(activity[kind == COMPUTATION])
    communication = Intervals.of_rows(activity[kind == COMMUNICATION])
    receives = calls[calls["direction"] == RECEIVE]
    awaited = receives if len(receives) else calls
    last_receive = int(awaited["end"].max())
    end = _end_of_pipeline(
        activity=activity,
        computation=computation,
        after=last_receive,
        groups_within=groups_within,
    )
    computation = computation.before(end)
    last_end = last_receive
    if len(computation.end):
        last_end = int(computation.end.max())
    return _RankIteration(
        stage=stage,
        rank=pipeline.ranks[stage],
        calls=calls,
        computation=computation,
        communication=communication.before(last_end),
        last_end=last_end,
    )


def _end_of_pipeline(
    activity: pd.DataFrame,
    computation: Intervals,
    after: int,
    groups_within: set[str],
) -> int:
    """Return when the reduction of gradients or the step of the optimizer begins, ns.

    A collective reduces gradients if its group does not communicate between micro-batches. If most
    of the collective runs under computation, the backward pass is not over yet.

    Args:
        activity: `pipeline_activity` of the rank and iteration.
        computation: all computation of the rank in the iteration.
        after: the earliest possible time, ns.
        groups_within: of the rank, of `groups_within_pipeline`.
    """
    late = activity[activity["start"] >= after]
    steps = late[late["kind"] == OPTIMIZER]
    others = late[late["kind"] == COMMUNICATION]
    reductions = others[~others["group"].isin(groups_within)]
    start = whole_numbers(reductions, "start")
    end = whole_numbers(reductions, "end")
    hidden = computation.time_within(start, end)
    is_exposed = hidden < _MIN_COVERED_IN_BACKWARD * (end - start)
    ends = np.append(whole_numbers(steps, "start"), start[is_exposed])
    return int(ends.min(initial=np.iinfo(np.int64).max))


def _unawaited_sends(ranks: Sequence[_RankIteration]) -> set[bool]:
    """Return which sends ranks do not wait for: those of tensors, or of announced shapes.

    Such sends run while their rank computes, or receives with another kernel. Frameworks that
    announce the shape of each tensor may wait for the announcement and not for the tensor.

    Returns:
        The values of `is_shape` (of `match_transfers`) of the sends that ranks do not wait for.
    """
    parts = []
    for rank in ranks:
        kernels = _kernels(rank.calls)
        receives = Intervals.of_rows(kernels[kernels["receives"]])
        other_work = Intervals.joined(
            start=np.append(rank.computation.start, receives.start),
            end=np.append(rank.computation.end, receives.end),
        )
        sends = kernels[~kernels["receives"]]
        start = whole_numbers(sends, "start")
        end = whole_numbers(sends, "end")
        hidden = other_work.time_within(start, end)
        is_covered = hidden > _MIN_COVERED * (end - start)
        parts.append(sends.assign(is_covered=is_covered))
    all_sends = pd.concat(parts)
    covered_share = all_sends.groupby("is_shape")["is_covered"].mean()
    is_beside = covered_share > _MIN_SHARE_OF_SENDS
    return {bool(is_shape) for is_shape in is_beside.index[is_beside]}


# The partition.


class _Regions(NamedTuple):
    """The time without computation for which each kernel is responsible, (n,).

    From `start` to `begin` the rank waits for the other rank; from `begin` to `end` data is
    transferred. All three are equal for a kernel that holds nothing up.
    """

    start: Int64Array
    begin: Int64Array
    end: Int64Array


def _intervals_by_kind(
    pipeline: Pipeline,
    rank: _RankIteration,
    window_start: int,
    window_end: int,
    unawaited_sends: set[bool],
) -> dict[TimeKind, Intervals]:
    """Return the intervals of each kind of time of a rank, except the rest.

    Args:
        pipeline: the pipeline of the rank.
        rank: what the rank recorded.
        window_start: when the iteration of the pipeline begins, ns.
        window_end: when the iteration ends, ns.
        unawaited_sends: of `_unawaited_sends`.
    """
    whole = window(window_start, window_end)
    computation = rank.computation.clipped(window_start, window_end)
    not_computing = whole.without(computation)
    idle = not_computing.without(rank.communication)
    kernels = _kernels(rank.calls)
    is_unawaited = ~kernels["receives"] & kernels["is_shape"].isin(unawaited_sends)
    kernels = kernels[~is_unawaited].reset_index(drop=True)
    regions = _regions_of_kernels(idle, kernels)
    transfers = Intervals(start=regions.begin, end=regions.end)
    transfers = transfers.clipped(window_start, window_end)
    first_transfer = _first_transfer(
        pipeline=pipeline,
        rank=rank,
        window_start=window_start,
    )
    drain_start = max(rank.last_end, window_start)
    warmup = not_computing.clipped(window_start, first_transfer)
    drain = not_computing.clipped(drain_start, window_end)
    waits = Intervals(start=regions.start, end=regions.begin)
    is_for_previous = _waits_for_previous(
        pipeline=pipeline,
        stage=rank.stage,
        kernels=kernels,
    )
    waits_for_previous = waits.selected(is_for_previous).in_order()
    waits_for_next = waits.selected(~is_for_previous).in_order()
    return {
        TimeKind.COMPUTATION: computation,
        TimeKind.TRANSFER: transfers.in_order(),
        TimeKind.WAIT_PREVIOUS: waits_for_previous.clipped(first_transfer, drain_start),
        TimeKind.WAIT_NEXT: waits_for_next.clipped(first_transfer, drain_start),
        TimeKind.WARMUP: warmup.without(transfers),
        TimeKind.DRAIN: drain.without(transfers),
    }


def _kernels(calls: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each kernel: its send or receive whose transfer ends last.

    Returns:
        These calls with `receives`, true if any call of the kernel is a receive.
    """
    is_receive = calls["direction"] == RECEIVE
    of_kernel = is_receive.groupby(calls["kernel"])
    calls = calls.assign(receives=of_kernel.transform("any"))
    decisive = calls[calls["is_decisive"]]
    return decisive.drop_duplicates("kernel").reset_index(drop=True)


def _regions_of_kernels(idle: Intervals, kernels: pd.DataFrame) -> _Regions:
    """Return the part of a gap for which each kernel is responsible, (n,).

    The kernel that ends last in a gap is responsible for all of its time in the gap. A kernel that
    ends earlier is responsible until the later kernel starts. A kernel that ends while the rank
    computes is responsible for nothing.

    Args:
        idle: the gaps, in which the rank neither computes nor communicates in other groups.
        kernels: sends and receives, of `_kernels`.
    """
    kernel_start = whole_numbers(kernels, "start")
    kernel_end = whole_numbers(kernels, "end")
    region_start = kernel_end.copy()
    region_end = kernel_end.copy()
    gap_of_kernel = _gap_of_kernels(idle, kernel_end)
    by_end = np.argsort(kernel_end, kind="stable")
    in_gaps = by_end[gap_of_kernel[by_end] != NONE]
    gap = gap_of_kernel[in_gaps]
    start = np.maximum(kernel_start[in_gaps], idle.start[gap])
    end = np.minimum(kernel_end[in_gaps], idle.end[gap])
    next_start = _earliest_start_after(kernel_start[in_gaps], gap)
    end = np.minimum(end, next_start)
    is_governing = end > start
    governing = in_gaps[is_governing]
    region_start[governing] = start[is_governing]
    region_end[governing] = end[is_governing]
    begin = whole_numbers(kernels, "begin")
    return _Regions(
        start=region_start,
        begin=np.clip(begin, region_start, region_end),
        end=region_end,
    )


def _gap_of_kernels(idle: Intervals, end: Int64Array) -> Int64Array:
    """Return the index of the gap in which each kernel ends, `NONE` if it ends in no gap, (n,)."""
    if not len(idle.start):
        return np.full(len(end), NONE, dtype=np.int64)
    gap = np.searchsorted(idle.start, end) - 1
    is_after_start = gap >= 0
    gap_end = idle.end[np.maximum(gap, 0)]
    is_before_end = end <= gap_end + _TOLERANCE_NS
    return np.where(is_after_start & is_before_end, gap, NONE)


def _earliest_start_after(start: Int64Array, gap: Int64Array) -> Int64Array:
    """Return the earliest start among the kernels that end later in the same gap, (k,).

    For the last kernel of a gap, it is the largest integer. If three kernels of a gap start at
    10, 30 and 20, in the order of their ends, the result is 20, 20 and the largest integer.

    Args:
        start: when each kernel starts; kernels are in the order of their ends.
        gap: the gap of each kernel.
    """
    latest_first = pd.DataFrame({"start": start, "gap": gap})[::-1]
    starts = latest_first.groupby("gap")["start"]
    earliest = starts.cummin()
    gaps = earliest.groupby(latest_first["gap"])
    of_later = gaps.shift(
        periods=1,
        fill_value=np.iinfo(np.int64).max,
    )
    result: Int64Array = of_later[::-1].to_numpy(np.int64)
    return result


def _waits_for_previous(
    pipeline: Pipeline, stage: int, kernels: pd.DataFrame
) -> BoolArray:
    """Return which kernels exchange data with the previous stage, (n,)."""
    previous = stage - 1
    if pipeline.is_ring:
        previous %= len(pipeline.ranks)
    if previous < 0:
        return np.zeros(len(kernels), dtype=bool)
    is_previous: BoolArray = whole_numbers(kernels, "peer") == pipeline.ranks[previous]
    return is_previous


def _first_transfer(pipeline: Pipeline, rank: _RankIteration, window_start: int) -> int:
    """Return when the transfer of the first micro-batch to a stage begins, ns.

    For the first stage, it is the begin of the window.
    """
    if rank.stage == 0:
        return window_start
    calls = rank.calls
    previous = pipeline.ranks[rank.stage - 1]
    is_receive = calls["direction"] == RECEIVE
    is_from_previous = calls["peer"] == previous
    receives = calls[is_receive & is_from_previous]
    first = int(rank.computation.start.min())
    if len(receives):
        first = int(receives["begin"].min())
    return max(first, window_start)
