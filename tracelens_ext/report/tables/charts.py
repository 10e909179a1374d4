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

MOST_SERIES = 12  # colors that an eye can tell apart
_NO_LABEL = "(none)"

Matrix = npt.NDArray[np.float64]


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
        "bar",
        "stacked",
        "timeline",
        "iterations",
        "roofline",
        "memory",
        "timeline_bins",
        "call_tree",
        "idle_call_tree",
    ] = "bar"
    #: bars to show; the others are summed into one more, which says how many they are
    top: int = 25
    #: the column whose texts name the pieces of stacked bars
    series_column: str | None = None
    #: labels to show, in this order, whatever else the table holds; with a `series_column` they are
    #: series. Empty: all, by value.
    only: tuple[str, ...] = ()
    #: bars show their share of the sum of all; of traces side by side that sum is nothing
    has_shares: bool = True
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
        """Return the table that is drawn, given the one of the sheet."""
        if self.prepare is None:
            return frame
        return self.prepare(frame)

    def fits(self, frame: pd.DataFrame) -> bool:
        """Return whether the table of the sheet has rows, and the columns that the chart needs."""
        if not len(frame):
            return False
        needed = {self.label_column, self.value_column}
        if self.series_column is not None:
            needed.add(self.series_column)
        columns = set(self.prepared(frame).columns)
        return needed <= columns


@dataclass(frozen=True)
class CodedTexts:
    """A column of texts: the code of each row, and the text of each code."""

    codes: npt.NDArray[np.intp]
    texts: list[str]


@dataclass(frozen=True)
class NamedRows:
    """A matrix whose rows have names."""

    names: list[str]
    values: Matrix


def charted(sheets: Mapping[str, pd.DataFrame], chart: Chart) -> pd.DataFrame:
    """Return the sheet that a chart is of.

    Raises:
        ValueError: there is no such sheet.
    """
    if chart.sheet not in sheets:
        raise ValueError(f"the chart {chart.title!r} needs the sheet {chart.sheet!r}")
    return sheets[chart.sheet]


def chart_table(frame: pd.DataFrame, chart: Chart) -> pd.DataFrame:
    """Sum what a chart shows.

    Returns:
        A row a bar and a column a series, labels in the index, sorted by sum, the largest first;
        empty when there is no number other than zero. What is too much for the chart is summed in
        a last row or column, `(12 others)`.

    Raises:
        ValueError: a column that the chart needs is missing.
    """
    frame = chart.prepared(frame)
    labels = _coded_texts(frame, chart.label_column, chart)
    one_for_all = np.zeros_like(labels.codes)
    if chart.series_column is not None:
        series = _coded_texts(frame, chart.series_column, chart)
    elif chart.kind == "stacked":  # one bar, of a piece a label
        series = labels
        labels = CodedTexts(one_for_all, [""])
    else:
        series = CodedTexts(one_for_all, [chart.value_column])
    numbers = _numbers(frame, chart)
    sums = _sums(numbers, labels, series)
    has_several_series = chart.series_column is not None or chart.kind == "stacked"
    only_series: Sequence[str] = ()
    only_labels: Sequence[str] = chart.only
    if has_several_series:
        only_series = chart.only
        only_labels = ()
    by_series = ranked(NamedRows(series.texts, sums), only_series, MOST_SERIES)
    by_label = ranked(
        rows=NamedRows(names=labels.texts, values=by_series.values.T),
        only=only_labels,
        most=chart.top,
    )
    # Arrow, where pandas keeps texts in it, refuses half characters: so these are no `str`.
    index = pd.Index(by_label.names, dtype=object)
    columns = pd.Index(by_series.names, dtype=object)
    return pd.DataFrame(by_label.values, index=index, columns=columns)


def _numbers(frame: pd.DataFrame, chart: Chart) -> Matrix:
    """Return the values of a chart, zero where there is no finite number."""
    column = _only_column(frame, chart.value_column, chart)
    values = pd.to_numeric(column, errors="coerce")
    numbers = values.to_numpy(dtype=np.float64, na_value=0.0)
    return np.where(np.isfinite(numbers), numbers, 0.0)


def _sums(numbers: Matrix, labels: CodedTexts, series: CodedTexts) -> Matrix:
    """Return the sum of numbers by series (rows) and label (columns)."""
    bars = len(labels.texts)
    cells = series.codes * bars + labels.codes
    sums = np.bincount(cells, numbers, bars * len(series.texts))
    return sums.astype(np.float64).reshape(len(series.texts), bars)


def _coded_texts(frame: pd.DataFrame, name: str, chart: Chart) -> CodedTexts:
    """Return a column as texts, `(none)` where it is empty."""
    column = _only_column(frame, name, chart)
    texts = []
    for value, is_empty in zip(column.tolist(), column.isna().tolist(), strict=True):
        texts.append(_NO_LABEL if is_empty else str(value))
    codes, uniques = pd.factorize(np.array(texts, dtype=object))
    return CodedTexts(codes, uniques.tolist())


def _only_column(frame: pd.DataFrame, name: str, chart: Chart) -> pd.Series:
    # of several levels a frame says that it has those of the first
    columns = list(frame.columns)
    if name not in columns:
        raise ValueError(
            f"the chart {chart.title!r} needs the column {name!r} of {chart.sheet!r}"
        )
    place = columns.index(name)
    return frame.iloc[:, place]


def ranked(rows: NamedRows, only: Sequence[str], most: int) -> NamedRows:
    """Choose and sort the rows of a matrix.

    Rows of zeros are left out; those beyond `most` are summed in one row.

    Args:
        rows: the rows.
        only: the names of the rows to choose, in this order; all, the largest sums first, if empty.
        most: how many rows have one of their own.
    """
    if only:
        order = [rows.names.index(name) for name in only if name in rows.names]
    else:
        sizes = np.abs(rows.values.sum(axis=1))
        order = np.argsort(-sizes, kind="stable").tolist()
    order = [row for row in order if rows.values[row].any()]
    if len(order) <= most + 1:  # one row more is shown rather than called "1 others"
        return NamedRows(
            names=[rows.names[row] for row in order], values=rows.values[order]
        )
    chosen = order[:most]
    others = order[most:]
    names = [rows.names[row] for row in chosen]
    names.append(f"({len(others):,} others)")
    sum_of_others = rows.values[others].sum(axis=0)
    return NamedRows(names, np.vstack([rows.values[chosen], sum_of_others]))
