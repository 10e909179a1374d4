"""Packets of a Perfetto trace as events: slices, instants, GPU work, values of GPU counters."""

from __future__ import annotations

import json
import re
import struct
from collections import defaultdict
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.readers.builder import Interner, of_rows
from tracelens_ext.readers.kineto.schema import FLOW_ID, PLAN
from tracelens_ext.readers.perfetto import packets as said
from tracelens_ext.readers.perfetto.packets import Message, Sequences, number_in
from tracelens_ext.readers.xplane.many_messages import VARINT, Bytes, Fields, fields_of, varints
from tracelens_ext.trace import NONE, BoolArray, Int64Array

#: Of `TracePacket`.
_TRACK_EVENT = 11
_COUNTER_EVENT = 52
_STAGE_EVENT = 53
_DESCRIPTOR = 60
_FOREIGN = (1, 2, 5, 51)  # of the kernel of a phone, its processes, and of Chrome
#: Types of `TrackEvent`, and two of our own.
BEGIN = 1
END = 2
INSTANT = 3
STAGE = 4
VALUE = 5
#: Argument → whether it is a text, and the kinds of events of which it is wanted.
KINDS_WITH: Final = {
    name: (as_text, np.any([p.wanted for p, names in plans if name in names], axis=0))
    for as_text, plans in (
        (False, [(p, p.numbers) for p in PLAN]),
        (True, [(p, sum(p.texts, ())) for p in PLAN]),
    )
    for name in sorted({name for _, names in plans for name in names} - {FLOW_ID})
}
#: Arguments that are read, and those that only tell what an event is; and other names of the same.
WANTED: Final = tuple(dict.fromkeys((*KINDS_WITH, "grid", "cbid")))
_NUMBERS_AS_TEXT: Final = [
    place for place, name in enumerate(WANTED) if name.endswith(("nelems", "Group size"))
]
_ALIASES: Final = {"corr_id": "correlation", "metadata": "annotation", "grid_size": "grid"}
_NUMBER: Final = re.compile(rb"(\d{1,9})\s*$")
#: What the value of an argument is: a whole number; else the code of JSON, of a text, of a text
#: that may stand for a number, or of the rest of the message of its annotation.
WHOLE, TOKEN, TEXT, LOOSE, MESSAGE = range(5)


class Track(NamedTuple):
    """What the file says of a track; of itself, not of those around it."""

    parent: int
    name: str
    process: int | None
    process_name: str
    thread: tuple[int, int] | None  #: process and thread


_Rows = list[tuple[Int64Array, ...]]


def _frame(names: str, pieces: _Rows) -> pd.DataFrame:
    """Rows of whole numbers, which came in pieces."""
    none = (np.empty(0, dtype=np.int64),) * len(names.split())
    columns = map(np.concatenate, zip(none, *pieces, strict=True))
    return pd.DataFrame(dict(zip(names.split(), columns, strict=True)))


