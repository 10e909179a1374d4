"""Time lost by the operations of several traces, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.lazy import pd
from tracelens_ext.roofline.shapes import shape_text
from tracelens_ext.trace import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.roofline.found import Roofline

_KEYS = ["op_name", "shapes"]


def time_lost(roofline: Roofline) -> pd.DataFrame:
    """`time_lost_ms` and `roofline_ms` by operation and shapes (with types), where known."""
    known = [row for row in roofline.rows if row.lost_ns is not None]
    frame = pd.DataFrame(
        {
            "op_name": [row.operation.name for row in known],
            "shapes": [shape_text(row) for row in known],
            "time_lost_ms": [(row.lost_ns or 0.0) / NS_PER_MS for row in known],
            "roofline_ms": [(row.roofline_ns or 0.0) / NS_PER_MS for row in known],
        }
    )
    sums: pd.DataFrame = frame.groupby(_KEYS, sort=False).sum()
    return sums


def compare_time_lost(
    lost: Sequence[pd.DataFrame],
    letters: Sequence[str],
    divisors: Sequence[float],
    *,
    normalize: bool = False,
) -> pd.DataFrame:
    """Time lost by unit, a row for each operation and its shapes; the first is A.

    Columns: `op_name`, `shapes`, `A_time_lost_ms`, `B_time_lost_ms`, `difference_ms` (B - A;
    of more than two traces `B_difference_ms` …), the largest difference first. With `normalize`
    also `A_lost_by_roofline`, the time lost by the time of the best case on the own device, and
    `difference_by_roofline`, which then orders the rows, each by A's best case. Empty where a trace
    has no such operation.
    """
    names = [f"{letter}_time_lost_ms" for letter in letters]
    ms = [each["time_lost_ms"] / units for each, units in zip(lost, divisors, strict=True)]
    frame = pd.concat(ms, axis=1, keys=names, sort=False)
    best = pd.concat([each["roofline_ms"] for each in lost], axis=1, keys=names, sort=False)
    shares = pd.concat([each["time_lost_ms"] for each in lost], axis=1, keys=names, sort=False)
    shares /= best.mask(best <= 0)
    sizes = {}
    for letter, name in zip(letters[1:], names[1:], strict=True):
        prefix = "" if len(letters) == 2 else f"{letter}_"
        frame[f"{prefix}difference_ms"] = frame[name].fillna(0.0) - frame[names[0]].fillna(0.0)
        sizes[letter] = frame[f"{prefix}difference_ms"]
        if normalize:
            change = frame[f"{prefix}difference_by_roofline"] = shares[name] - shares[names[0]]
            sizes[letter] = change * best[names[0]]
    if normalize:
        for letter, name in zip(letters, names, strict=True):
            frame[f"{letter}_lost_by_roofline"] = shares[name]
    size = pd.DataFrame(sizes).abs().max(axis=1).fillna(0.0)
    order = size.sort_values(ascending=False, kind="stable").index
    return frame.loc[order].rename_axis(_KEYS).reset_index()


def lost_by_roofline(lost: Sequence[pd.DataFrame], letters: Sequence[str]) -> str:
    """A sentence: how much longer than its own device's best case each trace takes."""
    sums = [each[["time_lost_ms", "roofline_ms"]].sum() for each in lost]
    told = [
        f"{letter} loses {each['time_lost_ms'] / each['roofline_ms']:.2f}"
        for letter, each in zip(letters, sums, strict=True)
        if each["roofline_ms"] > 0
    ]
    return f"{' and '.join(told)} times the best case of its own device, where that is known."
