"""The table of graph launches: a row per launch site (call, path of CPU ops, GPU events)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.perf_report import build_perf_report

if TYPE_CHECKING:
    import pandas as pd

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"

#: The name and the duration of each kernel of a graph.
Kernels = list[tuple[str, int]]


class _Graphs:
    """Makes a trace of graph launches, each within CPU ops."""

    def __init__(self) -> None:
        self.maker = TraceMaker()
        self.launches = 0

    def launch(
        self,
        kernels: Kernels,
        *ops: str,
        api: str = "cudaGraphLaunch",
        gap: int = 0,
        stream: int = 7,
    ) -> None:
        self.launches += 1
        launch_start = 1000 * self.launches
        start = 100_000 * self.launches
        for depth, op in enumerate(ops):
            self.maker.op(op, launch_start + depth, 500 - 2 * depth)
        self.maker.call(api, launch_start + 100, 5, correlation=self.launches)
        for name, duration in kernels:
            self.maker.kernel(
                name, start, duration, correlation=self.launches, stream=stream
            )
            start += duration + gap

    def table(self, *, categories: bool = False) -> pd.DataFrame:
        analyzer = TreePerfAnalyzer(
            self.maker.document(), use_kernel_name_categories=categories
        )
        return analyzer.get_df_graph_launches()


def test_equal_launches_are_one_site() -> None:
    graphs = _Graphs()
    graphs.launch([("a", 10), ("b", 20)], "outer", "inner", gap=5)
    graphs.launch([("a", 30), ("b", 20)], "outer", "inner", gap=5)
    (row,) = graphs.table().to_dict("records")
    assert row == {
        "launch": "cudaGraphLaunch",
        "path": "outer > inner",
        "launches": 2,
        "kernels_per_launch": 2,
        "busy_time_ms": 0.08,
        "avg_busy_time_us": 40.0,
        "min_busy_time_us": 30.0,
        "max_busy_time_us": 50.0,
        "avg_span_time_us": 45.0,
        "% of GPU busy time": 100.0,
    }


@pytest.mark.parametrize(
    ("kernels", "ops", "api"),
    [
        ([("a", 1), ("b", 1)], ("other",), "cudaGraphLaunch"),
        ([("a", 1), ("b", 1)], ("outer", "op"), "cudaGraphLaunch"),
        ([("a", 1), ("b", 1)], (), "cudaGraphLaunch"),
        ([("b", 1), ("a", 1)], ("op",), "cudaGraphLaunch"),
        ([("a", 1)], ("op",), "cudaGraphLaunch"),
        ([("a", 1), ("b", 1), ("b", 1)], ("op",), "cudaGraphLaunch"),
        ([("a", 1), ("b", 1)], ("op",), "hipGraphLaunch"),
    ],
)
def test_another_path_sequence_or_call_is_another_site(
    kernels: Kernels, ops: tuple[str, ...], api: str
) -> None:
    graphs = _Graphs()
    graphs.launch([("a", 10), ("b", 10)], "op")
    graphs.launch(kernels, *ops, api=api)
    assert graphs.table()["launches"].tolist() == [1, 1]


def test_launches_on_other_streams_and_in_annotations_are_the_same_site() -> None:
    graphs = _Graphs()
    graphs.launch([("a", 10), ("b", 10)], "op", stream=7)
    graphs.maker.annotation("ProfilerStep#2", 1900, 900)
    graphs.launch([("a", 10), ("b", 10)], "op", stream=8)
    assert graphs.table()["launches"].tolist() == [2]


def test_a_launch_whose_work_was_not_recorded_is_a_site() -> None:
    graphs = _Graphs()
    graphs.launch([("a", 10)], "op")
    graphs.launch([], "op")
    table = graphs.table()
    assert table["kernels_per_launch"].tolist() == [1, 0]
    assert table["busy_time_ms"].tolist() == [0.01, 0]
    assert table["avg_span_time_us"].tolist() == [10, 0]


def test_overlapping_kernels_of_a_launch_count_once() -> None:
    maker = TraceMaker()
    maker.call("cudaGraphLaunch", 0, 5, correlation=1)
    maker.kernel("a", 100, 10, correlation=1, stream=7)
    maker.kernel("b", 105, 10, correlation=1, stream=8)
    table = TreePerfAnalyzer(maker.document()).get_df_graph_launches()
    assert table["busy_time_ms"].tolist() == [0.015]


def test_each_category_has_a_column_with_its_share() -> None:
    graphs = _Graphs()
    graphs.launch(
        [("nvjet_tst_320x128_64x3_1x2_h_bz_coopB_TNT", 30), ("kernel_mha", 10)], "op"
    )
    row = graphs.table(categories=True).iloc[0]
    assert row["GEMM_percent"] == 75
    assert row["Flash Attention Forward_percent"] == 25
    columns_without_categories = graphs.table(categories=False).columns
    assert not columns_without_categories.str.endswith("_percent").any()


def test_sites_are_sorted_by_busy_time() -> None:
    graphs = _Graphs()
    graphs.launch([("short", 1)], "op")
    graphs.launch([("long", 9)], "op")
    assert graphs.table()["% of GPU busy time"].tolist() == [90, 10]


def test_without_graph_launches_the_table_is_empty_and_the_report_lacks_it() -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 50)
    maker.launched("gemm", 100, 10, correlation=1, at=10)
    analyzer = TreePerfAnalyzer(maker.document(), use_kernel_name_categories=True)
    table = analyzer.get_df_graph_launches()
    assert table.empty
    assert {"launch", "path", "launches", "% of GPU busy time"} <= set(table.columns)
    assert "graph_launches" not in build_perf_report(analyzer).sheets


@pytest.mark.real_data
def test_launch_sites_of_a_recorded_training_job() -> None:
    path = SHARED / "graphs" / "training_cuda_graph.json.gz"
    table = TreePerfAnalyzer(path).get_df_graph_launches()
    assert table["launches"].tolist() == [6, 6]
    assert table["kernels_per_launch"].tolist() == [502, 339]
    assert table["path"].tolist() == [
        "autograd::engine::evaluate_function: CompiledFunctionBackward > CompiledFunctionBackward",
        "CompiledFunction",
    ]
