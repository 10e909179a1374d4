"""A file of columns: an uncompressed ZIP archive of arrays and lists of texts.

Its member `about.json` tells the type of each column and whatever else the writer has to say; the
others are the columns' bytes. Numbers are stored in as few bytes as hold them, which halves what is
read. Reading runs no code from the file (there is no pickle in it), and a byte that changed is
noticed: ZIP has a CRC-32 for every member.
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
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    Array = npt.NDArray[Any]
    Column = Array | Sequence[str]

TEMPORARY_SUFFIX = ".tmp"
_ABOUT = "about.json"
_TEXTS = "texts"
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_OLD_FILE = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_BINARY", "O_NONBLOCK", "O_NOFOLLOW")
)
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
    try:
        with _opened(path) as file, zipfile.ZipFile(file) as archive:
            members = json.loads(_member(archive, _ABOUT))
            about = members["about"]
            if not wanted(about):
                return about, None
            columns = {
                name: _decoded(_member(archive, str(number)), dtype, stored)
                for number, (name, dtype, stored) in enumerate(members["columns"])
            }
    except _DAMAGE as error:
        raise DamagedFileError(str(error)) from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # a place before the file's beginning
            raise
        raise DamagedFileError(str(error)) from error
    return about, columns


def _opened(path: Path) -> BinaryIO:
    """An open file; a pipe would never answer.

    Raises:
        OSError: it cannot be opened.
        DamagedFileError: it is a pipe, a folder, a link or a device.
    """
    try:
        descriptor = os.open(path, _OLD_FILE)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise DamagedFileError("it is no file") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DamagedFileError("it is no file")
    return os.fdopen(descriptor, "rb")


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
