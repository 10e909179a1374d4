"""All groups of a job together: the tables about its calls, waits, clocks and verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tracelens_ext.distributed.calls import PAIR, GroupCalls
from tracelens_ext.distributed.extract import OWN, numbers_in
from tracelens_ext.distributed.verdicts import Job, find_verdicts
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, NS_PER_MS, NS_PER_US, Float64Array, Int64Array

_NEEDED = [
    "rank",
    "device",
    "no",
    "start",
    "dur",
    "end",
    "base",
    "sizes",
    "complete",
    "matched_by",
    "Process Group Name",
    "iteration",
    "src",
    "dst",
    "In msg nelems",
    "Out msg nelems",
    *(f"{name}_{at}" for at in ("start", "end") for name in OWN),
]
_SYNC = [
    "call",
    "collective",
    "process_group",
    "description",
    "ranks",
    "group_size",
    "iteration",
    "sequence",
    "matched_by",
    "state",
    "missing_ranks",
    "dtype",
    "bytes",
    "in_sync_us",
    "wait_us",
    "last_rank",
    "algorithm_bandwidth_gb_s",
    "bus_bandwidth_gb_s",
    "span",
    "reason",
]
_WAITS = ["call", "rank", "start_us", "duration_us", "wait_us", "cause", "caused_by_call"]
_IN_US = {"in_sync": "in_sync_us", "wait": "wait_us", "start": "start_us", "dur": "duration_us"}


def job_tables(
    groups: Sequence[GroupCalls],
    iterations: pd.DataFrame,
    abouts: Sequence[Mapping[str, Any]],
    *,
    world: int | None,
    failed: Sequence[int],
    ranks_per_node: int | None,
) -> dict[str, pd.DataFrame]:
    """The tables over all ranks; `ranks_per_node`: None to tell nodes by devices."""
    calls, kernels, stuck = _numbered(groups)
    ranks = np.array(sorted({r for about in abouts for r in about["ranks"]}), dtype=np.int64)
    shared = kernels[kernels["complete"]]
    common = fit_clocks(shared, ranks)
    named = shared["matched_by"] != "unnamed"
    clocks = common if named.all() else fit_clocks(shared[named], ranks)
    last = calls["last_rank"].fillna(-1).to_numpy(np.int64)
    wait = kernels["dur"] - calls["in_sync"].to_numpy()[kernels["call"]]
    kernels, origins = find_origins(kernels.assign(wait=wait.where(kernels["complete"])), last)
    waits = _in_us(kernels.sort_values(["call", "rank"], kind="stable", ignore_index=True))
    offset = pd.Series((common["offset_us"] * NS_PER_US).round().to_numpy(), index=ranks)
    kernels["start"] += kernels["base"]
    kernels["start"] -= kernels["rank"].map(offset)
    kernels["end"] -= kernels["rank"].map(offset)
    stuck["launch"] += stuck["base"] - stuck["rank"].map(offset)
    calls = calls.join(kernels.groupby("call")[["start", "end"]].max(), on="call")
    calls["span"] = _span(calls, kernels, ranks_per_node)
    places = _places(calls, abouts)
    job = Job(calls, kernels, stuck, origins, iterations, places, world, failed)
    tables = {"verdicts": find_verdicts(job), "wait_origins": origins, "clocks": clocks}
    sync = _in_us(calls.sort_values(["start", "call"], kind="stable", ignore_index=True))
    names = {"algorithm": "algorithm_bandwidth_gb_s", "bus": "bus_bandwidth_gb_s"}
    sync = sync.rename(columns=names)[_SYNC].astype({"group_size": "Int64", "bytes": "Int64"})
    tables |= {"collective_sync": sync, "collective_waits": waits[[*_WAITS, "caused_by_rank"]]}
    return tables | {"collective_groups": _groups(calls)}


def _in_us(frame: pd.DataFrame) -> pd.DataFrame:
    times = [name for name in _IN_US if name in frame]
    return frame.assign(**{_IN_US[name]: frame[name] / NS_PER_US for name in times})


def _numbered(groups: Sequence[GroupCalls]) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The calls, kernels and stuck launches of all groups, with numbers of calls and of sets."""
    parts = zip(*((of.calls, of.kernels[_NEEDED], of.stuck) for of in groups), strict=True)
    joined = (pd.concat(each, keys=range(len(groups)), names=["group"]) for each in parts)
    calls, kernels, stuck = (each.reset_index("group").reset_index(drop=True) for each in joined)
    calls["call"] = calls.index
    kernels = kernels.merge(calls[["group", "no", "call"]], "left", ["group", "no"])
    kernels["elements"] = kernels[["In msg nelems", "Out msg nelems"]].max(axis=1)
    for frame in (calls, kernels, stuck):
        group, src, dst = (frame[name].astype("int64") for name in ("group", "src", "dst"))
        frame["set"] = group * 2**42 + (src + 1) * 2**21 + dst + 1
    return calls, kernels.rename(columns={"Process Group Name": "process_group"}), stuck


