"""A name means one table, whichever command shows it; a page draws what its tables alone say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from tests.support.comparison_helpers import training
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.cli import run
from tracelens_ext.errors import UsageError
from tracelens_ext.perf_report import build_perf_report
from tracelens_ext.report.html import page_figures

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS = (
    ("kernels", "--gaps", "--all"),
    ("gaps", "--all"),
    ("iterations",),
    ("roofline",),
    ("memory",),
    ("counters",),
    ("tree",),
)


def rows(table: list[dict[str, Any]]) -> list[str]:
    """The rows, whatever their order."""
    return sorted(json.dumps(row, sort_keys=True) for row in table)


def test_a_name_means_one_table_in_every_command(
    demo_trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "report.json"
    assert (
        run(["report", str(demo_trace), "--tables", "all", "-q", "-o", str(whole)]) == 0
    )
    report = json.loads(whole.read_text(encoding="utf-8"))["tables"]
    met: set[str] = set()
    capsys.readouterr()
    for command, *options in COMMANDS:
        assert run([command, str(demo_trace), *options, "--json"]) == 0
        tables = json.loads(capsys.readouterr().out)["tables"]
        met |= set(tables)
        for name, table in tables.items():
            assert rows(table) == rows(report[name]), (command, name)
    expected = {"kernel_statistics", "gap_histogram", "mfu_by_iteration", "families"}
    assert expected | {"memory_largest"} <= met


def test_a_page_draws_the_same_of_plain_tables(demo_trace: Path) -> None:
    report = build_perf_report(
        TreePerfAnalyzer(demo_trace), for_page=True, what_if=True
    )
    tables = {**report.sheets, **report.page_sheets}
    plain = {
        name: pd.DataFrame(table.to_dict("list")) for name, table in tables.items()
    }
    charts = [chart for chart in report.charts if chart.on != "workbook"]
    drawn = page_figures(tables, charts)
    assert {"chart-roofline", "chart-memory-0"} <= {figure.key for figure in drawn}
    assert page_figures(plain, charts) == drawn


def test_a_table_that_does_not_exist_is_named_with_the_nearest() -> None:
    analyzer = TreePerfAnalyzer(training(2).document())
    assert "gap_histogram" in build_perf_report(analyzer, tables="gap_histogram").sheets
    assert "gap_histogram" not in build_perf_report(analyzer).sheets
    with pytest.raises(
        UsageError, match="no table 'gap_histgram'; did you mean 'gap_histogram'"
    ):
        build_perf_report(analyzer, tables="gap_histgram")
    with pytest.raises(UsageError, match="did you mean 'iteration_statistics'"):
        analyzer.table("statistics")
    assert analyzer.table("idle_by_kernel_pair", sort="max").equals(
        analyzer.get_df_idle_by_kernel_pair("max")
    )
    assert "get_df_idle_by_kernel_pair" in dir(analyzer)
    with pytest.raises(AttributeError, match="get_df_nothing"):
        analyzer.get_df_nothing()  # type: ignore[attr-defined]
