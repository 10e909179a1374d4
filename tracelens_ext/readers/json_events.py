"""Reads the JSON of the Trace Event Format (Chrome traces) in slices, in bounded memory.

The document is `{"traceEvents": [...], ...}`, with members before and after the array of events, or
only the array. The array is cut into slices of about a megabyte (larger slices do not fit in the
processor's cache), and a typed decoder decodes each slice.

A slice is cut between two events, at a match of `}, {"key"`. There is no match inside a string,
where quotes are escaped. A match inside a nested array leaves a slice with unbalanced brackets,
which no decoder accepts. So every slice that can be decoded was cut at the right place. Any other
slice is halved until it is small, and then decoded event by event. Thus an unusual event only makes
the decoding of its neighbors slower.

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
    """Decodes JSON text into batches of events. The length of a batch is its number of events."""

    def decode(self, text: bytes) -> B:
        """Decode an array of events; may be called in any thread.

        Raises:
            One of `REFUSED`: an event is unusual or damaged.
        """

    def repair(self, events: list[object]) -> B:
        """Return a batch of events some of which `decode` refused; drop and count hopeless ones."""


#: Errors that decoders raise for unusual or damaged text.
REFUSED = (msgspec.DecodeError, UnicodeError, RecursionError)
SLICE_BYTES = 1 << 20
#: Bytes that are read at once outside the array of events.
_MEMBER_BYTES = 1 << 13
#: A refused slice with more bytes is halved; a smaller one is decoded event by event.
_SMALL = 1 << 14
#: Bytes in which an event is searched for, to say whether salvaging would give any.
_SEARCHED_BYTES = 1 << 16
#: A cut is first looked for in this many bytes at the end of a slice, then in the whole slice.
_CUT_WINDOW = 1 << 13
#: A value outside the array is first looked for in this many bytes, then in twice as many, etc.
_VALUE_WINDOW = 1 << 8
#: An event with more bytes is damaged, and so is a value beside the events.
_MOST_EVENT_BYTES = 1 << 26
_MOST_EVENT = "64 MB of text"
#: Events in a batch that is decoded event by event.
_EVENTS_AT_ONCE = 4096
_SPACE = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GAP_BYTES = b", \t\r\n"
_FIRST_KEY = re.compile(rb'\s*\{\s*"([A-Za-z_]+)"')
#: A place between two events, whatever the first key of the second event is.
ANY_CUT = re.compile(rb'\}\s*,\s*\{\s*"[A-Za-z_]')
#: If more slices than this are refused, the file is unusual, and decoding ahead is given up.
_MOST_REFUSALS = 16
#: Slices that threads decode while earlier ones are processed.
_MOST_AHEAD = 6
_REMEDY_DAMAGED = "record the trace again or repair the file"


class _Progress(NamedTuple):
    """How far a part of the array was read."""

    used: int  #: number of bytes that were decoded
    ended: bool  #: True if the array ends after these bytes


class _PendingSlice(NamedTuple, Generic[B]):
    """A slice that a thread is decoding."""

    rest: bytes  #: the value of `_rest` before the slice was read
    piece: bytes  #: the bytes that were read for the slice
    decoded: Future[B]


class EventStream(Generic[B]):
    """Iterates over the events of a document, in batches of about a slice each.

    Args:
        source: the file.
        decoder: decodes the events.
        slice_bytes: the size of a slice; None for the default.
        threads: a pool whose threads decode slices ahead; None to decode in this thread.

    Attributes:
        members: the top-level members of the document, apart from the events.
        found_events: whether the document has an array of events.
        damage: what is wrong with a document that is salvaged; None if nothing is.

    Raises:
        TraceCutOffError: the document is cut off.
        TraceFormatError: it is not JSON, or is nested too deeply.
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
        #: the error at the event that ended `_walk`; raised after the events before it
        self._deferred_error: TraceFormatError | None = None
        self.damage: TraceFormatError | None = None
        self._rest = b""  # bytes that were read, but not decoded yet
        self._at_end = False
        self._cut = ANY_CUT
        self._count = 0  # of events in batches so far
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
            if not allow_truncated and self._has_events():
                remedy = f"{error.remedy}, or {SALVAGE}"
                raise type(error)(error.path, error.problem, remedy) from None
            if not allow_truncated or not self.found_events:
                raise
            self.damage = error
        self.damage = self._source.damage or self.damage

    def _has_events(self) -> bool:
        """Return True if an event was read, or the next bytes contain one."""
        if self.found_events and not self._count:
            batches = self._walk(self._rest[:_SEARCHED_BYTES], self.place)
            self._count = sum(map(len, batches))
        return self._count > 0

    @property
    def place(self) -> int:
        """The byte of the text up to which everything was decoded."""
        return self._source.bytes_read - len(self._rest)

    def _document(self) -> Iterator[B]:
        """Yield the events of the document."""
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
        next_byte = self._next_byte()
        is_second_document = next_byte == opening == b"{"
        if is_second_document and self.members and not self.found_events:
            problem = "is JSON lines (one document per line) instead of one document"
            self._refuse(problem, "write the events as one list, separated by commas")
        if next_byte:
            problem = "has more data after the end of the JSON document"
            self._refuse(problem, _REMEDY_DAMAGED)

    # The top level of the document, which is read value by value.

    def _object(self) -> Iterator[B]:
        """Yield the events in the members of an object, whose opening brace was just read."""
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
        """Read the key of the next member and its colon, and return the key."""
        key = self._value()
        colon = self._next_byte()
        if not colon:
            self._cut_off()
        if not isinstance(key, str) or colon != b":":
            self._refuse("is not valid JSON", _REMEDY_DAMAGED)
        self._rest = self._rest[1:]
        return key

    def _member(self, key: str) -> Iterator[B]:
        """Yield the events of the member with a key; keep any other member in `members`."""
        if key == "traceEvents" and self._next_byte() == b"[":
            self.found_events = True
            yield from self._array()
        else:
            self.members[key] = self._value()

    def _next_byte(self) -> bytes:
        """Skip white space, and return the next byte without reading it; empty at the end."""
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
        """Read the next value, and return it."""
        window = _VALUE_WINDOW
        while True:
            part = self._rest[:window]
            last = self._at_end and len(part) == len(self._rest)
            text = part.decode("utf-8", "surrogateescape")
            try:
                mended = lenient.mend_text(text)
                value, end = self._next_value(
                    original=text,
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

    # The array of events, which is read in slices.

    def _array(self) -> Iterator[B]:
        """Yield the events of an array, whose opening bracket comes next."""
        self._rest = self._rest[1:]
        if self._next_byte() == b"]":
            self._rest = self._rest[1:]
            return
        key = _FIRST_KEY.match(self._rest)
        if key is not None:
            # Many files begin with metadata events, which have another first key than all others.
            first_keys = b"ph|" + key[1]
            self._cut = re.compile(rb'\}\s*,\s*\{\s*"(?:' + first_keys + rb')"\s*:')
        ended = False
        while not ended:
            if self._threads and self._size == self._slice_bytes:
                yield from self._decode_ahead(self._threads)
            ended = yield from self._next_slice()
        if self._deferred_error is not None:
            raise self._deferred_error

    def _next_slice(self) -> Generator[B, None, bool]:
        """Yield the events of the next slice, if any; return True if the array ends there."""
        piece = self._read(self._size)
        cut = self._last_cut(piece, len(piece))
        if cut is None and piece:  # an event is larger than a slice
            if len(self._rest) > _MOST_EVENT_BYTES:
                problem = f"contains more than {_MOST_EVENT} in which no event begins"
                self._refuse(problem, _REMEDY_DAMAGED)
            self._rest += piece
            self._size *= 2
            return False
        if not piece:  # the end of the file: the last event is left for the next slice
            piece = self._rest
            self._rest = b""
            cut = self._last_cut(piece, len(piece))
        base = self._source.bytes_read - len(piece) - len(self._rest)
        text, after_cut = self._as_array(piece, cut)
        used, ended = yield from self._slice(text, base)
        self._rest = (text[used + 1 : -1] + after_cut).lstrip(_GAP_BYTES)
        if not used and not ended and after_cut:  # the cut was inside an event
            used, ended = yield from self._walk(self._rest, self.place)
            self._rest = self._rest[used:]
        if not used and not ended and self._at_end:
            self._cut_off()
        self._size = self._slice_bytes if used else self._size * 2
        return ended

    def _as_array(self, piece: bytes, cut: int | None) -> tuple[bytes, bytes]:
        """Return the undecoded bytes and a piece up to its cut as an array, and the bytes after.

        Args:
            piece: the bytes that were read last.
            cut: the place in the piece between two events; None for the end of the piece.
        """
        before_cut = memoryview(piece)[:cut]
        text = b"".join((b"[", self._rest, before_cut, b"]"))
        after_cut = b""
        if cut is not None:
            after_cut = piece[cut:]
        return text, after_cut

    def _decode_ahead(self, threads: ThreadPoolExecutor) -> Iterator[B]:
        """Yield the events of slices that threads decode, while this thread cuts further slices.

        If a slice is refused, its bytes and those of all later slices are put back. `_next_slice`
        then reads them again.
        """
        pending: deque[_PendingSlice[B]] = deque()
        can_cut_more = True
        while True:
            while can_cut_more and len(pending) < _MOST_AHEAD:
                can_cut_more = self._submit_slice(threads, pending)
            if not pending:
                return
            if isinstance(pending[0].decoded.exception(), REFUSED):
                break
            yield pending.popleft().decoded.result()
        self._rest = pending[0].rest
        self._put_back(b"".join(slice_.piece for slice_ in pending))
        self._refusals += 1
        if self._refusals > _MOST_REFUSALS:
            self._threads = None

    def _submit_slice(
        self, threads: ThreadPoolExecutor, pending: deque[_PendingSlice[B]]
    ) -> bool:
        """Have a thread decode the next slice; return False if no slice can be cut."""
        rest = self._rest
        try:
            piece = self._read(self._slice_bytes)
        except (
            TraceError
        ):  # `_next_slice` will read here again, and raise the same error
            return False
        cut = self._last_cut(piece, len(piece))
        if cut is None:
            self._put_back(piece)
            return False
        text, after_cut = self._as_array(piece, cut)
        decoded = threads.submit(self._decoder.decode, text)
        pending.append(_PendingSlice(rest, piece, decoded))
        self._rest = after_cut.lstrip(_GAP_BYTES)
        return True

    def _put_back(self, piece: bytes) -> None:
        self._source.unread(piece)
        self._at_end = False

    def _last_cut(self, text: bytes, end: int) -> int | None:
        """Return the last place between two events before `end`; None if there is none."""
        for pattern in (self._cut, ANY_CUT):
            for start in (max(0, end - _CUT_WINDOW), 0):
                last = None
                for last in pattern.finditer(text, start, end):  # noqa: B007
                    pass
                if last is not None:
                    return last.start() + 1
        return None

    def _slice(self, text: bytes, base: int) -> Generator[B, None, _Progress]:
        """Yield the events of a slice, as far as they can be decoded.

        Args:
            text: the slice as a JSON array.
            base: the byte of the document where the slice begins.

        Returns:
            The number of decoded bytes within the brackets, and whether the array ended there.
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
        if (
            not used
        ):  # the slice is too small to halve, or the half was cut inside an event
            return (yield from self._walk(body, base))
        if not ended:
            used = len(body) - len(body[used:].lstrip(_GAP_BYTES))
            further, ended = yield from self._slice(
                b"[" + body[used:] + b"]", base + used
            )
            used += further
        return _Progress(used, ended)

    def _walk(self, body: bytes, base: int) -> Generator[B, None, _Progress]:
        """Decode events one by one and leniently; yield them in batches.

        Decoding ends before an incomplete event, at the end of the array, or at text that is not
        JSON. In the last case, the error is raised after the events before it were yielded.

        Args:
            body: the text of events, without brackets.
            base: the byte of the document where this text begins.

        Returns:
            The number of decoded bytes, and whether the array ended there.
        """
        original = body.decode("utf-8", "surrogateescape")
        text = lenient.mend_text(original)
        position = 0
        ended = False
        is_incomplete = False
        while not ended and not is_incomplete:
            values: list[object] = []
            start = lenient.after_gap(text, position)
            end = start
            while len(values) < _EVENTS_AT_ONCE:
                begin = lenient.after_gap(text, position)
                ended = text.startswith("]", begin)
                if ended:
                    position = begin + 1
                    break
                try:
                    value, position = self._next_value(
                        original=original,
                        text=text,
                        at=position,
                        base=base,
                        exact=True,
                        last=self._at_end,
                    )
                except lenient.IncompleteError:
                    is_incomplete = True
                    break
                except TraceFormatError as error:
                    self._deferred_error = error
                    ended = True
                    break
                values.append(value)
                end = position
            yield self._decoded_or_repaired(text[start:end], values)
        return _Progress(lenient.bytes_before(original, position), ended)

    def _decoded_or_repaired(self, text: str, values: list[object]) -> B:
        """Return a batch of events, decoded from their text if possible, else from their values."""
        try:
            document = f"[{text}]".encode()  # fails for lone surrogates
            return self._decoder.decode(document)
        except REFUSED:
            return self._decoder.repair(values)

    def _next_value(
        self, original: str, text: str, at: int, base: int, *, exact: bool, last: bool
    ) -> tuple[object, int]:
        """Decode the next value of mended text; return it and the position after it.

        Args:
            original: the text before it was mended.
            text: the mended text.
            at: the position in the mended text.
            base: the byte of the document where the text begins.
            exact: whether numbers keep all their digits.
            last: whether no more text follows.

        Raises:
            IncompleteError: more text may complete the value.
            TraceFormatError: the text is not JSON.
        """
        try:
            return lenient.value_at(text, at, exact=exact, last=last)
        except lenient.WrongError as error:
            offset = base + lenient.bytes_before(original, error.position)
            problem = error.problem.replace("{place}", f" at byte {offset:,}")
            self._refuse(problem, _REMEDY_DAMAGED)

    def _refuse(self, problem: str, remedy: str) -> NoReturn:
        """Raise TraceFormatError for the document."""
        if self._source.compressed and not self._source.reading.allow_truncated:
            # If the gzip stream is damaged, this raises an error that says so instead.
            self._source.drain()
        raise TraceFormatError(self._source.path, problem, remedy) from None

    def _cut_off(self) -> NoReturn:
        """Raise TraceCutOffError for the document."""
        problem = f"the JSON ends prematurely, after {self._count:,} events"
        raise TraceCutOffError(self._source.path, problem, AGAIN) from None
