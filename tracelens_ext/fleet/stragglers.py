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

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

#: Collectives that nobody leaves before everybody has come.
_SYNCHRONOUS = re.compile(
    r"all_?reduce|reduce_?scatter|all_?gather|all_?to_?all|barrier", re.IGNORECASE
)
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
_ROWS_AT_ONCE = 500_000

#: Gives the parts one after the other, as often as it is called.
Parts = Callable[[], Iterator["pd.DataFrame"]]


@dataclass(frozen=True)
class Stragglers:
    """Who came last, and what it cost.

    Attributes:
        collectives: a row a collective, process group, type and size; longest wait first.
        ranks_of_collectives: likewise, a row each for every rank that came last in one.
        ranks: a row a rank.
        ungrouped: whether a collective's process group was not in the traces, and all of one name
            were taken for those of one group.
    """

    collectives: pd.DataFrame
    ranks_of_collectives: pd.DataFrame
    ranks: pd.DataFrame
    ungrouped: bool


def find_stragglers(parts: Parts) -> Stragglers:
    """Compare the calls of all ranks.

    Args:
        parts: the tables `collective_calls` of some traces at a time, with a column `part` (a
            number for each trace); gone through twice.
    """
    codes = _Codes()
    calls, steps = _calls(parts, codes)
    calls = _judged(calls, steps, codes)
    waits = _waits(parts, codes, calls)
    return Stragglers(
        _by_collective(calls, codes),
        _by_collective_and_rank(calls, codes),
        _by_rank(calls, waits),
        any(not any(signature[1:4]) for signature in codes.signatures),
    )


class _Codes:
    """Small numbers for signatures and iterations, the same in every part."""

    def __init__(self) -> None:
        self.signatures: dict[tuple[object, ...], int] = {}
        self._steps: dict[str, int] = {}
        self._traces = 0

    def coded(self, part: pd.DataFrame) -> pd.DataFrame:
        """The calls of a part that can be judged, with numbers for texts."""
        import pandas as pd

        keys = part[list(_SIGNATURE)].astype(object).where(part[list(_SIGNATURE)].notna(), None)
        local, distinct = pd.factorize(pd.MultiIndex.from_frame(keys))
        wanted = [bool(_SYNCHRONOUS.search(str(key[0]))) for key in distinct]
        of_local = [
            self.signatures.setdefault(_without_nan(key), len(self.signatures)) if use else -1
            for key, use in zip(distinct, wanted, strict=True)
        ]
        step, steps = pd.factorize(part["iteration"].fillna(""))
        of_step = [self._steps.setdefault(str(text), len(self._steps)) for text in steps]
        frame = pd.DataFrame(
            {
                "signature": np.array(of_local, dtype=np.int64)[local],
                "step": np.array(of_step, dtype=np.int64)[step],
                "sequence": part["sequence"].to_numpy(dtype=np.int64),
                "us": part["duration_us"].to_numpy(dtype=np.float64),
                "size": part["In msg nelems"].to_numpy(dtype=np.float64, na_value=np.nan),
                "part": part["part"].to_numpy(dtype=np.int64),
                "rank": part["rank"].to_numpy(dtype=np.int64),
                "device": part["device"].to_numpy(dtype=np.int64),
            }
        )
        return frame[frame["signature"] >= 0]


