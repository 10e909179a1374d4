"""Kernels by the source line and layer that launched them."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.cli.commands.kernels import source_lines
from tracelens_ext.errors import UsageError


def _launched(*frames: str) -> TreePerfAnalyzer:
    maker = TraceMaker()
    for depth, frame in enumerate(frames):
        maker.frame(frame, depth, 100 - 2 * depth)
    maker.op("aten::mm", 40, 10)
    maker.launched("gemm", 200, 30, correlation=1, at=42)
    return TreePerfAnalyzer(maker.document(), add_python_func=True)


def test_the_source_is_the_innermost_frame_that_does_not_pass_on() -> None:
    analyzer = _launched(
        "train.py(10): <module>",
        "model.py(20): forward",
        "torch/nn/functional.py(30): linear",
        "site-packages/triton/runtime/jit.py(574): run",
        "<built-in function linear>",
    )
    (row,) = analyzer.get_df_kernel_sources().to_dict("records")
    assert row == {
        "kernel_name": "gemm",
        "cpu_op": "aten::mm",
        "source": "model.py(20): forward",
        "layer": "",
        "count": 1,
        "total_time_us": 30.0,
        "avg_time_us": 30.0,
        "% of duration": 100.0,
    }


def test_the_layer_is_the_path_of_modules() -> None:
    analyzer = _launched(
        "nn.Module: Net_0", "model.py(20): forward", "nn.Module: Linear_3"
    )
    (row,) = analyzer.get_df_kernel_sources().to_dict("records")
    assert (row["layer"], row["source"]) == ("Net_0/Linear_3", "model.py(20): forward")


def test_a_kernel_without_frames_or_launch_has_neither() -> None:
    maker = TraceMaker()
    maker.frame("other.py(1): elsewhere", 0, 10)
    maker.launched("gemm", 200, 30, correlation=1, at=42)
    maker.kernel("stray", 300, 5)
    frame = TreePerfAnalyzer(
        maker.document(), add_python_func=True
    ).get_df_kernel_sources()
    assert frame["kernel_name"].tolist() == ["gemm", "stray"]
    assert set(frame["source"]) == set(frame["layer"]) == {""}


def test_it_needs_python_frames() -> None:
    maker = TraceMaker()
    maker.launched("gemm", 200, 30, correlation=1, at=42)
    with pytest.raises(UsageError, match="add_python_func=True"):
        TreePerfAnalyzer(maker.document()).get_df_kernel_sources()


@pytest.mark.parametrize("width", [80, 160])
def test_names_fit_the_terminal_and_differ(width: int) -> None:
    maker = TraceMaker()
    maker.frame("train.py(1): step", 0, 100)
    for number, end in enumerate(("true", "false"), 1):
        name = f"flash_fwd_kernel<{'8, ' * 60}{end}>"
        maker.launched(name, 100 * number, 30, correlation=number, at=10 * number)
    frame = TreePerfAnalyzer(
        maker.document(), add_python_func=True
    ).get_df_kernel_sources()
    lines = source_lines(frame, Console(file=io.StringIO(), width=width), top=2)
    assert max(map(len, lines)) <= width
    assert len({line for line in lines if "flash" in line}) == 2
    assert sum(line.strip() == "train.py(1): step" for line in lines) == 2
