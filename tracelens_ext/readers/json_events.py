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
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from tracelens_ext.errors import TraceError, TraceFormatError
from tracelens_ext.readers import json_text
from tracelens_ext.readers import lenient_json as lenient
from tracelens_ext.readers.json_text import REMEDY_DAMAGED, JsonText
from tracelens_ext.readers.messages import REMEDY_SALVAGE
from tracelens_ext.readers.source import ByteSource

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
#: A refused slice with more bytes is halved; a smaller one is decoded event by event.
_MOST_BYTES_ONE_BY_ONE = 1 << 14
#: Bytes in which an event is searched for, to say whether salvaging would give any.
_SEARCHED_BYTES = 1 << 16
#: A cut is first looked for in this many bytes at the end of a slice, then in the whole slice.
_CUT_WINDOW = 1 << 13
#: Events in a batch that is decoded event by event.
_EVENTS_AT_ONCE = 4096
#: What may lie between two events.
_GAP_BYTES = b", \t\r\n"
_FIRST_KEY = re.compile(rb'\s*\{\s*"([A-Za-z_]+)"')
#: A place between two events, whatever the first key of the second event is.
ANY_CUT = re.compile(rb'\}\s*,\s*\{\s*"[A-Za-z_]')
#: If more slices than this are refused, the file is unusual, and decoding ahead is given up.
_MOST_REFUSALS = 16
#: Slices that threads decode while earlier ones are processed.
_MOST_AHEAD = 6


class _Progress(NamedTuple):
    """How far a part of the array was read."""

    used: int  #: number of bytes that were decoded
    ended: bool  #: True if the array ends after these bytes


class _PendingSlice(NamedTuple, Generic[B]):
    """A slice that a thread is decoding."""

    rest_before: bytes  #: the undecoded bytes of the text before the slice was read
    piece: bytes  #: the bytes that were read for the slice
    decoded: Future[B]