def _without_nan(key: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(None if value != value else value for value in key)  # NaN


def _calls(parts: Parts, codes: _Codes) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What all ranks together show of each call, and how many calls they count in an iteration."""
    import pandas as pd

    calls = steps = None
    waiting: list[pd.DataFrame] = []
    counts: list[pd.DataFrame] = []
    rows = 0

    def fold() -> tuple[pd.DataFrame, pd.DataFrame]:
        new = pd.concat(waiting, ignore_index=True).assign(ranks=1, sum=lambda f: f["us"])
        new = new.assign(longest=new["us"]).rename(columns={"us": "shortest"})
        return _merged(calls, new), _counted(steps, pd.concat(counts, ignore_index=True))

    for part in parts():
        coded = codes.coded(part)
        counted = coded.groupby(["signature", "step", "part", "device"], sort=False).size()
        waiting.append(coded)
        counts.append(counted.rename("fewest").reset_index())
        rows += len(coded)
        if rows > _ROWS_AT_ONCE:
            calls, steps = fold()
            waiting, counts, rows = [], [], 0
    if waiting:
        calls, steps = fold()
    if calls is None or steps is None:
        raise ValueError("there are no parts")
    return calls, steps


def _merged(calls: pd.DataFrame | None, new: pd.DataFrame) -> pd.DataFrame:
    """A row a call: `ranks`, `sum`, `shortest`, `longest`, and `rank`, `device` of the shortest."""
    import pandas as pd

    frame = new if calls is None else pd.concat([calls, new], ignore_index=True)
    # Of equal durations the lower rank's is first, in whatever order the parts come.
    frame = frame.sort_values(["shortest", "rank", "device"], kind="stable", ignore_index=True)
    grouped = frame.groupby(_CALL, sort=False)
    sums = grouped.agg(
        ranks=("ranks", "sum"),
        sum=("sum", "sum"),
        shortest=("shortest", "first"),
        longest=("longest", "max"),
        size=("size", "max"),
        rank=("rank", "first"),
        device=("device", "first"),
    )
    return sums.reset_index()


def _counted(steps: pd.DataFrame | None, new: pd.DataFrame) -> pd.DataFrame:
    """A row a signature and iteration: the fewest and the most calls that a rank counts."""
    import pandas as pd

    new = new.assign(most=new["fewest"])
    frame = new if steps is None else pd.concat([steps, new], ignore_index=True)
    grouped = frame.groupby(["signature", "step"], sort=False)
    return grouped.agg(fewest=("fewest", "min"), most=("most", "max")).reset_index()


def _judged(calls: pd.DataFrame, steps: pd.DataFrame, codes: _Codes) -> pd.DataFrame:
    """The calls with `judged`, and `wait`, the µs that all ranks together waited in each."""
    at = _SIGNATURE.index("Group size")
    sizes = [key[at] if isinstance(key[at], int | float) else np.inf for key in codes.signatures]
    most = np.array(sizes or [np.inf], dtype=np.float64)
    calls = calls.merge(steps, on=["signature", "step"], how="left")
    shown = calls["ranks"].to_numpy()
    agree = (calls["fewest"] == calls["most"]).to_numpy()
    calls["judged"] = agree & (shown >= 2) & (shown <= most[calls["signature"].to_numpy()])
    calls["wait"] = calls["sum"] - calls["ranks"] * calls["shortest"]
    calls["spread"] = calls["longest"] - calls["shortest"]
    return calls


def _waits(parts: Parts, codes: _Codes, calls: pd.DataFrame) -> pd.DataFrame:
    """A row a rank and device: calls that were judged, and the µs it waited in them."""
    import pandas as pd

    judged = calls.loc[calls["judged"], [*_CALL, "shortest"]]
    found = []
    for part in parts():
        of_part = codes.coded(part).merge(judged, on=_CALL, how="inner")
        of_part["waited"] = of_part["us"] - of_part["shortest"]
        grouped = of_part.groupby(["rank", "device"], sort=False)["waited"]
        found.append(grouped.agg(["size", "sum"]).reset_index())
    frame = pd.concat(found, ignore_index=True)
    return frame.groupby(["rank", "device"], sort=True, as_index=False)[["size", "sum"]].sum()


def _described(frame: pd.DataFrame, codes: _Codes) -> pd.DataFrame:
    """The signatures in words; the columns `_SHOWN`."""
    import pandas as pd

    columns = list(zip(*codes.signatures, strict=True)) or [()] * len(_SIGNATURE)
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


def _by_collective(calls: pd.DataFrame, codes: _Codes) -> pd.DataFrame:
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
    result = _described(frame, codes)
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


def _by_collective_and_rank(calls: pd.DataFrame, codes: _Codes) -> pd.DataFrame:
    frame = _last(calls[calls["judged"]])
    frame = frame.sort_values("caused", ascending=False, kind="stable", ignore_index=True)
    result = _described(frame, codes)
    result["rank"], result["device"] = frame["rank"], frame["device"]
    result["times_last"] = frame["times_last"]
    result["wait_for_it_ms"] = frame["caused"] / 1e3
    return result


def _by_rank(calls: pd.DataFrame, waits: pd.DataFrame) -> pd.DataFrame:
    """How often each rank came last, and how long it waited and was waited for."""
    import pandas as pd

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
