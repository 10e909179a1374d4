"""Draw charts on a sheet of a workbook, each with the table that it shows beside it.

openpyxl puts the charts into the workbook; what a chart looks like is written from templates, in
DrawingML (ECMA-376, part 1, `CT_ChartSpace`): much faster than as openpyxl's objects.
"""

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
    from openpyxl.worksheet.worksheet import Worksheet

    from tracelens_ext.report.charts import Chart
    from tracelens_ext.report.units import Unit

_LABEL_CHARACTERS = 48  # a longer label would leave no room for the bars
_CHART_COLUMNS = 12  # sheet columns under a chart, of the default width of 64 pixels
_WIDTH_CM = 20
_ROW_CM = 0.53  # the default row height of 20 pixels
_PAGE_ROWS, _PRINT_SCALE = 40, 85  # of a landscape page, A4 or Letter; in percent
_INK, _GRID = "404040", "D9D9D9"
_OTHERS_COLOUR = "A6A6A6"
_COLOURS = (
    *("3B6FB6", "E08A2E", "3E9A5F", "C94F4F", "7D62B5", "8C6D4F"),
    *("D37AB0", "B8B03A", "3FA7B8", "1F3B64", "F2C14E", "6E8F2A"),
)


_INK_FILL = f'<a:solidFill><a:srgbClr val="{_INK}" /></a:solidFill>'
_SMALL = f'sz="900" b="0">{_INK_FILL}'
_SMALL_TEXT = (
    f"<txPr><a:bodyPr /><a:p><a:pPr><a:defRPr {_SMALL}</a:defRPr></a:pPr>"
    f"<a:r><a:t /></a:r><a:endParaRPr {_SMALL}</a:endParaRPr></a:p></txPr>"
)
_GREY_LINE = (
    f'<spPr><a:ln><a:solidFill><a:srgbClr val="{_GRID}" /></a:solidFill>'
    '<a:prstDash val="solid" /></a:ln></spPr>'
)
_NO_TICKS = '<majorTickMark val="none" /><minorTickMark val="none" />'
_TITLE_LINE = (
    f'<a:p><a:pPr><a:defRPr sz="1300" b="1">{_INK_FILL}</a:defRPr></a:pPr>'
    "<a:r><a:t>{text}</a:t></a:r></a:p>"
)
_SERIES = (
    '<ser><idx val="{place}" /><order val="{place}" />'
    "<tx><strRef><f>{sheet}!{name}</f></strRef></tx>"
    '<spPr><a:solidFill><a:srgbClr val="{colour}" /></a:solidFill>'
    '<a:ln><a:solidFill><a:srgbClr val="{colour}" /></a:solidFill><a:prstDash val="solid" /></a:ln>'
    '</spPr><invertIfNegative val="0" />{extra}'
    "<cat><numRef><f>{sheet}!{labels}</f></numRef></cat>"
    "<val><numRef><f>{sheet}!{values}</f></numRef></val></ser>"
)
_BAR_OF_ITS_OWN = (
    '<dPt><idx val="{bar}" /><spPr><a:solidFill><a:srgbClr val="{colour}" /></a:solidFill>'
    '<a:ln><a:prstDash val="solid" /></a:ln></spPr></dPt>'
)
# The value at the end of each bar, and nothing else.
_VALUE_LABELS = (
    f'<dLbls><numFmt formatCode="{{format}}" />{_SMALL_TEXT}<dLblPos val="outEnd" />'
    '<showLegendKey val="0" /><showVal val="1" /><showCatName val="0" />'
    '<showSerName val="0" /><showPercent val="0" /></dLbls>'
)
_LEGEND = f'<legend><legendPos val="b" /><overlay val="0" />{_SMALL_TEXT}</legend>'
# A title over the bars would hide them. The first row of the table is the top bar (maxMin), its
# label beside the plot also where bars go to the left (low); the numbers stay below (max).
_CHART = (
    '<chartSpace xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
    ' xmlns="http://schemas.openxmlformats.org/drawingml/2006/chart"><chart>'
    '<title><tx><rich><a:bodyPr />{title}</rich></tx><overlay val="0" /></title>'
    '<plotArea><barChart><barDir val="bar" /><grouping val="{grouping}" />{series}'
    '<gapWidth val="35" />{overlap}<axId val="10" /><axId val="100" /></barChart>'
    '<catAx><axId val="10" /><scaling><orientation val="maxMin" /></scaling><delete val="0" />'
    f'<axPos val="l" />{_NO_TICKS}<tickLblPos val="low" />{_GREY_LINE}{_SMALL_TEXT}'
    '<crossAx val="100" /><lblOffset val="100" /></catAx>'
    '<valAx><axId val="100" /><scaling>{scaling}</scaling><delete val="0" /><axPos val="l" />'
    f"<majorGridlines>{_GREY_LINE}</majorGridlines>"
    f'<numFmt formatCode="{{format}}" sourceLinked="0" />{_NO_TICKS}{_GREY_LINE}{_SMALL_TEXT}'
    '<crossAx val="10" /><crosses val="max" /></valAx></plotArea>{legend}'
    '<plotVisOnly val="1" /><dispBlanksAs val="gap" /></chart></chartSpace>'
)


