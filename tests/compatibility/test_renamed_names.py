"""The names of version 0.1: of output with `TRACELENS_EXT_NAMES=0.1`, of options, and in Python."""

from __future__ import annotations

import csv
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from docs.scripts.renamed_page import PAGE, page_text
from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer, generate_perf_report_pytorch
from tracelens_ext.analysis.iterations.selection import EventFilter
from tracelens_ext.cli import run
from tracelens_ext.cli.app import build_command, offered_commands
from tracelens_ext.compatibility.earlier_names import (
    VARIABLE,
    earlier_document,
    earlier_table,
    new_column_names,
)
from tracelens_ext.compatibility.renamed_names import RENAMED_NAMES, Kind, new_names
from tracelens_ext.findings.finding import Finding, Findings, Place
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.registry import offered_tables, tables_by_method
from tracelens_ext.settings import ReadingOptions

COMMANDS = [
    ["findings", "trace.json", "--json"],
    ["gaps", "trace.json", "--json"],
    ["iterations", "trace.json", "--json"],
    ["kernels", "trace.json", "--gaps", "--json"],
    ["roofline", "trace.json", "--json"],
    ["what-if", "trace.json", "--json"],
    ["compare", "trace.json", "slower.json", "--json"],
]


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two traces with gaps, in the working folder."""
    monkeypatch.chdir(tmp_path)
    for name, gap_us in (("trace.json", 1_000), ("slower.json", 3_000)):
        maker = TraceMaker()
        for number in range(6):
            start = 10_000 + number * (500 + gap_us)
            maker.annotation(f"ProfilerStep#{number}", start, 490 + gap_us)
            maker.op("aten::mm", start + gap_us - 20, 40)
            maker.launched(
                "gemm",
                start + gap_us + 10,
                400,
                correlation=number + 1,
                at=start + gap_us,
            )
        Path(name).write_text(json.dumps(maker.document()), encoding="utf-8")


@pytest.fixture
def earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0.1")


def keys_of(value: object) -> Iterator[str]:
    """Yield all keys of a document."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from keys_of(item)
    elif isinstance(value, list):
        for item in value:
            yield from keys_of(item)


def test_the_page_is_what_the_table_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_text(), f"run: python {PAGE}"


def test_no_name_is_old_and_new_at_one_place() -> None:
    for kind in Kind:
        names = new_names(kind)
        assert not set(names) & set(names.values()), kind


def test_no_table_declares_an_old_name() -> None:
    old_tables = set(new_names(Kind.TABLE))
    for offered in offered_tables():
        table = offered.item
        assert table.name not in old_tables
        names = [column.name for column in table.columns]
        assert new_column_names(names, table.name) == {}, table.name


def test_renamed_columns_are_those_of_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0.1")
    columns = {}
    for offered in offered_tables():
        columns[offered.item.name] = [column.name for column in offered.item.columns]
    for renamed in RENAMED_NAMES:
        is_column = renamed.kind is Kind.COLUMN and "*" not in renamed.new
        for table in renamed.where:
            if is_column and table in columns:
                assert renamed.new in columns[table], renamed


