"""A file of columns: arrays and lists of texts, each with a checksum, behind a header in JSON.

    magic (8 bytes) · length of the header (8) · CRC-32 of the header (4) · header · columns

Columns start at multiples of 64 bytes. The header lists name, type, length, place and CRC-32 of
each, and holds whatever else the writer has to say as JSON. Numbers that fit are stored in fewer
bytes than they have in memory, which halves what is read and checked. Reading runs no code from the
file (there is no pickle in it), and a byte that changed is noticed. It is not Arrow: pyarrow weighs
over 100 MB and is not needed for anything else here, while this is a `readinto` a column.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import secrets
import struct
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    Array = npt.NDArray[np.generic]
    Column = Array | Sequence[str]

MAGIC = b"TLXCOLS1"
TEMPORARY_SUFFIX = ".tmp"
_PREFIX = struct.Struct("<8sQI")
_ALIGNMENT = 64
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_TEXTS = "texts"
_KINDS_OF_NUMBERS = "iub"
_NARROW = tuple(np.dtype(name) for name in ("|u1", "|i1", "<u2", "<i2", "<i4"))
_STORED_AS = " as "  # between the type of a column and that of its bytes
_LONGEST_HEADER = 1 << 30


class DamagedFileError(Exception):
    """A file of columns is cut off, was changed, or never was one."""


@functools.cache
def _crc32() -> Callable[[Any], int]:
    """The standard library's, or `isal`'s if it is installed (five times as fast)."""
    with contextlib.suppress(ImportError):
        crc32: Callable[[Any], int] = importlib.import_module("isal.isal_zlib").crc32
        return crc32
    return zlib.crc32


class TooLargeError(Exception):
    """A file of columns would be larger than it may be."""


def write_columns(
    path: Path,
    about: Mapping[str, object],
    columns: Mapping[str, Column],
    most: int | None = None,
) -> int:
    """Write a file of columns: to a temporary name, then renamed.

    Args:
        path: the file; its folder exists.
        about: what else to keep, as JSON.
        columns: one-dimensional arrays of whole numbers or truth values, or lists of texts.
        most: bytes that the file may have.

    Returns:
        The size of the file in bytes.

    Raises:
        OSError: it cannot be written; nothing is left behind.
        TypeError, ValueError: something in it cannot be kept.
        TooLargeError: it would have more bytes than it may.
    """
    header, blobs = _laid_out(about, columns)
    if most is not None and _size(header, blobs) > most:
        raise TooLargeError
    beside = path.with_name(f".{path.name}.{secrets.token_hex(6)}{TEMPORARY_SUFFIX}")
    try:
        with os.fdopen(os.open(beside, _NEW_FILE, 0o600), "wb") as file:
            size = _write(file, header, blobs)
        beside.replace(path)
    finally:
        with contextlib.suppress(OSError):  # after the rename there is nothing left to remove
            beside.unlink()
    return size


def _laid_out(
    about: Mapping[str, object], columns: Mapping[str, Column]
) -> tuple[bytes, list[tuple[int, memoryview | bytes]]]:
    """The header; and the bytes of each column, each with its place behind it."""
    listing: list[list[object]] = []
    blobs: list[tuple[int, memoryview | bytes]] = []
    place = 0
    for name, column in columns.items():
        kind, blob = _encoded(column)
        place += -place % _ALIGNMENT
        listing.append([name, kind, place, len(blob), _crc32()(blob)])
        blobs.append((place, blob))
        place += len(blob)
    return json.dumps({"about": about, "columns": listing}).encode(), blobs


def _size(header: bytes, blobs: list[tuple[int, memoryview | bytes]]) -> int:
    if not blobs:
        return _PREFIX.size + len(header)
    place, last = blobs[-1]
    return _start_of_columns(len(header)) + place + len(last)


def _write(file: BinaryIO, header: bytes, blobs: list[tuple[int, memoryview | bytes]]) -> int:
    file.write(_PREFIX.pack(MAGIC, len(header), zlib.crc32(header)))
    file.write(header)
    start = _start_of_columns(len(header))
    for place, blob in blobs:
        file.write(bytes(start + place - file.tell()))
        file.write(blob)
    return file.tell()


def _encoded(column: Column) -> tuple[str, memoryview | bytes]:
    """What a column is, and its bytes."""
    if not isinstance(column, np.ndarray):
        return _TEXTS, msgspec.json.encode(list(column))
    if column.ndim != 1 or column.dtype.kind not in _KINDS_OF_NUMBERS:
        raise TypeError(f"a column of {column.dtype}, shape {column.shape}, cannot be kept")
    if not len(column):
        return column.dtype.str, b""
    stored = _narrowest(column)
    whole = np.ascontiguousarray(column, dtype=stored)
    kind = column.dtype.str
    if stored != column.dtype:
        kind += _STORED_AS + stored.str
    return kind, whole.view(np.uint8).data


def _narrowest(column: Array) -> np.dtype[Any]:
    """The type of fewest bytes that holds all numbers of a column."""
    if column.dtype.kind not in "iu" or column.dtype.itemsize < 2:
        return column.dtype
    least, greatest = int(column.min()), int(column.max())
    for narrow in _NARROW:
        bounds = np.iinfo(narrow)
        if (
            narrow.itemsize < column.dtype.itemsize
            and bounds.min <= least
            and greatest <= bounds.max
        ):
            return narrow
    return column.dtype


def _start_of_columns(header_length: int) -> int:
    start = _PREFIX.size + header_length
    return start + -start % _ALIGNMENT


def read_about(path: Path) -> dict[str, Any]:
    """What a file of columns says about itself, without its columns.

    Raises:
        OSError: it cannot be read.
        DamagedFileError: it is no such file, or not whole.
    """
    with path.open("rb", buffering=0) as file:
        return _header(file)[0]


def read_columns(
    path: Path, wanted: Callable[[dict[str, Any]], bool] = lambda _: True
) -> tuple[dict[str, Any], dict[str, Array | list[str]] | None]:
    """Read a file of columns.

    Args:
        path: the file.
        wanted: says by what the file says about itself whether the columns are wanted.

    Returns:
        What it says about itself; the columns, whose arrays are the caller's own, None when they
        are not wanted.

    Raises:
        OSError: it cannot be read.
        DamagedFileError: it is no such file, or not whole.
    """
    with path.open("rb", buffering=0) as file:
        about, listing = _header(file)
        if not wanted(about):
            return about, None
        start = file.tell()
        start += -start % _ALIGNMENT
        try:
            columns = {
                name: _column(file, kind, start + place, length, checksum)
                for name, kind, place, length, checksum in listing
            }
        except (TypeError, ValueError, msgspec.MsgspecError, MemoryError) as error:
            raise DamagedFileError(str(error)) from error
    return about, columns


def _header(file: BinaryIO) -> tuple[dict[str, Any], list[list[Any]]]:
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size:
        raise DamagedFileError("it is cut off")
    magic, length, checksum = _PREFIX.unpack(prefix)
    if magic != MAGIC or length > _LONGEST_HEADER:
        raise DamagedFileError("it is no file of columns")
    header = file.read(length)
    if len(header) != length or zlib.crc32(header) != checksum:
        raise DamagedFileError("its header is damaged")
    members = json.loads(header)
    return members["about"], members["columns"]


def _column(file: BinaryIO, kind: str, place: int, length: int, checksum: int) -> Array | list[str]:
    if place + length > os.fstat(file.fileno()).st_size:
        raise DamagedFileError("it is cut off")
    blob = np.empty(length, dtype=np.uint8)
    file.seek(place)
    if length:
        _fill(file, blob.data)
    if _crc32()(blob.data) != checksum:
        raise DamagedFileError("a column is damaged")
    if kind == _TEXTS:
        return msgspec.json.decode(blob.data, type=list[str])
    named, _, stored = kind.partition(_STORED_AS)
    dtype, of_bytes = np.dtype(named), np.dtype(stored or named)
    if not {dtype.kind, of_bytes.kind} <= set(_KINDS_OF_NUMBERS):
        raise DamagedFileError(f"it has a column of {kind}")
    return blob.view(of_bytes).astype(dtype, copy=False)


def _fill(file: BinaryIO, buffer: memoryview) -> None:
    """Read as many bytes as the buffer holds; one call reads no more than 2 GB."""
    while len(buffer):
        count = file.readinto(buffer)  # type: ignore[attr-defined]
        if not count:
            raise DamagedFileError("it is cut off")
        buffer = buffer[count:]
