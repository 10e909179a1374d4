"""Databases of rocmProfileData (`.rpd`) of all versions give the events that plain SQL finds."""

from __future__ import annotations

import gzip
import sqlite3
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.refusal_helpers import refused
from tests.support.rocprof_maker import read
from tests.support.rpd_maker import PID, SCHEMAS, TID, RpdMaker, training
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.errors import TraceError
from tracelens_ext.readers import read_trace
from tracelens_ext.trace import NONE, EventKind
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace_files import traces_in

if TYPE_CHECKING:
    from tracelens_ext.trace import Trace

RECORDED = (
    Path(__file__).resolve().parents[3] / "shared" / "field" / "matmul_result.rpd"
)
versions = pytest.mark.parametrize("version", SCHEMAS)
_OPERATIONS = """SELECT CASE d.string WHEN '' THEN t.string ELSE d.string END, o.start, o.end
 FROM rocpd_op o JOIN rocpd_string d ON d.id = o.description_id
 JOIN rocpd_string t ON t.id = o.opType_id"""
_CALLS = """SELECT n.string, a.start, a.end FROM rocpd_api a
 JOIN rocpd_string n ON n.id = a.apiName_id WHERE n.string != 'UserMarker'"""


def events(trace: Trace, *kinds: EventKind) -> list[tuple[str, int, int]]:
    """Return name, start and end of events, in ns."""
    rows = trace.rows_of(*kinds)
    start = trace.ts[rows] + trace.base_ns
    end = start + trace.dur[rows]
    names = [trace.name_of(row) for row in rows.tolist()]
    return sorted(zip(names, start.tolist(), end.tolist(), strict=True))


def selected(path: Path, query: str) -> list[tuple[str, int, int]]:
    connection = sqlite3.connect(path)
    rows = connection.execute(query).fetchall()
    connection.close()
    return sorted(rows)


def assert_as_plain_sql(path: Path) -> None:
    trace = read(path)
    kernels = f"{_OPERATIONS} WHERE t.string = 'KernelExecution'"
    copies = f"{_OPERATIONS} WHERE t.string LIKE 'Copy%'"
    fills = f"{_OPERATIONS} WHERE t.string = 'FillBuffer'"
    assert events(trace, EventKind.KERNEL) == selected(path, kernels)
    assert events(trace, EventKind.MEMCPY) == selected(path, copies)
    assert events(trace, EventKind.MEMSET) == selected(path, fills)
    assert events(trace, EventKind.RUNTIME) == selected(path, _CALLS)


@versions
def test_events_equal_those_of_plain_sql(version: int, tmp_path: Path) -> None:
    assert_as_plain_sql(training(version).write(tmp_path / "run.rpd"))


@pytest.mark.real_data
def test_a_recorded_file_equals_plain_sql() -> None:
    assert_as_plain_sql(RECORDED)
    trace = read(RECORDED)
    kinds = Counter(EventKind(kind).name for kind in trace.kind.tolist())
    assert kinds["RUNTIME"] == 125
    assert (kinds["KERNEL"], kinds["MEMCPY"], kinds["MEMSET"]) == (29, 55, 1)
    assert CallTree(trace).linked.all()


@versions
def test_launches_markers_and_autograd_ranges(version: int, tmp_path: Path) -> None:
    trace = read(training(version).write(tmp_path / "run.rpd"))
    tree = CallTree(trace)
    assert tree.linked.all()
    assert {process for process, _ in trace.threads} == {PID}
    assert (PID, TID) in trace.threads
    assert trace.count_of(EventKind.USER_ANNOTATION) == 2
    assert [name for name, _, _ in events(trace, EventKind.INSTANT)] == ["a mark"]
    operations = trace.rows_of(EventKind.CPU_OP)
    assert [trace.name_of(row) for row in operations.tolist()] == ["aten::mm"] * 2
    assert trace.arg("Input Dims").texts == ["[[8,4],[4,2]]"]
    analyzer = TreePerfAnalyzer(tmp_path / "run.rpd")
    kernels = analyzer.get_df_kernels(launcher_detail=True)
    gemm = kernels[kernels["kernel_name"] == "gemm(float)"]
    assert set(gemm["cpu_op"]) == {"aten::mm"}
    graphs = analyzer.get_df_graph_launches()
    assert graphs[["launch", "kernels_per_launch"]].to_numpy().tolist() == [
        ["hipGraphLaunch", 3]
    ]
    assert len(analyzer.get_df_iterations("^step")) == 2


