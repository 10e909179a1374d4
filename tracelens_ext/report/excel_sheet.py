"""The sheet of a table as the XML of one part: widths, frozen header, rows, filter, bars, printing.

Most sheets of a workbook are such sheets and all alike, so they are written from templates: two
hundred times as fast as from the objects that openpyxl keeps for all that a sheet can have. The
elements, in the order that they must have, are those of `CT_Worksheet` in ECMA-376, part 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens_ext.report import excel_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAIN_NAMESPACE = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"

_CELL_BYTES = 90  # of a cell's XML at most
_BAR_COLOUR = "FF9CC2E5"
_LOW_COLOUR, _ZERO_COLOUR, _HIGH_COLOUR = "FF63BE7B", "FFFFFFFF", "FFF8696B"

# Printed as wide as one page and as long as it takes; the first row stays where it is.
_BEFORE = (
    f'<worksheet xmlns="{MAIN_NAMESPACE}">'
    '<sheetPr><outlinePr summaryBelow="1" summaryRight="1" />'
    '<pageSetUpPr fitToPage="1" /></sheetPr>'
    '<dimension ref="A1:{last_cell}" />'
    '<sheetViews><sheetView workbookViewId="0">'
    '<pane ySplit="1" topLeftCell="A2" activePane="bottomLeft" state="frozen" />'
    '<selection pane="bottomLeft" activeCell="A1" sqref="A1" /></sheetView></sheetViews>'
    '<sheetFormatPr baseColWidth="8" defaultRowHeight="15" />'
)
_COLUMN = '<col width="{width:.16g}" customWidth="1" min="{number}" max="{number}" />'
_FILTER = '<autoFilter ref="A1:{last_cell}" />'
_CONDITION = (
    '<conditionalFormatting sqref="{cells}">'
    '<cfRule type="{kind}" priority="{priority}">{rule}</cfRule></conditionalFormatting>'
)
_BAR = (
    '<dataBar minLength="0" maxLength="100"><cfvo type="num" val="0" /><cfvo type="max" />'
    f'<color rgb="{_BAR_COLOUR}" /></dataBar>'
)
_COLOURS = (
    '<colorScale><cfvo type="min" /><cfvo type="num" val="0" /><cfvo type="max" />'
    f'<color rgb="{_LOW_COLOUR}" /><color rgb="{_ZERO_COLOUR}" /><color rgb="{_HIGH_COLOUR}" />'
    "</colorScale>"
)
_AFTER = (
    '<pageMargins left="0.75" right="0.75" top="1" bottom="1" header="0.5" footer="0.5" />'
    '<pageSetup orientation="landscape" fitToHeight="0" fitToWidth="1" /></worksheet>'
)


@dataclass(frozen=True)
class TableSheet:
    """A table and how it is shown.

    Attributes:
        columns: the columns of the table.
        rows: rows to write, without the header.
        styles: the formats of the cells, as the workbook counts them.
    """

    columns: Sequence[excel_rows.Column]
    rows: int
    styles: excel_rows.CellStyles

    @property
    def cells(self) -> str:
        """The range of all cells, as `A1:C9`."""
        return f"A1:{self._last_cell}"

    @property
    def bytes_at_most(self) -> int:
        """How long the XML may be, estimated not too low."""
        return (self.rows + 1) * len(self.columns) * _CELL_BYTES

    def xml(self, strings: excel_rows.SharedStrings) -> Iterator[str]:
        """Write the part, piece by piece.

        Args:
            strings: receives the texts.
        """
        yield _BEFORE.format(last_cell=self._last_cell) + self._widths()
        yield from excel_rows.sheet_data(self.columns, self.rows, self.styles, strings)
        if self.columns:
            yield _FILTER.format(last_cell=self._last_cell)
        yield self._bars() + _AFTER

    @property
    def _last_cell(self) -> str:
        return f"{excel_rows.column_letters(max(len(self.columns) - 1, 0))}{self.rows + 1}"

    def _widths(self) -> str:
        columns = "".join(
            _COLUMN.format(width=column.width, number=number)
            for number, column in enumerate(self.columns, start=1)
        )
        return f"<cols>{columns}</cols>" if columns else ""

    def _bars(self) -> str:
        """Bars behind percentages; colours instead where some are below zero."""
        shown = [
            (excel_rows.column_letters(place), column.lowest < 0)
            for place, column in enumerate(self.columns)
            if column.percent and self.rows
        ]
        to_last_row = "" if self.rows == 1 else f":{{letter}}{self.rows + 1}"
        return "".join(
            _CONDITION.format(
                cells=f"{letter}2" + to_last_row.format(letter=letter),
                priority=priority,
                kind="colorScale" if signed else "dataBar",
                rule=_COLOURS if signed else _BAR,
            )
            for priority, (letter, signed) in enumerate(shown, start=1)
        )
