"""Each form of a rocprofv3 run gives the tables of the same run in PyTorch's format."""

from __future__ import annotations

import gzip
from collections import Counter
from typing import TYPE_CHECKING

import pandas as pd
import pytest

from tests.support.rocprof_maker import (
    COPY,
    DISPATCH,
    MEMORY,
    PRODUCT,
    TO_HOST,
    UNITS,
    RunMaker,
    read,
    training,
)
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.cli import run
from tracelens_ext.perf_report import build_perf_report
from tracelens_ext.readers import read_trace
from tracelens_ext.trace import EventKind
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace_files import trace_names

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracelens_ext.trace import Trace

WRITE: dict[str, Callable[[RunMaker, Path], Path]] = {
    "rocpd": lambda run, folder: run.write_rocpd(folder / "run_results.db"),
    "JSON": lambda run, folder: run.write_json(folder / "run_results.json"),
    "CSV": lambda run, folder: run.write_csv(folder),
}
forms = pytest.mark.parametrize("form", WRITE)


@forms
def test_tables_are_those_of_pytorch(form: str, tmp_path: Path) -> None:
    made = training()
    theirs = TreePerfAnalyzer(made.document(), use_kernel_name_categories=True)
    ours = TreePerfAnalyzer(
        WRITE[form](made, tmp_path), use_kernel_name_categories=True
    )
    order = ["start_us", "kernel_name"]
    mine, other = (
        analyzer.get_df_kernels(launcher_detail=True).sort_values(
            order, ignore_index=True
        )
        for analyzer in (ours, theirs)
    )
    pd.testing.assert_frame_equal(mine, other)
    assert len(mine) == 12
    report = build_perf_report(ours)
    expected = build_perf_report(theirs)
    assert "unlinked_kernels" not in report.sheets
    same = (
        "gpu_timeline",
        "kernels_by_category",
        "kernel_categories",
        "gpu_time_by_category",
    )
    for name in same:
        pd.testing.assert_frame_equal(report.sheets[name], expected.sheets[name])
    graphs = report.sheets["graph_launches"]
    assert graphs[["launch", "launches", "kernels_per_launch"]].to_numpy().tolist() == [
        ["hipGraphLaunch", 2, 3]
    ]


@forms
def test_ranges_calls_and_threads_are_read(form: str, tmp_path: Path) -> None:
    trace = read(WRITE[form](training(), tmp_path))
    tree = CallTree(trace)
    assert tree.linked.all()
    kinds = Counter(EventKind(kind).name for kind in trace.kind.tolist())
    assert kinds == {"USER_ANNOTATION": 4, "RUNTIME": 10, "KERNEL": 10, "MEMCPY": 2}
    above = {
        trace.name_of(row): trace.name_of(tree.rows[tree.parent_position[place]])
        for place, row in enumerate(tree.rows.tolist())
        if tree.parent_position[place] >= 0
    }
    assert above["hipLaunchKernel"] == "forward"
    assert above["hipDeviceSynchronize"].startswith("step")
    assert set(trace.threads) == {
        (4242, 4243),
        *((4242, f"GPU 0 {lane}") for lane in ("queue 3", "queue 4", "stream 5")),
    }
    assert trace.base_ns == 1_000_000


@forms
def test_devices_are_described(form: str, tmp_path: Path) -> None:
    run = RunMaker()
    run.kernel("k", 10, 5, correlation=1, gpu=1)
    run.copy(TO_HOST, 20, 5, correlation=2, gpu=1)
    run.call("hipLaunchKernel", 1, 2, correlation=1)
    trace = read(WRITE[form](run, tmp_path))
    assert [device.name for device in trace.devices] == [PRODUCT, PRODUCT]
    assert {device.units for device in trace.devices} == {UNITS}
    assert trace.devices[1].memory_bytes == (0 if form == "CSV" else MEMORY)
    assert trace.device.tolist() == [1, 1]


@forms
def test_iterations_and_gaps(form: str, tmp_path: Path) -> None:
    analyzer = TreePerfAnalyzer(WRITE[form](training(), tmp_path))
    assert len(analyzer.get_df_iterations("^step")) == 2


@forms
def test_marks_become_instants(form: str, tmp_path: Path) -> None:
    run = training()
    run.range("here", 1_000_500, 1_000_500)
    trace = read(WRITE[form](run, tmp_path))
    (mark,) = [row for row in range(len(trace)) if trace.name_of(row) == "here"]
    assert trace.kind[mark] == EventKind.INSTANT


@forms
def test_names_of_kernels_lose_the_suffix_of_their_descriptor(
    form: str, tmp_path: Path
) -> None:
    run = RunMaker()
    for number, name in enumerate(["plain", "gemm.kd", "f(int) [clone .kd]", "a.kd.b"]):
        run.kernel(name, 10 * number, 5, correlation=number + 1)
    trace = read(WRITE[form](run, tmp_path))
    assert trace.names == ["plain", "gemm", "f(int)", "a.kd.b"]


