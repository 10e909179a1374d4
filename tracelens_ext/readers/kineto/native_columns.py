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
    IntArray,
    Slice,
    Special,
    Track,
    decoded_text,
    joined_arguments,
    without_missing,
)
from tracelens_ext.readers.kineto.schema import Event
from tracelens_ext.trace import EventKind, Int64Array

#: Name of an argument → its number in the compiled code.
_NUMBER_OF_ARGUMENT: Final = {
    name: number
    for number, name in enumerate(tuple(schema.ARGUMENTS) + (schema.FLOW_ID,))
}
#: Number of a column of texts in the compiled code → name of the argument. An argument that several
#: plans have is several columns.
_TEXT_COLUMNS: Final = [
    name for plan in schema.PLAN for group in plan.texts for name in group
]


def native_schema(native: ModuleType) -> object:
    """Return the description of events and arguments that the compiled code needs."""
    plans = []
    for plan in schema.PLAN:
        wanted_kinds = np.flatnonzero(plan.wanted)
        kinds = bytes(wanted_kinds.tolist())
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


class NativeSpecial(NamedTuple):
    """A `Special` event as the compiled code returns it."""

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
    """Return the result of the compiled code as a slice."""
    native = NativeAnswer(*answer)
    tracks = [Track(*properties) for properties in native.tracks]
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
        pieces[column] = without_missing(pieces[column].rows, values)

    kinds_of_slice = np.flatnonzero(np.bincount(kind))
    pieces_of_name: dict[str, list[ArgumentPiece]] = {}
    for plan in schema.PLAN:
        if plan.wanted[kinds_of_slice].any():
            for name in plan.numbers:
                pieces_of_name[name] = [pieces[_NUMBER_OF_ARGUMENT[name]]]
    texts: dict[str, list[ArgumentPiece]] = defaultdict(list)
    for name, (rows, codes) in zip(_TEXT_COLUMNS, native.texts, strict=True):
        if rows:
            texts[name].append(_piece(rows, codes, np.int32))

    return Slice(
        count=native.events,
        special=_special_events(native, tracks),
        tracks=tracks,
        names=native.names,
        words=native.words,
        track=np.frombuffer(native.track, np.int32),
        name=np.frombuffer(native.name, np.int32),
        kind=kind,
        ts=times[_TS_COLUMN],
        dur=times[_DUR_COLUMN],
        numbers=joined_arguments(pieces_of_name),
        texts=joined_arguments(texts),
    )


def _special_events(native: NativeAnswer, tracks: list[Track]) -> list[Special]:
    """Return the events that are not on a timeline."""
    special = []
    for event in map(NativeSpecial._make, native.special):
        track = tracks[event.track]
        special.append(
            Special(
                kind=event.kind,
                name=event.name,
                process=track.process,
                thread=track.thread,
                label_name=decoded_text(event.label_name),
                labels=decoded_text(event.labels),
            )
        )
    return special


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
