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
import stat
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from tempfile import mkstemp
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens_ext.trace import NONE, PROGRAM_SHIFT, ArgColumn, EventKind, Trace

Array = npt.NDArray[Any]
Column = Array | Sequence[str]


TEMPORARY_SUFFIX = ".tmp"
_ABOUT = "about.json"
_TEXTS = "texts"
_KINDS_OF_NUMBERS = "iub"
#: What reading a damaged file, or a trace out of it, may raise.
DAMAGE = (
    zipfile.BadZipFile,
    struct.error,
    msgspec.MsgspecError,
    EOFError,
    OverflowError,
    AttributeError,
    KeyError,
    TypeError,
    ValueError,
    RuntimeError,
    MemoryError,
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
    listing = []
    blobs = []
    for name, column in columns.items():
        *types, blob = _encoded(column)
        listing.append([name, *types])
        blobs.append(blob)
    kept = json.dumps({"about": about, "columns": listing}, default=asdict)
    handle, temporary = mkstemp(TEMPORARY_SUFFIX, f".{path.name}.", path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr(_ABOUT, kept)
                for number, blob in enumerate(blobs):
                    archive.writestr(str(number), blob)
            size = file.tell()
        if most is not None and size > most:
            raise TooLargeError
        Path(temporary).replace(path)
    finally:
        with contextlib.suppress(OSError):  # after the rename there is nothing left to remove
            Path(temporary).unlink()
    return size


def _encoded(column: Column) -> tuple[str, str, Any]:
    """The type of a column, that of its bytes (as few as hold its numbers), and the bytes."""
    if not isinstance(column, np.ndarray):
        return _TEXTS, _TEXTS, msgspec.json.encode(list(column))
    dtype = stored = column.dtype
    if column.ndim != 1 or dtype.kind not in _KINDS_OF_NUMBERS:
        raise TypeError(f"a column of {dtype}, shape {column.shape}, cannot be kept")
    if dtype.kind != "b" and len(column):
        least = int(column.min())
        greatest = int(column.max())
        smallest = np.min_scalar_type(min(least, ~greatest) if least < 0 else greatest)
        stored = smallest if smallest.itemsize < dtype.itemsize else dtype
    return dtype.str, stored.str, np.ascontiguousarray(column, dtype=stored).view(np.uint8).data


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
    except (*DAMAGE, OSError) as error:
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
    about = {each.name: getattr(trace, each.name) for each in fields(trace)}
    about = {name: value for name, value in about.items() if name not in columns}
    lists: dict[int, str] = {}  # arguments share their list of texts
    texts_of: list[str | None] = []
    for number, column in enumerate((*trace.args.values(), trace.instructions)):
        columns |= {f"rows {number}": column.rows, f"values {number}": column.values}
        of = None
        if column.texts is not None:
            of = lists.setdefault(id(column.texts), f"texts {len(lists)}")
            columns[of] = column.texts
        texts_of.append(of)
    for number, program in enumerate(trace.programs):
        columns[f"program {number}"] = np.frombuffer(program, dtype=np.uint8)
    about |= {
        "args": list(zip(trace.args, texts_of, strict=False)),
        "instructions": None,
        "metadata": dict(trace.metadata),
        "programs": len(trace.programs),
        "process_names": [*trace.process_names.items()],
        "process_labels": [*trace.process_labels.items()],
        "thread_names": [*trace.thread_names.items()],
    }
    if repr(json.loads(json.dumps(about["metadata"]))) != repr(about["metadata"]):
        raise ValueError("the metadata has values that JSON does not give back as they were")
    return about, columns


def trace_of(about: Mapping[str, Any], columns: Mapping[str, Column], path: str) -> Trace:
    """The trace that was kept; one of `DAMAGE` where it is none."""
    found = cast("dict[str, Any]", columns)
    *args, instructions = (
        ArgColumn(
            found[f"rows {number}"], found[f"values {number}"], None if of is None else found[of]
        )
        for number, (_, of) in enumerate([*about["args"], ("instructions", None)])
    )
    said = {
        **about,
        **{name: found[name] for name in _FIELDS},
        "args": {name: column for (name, _), column in zip(about["args"], args, strict=True)},
        "instructions": instructions,
        "programs": [found[f"program {i}"].tobytes() for i in range(about["programs"])],
        "process_names": dict(about["process_names"]),
        "process_labels": dict(about["process_labels"]),
        "thread_names": {tuple(thread): name for thread, name in about["thread_names"]},
        "provenance": {**about["provenance"], "path": path},
    }
    return msgspec.convert(said, Trace)


def check(trace: Trace, links: Mapping[str, Column]) -> None:
    """One of `DAMAGE` if a code stands for nothing, a time is impossible, a link of no event."""
    count = len(trace)
    last = len(trace.programs) << PROGRAM_SHIFT
    ends = {"name": len(trace.names), "category": len(trace.categories)}
    ends |= {"thread": len(trace.threads), "kind": max(EventKind) + 1}
    for name, dtype in _PER_EVENT.items():
        column = getattr(trace, name)
        if len(column) != count or column.dtype != dtype:
            raise ValueError(f"the column {name} has another length or type")
        if name not in ("correlation", "external_id"):
            _check_range(name, column, 0, ends.get(name))
    for name, arg in (*trace.args.items(), ("instructions", trace.instructions)):
        if len(arg.rows) != len(arg.values) or (arg.rows[1:] <= arg.rows[:-1]).any():
            raise ValueError(f"the rows of {name} are not in order")
        _check_range(name, arg.rows, 0, count)
        if arg.texts is not None:
            _check_range(name, arg.values, 0, len(arg.texts))
    _check_range("instructions", trace.instructions.values, 0, last)
    if not links:
        return
    rows, parent = (cast("Array", links[name]) for name in ("rows", "parent_position"))
    _check_range("rows", rows, 0, count)
    _check_range("parents", parent, -1, None)
    if len(parent) != len(rows) or (parent >= np.arange(len(rows))).any():
        raise ValueError("the links are of another trace")
    for name in ("launch_of_gpu", "cpu_op_of_gpu"):
        linked = cast("Array", links[name])
        _check_range(name, linked, NONE, count)
        if len(linked) != len(trace.gpu_rows) or not np.isin(linked[linked != NONE], rows).all():
            raise ValueError("what launched GPU events is not in the tree")


def _check_range(name: str, values: Array, least: int, end: int | None) -> None:
    if len(values) and (values.min() < least or (end is not None and values.max() >= end)):
        raise ValueError(f"{name} is out of range")
