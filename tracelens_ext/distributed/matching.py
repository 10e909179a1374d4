"""Matches the kernels of different ranks that belong to the same call of their process group.

Kernels are matched by the sequence number that PyTorch records (`Seq`) if it can be trusted. If
not, they are matched by their order within an iteration. In iterations in which the ranks make
different calls, kernels of equal signature are matched if they end at the same time, after the
offset of the two ranks' clocks is taken into account.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, BoolArray, Int64Array

#: The kind of a point-to-point call: the send of one rank and the receive of another one.
PAIR = "send/recv"
#: On a common clock, the kernels of one call end within this time of each other.
_SAME_END_NS = 100_000
#: How many matched calls the offset between two clocks is taken from.
_OFFSET_SAMPLES = 21
#: How many calls of each rank are compared to guess that offset if no call is matched.
_COMPARED_CALLS = 2000
#: `Seq` is trusted if it matches at least this share of a group's calls on all ranks, and if at
#: least this share of its steps between calls is 1.
_TRUSTED_SHARE = 0.5


class MatchedBy(StrEnum):
    """How it is known which kernels of different ranks belong to the same call."""

    SEQ = "seq"  #: by the sequence number that PyTorch records
    ORDER = "order"  #: by their order within an iteration in which all ranks make the same calls
    #: by their ends, in an iteration in which the ranks' calls differ
    ALIGNMENT = "alignment"
    UNNAMED = "unnamed"  #: by order, because the process group is not recorded


class _Numbering(NamedTuple):
    """The call that each kernel belongs to."""

    number: Int64Array  #: the number of its call; `NONE` if it was not matched, (k,)
    matched_by: npt.NDArray[np.object_]  #: a `MatchedBy` for each kernel, (k,)


#: The names of sends and receives, the two calls of a pair.
_PAIR_CALLS = ["send", "recv"]


def with_matching_columns(
    rows: pd.DataFrame, members: Sequence[int] | None
) -> pd.DataFrame:
    """Return the rows of `rank_calls` of a group with the columns that `number_calls` needs.

    Args:
        rows: the rows of all ranks, those of each rank in the order of launch.
        members: the ranks of the group; None if they are not known.

    Returns:
        The rows with these columns:

        - `kind`: the collective, or `PAIR` for sends and receives.
        - `kind_number`: a number that calls of equal kind and type share.
        - `signature`: a number that calls of equal kind, type and sizes share.
        - `src`, `dst`: the ranks of a pair; -1 for collectives.
        - `end`: ns, on the rank's own clock.
        - `call_in_group`: the number of the call; -1 as long as the kernel is not matched.
        - `matched_by`: a `MatchedBy`.
    """
    name = rows["Collective name"]
    is_pair = name.isin(_PAIR_CALLS)
    ranks = _ranks_of_pairs(rows, members)
    rows = rows.assign(
        kind=name.where(~is_pair, PAIR),
        call_in_group=NONE,
        matched_by=MatchedBy.ORDER.value,
        src=ranks.source,
        dst=ranks.destination,
        end=rows["base"] + rows["start"] + rows["dur"],
    )
    rows["kind_number"] = rows.groupby(
        ["kind", "dtype"], sort=False, dropna=False
    ).ngroup()
    # The sizes of an all-to-all may differ between its ranks, so they do not take part. Of a pair,
    # only one of the two sizes takes part: sender and receiver may record different output sizes.
    has_even_sizes = ~_plain_names(name).str.contains("alltoall")
    elements_in = rows["In msg nelems"].where(has_even_sizes)
    elements_out = rows["Out msg nelems"].where(has_even_sizes & ~is_pair)
    signature = rows.groupby(
        ["kind_number", elements_in, elements_out], sort=False, dropna=False
    )
    rows["signature"] = signature.ngroup()
    return rows


class _RanksOfPairs(NamedTuple):
    """The ranks of sends and receives; -1 for collectives, and if one of the two is not known."""

    source: pd.Series
    destination: pd.Series


def _ranks_of_pairs(rows: pd.DataFrame, members: Sequence[int] | None) -> _RanksOfPairs:
    """Return the ranks between which the calls of a group send and receive.

    Args:
        rows: the calls, as in `with_matching_columns`.
        members: the ranks of the group; None if they are not known.
    """
    name = rows["Collective name"]
    is_pair = name.isin(_PAIR_CALLS)
    own_rank = rows["rank"].astype("float64")
    source = rows["Src Rank"].where(name != "send", own_rank).where(is_pair)
    destination = rows["Dst Rank"].where(name != "recv", own_rank).where(is_pair)
    if members is not None and len(members) == 2:
        # The peer is the other one of the two members.
        sum_of_members = sum(members)
        completed_source = source.fillna(sum_of_members - destination)
        completed_destination = destination.fillna(sum_of_members - source)
        source = completed_source
        destination = completed_destination
    has_both_ends = source.notna() & destination.notna()
    return _RanksOfPairs(
        source=source.where(has_both_ends, NONE).astype("int64"),
        destination=destination.where(has_both_ends, NONE).astype("int64"),
    )


def _plain_names(names: pd.Series) -> pd.Series:
    """Return the names of collectives in lower case, without underscores."""
    plain: pd.Series = names.str.lower().str.replace("_", "")
    return plain


def number_calls(rows: pd.DataFrame) -> None:
    """Number the calls of a process group: set `call_in_group` and `matched_by` in place.

    Kernels of different ranks that belong to the same call get the same number. Collectives, and
    the sends and receives between each two ranks, are numbered one after the other.

    Args:
        rows: the result of `with_matching_columns`, with a unique index.
    """
    first_number = 0
    is_collective = rows["kind"] != PAIR
    has_destination = rows["dst"] >= 0
    can_be_matched = rows[is_collective | has_destination]
    for _, kernels in can_be_matched.groupby(["src", "dst"], sort=True):
        numbering = _numbered_by_seq(kernels)
        if numbering is None:
            numbering = _numbered_by_order_or_ends(kernels)
        number = numbering.number
        is_numbered = number >= 0
        number_in_group = np.where(is_numbered, number + first_number, NONE)
        rows.loc[kernels.index, "call_in_group"] = number_in_group
        rows.loc[kernels.index, "matched_by"] = numbering.matched_by
        first_number += int(number.max(initial=NONE)) + 1


class OrderNumbering(NamedTuple):
    """The calls of kernels, numbered by iteration and by position in the iteration."""

    #: kernels with equal iteration and position share a number, (k,)
    number: Int64Array
    is_alike: BoolArray  #: True if all ranks make the same calls in the kernel's iteration, (k,)


def numbered_by_order(rows: pd.DataFrame, needed_ranks: int = 0) -> OrderNumbering:
    """Number kernels by their iteration and by their position among the rank's kernels in it.

    Args:
        rows: kernels with `rank`, `iteration` and `kind_number`, those of each rank in the order
            of launch.
        needed_ranks: the number of ranks that an iteration must have to count as alike; 0 for any.
    """
    position = rows.groupby(["rank", "iteration"], sort=False).cumcount()
    rows = rows.assign(position=position)
    iterations = rows.groupby("iteration", sort=False)
    ranks_in_iteration = iterations["rank"].transform("nunique")
    positions = rows.groupby(["iteration", "position"], sort=False)
    kinds_at_position = positions["kind_number"].transform("nunique")
    ranks_at_position = positions["rank"].transform("size")
    has_all_ranks = ranks_at_position == ranks_in_iteration
    is_position_alike = has_all_ranks & (kinds_at_position == 1)
    is_alike = is_position_alike.groupby(rows["iteration"]).transform("all")
    if needed_ranks:
        is_alike &= ranks_in_iteration == needed_ranks
    number = positions.ngroup().to_numpy().astype(np.int64)
    return OrderNumbering(number, is_alike.to_numpy().astype(bool))


def _numbered_by_seq(kernels: pd.DataFrame) -> _Numbering | None:
    """Number calls by `Seq`, the sequence number in the group; None if it cannot be trusted."""
    if kernels["Seq"].isna().any():
        return None
    # Some versions count the calls of all groups together, or count two for each call. Equal
    # numbers of different ranks then are the same call only by chance.
    steps = kernels.groupby("rank", sort=False)["Seq"].diff().dropna()
    counts_one_by_one = (steps == 1).mean() >= _TRUSTED_SHARE
    if not counts_one_by_one:
        return None
    calls = kernels.groupby("Seq", sort=True)
    distinct = calls[["kind", "iteration", "rank"]].nunique()
    has_one_kind = (distinct[["kind", "iteration"]] == 1).all(axis=None)
    has_each_rank_once = (distinct["rank"] == calls.size()).all()
    if not (has_one_kind and has_each_rank_once):
        return None
    is_complete = distinct["rank"] == kernels["rank"].nunique()
    if is_complete.mean() < _TRUSTED_SHARE:
        return None
    number = calls.ngroup().to_numpy().astype(np.int64)
    matched_by = np.full(len(kernels), MatchedBy.SEQ.value, dtype=object)
    return _Numbering(number, matched_by)


def _numbered_by_order_or_ends(kernels: pd.DataFrame) -> _Numbering:
    """Number calls by their order in each iteration.

    In iterations in which the calls of the ranks differ, kernels are matched by their ends.
    """
    order = numbered_by_order(kernels)
    is_alike = order.is_alike
    number = np.where(is_alike, order.number, NONE)
    matched_by = np.full(len(kernels), MatchedBy.ORDER.value, dtype=object)
    matched_by[~is_alike] = MatchedBy.ALIGNMENT.value
    if is_alike.all():
        return _Numbering(number, matched_by)
    kernels = kernels.assign(call_in_group=number, row=np.arange(len(kernels)))
    matched = kernels.loc[is_alike, ["call_in_group", "rank", "end"]]
    unmatched = kernels[~is_alike]
    next_number = int(number.max(initial=NONE)) + 1
    for _, kernels_of_iteration in unmatched.groupby("iteration", sort=False):
        for rows_of_call in _calls_by_ends(kernels_of_iteration, matched):
            number[rows_of_call] = next_number
            next_number += 1
    return _Numbering(number, matched_by)


# Iterations in which the calls of the ranks differ.


def _calls_by_ends(unmatched: pd.DataFrame, matched: pd.DataFrame) -> list[list[int]]:
    """Match the kernels of an iteration by their ends; return the rows of each call's kernels.

    The calls of the rank with the most kernels are the reference. The other ranks are paired with
    it one after the other. Kernels of a rank that find no partner join the reference at the time
    of their end, so that the ranks after it can be paired with them.

    Args:
        unmatched: the kernels of the iteration, with a column `row` that identifies each of them.
        matched: `call_in_group`, `rank` and `end` of the kernels whose calls are numbered.
    """
    kernels_of_rank = {
        int(kernels["rank"].iloc[0]): kernels
        for _, kernels in unmatched.groupby("rank", sort=True)
    }
    reference_rank = max(
        kernels_of_rank, key=lambda rank: (len(kernels_of_rank[rank]), -rank)
    )
    columns = ["kind_number", "signature", "end", "row"]
    reference = kernels_of_rank.pop(reference_rank)[columns]
    # A call is identified by the row of its first kernel.
    rows_of_call = {int(row): [int(row)] for row in reference["row"]}
    calls_of_reference_rank = set(rows_of_call)
    matched_ends_of_rank = {
        rank: kernels.set_index("call_in_group")["end"]
        for rank, kernels in matched.groupby("rank")
    }
    for rank, kernels in kernels_of_rank.items():
        offset = _clock_offset(
            matched_ends=matched_ends_of_rank.get(rank),
            reference_ends=matched_ends_of_rank.get(reference_rank),
            reference=reference,
            kernels=kernels,
        )
        pairs = _pairs_with_reference(reference, kernels, offset)
        paired_calls = reference["row"].iloc[pairs.in_reference]
        paired_rows = kernels["row"].iloc[pairs.in_kernels]
        for call, row in zip(paired_calls, paired_rows, strict=True):
            rows_of_call[call].append(row)
        unpaired = kernels[columns].drop(kernels.index[pairs.in_kernels])
        for row in unpaired["row"].tolist():
            rows_of_call[row] = [row]
        if len(unpaired):
            unpaired = unpaired.assign(end=unpaired["end"] - int(offset))
            reference = pd.concat([reference, unpaired]).sort_values(
                "end", kind="stable"
            )
    # A kernel that only one rank has is not a call of the group, unless that rank is the
    # reference: then the others may have lost theirs.
    return [
        rows
        for call, rows in rows_of_call.items()
        if len(rows) > 1 or call in calls_of_reference_rank
    ]


def _pairs_with_reference(
    reference: pd.DataFrame, kernels: pd.DataFrame, offset: float
) -> _Pairs:
    """Return the pairs of kernels of the reference and of a rank that belong to one call.

    Args:
        reference: the kernels of the reference, ordered by end.
        kernels: the kernels of the rank, ordered by end.
        offset: by how much the clock of the rank is ahead of that of the reference, ns.
    """
    if reference["kind_number"].tolist() == kernels["kind_number"].tolist():
        all_kernels = np.arange(len(kernels))
        return _Pairs(all_kernels, all_kernels)
    return _pairs_by_end(reference=reference, kernels=kernels, offset=offset)


def _clock_offset(
    matched_ends: pd.Series | None,
    reference_ends: pd.Series | None,
    reference: pd.DataFrame,
    kernels: pd.DataFrame,
) -> float:
    """Return how far the clock of a rank is ahead of the clock of the reference rank, ns.

    Args:
        matched_ends: number of a call → end of the rank's kernel; None if none is matched.
        reference_ends: number of a call → end of the reference rank's kernel; None if none is.
        reference: the reference calls of the iteration, on the clock of the reference rank.
        kernels: the rank's kernels of the iteration, not empty.
    """
    if matched_ends is not None and reference_ends is not None:
        offsets = (matched_ends - reference_ends).dropna()
        if len(offsets):
            # Clocks drift, so only the matched calls that are nearest in time are used.
            middle = kernels["end"].iloc[len(kernels) // 2]
            distance = (matched_ends.reindex(offsets.index) - middle).abs()
            nearest_calls = distance.nsmallest(_OFFSET_SAMPLES).index
            return float(offsets[nearest_calls].median())
    return _most_frequent_offset(reference, kernels)


class _Pairs(NamedTuple):
    """Pairs of a reference call and a kernel that belong to the same call."""

    in_reference: Int64Array  #: positions in the reference, (p,)
    in_kernels: Int64Array  #: positions in the kernels of a rank, (p,)


def _pairs_by_end(
    reference: pd.DataFrame, kernels: pd.DataFrame, offset: float
) -> _Pairs:
    """Pair reference calls and kernels of equal signature that end at the same time.

    Args:
        reference: `signature` and `end` of the reference calls, on the reference rank's clock.
        kernels: `signature` and `end` of the kernels, on their rank's clock.
        offset: how far the rank's clock is ahead of the reference rank's, ns.
    """
    reference_ends = pd.DataFrame(
        {
            "signature": reference["signature"],
            "end": reference["end"].astype("float64") + offset,
            "in_reference": np.arange(len(reference)),
        }
    )
    kernel_end = kernels["end"].astype("float64")
    kernel_ends = pd.DataFrame(
        {
            "signature": kernels["signature"],
            "end": kernel_end,
            "in_kernels": np.arange(len(kernels)),
            "kernel_end": kernel_end,
        }
    )
    # The kernel of the same signature whose end is nearest to that of each reference call.
    nearest = pd.merge_asof(
        reference_ends.sort_values("end", kind="stable"),
        kernel_ends.sort_values("end", kind="stable"),
        on="end",
        by="signature",
        direction="nearest",
    ).dropna()
    nearest["distance"] = (nearest["kernel_end"] - nearest["end"]).abs()
    pairs = nearest[nearest["distance"] < _SAME_END_NS]
    # A kernel that is the nearest one of several calls belongs to the nearest call.
    pairs = pairs.sort_values("distance", kind="stable").drop_duplicates("in_kernels")
    return _Pairs(
        in_reference=pairs["in_reference"].to_numpy(np.int64),
        in_kernels=pairs["in_kernels"].to_numpy(np.int64),
    )


def _most_frequent_offset(reference: pd.DataFrame, kernels: pd.DataFrame) -> float:
    """Return the offset near which most differences between the ends of equal calls lie, ns.

    With the wrong partners, the differences are spread over the whole iteration. Those of the
    right partners are all about the offset of the two clocks.
    """
    reference = reference[:_COMPARED_CALLS]
    kernels = kernels[:_COMPARED_CALLS]
    # Compare each reference call (rows) with each kernel (columns).
    reference_signature = reference["signature"].to_numpy()[:, None]
    reference_end = reference["end"].to_numpy()[:, None]
    is_equal = reference_signature == kernels["signature"].to_numpy()
    differences = kernels["end"].to_numpy() - reference_end
    offsets = np.sort(differences[is_equal])
    offsets = offsets.astype(np.float64)
    if not len(offsets):
        return 0.0
    # Each offset begins an interval of 100 µs. The one that contains the most offsets wins.
    first_beyond = np.searchsorted(
        offsets,
        offsets + _SAME_END_NS,
        side="right",
    )
    offsets_in_interval = first_beyond - np.arange(len(offsets))
    fullest = int(np.argmax(offsets_in_interval))
    offsets_of_fullest = offsets[fullest : first_beyond[fullest]]
    return float(np.median(offsets_of_fullest))
