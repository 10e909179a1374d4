"""Every table of a report comes through the registry, and its methods have types.

`python -m tests.docs.test_tables` writes the stub of the methods.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tracelens_ext
from tests.support.docs_helpers import page_text
from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.perf_report import build_perf_report
from tracelens_ext.report.tables.conditions import NO_GPU_EVENTS
from tracelens_ext.report.tables.registry import offered_tables, tables_by_method

if TYPE_CHECKING:
    from tracelens_ext.report.tables.conditions import NO_GPU_EVENTS
from tracelens_ext.report.tables.table import Table


def sheets() -> list[Table]:
    return [offered.item for offered in offered_tables()]


#: Sheets of traces of serving engines, whose columns `test_serving_report.py` checks.
OF_ENGINES = (
    "phases",
    "phase_steps",
    "layers",
    "layer_kernels",
    "InferenceAttention_fwd",
    "MoE_fused_fwd",
)


def test_every_sheet_of_the_demo_comes_through_the_registry_with_every_column(
    demo_trace: Path,
) -> None:
    analyzer = TreePerfAnalyzer(
        demo_trace, use_kernel_name_categories=True, add_python_func=True
    )
    report = build_perf_report(
        analyzer,
        short_kernel_study=True,
        group_by_num_kernels=True,
        micro_idle_thresh_us=5,
        gaps=True,
        what_if=True,
        iterations=True,
        counters=True,
        finding_details=True,
        timeline_bins=True,
        call_tree=True,
        kernel_summary=True,
        tables="all",
    )
    described = {sheet.name: sheet for sheet in sheets()}
    elsewhere = {"graph_operations", "graph_captures", "gpu_counters", *OF_ENGINES}
    elsewhere |= {sheet.name for sheet in sheets() if NO_GPU_EVENTS in sheet.requires}
    assert list(report.sheets) == [name for name in described if name not in elsewhere]
    for name, table in report.sheets.items():
        columns = described[name].columns
        assert report.descriptions[name] == described[name].description
        for column in table.columns:
            assert any(each.matches(column) for each in columns), (name, column)


def test_a_trace_without_gpu_events_has_a_sheet_of_the_registry_too() -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 50)
    report = build_perf_report(TreePerfAnalyzer(maker.document()))
    assert list(report.sheets) == ["recording", "cpu_timeline", "cpu_ops"]
    name, table = list(report.sheets.items())[-1]
    (sheet,) = [sheet for sheet in sheets() if sheet.name == name]
    assert [column.name for column in sheet.columns] == list(table.columns)


def test_tables_that_are_no_sheets_are_described(short_demo_trace: Path) -> None:
    analyzer = TreePerfAnalyzer(
        short_demo_trace, use_kernel_name_categories=True, add_python_func=True
    )
    tables = {
        "get_df_kernel_launchers": analyzer.get_df_kernel_launchers(
            id_cols=True, include_kernel_details=True
        ),
        "get_df_kernels": analyzer.get_df_kernels(
            launcher_detail=True, cpu_op_detail=True, nn_module_detail=True
        ),
    }
    text = page_text("tables.md")
    for name, table in tables.items():
        section = text.partition(f"\n## `{name}`\n")[2].partition("\n## ")[0]
        assert not [
            column for column in table.columns if f"`{column}`" not in section
        ], name


#: A description that begins like this needs another column to be understood.
FRAGMENT = re.compile(r"(of|as|by|in|on|from|since|without|over|its|their|theirs) ")


def test_each_column_has_a_description_of_its_own_that_is_complete() -> None:
    for sheet in sheets():
        column_of_meaning: dict[str, str] = {}
        for column in sheet.columns:
            where = (sheet.name, column.name)
            other = column_of_meaning.setdefault(column.meaning, column.name)
            assert other == column.name, (*where, other)
            assert FRAGMENT.match(column.meaning) is None, where
            assert not column.meaning.startswith("how many"), where


def test_units_are_those_that_the_names_of_columns_tell() -> None:
    from tracelens_ext.report.tables.units import unit_of

    for sheet in sheets():
        for column in sheet.columns:
            told = unit_of(column.name).symbol
            assert column.meaning
            same = {"B": "bytes", "GB/s": "10⁹ bytes/s"}.get(told, told)
            assert not told or column.shown_unit in (told, same), (sheet.name, column)


# The stub of the methods.

STUB = Path(tracelens_ext.__file__).parent / "report" / "tables" / "methods.pyi"
STUB_HEAD = '''"""Methods of registered tables; `tests/docs/test_tables.py` writes this file."""

import os
import re
from collections.abc import Sequence

import pandas as pd

from tracelens_ext.analysis.idle_time.kernel_pairs import GapSort
from tracelens_ext.analysis.iterations.selection import EventFilter
from tracelens_ext.analysis.kernels.statistics import KernelSort
from tracelens_ext.trace.gpu_events import Scope

_Chosen = EventFilter | None
_Path = str | os.PathLike[str] | None
_Pattern = str | re.Pattern[str] | None

class TableMethods:
    def table(self, name: str, **options: object) -> pd.DataFrame: ...
'''
#: The longer types by their names in the stub.
STUB_NAMES = dict(re.findall(r"(?m)^(_\w+) = (.+)", STUB_HEAD))


def stub() -> str:
    """The types of the methods that the registry gives, from the functions of the tables."""
    lines = [STUB_HEAD]
    usual = inspect.Parameter.POSITIONAL_OR_KEYWORD
    for name, table in sorted(tables_by_method().items()):
        if not hasattr(TreePerfAnalyzer, name):
            parameters = list(inspect.signature(table.build).parameters.values())[1:]
            told = ["self"]
            for at, each in enumerate(parameters):
                told += ["*"] * (
                    each.kind is not (parameters[at - 1].kind if at else usual)
                )
                named = [
                    name for name, of in STUB_NAMES.items() if of == each.annotation
                ]
                told.append(f"{each.name}: {(named or [each.annotation])[0]} = ...")
            lines.append(f"    def {name}({', '.join(told)}) -> pd.DataFrame: ...\n")
    return formatted("".join(lines))


def formatted(code: str) -> str:
    """As ruff formats it."""
    ruff = [
        sys.executable,
        "-m",
        "ruff",
        "format",
        "--quiet",
        "--stdin-filename",
        str(STUB),
        "-",
    ]
    done = subprocess.run(ruff, input=code, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.process
def test_the_stub_has_the_types_of_the_tables() -> None:
    assert STUB.read_text(encoding="utf-8") == stub(), (
        f"run: python {Path(__file__).name}"
    )


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
