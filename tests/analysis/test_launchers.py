"""Launchers of GPU events: which operation they are, their times and their categories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.make_trace import Document, TraceMaker
from tests.support.simulated_job import VendorKey, write_demo_trace
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.operations.launchers import find_launchers
from tracelens_ext.trace import NONE

if TYPE_CHECKING:
    from collections.abc import Callable

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def _rows(document: Document, **options: Any) -> dict[str, dict[Any, Any]]:
    """Return the row of each launcher by name; each name must have one launcher."""
    table = TreePerfAnalyzer(document, **options).get_df_kernel_launchers()
    assert table["name"].is_unique
    return {row["name"]: row for row in table.to_dict("records")}


def _nested() -> TraceMaker:
    """Return an op within an op: outer launches [100, 110) and [130, 140), inner [105, 125) µs."""
    maker = TraceMaker()
    maker.op("aten::outer", 0, 50, external_id=1)
    maker.launched("k1", 100, 10, correlation=1, at=2)
    maker.op("aten::inner", 10, 10, external_id=2)
    maker.launched("k2", 105, 20, correlation=2, at=12, stream=8)
    maker.launched("k3", 130, 10, correlation=3, at=30)
    return maker


def test_direct_time_is_of_the_op_itself_and_subtree_time_includes_ops_below() -> None:
    rows = _rows(_nested().document())
    assert rows["aten::outer"]["total_direct_kernel_time"] == 20
    # [100, 125) and [130, 140)
    assert rows["aten::outer"]["total_subtree_kernel_time"] == 35
    assert rows["aten::outer"]["direct_kernel_count"] == 2
    assert rows["aten::inner"]["total_direct_kernel_time"] == 20
    assert rows["aten::inner"]["total_subtree_kernel_time"] == 20


def test_overlapping_kernels_of_one_op_count_once() -> None:
    maker = TraceMaker()
    maker.op("aten::op", 0, 50)
    maker.launched("k1", 100, 10, correlation=1, at=2, stream=7)
    maker.launched("k2", 105, 10, correlation=2, at=4, stream=8)
    assert _rows(maker.document())["aten::op"]["total_direct_kernel_time"] == 15


def test_copies_and_fills_count_like_kernels() -> None:
    maker = TraceMaker()
    maker.op("aten::copy_", 0, 50)
    maker.launched("Memcpy HtoD", 100, 10, correlation=1, at=2, category="gpu_memcpy")
    maker.launched("Memset", 110, 5, correlation=2, at=4, category="gpu_memset")
    row = _rows(maker.document())["aten::copy_"]
    assert (row["total_direct_kernel_time"], row["direct_kernel_count"]) == (15, 2)


def test_the_wrapper_called_execute_is_skipped() -> None:
    maker = TraceMaker()
    maker.op("aten::conv_bn_fused", 0, 50, external_id=1)
    maker.op("execute", 5, 30, external_id=2)
    maker.launched("k", 100, 10, correlation=1, at=10)
    assert set(_rows(maker.document())) == {"aten::conv_bn_fused"}


@pytest.mark.parametrize("add_python_func", [False, True])
def test_frames_and_annotations_between_op_and_launch_are_skipped(
    add_python_func: bool,
) -> None:
    maker = TraceMaker()
    maker.op("aten::op", 0, 50)
    maker.annotation("around the launch", 2, 40)
    maker.frame("file.py(1): run", 5, 30)
    maker.launched("k", 100, 10, correlation=1, at=10)
    assert set(_rows(maker.document(), add_python_func=add_python_func)) == {"aten::op"}


def test_a_launch_within_a_call_within_an_op_belongs_to_the_op() -> None:
    maker = TraceMaker()
    maker.op("aten::op", 0, 50)
    maker.call("cudaLaunchKernelExC", 5, 20)
    maker.launched("k", 100, 10, correlation=1, at=10, api="cuLaunchKernelEx")
    assert set(_rows(maker.document())) == {"aten::op"}


def test_a_launch_without_an_op_is_its_own_launcher() -> None:
    maker = TraceMaker()
    maker.op("aten::elsewhere", 0, 10)
    maker.launched("k", 100, 10, correlation=1, at=20)
    maker.call("cudaGraphLaunch", 30, 5, correlation=2)
    maker.kernel("g1", 120, 5, correlation=2)
    maker.kernel("g2", 125, 5, correlation=2)
    rows = _rows(maker.document())
    assert rows["cudaLaunchKernel"]["op category"] == "runtime"
    assert rows["cudaGraphLaunch"]["op category"] == "graph"
    assert rows["cudaGraphLaunch"]["direct_kernel_count"] == 2


def test_communication_counts_in_subtree_time_only() -> None:
    maker = TraceMaker()
    maker.op("c10d::allreduce_", 0, 50, external_id=1)
    maker.launched("copy", 90, 5, correlation=1, at=2)
    maker.op("record_param_comms", 5, 40, external_id=2)
    maker.launched(NCCL, 100, 10, correlation=2, at=10)
    rows = _rows(maker.document())
    assert set(rows) == {"c10d::allreduce_"}
    assert rows["c10d::allreduce_"]["total_direct_kernel_time"] == 5
    assert rows["c10d::allreduce_"]["total_subtree_kernel_time"] == 15


def test_communication_within_a_graph_is_left_out() -> None:
    maker = TraceMaker()
    maker.call("cudaGraphLaunch", 0, 5, correlation=1)
    maker.kernel("k", 100, 10, correlation=1)
    maker.kernel(NCCL, 110, 30, correlation=1)
    assert _rows(maker.document())["cudaGraphLaunch"]["total_direct_kernel_time"] == 10


@pytest.mark.parametrize(
    ("op", "kernel", "category"),
    [
        ("aten::mm", "whatever", "GEMM"),
        ("aten::_flash_attention_forward", "attn_fwd", "SDPA_fwd"),
        ("my::op", "my_rms_norm_kernel", "RMSNorm"),
        ("my::op", "whatever", "other"),
        ("aten::mm", "my_rms_norm_kernel", "GEMM"),
    ],
)
def test_an_op_gets_its_category_by_its_name_then_by_its_first_kernel(
    op: str, kernel: str, category: str
) -> None:
    maker = TraceMaker()
    maker.op(op, 0, 50)
    maker.launched("Memset", 90, 5, correlation=1, at=2, category="gpu_memset")
    maker.launched(kernel, 100, 10, correlation=2, at=4)
    assert _rows(maker.document())[op]["op category"] == category


def test_an_op_without_a_known_name_that_launches_a_graph_is_a_graph() -> None:
    maker = TraceMaker()
    maker.op("CompiledFunction", 0, 50)
    maker.call("cudaGraphLaunch", 10, 5, correlation=1)
    maker.kernel("my_rms_norm_kernel", 100, 10, correlation=1)
    assert _rows(maker.document())["CompiledFunction"]["op category"] == "graph"


def test_arguments_are_shown_as_tuples() -> None:
    maker = TraceMaker()
    args = {
        "Input Dims": [[4, 3], []],
        "Input type": ["float", "Scalar"],
        "Input Strides": [[3, 1], []],
        "Concrete Inputs": ["", "0.5"],
    }
    maker.op("aten::mul", 0, 50, args=args)
    maker.launched("k", 100, 10, correlation=1, at=2)
    row = _rows(maker.document())["aten::mul"]
    assert row["Input Dims"] == "((4, 3), ())"
    assert row["Input type"] == "('float', 'Scalar')"
    assert row["Input Strides"] == "((3, 1), ())"
    assert row["Concrete Inputs"] == "('', '0.5')"


def test_missing_arguments_are_empty_and_missing_names_unknown() -> None:
    row = _rows(_nested().document())["aten::inner"]
    assert row["Input Dims"] == ""
    assert {row["process_name"], row["process_label"], row["thread_name"]} == {
        "Unknown"
    }


def test_names_of_process_and_thread_are_shown() -> None:
    maker = _nested()
    maker.process_name(100, "python3")
    metadata = {"ph": "M", "pid": 100, "tid": 1, "ts": 0}
    labels = {"name": "process_labels", "args": {"labels": "CPU"}}
    thread = {"name": "thread_name", "args": {"name": "thread 1 (python3)"}}
    maker.add(metadata | labels)
    maker.add(metadata | thread)
    row = _rows(maker.document())["aten::inner"]
    assert row["process_name"] == "python3"
    assert row["process_label"] == "CPU"
    assert row["thread_name"] == "thread 1 (python3)"


def test_ids_and_kernels_of_launchers_are_optional_columns() -> None:
    analyzer = TreePerfAnalyzer(_nested().document())
    table = analyzer.get_df_kernel_launchers(id_cols=True, include_kernel_details=True)
    first = table.iloc[0]
    assert first["name"] == "aten::outer"
    assert first["pid"] == 100
    assert first["tid"] == 1
    assert first["external_id"] == 1
    assert first["kernel_details"] == [
        {"name": "k1", "dur": 10.0, "stream": 7},
        {"name": "k3", "dur": 10.0, "stream": 7},
    ]
    assert analyzer.trace.name_of(int(first["UID"])) == "aten::outer"


def _traces() -> list[Any]:
    paths = sorted(SHARED.glob("*/*.json.gz"))
    return [pytest.param(path, id=path.name) for path in paths]


@pytest.mark.real_data
@pytest.mark.parametrize("path", _traces())
def test_gpu_events_of_a_real_trace_have_one_launcher_each(path: Path) -> None:
    _check_invariants(TreePerfAnalyzer(path))


@pytest.mark.slow
@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_gpu_events_of_the_demo_have_one_launcher_each(
    vendor: VendorKey, tmp_path: Path
) -> None:
    path = tmp_path / "demo.json.gz"
    write_demo_trace(path, vendor=vendor)
    _check_invariants(TreePerfAnalyzer(path))


def _check_invariants(analyzer: TreePerfAnalyzer) -> None:
    gpu_events = analyzer.gpu_events
    launchers = find_launchers(gpu_events)
    has_launcher = launchers.of_gpu != NONE
    assert (
        has_launcher == (gpu_events.tree.linked & ~gpu_events.is_communication)
    ).all()
    assert launchers.count.sum() == has_launcher.sum()
    assert (launchers.count > 0).all()
    assert (launchers.direct_ns <= launchers.subtree_ns).all()
    summed_ns = np.zeros(len(launchers), dtype=np.int64)
    np.add.at(
        summed_ns, launchers.of_gpu[has_launcher], gpu_events.duration[has_launcher]
    )
    assert (launchers.direct_ns <= summed_ns).all()
    assert (np.diff(gpu_events.trace.ts[launchers.rows]) >= 0).all()
    by_category = analyzer.get_df_kernel_launchers_summary_by_category()
    by_name = analyzer.get_df_kernel_launchers_summary()
    by_arguments = analyzer.get_df_kernel_launchers_unique_args()
    assert by_category["Count"].sum() == len(launchers)
    assert by_name["Count"].sum() == len(launchers)
    assert by_arguments["operation_count"].sum() == len(launchers)
    total_direct_ns = launchers.direct_ns.sum()
    if total_direct_ns:
        for table in (by_category, by_name, by_arguments):
            assert table["Percentage (%)"].sum() == pytest.approx(100)
    direct_us = by_name["total_direct_kernel_time_sum"].sum()
    assert direct_us == pytest.approx(total_direct_ns / 1e3)


def _cpu_only() -> TraceMaker:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 50)
    maker.call("cudaLaunchKernel", 10, correlation=1)
    return maker


def _gpu_only() -> TraceMaker:
    maker = TraceMaker()
    maker.kernel("k", 0, 10, correlation=1)
    maker.kernel(NCCL, 10, 10)
    return maker


def _launches_only() -> TraceMaker:
    maker = TraceMaker()
    maker.launched("k", 100, 10, correlation=1, at=10)
    maker.launched(NCCL, 110, 10, correlation=2, at=20)
    return maker


@pytest.mark.parametrize("make", [_cpu_only, _gpu_only, _launches_only])
@pytest.mark.parametrize("categories", [False, True])
def test_traces_without_launches_or_operations_give_tables(
    make: Callable[[], TraceMaker], categories: bool
) -> None:
    analyzer = TreePerfAnalyzer(
        make().document(), use_kernel_name_categories=categories
    )
    launcher_count = 1 if make is _launches_only else 0
    row_counts = {
        "get_df_kernel_launchers": launcher_count,
        "get_df_kernel_launchers_summary": launcher_count,
        "get_df_kernel_launchers_summary_by_category": launcher_count,
        "get_df_kernel_launchers_unique_args": launcher_count,
        "get_df_collectives": 0 if make is _cpu_only else 1,
        "get_df_graph_launches": 0,
        "get_df_nn_modules": 0,
        "get_df_unlinked_kernels": 2 if make is _gpu_only else 0,
    }
    for method, row_count in row_counts.items():
        table = getattr(analyzer, method)()
        assert len(table) == row_count, method
        assert len(table.columns), method
    assert len(analyzer.get_df_kernels(cpu_op_detail=True)) == len(analyzer.gpu_events)
