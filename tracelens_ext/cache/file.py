"""A file of columns: an uncompressed ZIP archive of arrays and lists of texts.

Its member `about.json` tells the type of each column and whatever else the writer has to say; the
others are the columns' bytes. Numbers are stored in as few bytes as hold them, which halves what is
read. Reading runs no code from the file (there is no pickle in it), and a byte that changed is
noticed: ZIP has a CRC-32 for every member. A `Trace` is kept as such columns and JSON.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens_ext.trace import (
    NONE,
    PROGRAM_SHIFT,
    ArgColumn,
    Conventions,
    Device,
    EventKind,
    Provenance,
    Trace,
)

Array = npt.NDArray[Any]
Column = Array | Sequence[str]


TEMPORARY_SUFFIX = ".tmp"
_ABOUT = "about.json"
_TEXTS = "texts"
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)

_KINDS_OF_NUMBERS = "iub"
_NARROW = tuple(np.dtype(name) for name in ("|u1", "|i1", "<u2", "<i2", "<i4"))
#: What reading a damaged file may raise.
_DAMAGE = (
    *(zipfile.BadZipFile, struct.error, msgspec.MsgspecError, EOFError, OverflowError),
    *(AttributeError, KeyError, TypeError, ValueError, RuntimeError, MemoryError),
)


class DamagedFileError(ValueError):
    """A file of columns is cut off, was changed, or never was one."""


class TooLargeError(ValueError):
    """A file of columns would be larger than it may be."""


def write_columns(
    path: Path, about: Mapping[str, object], columns: Mapping[str, Column], most: int | None = None
) -> int:
    """Write a file of columns: to a temporary name, then renamed; its size in bytes.

    Nothing is left behind by an OSError, a TypeError or ValueError (something cannot be kept), or
    TooLargeError (more bytes than `most`).
    """
    listing, blobs = [], []
    for name, column in columns.items():
        *types, blob = _encoded(column)
        listing.append([name, *types])
        blobs.append(blob)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}{TEMPORARY_SUFFIX}")
    try:
        with os.fdopen(os.open(temporary, _NEW_FILE, 0o600), "wb") as file:
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr(_ABOUT, json.dumps({"about": about, "columns": listing}))
                for number, blob in enumerate(blobs):
                    archive.writestr(str(number), blob)
            size = file.tell()
        if most is not None and size > most:
            raise TooLargeError
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):  # after the rename there is nothing left to remove
            temporary.unlink()
    return size


def _encoded(column: Column) -> tuple[str, str, Any]:
    """The type of a column, that of its bytes (as few as hold its numbers), and the bytes."""
    if not isinstance(column, np.ndarray):
        return _TEXTS, _TEXTS, msgspec.json.encode(list(column))
    dtype = stored = column.dtype
    if column.ndim != 1 or dtype.kind not in _KINDS_OF_NUMBERS:
        raise TypeError(f"a column of {dtype}, shape {column.shape}, cannot be kept")
    if not len(column):
        return dtype.str, dtype.str, b""
    if dtype.kind != "b":
        least, greatest = int(column.min()), int(column.max())
        narrow = ((each, np.iinfo(each)) for each in _NARROW if each.itemsize < dtype.itemsize)
        stored = next((t for t, b in narrow if b.min <= least and greatest <= b.max), dtype)
    blob = np.ascontiguousarray(column, dtype=stored).view(np.uint8).data
    return dtype.str, stored.str, blob


def read_about(path: Path) -> dict[str, Any]:
    """What a file of columns says about itself, without its columns; errors as `read_columns`."""
    return read_columns(path, lambda _: False)[0]


def read_columns(
    path: Path, wanted: Callable[[dict[str, Any]], bool] = lambda _: True
) -> tuple[dict[str, Any], dict[str, Array | list[str]] | None]:
    """What a file of columns says about itself; and the columns, None where that is not `wanted`.

    Raises OSError where it cannot be read, DamagedFileError where it is no such file, or not whole.
    """
    try:
        if not stat.S_ISREG(path.lstat().st_mode):  # a pipe would never answer
            raise DamagedFileError("it is no file")
        with zipfile.ZipFile(path) as archive:
            members = json.loads(_member(archive, _ABOUT))
            about = members["about"]
            if not wanted(about):
                return about, None
            columns = {
                name: _decoded(_member(archive, str(number)), dtype, stored)
                for number, (name, dtype, stored) in enumerate(members["columns"])
            }
    except (*_DAMAGE, OSError) as error:
        # EINVAL: a place before the file's beginning.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise DamagedFileError(str(error)) from error
    return about, columns


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    """The bytes of a member, checked; nothing here writes a compressed one."""
    if archive.getinfo(name).compress_type != zipfile.ZIP_STORED:
        raise DamagedFileError("it is compressed")
    return archive.read(name)


def _decoded(data: bytes, dtype: str, stored: str) -> Array | list[str]:
    if dtype == _TEXTS:
        return msgspec.json.decode(data, type=list[str])
    if not {np.dtype(dtype).kind, np.dtype(stored).kind} <= set(_KINDS_OF_NUMBERS):
        raise DamagedFileError(f"it has a column of {dtype}")
    return np.frombuffer(data, stored).astype(dtype)


#: Fields with one number an event, and their types; and fields that are lists of texts.
_PER_EVENT: Mapping[str, npt.DTypeLike] = {
    **dict.fromkeys(("ts", "dur", "correlation", "external_id"), np.int64),
    **dict.fromkeys(("name", "thread", "category"), np.int32),
    "kind": np.uint8,
}
_FIELDS = (*_PER_EVENT, "names", "categories")


def trace_columns(trace: Trace) -> tuple[dict[str, object], dict[str, Column]]:
    """What to keep of a trace: as JSON, and columns; TypeError or ValueError if that cannot be."""
    columns: dict[str, Column] = {name: getattr(trace, name) for name in _FIELDS}
    lists: dict[int, str] = {}  # arguments share their list of texts
    arguments = []
    for number, (name, column) in enumerate(trace.args.items()):
        of_texts = None
        if column.texts is not None:
            of_texts = lists.setdefault(id(column.texts), f"texts {len(lists)}")
            columns[of_texts] = column.texts
        columns[f"rows {number}"], columns[f"values {number}"] = column.rows, column.values
        arguments.append([name, of_texts])
    columns["instruction rows"] = trace.instructions.rows
    columns["instructions"] = trace.instructions.values
    for number, program in enumerate(trace.programs):
        columns[f"program {number}"] = np.frombuffer(program, dtype=np.uint8)
    about: dict[str, object] = {
        "programs": len(trace.programs),
        "args": arguments,
        "threads": trace.threads,
        "base_ns": trace.base_ns,
        "devices": [asdict(device) for device in trace.devices],
        "metadata": dict(trace.metadata),
        "process_names": list(trace.process_names.items()),
        "process_labels": list(trace.process_labels.items()),
        "thread_names": [[*thread, name] for thread, name in trace.thread_names.items()],
        "provenance": asdict(trace.provenance),
        "conventions": asdict(trace.conventions),
        "replays": trace.replays,  # none; JSON refuses others
    }
    if unknown := {field.name for field in fields(trace)} - columns.keys() - about.keys():
        raise TypeError(f"a Trace has fields that the cache does not know: {sorted(unknown)}")
    if repr(json.loads(json.dumps(about["metadata"]))) != repr(about["metadata"]):
        raise ValueError("the metadata has values that JSON does not give back as they were")
    return about, columns


def trace_of(about: Mapping[str, Any], columns: Mapping[str, Column], path: str) -> Trace:
    """The trace that was kept."""
    found = cast("dict[str, Any]", columns)
    try:
        kept = msgspec.convert(about, _Kept)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    args = {
        name: ArgColumn(
            found[f"rows {number}"],
            found[f"values {number}"],
            None if texts is None else found[texts],
        )
        for number, (name, texts) in enumerate(kept.args)
    }
    trace = Trace(
        **{name: found[name] for name in _FIELDS},
        args=args,
        threads=kept.threads,
        base_ns=kept.base_ns,
        devices=tuple(kept.devices),
        metadata=kept.metadata,
        process_names=dict(kept.process_names),
        process_labels=dict(kept.process_labels),
        thread_names={(process, thread): name for process, thread, name in kept.thread_names},
        provenance=replace(kept.provenance, path=path),
        conventions=kept.conventions,
        programs=tuple(found[f"program {i}"].tobytes() for i in range(kept.programs)),
        instructions=ArgColumn(found["instruction rows"], found["instructions"]),
    )
    _check_columns(trace)
    return trace


_Label = int | str


class _Kept(msgspec.Struct):
    """What is kept of a trace as JSON, and its types."""

    programs: int
    args: list[tuple[str, str | None]]
    threads: list[tuple[_Label, _Label]]
    base_ns: int
    devices: list[Device]
    metadata: dict[str, Any]
    process_names: list[tuple[_Label, str]]
    process_labels: list[tuple[_Label, str]]
    thread_names: list[tuple[_Label, _Label, str]]
    provenance: Provenance
    conventions: Conventions


def _check_columns(trace: Trace) -> None:
    """Check that every code stands for something, and that every time is possible."""
    count = len(trace)
    most: dict[str, int | None] = {
        "name": len(trace.names),
        "category": len(trace.categories),
        "thread": len(trace.threads),
        "kind": max(EventKind) + 1,
        "ts": None,
        "dur": None,
    }
    for name, dtype in _PER_EVENT.items():
        column = getattr(trace, name)
        if len(column) != count or column.dtype != dtype:
            raise ValueError(f"the column {name} has another length or type")
        if name in most:
            _check_range(name, column, 0, most[name])
    for name, arg in (*trace.args.items(), ("instructions", trace.instructions)):
        if len(arg.rows) != len(arg.values) or (arg.rows[1:] <= arg.rows[:-1]).any():
            raise ValueError(f"the rows of {name} are not in order")
        _check_range(name, arg.rows, 0, count)
        if arg.texts is not None:
            _check_range(name, arg.values, 0, len(arg.texts))
    last = len(trace.programs) << PROGRAM_SHIFT
    _check_range("instructions", trace.instructions.values, 0, last)


def check_links(trace: Trace, links: Mapping[str, Column]) -> None:
    """Check that the links of a trace's tree are of events that it has."""
    if not links:
        return
    found = cast("dict[str, Any]", links)
    rows, parent, gpu = found["rows"], found["parent_position"], len(trace.gpu_rows)
    _check_range("rows", rows, 0, len(trace))
    _check_range("parents", parent, -1, None)
    lengths = {len(found["launch_of_gpu"]), len(found["cpu_op_of_gpu"])}
    if len(parent) != len(rows) or (parent >= np.arange(len(rows))).any() or lengths != {gpu}:
        raise ValueError("the links are of another trace")
    for name in ("launch_of_gpu", "cpu_op_of_gpu"):
        _check_range(name, found[name], NONE, len(trace))
        if not np.isin(found[name][found[name] != NONE], rows).all():
            raise ValueError(f"{name} is not in the tree")


def _check_range(name: str, values: Any, least: int, end: int | None) -> None:  # noqa: ANN401
    if len(values) and (values.min() < least or (end is not None and values.max() >= end)):
        raise ValueError(f"{name} is out of range")
