"""Keeps parsed traces, with the links of their call trees, in a folder.

The path of a trace identifies its entry in the cache. An entry is valid as long as the file is the
same (size, modification time, inode, hash of its beginning and end) and the code of the reader is
the same. Entries that are invalid or damaged are removed, with a note to the user, and the trace is
read again.
Several processes can share the folder, because files are written under a temporary name and then
renamed. If the folder exceeds its limit, the least recently used traces are removed. If the cache
cannot be written, the user gets a note, not an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from tracelens_ext.errors import MergedRanksError
from tracelens_ext.readers.cache import file as columns_file
from tracelens_ext.readers.cache import folder as cache_folder
from tracelens_ext.readers.cache import stored_trace
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

#: A trace with fewer bytes of text is parsed about as fast as it is read from the cache.
WORTH_KEEPING = 20 * 10**6

#: Parts of an entry: the trace itself, and the database that a report was converted to.
_TRACE = "trace"
_CONVERSION = "conversion"
#: Prefix of the names of columns with links of a call tree.
_LINK = "link "
_LinksOf = WeakKeyDictionary[Trace, Mapping[str, Array]]
#: Errors because of which a trace is not kept.
_NOT_KEPT = (OSError, TypeError, ValueError, OverflowError, RecursionError, MemoryError)


@dataclass(frozen=True)
class CacheEntry:
    """The entry of a trace in the cache."""

    path: str  #: the file of the trace
    files: tuple[Path, ...]  #: the files in the cache
    size: int  #: their size, bytes
    used: float  #: time when they were last used, seconds since 1970
    usable: bool  #: True if the file of the trace has not changed since it was read


class _TraceOfEntry(NamedTuple):
    """The trace that an entry of the cache was read from."""

    path: str
    #: True if the file of the trace and the reader have not changed since
    is_valid: bool


@dataclass(eq=False)
class TraceCache:
    """A folder of parsed traces."""

    folder: Path  #: the folder, which is created when the first trace is kept
    limit: int = cache_folder.DEFAULT_SIZE  #: bytes that the folder may have
    worth_keeping: int = WORTH_KEEPING  #: a trace with fewer bytes of text is not kept
    #: True to compare the whole content of files, not only their beginning and end
    verify: bool = False
    #: called with a clause for the user when an entry is removed or cannot be kept
    tell: Callable[[str], None] = lambda _: None
    _links: _LinksOf = field(default_factory=WeakKeyDictionary, repr=False)

    @classmethod
    def from_environment(
        cls, *, verify: bool = False, tell: Callable[[str], None] = lambda _: None
    ) -> TraceCache:
        """Return the cache of the user, with the folder and limit in the environment variables."""
        return cls(
            cache_folder.cache_folder(),
            cache_folder.cache_limit(),
            WORTH_KEEPING,
            verify,
            tell,
        )

    def read(self, source: str | os.PathLike[str], parse: Callable[[], Trace]) -> Trace:
        """Return a trace from the cache; if it is not there, parse it and keep it.

        Args:
            source: the path of the trace.
            parse: reads the file.
        """
        path = Path(source)
        identity = None
        # If the file cannot be read, `parse` raises the proper error.
        with contextlib.suppress(OSError, ValueError):
            identity = (
                None
                if cache_folder.journal_beside(path)
                else cache_folder.identity_of(path)
            )
        if identity is None:
            return parse()
        trace = self._load(os.fspath(source), identity)
        if trace is None:
            trace = parse()
            if trace.provenance.bytes_read >= self.worth_keeping:
                self._keep(path, identity, trace)
        return trace

    def links(self, trace: Trace) -> Mapping[str, Array] | None:
        """Return the links of the call tree (without Python frames) of a trace from this cache.

        The result is None if the links were not kept.
        """
        return self._links.get(trace) or None

    def conversion(self, source: str | os.PathLike[str]) -> Path | None:
        """Return the database that a file was converted to; None if it is missing or outdated."""
        file = self._file(source, _CONVERSION)
        database = _database_of(file)
        with contextlib.suppress(OSError, KeyError, TypeError, ValueError):
            kept_identity = columns_file.read_about(file)["identity"]
            if kept_identity == cache_folder.identity_of(Path(source)):
                os.utime(database)  # raises an error if the database is missing
                return database
        return None

    def keep_conversion(
        self, source: str | os.PathLike[str], made: Path
    ) -> Path | None:
        """Move the database that a file was converted to into the cache.

        Args:
            source: the file.
            made: the database.

        Returns:
            The path of the database in the cache; None if it cannot be kept.
        """
        file = self._file(source, _CONVERSION)
        path = Path(source)
        try:
            about = {
                "path": str(path.resolve()),
                "identity": cache_folder.identity_of(path),
            }
            self._write(
                file=file, about=about, columns={}, database=made.stat().st_size
            )
            made.replace(_database_of(file))
        except _NOT_KEPT as error:
            self.tell(_why_not_kept(os.fspath(source), "its conversion is not", error))
            return None
        return _database_of(file)

    def _load(self, source: str, identity: Mapping[str, object]) -> Trace | None:
        """Return a trace from the cache; None if it is missing, outdated or damaged.

        Outdated and damaged entries are removed, and the user gets a note.
        """
        file = self._file(source, _TRACE)
        version = reader_version()
        wanted = {"identity": identity, "reader": version}
        try:
            about, columns = columns_file.read_columns(
                file, lambda about: wanted.items() <= about.items()
            )
            if columns is None:
                why = "was read by another version when it was cached; reading it again"
                if about.get("reader") == version:
                    why = "has changed since it was cached; reading it again"
            elif self.verify and about["whole"] != cache_folder.hash_of_whole(
                Path(source)
            ):
                why = "has different content than when it was cached; reading it"
            else:
                trace = stored_trace.trace_of(about["trace"], columns, source)
                links = _links_of(columns)
                stored_trace.check(trace, links)
                self._links[trace] = links
                with contextlib.suppress(OSError):
                    os.utime(file)
                return trace
        except FileNotFoundError:
            return None
        except OSError as error:
            self.tell(f"the cache cannot be read ({error.strerror or error})")
            return None
        except columns_file.DAMAGE:
            why = "its cached data is damaged; reading the file"
        # An entry that cannot be removed is not used either.
        with contextlib.suppress(OSError):
            file.unlink()
        self.tell(f"{source}: {why}")
        return None

    def _keep(self, path: Path, identity: Mapping[str, object], trace: Trace) -> None:
        """Keep a trace that was just parsed, with the links of its call tree."""
        try:
            members, columns = stored_trace.trace_columns(trace)
            try:
                links = CallTree(trace).links
            except MergedRanksError:  # raised again when the tree is needed
                links = {}
            columns |= {_LINK + name: array for name, array in links.items()}
            about = {
                "path": str(path.resolve()),
                "identity": identity,
                "reader": reader_version(),
            }
            about |= {"whole": cache_folder.hash_of_whole(path), "trace": members}
            # A file that was written while it was parsed is not kept.
            if cache_folder.identity_of(path) == identity:
                self._write(self._file(path, _TRACE), about, columns)
                self._links[trace] = _links_of(columns)
        except _NOT_KEPT as error:
            self.tell(_why_not_kept(str(path), "is not", error))

    def _file(self, source: str | os.PathLike[str], part: str) -> Path:
        """Return the file of the cache for a part of an entry, named after the trace's path."""
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
        """Write a file of the cache, and remove other traces to make room for it.

        Args:
            file: the file.
            about: JSON that is stored with the columns.
            columns: the columns.
            database: the number of bytes of a database that will be moved beside the file.

        Raises:
            TooLargeError: the entry would exceed the limit of the cache.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        stem = file.name.split(".")[0]
        replaced = (file, _database_of(file))
        files = cache_folder.cache_files(self.folder).get(stem, [])
        other_sizes = (entry.size for entry in files if entry.path not in replaced)
        room = self.limit - database
        columns_file.write_columns(
            path=file, about=about, columns=columns, most=room - sum(other_sizes)
        )
        cache_folder.make_room(self.folder, room, spared=stem)

    def entries(self) -> list[CacheEntry]:
        """Return the entries of the cache, the most recently used first."""
        entries = []
        for stem, files in cache_folder.cache_files(self.folder).items():
            path, usable = self._trace_of_entry(stem)
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

    def _trace_of_entry(self, stem: str) -> _TraceOfEntry:
        """Return the path of the trace of an entry, and whether the entry is still valid."""
        path = "(damaged)"
        try:
            # An entry may have only a conversion, if the trace is too small to keep.
            file = self.folder / f"{stem}.{_TRACE}.columns"
            conversion = self.folder / f"{stem}.{_CONVERSION}.columns"
            if not file.exists() and conversion.exists():
                file = conversion
            about = columns_file.read_about(file)
            path = str(about["path"])
            current_reader = reader_version()
            if about.get("reader", current_reader) != current_reader:
                return _TraceOfEntry(path, is_valid=False)
            identity = cache_folder.identity_of(Path(path))
            return _TraceOfEntry(path, is_valid=identity == about["identity"])
        except (OSError, KeyError, TypeError, ValueError):
            return _TraceOfEntry(path, is_valid=False)

    def clear(self) -> tuple[int, int]:
        """Remove all traces; return their number and their size in bytes."""
        traces = cache_folder.cache_files(self.folder).values()
        return len(traces), sum(map(cache_folder.remove, traces))


def open_cache(
    wanted: TraceCache | bool | None, reading: ReadingOptions = DEFAULT_READING_OPTIONS
) -> TraceCache | None:
    """Return the cache that the argument `cache=` of `read_trace` stands for; None for no cache.

    No cache is used in these cases:

    * Damaged files are salvaged: part of a trace must never be taken for the whole trace.
    * The user limits the size of files: the cache must not give a trace that would be refused.
    * Other users may write to the folder of the cache.
    """
    if reading.no_cache or reading.allow_truncated or reading.max_bytes is not None:
        return None
    if not isinstance(wanted, TraceCache):
        if not wanted or cache_folder.cache_is_off():
            return None
        wanted = TraceCache.from_environment(verify=reading.verify_cache)
    if cache_folder.others_may_write(wanted.folder):
        wanted.tell(
            f"the cache {wanted.folder} is not used because others can write to it; "
            f"remove that permission, or choose another folder with {FOLDER_VARIABLE}"
        )
        return None
    return wanted


def _database_of(file: Path) -> Path:
    """Return the database that belongs to a file of the cache, which says what it was made of."""
    return file.with_suffix(".sqlite")


def _links_of(columns: Mapping[str, Any]) -> dict[str, Array]:
    """Return those columns that are links of the call tree."""
    return {
        name.removeprefix(_LINK): column
        for name, column in columns.items()
        if name.startswith(_LINK)
    }


def _why_not_kept(path: str, what: str, error: BaseException) -> str:
    """Return a clause for the user about a trace or a conversion that is not kept."""
    if isinstance(error, columns_file.TooLargeError):
        return (
            f"{path}: {what} kept in the cache (over its limit); raise the limit with "
            f"{SIZE_VARIABLE}"
        )
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return (
        f"{path}: {what} kept in the cache ({reason}); choose another folder with "
        f"{FOLDER_VARIABLE}, or turn the cache off with {OFF_VARIABLE}=1"
    )
