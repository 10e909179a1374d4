"""Chrome trace-event JSON, a slice of the file at a time.

Reads ``{"traceEvents": [...], ...}``, with keys before and after the array, or a bare array.
The array is cut into slices of about half a megabyte (larger ones leave the processor's cache)
where an event starts, and each slice goes to a typed decoder. A cut is a place that matches
``}, {"key"``; inside a JSON string that cannot match, as a quote there is escaped, and a match
inside a nested array leaves a slice with unbalanced brackets, which no decoder accepts. So a
slice that decodes was cut rightly. One that does not is halved, and what remains is walked
event by event: one odd event costs one event.

Format: the "Trace Event Format" document of the Chromium project.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Generic, NoReturn, Protocol, TypeVar

import msgspec

from tracelens_ext.errors import TraceCutOffError, TraceFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens_ext.readers.source import ByteSource

E = TypeVar("E")

SLICE_BYTES = 1 << 19
_MEMBER_BYTES = 1 << 16  # read at a time outside the array
_SMALL = 1 << 14  # below this a refused slice is walked rather than halved
_WINDOW = 1 << 13  # how far back from the end of a slice a cut is looked for first
_SPACE = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GAP_BYTES = b", \t\r\n"
#: An error of the standard decoder this near the end of the text may be due to the end itself.
_END_MARGIN = 16
_FIRST_KEY = re.compile(rb'\s*\{\s*"([A-Za-z_]+)"')
_ANY_CUT = re.compile(rb'\}\s*,\s*\{\s*"[A-Za-z_]')
#: What a document that is cut off may end with, where the decoder stumbles over it.
_UNFINISHED = re.compile(
    r"(?:t|tr|tru|f|fa|fal|fals|n|nu|nul|N|Na|-?I[nfity]*|-|\.|\.?[eE][+-]?|,)?\s*\Z"
)
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,4})?\Z")
_NUMBER = "0123456789.eE+-"
_GAP = re.compile(r"[\s,]*")
_REMEDY_DAMAGED = "record the trace again or repair the file"


class EventDecoder(Protocol[E]):
    """Turns JSON text into events."""

    def decode(self, text: bytes) -> list[E]:
        """Decode an array of events; raises `msgspec.DecodeError` when one is unusual."""

    def repair(self, event: object) -> E | None:
        """Make the best of one unusual event; None when it had to be dropped (and counted)."""


class Number(str):
    """A number's text, kept exact, in a value that was decoded leniently."""

    __slots__ = ()


class _IncompleteError(Exception):
    """The text ends before the value does."""


