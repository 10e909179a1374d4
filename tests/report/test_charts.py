"""Charts sum what they say, biggest first, and are visible."""

from __future__ import annotations

import math
import zipfile
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import openpyxl
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.report_helpers import write_workbook
from tracelens_ext.report.tables.charts import MOST_SERIES, Chart, chart_table

if TYPE_CHECKING:
    from pathlib import Path

CHART_NAMESPACE = "{http://schemas.openxmlformats.org/drawingml/2006/chart}"
FRAME = pd.DataFrame(
    {
        "cpu_op": ["a", "a", "b", "c", None],
        "category": pd.Categorical(["GEMM", "Memory Ops", "GEMM", "Other", "GEMM"]),
        "time_ms": [1.0, 2.0, 4.0, 0.0, math.nan],
    }
)
TIMELINE = pd.DataFrame(
    {
        "type": [
            "computation_time",
            "exposed_comm_time",
            "busy_time",
            "idle_time",
            "total_time",
        ],
        "time ms": [6.0, 1.0, 7.0, 3.0, 10.0],
        "percent": [60.0, 10.0, 70.0, 30.0, 100.0],
    }
)


def test_bars_are_sums_by_label_sorted() -> None:
    table = chart_table(FRAME, Chart("", "", "category", "time_ms"))
    assert table.to_dict() == {"time_ms": {"GEMM": 5.0, "Memory Ops": 2.0}}
    assert list(table.index) == ["GEMM", "Memory Ops"]  # and nothing for a sum of zero


def test_stacked_bars() -> None:
    chart = Chart("", "", "cpu_op", "time_ms", kind="stacked", series_column="category")
    table = chart_table(FRAME, chart)
    assert table.T.to_dict("list") == {"b": [4.0, 0.0], "a": [1.0, 2.0]}
    assert list(table.columns) == ["GEMM", "Memory Ops"]


def test_one_stacked_bar_of_chosen_pieces_in_order() -> None:
    wanted = (
        "computation_time",
        "exposed_comm_time",
        "exposed_memcpy_time",
        "idle_time",
    )
    chart = Chart("", "", "type", "time ms", kind="stacked", only=wanted)
    table = chart_table(TIMELINE, chart)
    assert table.to_numpy().tolist() == [[6.0, 1.0, 3.0]]
    assert list(table.columns) == ["computation_time", "exposed_comm_time", "idle_time"]
    bars = chart_table(
        TIMELINE, Chart("", "", "type", "time ms", only=("idle_time", "busy_time"))
    )
    assert list(bars.index) == ["idle_time", "busy_time"]


def test_what_is_too_much_is_summed() -> None:
    frame = pd.DataFrame(
        {"name": [f"n{i}" for i in range(30)], "time_ms": range(30, 0, -1)}
    )
    table = chart_table(frame, Chart("", "", "name", "time_ms", top=27))
    assert list(table.index)[-2:] == ["n26", "(3 others)"]
    assert table["time_ms"].iloc[-1] == 3 + 2 + 1
    assert len(chart_table(frame, Chart("", "", "name", "time_ms", top=29))) == 30
    stacked = chart_table(frame, Chart("", "", "name", "time_ms", kind="stacked"))
    assert stacked.shape == (1, MOST_SERIES + 1)
    assert stacked.columns[-1] == f"({30 - MOST_SERIES} others)"


def test_empty_labels_and_odd_values() -> None:
    frame = pd.DataFrame(
        {
            "name": [None, "x", ["y"], 1],
            "time_ms": pd.Series([1.0, "two", math.inf, True]),
        }
    )
    table = chart_table(frame, Chart("", "", "name", "time_ms"))
    assert table["time_ms"].to_dict() == {"(none)": 1.0, "1": 1.0}
    texts = pd.DataFrame(
        {"name": pd.Series(["x", None], dtype="str"), "time_ms": [1, 2]}
    )
    assert list(chart_table(texts, Chart("", "", "name", "time_ms")).index) == [
        "(none)",
        "x",
    ]
    assert chart_table(FRAME.iloc[:0], Chart("", "", "category", "time_ms")).empty


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcdefgh"), st.sampled_from("xyz"), st.integers(0, 99)
        )
    ),
    st.integers(1, 9),
    st.booleans(),
)
def test_nothing_is_lost(
    rows: list[tuple[str, str, int]], top: int, stacked: bool
) -> None:
    frame = pd.DataFrame(rows, columns=["label", "series", "time_ms"])
    chart = Chart("", "", "label", "time_ms", top=top)
    if stacked:
        chart = Chart(
            "", "", "label", "time_ms", "stacked", top, series_column="series"
        )
    table = chart_table(frame, chart)
    assert table.to_numpy().sum() == frame["time_ms"].sum()
    assert len(table) <= top + 1
    sums = table.sum(axis=1).tolist()
    shown = sums[:-1] if table.index.size and "others" in table.index[-1] else sums
    assert shown == sorted(shown, reverse=True)


