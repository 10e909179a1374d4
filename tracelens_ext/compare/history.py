"""Compares the figures of a trace with the medians of earlier traces, its history."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens_ext.compare.comparison import Comparison
from tracelens_ext.compare.measurement import KEYS
from tracelens_ext.compare.notes import time_basis
from tracelens_ext.lazy import pd
from tracelens_ext.report.report import Report
from tracelens_ext.trace import Float64Array

_TITLE = "GPU performance compared with its history"
_DESCRIPTIONS = {
    "history": "Each value compared with the median of the values before it"
}
#: The largest rounding error of a time, ms.
_ROUNDING_MS = 1e-6
#: Figures that are more than this many median absolute deviations off count as far.
_FAR_DEVIATIONS = 3
#: How many far figures the verdict names.
_NAMED_FIGURES = 3


class _FigureTimes(NamedTuple):
    """The times of the figures of a table in all traces."""

    table: str
    figures: list[str]  #: the names of the figures, (k,)
    ms: Float64Array  #: (k, t)


def history_table(comparison: Comparison) -> pd.DataFrame:
    """Return a row for each figure: its median and deviation, and its value in the last trace.

    The columns are `table`, `figure`, `median_ms`, `mad_ms` (the median absolute deviation),
    `time_ms`, `difference_ms` (from the median) and `difference_mads` (the difference in median
    absolute deviations; empty if the history does not vary). The farthest figures come first.
    """
    parts = _figure_times(comparison)
    times = np.concatenate([part.ms for part in parts])
    earlier = times[:, :-1]
    last = times[:, -1]
    median = np.median(earlier, axis=1)
    deviation = np.median(np.abs(earlier - median[:, None]), axis=1)
    difference = last - median
    varies = deviation > 0
    no_number = np.full(len(deviation), np.nan)
    difference_mads = np.divide(difference, deviation, out=no_number, where=varies)
    table = pd.DataFrame(
        {
            "table": [part.table for part in parts for _ in part.figures],
            "figure": [figure for part in parts for figure in part.figures],
            "median_ms": median,
            "mad_ms": deviation,
            "time_ms": last,
            "difference_ms": difference,
            "difference_mads": difference_mads,
        }
    )
    # A figure that never varied before is infinitely far off as soon as it changes.
    distance_of_constant = np.where(difference == 0, 0.0, np.inf)
    distance = np.where(varies, np.abs(difference_mads), distance_of_constant)
    order = np.lexsort((-np.abs(difference), -distance))
    return table.iloc[order].reset_index(drop=True)


def _figure_times(comparison: Comparison) -> list[_FigureTimes]:
    """Return the times of all figures of the tables, and of findings if they are known."""
    parts = []
    for table in KEYS:
        aligned = comparison.aligned.get(table)
        if aligned is not None:
            parts.append(
                _FigureTimes(
                    table=table, figures=aligned.names, ms=comparison.times_ms(table)
                )
            )
    if comparison.savings is not None:
        ids, values = comparison.savings
        parts.append(
            _FigureTimes(
                table="findings", figures=ids, ms=np.nan_to_num(values[..., 0])
            )
        )
    return parts


def history_report(comparison: Comparison) -> Report:
    """Return the comparison with a history as a report."""
    table = history_table(comparison)
    earlier_count = len(comparison.measurements) - 1
    text = _verdict_text(table, earlier_count=earlier_count)
    labels = comparison.letters[:-1] + ["Trace"]
    facts: list[tuple[str, object]] = [("Verdict", text)]
    for label, measurement in zip(labels, comparison.measurements, strict=True):
        facts.append((label, measurement.path))
    facts.append(("Times", time_basis(comparison)))
    return Report(
        title=_TITLE,
        sheets={"history": table},
        facts=facts,
        notes=list(comparison.failures.messages),
        descriptions=_DESCRIPTIONS,
        members={"unit": comparison.unit_facts, "verdict": {"text": text}},
    )


def _verdict_text(table: pd.DataFrame, earlier_count: int) -> str:
    """Return a sentence with the number of figures that are far off, and the farthest of them."""
    limit_ms = _FAR_DEVIATIONS * table["mad_ms"] + _ROUNDING_MS
    far_figures = table[table["difference_ms"].abs() > limit_ms]
    is_named = far_figures["table"].isin(["timeline", "categories"])
    named_figures = far_figures[is_named].head(_NAMED_FIGURES)
    texts = [
        f"{row['figure']} {row['difference_ms']:+,.3f} ms"
        for row in named_figures.to_dict("records")
    ]
    text = (
        f"Of {len(table):,} values, {len(far_figures):,} are more than "
        f"{_FAR_DEVIATIONS} MAD from the median of {earlier_count} earlier ones"
    )
    if texts:
        text = f"{text}: {', '.join(texts)}"
    return f"{text}."
