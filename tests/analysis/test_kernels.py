"""Tables of GPU events: to the digit, complete, and nothing counted twice."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.make_trace import TraceMaker, cuda_graph_example
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.kernels.kernels import (
    kernel_category_summary,
    reference_kernel_summary,
)
from tracelens_ext.analysis.timeline.timeline import total_time_ns
from tracelens_ext.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

MHA = "kernel_mha"
SCALE = "void tensorrt_llm::common::scaleMatrix<...>"
NVJET = "nvjet_tst_320x128_64x3_1x2_h_bz_coopB_TNT"

SUMMARY = ["cpu_op", "kernel_name", "count", "total_time_ms", "avg_time_us"]
MORE = ["min_time_us", "max_time_us", "% of GPU time", "kind"]


def categorised(maker: TraceMaker) -> TreePerfAnalyzer:
    return TreePerfAnalyzer(maker.document(), use_kernel_name_categories=True)


def plain(maker: TraceMaker) -> TreePerfAnalyzer:
    return TreePerfAnalyzer(maker.document())


def records(frame: pd.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return list(frame[list(columns)].itertuples(index=False, name=None))


def mixed_trace() -> TraceMaker:
    """Every way to be launched, every kind of event."""
    maker = TraceMaker()
    maker.op("aten::mm", 0, 40)
    maker.launched(NVJET, 100, 30, correlation=1, at=5)
    maker.launched(NVJET, 140, 50, correlation=2, at=10)
    maker.launched(
        "Memset (Device)", 200, 4, correlation=3, at=15, category="gpu_memset"
    )
    maker.op("aten::copy_", 50, 20)
    maker.launched(
        "Memcpy HtoD (Pageable -> Device)",
        210,
        6,
        correlation=4,
        at=55,
        category="gpu_memcpy",
    )
    maker.launched(NVJET, 220, 10, correlation=5, at=80, stream=8)
    maker.kernel("a_kernel_that_no_rule_knows", 20, 100, correlation=6)
    return maker


# The example that the project began with: what is in a graph launch.


def test_the_example_to_the_digit() -> None:
    analyzer = TreePerfAnalyzer(cuda_graph_example(), use_kernel_name_categories=True)
    frame = analyzer.get_df_kernel_summary()
    assert list(frame.columns) == ["cpu_op", "kernel_category", *SUMMARY[1:], *MORE]
    shown = ["cpu_op", "kernel_category", *SUMMARY[1:]]
    assert records(frame.sort_values("kernel_name"), *shown) == [
        ("graph", "Flash Attention Forward", MHA, 1, 0.15, 150),
        ("graph", "GEMM", NVJET, 1, 0.22, 220),
        ("graph", "Memory Ops", SCALE, 1, 0.08, 80),
    ]
    assert frame["total_time_ms"].tolist() == [0.22, 0.15, 0.08]  # longest first


def test_the_example_grouped() -> None:
    analyzer = TreePerfAnalyzer(cuda_graph_example(), use_kernel_name_categories=True)
    frame = analyzer.get_df_kernel_category_summary()
    grouped = records(frame, "cpu_op", "kernel_category", "count", "total_time_ms")
    assert grouped == [
        ("graph", "GEMM", 1, 0.22),
        ("graph", "Flash Attention Forward", 1, 0.15),
        ("graph", "Memory Ops", 1, 0.08),
    ]
    assert [f"{share:.1f}" for share in frame["% of cpu_op time"]] == [
        "48.9",
        "33.3",
        "17.8",
    ]
    assert [f"{share:.1f}" for share in frame["% of GPU time"]] == [
        "48.9",
        "33.3",
        "17.8",
    ]


def test_the_example_without_categories() -> None:
    analyzer = TreePerfAnalyzer(cuda_graph_example())
    frame = analyzer.get_df_kernel_summary()
    assert list(frame.columns) == [*SUMMARY, *MORE]
    assert records(frame, *SUMMARY) == [
        ("graph", NVJET, 1, 0.22, 220),
        ("graph", MHA, 1, 0.15, 150),
        ("graph", SCALE, 1, 0.08, 80),
    ]
    assert "kernel_category" not in analyzer.get_df_kernels()
    with pytest.raises(UsageError, match="use_kernel_name_categories=True"):
        analyzer.get_df_kernel_category_summary()


def test_the_example_kernel_by_kernel() -> None:
    analyzer = TreePerfAnalyzer(cuda_graph_example(), use_kernel_name_categories=True)
    frame = analyzer.get_df_kernels(launcher_detail=True)
    shown = ["kernel_name", "launch", "Parent cpu_op", "start_us", "duration_us"]
    assert records(frame, *shown) == [
        (MHA, "cudaGraphLaunch", "aten::something_around", 50, 150),
        (SCALE, "cudaGraphLaunch", "aten::something_around", 200, 80),
        (NVJET, "cudaGraphLaunch", "aten::something_around", 280, 220),
    ]
    assert set(frame["launch_start_us"]) == {10}
    assert set(frame["launch_duration_us"]) == {20}
    assert frame["launch_delay_us"].tolist() == [40, 190, 270]


# By operation and kernel.


def test_kernel_summary() -> None:
    frame = categorised(mixed_trace()).get_df_kernel_summary()
    shown = [
        "cpu_op",
        "kernel_category",
        "count",
        "total_time_ms",
        "avg_time_us",
        *MORE,
    ]
    assert records(frame, *shown) == [
        ("(unlinked)", "Uncategorized", 1, 0.1, 100, 100, 100, 50, "kernel"),
        ("aten::mm", "GEMM", 2, 0.08, 40, 30, 50, 40, "kernel"),
        ("cudaLaunchKernel", "GEMM", 1, 0.01, 10, 10, 10, 5, "kernel"),
        ("aten::copy_", "Memory Ops", 1, 0.006, 6, 6, 6, 3, "memcpy"),
        ("aten::mm", "Memory Ops", 1, 0.004, 4, 4, 4, 2, "memset"),
    ]


def test_one_name_of_two_kinds_is_two_rows() -> None:
    maker = TraceMaker()
    maker.gpu("gpu_memcpy", "copy", 0, 5)
    maker.kernel("copy", 10, 5)
    frame = plain(maker).get_df_kernel_summary()
    assert records(frame, "kernel_name", "count", "kind") == [
        ("copy", 1, "memcpy"),
        ("copy", 1, "kernel"),
    ]


def test_one_kernel_has_two_categories_under_two_operations() -> None:
    """A categorizer may look at the operation; each keeps its own."""

    def by_operation(table: pd.DataFrame) -> list[str]:
        return [f"in {op}" for op in table["cpu_op"]]

    maker = TraceMaker()
    for i, name in enumerate(["aten::a", "aten::b"]):
        maker.op(name, 10 * i, 5)
        maker.launched("k", 50 + 10 * i, 5, correlation=i + 1, at=10 * i + 1)
    analyzer = TreePerfAnalyzer(maker.document(), categorizer=by_operation)
    assert analyzer.get_df_kernels()["kernel_category"].tolist() == [
        "in aten::a",
        "in aten::b",
    ]
    summary = analyzer.get_df_kernel_summary()
    assert records(summary, "cpu_op", "kernel_category") == [
        ("aten::a", "in aten::a"),
        ("aten::b", "in aten::b"),
    ]


def test_category_summary_orders_operations_by_their_time() -> None:
    maker = TraceMaker()
    for number, (op, name, duration) in enumerate(
        [("aten::b", NVJET, 40), ("aten::b", "x_unknown", 50), ("aten::a", NVJET, 60)],
        start=1,
    ):
        maker.op(op, 10 * number, 5)
        maker.launched(
            name, 100 * number, duration, correlation=number, at=10 * number + 1
        )
    frame = categorised(maker).get_df_kernel_category_summary()
    assert records(frame, "cpu_op", "kernel_category", "total_time_ms") == [
        ("aten::b", "Uncategorized", 0.05),
        ("aten::b", "GEMM", 0.04),
        ("aten::a", "GEMM", 0.06),
    ]
    assert frame["% of cpu_op time"].tolist() == pytest.approx([500 / 9, 400 / 9, 100])
    assert frame["% of GPU time"].tolist() == pytest.approx([100 / 3, 80 / 3, 40])


def test_category_summary_needs_categories() -> None:
    with pytest.raises(UsageError, match="categories are turned off"):
        kernel_category_summary(plain(mixed_trace()).work)


# One by one.


def test_kernels() -> None:
    frame = categorised(mixed_trace()).get_df_kernels()
    assert list(frame.columns) == [
        "cpu_op",
        "kernel_category",
        "kernel_name",
        "kind",
        "device",
        "stream",
        "start_us",
        "duration_us",
        "correlation",
        "linked",
    ]
    assert frame["start_us"].tolist() == [20, 100, 140, 200, 210, 220]  # by start
    assert frame["linked"].tolist() == [False] + [True] * 5
    assert frame["correlation"].tolist() == [6, 1, 2, 3, 4, 5]
    assert frame["stream"].tolist() == [7, 7, 7, 7, 7, 8]
    assert set(frame["device"]) == {0}


def test_kernels_with_their_launches() -> None:
    frame = plain(mixed_trace()).get_df_kernels(launcher_detail=True)
    assert frame["launch"].isna().tolist() == [True] + [False] * 5
    assert set(frame["launch"].dropna()) == {"cudaLaunchKernel"}
    for column in ("launch_start_us", "launch_duration_us", "launch_delay_us"):
        assert frame[column].isna().tolist() == [True] + [False] * 5
    assert frame["launch_start_us"].tolist()[1:] == [5, 10, 15, 55, 80]
    assert frame["launch_delay_us"].tolist()[1:] == [95, 130, 185, 155, 140]
    assert frame["Parent cpu_op"].tolist() == [
        "",
        "aten::mm",
        "aten::mm",
        "aten::mm",
        "aten::copy_",
        "cudaLaunchKernel",
    ]


def test_kernels_with_their_modules() -> None:
    maker = TraceMaker()
    maker.frame("nn.Module: Net_0", 0, 100)
    maker.frame("nn.Module: Linear_1", 5, 50)
    maker.launched("k", 200, 5, correlation=1, at=10)
    maker.kernel("unlinked", 300, 5)
    analyzer = TreePerfAnalyzer(maker.document(), add_python_func=True)
    frame = analyzer.get_df_kernels(nn_module_detail=True)
    assert records(frame, "kernel_name", "nn_module") == [
        ("k", "Net_0/Linear_1"),
        ("unlinked", ""),
    ]
    with pytest.raises(UsageError, match="add_python_func=True"):
        plain(maker).get_df_kernels(nn_module_detail=True)


def test_kernels_keep_every_nanosecond() -> None:
    maker = TraceMaker()
    maker.kernel("k", 1.001, 2.003)
    maker.op("first", 0, 1)
    frame = plain(maker).get_df_kernels()
    assert records(frame, "start_us", "duration_us") == [(1.001, 2.003)]


# Without GPU events, without host events.


def test_tables_of_a_trace_without_gpu_events() -> None:
    maker = TraceMaker()
    maker.op("aten::add", 0, 5)
    analyzer = categorised(maker)
    assert list(analyzer.get_df_kernel_summary().columns)[:3] == [
        "cpu_op",
        "kernel_category",
        "kernel_name",
    ]
    for frame in (
        analyzer.get_df_kernel_summary(),
        analyzer.get_df_kernel_category_summary(),
        analyzer.get_df_kernels(launcher_detail=True),
        reference_kernel_summary(analyzer.work),
    ):
        assert frame.empty
    assert "launch" in analyzer.get_df_kernels(launcher_detail=True)


def test_tables_of_gpu_events_alone() -> None:
    maker = TraceMaker()
    maker.kernel(NVJET, 0, 5, correlation=1)
    analyzer = categorised(maker)
    assert records(analyzer.get_df_kernel_summary(), "cpu_op", "count") == [
        ("(unlinked)", 1)
    ]
    frame = analyzer.get_df_kernels(launcher_detail=True)
    assert frame["launch"].isna().all()
    assert frame["Parent cpu_op"].tolist() == [""]
    assert "Parent cpu_op" not in reference_kernel_summary(analyzer.work)


def test_durations_of_zero() -> None:
    maker = TraceMaker()
    maker.kernel("k", 0, 0)
    analyzer = categorised(maker)
    assert records(analyzer.get_df_kernel_summary(), "count", "% of GPU time") == [
        (1, 0)
    ]
    assert analyzer.get_df_kernel_category_summary()["% of cpu_op time"].tolist() == [0]


# The sheet that other tools' reports are compared with.


def test_reference_kernel_summary() -> None:
    work = plain(mixed_trace()).work
    frame = reference_kernel_summary(work)
    shown = [c for c in frame.columns if c != "Parent op category"]
    assert shown == [
        "Parent cpu_op",
        "Kernel name",
        "Kernel stream",
        *(f"Kernel duration (µs)_{s}" for s in ("sum", "count", "mean", "min", "max")),
        "Percent of kernels time (%)",
        "Percent of total time (%)",
    ]
    assert [row[:8] for row in records(frame, *shown)] == [
        ("", "a_kernel_that_no_rule_knows", 7, 100, 1, 100, 100, 100),
        ("aten::mm", NVJET, 7, 80, 2, 40, 30, 50),
        ("cudaLaunchKernel", NVJET, 8, 10, 1, 10, 10, 10),
    ]
    assert frame["Percent of kernels time (%)"].tolist() == pytest.approx(
        [10_000 / 190, 8000 / 190, 1000 / 190]
    )
    shares = [100 * time / total_time_ns(work) for time in (100_000, 80_000, 10_000)]
    assert frame["Percent of total time (%)"].tolist() == shares


def test_reference_category_of_the_parent() -> None:
    maker = TraceMaker()
    maker.launched("in a graph", 100, 5, correlation=1, at=1, api="hipGraphLaunch")
    maker.launched("by itself", 110, 4, correlation=2, at=3)
    maker.kernel("unlinked", 120, 3)
    maker.op("around a graph", 10, 20)
    maker.launched("in both", 130, 2, correlation=4, at=12, api="cudaGraphLaunch")
    frame = reference_kernel_summary(categorised(maker).work)
    assert records(frame, "Kernel name", "Parent op category", "Parent cpu_op") == [
        ("in a graph", "graph", "hipGraphLaunch"),
        ("by itself", "runtime", "cudaLaunchKernel"),
        ("unlinked", "", ""),
        ("in both", "graph", "around a graph"),
    ]
    assert "kernel_category" in frame


# Whatever is in a trace: nothing lost, nothing counted twice.

kernels_launched = st.lists(
    st.tuples(
        st.sampled_from(["aten::a", "aten::b", "graph", "launch", "unlinked"]),
        st.sampled_from([NVJET, MHA, "x_unknown", "Memcpy"]),
        st.sampled_from(["kernel", "gpu_memcpy", "gpu_memset"]),
        st.integers(0, 10**6),
        st.integers(0, 3),
    ),
    max_size=20,
)


@given(kernels_launched)
@settings(max_examples=100)
def test_tables_are_those_of_a_loop(
    launched: list[tuple[str, str, str, int, int]],
) -> None:
    maker = TraceMaker()
    maker.op("one at least", 0, 1)
    count: Counter[tuple[str, str, str]] = Counter()
    total: defaultdict[tuple[str, str, str], int] = defaultdict(int)
    for number, (how, name, kind, duration_ns, stream) in enumerate(launched, start=1):
        at = 10 * number
        api = "cudaGraphLaunch" if how == "graph" else "cudaLaunchKernel"
        if how.startswith("aten"):
            maker.op(how, at, 5)
        if how != "unlinked":
            maker.call(api, at + 1, correlation=number)
        duration = duration_ns / 1000
        maker.gpu(kind, name, 1000, duration, correlation=number, stream=stream)
        label = {"launch": "cudaLaunchKernel", "unlinked": "(unlinked)"}.get(how, how)
        key = (label, name, kind.removeprefix("gpu_"))
        count[key] += 1
        total[key] += duration_ns
    analyzer = categorised(maker)
    everything = sum(total.values())

    summary = analyzer.get_df_kernel_summary()
    keys = records(summary, "cpu_op", "kernel_name", "kind")
    assert dict(zip(keys, summary["count"].tolist(), strict=True)) == dict(count)
    times = [round(ms * 1e6) for ms in summary["total_time_ms"]]
    assert dict(zip(keys, times, strict=True)) == dict(total)
    assert times == sorted(times, reverse=True)
    shortest = summary["min_time_us"]
    longest = summary["max_time_us"]
    assert (shortest <= summary["avg_time_us"] + 1e-9).all()
    assert (summary["avg_time_us"] <= longest + 1e-9).all()

    categories = analyzer.get_df_kernel_category_summary()
    for frame in (summary, categories):
        assert frame["count"].sum() == len(launched)
        assert round(frame["total_time_ms"].sum() * 1e6) == everything
        assert math.isclose(frame["% of GPU time"].sum(), 100 if everything else 0)
    for op, share in categories.groupby("cpu_op")["% of cpu_op time"].sum().items():
        time_of_op = sum(time for (label, _, _), time in total.items() if label == op)
        assert math.isclose(share, 100 if time_of_op else 0)

    one_by_one = analyzer.get_df_kernels()
    assert len(one_by_one) == len(launched)
    assert round(one_by_one["duration_us"].sum() * 1000) == everything
    of_kernels = reference_kernel_summary(analyzer.work)
    expected = sum(number for key, number in count.items() if key[2] == "kernel")
    assert of_kernels["Kernel duration (µs)_count"].sum() == expected
