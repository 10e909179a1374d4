"""Reads Perfetto traces, and makes a trace of the events in their packets.

Supports: files of PyTorch's CUPTI monitor, rocprofv3 and rocprof-sys. Track events (slices,
instants), GPU render stages and GPU counters are read, with interned names, debug annotations,
several sequences and clocks, nested tracks, and events in any order.
Ignores: flows, counters of tracks, extra tracks.
Format: `trace_packet.proto` and `track_event.proto` of google/perfetto. PyTorch adds fields of its
own, which `torch/csrc/profiler/cupti/monitor_pftrace.cpp` defines.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np

from tracelens_ext.errors import TraceCutOffError, TraceError, TraceFormatError
from tracelens_ext.lazy import pd
from tracelens_ext.readers.builder import Labels, TraceBuilder, map_distinct_rows
from tracelens_ext.readers.kineto.schema import kind_of
from tracelens_ext.readers.messages import REMEDY_COPY_AGAIN
from tracelens_ext.readers.perfetto import events as event_types
from tracelens_ext.readers.perfetto.arguments import (
    ARGUMENT_NAMES,
    WANTED_ARGUMENTS,
    ValueForm,
    annotation_value,
)
from tracelens_ext.readers.perfetto.events import Events
from tracelens_ext.readers.perfetto.message import MOST
from tracelens_ext.readers.perfetto.packets import windows
from tracelens_ext.readers.perfetto.slices import match_ends
from tracelens_ext.readers.salvage import salvage_notes
from tracelens_ext.readers.source import ByteSource
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

#: A trace of a GPU program has an event of one of these kinds.
_KINDS_OF_GPU_PROGRAMS: Final = (EventKind.CPU_OP, EventKind.RUNTIME, EventKind.DRIVER)
#: Tracks may be nested this deeply; more only occurs if a damaged file makes a circle.
_DEEPEST_TRACK: Final = 40
#: Categories of rocprofv3 and rocprof-sys, and the kinds of their events.
_KIND_OF_CATEGORY: Final = (
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
_JSON: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
#: Process and thread.
_Thread = tuple[int | str, int | str]
#: Name of an argument → rows of the events that have it, and its values.
_Arguments = dict[str, tuple[Int64Array, Int64Array]]


class TraceMaker:
    """Makes a trace of all events of a file.

    *Packets* are the rows of `Events.columns`; *events* are the rows of the trace. A slice is two
    packets, but one event.
    """

    def __init__(self, events: Events) -> None:
        self._events = events
        self._bytes = list(events.texts)
        self._texts = [text.decode("utf-8", "replace") for text in self._bytes]
        self._texts.append("")  # the last one is the text of `NONE`, which is -1
        self._builder = TraceBuilder()
        self._labels = Labels()
        self._arguments = events.arguments()
        self._gpu_tracks: set[int] = set()

    def finish(
        self, path: str, format_name: str, size: int, notes: tuple[str, ...]
    ) -> Trace:
        """Return the trace.

        Args:
            path: the file as the user named it.
            format_name: what the trace reports as its format.
            size: the size of the file, decompressed.
            notes: sentences for the user about the file.

        Raises:
            TraceFormatError: it is a trace of an operating system or a browser.
        """
        self._builder.metadata_events = len(self._events.tracks)
        row_of_packet, events = self._join_slices(self._events.columns())
        thread = self._threads(events)
        kind, category = self._kinds(events, row_of_packet)
        numbers, texts = self._decode_arguments(row_of_packet, kind)
        self._link_submissions(row_of_packet, kind, numbers)
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
        """Return the code of a text as the name of an event."""
        return self._builder.names[self._texts[code] or NO_NAME]

    def _join_slices(self, packets: pd.DataFrame) -> tuple[Int64Array, pd.DataFrame]:
        """Join begins and ends of slices to events.

        Returns:
            The row of the event of each packet, `NONE` for a packet that is not an event, and the
            table of events.
        """
        packet_type = packets["type"].to_numpy()
        time = packets["time"].to_numpy()
        track = packets["track"].to_numpy()
        is_begin = packet_type == event_types.BEGIN
        is_end = packet_type == event_types.END
        slice_parts = np.flatnonzero(is_begin | is_end)
        end_of_begin = match_ends(
            is_begin[slice_parts], track=track[slice_parts], time=time[slice_parts]
        )
        begins_with_end = np.flatnonzero(end_of_begin != NONE)
        begins = slice_parts[begins_with_end]
        ends = slice_parts[end_of_begin[begins_with_end]]
        packets.loc[begins, "duration"] = time[ends] - time[begins]
        is_event = packet_type == event_types.INSTANT
        is_event |= packet_type >= event_types.STAGE
        begin_count = int(is_begin.sum())
        end_count = int(is_end.sum())
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
        """Return the code of the thread of each event, (n,)."""
        track = events["track"].to_numpy()
        is_on_gpu_thread = events["type"].to_numpy() >= event_types.STAGE
        threads = self._builder.threads
        gpu_threads = list(self._events.gpu_threads)

        def code_of_gpu_thread(number: int) -> int:
            return threads[gpu_threads[number]]

        def code_of_track(uuid: int) -> int:
            return threads[self._thread_of_track(uuid)]

        codes = np.empty(len(events), dtype=np.int64)
        gpu_thread = track[is_on_gpu_thread]
        uuid = track[~is_on_gpu_thread]
        codes[is_on_gpu_thread] = map_distinct_rows(code_of_gpu_thread, gpu_thread)
        codes[~is_on_gpu_thread] = map_distinct_rows(code_of_track, uuid)
        return codes

    def _thread_of_track(self, uuid: int) -> _Thread:
        """Return process and thread of a track, and keep their names.

        They are those of the track itself, or of the nearest track around it that has them.
        """
        process: int | str | None = None
        thread: tuple[int, int] | None = None
        label = ""
        outer_uuid = uuid
        for _ in range(_DEEPEST_TRACK):
            track = self._events.tracks.get(outer_uuid)
            if track is None:
                break
            thread = thread or track.thread
            label = label or track.name
            outer_uuid = track.parent
            if track.process is not None:
                if process is None:
                    process = track.process
                self._labels.processes.setdefault(
                    track.process, encodable(track.process_name)
                )
        if process is None:
            process = "?"
        label = encodable(label)
        process_and_thread = (
            _thread_of_label(label) or thread or (process, label or uuid)
        )
        if label:
            self._labels.threads.setdefault(process_and_thread, label)
        if _GPU_TRACK.match(label):
            self._gpu_tracks.add(uuid)
        return process_and_thread

    # Kinds.

    def _kinds(
        self, events: pd.DataFrame, row_of_packet: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Return the kind of each event, and the code of its category, each (n,)."""
        event_type = events["type"].to_numpy()
        category_text = events["category"].to_numpy()
        categories = self._builder.categories
        category = map_distinct_rows(
            lambda code: categories[self._texts[code]], category_text
        )
        kind = map_distinct_rows(
            lambda code: _kind_of(self._texts[code]), category_text
        )
        kind[event_type == event_types.INSTANT] = EventKind.INSTANT
        kind[event_type == event_types.VALUE] = EventKind.OTHER
        is_stage = event_type == event_types.STAGE
        is_slice = event_type == event_types.BEGIN
        needs_guess = is_stage | (is_slice & (category_text == NONE))
        if needs_guess.any():
            likely_kind = self._likely_kinds(events, row_of_packet)
            kind = np.where(needs_guess, likely_kind, kind)
        return kind, category

    def _likely_kinds(
        self, events: pd.DataFrame, row_of_packet: Int64Array
    ) -> Int64Array:
        """Return the kind of each event, (n,), as far as names, tracks and arguments tell it."""
        name = events["name"].to_numpy()
        stage_name = events["category"].to_numpy()
        is_stage = events["type"].to_numpy() == event_types.STAGE
        is_on_gpu = events["track"].isin(self._gpu_tracks).to_numpy()
        has_grid = self._has_argument("grid", row_of_packet, len(events))
        has_bytes = self._has_argument("bytes", row_of_packet, len(events))
        has_call_id = self._has_argument("cbid", row_of_packet, len(events))
        has_external_id = self._has_argument("External id", row_of_packet, len(events))
        is_copy = self._texts_matching(_COPY)
        is_fill = self._texts_matching(_FILL)
        is_gpu_work = (is_on_gpu & (has_grid | has_bytes)) | is_stage
        is_named_copy = is_copy[name] | (is_stage & is_copy[stage_name])
        is_named_fill = is_fill[name] | (is_stage & is_fill[stage_name])
        # From the weakest sign to the strongest: a later assignment overrides an earlier one.
        kind = np.full(len(events), EventKind.OTHER, dtype=np.int64)
        kind[has_external_id] = EventKind.CPU_OP
        kind[self._texts_matching(_ANNOTATION)[name]] = EventKind.USER_ANNOTATION
        kind[self._texts_matching(_PYTHON)[name]] = EventKind.PYTHON_FUNCTION
        kind[has_call_id] = EventKind.RUNTIME
        kind[has_call_id & self._texts_matching(_DRIVER)[name]] = EventKind.DRIVER
        kind[is_on_gpu] = EventKind.GPU_ANNOTATION
        kind[is_gpu_work] = EventKind.KERNEL
        kind[is_gpu_work & is_named_fill] = EventKind.MEMSET
        kind[is_gpu_work & is_named_copy] = EventKind.MEMCPY
        return kind

    def _texts_matching(self, pattern: re.Pattern[str]) -> BoolArray:
        """Return, for each code of a text, whether the beginning of the text matches a pattern."""
        matches = [pattern.match(text) is not None for text in self._texts]
        return np.array(matches, dtype=bool)

    def _has_argument(
        self, name: str, row_of_packet: Int64Array, count: int
    ) -> BoolArray:
        """Return whether each of `count` events has an argument, (count,)."""
        is_argument = self._arguments["name"] == ARGUMENT_NAMES.index(name)
        packets = self._arguments["event"][is_argument].to_numpy()
        rows = row_of_packet[packets]
        rows = rows[rows != NONE]
        has_argument = np.zeros(count, dtype=bool)
        has_argument[rows] = True
        return has_argument

    # Arguments.

    def _decode_arguments(
        self, row_of_packet: Int64Array, kind: Int64Array
    ) -> tuple[_Arguments, _Arguments]:
        """Return the arguments that are numbers and those that are texts, as codes.

        Arguments that events of a kind do not keep are left out.
        """
        numbers: _Arguments = {}
        texts: _Arguments = {}
        arguments_by_index = dict(list(self._arguments.groupby("name")))
        for index, (name, wanted) in enumerate(WANTED_ARGUMENTS.items()):
            if index not in arguments_by_index:
                continue
            arguments = arguments_by_index[index]
            rows = row_of_packet[arguments["event"].to_numpy()]
            arguments = arguments.assign(row=rows)
            arguments = arguments[rows != NONE]
            arguments = arguments[wanted.of_kind[kind[arguments["row"]]]]
            arguments = arguments.drop_duplicates("row").sort_values("row")
            decoded_rows, values = self._decode(arguments, is_text=wanted.is_text)
            if not len(decoded_rows):
                continue
            if wanted.is_text:
                texts[name] = (decoded_rows, values)
            else:
                numbers[name] = (decoded_rows, values)
        return numbers, texts

    def _decode(
        self, arguments: pd.DataFrame, *, is_text: bool
    ) -> tuple[Int64Array, Int64Array]:
        """Return the rows of the events that have an argument, and its values.

        Args:
            arguments: the argument of all events, as a table.
            is_text: True if the values are texts, which become codes.
        """
        rows = arguments["row"].to_numpy(copy=True)
        form = arguments["form"].to_numpy()
        values = arguments["value"].to_numpy(copy=True)
        number_of_value = _whole_number
        if is_text:
            number_of_value = self._json_code

        def decode(form: int, value: int) -> int:
            return number_of_value(self._value(form, value))

        needs_decoding = form != ValueForm.WHOLE
        needs_decoding |= is_text
        encoded = np.flatnonzero(needs_decoding)
        if not len(encoded):
            return rows, values
        values[encoded] = map_distinct_rows(decode, form[encoded], values[encoded])
        has_value = values != NONE
        return rows[has_value], values[has_value]

    def _json_code(self, value: object) -> int:
        """Return the code of the JSON text of a value; `NONE` for None."""
        if value is None:
            return NONE
        return self._builder.texts[_JSON.encode(value).encode()]

    def _value(self, form: int, value: int) -> object:
        """Return the value of an argument as JSON would have it; None if it has no value."""
        if form == ValueForm.WHOLE:
            return value
        if form == ValueForm.MESSAGE:
            with suppress(MessageError):
                return annotation_value(memoryview(self._bytes[value]))
            return None
        if value == NONE:
            return None
        text = self._texts[value]
        is_number = form == ValueForm.LOOSE and _NUMBER.fullmatch(text)
        if form == ValueForm.TOKEN or is_number:
            return json.loads(text)
        return text

    def _link_submissions(
        self, row_of_packet: Int64Array, kind: Int64Array, numbers: _Arguments
    ) -> None:
        """Give GPU work the correlation id of the call that submitted it, in `numbers`.

        A call without a correlation id gets a new one. GPU work that has one keeps it.
        """
        submissions = self._events.submissions()
        call = row_of_packet[submissions.call]
        work = row_of_packet[submissions.work]
        has_events = (call != NONE) & (work != NONE)
        call = call[has_events]
        work = work[has_events]
        correlation = np.full(len(kind), NONE, dtype=np.int64)
        if "correlation" in numbers:
            rows, values = numbers["correlation"]
            correlation[rows] = values
        calls_without_id = call[correlation[call] == NONE]
        first_free_id = int(correlation.max(initial=0)) + 1
        correlation[calls_without_id] = calls_without_id + first_free_id
        has_no_id = correlation[work] == NONE
        correlation[work[has_no_id]] = correlation[call[has_no_id]]
        rows = np.flatnonzero(correlation != NONE)
        numbers["correlation"] = (rows, correlation[rows])


