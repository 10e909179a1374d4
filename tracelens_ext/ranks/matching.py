"""Which kernels of the ranks of a process group are one call.

By `Seq` where that pairs like with like; else by order within an iteration; where a rank counts
fewer or other calls there, by the alignment that pairs most calls of equal signature, and of
several such the one whose ends differ by the usual offset of the two ranks' clocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracelens_ext.trace import Float64Array, Int64Array

    Pairs = list[tuple[int, int]]

P2P = ("send", "recv")
PAIR = "send/recv"
_SAME_CLOCK_NS = 100_000  #: ends of one call differ by less, shifted ones by more
_MOST_CELLS = 4_000_000
_TRUSTED = 0.5  #: the share of its calls that a `Seq` must pair, and count one by one


def match_group(rows: pd.DataFrame, members: list[int] | None) -> pd.DataFrame:
    """Number the calls of a process group.

    Args:
        rows: its kernels as in `rank_calls`, of all ranks, each rank's in the order of launch.
        members: the ranks of the group; None if that is not known.

    Returns:
        The rows with `kind`, `sizes` (a number for each signature), `src`, `dst` (of a pair, else
        -1), `no` (the call's number in the group, -1 where it is not known) and `matched_by`.
    """
    rows = rows.copy()
    name = rows["Collective name"]
    p2p = name.isin(P2P)
    rows["kind"] = name.where(~p2p, PAIR)
    own = rows["rank"].astype("float64")
    src = rows["src"].where(name != "send", own).where(p2p)
    dst = rows["dst"].where(name != "recv", own).where(p2p)
    if members is not None and len(members) == 2:  # the other one
        src, dst = src.fillna(sum(members) - dst), dst.fillna(sum(members) - src)
    rows["src"], rows["dst"] = src.fillna(-1).astype("int64"), dst.fillna(-1).astype("int64")
    squashed = name.str.lower().str.replace("_", "")
    uneven = squashed.str.contains("alltoall", regex=False)
    sizes = [rows["In msg nelems"].mask(uneven), rows["Out msg nelems"].mask(uneven | p2p)]
    like = rows.groupby(["kind", "dtype"], sort=False, dropna=False).ngroup()
    rows["like"] = like
    rows["sizes"] = (
        pd.DataFrame({"like": like, "in": sizes[0], "out": sizes[1]})
        .groupby(["like", "in", "out"], sort=False, dropna=False)
        .ngroup()
    )
    rows["end"] = rows["base"] + rows["start"] + rows["dur"]
    rows["no"], rows["matched_by"] = -1, "order"
    first = 0
    pairable = ~p2p | ((rows["src"] >= 0) & (rows["dst"] >= 0))
    for _, part in rows[pairable].groupby(["src", "dst"], sort=True):
        number, by = _by_seq(part)
        if number is None:
            number, by = _by_order(part)
        rows.loc[part.index, "no"] = np.where(number >= 0, number + first, -1)
        rows.loc[part.index, "matched_by"] = by
        first += int(number.max(initial=-1)) + 1
    return rows


def match_unnamed(rows: pd.DataFrame, *, one_group: bool, ranks: int) -> pd.DataFrame:
    """Number the calls whose group is not known, by kernel name and order in the iteration."""
    rows = rows.copy()
    rows["kind"], rows["src"], rows["dst"], rows["sizes"] = rows["Collective name"], -1, -1, 0
    rows["no"], rows["matched_by"] = -1, "unnamed"
    rows["end"] = rows["base"] + rows["start"] + rows["dur"]
    if not one_group or rows["rank"].nunique() != ranks or ranks < 2:
        return rows
    rows["like"] = rows.groupby("kernel_name", sort=False).ngroup()
    number, alike = _ordinals(rows, ranks)
    rows["no"] = np.where(alike, number, -1)
    return rows


def _ordinals(rows: pd.DataFrame, ranks: int) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """Calls counted in each iteration, and whether all ranks have the same there."""
    order = rows.groupby(["rank", "iteration"], sort=False).cumcount()
    slots = rows.groupby(["iteration", order.rename("order")], sort=False)
    there = rows.groupby("iteration", sort=False)["rank"].transform("nunique")
    alike = (slots["like"].transform("nunique") == 1) & (slots["rank"].transform("size") == there)
    alike = alike.groupby(rows["iteration"]).transform("all")
    if ranks:
        alike &= there == ranks
    return slots.ngroup().to_numpy(np.int64), alike.to_numpy(bool)


def _by_seq(part: pd.DataFrame) -> tuple[Int64Array | None, str]:
    """Calls by `Seq`; None where it cannot be trusted."""
    # A count of all calls of the process, or twice a call, pairs by chance if at all.
    steps = part.groupby("rank", sort=False)["seq"].diff()
    if part["seq"].isna().any() or not (steps.dropna() == 1).mean() >= _TRUSTED:
        return None, ""
    slots = part.groupby("seq", sort=True)
    seen = slots.agg(
        kinds=("kind", "nunique"),
        steps=("iteration", "nunique"),
        rows=("rank", "size"),
        ranks=("rank", "nunique"),
    )
    like = (seen[["kinds", "steps"]] == 1).all(axis=None) and (seen["rows"] == seen["ranks"]).all()
    whole = (seen["ranks"] == part["rank"].nunique()).mean()
    good = like and whole >= _TRUSTED
    return (slots.ngroup().to_numpy(np.int64), "seq") if good else (None, "")


def _by_order(part: pd.DataFrame) -> tuple[Int64Array, npt.NDArray[np.object_]]:
    """Calls by order in each iteration, aligned where ranks differ."""
    number, alike = _ordinals(part, 0)
    number = np.where(alike, number, -1)
    by = np.where(alike, "order", "alignment").astype(object)
    if alike.all():
        return number, by
    sure = part[alike].assign(no=number[alike])[["no", "rank", "end"]]
    following = int(number.max(initial=-1)) + 1
    places = np.arange(len(part))
    for _, odd in part.assign(place=places)[~alike].groupby("iteration", sort=False):
        for slot in _aligned(odd, sure):
            number[slot] = following
            following += 1
    return number, by


def _aligned(odd: pd.DataFrame, sure: pd.DataFrame) -> list[list[int]]:
    """The calls of an iteration in which ranks differ, each as the places of its kernels."""
    ranks = {int(r): part for r, part in odd.groupby("rank", sort=True)}
    first = max(ranks, key=lambda r: (len(ranks[r]), -r))
    base = ranks.pop(first)
    like, sizes = base["like"].tolist(), base["sizes"].tolist()
    ends, slots = base["end"].tolist(), [[p] for p in base["place"].tolist()]
    added = [False] * len(slots)
    mine = sure[sure["rank"] == first].set_index("no")["end"]
    for rank, part in ranks.items():
        theirs = sure[sure["rank"] == rank].set_index("no")["end"]
        offset = (theirs - mine).median()
        have = part["end"].to_numpy(np.int64)
        if like == part["like"].tolist():
            pairs = [(i, i) for i in range(len(slots))]
        else:
            pairs, offset = _pairing(
                np.array(sizes),
                np.array(ends, dtype=np.int64),
                part["sizes"].to_numpy(),
                have,
                offset,
            )
        places = part["place"].tolist()
        for i, j in pairs:
            slots[i].append(places[j])
        at_of = {j: i for i, j in pairs}
        for j in reversed([j for j in range(len(places)) if j not in at_of]):
            before = max((i for k, i in at_of.items() if k < j), default=-1) + 1
            like.insert(before, int(part["like"].iloc[j]))
            sizes.insert(before, int(part["sizes"].iloc[j]))
            ends.insert(before, int(have[j] - (offset if offset == offset else 0)))
            slots.insert(before, [places[j]])
            added.insert(before, True)
    # What a single rank has more than the others is no call of the group.
    return [slot for slot, more in zip(slots, added, strict=True) if len(slot) > 1 or not more]


def _pairing(
    want: Int64Array, want_end: Int64Array, have: Int64Array, have_end: Int64Array, offset: float
) -> tuple[Pairs, float]:
    """Indices of equal calls, as many as can be; of equally many those whose ends agree best."""
    n, m = len(want), len(have)
    if n * m > _MOST_CELLS and offset == offset:
        return _by_ends(want, want_end, have, have_end, offset), offset
    if n * m > _MOST_CELLS:
        return [], offset
    equal = want[:, None] == have[None, :]
    gap = (have_end[None, :] - want_end[:, None]).astype(np.float64)
    if offset != offset:
        offset = _densest(gap[equal])
    most = 10.0 * _SAME_CLOCK_NS
    gain = np.where(equal, most * (min(n, m) + 1) - np.minimum(np.abs(gap - offset), most), -1.0)
    table = np.zeros((n + 1, m + 1))
    for i in range(n):
        row = table[i].copy()
        row[1:] = np.maximum(row[1:], np.where(equal[i], table[i, :-1] + gain[i], 0.0))
        table[i + 1] = np.maximum.accumulate(row)
    pairs: Pairs = []
    i, j = n, m
    while i and j:
        if equal[i - 1, j - 1] and table[i, j] == table[i - 1, j - 1] + gain[i - 1, j - 1]:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        elif table[i, j] == table[i - 1, j]:
            i -= 1
        else:
            j -= 1
    return pairs[::-1], offset


def _by_ends(
    want: Int64Array, want_end: Int64Array, have: Int64Array, have_end: Int64Array, offset: float
) -> Pairs:
    """Equal calls whose ends agree: for lists too long to try all alignments."""
    order = np.argsort(have_end, kind="stable")
    times = have_end[order]
    at = np.searchsorted(times, want_end + offset)
    pairs: dict[int, int] = {}
    for shift in (-1, 0):
        k = np.clip(at + shift, 0, len(times) - 1)
        near = np.abs(times[k] - want_end - offset) < _SAME_CLOCK_NS
        good = np.flatnonzero(near & (have[order[k]] == want))
        pairs |= dict(zip(order[k[good]].tolist(), good.tolist(), strict=True))
    last, result = -1, []
    for j, i in sorted(pairs.items()):
        if i > last:
            result.append((i, j))
            last = i
    return result


def _densest(gaps: Float64Array) -> float:
    """The offset near which most gaps lie."""
    if not len(gaps):
        return 0.0
    gaps = np.sort(gaps)
    reach = np.searchsorted(gaps, gaps + _SAME_CLOCK_NS, side="right")
    best = int(np.argmax(reach - np.arange(len(gaps))))
    return float(np.median(gaps[best : reach[best]]))
