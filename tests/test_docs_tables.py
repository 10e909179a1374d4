"""`docs/tables.md` names every sheet and every column of the report."""

from __future__ import annotations

import re
from pathlib import Path

from make_trace import TraceMaker

from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.report.perf_report import DESCRIPTIONS, build_perf_report

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "tables.md"


def _named(section: str) -> list[re.Pattern[str]]:
    """What is named in code style; `…` and CATEGORY stand for anything."""
    names = re.findall(r"`([^`]+)`", section)
    patterns = [re.escape(name).replace("…", ".+").replace("CATEGORY", ".+") for name in names]
    return [re.compile(pattern) for pattern in patterns]


def _sections() -> dict[str, str]:
    parts = re.split(r"^#+ `(\w+)`\n", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_sheet_and_column_of_the_demo_is_documented(demo_trace: Path) -> None:
    analyzer = TreePerfAnalyzer(demo_trace, use_kernel_name_categories=True, add_python_func=True)
    tables = build_perf_report(
        analyzer,
        short_kernel_study=True,
        group_by_num_kernels=True,
        micro_idle_thresh_us=5,
        gaps=True,
        iterations=True,
    ).sheets
    tables["get_df_kernel_launchers"] = analyzer.get_df_kernel_launchers(
        id_cols=True, include_kernel_details=True
    )
    tables["get_df_kernels"] = analyzer.get_df_kernels(
        launcher_detail=True, cpu_op_detail=True, nn_module_detail=True
    )
    sections = _sections()
    for name, table in tables.items():
        named = _named(sections[name])
        for column in table.columns:
            assert any(pattern.fullmatch(column) for pattern in named), (name, column)


def test_the_table_of_a_trace_without_gpu_events_is_documented() -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 50)
    report = build_perf_report(TreePerfAnalyzer(maker.document()))
    ((name, table),) = report.sheets.items()
    named = _named(_sections()[name])
    assert all(any(pattern.fullmatch(c) for pattern in named) for c in table.columns)


def test_every_sheet_that_the_index_describes_is_documented() -> None:
    assert set(DESCRIPTIONS) <= set(_sections())
