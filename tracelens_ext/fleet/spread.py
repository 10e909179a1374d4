"""Mean and spread over the ranks, and which ranks have the most, of tables that come in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pandas as pd

TOP = 5
_ROWS_AT_ONCE = 500_000


def spread(
    parts: Iterable[pd.DataFrame], keys: Sequence[str], value: str, *, per_device: bool = True
) -> pd.DataFrame:
    """How a time differs between ranks.

    Only so many rows are held as there are distinct keys, and those of some parts.

    Args:
        parts: tables of some traces each, with the columns `part` (a number for each trace),
            `rank`, `keys` and `value`, and `device` where it is a rank's GPUs that are compared.
        keys: what makes a row of the result.
        value: a time in ms.
        per_device: whether each GPU of a rank counts by itself.

    Returns:
        The keys, and `ranks` (that have any; GPUs of a rank count each), `mean_ms`, `std_ms` (of a
        sample; missing for one rank), `min_ms`, `max_ms`, `min_rank`, `max_rank` (of equal ones
        the lowest), `max over mean (%)`, `top_ranks` (those with the most, longest first, as
        text). Of each key the ranks that lack it do not count. Longest mean first.
    """
    import pandas as pd

    keys = list(keys)
    state = top = None
    waiting: list[pd.DataFrame] = []
    rows = 0

    def fold() -> tuple[pd.DataFrame, pd.DataFrame]:
        new = pd.concat(waiting, ignore_index=True)
        return _merged(state, new, keys), _top(top, new, keys)

    for part in parts:
        by = [*keys, "part", "rank", *(["device"] if per_device else [])]
        sums = part.groupby(by, sort=False, dropna=False)[value].sum().rename("ms").reset_index()
        waiting.append(sums)
        rows += len(sums)
        if rows > _ROWS_AT_ONCE:
            state, top = fold()
            waiting, rows = [], 0
    if waiting:
        state, top = fold()
    if state is None or top is None:
        raise ValueError("there are no parts")
    return _finished(state, top, keys)


def _merged(state: pd.DataFrame | None, new: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """A row a key: number, mean, sum of squared deviations, extremes, and whose they are."""
    import pandas as pd

    ordered = new.sort_values(["ms", "rank"], kind="stable")
    grouped = ordered.groupby(keys, sort=False, dropna=False)
    own = grouped.agg(
        n=("ms", "size"), mean=("ms", "mean"), least=("ms", "min"), most=("ms", "max")
    )
    own["m2"] = grouped["ms"].var(ddof=0).fillna(0.0) * own["n"]
    own["min_rank"] = grouped["rank"].first()
    longest = new.sort_values(["ms", "rank"], ascending=[False, True], kind="stable")
    own["max_rank"] = longest.groupby(keys, sort=False, dropna=False)["rank"].first()
    if state is None:
        return own.reset_index()
    return _combined(pd.concat([state, own.reset_index()], ignore_index=True), keys)


def _combined(both: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Statistics of two groups of ranks as those of all (Chan, Golub and LeVeque, 1979)."""
    both = both.assign(total=both["n"] * both["mean"])
    grouped = both.groupby(keys, sort=False, dropna=False)
    result = grouped.agg(n=("n", "sum"), total=("total", "sum"), m2=("m2", "sum"))
    result["mean"] = result["total"] / result["n"]
    whole = grouped["total"].transform("sum") / grouped["n"].transform("sum")
    between = both.assign(between=both["n"] * (both["mean"] - whole) ** 2)
    result["m2"] += between.groupby(keys, sort=False, dropna=False)["between"].sum()
    least = both.sort_values(["least", "min_rank"], kind="stable")
    most = both.sort_values(["most", "max_rank"], ascending=[False, True], kind="stable")
    for frame, columns in ((least, ["least", "min_rank"]), (most, ["most", "max_rank"])):
        result[columns] = frame.groupby(keys, sort=False, dropna=False)[columns].first()
    return result.drop(columns="total").reset_index()


def _top(top: pd.DataFrame | None, new: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """The rows of the ranks with the most, some of each key."""
    import pandas as pd

    frame = new if top is None else pd.concat([top, new], ignore_index=True)
    ordered = frame.sort_values(["ms", "rank"], ascending=[False, True], kind="stable")
    return ordered.groupby(keys, sort=False, dropna=False).head(TOP)


def _finished(state: pd.DataFrame, top: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    state = state.sort_values("mean", ascending=False, kind="stable", ignore_index=True)
    n, mean, most = (state[column].to_numpy(dtype=np.float64) for column in ("n", "mean", "most"))
    over = np.full(len(state), np.nan)
    # Of equal times the mean is not always the same to the last digit.
    np.divide(100.0 * np.maximum(most - mean, 0.0), mean, out=over, where=mean > 0)
    std = np.full(len(state), np.nan)
    np.divide(state["m2"].to_numpy(), n - 1, out=std, where=n > 1)
    named = top.assign(
        shown=[f"{r} ({ms:.3f})" for r, ms in zip(top["rank"], top["ms"], strict=True)]
    )
    texts = named.groupby(keys, sort=False, dropna=False)["shown"].agg(", ".join)
    result = state[keys].copy()
    result["ranks"] = state["n"]
    result["mean_ms"], result["std_ms"] = mean, np.sqrt(std)
    result["min_ms"], result["max_ms"] = state["least"], most
    result["min_rank"], result["max_rank"] = state["min_rank"], state["max_rank"]
    result["max over mean (%)"] = over
    return result.join(texts.rename("top_ranks"), on=keys)