def _span(calls: pd.DataFrame, kernels: pd.DataFrame, ranks_per_node: int | None) -> pd.Series:
    """Whether a call stays in a node, as far as nodes are known."""
    device = kernels.groupby("rank")["device"].first()
    count = ranks_per_node or int(device.max()) + 1
    if not ranks_per_node and (count < 2 or (device.index % count != device).any()):
        return pd.Series("", calls.index, "str")
    texts = calls["ranks"].unique()
    nodes = [len({rank // count for rank in numbers_in(text)}) for text in texts]
    words = [("", "node", "across")[min(number, 2)] for number in nodes]
    return calls["ranks"].map(dict(zip(texts, words, strict=True)))


def _places(calls: pd.DataFrame, abouts: Sequence[Mapping[str, Any]]) -> dict[int, object]:
    """The index of each rank in the groups in which it sends and receives."""
    piped = {*calls.loc[calls["collective"] == PAIR, "key"]}
    named = {*calls["key"]}
    unnamed = bool((calls["matched_by"] == "unnamed").any())
    places: dict[int, object] = {}
    for about in abouts:
        found = sorted(
            (index, size)
            for key, (index, size, whole) in about["positions"].items()
            if key in piped or (unnamed and key not in named and not whole)
        )
        places |= dict.fromkeys(about["ranks"], found)
    return places


def _groups(calls: pd.DataFrame) -> pd.DataFrame:
    known = calls[calls["in_sync"].notna()]
    grouped = known.groupby(["key", "collective"], sort=True)
    frame = grouped.agg(process_group=("process_group", "first"), calls=("call", "size"))
    transfer, wait = (grouped[name].sum() / NS_PER_MS for name in ("in_sync", "wait"))
    bound = np.select([transfer >= 2 * wait, wait >= 2 * transfer], ["transfer", "wait"], "mixed")
    frame = frame.assign(transfer_ms=transfer, wait_ms=wait, bound=pd.array(bound, dtype="str"))
    frame = frame.reset_index("collective").reset_index(drop=True)
    frame.insert(0, "process_group", frame.pop("process_group"))
    return frame


#: Standard deviations that an error stands for, and what no error is below, ns.
_SURE = 2.5
_LEAST = 100.0


def fit_clocks(kernels: pd.DataFrame, ranks: Int64Array) -> pd.DataFrame:
    """Offsets of clocks, as in the table `clocks`, of `ranks` (ascending), by least squares.

    A call ends on all of its ranks at about the same time. Ranks that share no call have no offset.
    The kernels are of complete calls: `call`, `rank`, `end` (ns, own clock), `set` (the same number
    for calls of the same ranks).
    """
    place = np.searchsorted(ranks, kernels["rank"].to_numpy())
    call = pd.factorize(kernels["call"])[0].astype(np.int64)
    of_set = pd.factorize(kernels["set"])[0].astype(np.int64)
    end = kernels["end"].to_numpy(np.int64)
    time = (end - end.min(initial=np.iinfo(np.int64).max)).astype(np.float64)
    count = np.bincount(call)
    pull = np.bincount(place, time - (np.bincount(call, time) / count)[call], len(ranks))
    pairs = np.unique(np.stack((of_set, place)), axis=1)
    members = np.split(pairs[1], np.flatnonzero(np.diff(pairs[0])) + 1)
    weight = np.bincount(of_set[np.unique(call, return_index=True)[1]]).astype(np.float64)
    component = np.arange(len(ranks))
    before = np.full(len(ranks), NONE)
    while (component != before).any():  # the lowest of the ranks that each is joined with
        before = component.copy()
        for of in members:
            component[of] = component[of].min(initial=len(ranks))
    sets_of: dict[int, list[tuple[Int64Array, float]]] = {}  # by component: members, calls
    if len(place):
        for of, calls_of_set in zip(members, weight.tolist(), strict=True):
            sets_of.setdefault(int(component[of[0]]), []).append((of, calls_of_set))
    offset = np.zeros(len(ranks))
    error = np.full(len(ranks), _LEAST)
    for number in np.unique(component[place]).tolist():
        those = np.flatnonzero(component == number)
        mine = component[place] == number
        matrix = np.full((len(those), len(those)), 1.0 / len(those))
        for of, calls_of_set in sets_of[number]:
            at = np.searchsorted(those, of)
            matrix[np.ix_(at, at)] -= calls_of_set / len(at)
            matrix[at, at] += calls_of_set
        inverse = np.linalg.inv(matrix)
        offset[those] = inverse @ pull[those]
        offset[those] -= offset[those[0]]
        left = (time - offset[place])[mine]
        of_call = np.unique(call[mine], return_inverse=True)[1]
        left -= (np.bincount(of_call, left) / np.bincount(of_call))[of_call]
        free = len(left) - int(of_call.max()) - len(those)
        unit = np.diag(inverse) + inverse[0, 0] - 2 * inverse[:, 0]
        deviation = np.sqrt((left**2).sum() / max(free, 1))
        error[those] += _SURE * deviation * np.sqrt(np.maximum(unit, 0.0))
    found = {"rank": ranks, "offset_us": offset / NS_PER_US, "error_us": error / NS_PER_US}
    calls = np.bincount(place, minlength=len(ranks))
    return pd.DataFrame(found | {"component": component, "calls": calls})


_CAUSES = (*OWN, "slow_transfer", "before_recording", "small", "wait")
_TRANSFER, _BEFORE, _LITTLE, _WAIT = range(len(OWN), len(_CAUSES))
_SMALL_NS = 2_000
_LONGEST_CHAIN = 100_000


def find_origins(kernels: pd.DataFrame, last: Int64Array) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Follow every wait to its origins: the kernels with those, and the table `wait_origins`.

    A rank waits in a call for the last one. Since the last call that they share, that one spent
    longer by exactly the wait: own time, transfers, waits in other calls, which are followed on.
    `start`, `dur`, `wait` are ns of the own clock, NaN where not known; `last` is -1 likewise.
    """
    k = _Timelines(kernels)
    edges = _edges(k, last)
    row, cause, target, share = (edges[c].to_numpy() for c in ("row", "cause", "target", "share"))
    # How much waiting goes through each kernel: its own, and what it is the reason of.
    now = np.nan_to_num(k.wait)
    flow = now.copy()
    on = np.flatnonzero((cause == _WAIT) & (share > 0))
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
        self.wait = kernels["wait"].to_numpy(np.float64)
        self.start = start - start.min(initial=0)
        end = self.start + dur
        columns = ([f"{name}_{at}" for name in OWN] for at in ("start", "end"))
        begun, ended = (kernels[names].to_numpy(np.float64) for names in columns)
        exposed = np.maximum(dur - (ended - begun)[:, 0], 0.0)
        waited = exposed * np.nan_to_num(self.wait) / np.maximum(dur, 1)
        self.parts = np.stack((exposed - waited, waited), axis=1)  # transfers, and waits
        reach = int(end.max(initial=0)) + 1
        place = pd.factorize(self.rank, sort=True)[0]
        keys = place * reach + end
        self.order = np.argsort(keys, kind="stable")
        sums = np.concatenate((np.zeros((1, 2)), np.cumsum(self.parts[self.order], axis=0)))
        #: places in `order`: the first after each, and the first that ends after each begins
        self.after = np.argsort(self.order) + 1
        self.until = np.searchsorted(keys[self.order], place * reach + self.start, side="right")
        #: what the rank had done when each began and ended: `OWN`, transfers, waits, ns
        self._begun = np.column_stack((begun, sums[self.until]))
        self._ended = np.column_stack((ended, sums[self.after]))
        self._ids = pd.Index(self.call * (2**32) + self.rank)
        whole = kernels[["set", "rank"]].assign(end=end, row=kernels.index)[~np.isnan(self.wait)]
        #: kernels of calls that all ranks of the set have
        self._whole = whole.sort_values("end", kind="stable")

    def row_of(self, call: Int64Array, rank: Int64Array) -> Int64Array:
        """The kernel of a call on a rank, -1 for none."""
        rows: Int64Array = self._ids.get_indexer(call * (2**32) + rank).astype(np.int64)
        return rows

    def last_shared(self, waiting: Int64Array, late: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The last call before that the waiting and the last rank share: its kernel on each."""
        sets = self._whole[["set", "rank"]].drop_duplicates()
        columns = {"rank": self.rank[late], "other": self.rank[waiting], "start": self.start[late]}
        need = pd.DataFrame(columns).rename_axis("need").reset_index().merge(sets, on="rank")
        need = need.merge(sets.rename(columns={"rank": "other"}), on=["set", "other"])
        on: dict[str, Any] = {"left_on": "start", "right_on": "end", "by": ["set", "rank"]}
        found = pd.merge_asof(need.sort_values("start", kind="stable"), self._whole, **on).dropna()
        found = found.sort_values("end", kind="stable").drop_duplicates("need", keep="last")
        theirs = np.full(len(waiting), NONE, dtype=np.int64)
        theirs[found["need"]] = found["row"]
        mine = self.row_of(self.call[theirs], self.rank[waiting])
        known = (theirs != NONE) & (mine != NONE)
        return np.where(known, theirs, NONE), np.where(known, mine, NONE)

    def spent(self, before: Int64Array, row: Int64Array) -> Float64Array:
        """What a rank did from the end of one call to the start of another, ns."""
        spent: Float64Array = self._begun[row] - self._ended[before]
        spent[:, len(OWN) :] = np.maximum(spent[:, len(OWN) :], 0.0)  # 0 where they overlap
        return spent


def _edges(k: _Timelines, last: Int64Array) -> pd.DataFrame:
    """A row a part of a wait: of which kernel's, its cause, the kernel behind it, its share."""
    iteration, group = (k.frame[c].to_numpy(object) for c in ("iteration", "process_group"))
    waiting = np.flatnonzero(k.wait >= _SMALL_NS)
    late = k.row_of(k.call[waiting], last[k.call[waiting]])
    theirs, mine = k.last_shared(waiting, late)
    known = theirs != NONE
    before = waiting[~known]
    small = np.flatnonzero(k.wait < _SMALL_NS)
    waiting, late, theirs, mine = (each[known] for each in (waiting, late, theirs, mine))
    parts = np.maximum(k.spent(theirs, late) - k.spent(mine, waiting), 0.0)
    parts[parts.sum(axis=1) <= 0, len(OWN) - 1] = 1.0  # idle: nothing else is known of it
    parts /= parts.sum(axis=1, keepdims=True)
    first = k.after[theirs]
    count = np.maximum(k.until[late] - first, 0)
    need = np.repeat(np.arange(len(waiting)), count)
    other = k.order[np.arange(len(need)) + (first - np.cumsum(count) + count)[need]]
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
    kernels = kernels.assign(cause=cause.astype("str"), caused_by_call=call)
    return kernels.assign(caused_by_rank=best["rank"])
