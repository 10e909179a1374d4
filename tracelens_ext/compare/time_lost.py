"""Compares the time that operations lose against the roofline of their trace's own device."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens_ext.compare.verdict import prefixes
from tracelens_ext.lazy import pd
from tracelens_ext.roofline.analysis import Roofline
from tracelens_ext.roofline.summary import shape_text
from tracelens_ext.trace import NS_PER_MS

_KEYS = ["op_name", "shapes"]


def time_lost(roofline: Roofline) -> pd.DataFrame:
    """Return `time_lost_ms` and `roofline_ms` of operations whose time lost is known.

    The index consists of `op_name` and `shapes`, which includes the types.
    """
    rows = []
    for row in roofline.rows:
        if row.lost_ns is None:
            continue
        rows.append(
            {
                "op_name": row.operation.name,
                "shapes": shape_text(row),
                "time_lost_ms": row.lost_ns / NS_PER_MS,
                "roofline_ms": (row.roofline_ns or 0.0) / NS_PER_MS,
            }
        )
    table = pd.DataFrame(rows, columns=_KEYS + ["time_lost_ms", "roofline_ms"])
    sums: pd.DataFrame = table.groupby(_KEYS, sort=False).sum()
    return sums


def compare_time_lost(
    lost: Sequence[pd.DataFrame],
    letters: Sequence[str],
    divisors: Sequence[float],
    *,
    normalize: bool = False,
) -> pd.DataFrame:
    """Return the time lost per unit of work, a row for each operation and its shapes.

    The columns are `op_name`, `shapes`, `A_time_lost_ms`, `B_time_lost_ms` and `difference_ms`
    (B - A; with more than two traces `B_difference_ms` and so on). The row with the largest
    difference comes first. Cells are empty if a trace does not have the operation.

    With `normalize`, there are two further columns: `A_lost_by_roofline` is the time lost divided
    by the roofline time on the trace's own device, and `difference_by_roofline` is the difference
    of these ratios. The rows are then ordered by that difference times A's roofline time.

    Args:
        lost: the result of `time_lost` for each trace.
        letters: the letters of the traces, the baseline first.
        divisors: the number by which the time of each trace is divided.
        normalize: add the columns of ratios to the roofline time.
    """
    baseline = letters[0]
    lost_ms = _side_by_side(lost, letters, "time_lost_ms")
    roofline_ms = _side_by_side(lost, letters, "roofline_ms")
    lost_by_roofline_ratio = lost_ms / roofline_ms.mask(roofline_ms <= 0)
    lost_ms /= list(divisors)
    table = lost_ms.add_suffix("_time_lost_ms")
    lost_or_zero_ms = lost_ms.fillna(0.0)
    change_of_letter = {}
    for letter, prefix in prefixes(letters).items():
        difference_ms = lost_or_zero_ms[letter] - lost_or_zero_ms[baseline]
        table[f"{prefix}difference_ms"] = difference_ms
        change_of_letter[letter] = difference_ms
        if normalize:
            change = lost_by_roofline_ratio[letter] - lost_by_roofline_ratio[baseline]
            table[f"{prefix}difference_by_roofline"] = change
            change_of_letter[letter] = change * roofline_ms[baseline]
    if normalize:
        table = table.join(lost_by_roofline_ratio.add_suffix("_lost_by_roofline"))
    largest_change = pd.DataFrame(change_of_letter).abs().max(axis=1).fillna(0.0)
    order = largest_change.sort_values(ascending=False, kind="stable").index
    return table.loc[order].rename_axis(_KEYS).reset_index()


def _side_by_side(
    lost: Sequence[pd.DataFrame], letters: Sequence[str], column: str
) -> pd.DataFrame:
    """Return a column of each trace's table, side by side; NaN if a trace lacks a row."""
    columns = [table[column] for table in lost]
    return pd.concat(columns, axis=1, keys=list(letters), sort=False)


def lost_by_roofline(lost: Sequence[pd.DataFrame], letters: Sequence[str]) -> str:
    """Return a sentence about the ratio of time lost to roofline time of each trace."""
    texts = []
    for letter, table in zip(letters, lost, strict=True):
        roofline_ms = table["roofline_ms"].sum()
        if roofline_ms > 0:
            ratio = table["time_lost_ms"].sum() / roofline_ms
            texts.append(f"{letter} loses {ratio:.2f}")
    return (
        f"{' and '.join(texts)} times the roofline time of its own device, where that "
        "is known."
    )
