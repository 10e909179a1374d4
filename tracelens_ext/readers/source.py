"""Where the bytes of a trace come from: a path, an open file, gzipped or not."""

from __future__ import annotations

import gzip
import io
import os
import stat
import sys
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from tracelens_ext.errors import (
    TraceCutOffError,
    TraceError,
    TraceFormatError,
    TraceNotFoundError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

GZIP_MAGIC = b"\x1f\x8b"
_FILE_BUFFER = 1 << 18


class _Bytes(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Readable(Protocol):
    """An open file, binary or text, or anything like one."""

    def read(self, size: int, /) -> bytes | str:
        """Up to `size` bytes or characters; empty at the end."""
        ...


class ByteSource:
    """The decompressed bytes of a trace, read a piece at a time.

    Args:
        source: a path, or an open file (binary or text).
        progress: called with (bytes of the file read, its size or None) after every piece.

    Raises:
        TraceNotFoundError: nothing readable is there.
        TraceCutOffError: the gzip stream ends in the middle, or is damaged.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Readable,
        progress: Callable[[int, int | None], None] | None = None,
    ) -> None:
        self._progress = progress
        self._size: int | None = None
        self._owned = isinstance(source, str | os.PathLike)
        if isinstance(source, str | os.PathLike):
            self.path = os.fspath(source)
            file, self._size = _open(Path(source))
        else:
            self.path = str(getattr(source, "name", "<file>"))
            file = _binary(source)
        self._file = file
        self._ahead = b""
        self.bytes_read = 0
        self._bytes: _Bytes = file
        try:
            with self._explained():
                compressed = file.peek(2).startswith(GZIP_MAGIC)
        except TraceError:
            self.close()
            raise
        self._compressed = compressed
        if compressed:
            self._bytes = _gunzip(file)

    def peek(self, size: int) -> bytes:
        """The next bytes, up to `size` of them, which `read` will give again."""
        if len(self._ahead) < size:
            with self._explained():
                self._ahead += self._bytes.read(size - len(self._ahead))
        return self._ahead[:size]

    def read(self, size: int) -> bytes:
        """Up to `size` decompressed bytes, more if that many were peeked; empty at the end."""
        piece, self._ahead = self._ahead, b""
        if len(piece) < size:
            with self._explained():
                piece += self._bytes.read(size - len(piece))
        self.bytes_read += len(piece)
        if self._progress is not None:
            self._progress(self._position(), self._size)
        return piece

    def check_rest(self) -> None:
        """Read a gzip stream to its end, where its checksum tells whether it is damaged.

        Raises:
            TraceCutOffError: it is, or it ends in the middle.
        """
        while self._compressed and self.read(_FILE_BUFFER):
            pass

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say of an error while reading which file it is about, and what to do."""
        try:
            yield
        except EOFError:
            raise TraceCutOffError(
                self.path,
                f"the gzip stream ends in the middle (after {self.bytes_read:,} bytes of text)",
                "copy or record the file again",
            ) from None
        except _damaged() as error:
            raise TraceCutOffError(
                self.path,
                f"the gzip stream is damaged after {self.bytes_read:,} bytes of text ({error})",
                "copy or record the file again",
            ) from None
        except UnicodeDecodeError:
            raise TraceFormatError(
                self.path, "is no UTF-8 text", "open the file in binary mode"
            ) from None
        except OSError as error:
            raise TraceNotFoundError(
                self.path, f"cannot be read ({error.strerror or error})", "check the file"
            ) from None

    def _position(self) -> int:
        try:
            return self._file.tell()
        except (OSError, ValueError):
            return self.bytes_read

    def close(self) -> None:
        """Close the file if this object opened it."""
        if self._owned:
            self._file.close()

    def __enter__(self) -> ByteSource:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _damaged() -> tuple[type[Exception], ...]:
    """What a damaged gzip stream raises; `isal` has an error of its own."""
    isal = sys.modules.get("isal.isal_zlib")
    return (gzip.BadGzipFile, zlib.error, *((isal.error,) if isal is not None else ()))


def _open(path: Path) -> tuple[io.BufferedReader, int]:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise TraceNotFoundError(path, "is a folder", "name one trace file in it")
        if not stat.S_ISREG(mode):
            raise TraceNotFoundError(path, "is not a regular file", "copy it to a file first")
        return io.BufferedReader(io.FileIO(path), _FILE_BUFFER), path.stat().st_size
    except FileNotFoundError:
        raise TraceNotFoundError(path, "no such file", "check the path") from None
    except TraceError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TraceNotFoundError(
            path, f"cannot be opened ({reason})", "check the path and its permissions"
        ) from None


def _binary(file: Readable) -> io.BufferedReader:
    if isinstance(file, io.BufferedReader):
        return file
    if isinstance(buffer := getattr(file, "buffer", None), io.BufferedReader):
        return buffer  # of a text file: the reader decodes by itself
    return io.BufferedReader(_Encoded(file))


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
            self._rest = piece.encode("utf-8", "surrogatepass") if isinstance(piece, str) else piece
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _gunzip(file: io.BufferedReader) -> _Bytes:
    """The fastest gzip reader that is installed (`isal` is several times zlib's speed)."""
    try:
        from isal import igzip
    except ImportError:
        return gzip.GzipFile(fileobj=file)
    return cast("_Bytes", igzip.GzipFile(fileobj=file))
