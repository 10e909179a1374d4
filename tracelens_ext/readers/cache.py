"""The cache of parsed traces: the columns of a trace and the links of its tree, kept in a folder.

A trace is kept under its path. What is kept counts only while the file is the same (size,
modification time, inode, a hash of its head and tail) and was read by the same code; else it is
dropped, with a note, and the file is read again. So is one that is damaged. Files are written to a
temporary name and renamed, so that several processes can share the folder. When it grows over its
limit, what was not used for longest goes. No failure to write is an error, only a note.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from tracelens_ext.readers.cache_columns import trace_columns, trace_of
from tracelens_ext.readers.cache_file import (
    TEMPORARY_SUFFIX,
    DamagedFileError,
    read_about,
    read_columns,
    write_columns,
)
from tracelens_ext.readers.cache_identity import hash_of_whole, identity_of
from tracelens_ext.readers.cache_settings import (
    DEFAULT_SIZE,
    FOLDER_VARIABLE,
    OFF_VARIABLE,
    cache_folder,
    cache_is_off,
    cache_limit,
)
from tracelens_ext.readers.settings import read_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracelens_ext.readers.cache_file import Array, Column
    from tracelens_ext.trace import Trace

#: Below this many bytes of text a trace is read about as fast as the cache would give it.
WORTH_KEEPING = 20 * 10**6

_ABANDONED_S = 3600
_TRACE = "trace"
_CONVERSION = "conversion"
_ENTRY = re.compile(r"(?P<stem>[0-9a-f]{32})\.(?P<part>[a-z0-9_-]+)\.(?:columns|sqlite)")
_NOT_KEPT = (OSError, TypeError, ValueError, OverflowError, RecursionError, MemoryError)


def _tell_nobody(note: str) -> None:
    del note


@dataclass(frozen=True)
class CacheEntry:
    """What the cache keeps of one trace.

    Attributes:
        path: the trace's file.
        files: the files in the cache.
        size: their size, bytes.
        used: when they were last used, seconds since 1970.
        usable: whether the trace is still as it was when it was read.
    """

    path: str
    files: tuple[Path, ...]
    size: int
    used: float
    usable: bool


@dataclass(eq=False)
class TraceCache:
    """A folder of parsed traces.

    Attributes:
        folder: the folder; made when something is kept.
        limit: bytes that it may hold.
        worth_keeping: bytes of text from which on a trace is kept.
        verify: whether a file's whole content is compared, not only its head and tail.
        tell: called with a note, a clause, when an entry is dropped or cannot be kept.
    """

    folder: Path
    limit: int = DEFAULT_SIZE
    worth_keeping: int = WORTH_KEEPING
    verify: bool = False
    tell: Callable[[str], None] = _tell_nobody
    _place: WeakKeyDictionary[Trace, tuple[str, dict[str, object]]] = field(
        default_factory=WeakKeyDictionary, repr=False
    )

    @classmethod
    def from_environment(
        cls, *, verify: bool = False, tell: Callable[[str], None] | None = None
    ) -> TraceCache:
        """The user's cache; its folder and limit can be set by environment variables.

        Raises:
            UsageError: the limit is no size.
        """
        cache = cls(cache_folder(), cache_limit(), WORTH_KEEPING, verify)
        if tell is not None:
            cache.tell = tell
        return cache

    def read(self, source: str | os.PathLike[str], parse: Callable[[], Trace]) -> Trace:
        """A trace from the cache, else parsed and kept.

        Args:
            source: its file.
            parse: reads it.
        """
        try:
            identity = identity_of(Path(source))
        except (OSError, ValueError):
            return parse()  # which says what is wrong with the file
        if identity is None:
            return parse()
        stem = _stem(source)
        trace = self._load(stem, os.fspath(source), identity)
        if trace is None:
            trace = parse()
            if trace.provenance.bytes_read < self.worth_keeping:
                return trace
            if not self._keep(stem, Path(source), identity, trace):
                return trace
        self._place[trace] = stem, identity
        return trace

    def holds(self, trace: Trace) -> bool:
        """Whether a trace was read from here, or is kept here since."""
        return trace in self._place

    def arrays(self, trace: Trace, part: str, made_from: str = "") -> dict[str, Array] | None:
        """Arrays derived from a trace that this cache has read; None when it has none.

        Args:
            trace: the trace.
            part: the name they were kept under.
            made_from: what `keep_arrays` was told; they count only if it was the same.
        """
        if trace not in self._place:
            return None
        stem, identity = self._place[trace]
        found = self._read(stem, part, identity, made_from)
        if found is None:
            return None
        return {name: array for name, array in found[1].items() if isinstance(array, np.ndarray)}

    def keep_arrays(
        self, trace: Trace, part: str, arrays: Mapping[str, Array], made_from: str = ""
    ) -> None:
        """Keep arrays derived from a trace, if the trace itself is kept.

        Args:
            trace: a trace that this cache has read.
            part: a name for them: small letters, digits, `-`, `_`.
            arrays: one-dimensional arrays of whole numbers or truth values.
            made_from: tells what else than the trace they were made from.
        """
        if trace not in self._place:
            return
        stem, identity = self._place[trace]
        try:
            about = {"identity": identity, "made_from": made_from}
            self._write(stem, part, about, arrays)
        except _NOT_KEPT as error:
            self.tell(_why_not_kept(trace.provenance.path, error))

    def conversion(self, source: str | os.PathLike[str]) -> Path | None:
        """The database that another program made of a file, if it is kept and the file the same."""
        stem = _stem(source)
        path = self.folder / f"{stem}.{_CONVERSION}.sqlite"
        try:
            about = read_about(self.folder / f"{stem}.{_CONVERSION}.columns")
            if about["identity"] != _of_file_alone(Path(source)) or not path.is_file():
                return None
            os.utime(path)
        except (OSError, DamagedFileError, KeyError, TypeError, ValueError):
            return None
        return path

    def keep_conversion(self, source: str | os.PathLike[str], made: Path) -> Path | None:
        """Move the database that another program made of a file into the cache.

        Returns:
            Where it is now; None when it could not be kept and is where it was.
        """
        stem = _stem(source)
        path = self.folder / f"{stem}.{_CONVERSION}.sqlite"
        try:
            about = {"path": str(Path(source).resolve()), "identity": _of_file_alone(Path(source))}
            if made.stat().st_size > self.limit:
                return None
            self._write(stem, _CONVERSION, about, {})
            made.replace(path)
            self._make_room(stem)
        except _NOT_KEPT as error:
            self.tell(_why_not_kept(os.fspath(source), error))
            return None
        return path

    def _load(self, stem: str, path: str, identity: dict[str, object]) -> Trace | None:
        found = self._read(stem, _TRACE, identity)
        if found is None:
            return None
        about, columns = found
        if self.verify and about.get("whole") != hash_of_whole(Path(path)):
            self._drop(stem, f"{path}: has another content than when it was cached; reading it")
            return None
        try:
            return trace_of(about["trace"], columns, path)
        except (KeyError, TypeError, ValueError):
            self._drop(stem, f"{path}: what the cache holds of it is damaged; reading the file")
            return None

    def _read(
        self, stem: str, part: str, identity: dict[str, object], made_from: str = ""
    ) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """A file of the cache, if it is there, whole, and of the trace as it is now."""
        path = self.folder / f"{stem}.{part}.columns"
        shown = "a trace"
        try:
            about = read_about(path)
            shown = about.get("path", shown)
            if about["identity"] != identity:
                changed = about["identity"].get("reader") == identity["reader"]
                why = "has changed since" if changed else "was read by another version when"
                self._drop(stem, f"{shown}: {why} it was cached; reading it again", part)
                return None
            if about.get("made_from", "") != made_from:
                return None
            about, columns = read_columns(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.tell(f"the cache cannot be read ({error.strerror or error})")
            return None
        except (DamagedFileError, KeyError, TypeError, ValueError, AttributeError):
            again = "reading the file" if part == _TRACE else "finding that part again"
            self._drop(stem, f"{shown}: what the cache holds of it is damaged; {again}", part)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return about, columns

    def _keep(self, stem: str, path: Path, identity: dict[str, object], trace: Trace) -> bool:
        """Keep a trace that was just read; whether that worked."""
        try:
            members, columns = trace_columns(trace)
            about: dict[str, object] = {
                "path": str(path.resolve()),
                "identity": identity,
                "whole": hash_of_whole(path),
                "trace": members,
            }
            if identity_of(path) != identity:
                return False  # it was written to while it was read
            return self._write(stem, _TRACE, about, columns)
        except _NOT_KEPT as error:
            self.tell(_why_not_kept(str(path), error))
            return False

    def _write(
        self, stem: str, part: str, about: Mapping[str, object], columns: Mapping[str, Column]
    ) -> bool:
        """Write a file of the cache and make room for it; False when it is too big."""
        arrays = (column for column in columns.values() if isinstance(column, np.ndarray))
        if sum(array.nbytes for array in arrays) > self.limit:
            return False
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_columns(self.folder / f"{stem}.{part}.columns", about, columns)
        self._make_room(stem)
        return self.folder.joinpath(f"{stem}.{part}.columns").exists()

    def _make_room(self, spared: str) -> None:
        """Remove what was not used for longest until the folder is within its limit."""
        self._sweep()
        files = self._files()
        total = sum(status.st_size for _, _, status in files)
        stems: dict[str, float] = {}
        for stem, _, status in files:
            stems[stem] = max(stems.get(stem, 0.0), status.st_mtime)
        for stem in sorted(stems, key=lambda stem: (stem == spared, stems[stem])):
            if total <= self.limit:
                return
            total -= self._remove(stem)

    def _sweep(self) -> None:
        """Remove what a process that was killed left half written."""
        for path in self.folder.glob(f".*{TEMPORARY_SUFFIX}"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _ABANDONED_S:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _files(self) -> list[tuple[str, Path, os.stat_result]]:
        """The files of the cache: (which trace, path, status)."""
        found = []
        with contextlib.suppress(OSError):
            for path in sorted(self.folder.iterdir()):
                if name := _ENTRY.fullmatch(path.name):
                    with contextlib.suppress(OSError):  # another process may have removed it
                        found.append((name["stem"], path, path.stat()))
        return found

    def _remove(self, stem: str) -> int:
        """Remove all that is kept of one trace; how many bytes that were."""
        freed = 0
        for of_stem, path, status in self._files():
            if of_stem == stem:
                with contextlib.suppress(OSError):
                    path.unlink()
                    freed += status.st_size
        return freed

    def _drop(self, stem: str, note: str, part: str = _TRACE) -> None:
        """Remove what is no good: with a trace all that was made from it, else the part alone."""
        if part == _TRACE:
            self._remove(stem)
        else:
            with contextlib.suppress(OSError):
                (self.folder / f"{stem}.{part}.columns").unlink()
        self.tell(note)

    def entries(self) -> list[CacheEntry]:
        """What is kept, last used first."""
        files: dict[str, list[tuple[Path, os.stat_result]]] = {}
        for stem, path, status in self._files():
            files.setdefault(stem, []).append((path, status))
        entries = []
        for stem, of_trace in files.items():
            trace, usable = self._described(stem)
            entries.append(
                CacheEntry(
                    path=trace,
                    files=tuple(file for file, _ in of_trace),
                    size=sum(status.st_size for _, status in of_trace),
                    used=max(status.st_mtime for _, status in of_trace),
                    usable=usable,
                )
            )
        return sorted(entries, key=lambda entry: (-entry.used, entry.path))

    def _described(self, stem: str) -> tuple[str, bool]:
        """The file that a trace was read from, and whether it is still the same."""
        try:
            trace = self.folder / f"{stem}.{_TRACE}.columns"
            if not trace.exists():  # too small to keep, but not what it was converted from
                return self._described_conversion(stem)
            about = read_about(trace)
            path = str(about["path"])
        except (OSError, DamagedFileError, KeyError, TypeError, ValueError):
            return "(damaged)", False
        try:
            return path, identity_of(Path(path)) == about["identity"]
        except (OSError, ValueError, KeyError):
            return path, False

    def _described_conversion(self, stem: str) -> tuple[str, bool]:
        path = str(read_about(self.folder / f"{stem}.{_CONVERSION}.columns")["path"])
        return path, self.conversion(path) is not None

    def clear(self) -> tuple[int, int]:
        """Remove everything; how many traces, and how many bytes, that were."""
        stems = {stem for stem, _, _ in self._files()}
        return len(stems), sum(self._remove(stem) for stem in stems)


def open_cache(wanted: TraceCache | bool | None) -> TraceCache | None:
    """The cache that an argument `cache=` means; None for none.

    True is the user's cache, unless `TRACELENS_EXT_NO_CACHE` is set. There is none while files are
    salvaged (half a trace must never be taken for the whole one), nor where the user limits their
    size (what is refused does not depend on what was read before).

    Raises:
        UsageError: the limit in the environment is no size.
    """
    settings = read_settings()
    if settings.salvage or settings.max_bytes is not None:
        return None
    if isinstance(wanted, TraceCache):
        return wanted
    return TraceCache.from_environment() if wanted and not cache_is_off() else None


def _why_not_kept(path: str, error: BaseException) -> str:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return (
        f"{path}: is not kept in the cache ({reason}); {FOLDER_VARIABLE} chooses another folder,"
        f" {OFF_VARIABLE}=1 switches it off"
    )


def _stem(source: str | os.PathLike[str]) -> str:
    """What the files of a trace are called in the cache, after its path."""
    path = os.fsencode(Path(source).resolve())
    return hashlib.blake2b(path, digest_size=16).hexdigest()


def _of_file_alone(path: Path) -> dict[str, object] | None:
    """What tells a file from another: no matter which version of this program reads it."""
    identity = identity_of(path)
    return identity and {name: value for name, value in identity.items() if name != "reader"}
