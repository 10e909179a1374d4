"""Reads Perfetto traces: packets of track events, of GPU render stages and of GPU counters.

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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from enum import IntEnum
from typing import Final

import numpy as np

from tracelens_ext.errors import TraceCutOffError, TraceError, TraceFormatError
from tracelens_ext.lazy import pd
from tracelens_ext.readers.builder import Labels, TraceBuilder, map_distinct_rows
from tracelens_ext.readers.kineto.schema import kind_of
from tracelens_ext.readers.perfetto import events as packed
from tracelens_ext.readers.perfetto.events import Events, ends_of
from tracelens_ext.readers.perfetto.packets import MOST, message_at, text_in, windows
from tracelens_ext.readers.source import AGAIN, ByteSource, salvage_notes
from tracelens_ext.readers.xplane import many_messages
from tracelens_ext.readers.xplane.many_messages import MessageError
from tracelens_ext.text import NO_NAME, encodable
from tracelens_ext.trace import (
    NONE,
    BoolArray,
    Conventions,
    EventKind,
    Int64Array,
    Trace,
)

_KINDS_OF_GPU_PROGRAMS: Final = (EventKind.CPU_OP, EventKind.RUNTIME, EventKind.DRIVER)
_DEEPEST: Final = 40
#: What rocprofv3 and rocprof-sys call kinds of events.
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
_AGENT: Final = re.compile(
    r"AGENT \[(\d{1,6})\](?: (?:QUEUE|STREAM|THREAD) \[(\d{1,9})\])?"
)
_NUMBER: Final = re.compile(r"-?(0|[1-9]\d{0,17})")
_BYTES_OF_DOUBLE: Final = 8
_JSON: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_Place = tuple[int | str, int | str]
#: Argument → rows that have it, and values.
_Arguments = dict[str, tuple[Int64Array, Int64Array]]


class TraceMaker:
    """Makes a trace of all events of a file."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._bytes = list(events.texts)
        #: What codes of texts stand for; the last one is that of `NONE`.
        self._texts = [text.decode("utf-8", "replace") for text in self._bytes]
        self._texts.append("")
        self._builder = TraceBuilder()
        self._labels = Labels()
        self._arguments = events.arguments()
        self._gpu_tracks: set[int] = set()

    def finish(
        self, path: str, format_name: str, size: int, notes: tuple[str, ...]
    ) -> Trace:
        """Return the trace.

        Raises:
            TraceFormatError: it is of a phone or a browser.
        """
        self._builder.metadata_events = len(self._events.tracks)
        row_of_packet, events = self._joined_slices(self._events.columns())
        thread = self._threads(events)
        kind, category = self._kinds(events, row_of_packet)
        numbers, texts = self._decoded_arguments(row_of_packet, kind)
        self._link(row_of_packet, kind, numbers)
        columns = {
            "ts": events["time"].to_numpy(),
            "dur": events["duration"].to_numpy(),
            "name": map_distinct_rows(self._name, events["name"].to_numpy()),
            "kind": kind,
            "thread": thread,
            "category": category,
        }
        self._builder.add(columns, numbers, texts)
        trace = self._builder.finish(
            path=path,
            format_name=format_name,
            bytes_read=size,
            labels=self._labels,
            notes=notes,
        )
        if self._events.is_foreign and not trace.count_of(*_KINDS_OF_GPU_PROGRAMS):
            remedy = (
                "open it in ui.perfetto.dev; tracelens-ext reads traces of GPU programs"
            )
            raise TraceFormatError(
                path, "is a trace of Android, Linux or Chrome", remedy
            )
        has_no_operation = not trace.count_of(EventKind.CPU_OP)
        conventions = Conventions(annotations_are_operations=has_no_operation)
        return replace(trace, conventions=conventions)

    def _name(self, code: int) -> int:
        return self._builder.names[self._texts[code] or NO_NAME]

    def _joined_slices(self, packets: pd.DataFrame) -> tuple[Int64Array, pd.DataFrame]:
        """Join begins and ends of slices to events.

        Returns:
            The row of each packet's event, `NONE` for a packet that is none, and the events.
        """
        event_type = packets["type"].to_numpy()
        time = packets["time"].to_numpy()
        track = packets["track"].to_numpy()
        is_slice_part = (event_type == packed.BEGIN) | (event_type == packed.END)
        slice_parts = np.flatnonzero(is_slice_part)
        is_begin = event_type[slice_parts] == packed.BEGIN
        end_of_begin = ends_of(
            begins=is_begin, track=track[slice_parts], time=time[slice_parts]
        )
        begins_with_end = np.flatnonzero(end_of_begin != NONE)
        begins = slice_parts[begins_with_end]
        ends = slice_parts[end_of_begin[begins_with_end]]
        packets.loc[begins, "duration"] = time[ends] - time[begins]
        is_event = (event_type == packed.INSTANT) | (event_type >= packed.STAGE)
        begin_count = int(is_begin.sum())
        end_count = len(slice_parts) - begin_count
        other_count = len(packets) - len(slice_parts) - int(is_event.sum())
        dropped = self._builder.dropped
        dropped["slices without an end"] += begin_count - len(begins)
        dropped["slice ends without a beginning"] += end_count - len(begins)
        dropped["track counters"] += other_count
        is_event[begins] = True
        row_of_packet = np.where(is_event, np.cumsum(is_event) - 1, NONE)
        return row_of_packet, packets[is_event]

    # Threads.

    def _threads(self, events: pd.DataFrame) -> Int64Array:
        """Return the thread of each event, (n,)."""
        track = events["track"].to_numpy()
        has_place = events["type"].to_numpy() >= packed.STAGE
        threads = self._builder.threads
        places = list(self._events.places)

        def thread_at(place: int) -> int:
            return threads[places[place]]

        def thread_of_track(uuid: int) -> int:
            return threads[self._place_of(uuid)]

        thread = np.empty(len(events), dtype=np.int64)
        thread[has_place] = map_distinct_rows(thread_at, track[has_place])
        thread[~has_place] = map_distinct_rows(thread_of_track, track[~has_place])
        return thread

    def _place_of(self, uuid: int) -> _Place:
        """Return process and thread of a track: of the nearest around it that has them."""
        process: int | str | None = None
        thread: tuple[int, int] | None = None
        label = ""
        around = uuid
        for _ in range(_DEEPEST):
            track = self._events.tracks.get(around)
            if track is None:
                break
            thread = thread or track.thread
            label = label or track.name
            around = track.parent
            if track.process is not None:
                if process is None:
                    process = track.process
                self._labels.processes.setdefault(
                    track.process, encodable(track.process_name)
                )
        if process is None:
            process = "?"
        label = encodable(label)
        place = _place_of_label(label) or thread or (process, label or uuid)
        if label:
            self._labels.threads.setdefault(place, label)
        if _GPU_TRACK.match(label):
            self._gpu_tracks.add(uuid)
        return place

    # Kinds.

    def _kinds(
        self, events: pd.DataFrame, row_of_packet: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Return the kind of each event, and the code of its category, (n,) each."""
        event_type = events["type"].to_numpy()
        category_text = events["category"].to_numpy()
        categories = self._builder.categories
        category = map_distinct_rows(
            lambda code: categories[self._texts[code]], category_text
        )
        kind = map_distinct_rows(
            lambda code: _kind_of(self._texts[code]), category_text
        )
        kind[event_type == packed.INSTANT] = EventKind.INSTANT
        kind[event_type == packed.VALUE] = EventKind.OTHER
        is_stage = event_type == packed.STAGE
        has_no_category = (category_text == NONE) & (event_type == packed.BEGIN)
        is_unknown = is_stage | has_no_category
        if is_unknown.any():
            likely_kind = self._likely_kinds(events, row_of_packet)
            kind = np.where(is_unknown, likely_kind, kind)
        return kind, category

    def _likely_kinds(
        self, events: pd.DataFrame, row_of_packet: Int64Array
    ) -> Int64Array:
        """Return what events are by their names, tracks and arguments, (n,)."""
        name = events["name"].to_numpy()
        stage_name = events["category"].to_numpy()
        is_stage = events["type"].to_numpy() == packed.STAGE
        is_on_gpu = events["track"].isin(self._gpu_tracks).to_numpy()
        has_grid = self._has_argument("grid", row_of_packet, len(events))
        has_bytes = self._has_argument("bytes", row_of_packet, len(events))
        has_call_id = self._has_argument("cbid", row_of_packet, len(events))
        has_external_id = self._has_argument("External id", row_of_packet, len(events))
        is_copy = self._texts_like(_COPY)
        is_fill = self._texts_like(_FILL)
        is_work = (is_on_gpu & (has_grid | has_bytes)) | is_stage
        is_driver_call = has_call_id & self._texts_like(_DRIVER)[name]
        likely_kinds = [
            (
                is_work & (is_copy[name] | (is_stage & is_copy[stage_name])),
                EventKind.MEMCPY,
            ),
            (
                is_work & (is_fill[name] | (is_stage & is_fill[stage_name])),
                EventKind.MEMSET,
            ),
            (is_work, EventKind.KERNEL),
            (is_on_gpu, EventKind.GPU_ANNOTATION),
            (is_driver_call, EventKind.DRIVER),
            (has_call_id, EventKind.RUNTIME),
            (self._texts_like(_PYTHON)[name], EventKind.PYTHON_FUNCTION),
            (self._texts_like(_ANNOTATION)[name], EventKind.USER_ANNOTATION),
            (has_external_id, EventKind.CPU_OP),
        ]
        kind = np.full(len(events), EventKind.OTHER, dtype=np.int64)
        # The first of them that is true of an event is written last.
        for is_of_kind, kind_of_these in reversed(likely_kinds):
            kind[is_of_kind] = kind_of_these
        return kind

    def _texts_like(self, pattern: re.Pattern[str]) -> BoolArray:
        """Tell which texts begin like a pattern, by their codes."""
        matches = [pattern.match(text) is not None for text in self._texts]
        return np.array(matches, dtype=bool)

    def _has_argument(
        self, name: str, row_of_packet: Int64Array, count: int
    ) -> BoolArray:
        """Tell which of `count` events have an argument."""
        number = packed.ARGUMENT_NAMES.index(name)
        is_named = self._arguments["name"] == number
        packets = self._arguments["event"][is_named].to_numpy()
        rows = row_of_packet[packets]
        rows = rows[rows != NONE]
        has_argument = np.zeros(count, dtype=bool)
        has_argument[rows] = True
        return has_argument

    # Arguments.

    def _decoded_arguments(
        self, row_of_packet: Int64Array, kind: Int64Array
    ) -> tuple[_Arguments, _Arguments]:
        """Return the numbers and the texts that are wanted of each kind of events."""
        numbers: _Arguments = {}
        texts: _Arguments = {}
        arguments_by_place = dict(list(self._arguments.groupby("name")))
        for place, (name, wanted) in enumerate(packed.WANTED_ARGUMENTS.items()):
            if place not in arguments_by_place:
                continue
            arguments = arguments_by_place[place]
            rows = row_of_packet[arguments["event"].to_numpy()]
            arguments = arguments.assign(row=rows)
            arguments = arguments[rows != NONE]
            arguments = arguments[wanted.of_kind[kind[arguments["row"]]]]
            arguments = arguments.drop_duplicates("row").sort_values("row")
            decoded_rows, values = self._decoded(arguments, is_text=wanted.is_text)
            if not len(decoded_rows):
                continue
            if wanted.is_text:
                texts[name] = (decoded_rows, values)
            else:
                numbers[name] = (decoded_rows, values)
        return numbers, texts

    def _decoded(
        self, arguments: pd.DataFrame, *, is_text: bool
    ) -> tuple[Int64Array, Int64Array]:
        """Return the rows and the values of an argument, without those that have no value."""
        rows = arguments["row"].to_numpy(copy=True)
        form = arguments["form"].to_numpy()
        values = arguments["value"].to_numpy(copy=True)
        code_of = _whole_number
        if is_text:
            code_of = self._token

        def decode(form: int, value: int) -> int:
            return code_of(self._value(form, value))

        is_coded = form != packed.ValueForm.WHOLE
        is_coded |= is_text
        coded = np.flatnonzero(is_coded)
        if not len(coded):
            return rows, values
        values[coded] = map_distinct_rows(decode, form[coded], values[coded])
        has_value = values != NONE
        return rows[has_value], values[has_value]

    def _token(self, value: object) -> int:
        """Return the code of a value as JSON; `NONE` for null."""
        if value is None:
            return NONE
        return self._builder.texts[_JSON.encode(value).encode()]

    def _value(self, form: int, value: int) -> object:
        """Return what an argument is, as JSON would have it."""
        if form == packed.ValueForm.WHOLE:
            return value
        if form == packed.ValueForm.MESSAGE:
            with suppress(MessageError):
                return _annotation(memoryview(self._bytes[value]))
            return None
        if value == NONE:
            return None
        text = self._texts[value]
        is_number = form == packed.ValueForm.LOOSE and _NUMBER.fullmatch(text)
        if form == packed.ValueForm.TOKEN or is_number:
            return json.loads(text)
        return text

    def _link(
        self, row_of_packet: Int64Array, kind: Int64Array, numbers: _Arguments
    ) -> None:
        """Give GPU work, where calls name it by its id, the correlation of its call."""
        call_packets, work_packets = self._events.submissions()
        call = row_of_packet[call_packets]
        work = row_of_packet[work_packets]
        is_known = (call != NONE) & (work != NONE)
        call = call[is_known]
        work = work[is_known]
        correlation = np.full(len(kind), NONE, dtype=np.int64)
        if "correlation" in numbers:
            rows, values = numbers["correlation"]
            correlation[rows] = values
        calls_without = call[correlation[call] == NONE]
        first_free = int(correlation.max(initial=0)) + 1
        correlation[calls_without] = calls_without + first_free
        has_none = correlation[work] == NONE
        correlation[work[has_none]] = correlation[call[has_none]]
        rows = np.flatnonzero(correlation != NONE)
        numbers["correlation"] = (rows, correlation[rows])


def _place_of_label(label: str) -> _Place | None:
    """Return the place that a label such as `AGENT [1] QUEUE [2]` names."""
    agent = _AGENT.search(label)
    if agent is None:
        return None
    return int(agent[1]), int(agent[2] or 0)


def _kind_of(category: str) -> int:
    word = category.lower()
    kind = kind_of("X", word)
    if kind != EventKind.OTHER:
        return kind
    for pattern, kind_of_pattern in _KINDS:
        if pattern.search(word):
            return kind_of_pattern
    return EventKind.OTHER


def _whole_number(value: object) -> int:
    """Return a value as a whole number; `NONE` for what is none, or too large."""
    with suppress(TypeError, ValueError, OverflowError):
        number = int(value)  # type: ignore[call-overload]
        if abs(number) < MOST:
            return int(number)
    return NONE


class _AnnotationField(IntEnum):
    """The fields of `DebugAnnotation` that hold its value."""

    BOOL = 2
    UINT = 3
    INT = 4
    DOUBLE = 5
    STRING = 6
    LEGACY_JSON = 9
    NAME = 10
    DICT_ENTRIES = 11
    ARRAY_VALUES = 12


def _annotation(data: memoryview, depth: int = 0) -> object:
    """Return the value of a `DebugAnnotation`; None for one that is nested too deep."""
    result: object = None
    if depth and not len(data):
        result = []  # such as the shape of a number
    for number, values in message_at(data, 0, len(data)).items():
        value = values[-1]
        if isinstance(value, int):
            if number == _AnnotationField.BOOL:
                result = bool(value)
            elif number in (_AnnotationField.UINT, _AnnotationField.INT):
                result = _signed(value)
            continue
        start, end = value
        if number == _AnnotationField.DOUBLE and end - start == _BYTES_OF_DOUBLE:
            (result,) = struct.unpack_from("<d", data, start)
        elif number in (_AnnotationField.STRING, _AnnotationField.LEGACY_JSON):
            result = encodable(bytes(data[start:end]).decode("utf-8", "replace"))
        elif depth < _DEEPEST:
            parts = [
                data[slice(*place)] for place in values if not isinstance(place, int)
            ]
            if number == _AnnotationField.ARRAY_VALUES:
                result = [_annotation(part, depth + 1) for part in parts]
            elif number == _AnnotationField.DICT_ENTRIES:
                result = _annotated_members(parts, depth + 1)
    return result


def _signed(value: int) -> int:
    """Return the whole number of 64 bits, with a sign, that a varint holds."""
    sign = value >> 63
    return value - (sign << 64)


def _annotated_members(parts: Sequence[memoryview], depth: int) -> dict[str, object]:
    """Return the members of an annotation that is a dictionary, each of them an annotation."""
    members: dict[str, object] = {}
    for part in parts:
        message = message_at(part, 0, len(part))
        name = text_in(part, message, _AnnotationField.NAME)
        members[encodable(name)] = _annotation(part, depth)
    return members


FORMAT: Final = "Perfetto trace"


def read(source: ByteSource) -> Trace:
    """Read a file."""
    content = source.read_all()
    size = len(content)
    padded = b"".join((content, many_messages.PADDING))
    del content
    data = np.frombuffer(padded, dtype=np.uint8)
    events = Events(data)
    damage: TraceError | None = source.damage
    place = 0
    try:
        for start, end in windows(data, size):
            place = int(start[0])
            events.take(many_messages.fields_of(data, start, end), len(start))
            place = int(end[-1])
    except many_messages.DamagedError as error:
        damage = damage or _damage(source.path, place, is_cut=error.is_cut)
    except MessageError:
        problem = f"is damaged after byte {place:,}"
        damage = damage or TraceFormatError(source.path, problem, AGAIN)
    notes = salvage_notes(source=source, damage=damage, at=place, events=events.count)
    return TraceMaker(events).finish(source.path, FORMAT, size, tuple(notes))


def _damage(path: str, place: int, *, is_cut: bool) -> TraceError:
    if is_cut:
        return TraceCutOffError(path, "ends prematurely", AGAIN)
    return TraceFormatError(path, f"is damaged at byte {place:,}", AGAIN)