def _thread_of_label(label: str) -> _Thread | None:
    """Return process and thread of a label of rocprofv3, such as `AGENT [1] QUEUE [2]`."""
    agent = _AGENT.search(label)
    if agent is None:
        return None
    return int(agent[1]), int(agent[2] or 0)


def _kind_of(category: str) -> int:
    """Return the kind of the slices of a category: a category of PyTorch, or of rocprof."""
    lower_category = category.lower()
    kind = kind_of("X", lower_category)
    if kind != EventKind.OTHER:
        return kind
    for pattern, kind_of_pattern in _KIND_OF_CATEGORY:
        if pattern.search(lower_category):
            return kind_of_pattern
    return EventKind.OTHER


def _whole_number(value: object) -> int:
    """Return a value as a whole number; `NONE` if it is not a number, or too large."""
    with suppress(TypeError, ValueError, OverflowError):
        number = int(value)  # type: ignore[call-overload]
        if abs(number) < MOST:
            return int(number)
    return NONE


FORMAT: Final = "Perfetto trace"


def read(source: ByteSource) -> Trace:
    """Read a Perfetto trace.

    Raises:
        TraceFormatError: it is damaged, and damaged files are not to be salvaged; or it is a trace
            of an operating system or a browser.
    """
    content = source.read_all()
    size = len(content)
    padded = b"".join((content, many_messages.PADDING))
    del content
    data = np.frombuffer(padded, dtype=np.uint8)
    events = Events(data)
    damage: TraceError | None = source.damage
    position = 0
    try:
        for start, end in windows(data, size):
            position = int(start[0])
            packets = many_messages.fields_of(data, start, end)
            events.add_packets(packets, len(start))
            position = int(end[-1])
    except many_messages.DamagedError as error:
        damage = damage or _damage(source.path, position, is_cut=error.is_cut)
    except MessageError:
        problem = f"is damaged after byte {position:,}"
        damage = damage or TraceFormatError(source.path, problem, REMEDY_COPY_AGAIN)
    notes = salvage_notes(
        source=source, damage=damage, end_of_text=position, events=events.count
    )
    return TraceMaker(events).finish(source.path, FORMAT, size, tuple(notes))


def _damage(path: str, position: int, *, is_cut: bool) -> TraceError:
    if is_cut:
        return TraceCutOffError(path, "ends prematurely", REMEDY_COPY_AGAIN)
    return TraceFormatError(path, f"is damaged at byte {position:,}", REMEDY_COPY_AGAIN)
