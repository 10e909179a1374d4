"""The registry of sheets: what a new one takes, and what a plugin's may do wrong."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openpyxl
import pandas as pd
import pytest

from docs.scripts.generated_pages import expanded
from tests.docs.test_tables import sheets
from tests.support.categorize_helpers import FakeEntryPoint, plugin
from tests.support.comparison_helpers import training, write
from tests.support.docs_helpers import page_text
from tests.support.make_trace import cuda_graph_example
from tracelens_ext import (
    TreePerfAnalyzer,
    builtin_tables,
    generate_perf_report_pytorch,
    hookimpl,
)
from tracelens_ext.errors import UsageError
from tracelens_ext.hooks import PluginRegistry
from tracelens_ext.perf_report import build_perf_report
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.earlier_declarations import (
    columns_of_text,
    screen_of_text,
)
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import Table
from tracelens_ext.report.tables.views import AnswerView, ScreenView
from tracelens_ext.report.writing import OutputFormat, write_report

if TYPE_CHECKING:
    from tracelens_ext.report.report import Report
    from tracelens_ext.trace.gpu_events import GpuEvents

ROOT = Path(__file__).resolve().parents[2]


def example() -> tuple[str, str, list[list[str]]]:
    """The diff of the page on the architecture: the new file, its text, and the other hunks."""
    text = page_text("architecture.md")
    (diff,) = re.findall(
        r"```diff\n(--- /dev/null\n\+\+\+ b/tracelens_ext/analysis/timeline/.*?)```",
        text,
        re.DOTALL,
    )
    new, changed = diff.split("--- a/tracelens_ext/builtin_tables.py\n")
    header, _, *lines = new.removeprefix("--- /dev/null\n").splitlines()
    assert all(line.startswith("+") for line in lines)
    code = "".join(f"{line[1:]}\n" for line in lines)
    hunks = [hunk.splitlines() for hunk in changed.split("@@\n")[1:]]
    return Path(header.removeprefix("+++ b/")).stem, code, hunks


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The example applied, nothing more: a file, and its registration."""
    name, code, hunks = example()
    (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    full_name = f"tracelens_ext.analysis.timeline.{name}"
    spec = importlib.util.spec_from_file_location(full_name, tmp_path / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, full_name, module)
    spec.loader.exec_module(module)

    source = inspect.getsource(builtin_tables)
    for hunk in hunks:
        before = "".join(f"{line[1:]}\n" for line in hunk if line[0] in " -")
        after = "".join(f"{line[1:]}\n" for line in hunk if line[0] in " +")
        assert source.count(before) == 1
        assert [line[0] for line in hunk].count("+") == 1
        source = source.replace(before, after)
    changed: dict[str, Any] = {"__name__": "changed"}
    exec(source, changed)  # noqa: S102  # a file of this project
    monkeypatch.setattr(builtin_tables, "ordered_tables", changed["ordered_tables"])
    return name


def test_adding_a_sheet_is_one_file_and_one_registration(
    added: str, tmp_path: Path
) -> None:
    trace = write(tmp_path / "t.json", training(2))
    tables = generate_perf_report_pytorch(trace, tmp_path / "r.xlsx", tmp_path / "csv")
    assert list(tables[added]) == ["stream", "count", "total_time_us"]
    book = openpyxl.load_workbook(tmp_path / "r.xlsx")
    assert book[added].max_row == len(tables[added]) + 1
    first = " ".join(str(c.value) for row in book["summary"].iter_rows() for c in row)
    assert "GPU events by stream" in first
    assert "GPU time by stream" in first
    assert (tmp_path / "csv" / f"{added}.csv").is_file()
    page = expanded(page_text("tables.md"), sheets())
    assert f"| [`{added}`](#{added}) | the trace has GPU events |" in page
    assert (
        "| `total_time_us` | µs | total duration of the GPU events |"
        in page.partition(f"\n## `{added}`\n")[2]
    )


# Of plugins.


def report_with(
    monkeypatch: pytest.MonkeyPatch, *items: object, tables: str = ""
) -> tuple[Report, list[str]]:
    """The report of a small trace with what a plugin offers, and the plugin's problems."""

    @hookimpl
    def tracelens_sheets() -> tuple[object, ...]:
        return items

    found = [
        FakeEntryPoint("sheets", builtin_tables, own=True),
        FakeEntryPoint("theirs", plugin(tracelens_sheets=tracelens_sheets)),
    ]
    registry = PluginRegistry(found)
    monkeypatch.setattr("tracelens_ext.perf_report.default_registry", lambda: registry)
    analyzer = TreePerfAnalyzer(cuda_graph_example())
    return build_perf_report(analyzer, tables=tables), registry.problems


def mine(**fields: Any) -> Table:
    """A sheet of a plugin."""
    usual: dict[str, Any] = {
        "name": "mine",
        "description": "What it shows",
        "columns": [Column("name", "what it is"), Column("time_ms", "how long")],
        "build": lambda *_: pd.DataFrame({"name": ["a"], "time_ms": [1.0]}),
    }
    return Table(**usual | fields)


def test_a_plugin_adds_a_sheet_with_charts_and_notes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chart = Chart("Mine", "mine", "name", "time_ms")
    other = Chart("No such column", "mine", "name", "size")
    sheet = mine(charts=[chart, other], notes=lambda *_: ["A note."])
    report, problems = report_with(monkeypatch, sheet)
    assert problems == []
    assert list(report.sheets)[-1] == "mine"
    assert report.descriptions["mine"] == "What it shows"
    assert report.charts[-1] is chart
    assert "A note." in report.notes
    write_report(report, {tmp_path / "r.xlsx": OutputFormat.xlsx})
    assert "mine" in openpyxl.load_workbook(tmp_path / "r.xlsx").sheetnames


def test_a_sheet_that_has_nothing_to_show_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report, problems = report_with(monkeypatch, mine(build=lambda *_: None))
    assert "mine" not in report.sheets
    assert problems == []
    report, _ = report_with(monkeypatch, mine(enabled_by="gaps"))
    assert "mine" not in report.sheets


def _fails(*_: object, **__: object) -> Any:
    raise ValueError("no luck")


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ("mine", "tracelens_sheets: expected Table objects, got str"),
        (
            mine(charts=[Chart("T", "other", "a", "b")]),
            "sheet 'mine': its chart is of 'other'",
        ),
        (mine(name="GPU_Timeline"), "sheet 'GPU_Timeline': the report already has one"),
        (mine(build=lambda *_: [1]), "sheet 'mine': expected a DataFrame, got list"),
        (mine(build=_fails), "ValueError: no luck"),
        (mine(notes=_fails), "ValueError: no luck"),
        (mine(enabled_by="no_such"), "sheet 'mine': there is no option 'no_such'"),
    ],
)
def test_a_broken_sheet_of_a_plugin_costs_no_other(
    monkeypatch: pytest.MonkeyPatch, item: object, problem: str
) -> None:
    report, problems = report_with(monkeypatch, item, mine(name="good"))
    assert problems == [f"theirs: {problem}"]
    assert {"gpu_timeline", "good"} <= set(report.sheets)