@versions
def test_copies_have_bytes_and_kernels_blocks(version: int, tmp_path: Path) -> None:
    trace = read(training(version).write(tmp_path / "run.rpd"))
    copies = trace.rows_of(EventKind.MEMCPY)
    assert trace.arg("bytes").at(copies).tolist() == [4096, 4096]
    kernels = trace.rows_of(EventKind.KERNEL)
    blocks = {
        trace.name_of(row): int(trace.arg("grid").at(np.array([row]))[0])
        for row in kernels.tolist()
    }
    assert blocks == {"gemm(float)": 35, "relu(float*)": 1, "in_graph": NONE}


def test_grids_in_work_items_are_divided_by_the_workgroup(tmp_path: Path) -> None:
    run = RpdMaker()
    run.launched("blocks", 100, 10, at=10, grid=(3, 1, 1, 64, 1, 1))
    run.launched(
        "items",
        200,
        10,
        at=30,
        call_name="hipExtModuleLaunchKernel",
        grid=(1792, 782, 1, 256, 1, 1),
    )
    trace = read(run.write(tmp_path / "run.rpd"))
    assert trace.arg("grid").at(trace.gpu_rows).tolist() == [3, 7 * 782]


def test_grids_of_unknown_unit_are_unknown(tmp_path: Path) -> None:
    run = RpdMaker()
    run.launched("k", 100, 10, at=10, grid=(512, 2, 1, 256, 1, 1))
    trace = read(run.write(tmp_path / "run.rpd"))
    assert trace.arg("grid").at(trace.gpu_rows).tolist() == [NONE]


def test_a_kernel_without_description_has_the_name_that_was_launched(
    tmp_path: Path,
) -> None:
    run = RpdMaker()
    run.launched("launched(int)", 100, 10, at=10)
    run.connection.execute("UPDATE rocpd_op SET description_id = 1")
    trace = read(run.write(tmp_path / "run.rpd"))
    assert events(trace, EventKind.KERNEL) == [("launched(int)", 100, 110)]


def test_processes_of_one_file_stay_apart(tmp_path: Path) -> None:
    """Operations without a call belong to the process that used their GPU."""
    run = RpdMaker(3)
    for rank in range(2):
        run.launched(f"k{rank}", 100, 10, at=10, pid=PID + rank, gpu=rank)
        run.operation("KernelExecution", 200, 10, name=f"lost{rank}", gpu=rank)
    trace = read(run.write(tmp_path / "run.rpd"))
    processes = {
        trace.name_of(row): trace.threads[trace.thread[row]][0]
        for row in trace.gpu_rows.tolist()
    }
    assert processes == {"k0": PID, "lost0": PID, "k1": PID + 1, "lost1": PID + 1}


def test_copies_of_rocprofiler_are_on_the_gpu_of_their_process(tmp_path: Path) -> None:
    """rocprofiler-sdk writes GPU 0 for all copies."""
    run = RpdMaker(3)
    run.launched("k", 100, 10, at=10, gpu=3)
    call = run.call("hipMemcpy", 300, 10)
    run.operation("MEMORY_COPY_HOST_TO_DEVICE", 320, 5, call=call, gpu=0)
    trace = read(run.write(tmp_path / "run.rpd"))
    assert set(trace.device.tolist()) == {3}


def test_streams_of_cuda_are_sequence_numbers(tmp_path: Path) -> None:
    run = RpdMaker()
    call = run.call("cudaLaunchKernel", 10, 5)
    run.operation("ConcurrentKernel", 100, 5, call=call, name="k", queue=1, sequence=7)
    trace = read(run.write(tmp_path / "run.rpd"))
    assert trace.stream.tolist() == [7]


def test_ranges_of_other_domains_are_annotations(tmp_path: Path) -> None:
    run = RpdMaker(3)
    run.call("forward", 10, 50, domain="my_program")
    run.call("ApiTable::writeRows", 20, 5, domain="rpd_tracer")
    run.launched("k", 100, 10, at=15)
    trace = read(run.write(tmp_path / "run.rpd"))
    assert events(trace, EventKind.USER_ANNOTATION) == [("forward", 10, 60)]
    assert trace.count_of(EventKind.RUNTIME) == 2


