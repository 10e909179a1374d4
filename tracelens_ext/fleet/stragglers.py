"""Which rank the others wait for in a collective.

Clocks of different hosts differ by more than a collective takes, so starts cannot be compared
between ranks; durations can. A collective that needs every rank ends on all of them at about the
same time, and the kernel of a rank that comes early runs while it waits. So of the kernels of one
call the shortest is of the rank that came last, and the others waited for as long as theirs ran
longer.

The kernels of one call are found by counting: two ranks call the collectives of a process group in
the same order. So a call is the n-th of its collective, process group (name, description, size,
ranks) and type in its iteration; where ranks count different numbers of calls in an iteration
(one began to record in the middle of it, say), which is which is not known, and none is judged. Nor
is a call that only one rank shows, or that more ranks show than the group has; nor collectives that
some ranks can leave early (broadcast, reduce, gather, scatter, send and receive).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.collectives.collectives import SYNCHRONOUS
from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


#: The values of the columns `_SIGNATURE`.
Signature = tuple[object, ...]

_GROUP = (
    "Process Group Name",
    "Process Group Description",
    "Process Group Ranks",
    "Group size",
)
_SIGNATURE = ("collective", *_GROUP, "dtype")
#: The columns of `collective_calls` that are needed here.
COLUMNS = ("rank", "device", *_SIGNATURE, "In msg nelems", "iteration", "sequence", "duration_us")
_CALL = ["signature", "step", "sequence"]
_SHOWN = (
    "collective",
    "Process Group Name",
    "Process Group Description",
    "Group size",
    "dtype",
    "In msg nelems",
)


@dataclass(frozen=True)
class Stragglers:
    """Who came last, and what it cost."""

    #: a row a collective, process group, type and size; longest wait first.
    collectives: pd.DataFrame
    ranks_of_collectives: pd.DataFrame  #: a row a collective and rank that came last in it
    ranks: pd.DataFrame  #: a row a rank
    #: whether a collective's process group was not in the traces, and all of one name were taken
    #: for those of one group.
    ungrouped: bool


def find_stragglers(parts: Iterable[pd.DataFrame]) -> Stragglers:
    """Compare the calls of all ranks.

    Of each call on each rank eight numbers are held.

    Args:
        parts: the tables `collective_calls` of some traces each, with a column `part` (a number
            for each trace).
    """
    signatures: dict[Signature, int] = {}
    steps: dict[str, int] = {}
    found = pd.concat([_coded(part, signatures, steps) for part in parts], ignore_index=True)
    calls = _judged(found, list(signatures))
    return Stragglers(
        _by_collective(calls, list(signatures)),
        _by_collective_and_rank(calls, list(signatures)),
        _by_rank(calls, _waits(found, calls)),
        any(not any(signature[1:4]) for signature in signatures),
    )


def _coded(
    part: pd.DataFrame, signatures: dict[Signature, int], steps: dict[str, int]
) -> pd.DataFrame:
    """The calls of a part that can be judged, with numbers for texts."""
    keys = part[list(_SIGNATURE)].astype(object).where(part[list(_SIGNATURE)].notna(), None)
    local = keys.groupby(list(_SIGNATURE), sort=False, dropna=False).ngroup().to_numpy()
    distinct = keys.drop_duplicates().itertuples(index=False, name=None)
    of_local = [
        signatures.setdefault(_without_nan(key), len(signatures))
        if SYNCHRONOUS.search(str(key[0]))
        else -1
        for key in distinct
    ]
    step, texts = pd.factorize(part["iteration"].fillna(""))
    of_step = [steps.setdefault(str(text), len(steps)) for text in texts]
    frame = pd.DataFrame(
        {
            "signature": np.array(of_local, dtype=np.int32)[local],
            "step": np.array(of_step, dtype=np.int32)[step],
            "sequence": part["sequence"].to_numpy(dtype=np.int64),
            "us": part["duration_us"].to_numpy(dtype=np.float64),
            "size": part["In msg nelems"].to_numpy(dtype=np.float64, na_value=np.nan),
            "part": part["part"].to_numpy(dtype=np.int32),
            "rank": part["rank"].to_numpy(dtype=np.int64),
            "device": part["device"].to_numpy(dtype=np.int64),
        }
    )
    return frame[frame["signature"] >= 0]


def _without_nan(key: tuple[object, ...]) -> Signature:
    return tuple(None if value != value else value for value in key)  # NaN


def _judged(found: pd.DataFrame, signatures: Sequence[Signature]) -> pd.DataFrame:
    """A row a call: what all ranks together show of it.

    Returns:
        Columns `ranks` (how many show it), `sum`, `shortest`, `longest` (µs), `size`; `rank`,
        `device` of the shortest; `judged`; `wait`, the µs that all ranks together waited in it;
        and `spread`, the longest less the shortest.
    """
    # Of equal durations the lower rank's is first, in whatever order the parts come.
    ordered = found.sort_values(["us", "rank", "device"], kind="stable")
    calls = ordered.groupby(_CALL, sort=False).agg(
        ranks=("us", "size"),
        sum=("us", "sum"),
        shortest=("us", "first"),
        longest=("us", "max"),
        size=("size", "max"),
        rank=("rank", "first"),
        device=("device", "first"),
    )
    calls = calls.reset_index()
    counted = found.groupby(["signature", "step", "part", "device"], sort=False).size()
    of_step = counted.groupby(["signature", "step"]).agg(fewest="min", most="max")
    calls = calls.join(of_step, on=["signature", "step"])
    at = _SIGNATURE.index("Group size")
    sizes = [key[at] if isinstance(key[at], int | float) else np.inf for key in signatures]
    most = np.array(sizes or [np.inf], dtype=np.float64)[calls["signature"].to_numpy()]
    agree = calls["fewest"] == calls["most"]
    calls["judged"] = agree & (calls["ranks"] >= 2) & (calls["ranks"] <= most)
    calls["wait"] = calls["sum"] - calls["ranks"] * calls["shortest"]
    calls["spread"] = calls["longest"] - calls["shortest"]
    return calls


def _waits(found: pd.DataFrame, calls: pd.DataFrame) -> pd.DataFrame:
    """A row a rank and device: calls that were judged, and the µs it waited in them."""
    judged = calls.loc[calls["judged"], [*_CALL, "shortest"]]
    shown = found.merge(judged, on=_CALL, how="inner")
    shown["waited"] = shown["us"] - shown["shortest"]
    grouped = shown.groupby(["rank", "device"])["waited"]
    return grouped.agg(["size", "sum"]).reset_index()


def _described(frame: pd.DataFrame, signatures: Sequence[Signature]) -> pd.DataFrame:
    """The signatures in words; the columns `_SHOWN`."""
    columns = list(zip(*signatures, strict=True)) or [()] * len(_SIGNATURE)
    result = pd.DataFrame(index=frame.index)
    for name in _SHOWN[:-1]:
        values = columns[_SIGNATURE.index(name)]
        texts = [values[code] for code in frame["signature"].tolist()]
        kind = "Int64" if name == "Group size" else "str"
        result[name] = pd.array(texts, dtype=kind)  # type: ignore[call-overload]
    result[_SHOWN[-1]] = pd.array(
        [None if size != size else int(size) for size in frame["size"].tolist()], dtype="Int64"
    )
    return result


def _by_collective(calls: pd.DataFrame, signatures: Sequence[Signature]) -> pd.DataFrame:
    """What the calls of each collective cost, and who came last most often."""
    keys = ["signature", "size"]
    every = calls.groupby(keys, sort=False, dropna=False)["judged"].agg(["size", "sum"])
    judged = calls[calls["judged"]]
    grouped = judged.groupby(keys, sort=False, dropna=False)
    frame = grouped.agg(
        ranks=("ranks", "max"),
        calls=("wait", "size"),
        wait=("wait", "sum"),
        mean=("spread", "mean"),
        most=("spread", "max"),
    )
    frame["left_out"] = every["size"] - every["sum"]
    last = _last(judged).sort_values(["times_last", "caused"], ascending=False, kind="stable")
    first = last.groupby(keys, sort=False, dropna=False).first()
    frame = frame.join(first).reset_index()
    frame = frame.sort_values("wait", ascending=False, kind="stable", ignore_index=True)
    result = _described(frame, signatures)
    result["ranks"] = frame["ranks"]
    result["calls"] = frame["calls"]
    result["calls not judged"] = frame["left_out"]
    result["wait_time_ms"] = frame["wait"] / 1e3
    result["mean_spread_us"] = frame["mean"]
    result["max_spread_us"] = frame["most"]
    result["last_rank"] = frame["rank"].astype("Int64")
    result["last_device"] = frame["device"].astype("Int64")
    result["times_last"] = frame["times_last"].fillna(0).astype("int64")
    result["% of calls last"] = 100.0 * result["times_last"] / result["calls"]
    result["wait_for_it_ms"] = frame["caused"].fillna(0) / 1e3
    return result


def _last(judged: pd.DataFrame) -> pd.DataFrame:
    """A row a collective and rank that came last in it: how often, and how long others waited."""
    uneven = judged[judged["spread"] > 0]
    grouped = uneven.groupby(["signature", "size", "rank", "device"], sort=False, dropna=False)
    return grouped.agg(times_last=("wait", "size"), caused=("wait", "sum")).reset_index()


def _by_collective_and_rank(calls: pd.DataFrame, signatures: Sequence[Signature]) -> pd.DataFrame:
    frame = _last(calls[calls["judged"]])
    frame = frame.sort_values("caused", ascending=False, kind="stable", ignore_index=True)
    result = _described(frame, signatures)
    result["rank"], result["device"] = frame["rank"], frame["device"]
    result["times_last"] = frame["times_last"]
    result["wait_for_it_ms"] = frame["caused"] / 1e3
    return result


def _by_rank(calls: pd.DataFrame, waits: pd.DataFrame) -> pd.DataFrame:
    """How often each rank came last, and how long it waited and was waited for."""
    last = _last(calls[calls["judged"]])
    caused = last.groupby(["rank", "device"])[["times_last", "caused"]].sum()
    frame = waits.join(caused, on=["rank", "device"])
    return pd.DataFrame(
        {
            "rank": frame["rank"],
            "device": frame["device"],
            "calls": frame["size"],
            "times_last": frame["times_last"].fillna(0).astype("int64"),
            "waited_ms": frame["sum"] / 1e3,
            "wait_for_it_ms": frame["caused"].fillna(0.0) / 1e3,
        }
    )
