"""The folder of the cache: which files belong to which trace, and what goes when it is full."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from typing import TYPE_CHECKING, NamedTuple

from tracelens_ext.cache.file import TEMPORARY_SUFFIX

if TYPE_CHECKING:
    from pathlib import Path

_ABANDONED_S = 3600
_NAME = re.compile(r"(?P<stem>[0-9a-f]{32})\.[a-z0-9_-]+\.(?:columns|sqlite)")


class CacheFile(NamedTuple):
    """A file of the cache."""

    stem: str  #: how the names of all files of one trace begin
    path: Path  #: the file
    size: int  #: bytes
    used: float  #: when it was last used, seconds since 1970


def cache_files(folder: Path) -> list[CacheFile]:
    """The files of the cache, by name; what else lies in the folder does not count.

    Raises:
        OSError: the folder cannot be read.
    """
    found: list[CacheFile] = []
    if not folder.exists():
        return found
    for path in sorted(folder.iterdir()):
        if name := _NAME.fullmatch(path.name):
            with contextlib.suppress(FileNotFoundError):  # another process has removed it
                status = path.stat()
                found.append(CacheFile(name["stem"], path, status.st_size, status.st_mtime))
    return found


def remove(folder: Path, stem: str) -> int:
    """Remove the files of one trace.

    Returns:
        How many bytes that were.

    Raises:
        OSError: a file cannot be removed.
    """
    freed = 0
    for file in cache_files(folder):
        if file.stem == stem:
            with contextlib.suppress(FileNotFoundError):
                file.path.unlink()
                freed += file.size
    return freed


def make_room(folder: Path, limit: int, spared: str) -> None:
    """Remove the least recently used traces until the folder holds `limit` bytes or less.

    The trace with the stem `spared` stays. What killed processes left half written goes too.

    Raises:
        OSError: the folder cannot be read, or a file cannot be removed.
    """
    for path in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    files = cache_files(folder)
    total = sum(file.size for file in files)
    used: dict[str, float] = {}
    for file in files:
        used[file.stem] = max(used.get(file.stem, 0.0), file.used)
    for stem in sorted(used.keys() - {spared}, key=used.__getitem__):
        if total <= limit:
            return
        total -= remove(folder, stem)