def test_barriers_and_counter_values_are_counted(tmp_path: Path) -> None:
    run = RpdMaker(3)
    run.launched("k", 100, 10, at=15)
    run.operation("Barrier", 120, 10)
    run.insert("rocpd_counter", value=1.5, op_id=1, name_id=1)
    trace = read(run.write(tmp_path / "run.rpd"))
    assert trace.provenance.dropped == {
        "barriers, which are not GPU work": 1,
        "counter values, which are not analyzed": 1,
    }


def test_samples_of_the_monitor_are_counters(tmp_path: Path) -> None:
    run = training()
    for start, end, value in (
        (0, 500, 1),
        (900_000, 1_000_500, 800),
        (1_000_500, 1_009_000, 1700),
    ):
        run.insert(
            "rocpd_monitor",
            deviceType="gpu",
            deviceId=2,
            monitorType="sclk",
            start=start,
            end=end,
            value=str(value),
        )
    trace = read(run.write(tmp_path / "run.rpd"))
    table = TreePerfAnalyzer(tmp_path / "run.rpd").get_df_gpu_counters()
    assert table.to_numpy().tolist() == [[2, "sclk", 2, 1250.0, 800.0, 1700.0]]
    assert trace.base_ns == 1_000_000
    assert sum(trace.provenance.dropped.values()) == 1


def test_calls_of_hsa_are_driver_calls(tmp_path: Path) -> None:
    run = RpdMaker()
    run.launched("k", 100, 10, at=15)
    columns = "pid integer, tid integer, start integer, end integer, apiName_id integer"
    run.connection.execute(f"CREATE TABLE rocpd_hsaApi (id integer, {columns})")
    name = run.text("hsa_signal_wait")
    run.insert("rocpd_hsaApi", pid=PID, tid=5, start=40, end=90, apiName_id=name)
    trace = read(run.write(tmp_path / "run.rpd"))
    assert events(trace, EventKind.DRIVER) == [("hsa_signal_wait", 40, 90)]


def test_gzipped_files_and_folders_are_read(tmp_path: Path) -> None:
    path = training().write(tmp_path / "run.rpd")
    zipped = tmp_path / "other.rpd.gz"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    assert traces_in(tmp_path) == [zipped, path]
    assert len(read_trace(zipped)) == len(read_trace(path))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE rocpd_op SET opType_id = 999, description_id = NULL, gpuId = 'x'",
        "UPDATE rocpd_api SET apiName_id = 999, args_id = -5, tid = NULL, pid = NULL",
        "UPDATE rocpd_api_ops SET api_id = 9223372036854775807",
        "UPDATE rocpd_kernelapi SET gridX = 9223372036854775807, workgroupX = -1",
        "UPDATE rocpd_copyapi SET size = -4",
        "DROP TABLE rocpd_api_ops",
        "DROP TABLE rocpd_kernelapi",
        "DROP TABLE rocpd_metadata",
    ],
)
def test_ids_without_a_row_lose_no_event(statement: str, tmp_path: Path) -> None:
    run = training()
    run.connection.execute(statement)
    trace = read(run.write(tmp_path / "run.rpd"))
    assert len(trace) == 31
    assert len(CallTree(trace).launch_of_gpu) == 14


def test_refusals_are_one_line(tmp_path: Path) -> None:
    path = RpdMaker().write(tmp_path / "empty.rpd")
    assert "contains no calls, markers, kernels or copies" in refused(path)
    assert "runTracer.sh" in refused(path)
    other = sqlite3.connect(":memory:")
    for table in ("rocpd_api", "rocpd_op", "rocpd_string"):
        other.execute(f"CREATE TABLE {table} (id integer)")
    path.write_bytes(other.serialize())
    other.close()
    assert "is a damaged rocmProfileData database (rocpd_op has no end, start)" in (
        refused(path)
    )


@given(cut=st.integers(0, 40_000), byte=st.integers(0, 255))
def test_damage_gives_a_trace_or_an_error(
    cut: int, byte: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(training().connection.serialize())
    content[cut % len(content)] = byte
    path = tmp_path_factory.mktemp("rpd") / "run.rpd"
    path.write_bytes(content)
    try:
        read_trace(path, cache=False)
    except TraceError as error:
        assert "\n" not in str(error)
