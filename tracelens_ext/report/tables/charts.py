"""The declaration of a chart, and the small table of sums that is drawn for it.

A chart sums the values of its table by label, because a label may have several rows (such as a
category that occurs below many operations).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tracelens_ext.lazy import pd

MOST_SERIES = 12  # people can distinguish about this many colors
#: The label of rows whose text is missing.
_NO_LABEL = "(none)"

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Chart:
    """A chart of one table of a report."""

    #: what the chart shows; the unit of the values is added if it is missing
    title: str
    sheet: str  #: the name of the table
    label_column: str  #: the column of texts that name the bars
    value_column: str  #: the column of numbers, which are summed by label (and series)
    #: `bar` has a horizontal bar for each label, the longest first. `stacked` divides the bar of
    #: each label into a piece for each series or, without a `series_column`, a single bar into a
    #: piece for each label. The other kinds are special drawings on HTML pages.
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
    #: the number of bars; one more bar is the sum of all others and shows how many these are
    top: int = 25
    #: the column of texts that name the pieces of stacked bars
    series_column: str | None = None
    #: the labels (with a `series_column`, the series) to show, in this order; empty for all of
    #: them, the largest first
    only: tuple[str, ...] = ()
    #: True if bars show their share of the sum of all bars; False if that sum has no meaning, as
    #: for traces side by side
    has_shares: bool = True
    #: the outputs that have the chart
    on: Literal["both", "workbook", "page"] = "both"
    #: tables whose charts show the same; an HTML page with one of them leaves this chart out
    unless: tuple[str, ...] = ()
    #: returns the table to draw, given the table of the report; None to draw that one
    prepare: Callable[[pd.DataFrame], pd.DataFrame] | None = None

    @property
    def part(self) -> str:
        """The name of the chart in a note that it could not be computed."""
        return f"The chart “{self.title}”"

    def prepared(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the table to draw, given the table of the report."""
        if self.prepare is None:
            return frame
        return self.prepare(frame)

    def fits(self, frame: pd.DataFrame) -> bool:
        """Return True if the table has rows, and the columns that the chart needs."""
        if not len(frame):
            return False
        needed = {self.label_column, self.value_column}
        if self.series_column is not None:
            needed.add(self.series_column)
        columns = set(self.prepared(frame).columns)
        return needed <= columns


@dataclass(frozen=True)
class CodedTexts:
    """A column of texts as codes."""

    codes: npt.NDArray[np.intp]  #: index into `texts` of each row
    texts: list[str]  #: the distinct texts


@dataclass(frozen=True)
class NamedRows:
    """A matrix whose rows have names."""

    names: list[str]  #: the name of each row
    values: Matrix  #: the matrix


def charted(sheets: Mapping[str, pd.DataFrame], chart: Chart) -> pd.DataFrame:
    """Return the table of a chart.

    Raises:
        ValueError: the report lacks the table.
    """
    if chart.sheet not in sheets:
        raise ValueError(f"the chart {chart.title!r} needs the sheet {chart.sheet!r}")
    return sheets[chart.sheet]


def chart_table(frame: pd.DataFrame, chart: Chart) -> pd.DataFrame:
    """Return the sums that a chart shows.

    Returns:
        A row for each bar and a column for each series, both sorted by sum, the largest first, with
        the labels in the index. The last row or column, such as `(12 others)`, is the sum of what
        is too much for the chart. The table is empty if all numbers are zero.

    Raises:
        ValueError: a column that the chart needs is missing.
    """
    frame = chart.prepared(frame)
    labels = _coded_texts(frame, chart.label_column, chart)
    one_code = np.zeros_like(labels.codes)  # all rows have the same text
    if chart.series_column is not None:
        series = _coded_texts(frame, chart.series_column, chart)
    elif chart.kind == "stacked":  # one bar with a piece for each label
        series = labels
        labels = CodedTexts(one_code, [""])
    else:
        series = CodedTexts(one_code, [chart.value_column])
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
    # The dtype `str` may store texts in Arrow, which rejects lone surrogates; `object` does not.
    index = pd.Index(by_label.names, dtype=object)
    columns = pd.Index(by_series.names, dtype=object)
    return pd.DataFrame(by_label.values, index=index, columns=columns)


def _numbers(frame: pd.DataFrame, chart: Chart) -> Matrix:
    """Return the values of a chart, with 0 instead of everything but finite numbers."""
    column = _only_column(frame, chart.value_column, chart)
    values = pd.to_numeric(column, errors="coerce")
    numbers = values.to_numpy(dtype=np.float64, na_value=0.0)
    return np.where(np.isfinite(numbers), numbers, 0.0)


def _sums(numbers: Matrix, labels: CodedTexts, series: CodedTexts) -> Matrix:
    """Return the sum of numbers by series (rows) and label (columns)."""
    label_count = len(labels.texts)
    series_count = len(series.texts)
    # Each row adds to the cell of its series and label, in a flat matrix.
    cell = series.codes * label_count + labels.codes
    sums = np.bincount(cell, numbers, label_count * series_count)
    return sums.astype(np.float64).reshape(series_count, label_count)


def _coded_texts(frame: pd.DataFrame, name: str, chart: Chart) -> CodedTexts:
    """Return a column as texts; missing values become `(none)`."""
    column = _only_column(frame, name, chart)
    texts = []
    for value, is_empty in zip(column.tolist(), column.isna().tolist(), strict=True):
        texts.append(_NO_LABEL if is_empty else str(value))
    codes, uniques = pd.factorize(np.array(texts, dtype=object))
    return CodedTexts(codes, uniques.tolist())


def _only_column(frame: pd.DataFrame, name: str, chart: Chart) -> pd.Series:
    """Return the column with exactly this name; of several, the first."""
    # `name in frame` would also find the first level of a column with several levels.
    columns = list(frame.columns)
    if name not in columns:
        raise ValueError(
            f"the chart {chart.title!r} needs the column {name!r} of {chart.sheet!r}"
        )
    return frame.iloc[:, columns.index(name)]


def ranked(rows: NamedRows, only: Sequence[str], most: int) -> NamedRows:
    """Choose and sort the rows of a matrix.

    Rows of zeros are left out. The rows after the first `most` are summed in one row.

    Args:
        rows: the rows.
        only: the names of the rows to choose, in this order; empty for all, the largest sum first.
        most: the number of rows that stay separate.
    """
    if only:
        order = [rows.names.index(name) for name in only if name in rows.names]
    else:
        sizes = np.abs(rows.values.sum(axis=1))
        order = np.argsort(-sizes, kind="stable").tolist()
    order = [row for row in order if rows.values[row].any()]
    if len(order) <= most + 1:  # instead of a row "(1 others)", show the row itself
        return NamedRows(
            names=[rows.names[row] for row in order], values=rows.values[order]
        )
    chosen = order[:most]
    others = order[most:]
    names = [rows.names[row] for row in chosen]
    names.append(f"({len(others):,} others)")
    sum_of_others = rows.values[others].sum(axis=0)
    return NamedRows(names, np.vstack([rows.values[chosen], sum_of_others]))
