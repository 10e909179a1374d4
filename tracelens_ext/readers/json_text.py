"""Reads a JSON document value by value from a file, in bounded memory.

The large arrays within a document are not read here. `json_events.py` reads them in slices.
"""

from __future__ import annotations

from typing import Final, NoReturn

from tracelens_ext.errors import TraceCutOffError, TraceFormatError
from tracelens_ext.readers import lenient_json as lenient
from tracelens_ext.readers.messages import REMEDY_COPY_AGAIN
from tracelens_ext.readers.source import ByteSource

#: A value with more bytes is damaged.
MOST_VALUE_BYTES: Final = 1 << 26
MOST_VALUE_TEXT: Final = "64 MB of text"
REMEDY_DAMAGED: Final = "record the trace again or repair the file"
#: Bytes that are read at once.
_BYTES_AT_ONCE: Final = 1 << 13
#: A value is first looked for in this many bytes, then in twice as many, etc.
_VALUE_WINDOW: Final = 1 << 8
_SPACE: Final = b" \t\r\n"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class JsonText:
    """The text of a JSON document, which is read from a file as it is needed.

    Args:
        source: the file.
        most_bytes_at_once: a limit for the bytes that are read at once for a value.

    Attributes:
        rest: the bytes that were read, but not decoded yet.
        at_end: True if the end of the file was reached.
        event_count: the number of events that were decoded so far, for error messages.
    """

    def __init__(self, source: ByteSource, most_bytes_at_once: int) -> None:
        self._source = source
        self._bytes_at_once = min(_BYTES_AT_ONCE, most_bytes_at_once)
        self.rest = b""
        self.at_end = False
        self.event_count = 0

    @property
    def place(self) -> int:
        """The byte of the document up to which everything was decoded."""
        return self._source.bytes_read - len(self.rest)

    def read(self, size: int) -> bytes:
        """Read and return the next bytes of the file, which do not become part of `rest`."""
        piece = self._source.read(size)
        self.at_end = not piece
        return piece

    def put_back(self, piece: bytes) -> None:
        """Put back the bytes that were read last, so that they are read again."""
        self._source.unread(piece)
        self.at_end = False

    def skip_byte(self) -> None:
        """Skip the byte that `next_byte` returned."""
        self.rest = self.rest[1:]

    def next_byte(self) -> bytes:
        """Skip white space, and return the next byte without skipping it; empty at the end."""
        while True:
            self.rest = self.rest.removeprefix(_BYTE_ORDER_MARK).lstrip(_SPACE)
            # The rest may be empty, or the beginning of a byte order mark.
            if not _BYTE_ORDER_MARK.startswith(self.rest):
                return self.rest[:1]
            piece = self.read(self._bytes_at_once)
            if not piece:
                return self.rest[:1]
            self.rest += piece

    def read_key(self) -> str:
        """Read the next key of an object and its colon, and return the key."""
        key = self.read_value()
        colon = self.next_byte()
        if not colon:
            self.refuse_as_cut_off()
        if not isinstance(key, str) or colon != b":":
            self.refuse("is not valid JSON", REMEDY_DAMAGED)
        self.skip_byte()
        return key

    def read_value(self) -> object:
        """Read the next value, and return it."""
        window = _VALUE_WINDOW
        while True:
            beginning = self.rest[:window]
            is_all_of_rest = len(beginning) == len(self.rest)
            is_last = self.at_end and is_all_of_rest
            text = beginning.decode("utf-8", "surrogateescape")
            try:
                value, end = self.decode_value(
                    original=text,
                    mended=lenient.mend_text(text),
                    position=0,
                    place_of_text=self.place,
                    exact=False,
                    is_last=is_last,
                )
            except lenient.IncompleteError:
                if is_last:
                    self.refuse_as_cut_off()
            else:
                self.rest = self.rest[lenient.bytes_before(text, end) :]
                return value
            if window >= MOST_VALUE_BYTES:
                problem = f"contains more than {MOST_VALUE_TEXT} outside of its events"
                self.refuse(problem, REMEDY_DAMAGED)
            if is_all_of_rest:
                self.rest += self.read(max(self._bytes_at_once, len(beginning)))
            window *= 2

    def decode_value(
        self,
        original: str,
        mended: str,
        position: int,
        place_of_text: int,
        *,
        exact: bool,
        is_last: bool,
    ) -> lenient.DecodedValue:
        """Decode the value at a position of mended text.

        Args:
            original: the text before it was mended.
            mended: the mended text.
            position: the position in the mended text.
            place_of_text: the byte of the document where the text begins.
            exact: whether numbers keep all their digits.
            is_last: whether the text reaches to the end of the file.

        Raises:
            IncompleteError: more text may complete the value.
            TraceFormatError: the text is not JSON.
        """
        try:
            return lenient.value_at(mended, position, exact=exact, last=is_last)
        except lenient.WrongError as error:
            offset = place_of_text + lenient.bytes_before(original, error.position)
            problem = error.problem.replace("{place}", f" at byte {offset:,}")
            self.refuse(problem, REMEDY_DAMAGED)

    def refuse(self, problem: str, remedy: str) -> NoReturn:
        """Raise TraceFormatError for the document."""
        if self._source.compressed and not self._source.reading.allow_truncated:
            # If the gzip stream is damaged, this raises an error that says so instead.
            self._source.drain()
        raise TraceFormatError(self._source.path, problem, remedy) from None

    def refuse_as_cut_off(self) -> NoReturn:
        """Raise TraceCutOffError for the document."""
        problem = f"the JSON ends prematurely, after {self.event_count:,} events"
        raise TraceCutOffError(self._source.path, problem, REMEDY_COPY_AGAIN) from None
