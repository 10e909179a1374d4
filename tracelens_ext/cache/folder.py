"""The folder of the cache: which files are kept of which trace, and what goes when it is full."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from typing import TYPE_CHECKING, NamedTuple

from tracelens_ext.cache.file import TEMPORARY_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

_ABANDONED_S = 3600
_KEPT = re.compile(r"(?P<stem>[0-9a-f]{32})\.(?P<part>[a-z0-9_-]+)\.(?:columns|sqlite)")


class KeptFile(NamedTuple):
    """A file of the cache.

    Attributes:
        stem: which trace it belongs to.
        path: the file.
        size: bytes.
        used: when it was last used, seconds since 1970.
    """

    stem: str
    path: Path
    size: int
    used: float


def kept_files(folder: Path) -> list[KeptFile]:
    """The files of the cache, by name; what else lies in the folder does not count.

    Raises:
        OSError: the folder cannot be read.
    """
    found: list[KeptFile] = []
    if not folder.exists():
        return found
    for path in sorted(folder.iterdir()):
        if name := _KEPT.fullmatch(path.name):
            with contextlib.suppress(FileNotFoundError):  # another process has removed it
                status = path.stat()
                found.append(KeptFile(name["stem"], path, status.st_size, status.st_mtime))
    return found


def remove(folder: Path, stem: str) -> int:
    """Remove all that is kept of one trace; how many bytes that were.

    Raises:
        OSError: it cannot be removed.
    """
    freed = 0
    for file in kept_files(folder):
        if file.stem == stem:
            with contextlib.suppress(FileNotFoundError):
                file.path.unlink()
                freed += file.size
    return freed


def make_room(folder: Path, limit: int, spared: str) -> None:
    """Remove what was not used for longest until the folder holds no more than its limit.

    Args:
        folder: the folder.
        limit: bytes.
        spared: the trace that stays.

    Raises:
        OSError: the folder cannot be read, or something not removed.
    """
    _sweep(folder)
    files = kept_files(folder)
    total = sum(file.size for file in files)
    used: dict[str, float] = {}
    for file in files:
        used[file.stem] = max(used.get(file.stem, 0.0), file.used)
    for stem in sorted(used.keys() - {spared}, key=used.__getitem__):
        if total <= limit:
            return
        total -= remove(folder, stem)


def size_of(folder: Path, stem: str, without: Collection[Path]) -> int:
    """Bytes that are kept of one trace, but for some files.

    Raises:
        OSError: the folder cannot be read.
    """
    files = kept_files(folder)
    return sum(file.size for file in files if file.stem == stem and file.path not in without)


def _sweep(folder: Path) -> None:
    """Remove what a process that was killed left half written."""
    for path in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
