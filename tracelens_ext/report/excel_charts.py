"""Draw charts on a sheet of a workbook, each with the table that it shows beside it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tracelens_ext.report import excel_text
from tracelens_ext.report.charts import MOST_SERIES
from tracelens_ext.report.excel_cells import cell_font, put_text
from tracelens_ext.report.units import unit_of

if TYPE_CHECKING:
    import pandas as pd
    from openpyxl.chart import BarChart
    from openpyxl.chart.label import DataLabelList
    from openpyxl.chart.text import RichText
    from openpyxl.worksheet.worksheet import Worksheet

    from tracelens_ext.report.charts import Chart
    from tracelens_ext.report.units import Unit

_LABEL_CHARACTERS = 48  # a longer label would leave no room for the bars
_CHART_COLUMNS = 12  # sheet columns under a chart, of the default width of 64 pixels
_WIDTH_CM = 20
_ROW_CM = 0.53  # the default row height of 20 pixels
_PAGE_ROWS, _PRINT_SCALE = 40, 85  # of a landscape page, A4 or Letter; in percent
_INK = "404040"
_GRID = "D9D9D9"
_OTHERS_COLOUR = "A6A6A6"
_COLOURS = (
    *("3B6FB6", "E08A2E", "3E9A5F", "C94F4F", "7D62B5", "8C6D4F"),
    *("D37AB0", "B8B03A", "3FA7B8", "1F3B64", "F2C14E", "6E8F2A"),
)


def draw_charts(sheet: Worksheet, charts: list[tuple[Chart, pd.DataFrame]]) -> None:
    """Draw charts below one another, each with its table at its right.

    Args:
        sheet: an empty sheet.
        charts: the charts with their tables, as `chart_table` gives them.
    """
    from openpyxl.utils import get_column_letter
    from openpyxl.worksheet.pagebreak import Break

    row = page_start = 1
    for chart, table in charts:
        unit = unit_of(chart.value_column)
        _write_table(sheet, row, table, unit, chart)
        bars, series = table.shape
        # Room for the title, the axis and the legend; a bar needs a little more than a line.
        legend_rows = math.ceil(series / 5) if series > 1 else 0
        chart_rows = max(12, 7 + math.ceil(1.1 * bars) + legend_rows)
        if row + chart_rows > page_start + _PAGE_ROWS:
            sheet.row_breaks.append(Break(id=row - 1))
            page_start = row
        drawing = _drawing(sheet, row, table, unit, chart)
        drawing.width, drawing.height = _WIDTH_CM, chart_rows * _ROW_CM
        sheet.add_chart(drawing, f"A{row}")
        row += max(chart_rows, bars + 2) + 2
    sheet.column_dimensions[get_column_letter(_CHART_COLUMNS + 1)].width = _LABEL_CHARACTERS
    sheet.sheet_view.showGridLines = False
    sheet.page_setup.orientation = "landscape"
    sheet.page_setup.scale = _PRINT_SCALE  # not fitted to the page: that ignores page breaks
    sheet.page_margins.top = sheet.page_margins.bottom = 0.5
    # Printed are the charts alone: their tables would make them small.
    sheet.print_area = f"A1:{get_column_letter(_CHART_COLUMNS)}{row}"


def _short(label: object) -> str:
    """Cut a label in the middle: the end of a kernel's name tells as much as its beginning."""
    text = excel_text.cleaned(" ".join(str(label).split()))
    if len(text) <= _LABEL_CHARACTERS:
        return text
    end = _LABEL_CHARACTERS // 3
    return f"{text[: _LABEL_CHARACTERS - end - 1]}…{text[-end:]}"


def _write_table(
    sheet: Worksheet, top_row: int, table: pd.DataFrame, unit: Unit, chart: Chart
) -> None:
    """Write the numbers behind a chart: header, then a row a bar."""
    from openpyxl.utils import get_column_letter

    first = _CHART_COLUMNS + 1
    put_text(sheet, top_row, first, _titled(chart, unit)).font = cell_font(bold=True)
    put_text(sheet, top_row + 1, first, chart.label_column).font = cell_font(bold=True, color=_INK)
    for place, name in enumerate(table.columns, first + 1):
        put_text(sheet, top_row + 1, place, _short(name)).font = cell_font(bold=True, color=_INK)
        sheet.column_dimensions[get_column_letter(place)].width = 14
    largest = float(table.to_numpy().max())
    number_format = unit.excel_format(largest=largest)
    for row, (label, values) in enumerate(
        zip(table.index, table.to_numpy().tolist(), strict=True), top_row + 2
    ):
        put_text(sheet, row, first, _short(label))
        for place, value in enumerate(values, first + 1):
            sheet.cell(row, place, value).number_format = number_format


