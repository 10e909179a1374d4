"""Show a table in a terminal: numbers are complete, names are cut, and no name can act on it.

rich wraps or cuts any column of a table that is too wide. So the widths are chosen here: numbers
get what they need, texts share the rest, and columns that do not fit are named below the table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.short_names import (
    cell_count,
    cut_middle,
    distinct_short_texts,
)
from tracelens_ext.report.tables.units import (
    Quantity,
    Shown,
    fitting_unit,
    header_text,
    is_numeric,
    unit_of,
)
from tracelens_ext.text import NO_NAME, counted

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.measure import Measurement
    from rich.table import Table

# Widths are in terminal cells.
#: The largest width of a text in a table, or of a name in a line.
LONGEST_NAME = 80
_GAP = 2  # spaces between columns
_LEAST_TEXT_WIDTH = 14  # columns are left out before a text is cut to less
_FIRST_COLUMN_WIDTH = 20  # of the first column, as long as other columns do not fit
_LEAST_FIRST_COLUMN_WIDTH = 8  # of the first column, which is never left out
_LEAST_HEADER_WIDTH = 8  # a header that is wrapped to less would have too many lines
#: The most columns that do not fit and are named. Further ones are counted.
_MOST_NAMED = 8
#: The unit of a time or a size in a column's name; `gb_s` has none.
_UNIT = re.compile(r"(?<![A-Za-zµμ/])(?:ns|us|µs|μs|ms|bytes|kB|MB|GB)(?![A-Za-zµμ/])")
_LEAST_SHOWN = 0.0005  # the smallest number that three decimals do not show as 0.000
_HEADER_BREAK = re.compile(r"(?<=[_ ])")
#: Control characters, characters that change the direction of writing, invisible characters, and
#: lone surrogates.
UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


@dataclass(frozen=True, eq=False)
class _Column:
    """A column as texts."""

    header: str  #: the name of the column, safe to show
    cells: list[str]  #: the text of each row, safe to show but not cut yet
    is_number: bool  #: True for a column that is right-aligned and never cut
    width: int  #: the width of the widest cell
    stays: bool  #: True for a column that is left out only after all that do not stay

    def header_lines(self, *, folded: bool) -> list[str]:
        """Return the header, wrapped after spaces and underscores to the width of the cells."""
        if not folded:
            return [self.header]
        lines = [""]
        for part in _HEADER_BREAK.split(self.header):
            width = cell_count((lines[-1] + part).rstrip())
            if lines[-1] and width > max(self.width, _LEAST_HEADER_WIDTH):
                lines.append("")
            lines[-1] += part
        return [line.rstrip(" ") for line in lines]


@dataclass(frozen=True)
class FrameTable:
    """A rich renderable of a DataFrame that fits any width; `frame_table` creates it.

    It shows all digits of numbers, and cuts texts in the middle with `…`, so that different texts
    stay different. A line below the table tells what is not shown.
    """

    _columns: Sequence[_Column]
    _title: str
    _rows: int  #: the number of rows of the whole table
    #: the width of the first column, as long as other columns do not fit
    _name_width: int

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        """Lay out the table for the width of the console."""
        from rich.text import Text

        del console
        plain = partial(_plain, ascii_only=options.ascii_only)
        if self._title:
            yield Text(plain(self._title), style="bold", no_wrap=True)
        layout = _layout(
            columns=self._columns, width=options.max_width, name_width=self._name_width
        )
        yield _table(layout, ascii_only=options.ascii_only)
        rows_shown = 0
        if self._columns:
            rows_shown = len(self._columns[0].cells)
        rows_missing = self._rows - rows_shown
        if rows_missing:
            missing = counted(rows_missing, "more row")
            yield Text(f"{missing} not shown", style="dim")
        left_out = [
            column.header for column in self._columns if column not in layout.columns
        ]
        if len(left_out) > _MOST_NAMED:
            more = len(left_out) - _MOST_NAMED
            left_out[_MOST_NAMED:] = [f"{more} more columns"]
        if left_out:
            yield Text(
                plain("not shown (terminal too narrow): " + ", ".join(left_out)),
                style="dim",
            )

    def __rich_measure__(
        self, console: Console, options: ConsoleOptions
    ) -> Measurement:
        """Ask for all of the available width, which names use."""
        from rich.measure import Measurement

        del console
        return Measurement(
            min(_LEAST_FIRST_COLUMN_WIDTH, options.max_width), options.max_width
        )


def frame_table(
    frame: pd.DataFrame,
    *,
    title: str = "",
    columns: Sequence[str] | None = None,
    rows: int | None = None,
    name_width: int = _FIRST_COLUMN_WIDTH,
    keep: Sequence[str] = (),
    fit_units: bool = True,
) -> FrameTable:
    r"""Return a table for the terminal.

    Rich markup in texts has no effect, and control characters are shown as escapes (`\x1b`). If not
    all columns fit, the last ones are left out first; a first column of texts always stays.

    Args:
        frame: the table.
        title: the heading.
        columns: the columns to show, in this order, as far as the table has them; None for all.
        rows: the number of rows to show; None for all.
        name_width: the width of the first column, as long as other columns do not fit.
        keep: the columns that are left out only after all others.
        fit_units: True to show times and sizes in the unit that fits the largest value of a column,
            instead of the unit in the name of the column.
    """
    names = list(frame.columns)
    positions = list(range(len(names)))
    if columns is not None:
        positions = [names.index(name) for name in columns if name in names]
    columns_shown = []
    for position in positions:
        stays = names[position] in keep
        series = frame.iloc[:rows, position]
        columns_shown.append(_column(series, stays=stays, fit_units=fit_units))
    return FrameTable(
        _columns=columns_shown, _title=title, _rows=len(frame), _name_width=name_width
    )


def safe_text(text: str) -> str:
    """Replace characters that could act on a terminal, or deceive its reader, with escapes."""
    return UNSAFE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return match.group(0).encode("unicode_escape").decode()


def name_text(name: str) -> str:
    """Return a name as `safe_text` does, and `(no name)` for a blank one."""
    return safe_text(name) if name.strip() else NO_NAME


def _plain(text: str, *, ascii_only: bool) -> str:
    """Return a safe text, in ASCII if the terminal has no other characters."""
    text = safe_text(text)
    if not ascii_only:
        return text
    spelled = text.replace("µ", "u").replace("…", "...")
    encoded = spelled.encode("ascii", "backslashreplace")
    return encoded.decode()


def _column(series: pd.Series, *, stays: bool, fit_units: bool) -> _Column:
    """Return a column with its cells as texts."""
    header = header_text(series.name)
    is_number = is_numeric(series)
    if is_number:
        if fit_units:
            series = _in_fitting_unit(header, series)
            header = header_text(series.name)
        cells = _number_cells(series, header)
    else:
        cells = []
        for value, is_missing in zip(
            series.tolist(), series.isna().tolist(), strict=True
        ):
            cells.append("" if is_missing else safe_text(str(value)))
    width = max(map(cell_count, cells), default=0)
    if not is_number:
        width = min(width, LONGEST_NAME)
    return _Column(
        header=safe_text(header),
        cells=cells,
        is_number=is_number,
        width=width,
        stays=stays,
    )


def _in_fitting_unit(header: str, series: pd.Series) -> pd.Series:
    """Return a column of times or sizes in the unit that fits its largest value, renamed to it."""
    unit_names = list(_UNIT.finditer(header))
    unit = unit_of(header)
    is_exact = series.dtype.kind != "f" and unit.quantity is not Quantity.BYTES
    if not unit_names or is_exact or unit.quantity is Quantity.COUNT:
        return series
    magnitudes = series.dropna().abs()
    largest = float(magnitudes[magnitudes < float("inf")].max() or 0.0)
    fitting = fitting_unit(unit.symbol, largest)
    if fitting.symbol == unit.symbol:
        return series
    start, end = unit_names[-1].span()
    symbol = fitting.symbol
    if header[start - 1 : start] == "_":
        symbol = symbol.replace("µ", "u")
    scaled = series * fitting.factor
    return scaled.rename(f"{header[:start]}{symbol}{header[end:]}")


def _number_cells(series: pd.Series, header: str) -> list[str]:
    """Return the numbers of a column as texts whose decimal points line up."""
    if series.dtype.kind in "iu":  # as doubles, large integers would not be exact
        exact = Shown(unit_of(header), fractions=False)
        texts = []
        for value, is_missing in zip(
            series.tolist(), series.isna().tolist(), strict=True
        ):
            texts.append("" if is_missing else exact.text(int(value)))
        return texts
    numbers = (
        series.astype(object).where(series.notna(), float("nan")).astype(float).tolist()
    )
    notation = Shown.of(header, numbers)
    is_time = notation.unit.quantity is Quantity.TIME and not notation.unit.signed
    has_tiny_numbers = is_time and notation.largest >= 1
    texts = []
    for number in numbers:
        if has_tiny_numbers and 0 < number < _LEAST_SHOWN:
            texts.append("<0.001")
        else:
            texts.append(notation.text(number))
    return texts


@dataclass(frozen=True)
class _Layout:
    """The columns that fit, and the width of each."""

    columns: Sequence[_Column]
    widths: Sequence[int]
    folded: bool  #: True if headers are wrapped to several lines


def _layout(columns: Sequence[_Column], width: int, name_width: int) -> _Layout:
    """Choose the columns that fit, and the width of each.

    A wider terminal never shows less of a text. So texts get no more than their least width while
    columns do not fit, and headers stay wrapped until every text is complete.
    """
    columns_shown = list(columns)
    while columns_shown:
        for folded in (False, True):
            widths = _least_widths(columns_shown, width, name_width, folded=folded)
            free = width - _GAP * (len(columns_shown) - 1) - sum(widths)
            if free < 0:
                continue
            if len(columns_shown) == len(columns):
                _distribute(free, columns_shown, widths)
            return _Layout(columns=columns_shown, widths=widths, folded=folded)
        if len(columns_shown) == 1 and not columns_shown[0].is_number:
            only_width = max(1, min(width, columns_shown[0].width))
            return _Layout(columns=columns_shown, widths=[only_width], folded=True)
        del columns_shown[_first_to_go(columns_shown)]
    return _Layout(columns=[], widths=[], folded=False)


def _distribute(free: int, columns: Sequence[_Column], widths: list[int]) -> None:
    """Add free cells to the widths, in equal shares.

    The column that lacks the fewest cells comes first: what it does not need goes to the others.
    """
    missing = [
        column.width - width for column, width in zip(columns, widths, strict=True)
    ]
    fewest_first = sorted(range(len(columns)), key=lambda position: missing[position])
    for turn, position in enumerate(fewest_first):
        equal_share = free // (len(columns) - turn)
        added = min(max(missing[position], 0), equal_share)
        widths[position] += added
        free -= added


def _first_to_go(columns: Sequence[_Column]) -> int:
    """Return the position of the next column to leave out: the last one that does not stay."""
    for position in range(len(columns) - 1, 0, -1):
        if not columns[position].stays:
            return position
    return len(columns) - 1


def _least_widths(
    columns: Sequence[_Column], width: int, name_width: int, *, folded: bool
) -> list[int]:
    """Return the least width of each column.

    Columns of numbers get what they need. So do columns of texts if headers are not wrapped.
    """
    least_widths = []
    for position, column in enumerate(columns):
        least_text_width = _LEAST_TEXT_WIDTH
        if position == 0:
            half_of_width = max(_LEAST_FIRST_COLUMN_WIDTH, width // 2)
            least_text_width = min(name_width, half_of_width)
        content_width = column.width
        if folded and not column.is_number:
            content_width = min(column.width, least_text_width)
        header_widths = [
            cell_count(line) for line in column.header_lines(folded=folded)
        ]
        least_widths.append(max(content_width, *header_widths))
    return least_widths


def _table(layout: _Layout, *, ascii_only: bool) -> Table:
    """Return the rich table, whose cells have their final texts, so that rich does not cut any."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    style = box.SIMPLE_HEAD
    mark = "…"
    if ascii_only:
        style = box.ASCII2
        mark = "..."
    table = Table(
        box=style, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0)
    )
    plain = partial(_plain, ascii_only=ascii_only)
    texts = []
    for column, width in zip(layout.columns, layout.widths, strict=True):
        lines = [plain(line) for line in column.header_lines(folded=layout.folded)]
        header = Text("\n".join(cut_middle(line, width, mark) for line in lines))
        justify: Literal["left", "right"] = "right" if column.is_number else "left"
        table.add_column(
            header, justify=justify, width=width, no_wrap=True, vertical="bottom"
        )
        texts.append(
            distinct_short_texts([plain(text) for text in column.cells], width, mark)
        )
    for cells in zip(*texts, strict=True):
        table.add_row(*[Text(text) for text in cells])
    return table
