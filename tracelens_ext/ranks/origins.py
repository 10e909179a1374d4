"""What each wait was for, without clocks that agree.

A rank waits in a call for the last one. Both had ended, together, the last call that they share;
since then the last rank spent longer, by exactly the wait. The difference is split into its own
time, transfers of its other calls, and its waits in other calls, which are followed on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.ranks.part import OWN
from tracelens_ext.trace import NONE, NS_PER_MS

if TYPE_CHECKING:
    from tracelens_ext.trace import Float64Array, Int64Array

SLOW_TRANSFER, BEFORE, SMALL = "slow_transfer", "before_recording", "small"
_CAUSES = np.array([*OWN, SLOW_TRANSFER, BEFORE, SMALL], dtype=object)
_TRANSFER, _WAIT = len(OWN), len(OWN) + 1  #: columns of the parts of a wait
_SMALL_NS = 2_000
_LONGEST_CHAIN = 100_000


class Origins(NamedTuple):
    """Where waits come from."""

    kernels: pd.DataFrame  #: as given, with `cause`, `caused_by_call`, `caused_by_rank`
    origins: pd.DataFrame  #: `cause`, `rank`, `process_group`, `iteration`, `wait_ms`


def find_origins(kernels: pd.DataFrame, last: Int64Array) -> Origins:
    """Follow every wait to its origins.

    Args:
        kernels: of all calls: `rank`, `call`, `set`, `process_group`, `iteration`, `start`, `dur`
            (ns, own clock), `wait` (ns, NaN where it is not known), and the columns of `OWN`.
        last: the last rank of each call, by its number; -1 where it is not known.
    """
    k = _Timelines(kernels, last)
    waiting = np.flatnonzero(k.wait >= _SMALL_NS)
    late = k.row_of(k.call[waiting], last[k.call[waiting]])
    before_late, before = k.last_shared(waiting, late)
    known = before_late != NONE
    parts = np.zeros((len(waiting), len(OWN) + 2))
    first, until = k.between(before_late, late)
    parts[known] = k.spent(before_late, late)[known] - k.spent(before, waiting)[known]
    parts = np.maximum(parts, 0.0)
    total = parts.sum(axis=1)
    parts[known & (total <= 0), len(OWN) - 1] = 1.0  # idle: nothing else is known of it
    parts /= np.where(total > 0, total, 1.0)[:, None]

    need, other = _ranges(first, np.where(known, until, first))
    edges = []
    for column, weight in ((_TRANSFER, k.transfer), (_WAIT, k.waited)):
        share = weight[k.order[other]]
        whole = np.bincount(need, share, minlength=len(waiting))
        with np.errstate(invalid="ignore", divide="ignore"):
            share = parts[need, column] * share / whole[need]
        edges.append(np.nan_to_num(share))
    transfer, waits = edges
    other = k.order[other]
    # What no call in between explains is the last rank's own.
    lost = parts[:, _TRANSFER] + parts[:, _WAIT]
    lost -= np.bincount(need, transfer + waits, minlength=len(waiting))
    parts[:, len(OWN) - 1] += np.where(known, np.maximum(lost, 0.0), 0.0)

    flow = _flow(k.wait, waiting[need], other, waits)
    amount = flow[waiting]
    iteration, group = k.iteration, k.group
    rows = [
        (np.full(len(waiting), c), k.rank[late], None, iteration[waiting], amount * parts[:, c])
        for c in range(len(OWN))
    ]
    rows.append(
        (
            np.full(len(need), _TRANSFER),
            None,
            group[other],
            iteration[waiting[need]],
            amount[need] * transfer,
        )
    )
    rows.append(
        (
            np.full((~known).sum(), _TRANSFER + 1),
            None,
            group[waiting[~known]],
            iteration[waiting[~known]],
            amount[~known],
        )
    )
    small = np.flatnonzero(k.wait < _SMALL_NS)
    rows.append(
        (np.full(len(small), _TRANSFER + 2), None, group[small], iteration[small], flow[small])
    )
    causes = _largest(k, waiting, late, known, parts, (need, other, transfer, waits))
    return Origins(_with_causes(k, causes), _summed(k, rows))


class _Timelines:
    """Each rank's calls in the order of their ends, on its own clock."""

    def __init__(self, kernels: pd.DataFrame, last: Int64Array) -> None:
        self.frame, self.last = kernels, last
        self.call = kernels["call"].to_numpy(np.int64)
        rank, self.ranks = pd.factorize(kernels["rank"], sort=True)
        self.place, self.rank = rank.astype(np.int64), kernels["rank"].to_numpy(np.int64)
        self.wait = kernels["wait"].to_numpy(np.float64)
        self.group, self.groups = pd.factorize(kernels["process_group"])
        self.iteration, self.iterations = pd.factorize(kernels["iteration"])
        start, dur = kernels["start"].to_numpy(np.int64), kernels["dur"].to_numpy(np.int64)
        self.start, self.end = start - start.min(initial=0), start - start.min(initial=0) + dur
        self._reach = int(self.end.max(initial=0)) + 1
        own = {
            at: [kernels[f"{n}_{at}"].to_numpy(np.float64) for n in OWN] for at in ("start", "end")
        }
        self._own = {at: np.stack(columns, axis=1) for at, columns in own.items()}
        exposed = np.maximum(dur - (self._own["end"][:, 0] - self._own["start"][:, 0]), 0.0)
        waits = np.nan_to_num(self.wait) / np.maximum(dur, 1)
        self.waited, self.transfer = exposed * waits, exposed * (1 - waits)
        self._keys = self.place * self._reach + self.end
        self.order = np.argsort(self._keys, kind="stable")
        self._sorted = self._keys[self.order]
        zero = np.zeros(1)
        self._sums = [
            np.concatenate((zero, np.cumsum(v[self.order]))) for v in (self.transfer, self.waited)
        ]
        self._at = np.empty(len(self.order), dtype=np.int64)
        self._at[self.order] = np.arange(len(self.order))
        ids = self.call * (len(self.ranks) + 1) + self.place
        self._by_id = np.argsort(ids, kind="stable")
        self._ids = ids[self._by_id]
        # The calls of each set on each rank that all of its ranks have.
        whole = np.flatnonzero(~np.isnan(self.wait))
        of_set = pd.factorize(kernels["set"])[0].astype(np.int64)[whole]
        pair = of_set * (len(self.ranks) + 1) + self.place[whole]
        self._pairs, code = np.unique(pair, return_inverse=True)
        keys = code * self._reach + self.end[whole]
        order = np.argsort(keys, kind="stable")
        self._set_rows, self._set_keys = whole[order], keys[order]

    def row_of(self, call: Int64Array, rank: Int64Array) -> Int64Array:
        """The kernel of a call on a rank."""
        ids = call * (len(self.ranks) + 1) + np.searchsorted(self.ranks, rank)
        at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return np.where(self._ids[at] == ids, self._by_id[at], NONE) if len(at) else at

    def last_shared(self, waiting: Int64Array, late: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The last call before that the waiting and the last rank share: its kernel on each."""
        width = len(self.ranks) + 1
        sets, ranks = self._pairs // width, self._pairs % width
        by_rank = np.argsort(ranks, kind="stable")
        first = np.searchsorted(ranks[by_rank], self.place[late])
        until = np.searchsorted(ranks[by_rank], self.place[late], side="right")
        need, at = _ranges(first, until)
        pair = by_rank[at]
        wanted = sets[pair] * width + self.place[waiting[need]]
        joint = np.isin(wanted, self._pairs)
        need, pair = need[joint], pair[joint]
        keys = pair * self._reach + self.start[late[need]]
        place = np.searchsorted(self._set_keys, keys, side="right") - 1
        found = (place >= 0) & (self._set_keys[place] >= pair * self._reach)
        need, rows = need[found], self._set_rows[place[found]]
        order = np.lexsort((self.end[rows], need))
        need, rows = need[order], rows[order]
        final = np.flatnonzero(np.diff(np.append(need, NONE)) != 0)
        theirs = np.full(len(waiting), NONE, dtype=np.int64)
        theirs[need[final]] = rows[final]
        mine = np.full(len(waiting), NONE, dtype=np.int64)
        has = theirs != NONE
        mine[has] = self.row_of(self.call[theirs[has]], self.rank[waiting[has]])
        theirs[mine == NONE] = NONE
        return theirs, mine

    def between(self, before: Int64Array, row: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The calls, as places in `order`, that a rank ended after one and before another began."""
        first = self._at[before] + 1
        until = np.searchsorted(
            self._sorted, self.place[row] * self._reach + self.start[row], side="right"
        )
        return first, np.maximum(until, first)

    def spent(self, before: Int64Array, row: Int64Array) -> Float64Array:
        """What a rank did from the end of one call to the start of another, ns."""
        own = self._own["start"][row] - self._own["end"][before]
        first, until = self.between(before, row)
        return np.column_stack((own, *(s[until] - s[first] for s in self._sums)))


def _ranges(first: Int64Array, until: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Every number of each range, with that of its range."""
    count = np.maximum(until - first, 0)
    which = np.repeat(np.arange(len(first)), count)
    begin = np.cumsum(count) - count
    return which, np.arange(len(which)) - begin[which] + first[which]


def _flow(
    wait: Float64Array, source: Int64Array, target: Int64Array, share: Float64Array
) -> Float64Array:
    """How much waiting goes through each kernel: its own, and what it is the reason of."""
    now = np.nan_to_num(wait)
    flow = now.copy()
    used = share > 0
    source, target, share = source[used], target[used], share[used]
    for _ in range(_LONGEST_CHAIN):
        now = np.bincount(target, now[source] * share, minlength=len(wait))
        if not now.any():
            break
        flow += now
        live = now[source] > 0
        source, target, share = source[live], target[live], share[live]
    return flow


def _largest(
    k: _Timelines,
    waiting: Int64Array,
    late: Int64Array,
    known: Int64Array,
    parts: Float64Array,
    edges: tuple[Int64Array, Int64Array, Float64Array, Float64Array],
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """The cause, call and rank that are the largest part of each wait; as columns."""
    cause = np.where(np.isnan(k.wait), NONE, np.where(k.wait < _SMALL_NS, _TRANSFER + 2, NONE))
    cause[k.wait <= 0] = NONE
    call, rank = np.full(len(cause), NONE), np.full(len(cause), NONE)
    need, other, transfer, waits = edges
    best = np.argmax(parts, axis=1)
    chosen = np.where(known, best, _TRANSFER + 1)
    cause[waiting] = chosen
    call[waiting], rank[waiting] = k.call[waiting], k.rank[late]
    rank[waiting[~known]] = call[waiting[~known]] = NONE
    via = np.arange(len(cause))
    for column, weight in ((_TRANSFER, transfer), (_WAIT, waits)):
        order = np.lexsort((weight, need))
        final = order[np.diff(np.append(need[order], NONE)) != 0]
        final = final[known[need[final]] & (best[need[final]] == column)]
        rows = waiting[need[final]]
        if column == _TRANSFER:
            call[rows], rank[rows] = k.call[other[final]], NONE
        else:
            via[rows] = other[final]
    for _ in range(64):
        if (via[via] == via).all():
            break
        via = via[via]
    return cause[via], call[via], rank[via]


def _with_causes(k: _Timelines, found: tuple[Int64Array, Int64Array, Int64Array]) -> pd.DataFrame:
    cause, call, rank = found
    names = np.append(_CAUSES, None)
    frame = k.frame.assign(cause=pd.array(names[cause], dtype="str"))
    for name, values in (("caused_by_call", call), ("caused_by_rank", rank)):
        frame[name] = pd.Series(values, index=frame.index).astype("Int64").mask(values == NONE)
    return frame


def _summed(k: _Timelines, rows: list[tuple[Int64Array, ...]]) -> pd.DataFrame:
    frames = []
    for cause, rank, group, iteration, amount in rows:
        none = np.full(len(cause), NONE)
        frames.append(
            np.stack(
                (cause, none if rank is None else rank, none if group is None else group, iteration)
            )
        )
    keys = np.concatenate(frames, axis=1)
    amounts = np.concatenate([row[-1] for row in rows])
    columns = ["cause", "rank", "process_group", "iteration"]
    frame = pd.DataFrame(dict(zip(columns, keys, strict=True)))
    frame["wait_ms"] = amounts / NS_PER_MS
    frame = frame[frame["wait_ms"] > 0].groupby(columns, sort=True).sum().reset_index()
    frame["cause"] = pd.array(_CAUSES[frame["cause"]], dtype="str")
    frame["rank"] = frame["rank"].astype("Int64").mask(frame["rank"] == NONE)
    for name, labels in (("process_group", k.groups), ("iteration", k.iterations)):
        texts = np.append(np.asarray(labels, dtype=object), "")
        frame[name] = pd.array(texts[frame[name]], dtype="str")
    return frame.sort_values("wait_ms", ascending=False, kind="stable", ignore_index=True)
