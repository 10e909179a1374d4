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
from typing import Any, NamedTuple, cast

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
    path: Path,
    about: Mapping[str, object],
    columns: Mapping[str, Column],
    most: int | None = None,
) -> int:
    """Write a file of columns, to a temporary name, then renamed; return its size in bytes.

    Nothing is left behind by an OSError, a TypeError or ValueError (something cannot be kept), or
    TooLargeError (more bytes than `most`).
    """
    listing = []
    blobs = []
    for name, column in columns.items():
        encoded = _encoded(column)
        listing.append([name, encoded.dtype, encoded.stored])
        blobs.append(encoded.data)
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
        # after the rename there is nothing left to remove
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
    return size


class _EncodedColumn(NamedTuple):
    """A column as it is written."""

    dtype: str  #: the type of its numbers, or `_TEXTS`
    stored: str  #: the type in which they are stored, as few bytes as hold them
    data: bytes | memoryview


def _encoded(column: Column) -> _EncodedColumn:
    """Return a column as it is written. Raises TypeError for one that cannot be kept."""
    if not isinstance(column, np.ndarray):
        return _EncodedColumn(
            dtype=_TEXTS, stored=_TEXTS, data=msgspec.json.encode(list(column))
        )
    dtype = column.dtype
    if column.ndim != 1 or dtype.kind not in _KINDS_OF_NUMBERS:
        raise TypeError(f"a column of {dtype}, shape {column.shape}, cannot be kept")
    stored = _smallest_type(column)
    data = np.ascontiguousarray(column, dtype=stored).view(np.uint8).data
    return _EncodedColumn(dtype=dtype.str, stored=stored.str, data=data)


def _smallest_type(column: Array) -> np.dtype[Any]:
    """Return the type of the fewest bytes that hold the numbers of a column."""
    dtype = column.dtype
    if dtype.kind == "b" or not len(column):
        return dtype
    least = int(column.min())
    greatest = int(column.max())
    # A type that holds a negative number also holds its complement: int8 from -128 to 127.
    extreme = min(least, ~greatest) if least < 0 else greatest
    smallest = np.min_scalar_type(extreme)
    return smallest if smallest.itemsize < dtype.itemsize else dtype


class ReadColumns(NamedTuple):
    """What is in a file of columns."""

    about: dict[str, Any]  #: what it says about itself
    columns: dict[str, Array | list[str]] | None  #: None where they were not wanted


def read_about(path: Path) -> dict[str, Any]:
    """Return what a file of columns says about itself; errors as of `read_columns`."""
    return read_columns(path, lambda _: False).about


