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
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from tracelens_ext.readers.builder import Interner
from tracelens_ext.readers.kineto import schema
from tracelens_ext.readers.kineto.schema import Event
from tracelens_ext.text import encodable
from tracelens_ext.trace import BoolArray, Int64Array

IntArray: TypeAlias = np.ndarray[Any, np.dtype[np.integer[Any]]]


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


class Special(NamedTuple):
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
    special: list[Special]  #: the events that are not on a timeline
    tracks: list[Track]  #: code → track, of all events
    names: list[str]  #: code → name, of events on a timeline
    words: list[bytes]  #: code → text of an argument, as JSON
    track: IntArray  #: code of the track, (m,)
    name: IntArray  #: code of the name, (m,)
    kind: IntArray  #: `EventKind`, (m,)
    ts: Int64Array  #: ns, (m,)
    dur: Int64Array  #: ns, (m,)
    numbers: Mapping[str, ArgumentPiece]  #: argument → rows among these m, and integers
    texts: Mapping[
        str, ArgumentPiece
    ]  #: argument → rows among these m, and codes of words

    def __len__(self) -> int:
        return self.count


def slice_of(events: list[Event]) -> Slice:
    """Return the columns of decoded events."""
    count = len(events)
    distinct_tracks: Interner[tuple[str, str, int | str, int | str]] = Interner()
    track = distinct_tracks.codes(
        [(event.ph, event.cat, event.pid, event.tid) for event in events], count
    )
    tracks = [Track(*properties) for properties in distinct_tracks]
    kind_of_track = [schema.kind_of(item.phase, item.category) for item in tracks]
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
                label_name=decoded_text(event.args.name),
                labels=decoded_text(event.args.labels),
            )
        )
    return special


def _number_arguments(events: list[Event], kind: IntArray) -> dict[str, ArgumentPiece]:
    """Return the arguments that are numbers, as far as events of their kind keep them."""
    pieces: dict[str, list[ArgumentPiece]] = defaultdict(list)
    for plan in schema.PLAN:
        rows = np.flatnonzero(plan.wanted[kind])
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
    for plan in schema.PLAN:
        rows = np.flatnonzero(plan.wanted[kind])
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
    is_empty = codes == words[b""]
    is_null = codes == words[b"null"]
    has_text = ~(is_empty | is_null)
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
