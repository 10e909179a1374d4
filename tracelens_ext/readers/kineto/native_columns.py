"""Passes slices of events to the compiled reader (`_native.c`), and returns its answers as columns.

The compiled reader refuses unusual slices, which `columns.py` then decodes. For all other slices
both give the same result.
"""

from __future__ import annotations

from collections import defaultdict
from types import ModuleType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from tracelens_ext.readers.begin_end import BEGIN
from tracelens_ext.readers.kineto import schema
from tracelens_ext.readers.kineto.columns import (
    ArgumentPiece,
    Slice,
    TimelessEvent,
    Track,
    decoded_text,
    joined_arguments,
    without_missing,
)
from tracelens_ext.readers.kineto.schema import Event
from tracelens_ext.trace import EventKind, Int64Array, IntArray

#: Name of an argument → its number in the compiled code.
_NUMBER_OF_ARGUMENT: Final = {
    name: number
    for number, name in enumerate(tuple(schema.ARGUMENTS) + (schema.FLOW_ID,))
}
#: Number of a column of texts in the compiled code → name of the argument. An argument that several
#: plans have is several columns.
_TEXT_COLUMNS: Final = [
    name for plan in schema.ARGUMENT_PLANS for group in plan.texts for name in group
]


def native_schema(native: ModuleType) -> object:
    """Return the description of events and arguments that the compiled code needs."""
    plans = []
    for plan in schema.ARGUMENT_PLANS:
        kinds_of_plan = np.flatnonzero(plan.includes_kind)
        kinds = bytes(kinds_of_plan.tolist())
        numbers = bytes(_NUMBER_OF_ARGUMENT[name] for name in plan.numbers)
        groups = [
            bytes(_NUMBER_OF_ARGUMENT[name] for name in group) for group in plan.texts
        ]
        plans.append((kinds, numbers, groups))
    return native.schema(
        list(Event.__struct_fields__),
        list(schema.ARGUMENTS),
        (list(schema.KIND_OF_CATEGORY), bytes(schema.KIND_OF_CATEGORY.values())),
        (list(schema.KIND_OF_PHASE), bytes(schema.KIND_OF_PHASE.values())),
        plans,
        int(EventKind.OTHER),
        BEGIN,
    )


class NativeTimelessEvent(NamedTuple):
    """A `TimelessEvent` as the compiled code returns it."""

    kind: int
    track: int  #: code of its track
    name: str
    label_name: bytes  #: JSON
    labels: bytes  #: JSON


class OddNumber(NamedTuple):
    """A number in an unusual notation (`1e3`, `"12"`), which Python has to parse."""

    column: int  #: number of the argument, or `_TS_COLUMN` or `_DUR_COLUMN`
    row: int  #: its index in the column
    token: bytes  #: the number as JSON


_TS_COLUMN: Final = -2
_DUR_COLUMN: Final = -1


class NativeAnswer(NamedTuple):
    """The result of the compiled code for a slice. Columns are the bytes of arrays."""

    events: int  #: the number of all events in the slice
    #: as `NativeTimelessEvent`
    timeless_events: list[tuple[int, int, str, bytes, bytes]]
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
    """Return the result of the compiled code as a slice."""
    native = NativeAnswer(*answer)
    tracks = [Track(*properties) for properties in native.tracks]
    kind = np.frombuffer(native.kind, np.uint8)
    ts = np.frombuffer(native.ts, np.int64)
    dur = np.frombuffer(native.dur, np.int64)
    numbers = [_piece(rows, values, np.int64) for rows, values in native.numbers]
    for column, odd_numbers in _odd_numbers_of_columns(native).items():
        if column == _TS_COLUMN:
            ts = _with_odd_numbers(ts, odd_numbers, schema.parse_nanoseconds)
        elif column == _DUR_COLUMN:
            dur = _with_odd_numbers(dur, odd_numbers, schema.parse_nanoseconds)
        else:
            piece = numbers[column]
            values = _with_odd_numbers(piece.values, odd_numbers, schema.parse_integers)
            numbers[column] = without_missing(piece.rows, values)
    return Slice(
        count=native.events,
        timeless_events=_timeless_events(native, tracks),
        tracks=tracks,
        names=native.names,
        words=native.words,
        track=np.frombuffer(native.track, np.int32),
        name=np.frombuffer(native.name, np.int32),
        kind=kind,
        ts=ts,
        dur=dur,
        numbers=_number_arguments(numbers, kind),
        texts=_text_arguments(native),
    )


def _odd_numbers_of_columns(native: NativeAnswer) -> dict[int, list[OddNumber]]:
    """Return the numbers that Python has to parse, by their columns."""
    odd_numbers: dict[int, list[OddNumber]] = defaultdict(list)
    for number in map(OddNumber._make, native.odd):
        odd_numbers[number.column].append(number)
    return odd_numbers


def _number_arguments(
    numbers: list[ArgumentPiece], kind: IntArray
) -> dict[str, ArgumentPiece]:
    """Return the arguments that are numbers, by name, in the order of the plans.

    Args:
        numbers: the arguments by their numbers in the compiled code.
        kind: the kind of each event, (m,).
    """
    kinds_of_slice = np.flatnonzero(np.bincount(kind))
    pieces_of_name: dict[str, list[ArgumentPiece]] = {}
    for plan in schema.ARGUMENT_PLANS:
        if plan.includes_kind[kinds_of_slice].any():
            for name in plan.numbers:
                pieces_of_name[name] = [numbers[_NUMBER_OF_ARGUMENT[name]]]
    return joined_arguments(pieces_of_name)


def _text_arguments(native: NativeAnswer) -> dict[str, ArgumentPiece]:
    """Return the arguments that are texts, by name."""
    pieces_of_name: dict[str, list[ArgumentPiece]] = defaultdict(list)
    for name, (rows, codes) in zip(_TEXT_COLUMNS, native.texts, strict=True):
        if rows:
            pieces_of_name[name].append(_piece(rows, codes, np.int32))
    return joined_arguments(pieces_of_name)


def _timeless_events(native: NativeAnswer, tracks: list[Track]) -> list[TimelessEvent]:
    """Return the events that are not on a timeline."""
    timeless_events = []
    for event in map(NativeTimelessEvent._make, native.timeless_events):
        track = tracks[event.track]
        timeless_events.append(
            TimelessEvent(
                kind=event.kind,
                name=event.name,
                process=track.process,
                thread=track.thread,
                label_name=decoded_text(event.label_name),
                labels=decoded_text(event.labels),
            )
        )
    return timeless_events


def _with_odd_numbers(
    values: IntArray, numbers: list[OddNumber], parse: schema.ParseNumbers
) -> Int64Array:
    """Return a column in which the numbers that Python has to parse are filled in."""
    complete: Int64Array = values.astype(np.int64)
    rows = [number.row for number in numbers]
    complete[rows] = parse([number.token for number in numbers])
    return complete


def _piece(rows: bytes, values: bytes, value_type: DTypeLike) -> ArgumentPiece:
    return ArgumentPiece(
        rows=np.frombuffer(rows, np.int32), values=np.frombuffer(values, value_type)
    )