class Events:
    """The events of a file on their way to a trace.

    Attributes: `count`, packets of events so far; `is_foreign`, whether some are of a phone or a
    browser; `raw`, the bytes; `texts` by code; `tracks` by uuid; `places`: process and stream of
    GPU work.
    """

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self.raw = memoryview(data.data)
        self._sequences = Sequences(data)
        self.texts = self._sequences.texts
        self.count = 0
        self.is_foreign = False
        self._columns = _Rows()
        self._arguments = _Rows()
        self._submitted = _Rows()
        self._work_ids = _Rows()
        self.tracks: dict[int, Track] = {}
        self.places: Interner[tuple[int | str, int | str]] = Interner()
        self._wanted = np.empty(0, dtype=np.int64)

    def take(self, packets: Fields, count: int) -> None:
        """Take over the packets of a window."""
        state, time = self._sequences.take(packets, count)
        self.is_foreign |= bool(np.isin(packets.key >> 3, _FOREIGN).any())
        for _, descriptor in said.messages(self.raw, packets, _DESCRIPTOR):
            self.tracks[number_in(descriptor, 1)] = self._track(descriptor)
        packet, start, end = packets.contents(_TRACK_EVENT)
        self._track_events(time[packet], state[packet], fields_of(self._data, start, end))
        packet, start, end = packets.contents(_STAGE_EVENT)
        self._stages(time[packet], state[packet], fields_of(self._data, start, end))
        for at, event in said.messages(self.raw, packets, _COUNTER_EVENT):
            self._counter_values(int(time[at]), int(state[at]), event)

    def _track(self, descriptor: Message) -> Track:
        process, thread = (next(said.parts_of(self.raw, descriptor, n), None) for n in (3, 4))
        names = ((thread or {}, 5), (descriptor, 2), (descriptor, 10))
        return Track(
            number_in(descriptor, 5),
            next(filter(None, (said.text_in(self.raw, *name) for name in names)), ""),
            None if process is None else number_in(process, 1),
            said.text_in(self.raw, process or {}, 6),
            None if thread is None else (number_in(thread, 1), number_in(thread, 2)),
        )

    def _add(self, *columns: Int64Array) -> None:
        self._columns.append(columns)
        self.count += len(columns[0])

    def columns(self) -> pd.DataFrame:
        """All events: times in ns; type; track: uuid, or of GPU work and values a place; codes."""
        return _frame("time duration type track name category", self._columns)

    def arguments(self) -> pd.DataFrame:
        """The arguments of all events: event, index into `WANTED`, form, value."""
        found = _frame("event name form value", self._arguments)
        return found[found["event"] < self.count]  # not of a window that is damaged

    def submissions(self) -> tuple[Int64Array, Int64Array]:
        """Calls, and the GPU work that each says it has submitted, (s,)."""
        work = _frame("work id", self._work_ids).drop_duplicates("id")
        found = _frame("call id", self._submitted).merge(work, on="id")
        found = found[(found["call"] < self.count) & (found["work"] < self.count)]
        return found["call"].to_numpy(), found["work"].to_numpy()

    def _track_events(self, time: Int64Array, state: Int64Array, found: Fields) -> None:
        count = len(time)
        sequences = self._sequences
        interned = sequences.interned
        kind = found.numbers(9, count)
        track = found.numbers(11, count)
        kind[(kind < 0) | (kind > INSTANT)] = 0
        if sequences.track:
            usual = [sequences.track.get(each, 0) for each in range(int(state.max(initial=0)) + 1)]
            track = np.where(track == 0, np.array(usual)[state], track)
        name = sequences.text(found, 23, count)
        category = sequences.text(found, 22, count)
        starts = np.flatnonzero(kind != END)
        for column, number, field in ((name, said.NAME, 10), (category, said.CATEGORY, 3)):
            codes = interned[number].find(state[starts], found.numbers(field, count)[starts])
            column[starts] = np.where(codes == NONE, column[starts], codes)
        message, start, end = found.contents(3000)
        if len(message):
            inner = fields_of(self._data, start, end)
            ids = inner.key == 1 << 3 | VARINT
            self._submitted.append((self.count + message[inner.message[ids]], inner.value[ids]))
        message, start, end = found.contents(4)
        self._annotations(message, state[message], start, end)
        self._add(time, np.zeros(count, dtype=np.int64), kind, track, name, category)

    def _wanted_of(self, names: Int64Array) -> Int64Array:
        """The places in `WANTED` of codes of names, `NONE` of others."""
        texts = list(self.texts)[len(self._wanted) :]
        if texts:
            places = {name.encode(): place for place, name in enumerate(WANTED)}
            places |= {a.encode(): places[b.encode()] for a, b in _ALIASES.items() if b in WANTED}
            self._wanted = np.append(self._wanted, [places.get(text, NONE) for text in texts])
        return np.where(names == NONE, NONE, self._wanted[names]).astype(np.int64)

    def _annotations(
        self, event: Int64Array, state: Int64Array, start: Int64Array, end: Int64Array
    ) -> None:
        """Keep the debug annotations that are wanted: whole numbers, or the bytes of a value."""
        interned = self._sequences.interned
        value, after = varints(self._data, start + 1)
        first = self._data[start]
        named = first == 0x52  # as text; else by number
        name = np.full(len(event), NONE, dtype=np.int64)
        numbered = np.flatnonzero(first == 0x08)
        name[numbered] = interned[said.ARGUMENT].find(state[numbered], value[numbered])
        texts = np.flatnonzero(named & (value <= end - after) & (value >= 0) & (after > 0))
        name[texts] = self._sequences.slices(after[texts], (after + value)[texts])
        after[texts] += value[texts]
        wanted = self._wanted_of(name)
        keep = np.flatnonzero((wanted != NONE) & (after > 0) & (after < end))
        event, wanted, state, start, end = (c[keep] for c in (event, wanted, state, after, end))
        whole = (self._data[start] & 7 == VARINT) & (self._data[start] < 0x28)
        value, after = varints(self._data, start + 1)
        whole &= (after > 0) & (after <= end)
        texts = np.flatnonzero(~whole)
        value[texts] = self._sequences.slices(start[texts], end[texts])
        form = np.where(whole, WHOLE, MESSAGE)
        by_number = texts[(self._data[start[texts]] == 0x88) & (self._data[start[texts] + 1] == 1)]
        number = varints(self._data, start[by_number] + 2)[0]
        value[by_number] = interned[said.TEXT].find(state[by_number], number)
        form[by_number] = TEXT
        self._arguments.append((self.count + event, wanted, form, value))

    def _stages(self, time: Int64Array, state: Int64Array, found: Fields) -> None:
        count = len(time)
        sequences = self._sequences
        interned = sequences.interned
        if not count:
            return
        name = interned[said.KERNEL].find(state, found.numbers(19, count))
        other = interned[said.NAME].find(state, found.numbers(20, count))
        stage = interned[said.STAGE].find(state, found.numbers(14, count))
        name = np.where(name == NONE, np.where(other == NONE, stage, other), name)
        queue = interned[said.STAGE].find(state, found.numbers(13, count))
        gpu = found.numbers(11, count)
        texts = [*self.texts, b"?"]  # the last one is that of `NONE`
        lane = of_rows(lambda g, of: self.places[g, _number_at_end(texts[of])], gpu, queue)
        work = self.count + np.arange(count)
        self._work_ids.append((work, found.numbers(1, count)))
        message, start, end = found.contents(6)
        data = fields_of(self._data, start, end)
        wanted = np.full(len(message), NONE, dtype=np.int64)
        value = wanted.copy()
        pair, a, b = data.contents(1)
        wanted[pair] = self._wanted_of(sequences.slices(a, b))
        pair, a, b = data.contents(2)
        used = wanted[pair] != NONE
        value[pair[used]] = sequences.slices(a[used], b[used])
        keep = np.flatnonzero((wanted != NONE) & (value != NONE))
        form = np.where(np.isin(wanted[keep], _NUMBERS_AS_TEXT), LOOSE, TEXT)
        self._arguments.append((work[message[keep]], wanted[keep], form, value[keep]))
        self._add(time, found.numbers(2, count), np.full(count, STAGE), lane, name, stage)

    def _counter_values(self, time: int, state: int, event: Message) -> None:
        names = self._sequences.counters.get((state, number_in(event, 4)), (0, {}))
        gpu = number_in(event, 3) or names[0]
        known = names[1] or said.counter_names(self.raw, event)[1]
        for value in said.parts_of(self.raw, event, 2):
            number = (value.get(2) or value.get(3) or [0])[-1]
            if not isinstance(number, int):
                number = struct.unpack_from("<d", self.raw, number[0])[0]
            name = known.get(number_in(value, 1), f"counter {number_in(value, 1)}")
            row = (self.count, WANTED.index(""), TOKEN, self.texts[json.dumps(number).encode()])
            place = self.places[f"GPU {gpu} Counters", "?"]
            columns = (time, 0, VALUE, place, self.texts[name.encode()], NONE)
            self._arguments.append(tuple(np.array([each]) for each in row))
            self._add(*(np.array([each]) for each in columns))