def draw_charts(
    sheet: Worksheet, charts: list[tuple[Chart, pd.DataFrame]]
) -> list[tuple[BarChart, str]]:
    """Draw charts below one another, each with its table at its right.

    Args:
        sheet: an empty sheet.
        charts: the charts with their tables, as `chart_table` gives them.

    Returns:
        The charts of the sheet, each with the XML that its part of the archive is to have.
    """
    from openpyxl.chart import BarChart
    from openpyxl.utils import get_column_letter
    from openpyxl.worksheet.pagebreak import Break

    drawn = []
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
        drawing = BarChart()
        drawn.append((drawing, _chart_xml(sheet, row, table, unit, chart)))
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
    return drawn


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


def _chart_xml(
    sheet: Worksheet, top_row: int, table: pd.DataFrame, unit: Unit, chart: Chart
) -> str:
    """Draw horizontal bars over a table written by `_write_table`."""
    stacked = chart.kind == "stacked"
    largest = float(table.sum(axis=1).abs().max() if stacked else table.abs().to_numpy().max())
    axis_format = _attribute(_axis_format(unit, largest))
    of_first = "" if stacked else _rest_colour(table) + _VALUE_LABELS.format(format=axis_format)
    series = [
        _series(sheet, top_row, table, place, of_first if not place else "")
        for place in range(table.shape[1])
    ]
    # A bar that starts elsewhere than at zero shows a wrong proportion.
    from_zero = '<min val="0" />' if float(table.to_numpy().min()) >= 0 else ""
    return _CHART.format(
        title="".join(_TITLE_LINE.format(text=line) for line in _title_lines(chart, unit)),
        grouping="stacked" if stacked else "clustered",
        overlap='<overlap val="100" />' if stacked else "",
        series="".join(series),
        scaling=f'<orientation val="minMax" />{from_zero}',
        format=axis_format,
        legend=_LEGEND if len(series) > 1 else "",
    )


def _series(sheet: Worksheet, top_row: int, table: pd.DataFrame, place: int, extra: str) -> str:
    """Draw the numbers of one column of a table, in a colour of their own."""
    from openpyxl.utils import get_column_letter, quote_sheetname

    bars, pieces = table.shape
    is_rest = pieces > MOST_SERIES and place == pieces - 1
    of_labels = get_column_letter(_CHART_COLUMNS + 1)
    of_values = get_column_letter(_CHART_COLUMNS + 2 + place)
    first, last = top_row + 2, top_row + 1 + bars
    labels, values = (
        f"${letter}${first}" + (f":${letter}${last}" if last > first else "")
        for letter in (of_labels, of_values)
    )
    return _SERIES.format(
        place=place,
        sheet=excel_text.xml_escaped(quote_sheetname(sheet.title)),
        name=f"{of_values}{first - 1}",
        colour=_OTHERS_COLOUR if is_rest else _COLOURS[place % len(_COLOURS)],
        extra=extra,
        labels=labels,
        values=values,
    )


def _rest_colour(table: pd.DataFrame) -> str:
    """Colour the bar of all others, which is the last."""
    if not str(table.index[-1]).endswith(" others)"):
        return ""
    return _BAR_OF_ITS_OWN.format(bar=len(table) - 1, colour=_OTHERS_COLOUR)


def _title_lines(chart: Chart, unit: Unit) -> list[str]:
    title = excel_text.cleaned(_titled(chart, unit))
    return [excel_text.xml_escaped(line) for line in title.split("\n")]


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


def _attribute(text: str) -> str:
    """Write a text as the value of an attribute between double quotes."""
    return excel_text.xml_escaped(text).replace('"', "&quot;")
