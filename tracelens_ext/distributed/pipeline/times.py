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
)
from tracelens_ext.distributed.pipeline.stages import Pipeline
from tracelens_ext.distributed.pipeline.transfers import RECEIVE
from tracelens_ext.lazy import pd
from tracelens_ext.trace import Int64Array
from tracelens_ext.trace.intervals import covered, outside, union

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


class Intervals(NamedTuple):
    """Disjoint intervals, ascending, ns."""

    start: Int64Array
    end: Int64Array

    @property
    def length(self) -> int:
        """How long they are together, ns."""
        return int((self.end - self.start).sum())


_NOTHING = Intervals(start=np.zeros(0, dtype=np.int64), end=np.zeros(0, dtype=np.int64))


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
    receives = calls[calls["direction"] == RECEIVE]
    keys = ["rank", "iteration"]
    last_receive = receives.groupby(keys)["end"].max().rename("last_receive")
    others = activity[activity["kind"] == COMMUNICATION]
    others = others.join(last_receive, on=keys)
    within = others[others["start"] < others["last_receive"]]
    groups: dict[int, set[str]] = {}
    for rank, group in zip(within["rank"], within["group"], strict=True):
        groups.setdefault(int(rank), set()).add(group)
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
    has_free_sends = _sends_beside_computation(recorded)
    times = []
    for rank_iteration in recorded:
        parts = _partition(
            pipeline=pipeline,
            rank=rank_iteration,
            window_start=window_start,
            window_end=window_end,
            has_free_sends=has_free_sends,
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
    computation = _intervals(activity[activity["kind"] == COMPUTATION])
    receives = calls[calls["direction"] == RECEIVE]
    last_receive = int((receives if len(receives) else calls)["end"].max())
    end = _end_of_pipeline(
        activity=activity,
        computation=computation,
        after=last_receive,
        groups_within=groups_within,
    )
    computation = _clipped(computation, np.iinfo(np.int64).min, end)
    is_other = activity["kind"] == COMMUNICATION
    communication = _intervals(activity[is_other])
    last_end = int(computation.end.max()) if len(computation.end) else last_receive
    return _RankIteration(
        stage=stage,
        rank=pipeline.ranks[stage],
        calls=calls,
        computation=computation,
        communication=_clipped(communication, np.iinfo(np.int64).min, last_end),
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
    ends = [np.iinfo(np.int64).max]
    steps = activity[(activity["kind"] == OPTIMIZER) & (activity["start"] >= after)]
    ends += steps["start"].tolist()
    others = activity[activity["kind"] == COMMUNICATION]
    is_within = others["group"].isin(groups_within)
    late = others[(others["start"] >= after) & ~is_within]
    start = late["start"].to_numpy(np.int64)
    end = late["end"].to_numpy(np.int64)
    hidden = covered(
        start=computation.start, end=computation.end, window_start=start, window_end=end
    )
    is_exposed = hidden < _MAX_COVERED * (end - start)
    ends += start[is_exposed].tolist()
    return int(min(ends))


def _intervals(rows: pd.DataFrame) -> Intervals:
    """Return the union of some rows."""
    return Intervals(
        *union(rows["start"].to_numpy(np.int64), rows["end"].to_numpy(np.int64))
    )


def _clipped(intervals: Intervals, start: int, end: int) -> Intervals:
    """Return what of some intervals lies in a window."""
    is_inside = (intervals.start < end) & (intervals.end > start)
    return Intervals(
        start=np.maximum(intervals.start[is_inside], start),
        end=np.minimum(intervals.end[is_inside], end),
    )


def _sends_beside_computation(recorded: Sequence[_RankIteration]) -> bool:
    """Tell whether sends run beside the computation, so that no stage waits for its own."""
    count = 0
    covered_count = 0
    for rank in recorded:
        has_receive = rank.calls["direction"].eq(RECEIVE)
        is_pure_send = ~has_receive.groupby(rank.calls["kernel"]).transform("any")
        sends = rank.calls[is_pure_send]
        start = sends["start"].to_numpy(np.int64)
        end = sends["end"].to_numpy(np.int64)
        hidden = covered(
            start=rank.computation.start,
            end=rank.computation.end,
            window_start=start,
            window_end=end,
        )
        count += len(sends)
        covered_count += int((hidden > _MIN_COVERED * (end - start)).sum())
    return covered_count > _MIN_SHARE_OF_SENDS * count


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
    has_free_sends: bool,
) -> dict[TimeKind, Intervals]:
    """Return the intervals of each kind of time."""
    computation = _clipped(rank.computation, window_start, window_end)
    busy = Intervals(
        *union(
            np.append(computation.start, rank.communication.start),
            np.append(computation.end, rank.communication.end),
        )
    )
    idle = _outside(busy, window_start, window_end)
    kernels = _kernels(rank.calls)
    if has_free_sends:
        kernels = kernels[kernels["receives"]].reset_index(drop=True)
    regions = _governed(idle, kernels)
    waits = Intervals(start=regions.start, end=np.maximum(regions.begin, regions.start))
    transfers = Intervals(
        start=np.maximum(regions.begin, regions.start), end=regions.end
    )
    is_for_previous = _waits_for_previous(pipeline, rank.stage, kernels)
    not_computing = _outside(computation, window_start, window_end)
    filled = _first_transfer(pipeline, rank, window_start)
    warmup = _without(_clipped(not_computing, window_start, filled), transfers)
    drain_start = max(rank.last_end, window_start)
    drain = _clipped(not_computing, drain_start, window_end)
    drain = _without(drain, _clipped(transfers, drain_start, window_end))
    in_between = {
        TimeKind.TRANSFER: _sorted(_clipped(transfers, window_start, window_end)),
        TimeKind.WAIT_PREVIOUS: _sorted(_selected(waits, is_for_previous)),
        TimeKind.WAIT_NEXT: _sorted(_selected(waits, ~is_for_previous)),
    }
    for kind in (TimeKind.WAIT_PREVIOUS, TimeKind.WAIT_NEXT):
        in_between[kind] = _clipped(in_between[kind], filled, drain_start)
    return {
        TimeKind.COMPUTATION: computation,
        **in_between,
        TimeKind.WARMUP: warmup,
        TimeKind.DRAIN: drain,
    }


def _kernels(calls: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each kernel: that of the part that it waited for longest."""
    is_receive = calls["direction"] == RECEIVE
    receives = is_receive.groupby(calls["kernel"]).transform("any")
    decisive = calls.assign(receives=receives)[calls["is_decisive"]]
    return decisive.drop_duplicates("kernel").reset_index(drop=True)


def _governed(idle: Intervals, kernels: pd.DataFrame) -> _Regions:
    """Return the idle time that each kernel ends, (n,); empty where it ends none.

    The kernel that ends last in a gap holds the rank up for all of its time there; one that ends
    before it does so only until the other starts. A kernel that ends while the rank computes holds
    nothing up.
    """
    start = kernels["start"].to_numpy(np.int64)
    begin = kernels["begin"].to_numpy(np.int64)
    end = kernels["end"].to_numpy(np.int64)
    region_start = end.copy()
    region_end = end.copy()
    if not len(idle.start):
        return _Regions(start=region_start, begin=begin, end=region_end)
    order = np.argsort(end, kind="stable")
    gap = np.searchsorted(idle.start, end[order], side="left") - 1
    is_in_gap = gap >= 0
    gap = np.maximum(gap, 0)
    is_in_gap &= end[order] <= idle.end[gap] + _TOLERANCE_NS
    order = order[is_in_gap]
    gap = gap[is_in_gap]
    # The earliest start of the kernels that end later in the same gap.
    starts = pd.Series(start[order][::-1])
    earliest = starts.groupby(gap[::-1]).cummin()
    later = earliest.groupby(gap[::-1]).shift(1).to_numpy()[::-1]
    limit = np.where(np.isnan(later), np.inf, later)
    limit = np.minimum(limit, np.minimum(end[order], idle.end[gap]))
    own_start = np.maximum(start[order], idle.start[gap])
    is_governing = limit > own_start
    region_start[order[is_governing]] = own_start[is_governing]
    region_end[order[is_governing]] = limit[is_governing].astype(np.int64)
    begin = np.minimum(np.maximum(begin, region_start), region_end)
    return _Regions(start=region_start, begin=begin, end=region_end)


def _waits_for_previous(
    pipeline: Pipeline, stage: int, kernels: pd.DataFrame
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which kernels exchange with the previous stage, (n,)."""
    previous = stage - 1
    if pipeline.is_ring:
        previous %= len(pipeline.ranks)
    if previous < 0:
        return np.zeros(len(kernels), dtype=bool)
    result: np.ndarray[tuple[int], np.dtype[np.bool_]] = (
        kernels["peer"].to_numpy() == pipeline.ranks[previous]
    )
    return result


def _first_transfer(pipeline: Pipeline, rank: _RankIteration, window_start: int) -> int:
    """Return when the transfer of the first micro-batch to a stage begins, ns."""
    if rank.stage == 0:
        return window_start
    calls = rank.calls
    is_receive = calls["direction"] == RECEIVE
    is_from_previous = calls["peer"] == pipeline.ranks[rank.stage - 1]
    receives = calls[is_receive & is_from_previous]
    if len(receives):
        return max(int(receives["begin"].min()), window_start)
    return max(int(rank.computation.start.min()), window_start)


def _outside(intervals: Intervals, start: int, end: int) -> Intervals:
    """Return what of a window lies outside of some intervals."""
    parts = outside(
        start=np.array([start], dtype=np.int64),
        end=np.array([end], dtype=np.int64),
        first=intervals.start,
        last=intervals.end,
    )
    is_part = parts.end > parts.start
    return Intervals(start=parts.start[is_part], end=parts.end[is_part])


def _without(intervals: Intervals, others: Intervals) -> Intervals:
    """Return what of some intervals lies outside of others."""
    others = Intervals(*union(others.start, others.end))
    parts = outside(
        start=intervals.start, end=intervals.end, first=others.start, last=others.end
    )
    is_part = parts.end > parts.start
    return Intervals(start=parts.start[is_part], end=parts.end[is_part])


def _selected(intervals: Intervals, is_chosen: np.ndarray) -> Intervals:
    """Return some of the intervals."""
    return Intervals(start=intervals.start[is_chosen], end=intervals.end[is_chosen])


def _sorted(intervals: Intervals) -> Intervals:
    """Return the intervals that are not empty, in order of start."""
    is_part = intervals.end > intervals.start
    start = intervals.start[is_part]
    order = np.argsort(start, kind="stable")
    return Intervals(start=start[order], end=intervals.end[is_part][order])
