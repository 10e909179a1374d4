"""gzip streams, several members one after the other, with every byte before damage.

`gzip.GzipFile` throws away what it had unpacked when it comes to the end of a stream that is cut
off. Here those bytes are given first, and the error is raised by the next call, so that what is
read does not depend on the sizes in which it is asked for. Format: RFC 1952.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import io
    from collections.abc import Callable

MAGIC = b"\x1f\x8b"
#: What the standard library raises of a damaged stream.
ERRORS: tuple[type[Exception], ...] = (gzip.BadGzipFile, zlib.error)
_INPUT_BYTES = 1 << 17
_GZIP_BITS = 16 + zlib.MAX_WBITS


class _Member(Protocol):
    """What unpacks one member: all of the input that it is given, `limit` bytes at a time."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def needs_input(self) -> bool: ...
    def decompress(self, data: bytes, limit: int, /) -> bytes: ...


class Gunzip:
    """The text of a gzip stream.

    Args:
        file: the stream.
        thorough: whether to unpack up to the very byte that is damaged, which is slower.

    Attributes:
        errors: what `read` raises of a damaged stream, besides `EOFError` of one that is cut off.
    """

    def __init__(self, file: io.BufferedReader, *, thorough: bool = False) -> None:
        self._file = file
        self._input = b""
        self._member: _Member | None = None
        self._error: Exception | None = None
        self._new, errors = _unpacker(thorough=thorough)
        self.errors = (*ERRORS, *errors)
        self._ends: tuple[type[Exception], ...] = (EOFError, *self.errors)

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes, fewer only at the end or before damage.

        Raises:
            EOFError: the stream is cut off here.
            Exception: one of `errors`: it is damaged here.
        """
        pieces: list[bytes] = []
        wanted = size
        while wanted > 0 and self._error is None:
            try:
                piece = self._some(wanted)
            except self._ends as error:
                self._error = error
                break
            if not piece:
                break
            pieces.append(piece)
            wanted -= len(piece)
        if not pieces and self._error is not None:
            raise self._error
        return b"".join(pieces)

    def _some(self, limit: int) -> bytes:
        """Between 1 and `limit` bytes; none at the end."""
        while True:
            if self._member is None:
                if not self._at_member():
                    return b""
                self._member = self._new()
            member, at_end = self._member, False
            if member.needs_input and not self._input:
                self._input = self._file.read(_INPUT_BYTES)
                at_end = not self._input
            given, self._input = self._input, b""
            text = member.decompress(given, limit)
            if member.eof:
                self._input, self._member = member.unused_data, None
            if text:
                return text
            if at_end and self._member is not None:
                raise EOFError

    def _at_member(self) -> bool:
        """Whether another member begins here; zeros between and after members are padding."""
        self._input = self._input.lstrip(b"\0")
        while len(self._input) < len(MAGIC) and (more := self._file.read(_INPUT_BYTES)):
            self._input = (self._input + more).lstrip(b"\0")
        if not self._input:
            return False
        if not self._input.startswith(MAGIC[: len(self._input)]):
            raise gzip.BadGzipFile(f"not a gzipped file ({self._input[:2]!r})")
        return True


class _ZlibMember:
    """zlib's own object, which hands back input that it had no room for.

    Args:
        thorough: whether input that turns out to be damaged is tried again byte by byte, to have
            what comes before the damage.
    """

    def __init__(self, *, thorough: bool) -> None:
        self._stream = zlib.decompressobj(wbits=_GZIP_BITS)
        self._input = b""
        self._thorough = thorough
        self._error: zlib.error | None = None

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._input and self._error is None

    def decompress(self, data: bytes, limit: int, /) -> bytes:
        if self._error is not None:
            raise self._error
        given = self._input + data
        before = self._stream.copy() if self._thorough else None
        try:
            text = self._stream.decompress(given, limit)
        except zlib.error as error:
            text = _before_damage(before, given) if before is not None else b""
            if not text:
                raise
            self._error = error
            return text
        self._input = self._stream.unconsumed_tail
        return text


def _before_damage(stream: zlib._Decompress, data: bytes) -> bytes:
    text = bytearray()
    with contextlib.suppress(zlib.error):
        for place in range(len(data)):
            text += stream.decompress(data[place : place + 1])
    return bytes(text)


def _unpacker(*, thorough: bool) -> tuple[Callable[[], _Member], tuple[type[Exception], ...]]:
    """What makes an object for a member, and its errors: `isal`'s if it is installed (faster)."""
    if not thorough:
        with contextlib.suppress(ImportError):
            isal: Any = importlib.import_module("isal.igzip_lib")
            make = partial(isal.IgzipDecompressor, flag=isal.DECOMP_GZIP)
            return make, (isal.error,)
    return partial(_ZlibMember, thorough=thorough), ()
