"""Reads the bytes of a trace from a path or an open file, gzipped or not."""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Callable, Iterator
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
from tracelens_ext.readers.messages import REMEDY_COPY_AGAIN, REMEDY_SALVAGE
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions, size_text

if TYPE_CHECKING:
    from tracelens_ext.readers.cache.store import TraceCache


#: The first bytes of every SQLite database.
SQLITE_MAGIC = b"SQLite format 3\x00"
_FILE_BUFFER = 1 << 18
#: Unless the user sets a limit, a file may contain this many bytes of text. A gzipped file may
#: unpack to `_ALLOWED_BYTES`, or to `_ALLOWED_EXPANSION` times its size, whichever is more. The
#: traces of profilers unpack to 10 to 30 times their size.
_MOST_BYTES = 64 * 10**9
_ALLOWED_BYTES = 2 * 10**8
_ALLOWED_EXPANSION = 100
#: Bytes in which a damaged gzip stream is searched for an event.
_SEARCHED_BYTES = 1 << 16
#: More threads would only wait for the one that cuts the text into slices.
_MOST_THREADS = 8
_AN_EVENT = re.compile(rb'"ph"\s*:\s*"[^{}]*(?:\{[^{}]*\}[^{}]*)?\}')


class Readable(Protocol):
    """An open file, binary or text, or an object with the same method `read`."""

    def read(self, size: int, /) -> bytes | str:
        """Return up to `size` bytes or characters; nothing at the end."""
        ...


