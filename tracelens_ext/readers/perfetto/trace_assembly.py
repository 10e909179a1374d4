"""Reader for Perfetto traces: packets of track events, of GPU render stages and of GPU counters.

Supports: what PyTorch's CUPTI monitor writes (slices, or render stages with the fields that it adds
to Perfetto's), rocprofv3, rocprof-sys: interned names, debug annotations, several sequences and
clocks, nested tracks, events in any order. Ignores: flows, counters of tracks, extra tracks.
Format: `trace_packet.proto` and `track_event.proto` of google/perfetto; of PyTorch's own fields
`torch/csrc/profiler/cupti/monitor_pftrace.cpp`.
"""

from __future__ import annotations

import json
import re
import struct
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np

from tracelens_ext.errors import TraceCutOffError, TraceError, TraceFormatError
from tracelens_ext.lazy import pd
from tracelens_ext.readers.builder import Labels, TraceBuilder, of_rows
from tracelens_ext.readers.kineto.schema import kind_of
from tracelens_ext.readers.perfetto import events as packed
from tracelens_ext.readers.perfetto.events import Events, ends_of
from tracelens_ext.readers.perfetto.packets import MOST, message_at, text_in, windows
from tracelens_ext.readers.source import AGAIN, ByteSource, salvage_notes
from tracelens_ext.readers.xplane import many_messages as wire
from tracelens_ext.readers.xplane.many_messages import MessageError
from tracelens_ext.text import NO_NAME, encodable
from tracelens_ext.trace import NONE, BoolArray, Conventions, EventKind, Int64Array, Trace

_OURS: Final = (EventKind.CPU_OP, EventKind.RUNTIME, EventKind.DRIVER)
_MOST_DEEP: Final = 40
#: How rocprofv3 and rocprof-sys call kinds of events.
_KINDS: Final = (
    (re.compile(r"kernel_dispatch"), EventKind.KERNEL),
    (re.compile(r"memory_copy"), EventKind.MEMCPY),
    (re.compile(r"hip_\w*api|rccl_api"), EventKind.RUNTIME),
    (re.compile(r"hsa_\w*api"), EventKind.DRIVER),
    (re.compile(r"marker|^user$"), EventKind.USER_ANNOTATION),
)
_COPY: Final = re.compile(r"mem(ory)?_?cop|memcpy", re.IGNORECASE)
_FILL: Final = re.compile(r"mem(ory)?_?(set|fill)", re.IGNORECASE)
_DRIVER: Final = re.compile(r"cu[A-Z]")
_PYTHON: Final = re.compile(r"nn\.Module: |<built-in |.*\.py\(\d+\): ", re.DOTALL)
_ANNOTATION: Final = re.compile(r"ProfilerStep#|Optimizer\.")
_GPU_TRACK: Final = re.compile(r"stream \d+|GPU \d+", re.IGNORECASE)
_AGENT: Final = re.compile(r"AGENT \[(\d{1,6})\](?: (?:QUEUE|STREAM|THREAD) \[(\d{1,9})\])?")
_NUMBER: Final = re.compile(r"-?(0|[1-9]\d{0,17})")
_JSON: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_Place = tuple[int | str, int | str]
_Pieces = dict[str, tuple["Int64Array", "Int64Array"]]


