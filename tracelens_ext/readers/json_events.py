"""Chrome trace-event JSON, a slice of the file at a time.

Reads ``{"traceEvents": [...], ...}``, with keys before and after the array, or a bare array.
The array is cut into slices of about a megabyte (larger ones leave the processor's cache)
where an event starts, and each slice goes to a typed decoder. A cut is a place that matches
``}, {"key"``; inside a JSON string that cannot match, as a quote there is escaped, and a match
inside a nested array leaves a slice with unbalanced brackets, which no decoder accepts. So a
slice that can be decoded was cut at the right place. Any other is halved, and the rest of it is
decoded event by event: one odd event costs one event.

Format: the "Trace Event Format" document of the Chromium project.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Generator, Iterator, Sized
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, NamedTuple, NoReturn, Protocol, TypeVar

import msgspec

from tracelens_ext.errors import TraceCutOffError, TraceError, TraceFormatError
from tracelens_ext.readers import lenient_json as lenient
from tracelens_ext.readers.source import AGAIN, SALVAGE, ByteSource

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

B = TypeVar("B", bound=Sized, covariant=True)


class EventDecoder(Protocol[B]):
    """Turns JSON text into batches of events, of which the length is how many events there are."""

    def decode(self, text: bytes) -> B:
        """Decode an array of events; raises one of `REFUSED` if one is unusual. In any thread."""

    def repair(self, events: list[object]) -> B:
        """Make the best of events of which some are unusual; what has to be dropped is counted."""


#: What decoders raise of text that is not quite right.
REFUSED = (msgspec.DecodeError, UnicodeError, RecursionError)
SLICE_BYTES = 1 << 20
_MEMBER_BYTES = 1 << 13  # read at a time outside the array
_SMALL = 1 << 14  # below this a refused slice is walked rather than halved
_MOST_LOOKED_AT = 1 << 16
_WINDOW = 1 << 13  # how far back from the end of a slice a cut is looked for first
_VALUE_WINDOW = 1 << 8  # how much text is tried first for a value outside of the array
#: No profiler writes so much text in one event, or beside the events.
_MOST_EVENT_BYTES = 1 << 26
_MOST_EVENT = "64 MB of text"
_EVENTS_AT_ONCE = 4096  # when they are walked
_SPACE = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GAP_BYTES = b", \t\r\n"
_FIRST_KEY = re.compile(rb'\s*\{\s*"([A-Za-z_]+)"')
ANY_CUT = re.compile(rb'\}\s*,\s*\{\s*"[A-Za-z_]')
#: With more refused slices than this the file is odd, and going ahead no longer pays.
_MOST_REFUSALS = 16
_MOST_AHEAD = 6  # slices that are cut before their turn
_REMEDY_DAMAGED = "record the trace again or repair the file"


class _Progress(NamedTuple):
    """How far a part of the array was read."""

    used: int  #: bytes that events took
    ended: bool  #: True if the array ended after them


class _Begun(NamedTuple, Generic[B]):
    """A slice that a thread decodes."""

    rest: bytes  #: what was left before it
    piece: bytes  #: the slice
    decoded: Future[B]


class EventStream(Generic[B]):
    """The events of a document in batches of about a slice each, which `threads` decode ahead.

    Attributes: `members`, the other top-level ones; `found_events`, whether there was an array of
    events; `damage`, why not all could be read, if it is to be salvaged and events come before it.

    Raises TraceCutOffError where the document ends in the middle, TraceFormatError where it is not
    JSON, or nested too deeply.
    """

    def __init__(
        self,
        source: ByteSource,
        decoder: EventDecoder[B],
        slice_bytes: int | None = None,
        threads: ThreadPoolExecutor | None = None,
    ) -> None:
        self._source = source
        self._decoder = decoder
        self._slice_bytes = self._size = slice_bytes or SLICE_BYTES
        self._threads = threads
        self._refusals = 0
        self._broken: TraceFormatError | None = None
        self.damage: TraceFormatError | None = None
        self._rest = b""  # read, but not used yet
        self._at_end = False
        self._cut = ANY_CUT
        self._count = 0
        self.members: dict[str, object] = {}
        self.found_events = False

    def __iter__(self) -> Iterator[B]:
        allow_truncated = self._source.reading.allow_truncated
        try:
            for batch in self._document():
                if len(batch):
                    self._count += len(batch)
                    yield batch
        except TraceFormatError as error:
            if not allow_truncated and self._holds_events():
                remedy = f"{error.remedy}, or {SALVAGE}"
                raise type(error)(error.path, error.problem, remedy) from None
            if not allow_truncated or not self.found_events:
                raise
            self.damage = error
        self.damage = self._source.damage or self.damage

    def _holds_events(self) -> bool:
        """Return True if an event was read, or the next bytes hold one."""
        if self.found_events and not self._count:
            batches = self._walk(self._rest[:_MOST_LOOKED_AT], self.place)
            self._count = sum(map(len, batches))
        return self._count > 0

    @property
    def place(self) -> int:
        """The byte of the text before which all was read."""
        return self._source.bytes_read - len(self._rest)

    def _document(self) -> Iterator[B]:
        opening = self._next_byte()
        if opening == b"[":
            self.found_events = True
            yield from self._array()
        elif opening == b"{":
            self._rest = self._rest[1:]
            yield from self._object()
        else:
            self._refuse(
                "is not JSON",
                "give a trace that a profiler wrote as .json or .json.gz",
            )
        if (
            self._next_byte() == opening == b"{"
            and self.members
            and not self.found_events
        ):
            problem = "is JSON lines (one document per line) instead of one document"
            self._refuse(problem, "write the events as one list, separated by commas")
        if self._next_byte():
            self._refuse(
                "has more data after the end of the JSON document", _REMEDY_DAMAGED
            )

    # Top level: one byte or one value at a time.

    def _object(self) -> Iterator[B]:
        byte = self._next_byte()
        while byte != b"}":
            if byte == b",":
                self._rest = self._rest[1:]
            else:
                key = self._key()
                yield from self._member(key)
            byte = self._next_byte()
        self._rest = self._rest[1:]

    def _key(self) -> str:
        """Return the key of the next member; it and its colon are consumed."""
        key = self._value()
        colon = self._next_byte()
        if not colon:
            self._cut_off()
        if not isinstance(key, str) or colon != b":":
            self._refuse("is not valid JSON", _REMEDY_DAMAGED)
        self._rest = self._rest[1:]
        return key

    def _member(self, key: str) -> Iterator[B]:
        """Yield the events of a member, none of one that is kept."""
        if key == "traceEvents" and self._next_byte() == b"[":
            self.found_events = True
            yield from self._array()
        else:
            self.members[key] = self._value()

    def _next_byte(self) -> bytes:
        """Return the next byte that is no white space, not consumed; empty at the end."""
        while True:
            self._rest = self._rest.removeprefix(_BYTE_ORDER_MARK).lstrip(_SPACE)
            if not _BYTE_ORDER_MARK.startswith(self._rest):
                return self._rest[:1]
            wanted_bytes = min(_MEMBER_BYTES, self._slice_bytes)
            piece = self._read(wanted_bytes)
            if not piece:
                return self._rest[:1]
            self._rest += piece

    def _value(self) -> object:
        """Return the next value, consumed."""
        window = _VALUE_WINDOW
        while True:
            part = self._rest[:window]
            last = self._at_end and len(part) == len(self._rest)
            text = part.decode("utf-8", "surrogateescape")
            try:
                mended = lenient.mend_text(text)
                value, end = self._next_value(
                    given=text,
                    text=mended,
                    at=0,
                    base=self.place,
                    exact=False,
                    last=last,
                )
            except lenient.IncompleteError:
                if last:
                    self._cut_off()
                if window >= _MOST_EVENT_BYTES:
                    problem = f"contains more than {_MOST_EVENT} outside of its events"
                    self._refuse(problem, _REMEDY_DAMAGED)
                if len(part) == len(self._rest):
                    self._rest += self._read(
                        max(min(_MEMBER_BYTES, self._slice_bytes), len(part))
                    )
                window *= 2
                continue
            self._rest = self._rest[lenient.bytes_before(text, end) :]
            return value

    def _read(self, size: int) -> bytes:
        piece = self._source.read(size)
        self._at_end = not piece
        return piece

    # The array: slices.

    def _array(self) -> Iterator[B]:
        self._rest = self._rest[1:]
        if self._next_byte() == b"]":
            self._rest = self._rest[1:]
            return
        key = _FIRST_KEY.match(self._rest)
        if key is not None:
            # Many files begin with metadata events, whose first key is another one.
            first_keys = b"ph|" + key[1]
            self._cut = re.compile(rb'\}\s*,\s*\{\s*"(?:' + first_keys + rb')"\s*:')
        ended = False
        while not ended:
            if self._threads and self._size == self._slice_bytes:
                yield from self._go_ahead(self._threads)
            ended = yield from self._next_slice()
        if self._broken is not None:
            raise self._broken

    def _next_slice(self) -> Generator[B, None, bool]:
        """Yield the events of the next slice, perhaps none; return True if the array ends there."""
        piece = self._read(self._size)
        cut = self._last_cut(piece, len(piece))
        if cut is None and piece:  # one event is larger than a slice
            if len(self._rest) > _MOST_EVENT_BYTES:
                problem = f"contains more than {_MOST_EVENT} in which no event begins"
                self._refuse(problem, _REMEDY_DAMAGED)
            self._rest += piece
            self._size *= 2
            return False
        if not piece:  # the end of the file: all but the last event can be cut off
            piece = self._rest
            self._rest = b""
            cut = self._last_cut(piece, len(piece))
        base = self._source.bytes_read - len(piece) - len(self._rest)
        text, after = self._bracketed(piece, cut)
        used, ended = yield from self._slice(text, base)
        self._rest = (text[used + 1 : -1] + after).lstrip(_GAP_BYTES)
        if not used and not ended and after:  # the cut was inside an event
            used, ended = yield from self._walk(self._rest, self.place)
            self._rest = self._rest[used:]
        if not used and not ended and self._at_end:
            self._cut_off()
        self._size = self._slice_bytes if used else self._size * 2
        return ended

    def _bracketed(self, piece: bytes, cut: int | None) -> tuple[bytes, bytes]:
        """Return what is left and a piece up to its cut, as an array; and what comes behind."""
        before_cut = memoryview(piece)[:cut]
        text = b"".join((b"[", self._rest, before_cut, b"]"))
        behind = b""
        if cut is not None:
            behind = piece[cut:]
        return text, behind

    def _go_ahead(self, threads: ThreadPoolExecutor) -> Iterator[B]:
        """Have threads decode slices while this one cuts others.

        When one is refused, what was read since is taken back, for `_next_slice` to read it again.
        """
        begun: deque[_Begun[B]] = deque()
        is_more = True
        while True:
            while is_more and len(begun) < _MOST_AHEAD:
                is_more = self._begin_slice(threads, begun)
            if not begun:
                return
            if isinstance(begun[0].decoded.exception(), REFUSED):
                break
            yield begun.popleft().decoded.result()
        self._rest = begun[0].rest
        self._take_back(b"".join(slice_.piece for slice_ in begun))
        self._refusals += 1
        if self._refusals > _MOST_REFUSALS:
            self._threads = None

    def _begin_slice(
        self, threads: ThreadPoolExecutor, begun: deque[_Begun[B]]
    ) -> bool:
        """Have a thread decode the next slice; False where none can be cut."""
        text_before = self._rest
        try:
            piece = self._read(self._slice_bytes)
        except TraceError:  # it is raised again when this slice's turn comes
            return False
        cut = self._last_cut(piece, len(piece))
        if cut is None:
            self._take_back(piece)
            return False
        text, after = self._bracketed(piece, cut)
        begun.append(
            _Begun(text_before, piece, threads.submit(self._decoder.decode, text))
        )
        self._rest = after.lstrip(_GAP_BYTES)
        return True

    def _take_back(self, piece: bytes) -> None:
        self._source.unread(piece)
        self._at_end = False

    def _last_cut(self, text: bytes, end: int) -> int | None:
        """Return the place behind the last event before `end` that another one follows."""
        for pattern in (self._cut, ANY_CUT):
            for start in (max(0, end - _WINDOW), 0):
                last = None
                for last in pattern.finditer(text, start, end):  # noqa: B007
                    pass
                if last is not None:
                    return last.start() + 1
        return None

    def _slice(self, text: bytes, base: int) -> Generator[B, None, _Progress]:
        """Decode events, from the byte `base` of the document on, as far as they are right.

        Returns how many bytes in the brackets they took, and whether the array ended after them.
        """
        for mend in (bytes, lenient.mend_bytes):
            with suppress(*REFUSED):
                yield self._decoder.decode(mend(text))
                return _Progress(len(text) - 2, ended=False)
        body = text[1:-1]
        middle = None
        if len(body) > _SMALL:
            middle = self._last_cut(body, len(body) // 2)
        used = 0
        ended = False
        if middle is not None:
            used, ended = yield from self._slice(b"[" + body[:middle] + b"]", base)
        if not used:  # too short to halve, or the half was no whole number of events
            return (yield from self._walk(body, base))
        if not ended:
            used = len(body) - len(body[used:].lstrip(_GAP_BYTES))
            further, ended = yield from self._slice(
                b"[" + body[used:] + b"]", base + used
            )
            used += further
        return _Progress(used, ended)

    def _walk(self, body: bytes, base: int) -> Generator[B, None, _Progress]:
        """Decode events one at a time, leniently, up to what is no JSON; as `_slice`."""
        given = body.decode("utf-8", "surrogateescape")
        text = lenient.mend_text(given)
        place = 0
        ended = False
        is_incomplete = False
        while not ended and not is_incomplete:
            values: list[object] = []
            start = lenient.after_gap(text, place)
            end = start
            while len(values) < _EVENTS_AT_ONCE:
                begin = lenient.after_gap(text, place)
                ended = text.startswith("]", begin)
                if ended:
                    place = begin + 1
                    break
                try:
                    value, place = self._next_value(
                        given=given,
                        text=text,
                        at=place,
                        base=base,
                        exact=True,
                        last=self._at_end,
                    )
                except lenient.IncompleteError:
                    is_incomplete = True
                    break
                except TraceFormatError as error:
                    self._broken = error
                    ended = True
                    break
                values.append(value)
                end = place
            yield self._decoded_or_repaired(text[start:end], values)
        return _Progress(lenient.bytes_before(given, place), ended)

    def _decoded_or_repaired(self, text: str, values: list[object]) -> B:
        """Return a batch of events: decoded quickly, if none is odd, else of their values."""
        try:
            document = f"[{text}]".encode()  # fails on lone surrogates
            return self._decoder.decode(document)
        except REFUSED:
            return self._decoder.repair(values)

    def _next_value(
        self, given: str, text: str, at: int, base: int, *, exact: bool, last: bool
    ) -> tuple[object, int]:
        """Return the next value of mended text, and its end; refuse what is no JSON."""
        try:
            return lenient.value_at(text, at, exact=exact, last=last)
        except lenient.WrongError as error:
            place = f" at byte {base + lenient.bytes_before(given, error.position):,}"
            self._refuse(error.problem.replace("{place}", place), _REMEDY_DAMAGED)

    def _refuse(self, problem: str, remedy: str) -> NoReturn:
        if self._source.compressed and not self._source.reading.allow_truncated:
            # text out of a damaged gzip stream is no fault of the JSON's
            self._source.drain()
        raise TraceFormatError(self._source.path, problem, remedy) from None

    def _cut_off(self) -> NoReturn:
        problem = f"the JSON ends prematurely, after {self._count:,} events"
        raise TraceCutOffError(self._source.path, problem, AGAIN) from None
