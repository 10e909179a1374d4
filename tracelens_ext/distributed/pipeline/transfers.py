"""Pairs of a send and its receive over all ranks, on one clock, and how long each transfer took.

NCCL moves data when the kernels of both ranks run, and both kernels end with the transfer. So the
transfer begins when the later kernel starts. The kernel of a batch ends with its last transfer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracelens_ext.distributed.pipeline.clock_offsets import both_sides, clock_offsets
from tracelens_ext.distributed.pipeline.partners import with_partners
from tracelens_ext.distributed.pipeline.sends_and_receives import SEND
from tracelens_ext.lazy import pd

#: A send was buffered if it ends at least this long before its receive, and takes at most
#: `_USUAL_FACTOR` times as long as a short transfer of its link (this quantile of its durations).
_BUFFERED_END_NS = 5_000
_USUAL_FACTOR = 1.5
_USUAL_QUANTILE = 0.1
#: The transfers of a link have a certain duration if this share of them takes at most
#: `_SAME_DURATION` times as long as the shortest one.
_MIN_SHARE_OF_SHORTEST = 0.1
_SAME_DURATION = 1.02
#: A message with no more elements announces a tensor: its type and the sizes of its dimensions.
_MAX_ELEMENTS_OF_SHAPE = 64


class Transfers(NamedTuple):
    """All sends and receives of a job."""

    #: as `pipeline_calls`, with `peer` as a rank of the job, `pair` (a number that the send and
    #: the receive share, -1 for none), `is_shape` (true for a message that only announces the
    #: shape of a tensor), times on the common clock, and what `_with_transfer_times` adds
    calls: pd.DataFrame
    offset_of_rank: dict[int, int]  #: how far the clock of each rank is ahead, ns


def match_transfers(
    calls: pd.DataFrame, stages: Sequence[Sequence[int]] = ()
) -> Transfers:
    """Pair the sends and receives of a job.

    Args:
        calls: `pipeline_calls` of all ranks.
        stages: the ranks of each stage; empty if they are not named.
    """
    calls = with_partners(calls, stages)
    rank = calls["rank"]
    peer = calls["peer"]
    is_send = calls["direction"] == SEND
    calls["source"] = rank.where(is_send, peer)
    calls["target"] = peer.where(is_send, rank)
    calls["is_shape"] = calls["elements"] <= _MAX_ELEMENTS_OF_SHAPE
    calls["pair"] = _pairs(calls)
    offsets = clock_offsets(calls)
    offset = rank.map(offsets).astype("int64")
    for name in ("start", "end", "launch"):
        calls[name] -= offset
    return Transfers(_with_transfer_times(calls), offsets)


def _pairs(calls: pd.DataFrame) -> pd.Series:
    """Return a number for each call that a send and its receive share; -1 for a call alone.

    Two ranks send and receive in the same order. If one rank recorded fewer calls in an iteration,
    the calls are paired from the end, because a recording that begins late lacks the first calls.
    """
    link = ["source", "target", "iteration"]
    sides = calls.groupby(link + ["direction"], sort=False)
    calls = calls.assign(from_end=sides.cumcount(ascending=False))
    slots = calls.groupby(link + ["from_end"], sort=False)
    directions = slots["direction"].transform("nunique")
    return slots.ngroup().where(directions == 2, -1)


def _with_transfer_times(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the calls with the times of their transfers.

    Returns:
        The calls with these columns. `other_start`: when the kernel on the other side started, NaN
        if it is not recorded. `part_begin` and `part_end`: when the transfer of this call began and
        ended. `is_decisive`: true for the call of a batch whose transfer ends last. `begin`: when
        that transfer began, the same for all calls of a batch.
    """
    both = both_sides(calls).set_index("pair")
    other_end = _of_other_side(
        calls=calls,
        both=both,
        time="end",
    )
    calls["other_start"] = _of_other_side(
        calls=calls,
        both=both,
        time="start",
    )
    # The transfer is over when the first of the two kernels ends. The other kernel may be a batch
    # with further transfers.
    end = calls["end"].astype("float64")
    calls["part_end"] = end.where(other_end.isna(), end.clip(upper=other_end))
    calls["part_begin"] = _part_begins(calls, both)
    calls["is_decisive"] = _ends_its_kernel(calls)
    decisive_begin = calls["part_begin"].where(calls["is_decisive"])
    begin = _largest_of_kernel(calls, decisive_begin)
    return calls.assign(begin=begin.astype("int64"))


