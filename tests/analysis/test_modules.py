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
    """A model called twice: a layer of 10 and 20 µs, and 5 µs of the model's own each time."""
    maker = TraceMaker()
    for call, duration in enumerate((10, 20)):
        at = 1000 * call
        start = 10_000 + 1000 * call
        maker.frame("nn.Module: Model_0", at, 500)
        maker.frame("model.py(7): forward", at + 1, 490)
        maker.frame("nn.Module: Linear_0", at + 10, 100)
        maker.op("aten::mm", at + 20, 50)
        maker.launched("gemm", start, duration, correlation=2 * call + 1, at=at + 30)
        maker.launched("copy", start + 100, 5, correlation=2 * call + 2, at=at + 200)
    maker.launched("elsewhere", 20_000, 60, correlation=99, at=5000)
    return maker


def _table(maker: TraceMaker, **options: Any) -> pd.DataFrame:
    return TreePerfAnalyzer(maker.document(), **options).get_df_nn_modules(
        instances=True
    )


@pytest.mark.parametrize("add_python_func", [False, True])
def test_total_self_and_calls(add_python_func: bool) -> None:
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


def test_modules_of_one_name_in_different_places_are_apart() -> None:
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


def test_top_category() -> None:
    maker = TraceMaker()
    maker.frame("nn.Module: Model_0", 0, 500)
    maker.launched("kernel_mha", 1000, 10, correlation=1, at=10)
    maker.frame("nn.Module: Linear_0", 100, 100)
    product = "nvjet_tst_320x128_64x3_1x2_h_bz_coopB_TNT"
    maker.launched(product, 1010, 30, correlation=2, at=110)
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


def test_the_report_has_them_when_the_trace_does() -> None:
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


def test_modules_without_gpu_events() -> None:
    maker = TraceMaker()
    maker.frame("nn.Module: Model_0", 0, 500)
    table = _table(maker, use_kernel_name_categories=True)
    assert table["gpu_time_total_ms"].tolist() == [0]
    assert table["% of GPU busy time"].tolist() == [0]


def _traces() -> list[Any]:
    found = [
        SHARED / "nvidia" / "gaunernst_bert-small-uncased__1016001.json.gz",
        SHARED / "amd" / "Falconsai_nsfw_image_detection__1016002.json.gz",
    ]
    return [pytest.param(path, id=path.name) for path in found]


@pytest.mark.real_data
@pytest.mark.parametrize("path", _traces())
def test_real_models_agree_with_a_tree_of_all_frames(path: Path) -> None:
    _check_against_full_tree(TreePerfAnalyzer(path))


def test_the_demo_agrees_with_a_tree_of_all_frames(
    analyzed_demo: TreePerfAnalyzer,
) -> None:
    _check_against_full_tree(analyzed_demo)


def _check_against_full_tree(analyzer: TreePerfAnalyzer) -> None:
    """Count and time the kernels of each path the slow way."""
    work = analyzer.work
    innermost = CallTree(analyzer.trace, add_python_func=True).module_of_gpu()
    table = nn_modules(work, instances=True)
    assert len(table)
    for path, calls, kernels, total in zip(
        table["path"],
        table["calls"],
        table["kernels"],
        table["gpu_time_total_ms"],
        strict=True,
    ):
        below = [i for i, at in enumerate(innermost) if f"{at}/".startswith(f"{path}/")]
        assert kernels == len(below)
        if calls == 1:
            assert total == pytest.approx(
                union_length(work.start[below], work.end[below]) / 1e6
            )
    assert (table["gpu_time_self_ms"] <= table["gpu_time_total_ms"]).all()


def test_modules_of_a_class_are_one_row() -> None:
    maker = TraceMaker()
    maker.frame("nn.Module: Model_0", 0, 100)
    for number in range(3):
        at = 10 + 20 * number
        maker.frame(f"nn.Module: Linear_{number}", at, 10)
        maker.launched("gemm", 200 + at, 5, correlation=number + 1, at=at + 1)
    table = TreePerfAnalyzer(maker.document()).get_df_nn_modules()
    assert table["path"].tolist() == ["Model", "Model/Linear"]
    assert table["modules"].tolist() == [1, 3]
    assert table["kernels"].tolist() == [3, 3]


def test_call_stacks_and_first_occurrences_as_tracelens_tells_them(
    tmp_path: Path,
) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(_model().document()))
    analyzer = TreePerfAnalyzer(path)
    launchers = analyzer.get_df_kernel_launchers(
        include_call_stack=True, include_first_occurrence_time=True
    )
    assert launchers["parent_module"].tolist() == [
        *("nn.Module: Linear", "nn.Module: Model") * 2,
        "NA",
    ]
    assert launchers["ts"].is_monotonic_increasing
    options: dict[str, Any] = {
        "include_call_stack": True,
        "include_first_occurrence_time": True,
    }
    for tracelens_sheets in (False, True):
        report = build_perf_report(
            analyzer, tracelens_sheets=tracelens_sheets, **options
        )
        table = report.sheets["ops_unique_args"].set_index("name")
        row = table.loc["aten::mm"]
        stack = ["aten::mm", "nn.Module: Linear_0", "nn.Module: Model_0"]
        assert ast.literal_eval(str(row["call_stack"])) == stack
        assert row["first_occurrence_time"] == 0.0
        others = table.drop(index="aten::mm")["first_occurrence_time"]
        assert others.min() == pytest.approx(180.0)
        plain = build_perf_report(analyzer, tracelens_sheets=tracelens_sheets)
        assert not {"call_stack", "first_occurrence_time"} & set(
            plain.sheets["ops_unique_args"]
        )
