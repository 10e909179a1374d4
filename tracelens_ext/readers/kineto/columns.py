"""Slices of Kineto's events as columns: of decoded events, or of what the compiled reader answers.

`_native.c` refuses slices that are not quite right, or unusual, and `slice_of` takes those. Of any
other slice both say the same.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from operator import attrgetter
from types import ModuleType
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import DTypeLike

from tracelens_ext.readers.begin_end import BEGIN
from tracelens_ext.readers.builder import Interner
from tracelens_ext.readers.kineto import schema
from tracelens_ext.readers.kineto.schema import Event
from tracelens_ext.text import encodable
from tracelens_ext.trace import EventKind, Int64Array

IntArray: TypeAlias = np.ndarray[Any, np.dtype[np.integer[Any]]]
#: The rows that have an argument, ascending; its values or their codes.
_Piece: TypeAlias = tuple[IntArray, IntArray]
#: (phase, category, process, thread), as the trace spells them.
Lane = tuple[str, str, int | str, int | str]
#: An event that is not on a timeline: its kind, name, process and thread, and its arguments `name`
#: and `labels`.
Special = tuple[int, str, int | str, int | str, str, str]


class Slice(msgspec.Struct, frozen=True):
    """The events of a slice, m of them on a timeline, in codes of its own."""

    count: int  #: how many events the slice holds in all
    special: list[Special]  #: those that are not on a timeline
    lanes: list[Lane]  #: what codes stand for, of all events
    names: list[str]  #: likewise, of those on a timeline
    words: list[bytes]  #: likewise, of texts of arguments: JSON
    lane: IntArray  #: codes, shape (m,)
    name: IntArray  #: codes, shape (m,)
    kind: IntArray  #: `EventKind`s, shape (m,)
    ts: Int64Array  #: ns, shape (m,)
    dur: Int64Array  #: ns, shape (m,)
    numbers: Mapping[str, _Piece]  #: argument → (rows among these m, integers)
    texts: Mapping[str, _Piece]  #: argument → (rows among these m, codes of words)

    def __len__(self) -> int:
        return self.count


def slice_of(events: list[Event]) -> Slice:
    """The columns of decoded events."""
    count = len(events)
    lanes: Interner[Lane] = Interner()
    names: Interner[str] = Interner()
    lane = lanes.codes([(e.ph, e.cat, e.pid, e.tid) for e in events], count)
    kind = np.array([schema.kind_of(*about[:2]) for about in lanes], np.uint8)[lane]
    special: list[Special] = []
    for row in np.flatnonzero(kind >= schema.METADATA).tolist():
        e = events[row]
        about = _decoded(e.args.name), _decoded(e.args.labels)
        special.append((int(kind[row]), e.name, e.pid, e.tid, *about))
    if special:
        keep = np.flatnonzero(kind < schema.METADATA)
        events = [events[row] for row in keep.tolist()]
        lane = lane[keep]
        kind = kind[keep]
    name = names.codes([e.name for e in events], len(events))
    words: Interner[bytes] = Interner()
    arguments = _arguments(events, kind, words)
    ts = schema.parse_nanoseconds([e.ts for e in events])
    dur = schema.parse_nanoseconds([e.dur for e in events])
    values = list(lanes), list(names), list(words)
    return Slice(count, special, *values, lane, name, kind, ts, dur, *arguments)


def _arguments(
    events: list[Event], kind: IntArray, words: Interner[bytes]
) -> tuple[dict[str, _Piece], dict[str, _Piece]]:
    numbers: dict[str, list[_Piece]] = defaultdict(list)
    texts: dict[str, list[_Piece]] = defaultdict(list)
    for plan in schema.PLAN:
        rows = np.flatnonzero(plan.wanted[kind])
        having = [events[row] for row in rows.tolist()]
        if not having:
            continue
        for name in plan.numbers:
            of = attrgetter("id" if name == schema.FLOW_ID else f"args.{schema.ARGUMENTS[name]}")
            numbers[name].append(_without_missing(rows, schema.parse_integers([*map(of, having)])))
        for group in plan.texts:
            first = schema.ARGUMENTS[group[0]]
            said = [i for i, e in enumerate(having) if getattr(e.args, first) is not schema.NO_TEXT]
            for name in group if said else ():
                of = attrgetter(f"args.{schema.ARGUMENTS[name]}")
                codes = words.codes([bytes(of(having[i])) for i in said], len(said))
                there = (codes != words[b""]) & (codes != words[b"null"])
                texts[name].append((rows[said][there], codes[there]))
    return _joined(numbers), _joined(texts)


def _without_missing(rows: IntArray, values: Int64Array) -> _Piece:
    there = values != schema.MISSING
    return rows[there], values[there]


def _joined(pieces: Mapping[str, list[_Piece]]) -> dict[str, _Piece]:
    """The arguments that events have, rows ascending, of what was found of several plans."""
    found = {}
    for name, parts in pieces.items():
        rows, values = map(np.concatenate, zip(*parts, strict=True))
        order = np.argsort(rows, kind="stable")
        if len(rows):
            found[name] = rows[order], values[order]
    return found


def _decoded(text: bytes) -> str:
    """The text that a JSON string stands for, as `repair` would have it; empty when it is none."""
    with suppress(ValueError, RecursionError):
        value = json.loads(bytes(text).decode("utf-8", "surrogateescape"), strict=False)
        return encodable(value) if isinstance(value, str) else ""
    return ""


# The compiled reader.

_PLACE = {name: place for place, name in enumerate((*schema.ARGUMENTS, schema.FLOW_ID))}


def native_schema(native: ModuleType) -> object:
    """What the compiled code looks for."""
    plans = []
    for plan in schema.PLAN:
        numbers, *groups = (bytes(_PLACE[name] for name in g) for g in (plan.numbers, *plan.texts))
        plans.append((bytes(np.flatnonzero(plan.wanted).tolist()), numbers, groups))
    words = [(list(codes), bytes(codes.values())) for codes in (schema.CATEGORIES, schema.PHASES)]
    fields = list(Event.__struct_fields__)
    kinds = (int(EventKind.OTHER), BEGIN)
    return native.schema(fields, list(schema.ARGUMENTS), *words, plans, *kinds)


def native_slice(answer: tuple[Any, ...]) -> Slice:
    """The columns of what the compiled code says of a slice.

    Special events have their arguments `name` and `labels` as JSON; columns are bytes; `odd` are
    numbers that are no plain ones: (argument, or -2 for `ts` and -1 for `dur`; place; JSON).
    """
    count, special, lanes, names, words, lane, name, kind, ts, dur, numbers, columns, odd = answer
    kinds = np.frombuffer(kind, np.uint8)
    pieces = [_piece(rows, values, np.int64) for rows, values in numbers]
    times = [np.frombuffer(each, np.int64) for each in (ts, dur)]
    for column in {column for column, *_ in odd}:
        places, tokens = zip(*(each[1:] for each in odd if each[0] == column), strict=True)
        parse = schema.parse_nanoseconds if column < 0 else schema.parse_integers
        values = (times[column] if column < 0 else pieces[column][1]).copy()
        values[list(places)] = parse(tokens)
        if column < 0:
            times[column] = values
        else:
            pieces[column] = _without_missing(pieces[column][0], values)
    wanted = (plan for plan in schema.PLAN if plan.wanted[np.flatnonzero(np.bincount(kinds))].any())
    of_number = {n: [pieces[_PLACE[n]]] for plan in wanted for n in plan.numbers}
    of_text: dict[str, list[_Piece]] = defaultdict(list)
    names_of_texts = (name for plan in schema.PLAN for group in plan.texts for name in group)
    for argument, (rows, codes) in zip(names_of_texts, columns, strict=True):
        if rows:
            of_text[argument].append(_piece(rows, codes, np.int32))
    others: list[Special] = [
        (at, event, *lanes[i][2:], *map(_decoded, about)) for at, i, event, *about in special
    ]
    codes = [np.frombuffer(each, np.int32) for each in (lane, name)]
    columns = (*codes, kinds, *times, _joined(of_number), _joined(of_text))
    return Slice(count, others, lanes, names, words, *columns)


def _piece(rows: bytes, values: bytes, kind: DTypeLike) -> _Piece:
    return np.frombuffer(rows, np.int32), np.frombuffer(values, kind)