@pytest.mark.filterwarnings("ignore:.*columns as text:DeprecationWarning")
def test_columns_in_the_earlier_notation_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = """
        name, label: what it is,
            in words
        time_ms [ms]: how long
        """
    report, problems = report_with(monkeypatch, mine(columns=text))
    assert problems == []
    assert report.units["mine"] == {"name": "", "time_ms": "ms"}
    assert columns_of_text(text, "mine") == [
        Column("name", "what it is, in words"),
        Column("label", "what it is, in words"),
        Column("time_ms", "how long", unit="ms"),
    ]


@pytest.mark.filterwarnings("ignore:.*columns as text:DeprecationWarning")
def test_a_text_that_describes_no_column_is_the_plugins_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report, problems = report_with(
        monkeypatch, mine(columns="a column"), mine(name="good")
    )
    assert problems == ["theirs: sheet 'mine': 'a column' describes no column"]
    assert {"gpu_timeline", "good"} <= set(report.sheets)


@pytest.mark.filterwarnings("ignore:table 'mine'.*:DeprecationWarning")
def test_functions_of_tables_in_the_earlier_form_are_called_as_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def count(work: GpuEvents, options: ReportOptions) -> pd.DataFrame:
        return pd.DataFrame({"name": [options.topk_ops], "time_ms": [float(len(work))]})

    report, problems = report_with(monkeypatch, mine(build=count))
    assert problems == []
    assert report.sheets["mine"]["time_ms"].tolist() == [3.0]
    assert screen_of_text("By name: name, time_ms") == ScreenView(
        "By name", ["name", "time_ms"]
    )


def test_tables_that_are_declared_with_the_earlier_names_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.warns(DeprecationWarning, match="is now") as caught:
        table = Table(  # type: ignore[call-arg]
            name="mine",
            shows="What it shows",
            columns=[Column("name", "what it is")],
            table=lambda *_: pd.DataFrame({"name": ["a"]}),
            when=[],
            asked_by="tables",
            answer="My names",  # type: ignore[arg-type]
            answer_columns=["name"],
        )
    assert {warning.filename for warning in caught} == {__file__}
    assert table.description == "What it shows"
    assert table.requires == []
    assert table.enabled_by == "tables"
    assert table.answer == AnswerView("My names", columns=["name"])

    report, problems = report_with(monkeypatch, table, tables="mine")
    assert problems == []
    assert report.sheets["mine"]["name"].tolist() == ["a"]
    assert report.answers[-1].title == "My names"


def test_a_slow_sheet_of_a_plugin_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACELENS_EXT_PLUGIN_SECONDS", "0.1")
    report, problems = report_with(monkeypatch, mine(build=lambda *_: time.sleep(0.5)))
    assert problems[0].startswith("theirs: no answer within 0.1 s")
    assert "mine" not in report.sheets


# Why a sheet is absent, and options.


def test_a_sheet_says_what_the_trace_lacks() -> None:
    analyzer = TreePerfAnalyzer(cuda_graph_example())
    lacking = {
        sheet.name: sheet.why_absent(analyzer, ReportOptions()) for sheet in sheets()
    }
    assert lacking["gpu_timeline"] == lacking["graph_launches"] == ""
    assert lacking["kernel_categories"] == "categories are on"
    assert lacking["iterations"].startswith("the trace has iterations")
    assert lacking["cpu_ops"].startswith("the trace has no GPU events")


def test_options_are_spelled_once() -> None:
    named = set(ReportOptions.__dataclass_fields__)
    for function in (build_perf_report, generate_perf_report_pytorch):
        parameters = inspect.signature(function).parameters
        assert named <= set(parameters)
        assert parameters["short_kernel_histogram_bins"].default == 100
        assert all(f"        {name}: " in str(function.__doc__) for name in named)
    used = {
        name
        for sheet in sheets()
        for name in (sheet.enabled_by, *sheet.options)
        if name
    }
    assert used == named
    with pytest.raises(TypeError, match="topk_opps"):
        generate_perf_report_pytorch("trace.json", topk_opps=3)
    with pytest.raises(
        UsageError, match="topk_ops is 0; expected a number of at least 1"
    ):
        ReportOptions(topk_ops=0)
