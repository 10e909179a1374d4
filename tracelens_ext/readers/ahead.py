"""Streams: gzip unpacked, and threads that read ahead.

`gzip.GzipFile` loses what it has unpacked when it meets the end of a stream that is cut off. Here
those bytes are returned first, and the next call raises the error, so that what is read does not
depend on how much is asked for at once. Format: RFC 1952.
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


#: Bytes of text from which on threads are worth their start.
WORTHWHILE_BYTES = 16 * 10**6
#: How many times larger than the file the text of a gzipped trace is taken to be.
_TIMES_UNPACKED = 10
_PIECE_BYTES = 1 << 20


def text_bytes(size: int, *, compressed: bool) -> int:
    """Return about how many bytes of text a file of `size` bytes holds."""
    if compressed:
        return size * _TIMES_UNPACKED
    return size


class ReadAhead:
    """A stream of which a thread, and nobody else, reads the next piece, until `close`."""

    def __init__(self, stream: Gunzip | io.BytesIO) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._read = stream.read
        self._thread = ThreadPoolExecutor(1, "tracelens-ext")
        first_piece = self._thread.submit(self._read, _PIECE_BYTES)
        self._next: Future[bytes] = first_piece
        self._piece = b""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; none at the end. What the stream raises is raised here."""
        if not self._piece:
            self._piece = self._next.result()
            if self._piece:
                self._next = self._thread.submit(self._read, _PIECE_BYTES)
        given = self._piece[:size]
        self._piece = self._piece[size:]
        return given

    def close(self) -> None:
        """Have the thread end."""
        self._thread.shutdown()


GZIP = b"\x1f\x8b"
#: What the standard library raises if a stream is damaged.
DAMAGE: tuple[type[Exception], ...] = (gzip.BadGzipFile, zlib.error)
_INPUT_BYTES = 1 << 17
#: Unpacked at a time, so that what comes before damage does not depend on how much is asked for.
_UNPACKED_BYTES = 1 << 18
_GZIP_BITS = 16 + zlib.MAX_WBITS


class Gunzip:
    """The text of a gzip stream; `thorough` up to the very byte that is damaged, which is slower.

    `read` raises `errors` if it is damaged, `EOFError` if it is cut off.
    """

    def __init__(self, file: io.BufferedReader, *, thorough: bool = False) -> None:
        self._file = file
        self._thorough = thorough
        self._zlib: Any = zlib
        if not thorough:
            with contextlib.suppress(ImportError):  # unpacks twice as fast as zlib
                self._zlib = importlib.import_module("isal.isal_zlib")
        self.errors = tuple(set(DAMAGE) | {self._zlib.error})
        self._member: Any = None
        self._input = b""
        self._rest = b""
        self._error: Exception | None = None

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; fewer only at the end or before damage."""
        pieces = [self._rest]
        held = len(self._rest)
        while held < size and self._error is None:
            try:
                piece = self._piece()
            except (EOFError,) + self.errors as error:
                self._error = error
                break
            if not piece:
                break
            pieces.append(piece)
            held += len(piece)
        if not held and self._error is not None:
            raise self._error
        data = b"".join(pieces)
        self._rest = data[size:]
        return data[:size]

    def _piece(self) -> bytes:
        """Return the next bytes; none at the end."""
        while self._member is not None or self._begin_member():
            at_end = not self._input and not self._fill()
            before = self._member.copy() if self._thorough else None
            try:
                piece: bytes = self._member.decompress(self._input, _UNPACKED_BYTES)
            except self._zlib.error as error:
                piece = b"" if before is None else _before_damage(before, self._input)
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
        """Return True if another member begins here. Zeros between members are padding."""
        self._input = self._input.lstrip(b"\0")
        while len(self._input) < len(GZIP) and self._fill():
            self._input = self._input.lstrip(b"\0")
        if not self._input:
            return False
        if not self._input.startswith(GZIP[: len(self._input)]):
            raise gzip.BadGzipFile(f"not a gzipped file ({self._input[:2]!r})")
        self._member = self._zlib.decompressobj(wbits=_GZIP_BITS)
        return True

    def _fill(self) -> bool:
        """Read more of the file; False at its end."""
        more = self._file.read(_INPUT_BYTES)
        self._input += more
        return bool(more)


def _before_damage(member: Any, data: bytes) -> bytes:  # noqa: ANN401  # of a private class
    """Return what a member's data gives, fed byte by byte, before it is damaged."""
    text = bytearray()
    with contextlib.suppress(zlib.error):
        for place in range(len(data)):
            text += member.decompress(data[place : place + 1])
    return bytes(text)
