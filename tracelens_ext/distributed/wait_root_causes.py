"""Finds the root causes of the waits of ranks in their calls.

A rank waits in a call for the rank that enters the call last. Both ranks left the last call that
they shared at the same time. Since then, the late rank has spent more time than the waiting rank,
by exactly the wait: on its own work, on transfers, or on waits in other calls. Waits in other calls
are followed on in the same way, until only work and transfers are left as root causes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from tracelens_ext.distributed.rank_activity import OWN_ACTIVITIES
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, NS_PER_MS, Float64Array, Int64Array
from tracelens_ext.trace.lookup import values_at


class WaitCause(IntEnum):
    """Why a rank waited. The first values are the indices of `OWN_ACTIVITIES`."""

    COMPUTATION = 0
    DATA_LOADER = 1
    HOST = 2
    IDLE = 3
    SLOW_TRANSFER = 4
    BEFORE_RECORDING = 5  #: the ranks share no earlier call in the recording
    SMALL = 6  #: the wait is too short to be followed
    WAIT = 7  #: the late rank waited in another call; this is never a root cause

    @property
    def text(self) -> str:
        """The name of the cause in tables."""
        return self.name.lower()


CAUSE_TEXTS = [cause.text for cause in WaitCause]
#: Arrays of the time that ranks spent have a column for each of `OWN_ACTIVITIES`, and these two.
_TRANSFER_COLUMN = len(OWN_ACTIVITIES)
_WAIT_COLUMN = len(OWN_ACTIVITIES) + 1
#: Shorter waits are not followed.
_SMALL_WAIT_NS = 2_000
#: A chain of waits is followed over at most this many calls.
_MAX_CHAIN = 100_000
#: How often the steps of all chains of waits are doubled. 2 to the power of 64 steps are enough.
_DOUBLINGS = 64
ROOT_CAUSE_KEYS = ["cause", "rank", "process_group", "iteration"]


class RootCauses(NamedTuple):
    """The root causes of waits."""

    #: the kernels with `cause`, `caused_by_call` and `caused_by_rank`
    kernels: pd.DataFrame
    table: pd.DataFrame  #: the table `wait_root_causes`


def find_root_causes(kernels: pd.DataFrame, last_rank: Int64Array) -> RootCauses:
    """Follow every wait to its root causes.

    Args:
        kernels: the kernels of all calls, with `start`, `dur` and `wait` (ns, on the rank's own
            clock; `wait` is NaN if it is not known).
        last_rank: the rank that entered each call last; `NONE` if it is not known, (c,).
    """
    timelines = _Timelines(kernels)
    parts = _parts_of_waits(timelines, last_rank)
    wait_through_kernel = _wait_through_kernels(timelines, parts)
    wait = wait_through_kernel[parts["row"].to_numpy()] * parts["share"].to_numpy()
    parts["wait_ms"] = wait / NS_PER_MS
    is_root_cause = (parts["cause"] != WaitCause.WAIT) & (parts["wait_ms"] > 0)
    grouped = parts[is_root_cause].groupby(ROOT_CAUSE_KEYS, sort=True, dropna=False)
    table = grouped["wait_ms"].sum().reset_index()
    table = table.sort_values(
        "wait_ms", ascending=False, kind="stable", ignore_index=True
    )
    texts = np.array(CAUSE_TEXTS, dtype=object)[table["cause"]]
    table["cause"] = pd.array(texts, dtype="str")
    return RootCauses(_with_causes(kernels, parts), table)


def without_root_causes(kernels: pd.DataFrame) -> RootCauses:
    """Return the kernels with empty causes, and an empty table."""
    kernels = kernels.assign(
        cause="",
        caused_by_call=pd.array([pd.NA] * len(kernels), dtype="Int64"),
        caused_by_rank=pd.array([pd.NA] * len(kernels), dtype="Int64"),
    )
    table = pd.DataFrame(columns=ROOT_CAUSE_KEYS + ["wait_ms"])
    types = {"cause": "str", "rank": "Int64", "process_group": "str"}
    return RootCauses(
        kernels=kernels,
        table=table.astype({**types, "iteration": "str", "wait_ms": "float64"}),
    )


def _wait_through_kernels(timelines: _Timelines, parts: pd.DataFrame) -> Float64Array:
    """Return how much waiting each kernel is responsible for, ns, (k,).

    This is the wait of the kernel itself, plus the waits of other kernels that the kernel caused.
    If kernel A waits 10 µs, all of it because the late rank waited in kernel B before, the 10 µs
    are passed on from A to B, and from B to the kernels that caused the wait of B.
    """
    row = parts["row"].to_numpy()
    target = parts["target"].to_numpy()
    share = parts["share"].to_numpy()
    passed_on: Float64Array = np.nan_to_num(timelines.wait)
    total = passed_on.copy()
    followed_parts = np.flatnonzero((parts["cause"] == WaitCause.WAIT) & (share > 0))
    for _ in range(_MAX_CHAIN):
        # Each round passes the waits on by one kernel.
        wait_of_part = passed_on[row[followed_parts]] * share[followed_parts]
        wait_of_target = np.bincount(
            target[followed_parts], wait_of_part, minlength=len(passed_on)
        )
        passed_on = wait_of_target.astype(np.float64)
        total += passed_on
        followed_parts = followed_parts[passed_on[row[followed_parts]] > 0]
        if not len(followed_parts):
            break
    return total


class _LastSharedCalls(NamedTuple):
    """The last calls that pairs of ranks shared, as rows of kernels; `NONE` for no such call."""

    of_late_rank: Int64Array  #: the kernel of the call on the late rank, (w,)
    of_waiting_rank: Int64Array  #: the kernel of the call on the waiting rank, (w,)


class _Timelines:
    """The communication kernels of each rank in the order of their ends, on the rank's own clock.

    Attributes:
        call: the call of each kernel, (k,).
        rank: the rank of each kernel, (k,).
        start: the start of each kernel, ns, (k,).
        wait: the wait of each kernel, ns, NaN if it is not known, (k,).
        exposed: exposed transfer and exposed wait of each kernel, ns, (k, 2).
        order: the rows of the kernels, sorted by rank and end, (k,).
        after: for each kernel, the position in `order` that follows its own, (k,).
        until: for each kernel, the position in `order` of the first kernel of its rank that ends
            after its start, (k,).
    """

    def __init__(self, kernels: pd.DataFrame) -> None:
        self.frame = kernels
        self.call: Int64Array = kernels["call"].to_numpy(np.int64)
        self.rank: Int64Array = kernels["rank"].to_numpy(np.int64)
        self.wait: Float64Array = kernels["wait"].to_numpy(np.float64)
        start = kernels["start"].to_numpy(np.int64)
        duration = kernels["dur"].to_numpy(np.int64)
        self.start: Int64Array = start - start.min(initial=0)
        end = self.start + duration
        own_until_start = _activities(kernels, "start")
        own_until_end = _activities(kernels, "end")
        computation = own_until_end[:, 0] - own_until_start[:, 0]
        exposed = np.maximum(duration - computation, 0.0)
        exposed_wait = exposed * np.nan_to_num(self.wait) / np.maximum(duration, 1)
        self.exposed: Float64Array = np.stack(
            (exposed - exposed_wait, exposed_wait), axis=1
        )
        # The times of all ranks are put one after the other on one axis. One search then finds
        # a time among the kernels of its own rank. With ends up to 99, rank 0 has the keys 0 to
        # 99, rank 1 has the keys 100 to 199, and so on.
        rank_index = pd.factorize(self.rank, sort=True)[0]
        first_key_of_rank = rank_index * (int(end.max(initial=0)) + 1)
        end_key = first_key_of_rank + end
        self.order: Int64Array = np.argsort(end_key, kind="stable")
        self.after: Int64Array = np.argsort(self.order) + 1
        start_key = first_key_of_rank + self.start
        self.until: Int64Array = np.searchsorted(
            end_key[self.order], start_key, side="right"
        )
        # The exposed time of all kernels before each position in `order`, (k + 1, 2).
        running_sum = np.cumsum(self.exposed[self.order], axis=0)
        exposed_before = np.concatenate((np.zeros((1, 2)), running_sum))
        # The time that the rank had spent on its own activities, on transfers and on waits when
        # each kernel started, and when it ended, ns, (k, a + 2).
        self._until_start = np.column_stack(
            (own_until_start, exposed_before[self.until])
        )
        self._until_end = np.column_stack((own_until_end, exposed_before[self.after]))
        self._row_of_id = pd.Index(self._id(self.call, self.rank))
        # Only the ends of calls that all ranks of the set made can be compared between ranks.
        complete = kernels[["rank_set", "rank"]].assign(end=end, row=kernels.index)
        complete = complete[~np.isnan(self.wait)]
        self._complete = complete.sort_values("end", kind="stable")

    @staticmethod
    def _id(call: Int64Array, rank: Int64Array) -> Int64Array:
        """Return a number that identifies a call and a rank."""
        return call * 2**32 + rank

    def row_of(self, call: Int64Array, rank: Int64Array) -> Int64Array:
        """Return the row of the kernel of each call on a rank; `NONE` if there is none."""
        wanted_ids = pd.Index(self._id(call, rank))
        rows: Int64Array = self._row_of_id.get_indexer(wanted_ids).astype(np.int64)
        return rows

    def last_shared(self, waiting: Int64Array, late: Int64Array) -> _LastSharedCalls:
        """Return the last call that each waiting and late rank shared before the wait.

        Args:
            waiting: the rows of kernels that wait, (w,).
            late: the rows of the kernels of the same calls on the ranks that came last, (w,).
        """
        pairs = pd.DataFrame(
            {
                "pair": np.arange(len(waiting)),
                "rank": self.rank[late],
                "waiting_rank": self.rank[waiting],
                "start": self.start[late],
            }
        )
        # A row for each pair and each set of ranks that contains both ranks of the pair.
        ranks_of_set = self._complete[["rank_set", "rank"]].drop_duplicates()
        pairs = pairs.merge(ranks_of_set, on="rank")
        ranks_of_set = ranks_of_set.rename(columns={"rank": "waiting_rank"})
        pairs = pairs.merge(ranks_of_set, on=["rank_set", "waiting_rank"])
        # The last call of each of these sets that ended on the late rank before its start.
        shared = pd.merge_asof(
            pairs.sort_values("start", kind="stable"),
            self._complete,
            left_on="start",
            right_on="end",
            by=["rank_set", "rank"],
        ).dropna()
        # The latest of these calls over all sets.
        shared = shared.sort_values("end", kind="stable")
        shared = shared.drop_duplicates("pair", keep="last")
        of_late = np.full(len(waiting), NONE, dtype=np.int64)
        of_late[shared["pair"]] = shared["row"]
        shared_call = values_at(self.call, of_late)
        of_waiting = self.row_of(shared_call, self.rank[waiting])
        is_known = (of_late != NONE) & (of_waiting != NONE)
        return _LastSharedCalls(
            of_late_rank=np.where(is_known, of_late, NONE),
            of_waiting_rank=np.where(is_known, of_waiting, NONE),
        )

    def spent(self, after: Int64Array, until: Int64Array) -> Float64Array:
        """Return the time that ranks spent from the end of one kernel to the start of another.

        Args:
            after: the rows of the first kernels, (w,).
            until: the rows of the second kernels, on the same ranks, (w,).

        Returns:
            The time spent on each of `OWN_ACTIVITIES`, on transfers and on waits, ns, (w, a + 2).
        """
        spent: Float64Array = self._until_start[until] - self._until_end[after]
        # Kernels count as a whole at their end. If the first kernel ends after the second one
        # starts, transfers and waits would be negative.
        communication = spent[:, _TRANSFER_COLUMN:]
        spent[:, _TRANSFER_COLUMN:] = np.maximum(communication, 0.0)
        return spent


def _activities(kernels: pd.DataFrame, suffix: str) -> Float64Array:
    """Return the time spent on `OWN_ACTIVITIES` until each kernel's start or end, ns, (k, a)."""
    columns = [f"{name}_{suffix}" for name in OWN_ACTIVITIES]
    activities: Float64Array = kernels[columns].to_numpy(np.float64)
    return activities


