"""Slices of Kineto's events as columns: of decoded events, or of what the compiled reader answers.

`_native.c` refuses slices that are not quite right, or unusual, and `slice_of` takes those. Of any
other slice both say the same.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import DTypeLike

from tracelens_ext.readers.begin_end import BEGIN
from tracelens_ext.readers.builder import Interner
from tracelens_ext.readers.kineto import schema
from tracelens_ext.readers.kineto.schema import Event
from tracelens_ext.text import encodable
from tracelens_ext.trace import BoolArray, EventKind, Int64Array

IntArray: TypeAlias = np.ndarray[Any, np.dtype[np.integer[Any]]]


class ArgumentPiece(NamedTuple):
    """An argument of some events."""

    rows: IntArray  #: the rows that have it, ascending
    values: IntArray  #: its values, or their codes


class Track(NamedTuple):
    """What is often the same of many events, as the trace spells it."""

    phase: str
    category: str
    process: int | str
    thread: int | str


class Special(NamedTuple):
    """An event that is not on a timeline."""

    kind: int  #: `METADATA` or `NO_PHASE`
    name: str
    process: int | str
    thread: int | str
    label_name: str  #: its argument `name`
    labels: str  #: its argument `labels`


class Slice(msgspec.Struct, frozen=True):
    """The events of a slice, m of them on a timeline, in codes of its own."""

    count: int  #: how many events the slice holds in all
    special: list[Special]  #: those that are not on a timeline
    tracks: list[Track]  #: what codes stand for, of all events
    names: list[str]  #: what codes of names stand for, of events on a timeline
    words: list[bytes]  #: what codes of texts of arguments stand for: JSON
    track: IntArray  #: codes, shape (m,)
    name: IntArray  #: codes, shape (m,)
    kind: IntArray  #: `EventKind`s, shape (m,)
    ts: Int64Array  #: ns, shape (m,)
    dur: Int64Array  #: ns, shape (m,)
    numbers: Mapping[str, ArgumentPiece]  #: argument → rows among these m, and integers
    #: argument → rows among these m, and codes of words
    texts: Mapping[str, ArgumentPiece]

    def __len__(self) -> int:
        return self.count


def slice_of(events: list[Event]) -> Slice:
    """Return the columns of decoded events."""
    count = len(events)
    known_tracks: Interner[tuple[str, str, int | str, int | str]] = Interner()
    track = known_tracks.codes(
        [(event.ph, event.cat, event.pid, event.tid) for event in events], count
    )
    tracks = [Track(*about) for about in known_tracks]
    kind_of_track = [schema.kind_of(about.phase, about.category) for about in tracks]
    kind = np.array(kind_of_track, np.uint8)[track]
    special = _special_events(events, kind)
    if special:
        on_timeline = np.flatnonzero(kind < schema.METADATA)
        events = [events[row] for row in on_timeline.tolist()]
        track = track[on_timeline]
        kind = kind[on_timeline]
    names: Interner[str] = Interner()
    name = names.codes([event.name for event in events], len(events))
    words: Interner[bytes] = Interner()
    numbers = _number_arguments(events, kind)
    texts = _text_arguments(events, kind, words)
    return Slice(
        count=count,
        special=special,
        tracks=tracks,
        names=list(names),
        words=list(words),
        track=track,
        name=name,
        kind=kind,
        ts=schema.parse_nanoseconds([event.ts for event in events]),
        dur=schema.parse_nanoseconds([event.dur for event in events]),
        numbers=numbers,
        texts=texts,
    )


def _special_events(events: list[Event], kind: IntArray) -> list[Special]:
    """Return the events that are not on a timeline."""
    special: list[Special] = []
    for row in np.flatnonzero(kind >= schema.METADATA).tolist():
        event = events[row]
        special.append(
            Special(
                kind=int(kind[row]),
                name=event.name,
                process=event.pid,
                thread=event.tid,
                label_name=_decoded(event.args.name),
                labels=_decoded(event.args.labels),
            )
        )
    return special


def _number_arguments(events: list[Event], kind: IntArray) -> dict[str, ArgumentPiece]:
    """Return the arguments that are numbers."""
    pieces: dict[str, list[ArgumentPiece]] = defaultdict(list)
    for plan in schema.PLAN:
        rows = np.flatnonzero(plan.wanted[kind])
        events_of_plan = [events[row] for row in rows.tolist()]
        if not events_of_plan:
            continue
        for name in plan.numbers:
            attribute = (
                "id" if name == schema.FLOW_ID else f"args.{schema.ARGUMENTS[name]}"
            )
            tokens = list(map(attrgetter(attribute), events_of_plan))
            pieces[name].append(_without_missing(rows, schema.parse_integers(tokens)))
    return _joined(pieces)


def _text_arguments(
    events: list[Event], kind: IntArray, words: Interner[bytes]
) -> dict[str, ArgumentPiece]:
    """Return the arguments that are texts, as codes of words."""
    pieces: dict[str, list[ArgumentPiece]] = defaultdict(list)
    for plan in schema.PLAN:
        rows = np.flatnonzero(plan.wanted[kind])
        events_of_plan = [events[row] for row in rows.tolist()]
        for group in plan.texts:
            # Without the first argument of a group an event has none of them.
            is_given = [_has_argument(event, group[0]) for event in events_of_plan]
            given_rows = rows[is_given]
            given_events = [events[row] for row in given_rows.tolist()]
            if not given_events:
                continue
            for name in group:
                piece = _codes_of_argument(
                    name=name, rows=given_rows, events=given_events, words=words
                )
                pieces[name].append(piece)
    return _joined(pieces)


def _has_argument(event: Event, name: str) -> bool:
    return getattr(event.args, schema.ARGUMENTS[name]) is not schema.NO_TEXT


def _codes_of_argument(
    name: str, rows: IntArray, events: list[Event], words: Interner[bytes]
) -> ArgumentPiece:
    text_of = attrgetter(f"args.{schema.ARGUMENTS[name]}")
    texts = [bytes(text_of(event)) for event in events]
    codes = words.codes(texts, len(events))
    is_empty = codes == words[b""]
    is_null = codes == words[b"null"]
    is_given = ~(is_empty | is_null)
    return ArgumentPiece(rows=rows[is_given], values=codes[is_given])


def _without_missing(rows: IntArray, values: Int64Array) -> ArgumentPiece:
    is_given: BoolArray = values != schema.MISSING
    return ArgumentPiece(rows=rows[is_given], values=values[is_given])


def _joined(pieces: Mapping[str, Sequence[ArgumentPiece]]) -> dict[str, ArgumentPiece]:
    """Return the arguments that events have, rows ascending, of what several plans have of them."""
    arguments = {}
    for name, parts in pieces.items():
        rows = np.concatenate([part.rows for part in parts])
        values = np.concatenate([part.values for part in parts])
        order = np.argsort(rows, kind="stable")
        if len(rows):
            arguments[name] = ArgumentPiece(rows=rows[order], values=values[order])
    return arguments


def _decoded(text: bytes) -> str:
    """Return the text that a JSON string stands for, as `repair` would; empty if it is none."""
    with suppress(ValueError, RecursionError):
        value = json.loads(bytes(text).decode("utf-8", "surrogateescape"), strict=False)
        return encodable(value) if isinstance(value, str) else ""
    return ""


# The compiled reader.

_PLACE: Final = {
    name: place
    for place, name in enumerate(tuple(schema.ARGUMENTS) + (schema.FLOW_ID,))
}
#: All arguments that are texts, plan by plan, as the compiled code numbers its columns of texts.
_TEXT_COLUMNS: Final = [
    name for plan in schema.PLAN for group in plan.texts for name in group
]


def native_schema(native: ModuleType) -> object:
    """Return what the compiled code looks for."""
    plans = []
    for plan in schema.PLAN:
        wanted_kinds = np.flatnonzero(plan.wanted)
        kinds = bytes(wanted_kinds.tolist())
        numbers = bytes(_PLACE[name] for name in plan.numbers)
        groups = [bytes(_PLACE[name] for name in group) for group in plan.texts]
        plans.append((kinds, numbers, groups))
    return native.schema(
        list(Event.__struct_fields__),
        list(schema.ARGUMENTS),
        (list(schema.CATEGORIES), bytes(schema.CATEGORIES.values())),
        (list(schema.PHASES), bytes(schema.PHASES.values())),
        plans,
        int(EventKind.OTHER),
        BEGIN,
    )


class NativeSpecial(NamedTuple):
    """A special event as the compiled code answers it; arguments are JSON."""

    kind: int
    track: int  #: code
    name: str
    label_name: bytes
    labels: bytes


class OddNumber(NamedTuple):
    """A number that is no plain one, which Python has to parse."""

    column: int  #: place of the argument, or `_TS_COLUMN` or `_DUR_COLUMN`
    place: int  #: in the column
    token: bytes  #: JSON


_TS_COLUMN: Final = -2
_DUR_COLUMN: Final = -1


class NativeAnswer(NamedTuple):
    """What the compiled code says of a slice; columns are the bytes of arrays."""

    events: int  #: how many events the slice holds in all
    special: list[tuple[int, int, str, bytes, bytes]]  #: as `NativeSpecial`
    tracks: list[tuple[str, str, int | str, int | str]]  #: as `Track`
    names: list[str]
    words: list[bytes]
    track: bytes  #: int32
    name: bytes  #: int32
    kind: bytes  #: uint8
    ts: bytes  #: int64
    dur: bytes  #: int64
    numbers: list[tuple[bytes, bytes]]  #: int32 rows and int64 values of each argument
    #: int32 rows and int32 codes of each of `_TEXT_COLUMNS`
    texts: list[tuple[bytes, bytes]]
    odd: list[tuple[int, int, bytes]]  #: as `OddNumber`


def native_slice(answer: tuple[Any, ...]) -> Slice:
    """Return the columns of what the compiled code says of a slice."""
    native = NativeAnswer(*answer)
    tracks = [Track(*about) for about in native.tracks]
    kind = np.frombuffer(native.kind, np.uint8)
    times = {
        _TS_COLUMN: np.frombuffer(native.ts, np.int64),
        _DUR_COLUMN: np.frombuffer(native.dur, np.int64),
    }
    pieces = [_piece(rows, values, np.int64) for rows, values in native.numbers]
    odd_numbers: dict[int, list[OddNumber]] = defaultdict(list)
    for number in map(OddNumber._make, native.odd):
        odd_numbers[number.column].append(number)
    for column, numbers in odd_numbers.items():
        if column < 0:
            times[column] = _with_odd_numbers(
                values=times[column], numbers=numbers, parse=schema.parse_nanoseconds
            )
            continue
        values = _with_odd_numbers(
            values=pieces[column].values, numbers=numbers, parse=schema.parse_integers
        )
        pieces[column] = _without_missing(pieces[column].rows, values)

    has_kind = np.flatnonzero(np.bincount(kind))
    pieces_of_name: dict[str, list[ArgumentPiece]] = {}
    for plan in schema.PLAN:
        if plan.wanted[has_kind].any():
            for name in plan.numbers:
                pieces_of_name[name] = [pieces[_PLACE[name]]]
    texts: dict[str, list[ArgumentPiece]] = defaultdict(list)
    for name, (rows, codes) in zip(_TEXT_COLUMNS, native.texts, strict=True):
        if rows:
            texts[name].append(_piece(rows, codes, np.int32))

    special = []
    for event in map(NativeSpecial._make, native.special):
        _, _, process, thread = tracks[event.track]
        label_name = _decoded(event.label_name)
        labels = _decoded(event.labels)
        special.append(
            Special(
                kind=event.kind,
                name=event.name,
                process=process,
                thread=thread,
                label_name=label_name,
                labels=labels,
            )
        )
    return Slice(
        count=native.events,
        special=special,
        tracks=tracks,
        names=native.names,
        words=native.words,
        track=np.frombuffer(native.track, np.int32),
        name=np.frombuffer(native.name, np.int32),
        kind=kind,
        ts=times[_TS_COLUMN],
        dur=times[_DUR_COLUMN],
        numbers=_joined(pieces_of_name),
        texts=_joined(texts),
    )


def _with_odd_numbers(
    values: IntArray, numbers: list[OddNumber], parse: schema.ParseNumbers
) -> Int64Array:
    """Return a column with the numbers that Python had to parse."""
    result: Int64Array = values.astype(np.int64)
    places = [number.place for number in numbers]
    result[places] = parse([number.token for number in numbers])
    return result


def _piece(rows: bytes, values: bytes, kind: DTypeLike) -> ArgumentPiece:
    return ArgumentPiece(
        rows=np.frombuffer(rows, np.int32), values=np.frombuffer(values, kind)
    )
