"""What ranks waited for in their calls: every wait is followed to where it comes from.

A rank waits in a call for the rank that comes last. Since the last call that the two share, the
last one spent longer by exactly the wait: with its own work, with transfers, or with waits in other
calls, which are followed on.
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
    """Why a rank waited; the first ones are `OWN_ACTIVITIES`, in their order."""

    COMPUTATION = 0
    DATA_LOADER = 1
    HOST = 2
    IDLE = 3
    SLOW_TRANSFER = 4
    BEFORE_RECORDING = 5
    SMALL = 6  #: the wait is too short to be followed
    WAIT = 7  #: the last rank waited too

    @property
    def text(self) -> str:
        """What tables call it."""
        return self.name.lower()


CAUSE_TEXTS = [cause.text for cause in WaitCause]
#: Columns of what a rank spent: its own activities, transfers, waits.
_TRANSFER_COLUMN = len(OWN_ACTIVITIES)
_WAIT_COLUMN = len(OWN_ACTIVITIES) + 1
_SMALL_WAIT_NS = 2_000
_MAX_CHAIN = 100_000
#: Rounds in which chains of waits are followed; each one goes twice as far.
_DOUBLINGS = 64
ORIGIN_KEYS = ["cause", "rank", "process_group", "iteration"]


class Origins(NamedTuple):
    """Where waits come from."""

    kernels: pd.DataFrame  #: with `cause`, `caused_by_call` and `caused_by_rank`
    table: pd.DataFrame  #: the table `wait_root_causes`


def find_origins(kernels: pd.DataFrame, last_rank: Int64Array) -> Origins:
    """Follow every wait to its origins.

    Args:
        kernels: of all calls, with `start`, `dur` and `wait` (ns of the own clock, NaN where it is
            not known).
        last_rank: of each call, `NONE` where it is not known.
    """
    timelines = _Timelines(kernels)
    parts = _parts_of_waits(timelines, last_rank)
    flow = _flow(timelines, parts)
    wait = flow[parts["row"].to_numpy()] * parts["share"].to_numpy()
    parts["wait_ms"] = wait / NS_PER_MS
    is_origin = (parts["cause"] != WaitCause.WAIT) & (parts["wait_ms"] > 0)
    grouped = parts[is_origin].groupby(ORIGIN_KEYS, sort=True, dropna=False)
    table = grouped["wait_ms"].sum().reset_index()
    table = table.sort_values(
        "wait_ms", ascending=False, kind="stable", ignore_index=True
    )
    texts = np.array(CAUSE_TEXTS, dtype=object)[table["cause"]]
    table["cause"] = pd.array(texts, dtype="str")
    return Origins(_with_causes(kernels, parts), table)


def without_origins(kernels: pd.DataFrame) -> Origins:
    """Return kernels whose causes are not known, and an empty table."""
    kernels = kernels.assign(
        cause="",
        caused_by_call=pd.array([pd.NA] * len(kernels), dtype="Int64"),
        caused_by_rank=pd.array([pd.NA] * len(kernels), dtype="Int64"),
    )
    table = pd.DataFrame(columns=ORIGIN_KEYS + ["wait_ms"])
    types = {"cause": "str", "rank": "Int64", "process_group": "str"}
    return Origins(
        kernels=kernels,
        table=table.astype({**types, "iteration": "str", "wait_ms": "float64"}),
    )


def _flow(timelines: _Timelines, parts: pd.DataFrame) -> Float64Array:
    """Return how much waiting goes through each kernel, ns, (k,).

    It is the kernel's own wait, and what it is the reason for in other calls.
    """
    row = parts["row"].to_numpy()
    target = parts["target"].to_numpy()
    share = parts["share"].to_numpy()
    arriving: Float64Array = np.nan_to_num(timelines.wait)
    total = arriving.copy()
    followed = np.flatnonzero((parts["cause"] == WaitCause.WAIT) & (share > 0))
    for _ in range(_MAX_CHAIN):
        passed_on = arriving[row[followed]] * share[followed]
        arrived = np.bincount(target[followed], passed_on, minlength=len(arriving))
        arriving = arrived.astype(np.float64)
        total += arriving
        followed = followed[arriving[row[followed]] > 0]
        if not len(followed):
            break
    return total


class _SharedCalls(NamedTuple):
    """The kernels of the last call that two ranks share, rows; `NONE` for no such call."""

    of_late_rank: Int64Array
    of_waiting_rank: Int64Array


class _Timelines:
    """Each rank's calls in the order of their ends, on its own clock.

    Attributes:
        call, rank: of each kernel, (k,).
        start: of each kernel, ns, (k,).
        wait: of each kernel, ns, NaN where it is not known, (k,).
        exposed: time of each kernel without computation: transfer and wait, ns, (k, 2).
        order: the kernels by rank and end.
        after: the position in `order` after each kernel, (k,).
        until: the position in `order` of the first kernel of the rank that ends after each kernel
            starts, (k,).
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
        # One number for rank and time, so that one search finds a time within a rank.
        rank_index = pd.factorize(self.rank, sort=True)[0]
        first_of_rank = rank_index * (int(end.max(initial=0)) + 1)
        end_key = first_of_rank + end
        self.order: Int64Array = np.argsort(end_key, kind="stable")
        self.after: Int64Array = np.argsort(self.order) + 1
        start_key = first_of_rank + self.start
        self.until: Int64Array = np.searchsorted(
            end_key[self.order], start_key, side="right"
        )
        running_sum = np.cumsum(self.exposed[self.order], axis=0)
        exposed_before = np.concatenate((np.zeros((1, 2)), running_sum))
        # What the rank had done when each kernel started and ended: own activities, transfers,
        # waits, ns, (k, a + 2).
        self._until_start = np.column_stack(
            (own_until_start, exposed_before[self.until])
        )
        self._until_end = np.column_stack((own_until_end, exposed_before[self.after]))
        self._row_of_id = pd.Index(self._id(self.call, self.rank))
        # The kernels of calls that all ranks of the set have.
        complete = kernels[["set", "rank"]].assign(end=end, row=kernels.index)
        complete = complete[~np.isnan(self.wait)]
        self._complete = complete.sort_values("end", kind="stable")

    @staticmethod
    def _id(call: Int64Array, rank: Int64Array) -> Int64Array:
        """Return one number for a call and a rank."""
        return call * 2**32 + rank

    def row_of(self, call: Int64Array, rank: Int64Array) -> Int64Array:
        """Return the kernel of a call on a rank; `NONE` for none."""
        wanted = pd.Index(self._id(call, rank))
        rows: Int64Array = self._row_of_id.get_indexer(wanted).astype(np.int64)
        return rows

    def last_shared(self, waiting: Int64Array, late: Int64Array) -> _SharedCalls:
        """Return the last call that two ranks shared before the late one came.

        Args:
            waiting: kernels, rows, (w,).
            late: those of the same calls on the rank that came last, (w,).
        """
        ranks_of_set = self._complete[["set", "rank"]].drop_duplicates()
        wanted = pd.DataFrame(
            {
                "wanted": np.arange(len(waiting)),
                "rank": self.rank[late],
                "waiting_rank": self.rank[waiting],
                "start": self.start[late],
            }
        )
        wanted = wanted.merge(ranks_of_set, on="rank")
        ranks_of_set = ranks_of_set.rename(columns={"rank": "waiting_rank"})
        wanted = wanted.merge(ranks_of_set, on=["set", "waiting_rank"])
        shared = pd.merge_asof(
            wanted.sort_values("start", kind="stable"),
            self._complete,
            left_on="start",
            right_on="end",
            by=["set", "rank"],
        ).dropna()
        shared = shared.sort_values("end", kind="stable").drop_duplicates(
            "wanted", keep="last"
        )
        of_late = np.full(len(waiting), NONE, dtype=np.int64)
        of_late[shared["wanted"]] = shared["row"]
        shared_call = values_at(self.call, of_late)
        of_waiting = self.row_of(shared_call, self.rank[waiting])
        is_known = (of_late != NONE) & (of_waiting != NONE)
        return _SharedCalls(
            of_late_rank=np.where(is_known, of_late, NONE),
            of_waiting_rank=np.where(is_known, of_waiting, NONE),
        )

    def spent(self, after: Int64Array, until: Int64Array) -> Float64Array:
        """Return what ranks did from the end of one kernel to the start of another, ns, (w, a + 2).

        A kernel that overlaps the start counts as a whole, so transfers and waits could be below 0.
        """
        spent: Float64Array = self._until_start[until] - self._until_end[after]
        communication = spent[:, _TRANSFER_COLUMN:]
        spent[:, _TRANSFER_COLUMN:] = np.maximum(communication, 0.0)
        return spent