class _Between(NamedTuple):
    """The kernels between the last shared call and the call in which a rank was late."""

    wait: Int64Array  #: the index of the wait to which each kernel contributed, (n,)
    kernel: Int64Array  #: the row of each kernel, (n,)


def _kernels_between(
    timelines: _Timelines, shared: Int64Array, late: Int64Array
) -> _Between:
    """Return the kernels of the late ranks between two of their calls.

    The kernels of each wait are consecutive in `order`. For example, those of the first wait begin
    at position 4 and are 2; those of the second wait begin at position 9 and are 3:

        wait            0  0  1  1  1
        running number  0  1  2  3  4
        position        4  5  9 10 11    the running number + 4 - 0, + 9 - 2
    """
    first = timelines.after[shared]
    count = np.maximum(timelines.until[late] - first, 0)
    wait = np.repeat(np.arange(len(shared)), count)
    running_number = np.arange(len(wait))
    first_running_number = np.cumsum(count) - count
    position = running_number + (first - first_running_number)[wait]
    return _Between(wait, timelines.order[position])


class _WaitParts:
    """Collects the parts into which waits are divided by their causes.

    The columns of a part are `row` (the kernel that waits), `cause` (a `WaitCause`), `target` (the
    kernel of the late rank that the cause is about), `share` (the part of the wait, 0 to 1),
    `rank`, `process_group` and `iteration`.
    """

    def __init__(self, timelines: _Timelines) -> None:
        self._iteration = timelines.frame["iteration"].to_numpy(object)
        self._frames: list[pd.DataFrame] = []

    def add(
        self,
        row: Int64Array,
        cause: WaitCause,
        share: object,
        target: Int64Array,
        *,
        rank: object = NONE,
        process_group: object = "",
    ) -> None:
        """Add parts with the same cause, one for each element of `row`."""
        columns = {
            "row": row,
            "cause": int(cause),
            "target": target,
            "share": share,
            "rank": rank,
            "process_group": process_group,
            "iteration": self._iteration[row],
        }
        self._frames.append(pd.DataFrame(columns))

    def frame(self) -> pd.DataFrame:
        """Return all parts; `rank` is missing if it is not known."""
        non_empty = [frame for frame in self._frames if len(frame)]
        parts = pd.concat(non_empty or self._frames[:1], ignore_index=True)
        rank = parts["rank"].astype("Int64")
        parts["rank"] = rank.mask(rank == NONE)
        return parts


