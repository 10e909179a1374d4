"""Where the bytes of a trace come from: a path, an open file, gzipped or not."""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tracelens_ext import errors
from tracelens_ext.errors import (
    TraceCutOffError,
    TraceError,
    TraceFormatError,
    TraceNotFoundError,
)
from tracelens_ext.processes import cores
from tracelens_ext.readers import ahead
from tracelens_ext.readers.ahead import Gunzip, ReadAhead
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions, size_text
from tracelens_ext.text import counted

if TYPE_CHECKING:
    from tracelens_ext.readers.cache.store import TraceCache


#: The first bytes of every SQLite database.
SQLITE_MAGIC = b"SQLite format 3\x00"
_FILE_BUFFER = 1 << 18
#: Most text that a file may hold unless the user says so, bytes; gzipped, when it is beyond
#: `_ALWAYS_BYTES`, also at most so many times the file. Profilers' traces shrink 10 to 30 times.
_MOST_BYTES = 64 * 10**9
_ALWAYS_BYTES = 2 * 10**8
_MOST_TIMES = 100
AGAIN = "copy or record the file again"
#: What the user can do to get the events before the damage.
SALVAGE = "analyze what comes before that with --allow-truncated"
_LOOKED_AT = 1 << 16
#: More threads would wait for the one that cuts slices and takes over what became of them.
_MOST_THREADS = 8
_AN_EVENT = re.compile(rb'"ph"\s*:\s*"[^{}]*(?:\{[^{}]*\}[^{}]*)?\}')


class Readable(Protocol):
    """An open file, binary or text, or anything like one."""

    def read(self, size: int, /) -> bytes | str:
        """Up to `size` bytes or characters; empty at the end."""
        ...