def _of_other_side(calls: pd.DataFrame, both: pd.DataFrame, time: str) -> pd.Series:
    """Return the start or end of the kernel on the other side of each call, NaN without one.

    Args:
        calls: with `pair`.
        both: of `both_sides`, by pair.
        time: the time to return, `start` or `end`.
    """
    is_send = calls["direction"] == SEND
    of_source = calls["pair"].map(both[f"{time}_source"])
    of_target = calls["pair"].map(both[f"{time}_target"])
    return of_target.where(is_send, of_source)


def _largest_of_kernel(calls: pd.DataFrame, values: pd.Series) -> pd.Series:
    """Return for each call the largest value among the calls of its kernel."""
    kernel = [calls["rank"], calls["kernel"]]
    result: pd.Series = values.groupby(kernel, sort=False).transform("max")
    return result


def _part_begins(calls: pd.DataFrame, both: pd.DataFrame) -> pd.Series:
    """Return when each transfer began, ns: when the later of its two kernels started.

    If the other kernel is not recorded, the transfer takes as long as usual on this link.
    """
    start = calls["start"].astype("float64")
    end = calls["end"]
    other_start = calls["other_start"]
    begin = start.clip(lower=other_start)
    begin = begin.where(other_start.notna())
    begin = begin.mask(_is_buffered(calls, both), start)
    usual = _usual_transfer(calls, end - begin)
    begin = begin.fillna(end - usual)
    result: pd.Series = begin.clip(lower=start, upper=end)
    return result


def _ends_its_kernel(calls: pd.DataFrame) -> pd.Series:
    """Return which transfers probably end last among the transfers of their kernels."""
    duration = calls["part_end"] - calls["part_begin"]
    likely_duration = _likely_durations(calls).fillna(duration.clip(lower=0))
    likely_end = calls["part_begin"] + likely_duration
    return likely_end == _largest_of_kernel(calls, likely_end)


def _likely_durations(calls: pd.DataFrame) -> pd.Series:
    """Return how long a transfer on the link of each call probably takes, ns; NaN if unknown.

    Only the last transfer of a batch takes until the end of the kernel, and the others seem longer
    than they are. So the shortest transfer of a link tells its duration, if several transfers are
    as short. If the transfers of a link have all kinds of durations, none of them may have been the
    last one of a batch. Then the link is assumed to be no slower than the median of the others.
    """
    source = calls["source"]
    target = calls["target"]
    link = [
        source.clip(upper=target).rename("low"),
        source.clip(lower=target).rename("high"),
        calls["is_shape"],
    ]
    duration = calls["part_end"] - calls["part_begin"]
    is_known = calls["other_start"].notna() & (duration > 0)
    known = duration.where(is_known)
    shortest = known.groupby(link, sort=False).transform("min")
    is_as_short = known <= _SAME_DURATION * shortest
    share_as_short = is_as_short.where(is_known).groupby(link, sort=False)
    is_certain = share_as_short.transform("mean") >= _MIN_SHARE_OF_SHORTEST
    of_links = pd.DataFrame({"shortest": shortest.where(is_certain)}).groupby(link)
    medians = of_links["shortest"].first().groupby("is_shape").median()
    usual = calls["is_shape"].map(medians).fillna(np.inf)
    result: pd.Series = shortest.where(is_certain, shortest.clip(upper=usual))
    return result


def _is_buffered(calls: pd.DataFrame, both: pd.DataFrame) -> pd.Series:
    """Return which sends did not wait for their receive: short sends that end before it.

    Args:
        calls: with `pair`.
        both: of `both_sides`, by pair.
    """
    duration = both["end_source"] - both["start_source"]
    links = duration.groupby([both["source"], both["target"], both["is_shape"]])
    usual = links.transform("quantile", _USUAL_QUANTILE)
    is_short = duration <= _USUAL_FACTOR * usual
    earlier_by = both["end_target"] - both["end_source"]
    is_earlier = earlier_by > _BUFFERED_END_NS
    is_buffered = is_short & is_earlier & ~both["is_batch"]
    buffered_pairs = both.index[is_buffered]
    is_send = calls["direction"] == SEND
    return is_send & calls["pair"].isin(buffered_pairs)


def _usual_transfer(calls: pd.DataFrame, transfer: pd.Series) -> pd.Series:
    """Return how long a transfer in the same direction between the same ranks usually takes, ns.

    It is the median, or if none is known, the shortest kernel.

    Args:
        calls: sends and receives.
        transfer: the duration of each transfer, NaN if it is not known.
    """
    link = [
        calls["rank"],
        calls["peer"],
        calls["direction"],
        calls["is_shape"],
    ]
    duration = calls["end"] - calls["start"]
    shortest = duration.groupby(link).transform("min")
    usual = transfer.groupby(link).transform("median")
    result: pd.Series = usual.fillna(shortest)
    return result
