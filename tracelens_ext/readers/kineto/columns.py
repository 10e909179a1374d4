"""Decoded Kineto events to columns, a slice at a time, in codes of interners.

This is the reference for `native.py`, whose answers are the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
from msgspec import Raw

from tracelens_ext.readers.builder import Interner
from tracelens_ext.readers.kineto.schema import (
    METADATA,
    MISSING,
    NAME_IN_FILE,
    NO_TEXT,
    PLAN,
    Args,
    Event,
    UnusualNumberError,
    kind_of,
    mend,
    parse_integers,
    parse_nanoseconds,
)
from tracelens_ext.text import encodable
from tracelens_ext.trace import EventKind

if TYPE_CHECKING:
    from collections.abc import Callable

IntArray: TypeAlias = np.ndarray[Any, np.dtype[np.integer[Any]]]
#: Argument → (rows that have it, its values or their codes).
ArgPieces: TypeAlias = Mapping[str, tuple[IntArray, IntArray]]
#: (phase, category, process, thread), as the trace spells them.
Lane = tuple[str, str, int | str, int | str]
#: The first of the kinds whose events may lack a duration.
MOMENTARY = EventKind.FLOW_START
#: An event that is not on a timeline: its kind, name, process and thread, and its arguments `name`
#: and `labels`.
Special = tuple[int, str, int | str, int | str, str, str]


class SliceColumns(msgspec.Struct, frozen=True):
    """The events of a slice, m of them on a timeline.

    Attributes:
        count: how many events the slice holds in all.
        special: those that are not on a timeline.
        lane: codes of (phase, category, process, thread), shape (m,).
        name: codes of names, shape (m,).
        kind: `EventKind`s, shape (m,).
        ts, dur: ns, shape (m,).
        numbers: argument → (rows among these m, integers).
        texts: argument → (rows among these m, codes of texts).
    """

    count: int
    special: list[Special]
    lane: IntArray
    name: IntArray
    kind: IntArray
    ts: IntArray
    dur: IntArray
    numbers: ArgPieces
    texts: ArgPieces


class SliceReader:
    """Makes events of text, and columns of events.

    Args:
        names, texts: interners for the codes of names, and of argument texts (bytes).

    Attributes:
        lanes: interner for the codes of lanes.
    """

    def __init__(self, names: Interner[str], texts: Interner[bytes]) -> None:
        self.names, self.texts = names, texts
        self.lanes: Interner[Lane] = Interner()
        self._decoder = msgspec.json.Decoder(list[Event])
        self._kind_of_lane = np.empty(0, dtype=np.uint8)

    def decode(self, text: bytes | memoryview) -> list[Event]:
        """Decode a JSON array of events; raises `msgspec.DecodeError` when one is unusual."""
        return self._decoder.decode(text)

    def columns(self, events: list[Event]) -> SliceColumns:
        """The columns of a slice's events."""
        count = len(events)
        lane = self.lanes.codes(
            zip(
                [e.ph for e in events],
                [e.cat for e in events],
                [e.pid for e in events],
                [e.tid for e in events],
                strict=True,
            ),
            count,
        )
        if len(self.lanes) > len(self._kind_of_lane):
            further = islice(self.lanes, len(self._kind_of_lane), None)
            kinds = [kind_of(phase, category) for phase, category, _, _ in further]
            self._kind_of_lane = np.append(self._kind_of_lane, np.array(kinds, dtype=np.uint8))
        kind = self._kind_of_lane[lane]
        special: list[Special] = []
        rows = np.flatnonzero(kind >= METADATA)
        if len(rows):
            for row in rows.tolist():
                e = events[row]
                args = e.args.name, e.args.labels
                special.append(special_of(int(kind[row]), e.name, e.pid, e.tid, *args))
            keep = np.flatnonzero(kind < METADATA)
            events = [events[row] for row in keep.tolist()]
            lane, kind = lane[keep], kind[keep]
        ts = _parse([e.ts for e in events], parse_nanoseconds)
        dur = _parse([e.dur for e in events], parse_nanoseconds)
        dur[(kind >= MOMENTARY) & (dur < 0)] = 0
        name = self.names.codes([e.name for e in events], len(events))
        return SliceColumns(
            count, special, lane, name, kind, ts, dur, *self._arguments(events, kind)
        )

    def _arguments(self, events: list[Event], kind: IntArray) -> tuple[ArgPieces, ArgPieces]:
        numbers: dict[str, tuple[list[IntArray], list[Raw]]] = {}
        texts: dict[str, tuple[list[IntArray], list[IntArray]]] = {}
        for plan in PLAN:
            rows = np.flatnonzero(plan.wanted[kind])
            if not len(rows):
                continue
            having = [events[row] for row in rows.tolist()]
            if plan.flow_id:
                numbers["flow id"] = [rows], [e.id for e in having]
            args = [e.args for e in having] if plan.numbers or plan.texts else []
            for field in plan.numbers:
                of_plans, tokens = numbers.setdefault(NAME_IN_FILE[field], ([], []))
                of_plans.append(rows)
                tokens += map(attrgetter(field), args)
            for group in plan.texts:
                for field, (having_text, codes) in self._text_group(rows, args, group).items():
                    of_plans, of_texts = texts.setdefault(NAME_IN_FILE[field], ([], []))
                    of_plans.append(having_text)
                    of_texts.append(codes)
        count = len(events)
        return _parsed(numbers, count), {
            name: in_row_order(of_plans, np.concatenate(codes), count)
            for name, (of_plans, codes) in texts.items()
        }

    def _text_group(
        self, rows: IntArray, args: list[Args], fields: tuple[str, ...]
    ) -> dict[str, tuple[IntArray, IntArray]]:
        leader = attrgetter(fields[0])
        having = [i for i, a in enumerate(args) if leader(a) is not NO_TEXT]
        if not having:
            return {}
        rows, args = rows[having], [args[i] for i in having]
        result: dict[str, tuple[IntArray, IntArray]] = {}
        for field in fields:
            tokens = list(map(attrgetter(field), args))
            codes = self.texts.codes(map(bytes, tokens), len(tokens))
            present = (codes != self.texts[b""]) & (codes != self.texts[b"null"])
            if present.any():
                result[field] = (rows[present], codes[present])
        return result