def test_a_column_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="'Time' needs the column 'nope' of 'kernels'"):
        chart_table(FRAME, Chart("Time", "kernels", "nope", "time_ms"))


def write(
    path: Path, *charts: Chart, **frames: pd.DataFrame
) -> list[ElementTree.Element]:
    """Write charts; give the XML of each."""
    write_workbook(path, frames, charts=charts)
    with zipfile.ZipFile(path) as archive:
        names = sorted(
            name for name in archive.namelist() if name.startswith("xl/charts/chart")
        )
        return [ElementTree.fromstring(archive.read(name)) for name in names]  # noqa: S314


def values(element: ElementTree.Element, *path: str) -> list[str]:
    where = "/".join(f"{CHART_NAMESPACE}{step}" for step in path)
    return [
        found.get("val", found.text or "") for found in element.iterfind(f".//{where}")
    ]


def test_the_drawing(tmp_path: Path) -> None:
    (chart,) = write(
        tmp_path / "book.xlsx",
        Chart("GPU time", "kernels", "category", "time_ms"),
        kernels=FRAME,
    )
    assert values(chart, "barDir") == ["bar"]
    for axis in ("catAx", "valAx"):
        assert values(chart, axis, "delete") in ([], ["0"])
    assert values(chart, "catAx", "scaling", "orientation") == ["maxMin"]
    assert values(chart, "valAx", "scaling", "min") == ["0"]
    assert values(chart, "title", "overlay") in ([], ["0"])
    assert "".join(chart.itertext()).count("GPU time (ms)") == 1
    assert not values(chart, "legend", "legendPos")
    assert values(chart, "dLbls", "showVal") == ["1"]
    assert values(chart, "cat", "strRef", "f") == ["charts!$M$3:$M$4"]
    assert values(chart, "ser", "val", "numRef", "f") == ["charts!$N$3:$N$4"]
    sheet = openpyxl.load_workbook(tmp_path / "book.xlsx")["charts"]
    table = [
        [sheet.cell(row, column).value for column in (13, 14)] for row in range(1, 6)
    ]
    assert table == [
        ["GPU time (ms)", None],
        ["category", "time_ms"],
        ["GEMM", 5],
        ["Memory Ops", 2],
        [None, None],
    ]


def test_stacked_drawing_and_several_charts(tmp_path: Path) -> None:
    stacked, bars = write(
        tmp_path / "book.xlsx",
        Chart(
            "A (ms)",
            "kernels",
            "cpu_op",
            "time_ms",
            "stacked",
            series_column="category",
        ),
        Chart("B", "timeline", "type", "percent"),
        kernels=FRAME,
        timeline=TIMELINE,
    )
    assert values(stacked, "grouping") == ["stacked"]
    assert values(stacked, "overlap") == ["100"]
    assert values(stacked, "legend", "legendPos") == ["b"]
    assert (
        "".join(stacked.itertext()).count("A (ms)") == 1
    )  # the unit is not said twice
    assert "B (%)" in "".join(bars.itertext())
    cells = [values(one, "ser", "val", "numRef", "f") for one in (stacked, bars)]
    assert cells[0] == ["charts!$N$3:$N$4", "charts!$O$3:$O$4"]
    (place,) = cells[1]
    assert int(place.split("$")[2].rstrip(":")) > 4


def test_bars_below_zero(tmp_path: Path) -> None:
    frame = pd.DataFrame({"name": ["a", "b"], "difference (ms)": [-5.0, 2.0]})
    (chart,) = write(
        tmp_path / "book.xlsx", Chart("Change", "t", "name", "difference (ms)"), t=frame
    )
    assert not values(chart, "valAx", "scaling", "min")
    assert values(chart, "catAx", "tickLblPos") == ["low"]


