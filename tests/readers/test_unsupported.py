"""Unsupported files are recognized, and the message says what to do."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import sqlite3
import tarfile
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.make_trace import TraceMaker
from tests.support.refusal_helpers import refused
from tracelens_ext.errors import TraceFormatError
from tracelens_ext.readers import read_trace

if TYPE_CHECKING:
    from pathlib import Path


def database() -> bytes:
    connection = sqlite3.connect(":memory:")
    connection.execute("create table kernels (name text)")
    data = connection.serialize()
    connection.close()
    return data


def archive() -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as file:
        file.writestr("trace.json", "[]")
    return held.getvalue()


BINARY = {
    "an SQLite database": database(),
    "a zip archive": archive(),
    "compressed with bzip2": bz2.compress(b"[]"),
    "compressed with xz": lzma.compress(b"[]"),
    "compressed with zstd": b"\x28\xb5\x2f\xfd\x04\x00",
    "an HDF5 file": b"\x89HDF\r\n\x1a\n",
    "a Parquet file": b"PAR1\x15\x04",
    "HTML or XML": b"\n<!DOCTYPE html><title>Sign in</title>",
}


TABLES = {
    "Ascend's profiler": ["STRING_IDS", "TASK", "CANN_API", "COMPUTE_TASK_INFO"],
    "DLProf": ["dlprof_metadata", "ops"],
}


@pytest.mark.parametrize("tool", TABLES)
def test_databases_of_other_tools_are_named(tool: str, tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    connection = sqlite3.connect(path)
    for table in TABLES[tool]:
        connection.execute(f"create table {table} (id integer)")
    connection.commit()
    connection.close()
    message = refused(path)
    assert f"is a database of {tool}" in message
    assert "nsys export" not in message


def test_a_report_of_nsight_compute_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.ncu-rep"
    path.write_bytes(b"NVR\0\x01\x02 anything")
    assert "is an Nsight Compute report" in refused(path)
    assert "nsys profile" in refused(path)


@pytest.mark.parametrize("what", BINARY)
def test_other_formats_are_named(what: str) -> None:
    assert f"<file>: is {what}" in refused(BINARY[what])


@pytest.mark.parametrize("what", BINARY)
def test_other_formats_are_named_when_gzipped(what: str) -> None:
    assert f"<file>: is {what}" in refused(gzip.compress(BINARY[what]))


def test_files_that_are_gzipped_twice_are_named() -> None:
    assert "is gzipped twice" in refused(gzip.compress(gzip.compress(b"[]")))


@pytest.mark.parametrize(
    "data", [b"", b" \n\t", b"\xef\xbb\xbf", gzip.compress(b"", mtime=0)]
)
def test_empty_content_is_refused(data: bytes) -> None:
    assert "is empty" in refused(data)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.touch()
    assert refused(path).startswith(f"{path}: is empty; ")


@pytest.mark.parametrize(
    "data", [b"name,duration\nk,1\n", b"nan", b"\x00\x01\x02", b"\x7fELF"]
)
def test_text_that_is_not_json_is_refused(data: bytes) -> None:
    message = refused(data)
    assert message.endswith(
        "is not a trace in a known format; list the supported formats with: "
        "tracelens-ext formats"
    )


MEMBERS: dict[str, dict[str, Any]] = {
    "a PyTorch execution trace": {"schema": "1.0.1", "pid": 1, "nodes": []},
    "a speedscope file": {
        "$schema": "https://…",
        "shared": {"frames": []},
        "profiles": [],
    },
    "OpenTelemetry spans": {"resourceSpans": []},
}


@pytest.mark.parametrize("what", MEMBERS)
def test_json_of_other_tools_is_named(what: str) -> None:
    for source in (MEMBERS[what], json.dumps(MEMBERS[what]).encode()):
        assert f": is {what}" in refused(source)


@pytest.mark.parametrize(
    ("name", "what", "remedy"),
    [
        ("snapshot.pickle", "is a pickle, not a trace", "tracelens-ext memory"),
        ("snapshot.pickle.gz", "is a pickle", "tracelens-ext memory"),
    ],
)
def test_files_are_named_by_their_suffix(
    tmp_path: Path, name: str, what: str, remedy: str
) -> None:
    path = tmp_path / name
    path.write_bytes(b"\x80\x04cos\nsystem\n(S'false'\ntR.")
    message = refused(path)
    assert f": {what}" in message
    assert remedy in message


def test_json_without_events_is_refused() -> None:
    assert "is JSON without traceEvents (it contains: a, b)" in refused(
        b'{"a": 1, "b": 2}'
    )
    assert "is JSON without traceEvents (it is empty)" in refused({})
    many = {f"member {i}": i for i in range(20)}
    assert "member 5 …)" in refused(many)
    assert "member 6" not in refused(many)


@pytest.mark.parametrize(
    "text", ["[]", '{"traceEvents": []}', '{"traceEvents": [], "a": 1}']
)
def test_a_trace_without_events_is_refused(text: str) -> None:
    assert "contains no events" in refused(text.encode())


def test_a_trace_with_metadata_only_is_refused() -> None:
    events = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]
    assert "contains no event that PyTorch's profiler records" in refused(
        {"traceEvents": events}
    )


def test_a_trace_with_unusable_events_is_refused() -> None:
    message = refused(
        {"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "dur": 1}]}
    )
    assert "contains no event that PyTorch's profiler records" in message


def test_an_unusable_jax_trace_is_named() -> None:
    events = [
        {
            "ph": "M",
            "name": "process_name",
            "pid": 1,
            "args": {"name": "/device:GPU:0"},
        },
        {"ph": "X", "name": "loop_fusion.3", "pid": 1, "tid": 2, "ts": 1, "dur": 2},
    ]
    assert "is a JAX/XLA trace" in refused(
        {"displayTimeUnit": "ns", "traceEvents": events}
    )


def test_a_chrome_trace_of_another_tool_is_named() -> None:
    span = {"ph": "X", "cat": "hip_api", "name": "hipMalloc", "ts": 1, "dur": 2}
    message = refused({"traceEvents": [span], "otherData": {"rocprof": 1}})
    assert (
        "is a Chrome trace from another tool (its event categories are hip_api)"
        in message
    )
    assert "contains no event that PyTorch's profiler records" in refused(
        {"traceEvents": [span]}
    )
    assert "its events have no cat" in refused({"traceEvents": [{**span, "cat": ""}]})


@pytest.mark.parametrize("source", [5, None, {"events"}, b"bytes"])
def test_an_object_that_is_not_a_source_is_refused(source: Any) -> None:
    with pytest.raises(
        TypeError, match="a trace is a path, an open file or a dict, not "
    ):
        read_trace(source)


def test_a_bare_list_of_events_is_a_document() -> None:
    event = {
        "ph": "X",
        "cat": "kernel",
        "name": "k",
        "pid": 0,
        "tid": 7,
        "ts": 1,
        "dur": 2,
    }
    assert read_trace([event]).names == ["k"]


TEXT = '{"traceEvents": [{"ph": "X", "name": "a"}]}'


@pytest.mark.parametrize(
    "encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"]
)
def test_other_encodings_are_named(encoding: str) -> None:
    assert f"is {encoding[:6].upper()} text; save it as UTF-8" in refused(
        TEXT.encode(encoding)
    )


def test_tar_archives_are_named() -> None:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as file:
        file.addfile(tarfile.TarInfo("trace.json"))
    for data in (held.getvalue(), gzip.compress(held.getvalue())):
        assert "is a tar archive, not a trace; unpack it" in refused(data)


def test_json_lines_are_named() -> None:
    assert "is JSON lines" in refused(
        b'{"ph": "X", "name": "a"}\n{"ph": "X", "name": "b"}\n'
    )


def test_too_many_devices_are_refused() -> None:
    maker = TraceMaker()
    for device in range(129):
        maker.gpu("kernel", "k", device, 1, device=device)
    with pytest.raises(TraceFormatError, match="GPU events of 129 devices"):
        read_trace(maker.document())
