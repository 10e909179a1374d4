"""Where the time of each stage goes in an iteration.

An iteration of a pipeline lasts from the first computation of its first stage to the end of the
last computation of any stage, before gradients are reduced and the optimizer steps. Each
nanosecond of a stage is one of these:

* computation: kernels that compute, whatever else runs;
* transfer and wait: the GPU computes nothing, and what ends that is a send or receive. It waits
  until the other rank is there too, and then transfers;
* warm-up: it waits for the first micro-batch;
* drain: it has computed the last micro-batch, and other stages have not;
* the rest: gaps between kernels, and other communication.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from tracelens_ext.distributed.pipeline.extract import (
    COMMUNICATION,
    COMPUTATION,
    OPTIMIZER,
    RECEIVE,
)
from tracelens_ext.distributed.pipeline.intervals import Intervals, window
from tracelens_ext.distributed.pipeline.stages import Pipeline
from tracelens_ext.distributed.table_rows import table_rows, whole_numbers
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, BoolArray, Int64Array

#: A computation may begin so long before the kernel that it waits for is recorded to end.
_TOLERANCE_NS = 25_000
#: A send that so much of is under computation does not hold it up. The first stage has some of them
#: in its warm-up, if any; this share of all sends shows it.
_MIN_COVERED = 0.5
_MIN_SHARE_OF_SENDS = 0.002
#: Other communication with less than this under computation is not part of a backward pass.
_MAX_COVERED = 0.5


class TimeKind(StrEnum):
    """What a stage does."""

    COMPUTATION = "computation"
    TRANSFER = "transfer"
    WAIT_PREVIOUS = "wait_previous"
    WAIT_NEXT = "wait_next"
    WARMUP = "warmup"
    DRAIN = "drain"
    REST = "rest"


BUBBLE_KINDS = (
    TimeKind.WAIT_PREVIOUS,
    TimeKind.WAIT_NEXT,
    TimeKind.WARMUP,
    TimeKind.DRAIN,
)


@dataclass(frozen=True)
class StageTimes:
    """What a rank does in an iteration of its pipeline."""

    stage: int
    rank: int
    iteration: str
    window_start: int  #: ns on the common clock
    window_end: int
    intervals: Mapping[TimeKind, Intervals]  #: of each kind but the rest

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
    """What a rank recorded of an iteration, and where its part in the pipeline ends."""

    stage: int
    rank: int
    calls: pd.DataFrame  #: its sends and receives; one row for each part of a batch
    computation: Intervals  #: without what comes after the pipeline
    communication: Intervals  #: other communication before the end
    last_end: int  #: of the computation, ns


def groups_within_pipeline(
    calls: pd.DataFrame, activity: pd.DataFrame
) -> dict[int, set[str]]:
    """Return the process groups, by rank, in which ranks communicate between micro-batches.

    Those of tensor parallelism, for example; gradients are reduced later.

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
    """Return where the time goes on each rank that recorded an iteration of a pipeline.

    Args:
        pipeline: whose ranks.
        calls: of `match_transfers`, of the iteration.
        activity: `pipeline_activity` of the iteration, on the common clock.
        iteration: its number.
        groups_within: of `groups_within_pipeline`.
    """
    recorded = []
    for stage, rank in enumerate(pipeline.ranks):
        own_calls = calls[calls["rank"] == rank]
        own_activity = activity[activity["rank"] == rank]
        if len(own_calls) and (own_activity["kind"] == COMPUTATION).any():
            groups = groups_within.get(rank, set())
            recorded.append(
                _recorded(
                    pipeline=pipeline,
                    stage=stage,
                    calls=own_calls,
                    activity=own_activity,
                    groups_within=groups,
                )
            )
    if len(recorded) < 2:
        return []
    first = recorded[0]
    window_start = int(first.computation.start.min())
    window_end = max(rank.last_end for rank in recorded)
    free_sends = _beside_other_work(recorded)
    times = []
    for rank_iteration in recorded:
        parts = _partition(
            pipeline=pipeline,
            rank=rank_iteration,
            window_start=window_start,
            window_end=window_end,
            free_sends=free_sends,
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


def _recorded(
    pipeline: Pipeline,
    stage: int,
    calls: pd.DataFrame,
    activity: pd.DataFrame,
    groups_within: set[str],
) -> _RankIteration:
    """Return what a rank did until its part in the pipeline ended."""
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

    A collective of a group that has none between micro-batches reduces gradients. Those that
    overlap with the backward pass do not end it.
    """
    late = activity[activity["start"] >= after]
    steps = late[late["kind"] == OPTIMIZER]
    others = late[late["kind"] == COMMUNICATION]
    reductions = others[~others["group"].isin(groups_within)]
    start = whole_numbers(reductions, "start")
    end = whole_numbers(reductions, "end")
    hidden = computation.time_within(start, end)
    is_exposed = hidden < _MAX_COVERED * (end - start)
    ends = np.append(whole_numbers(steps, "start"), start[is_exposed])
    return int(ends.min(initial=np.iinfo(np.int64).max))


def _beside_other_work(recorded: Sequence[_RankIteration]) -> set[bool]:
    """Return which kinds of sends ranks do not wait for: those of data, or those of shapes.

    Such sends run while their rank computes or receives with another kernel. Frameworks that
    announce the shape of each tensor may wait for the announcement, but not for the tensor.

    Returns:
        The values of `is_shape` (of `match_transfers`) for which it is so.
    """
    parts = []
    for rank in recorded:
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
    """The idle time that ends with a send or receive, a region for each kernel, (n,)."""

    start: Int64Array
    begin: Int64Array  #: of the transfer
    end: Int64Array


def _partition(
    pipeline: Pipeline,
    rank: _RankIteration,
    window_start: int,
    window_end: int,
    free_sends: set[bool],
) -> dict[TimeKind, Intervals]:
    """Return the intervals of each kind of time."""
    whole = window(window_start, window_end)
    computation = rank.computation.clipped(window_start, window_end)
    not_computing = whole.without(computation)
    idle = not_computing.without(rank.communication)
    kernels = _kernels(rank.calls)
    is_free = ~kernels["receives"] & kernels["is_shape"].isin(free_sends)
    kernels = kernels[~is_free].reset_index(drop=True)
    regions = _governed(idle, kernels)
    transfers = Intervals(start=regions.begin, end=regions.end)
    transfers = transfers.clipped(window_start, window_end)
    filled = _first_transfer(
        pipeline=pipeline,
        rank=rank,
        window_start=window_start,
    )
    drain_start = max(rank.last_end, window_start)
    warmup = not_computing.clipped(window_start, filled)
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
        TimeKind.WAIT_PREVIOUS: waits_for_previous.clipped(filled, drain_start),
        TimeKind.WAIT_NEXT: waits_for_next.clipped(filled, drain_start),
        TimeKind.WARMUP: warmup.without(transfers),
        TimeKind.DRAIN: drain.without(transfers),
    }


def _kernels(calls: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each kernel: that of the part that it waited for longest.

    Returns:
        The calls with `receives`, true if a part of the kernel is a receive.
    """
    is_receive = calls["direction"] == RECEIVE
    of_kernel = is_receive.groupby(calls["kernel"])
    calls = calls.assign(receives=of_kernel.transform("any"))
    decisive = calls[calls["is_decisive"]]
    return decisive.drop_duplicates("kernel").reset_index(drop=True)


def _governed(idle: Intervals, kernels: pd.DataFrame) -> _Regions:
    """Return the idle time that each kernel ends, (n,); empty where it ends none.

    The kernel that ends last in a gap holds the rank up for all of its time there; one that ends
    before it does so only until the other starts. A kernel that ends while the rank computes holds
    nothing up.
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
    """Return in which gap each kernel ends, `NONE` for none, (n,)."""
    if not len(idle.start):
        return np.full(len(end), NONE, dtype=np.int64)
    gap = np.searchsorted(idle.start, end) - 1
    is_after_start = gap >= 0
    gap_end = idle.end[np.maximum(gap, 0)]
    is_before_end = end <= gap_end + _TOLERANCE_NS
    return np.where(is_after_start & is_before_end, gap, NONE)


def _earliest_start_after(start: Int64Array, gap: Int64Array) -> Int64Array:
    """Return the earliest start of the kernels that end later in the same gap, (k,).

    Args:
        start: of kernels in the order of their ends.
        gap: of each kernel.

    Returns:
        The latest possible time for the last kernel of a gap.
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
    """Return which kernels exchange with the previous stage, (n,)."""
    previous = stage - 1
    if pipeline.is_ring:
        previous %= len(pipeline.ranks)
    if previous < 0:
        return np.zeros(len(kernels), dtype=bool)
    is_previous: BoolArray = whole_numbers(kernels, "peer") == pipeline.ranks[previous]
    return is_previous


def _first_transfer(pipeline: Pipeline, rank: _RankIteration, window_start: int) -> int:
    """Return when the transfer of the first micro-batch to a stage begins, ns."""
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
