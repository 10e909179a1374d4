"""Sheets and charts that are written from templates: what openpyxl would write, and reads."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING

import openpyxl
import pandas as pd
import pytest
from openpyxl.formatting.rule import ColorScaleRule, DataBarRule
from openpyxl.worksheet.properties import PageSetupProperties

from tracelens_ext.report import excel_rows
from tracelens_ext.report.charts import Chart
from tracelens_ext.report.excel_sheet import TableSheet
from tracelens_ext.report.workbook import write_workbook

if TYPE_CHECKING:
    from pathlib import Path

FRAME = pd.DataFrame(
    {
        "kernel_name": ["gemm", "a name that is so long that no column is as wide as it is", "c"],
        "% of GPU time": [70.0, 25.0, 5.0],
        "change (%)": [-3.0, 0.0, 12.5],
        "count": [1, 2, 3],
    }
)


def ours(frame: pd.DataFrame) -> tuple[str, list[excel_rows.Column]]:
    """The part of a sheet, without its rows."""
    columns = [excel_rows.column_of(series) for _, series in frame.items()]
    styles = excel_rows.CellStyles([0] * len(columns), [0] * len(columns), 0, 0)
    sheet = TableSheet(columns, len(frame), styles)
    xml = "".join(sheet.xml(excel_rows.SharedStrings()))
    start, end = xml.index("<sheetData>"), xml.index("</sheetData>")
    return xml[:start] + xml[end + len("</sheetData>") :], columns


def openpyxls(frame: pd.DataFrame, columns: list[excel_rows.Column]) -> str:
    """The same, from openpyxl's objects."""
    book = openpyxl.Workbook()
    sheet = book.worksheets[0]
    for place, column in enumerate(columns):
        letter = excel_rows.column_letters(place)
        sheet.column_dimensions[letter].width = column.width
        if column.percent and len(frame):
            rule = DataBarRule(  # type: ignore[no-untyped-call]
                "num", 0, "max", None, "FF9CC2E5", minLength=0, maxLength=100
            )
            if column.lowest < 0:
                rule = ColorScaleRule(  # type: ignore[no-untyped-call]
                    start_type="min", start_color="FF63BE7B",
                    mid_type="num", mid_value=0, mid_color="FFFFFFFF",
                    end_type="max", end_color="FFF8696B",
                )  # fmt: skip
            sheet.conditional_formatting.add(f"{letter}2:{letter}{len(frame) + 1}", rule)
    last = f"{excel_rows.column_letters(max(len(columns) - 1, 0))}{len(frame) + 1}"
    sheet.freeze_panes = "A2"
    if columns:
        sheet.auto_filter.ref = f"A1:{last}"
    sheet.page_setup.orientation = "landscape"
    sheet.page_setup.fitToWidth, sheet.page_setup.fitToHeight = 1, 0
    sheet.sheet_properties.pageSetUpPr = PageSetupProperties(fitToPage=True)
    stored = io.BytesIO()
    book.save(stored)
    xml = zipfile.ZipFile(stored).read("xl/worksheets/sheet1.xml").decode()
    return xml.replace('<dimension ref="A1:A1" />', f'<dimension ref="A1:{last}" />').replace(
        "<sheetData></sheetData>", ""
    )


@pytest.mark.parametrize("rows", [0, 1, 2, 3])
@pytest.mark.parametrize("width", [0, 1, 4])
def test_a_sheet_is_as_openpyxl_writes_it(rows: int, width: int) -> None:
    frame = FRAME.iloc[:rows, :width]
    xml, columns = ours(frame)
    assert xml == openpyxls(frame, columns)


def test_the_size_is_never_estimated_too_low() -> None:
    columns = [excel_rows.column_of(series) for _, series in FRAME.items()]
    styles = excel_rows.CellStyles([99] * 4, [99] * 4, 99, 99)
    sheet = TableSheet(columns, len(FRAME), styles)
    cells = "".join(excel_rows.sheet_data(columns, len(FRAME), styles, excel_rows.SharedStrings()))
    assert sheet.bytes_at_most > len(cells)


def test_charts_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "book.xlsx"
    frame = pd.DataFrame(
        {
            "op": [f"op <{i}>" for i in range(8)],
            "part": list("xy") * 4,
            "time_ms": [8.0 - i for i in range(8)],
            "change_ms": [3.0 - i for i in range(8)],
        }
    )
    charts = [
        Chart('Time of "a" <b> & c', "table", "op", "time_ms", top=5),
        Chart("Two\nlines", "table", "op", "time_ms", kind="stacked", series_column="part"),
        Chart("Change", "table", "op", "change_ms"),
    ]
    write_workbook(path, {"table": frame}, charts=charts)
    bars, stacked, change = getattr(openpyxl.load_workbook(path)["charts"], "_charts")  # noqa: B009
    runs = [p.r[0].t for c in (bars, stacked) for p in c.title.tx.rich.p]
    assert runs == ['Time of "a" <b> & c (ms)', "Two", "lines (ms)"]
    assert bars.title.overlay is False
    (series,) = bars.series
    assert (series.cat.numRef.f, series.val.numRef.f) == (
        "'charts'!$M$3:$M$8",
        "'charts'!$N$3:$N$8",
    )
    assert series.tx.strRef.f == "'charts'!N2"
    assert [point.idx for point in series.dPt] == [5], "the bar of all others is grey"
    assert series.dLbls.showVal is True
    assert series.dLbls.numFmt == "#,##0.00"
    assert bars.legend is None
    assert bars.y_axis.scaling.min == 0
    assert bars.x_axis.scaling.orientation == "maxMin"
    assert (stacked.grouping, stacked.overlap, len(stacked.series)) == ("stacked", 100, 2)
    assert stacked.legend.position == "b"
    colours = {s.graphicalProperties.solidFill.srgbClr for s in stacked.series}
    assert len(colours) == 2
    assert change.y_axis.scaling.min is None
    assert not change.series[0].dPt
