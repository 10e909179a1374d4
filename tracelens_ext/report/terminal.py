"""Show a table in a terminal: numbers whole, names cut, nothing that a name could do to a screen.

rich folds or cuts any column when a table is too wide. So the widths are chosen here: numbers
first, then the texts share what is left; columns that do not fit are named below the table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.short_names import cells_of, cut_middle, told_apart
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

#: Cells of the longest text in a table, or of the longest name in a line.
LONGEST_NAME = 80
_GAP = 2  # blanks between columns
_TEXT_AT_LEAST = 14  # a name cut shorter tells little; columns are left out before that
_NAME_WIDTH = 20  # of the first column, as long as there are columns that do not fit
_NAME_AT_LEAST = 8  # of the first column, which stays in any case
_FOLDED_AT_LEAST = 8  # of a folded header, which would else be a tower of words
_NAMED = 8  # of the columns that do not fit; of more the number is said
#: The unit of a time or a size in a column's name; `gb_s` has none.
_UNIT = re.compile(r"(?<![A-Za-zµμ/])(?:ns|us|µs|μs|ms|bytes|kB|MB|GB)(?![A-Za-zµμ/])")
_LEAST_SHOWN = 0.0005  # of a number with three decimals
_HEADER_BREAK = re.compile(r"(?<=[_ ])")
#: Controls, what changes the direction of writing, what is invisible, and half characters.
UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


@dataclass(frozen=True, eq=False)
class _Column:
    """A column as texts."""

    header: str  #: its name, safe to show
    cells: list[str]  #: what is shown, a text a row, safe but not yet cut
    is_number: bool  #: right-aligned and never cut
    width: int  #: the widest cell
    stays: bool  #: it is not left out before all that do not

    def header_lines(self, *, folded: bool) -> list[str]:
        """The header broken after blanks and underscores into lines about as wide as the cells."""
        if not folded:
            return [self.header]
        lines = [""]
        for part in _HEADER_BREAK.split(self.header):
            width = cells_of((lines[-1] + part).rstrip())
            if lines[-1] and width > max(self.width, _FOLDED_AT_LEAST):
                lines.append("")
            lines[-1] += part
        return [line.rstrip(" ") for line in lines]


@dataclass(frozen=True)
class FrameTable:
    """A rich renderable of a DataFrame that fits the width it is given.

    Made by `frame_table`. Rendered, it keeps every number whole, cuts texts in the middle with
    `…`, different ones differently, and says below the table what is not shown.
    """

    _columns: Sequence[_Column]
    _title: str
    _rows: int  #: of the whole table
    _name_width: int

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        """Lay the table out for the width at hand."""
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
        if len(left_out) > _NAMED:
            left_out[_NAMED:] = [f"{len(left_out) - _NAMED} more columns"]
        if left_out:
            yield Text(
                plain("not shown (terminal too narrow): " + ", ".join(left_out)),
                style="dim",
            )

    def __rich_measure__(
        self, console: Console, options: ConsoleOptions
    ) -> Measurement:
        """Take all the width there is: names use it."""
        from rich.measure import Measurement

        del console
        return Measurement(min(_NAME_AT_LEAST, options.max_width), options.max_width)


def frame_table(
    frame: pd.DataFrame,
    *,
    title: str = "",
    columns: Sequence[str] | None = None,
    rows: int | None = None,
    name_width: int = _NAME_WIDTH,
    keep: Sequence[str] = (),
    fit_units: bool = True,
) -> FrameTable:
    r"""Make a table for the terminal.

    The unit of a time or a size is the one that fits the column's largest. In texts rich markup
    means nothing, and control characters are shown as escapes (`\x1b`).

    `columns`: those to show, in this order, if they are there. When not all fit, the last are left
    out first, those of `keep` at last; a first column of texts stays. `rows`: how many to show.
    `fit_units`: whether units may be others than those of the columns' names.
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
    """Show the characters that could act on a terminal, or deceive its reader, as escapes."""
    return UNSAFE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return match.group(0).encode("unicode_escape").decode()