def special_of(
    kind: int, event: str, process: int | str, thread: int | str, name: bytes, labels: bytes
) -> Special:
    """An event that is not on a timeline; of its arguments the JSON, empty if it has none."""
    return kind, event, process, thread, _decoded(name), _decoded(labels)


def _parsed(
    tokens_of: Mapping[str, tuple[list[IntArray], list[Raw]]], count: int
) -> dict[str, tuple[IntArray, IntArray]]:
    """The integers that several kinds of `count` events have; rows ascending."""
    result: dict[str, tuple[IntArray, IntArray]] = {}
    for name, (of_plans, tokens) in tokens_of.items():
        rows, values = in_row_order(of_plans, _parse(tokens, parse_integers), count)
        present = values != MISSING
        if not present.all():
            rows, values = rows[present], values[present]
        if len(rows):
            result[name] = rows, values
    return result


def in_row_order(
    of_plans: list[IntArray], values: IntArray, count: int
) -> tuple[IntArray, IntArray]:
    """Join the rows, among `count`, that several plans found; rows ascending, values likewise."""
    if len(of_plans) == 1:
        return of_plans[0], values
    rows = np.concatenate(of_plans)
    by_row, has = np.empty(count, dtype=values.dtype), np.zeros(count, dtype=bool)
    by_row[rows], has[rows] = values, True
    rows = np.flatnonzero(has)
    return rows, by_row[rows]


def _parse(tokens: list[Raw], parse: Callable[[list[Raw]], IntArray]) -> IntArray:
    try:
        return parse(tokens)
    except UnusualNumberError:
        return parse(mend(tokens, integer=parse is parse_integers))


def _decoded(text: bytes) -> str:
    """The text that a JSON string stands for, as `repair` would have it; empty when it is none."""
    if not bytes(text):
        return ""
    try:
        return msgspec.json.decode(text, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        with suppress(ValueError, RecursionError):
            value = json.loads(bytes(text).decode("utf-8", "surrogateescape"), strict=False)
            return encodable(value) if isinstance(value, str) else ""
        return ""
