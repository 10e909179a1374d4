"""What tells a trace's file from another, or from what it was before."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_PACKAGE = Path(__file__).parents[1]
#: What makes a trace and its tree, and what finds out what is kept beside them.
READING = (
    "readers/**/*.py",
    "cache/*.py",
    *("settings.py", "trace.py", "tree.py", "linking.py", "nesting.py", "ordering.py", "text.py"),
)
FINDING = ("analysis/**/*.py", "intervals.py", "kernel_names.py")
_END_BYTES = 1 << 16
_WHOLE_AT_ONCE = 1 << 20
_JOURNALS = ("-wal", "-journal")


def identity_of(path: Path) -> dict[str, object] | None:
    """Size, time of change, inode, a hash of head and tail, and the version of the reader.

    Returns:
        As JSON; None for what is no regular file.

    Raises:
        OSError, ValueError: it cannot be read.
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
        "reader": reader_version(),
    }


def hash_of_whole(path: Path) -> str:
    """A hash of all that is in a file.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_WHOLE_AT_ONCE):
            digest.update(piece)
    return digest.hexdigest()


@functools.cache
def reader_version() -> str:
    """A hash of the code that makes a trace and its tree: what it made before no longer counts.

    Nobody has to remember to raise a number.
    """
    return _hash_of_code(READING)


@functools.cache
def analysis_version() -> str:
    """Likewise of the code that finds out what is kept beside them."""
    return _hash_of_code(FINDING)


def _hash_of_code(patterns: Iterable[str]) -> str:
    from tracelens_ext import __version__

    digest = hashlib.blake2b(__version__.encode(), digest_size=8)
    with contextlib.suppress(OSError):  # in a zip file there is the version alone
        for pattern in patterns:
            for source in sorted(_PACKAGE.glob(pattern)):
                digest.update(source.read_bytes())
    return digest.hexdigest()


def journal_beside(database: Path) -> Path | None:
    """The file beside a SQLite database that says it is being written; None without one.

    Raises:
        OSError: the folder cannot be read.
    """
    for ending in _JOURNALS:
        beside = database.with_name(database.name + ending)
        if beside.exists() and beside.stat().st_size:
            return beside
    return None
