"""Rows of Nsight Systems exports, in every schema, become events."""

from __future__ import annotations

import gzip
import io
import sqlite3
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.readers.test_cache import assert_same
from tests.support.nsys_export_maker import (
    CATEGORY,
    DEVICE_TO_DEVICE,
    DOMAIN,
    MARK,
    PID,
    REAL,
    SCHEMAS,
    START_END,
    ExportMaker,
    global_tid,
    named,
    parents,
    read,
    text_arg,
    training,
)
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.timeline.overview import advice, whole_graphs
from tracelens_ext.categorize import Decisions, KernelCategorizer
from tracelens_ext.cli import run
from tracelens_ext.perf_report import build_perf_report
from tracelens_ext.readers import read_trace
from tracelens_ext.readers.cache.store import TraceCache
from tracelens_ext.trace import EventKind
from tracelens_ext.trace.call_tree import CallTree

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.real_data
@pytest.mark.parametrize("schema", [None, *SCHEMAS])
def test_a_training_run_is_read_completely(schema: str | None) -> None:
    trace = read(training(SCHEMAS[schema].read_text() if schema else ""))
    kinds = Counter(EventKind(kind).name for kind in trace.kind.tolist())
    assert kinds == {
        "USER_ANNOTATION": 4,
        "RUNTIME": 12,
        "KERNEL": 6,
        "MEMCPY": 2,
        "MEMSET": 2,
    }
    assert parents(trace) == {
        "Step": {""},
        "forward": {"Step"},
        "cudaMemcpyAsync": {"forward"},
        "cudaLaunchKernel": {"forward", "Step"},
        "cudaMemsetAsync": {"Step"},
        "cudaDeviceSynchronize": {"Step"},
        "gemm<float>(int)": {"cudaLaunchKernel"},
        "relu<float>(int)": {"cudaLaunchKernel"},
        "optimizer(float*)": {"cudaLaunchKernel"},
        "[CUDA memcpy Host-to-Device]": {"cudaMemcpyAsync"},
        "[CUDA memset]": {"cudaMemsetAsync"},
    }
    assert trace.base_ns == 1_000_000
    gemm = named(trace, "gemm<float>(int)")
    assert trace.ts[gemm].tolist() == [900, 10_900]
    assert trace.dur[gemm].tolist() == [700, 700]
    copies = np.array(named(trace, "[CUDA memcpy Host-to-Device]"))
    assert trace.arg("bytes").at(copies).tolist() == [4096, 4096]
    assert trace.device.tolist() == [0] * 10
    assert trace.stream.tolist() == [7] * 10
    assert trace.threads[trace.thread[gemm[0]]] == (PID, "GPU 0 stream 7")
    assert trace.provenance.dropped == {}
    assert trace.provenance.notes == ()


def test_tables_attribute_work_to_the_innermost_range() -> None:
    analyzer = TreePerfAnalyzer(
        io.BytesIO(training().content), use_kernel_name_categories=True
    )
    frame = analyzer.get_df_kernels()
    ops = dict(zip(frame["kernel_name"], frame["cpu_op"], strict=True))
    assert ops["gemm<float>(int)"] == "forward"
    assert ops["optimizer(float*)"] == "Step"


def test_a_range_does_not_change_categories(monkeypatch: pytest.MonkeyPatch) -> None:
    maker = ExportMaker()
    maker.range("aten::_flash_attention_forward", 0, 1_000)
    maker.launched("void cutlass::Kernel2<x>(int)", 2_000, 50, at=10, correlation=1)
    analyzer = TreePerfAnalyzer(
        io.BytesIO(maker.content), use_kernel_name_categories=True
    )
    asked: list[str | None] = []
    categorize = KernelCategorizer.categorize

    def noted(
        self: KernelCategorizer, names: list[str], ops: list[str | None]
    ) -> Decisions:
        asked.extend(ops)
        return categorize(self, names, ops)

    monkeypatch.setattr(KernelCategorizer, "categorize", noted)
    assert analyzer.gpu_events.categories is not None
    assert asked == [None]
    assert set(analyzer.get_df_kernels()["cpu_op"]) == {
        "aten::_flash_attention_forward"
    }