@forms
def test_without_calls_a_note_says_what_to_record(form: str, tmp_path: Path) -> None:
    run = RunMaker()
    run.kernel("k", 10, 5, correlation=1)
    notes = read(WRITE[form](run, tmp_path)).provenance.notes
    assert any("--hip-trace" in note for note in notes)


def test_gzipped_files_are_read(tmp_path: Path) -> None:
    for form in ("rocpd", "JSON"):
        path = WRITE[form](training(), tmp_path)
        packed = path.with_name(f"{path.name}.gz")
        packed.write_bytes(gzip.compress(path.read_bytes()))
        assert len(read(packed)) == len(read(path))


def several() -> tuple[RunMaker, RunMaker]:
    """Return two processes with the same ids and the same pid, as in containers."""
    first = training()
    second = training()
    second.guid = second.guid[:-1] + "2"
    return first, second


@pytest.mark.parametrize("machine", ["abc", "another"])
@pytest.mark.parametrize("form", ["rocpd", "JSON"])
def test_several_processes_in_a_file_are_separate(
    form: str, machine: str, tmp_path: Path
) -> None:
    first, second = several()
    second.machine = machine
    write = RunMaker.write_rocpd if form == "rocpd" else RunMaker.write_json
    name = "run.db" if form == "rocpd" else "run.json"
    trace = read(write(first, tmp_path / name, second))
    tree = CallTree(trace)
    assert tree.linked.all()
    process = trace.process_of_thread[trace.thread]
    assert (process[tree.launch_of_gpu] == process[trace.gpu_rows]).all()
    assert {process for process, _ in trace.threads} == {4242, "4242 (2)"}
    assert set(trace.device.tolist()) == ({0} if machine == "abc" else {0, 100})


def test_a_parsed_document_is_read() -> None:
    trace = read_trace(training().document_of_rocprof())
    assert len(trace.gpu_rows) == 12


def sums(trace: Trace) -> dict[str, tuple[int, int]]:
    """Return name of GPU work → number of events, and their total duration in ns."""
    found: dict[str, tuple[int, int]] = {}
    for row in trace.gpu_rows.tolist():
        count, total = found.get(trace.name_of(row), (0, 0))
        found[trace.name_of(row)] = (count + 1, total + int(trace.dur[row]))
    return found


@forms
def test_sums_are_exact(form: str, tmp_path: Path) -> None:
    run = RunMaker()
    for number in range(50):
        start = 3_200_098_838_431_081 + number * 7
        run.kernel(f"k{number % 3}", start, number, correlation=number + 1)
    expected: dict[str, tuple[int, int]] = {}
    for record in run.of(DISPATCH, COPY):
        count, total = expected.get(record.name, (0, 0))
        expected[record.name] = (count + 1, total + record.end - record.start)
    assert sums(read(WRITE[form](run, tmp_path))) == expected


def test_a_folder_of_tables_is_one_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training().write_csv(tmp_path / "run")
    for command in (
        ["kernels"],
        ["gaps"],
        ["report", "-o", str(tmp_path / "report.xlsx")],
    ):
        assert run([*command, str(tmp_path / "run")]) == 0
        assert "gemm" in capsys.readouterr().out


def test_a_folder_with_several_forms_of_a_run_lists_the_first() -> None:
    csv = "1_kernel_trace.csv"
    db = "1_results.db"
    text = "1_results.json.gz"
    others = ["2_kernel_trace.csv", "3_results.json"]
    assert trace_names([csv, db, text, *others]) == [db, *others]
    assert trace_names([csv, text, *others]) == [text, *others]


def test_an_unreadable_table_of_the_run_is_noted(tmp_path: Path) -> None:
    path = training().write_csv(tmp_path)
    (tmp_path / "run_rccl_api_trace.csv").touch()
    (tmp_path / "run_hsa_api_trace.csv").write_text("of,another,tool\n")
    trace = read(path)
    assert len(trace.gpu_rows) == 12
    assert [note.split(",")[0] for note in trace.provenance.notes] == [
        "run_hsa_api_trace.csv",
        "run_rccl_api_trace.csv",
    ]


@forms
def test_markers_alone_launch_nothing(form: str, tmp_path: Path) -> None:
    run_ = RunMaker()
    run_.range("step", 1, 100)
    run_.kernel("k", 10, 5, correlation=1)
    assert any(
        "--hip-trace" in note
        for note in read(WRITE[form](run_, tmp_path)).provenance.notes
    )


def test_kernels_of_one_hardware_queue_may_contain_one_another(tmp_path: Path) -> None:
    """Several streams share a hardware queue, so a long kernel may contain a short one."""
    path = tmp_path / "run_kernel_trace.csv"
    path.write_text(
        '"Kind","Agent_Id","Queue_Id","Kernel_Name","Correlation_Id",'
        '"Start_Timestamp","End_Timestamp"\n'
        '"KERNEL_DISPATCH",1,1,"long_kernel",1,10000,110000\n'
        '"KERNEL_DISPATCH",1,1,"short_kernel",2,20000,25000\n'
    )
    trace = read_trace(path)
    durations = {
        trace.name_of(row): int(trace.dur[row]) for row in trace.gpu_rows.tolist()
    }
    assert durations == {"long_kernel": 100_000, "short_kernel": 5_000}