class ByteSource:
    """The decompressed bytes of a trace, a path or an open file, read a piece at a time.

    `progress` is called with (bytes of the file read, its size or None) after every piece; `cache`
    keeps what a reader converts the file to.

    Attributes: `path`, as the user named it; `file`, None of an open file; `size` in bytes, None if
    unknown; `compressed`, whether it is gzipped; `bytes_read` of text, less what was taken back;
    `damage` of a gzip stream that is salvaged, `cut_off` if it only ends too early.

    Raises TraceNotFoundError, TraceTooLargeError, and TraceCutOffError of a gzip stream that is cut
    off or damaged.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Readable,
        progress: Callable[[int, int | None], None] | None = None,
        cache: TraceCache | None = None,
        reading: ReadingOptions = DEFAULT_READING_OPTIONS,
    ) -> None:
        self.progress = progress
        self.cache = cache
        self.reading = reading
        self.size: int | None = None
        self.file: Path | None = None
        if isinstance(source, str | os.PathLike):
            self.path = os.fspath(source)
            self.file = Path(source)
            file, self.size = _open(self.file, reading)
        else:
            self.path = str(getattr(source, "name", "<file>"))
            # of a text file: bytes are decoded here
            binary = getattr(source, "buffer", source)
            if isinstance(binary, io.BufferedReader):
                file = binary
            else:
                file = io.BufferedReader(_Encoded(source))
        self._opened = file
        self._ahead = b""
        self._error: TraceError | None = None
        self.damage: TraceCutOffError | None = None
        self.cut_off = False
        self.bytes_read = 0
        self._unpacked = 0
        self._bytes: io.BufferedReader | Gunzip | ReadAhead = file
        self._gunzip_errors = ahead.DAMAGE  # of a file too that its owner unpacks
        try:
            with self._explained():
                self.compressed = file.peek(2).startswith(ahead.GZIP)
            if self.compressed:
                unpacked = Gunzip(file, thorough=reading.allow_truncated)
                self._bytes = unpacked
                self._gunzip_errors = unpacked.errors
                if self.file is not None and self.threads():
                    self._bytes = ReadAhead(unpacked)
            elif self.size is not None:
                self._check_size(self.size)
        except TraceError:
            self.close()
            raise

    def peek(self, size: int) -> bytes:
        """Return the next bytes, up to `size` of them, which `read` will give again."""
        self._ahead = self._filled(self._ahead, size)
        return self._ahead[:size]

    def read(self, size: int) -> bytes:
        """Return up to `size` decompressed bytes; fewer at the end or before damage."""
        piece = self._ahead[:size]
        self._ahead = self._ahead[size:]
        piece = self._filled(piece, size)
        try:
            self._check_size(self.bytes_read + len(piece))
        except errors.TraceTooLargeError:
            self._ahead = piece + self._ahead
            raise
        self.bytes_read += len(piece)
        if self.progress is not None:
            position = self.bytes_read
            with suppress(OSError, ValueError):
                position = self._opened.tell()
            self.progress(position, self.size)
        return piece

    def read_all(self) -> bytes:
        """Return all that is left, decompressed."""
        pieces = []
        piece = self.read(_FILE_BUFFER)
        while piece:
            pieces.append(piece)
            piece = self.read(_FILE_BUFFER)
        return b"".join(pieces)

    def unread(self, data: bytes) -> None:
        """Take back the last bytes that `read` gave; it will give them again."""
        self._ahead = data + self._ahead
        self.bytes_read -= len(data)

    def _filled(self, piece: bytes, size: int) -> bytes:
        """Return a piece made as long as `size`, if there is so much.

        An error waits until the piece is empty.
        """
        while len(piece) < size and self._error is None:
            try:
                with self._explained():
                    more = self._bytes.read(size - len(piece))
            except TraceError as error:
                if self.reading.allow_truncated and isinstance(error, TraceCutOffError):
                    self.damage = error
                    break
                self._error = error
            else:
                if not more:
                    break
                self._unpacked += len(more)
                piece += more
        if self._error is not None and not piece:
            raise self._error
        return piece

    def _check_size(self, size: int) -> None:
        """Raise TraceTooLargeError for a size of text that is more than is allowed."""
        limit = self.reading.max_bytes
        reason = ""
        if limit is None:
            limit_by_size = _MOST_BYTES
            if self.compressed and self.size is not None:
                limit_by_size = self.size * _MOST_TIMES
            sensible_limit = max(_ALWAYS_BYTES, limit_by_size)
            limit = min(_MOST_BYTES, sensible_limit)
            if limit == limit_by_size < _MOST_BYTES:
                reason = f", {_MOST_TIMES} times its size"
        if size <= limit:
            return
        verb = "unpacks to" if self.compressed else "holds"
        problem = f"{verb} more than {size_text(limit)} of text{reason}"
        remedy = "if you trust it, raise the limit with --max-bytes"
        raise errors.TraceTooLargeError(self.path, problem, remedy)

    def file_or_bytes(self) -> Path | bytes:
        """Return the file, if it can be read where it lies; else all bytes.

        A file that is gzipped, or was open already, cannot.
        """
        if self.file is None or self.compressed:
            return self.read_all()
        return self.file

    def drain(self) -> None:
        """Read to the end: there a gzip stream's checksum tells whether it is damaged."""
        while self.read(_FILE_BUFFER):
            pass

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say of an error while reading which file it is about, and what to do."""
        try:
            yield
        except EOFError:
            self.cut_off = True
            problem = (
                f"the gzip stream ends prematurely (after {self._unpacked:,} bytes of "
                "text)"
            )
            raise TraceCutOffError(self.path, problem, AGAIN) from None
        except self._gunzip_errors as error:
            problem = f"the gzip stream is damaged after {self._unpacked:,} bytes of text ({error})"
            remedy = AGAIN
            if self._can_be_salvaged():
                remedy = f"{AGAIN}, or {SALVAGE}"
            raise TraceCutOffError(self.path, problem, remedy) from None
        except UnicodeDecodeError:
            remedy = "open the file in binary mode"
            raise TraceFormatError(self.path, "is not UTF-8 text", remedy) from None
        except OSError as error:
            problem = f"cannot be read ({error.strerror or error})"
            raise TraceNotFoundError(self.path, problem, "check the file") from None

    def _can_be_salvaged(self) -> bool:
        """Return True if salvaging gives events of a stream of which not one byte was given."""
        if self.file is None or self.reading.allow_truncated or self._unpacked:
            return False
        salvaging = replace(self.reading, allow_truncated=True)
        with suppress(TraceError), ByteSource(self.file, reading=salvaging) as source:
            return _AN_EVENT.search(source.peek(_LOOKED_AT)) is not None
        return False

    def threads(self) -> int:
        """Return how many threads may read ahead.

        0 if the file is small, or there is one core for it.
        """
        count = min(self.reading.jobs or cores(), _MOST_THREADS)
        size = ahead.text_bytes(self.size or 0, compressed=self.compressed)
        if size < ahead.WORTHWHILE_BYTES or count < 2:
            return 0
        return count

    def close(self) -> None:
        """Close the file if this object opened it."""
        if isinstance(self._bytes, ReadAhead):
            self._bytes.close()
        if self.file is not None:
            self._opened.close()

    def __enter__(self) -> ByteSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open(path: Path, reading: ReadingOptions) -> tuple[io.BufferedReader, int]:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise TraceNotFoundError(path, "is a folder", "give one trace file in it")
        if not stat.S_ISREG(mode):
            raise TraceNotFoundError(
                path, "is not a regular file", "copy it to a file first"
            )
        if not reading.may_read(path):
            raise TraceNotFoundError(
                path, "is outside the allowed folders", "give another file"
            )
        file = _AsOpened(path)
        return io.BufferedReader(file, _FILE_BUFFER), file.size
    except FileNotFoundError:
        raise TraceNotFoundError(path, "no such file", "check the path") from None
    except TraceError:
        raise
    except (OSError, ValueError) as error:
        raise TraceNotFoundError.of(path, error) from None


class _AsOpened(io.FileIO):
    """A file that is read as far as it went when it was opened, even if it grows."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.size = self._left = os.fstat(self.fileno()).st_size

    def readinto(self, buffer: bytearray | memoryview, /) -> int | None:  # type: ignore[override]
        count = super().readinto(memoryview(buffer)[: self._left])
        self._left -= count or 0
        return count