class EventStream(Generic[E]):
    """The events of a document as lists of about a slice each.

    Args:
        source: the bytes.
        decoder: what makes events of them.
        slice_bytes: how much text to decode at a time.

    Attributes:
        members: the document's other top-level members, complete once the events are read.
        found_events: whether there was an array of events.

    Raises:
        TraceCutOffError: the document ends in the middle.
        TraceFormatError: it is not JSON, or nested too deeply.
    """

    def __init__(
        self, source: ByteSource, decoder: EventDecoder[E], slice_bytes: int = SLICE_BYTES
    ) -> None:
        self._source = source
        self._decoder = decoder
        self._slice_bytes = slice_bytes
        self._exact_json = json.JSONDecoder(strict=False, parse_float=Number, parse_int=Number)
        self._plain_json = json.JSONDecoder(strict=False)
        self._rest = b""  # read, but not used yet
        self._at_end = False
        self._cut = _ANY_CUT
        self._count = 0
        self.members: dict[str, object] = {}
        self.found_events = False

    def __iter__(self) -> Iterator[list[E]]:
        opening = self._next_byte()
        if opening == b"[":
            self.found_events = True
            yield from self._array()
        elif opening == b"{":
            self._rest = self._rest[1:]
            yield from self._object()
        else:
            self._refuse("is not JSON", "give a trace that a profiler wrote as .json or .json.gz")
        if self._next_byte():
            self._refuse("has more data after the end of the JSON document", _REMEDY_DAMAGED)

    # Top level: one byte or one value at a time.

    def _object(self) -> Iterator[list[E]]:
        while (byte := self._next_byte()) != b"}":
            if byte == b",":
                self._rest = self._rest[1:]
                continue
            key = self._value()
            colon = self._next_byte()
            if not colon:
                self._cut_off()
            if not isinstance(key, str) or colon != b":":
                self._refuse("is not valid JSON", _REMEDY_DAMAGED)
            self._rest = self._rest[1:]
            if key == "traceEvents" and self._next_byte() == b"[":
                self.found_events = True
                yield from self._array()
            else:
                self.members[key] = self._value()
        self._rest = self._rest[1:]

    def _next_byte(self) -> bytes:
        """The next byte that is no white space, not consumed; empty at the end of the file."""
        while True:
            self._rest = self._rest.removeprefix(_BYTE_ORDER_MARK).lstrip(_SPACE)
            whole = not _BYTE_ORDER_MARK.startswith(self._rest)
            if whole or not self._fill(min(_MEMBER_BYTES, self._slice_bytes)):
                return self._rest[:1]

    def _value(self) -> object:
        """The next value, consumed."""
        window = _WINDOW
        while True:
            part = self._rest[:window]
            base = self._source.bytes_read - len(self._rest)
            last = self._at_end and len(part) == len(self._rest)
            text = part.decode("utf-8", "surrogateescape")
            try:
                value, end = self._decode_one(self._plain_json, text, base, last=last)
            except _IncompleteError:
                if last:
                    self._cut_off()
                if len(part) == len(self._rest):
                    self._fill(max(min(_MEMBER_BYTES, self._slice_bytes), len(part)))
                window *= 2
                continue
            used = len(text[:end].encode("utf-8", "surrogateescape"))
            self._rest = self._rest[used:]
            return value

    def _fill(self, size: int) -> bool:
        """Read more; False at the end of the file."""
        piece = self._read(size)
        self._rest += piece
        return bool(piece)

    def _read(self, size: int) -> bytes:
        piece = self._source.read(size)
        self._at_end = not piece
        return piece

    # The array: slices.

    def _array(self) -> Iterator[list[E]]:
        self._rest = self._rest[1:]
        if self._next_byte() == b"]":
            self._rest = self._rest[1:]
            return
        if key := _FIRST_KEY.match(self._rest):
            # Metadata events come first in many files, and begin otherwise than most events do.
            self._cut = re.compile(rb'\}\s*,\s*\{\s*"(?:ph|' + key[1] + rb')"\s*:')
        size, ended = self._slice_bytes, False
        while not ended:
            piece = self._read(size)
            cut = self._last_cut(piece, len(piece))
            if cut is None and piece:  # one event is larger than a slice
                self._rest += piece
                size *= 2
                continue
            if not piece:  # the end of the file: all but the last event can be cut off
                piece, self._rest = self._rest, b""
                cut = self._last_cut(piece, len(piece))
            base = self._source.bytes_read - len(piece) - len(self._rest)
            text = b"".join((b"[", self._rest, memoryview(piece)[:cut], b"]"))
            after = piece[cut:] if cut is not None else b""
            events, used, ended = self._slice(text, base)
            self._rest = (text[used + 1 : -1] + after).lstrip(_GAP_BYTES)
            if not used and not ended and after:  # the cut was inside an event
                events, used, ended = self._walk(self._rest, base)
                self._rest = self._rest[used:]
            if not used and not ended and self._at_end:
                self._cut_off()
            size = self._slice_bytes if used else size * 2
            self._count += len(events)
            if events:
                yield events

    def _last_cut(self, text: bytes, end: int) -> int | None:
        """Just after the last event before `end` that is followed by another one's start."""
        for pattern in (self._cut, _ANY_CUT):
            for start in (max(0, end - _WINDOW), 0):
                last = None
                for last in pattern.finditer(text, start, end):  # noqa: B007
                    pass
                if last is not None:
                    return last.start() + 1
        return None

    def _slice(self, text: bytes, base: int) -> tuple[list[E], int, bool]:
        """Decode events; all of `text` when it is right, else those it begins with.

        Args:
            text: events between square brackets.
            base: the byte of the document at which the first event begins.

        Returns:
            The events, how many bytes within the brackets they took, and whether the array ended
            after them.
        """
        try:
            return self._decoder.decode(text), len(text) - 2, False
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        body = text[1:-1]
        middle = self._last_cut(body, len(body) // 2) if len(body) > _SMALL else None
        used = 0
        if middle is not None:
            events, used, ended = self._slice(b"[" + body[:middle] + b"]", base)
        if not used:  # too short to halve, or the half was no whole number of events
            return self._walk(body, base)
        if not ended:
            gap = len(body) - len(body[used:].lstrip(_GAP_BYTES)) - used
            used += gap
            further, used_further, ended = self._slice(b"[" + body[used:] + b"]", base + used)
            events, used = events + further, used + used_further
        return events, used, ended

    def _walk(self, body: bytes, base: int) -> tuple[list[E], int, bool]:
        """As `_slice`, one event at a time, with a lenient decoder."""
        text = body.decode("utf-8", "surrogateescape")
        events: list[E] = []
        position, ended = 0, False
        while not ended:
            start = _end_of_gap(text, position)
            if text.startswith("]", start):
                position, ended = start + 1, True
                continue
            try:
                value, position = self._decode_one(
                    self._exact_json, text, base, start, last=self._at_end
                )
            except _IncompleteError:
                break
            event = self._decoder.repair(value)
            if event is not None:
                events.append(event)
        return events, len(text[:position].encode("utf-8", "surrogateescape")), ended

    def _decode_one(
        self, decoder: json.JSONDecoder, text: str, base: int, start: int = 0, *, last: bool
    ) -> tuple[object, int]:
        """Decode one value.

        Args:
            decoder: strict or not.
            text: what is there.
            base: the byte of the document at which `text` begins.
            start: where in `text` the value begins.
            last: whether nothing comes after `text`.

        Returns:
            The value, and where in `text` it ends.
        """
        try:
            value, end = decoder.raw_decode(text, _end_of_gap(text, start))
        except json.JSONDecodeError as error:
            if _may_go_on(text, error, last=last):
                raise _IncompleteError from None
            byte = base + len(text[: error.pos].encode("utf-8", "surrogateescape"))
            self._refuse(f"is not valid JSON at byte {byte:,} ({error.msg})", _REMEDY_DAMAGED)
        except RecursionError:
            self._refuse("is nested too deeply to be a trace", _REMEDY_DAMAGED)
        except ValueError:  # Python refuses integers of thousands of digits
            self._refuse("holds a number that is too long", _REMEDY_DAMAGED)
        in_number = text[end - 1] in _NUMBER and not text[end:].strip(_NUMBER)
        if in_number and (end < len(text) or not last):
            raise _IncompleteError  # its other digits follow, or are cut off
        return value, end

    def _refuse(self, problem: str, remedy: str) -> NoReturn:
        self._source.check_rest()  # text out of a damaged gzip stream is no fault of the JSON's
        raise TraceFormatError(self._source.path, problem, remedy) from None

    def _cut_off(self) -> NoReturn:
        raise TraceCutOffError(
            self._source.path,
            f"the JSON ends in the middle, after {self._count:,} events",
            "copy or record the file again",
        ) from None


def _may_go_on(text: str, error: json.JSONDecodeError, *, last: bool) -> bool:
    """Whether more text might mend an error: it is at the end, or as good as there."""
    if error.msg.startswith("Unterminated string"):
        return True
    if last:
        return bool(_UNFINISHED.match(text, error.pos) or _ESCAPE.search(text))
    return error.pos >= len(text) - _END_MARGIN


def _end_of_gap(text: str, position: int) -> int:
    """Past the white space and commas at `position`."""
    gap = _GAP.match(text, position)
    return gap.end() if gap else position