def read_columns(
    path: Path, wanted: Callable[[dict[str, Any]], bool] = lambda _: True
) -> ReadColumns:
    """Read a file of columns; `wanted` says from what it says about itself if they are needed.

    Raises OSError where it cannot be read, DamagedFileError where it is no such file, or not whole.
    """
    try:
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode):  # a pipe would never answer
            raise DamagedFileError("it is not a file")
        with zipfile.ZipFile(path) as archive:
            description = _member(archive, _ABOUT)
            members = json.loads(description)
            about = members["about"]
            if not wanted(about):
                return ReadColumns(about, None)
            columns = {}
            stored_columns = members["columns"]
            for number, (name, dtype, stored) in enumerate(stored_columns):
                data = _member(archive, str(number))
                columns[name] = _decoded(data, dtype, stored)
    except DAMAGE + (OSError,) as error:
        # EINVAL: a place before the file's beginning.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise DamagedFileError(str(error)) from error
    return ReadColumns(about, columns)


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return the bytes of a member, checked; nothing here writes a compressed one."""
    if archive.getinfo(name).compress_type != zipfile.ZIP_STORED:
        raise DamagedFileError("it is compressed")
    return archive.read(name)


def _decoded(data: bytes, dtype: str, stored: str) -> Array | list[str]:
    if dtype == _TEXTS:
        return msgspec.json.decode(data, type=list[str])
    kinds = {np.dtype(dtype).kind, np.dtype(stored).kind}
    if not kinds <= set(_KINDS_OF_NUMBERS):
        raise DamagedFileError(f"it has a column of {dtype}")
    values = np.frombuffer(data, stored)
    return values.astype(dtype)


#: Fields with one number an event, and their types; and fields that are lists of texts.
_PER_EVENT: Mapping[str, npt.DTypeLike] = {
    "ts": np.int64,
    "dur": np.int64,
    "correlation": np.int64,
    "external_id": np.int64,
    "name": np.int32,
    "thread": np.int32,
    "category": np.int32,
    "kind": np.uint8,
}
_FIELDS = tuple(_PER_EVENT) + ("names", "categories")


class KeptTrace(NamedTuple):
    """What is kept of a trace."""

    about: dict[str, object]  #: as JSON
    columns: dict[str, Column]


def trace_columns(trace: Trace) -> KeptTrace:
    """Return what to keep of a trace. Raises TypeError or ValueError if it cannot be kept."""
    columns: dict[str, Column] = {name: getattr(trace, name) for name in _FIELDS}
    about: dict[str, object] = {}
    for field in fields(trace):
        if field.name not in columns:
            about[field.name] = getattr(trace, field.name)
    name_of_list: dict[int, str] = {}  # arguments share their list of texts
    texts_of_arguments: list[str | None] = []
    arguments = list(trace.args.values())
    arguments.append(trace.instructions)
    for number, column in enumerate(arguments):
        columns[f"rows {number}"] = column.rows
        columns[f"values {number}"] = column.values
        texts = None
        if column.texts is not None:
            texts = name_of_list.setdefault(
                id(column.texts), f"texts {len(name_of_list)}"
            )
            columns[texts] = column.texts
        texts_of_arguments.append(texts)
    for number, program in enumerate(trace.programs):
        columns[f"program {number}"] = np.frombuffer(program, dtype=np.uint8)
    about |= {
        "args": list(zip(trace.args, texts_of_arguments, strict=False)),
        "instructions": None,
        "metadata": dict(trace.metadata),
        "programs": len(trace.programs),
        "process_names": list(trace.process_names.items()),
        "process_labels": list(trace.process_labels.items()),
        "thread_names": list(trace.thread_names.items()),
    }
    if repr(json.loads(json.dumps(about["metadata"]))) != repr(about["metadata"]):
        raise ValueError(
            "the metadata has values that JSON does not give back as they were"
        )
    return KeptTrace(about, columns)


def trace_of(
    about: Mapping[str, Any], columns: Mapping[str, Column], path: str
) -> Trace:
    """Return the trace that was kept; one of `DAMAGE` is raised where it is none."""
    kept = cast("dict[str, Any]", columns)
    args = {}
    for number, (name, texts) in enumerate(about["args"]):
        args[name] = _kept_argument(kept, number, texts)
    members = {
        **about,
        **{name: kept[name] for name in _FIELDS},
        "args": args,
        "instructions": _kept_argument(kept, len(about["args"]), None),
        "programs": [
            kept[f"program {number}"].tobytes() for number in range(about["programs"])
        ],
        "process_names": dict(about["process_names"]),
        "process_labels": dict(about["process_labels"]),
        "thread_names": {tuple(thread): name for thread, name in about["thread_names"]},
        "provenance": {**about["provenance"], "path": path},
    }
    return msgspec.convert(members, Trace)


def _kept_argument(
    kept: Mapping[str, Any], number: int, texts: str | None
) -> ArgColumn:
    rows = kept[f"rows {number}"]
    values = kept[f"values {number}"]
    return ArgColumn(
        rows=rows, values=values, texts=None if texts is None else kept[texts]
    )


def check(trace: Trace, links: Mapping[str, Column]) -> None:
    """Raise one of `DAMAGE` if a code stands for nothing, or a link is of no event.

    Also if a time is impossible.
    """
    ends = {
        "name": len(trace.names),
        "category": len(trace.categories),
        "thread": len(trace.threads),
        "kind": max(EventKind) + 1,
    }
    for name, dtype in _PER_EVENT.items():
        column = getattr(trace, name)
        if len(column) != len(trace) or column.dtype != dtype:
            raise ValueError(f"the column {name} has another length or type")
        if name not in ("correlation", "external_id"):
            _check_range(name=name, values=column, least=0, end=ends.get(name))
    for name, argument in trace.args.items():
        _check_argument(name, argument, len(trace))
    _check_argument(name="instructions", argument=trace.instructions, count=len(trace))
    end_of_instructions = len(trace.programs) << PROGRAM_SHIFT
    _check_range(
        name="instructions",
        values=trace.instructions.values,
        least=0,
        end=end_of_instructions,
    )
    if links:
        _check_links(trace, links)


def _check_argument(name: str, argument: ArgColumn, count: int) -> None:
    rows = argument.rows
    has_same_length = len(rows) == len(argument.values)
    is_in_order = (rows[1:] > rows[:-1]).all()
    if not (has_same_length and is_in_order):
        raise ValueError(f"the rows of {name} are not in order")
    _check_range(name=name, values=rows, least=0, end=count)
    if argument.texts is not None:
        _check_range(
            name=name, values=argument.values, least=0, end=len(argument.texts)
        )


def _check_links(trace: Trace, links: Mapping[str, Column]) -> None:
    count = len(trace)
    rows = cast("Array", links["rows"])
    parent = cast("Array", links["parent_position"])
    _check_range(name="rows", values=rows, least=0, end=count)
    _check_range(name="parents", values=parent, least=-1, end=None)
    if len(parent) != len(rows) or (parent >= np.arange(len(rows))).any():
        raise ValueError("the links are of another trace")
    for name in ("launch_of_gpu", "cpu_op_of_gpu"):
        linked = cast("Array", links[name])
        _check_range(name=name, values=linked, least=NONE, end=count)
        if (
            len(linked) != len(trace.gpu_rows)
            or not np.isin(linked[linked != NONE], rows).all()
        ):
            raise ValueError("what launched GPU events is not in the tree")


def _check_range(name: str, values: Array, least: int, end: int | None) -> None:
    if not len(values):
        return
    is_too_small = values.min() < least
    is_too_large = end is not None and values.max() >= end
    if is_too_small or is_too_large:
        raise ValueError(f"{name} is out of range")
