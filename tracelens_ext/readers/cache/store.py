"""The cache of parsed traces: a folder with the columns of each, and the links of its call tree.

A trace is kept under its path. What is kept counts only while the file is the same (size,
modification time, inode, a hash of its head and tail) and was read by the same code; otherwise it
is removed, with a note, and the file is read again. So is a file of the cache that is damaged.
Files are written to a temporary name and renamed, so that several processes can share the folder.
When it grows over its limit, the least recently used traces are removed. A failure to write is a
note, never an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from tracelens_ext.errors import MergedRanksError
from tracelens_ext.readers.cache import file as kept
from tracelens_ext.readers.cache import folder as place
from tracelens_ext.readers.cache.file import Array, Column
from tracelens_ext.readers.cache.folder import (
    FOLDER_VARIABLE,
    OFF_VARIABLE,
    SIZE_VARIABLE,
    reader_version,
)
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions
from tracelens_ext.trace import Trace
from tracelens_ext.trace.call_tree import CallTree

#: Below this many bytes of text a trace is read about as fast as the cache would give it.
WORTH_KEEPING = 20 * 10**6

_TRACE = "trace"
_CONVERSION = "conversion"
_LINK = "link "  # how the names of the columns of a call tree begin
_LinksOf = WeakKeyDictionary[Trace, Mapping[str, Array]]
_NOT_KEPT = (OSError, TypeError, ValueError, OverflowError, RecursionError, MemoryError)


@dataclass(frozen=True)
class CacheEntry:
    """What the cache keeps of one trace."""

    path: str  #: the trace's file
    files: tuple[Path, ...]  #: the files in the cache
    size: int  #: their size, bytes
    used: float  #: when they were last used, seconds since 1970
    usable: bool  #: True if the trace is still as it was when it was read


@dataclass(eq=False)
class TraceCache:
    """A folder of parsed traces."""

    folder: Path  #: the folder; made when something is kept
    limit: int = place.DEFAULT_SIZE  #: bytes that it may hold
    worth_keeping: int = WORTH_KEEPING  #: bytes of text from which on a trace is kept
    #: True if a file's whole content is compared, not only its head and tail
    verify: bool = False
    #: called with a note, a clause, when an entry is removed or cannot be kept
    tell: Callable[[str], None] = lambda _: None
    _links: _LinksOf = field(default_factory=WeakKeyDictionary, repr=False)

    @classmethod
    def from_environment(
        cls, *, verify: bool = False, tell: Callable[[str], None] = lambda _: None
    ) -> TraceCache:
        """Return the user's cache; its folder and limit can be set by environment variables."""
        return cls(
            place.cache_folder(), place.cache_limit(), WORTH_KEEPING, verify, tell
        )

    def read(self, source: str | os.PathLike[str], parse: Callable[[], Trace]) -> Trace:
        """Return a trace from the cache, else parse and keep it."""
        path = Path(source)
        identity = None
        # `parse` says what is wrong with the file
        with contextlib.suppress(OSError, ValueError):
            identity = None if place.journal_beside(path) else place.identity_of(path)
        if identity is None:
            return parse()
        trace = self._load(os.fspath(source), identity)
        if trace is None:
            trace = parse()
            if trace.provenance.bytes_read >= self.worth_keeping:
                self._keep(path, identity, trace)
        return trace

    def links(self, trace: Trace) -> Mapping[str, Array] | None:
        """Return the links of the tree (no Python frames) of a trace that this cache has read."""
        return self._links.get(trace) or None

    def conversion(self, source: str | os.PathLike[str]) -> Path | None:
        """Return the database that another program made of a file, if that is kept and current."""
        file = self._file(source, _CONVERSION)
        with contextlib.suppress(OSError, KeyError, TypeError, ValueError):
            if kept.read_about(file)["identity"] == place.identity_of(Path(source)):
                os.utime(_database_of(file))  # raises if it is not there
                return _database_of(file)
        return None

    def keep_conversion(
        self, source: str | os.PathLike[str], made: Path
    ) -> Path | None:
        """Move the database made of a file into the cache; return where it is, if it is kept."""
        file = self._file(source, _CONVERSION)
        path = Path(source)
        try:
            about = {"path": str(path.resolve()), "identity": place.identity_of(path)}
            self._write(
                file=file, about=about, columns={}, database=made.stat().st_size
            )
            made.replace(_database_of(file))
        except _NOT_KEPT as error:
            self.tell(_why_not_kept(os.fspath(source), "its conversion is not", error))
            return None
        return _database_of(file)

    def _load(self, source: str, identity: Mapping[str, object]) -> Trace | None:
        """Return a trace, if what is kept is of the file as it is."""
        file = self._file(source, _TRACE)
        version = reader_version()
        wanted = {"identity": identity, "reader": version}
        try:
            about, columns = kept.read_columns(
                file, lambda about: wanted.items() <= about.items()
            )
            if columns is None:
                changed = about.get("reader") == version
                why = (
                    "has changed since"
                    if changed
                    else "was read by another version when"
                )
                why += " it was cached; reading it again"
            elif self.verify and about["whole"] != place.hash_of_whole(Path(source)):
                why = "has different content than when it was cached; reading it"
            else:
                trace = kept.trace_of(about["trace"], columns, source)
                links = _links_of(columns)
                kept.check(trace, links)
                self._links[trace] = links
                with contextlib.suppress(OSError):
                    os.utime(file)
                return trace
        except FileNotFoundError:
            return None
        except OSError as error:
            self.tell(f"the cache cannot be read ({error.strerror or error})")
            return None
        except kept.DAMAGE:
            why = "its cached data is damaged; reading the file"
        with contextlib.suppress(OSError):  # what stays is not used either
            file.unlink()
        self.tell(f"{source}: {why}")
        return None

    def _keep(self, path: Path, identity: Mapping[str, object], trace: Trace) -> None:
        """Keep a trace that was just read, and the links of its tree."""
        try:
            members, columns = kept.trace_columns(trace)
            try:
                links = CallTree(trace).links
            except MergedRanksError:  # whoever makes the tree says so
                links = {}
            columns |= {_LINK + name: array for name, array in links.items()}
            about = {
                "path": str(path.resolve()),
                "identity": identity,
                "reader": reader_version(),
            }
            about |= {"whole": place.hash_of_whole(path), "trace": members}
            # else it was written to while it was read
            if place.identity_of(path) == identity:
                self._write(self._file(path, _TRACE), about, columns)
                self._links[trace] = _links_of(columns)
        except _NOT_KEPT as error:
            self.tell(_why_not_kept(str(path), "is not", error))

    def _file(self, source: str | os.PathLike[str], part: str) -> Path:
        """Return where a part of what is kept of a trace is; named after the trace's path."""
        stem = hashlib.blake2b(
            os.fsencode(Path(source).resolve()), digest_size=16
        ).hexdigest()
        return self.folder / f"{stem}.{part}.columns"

    def _write(
        self,
        file: Path,
        about: dict[str, Any],
        columns: dict[str, Column],
        database: int = 0,
    ) -> None:
        """Write a file of the cache if there is room beside what else is kept of the trace."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        stem = file.name.split(".")[0]
        replaced = (file, _database_of(file))
        files = place.cache_files(self.folder).get(stem, [])
        beside = (entry.size for entry in files if entry.path not in replaced)
        room = self.limit - database
        kept.write_columns(
            path=file, about=about, columns=columns, most=room - sum(beside)
        )
        place.make_room(self.folder, room, spared=stem)

    def entries(self) -> list[CacheEntry]:
        """Return what is kept, last used first."""
        entries = []
        for stem, files in place.cache_files(self.folder).items():
            path, usable = self._described(stem)
            paths, sizes, used = zip(*files, strict=True)
            entries.append(
                CacheEntry(
                    path=path,
                    files=paths,
                    size=sum(sizes),
                    used=max(used),
                    usable=usable,
                )
            )
        return sorted(entries, key=lambda entry: (-entry.used, entry.path))

    def _described(self, stem: str) -> tuple[str, bool]:
        """Return the file that a trace was read from, and True if it is still the same."""
        path = "(damaged)"
        try:
            # A trace that is too small to keep may have been converted.
            parts = [
                self.folder / f"{stem}.{part}.columns" for part in (_TRACE, _CONVERSION)
            ]
            about = kept.read_about(next(filter(Path.exists, parts), parts[0]))
            path = str(about["path"])
            same_reader = about.get("reader", reader_version()) == reader_version()
            return path, same_reader and place.identity_of(Path(path)) == about[
                "identity"
            ]
        except (OSError, KeyError, TypeError, ValueError):
            return path, False

    def clear(self) -> tuple[int, int]:
        """Remove everything; return how many traces, and how many bytes, that were."""
        traces = place.cache_files(self.folder).values()
        return len(traces), sum(map(place.remove, traces))


def open_cache(
    wanted: TraceCache | bool | None, reading: ReadingOptions = DEFAULT_READING_OPTIONS
) -> TraceCache | None:
    """Return the cache that an argument `cache=` means; None for none.

    There is none while files are salvaged (half a trace must never be taken for the whole one), nor
    where the user limits their size (what is refused does not depend on what was read before), nor
    where others may write to its folder.
    """
    if reading.no_cache or reading.allow_truncated or reading.max_bytes is not None:
        return None
    if not isinstance(wanted, TraceCache):
        if not wanted or place.cache_is_off():
            return None
        wanted = TraceCache.from_environment(verify=reading.verify_cache)
    if place.others_may_write(wanted.folder):
        wanted.tell(
            f"the cache {wanted.folder} is not used because others can write to it; "
            f"remove that permission, or choose another folder with {FOLDER_VARIABLE}"
        )
        return None
    return wanted


def _database_of(file: Path) -> Path:
    """Return the database beside the file of the cache that tells what it was made of."""
    return file.with_suffix(".sqlite")


def _links_of(columns: Mapping[str, Any]) -> dict[str, Array]:
    return {
        name[len(_LINK) :]: col
        for name, col in columns.items()
        if name.startswith(_LINK)
    }


def _why_not_kept(path: str, what: str, error: BaseException) -> str:
    if isinstance(error, kept.TooLargeError):
        return (
            f"{path}: {what} kept in the cache (over its limit); raise the limit with "
            f"{SIZE_VARIABLE}"
        )
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return (
        f"{path}: {what} kept in the cache ({reason}); choose another folder with "
        f"{FOLDER_VARIABLE}, or turn the cache off with {OFF_VARIABLE}=1"
    )
