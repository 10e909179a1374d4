"""Tables of GPU events: exact, complete, and without double counting."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Any, NamedTuple

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.make_trace import TraceMaker, cuda_graph_example
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.kernels.kernels import (
    _operations_of_kernels,
    time_by_operation_and_category,
    tracelens_kernel_summary,
)
from tracelens_ext.analysis.timeline.timeline import total_time_ns
from tracelens_ext.errors import UsageError

MHA = "kernel_mha"
SCALE = "void tensorrt_llm::common::scaleMatrix<...>"
NVJET = "nvjet_tst_320x128_64x3_1x2_h_bz_coopB_TNT"

SUMMARY = ["cpu_op", "kernel_name", "count", "total_time_ms", "avg_time_us"]
MORE = ["min_time_us", "max_time_us", "% of GPU time", "kind"]


def categorized(maker: TraceMaker) -> TreePerfAnalyzer:
    return TreePerfAnalyzer(maker.document(), use_kernel_name_categories=True)


def plain(maker: TraceMaker) -> TreePerfAnalyzer:
    return TreePerfAnalyzer(maker.document())


def records(frame: pd.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return list(frame[list(columns)].itertuples(index=False, name=None))


def mixed_trace() -> TraceMaker:
    """Make a trace with every kind of GPU event and every way of launching them."""
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


# The example that the project began with: the kernels of a graph launch.


def test_kernels_of_a_graph_launch_are_of_the_operation_graph() -> None:
    analyzer = TreePerfAnalyzer(cuda_graph_example(), use_kernel_name_categories=True)
    frame = analyzer.get_df_kernel_summary()
    assert list(frame.columns) == ["cpu_op", "kernel_category", *SUMMARY[1:], *MORE]
    columns = ["cpu_op", "kernel_category", *SUMMARY[1:]]
    assert records(frame.sort_values("kernel_name"), *columns) == [
        ("graph", "Flash Attention Forward", MHA, 1, 0.15, 150),
        ("graph", "GEMM", NVJET, 1, 0.22, 220),
        ("graph", "Memory Ops", SCALE, 1, 0.08, 80),
    ]
    assert frame["total_time_ms"].tolist() == [0.22, 0.15, 0.08]  # longest first


def test_the_category_summary_has_shares_of_the_operation_and_of_all() -> None:
    analyzer = TreePerfAnalyzer(cuda_graph_example(), use_kernel_name_categories=True)
    frame = analyzer.get_df_kernel_category_summary()
    grouped = records(frame, "cpu_op", "kernel_category", "count", "total_time_ms")
    assert grouped == [
        ("graph", "GEMM", 1, 0.22),
        ("graph", "Flash Attention Forward", 1, 0.15),
        ("graph", "Memory Ops", 1, 0.08),
    ]
    shares = [48.9, 33.3, 17.8]
    assert frame["% of cpu_op time"].round(1).tolist() == shares
    assert frame["% of GPU time"].round(1).tolist() == shares


def test_without_categories_tables_lack_the_column_or_are_refused() -> None:
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


def test_kernels_of_a_graph_launch_have_the_launch_and_the_op_around_it() -> None:
    analyzer = TreePerfAnalyzer(cuda_graph_example(), use_kernel_name_categories=True)
    frame = analyzer.get_df_kernels(launcher_detail=True)
    columns = ["kernel_name", "launch", "Parent cpu_op", "start_us", "duration_us"]
    assert records(frame, *columns) == [
        (MHA, "cudaGraphLaunch", "aten::something_around", 50, 150),
        (SCALE, "cudaGraphLaunch", "aten::something_around", 200, 80),
        (NVJET, "cudaGraphLaunch", "aten::something_around", 280, 220),
    ]
    assert set(frame["launch_start_us"]) == {10}
    assert set(frame["launch_duration_us"]) == {20}
    assert frame["launch_delay_us"].tolist() == [40, 190, 270]


# GPU time by operation and kernel.


def test_the_kernel_summary_groups_by_operation_name_and_kind() -> None:
    frame = categorized(mixed_trace()).get_df_kernel_summary()
    columns = [
        "cpu_op",
        "kernel_category",
        "count",
        "total_time_ms",
        "avg_time_us",
        *MORE,
    ]
    assert records(frame, *columns) == [
        ("(unlinked)", "Uncategorized", 1, 0.1, 100, 100, 100, 50, "kernel"),
        ("aten::mm", "GEMM", 2, 0.08, 40, 30, 50, 40, "kernel"),
        ("cudaLaunchKernel", "GEMM", 1, 0.01, 10, 10, 10, 5, "kernel"),
        ("aten::copy_", "Memory Ops", 1, 0.006, 6, 6, 6, 3, "memcpy"),
        ("aten::mm", "Memory Ops", 1, 0.004, 4, 4, 4, 2, "memset"),
    ]


def test_operations_of_a_kernel_are_sorted_by_their_total_time() -> None:
    summary = pd.DataFrame(
        {
            "kernel_name": ["gemm"] * 3,
            "kind": ["kernel"] * 3,
            "cpu_op": ["aten::bmm", "aten::mm", "aten::mm"],
            "is_recompute": [False, False, True],
            "total_time_ms": [5.0, 4.0, 3.0],
        }
    )
    (operations,) = _operations_of_kernels(summary, ["kernel_name", "kind"])
    assert operations == "aten::mm, aten::bmm"


def test_equal_names_of_different_kinds_are_different_rows() -> None:
    maker = TraceMaker()
    maker.gpu("gpu_memcpy", "copy", 0, 5)
    maker.kernel("copy", 10, 5)
    frame = plain(maker).get_df_kernel_summary()
    assert records(frame, "kernel_name", "count", "kind") == [
        ("copy", 1, "memcpy"),
        ("copy", 1, "kernel"),
    ]


def test_a_kernel_may_have_a_category_for_each_operation() -> None:
    """A categorizer may use the name of the operation."""

    def by_operation(table: pd.DataFrame) -> list[str]:
        return [f"in {op}" for op in table["cpu_op"]]

    maker = TraceMaker()
    for number, name in enumerate(["aten::a", "aten::b"]):
        op_start = 10 * number
        maker.op(name, op_start, 5)
        maker.launched("k", 50 + op_start, 5, correlation=number + 1, at=op_start + 1)
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
    kernels = [
        ("aten::b", NVJET, 40),
        ("aten::b", "x_unknown", 50),
        ("aten::a", NVJET, 60),
    ]
    for number, (op, name, duration) in enumerate(kernels, start=1):
        maker.op(op, 10 * number, 5)
        maker.launched(
            name, 100 * number, duration, correlation=number, at=10 * number + 1
        )
    frame = categorized(maker).get_df_kernel_category_summary()
    assert records(frame, "cpu_op", "kernel_category", "total_time_ms") == [
        ("aten::b", "Uncategorized", 0.05),
        ("aten::b", "GEMM", 0.04),
        ("aten::a", "GEMM", 0.06),
    ]
    assert frame["% of cpu_op time"].tolist() == pytest.approx([500 / 9, 400 / 9, 100])
    assert frame["% of GPU time"].tolist() == pytest.approx([100 / 3, 80 / 3, 40])


def test_category_summary_needs_categories() -> None:
    with pytest.raises(UsageError, match="categories are turned off"):
        time_by_operation_and_category(plain(mixed_trace()).gpu_events)


# A row per GPU event.


def test_the_table_of_kernels_is_sorted_by_start() -> None:
    frame = categorized(mixed_trace()).get_df_kernels()
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
    assert frame["start_us"].tolist() == [20, 100, 140, 200, 210, 220]
    assert frame["linked"].tolist() == [False] + [True] * 5
    assert frame["correlation"].tolist() == [6, 1, 2, 3, 4, 5]
    assert frame["stream"].tolist() == [7, 7, 7, 7, 7, 8]
    assert set(frame["device"]) == {0}


def test_launcher_detail_adds_the_launch_and_its_delay() -> None:
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


def test_nn_module_detail_adds_the_modules_around_the_launch() -> None:
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


def test_times_of_kernels_are_exact_to_the_nanosecond() -> None:
    maker = TraceMaker()
    maker.kernel("k", 1.001, 2.003)
    maker.op("first", 0, 1)
    frame = plain(maker).get_df_kernels()
    assert records(frame, "start_us", "duration_us") == [(1.001, 2.003)]


# Traces without GPU events or without host events.


def test_tables_of_a_trace_without_gpu_events_are_empty() -> None:
    maker = TraceMaker()
    maker.op("aten::add", 0, 5)
    analyzer = categorized(maker)
    assert list(analyzer.get_df_kernel_summary().columns)[:3] == [
        "cpu_op",
        "kernel_category",
        "kernel_name",
    ]
    for frame in (
        analyzer.get_df_kernel_summary(),
        analyzer.get_df_kernel_category_summary(),
        analyzer.get_df_kernels(launcher_detail=True),
        tracelens_kernel_summary(analyzer.gpu_events),
    ):
        assert frame.empty
    assert "launch" in analyzer.get_df_kernels(launcher_detail=True)


def test_gpu_events_of_a_trace_without_host_events_are_unlinked() -> None:
    maker = TraceMaker()
    maker.kernel(NVJET, 0, 5, correlation=1)
    analyzer = categorized(maker)
    assert records(analyzer.get_df_kernel_summary(), "cpu_op", "count") == [
        ("(unlinked)", 1)
    ]
    frame = analyzer.get_df_kernels(launcher_detail=True)
    assert frame["launch"].isna().all()
    assert frame["Parent cpu_op"].tolist() == [""]
    assert "Parent cpu_op" not in tracelens_kernel_summary(analyzer.gpu_events)


def test_shares_of_a_total_of_zero_are_zero() -> None:
    maker = TraceMaker()
    maker.kernel("k", 0, 0)
    analyzer = categorized(maker)
    assert records(analyzer.get_df_kernel_summary(), "count", "% of GPU time") == [
        (1, 0)
    ]
    assert analyzer.get_df_kernel_category_summary()["% of cpu_op time"].tolist() == [0]


# The sheet `kernel_summary`, which has TraceLens's columns.


def test_the_reference_summary_groups_kernels_by_operation_and_stream() -> None:
    gpu_events = plain(mixed_trace()).gpu_events
    frame = tracelens_kernel_summary(gpu_events).drop(columns="Parent op category")
    assert list(frame.columns) == [
        "Parent cpu_op",
        "Kernel name",
        "Kernel stream",
        "Kernel duration (µs)_sum",
        "Kernel duration (µs)_count",
        "Kernel duration (µs)_mean",
        "Kernel duration (µs)_min",
        "Kernel duration (µs)_max",
        "Percent of kernels time (%)",
        "Percent of total time (%)",
    ]
    assert [row[:8] for row in records(frame, *frame.columns)] == [
        ("", "a_kernel_that_no_rule_knows", 7, 100, 1, 100, 100, 100),
        ("aten::mm", NVJET, 7, 80, 2, 40, 30, 50),
        ("cudaLaunchKernel", NVJET, 8, 10, 1, 10, 10, 10),
    ]
    assert frame["Percent of kernels time (%)"].tolist() == pytest.approx(
        [10_000 / 190, 8000 / 190, 1000 / 190]
    )
    total_ns = total_time_ns(gpu_events)
    shares = [100 * time_ns / total_ns for time_ns in (100_000, 80_000, 10_000)]
    assert frame["Percent of total time (%)"].tolist() == shares


def test_the_reference_summary_has_the_category_of_the_operation() -> None:
    maker = TraceMaker()
    maker.launched("in a graph", 100, 5, correlation=1, at=1, api="hipGraphLaunch")
    maker.launched("by itself", 110, 4, correlation=2, at=3)
    maker.kernel("unlinked", 120, 3)
    maker.op("around a graph", 10, 20)
    maker.launched("in both", 130, 2, correlation=4, at=12, api="cudaGraphLaunch")
    frame = tracelens_kernel_summary(categorized(maker).gpu_events)
    assert records(frame, "Kernel name", "Parent op category", "Parent cpu_op") == [
        ("in a graph", "graph", "hipGraphLaunch"),
        ("by itself", "runtime", "cudaLaunchKernel"),
        ("unlinked", "", ""),
        ("in both", "graph", "around a graph"),
    ]
    assert "kernel_category" in frame


# Any combination of GPU events: the tables agree with a plain loop.


class LaunchedEvent(NamedTuple):
    """A GPU event of a generated trace."""

    #: an operation, a `graph`, a bare `launch`, or nothing: `unlinked`
    launched_by: str
    name: str
    category: str
    duration_ns: int
    stream: int


LAUNCHED_EVENTS = st.lists(
    st.builds(
        LaunchedEvent,
        st.sampled_from(["aten::a", "aten::b", "graph", "launch", "unlinked"]),
        st.sampled_from([NVJET, MHA, "x_unknown", "Memcpy"]),
        st.sampled_from(["kernel", "gpu_memcpy", "gpu_memset"]),
        st.integers(0, 10**6),
        st.integers(0, 3),
    ),
    max_size=20,
)
#: How an event is launched → `cpu_op` in the tables, where it is not an operation.
CPU_OPS = {"launch": "cudaLaunchKernel", "unlinked": "(unlinked)"}


@given(LAUNCHED_EVENTS)
@settings(max_examples=100)
def test_tables_agree_with_a_loop_over_the_events(events: list[LaunchedEvent]) -> None:
    maker = TraceMaker()
    maker.op("at least one event", 0, 1)
    count: Counter[tuple[str, str, str]] = Counter()
    total: defaultdict[tuple[str, str, str], int] = defaultdict(int)
    for number, event in enumerate(events, start=1):
        op_start = 10 * number
        if event.launched_by.startswith("aten"):
            maker.op(event.launched_by, op_start, 5)
        if event.launched_by == "graph":
            maker.call("cudaGraphLaunch", op_start + 1, correlation=number)
        elif event.launched_by != "unlinked":
            maker.call("cudaLaunchKernel", op_start + 1, correlation=number)
        maker.gpu(
            event.category,
            event.name,
            1000,
            event.duration_ns / 1000,
            correlation=number,
            stream=event.stream,
        )
        cpu_op = CPU_OPS.get(event.launched_by, event.launched_by)
        key = (cpu_op, event.name, event.category.removeprefix("gpu_"))
        count[key] += 1
        total[key] += event.duration_ns
    analyzer = categorized(maker)
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
        assert frame["count"].sum() == len(events)
        assert round(frame["total_time_ms"].sum() * 1e6) == everything
        assert math.isclose(frame["% of GPU time"].sum(), 100 if everything else 0)
    for op, share in categories.groupby("cpu_op")["% of cpu_op time"].sum().items():
        time_of_op = sum(time for (cpu_op, _, _), time in total.items() if cpu_op == op)
        assert math.isclose(share, 100 if time_of_op else 0)

    one_by_one = analyzer.get_df_kernels()
    assert len(one_by_one) == len(events)
    assert round(one_by_one["duration_us"].sum() * 1000) == everything
    reference = tracelens_kernel_summary(analyzer.gpu_events)
    kernel_count = sum(number for key, number in count.items() if key[2] == "kernel")
    assert reference["Kernel duration (µs)_count"].sum() == kernel_count
