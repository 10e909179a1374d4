"""What is written to a workbook is what openpyxl reads from it."""

from __future__ import annotations

import gc
import math
import re
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import openpyxl
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openpyxl.worksheet.worksheet import Worksheet as ReadSheet
from xlsxwriter import Workbook
from xlsxwriter.worksheet import Worksheet

from tests.support.report_helpers import write_workbook
from tracelens_ext.errors import OutputError
from tracelens_ext.report import excel_cells, excel_text
from tracelens_ext.report.excel import slow_tables
from tracelens_ext.report.excel_cells import checked
from tracelens_ext.report.tables.charts import Chart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KERNELS = pd.DataFrame(
    {
        "cpu_op": ["graph", "graph", "graph"],
        "kernel_category": pd.Categorical(
            ["Flash Attention Forward", "Memory Ops", "GEMM"]
        ),
        "kernel_name": [
            "kernel_mha",
            "void tensorrt_llm::common::scaleMatrix<...>",
            "nvjet_tst_320x128_64x3_1x2_h_bz_coopB_TNT" * 3,
        ],
        "count": [1, 1, 1],
        "total_time_ms": [0.15, 0.08, 0.22],
        "avg_time_us": [150.0, 80.0, 220.0],
        "% of cpu_op time": [33.3, 17.8, 48.9],
    }
)


