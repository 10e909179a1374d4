"""Databases that are damaged, hostile or of other programs give a one-line error."""

from __future__ import annotations

import io
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.nsys_export_maker import TABLES, ExportMaker, training
from tests.support.refusal_helpers import refused
from tracelens_ext.errors import TraceError, TraceFormatError
from tracelens_ext.readers import read_trace
from tracelens_ext.readers.nsys.sqlite import NsysDatabase
from tracelens_ext.trace.call_tree import CallTree

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens_ext.trace import Trace


def database(*statements: str) -> bytes:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    data = connection.serialize()
    connection.close()
    return data


def test_databases_of_other_programs_are_refused() -> None:
    message = refused(
        database("CREATE TABLE songs (title)", "CREATE TABLE artists (name)")
    )
    assert "not an Nsight Systems export (its tables: artists, songs)" in message
    assert "nsys export --type sqlite" in message
    assert "it has no tables" in refused(database("CREATE TABLE t (x)", "DROP TABLE t"))


def test_databases_of_nvprof_are_refused() -> None:
    kernels = "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (_id_ INTEGER, name INTEGER)"
    assert "not an Nsight Systems export" in refused(database(kernels))


@pytest.mark.parametrize("table", ["NVTX_EVENTS", "OSRT_API", None])
def test_recordings_without_cuda_events_are_refused(table: str | None) -> None:
    maker = ExportMaker()
    maker.table("CUPTI_ACTIVITY_KIND_KERNEL")
    if table:
        maker.insert(table, start=1, end=2, eventType=59)
    message = refused(maker.content)
    assert (
        f"without CUDA events ({f'it has {table}' if table else 'its tables are empty'})"
        in message
    )
    assert message.endswith("record with `nsys profile -t cuda,nvtx`")


_ENDLESS = (
    "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
    "SELECT x AS start FROM n"
)


def test_views_are_not_read() -> None:
    maker = training()
    count = len(read_trace(io.BytesIO(training().content)))
    maker.connection.execute("DROP TABLE CUPTI_ACTIVITY_KIND_MEMSET")
    for view in (
        "CUPTI_ACTIVITY_KIND_MEMSET",
        "PROCESSES",
        "ThreadNames",
        "TARGET_INFO_GPU",
    ):
        maker.connection.execute(f"CREATE VIEW {view} AS {_ENDLESS}")
    assert len(read_trace(io.BytesIO(maker.content))) == count - 2


def test_a_view_disguised_as_a_table_is_not_read() -> None:
    maker = training()
    maker.connection.execute(f"CREATE VIEW PROCESSES AS {_ENDLESS}")
    maker.connection.execute("PRAGMA writable_schema=1")
    maker.connection.execute(
        "UPDATE sqlite_master SET type = 'table' WHERE name = 'PROCESSES'"
    )
    try:
        trace = read_trace(io.BytesIO(maker.content))
    except TraceFormatError:
        return
    assert trace.process_names == {}


def test_virtual_tables_and_generated_columns_are_not_read() -> None:
    maker = training()
    maker.connection.execute("DROP TABLE CUPTI_ACTIVITY_KIND_MEMSET")
    maker.connection.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER,"
        " end INTEGER AS (length(hex(zeroblob(start)))))"
    )
    maker.connection.execute(
        "INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET (start) VALUES (500)"
    )
    try:
        maker.connection.execute(
            "CREATE VIRTUAL TABLE PROCESSES USING fts5(globalPid, name)"
        )
    except sqlite3.OperationalError:
        pytest.skip("this SQLite has no fts5")
    maker.connection.execute("INSERT INTO PROCESSES VALUES (1, 'hostile')")
    trace = read_trace(io.BytesIO(maker.content))
    assert trace.provenance.dropped == {"no usable duration (dur)": 1}
    assert trace.process_names == {}


def test_indices_do_not_mix_up_rows() -> None:
    maker = training()
    maker.connection.execute("CREATE INDEX by_text ON NVTX_EVENTS (text)")
    maker.connection.execute(
        "CREATE INDEX by_name ON CUPTI_ACTIVITY_KIND_KERNEL (demangledName)"
    )
    one, other = (read_trace(io.BytesIO(made.content)) for made in (training(), maker))
    assert one.name.tolist() == other.name.tolist()
    assert one.ts.tolist() == other.ts.tolist()


@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_a_database_that_is_being_written(tmp_path: Path, suffix: str) -> None:
    path = training().write(tmp_path / "run.sqlite")
    beside = tmp_path / f"run.sqlite{suffix}"
    beside.write_bytes(b"")
    read_trace(path)
    beside.write_bytes(b"something")
    assert (
        f"is being written, or its writer was interrupted (run.sqlite{suffix}"
        in refused(path)
    )


def test_cut_off_and_damaged_databases_are_refused(tmp_path: Path) -> None:
    content = training().content
    for broken in (
        content[:16],
        content[:100],
        content[:5_000],
        content[:100] + bytes(4_000),
    ):
        assert "is a damaged SQLite database" in refused(broken)
        path = tmp_path / "broken.sqlite"
        path.write_bytes(broken)
        assert "is a damaged SQLite database" in refused(path)
        assert NsysDatabase.is_one(path) is not False


def sound(source: bytes) -> Trace | None:
    """Check that a database gives a trace whose events add up, or a one-line error."""
    try:
        trace = read_trace(io.BytesIO(source))
        CallTree(trace)
    except TraceError as error:
        assert "\n" not in str(error)
        return None
    made = trace.provenance
    assert made.present == len(trace) + made.metadata_events + sum(
        made.dropped.values()
    )
    return trace


_CONTENT = training().content


@given(st.data())
def test_any_damage_gives_a_trace_or_an_error(data: st.DataObject) -> None:
    content = bytearray(_CONTENT)
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(16, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    sound(bytes(content))


_VALUES = (
    st.none()
    | st.integers(-(2**63), 2**63 - 1)
    | st.integers(0, 5_000)
    | st.floats(allow_nan=False)
    | st.text(max_size=4)
    | st.binary(max_size=4)
)


@given(st.data())
def test_any_values_give_a_trace_or_an_error(data: st.DataObject) -> None:
    maker = training()
    # to be made again, and without types
    maker.connection.execute("DROP TABLE META_DATA_EXPORT")
    untyped: dict[str, list[str]] = {}
    for table, definition in TABLES.items():
        if table == "StringIds":
            continue
        columns = [part.split()[0] for part in definition.split(", ")]
        maker.connection.execute(f"DROP TABLE IF EXISTS {table}")
        maker.connection.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
        untyped[table] = columns
    rows = 0
    for table in data.draw(st.lists(st.sampled_from(sorted(untyped)), max_size=6)):
        values: dict[str, Any] = {c: data.draw(_VALUES) for c in untyped[table]}
        if "eventType" in values and data.draw(st.booleans()):
            values["eventType"] = data.draw(st.sampled_from([33, 34, 59, 60, 75]))
        maker.insert(table, **values)
        events = table.startswith("CUPTI_") or table in ("NVTX_EVENTS", "CUBLAS_EVENTS")
        rows += events
    trace = sound(maker.content)
    if trace is not None:
        assert trace.provenance.present == rows