class _ExplainedWaits(NamedTuple):
    """Waits whose ranks shared an earlier call, and what the late ranks spent more time on."""

    waiting: Int64Array  #: rows of the kernels that wait, (w,)
    late: Int64Array  #: rows of the kernels of the same calls on the late ranks, (w,)
    #: rows of the late ranks' kernels of the last shared calls, (w,)
    shared: Int64Array
    #: the share of the wait that each of `OWN_ACTIVITIES`, transfers and waits explain, (w, a + 2)
    share: Float64Array


def _parts_of_waits(timelines: _Timelines, last_rank: Int64Array) -> pd.DataFrame:
    """Divide all waits into parts by their causes; return the frame of `_WaitParts`."""
    process_group = timelines.frame["process_group"].to_numpy(object)
    parts = _WaitParts(timelines)
    waiting = np.flatnonzero(timelines.wait >= _SMALL_WAIT_NS)
    calls = timelines.call[waiting]
    late = timelines.row_of(calls, last_rank[calls])
    shared = timelines.last_shared(waiting, late)
    has_shared_call = shared.of_late_rank != NONE
    waits = _explained_waits(
        timelines=timelines,
        waiting=waiting[has_shared_call],
        late=late[has_shared_call],
        shared=_LastSharedCalls(
            of_late_rank=shared.of_late_rank[has_shared_call],
            of_waiting_rank=shared.of_waiting_rank[has_shared_call],
        ),
    )
    _add_communication_parts(parts, timelines, waits)
    for activity in range(len(OWN_ACTIVITIES)):
        parts.add(
            waits.waiting,
            WaitCause(activity),
            waits.share[:, activity],
            waits.late,
            rank=timelines.rank[waits.late],
        )
    before_recording = waiting[~has_shared_call]
    is_small = (timelines.wait > 0) & (timelines.wait < _SMALL_WAIT_NS)
    for rows, cause in (
        (before_recording, WaitCause.BEFORE_RECORDING),
        (np.flatnonzero(is_small), WaitCause.SMALL),
    ):
        no_target = np.full(len(rows), NONE)
        parts.add(rows, cause, 1.0, no_target, process_group=process_group[rows])
    return parts.frame()


