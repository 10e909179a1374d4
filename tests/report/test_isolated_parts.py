"""Each part of a report that fails is left out and named, and all other parts stay as they are."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import openpyxl
import pandas as pd
import pytest

from tests.support.comparison_helpers import training
from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.builtin_tables import ordered_tables
from tracelens_ext.cli import run
from tracelens_ext.errors import TracelensError
from tracelens_ext.isolation import DEBUG_VARIABLE, PartFailures
from tracelens_ext.perf_report import build_perf_report
from tracelens_ext.report import excel_cells, excel_charts, html_tables
from tracelens_ext.report import html as page
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.conditions import Condition
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.writing import OutputFormat, report_text, write_report

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from types import ModuleType

    from tracelens_ext.report.report import Report
    from tracelens_ext.report.tables.table import Table

TABLES = {table.name: table for table in ordered_tables()}
CHARTS = {
    f"{table.name}: {chart.title}": chart
    for table in TABLES.values()
    for chart in table.charts
}


def every_sixth_fast(names: Iterable[str]) -> list[object]:
    """Return parameters of tests, all but every sixth marked slow: there are many of a kind."""
    return [
        pytest.param(name, marks=[pytest.mark.slow] if number % 6 else [], id=name)
        for number, name in enumerate(names)
    ]


SOME_TABLES = every_sixth_fast(TABLES)
SOME_CHARTS = every_sixth_fast(CHARTS)
#: Everything that a trace can be asked for.
OPTIONS = ReportOptions(
    tables="all", iterations=True, what_if=True, kernel_summary=True
)
ENDING = "could not be computed: ValueError: no luck; please report this"


def fails(*_: object, **__: object) -> Any:
    raise ValueError("no luck")


@pytest.fixture(scope="module")
def analyzer() -> TreePerfAnalyzer:
    return TreePerfAnalyzer(
        training(3).document(), use_kernel_name_categories=True, add_python_func=True
    )


@pytest.fixture(scope="module")
def whole(analyzer: TreePerfAnalyzer) -> Report:
    """The report in which nothing fails."""
    return build_perf_report(analyzer, OPTIONS)


@pytest.fixture
def analyzer_of_users(
    analyzer: TreePerfAnalyzer, whole: Report, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TreePerfAnalyzer]:
    """The analyzer, as if nothing had failed yet; and errors go where users see them."""
    assert whole.sheets
    monkeypatch.delenv(DEBUG_VARIABLE, raising=False)
    analyzer.failures = PartFailures()
    yield analyzer
    analyzer.failures = PartFailures()


def with_table(monkeypatch: pytest.MonkeyPatch, changed: Table) -> None:
    tables = [
        changed if table.name == changed.name else table for table in TABLES.values()
    ]
    monkeypatch.setattr("tracelens_ext.builtin_tables.ordered_tables", lambda: tables)


def assert_same_tables(report: Report, whole: Report, without: str = "") -> None:
    expected = [name for name in whole.sheets if name != without]
    assert list(report.sheets) == expected
    for name in expected:
        pd.testing.assert_frame_equal(report.sheets[name], whole.sheets[name])


@pytest.mark.parametrize("name", SOME_TABLES)
def test_a_table_that_fails_is_named_and_all_others_are_there(
    name: str,
    analyzer_of_users: TreePerfAnalyzer,
    whole: Report,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_table(monkeypatch, replace(TABLES[name], build=fails, requires=()))
    report = build_perf_report(analyzer_of_users, OPTIONS)
    assert_same_tables(report, whole, without=name)
    assert f"The table {name} {ENDING}" in report.notes
    assert [chart for chart in whole.charts if chart.sheet != name] == list(
        report.charts
    )
    for form in (OutputFormat.json, OutputFormat.markdown):
        text = "".join(report_text(report, form))
        assert f"The table {name} could not be computed" in text.replace("`", "")


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_a_condition_that_fails_costs_its_table_alone(
    name: str,
    analyzer_of_users: TreePerfAnalyzer,
    whole: Report,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    condition = Condition("the trace has luck", fails)
    with_table(monkeypatch, replace(TABLES[name], requires=[condition]))
    report = build_perf_report(analyzer_of_users, OPTIONS)
    assert_same_tables(report, whole, without=name)
    assert f"The table {name} {ENDING}" in report.notes
    assert "luck" not in str(dict(report.facts)["Sheets left out"])


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_notes_that_fail_cost_nothing_else(
    name: str,
    analyzer_of_users: TreePerfAnalyzer,
    whole: Report,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_table(monkeypatch, replace(TABLES[name], notes=fails))
    report = build_perf_report(analyzer_of_users, OPTIONS)
    assert_same_tables(report, whole)
    assert f"The notes on the table {name} {ENDING}" in report.notes
    assert list(report.charts) == list(whole.charts)


@pytest.mark.parametrize("title", SOME_CHARTS)
def test_a_chart_that_fails_is_named_and_all_others_are_there(
    title: str,
    analyzer_of_users: TreePerfAnalyzer,
    whole: Report,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chart = CHARTS[title]
    name = chart.sheet
    if chart not in whole.charts:
        pytest.skip("the trace has no such table")
    charts = list(TABLES[name].charts)
    charts[charts.index(chart)] = replace(chart, prepare=fails)
    with_table(monkeypatch, replace(TABLES[name], charts=charts))
    report = build_perf_report(analyzer_of_users, OPTIONS)
    assert_same_tables(report, whole)
    assert list(report.charts) == [each for each in whole.charts if each is not chart]
    assert f"The chart “{chart.title}” {ENDING}" in report.notes


@pytest.mark.parametrize(
    ("function", "part"),
    [
        ("tracelens_ext.analyzer.find_roofline", "The roofline"),
        ("tracelens_ext.analyzer.Simulation", "The simulation"),
        ("tracelens_ext.analyzer.find_memory", "The memory analysis"),
        ("tracelens_ext.analyzer.find_findings", "The findings"),
        ("tracelens_ext.perf_report.overview.overview", "The overview"),
        ("tracelens_ext.perf_report.overview.advice", "The advice about the recording"),
        ("tracelens_ext.perf_report.recording_lines", "The summary of the recording"),
    ],
)
def test_what_several_tables_rest_on_is_named_once(
    function: str, part: str, whole: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(DEBUG_VARIABLE, raising=False)
    monkeypatch.setattr(function, fails)
    document = training(3).document()
    memory = {"Device Type": 1, "Device Id": 0, "Addr": 1, "Bytes": 512}
    instant = {
        "ph": "i",
        "cat": "cpu_instant_event",
        "name": "[memory]",
        "pid": 1,
        "tid": 1,
    }
    document["traceEvents"].append({**instant, "ts": 10, "args": memory})
    report = build_perf_report(
        TreePerfAnalyzer(
            document, use_kernel_name_categories=True, add_python_func=True
        ),
        OPTIONS,
    )
    assert report.notes.count(f"{part} {ENDING}") == 1
    assert not [
        note
        for note in report.notes
        if "could not" in note and not note.startswith(part)
    ]
    assert {"gpu_timeline", "kernels", "recording", "ops_summary"} <= set(report.sheets)
    pd.testing.assert_frame_equal(report.sheets["kernels"], whole.sheets["kernels"])


def test_the_sheet_of_a_workbook_that_fails_is_named_on_the_first(
    whole: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(DEBUG_VARIABLE, raising=False)
    usual = excel_cells.write_table

    def fails_for_kernels(
        book: Any, sheet: Any, frame: Any, *, wrap_texts: bool
    ) -> list[str]:
        if sheet.name == "kernels":
            fails()
        return usual(book, sheet, frame, wrap_texts=wrap_texts)

    monkeypatch.setattr(excel_cells, "write_table", fails_for_kernels)
    write_report(whole, {tmp_path / "r.xlsx": OutputFormat.xlsx})
    book = openpyxl.load_workbook(tmp_path / "r.xlsx")
    assert f"The sheet kernels {ENDING}" in texts_of(book, "summary")
    assert book["ops_summary"].max_row == len(whole.sheets["ops_summary"]) + 1
    assert book["kernels"].max_row == 1


def test_the_chart_of_a_workbook_that_fails_is_named_on_the_first(
    whole: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(DEBUG_VARIABLE, raising=False)
    monkeypatch.setattr(excel_charts, "_bar_fills", fails)
    write_report(whole, {tmp_path / "r.xlsx": OutputFormat.xlsx})
    book = openpyxl.load_workbook(tmp_path / "r.xlsx")
    assert f"The chart “GPU time by category” {ENDING}" in texts_of(book, "summary")
    assert "GPU timeline (ms)" in texts_of(book, "charts")


def texts_of(book: Any, sheet: str) -> list[str]:
    return [
        str(cell.value) for row in book[sheet].iter_rows() for cell in row if cell.value
    ]


@pytest.mark.parametrize("kind", page._DRAWINGS)
def test_a_drawing_of_a_page_that_fails_is_named_there(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(DEBUG_VARIABLE, raising=False)
    monkeypatch.setitem(page._DRAWINGS, kind, fails)
    tables = {"t": pd.DataFrame({"name": ["a"], "time_ms": [1.0]})}
    charts = [Chart(title, "t", "name", "time_ms") for title in ("One", "Two", "Three")]
    charts[1] = replace(charts[1], kind=kind)  # type: ignore[arg-type]
    failures = PartFailures()
    figures = page.page_figures(tables, charts, failures)
    assert [figure.title for figure in figures] == ["One", "Three"]
    assert failures.messages == [f"The chart “Two” {ENDING}"]


@pytest.mark.parametrize(
    ("module", "function", "part"),
    [
        (page, "finding_cards", "The findings of the page"),
        (page, "headline", "The headline of the page"),
        (html_tables, "_text_column", "The table kernels of the page"),
    ],
)
def test_a_part_of_a_page_that_fails_is_named_there(
    module: ModuleType,
    function: str,
    part: str,
    whole: Report,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("plotly")
    pytest.importorskip("jinja2")
    monkeypatch.delenv(DEBUG_VARIABLE, raising=False)
    monkeypatch.setattr(module, function, fails)
    notes = page.write_html(tmp_path / "p.html", whole)
    assert f"{part} {ENDING}" in notes
    assert f"{part} could not be computed" in (tmp_path / "p.html").read_text(
        encoding="utf-8"
    )


def test_the_command_names_what_failed_and_writes_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(DEBUG_VARIABLE, raising=False)
    with_table(monkeypatch, replace(TABLES["kernels"], build=fails))
    trace = tmp_path / "t.json"
    trace.write_text(json.dumps(training(2).document()), encoding="utf-8")
    folder = tmp_path / "csv"
    outputs = ["--csv-dir", str(folder), "-o", str(tmp_path / "r.json")]
    assert run(["report", str(trace), *outputs]) == 0
    captured = capsys.readouterr()
    assert f"The table kernels {ENDING}" in " ".join(
        (captured.out + captured.err).split()
    )
    document = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert f"The table kernels {ENDING}" in document["notes"]
    assert "kernels" not in document["tables"]
    assert (folder / "gpu_timeline.csv").is_file()
    assert not (folder / "kernels.csv").exists()


def test_developers_see_errors_where_they_happen(
    analyzer: TreePerfAnalyzer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_table(monkeypatch, replace(TABLES["kernels"], build=fails))
    with pytest.raises(ValueError, match="no luck"):
        build_perf_report(analyzer, OPTIONS)


# Traces with little in them.


def host_only() -> dict[str, Any]:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 50)
    maker.op("aten::add", 60, 10)
    return maker.document()


def kernels_only() -> dict[str, Any]:
    maker = TraceMaker()
    maker.kernel("gemm", 10, 5)
    maker.kernel("add", 20, 5)
    return maker.document()


def one_event(category: str, name: str) -> dict[str, Any]:
    arguments = {"device": 0, "stream": 7, "correlation": 1}
    event = {
        "ph": "X",
        "pid": 1,
        "tid": 1,
        "ts": 5,
        "dur": 2,
        "cat": category,
        "name": name,
    }
    return {"traceEvents": [{**event, "args": arguments}]}


SMALL = {
    "host only": host_only(),
    "kernels only": kernels_only(),
    "one kernel": one_event("kernel", "gemm"),
    "one copy": one_event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)"),
    "one operation": one_event("cpu_op", "aten::mm"),
    "one launch": one_event("cuda_runtime", "cudaLaunchKernel"),
    "one step": one_event("user_annotation", "ProfilerStep#1"),
}


@pytest.fixture(scope="module", params=SMALL)
def small(request: pytest.FixtureRequest) -> TreePerfAnalyzer:
    document = SMALL[request.param]
    return TreePerfAnalyzer(
        document, use_kernel_name_categories=True, add_python_func=True
    )


@pytest.mark.parametrize("name", SOME_TABLES)
def test_every_table_of_a_small_trace_is_a_table_or_says_what_it_needs(
    name: str, small: TreePerfAnalyzer
) -> None:
    try:
        table = small.table(name)
    except TracelensError as error:
        assert str(error)
    else:
        assert table is None or isinstance(table, pd.DataFrame)


def test_a_report_of_a_small_trace_has_every_table_that_it_can(
    small: TreePerfAnalyzer, tmp_path: Path
) -> None:
    report = build_perf_report(small, OPTIONS)
    assert "recording" in report.sheets
    assert not small.failures.messages
    write_report(report, {tmp_path / "r.xlsx": OutputFormat.xlsx})
