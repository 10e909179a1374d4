"""The places of two traces as a tree that a page draws, coloured by what changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracelens_ext.lazy import pd
from tracelens_ext.trace import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_ROWS = 300  # each with its path: what a page can draw
_OTHER = "other"
_SAME, _SLOWER, _FASTER = (232, 234, 238), (214, 69, 65), (52, 120, 190)
_FULL = 0.5  # change, of the longer time, that has the full colour


def place_tree(places: pd.DataFrame, letters: Sequence[str]) -> pd.DataFrame:
    """Nodes with the times of both traces, parents before children; small ones as `other`.

    Columns as the call tree's (`gpu_time_ns` of both together, which is its width), `A_time_ms`,
    `B_time_ms`, `difference_ms`, and `colour` and `hover` for the page.
    """
    a, b = letters
    times = places[[f"{a}_time_ms", f"{b}_time_ms"]].fillna(0.0)
    sums: dict[tuple[str, ...], tuple[float, float, int]] = {}
    order = times.max(axis=1).sort_values(ascending=False, kind="stable").index
    records: list[dict[Any, Any]] = places.loc[order].to_dict("records")
    shown = times.loc[order].to_numpy().tolist()
    for at, (row, own) in enumerate(zip(records, shown, strict=True)):
        names = dict.fromkeys(filter(None, (row[f"{a}_operation"], row[f"{b}_operation"])))
        operation = " → ".join(names) + " (backward)" * bool(row["backward"])
        path = (*filter(None, row["path"].split("/")), operation)
        path = path if at < _MOST_ROWS else (_OTHER,)
        for depth in range(1, len(path) + 1):
            key = (*path[:depth], "" if depth == len(path) else "/")
            a_ms, b_ms, ns = sums.get(key, (0.0, 0.0, 0))
            # A node is as wide as those below together, so each place is rounded once.
            sums[key] = a_ms + own[0], b_ms + own[1], ns + round(sum(own) * NS_PER_MS)
    keys = sorted(sums, key=len)
    number = {key: at for at, key in enumerate(keys)}
    rows = [
        {
            "node": number[key],
            "parent": number.get((*key[:-2], "/"), -1),
            "label": key[-2],
            "kind": "module" if key[-1] else "operation",
            "category": "",
            "gpu_time_ns": sums[key][2],
            f"{a}_time_ms": sums[key][0],
            f"{b}_time_ms": sums[key][1],
            "difference_ms": sums[key][1] - sums[key][0],
            "colour": _colour(*sums[key][:2]),
            "hover": f"{a} {sums[key][0]:,.3f} ms, {b} {sums[key][1]:,.3f} ms"
            f" ({sums[key][1] - sums[key][0]:+,.3f} ms)",
        }
        for key in keys
    ]
    return pd.DataFrame(rows)


def _colour(before: float, after: float) -> str:
    """Red where the other trace takes longer, blue where it takes less."""
    longer = max(before, after)
    change = (after - before) / longer if longer else 0.0
    share = min(abs(change) / _FULL, 1.0)
    end = _SLOWER if change > 0 else _FASTER
    mixed = (round(x + (y - x) * share) for x, y in zip(_SAME, end, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)
