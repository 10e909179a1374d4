"""The folder of the cache: where it is, what is in it of which trace, what goes when it is full.

Also how a trace's file is told from another, and one version of the reader from the next.
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

_ABANDONED_S = 3600
_NAME = re.compile(r"(?P<stem>[0-9a-f]{32})\.[a-z0-9_-]+\.(?:columns|sqlite)")


class CacheFile(NamedTuple):
    """A file of the cache."""

    path: Path  #: the file
    size: int  #: bytes
    used: float  #: when it was last used, seconds since 1970


def cache_files(folder: Path) -> dict[str, list[CacheFile]]:
    """Return the files of each trace, by how all their names begin; others do not count."""
    files_of_trace: dict[str, list[CacheFile]] = {}
    paths = sorted(folder.iterdir()) if folder.exists() else []
    for path in paths:
        name = _NAME.fullmatch(path.name)
        if name is None:
            continue
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode):
                file = CacheFile(path=path, size=status.st_size, used=status.st_mtime)
                files_of_trace.setdefault(name["stem"], []).append(file)
    return files_of_trace


def others_may_write(folder: Path) -> bool:
    """Return True if others may put files into a folder; one that is missing will be the user's."""
    with contextlib.suppress(OSError):
        status = folder.stat()
        shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        return os.name == "posix" and (
            shared != 0 or status.st_uid not in (os.geteuid(), 0)
        )
    return False


def remove(files: Iterable[CacheFile]) -> int:
    """Remove files; return how many bytes that were."""
    freed = 0
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            file.path.unlink()
            freed += file.size
    return freed


def make_room(folder: Path, limit: int, spared: str) -> None:
    """Remove what is half written, and down to `limit` bytes what was not used for longest."""
    for path in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    traces = cache_files(folder)
    total = sum(file.size for files in traces.values() for file in files)
    traces.pop(spared, None)
    for files in sorted(
        traces.values(), key=lambda files: max(file.used for file in files)
    ):
        if total <= limit:
            return
        total -= remove(files)


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
    """The folder of the user's cache: what the environment says, else where caches are."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen:
        return Path(chosen)
    from platformdirs import user_cache_path

    return user_cache_path("tracelens-ext", appauthor=False)


def cache_limit() -> int:
    """The bytes that the user's cache may hold: what the environment says, else 5 GB."""
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
    """Return the bytes that `5GB`, `500 MB`, `1.5GiB` or `100` stand for; None for no size."""
    match = _SIZE.fullmatch(text)
    if match is None:
        return None
    number, prefix, binary = match.groups()
    base = 1024 if binary else 1000
    power = " kmgt".index(prefix.lower() or " ")
    return int(float(number) * base**power)


_PACKAGE = Path(__file__).parents[2]
#: The code that makes a trace and its call tree.
READING = ("*.py", "trace/*.py", "readers/**/*.py")
_END_BYTES = 1 << 16
_JOURNALS = ("-wal", "-journal")


def identity_of(path: Path) -> dict[str, object] | None:
    """Size, modification time, inode, and a hash of both ends of a file; None of what is none."""
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
    """A hash of the whole content of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.cache
def reader_version() -> str:
    """A hash of the code that makes a trace and its tree; in a zip file the package's version."""
    digest = hashlib.blake2b(VERSION.encode(), digest_size=8)
    with contextlib.suppress(OSError):
        for pattern in READING:
            sources = sorted(_PACKAGE.glob(pattern))
            for source in sources:
                digest.update(source.read_bytes())
    return digest.hexdigest()


def journal_beside(database: Path) -> Path | None:
    """The file beside a SQLite database that says it is being written; None without one."""
    for ending in _JOURNALS:
        beside = database.with_name(database.name + ending)
        if beside.exists() and beside.stat().st_size:
            return beside
    return None
