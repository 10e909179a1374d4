"""Which kernels of the ranks of a process group are one call.

By `Seq` where that pairs like with like; else by order within an iteration; where a rank counts
fewer or other calls there, calls of equal signature whose ends differ by the usual offset of the
two ranks' clocks (a shifted pairing is off by hundreds of µs).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracelens_ext.trace import Int64Array

P2P = ("send", "recv")
PAIR = "send/recv"
_SAME_CLOCK_NS = 100_000  #: ends of one call differ by less, shifted ones by more
_USUAL, _TRIED = 21, 2000  #: sure pairs that tell an offset, and calls that are tried without
_TRUSTED = 0.5  #: the share of its calls that a `Seq` must pair, and count one by one


def prepared(rows: pd.DataFrame, members: list[int] | None) -> pd.DataFrame:
    """Rows of `rank_calls` of a group, each rank's in the order of launch, to be numbered.

    Returns:
        The rows with `kind`, `like` and `sizes` (a number for each kind and type, and with the
        sizes), `src`, `dst` (of a pair, else -1), `no` (the call's number in the group, -1 where it
        is not known) and `matched_by`.
    """
    name = rows["Collective name"]
    p2p, even = name.isin(P2P), ~name.str.lower().str.replace("_", "").str.contains("alltoall")
    own = rows["rank"].astype("float64")
    src = rows["Src Rank"].where(name != "send", own).where(p2p)
    dst = rows["Dst Rank"].where(name != "recv", own).where(p2p)
    if members is not None and len(members) == 2:  # the other one
        src, dst = src.fillna(sum(members) - dst), dst.fillna(sum(members) - src)
    known = src.notna() & dst.notna()
    rows = rows.assign(kind=name.where(~p2p, PAIR), no=-1, matched_by="order")
    rows["src"], rows["dst"] = (end.where(known, -1).astype("int64") for end in (src, dst))
    rows["like"] = rows.groupby(["kind", "dtype"], sort=False, dropna=False).ngroup()
    sizes = [rows["In msg nelems"].where(even), rows["Out msg nelems"].where(even & ~p2p)]
    rows["sizes"] = rows.groupby(["like", *sizes], sort=False, dropna=False).ngroup()
    rows["end"] = rows["base"] + rows["start"] + rows["dur"]
    return rows


def match_group(rows: pd.DataFrame) -> None:
    """Number the calls of a process group, in place."""
    first = 0
    pairable = (rows["kind"] != PAIR) | (rows["dst"] >= 0)
    for _, part in rows[pairable].groupby(["src", "dst"], sort=True):
        number, by = _by_seq(part) or _by_order(part)
        rows.loc[part.index, "no"] = np.where(number >= 0, number + first, -1)
        rows.loc[part.index, "matched_by"] = by
        first += int(number.max(initial=-1)) + 1


def match_unnamed(rows: pd.DataFrame, *, one_group: bool, ranks: int) -> None:
    """Number the calls whose group is not known, by kernel name and order in the iteration."""
    rows["matched_by"], rows["kind"] = "unnamed", rows["Collective name"]
    rows["src"] = rows["dst"] = -1
    rows["sizes"], rows["like"] = 0, rows.groupby("kernel_name", sort=False).ngroup()
    if one_group and rows["rank"].nunique() == ranks > 1:
        number, alike = _ordinals(rows, ranks)
        rows["no"] = np.where(alike, number, -1)


def _ordinals(rows: pd.DataFrame, ranks: int) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """Calls counted in each iteration, and whether all ranks have the same there."""
    order = rows.groupby(["rank", "iteration"], sort=False).cumcount()
    slots = rows.groupby(["iteration", order.rename("order")], sort=False)
    there = rows.groupby("iteration", sort=False)["rank"].transform("nunique")
    alike = (slots["like"].transform("nunique") == 1) & (slots["rank"].transform("size") == there)
    alike = alike.groupby(rows["iteration"]).transform("all")
    if ranks:
        alike &= there == ranks
    return slots.ngroup().to_numpy().astype(np.int64), alike.to_numpy().astype(bool)


def _by_seq(part: pd.DataFrame) -> tuple[Int64Array, Any] | None:
    """Calls by `Seq`; None where it cannot be trusted."""
    # A count of all calls of the process, or twice a call, pairs by chance if at all.
    steps = part.groupby("rank", sort=False)["Seq"].diff()
    if part["Seq"].isna().any() or not (steps.dropna() == 1).mean() >= _TRUSTED:
        return None
    slots = part.groupby("Seq", sort=True)
    seen = slots.agg(
        kinds=("kind", "nunique"),
        steps=("iteration", "nunique"),
        rows=("rank", "size"),
        ranks=("rank", "nunique"),
    )
    like = (seen[["kinds", "steps"]] == 1).all(axis=None) and (seen["rows"] == seen["ranks"]).all()
    whole = (seen["ranks"] == part["rank"].nunique()).mean()
    good = like and whole >= _TRUSTED
    return (slots.ngroup().to_numpy().astype(np.int64), "seq") if good else None


def _by_order(part: pd.DataFrame) -> tuple[Int64Array, Any]:
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
    ranks = {int(part["rank"].iloc[0]): part for _, part in odd.groupby("rank", sort=True)}
    first = max(ranks, key=lambda r: (len(ranks[r]), -r))
    columns = ["like", "sizes", "end", "place"]
    base = ranks.pop(first)[columns]
    slots = {int(place): [int(place)] for place in base["place"]}
    ends = {rank: part.set_index("no")["end"] for rank, part in sure.groupby("rank")}
    for rank, part in ranks.items():
        both = rank in ends and first in ends
        gaps = (ends[rank] - ends[first]).dropna() if both else pd.Series(dtype="float64")
        at = part["end"].iloc[len(part) // 2]
        if len(gaps):  # clocks drift: those of about the same time
            near = (ends[rank].reindex(gaps.index) - at).abs()
            offset = float(gaps[near.nsmallest(_USUAL).index].median())
        else:
            offset = _densest(base, part)
        if base["like"].tolist() == part["like"].tolist():
            pairs = np.stack([np.arange(len(part))] * 2)
        else:
            pairs = _by_ends(base, part, offset)
        places, theirs = base["place"].to_numpy(), part["place"].to_numpy()
        for one, other in zip(places[pairs[0]].tolist(), theirs[pairs[1]].tolist(), strict=True):
            slots[one].append(other)
        # What this rank has and none before it stands where it ended.
        more = part[columns].drop(part.index[pairs[1]])
        slots |= {int(place): [int(place)] for place in more["place"]}
        more = more.assign(end=more["end"] - int(offset))
        base = pd.concat([base, more]).sort_values("end", kind="stable") if len(more) else base
    own = {*odd.loc[odd["rank"] == first, "place"]}
    # What a single rank has more than the others is no call of the group.
    return [slot for place, slot in slots.items() if len(slot) > 1 or place in own]


def _by_ends(base: pd.DataFrame, part: pd.DataFrame, offset: float) -> Int64Array:
    """Equal calls whose ends differ by the offset of the two clocks: their indices."""
    ends, sizes = part["end"].to_numpy(np.float64), part["sizes"].to_numpy()
    wanted, like = base["end"].to_numpy(np.float64) + offset, base["sizes"].to_numpy()
    found = []
    for kind in np.unique(sizes).tolist():
        there, mine = np.flatnonzero(sizes == kind), np.flatnonzero(like == kind)
        order = there[np.argsort(ends[there], kind="stable")]
        edges = np.searchsorted((ends[order][1:] + ends[order][:-1]) / 2, wanted[mine])
        at = order[edges]  # the nearest
        away = np.abs(ends[at] - wanted[mine])
        best = np.lexsort((away, at))
        best = best[np.diff(at[best], prepend=-1) != 0]
        best = best[away[best] < _SAME_CLOCK_NS]
        found.append(np.stack((mine[best], at[best])))
    return np.concatenate(found, axis=1)


def _densest(base: pd.DataFrame, part: pd.DataFrame) -> float:
    """The offset near which most gaps between the ends of equal calls lie."""
    sizes, ends = part["sizes"].to_numpy()[:_TRIED], part["end"].to_numpy()[:_TRIED]
    equal = base["sizes"].to_numpy()[:_TRIED, None] == sizes
    gaps = np.sort((ends - base["end"].to_numpy()[:_TRIED, None])[equal]).astype(np.float64)
    if not len(gaps):
        return 0.0
    reach = np.searchsorted(gaps, gaps + _SAME_CLOCK_NS, side="right")
    best = int(np.argmax(reach - np.arange(len(gaps))))
    return float(np.median(gaps[best : reach[best]]))
