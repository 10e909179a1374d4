"""How the cache tells a trace's file from another, and one version of the reader from the next."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import stat
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
#: The code that makes a trace and its call tree.
READING = ("*.py", "readers/**/*.py", "cache/*.py")
_END_BYTES = 1 << 16
_JOURNALS = ("-wal", "-journal")


def identity_of(path: Path) -> dict[str, object] | None:
    """Size, modification time, inode, and a hash of the first and last 64 KiB of a file, as JSON.

    None for what is no regular file.
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
    """A hash of the whole content of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.cache
def reader_version() -> str:
    """A hash of the code that makes a trace and its tree; nobody has to remember to raise a number.

    In a zip file, where the code is no files, it is the version of the package alone.
    """
    from tracelens_ext import __version__

    digest = hashlib.blake2b(__version__.encode(), digest_size=8)
    with contextlib.suppress(OSError):
        for pattern in READING:
            for source in sorted(_PACKAGE.glob(pattern)):
                digest.update(source.read_bytes())
    return digest.hexdigest()


def journal_beside(database: Path) -> Path | None:
    """The file beside a SQLite database that says it is being written; None without one."""
    for ending in _JOURNALS:
        beside = database.with_name(database.name + ending)
        if beside.exists() and beside.stat().st_size:
            return beside
    return None
