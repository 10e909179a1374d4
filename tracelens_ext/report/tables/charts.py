"""What a chart shows: the request, and the small table that is drawn.

A chart sums the values of its table by label, so that it stays right where a label has several
rows (a category under many operations).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tracelens_ext.lazy import pd

MOST_SERIES = 12  # colours that an eye can tell apart


@dataclass(frozen=True)
class Chart:
    """A chart of one table of the workbook."""

    title: str  #: what it shows; the unit of the values is added when it is not there
    sheet: str  #: the name of the table
    label_column: str  #: the column whose texts name the bars
    value_column: str  #: the column of numbers, summed by label (and series)
    #: `bar`: a horizontal bar a label, the longest first. `stacked`: with a `series_column` a
    #: horizontal bar a label, made of a piece a series; without one a single bar, made of a piece a
    #: label. The other kinds are drawings of their own, on pages.
    kind: Literal[
        "bar", "stacked", "timeline", "iterations", "roofline", "memory", "time_axis", "call_tree"
    ] = "bar"
    #: bars to show; the others are summed into one more, which says how many they are
    top: int = 25
    series_column: str | None = None  #: the column whose texts name the pieces of stacked bars
    #: labels to show, in this order, whatever else the table holds; with a `series_column` they are
    #: series. Empty: all, by value.
    only: tuple[str, ...] = ()
    #: which of the outputs that have charts have this one
    on: Literal["both", "workbook", "page"] = "both"
    #: sheets whose charts say the same; a page with one of them goes without this chart
    unless: tuple[str, ...] = ()
    #: makes the table that is drawn from the sheet's
    prepare: Callable[[pd.DataFrame], pd.DataFrame] | None = None

    @property
    def part(self) -> str:
        """What the chart is called where it could not be computed."""
        return f"The chart “{self.title}”"

    def prepared(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The table that is drawn, of the sheet's."""
        return frame if self.prepare is None else self.prepare(frame)

    def fits(self, frame: pd.DataFrame) -> bool:
        """Whether the sheet's table has rows, and the columns that the chart needs."""
        needed = {self.label_column, self.value_column, self.series_column} - {None}
        return len(frame) > 0 and needed <= set(self.prepared(frame).columns)


def charted(sheets: Mapping[str, pd.DataFrame], chart: Chart) -> pd.DataFrame:
    """The sheet that a chart is of."""
    if chart.sheet not in sheets:
        raise ValueError(f"the chart {chart.title!r} needs the sheet {chart.sheet!r}")
    return sheets[chart.sheet]


def chart_table(frame: pd.DataFrame, chart: Chart) -> pd.DataFrame:
    """Sum what a chart shows.

    Gives a row a bar and a column a series, labels in the index, sorted by sum, the largest first;
    empty when there is no number other than zero. What is too much for the chart is summed in a
    last row or column, `(12 others)`.
    """
    frame = chart.prepared(frame)
    label_codes, labels = _coded_texts(frame, chart.label_column, chart)
    series_codes = np.zeros_like(label_codes)
    series = [chart.value_column]
    if chart.series_column is not None:
        series_codes, series = _coded_texts(frame, chart.series_column, chart)
    elif chart.kind == "stacked":
        series_codes, series, label_codes, labels = label_codes, labels, series_codes, [""]
    values = pd.to_numeric(_only_column(frame, chart.value_column, chart), errors="coerce")
    numbers = values.to_numpy(dtype=np.float64, na_value=0.0)
    numbers = np.where(np.isfinite(numbers), numbers, 0.0)
    bars = len(labels)
    cells = np.bincount(series_codes * bars + label_codes, numbers, bars * len(series))
    sums: npt.NDArray[np.float64] = cells.astype(np.float64).reshape(len(series), bars)
    of_series = chart.series_column is not None or chart.kind == "stacked"
    series, sums = ranked(series, sums, chart.only if of_series else (), MOST_SERIES)
    labels, sums = ranked(labels, sums.T, () if of_series else chart.only, chart.top)
    # Arrow, where pandas keeps texts in it, refuses half characters: so these are no `str`.
    rows, columns = (pd.Index(texts, dtype=object) for texts in (labels, series))
    return pd.DataFrame(sums, index=rows, columns=columns)


def _coded_texts(
    frame: pd.DataFrame, name: str, chart: Chart
) -> tuple[npt.NDArray[np.intp], list[str]]:
    """Give a column as a number a row and the distinct texts, `(none)` where it is empty."""
    column = _only_column(frame, name, chart)
    shown = zip(column.tolist(), column.isna().tolist(), strict=True)
    texts = ["(none)" if empty else str(value) for value, empty in shown]
    codes, uniques = pd.factorize(np.array(texts, dtype=object))
    return codes, uniques.tolist()


def _only_column(frame: pd.DataFrame, name: str, chart: Chart) -> pd.Series:
    columns = list(frame.columns)  # of several levels a frame says that it has those of the first
    if name not in columns:
        raise ValueError(f"the chart {chart.title!r} needs the column {name!r} of {chart.sheet!r}")
    return frame.iloc[:, columns.index(name)]


def ranked(
    names: list[str], sums: npt.NDArray[np.float64], only: Sequence[str], most: int
) -> tuple[list[str], npt.NDArray[np.float64]]:
    """Choose and sort the rows of a matrix: as asked, else the largest sums first.

    Rows of zeros are left out; those beyond `most` are summed in one row.
    """
    by_sum = np.argsort(-np.abs(sums.sum(axis=1)), kind="stable").tolist()
    order = [names.index(name) for name in only if name in names] if only else by_sum
    order = [place for place in order if sums[place].any()]
    if len(order) <= most + 1:  # one row more is shown rather than called "1 others"
        return [names[place] for place in order], sums[order]
    rest = order[most:]
    chosen = [*(names[place] for place in order[:most]), f"({len(rest):,} others)"]
    return chosen, np.vstack([sums[order[:most]], sums[rest].sum(axis=0)])