def test_a_report_has_the_tables_of_operations(tmp_path: Path) -> None:
    path = training().write(tmp_path / "run.sqlite")
    report = build_perf_report(TreePerfAnalyzer(path, use_kernel_name_categories=True))
    summary = report.sheets["ops_summary"]
    assert set(summary["name"]) == {"forward", "Step"}


def test_graphs_recorded_whole() -> None:
    maker = ExportMaker()
    for at, graph in ((0, 3), (1_000, 3), (2_000, 12)):
        maker.call("cudaGraphLaunch_v10000", at + 10, 20, correlation=at + 1)
        maker.gpu(
            "GRAPH_TRACE",
            at + 100,
            600,
            correlation=at + 1,
            graphId=graph,
            graphExecId=4,
        )
    maker.gpu("GRAPH_TRACE", 0, 0, correlation=1, graphId=3)
    trace = read(maker)
    assert [trace.name_of(row) for row in trace.gpu_rows] == [
        "CUDA graph 3",
        "CUDA graph 3",
        "CUDA graph 12",
    ]
    assert (trace.kind[trace.gpu_rows] == EventKind.KERNEL).all()
    assert CallTree(trace).by_graph.all()
    assert trace.provenance.dropped == {"no time collected (start and end are 0)": 1}
    (note,) = trace.provenance.notes
    assert note.startswith("CUDA graphs recorded as a whole, one GPU event each: 4;")
    assert "--cuda-graph-trace=node" in note


