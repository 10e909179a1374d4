"""GPU events without a launch in the trace: what they are, when they ran, why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.perf_report import build_perf_report

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"


def _late_start() -> TraceMaker:
    """Two early kernels of one name whose launch is missing, a copy without an id, one linked."""
    maker = TraceMaker()
    maker.kernel("early", 0, 10, correlation=1)
    maker.kernel("early", 20, 30, correlation=2)
    maker.gpu("gpu_memcpy", "Memcpy HtoD", 60, 10)
    maker.op("aten::mm", 100, 50)
    maker.launched("linked", 200, 50, correlation=3, at=110)
    return maker


def test_by_name_and_reason() -> None:
    table = TreePerfAnalyzer(_late_start().document()).get_df_unlinked_kernels()
    assert table.to_dict("list") == {
        "kernel_name": ["early", "Memcpy HtoD"],
        "kind": ["kernel", "memcpy"],
        "reason": ["launch not in the trace", "no correlation id"],
        "count": [2, 1],
        "total_time_ms": [0.04, 0.01],
        "avg_time_us": [20.0, 10.0],
        "min_time_us": [10.0, 10.0],
        "max_time_us": [30.0, 10.0],
        "% of unlinked time": [80.0, 20.0],
        "% of GPU time": [40.0, 10.0],
        "first_start_ms": [0.0, 0.06],
        "last_end_ms": [0.05, 0.07],
    }


def test_categories() -> None:
    analyzer = TreePerfAnalyzer(
        _late_start().document(), use_kernel_name_categories=True
    )
    table = analyzer.get_df_unlinked_kernels()
    assert table["kernel_category"].tolist() == ["Uncategorized", "Memory Ops"]


def test_the_report_has_them_when_the_trace_does() -> None:
    report = build_perf_report(TreePerfAnalyzer(_late_start().document()))
    assert len(report.sheets["unlinked_kernels"]) == 2
    maker = TraceMaker()
    maker.launched("linked", 200, 50, correlation=3, at=110)
    analyzer = TreePerfAnalyzer(maker.document())
    assert "unlinked_kernels" not in build_perf_report(analyzer).sheets
    table = analyzer.get_df_unlinked_kernels()
    assert table.empty
    assert {"kernel_name", "reason", "count"} <= set(table.columns)


@pytest.mark.real_data
@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_a_profiler_that_started_late(vendor: str) -> None:
    path = SHARED / vendor / "Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
    analyzer = TreePerfAnalyzer(path)
    table = analyzer.get_df_unlinked_kernels()
    assert table["count"].sum() == (~analyzer.tree.linked).sum()
    assert vendor == "amd" or table["count"].sum() == 509
    assert table["% of unlinked time"].sum() == pytest.approx(100)
    assert set(table["reason"]) == {"launch not in the trace"}
    # They all ran before the first kernel that was launched while the profiler watched.
    first_linked = analyzer.gpu_events.start[analyzer.tree.linked].min()
    assert table["first_start_ms"].max() * 1e6 < first_linked