def _drawing(
    sheet: Worksheet, top_row: int, table: pd.DataFrame, unit: Unit, chart: Chart
) -> BarChart:
    """Draw horizontal bars over a table written by `_write_table`."""
    from openpyxl.chart import BarChart, Reference
    from openpyxl.chart.marker import DataPoint

    bars, pieces = table.shape
    label_at, first, last = _CHART_COLUMNS + 1, top_row + 2, top_row + 1 + bars
    drawing = BarChart()
    drawing.type = "bar"
    drawing.title = _titled(chart, unit)
    drawing.gapWidth = 35
    data = Reference(
        sheet, min_col=label_at + 1, max_col=label_at + pieces, min_row=first - 1, max_row=last
    )
    drawing.add_data(data, titles_from_data=True)
    drawing.set_categories(Reference(sheet, min_col=label_at, min_row=first, max_row=last))
    stacked = chart.kind == "stacked"
    for place, series in enumerate(drawing.series):
        is_rest = pieces > MOST_SERIES and place == pieces - 1
        colour = _OTHERS_COLOUR if is_rest else _COLOURS[place % len(_COLOURS)]
        series.graphicalProperties.solidFill = colour
        series.graphicalProperties.line.solidFill = colour
        series.invertIfNegative = False
    largest = float(table.sum(axis=1).abs().max() if stacked else table.abs().to_numpy().max())
    axis_format = _axis_format(unit, largest)
    if stacked:
        drawing.grouping, drawing.overlap = "stacked", 100
    else:
        drawing.series[0].dLbls = _value_labels(axis_format)
        if str(table.index[-1]).endswith(" others)"):
            rest = DataPoint(idx=bars - 1)
            rest.graphicalProperties.solidFill = _OTHERS_COLOUR
            drawing.series[0].dPt.append(rest)
    if float(table.to_numpy().min()) >= 0:
        drawing.y_axis.scaling.min = 0  # a bar that starts elsewhere shows a wrong proportion
    _dress(drawing, axis_format, with_legend=pieces > 1)
    return drawing


def _dress(drawing: BarChart, axis_format: str, *, with_legend: bool) -> None:
    """Make title, axes and legend visible and readable."""
    from openpyxl.chart.axis import ChartLines
    from openpyxl.chart.shapes import GraphicalProperties

    if drawing.title is not None and drawing.title.tx is not None and drawing.title.tx.rich:
        drawing.title.overlay = False  # a title drawn over the bars hides them
        for paragraph in drawing.title.tx.rich.p:
            paragraph.pPr = _text(1300, bold=True).p[0].pPr
    for axis in (drawing.x_axis, drawing.y_axis):
        axis.delete = False  # openpyxl hides axes unless told otherwise
        axis.txPr = _text(900)
        axis.graphicalProperties = GraphicalProperties()
        axis.graphicalProperties.line.solidFill = _GRID
    drawing.x_axis.scaling.orientation = "maxMin"  # the first row of the table is the top bar
    drawing.x_axis.tickLblPos = "low"  # beside the plot, also where bars go to the left
    drawing.y_axis.crosses = "max"  # and with it the numbers stay below
    drawing.y_axis.number_format = axis_format
    lines = GraphicalProperties()
    lines.line.solidFill = _GRID
    drawing.y_axis.majorGridlines = ChartLines(spPr=lines)
    if not with_legend:
        drawing.legend = None
    elif drawing.legend is not None:
        drawing.legend.position = "b"
        drawing.legend.overlay = False
        drawing.legend.txPr = _text(900)


def _titled(chart: Chart, unit: Unit) -> str:
    """Give the title with the unit of the values."""
    if not unit.symbol or f"({unit.symbol})" in chart.title:
        return chart.title
    return f"{chart.title} ({unit.symbol})"


def _axis_format(unit: Unit, largest: float) -> str:
    """Show three digits of the largest value; the title has the unit."""
    if largest <= 0:
        return "General"
    decimals = min(max(2 - math.floor(math.log10(largest)), 0), 6)
    number = "#,##0" + ("." + "0" * decimals if decimals else "")
    return f'{number}"%"' if unit.symbol == "%" else number


def _value_labels(number_format: str) -> DataLabelList:
    """Write the value at the end of each bar, and nothing else."""
    from openpyxl.chart.label import DataLabelList

    labels = DataLabelList()
    labels.numFmt = number_format
    labels.showVal = True
    labels.showSerName = labels.showCatName = labels.showLegendKey = labels.showPercent = False
    labels.position = "outEnd"
    labels.txPr = _text(900)
    return labels


def _text(size: int, *, bold: bool = False) -> RichText:
    """Give a text format; the size is in hundredths of a point."""
    from openpyxl.chart.text import RichText
    from openpyxl.drawing.text import CharacterProperties, Paragraph, ParagraphProperties

    letters = CharacterProperties(sz=size, b=bold, solidFill=_INK)
    return RichText(p=[Paragraph(pPr=ParagraphProperties(defRPr=letters), endParaRPr=letters)])