def test_no_rule_categorizes_graphs_recorded_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maker = ExportMaker()
    maker.gpu("GRAPH_TRACE", 100, 600, correlation=1, graphId=3)
    maker.kernel("zz_unheard_of", 1_000, 300)
    path = maker.write(tmp_path / "run.sqlite")
    analyzer = TreePerfAnalyzer(path, use_kernel_name_categories=True)
    assert whole_graphs(analyzer.trace) == {"CUDA graph 3"}
    assert analyzer.coverage.uncategorized_percent == 100.0
    told = advice(analyzer.gpu_events, analyzer.coverage)
    assert [note for note in told if note.startswith("No rule matches")] == [
        "No rule matches zz_unheard_of, which takes 33.3 % of GPU time."
    ]
    assert sum("--cuda-graph-trace=node" in note for note in told) == 1
    assert run(["rules", "suggest", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "zz_unheard_of" in out
    assert "CUDA graph" not in out
    assert "--cuda-graph-trace=node" in err
    assert run(["nsys", "stats", str(path), "--iterations", "1"]) == 0
    assert "--cuda-graph-trace=node" in capsys.readouterr().err


def test_kernels_of_a_graph_belong_to_its_launch() -> None:
    maker = ExportMaker()
    maker.call("cudaGraphLaunch_v10000", 10, 20, correlation=8)
    for number in range(3):
        maker.kernel(f"k{number}", 100 + number, 1, correlation=8, graphNodeId=number)
    tree = CallTree(read(maker))
    assert tree.by_graph.tolist() == [True] * 3


def test_copies_are_named_as_nsys_names_them() -> None:
    maker = ExportMaker()
    maker.insert("ENUM_CUDA_MEMCPY_OPER", id=8, name="DTOD", label="Another label")
    maker.insert("ENUM_CUDA_MEMCPY_OPER", id=40, name="NEW", label="Device-to-Moon")
    for kind in (DEVICE_TO_DEVICE, 40, 41):
        maker.gpu("MEMCPY", 10, 5, copyKind=kind, bytes=3)
    assert read(maker).names == [
        "[CUDA memcpy Device-to-Device]",
        "[CUDA memcpy Device-to-Moon]",
        "[CUDA memcpy kind 41]",
    ]


def test_a_kernel_has_the_best_available_name() -> None:
    maker = ExportMaker()
    full = maker.string("void f<int>(int)")
    short = maker.string("f")
    for ids in (
        {"demangledName": full, "shortName": short},
        {"demangledName": None, "shortName": short},
        {"demangledName": None, "shortName": None, "mangledName": maker.string("_Z1f")},
        {"demangledName": 77_777, "shortName": None},
        {"demangledName": None, "shortName": None},
    ):
        maker.gpu("KERNEL", 10, 5, **ids)
    trace = read(maker)
    names = [trace.name_of(row) for row in range(len(trace))]
    assert names == ["void f<int>(int)", "f", "_Z1f", "(no name)", "(no name)"]


def test_ranges_of_each_style() -> None:
    maker = ExportMaker()
    maker.call("cudaMalloc_v3020", 0, 1)
    maker.range("pushed", 100, 900)
    maker.range(
        "started", 200, 2_000, style=START_END, endGlobalTid=global_tid(PID, 99)
    )
    maker.range("mark", 300, None, style=MARK)
    maker.range(None, 400, 500, textId=maker.string("registered"))
    maker.range("own", 410, 490, textId=maker.string("not this"))
    maker.range(None, 420, 480)
    maker.range("other thread", 100, 900, tid=99)
    trace = read(maker)
    found = {
        trace.name_of(row): (
            EventKind(trace.kind[row]).name,
            int(trace.ts[row]),
            int(trace.dur[row]),
            trace.threads[trace.thread[row]][1],
            trace.categories[trace.category[row]],
        )
        for row in range(1, len(trace))
    }
    assert found == {
        "pushed": ("USER_ANNOTATION", 100, 800, PID, "nvtx_push_pop"),
        "started": ("USER_ANNOTATION", 200, 1_800, PID, "nvtx_start_end"),
        "mark": ("INSTANT", 300, 0, PID, "nvtx_mark"),
        "registered": ("USER_ANNOTATION", 400, 100, PID, "nvtx_push_pop"),
        "own": ("USER_ANNOTATION", 410, 80, PID, "nvtx_push_pop"),
        "(no text)": ("USER_ANNOTATION", 420, 60, PID, "nvtx_push_pop"),
        "other thread": ("USER_ANNOTATION", 100, 800, 99, "nvtx_push_pop"),
    }


def test_domains_and_categories() -> None:
    maker = ExportMaker()
    maker.call("cudaMalloc_v3020", 0, 1)
    maker.range("NCCL", 1, None, style=DOMAIN, domainId=1)
    maker.range(
        None, 1, None, style=DOMAIN, domainId=1, pid=9, textId=maker.string("of nine")
    )
    maker.range("I/O", 1, None, style=CATEGORY, domainId=1, category=4)
    maker.range("in domain", 10, 20, domainId=1, category=4)
    maker.range("of another process", 10, 20, domainId=1, pid=9)
    maker.range("nameless", 10, 20, domainId=2, category=5)
    maker.range("default", 10, 20, domainId=0, category=0)
    trace = read(maker)
    assert trace.provenance.metadata_events == 3
    found = {
        trace.name_of(row): tuple(
            text_arg(trace, f"NVTX {what}", row) for what in ("domain", "category")
        )
        for row in range(1, len(trace))
    }
    assert found == {
        "in domain": ("NCCL", "I/O"),
        "of another process": ("of nine", None),
        "nameless": ("domain 2", "category 5"),
        "default": (None, None),
    }


def test_a_range_that_did_not_end_has_no_length() -> None:
    maker = training()
    maker.range("Step", 2_000_000, None)
    trace = read(maker)
    assert trace.dur[named(trace, "Step")].tolist() == [9_000, 9_000, 0]
    assert trace.provenance.notes == (
        "NVTX ranges that were open when the recording ended, without a length here: 1",
    )


def test_operations_of_pytorch() -> None:
    maker = ExportMaker()
    maker.range("train", 0, 1_000)
    maker.range("aten::linear, seq = 8, op_id = 3, sizes = [[8, 4], [2, 4]]", 100, 900)
    maker.range("aten::mm, seq = 9, op_id = 4", 100, 900)
    maker.launched("gemm", 2_000, 50, at=200, correlation=5)
    trace = read(maker)
    assert parents(trace) == {
        "train": {""},
        "aten::linear": {"train"},
        "aten::mm": {"aten::linear"},
        "cudaLaunchKernel": {"aten::mm"},
        "gemm": {"cudaLaunchKernel"},
    }
    (linear,) = named(trace, "aten::linear")
    assert trace.kind[linear] == EventKind.CPU_OP
    assert trace.external_id[linear] == 3
    assert trace.arg("Sequence number").at(np.array([linear])).tolist() == [8]
    assert text_arg(trace, "Input Dims", linear) == [[8, 4], [2, 4]]


def test_a_range_within_an_operation_does_not_hide_it() -> None:
    maker = ExportMaker()
    maker.range("Step", 0, 1_000)
    maker.range("nccl:all_to_all, op_id = 3", 100, 900)
    maker.range("ncclGroupEnd", 150, 800, domainId=1)
    maker.launched("ncclDevKernel_SendRecv", 2_000, 50, at=200, correlation=5)
    maker.launched("other", 3_000, 50, at=50, correlation=6)
    trace = read(maker)
    tree = CallTree(trace)
    assert [trace.name_of(row) for row in tree.cpu_op_of_gpu.tolist()] == [
        "nccl:all_to_all",
        "Step",
    ]
    assert parents(trace)["ncclGroupEnd"] == {"nccl:all_to_all"}


def test_calls_of_libraries_are_operations() -> None:
    maker = ExportMaker()
    maker.insert(
        "CUBLAS_EVENTS",
        start=100,
        end=500,
        globalTid=global_tid(PID),
        nameId=maker.string("cublasGemmEx"),
    )
    maker.launched("gemm", 2_000, 50, at=200, correlation=5)
    assert parents(read(maker))["cudaLaunchKernel"] == {"cublasGemmEx"}


def test_impossible_events_are_counted() -> None:
    maker = ExportMaker()
    maker.kernel("good", 1_000, 10)
    maker.kernel("backwards", 1_000, -10)
    maker.kernel("of 2200", 2**62, 10)
    maker.kernel("two centuries", 1_000, 2**60)
    maker.range("good", 1_000, 1_010)
    maker.range("backwards", 1_000, 990)
    maker.range("strange", 1_000, 1_010, style=36)
    trace = read(maker)
    assert len(trace) == 2
    assert trace.provenance.dropped == {
        "no usable duration (dur)": 3,
        "no usable start time (ts)": 1,
        "an NVTX event that is neither a range nor a mark": 1,
    }


def test_nulls_and_other_types() -> None:
    maker = ExportMaker()
    maker.kernel("sane", 1_000, 10, correlation=3)
    for wrong in ("abc", b"\xff", 1.5, None, "12"):
        maker.insert(
            "CUPTI_ACTIVITY_KIND_MEMCPY", start=wrong, end=2_000, copyKind=wrong
        )
        maker.insert(
            "CUPTI_ACTIVITY_KIND_MEMSET",
            start=1_000,
            end=1_500,
            deviceId=wrong,
            streamId=wrong,
            globalPid=wrong,
            correlationId=wrong,
        )
        maker.range(
            "odd",
            1_000,
            1_100,
            textId=wrong,
            domainId=wrong,
            category=wrong,
            globalTid=wrong,
        )
        maker.range(wrong, 1_000, 1_100)  # type: ignore[arg-type]
    trace = read(maker)
    assert sum(kind == EventKind.MEMSET for kind in trace.kind.tolist()) == 5
    assert {"abc", "\ufffd", "1.5", "12", "odd", "(no text)"} <= set(trace.names)
    CallTree(trace)


def test_the_number_of_rows_per_batch_makes_no_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = read(training())
    for rows in (1, 3):
        monkeypatch.setattr("tracelens_ext.readers.sqlite_columns._ROWS_AT_ONCE", rows)
        monkeypatch.setattr("tracelens_ext.readers.sqlite_columns._IDS_AT_ONCE", 1)
        assert_same(read(training()), whole)


def test_the_same_from_a_file_gzipped_and_with_a_write_ahead_log(
    tmp_path: Path,
) -> None:
    maker = training()
    plain = maker.write(tmp_path / "run #1 50%?.sqlite")
    whole = read_trace(plain)
    packed = tmp_path / "run.sqlite.gz"
    packed.write_bytes(gzip.compress(maker.content))
    logged = tmp_path / "wal.sqlite"
    logged.write_bytes(maker.content)
    connection = sqlite3.connect(logged)
    connection.execute("PRAGMA journal_mode=wal")
    connection.execute("CREATE TABLE something (x)")
    connection.close()
    assert logged.read_bytes()[18:20] == b"\x02\x02"
    before = sorted(tmp_path.iterdir())
    for path in (packed, logged):
        trace = read_trace(path)
        assert trace.names == whole.names
        assert trace.ts.tolist() == whole.ts.tolist()
    with logged.open("rb") as file:
        assert read_trace(file).ts.tolist() == whole.ts.tolist()
    assert sorted(tmp_path.iterdir()) == before, "reading leaves nothing behind"


def test_a_cached_export_is_equal(tmp_path: Path) -> None:
    path = training().write(tmp_path / "run.sqlite")
    cache = TraceCache(tmp_path / "cache", worth_keeping=0)
    first = read_trace(path, cache=cache)
    assert_same(read_trace(path, cache=cache), first)
    assert len(cache.entries()) == 1
    assert_same(read_trace(path), first)


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    path = training().write(tmp_path / "run.sqlite")
    seen: list[tuple[int, int | None]] = []
    read_trace(path, progress=lambda at, size: seen.append((at, size)))
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)
    assert seen == sorted(seen)


# The real export.


@pytest.mark.real_data
def test_a_recorded_export_agrees_with_plain_sql() -> None:
    trace = read_trace(REAL)
    connection = sqlite3.connect(f"file:{REAL}?mode=ro&immutable=1", uri=True)

    def total(table: str, kind: EventKind, where: str = "1") -> int:
        rows = trace.rows_of(kind)
        query = f"SELECT count(*), sum(end - start), min(start), max(end) FROM {table}"  # noqa: S608
        count, duration, start, end = connection.execute(
            f"{query} WHERE {where}"
        ).fetchone()
        assert len(rows) == count
        assert int(trace.dur[rows].sum()) == duration
        assert int(trace.ts[rows].min()) + trace.base_ns == start
        assert int(trace.end[rows].max()) + trace.base_ns == end
        return int(count)

    assert total("CUPTI_ACTIVITY_KIND_KERNEL", EventKind.KERNEL) == 4_010
    assert total("CUPTI_ACTIVITY_KIND_MEMCPY", EventKind.MEMCPY) == 1_020
    assert total("CUPTI_ACTIVITY_KIND_MEMSET", EventKind.MEMSET) == 269
    calls = total("CUPTI_ACTIVITY_KIND_RUNTIME", EventKind.RUNTIME, "eventClass = 0")
    calls += total("CUPTI_ACTIVITY_KIND_RUNTIME", EventKind.DRIVER, "eventClass = 1")
    assert calls == 7_466
    ranges = total("NVTX_EVENTS", EventKind.CPU_OP, "text LIKE '%, op_id = %'")
    ranges += total("NVTX_EVENTS", EventKind.USER_ANNOTATION, "text IS NULL")
    assert ranges == 19_118
    assert (
        trace.provenance.present == len(trace) == 4_010 + 1_020 + 269 + 7_466 + 19_118
    )
    linked = connection.execute(
        "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL AS k WHERE EXISTS (SELECT 1 FROM"
        " CUPTI_ACTIVITY_KIND_RUNTIME AS r WHERE r.correlationId = k.correlationId"
        " AND r.globalTid >> 24 = k.globalPid >> 24)"
    ).fetchone()[0]
    tree = CallTree(trace)
    is_kernel = trace.kind[trace.gpu_rows] == EventKind.KERNEL
    assert int(tree.linked[is_kernel].sum()) == linked == 3_986
    connection.close()


@pytest.mark.real_data
def test_tables_of_a_recorded_export_are_complete() -> None:
    analyzer = TreePerfAnalyzer(REAL, use_kernel_name_categories=True)
    kernels = analyzer.get_df_kernels()
    gemms = kernels[kernels["kernel_name"].str.startswith("nvjet_")]
    assert set(gemms["cpu_op"]) == {"aten::addmm", "(unlinked)"}
    time = kernels.groupby("kernel_category", observed=True)["duration_us"].sum()
    assert "Uncategorized" not in time
    assert time["Communication"] == pytest.approx(25_401.752)
    ops = analyzer.get_df_kernel_launchers_summary()
    assert {"aten::addmm", "flash_attn::_flash_attn_forward"} <= set(ops["name"])
