"""Reads and writes files of columns: uncompressed ZIP archives of arrays and lists of texts.

The member `about.json` has the name and type of each column, and JSON that the writer adds. Each
other member is the bytes of a column. Numbers are stored in the smallest type that holds all of a
column, which halves the size of the file. The file contains no pickles, so reading it runs no code.
Changed bytes are noticed, because ZIP has a CRC-32 for each member.
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
from dataclasses import asdict
from pathlib import Path
from tempfile import mkstemp
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Column = Array | Sequence[str]


TEMPORARY_SUFFIX = ".tmp"
_ABOUT = "about.json"
_TEXTS = "texts"
#: `dtype.kind` of the columns that can be stored: signed and unsigned integers, booleans.
_KINDS_OF_NUMBERS = "iub"
#: Errors that reading a damaged file, or a trace from it, may raise.
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
    """The file is cut off or changed, or is not a file of columns."""


class TooLargeError(ValueError):
    """The file of columns would be larger than is allowed."""


def write_columns(
    path: Path,
    about: Mapping[str, object],
    columns: Mapping[str, Column],
    most: int | None = None,
) -> int:
    """Write a file of columns, and return its size in bytes.

    The file is written under a temporary name and then renamed. After an error, no file is left.

    Args:
        path: the path of the file.
        about: JSON that is stored with the columns.
        columns: name → column.
        most: the number of bytes that the file may have; None for no limit.

    Raises:
        OSError: the file cannot be written.
        TypeError, ValueError: a column, or `about`, cannot be stored.
        TooLargeError: the file has more bytes than `most`.
    """
    listing = []
    blobs = []
    for name, column in columns.items():
        encoded = _encoded_column(column)
        listing.append([name, encoded.dtype, encoded.stored])
        blobs.append(encoded.data)
    description = json.dumps({"about": about, "columns": listing}, default=asdict)
    handle, temporary = mkstemp(TEMPORARY_SUFFIX, f".{path.name}.", path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr(_ABOUT, description)
                for number, blob in enumerate(blobs):
                    archive.writestr(str(number), blob)
            size = file.tell()
        if most is not None and size > most:
            raise TooLargeError
        Path(temporary).replace(path)
    finally:
        # If the file was renamed, there is nothing to remove.
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
    return size


class _EncodedColumn(NamedTuple):
    """A column in the form in which it is stored."""

    dtype: str  #: the type of its numbers, or `_TEXTS`
    stored: str  #: the type in which the numbers are stored, or `_TEXTS`
    data: bytes | memoryview


def _encoded_column(column: Column) -> _EncodedColumn:
    """Return a column in the form in which it is stored.

    Raises:
        TypeError: it cannot be stored.
    """
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
    """Return the type with the fewest bytes that holds all numbers of a column."""
    dtype = column.dtype
    if dtype.kind == "b" or not len(column):
        return dtype
    least = int(column.min())
    greatest = int(column.max())
    extreme = greatest
    if least < 0:
        # A type that holds a negative number also holds its complement: int8 holds -128 and 127.
        extreme = min(least, ~greatest)
    smallest = np.min_scalar_type(extreme)
    return smallest if smallest.itemsize < dtype.itemsize else dtype


class ReadColumns(NamedTuple):
    """The content of a file of columns."""

    about: dict[str, Any]  #: the JSON that was stored with the columns
    columns: dict[str, Array | list[str]] | None  #: None if they were not wanted


def read_about(path: Path) -> dict[str, Any]:
    """Return the JSON that is stored with the columns of a file; errors as of `read_columns`."""
    return read_columns(path, lambda _: False).about


def read_columns(
    path: Path, wanted: Callable[[dict[str, Any]], bool] = lambda _: True
) -> ReadColumns:
    """Read a file of columns.

    Args:
        path: the path of the file.
        wanted: returns True if the columns are to be read, given the JSON stored with them.

    Raises:
        OSError: the file cannot be read.
        DamagedFileError: it is not a file of columns, or is damaged.
    """
    try:
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode):  # reading a pipe would block
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
        # EINVAL means that damaged data points before the beginning of the file.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise DamagedFileError(str(error)) from error
    return ReadColumns(about, columns)


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return the bytes of a member, after ZIP has verified its checksum.

    Compressed members are refused, as `write_columns` never writes them.
    """
    if archive.getinfo(name).compress_type != zipfile.ZIP_STORED:
        raise DamagedFileError("it is compressed")
    return archive.read(name)


def _decoded(data: bytes, dtype: str, stored: str) -> Array | list[str]:
    """Return a column, given its bytes, its type and the type in which it is stored."""
    if dtype == _TEXTS:
        return msgspec.json.decode(data, type=list[str])
    kinds = {np.dtype(dtype).kind, np.dtype(stored).kind}
    if not kinds <= set(_KINDS_OF_NUMBERS):
        raise DamagedFileError(f"it has a column of {dtype}")
    values = np.frombuffer(data, stored)
    return values.astype(dtype)
