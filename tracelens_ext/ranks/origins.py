"""What each wait was for, without clocks that agree.

A rank waits in a call for the last one. Both had ended, together, the last call that they share;
since then the last rank spent longer, by exactly the wait. The difference is split into its own
time, transfers of its other calls, and its waits in other calls, which are followed on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.ranks.part import OWN
from tracelens_ext.trace import NONE, NS_PER_MS

if TYPE_CHECKING:
    from tracelens_ext.trace import Float64Array, Int64Array

_CAUSES = (*OWN, "slow_transfer", "before_recording", "small", "wait")
_TRANSFER, _BEFORE, _LITTLE, _WAIT = range(len(OWN), len(_CAUSES))
_SMALL_NS = 2_000
_LONGEST_CHAIN = 100_000


def find_origins(kernels: pd.DataFrame, last: Int64Array) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Follow every wait to its origins.

    Args:
        kernels: of all calls: `rank`, `call`, `set`, `process_group`, `iteration`, `start`, `dur`
            (ns, own clock), `wait` (ns, NaN where it is not known), and the columns of `OWN`.
        last: the last rank of each call, by its number; -1 where it is not known.

    Returns:
        The kernels with `cause`, `caused_by_call` and `caused_by_rank`, and `wait_origins`.
    """
    k = _Timelines(kernels)
    edges = _edges(k, last)
    row, cause, target, share = (edges[c].to_numpy() for c in ("row", "cause", "target", "share"))
    # How much waiting goes through each kernel: its own, and what it is the reason of.
    now = np.nan_to_num(k.wait)
    flow, on = now.copy(), np.flatnonzero((cause == _WAIT) & (share > 0))
    for _ in range(_LONGEST_CHAIN):
        now = np.bincount(target[on], now[row[on]] * share[on], minlength=len(now))
        flow += now
        on = on[now[row[on]] > 0]
        if not len(on):
            break
    edges["wait_ms"] = flow[row] * share / NS_PER_MS
    ends = edges[(cause != _WAIT) & (edges["wait_ms"] > 0)]
    keys = ["cause", "rank", "process_group", "iteration"]
    origins = ends.groupby(keys, sort=True, dropna=False)["wait_ms"].sum().reset_index()
    origins = origins.sort_values("wait_ms", ascending=False, kind="stable", ignore_index=True)
    origins["cause"] = pd.array(np.array(_CAUSES, object)[origins["cause"]], dtype="str")
    return _with_causes(kernels, edges), origins