def _explained_waits(
    timelines: _Timelines,
    waiting: Int64Array,
    late: Int64Array,
    shared: _LastSharedCalls,
) -> _ExplainedWaits:
    """Return what the late ranks spent more time on than the waiting ranks, as shares of the waits.

    If a late rank spent more time on nothing, the wait counts as idle time.
    """
    spent_late = timelines.spent(shared.of_late_rank, late)
    spent_waiting = timelines.spent(shared.of_waiting_rank, waiting)
    share = np.maximum(spent_late - spent_waiting, 0.0)
    is_unexplained = share.sum(axis=1) <= 0
    share[is_unexplained, WaitCause.IDLE] = 1.0
    share /= share.sum(axis=1, keepdims=True)
    return _ExplainedWaits(
        waiting=waiting,
        late=late,
        shared=shared.of_late_rank,
        share=share,
    )


def _add_communication_parts(
    parts: _WaitParts, timelines: _Timelines, waits: _ExplainedWaits
) -> None:
    """Divide the shares of transfers and waits among the kernels between the two calls.

    Each kernel gets a part in proportion to its exposed transfer or wait. If no kernel has any, the
    share is added to that of idle time, in place.
    """
    process_group = timelines.frame["process_group"].to_numpy(object)
    between = _kernels_between(
        timelines=timelines,
        shared=waits.shared,
        late=waits.late,
    )
    for cause, column in (
        (WaitCause.SLOW_TRANSFER, _TRANSFER_COLUMN),
        (WaitCause.WAIT, _WAIT_COLUMN),
    ):
        exposed = timelines.exposed[between.kernel, column - _TRANSFER_COLUMN]
        exposed_of_wait = np.bincount(
            between.wait, exposed, minlength=len(waits.waiting)
        )
        has_kernels = exposed_of_wait > 0
        divisor = np.where(has_kernels, exposed_of_wait, 1.0)
        share_of_kernel = exposed / divisor[between.wait]
        share_without_kernels = np.where(has_kernels, 0.0, waits.share[:, column])
        waits.share[:, WaitCause.IDLE] += share_without_kernels
        groups: object = ""
        if cause is WaitCause.SLOW_TRANSFER:
            groups = process_group[between.kernel]
        parts.add(
            waits.waiting[between.wait],
            cause,
            waits.share[between.wait, column] * share_of_kernel,
            between.kernel,
            process_group=groups,
        )


