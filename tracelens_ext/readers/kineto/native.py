"""Slices of text to columns by compiled code (`_native.c`), where it was built.

It refuses slices that are not quite right, or unusual, and `SliceReader` takes those. Of any other
slice both say the same.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from msgspec import Raw

from tracelens_ext.readers.kineto.columns import (
    MOMENTARY,
    SliceColumns,
    in_row_order,
    special_of,
)
from tracelens_ext.readers.kineto.schema import (
    CATEGORIES,
    MISSING,
    NAME_IN_FILE,
    PHASES,
    PLAN,
    Event,
    mend,
    parse_integers,
    parse_nanoseconds,
)
from tracelens_ext.trace import EventKind

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from numpy.typing import DTypeLike

    from tracelens_ext.readers.kineto.columns import ArgPieces, IntArray, Lane, SliceReader

_decode_text = msgspec.json.Decoder(str).decode


class Parsed(NamedTuple):
    """A slice in codes of its own; columns as bytes.

    Attributes:
        events: how many it holds.
        special: (kind, lane, name, its arguments `name` and `labels` as JSON).
        lanes, names, texts: the values behind the codes.
        numbers: by argument, the flow's id last: rows, values.
        columns: by text of a plan: rows, codes.
        odd: numbers that are no plain ones: (argument, or -2 for `ts` and -1 for `dur`;
            place; JSON).
    """

    events: int
    special: list[tuple[int, int, str, bytes, bytes]]
    lanes: list[Lane]
    names: list[str]
    texts: list[bytes]
    lane: bytes
    name: bytes
    kind: bytes
    ts: bytes
    dur: bytes
    numbers: list[tuple[bytes, bytes]]
    columns: list[tuple[bytes, bytes]]
    odd: list[tuple[int, int, bytes]]


_FIELDS = list(Event.__struct_fields__)
_ARGUMENTS = list(NAME_IN_FILE.values())
_FLOW_ID = len(_ARGUMENTS)
_PLACE = {field: place for place, field in enumerate(NAME_IN_FILE)}


class NativeReader:
    """Makes columns of text, in the codes of `slices`, for `take`; a `QuickReader`."""

    def __init__(
        self, native: ModuleType, slices: SliceReader, take: Callable[[SliceColumns], None]
    ) -> None:
        self._parse = functools.partial(native.parse, _schema(native))
        self._slices, self._take = slices, take

    def parse(self, text: bytes) -> Parsed | None:
        """What a slice holds, None if it is refused; any thread may ask."""
        try:
            answer = self._parse(text, _decode_text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return None if answer is None else Parsed(*answer)

    def take(self, parsed: Parsed) -> int:
        """Take over a slice; slices come in the order of the file."""
        self._take(self.columns(parsed))
        return parsed.events

    def columns(self, found: Parsed) -> SliceColumns:
        """The columns of a slice."""
        slices = self._slices
        kind = np.frombuffer(found.kind, np.uint8)
        times: list[IntArray] = [np.frombuffer(each, np.int64) for each in (found.ts, found.dur)]
        numbers = [_piece(*each, np.int64) for each in found.numbers]
        _mend_odd(found.odd, times, numbers)
        ts, dur = times
        special = [
            special_of(kind, name, *found.lanes[lane][2:], *args)
            for kind, lane, name, *args in found.special
        ]
        lanes = slices.lanes.codes(found.lanes, len(found.lanes))
        names = slices.names.codes(found.names, len(found.names))
        texts = slices.texts.codes(found.texts, len(found.texts))
        columns = [_piece(*each, np.int32) for each in found.columns]
        return SliceColumns(
            found.events,
            special,
            lanes[np.frombuffer(found.lane, np.int32)],
            names[np.frombuffer(found.name, np.int32)],
            kind,
            ts,
            np.where((kind >= MOMENTARY) & (dur < 0), 0, dur),
            _of_numbers(numbers, kind),
            _of_texts(columns, texts, len(kind)),
        )


def _schema(native: ModuleType) -> object:
    """What the compiled code looks for."""
    plans = []
    for plan in PLAN:
        numbers = [_PLACE[field] for field in plan.numbers] + [_FLOW_ID] * plan.flow_id
        groups = [bytes(_PLACE[field] for field in group) for group in plan.texts]
        plans.append((bytes(np.flatnonzero(plan.wanted).tolist()), bytes(numbers), groups))
    words = [(list(codes), bytes(codes.values())) for codes in (CATEGORIES, PHASES)]
    return native.schema(_FIELDS, _ARGUMENTS, *words, plans, int(EventKind.OTHER))


def _piece(rows: bytes, values: bytes, kind: DTypeLike) -> tuple[IntArray, IntArray]:
    return np.frombuffer(rows, np.int32), np.frombuffer(values, kind)


def _mend_odd(
    odd: list[tuple[int, int, bytes]],
    times: list[IntArray],
    numbers: list[tuple[IntArray, IntArray]],
) -> None:
    """Put the numbers that are no plain ones into their columns."""
    places: dict[int, list[int]] = {}
    tokens: dict[int, list[Raw]] = {}
    for column, place, token in odd:
        places.setdefault(column, []).append(place)
        tokens.setdefault(column, []).append(Raw(token))
    for column, found in places.items():
        mended = mend(tokens[column], integer=column >= 0)
        if column < 0:
            times[column] = times[column].copy()
            times[column][found] = parse_nanoseconds(mended)
        else:
            rows, values = numbers[column][0], numbers[column][1].copy()
            values[found] = parse_integers(mended)
            numbers[column] = rows[values != MISSING], values[values != MISSING]


def _of_numbers(numbers: list[tuple[IntArray, IntArray]], kind: IntArray) -> ArgPieces:
    """Those arguments that events have, in the order of the plans of the kinds there are."""
    found: dict[str, tuple[IntArray, IntArray]] = {}
    kinds = np.flatnonzero(np.bincount(kind))
    for plan in PLAN:
        if not plan.wanted[kinds].any():
            continue
        wanted = [("flow id", _FLOW_ID)] if plan.flow_id else []
        wanted += [(NAME_IN_FILE[field], _PLACE[field]) for field in plan.numbers]
        found |= {name: numbers[place] for name, place in wanted if len(numbers[place][0])}
    return found


def _of_texts(columns: list[tuple[IntArray, IntArray]], texts: IntArray, count: int) -> ArgPieces:
    """As `_of_numbers`; each plan has columns of its own."""
    found: dict[str, list[tuple[IntArray, IntArray]]] = {}
    fields = (field for plan in PLAN for group in plan.texts for field in group)
    for field, column in zip(fields, columns, strict=True):
        if len(column[0]):
            found.setdefault(NAME_IN_FILE[field], []).append(column)
    return {
        name: in_row_order(
            [rows for rows, _ in pieces], texts[np.concatenate([c for _, c in pieces])], count
        )
        for name, pieces in found.items()
    }