class ByteSource:
    """Reads the decompressed bytes of a trace.

    Args:
        source: the path of the trace, or an open file.
        progress: called after every piece with the bytes of the file read so far, and its size or
            None.
        cache: keeps the file that a reader converts the trace to.
        reading: the options of the reader.

    Attributes:
        path: the file as the user named it.
        file: the path of the file; None for an open file.
        size: the size of the file in bytes; None if it is unknown.
        compressed: whether the file is gzipped.
        bytes_read: the number of decompressed bytes read so far, without those that were unread.
        damage: what is wrong with a gzip stream that is salvaged; None if nothing is.
        cut_off: whether the only damage is that the gzip stream ends too early.

    Raises:
        TraceNotFoundError: the file does not exist or cannot be read.
        TraceTooLargeError: it contains more text than is allowed.
        TraceCutOffError: the gzip stream is cut off or damaged.
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
            # A text file usually has a binary file as its `buffer`, which is read instead.
            binary = getattr(source, "buffer", source)
            if isinstance(binary, io.BufferedReader):
                file = binary
            else:
                file = io.BufferedReader(_EncodedFile(source))
        self._opened = file
        #: Decompressed bytes that `read` returns before it reads further.
        self._peeked = b""
        self._error: TraceError | None = None
        self.damage: TraceCutOffError | None = None
        self.cut_off = False
        self.bytes_read = 0
        self._unpacked = 0
        self._bytes: io.BufferedReader | Gunzip | ReadAhead = file
        # An open file may be a `GzipFile`, which raises these errors.
        self._gunzip_errors = ahead.DAMAGE
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
        """Return up to `size` of the next bytes; `read` will return them again."""
        self._peeked = self._filled(self._peeked, size)
        return self._peeked[:size]

    def read(self, size: int) -> bytes:
        """Return up to `size` decompressed bytes; fewer at the end or before damage."""
        piece = self._peeked[:size]
        self._peeked = self._peeked[size:]
        piece = self._filled(piece, size)
        try:
            self._check_size(self.bytes_read + len(piece))
        except errors.TraceTooLargeError:
            self._peeked = piece + self._peeked
            raise
        self.bytes_read += len(piece)
        if self.progress is not None:
            position = self.bytes_read
            with suppress(OSError, ValueError):
                position = self._opened.tell()
            self.progress(position, self.size)
        return piece

    def read_all(self) -> bytes:
        """Return all remaining bytes, decompressed."""
        pieces = []
        piece = self.read(_FILE_BUFFER)
        while piece:
            pieces.append(piece)
            piece = self.read(_FILE_BUFFER)
        return b"".join(pieces)

    def unread(self, data: bytes) -> None:
        """Put back the last bytes that `read` returned; it will return them again."""
        self._peeked = data + self._peeked
        self.bytes_read -= len(data)

    def _filled(self, piece: bytes, size: int) -> bytes:
        """Return a piece with further bytes appended, up to `size` bytes in all.

        If reading fails, the bytes before the error are returned first. The error is kept, and
        raised by the call that has no bytes to return.
        """
        while len(piece) < size and self._error is None:
            more = self._next_bytes(size - len(piece))
            if not more:
                break
            piece += more
        if self._error is not None and not piece:
            raise self._error
        return piece

    def _next_bytes(self, size: int) -> bytes:
        """Read up to `size` bytes; none at the end and after an error, which is kept.

        A damaged gzip stream that is salvaged ends at the damage.
        """
        try:
            with self._explained():
                piece = self._bytes.read(size)
        except TraceError as error:
            if self.reading.allow_truncated and isinstance(error, TraceCutOffError):
                self.damage = error
            else:
                self._error = error
            return b""
        self._unpacked += len(piece)
        return piece

    def _check_size(self, size: int) -> None:
        """Raise TraceTooLargeError if this many bytes of text are more than is allowed."""
        limit, reason = self._limit_and_reason()
        if size <= limit:
            return
        verb = "unpacks to" if self.compressed else "holds"
        problem = f"{verb} more than {size_text(limit)} of text{reason}"
        remedy = "if you trust it, raise the limit with --max-bytes"
        raise errors.TraceTooLargeError(self.path, problem, remedy)

    def _limit_and_reason(self) -> tuple[int, str]:
        """Return how many bytes of text are allowed, and a clause that explains this limit."""
        if self.reading.max_bytes is not None:
            return self.reading.max_bytes, ""
        if not self.compressed or self.size is None:
            return _MOST_BYTES, ""
        limit_by_size = self.size * _ALLOWED_EXPANSION
        if limit_by_size >= _MOST_BYTES:
            return _MOST_BYTES, ""
        if limit_by_size < _ALLOWED_BYTES:
            return _ALLOWED_BYTES, ""
        return limit_by_size, f", {_ALLOWED_EXPANSION} times its size"

    def file_or_bytes(self) -> Path | bytes:
        """Return the path of the file; all bytes if it is gzipped, or was given as an open file."""
        if self.file is None or self.compressed:
            return self.read_all()
        return self.file

    def drain(self) -> None:
        """Read to the end of the file, where the checksum of a gzip stream is verified."""
        while self.read(_FILE_BUFFER):
            pass

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Convert errors while reading to errors that name the file and say what to do."""
        try:
            yield
        except EOFError:
            self.cut_off = True
            problem = (
                f"the gzip stream ends prematurely (after {self._unpacked:,} bytes of "
                "text)"
            )
            raise TraceCutOffError(self.path, problem, REMEDY_COPY_AGAIN) from None
        except self._gunzip_errors as error:
            problem = f"the gzip stream is damaged after {self._unpacked:,} bytes of text ({error})"
            remedy = REMEDY_COPY_AGAIN
            if self._can_be_salvaged():
                remedy = f"{REMEDY_COPY_AGAIN}, or {REMEDY_SALVAGE}"
            raise TraceCutOffError(self.path, problem, remedy) from None
        except UnicodeDecodeError:
            remedy = "open the file in binary mode"
            raise TraceFormatError(self.path, "is not UTF-8 text", remedy) from None
        except OSError as error:
            problem = f"cannot be read ({error.strerror or error})"
            raise TraceNotFoundError(self.path, problem, "check the file") from None

    def _can_be_salvaged(self) -> bool:
        """Return True if a damaged gzip stream that gave no bytes has events before the damage.

        The decompressor gives no bytes if the damage lies near the beginning, so the beginning is
        read again byte by byte. If the stream gave bytes, this is False: the reader knows whether
        they contain events, and adds the advice to the message.
        """
        if self.file is None or self.reading.allow_truncated or self._unpacked:
            return False
        salvaging = replace(self.reading, allow_truncated=True)
        with suppress(TraceError), ByteSource(self.file, reading=salvaging) as source:
            return _AN_EVENT.search(source.peek(_SEARCHED_BYTES)) is not None
        return False

    def threads(self) -> int:
        """Return the number of threads that may read ahead.

        It is 0 for a small file, or if only one core is available.
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
    """Open a file; return it and its size in bytes.

    Raises:
        TraceNotFoundError: it does not exist, is not a regular file, or must not be read.
    """
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
        file = _FixedSizeFile(path)
        return io.BufferedReader(file, _FILE_BUFFER), file.size
    except FileNotFoundError:
        raise TraceNotFoundError(path, "no such file", "check the path") from None
    except TraceError:
        raise
    except (OSError, ValueError) as error:
        raise TraceNotFoundError.of(path, error) from None


class _FixedSizeFile(io.FileIO):
    """A file that is read up to the size that it had when it was opened, even if it grows."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.size = self._left = os.fstat(self.fileno()).st_size

    def readinto(self, buffer: bytearray | memoryview, /) -> int | None:  # type: ignore[override]
        count = super().readinto(memoryview(buffer)[: self._left])
        self._left -= count or 0
        return count


class _EncodedFile(io.RawIOBase):
    """The raw bytes of an open file, which may be a text file."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self._unread = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        if not self._unread:
            piece = self._file.read(_FILE_BUFFER)
            if isinstance(piece, str):
                piece = piece.encode("utf-8", "surrogatepass")
            self._unread = piece
        count = min(len(buffer), len(self._unread))
        buffer[:count] = self._unread[:count]
        self._unread = self._unread[count:]
        return count