class _Encoded(io.RawIOBase):
    """An open file of either sort as raw bytes."""

    def __init__(self, file: Readable) -> None:
        self._from = file
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        if not self._rest:
            piece = self._from.read(_FILE_BUFFER)
            self._rest = (
                piece.encode("utf-8", "surrogatepass")
                if isinstance(piece, str)
                else piece
            )
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def salvage_notes(
    source: ByteSource, damage: TraceError | None, at: int, events: int
) -> list[str]:
    """Return the note on damage, if there is any; raise the damage if nothing is salvaged.

    Args:
        source: the file.
        damage: why not all of it could be read.
        at: the byte of the text before which all was read.
        events: how many events were read.
    """
    from tracelens_ext.trace import SALVAGED

    if damage is None:
        return []
    if not source.reading.allow_truncated:
        remedy = AGAIN
        if events:
            remedy = f"{AGAIN}, or {SALVAGE}"
        raise type(damage)(damage.path, damage.problem, remedy)
    if not events:
        raise type(damage)(
            damage.path, damage.problem, "no event precedes the damage"
        ) from None
    total = source.size
    if source.compressed or total is None:
        source.drain()
        total = source.bytes_read
    lost_bytes = max(total - at, 0)
    losses = []
    if lost_bytes:
        lost_events = round(lost_bytes * events / max(at, 1))
        room = counted(lost_events, "event")
        loss = f"the last {lost_bytes:,} bytes (room for about {room}) are lost"
        if source.damage is not None:
            loss = f"of what can be unpacked {loss}"
        losses.append(loss)
    is_cut_off = isinstance(damage, TraceCutOffError)
    if is_cut_off or source.damage is not None:
        losses.append(_loss_beyond(source))
    if not losses:
        losses.append("only the end of the document is lost")
    kept = f"all {events:,} events before byte {at:,} of the text are here"
    clauses = "; ".join([kept] + losses)
    return [f"{SALVAGED}({damage.problem}): {clauses}."]


def _loss_beyond(source: ByteSource) -> str:
    """Return what may be lost of a stream that is cut off or damaged."""
    loss = "everything after it is lost"
    if source.damage is not None and not source.cut_off:
        loss += ", and values before it may be wrong where the gzip stream is damaged"
    return loss


RECORD = "record with torch.profiler and export_chrome_trace(), or use that tool's own viewer"
_LONGEST_NAME = 60
#: Members of a document that a message names.
_MOST_MEMBERS = 6
#: A top-level member that only one tool writes → the tool.
_MEMBERS = {
    "nodes": "a PyTorch execution trace (ExecutionTraceObserver)",
    "shared": "a speedscope file",
    "resourceSpans": "OpenTelemetry spans",
}


def refuse_members(path: str, members: Iterable[str]) -> TraceFormatError:
    """Return the error for a JSON document without `traceEvents`."""
    names = list(members)
    if {"pg_config", "entries"} <= set(names):
        problem = "is a dump of PyTorch's flight recorder, not a trace"
        return TraceFormatError(path, problem, "run: tracelens-ext ranks FILE")
    for name in names:
        if name in _MEMBERS:
            return TraceFormatError(
                path, f"is {_MEMBERS[name]}, which is not supported", RECORD
            )
    if "traceEvents" in names:
        return TraceFormatError(path, "has traceEvents that are not a list", RECORD)
    content = "it is empty"
    if names:
        listed = ", ".join(map(in_a_line, names[:_MOST_MEMBERS]))
        content = f"it contains: {listed}"
        if len(names) > _MOST_MEMBERS:
            content += " …"
    return TraceFormatError(path, f"is JSON without traceEvents ({content})", RECORD)


def in_a_line(name: str) -> str:
    """Return a name out of a file, fit for a message: on one line, short, and printable."""
    line = " ".join(name.split())[:_LONGEST_NAME]
    return line.encode("utf-8", "replace").decode()
