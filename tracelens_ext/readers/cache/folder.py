"""Manages the folder of the cache: its location, its files, its size.

It also computes what identifies the file of a trace and the version of the reader, so that outdated
traces in the cache are noticed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shutil
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tracelens_ext.errors import UsageError
from tracelens_ext.readers.cache.file import TEMPORARY_SUFFIX
from tracelens_ext.settings import VERSION

#: A temporary file that is older than this, s, was left by a process that was interrupted.
_ABANDONED_S = 3600
#: Name of a file of the cache; the stem is that of all files of a trace.
_NAME = re.compile(r"(?P<stem>[0-9a-f]{32})\.[a-z0-9_-]+\.(?:columns|sqlite)")


class CacheFile(NamedTuple):
    """A file of the cache."""

    path: Path  #: the file
    size: int  #: bytes
    used: float  #: time when it was last used, seconds since 1970


def cache_files(folder: Path) -> dict[str, list[CacheFile]]:
    """Return the files of each trace, by the stem of their names; other files are left out."""
    files_of_trace: dict[str, list[CacheFile]] = {}
    paths = sorted(folder.iterdir()) if folder.exists() else []
    for path in paths:
        name = _NAME.fullmatch(path.name)
        if name is None:
            continue
        # Another process may remove the file.
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode):
                file = CacheFile(path=path, size=status.st_size, used=status.st_mtime)
                files_of_trace.setdefault(name["stem"], []).append(file)
    return files_of_trace


def others_may_write(folder: Path) -> bool:
    """Return True if other users may write files into a folder; False if it does not exist yet."""
    with contextlib.suppress(OSError):
        status = folder.stat()
        shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        return os.name == "posix" and (
            shared != 0 or status.st_uid not in (os.geteuid(), 0)
        )
    return False


def remove(files: Iterable[CacheFile]) -> int:
    """Remove files; return the number of bytes that they had."""
    removed_bytes = 0
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            file.path.unlink()
            removed_bytes += file.size
    return removed_bytes


def make_room(folder: Path, limit: int, spared: str) -> None:
    """Remove abandoned temporary files, and the least recently used traces.

    Args:
        folder: the folder of the cache.
        limit: traces are removed until all files have at most this many bytes.
        spared: the stem of a trace that is not removed.
    """
    for path in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    traces = cache_files(folder)
    total = sum(file.size for files in traces.values() for file in files)
    traces.pop(spared, None)
    for files in sorted(traces.values(), key=_last_use):
        if total <= limit:
            return
        total -= remove(files)


def _last_use(files: Iterable[CacheFile]) -> float:
    return max(file.used for file in files)


FOLDER_VARIABLE = "TRACELENS_EXT_CACHE_DIR"
SIZE_VARIABLE = "TRACELENS_EXT_CACHE_SIZE"
OFF_VARIABLE = "TRACELENS_EXT_NO_CACHE"
DEFAULT_SIZE = 5 * 10**9

_SIZE = re.compile(
    r"\s*([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE
)


def cache_is_off() -> bool:
    """Return True if the environment switches the cache off."""
    return os.environ.get(OFF_VARIABLE, "").strip() not in ("", "0")


def cache_folder() -> Path:
    """Return the folder of the user's cache: that of the environment variable, else the default."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        return Path(folder)
    from platformdirs import user_cache_path

    return user_cache_path("tracelens-ext", appauthor=False)


def cache_limit() -> int:
    """Return the number of bytes that the user's cache may have: the environment's, else 5 GB.

    Raises:
        UsageError: the environment variable is not a size.
    """
    text = os.environ.get(SIZE_VARIABLE, "")
    if not text.strip():
        return DEFAULT_SIZE
    size = parse_size(text)
    if size is None:
        raise UsageError(
            f"{SIZE_VARIABLE}={text!r} is not a size; write it as 5GB or 500MB"
        )
    return size


def parse_size(text: str) -> int | None:
    """Return the number of bytes of a size such as `5GB`, `500 MB`, `1.5GiB` or `100`.

    The result is None if the text is not a size.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        return None
    number, prefix, binary = match.groups()
    base = 1024 if binary else 1000
    power = " kmgt".index(prefix.lower() or " ")
    return int(float(number) * base**power)


_PACKAGE = Path(__file__).parents[2]
#: The source files that determine how a trace and its call tree are made.
READING = ("*.py", "trace/*.py", "readers/**/*.py")
_END_BYTES = 1 << 16
_JOURNALS = ("-wal", "-journal")


def identity_of(path: Path) -> dict[str, object] | None:
    """Return what identifies the content of a file, without reading all of it.

    That is its size, modification time, inode, and a hash of its beginning and end. The result is
    None if the path is not that of a regular file.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        return None
    ends = hashlib.blake2b(digest_size=16)
    with path.open("rb", buffering=0) as file:
        ends.update(file.read(_END_BYTES))
        file.seek(max(status.st_size - _END_BYTES, 0))
        ends.update(file.read(_END_BYTES))
    return {
        "size": status.st_size,
        "modified_ns": status.st_mtime_ns,
        "inode": status.st_ino,
        "ends": ends.hexdigest(),
    }


def hash_of_whole(path: Path) -> str:
    """Return a hash of the whole content of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.cache
def reader_version() -> str:
    """Return a hash of the version, and of the source files that make a trace and its call tree.

    If the package is in a ZIP file, the hash is that of the version only.
    """
    digest = hashlib.blake2b(VERSION.encode(), digest_size=8)
    with contextlib.suppress(OSError):
        for pattern in READING:
            sources = sorted(_PACKAGE.glob(pattern))
            for source in sources:
                digest.update(source.read_bytes())
    return digest.hexdigest()


def journal_beside(database: Path) -> Path | None:
    """Return the journal of an SQLite database that is being written; None if there is none."""
    for ending in _JOURNALS:
        beside = database.with_name(database.name + ending)
        if beside.exists() and beside.stat().st_size:
            return beside
    return None