def _number_at_end(text: bytes) -> int | str:
    """7 of `Stream 7`; the text itself if there is no number."""
    found = _NUMBER.search(text)
    return int(found[1]) if found else text.decode("utf-8", "replace")


def ends_of(begins: BoolArray, track: Int64Array, time: Int64Array) -> Int64Array:
    """The end of each begin, `NONE` without one and for ends.

    A track is a stack: an end is that of the last begin that has none yet. The order is that of the
    file, if the times of each track are in order there. A file may also have all begins of a kind,
    then all their ends, the first for the first; what is left is put in order of time, ends before
    begins.
    """
    result = np.full(len(begins), NONE, dtype=np.int64)
    order = np.argsort(track, kind="stable")
    if not (np.diff(time[order])[np.diff(track[order]) == 0] < 0).any():
        _match(order, begins, track, result)
        return result
    _match_runs(begins, track, time, result)
    taken = np.zeros(len(begins), dtype=bool)
    taken[result[result != NONE]] = True
    left = np.flatnonzero((result == NONE) & ~taken)
    _match(left[np.lexsort((begins[left], time[left], track[left]))], begins, track, result)
    return result


def _match_runs(begins: BoolArray, track: Int64Array, time: Int64Array, result: Int64Array) -> None:
    """Match runs of begins with as many ends behind them on their tracks, if no slices cross."""
    bounds = np.append(np.flatnonzero(np.diff(begins, prepend=not begins[0])), len(begins))
    size = np.diff(bounds)
    run = np.flatnonzero(begins[bounds[:-2]] & (size[:-1] == size[1:]))
    if not len(run):
        return
    last = np.cumsum(size[run])
    size = size[run]
    first = np.repeat(bounds[run] - (last - size), size) + np.arange(last[-1])
    second = first + np.repeat(size, size)
    fits = (track[first] == track[second]) & (time[first] <= time[second])
    ends = time[second]
    crosses = (time[first][1:] < ends[:-1]) & (ends[:-1] < ends[1:]) & (np.diff(first) == 1)
    crosses &= (np.diff(track[first]) == 0) & (time[first][1:] >= time[first][:-1])
    fits[1:] &= ~crosses
    whole = np.repeat(np.logical_and.reduceat(fits, last - size), size)
    result[first[whole]] = second[whole]


def _match(order: Int64Array, begins: BoolArray, track: Int64Array, result: Int64Array) -> None:
    """Match what is in order, track by track; ends that nothing began are passed over."""
    begun: dict[int, list[int]] = defaultdict(list)
    pairs: list[tuple[int, int]] = []
    columns = (column.tolist() for column in (order, begins[order], track[order]))
    for row, is_begin, of in zip(*columns, strict=True):
        if is_begin:
            begun[of].append(row)
        elif begun[of]:
            pairs.append((begun[of].pop(), row))
    if pairs:
        first, second = np.array(pairs).T
        result[first] = second
