"""Sends and receives paired over all ranks, on one clock: how long each transfer took.

NCCL moves data once both ranks are there, and both kernels end with the transfer. So a transfer
begins with the later of the two kernels. A batch ends with the last of its transfers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tracelens_ext.distributed.pipeline.clock_offsets import both_sides, clock_offsets
from tracelens_ext.distributed.pipeline.extract import SEND
from tracelens_ext.distributed.pipeline.partners import with_partners
from tracelens_ext.lazy import pd

#: A send that ends so much before its receive, and takes at most so many times as long as a
#: transfer of its link, was buffered.
_BUFFERED_END_NS = 5_000
_USUAL_FACTOR = 1.5
_USUAL_QUANTILE = 0.1
#: A message with no more elements announces a tensor: its type and the sizes of its dimensions.
_MAX_ELEMENTS_OF_SHAPE = 64


class Transfers(NamedTuple):
    """All sends and receives of a job."""

    #: as `pipeline_calls`, with `peer` as a rank of the job, `pair` (a number that the send and
    #: the receive share, -1 for none), `is_shape` (true for a message that only announces the
    #: shape of a tensor), times on the common clock, and what `_with_begins` adds
    calls: pd.DataFrame
    offset_of_rank: dict[int, int]  #: ns that each rank's clock is ahead


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
    return Transfers(_with_begins(calls), offsets)


def _pairs(calls: pd.DataFrame) -> pd.Series:
    """Return a number for each call that its send and its receive share; -1 for none.

    The transfers of two ranks are in order. Where one of them recorded fewer in an iteration, the
    last ones of it are paired: a recording that begins late lacks the first.
    """
    link = ["source", "target", "iteration"]
    sides = calls.groupby(link + ["direction"], sort=False)
    calls = calls.assign(from_end=sides.cumcount(ascending=False))
    slots = calls.groupby(link + ["from_end"], sort=False)
    directions = slots["direction"].transform("nunique")
    return slots.ngroup().where(directions == 2, -1)


def _with_begins(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the calls with what is known of their transfers.

    Returns:
        `other_start`, of the kernel on the other side; `part_begin` and `part_end`, of the
        transfer itself; `is_decisive`, true for the part of a kernel that ends it; `begin`, of the
        transfer that ends the kernel.
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
    # It is over when the first of both kernels ends; the other one may have further transfers.
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
        time: `start` or `end`.
    """
    is_send = calls["direction"] == SEND
    of_source = calls["pair"].map(both[f"{time}_source"])
    of_target = calls["pair"].map(both[f"{time}_target"])
    return of_target.where(is_send, of_source)


def _largest_of_kernel(calls: pd.DataFrame, values: pd.Series) -> pd.Series:
    """Return for each call the largest value of its kernel's."""
    kernel = [calls["rank"], calls["kernel"]]
    result: pd.Series = values.groupby(kernel, sort=False).transform("max")
    return result


def _part_begins(calls: pd.DataFrame, both: pd.DataFrame) -> pd.Series:
    """Return when each transfer began: when both kernels ran, ns."""
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
    """Return which transfers end their kernels: those that end last if each is short.

    Of the transfers of a batch, only the last one is known to take until the end of the kernel; the
    others seem longer than they are. So the shortest one of a link tells how long they take.
    """
    source = calls["source"]
    target = calls["target"]
    low = source.clip(upper=target)
    high = source.clip(lower=target)
    duration = calls["part_end"] - calls["part_begin"]
    is_known = calls["other_start"].notna() & (duration > 0)
    known = duration.where(is_known)
    links = known.groupby([low, high, calls["is_shape"]], sort=False)
    shortest = links.transform("min")
    likely_end = calls["part_begin"] + shortest.fillna(duration.clip(lower=0))
    return likely_end == _largest_of_kernel(calls, likely_end)


def _is_buffered(calls: pd.DataFrame, both: pd.DataFrame) -> pd.Series:
    """Return which sends did not wait for their receive: they end before it, and are short.

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
    """Return how long transfers like each call take, ns: for calls whose other side is missing.

    Args:
        calls: sends and receives.
        transfer: how long each takes, NaN where that is not known.
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
