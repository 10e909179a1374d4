"""GPU time by `nn.Module`: total, self, calls, top category, and the backward pass."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.module_tables import nn_modules
from tracelens_ext.analysis.modules import has_modules
from tracelens_ext.perf_report import build_perf_report
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.intervals import union_length

if TYPE_CHECKING:
    import pandas as pd

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"


def _model() -> TraceMaker:
    """Make a trace of two calls of a model, and a kernel of 60 µs outside of it.

    The layer of the model takes 10 µs in the first call and 20 µs in the second; the model itself
    takes 5 µs in each.
    """
    maker = TraceMaker()
    for call, duration in enumerate((10, 20)):
        host_start = 1000 * call
        gpu_start = 10_000 + 1000 * call
        maker.frame("nn.Module: Model_0", host_start, 500)
        maker.frame("model.py(7): forward", host_start + 1, 490)
        maker.frame("nn.Module: Linear_0", host_start + 10, 100)
        maker.op("aten::mm", host_start + 20, 50)
        maker.launched(
            "gemm", gpu_start, duration, correlation=2 * call + 1, at=host_start + 30
        )
        maker.launched(
            "copy", gpu_start + 100, 5, correlation=2 * call + 2, at=host_start + 200
        )
    maker.launched("elsewhere", 20_000, 60, correlation=99, at=5000)
    return maker


def _table(maker: TraceMaker, **options: Any) -> pd.DataFrame:
    return TreePerfAnalyzer(maker.document(), **options).get_df_nn_modules(
        instances=True
    )


@pytest.mark.parametrize("add_python_func", [False, True])
def test_total_time_includes_inner_modules_and_self_time_does_not(
    add_python_func: bool,
) -> None:
    table = _table(_model(), add_python_func=add_python_func)
    assert table.to_dict("list") == {
        "path": ["Model_0", "Model_0/Linear_0"],
        "calls": [2, 2],
        "kernels": [4, 2],
        "gpu_time_total_ms": [0.04, 0.03],
        "gpu_time_self_ms": [0.01, 0.03],
        "% of GPU busy time": [40.0, 30.0],
    }


def test_overlapping_kernels_of_a_call_count_once() -> None:
    maker = TraceMaker()
    maker.frame("nn.Module: Model_0", 0, 500)
    maker.launched("a", 1000, 10, correlation=1, at=10, stream=7)
    maker.frame("nn.Module: Linear_0", 20, 100)
    maker.launched("b", 1005, 10, correlation=2, at=30, stream=8)
    table = _table(maker)
    assert table["gpu_time_total_ms"].tolist() == [0.015, 0.01]
    assert table["gpu_time_self_ms"].tolist() == [0.01, 0.01]


def test_equal_modules_within_different_modules_have_their_own_rows() -> None:
    maker = TraceMaker()
    for number, outer in enumerate(("Encoder_0", "Decoder_0")):
        maker.frame(f"nn.Module: {outer}", 100 * number, 90)
        maker.frame("nn.Module: Linear_0", 100 * number + 10, 50)
    assert sorted(_table(maker)["path"]) == [
        "Decoder_0",
        "Decoder_0/Linear_0",
        "Encoder_0",
        "Encoder_0/Linear_0",
    ]


def test_the_top_category_has_the_longest_time_within_the_module() -> None:
    maker = TraceMaker()
    maker.frame("nn.Module: Model_0", 0, 500)
    maker.launched("kernel_mha", 1000, 10, correlation=1, at=10)
    maker.frame("nn.Module: Linear_0", 100, 100)
    gemm = "nvjet_tst_320x128_64x3_1x2_h_bz_coopB_TNT"
    maker.launched(gemm, 1010, 30, correlation=2, at=110)
    maker.frame("nn.Module: Dropout_0", 300, 100)
    table = _table(maker, use_kernel_name_categories=True).set_index("path")
    assert table["top_category"].to_dict() == {
        "Model_0": "GEMM",
        "Model_0/Linear_0": "GEMM",
        "Model_0/Dropout_0": "",
    }
    assert table["top_category_percent"].tolist() == [75, 100, 0]


def test_backward_time_goes_to_the_module_of_the_forward_op() -> None:
    maker = TraceMaker()
    maker.frame("nn.Module: Model_0", 0, 500)
    maker.frame("nn.Module: Linear_0", 10, 100)
    maker.op("aten::linear", 20, 50, args={"Sequence number": 7})
    maker.launched("forward", 1000, 10, correlation=1, at=30)
    backward = {"Sequence number": 7, "Fwd thread id": 1}
    maker.op("LinearBackward0", 600, 100, thread=2, args=backward)
    maker.call("cudaLaunchKernel", 610, correlation=2, thread=2)
    maker.kernel("backward", 1100, 25, correlation=2)
    table = _table(maker)
    assert table["backward_time_ms"].tolist() == [0.025, 0.025]
    assert table["gpu_time_total_ms"].tolist() == [0.01, 0.01]
    assert "backward_time_ms" not in _table(_model()).columns


def test_the_report_has_the_table_of_modules_if_the_trace_has_module_frames() -> None:
    analyzer = TreePerfAnalyzer(_model().document())
    assert has_modules(analyzer.trace)
    assert len(build_perf_report(analyzer).sheets["nn_modules"]) == 2
    maker = TraceMaker()
    maker.frame("model.py(7): forward", 0, 100)
    maker.op("nn.Module: no frame", 5, 50)
    maker.launched("k", 1000, 10, correlation=1, at=10)
    without = TreePerfAnalyzer(maker.document())
    assert not has_modules(without.trace)
    assert "nn_modules" not in build_perf_report(without).sheets
    assert without.get_df_nn_modules().empty


def test_modules_without_gpu_events_have_no_time() -> None:
    maker = TraceMaker()
    maker.frame("nn.Module: Model_0", 0, 500)
    table = _table(maker, use_kernel_name_categories=True)
    assert table["gpu_time_total_ms"].tolist() == [0]
    assert table["% of GPU busy time"].tolist() == [0]


@pytest.mark.real_data
@pytest.mark.parametrize(
    "name",
    [
        "nvidia/gaunernst_bert-small-uncased__1016001.json.gz",
        "amd/Falconsai_nsfw_image_detection__1016002.json.gz",
    ],
)
def test_modules_of_recorded_traces_agree_with_a_tree_of_all_frames(name: str) -> None:
    _check_against_full_tree(TreePerfAnalyzer(SHARED / name))


def test_modules_of_the_demo_agree_with_a_tree_of_all_frames(
    analyzed_demo: TreePerfAnalyzer,
) -> None:
    _check_against_full_tree(analyzed_demo)


def _check_against_full_tree(analyzer: TreePerfAnalyzer) -> None:
    """Check the kernels and the time of each path with the modules in the tree of all frames."""
    gpu_events = analyzer.gpu_events
    path_of_gpu = CallTree(analyzer.trace, add_python_func=True).module_of_gpu()
    table = nn_modules(gpu_events, instances=True)
    assert len(table)
    for row in table.itertuples():
        events = [
            event
            for event, path in enumerate(path_of_gpu)
            if f"{path}/".startswith(f"{row.path}/")
        ]
        assert row.kernels == len(events)
        if row.calls == 1:
            busy_ns = union_length(gpu_events.start[events], gpu_events.end[events])
            assert row.gpu_time_total_ms == pytest.approx(busy_ns / 1e6)
    assert (table["gpu_time_self_ms"] <= table["gpu_time_total_ms"]).all()


def test_modules_of_a_class_share_a_row_by_default() -> None:
    maker = TraceMaker()
    maker.frame("nn.Module: Model_0", 0, 100)
    for number in range(3):
        start = 10 + 20 * number
        maker.frame(f"nn.Module: Linear_{number}", start, 10)
        maker.launched("gemm", 200 + start, 5, correlation=number + 1, at=start + 1)
    table = TreePerfAnalyzer(maker.document()).get_df_nn_modules()
    assert table["path"].tolist() == ["Model", "Model/Linear"]
    assert table["modules"].tolist() == [1, 3]
    assert table["kernels"].tolist() == [3, 3]


@pytest.fixture
def model(tmp_path: Path) -> TreePerfAnalyzer:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(_model().document()))
    return TreePerfAnalyzer(path)


def test_launchers_have_the_class_of_the_innermost_module(
    model: TreePerfAnalyzer,
) -> None:
    launchers = model.get_df_kernel_launchers(
        include_call_stack=True, include_first_occurrence_time=True
    )
    assert launchers["parent_module"].tolist() == [
        "nn.Module: Linear",
        "nn.Module: Model",
        "nn.Module: Linear",
        "nn.Module: Model",
        "NA",
    ]
    assert launchers["ts"].is_monotonic_increasing


def test_a_slash_in_the_name_of_a_module_does_not_split_it() -> None:
    maker = TraceMaker()
    maker.frame("nn.Module: Model_0", 0, 500)
    maker.frame("nn.Module: layers/0", 10, 100)
    maker.launched("gemm", 1000, 10, correlation=1, at=30)
    launchers = TreePerfAnalyzer(maker.document()).get_df_kernel_launchers(
        include_call_stack=True
    )
    (launcher,) = launchers.to_dict("records")
    assert launcher["parent_module"] == "nn.Module: layers"
    assert ast.literal_eval(launcher["call_stack"])[1:] == [
        "nn.Module: layers/0",
        "nn.Module: Model_0",
    ]


@pytest.mark.parametrize("tracelens_sheets", [False, True])
def test_reports_have_module_stacks_and_first_occurrences_on_request(
    model: TreePerfAnalyzer, tracelens_sheets: bool
) -> None:
    report = build_perf_report(
        model,
        tracelens_sheets=tracelens_sheets,
        include_call_stack=True,
        include_first_occurrence_time=True,
    )
    table = report.sheets["ops_unique_args"].set_index("name")
    row = table.loc["aten::mm"]
    stack = ["aten::mm", "nn.Module: Linear_0", "nn.Module: Model_0"]
    assert ast.literal_eval(str(row["call_stack"])) == stack
    assert row["first_occurrence_time"] == 0.0
    other_times = table.drop(index="aten::mm")["first_occurrence_time"]
    assert other_times.min() == pytest.approx(180.0)
    plain = build_perf_report(model, tracelens_sheets=tracelens_sheets)
    columns = set(plain.sheets["ops_unique_args"])
    assert not {"call_stack", "first_occurrence_time"} & columns
