"""Turns the events in a slice of a Kineto file into columns.

The compiled reader (`native_columns.py`) does the same, but refuses slices with unusual or damaged
events. This module makes columns of all events that could be decoded or repaired.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import NamedTuple

import msgspec
import numpy as np

from tracelens_ext.readers.builder import Interner
from tracelens_ext.readers.kineto import schema
from tracelens_ext.readers.kineto.schema import Event
from tracelens_ext.text import encodable
from tracelens_ext.trace import BoolArray, Int64Array, IntArray


class ArgumentPiece(NamedTuple):
    """An argument of those events that have it."""

    rows: IntArray  #: rows of the events, ascending
    values: IntArray  #: the values, or codes of the values


class Track(NamedTuple):
    """The properties that many events share, as the file spells them."""

    phase: str
    category: str
    process: int | str
    thread: int | str


class TimelessEvent(NamedTuple):
    """An event without a time: one that names something, or that is damaged."""

    kind: int  #: `METADATA` or `NO_PHASE`
    name: str
    process: int | str
    thread: int | str
    label_name: str  #: its argument `name`
    labels: str  #: its argument `labels`


class Slice(msgspec.Struct, frozen=True):
    """The events in a slice of a file, m of which are on a timeline.

    Codes are indices into the lists of the slice itself.
    """

    count: int  #: the number of all events in the slice
    timeless_events: list[TimelessEvent]  #: the events that are not on a timeline
    tracks: list[Track]  #: code → track, of all events
    names: list[str]  #: code → name, of events on a timeline
    words: list[bytes]  #: code → text of an argument, as JSON
    track: IntArray  #: code of the track, (m,)
    name: IntArray  #: code of the name, (m,)
    kind: IntArray  #: `EventKind`, (m,)
    ts: Int64Array  #: ns, (m,)
    dur: Int64Array  #: ns, (m,)
    #: argument → rows among these m, and integers
    numbers: Mapping[str, ArgumentPiece]
    #: argument → rows among these m, and codes of words
    texts: Mapping[str, ArgumentPiece]

    def __len__(self) -> int:
        return self.count


def slice_of(events: list[Event]) -> Slice:
    """Return the columns of decoded events."""
    track_codes: Interner[tuple[str, str, int | str, int | str]] = Interner()
    properties_of_events = [
        (event.ph, event.cat, event.pid, event.tid) for event in events
    ]
    track = track_codes.codes(properties_of_events, len(events))
    tracks = [Track(*properties) for properties in track_codes]
    kind_of_track = [schema.kind_of(item.phase, item.category) for item in tracks]
    kind = np.array(kind_of_track, np.uint8)[track]

    timeless_events = _timeless_events(events, kind)
    timeline_events = events
    if timeless_events:
        rows = np.flatnonzero(schema.is_on_timeline(kind))
        timeline_events = [events[row] for row in rows.tolist()]
        track = track[rows]
        kind = kind[rows]

    name_codes: Interner[str] = Interner()
    names = [event.name for event in timeline_events]
    name = name_codes.codes(names, len(names))
    words: Interner[bytes] = Interner()
    numbers = _number_arguments(timeline_events, kind)
    texts = _text_arguments(timeline_events, kind, words)
    return Slice(
        count=len(events),
        timeless_events=timeless_events,
        tracks=tracks,
        names=list(name_codes),
        words=list(words),
        track=track,
        name=name,
        kind=kind,
        ts=schema.parse_nanoseconds([event.ts for event in timeline_events]),
        dur=schema.parse_nanoseconds([event.dur for event in timeline_events]),
        numbers=numbers,
        texts=texts,
    )


def _timeless_events(events: list[Event], kind: IntArray) -> list[TimelessEvent]:
    """Return the events that are not on a timeline."""
    timeless_events: list[TimelessEvent] = []
    for row in np.flatnonzero(~schema.is_on_timeline(kind)).tolist():
        event = events[row]
        timeless_events.append(
            TimelessEvent(
                kind=int(kind[row]),
                name=event.name,
                process=event.pid,
                thread=event.tid,
                label_name=decoded_text(event.args.name),
                labels=decoded_text(event.args.labels),
            )
        )
    return timeless_events


def _number_arguments(events: list[Event], kind: IntArray) -> dict[str, ArgumentPiece]:
    """Return the arguments that are numbers, as far as events of their kind keep them."""
    pieces: dict[str, list[ArgumentPiece]] = defaultdict(list)
    for plan in schema.ARGUMENT_PLANS:
        rows = np.flatnonzero(plan.includes_kind[kind])
        events_of_plan = [events[row] for row in rows.tolist()]
        if not events_of_plan:
            continue
        for name in plan.numbers:
            tokens = list(map(attrgetter(_attribute_of(name)), events_of_plan))
            pieces[name].append(without_missing(rows, schema.parse_integers(tokens)))
    return joined_arguments(pieces)


def _attribute_of(argument: str) -> str:
    """Return the attribute of an `Event` that contains a number."""
    if argument == schema.FLOW_ID:
        return "id"
    return f"args.{schema.ARGUMENTS[argument]}"


def _text_arguments(
    events: list[Event], kind: IntArray, words: Interner[bytes]
) -> dict[str, ArgumentPiece]:
    """Return the arguments that are texts, as far as events of their kind keep them.

    Texts that are not in `words` yet are added to it.
    """
    pieces: dict[str, list[ArgumentPiece]] = defaultdict(list)
    for plan in schema.ARGUMENT_PLANS:
        rows = np.flatnonzero(plan.includes_kind[kind])
        events_of_plan = [events[row] for row in rows.tolist()]
        for group in plan.texts:
            # An event without the first argument of a group has none of the group.
            has_group = [_has_argument(event, group[0]) for event in events_of_plan]
            rows_with_group = rows[has_group]
            events_with_group = [events[row] for row in rows_with_group.tolist()]
            if not events_with_group:
                continue
            for name in group:
                piece = _text_argument(name, rows_with_group, events_with_group, words)
                pieces[name].append(piece)
    return joined_arguments(pieces)


def _has_argument(event: Event, name: str) -> bool:
    return getattr(event.args, schema.ARGUMENTS[name]) is not schema.NO_TEXT


def _text_argument(
    name: str, rows: IntArray, events: list[Event], words: Interner[bytes]
) -> ArgumentPiece:
    """Return an argument of events, given with their rows, as codes of words."""
    text_of = attrgetter(f"args.{schema.ARGUMENTS[name]}")
    texts = [bytes(text_of(event)) for event in events]
    codes = words.codes(texts, len(events))
    # An interner adds a text that is new, so these two have a code in any case.
    code_of_empty = words[b""]
    code_of_null = words[b"null"]
    has_text = (codes != code_of_empty) & (codes != code_of_null)
    return ArgumentPiece(rows=rows[has_text], values=codes[has_text])


def without_missing(rows: IntArray, values: Int64Array) -> ArgumentPiece:
    """Return an argument without the events whose value is `MISSING`."""
    has_value: BoolArray = values != schema.MISSING
    return ArgumentPiece(rows=rows[has_value], values=values[has_value])


def joined_arguments(
    pieces: Mapping[str, Sequence[ArgumentPiece]],
) -> dict[str, ArgumentPiece]:
    """Join the pieces of each argument, which come from events of different kinds."""
    arguments = {}
    for name, parts in pieces.items():
        rows = np.concatenate([part.rows for part in parts])
        values = np.concatenate([part.values for part in parts])
        order = np.argsort(rows, kind="stable")
        if len(rows):
            arguments[name] = ArgumentPiece(rows=rows[order], values=values[order])
    return arguments


def decoded_text(text: bytes) -> str:
    """Return the text of a JSON string; empty if the JSON is not a string."""
    with suppress(ValueError, RecursionError):
        value = json.loads(bytes(text).decode("utf-8", "surrogateescape"), strict=False)
        return encodable(value) if isinstance(value, str) else ""
    return ""