@pytest.mark.usefixtures("traces")
@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: arguments[0])
def test_a_command_has_the_names_that_are_wanted(
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(arguments) == 0
    now = json.loads(capsys.readouterr().out)
    monkeypatch.setenv(VARIABLE, "0.1")
    assert run(arguments) == 0
    before = json.loads(capsys.readouterr().out)
    assert before == earlier_document(now)
    old = set(new_names(Kind.TABLE)) | set(new_names(Kind.FIELD))
    old -= {"saving_ms"}  # it is a new name, too
    assert not old & set(keys_of(now))
    new = set(new_names(Kind.TABLE).values()) | {"analyzed_ms", "attributed_ms"}
    assert not new & set(keys_of(before))
    assert len(list(keys_of(now))) == len(list(keys_of(before)))


@pytest.mark.usefixtures("traces", "earlier")
def test_tables_in_files_have_the_earlier_names() -> None:
    options: dict[str, Any] = {"gaps": True, "iterations": True, "time_axis": True}
    with pytest.warns(DeprecationWarning, match="time_axis of .* is now timeline_bins"):
        tables = generate_perf_report_pytorch(
            "trace.json", "out.xlsx", "csvs", **options
        )
    assert {"gap_hosts", "gap_pairs", "time_axis"} <= set(tables)
    assert "claimed_ms" in tables["findings"]
    with pd.ExcelFile("out.xlsx") as book:
        assert book.sheet_names.count("gap_hosts") == 1
    assert "% of judged time" in pd.read_excel("out.xlsx", "findings")
    with Path("csvs/findings.csv").open(encoding="utf-8") as file:
        assert "claimed_ms" in next(csv.reader(file))
    assert Path("csvs/gap_pairs.csv").exists()
    assert not Path("csvs/idle_by_kernel_pair.csv").exists()


@pytest.mark.usefixtures("traces", "earlier")
def test_sql_has_the_earlier_names(capsys: pytest.CaptureFixture[str]) -> None:
    query = 'select claimed_ms, "% of judged time" from findings'
    assert run(["sql", "trace.json", query, "--csv"]) == 0
    header = capsys.readouterr().out.splitlines()[0]
    assert header == "claimed_ms,% of judged time"
    assert run(["sql", "trace.json", "select count(*) from gap_hosts", "--csv"]) == 0
    assert run(["sql", "--schema"]) == 0
    assert "-- gap_hosts(" in capsys.readouterr().out
    assert run(["export", "trace.json", "-o", "trace.db"]) == 0
    with closing(sqlite3.connect("trace.db")) as connection:
        cursor = connection.execute("select * from findings")
        assert "claimed_ms" in [column[0] for column in cursor.description]


@pytest.mark.usefixtures("traces")
def test_reports_with_either_names_compare_as_equal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", "trace.json", "-o", "now.json", "-q"]) == 0
    monkeypatch.setenv(VARIABLE, "0.1")
    assert run(["report", "trace.json", "-o", "before.json", "-q"]) == 0
    monkeypatch.delenv(VARIABLE)
    capsys.readouterr()
    assert run(["compare", "now.json", "before.json", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["tables"]["findings"]
    assert findings
    for finding in findings:
        assert finding["A_attributed_ms"] == finding["B_attributed_ms"] > 0


def test_places_and_claims_are_no_savings_in_comparisons() -> None:
    frame = pd.DataFrame({"finding": ["synchronization"], "A_attributed_ms": [1.0]})
    assert list(earlier_table(frame, "findings")) == list(frame)


@pytest.mark.usefixtures("earlier")
def test_values_have_the_earlier_names() -> None:
    frame = pd.DataFrame(
        {
            "finding": ["synchronization", "host-bound"],
            "A_attributed_ms": [1.0, 2.0],
            "B_difference_percent": [0.0, 0.0],
            "see": ["gap_summary, idle_cpu_activity", ""],
        }
    )
    assert earlier_table(frame, "findings").to_dict("list") == {
        "finding": ["synchronisation", "host-bound"],
        "A_saving_ms": [1.0, 2.0],
        "B_difference_%": [0.0, 0.0],
        "see": ["gap_summary, gap_hosts", ""],
    }
    document = {"model": {"state": "ok"}, "traces": [{"state": "ok"}]}
    assert earlier_document(document) == {
        "model": {"state": "good"},
        "traces": [{"state": "ok"}],
    }


@pytest.mark.usefixtures("traces")
@pytest.mark.parametrize("renamed", [n for n in RENAMED_NAMES if n.kind is Kind.OPTION])
def test_an_old_option_works_and_one_line_names_the_new_one(
    renamed: Any,  # a name
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = {
        "--pstep": ["kernels", "trace.json", "--pstep", "2"],
        "--pstep-by": ["gaps", "trace.json", "--step=2", "--pstep-by=time"],
        "--salvage": ["tree", "trace.json", "--salvage"],
        "--without-pack": ["kernels", "trace.json", "--without-pack", "gemm"],
        "--time-axis": ["report", "trace.json", "--time-axis", "--no-workbook"],
        "--format json": ["compare", "trace.json", "slower.json", "--format", "json"],
    }
    if renamed.old == "--waits":  # its file needs pyarrow
        parameters = build_command(offered_commands()["what-if"]).params
        assert renamed.new in [name for option in parameters for name in option.opts]
        return
    assert run(arguments[renamed.old]) == 0
    lines = capsys.readouterr().err.splitlines()
    expected = (
        f"{renamed.old} is now {renamed.new}; "
        "the old name will be removed in the next release"
    )
    assert lines == [f"tracelens-ext: {expected}"]


@pytest.mark.usefixtures("traces")
def test_the_options_of_another_program_stay_as_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["tree", "--", "--salvage"]) != 0
    assert "is now" not in capsys.readouterr().err


@pytest.mark.usefixtures("traces")
def test_old_methods_give_the_tables() -> None:
    analyzer = TreePerfAnalyzer("trace.json")
    for old, new in new_names(Kind.METHOD).items():
        assert new in tables_by_method()
        with pytest.warns(DeprecationWarning, match=re.escape(f"{old} is now {new};")):
            getattr(analyzer, old)()
    with pytest.warns(DeprecationWarning, match="gap_hosts is now idle_cpu_activity"):
        table = analyzer.table("gap_hosts")
    assert table is not None
    assert table.equals(analyzer.get_df_idle_cpu_activity())


@pytest.mark.usefixtures("traces")
def test_old_arguments_and_attributes_work() -> None:
    with pytest.warns(DeprecationWarning, match="salvage of TreePerfAnalyzer is now"):
        TreePerfAnalyzer("trace.json", salvage=True)  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match=r"EventFilter.pstep is now step"):
        chosen = EventFilter(pstep=2)  # type: ignore[call-arg]
    assert chosen == EventFilter(step=2)
    with pytest.warns(DeprecationWarning, match=r"EventFilter.pstep is now step"):
        assert chosen.pstep == 2  # type: ignore[attr-defined]
    with pytest.warns(DeprecationWarning, match="ReadingOptions.salvage is now"):
        assert ReadingOptions(salvage=True).allow_truncated  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match="ReportOptions.time_axis is now"):
        assert ReportOptions(time_axis=True).timeline_bins  # type: ignore[call-arg]


def test_the_warning_points_at_the_line_with_the_old_name() -> None:
    with pytest.warns(DeprecationWarning) as caught:
        EventFilter(pstep=2)  # type: ignore[call-arg]
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("kind", [Finding, Findings, Place])
def test_classes_of_findings_keep_their_old_attributes(kind: type) -> None:
    for old in new_names(Kind.ATTRIBUTE, kind.__name__):
        assert isinstance(vars(kind)[old], property)