@pytest.fixture
def _no_leftovers(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[None]:
    """No temporary file of XlsxWriter stays."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # a write is
    aborted = request.node.get_closest_marker("filterwarnings") is not None
    if aborted:
        gc.freeze()  # what tests before have made is not looked through again
    yield
    if aborted:
        gc.collect()
    assert not list(tmp_path.glob("tracelens-ext-*"))


leaves_nothing = pytest.mark.usefixtures("_no_leftovers")


#: XlsxWriter leaves its temporary files open when it is not let finish; they are gone all the same.
without_leftovers = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)


def sheet_of(path: Path, name: str) -> ReadSheet:
    sheet = openpyxl.load_workbook(path)[name]
    assert isinstance(sheet, ReadSheet)
    return sheet


def rows_of(path: Path, name: str) -> list[tuple[Any, ...]]:
    return list(sheet_of(path, name).iter_rows(values_only=True))


def write_and_read(folder: Path, frame: pd.DataFrame) -> list[tuple[Any, ...]]:
    path = folder / "book.xlsx"
    write_workbook(path, {"table": frame})
    return rows_of(path, "table")


@leaves_nothing
def test_a_table_is_read_back(tmp_path: Path) -> None:
    header, *rows = write_and_read(tmp_path, KERNELS)
    assert header == tuple(KERNELS.columns)
    assert rows == list(KERNELS.itertuples(index=False, name=None))


def test_pandas_reads_it_too(tmp_path: Path) -> None:
    write_workbook(tmp_path / "book.xlsx", {"kernels": KERNELS})
    read = pd.read_excel(tmp_path / "book.xlsx", sheet_name="kernels")
    pd.testing.assert_frame_equal(
        read, KERNELS.astype({"kernel_category": str}), check_dtype=False
    )


@leaves_nothing
def test_values_of_all_types(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "plain": [1.5, math.nan, -0.25, 1e300],
            "infinite": [math.inf, -math.inf, math.nan, 0.5],
            "beyond": [1.7e308, -1.0, 0.0, 1.0],
            "single": np.array([0.1, 1e-7, math.nan, 3], dtype=np.float32),
            "whole": np.array([1, -2, 3, 4], dtype=np.int8),
            "huge": np.array([2**63, 1, 10**15, 10**15 - 1], dtype=np.uint64),
            "yes": [True, False, True, False],
            "nullable": pd.array([1, None, 3, 10**17], dtype="Int64"),
            "maybe": pd.array([True, None, False, True], dtype="boolean"),
            "when": [pd.Timestamp("2024-01-02 03:04:05.678901234"), None, None, None],
            "category": pd.Categorical(["a", None, "b", "a"]),
            "number category": pd.Categorical([1, 2, 1, None]),
            "mixed": [1, 1.0, True, "1"],
            "objects": [["a", 1], {"k": (1,)}, None, np.float64(2.5)],
            "more": [pd.NA, pd.NaT, np.int64(7), 10**400],
        }
    )
    header, *rows = write_and_read(tmp_path, frame)
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    assert columns == {
        "plain": (1.5, None, -0.25, 1e300),
        "infinite": ("inf", "-inf", None, 0.5),
        "beyond": ("1.7e+308", -1, 0, 1),
        "single": (0.1, 1e-7, None, 3),
        "whole": (1, -2, 3, 4),
        "huge": ("9223372036854775808", 1, "1000000000000000", 999_999_999_999_999),
        "yes": (True, False, True, False),
        "nullable": (1, None, 3, "100000000000000000"),
        "maybe": (True, None, False, True),
        "when": ("2024-01-02 03:04:05.678901234", None, None, None),
        "category": ("a", None, "b", "a"),
        "number category": (1, 2, 1, None),
        "mixed": (1, 1.0, True, "1"),
        "objects": ("['a', 1]", "{'k': (1,)}", None, 2.5),
        "more": (None, None, 7, str(10**400)),
    }
    for name in ("yes", "maybe", "mixed"):
        assert [type(value) is bool for value in columns[name]] == [
            type(value) is bool for value in frame[name].astype(object)
        ]


@leaves_nothing
@pytest.mark.parametrize(
    "text",
    [
        "=1+1",
        "{=1+1}",
        "+1",
        "-1",
        "@SUM(A1)",
        "#N/A",
        "#REF!",
        "TRUE",
        "12",
        "1e5",
        "'quoted",
        "2024-01-01",
        "https://example.org",
        "mailto:a@example.org",
        "internal:'t'!A1",
        # What XlsxWriter would write as it is, or escape by half.
        "<r>a</r>",
        "<r> & <b></r>",
        "_x0041_",
        "_x0041_x0042_",
        "<r>_x0041_</r>",
    ],
)
def test_text_stays_text(tmp_path: Path, text: str) -> None:
    frame = pd.DataFrame({text: [text], "objects": pd.Series([text], dtype=object)})
    write_workbook(
        tmp_path / "book.xlsx",
        {"table": frame},
        facts=[(text, text)],
        notes=[text],
        title=text,
        descriptions={"table": text},
    )
    sheet = sheet_of(tmp_path / "book.xlsx", "table")
    cells = [sheet["A1"], sheet["A2"], sheet["B2"]]
    summary = sheet_of(tmp_path / "book.xlsx", "summary")
    cells += [cell for row in summary.iter_rows() for cell in row if cell.value == text]
    assert len(cells) == 3 + 5  # title, label, value, description, note
    for cell in cells:
        assert (cell.value, cell.data_type, cell.hyperlink) == (text, "s", None)


def openpyxl_reads(text: str) -> bool:
    """openpyxl drops these letters wherever they stand; Excel and LibreOffice do not."""
    return "x005F_" not in text


def excel_shows(text: str) -> str | None:
    """What the documentation says becomes of a text of ordinary length."""
    text = re.sub("\r\n?", "\n", text)
    return (
        re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", "\ufffd", text)
        or None
    )


ODD_TEXTS = [
    "_x0041_",
    "__x000D__x000d_",
    "\r",
    "a\r\nb",
    "\t x ",
    "\ufffe",
    "\ud800",
    "&amp;<b>",
]
ODD_TEXTS += ["<r></r>", "<r>\r_x0041_x0042_</r>"]
ANY_TEXT = (
    st.text(st.characters(codec=None), max_size=40) | st.sampled_from(ODD_TEXTS)
).filter(openpyxl_reads)


@given(st.lists(ANY_TEXT, min_size=1, max_size=8), ANY_TEXT)
@settings(max_examples=60, deadline=None)
def test_any_text_comes_back(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], header: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any_text.xlsx"
    # Arrow, where pandas keeps texts in it, refuses half characters.
    frame = pd.DataFrame({0: texts}, dtype=object).set_axis(
        pd.Index([header], dtype=object), axis=1
    )
    write_workbook(path, {"table": frame}, facts=[(texts[0], texts[-1])])
    sheet = sheet_of(path, "table")
    assert sheet["A1"].value == excel_shows(header)
    read = [sheet.cell(row, 1).value for row in range(2, len(texts) + 2)]
    assert read == [excel_shows(text) for text in texts]


ANY_CELL = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**15) + 1, 10**15 - 1),
    st.floats(-1e300, 1e300, allow_subnormal=False),
    st.text(
        st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=10
    ).filter(openpyxl_reads),
)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_frame_comes_back(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "any_frame.xlsx"
    width = data.draw(st.integers(1, 30))
    height = data.draw(st.integers(0, 6))
    columns = [
        data.draw(st.lists(ANY_CELL, min_size=height, max_size=height))
        for _ in range(width)
    ]
    series = [pd.Series(values, dtype=object) for values in columns]
    as_objects = data.draw(st.booleans())
    frame = pd.concat(
        [one if as_objects else one.infer_objects() for one in series], axis=1
    )
    frame.columns = pd.Index([f"column {place}" for place in range(width)])
    write_workbook(path, {"table": frame})
    sheet = sheet_of(path, "table")
    read = [
        [sheet.cell(row + 2, column + 1).value for row in range(height)]
        for column in range(width)
    ]
    # A number has 16 digits in a workbook.
    assert read == [
        [
            pytest.approx(value, rel=1e-15, abs=0)
            if isinstance(value, float)
            else value
            for value in (excel_shows(v) if isinstance(v, str) else v for v in values)
        ]
        for values in columns
    ]


def test_a_text_that_looks_like_an_escape_is_none(tmp_path: Path) -> None:
    """Excel would show `_x0041_` as A; openpyxl does not, so the file itself is looked at."""
    texts = ["_x0041_", "_x0041_x0042_", "<r>_x000D_</r>"]
    write_workbook(
        tmp_path / "book.xlsx", {"t": pd.DataFrame({"n": texts})}, facts=[("a", "b")]
    )
    with zipfile.ZipFile(tmp_path / "book.xlsx") as archive:
        strings = archive.read("xl/worksheets/sheet2.xml").decode()
    assert strings.count("<t>") >= len(texts)
    assert not re.search("_x(?!005F_)[0-9A-Fa-f]{4}_", strings)


def test_columns_of_each_type_fit_together(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "text": ["a", None, "b", "a", "c", None, "a", "b"],
            "float": [1.5, math.nan, 2.5, 3.5, 4.5, 5.5, math.nan, 7.5],
            "single": np.arange(8, dtype=np.float32) / 2,
            "whole": range(8),
            "yes": [True, False] * 4,
        }
    )
    _, *rows = write_and_read(tmp_path, frame)
    assert rows == [
        tuple(None if value is None or value != value else value for value in row)
        for row in frame.astype(object).itertuples(index=False)
    ]


def test_a_text_longer_than_a_cell_is_cut_with_a_mark_and_a_note(
    tmp_path: Path,
) -> None:
    whole = "x" * 32_767
    beyond = "y" * 32_768
    wide = "\U0001f600" * 16_384  # two each, as Excel counts
    frame = pd.DataFrame({"name": [whole, beyond, wide, beyond]})
    notes = write_workbook(tmp_path / "book.xlsx", {"table": frame})
    _, *rows = rows_of(tmp_path / "book.xlsx", "table")
    shown = [row[0] for row in rows]
    assert shown[0] == whole
    assert shown[1].endswith("y … [cut here, 32,768 characters in total]")
    assert shown[2].endswith("😀 … [cut here, 16,384 characters in total]")
    assert [excel_text.excel_length(text) for text in shown[:2]] == [32_767, 32_767]
    assert excel_text.excel_length(shown[2]) in (32_766, 32_767)
    assert len(notes) == 1
    assert "table" in notes[0]
    assert "3 in the column “name”" in notes[0]
    assert notes[0] in [row[0] for row in rows_of(tmp_path / "book.xlsx", "summary")]


def test_a_table_longer_than_a_sheet_is_cut_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(excel_cells, "MOST_ROWS", 5)
    frame = pd.DataFrame({"row": range(10)})
    notes = write_workbook(tmp_path / "book.xlsx", {"kernels": frame}, notes=["Mine."])
    assert notes[0] == "Mine."
    assert notes[1].startswith("kernels: only the first 4 of 10 rows are here")
    assert rows_of(tmp_path / "book.xlsx", "kernels")[1:] == [(0,), (1,), (2,), (3,)]
    sheet = sheet_of(tmp_path / "book.xlsx", "summary")
    assert ["kernels", "4 rows", None] in [
        [cell.value for cell in row[:3]] for row in sheet.iter_rows()
    ]


def test_tables_of_more_cells_than_a_workbook_holds_are_cut_alike_with_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(excel_cells, "MOST_CELLS", 60)
    long = pd.DataFrame({"a": range(40), "b": 1})
    short = pd.DataFrame({"a": range(10)})
    notes = write_workbook(tmp_path / "book.xlsx", {"long": long, "short": short})
    assert [note.partition(";")[0] for note in notes] == [
        "long: only the first 25 of 40 rows are here, which is all that a workbook can hold"
    ]
    assert len(rows_of(tmp_path / "book.xlsx", "long")) == 26
    assert len(rows_of(tmp_path / "book.xlsx", "short")) == 11


def test_a_table_wider_than_a_sheet_is_cut_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(excel_cells, "MOST_COLUMNS", 3)
    frame = pd.DataFrame([range(5)], columns=list("abcde"))
    notes = write_workbook(tmp_path / "book.xlsx", {"table": frame})
    assert rows_of(tmp_path / "book.xlsx", "table")[0] == ("a", "b", "c")
    assert "the first 3 of 5 columns" in notes[0]


def test_the_limits_are_those_of_excel() -> None:
    assert (Worksheet().xls_rowmax, Worksheet().xls_colmax) == (
        excel_cells.MOST_ROWS,
        excel_cells.MOST_COLUMNS,
    )
    assert Worksheet().xls_strmax == excel_text.CELL_CHARACTERS


@leaves_nothing
@without_leftovers
@pytest.mark.parametrize(
    "refused", ["_write_string", "_check_dimensions", "set_column", "autofilter"]
)
def test_a_workbook_that_lacks_a_part_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """XlsxWriter leaves out what it cannot write, and returns a number."""
    monkeypatch.setattr(Worksheet, refused, lambda *_: -1)
    with pytest.raises(
        OutputError, match=r"rejects a part of it \(code -1\).*--format csv"
    ):
        write_workbook(tmp_path / "book.xlsx", {"table": KERNELS})
    assert not (tmp_path / "book.xlsx").exists()
    checked(0)


def test_which_tables_are_slow_in_a_workbook() -> None:
    large = pd.DataFrame({name: range(100_001) for name in "ab"})
    (said,) = slow_tables({"large": large, "small": large.head(100_000)})
    assert said.startswith("large has 200,002 cells")
    assert "--format csv or parquet" in said


def test_sheet_names(tmp_path: Path) -> None:
    wanted = [
        "kernel_summary",
        "a" * 40,
        "A" * 40,
        "a/b:c*?[d]\\",
        "summary",
        "Charts",
        "History",
    ]
    wanted += ["'quoted'", "", "\x00\ud800", "it's"]
    frame = pd.DataFrame({"a": [1]})
    notes = write_workbook(tmp_path / "book.xlsx", dict.fromkeys(wanted, frame))
    names = openpyxl.load_workbook(tmp_path / "book.xlsx").sheetnames
    assert names == [
        "summary",
        "kernel_summary",
        "a" * 31,
        "A" * 27 + " (2)",
        "a_b_c___d__",
        "summary (2)",
        "Charts (2)",
        "History (2)",
        "quoted",
        "sheet",
        "__",
        "it's",
    ]
    renamed = [name for name in wanted if name not in ("kernel_summary", "it's")]
    assert len(notes) == len(renamed)
    assert any("“History” is on the sheet “History (2)”" in note for note in notes)


@given(st.lists(st.text(st.characters(codec=None), max_size=40), max_size=12))
def test_sheet_names_are_always_valid(wanted: list[str]) -> None:
    names = excel_text.unique_sheet_names(wanted, taken=["summary"])
    assert len({name.casefold() for name in names} | {"summary"}) == len(wanted) + 1
    for name in names:
        assert 1 <= excel_text.excel_length(name) <= 31
        assert not re.search(r"[\[\]:*?/\\\x00-\x1f\ud800-\udfff\ufffe\uffff]", name)
        assert not name.startswith("'")
        assert not name.endswith("'")
        assert name.casefold() != "history"


@leaves_nothing
def test_frames_without_rows_or_columns(tmp_path: Path) -> None:
    sheets = {
        "no rows": KERNELS.iloc[:0],
        "nothing": pd.DataFrame(),
        "only rows": KERNELS[[]],
    }
    write_workbook(tmp_path / "book.xlsx", sheets)
    assert rows_of(tmp_path / "book.xlsx", "no rows") == [tuple(KERNELS.columns)]
    assert rows_of(tmp_path / "book.xlsx", "nothing") in ([], [(None,)])
    write_workbook(tmp_path / "book.xlsx", {})
    assert openpyxl.load_workbook(tmp_path / "book.xlsx").sheetnames == ["summary"]


def test_columns_of_one_name_and_of_many_levels(tmp_path: Path) -> None:
    frame = pd.DataFrame([[1, "a", 2.5]], columns=["x", "x", "y"])
    assert write_and_read(tmp_path, frame) == [("x", "x", "y"), (1, "a", 2.5)]
    frame.columns = pd.MultiIndex.from_tuples([("t", "sum"), ("t", ""), (1, "c")])
    assert write_and_read(tmp_path, frame)[0] == ("t sum", "t", "1 c")


@leaves_nothing
def test_a_table_reads_well(tmp_path: Path) -> None:
    write_workbook(tmp_path / "book.xlsx", {"kernels": KERNELS})
    sheet = sheet_of(tmp_path / "book.xlsx", "kernels")
    assert sheet.freeze_panes == "A2"
    assert sheet.auto_filter.ref == "A1:G4"
    assert sheet.dimensions == "A1:G4"
    assert all(cell.font.bold for cell in sheet[1])
    formats = [cell.number_format for cell in sheet[2]][3:]
    assert formats == ["#,##0", '#,##0.000" ms"', '#,##0.000" µs"', '#,##0.00"%"']
    widths = {letter: sheet.column_dimensions[letter].width for letter in "ABCDEFG"}
    assert all(8 <= width < 53 for width in widths.values())
    assert widths["B"] >= len("Flash Attention Forward")
    assert int(widths["C"]) == 52  # the long name does not make the column longer …
    assert sheet["C4"].value == KERNELS["kernel_name"][2]  # … and is there in full,
    # cut on sight at the column's edge
    assert sheet["C4"].alignment.horizontal == "fill"
    assert not sheet["C4"].alignment.wrap_text
    assert sheet["C2"].alignment.horizontal != "fill"  # which would repeat a short one
    # not by their texts
    assert sheet.row_dimensions[2].height == sheet.row_dimensions[4].height
    assert sheet.print_title_rows == "$1:$1"
    assert (sheet.page_setup.orientation, sheet.page_setup.fitToHeight) == (
        "landscape",
        0,
    )
    assert sheet.sheet_properties.pageSetUpPr
    assert sheet.sheet_properties.pageSetUpPr.fitToPage
    rules = {str(area.sqref): area.rules for area in sheet.conditional_formatting}
    assert list(rules) == ["G2:G4"]
    assert rules["G2:G4"][0].type == "dataBar"


def test_percentages_below_zero_get_colors(tmp_path: Path) -> None:
    frame = pd.DataFrame({"difference (%)": [-5.0, 10.0]})
    write_workbook(tmp_path / "book.xlsx", {"compare": frame})
    (area,) = sheet_of(tmp_path / "book.xlsx", "compare").conditional_formatting
    assert [rule.type for rule in area.rules] == ["colorScale"]


@leaves_nothing
def test_the_first_sheet(tmp_path: Path) -> None:
    facts = [
        ("file", "trace.json.gz"),
        ("duration (ms)", np.float64(34.892)),
        ("GPU time uncategorized (%)", 1.5),
        ("events", 1707),
        ("device names", None),
        ("complete", True),
        ("lost", math.nan),
    ]
    notes = write_workbook(
        tmp_path / "book.xlsx",
        {"it's": KERNELS, "empty": KERNELS.iloc[:1]},
        facts=facts,
        notes=["Look here."],
        descriptions={"it's": "every kernel"},
        charts=[Chart("Time", "it's", "kernel_category", "total_time_ms")],
        title="My report",
    )
    assert notes == ["Look here."]
    sheet = sheet_of(tmp_path / "book.xlsx", "summary")
    assert openpyxl.load_workbook(tmp_path / "book.xlsx").sheetnames[0] == "summary"
    cells = {row[0].value: row for row in sheet.iter_rows() if row[0].value}
    assert list(cells) == [
        "My report",
        "Sheets",
        "it's",
        "empty",
        "charts",
        "Facts",
        "file",
        "duration (ms)",
        "GPU time uncategorized (%)",
        "events",
        "device names",
        "complete",
        "lost",
        "Notes",
        "Look here.",
    ]
    assert cells["duration (ms)"][1].value == 34.892
    assert cells["duration (ms)"][1].number_format == '#,##0.000" ms"'
    assert cells["GPU time uncategorized (%)"][1].number_format == '#,##0.00"%"'
    assert cells["events"][1].number_format == "#,##0"
    assert cells["complete"][1].value == "True"
    assert cells["lost"][1].value is None
    links = [cells[name][0].hyperlink for name in ("it's", "charts")]
    assert [link.location for link in links if link] == ["'it''s'!A1", "'charts'!A1"]
    assert [cell.value for cell in cells["it's"][:3]] == [
        "it's",
        "3 rows",
        "every kernel",
    ]
    assert cells["empty"][1].value == "1 row"
    assert cells["charts"][2].value == "Time"


def test_a_chart_of_what_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "book.xlsx"
    with pytest.raises(ValueError, match="needs the column 'time'"):
        write_workbook(
            path, {"table": KERNELS}, charts=[Chart("Time", "table", "cpu_op", "time")]
        )
    assert not path.exists()


def full(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@leaves_nothing
@without_leftovers
@pytest.mark.parametrize(
    ("owner", "place"),
    [(Path, "open"), (Workbook, "_store_workbook"), (Worksheet, "_check_dimensions")],
)
@pytest.mark.parametrize(
    ("failure", "error"), [(full, OutputError), (interrupted, KeyboardInterrupt)]
)
def test_failures_leave_the_old_workbook(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    place: str,
    failure: Callable[..., None],
    error: type[BaseException],
) -> None:
    path = tmp_path / "book.xlsx"
    path.write_bytes(b"the old one")
    with monkeypatch.context() as patch, pytest.raises(error):
        patch.setattr(owner, place, failure)
        write_workbook(path, {"table": KERNELS})
    assert path.read_bytes() == b"the old one"
    assert [entry.name for entry in tmp_path.iterdir()] == ["book.xlsx"]


def test_a_chart_of_no_table_is_refused_and_one_of_the_page_is_the_pages(
    tmp_path: Path,
) -> None:
    path = tmp_path / "book.xlsx"
    charts = [Chart("Time", "elsewhere", "kernel_category", "count")]
    with pytest.raises(ValueError, match="chart 'Time' needs the sheet 'elsewhere'"):
        write_workbook(path, {"kernels": KERNELS}, charts=charts)
    assert not path.exists()
    write_workbook(
        path, {"kernels": KERNELS}, charts=charts, page_sheets={"elsewhere": KERNELS}
    )
    assert openpyxl.load_workbook(path).sheetnames == ["summary", "kernels"]


def test_a_folder_is_no_workbook(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="is a folder"):
        write_workbook(tmp_path, {"table": KERNELS})


def test_the_archive_is_well_formed(tmp_path: Path) -> None:
    """Each part is XML that parses, and each part has a content type."""
    from xml.etree import ElementTree

    write_workbook(
        tmp_path / "book.xlsx",
        {"kernels": KERNELS},
        charts=[Chart("Time", "kernels", "kernel_category", "total_time_ms")],
    )
    with zipfile.ZipFile(tmp_path / "book.xlsx") as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        assert len(names) == len(set(names))
        parts = {name: ElementTree.fromstring(archive.read(name)) for name in names}  # noqa: S314
        # plain zip
        assert all(info.extract_version <= 20 for info in archive.infolist())
    typed = {
        part.get("PartName", "").lstrip("/")
        for part in parts["[Content_Types].xml"]
        if part.get("PartName")
    }
    assert {name for name in names if not name.endswith(".rels")} - typed == {
        "[Content_Types].xml"
    }
