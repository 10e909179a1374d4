"""Mean and spread over the ranks, and which ranks have the most, of tables that come in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


TOP = 5


def spread(
    parts: Iterable[pd.DataFrame], keys: Sequence[str], value: str, *, per_device: bool = True
) -> pd.DataFrame:
    """How a time differs between ranks.

    Of each rank and key three numbers are held, and each distinct key once.

    Args:
        parts: tables of some traces each, with the columns `part` (a number for each trace),
            `rank`, `keys` and `value`, and `device` if it is a rank's GPUs that are compared.
        keys: what makes a row of the result.
        value: a time in ms.
        per_device: whether each GPU of a rank counts by itself.

    Returns:
        The keys, and `ranks` (that have any; GPUs of a rank count each), `mean_ms`, `std_ms` (of a
        sample; missing for one rank), `min_ms`, `max_ms`, `min_rank`, `max_rank` (of equal ones
        the lowest), `max over mean (%)`, `top_ranks` (those with the most, longest first, as
        text). Of each key the ranks that lack it do not count. Longest mean first.
    """
    names, times = _coded(parts, list(keys), value, per_device=per_device)
    shortest = times.sort_values(["ms", "rank"], kind="stable")
    longest = times.sort_values(["ms", "rank"], ascending=[False, True], kind="stable")
    grouped, by_longest = (each.groupby("key", sort=False) for each in (shortest, longest))
    found = grouped.agg(
        ranks=("ms", "size"),
        mean_ms=("ms", "mean"),
        min_ms=("ms", "min"),
        max_ms=("ms", "max"),
        min_rank=("rank", "first"),
    )
    found["squares"] = grouped["ms"].var(ddof=0) * found["ranks"]
    found["max_rank"] = by_longest["rank"].first()
    top = by_longest.head(TOP)
    shown = [f"{rank} ({ms:.3f})" for rank, ms in zip(top["rank"], top["ms"], strict=True)]
    found["top_ranks"] = top.assign(shown=shown).groupby("key")["shown"].agg(", ".join)
    found = found.sort_values("mean_ms", ascending=False, kind="stable")
    mean, more = found["mean_ms"], found["max_ms"] - found["mean_ms"]
    # Of equal times the mean is not always the same to the last digit.
    found["max over mean (%)"] = (100.0 * more.clip(lower=0.0) / mean).where(mean > 0)
    others = found["ranks"] - 1
    found["std_ms"] = np.sqrt(found["squares"] / others.where(others > 0))
    columns = ["ranks", "mean_ms", "std_ms", "min_ms", "max_ms", "min_rank", "max_rank"]
    columns += ["max over mean (%)", "top_ranks"]
    return names.loc[found.index].join(found[columns]).reset_index(drop=True)


def _coded(
    parts: Iterable[pd.DataFrame], keys: list[str], value: str, *, per_device: bool
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The distinct keys, and `ms` by `key` (the number of its row in the former) and `rank`."""
    numbers: dict[tuple[object, ...], int] = {}
    times = []
    for part in parts:
        by = [*keys, "part", "rank", *(["device"] if per_device else [])]
        sums = part.groupby(by, sort=False, dropna=False)[value].sum().rename("ms").reset_index()
        here = sums.groupby(keys, sort=False, dropna=False).ngroup().to_numpy()
        distinct = sums[keys].drop_duplicates().itertuples(index=False, name=None)
        codes = [numbers.setdefault(key, len(numbers)) for key in distinct]
        code = np.array(codes, dtype=np.int64)[here]
        times.append(pd.DataFrame({"key": code, "rank": sums["rank"], "ms": sums["ms"]}))
    names = pd.DataFrame(list(numbers), columns=keys)
    return names, pd.concat(times, ignore_index=True)
