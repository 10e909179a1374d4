"""Databases, JSON and tables of rocprof and rocprofv2 are read."""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.trace_properties import accounted_for
from tracelens_ext.analyzer import TreePerfAnalyzer
from tracelens_ext.errors import TraceFormatError
from tracelens_ext.readers import read_trace
from tracelens_ext.trace import EventKind

if TYPE_CHECKING:
    from pathlib import Path

_WORK = '(BeginNs, EndNs, "dev-id", "queue-id", Name, pid, tid, "Index")'


def database(
    tmp_path: Path, *, kernels: str = "OPS", names_beside: bool = False
) -> Path:
    """Write a database with a call, and the kernel and the copy that it started."""
    path = tmp_path / "results.db"
    path.unlink(missing_ok=True)
    name = 5 if names_beside else "void k<float>() [clone .kd]"
    with sqlite3.connect(path) as made:
        made.execute('CREATE TABLE HIP (BeginNs, EndNs, pid, tid, Name, args, "Index")')
        made.execute(
            "INSERT INTO HIP VALUES (100, 150, 42, 43, 'hipLaunchKernel', '', 1)"
        )
        made.execute(f"CREATE TABLE COPY {_WORK}")
        made.execute(
            "INSERT INTO COPY VALUES (300, 310, 1, 0, 'CopyHostToDevice', 42, 43, 1)"
        )
        made.execute(f"CREATE TABLE OPS {_WORK}")
        made.execute('CREATE TABLE KERN ("Index", KernelName)')
        if kernels == "OPS":
            made.execute(
                "INSERT INTO OPS VALUES (200, 250, 1, 0, ?, 42, 43, 1)", (name,)
            )
        else:
            made.execute("DROP TABLE KERN")
            titles = (
                '"Index", KernelName, "gpu-id", "queue-id", pid, tid, BeginNs, EndNs'
            )
            made.execute(f"CREATE TABLE KERN ({titles})")
            made.execute(
                "INSERT INTO KERN VALUES (0, '\"k.kd\"', 1, 0, 42, 43, 200, 250)"
            )
        if names_beside:
            made.execute("CREATE TABLE strings (id INTEGER PRIMARY KEY, string TEXT)")
            made.execute("INSERT INTO strings VALUES (5, 'void k<float>()')")
    made.close()
    return path


def kernels(path: Path) -> dict[str, tuple[int, int]]:
    """Return name of GPU work → number of events, and their total duration in ns."""
    trace = read_trace(path, cache=False)
    accounted_for(trace)
    found: dict[str, tuple[int, int]] = {}
    for row in trace.gpu_rows.tolist():
        count, total = found.get(trace.name_of(row), (0, 0))
        found[trace.name_of(row)] = count + 1, total + int(trace.dur[row])
    return found


def test_databases_have_calls_kernels_and_copies(tmp_path: Path) -> None:
    path = database(tmp_path)
    assert kernels(path) == {"void k<float>()": (1, 50), "CopyHostToDevice": (1, 10)}
    analyzer = TreePerfAnalyzer(path)
    assert analyzer.tree.linked.all()
    assert analyzer.trace.device.tolist() == [1, 1]


def test_rows_of_a_table_without_times_are_counted(tmp_path: Path) -> None:
    path = database(tmp_path)
    with sqlite3.connect(path) as made:
        made.execute("ALTER TABLE COPY RENAME COLUMN EndNs TO Finished")
    made.close()
    assert list(kernels(path).values()) == [(1, 50)]
    assert read_trace(path, cache=False).provenance.dropped == {
        "no usable duration (dur)": 1
    }


def test_names_may_be_ids_in_a_table_of_texts(tmp_path: Path) -> None:
    assert kernels(database(tmp_path, names_beside=True))["void k<float>()"] == (1, 50)


def test_kernels_come_from_the_table_that_has_rows(tmp_path: Path) -> None:
    assert kernels(database(tmp_path, kernels="KERN"))["k"] == (1, 50)


def test_json_has_exact_times_and_flows(tmp_path: Path) -> None:
    """`ts` is in whole µs, a text in slices and a number in flows; the first event is empty."""

    def slice_of(pid: str, name: str, begin: int, end: int) -> dict[str, object]:
        args = {"BeginNs": str(begin), "EndNs": str(end), "pid": "42", "tid": "43"}
        args |= {"Name": name, "dev-id": "0", "queue-id": "0"}
        ts = str(begin // 1000)
        return {
            "ph": "X",
            "name": name,
            "pid": pid,
            "tid": "0",
            "ts": ts,
            "dur": "0",
            "args": args,
        }

    def flow(phase: str, pid: int, ts: int) -> dict[str, object]:
        return {"ts": ts, "ph": phase, "cat": "DataFlow", "id": 1, "pid": pid, "tid": 0}

    events: list[dict[str, Any]] = [{}] + [
        {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
        for pid, name in ((2, "CPU HIP API"), (6, "GPU0"), (7, "GPU Barriers0"))
    ]
    events += [
        slice_of("2", "hipLaunchKernel", 1100, 1900),
        slice_of("6", "k.kd", 2100, 2203),
    ]
    events += [slice_of("7", "barrier", 2300, 2400), flow("s", 2, 1), flow("t", 6, 2)]
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"traceEvents": events}, indent=1))
    assert kernels(path) == {"k": (1, 103)}
    assert TreePerfAnalyzer(path).tree.linked.all()
    path.write_text(json.dumps({"traceEvents": events})[:-40])
    with pytest.raises(TraceFormatError):
        read_trace(path)


@pytest.mark.parametrize(
    "text",
    [
        '"Index","KernelName","gpu-id","pid","tid","BeginNs","EndNs"\n0,"""k.kd""",2,4,4,10,17\n',
        "Dispatch_ID,GPU_ID,PID,Kernel_Name,Start_Timestamp,End_Timestamp\n0,2,4,k (.kd),10,17\n",
    ],
)
def test_tables_of_kernels_are_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "results.csv"
    path.write_text(text)
    assert kernels(path) == {"k": (1, 7)}


def test_totals_give_counts_and_times_with_a_note(tmp_path: Path) -> None:
    path = tmp_path / "results.stats.csv"
    path.write_text(
        '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n"a.kd",3,10,3,90\nb,0,5,5,1\n'
    )
    assert kernels(path) == {"a": (3, 10)}
    trace = read_trace(path, cache=False)
    assert trace.count_of(EventKind.KERNEL) == 3
    assert any("only totals" in note for note in trace.provenance.notes)


def test_totals_with_too_many_calls_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.stats.csv"
    path.write_text('"Name","Calls","TotalDurationNs"\nk,999999999999,10\n')
    with pytest.raises(TraceFormatError, match="calls"):
        read_trace(path)