class _Timelines:
    """Each rank's calls in the order of their ends, on its own clock."""

    def __init__(self, kernels: pd.DataFrame) -> None:
        self.frame = kernels
        self.call, self.rank, start, dur = (
            kernels[name].to_numpy(np.int64) for name in ("call", "rank", "start", "dur")
        )
        self.place = pd.factorize(kernels["rank"], sort=True)[0].astype(np.int64)
        self.wait = kernels["wait"].to_numpy(np.float64)
        self.start = start - start.min(initial=0)
        end = self.start + dur
        self.reach = int(end.max(initial=0)) + 1
        self._own = {
            at: kernels[[f"{name}_{at}" for name in OWN]].to_numpy(np.float64)
            for at in ("start", "end")
        }
        exposed = np.maximum(dur - (self._own["end"] - self._own["start"])[:, 0], 0.0)
        waited = exposed * np.nan_to_num(self.wait) / np.maximum(dur, 1)
        self.parts = np.stack((exposed - waited, waited), axis=1)  # transfers, and waits
        keys = self.place * self.reach + end
        self.order = np.argsort(keys, kind="stable")
        self._keys, self._at = keys[self.order], np.argsort(self.order)
        self._sums = np.concatenate((np.zeros((1, 2)), np.cumsum(self.parts[self.order], axis=0)))
        self._ids = pd.Index(self.call * (2**32) + self.rank)
        # The calls of each set, on each rank, that all of its ranks have.
        whole = np.flatnonzero(~np.isnan(self.wait))
        self._sets = pd.factorize(kernels["set"])[0].astype(np.int64)
        pair = self._sets[whole] * (2**32) + self.rank[whole]
        self.pairs, code = np.unique(pair, return_inverse=True)
        keys = code * self.reach + end[whole]
        order = np.argsort(keys, kind="stable")
        self._shared, self._shared_keys, self._end = whole[order], keys[order], end

    def row_of(self, call: Int64Array, rank: Int64Array) -> Int64Array:
        """The kernel of a call on a rank, -1 for none."""
        rows: Int64Array = self._ids.get_indexer(call * (2**32) + rank).astype(np.int64)
        return rows

    def last_shared(self, waiting: Int64Array, late: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The last call before that the waiting and the last rank share: its kernel on each."""
        of_rank = pd.DataFrame({"rank": self.pairs % 2**32, "pair": np.arange(len(self.pairs))})
        need = pd.DataFrame({"rank": self.rank[late], "need": np.arange(len(late))})
        need = need.merge(of_rank, on="rank")
        pair = need["pair"].to_numpy(np.int64)
        other = self.pairs[pair] // 2**32 * 2**32 + self.rank[waiting[need["need"]]]
        keys = pair * self.reach + self.start[late[need["need"]]]
        at = np.searchsorted(self._shared_keys, keys, side="right") - 1
        good = np.isin(other, self.pairs) & (at >= 0)
        good &= self._shared_keys[at] >= pair * self.reach
        need, rows = need["need"].to_numpy()[good], self._shared[at[good]]
        order = np.argsort(self._end[rows], kind="stable")
        theirs = np.full(len(waiting), NONE, dtype=np.int64)
        theirs[need[order]] = rows[order]  # the last wins
        mine = self.row_of(self.call[theirs], self.rank[waiting])
        known = (theirs != NONE) & (mine != NONE)
        return np.where(known, theirs, NONE), np.where(known, mine, NONE)

    def between(self, before: Int64Array, row: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The calls, as places in `order`, that a rank ended after one and before another began."""
        keys = self.place[row] * self.reach + self.start[row]
        first = self._at[before] + 1
        return first, np.maximum(np.searchsorted(self._keys, keys, side="right"), first)

    def spent(self, before: Int64Array, row: Int64Array) -> Float64Array:
        """What a rank did from the end of one call to the start of another, ns."""
        first, until = self.between(before, row)
        own = self._own["start"][row] - self._own["end"][before]
        return np.column_stack((own, self._sums[until] - self._sums[first]))


def _edges(k: _Timelines, last: Int64Array) -> pd.DataFrame:
    """A row a part of a wait: of which kernel's, its cause, the kernel behind it, its share."""
    iteration, group = (k.frame[c].to_numpy(object) for c in ("iteration", "process_group"))
    waiting = np.flatnonzero(k.wait >= _SMALL_NS)
    late = k.row_of(k.call[waiting], last[k.call[waiting]])
    theirs, mine = k.last_shared(waiting, late)
    known = theirs != NONE
    before, small = waiting[~known], np.flatnonzero(k.wait < _SMALL_NS)
    waiting, late, theirs, mine = (each[known] for each in (waiting, late, theirs, mine))
    parts = np.maximum(k.spent(theirs, late) - k.spent(mine, waiting), 0.0)
    parts[parts.sum(axis=1) <= 0, len(OWN) - 1] = 1.0  # idle: nothing else is known of it
    parts /= parts.sum(axis=1, keepdims=True)
    first, until = k.between(theirs, late)
    need = np.repeat(np.arange(len(waiting)), until - first)
    skipped = np.cumsum(until - first) - (until - first)
    other = k.order[np.arange(len(need)) - skipped[need] + first[need]]
    frames = []

    def add(row: Int64Array, cause: int, share: object, target: Int64Array, **of: object) -> None:
        columns = {"row": row, "cause": cause, "target": target, "share": share}
        names = {"rank": NONE, "process_group": "", "iteration": iteration[row]} | of
        frames.append(pd.DataFrame(columns | names))

    for at, cause in enumerate((_TRANSFER, _WAIT)):
        whole = np.bincount(need, k.parts[other, at], minlength=len(waiting))
        share = k.parts[other, at] / np.where(whole > 0, whole, 1.0)[need]
        column = len(OWN) + at
        parts[:, len(OWN) - 1] += np.where(whole > 0, 0.0, parts[:, column])
        groups = group[other] if cause == _TRANSFER else ""
        add(waiting[need], cause, parts[need, column] * share, other, process_group=groups)
    for cause in range(len(OWN)):
        add(waiting, cause, parts[:, cause], late, rank=k.rank[late])
    for rows, cause in ((before, _BEFORE), (small[k.wait[small] > 0], _LITTLE)):
        add(rows, cause, 1.0, np.full(len(rows), NONE), process_group=group[rows])
    edges = pd.concat([f for f in frames if len(f)] or frames[:1], ignore_index=True)
    edges["rank"] = edges["rank"].astype("Int64").mask(edges["rank"] == NONE)
    return edges


def _with_causes(kernels: pd.DataFrame, edges: pd.DataFrame) -> pd.DataFrame:
    """The kernels with the largest part of each wait; waits are followed to what they are for."""
    best = edges.sort_values("share", kind="stable").drop_duplicates("row", keep="last")
    best = best.set_index("row").reindex(range(len(kernels)))
    on = np.where(best["cause"] == _WAIT, best["target"], np.arange(len(best))).astype(np.int64)
    for _ in range(64):  # each round follows twice as far
        on = on[on]
    best = best.iloc[on].reset_index(drop=True)
    cause = best["cause"].map(dict(enumerate(_CAUSES)))
    target = best["target"].fillna(NONE).astype("int64")
    call = pd.Series(kernels["call"].to_numpy()[target]).astype("Int64").mask(target == NONE)
    return kernels.assign(
        cause=cause.astype("str"), caused_by_call=call, caused_by_rank=best["rank"]
    )