def _with_causes(kernels: pd.DataFrame, parts: pd.DataFrame) -> pd.DataFrame:
    """Return the kernels with the cause of the largest part of each wait.

    If that part is a wait in another call, the cause is that of the other wait, and so on.
    """
    largest = parts.sort_values("share", kind="stable")
    largest = largest.drop_duplicates("row", keep="last")
    largest = largest.set_index("row").reindex(range(len(kernels)))
    own_row = np.arange(len(largest))
    is_other_wait = largest["cause"] == WaitCause.WAIT
    # The kernel at the end of each chain of waits. Kernel 0 waits because of 1, 1 because of 2,
    # and 2 because of its own rank's work: [1, 2, 2] becomes [2, 2, 2]. Each round doubles the
    # number of steps.
    root_row = np.where(is_other_wait, largest["target"], own_row).astype(np.int64)
    for _ in range(_DOUBLINGS):
        root_row = root_row[root_row]
    largest = largest.iloc[root_row].reset_index(drop=True)
    cause = largest["cause"].map(dict(enumerate(CAUSE_TEXTS)))
    target = largest["target"].fillna(NONE).to_numpy(np.int64)
    call_of_target = values_at(kernels["call"].to_numpy(np.int64), target)
    call = pd.Series(call_of_target).astype("Int64")
    return kernels.assign(
        cause=cause.astype("str"),
        caused_by_call=call.mask(target == NONE),
        caused_by_rank=largest["rank"],
    )
