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
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from tracelens_ext.cache.columns import trace_columns, trace_of
from tracelens_ext.cache.file import (
    DamagedFileError,
    TooLargeError,
    read_about,
    read_columns,
    write_columns,
)
from tracelens_ext.cache.folder import KeptFile, kept_files, make_room, remove, size_of
from tracelens_ext.cache.identity import hash_of_whole, identity_of, journal_beside
from tracelens_ext.cache.settings import (
    DEFAULT_SIZE,
    FOLDER_VARIABLE,
    OFF_VARIABLE,
    SIZE_VARIABLE,
    cache_folder,
    cache_is_off,
    cache_limit,
)
from tracelens_ext.settings import read_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracelens_ext.cache.file import Array, Column
    from tracelens_ext.trace import Trace

#: Below this many bytes of text a trace is read about as fast as the cache would give it.
WORTH_KEEPING = 20 * 10**6

_TRACE = "trace"
_CONVERSION = "conversion"
_NOT_KEPT = (
    *(OSError, TypeError, ValueError, OverflowError, RecursionError, MemoryError),
    TooLargeError,
)


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
    _place: WeakKeyDictionary[Trace, tuple[str, str]] = field(
        default_factory=WeakKeyDictionary, repr=False
    )
    _told: set[str] = field(default_factory=set, repr=False)

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
            path = Path(source)
            identity = None if journal_beside(path) else identity_of(path)
        except (OSError, ValueError):
            return parse()  # which says what is wrong with the file
        if identity is None:
            return parse()
        stem = _stem(source)
        found = self._load(stem, os.fspath(source), identity)
        if found is None:
            trace = parse()
            if trace.provenance.bytes_read < self.worth_keeping:
                return trace
            entry = self._keep(stem, Path(source), identity, trace)
        else:
            trace, entry = found
        if entry is not None:
            self._place[trace] = stem, entry
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
        stem, entry = self._place[trace]
        meant = {"entry": entry, "made_from": made_from}
        path = trace.provenance.path
        found = self._read(stem, part, path, lambda about: meant.items() <= about.items())
        if found is None or found[1] is None:
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
        stem, entry = self._place[trace]
        path = trace.provenance.path
        try:
            if _entry(read_about(self._file(stem, _TRACE))) == entry:  # it may have gone since
                about = {"path": path, "entry": entry, "made_from": made_from}
                self._write(stem, part, about, arrays)
        except FileNotFoundError:
            return
        except _NOT_KEPT as error:
            self._tell_once(_why_not_kept(path, error, part))

    def conversion(self, source: str | os.PathLike[str]) -> Path | None:
        """The database that another program made of a file, if it is kept and the file the same."""
        stem = _stem(source)
        path = _beside(self._file(stem, _CONVERSION))
        try:
            about = read_about(self._file(stem, _CONVERSION))
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
        path = _beside(self._file(stem, _CONVERSION))
        try:
            about = {"path": str(Path(source).resolve()), "identity": _of_file_alone(Path(source))}
            self._write(stem, _CONVERSION, about, {}, besides=made.stat().st_size)
            made.replace(path)
        except _NOT_KEPT as error:
            self._tell_once(_why_not_kept(os.fspath(source), error, _CONVERSION))
            return None
        return path

    def _load(self, stem: str, path: str, identity: dict[str, object]) -> tuple[Trace, str] | None:
        """A trace and which entry of the cache it is, if what is kept is of the file as it is."""
        found = self._read(stem, _TRACE, path, lambda about: about["identity"] == identity)
        if found is None:
            return None
        about, columns = found
        if columns is None:
            changed = about["identity"].get("reader") == identity["reader"]
            why = "has changed since" if changed else "was read by another version when"
            self._drop(stem, f"{path}: {why} it was cached; reading it again")
            return None
        if self.verify and about.get("whole") != hash_of_whole(Path(path)):
            self._drop(stem, f"{path}: has another content than when it was cached; reading it")
            return None
        try:
            return trace_of(about["trace"], columns, path), _entry(about)
        except (KeyError, TypeError, ValueError):
            self._drop(stem, f"{path}: what the cache holds of it is damaged; reading the file")
            return None

    def _read(
        self, stem: str, part: str, shown: str, wanted: Callable[[dict[str, Any]], bool]
    ) -> tuple[dict[str, Any], dict[str, Any] | None] | None:
        """What a file of the cache says about itself, and its columns if they are wanted.

        None when there is no such file, or when it is damaged, and then it is removed.
        """
        path = self._file(stem, part)
        try:
            about, columns = read_columns(path, wanted)
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

    def _file(self, stem: str, part: str) -> Path:
        return self.folder / f"{stem}.{part}.columns"

    def _keep(self, stem: str, path: Path, identity: dict[str, object], trace: Trace) -> str | None:
        """Keep a trace that was just read; which entry it is, None if that did not work."""
        try:
            members, columns = trace_columns(trace)
            about: dict[str, object] = {
                "path": str(path.resolve()),
                "identity": identity,
                "whole": hash_of_whole(path),
                "trace": members,
            }
            if identity_of(path) != identity:
                return None  # it was written to while it was read
            self._write(stem, _TRACE, about, columns)
            return _entry(about)
        except _NOT_KEPT as error:
            self._tell_once(_why_not_kept(str(path), error, _TRACE))
            return None

    def _write(
        self,
        stem: str,
        part: str,
        about: Mapping[str, object],
        columns: Mapping[str, Column],
        besides: int = 0,
    ) -> None:
        """Write a file of the cache, if there is room beside what else is kept of the trace.

        Args:
            stem: which trace.
            part: what of it.
            about: what the file says about itself.
            columns: what it holds.
            besides: bytes that come with it.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._file(stem, part)
        room = self.limit - size_of(self.folder, stem, {path, _beside(path)})
        write_columns(path, about, columns, most=room - besides)
        make_room(self.folder, self.limit - besides, spared=stem)

    def _tell_once(self, note: str) -> None:
        """Say what holds for every part of a trace only once."""
        if note not in self._told:
            self._told.add(note)
            self.tell(note)

    def _drop(self, stem: str, note: str, part: str = _TRACE) -> None:
        """Remove what is no good: with a trace all that was made from it, else the part alone."""
        with contextlib.suppress(OSError):  # what stays is not used either
            if part == _TRACE:
                remove(self.folder, stem)
            else:
                self._file(stem, part).unlink()
        self.tell(note)

    def entries(self) -> list[CacheEntry]:
        """What is kept, last used first.

        Raises:
            OSError: the folder cannot be read.
        """
        files: dict[str, list[KeptFile]] = {}
        for file in kept_files(self.folder):
            files.setdefault(file.stem, []).append(file)
        entries = []
        for stem, of_trace in files.items():
            trace, usable = self._described(stem)
            entries.append(
                CacheEntry(
                    path=trace,
                    files=tuple(file.path for file in of_trace),
                    size=sum(file.size for file in of_trace),
                    used=max(file.used for file in of_trace),
                    usable=usable,
                )
            )
        return sorted(entries, key=lambda entry: (-entry.used, entry.path))

    def _described(self, stem: str) -> tuple[str, bool]:
        """The file that a trace was read from, and whether it is still the same."""
        try:
            trace = self._file(stem, _TRACE)
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
        path = str(read_about(self._file(stem, _CONVERSION))["path"])
        return path, self.conversion(path) is not None

    def clear(self) -> tuple[int, int]:
        """Remove everything; how many traces, and how many bytes, that were.

        Raises:
            OSError: something cannot be removed.
        """
        stems = {file.stem for file in kept_files(self.folder)}
        return len(stems), sum(remove(self.folder, stem) for stem in stems)


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


def _beside(path: Path) -> Path:
    """The database that a file of the cache tells of."""
    return path.with_suffix(".sqlite")


def _why_not_kept(path: str, error: BaseException, part: str) -> str:
    what = {_TRACE: "is not", _CONVERSION: "its conversion is not"}
    lost = what.get(part, "not all that was found out about it is") + " kept in the cache"
    if isinstance(error, TooLargeError):
        return f"{path}: {lost} (over its limit); {SIZE_VARIABLE} raises that"
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return (
        f"{path}: {lost} ({reason}); {FOLDER_VARIABLE} chooses another folder,"
        f" {OFF_VARIABLE}=1 switches it off"
    )


def _entry(about: Mapping[str, object]) -> str:
    """Tells an entry of the cache from what is kept of the trace before or after."""
    identity = json.dumps([about["identity"], about["whole"]], sort_keys=True)
    return hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()


def _stem(source: str | os.PathLike[str]) -> str:
    """What the files of a trace are called in the cache, after its path."""
    path = os.fsencode(Path(source).resolve())
    return hashlib.blake2b(path, digest_size=16).hexdigest()


def _of_file_alone(path: Path) -> dict[str, object] | None:
    """What tells a file from another: no matter which version of this program reads it."""
    identity = identity_of(path)
    return identity and {name: value for name, value in identity.items() if name != "reader"}