def test_labels_from_a_trace_stay_texts_and_short(tmp_path: Path) -> None:
    names = ["=cmd()", "\x00\ufffe", "k" * 30 + "m" * 500 + "e" * 30, "line\nbreak"]
    frame = pd.DataFrame({"name": names, "time_ms": [4, 3, 2, 1]})
    write(tmp_path / "book.xlsx", Chart("T", "t", "name", "time_ms"), t=frame)
    sheet = openpyxl.load_workbook(tmp_path / "book.xlsx")["charts"]
    cells = [sheet.cell(row, 13) for row in range(3, 7)]
    assert [cell.data_type for cell in cells] == ["s"] * 4
    labels = [str(cell.value) for cell in cells]
    assert labels[:2] == ["=cmd()", "\ufffd\ufffd"]
    assert labels[2].startswith("kkk")
    assert labels[2].endswith("eee")
    assert "…" in labels[2]
    assert len(labels[2]) == 48
    assert labels[3] == "line break"


def test_a_chart_of_nothing_is_a_note(tmp_path: Path) -> None:
    frame = pd.DataFrame({"name": ["a"], "time_ms": [0.0]})
    notes = write_workbook(
        tmp_path / "book.xlsx",
        {"t": frame},
        charts=[Chart("Time", "t", "name", "time_ms")],
    )
    assert notes == ["No chart “Time”: the sheet t has nothing to draw."]
    assert openpyxl.load_workbook(tmp_path / "book.xlsx").sheetnames == ["summary", "t"]


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
        Chart(
            "Two\nlines", "table", "op", "time_ms", kind="stacked", series_column="part"
        ),
        Chart("Change", "table", "op", "change_ms"),
    ]
    write_workbook(path, {"table": frame}, charts=charts)
    sheet = openpyxl.load_workbook(path)["charts"]
    bars, stacked, change = getattr(sheet, "_charts")  # noqa: B009
    titles = [chart.title.tx.strRef for chart in (bars, stacked)]
    assert titles[0].f == "charts!$M$1"
    assert [title.strCache.pt[0].v for title in titles] == [
        'Time of "a" <b> & c (ms)',
        "Two\nlines (ms)",
    ]
    (series,) = bars.series
    assert (series.cat.strRef.f, series.val.numRef.f) == (
        "charts!$M$3:$M$8",
        "charts!$N$3:$N$8",
    )
    assert series.tx.strRef.f == "charts!$N$2"
    assert [point.v for point in series.val.numRef.numCache.pt][:2] == [8, 7]
    assert [point.idx for point in series.dPt] == [5], "the bar of all others is grey"
    assert series.dLbls.showVal is True
    assert series.dLbls.numFmt == '#,##0.000" ms"'
    assert bars.legend is None
    assert bars.y_axis.scaling.min == 0
    assert bars.y_axis.numFmt.formatCode == "#,##0.00"
    assert bars.x_axis.scaling.orientation == "maxMin"
    assert (stacked.grouping, stacked.overlap, len(stacked.series)) == (
        "stacked",
        100,
        2,
    )
    assert stacked.legend.position == "b"
    colors = {s.graphicalProperties.solidFill.srgbClr for s in stacked.series}
    assert len(colors) == 2
    assert change.y_axis.scaling.min is None
    assert not change.series[0].dPt
    assert str(sheet.print_area).startswith("'charts'!$A$1:$L$")


def test_titles_and_labels_are_no_formulas(tmp_path: Path) -> None:
    labels = ["=Sheet!$A$1", "Sheet!A1", "nan"]
    frame = pd.DataFrame({"name": labels, "time_ms": [3, 2, 1]})
    title = "=Sheet!$A$1"
    stacked = Chart(title, "t", "name", "time_ms", "stacked")
    for chart in write(
        tmp_path / "b.xlsx", Chart(title, "t", "name", "time_ms"), stacked, t=frame
    ):
        assert {place.partition("!")[0] for place in values(chart, "f")} == {"charts"}
        assert f"{title} (ms)" in "".join(chart.itertext())
    for kind in ("bar", "stacked"):
        odd = pd.DataFrame({"name": ["nan"], "time_ms": [1]})
        write(tmp_path / "b.xlsx", Chart("T", "t", "name", "time_ms", kind=kind), t=odd)
        sheet: Any = openpyxl.load_workbook(tmp_path / "b.xlsx")["charts"]
        (chart,) = sheet._charts
        assert (
            chart.series[0].cat.strRef is not None
        )  # a text, though it could be a number
