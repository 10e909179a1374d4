"""Files of rocprofv3 that are cut off, damaged or hostile give a result or a one-line error."""

from __future__ import annotations

import json
import re
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.refusal_helpers import refused
from tests.support.rocprof_maker import GUID, RunMaker, read, training
from tracelens_ext.errors import TraceCutOffError, TraceError
from tracelens_ext.readers import read_trace
from tracelens_ext.trace.call_tree import CallTree

if TYPE_CHECKING:
    from pathlib import Path

SUFFIX = "_" + GUID.replace("-", "_")
_ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS id FROM n"


def changed(folder: Path, *statements: str) -> Path:
    """Return the database of a run after some SQL statements; `{}` stands for the guid."""
    path = training().write_rocpd(folder / "run.db")
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement.replace("{}", SUFFIX))
    connection.close()
    return path


# Databases.


def test_views_and_triggers_never_run(tmp_path: Path) -> None:
    path = changed(
        tmp_path,
        "DROP TABLE rocpd_memory_copy{}",
        f"CREATE VIEW rocpd_memory_copy{{}} AS {_ENDLESS}",
        f"CREATE VIEW rocpd_memory_copy AS {_ENDLESS}",
        "CREATE TRIGGER t AFTER INSERT ON rocpd_event{} BEGIN DELETE FROM rocpd_region{}; END",
    )
    assert len(read(path).gpu_rows) == 10


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE rocpd_kernel_dispatch{} SET event_id = 123456",
        "UPDATE rocpd_kernel_dispatch{} SET kernel_id = NULL, agent_id = 99, queue_id = 'x'",
        "UPDATE rocpd_region{} SET name_id = 7777777, tid = -5",
        "UPDATE rocpd_event{} SET category_id = 12345, stack_id = 9223372036854775807",
        "UPDATE rocpd_info_agent{} SET type = 'NIC', extdata = '{'",
        "UPDATE rocpd_event{} SET extdata = '[[[[1'",
        "DELETE FROM rocpd_info_process{}",
        "DELETE FROM rocpd_info_thread{}",
        "DROP TABLE rocpd_event{}",
        "DROP TABLE rocpd_info_agent{}",
    ],
)
def test_ids_without_a_row_lose_no_event(statement: str, tmp_path: Path) -> None:
    trace = read(changed(tmp_path, statement))
    assert len(trace) == 26
    assert len(CallTree(trace).launch_of_gpu) == 12


def test_impossible_times_are_dropped_and_counted(tmp_path: Path) -> None:
    path = changed(
        tmp_path,
        "UPDATE rocpd_kernel_dispatch{} SET start = 'soon' WHERE id = 1",
        "UPDATE rocpd_kernel_dispatch{} SET end = 5 WHERE id = 2",
        "UPDATE rocpd_kernel_dispatch{} SET start = 1.5 WHERE id = 3",
    )
    trace = read(path)
    assert sum(trace.provenance.dropped.values()) == 3
    assert len(trace.gpu_rows) == 9


def test_allocations_are_counted(tmp_path: Path) -> None:
    path = changed(
        tmp_path, "INSERT INTO rocpd_memory_allocate{} (nid, pid) VALUES (1, 1), (1, 1)"
    )
    assert read(path).provenance.dropped == {
        "memory allocations, which are not analyzed": 2
    }


def test_a_cut_off_database_is_refused(tmp_path: Path) -> None:
    path = training().write_rocpd(tmp_path / "run_results.db")
    path.write_bytes(path.read_bytes()[:9000])
    assert "is a damaged SQLite database" in refused(path)


def test_a_database_that_is_being_written_is_refused(tmp_path: Path) -> None:
    path = training().write_rocpd(tmp_path / "run_results.db")
    path.with_name(f"{path.name}-wal").write_bytes(b"x")
    assert "is being written" in refused(path)


def test_a_database_without_records_is_refused(tmp_path: Path) -> None:
    path = RunMaker().write_rocpd(tmp_path / "run_results.db")
    assert (
        "contains no calls, markers, kernels or copies; record with: rocprofv3"
        in refused(path)
    )


# JSON.


def document(**changes: Any) -> bytes:
    run = training().document_of_rocprof()
    run["rocprofiler-sdk-tool"][0] |= changes
    return json.dumps(run).encode()


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_cut_off_json_is_refused_or_salvaged(tmp_path: Path) -> None:
    data = document()
    cut = data.index(b'"hip_api"') + 900
    path = write(tmp_path / "run.json", data[:cut])
    with pytest.raises(TraceCutOffError, match="--allow-truncated"):
        read_trace(path)
    trace = read(path, allow_truncated=True)
    assert len(trace.gpu_rows) == 12
    assert "Salvaged" in trace.provenance.notes[-1]
    early = write(tmp_path / "early.json", data[: data.index(b'"buffer_records": {')])
    assert "--allow-truncated" not in refused(early)


@pytest.mark.parametrize(
    "changes",
    [
        {"agents": []},
        {"kernel_symbols": [], "strings": {}},
        {"agents": {"a": 1}, "strings": [1, "x", None], "metadata": 5},
        {
            "strings": {
                "buffer_records": [{"kind": 5, "operations": 7}, 3],
                "marker_api": [[]],
            }
        },
        {"extra": [1, 2, {"deep": [[[[{}]]]]}], "counters": None},
    ],
)
def test_json_without_names_is_read(changes: dict[str, Any], tmp_path: Path) -> None:
    trace = read(write(tmp_path / "run.json", document(**changes)))
    assert len(trace.gpu_rows) == 12


