"""Match the communication kernels of several ranks that belong to one call of their process group.

Calls are paired by the profiler's sequence number (`Seq`) where that pairs like with like; else by
their order within an iteration; where ranks differ there, by equal signatures whose ends differ by
the usual offset of the two ranks' clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, BoolArray, Int64Array

#: The kind of a call between two ranks, whichever of the two a kernel is of.
PAIR = "send/recv"
#: The ends of one call differ by less on a common clock, those of other calls by more.
_SAME_END_NS = 100_000
#: Pairs that are sure, from which the offset between two clocks is taken.
_OFFSET_SAMPLES = 21
#: Calls of each rank that are tried where no pair is sure.
_TRIED_CALLS = 2000
#: The share of a group's calls that `Seq` must pair, and must count one by one.
_TRUSTED_SHARE = 0.5


class MatchedBy(StrEnum):
    """How the kernels of a call were found."""

    SEQ = "seq"
    ORDER = "order"
    ALIGNMENT = "alignment"
    UNNAMED = "unnamed"  #: by order, as no process group is known


class _Numbering(NamedTuple):
    """The calls that kernels belong to."""

    number: Int64Array  #: of each kernel's call; `NONE` if it has none
    matched_by: npt.NDArray[np.object_]  #: a `MatchedBy` for each kernel


def prepared(rows: pd.DataFrame, members: Sequence[int] | None) -> pd.DataFrame:
    """Return the rows of `rank_calls` of a group with what is needed to number its calls.

    Args:
        rows: each rank's in the order of launch.
        members: the ranks of the group; None if they are not known.

    Returns:
        The rows with `kind`, `like` (a number for equal kind and type), `sizes` (a number for equal
        kind, type and sizes), `src` and `dst` (of a pair, else -1), `end` (ns, own clock), `no`
        (-1: not numbered) and `matched_by`.
    """
    name = rows["Collective name"]
    is_pair = name.isin(["send", "recv"])
    own_rank = rows["rank"].astype("float64")
    source = rows["Src Rank"].where(name != "send", own_rank).where(is_pair)
    destination = rows["Dst Rank"].where(name != "recv", own_rank).where(is_pair)
    if members is not None and len(members) == 2:
        sum_of_both = sum(members)
        completed_source = source.fillna(sum_of_both - destination)
        completed_destination = destination.fillna(sum_of_both - source)
        source = completed_source
        destination = completed_destination
    has_both_ends = source.notna() & destination.notna()
    rows = rows.assign(
        kind=name.where(~is_pair, PAIR),
        no=NONE,
        matched_by=MatchedBy.ORDER.value,
        src=source.where(has_both_ends, NONE).astype("int64"),
        dst=destination.where(has_both_ends, NONE).astype("int64"),
        end=rows["base"] + rows["start"] + rows["dur"],
    )
    rows["like"] = rows.groupby(["kind", "dtype"], sort=False, dropna=False).ngroup()
    # The ranks of an all-to-all may differ in sizes, and so may the two of a pair in what goes out.
    has_even_sizes = ~_plain_names(name).str.contains("alltoall")
    elements_in = rows["In msg nelems"].where(has_even_sizes)
    elements_out = rows["Out msg nelems"].where(has_even_sizes & ~is_pair)
    signature = rows.groupby(
        ["like", elements_in, elements_out], sort=False, dropna=False
    )
    rows["sizes"] = signature.ngroup()
    return rows


def _plain_names(names: pd.Series) -> pd.Series:
    """Return the names of collectives in lower case, without underscores."""
    plain: pd.Series = names.str.lower().str.replace("_", "")
    return plain


def match_group(rows: pd.DataFrame) -> None:
    """Number the calls of a process group, in the columns `no` and `matched_by` of `rows`.

    Args:
        rows: of `prepared`, with an index without repetitions.
    """
    first_number = 0
    is_collective = rows["kind"] != PAIR
    has_destination = rows["dst"] >= 0
    can_be_matched = rows[is_collective | has_destination]
    for _, part in can_be_matched.groupby(["src", "dst"], sort=True):
        numbering = _by_seq(part)
        if numbering is None:
            numbering = _by_order(part)
        number = numbering.number
        is_numbered = number >= 0
        in_group = np.where(is_numbered, number + first_number, NONE)
        rows.loc[part.index, "no"] = in_group
        rows.loc[part.index, "matched_by"] = numbering.matched_by
        first_number += int(number.max(initial=NONE)) + 1


class OrderInIterations(NamedTuple):
    """Kernels counted in each iteration of their rank."""

    number: Int64Array  #: the same for kernels of one iteration and one place in it
    is_alike: BoolArray  #: all ranks have the same calls in that iteration


def order_in_iterations(rows: pd.DataFrame, needed_ranks: int = 0) -> OrderInIterations:
    """Number kernels by iteration and by their place in it.

    Args:
        rows: kernels with `rank`, `iteration` and `like`, each rank's in the order of launch.
        needed_ranks: how many ranks an iteration must have to count as alike; 0 for any number.
    """
    of_ranks = rows.groupby(["rank", "iteration"], sort=False)
    rows = rows.assign(place=of_ranks.cumcount())
    iterations = rows.groupby("iteration", sort=False)
    ranks_in_iteration = iterations["rank"].transform("nunique")
    slots = rows.groupby(["iteration", "place"], sort=False)
    kinds_in_slot = slots["like"].transform("nunique")
    ranks_in_slot = slots["rank"].transform("size")
    has_all_ranks = ranks_in_slot == ranks_in_iteration
    is_slot_alike = has_all_ranks & (kinds_in_slot == 1)
    of_iterations = is_slot_alike.groupby(rows["iteration"])
    is_alike = of_iterations.transform("all")
    if needed_ranks:
        is_alike &= ranks_in_iteration == needed_ranks
    number = slots.ngroup().to_numpy().astype(np.int64)
    return OrderInIterations(number, is_alike.to_numpy().astype(bool))


def _by_seq(part: pd.DataFrame) -> _Numbering | None:
    """Number calls by `Seq`; None where it cannot be trusted."""
    if part["Seq"].isna().any():
        return None
    # A count of all calls of the process, or one that grows by two a call, pairs by chance at most.
    steps = part.groupby("rank", sort=False)["Seq"].diff().dropna()
    counts_one_by_one = (steps == 1).mean() >= _TRUSTED_SHARE
    if not counts_one_by_one:
        return None
    slots = part.groupby("Seq", sort=True)
    distinct = slots[["kind", "iteration", "rank"]].nunique()
    pairs_like_with_like = (distinct[["kind", "iteration"]] == 1).all(axis=None)
    has_each_rank_once = (distinct["rank"] == slots.size()).all()
    if not (pairs_like_with_like and has_each_rank_once):
        return None
    is_complete = distinct["rank"] == part["rank"].nunique()
    if is_complete.mean() < _TRUSTED_SHARE:
        return None
    number = slots.ngroup().to_numpy().astype(np.int64)
    return _Numbering(number, np.full(len(part), MatchedBy.SEQ.value, dtype=object))


def _by_order(part: pd.DataFrame) -> _Numbering:
    """Number calls by their order in each iteration, and align them where ranks differ."""
    order = order_in_iterations(part)
    is_alike = order.is_alike
    number = np.where(is_alike, order.number, NONE)
    matched_by = np.full(len(part), MatchedBy.ORDER.value, dtype=object)
    matched_by[~is_alike] = MatchedBy.ALIGNMENT.value
    if is_alike.all():
        return _Numbering(number, matched_by)
    part = part.assign(no=number, place=np.arange(len(part)))
    sure = part.loc[is_alike, ["no", "rank", "end"]]
    unequal = part[~is_alike]
    next_number = int(number.max(initial=NONE)) + 1
    for _, iteration in unequal.groupby("iteration", sort=False):
        for places in _aligned_calls(iteration, sure):
            number[places] = next_number
            next_number += 1
    return _Numbering(number, matched_by)


def _aligned_calls(unequal: pd.DataFrame, sure: pd.DataFrame) -> list[list[int]]:
    """Return the calls of an iteration in which ranks differ, each as the places of its kernels.

    The rank with the most kernels comes first; the others are paired with it one after the other.
    What one of them has and those before it lack stands at the time at which it ended there.

    Args:
        unequal: the kernels of the iteration, with `place`, an identifier of each.
        sure: kernels of calls that are numbered: `no`, `rank`, `end`.
    """
    kernels_of_rank = {
        int(kernels["rank"].iloc[0]): kernels
        for _, kernels in unequal.groupby("rank", sort=True)
    }
    first_rank = max(
        kernels_of_rank, key=lambda rank: (len(kernels_of_rank[rank]), -rank)
    )
    columns = ["like", "sizes", "end", "place"]
    known = kernels_of_rank.pop(first_rank)[columns]
    places_of_call = {int(place): [int(place)] for place in known["place"]}
    places_of_first_rank = set(places_of_call)
    end_of_sure = {
        rank: kernels.set_index("no")["end"] for rank, kernels in sure.groupby("rank")
    }
    for rank, kernels in kernels_of_rank.items():
        offset = _clock_offset(
            sure_ends=end_of_sure.get(rank),
            first_sure_ends=end_of_sure.get(first_rank),
            known=known,
            kernels=kernels,
        )
        if known["like"].tolist() == kernels["like"].tolist():
            everything = np.arange(len(kernels))
            pairs = _Pairs(everything, everything)
        else:
            pairs = _pairs_by_end(
                known=known,
                kernels=kernels,
                offset=offset,
            )
        known_places = known["place"].iloc[pairs.first]
        other_places = kernels["place"].iloc[pairs.second]
        for known_place, other_place in zip(known_places, other_places, strict=True):
            places_of_call[known_place].append(other_place)
        additional = kernels[columns].drop(kernels.index[pairs.second])
        for place in additional["place"].tolist():
            places_of_call[place] = [place]
        if len(additional):
            additional = additional.assign(end=additional["end"] - int(offset))
            known = pd.concat([known, additional]).sort_values("end", kind="stable")
    # What only one rank has, besides the first, is no call of the group.
    return [
        places
        for place, places in places_of_call.items()
        if len(places) > 1 or place in places_of_first_rank
    ]


def _clock_offset(
    sure_ends: pd.Series | None,
    first_sure_ends: pd.Series | None,
    known: pd.DataFrame,
    kernels: pd.DataFrame,
) -> float:
    """Return how much later a rank's clock is than that of the first rank, ns.

    Args:
        sure_ends: call → end, of the rank's kernels whose calls are numbered; None without any.
        first_sure_ends: the same of the first rank.
        known: kernels of the iteration, on the clock of the first rank.
        kernels: those of the rank, not empty.
    """
    if sure_ends is not None and first_sure_ends is not None:
        offsets = (sure_ends - first_sure_ends).dropna()
        if len(offsets):
            # Clocks drift: the calls of about the same time count.
            middle = kernels["end"].iloc[len(kernels) // 2]
            distance = (sure_ends.reindex(offsets.index) - middle).abs()
            nearest = distance.nsmallest(_OFFSET_SAMPLES).index
            return float(offsets[nearest].median())
    return _most_frequent_offset(known, kernels)


class _Pairs(NamedTuple):
    """Kernels of one call on two sides, as positions."""

    first: Int64Array
    second: Int64Array


def _pairs_by_end(known: pd.DataFrame, kernels: pd.DataFrame, offset: float) -> _Pairs:
    """Pair kernels of equal signature whose ends differ by the offset of the two clocks."""
    first = known[["sizes", "end"]].astype({"end": "float64"})
    first = first.assign(first=np.arange(len(known)), end=first["end"] + offset)
    second = kernels[["sizes", "end"]].astype({"end": "float64"})
    second = second.assign(second=np.arange(len(kernels)), second_end=second["end"])
    nearest = pd.merge_asof(
        first.sort_values("end", kind="stable"),
        second.sort_values("end", kind="stable"),
        on="end",
        by="sizes",
        direction="nearest",
    ).dropna()
    nearest["distance"] = (nearest["second_end"] - nearest["end"]).abs()
    nearest = nearest[nearest["distance"] < _SAME_END_NS].sort_values(
        "distance", kind="stable"
    )
    nearest = nearest.drop_duplicates("second")
    return _Pairs(
        first=nearest["first"].to_numpy(np.int64),
        second=nearest["second"].to_numpy(np.int64),
    )


def _most_frequent_offset(known: pd.DataFrame, kernels: pd.DataFrame) -> float:
    """Return the offset near which most differences between the ends of equal calls lie, ns."""
    known = known[:_TRIED_CALLS]
    kernels = kernels[:_TRIED_CALLS]
    # A row for each known call, a column for each kernel.
    known_sizes = known["sizes"].to_numpy()[:, None]
    known_end = known["end"].to_numpy()[:, None]
    is_equal = known_sizes == kernels["sizes"].to_numpy()
    differences = kernels["end"].to_numpy() - known_end
    offsets = np.sort(differences[is_equal])
    offsets = offsets.astype(np.float64)
    if not len(offsets):
        return 0.0
    # How many offsets are in the interval that begins at each of them.
    first_beyond = np.searchsorted(
        offsets,
        offsets + _SAME_END_NS,
        side="right",
    )
    count = first_beyond - np.arange(len(offsets))
    densest = int(np.argmax(count))
    together = offsets[densest : first_beyond[densest]]
    return float(np.median(together))
