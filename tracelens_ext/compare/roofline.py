"""Time lost by the operations of several traces, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.lazy import pd
from tracelens_ext.roofline.shapes import shape_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.roofline.found import Roofline

_NS_PER_MS = 1e6


def time_lost(roofline: Roofline) -> pd.Series:
    """Time lost in ms by `op_name` and `shapes` (with types), of operations with a best case."""
    rows = [row for row in roofline.rows if row.lost_ns is not None]
    names = [(row.operation.name, shape_text(row)) for row in rows]
    lost = [(row.lost_ns or 0.0) / _NS_PER_MS for row in rows]
    index = pd.MultiIndex.from_tuples(names, names=["op_name", "shapes"]) if names else None
    series = pd.Series(lost, index=index, dtype=float)
    return series.groupby(level=["op_name", "shapes"]).sum() if names else series


def compare_time_lost(lost: Sequence[pd.Series], letters: Sequence[str]) -> pd.DataFrame:
    """Time lost of whole traces, a row for each operation and its shapes; the first is A.

    Columns: `op_name`, `shapes`, `A_time_lost_ms`, `B_time_lost_ms`, `difference_ms` (B - A;
    of more than two traces `B_difference_ms` …), the largest difference first. Empty where a
    trace has no such operation.
    """
    frame = pd.concat(
        lost, axis=1, keys=[f"{letter}_time_lost_ms" for letter in letters], sort=False
    )
    filled = frame.fillna(0.0)
    changes = []
    for at, letter in enumerate(letters[1:], start=1):
        column = "difference_ms" if len(letters) == 2 else f"{letter}_difference_ms"
        frame[column] = filled.iloc[:, at] - filled.iloc[:, 0]
        changes.append(column)
    order = frame[changes].abs().max(axis=1).sort_values(ascending=False, kind="stable").index
    return frame.loc[order].rename_axis(["op_name", "shapes"]).reset_index()