@pytest.mark.parametrize("number", [-1, 2**63, -(10**30), 10**30])
@pytest.mark.parametrize("member", ["handle", "logical_node_type_id", "cu_count"])
def test_json_with_huge_ids_is_read(member: str, number: int, tmp_path: Path) -> None:
    text = re.sub(rf'("{member}": )\d+', rf"\g<1>{number}", document().decode())
    assert len(read(write(tmp_path / "run.json", text.encode())).gpu_rows) == 12


def test_unknown_records_are_counted(tmp_path: Path) -> None:
    records = {
        "kernel_dispatch": [
            {"start_timestamp": "5", "end_timestamp": 9, "operation": 10**9},
            {"start_timestamp": [], "end_timestamp": 9},
            {"start_timestamp": 2**64, "end_timestamp": 2**64},
            7,
            {
                "start_timestamp": 5,
                "end_timestamp": 9,
                "dispatch_info": {
                    "agent_id": {"handle": 2**64 - 1},
                    "queue_id": {"handle": 2**64 - 1},
                },
            },
            {},
        ],
        "memory_allocation": [{"size": 1}, {"size": 2}],
        "page_migration": [{}],
    }
    path = write(tmp_path / "run.json", document(buffer_records=records))
    trace = read(path)
    assert trace.dur.tolist() == [4, 4]
    assert trace.provenance.dropped == {
        "records with another layout": 3,
        "no usable start time (ts)": 1,
        "memory allocations, which are not analyzed": 2,
        "records of another kind": 1,
    }


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    deep = b"[" * 100_000
    path = write(tmp_path / "run.json", b'{"rocprofiler-sdk-tool": [{"agents": ' + deep)
    refused(path)


# CSV.


def test_a_table_of_another_tool_is_refused(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x_kernel_trace.csv",
        b"My_Name,Start_Timestamp,End_Timestamp\na,1,2\n",
    )
    assert "is not a supported rocprofv3 table" in refused(path)


def test_counters_alone_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run_counter_collection.csv"
    path.write_text(
        "Kernel_Name,Counter_Name,Counter_Value,Start_Timestamp,End_Timestamp\nk,c,1,2,3\n"
    )
    assert "(left out: 1 counter values, which are not analyzed)" in refused(path)


def test_a_cut_off_table_is_refused_or_salvaged(tmp_path: Path) -> None:
    path = training().write_csv(tmp_path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(TraceCutOffError, match=r"incomplete.*--allow-truncated"):
        read_trace(path)
    assert len(read(path, allow_truncated=True).gpu_rows) == 2 + 9


def test_damaged_cells_and_rows_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "run_kernel_trace.csv"
    head = (
        "Kernel_Name,Agent_Id,Queue_Id,Correlation_Id,Start_Timestamp,End_Timestamp\n"
    )
    body = "a,Agent 1,1,1,10,20\nb,Agent 1,1,1,x,20\nc,who,,,30,40\nd,1,2\n\n"
    body += "e,2,99999999999999999999,,50,60\n"
    path.write_text(head + body)
    trace = read(path)
    assert [trace.name_of(row) for row in trace.gpu_rows.tolist()] == ["a", "c", "e"]
    assert trace.device.tolist() == [1, -1, 2]
    assert trace.provenance.dropped == {
        "no usable start time (ts)": 1,
        "rows with more or fewer cells than columns": 1,
    }


def test_columns_of_older_versions_are_read(tmp_path: Path) -> None:
    path = tmp_path / "9_kernel_trace.csv"
    path.write_text(
        '"Kind","Agent_Id","Queue_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
        '"Start_Timestamp","End_Timestamp","Private_Segment_Size","Group_Segment_Size"\n'
        '"KERNEL_DISPATCH",2,1,17,"gemm(double*, int)",102,1000,4440,0,0\n'
    )
    (tmp_path / "9_hip_api_trace.csv").write_text(
        '"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp",'
        '"End_Timestamp"\n"HIP_RUNTIME_API","hipLaunchKernel",9,9,102,500,600\n'
    )
    (tmp_path / "10_hip_api_trace.csv").write_text("of another process\n")
    trace = read(path)
    assert CallTree(trace).linked.all()
    assert trace.device.tolist() == [2]
    assert len(trace) == 2


@pytest.mark.parametrize(
    ("agent", "gpu"), [("Agent 2", 0), ("Agent 5", 0), ("5", 0), ("7", 1)]
)
def test_agents_are_numbered_by_visible_agents_or_by_nodes(
    agent: str, gpu: int, tmp_path: Path
) -> None:
    rows = [
        "Node_Id,Logical_Node_Id,Agent_Type",
        "0,0,CPU",
        "1,1,CPU",
        "5,2,GPU",
        "7,3,GPU",
    ]
    (tmp_path / "9_agent_info.csv").write_text("\n".join([*rows, *rows[3:], ""]))
    path = tmp_path / "9_kernel_trace.csv"
    path.write_text(
        "Kernel_Name,Agent_Id,Correlation_Id,Start_Timestamp,End_Timestamp\n"
        f"gemm,{agent},1,1000,2000\n"
    )
    trace = read(path)
    assert trace.device.tolist() == [gpu]
    assert [device.ordinal for device in trace.devices] == [0, 1]


@given(st.data())
def test_damaged_text_gives_a_trace_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    text = bytearray(document())
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    path = write(tmp_path_factory.getbasetemp() / "damaged.json", bytes(text))
    for allow_truncated in (False, True):
        try:
            read(path, allow_truncated=allow_truncated)
        except TraceError as error:
            assert "\n" not in str(error)


def test_a_database_without_its_kernel_table_is_damaged(tmp_path: Path) -> None:
    path = changed(tmp_path, "ALTER TABLE `rocpd_kernel_dispatch{}` RENAME TO other")
    with pytest.raises(
        TraceError, match=r"is a damaged rocprofv3 database \(it has no table"
    ):
        read_trace(path)