def name_text(name: str) -> str:
    """Show a name as `safe_text` does; one of nothing but blanks as `(no name)`."""
    return safe_text(name) if name.strip() else NO_NAME


def _plain(text: str, *, ascii_only: bool) -> str:
    """Spell a text for a terminal that knows ASCII only."""
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
    width = max(map(cells_of, cells), default=0)
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
    """Return a column of times or sizes in the unit that shows its largest best, named by it."""
    unit_names = list(_UNIT.finditer(header))
    unit = unit_of(header)
    is_exact = series.dtype.kind != "f" and unit.quantity is not Quantity.BYTES
    if not unit_names or is_exact or unit.quantity is Quantity.COUNT:
        return series
    sizes = series.dropna().abs()
    largest = float(sizes[sizes < float("inf")].max() or 0.0)
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
    """Format the numbers of a column alike, so that their points line up."""
    if series.dtype.kind in "iu":  # exact, which doubles are not
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
    """The columns that fit, and how wide each is."""

    columns: Sequence[_Column]
    widths: Sequence[int]
    folded: bool  #: the headers take several lines


def _layout(columns: Sequence[_Column], width: int, name_width: int) -> _Layout:
    """Choose which columns fit, and how wide each is.

    A wider terminal never shows less of a text: as long as columns do not fit, texts get what they
    need and no more, and headers stay folded until every text is shown whole.
    """
    columns_shown = list(columns)
    while columns_shown:
        for folded in (False, True):
            widths = _needed(columns_shown, width, name_width, folded=folded)
            free = width - _GAP * (len(columns_shown) - 1) - sum(widths)
            if free < 0:
                continue
            if len(columns_shown) == len(columns):
                _share(free, columns_shown, widths)
            return _Layout(columns=columns_shown, widths=widths, folded=folded)
        if len(columns_shown) == 1 and not columns_shown[0].is_number:
            return _Layout(
                columns_shown, [max(1, min(width, columns_shown[0].width))], folded=True
            )
        del columns_shown[_first_to_go(columns_shown)]
    return _Layout(columns=[], widths=[], folded=False)


def _share(free: int, columns: Sequence[_Column], widths: list[int]) -> None:
    """Add what is free to the widths; the text that lacks least is satisfied first."""
    lacking = [
        column.width - width for column, width in zip(columns, widths, strict=True)
    ]
    by_lack = sorted(range(len(columns)), key=lambda position: lacking[position])
    for turn, position in enumerate(by_lack):
        fair_share = free // (len(columns) - turn)
        more = min(max(lacking[position], 0), fair_share)
        widths[position] += more
        free -= more


def _first_to_go(columns: Sequence[_Column]) -> int:
    """Return the position of the column to leave out: the last, but for those that stay."""
    for position in range(len(columns) - 1, 0, -1):
        if not columns[position].stays:
            return position
    return len(columns) - 1


def _needed(
    columns: Sequence[_Column], width: int, name_width: int, *, folded: bool
) -> list[int]:
    """The least that each column is to have: numbers, and texts below unfolded headers, all."""
    needed = []
    for position, column in enumerate(columns):
        at_least = _TEXT_AT_LEAST
        if position == 0:
            half_of_width = max(_NAME_AT_LEAST, width // 2)
            at_least = min(name_width, half_of_width)
        cells = column.width
        if folded and not column.is_number:
            cells = min(column.width, at_least)
        headers = [cells_of(line) for line in column.header_lines(folded=folded)]
        needed.append(max(cells, *headers))
    return needed


def _table(layout: _Layout, *, ascii_only: bool) -> Table:
    """Build the rich table; every cell has its final text, so that rich has nothing to fit."""
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
        side: Literal["left", "right"] = "right" if column.is_number else "left"
        table.add_column(
            header, justify=side, width=width, no_wrap=True, vertical="bottom"
        )
        texts.append(told_apart([plain(text) for text in column.cells], width, mark))
    for cells in zip(*texts, strict=True):
        table.add_row(*[Text(text) for text in cells])
    return table