class TraceMaker:
    """Makes a trace of all events of a file."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._bytes = list(events.texts)
        #: What codes of texts stand for; the last one is that of `NONE`
        self._texts = [text.decode("utf-8", "replace") for text in (*self._bytes, b"")]
        self._builder = TraceBuilder()
        self._labels = Labels()
        self._arguments = events.arguments()
        self._on_gpu: set[int] = set()

    def finish(self, path: str, format_name: str, size: int, notes: tuple[str, ...]) -> Trace:
        """The trace."""
        columns = self._events.columns()
        self._builder.metadata_events = len(self._events.tracks)
        row, columns = self._slices(columns)
        track = columns["track"].to_numpy()
        ours = columns["type"].to_numpy() >= packed.STAGE
        names = self._builder.names
        lanes = self._builder.threads
        places = [*self._events.places]
        thread = np.empty(len(columns), dtype=np.int64)
        thread[ours] = of_rows(lambda place: lanes[places[place]], track[ours])
        thread[~ours] = of_rows(lambda uuid: lanes[self._place_of(uuid)], track[~ours])
        kind, category = self._kinds(columns, row)
        numbers, texts = self._decoded(row, kind)
        self._link(row, kind, numbers)
        of = columns["name"].to_numpy()
        said = {
            "ts": columns["time"].to_numpy(),
            "dur": columns["duration"].to_numpy(),
            "name": of_rows(lambda code: names[self._texts[code] or NO_NAME], of),
            "kind": kind,
            "thread": thread,
            "category": category,
        }
        self._builder.add(said, numbers, texts)
        trace = self._builder.finish(
            path=path, format_name=format_name, bytes_read=size, labels=self._labels, notes=notes
        )
        if self._events.is_foreign and not trace.count_of(*_OURS):
            remedy = "open it in ui.perfetto.dev; this reads traces of programs on GPUs"
            raise TraceFormatError(path, "is a trace of Android, Linux or Chrome", remedy)
        as_operations = not trace.count_of(EventKind.CPU_OP)
        return replace(trace, conventions=Conventions(annotations_are_operations=as_operations))

    def _slices(self, columns: pd.DataFrame) -> tuple[Int64Array, pd.DataFrame]:
        """The row of each packet, `NONE` of those that are no event, and the events by row."""
        kind = columns["type"].to_numpy()
        dropped = self._builder.dropped
        time = columns["time"].to_numpy()
        halves = np.flatnonzero((kind == packed.BEGIN) | (kind == packed.END))
        begins = kind[halves] == packed.BEGIN
        end = ends_of(begins, columns["track"].to_numpy()[halves], time[halves])
        matched = np.flatnonzero(end != NONE)
        rows = halves[matched]
        columns.loc[rows, "duration"] = time[halves[end[matched]]] - time[rows]
        dropped["slices that do not end"] += int(begins.sum()) - len(rows)
        dropped["ends of slices that do not begin"] += int((~begins).sum()) - len(rows)
        keep = (kind == packed.INSTANT) | (kind >= packed.STAGE)
        dropped["counters of tracks"] += len(kind) - len(halves) - int(keep.sum())
        keep[rows] = True
        return np.where(keep, np.cumsum(keep) - 1, NONE), columns[keep]

    def _place_of(self, uuid: int) -> _Place:
        """Process and thread of a track: of the nearest around it that has them."""
        process: int | str = "?"
        thread: tuple[int, int] | None = None
        label = ""
        at = uuid
        for _ in range(_MOST_DEEP):
            if (track := self._events.tracks.get(at)) is None:
                break
            thread = thread or track.thread
            label = label or track.name
            at = track.parent
            if track.process is not None:
                process = track.process if process == "?" else process
                self._labels.processes.setdefault(track.process, encodable(track.process_name))
        label = encodable(label)
        agent = _AGENT.search(label)
        place: _Place = thread or (process, label or uuid)
        place = (int(agent[1]), int(agent[2] or 0)) if agent else place
        if label:
            self._labels.threads.setdefault(place, label)
        if _GPU_TRACK.match(label):
            self._on_gpu.add(uuid)
        return place

    def _kinds(self, columns: pd.DataFrame, row: Int64Array) -> tuple[Int64Array, Int64Array]:
        types, name, of = (columns[c].to_numpy() for c in ("type", "name", "category"))
        category = of_rows(lambda code: self._builder.categories[self._texts[code]], of)
        kind = of_rows(lambda code: _kind_of(self._texts[code]), of)
        kind[types == packed.INSTANT] = EventKind.INSTANT
        kind[types == packed.VALUE] = EventKind.OTHER
        stages = types == packed.STAGE
        nameless = (of == NONE) & (types == packed.BEGIN)
        if not (stages.any() or nameless.any()):
            return kind, category
        has = {name: self._having(name, row, len(kind)) for name in ("grid", "cbid", "bytes")}
        like = {
            pattern: np.array([pattern.match(text) is not None for text in self._texts])
            for pattern in (_COPY, _FILL, _DRIVER, _PYTHON, _ANNOTATION)
        }
        copies = like[_COPY][name] | (stages & like[_COPY][of])
        fills = like[_FILL][name] | (stages & like[_FILL][of])
        on_gpu = columns["track"].isin(self._on_gpu).to_numpy()
        work = (on_gpu & (has["grid"] | has["bytes"])) | stages
        calls = np.where(like[_DRIVER][name], EventKind.DRIVER, EventKind.RUNTIME)
        told = (
            (work & copies, EventKind.MEMCPY),
            (work & fills, EventKind.MEMSET),
            (work, EventKind.KERNEL),
            (on_gpu, EventKind.GPU_ANNOTATION),
            (has["cbid"], calls),
            (like[_PYTHON][name], EventKind.PYTHON_FUNCTION),
            (like[_ANNOTATION][name], EventKind.USER_ANNOTATION),
            (self._having("External id", row, len(kind)), EventKind.CPU_OP),
        )
        guess = np.select([which for which, _ in told], [what for _, what in told], EventKind.OTHER)
        return np.where(nameless | stages, guess, kind), category

    def _having(self, name: str, row: Int64Array, count: int) -> BoolArray:
        rows = row[self._arguments["event"][self._arguments["name"] == packed.WANTED.index(name)]]
        result = np.zeros(count, dtype=bool)
        result[rows[rows != NONE]] = True
        return result

    def _decoded(self, row: Int64Array, kind: Int64Array) -> tuple[_Pieces, _Pieces]:
        """The numbers and the texts that are wanted of each kind of events, by argument."""
        numbers: _Pieces = {}
        texts: _Pieces = {}
        arguments = dict(list(self._arguments.groupby("name")))
        for place, (name, (as_text, wanted)) in enumerate(packed.KINDS_WITH.items()):
            if place not in arguments:
                continue
            mine = arguments[place].assign(row=lambda some: row[some["event"]])
            mine = mine[mine["row"] != NONE]
            mine = mine[wanted[kind[mine["row"]]]].drop_duplicates("row").sort_values("row")
            rows, form, value = (mine[c].to_numpy(copy=True) for c in ("row", "form", "value"))
            others = np.flatnonzero((form != packed.WHOLE) | as_text)
            if len(others):
                code = self._token if as_text else _whole
                value[others] = of_rows(
                    lambda *pair, code=code: code(self._value(*pair)), form[others], value[others]
                )
                rows = rows[value != NONE]
                value = value[value != NONE]
            if len(rows):
                (texts if as_text else numbers)[name] = rows, value
        return numbers, texts

    def _token(self, value: object) -> int:
        """The code of a value as JSON; `NONE` for null."""
        return NONE if value is None else self._builder.texts[_JSON.encode(value).encode()]

    def _value(self, form: int, value: int) -> object:
        """What an argument is, as JSON would have it."""
        if form == packed.WHOLE:
            return value
        if form == packed.MESSAGE:
            with suppress(MessageError):
                return _annotation(memoryview(self._bytes[value]))
            return None
        if value == NONE:
            return None
        text = self._texts[value]
        is_json = form == packed.TOKEN or (form == packed.LOOSE and _NUMBER.fullmatch(text))
        return json.loads(text) if is_json else text

    def _link(self, row: Int64Array, kind: Int64Array, numbers: _Pieces) -> None:
        """Give GPU work that calls name by its id their correlation."""
        call, work = (row[each] for each in self._events.submissions())
        known = (call != NONE) & (work != NONE)
        rows, values = numbers.get("correlation", (call[:0], call[:0]))
        dense = np.full(len(kind), NONE, dtype=np.int64)
        dense[rows] = values
        call = call[known]
        work = work[known]
        alone = call[dense[call] == NONE]
        dense[alone] = alone + int(dense.max(initial=0)) + 1
        work, call = (each[dense[work] == NONE] for each in (work, call))
        dense[work] = dense[call]
        rows = np.flatnonzero(dense != NONE)
        numbers["correlation"] = rows, dense[rows]


def _kind_of(category: str) -> int:
    word = category.lower()
    if (kind := kind_of("X", word)) != EventKind.OTHER:
        return kind
    return next((kind for pattern, kind in _KINDS if pattern.search(word)), EventKind.OTHER)


def _whole(value: object) -> int:
    with suppress(TypeError, ValueError, OverflowError):
        number = int(value)  # type: ignore[call-overload]
        return number if abs(number) < MOST else NONE
    return NONE


def _annotation(data: memoryview, deep: int = 0) -> object:
    """The value of a `DebugAnnotation`; None of one that is too deep."""
    result: object = [] if deep and not len(data) else None  # such as the shape of a number
    for number, values in message_at(data, 0, len(data)).items():
        value = values[-1]
        if isinstance(value, int):
            if number in (2, 3, 4):
                result = bool(value) if number == 2 else value - (value >> 63 << 64)
        elif number == 5 and value[1] - value[0] == 8:
            result = struct.unpack_from("<d", data, value[0])[0]
        elif number in (6, 9):
            result = encodable(bytes(data[slice(*value)]).decode("utf-8", "replace"))
        elif number in (11, 12) and deep < _MOST_DEEP:
            parts = [data[slice(*place)] for place in values if not isinstance(place, int)]
            items = [_annotation(part, deep + 1) for part in parts]
            names = (text_in(part, message_at(part, 0, len(part)), 10) for part in parts)
            result = items if number == 12 else dict(zip(map(encodable, names), items, strict=True))
    return result


FORMAT: Final = "Perfetto trace"


def read(source: ByteSource) -> Trace:
    """Read a file."""
    content = source.read_all()
    size = len(content)
    data = np.frombuffer(b"".join((content, wire.PADDING)), dtype=np.uint8)
    del content
    events = Events(data)
    damage: TraceError | None = source.damage
    place = 0
    try:
        for start, end in windows(data, size):
            place = int(start[0])
            events.take(wire.fields_of(data, start, end), len(start))
            place = int(end[-1])
    except wire.DamagedError as error:
        problem = "ends in the middle" if error.is_cut else f"is damaged at byte {place:,}"
        kind = TraceCutOffError if error.is_cut else TraceFormatError
        damage = damage or kind(source.path, problem, AGAIN)
    except MessageError:
        problem = f"is damaged behind byte {place:,}"
        damage = damage or TraceFormatError(source.path, problem, AGAIN)
    notes = salvage_notes(source, damage, place, events.count)
    return TraceMaker(events).finish(source.path, FORMAT, size, tuple(notes))
