"""Unpacks gzip streams, and reads streams ahead in a thread.

`gzip.GzipFile` loses bytes that it has already unpacked when a stream turns out to be cut off.
`Gunzip` returns these bytes first and raises the error at the next call, so the bytes that are read
do not depend on the sizes that are requested.
Format: RFC 1952.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import io
    from concurrent.futures import Future


#: Text with fewer bytes is read faster without threads.
WORTHWHILE_BYTES = 16 * 10**6
#: Assumed size of the text of a gzipped trace, as a multiple of the size of the file.
_TYPICAL_EXPANSION = 10
_PIECE_BYTES = 1 << 20


def text_bytes(size: int, *, compressed: bool) -> int:
    """Return the approximate number of bytes of text in a file of `size` bytes."""
    if compressed:
        return size * _TYPICAL_EXPANSION
    return size


class ReadAhead:
    """A stream whose next piece is always read ahead by a thread.

    Nobody else may read the stream until `close` was called.
    """

    def __init__(self, stream: Gunzip | io.BytesIO) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._read = stream.read
        self._thread = ThreadPoolExecutor(1, "tracelens-ext")
        first_piece = self._thread.submit(self._read, _PIECE_BYTES)
        self._next: Future[bytes] = first_piece
        self._piece = b""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; none at the end. Errors of the stream are raised here."""
        if not self._piece:
            self._piece = self._next.result()
            if self._piece:
                self._next = self._thread.submit(self._read, _PIECE_BYTES)
        data = self._piece[:size]
        self._piece = self._piece[size:]
        return data

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()


GZIP = b"\x1f\x8b"
#: Errors that the standard library raises for a damaged stream.
DAMAGE: tuple[type[Exception], ...] = (gzip.BadGzipFile, zlib.error)
_INPUT_BYTES = 1 << 17
#: Bytes that are unpacked at once, whatever size is requested. Thus the bytes that are returned
#: before damage are always the same.
_UNPACKED_BYTES = 1 << 18
_GZIP_BITS = 16 + zlib.MAX_WBITS


class Gunzip:
    """The unpacked bytes of a gzip stream.

    Args:
        file: the gzipped file.
        thorough: True to return all bytes up to the very byte that is damaged, which is slower.

    Attributes:
        errors: the errors that `read` raises for a damaged stream. For a stream that is cut off, it
            raises EOFError.
    """

    def __init__(self, file: io.BufferedReader, *, thorough: bool = False) -> None:
        self._file = file
        self._thorough = thorough
        self._zlib: Any = zlib
        if not thorough:
            # This library is twice as fast as zlib.
            with contextlib.suppress(ImportError):
                self._zlib = importlib.import_module("isal.isal_zlib")
        self.errors = tuple(set(DAMAGE) | {self._zlib.error})
        self._member: Any = None
        self._input = b""
        self._unread = b""
        self._error: Exception | None = None

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; fewer only at the end or before damage."""
        pieces = [self._unread]
        total = len(self._unread)
        while total < size and self._error is None:
            try:
                piece = self._next_piece()
            except (EOFError,) + self.errors as error:
                self._error = error
                break
            if not piece:
                break
            pieces.append(piece)
            total += len(piece)
        if not total and self._error is not None:
            raise self._error
        data = b"".join(pieces)
        self._unread = data[size:]
        return data[:size]

    def _next_piece(self) -> bytes:
        """Return the next unpacked bytes; none at the end.

        A gzip stream consists of members, each of which is compressed by itself.
        """
        while self._member is not None or self._begin_member():
            at_end = not self._input and not self._read_input()
            state_before = self._member.copy() if self._thorough else None
            try:
                piece: bytes = self._member.decompress(self._input, _UNPACKED_BYTES)
            except self._zlib.error as error:
                if state_before is None:
                    raise
                piece = _bytes_before_damage(state_before, self._input)
                if not piece:
                    raise
                self._error = error
            self._input = self._member.unconsumed_tail
            if self._member.eof:
                self._input = self._member.unused_data
                self._member = None
            if piece:
                return piece
            if at_end and self._member is not None:
                raise EOFError
        return b""

    def _begin_member(self) -> bool:
        """Begin the next member, and return True; return False at the end of the file.

        Zeros between members are padding.
        """
        self._input = self._input.lstrip(b"\0")
        while len(self._input) < len(GZIP) and self._read_input():
            self._input = self._input.lstrip(b"\0")
        if not self._input:
            return False
        if not self._input.startswith(GZIP[: len(self._input)]):
            raise gzip.BadGzipFile(f"not a gzipped file ({self._input[:2]!r})")
        self._member = self._zlib.decompressobj(wbits=_GZIP_BITS)
        return True

    def _read_input(self) -> bool:
        """Read more of the gzipped file; return False at its end."""
        more = self._file.read(_INPUT_BYTES)
        self._input += more
        return bool(more)


def _bytes_before_damage(member: Any, data: bytes) -> bytes:  # noqa: ANN401  # of a private class
    """Return the bytes that a member's data unpacks to before the damage.

    The data is passed on byte by byte, so that the error comes only after the last good byte.
    """
    unpacked = bytearray()
    with contextlib.suppress(zlib.error):
        for position in range(len(data)):
            unpacked += member.decompress(data[position : position + 1])
    return bytes(unpacked)