class _LenientBatch(NamedTuple):
    """Events that were decoded one by one."""

    values: list[object]  #: the decoded events
    text: str  #: the text of these events
    #: position in the decoded text after these events, or after the end of the array
    position: int
    ended: bool  #: True if the array ends after these events
    is_incomplete: bool  #: True if the text ends within the next event


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
        self._slice_bytes = slice_bytes or SLICE_BYTES
        #: the bytes to read for the next slice; more than usual within an event that is larger
        self._next_slice_bytes = self._slice_bytes
        self._threads = threads
        self._refusals = 0  # slices decoded ahead that were refused
        #: the error at the event that ended `_decode_one_by_one`, raised after earlier events
        self._deferred_error: TraceFormatError | None = None
        self._text = JsonText(source, self._slice_bytes)
        self._cut_pattern = ANY_CUT
        self.damage: TraceFormatError | None = None
        self.members: dict[str, object] = {}
        self.found_events = False

    def __iter__(self) -> Iterator[B]:
        allow_truncated = self._source.reading.allow_truncated
        try:
            for batch in self._events_of_document():
                if len(batch):
                    self._text.event_count += len(batch)
                    yield batch
        except TraceFormatError as error:
            if not allow_truncated and self._can_salvage_events():
                remedy = f"{error.remedy}, or {REMEDY_SALVAGE}"
                raise type(error)(error.path, error.problem, remedy) from None
            if not allow_truncated or not self.found_events:
                raise
            self.damage = error
        self.damage = self._source.damage or self.damage

    def _can_salvage_events(self) -> bool:
        """Return True if an event was decoded, or if the next bytes contain one."""
        if self._text.event_count:
            return True
        if not self.found_events:
            return False
        next_bytes = self._text.rest[:_SEARCHED_BYTES]
        batches = self._decode_one_by_one(next_bytes, self.place)
        return sum(map(len, batches)) > 0

    @property
    def place(self) -> int:
        """The byte of the text up to which everything was decoded."""
        return self._text.place

    # The top level of the document, which is read value by value.

    def _events_of_document(self) -> Iterator[B]:
        """Yield the events of the document."""
        text = self._text
        opening = text.next_byte()
        if opening == b"[":
            self.found_events = True
            yield from self._events_of_array()
        elif opening == b"{":
            yield from self._events_of_object()
        else:
            text.refuse(
                "is not JSON",
                "give a trace that a profiler wrote as .json or .json.gz",
            )
        next_byte = text.next_byte()
        is_second_document = next_byte == opening == b"{"
        if is_second_document and self.members and not self.found_events:
            problem = "is JSON lines (one document per line) instead of one document"
            text.refuse(problem, "write the events as one list, separated by commas")
        if next_byte:
            problem = "has more data after the end of the JSON document"
            text.refuse(problem, REMEDY_DAMAGED)

    def _events_of_object(self) -> Iterator[B]:
        """Yield the events in the members of an object, whose opening brace comes next."""
        text = self._text
        text.skip_byte()
        byte = text.next_byte()
        while byte != b"}":
            if byte == b",":
                text.skip_byte()
            else:
                key = text.read_key()
                yield from self._events_of_member(key)
            byte = text.next_byte()
        text.skip_byte()

    def _events_of_member(self, key: str) -> Iterator[B]:
        """Yield the events of the member with a key; keep any other member in `members`.

        Subclasses override this method to read documents with other members.
        """
        if key == "traceEvents" and self._text.next_byte() == b"[":
            self.found_events = True
            yield from self._events_of_array()
        else:
            self.members[key] = self._text.read_value()

    # The array of events, which is read in slices.

    def _events_of_array(self) -> Iterator[B]:
        """Yield the events of an array, whose opening bracket comes next."""
        text = self._text
        text.skip_byte()
        if text.next_byte() == b"]":
            text.skip_byte()
            return
        key = _FIRST_KEY.match(text.rest)
        if key is not None:
            # Many files begin with metadata events, which have another first key than all others.
            first_keys = b"ph|" + key[1]
            self._cut_pattern = re.compile(
                rb'\}\s*,\s*\{\s*"(?:' + first_keys + rb')"\s*:'
            )
        ended = False
        while not ended:
            if self._threads and self._next_slice_bytes == self._slice_bytes:
                yield from self._decode_ahead(self._threads)
            ended = yield from self._decode_next_slice()
        if self._deferred_error is not None:
            raise self._deferred_error

    def _decode_next_slice(self) -> Generator[B, None, bool]:
        """Yield the events of the next slice, if any; return True if the array ends there."""
        piece = self._text.read(self._next_slice_bytes)
        if not piece:
            return (yield from self._decode_at_end_of_file())
        cut = self._last_cut(piece, len(piece))
        if cut is None:
            self._enlarge_slice(piece)
            return False
        return (yield from self._decode_up_to(piece, cut))

    def _enlarge_slice(self, piece: bytes) -> None:
        """Keep a piece that ends within an event, and read more for the next slice."""
        text = self._text
        if len(text.rest) > json_text.MOST_VALUE_BYTES:
            problem = f"contains more than {json_text.MOST_VALUE_TEXT} in which no event begins"
            text.refuse(problem, REMEDY_DAMAGED)
        text.rest += piece
        self._next_slice_bytes *= 2

    def _decode_at_end_of_file(self) -> Generator[B, None, bool]:
        """Yield the events of the rest of the file; return True if the array ends there.

        If there are several events, the last one is left for the next slice.
        """
        rest = self._text.rest
        self._text.rest = b""
        cut = self._last_cut(rest, len(rest))
        return (yield from self._decode_up_to(rest, cut))

    def _decode_up_to(self, piece: bytes, cut: int | None) -> Generator[B, None, bool]:
        """Yield the events of the undecoded bytes and of a piece up to its cut.

        Args:
            piece: the bytes that were read last.
            cut: the position in the piece between two events; None for the end of the piece.

        Returns:
            True if the array ends there.
        """
        text = self._text
        place_of_slice = text.place - len(piece)
        array, after_cut = self._as_array(piece, cut)
        used, ended = yield from self._decode_slice(array, place_of_slice)
        text.rest = (array[used + 1 : -1] + after_cut).lstrip(_GAP_BYTES)
        is_cut_inside_event = not used and not ended and after_cut
        if is_cut_inside_event:
            used, ended = yield from self._decode_one_by_one(text.rest, text.place)
            text.rest = text.rest[used:]
        if not used and not ended and text.at_end:
            text.refuse_as_cut_off()
        if used:
            self._next_slice_bytes = self._slice_bytes
        else:
            self._next_slice_bytes *= 2
        return ended

    def _as_array(self, piece: bytes, cut: int | None) -> tuple[bytes, bytes]:
        """Return the undecoded bytes and a piece up to its cut as an array, and the bytes after.

        Args:
            piece: the bytes that were read last.
            cut: the position in the piece between two events; None for the end of the piece.
        """
        before_cut = memoryview(piece)[:cut]
        array = b"".join((b"[", self._text.rest, before_cut, b"]"))
        after_cut = b""
        if cut is not None:
            after_cut = piece[cut:]
        return array, after_cut

    def _decode_ahead(self, threads: ThreadPoolExecutor) -> Iterator[B]:
        """Yield the events of slices that threads decode, while this thread cuts further slices.

        If a slice is refused, its bytes and those of all later slices are put back.
        `_decode_next_slice` then reads them again.
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
        self._text.rest = pending[0].rest_before
        self._text.put_back(b"".join(slice_.piece for slice_ in pending))
        self._refusals += 1
        if self._refusals > _MOST_REFUSALS:
            self._threads = None

    def _submit_slice(
        self, threads: ThreadPoolExecutor, pending: deque[_PendingSlice[B]]
    ) -> bool:
        """Have a thread decode the next slice; return False if no slice can be cut."""
        text = self._text
        rest_before = text.rest
        try:
            piece = text.read(self._slice_bytes)
        except TraceError:
            # `_decode_next_slice` will read here again, and raise the same error.
            return False
        cut = self._last_cut(piece, len(piece))
        if cut is None:
            text.put_back(piece)
            return False
        array, after_cut = self._as_array(piece, cut)
        decoded = threads.submit(self._decoder.decode, array)
        pending.append(_PendingSlice(rest_before, piece, decoded))
        text.rest = after_cut.lstrip(_GAP_BYTES)
        return True

    def _last_cut(self, piece: bytes, end: int) -> int | None:
        """Return the last position between two events before `end`; None if there is none."""
        for pattern in (self._cut_pattern, ANY_CUT):
            for start in (max(0, end - _CUT_WINDOW), 0):
                # A deque of length 1 keeps the last match only.
                last_match = deque(pattern.finditer(piece, start, end), maxlen=1)
                if last_match:
                    return last_match[0].start() + 1
        return None

    # Unusual slices, which are halved, and then decoded event by event.

    def _decode_slice(
        self, array: bytes, place_of_slice: int
    ) -> Generator[B, None, _Progress]:
        """Yield the events of a slice, as far as they can be decoded.

        Args:
            array: the slice as a JSON array.
            place_of_slice: the byte of the document where the slice begins.

        Returns:
            The number of decoded bytes within the brackets, and whether the array ended there.
        """
        batch = self._decoded_or_none(array)
        if batch is not None:
            yield batch
            return _Progress(len(array) - 2, ended=False)
        body = array[1:-1]
        middle = None
        if len(body) > _MOST_BYTES_ONE_BY_ONE:
            middle = self._last_cut(body, len(body) // 2)
        used = 0
        ended = False
        if middle is not None:
            first_half = b"[" + body[:middle] + b"]"
            used, ended = yield from self._decode_slice(first_half, place_of_slice)
        if not used:
            # The slice is too small to halve, or the half was cut inside an event.
            return (yield from self._decode_one_by_one(body, place_of_slice))
        if not ended:
            used = len(body) - len(body[used:].lstrip(_GAP_BYTES))
            second_half = b"[" + body[used:] + b"]"
            used_of_second, ended = yield from self._decode_slice(
                second_half, place_of_slice + used
            )
            used += used_of_second
        return _Progress(used, ended)

    def _decoded_or_none(self, array: bytes) -> B | None:
        """Return the events of an array, mended if necessary; None if they are refused."""
        with suppress(*REFUSED):
            return self._decoder.decode(array)
        with suppress(*REFUSED):
            return self._decoder.decode(lenient.mend_bytes(array))
        return None

    def _decode_one_by_one(
        self, body: bytes, place_of_body: int
    ) -> Generator[B, None, _Progress]:
        """Decode events one by one and leniently; yield them in batches.

        Decoding ends before an incomplete event, at the end of the array, or at text that is not
        JSON. In the last case, the error is raised after the events before it were yielded.

        Args:
            body: the text of events, without brackets.
            place_of_body: the byte of the document where this text begins.

        Returns:
            The number of decoded bytes, and whether the array ended there.
        """
        original = body.decode("utf-8", "surrogateescape")
        mended = lenient.mend_text(original)
        position = 0
        while True:
            batch = self._next_lenient_batch(
                original=original,
                mended=mended,
                position=position,
                place_of_text=place_of_body,
            )
            position = batch.position
            yield self._decoded_or_repaired(batch.text, batch.values)
            if batch.ended or batch.is_incomplete:
                used = lenient.bytes_before(original, position)
                return _Progress(used, batch.ended)

    def _next_lenient_batch(
        self, original: str, mended: str, position: int, place_of_text: int
    ) -> _LenientBatch:
        """Decode the next events one by one.

        At text that is not JSON, the error is kept in `_deferred_error`, and the array ends.

        Args:
            original: the text before it was mended.
            mended: the mended text.
            position: the position in the mended text.
            place_of_text: the byte of the document where the text begins.
        """
        values: list[object] = []
        start = lenient.after_gap(mended, position)
        end = start
        ended = False
        is_incomplete = False
        while len(values) < _EVENTS_AT_ONCE:
            next_start = lenient.after_gap(mended, position)
            if mended.startswith("]", next_start):
                position = next_start + 1
                ended = True
                break
            try:
                value, position = self._text.decode_value(
                    original=original,
                    mended=mended,
                    position=position,
                    place_of_text=place_of_text,
                    exact=True,
                    is_last=self._text.at_end,
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
        return _LenientBatch(
            values=values,
            text=mended[start:end],
            position=position,
            ended=ended,
            is_incomplete=is_incomplete,
        )

    def _decoded_or_repaired(self, text: str, values: list[object]) -> B:
        """Return a batch of events, decoded from their text if possible, else from their values."""
        try:
            document = f"[{text}]".encode()  # fails for lone surrogates
            return self._decoder.decode(document)
        except REFUSED:
            return self._decoder.repair(values)
