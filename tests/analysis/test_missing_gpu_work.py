"""Explanations for a trace without GPU work, and how to record GPU work."""

from __future__ import annotations

import pytest

from tests.support.make_trace import TraceMaker
from tests.support.nsys_export_maker import TABLES, ExportMaker, read
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.coverage.missing_gpu_work import no_gpu_work
from tracelens_ext.readers.nsys.diagnostics import explanations

CUDA_FAILED = "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES: the user may not profile GPUs"
CPU_SAMPLING = "CPU IP/backtrace sampling not supported, disabling."
NO_EVENTS = "No CUDA events collected. Does the process use CUDA?"


def explanation_of(maker: TraceMaker, **members: object) -> str:
    return no_gpu_work(TreePerfAnalyzer(maker.document(**members)).gpu_events)


@pytest.mark.parametrize(
    ("count", "call", "expected"),
    [
        (1, "cudaLaunchKernel", "1 kernel was launched, but not recorded."),
        (1, "cudaGraphLaunch", "1 graph was launched, but not recorded."),
        (3, "cudaLaunchKernel", "3 kernels were launched, but none was recorded."),
        (
            3,
            "cudaGraphLaunch",
            "3 kernels and graphs were launched, but none was recorded.",
        ),
    ],
)
def test_launches_without_recorded_work_are_counted(
    count: int, call: str, expected: str
) -> None:
    maker = TraceMaker()
    for number in range(count):
        maker.call(call, 10 * number, correlation=number + 1)
    assert explanation_of(maker) == expected


def test_a_trace_of_the_cpu_alone_gets_advice_to_record_the_gpu() -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 10)
    assert explanation_of(maker) == (
        "The trace contains no GPU work. "
        "If the program uses a GPU, record it with ProfilerActivity.CUDA."
    )


def test_an_accelerator_of_another_vendor_is_named() -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 10)
    devices = [{"id": 0, "name": "Intel(R) Arc(TM) B580 Graphics"}]
    assert explanation_of(maker, deviceProperties=devices) == (
        "The trace contains no work of Intel(R) Arc(TM) B580 Graphics; record it with "
        "ProfilerActivity.XPU."
    )


def test_events_of_unknown_kinds_are_counted_and_named() -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 10)
    maker.process_name(2, "Ascend Hardware")
    for start in (100, 200):
        maker.add(
            {"ph": "X", "name": "MatMulV2", "pid": 2, "tid": 15, "ts": start, "dur": 50}
        )
    maker.gpu("gpu_op", "gemm", 300, 50, device=7)
    assert explanation_of(maker) == (
        "No GPU work was read. These events, which may be GPU work, are not supported: "
        "2 events without a category under 'Ascend Hardware', 1 event of the category gpu_op."
    )


def export_with(*diagnostics: tuple[int, str]) -> ExportMaker:
    """Return an export with one launch, no kernel, and diagnostics (severity, text)."""
    maker = ExportMaker()
    maker.call("cudaLaunchKernel_v7000", 100, 20, correlation=1)
    columns = "timestamp INTEGER, severity INTEGER, text TEXT"
    maker.connection.execute(f"CREATE TABLE DIAGNOSTIC_EVENT ({columns})")
    TABLES.setdefault("DIAGNOSTIC_EVENT", columns)
    for severity, text in diagnostics:
        maker.insert("DIAGNOSTIC_EVENT", timestamp=0, severity=severity, text=text)
    return maker


def test_nsight_systems_is_quoted_where_it_explains_the_missing_kernels() -> None:
    trace = read(
        export_with((2, CPU_SAMPLING), (3, f"{CUDA_FAILED}\n"), (2, NO_EVENTS))
    )
    explanation = no_gpu_work(TreePerfAnalyzer(trace).gpu_events)
    assert explanation == (
        f"1 kernel was launched, but not recorded. Nsight Systems reports: {CUDA_FAILED}. "
        f"Nsight Systems reports: {NO_EVENTS}"
    )


def test_an_unrelated_diagnostic_is_not_quoted() -> None:
    trace = read(
        export_with((2, CPU_SAMPLING), (1, "Number of CUPTI events produced: 3"))
    )
    assert trace.provenance.notes == ()


def test_informational_diagnostics_count_only_without_more_severe_ones() -> None:
    assert explanations([("1", NO_EVENTS), ("2", CPU_SAMPLING)]) == [NO_EVENTS]
    assert explanations([("1", NO_EVENTS), ("3", CUDA_FAILED)]) == [CUDA_FAILED]
    assert explanations([("3", CUDA_FAILED), ("3", CUDA_FAILED)]) == [CUDA_FAILED]
