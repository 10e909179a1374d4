"""`get_df_kernels(cpu_op_detail=True)`: columns about the CPU op around each launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer

if TYPE_CHECKING:
    import pandas as pd


@pytest.fixture
def kernels() -> pd.DataFrame:
    maker = TraceMaker()
    maker.op("aten::outer", 0, 50, external_id=1, args={"Input Dims": [[4]]})
    maker.launched("k1", 100, 10, correlation=1, at=2)
    maker.op("aten::inner", 10, 10, external_id=2)
    maker.launched("k2", 105, 20, correlation=2, at=12, stream=8)
    maker.launched("bare", 200, 5, correlation=3, at=70)
    maker.kernel("unlinked", 300, 5)
    analyzer = TreePerfAnalyzer(maker.document())
    return analyzer.get_df_kernels(cpu_op_detail=True).set_index("kernel_name")


def test_busy_time_and_kernel_count_include_inner_operations(
    kernels: pd.DataFrame,
) -> None:
    assert kernels.loc["k1", "Parent cpu_op"] == "aten::outer"
    assert kernels.loc["k1", "Parent cpu_op busy time (µs)"] == 25
    assert kernels.loc["k1", "Parent cpu_op kernel count"] == 2
    assert kernels.loc["k1", "Percent of Parent cpu_op busy time (%)"] == 40
    assert kernels.loc["k2", "Parent cpu_op busy time (µs)"] == 20
    assert kernels.loc["k2", "Parent cpu_op kernel count"] == 1
    assert kernels.loc["k2", "Percent of Parent cpu_op busy time (%)"] == 100


def test_arguments_are_those_of_the_innermost_op(kernels: pd.DataFrame) -> None:
    assert kernels["Input dims"].to_dict() == {
        "k1": "((4,),)",
        "k2": "",
        "bare": "",
        "unlinked": "",
    }


@pytest.mark.parametrize(
    ("kernel", "parent"), [("bare", "cudaLaunchKernel"), ("unlinked", "")]
)
def test_kernels_without_a_cpu_op_have_no_numbers_of_it(
    kernels: pd.DataFrame, kernel: str, parent: str
) -> None:
    numbers = [
        "Parent cpu_op busy time (µs)",
        "Parent cpu_op kernel count",
        "Percent of Parent cpu_op busy time (%)",
    ]
    assert kernels.loc[kernel, "Parent cpu_op"] == parent
    assert kernels.loc[kernel, numbers].isna().all()


def test_cpu_op_detail_combines_with_launcher_detail_and_is_off_by_default() -> None:
    maker = TraceMaker()
    maker.op("aten::op", 0, 50)
    maker.launched("k", 100, 10, correlation=1, at=2)
    analyzer = TreePerfAnalyzer(maker.document())
    columns = analyzer.get_df_kernels(launcher_detail=True, cpu_op_detail=True).columns
    assert columns.is_unique
    assert {"launch", "Parent cpu_op kernel count"} <= set(columns)
    assert "Parent cpu_op" not in analyzer.get_df_kernels().columns


def test_the_table_of_a_trace_without_gpu_events_is_empty() -> None:
    maker = TraceMaker()
    maker.op("aten::op", 0, 50)
    assert TreePerfAnalyzer(maker.document()).get_df_kernels(cpu_op_detail=True).empty