def _activities(kernels: pd.DataFrame, suffix: str) -> Float64Array:
    """Return what a rank had done until each kernel's start or end, ns, (k, a)."""
    columns = [f"{name}_{suffix}" for name in OWN_ACTIVITIES]
    activities: Float64Array = kernels[columns].to_numpy(np.float64)
    return activities


class _Between(NamedTuple):
    """The kernels between the shared call and the call in which a rank was late."""

    wait: Int64Array  #: the wait that each is a reason for, an index, (n,)
    kernel: Int64Array  #: its row, (n,)


def _kernels_between(
    timelines: _Timelines, shared: Int64Array, late: Int64Array
) -> _Between:
    """Return the kernels of the late ranks between two of their calls.

    They are consecutive in `order`. Of waits whose kernels begin at the positions 4 and 9 and are 2
    and 3:

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
    """A row for each part of a wait: whose, why, through which kernel, and which share of it."""

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
        """Add parts of the waits of the kernels `row`, whose reason are the kernels `target`."""
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
        """Return all parts."""
        with_rows = [frame for frame in self._frames if len(frame)]
        parts = pd.concat(with_rows or self._frames[:1], ignore_index=True)
        rank = parts["rank"].astype("Int64")
        parts["rank"] = rank.mask(rank == NONE)
        return parts


def _parts_of_waits(timelines: _Timelines, last_rank: Int64Array) -> pd.DataFrame:
    """Return the parts of all waits, as `_WaitParts` has them."""
    process_group = timelines.frame["process_group"].to_numpy(object)
    waiting = np.flatnonzero(timelines.wait >= _SMALL_WAIT_NS)
    late = timelines.row_of(timelines.call[waiting], last_rank[timelines.call[waiting]])
    shared = timelines.last_shared(waiting, late)
    is_known = shared.of_late_rank != NONE
    before_recording = waiting[~is_known]
    waiting = waiting[is_known]
    late = late[is_known]
    shared_of_late = shared.of_late_rank[is_known]
    shared_of_waiting = shared.of_waiting_rank[is_known]
    # What the late rank spent more than the waiting one, as shares of the wait, (w, a + 2).
    spent_late = timelines.spent(shared_of_late, late)
    spent_waiting = timelines.spent(shared_of_waiting, waiting)
    share = np.maximum(spent_late - spent_waiting, 0.0)
    is_unexplained = share.sum(axis=1) <= 0
    share[is_unexplained, WaitCause.IDLE] = 1.0
    share /= share.sum(axis=1, keepdims=True)
    between = _kernels_between(
        timelines=timelines,
        shared=shared_of_late,
        late=late,
    )
    parts = _WaitParts(timelines)
    for cause, column in (
        (WaitCause.SLOW_TRANSFER, _TRANSFER_COLUMN),
        (WaitCause.WAIT, _WAIT_COLUMN),
    ):
        exposed = timelines.exposed[between.kernel, column - _TRANSFER_COLUMN]
        exposed_of_wait = np.bincount(between.wait, exposed, minlength=len(waiting))
        has_kernels = exposed_of_wait > 0
        share_of_kernel = (
            exposed / np.where(has_kernels, exposed_of_wait, 1.0)[between.wait]
        )
        share[:, WaitCause.IDLE] += np.where(has_kernels, 0.0, share[:, column])
        groups: object = ""
        if cause is WaitCause.SLOW_TRANSFER:
            groups = process_group[between.kernel]
        parts.add(
            waiting[between.wait],
            cause,
            share[between.wait, column] * share_of_kernel,
            between.kernel,
            process_group=groups,
        )
    for activity in range(len(OWN_ACTIVITIES)):
        parts.add(
            waiting,
            WaitCause(activity),
            share[:, activity],
            late,
            rank=timelines.rank[late],
        )
    small = np.flatnonzero((timelines.wait > 0) & (timelines.wait < _SMALL_WAIT_NS))
    for rows, cause in (
        (before_recording, WaitCause.BEFORE_RECORDING),
        (small, WaitCause.SMALL),
    ):
        nothing = np.full(len(rows), NONE)
        parts.add(rows, cause, 1.0, nothing, process_group=process_group[rows])
    return parts.frame()


def _with_causes(kernels: pd.DataFrame, parts: pd.DataFrame) -> pd.DataFrame:
    """Return the kernels with the largest part of each wait; waits are followed to their causes."""
    largest = parts.sort_values("share", kind="stable").drop_duplicates(
        "row", keep="last"
    )
    largest = largest.set_index("row").reindex(range(len(kernels)))
    own_row = np.arange(len(largest))
    reason = np.where(
        largest["cause"] == WaitCause.WAIT, largest["target"], own_row
    ).astype(np.int64)
    for _ in range(_DOUBLINGS):
        reason = reason[reason]
    largest = largest.iloc[reason].reset_index(drop=True)
    cause = largest["cause"].map(dict(enumerate(CAUSE_TEXTS)))
    target = largest["target"].fillna(NONE).to_numpy(np.int64)
    call = pd.Series(values_at(kernels["call"].to_numpy(np.int64), target)).astype(
        "Int64"
    )
    return kernels.assign(
        cause=cause.astype("str"),
        caused_by_call=call.mask(target == NONE),
        caused_by_rank=largest["rank"],
    )
