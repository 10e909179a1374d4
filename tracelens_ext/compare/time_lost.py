"""Time lost against the best case of each trace's own device, by operation and shapes."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens_ext.compare.verdict import prefixes
from tracelens_ext.lazy import pd
from tracelens_ext.roofline.analysis import Roofline
from tracelens_ext.roofline.summary import shape_text
from tracelens_ext.trace import NS_PER_MS

_KEYS = ["op_name", "shapes"]


def time_lost(roofline: Roofline) -> pd.DataFrame:
    """Return `time_lost_ms` and `roofline_ms` by operation and shapes (with types), where known."""
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
    """Return time lost by unit, a row for each operation and its shapes.

    Columns: `op_name`, `shapes`, `A_time_lost_ms`, `B_time_lost_ms`, `difference_ms` (B - A;
    of more than two traces `B_difference_ms` …), the largest difference first. With `normalize`
    also `A_lost_by_roofline`, the time lost by the time of the best case on the own device, and
    `difference_by_roofline`, which then orders the rows, each by A's best case. Empty where a trace
    has no such operation.

    Args:
        lost: of each trace, as `time_lost` returns it.
        letters: what the traces are called, the baseline first.
        divisors: what the time of each is divided by.
        normalize: with the columns by the best case.
    """
    baseline = letters[0]
    lost_ms = _side_by_side(lost, letters, "time_lost_ms")
    best_ms = _side_by_side(lost, letters, "roofline_ms")
    share_of_best = lost_ms / best_ms.mask(best_ms <= 0)
    lost_ms /= list(divisors)
    table = lost_ms.add_suffix("_time_lost_ms")
    known_ms = lost_ms.fillna(0.0)
    sizes = {}
    for letter, prefix in prefixes(letters).items():
        difference_ms = known_ms[letter] - known_ms[baseline]
        table[f"{prefix}difference_ms"] = difference_ms
        sizes[letter] = difference_ms
        if normalize:
            change = share_of_best[letter] - share_of_best[baseline]
            table[f"{prefix}difference_by_roofline"] = change
            sizes[letter] = change * best_ms[baseline]
    if normalize:
        table = table.join(share_of_best.add_suffix("_lost_by_roofline"))
    largest = pd.DataFrame(sizes).abs().max(axis=1).fillna(0.0)
    order = largest.sort_values(ascending=False, kind="stable").index
    return table.loc[order].rename_axis(_KEYS).reset_index()


def _side_by_side(
    lost: Sequence[pd.DataFrame], letters: Sequence[str], column: str
) -> pd.DataFrame:
    """Return a column of all traces; NaN where a trace lacks a row."""
    columns = [table[column] for table in lost]
    return pd.concat(columns, axis=1, keys=list(letters), sort=False)


def lost_by_roofline(lost: Sequence[pd.DataFrame], letters: Sequence[str]) -> str:
    """Return how much longer than its own device's best case each trace takes, a sentence."""
    texts = []
    for letter, table in zip(letters, lost, strict=True):
        best_ms = table["roofline_ms"].sum()
        if best_ms > 0:
            texts.append(f"{letter} loses {table['time_lost_ms'].sum() / best_ms:.2f}")
    return (
        f"{' and '.join(texts)} times the roofline time of its own device, where that "
        "is known."
    )
