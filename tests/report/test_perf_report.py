"""The report from Python: its sheets, its outputs, and what it never writes over."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import openpyxl
import pandas as pd
import pytest

from tests.support.comparison_helpers import training, write
from tracelens_ext import TreePerfAnalyzer, generate_perf_report_pytorch
from tracelens_ext.errors import OutputError, TraceError, UsageError
from tracelens_ext.perf_report import build_perf_report, default_report_path
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.writing import OutputFormat, fast_pandas, write_report


@pytest.fixture
def trace(short_demo_trace: Path) -> Path:
    return short_demo_trace


CATEGORY_SHEETS = {"kernels_by_category", "kernel_categories"}


def test_sheets_with_and_without_categories(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.json", training(3))
    plain = generate_perf_report_pytorch(trace, tmp_path / "plain.xlsx")
    assert {"gpu_timeline", "kernel_summary"} <= set(plain)
    assert not CATEGORY_SHEETS & set(plain)
    assert not [name for name, table in plain.items() if "kernel_category" in table]
    book = openpyxl.load_workbook(tmp_path / "plain.xlsx")
    drawn = {str(c.value) for row in book["charts"].iter_rows() for c in row}
    assert not [text for text in drawn if "categor" in text]
    first = " ".join(str(c.value) for row in book["summary"].iter_rows() for c in row)
    assert "ncategorized" not in first
    columns = list(plain["kernel_summary"])

    sheets = generate_perf_report_pytorch(
        trace, tmp_path / "full.xlsx", use_kernel_name_categories=True
    )
    assert set(sheets) >= CATEGORY_SHEETS
    with_categories = sheets["kernel_summary"]
    assert [c for c in with_categories if c != "kernel_category"] == columns
    assert "kernel_category" in with_categories
    book = openpyxl.load_workbook(tmp_path / "full.xlsx")
    assert book.sheetnames[0] == "summary"
    assert set(sheets) <= set(book.sheetnames)
    with zipfile.ZipFile(tmp_path / "full.xlsx") as package:
        assert (
            len([n for n in package.namelist() if n.startswith("xl/charts/chart")]) == 5
        )
    for name in sheets:
        assert book[name].freeze_panes is not None
        assert book[name].auto_filter.ref is not None
        assert book[name]["A1"].font.bold


@pytest.mark.usefixtures("few_tables")
def test_without_an_output_the_workbook_is_beside_the_trace(
    trace: Path, tmp_path: Path
) -> None:
    path = tmp_path / trace.name
    shutil.copy(trace, path)
    generate_perf_report_pytorch(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        trace.name,
        "run_perf_report.xlsx",
    ]
    assert default_report_path("a/b.json.gz") == Path("a/b_perf_report.xlsx")


@pytest.mark.usefixtures("few_tables")
def test_csv_files_hold_the_sheets(trace: Path, tmp_path: Path) -> None:
    sheets = generate_perf_report_pytorch(trace, output_csvs_dir=tmp_path / "csv")
    assert {p.stem for p in (tmp_path / "csv").glob("*.csv")} == set(sheets)
    assert not list(tmp_path.glob("*.xlsx"))


@pytest.mark.slow
def test_options_of_the_tables(trace: Path, tmp_path: Path) -> None:
    def sheets(**options: object) -> dict[str, int]:
        made = generate_perf_report_pytorch(
            trace,
            tmp_path / "r.xlsx",
            **options,  # type: ignore[arg-type]
        )
        return {name: len(table) for name, table in made.items()}

    assert "kernel_summary" not in sheets(kernel_summary=False)
    short = sheets(
        short_kernel_study=True, short_kernel_histogram_bins=7, topk_short_kernels=3
    )
    assert (short["short_kernel_histogram"], short["short_kernels_summary"]) == (7, 3)
    assert (
        sheets(micro_idle_thresh_us=5)["gpu_timeline"] == sheets()["gpu_timeline"] + 2
    )
    assert sheets(topk_ops=4)["ops_summary"] == 4
    assert "coll_analysis" not in sheets(collective_analysis=False)


@pytest.mark.parametrize(
    "options",
    [{"topk_ops": 0}, {"short_kernel_histogram_bins": 0}, {"micro_idle_thresh_us": -1}],
)
def test_numbers_that_make_no_sense_are_refused(
    trace: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match="expected a"):
        generate_perf_report_pytorch(trace, tmp_path / "r.xlsx", **options)
    assert not list(tmp_path.iterdir())


def test_the_trace_is_never_written_over(trace: Path) -> None:
    before = trace.read_bytes()
    with pytest.raises(OutputError, match="is the trace itself"):
        generate_perf_report_pytorch(trace, trace)
    assert trace.read_bytes() == before


def test_a_report_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    report = tmp_path / "report.xlsx"
    report.write_bytes(b"a good report")
    broken = tmp_path / "broken.json"
    broken.write_text('{"traceEvents": [', encoding="utf-8")
    with pytest.raises(TraceError):
        generate_perf_report_pytorch(broken, report)
    assert report.read_bytes() == b"a good report"


@pytest.mark.usefixtures("few_tables")
def test_iterations_are_sheets_when_asked_for(demo_trace: Path, tmp_path: Path) -> None:
    asked = generate_perf_report_pytorch(
        demo_trace,
        tmp_path / "r.xlsx",
        tmp_path / "csv",
        iterations=True,
        use_kernel_name_categories=True,
    )
    analyzer = TreePerfAnalyzer(demo_trace, use_kernel_name_categories=True)
    with fast_pandas():  # texts are kept as in a report
        table = analyzer.get_df_iterations()
        statistics = analyzer.get_df_iteration_statistics()
    pd.testing.assert_frame_equal(asked["iterations"], table)
    pd.testing.assert_frame_equal(asked["iteration_statistics"], statistics)
    times = asked["iterations"]
    parts = ["computation_time_ms", "exposed_comm_time_ms", "exposed_memcpy_time_ms"]
    assert times[parts].sum(axis=1).tolist() == pytest.approx(
        times["busy_time_ms"].tolist()
    )
    book = openpyxl.load_workbook(tmp_path / "r.xlsx")
    assert book["iterations"].max_row == len(times) + 1
    assert {"iterations.csv", "iteration_statistics.csv"} <= {
        path.name for path in (tmp_path / "csv").iterdir()
    }


@pytest.mark.usefixtures("few_tables")
def test_annotations_of_ones_own_are_iterations(
    demo_trace: Path, tmp_path: Path
) -> None:
    sheets = generate_perf_report_pytorch(
        demo_trace, tmp_path / "r.xlsx", annotation="Step#[56]$"
    )
    names = sheets["iterations"]["iteration"].tolist()
    assert names == ["ProfilerStep#5", "ProfilerStep#6"]
    with pytest.raises(UsageError, match="not a regular expression"):
        generate_perf_report_pytorch(demo_trace, tmp_path / "r.xlsx", annotation="(")
    none = generate_perf_report_pytorch(
        demo_trace, tmp_path / "none.xlsx", annotation="nothing such"
    )
    assert "iterations" not in none
    book = openpyxl.load_workbook(tmp_path / "none.xlsx")
    first = " ".join(str(c.value) for row in book["summary"].iter_rows() for c in row)
    assert "no annotation that matches 'nothing such'" in first


@pytest.mark.slow
def test_the_page_has_the_iterations_of_every_trace(demo_trace: Path) -> None:
    analyzer = TreePerfAnalyzer(demo_trace)
    report = build_perf_report(analyzer, for_page=True)
    drawn = [
        "finding_details",
        "timeline_bins",
        "timeline_markers",
        "call_tree",
        "idle_call_tree",
        "memory_over_time",
        "memory_iterations",
    ]
    drawn += ["critical_path_summary", "iteration_statistics", "roofline_peaks"]
    assert list(report.page_sheets) == drawn
    assert not set(report.page_sheets) & set(report.sheets)
    cited = {"gap_summary", "idle_cpu_activity", "iterations"}
    assert cited <= set(report.sheets), "evidence cites them"
    asked = ReportOptions(
        gaps=True,
        iterations=True,
        timeline_bins=True,
        call_tree=True,
        what_if=True,
        finding_details=True,
        tables="memory_over_time,memory_iterations,roofline_peaks",
    )
    both = build_perf_report(analyzer, asked, for_page=True)
    assert set(report.page_sheets) <= set(both.sheets)
    assert both.page_sheets == {}
    assert build_perf_report(analyzer).page_sheets == {}


def test_the_default_report_is_for_reading(trace: Path, tmp_path: Path) -> None:
    report = build_perf_report(TreePerfAnalyzer(trace, use_kernel_name_categories=True))
    assert [answer.sheet for answer in report.answers] == [
        "findings",
        "gpu_timeline",
        "gpu_time_by_category",
        "kernels",
    ]
    for name in ("kernels", "kernels_by_category"):
        kernels = report.sheets[name]
        assert (kernels.columns[0], kernels.columns[-1]) == ("kernel", "kernel_name")
        assert kernels["kernel"].nunique() == kernels["kernel_name"].nunique()
    assert "kernel_summary" not in report.sheets
    operations = report.sheets["ops_summary"]
    assert not [name for name in map(str, operations) if name.endswith("_sum")]
    assert not operations["Categories"].str.contains("[", regex=False).any()
    arguments = list(report.sheets["ops_unique_args"])
    assert arguments.index("total_direct_kernel_time_ms") < arguments.index(
        "process_name"
    )
    by_category = report.sheets["gpu_time_by_category"]
    assert by_category["total_time_ms"].sum() == pytest.approx(
        kernels["total_time_ms"].sum()
    )
    # Headers tell their units.
    write_report(report, {tmp_path / "r.xlsx": OutputFormat.xlsx})
    book = openpyxl.load_workbook(tmp_path / "r.xlsx")
    headers = [cell.value for cell in book["kernels_by_category"][1]]
    assert "count (GPU events)" in headers
    assert "avg_time_us" in headers
    first = [row[0].value for row in book["summary"].iter_rows() if row[0].value]
    places = [
        first.index(t) for t in ("GPU timeline", "GPU time by category", "Top kernels")
    ]
    assert places == sorted(places)
    assert places[-1] < first.index("Sheets") < first.index("Facts")
