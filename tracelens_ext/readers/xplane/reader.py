"""Reads profiles of JAX and XLA (`*.xplane.pb`): planes of lines of events.

Supports: GPU planes of NVIDIA and AMD, planes of the host with runtime calls, annotations and
Python frames, the HLO of `/host:metadata`; several devices; any order of metadata and events.
Ignores: statistics that `profile.py` does not name. Events of other planes, such as those of
TPUs, are kept as events of no known kind.
Format: `xplane.proto` of openxla/xla (`hlo.py` has the fields that are read).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from tracelens_ext.errors import TraceCutOffError, TraceError, TraceFormatError
from tracelens_ext.readers.builder import map_distinct_ids
from tracelens_ext.readers.json_events import EventStream
from tracelens_ext.readers.kineto.reader import label_of, text_of
from tracelens_ext.readers.source import AGAIN, ByteSource, salvage_notes
from tracelens_ext.readers.xplane import many_messages
from tracelens_ext.readers.xplane.hlo import Message, Programs, message_class
from tracelens_ext.readers.xplane.many_messages import Bytes, Fields
from tracelens_ext.readers.xplane.profile import (
    GPU_PLANE,
    NUMBERS,
    TEXTS,
    Stats,
    XplaneProfile,
)
from tracelens_ext.text import NO_NAME
from tracelens_ext.trace import NONE, Device, Int64Array, Trace

Names = Mapping[int, str]

FORMAT = "JAX/XLA profile (xplane)"
JSON_FORMAT = "JAX/XLA viewer trace (JSON)"


class _SpaceField(IntEnum):
    """The fields of `XSpace`, a file."""

    PLANES = 1
    HOST_NAMES = 4


#: The field of `XPlane` with its lines.
_LINES = 3
_METADATA_PLANE = "/host:metadata"
_HLO_STATS = ("Hlo Proto", "hlo_proto")
_HOST = "/host:CPU"
_VERSIONS = ("jax_version", "jaxlib_version")
_PS_PER_NS = 1000
_EVENTS_AT_ONCE = 1 << 16


class _EventField(IntEnum):
    """The fields of `XEvent`."""

    METADATA = 1
    OFFSET = 2
    DURATION = 3
    STATS = 4
    OCCURRENCES = 5


class _StatField(IntEnum):
    """The fields of `XStat`."""

    METADATA = 1
    UINT64 = 3
    INT64 = 4
    STR = 5
    REF = 7


#: A start that is dropped: that of an event that stands for several.
_NO_TIME = -(2**62)
_MOST = 2**62
_AMD_WARP = 64
_USUAL_WARP = 32


def read(source: ByteSource) -> Trace:
    """Read a profile."""
    data = memoryview(source.read_all())
    reader = _ProfileReader()
    damage: TraceError | None = source.damage
    place = len(data)
    try:
        reader.read(data)
    except many_messages.DamagedError as error:
        place = error.place
        damage = damage or _damage(source.path, place, is_cut=error.is_cut)
    devices = [reader.devices[ordinal] for ordinal in sorted(reader.devices)]
    return reader.profile.finish(
        reader.programs,
        salvage_notes(
            source=source, damage=damage, at=place, events=reader.profile.present
        ),
        path=source.path,
        format_name=FORMAT,
        bytes_read=len(data),
        devices=tuple(devices),
        metadata={"hostnames": reader.hosts} | reader.versions,
    )


def _damage(path: str, place: int, *, is_cut: bool) -> TraceError:
    if is_cut:
        problem = (
            f"the profile ends prematurely (the plane at byte {place:,} is incomplete)"
        )
        return TraceCutOffError(path, problem, AGAIN)
    return TraceFormatError(path, f"is damaged at byte {place:,}", AGAIN)


class _PlaneParts(NamedTuple):
    """A plane, taken apart."""

    #: each with the byte of the file that it begins at
    lines: list[tuple[int, memoryview]]
    rest: bytes  #: its other fields


class _ProfileReader:
    """Reads the planes of a file.

    Attributes:
        profile: the events.
        hosts: the names of the machines.
        programs: the compiled programs.
        devices: GPUs by their numbers.
        versions: of JAX.
    """

    def __init__(self) -> None:
        self.profile = XplaneProfile()
        self.hosts: list[str] = []
        self.programs = Programs()
        self.devices: dict[int, Device] = {}
        self.versions: dict[str, object] = {}

    def read(self, data: memoryview) -> None:
        """Read a whole file.

        Raises:
            DamagedError: it cannot be read from a place on; what is before was read.
        """
        for field in many_messages.fields(data):
            content = data[field.content : field.end]
            if field.number == _SpaceField.PLANES:
                self._read_plane(content, field.content)
            elif field.number == _SpaceField.HOST_NAMES:
                self.hosts.append(_text(bytes(content)))

    def _read_plane(self, data: memoryview, place: int) -> None:
        """Read a plane, which begins at a byte of the file; metadata may come after lines."""
        parts = _plane_parts(data, place)
        plane = _decoded("XPlane", parts.rest, place)
        name = _text(plane.name)
        stat_names = {
            entry.key: _text(entry.value.name) for entry in plane.stat_metadata
        }
        stats = _named_stats(stat_names, plane.stats)
        gpu_plane = GPU_PLANE.match(name)
        if name == _METADATA_PLANE:
            self._read_programs(plane, stat_names)
            for version in _VERSIONS:
                if version in stats:
                    self.versions[version] = stats[version]
        elif gpu_plane:
            ordinal = int(gpu_plane[1])
            self.devices[ordinal] = _device(ordinal, stats)
        reader = _LineReader(
            profile=self.profile, plane=plane, name=name, stats=stat_names
        )
        for start, content in parts.lines:
            line = _decoded("XLine", content, start)
            try:
                reader.read(line)
            except many_messages.MessageError:
                raise many_messages.DamagedError(start, is_cut=False) from None

    def _read_programs(self, plane: Message, stat_names: Names) -> None:
        for entry in plane.event_metadata:
            stats = _named_stats(stat_names, entry.value.stats)
            for stat in _HLO_STATS:
                content = stats.get(stat)
                if not isinstance(content, bytes):
                    continue
                name = _text(entry.value.name)
                self.programs.add(name, content)


def _plane_parts(data: memoryview, place: int) -> _PlaneParts:
    """Take apart a plane, which begins at a byte of the file."""
    lines: list[tuple[int, memoryview]] = []
    other_fields: list[memoryview] = []
    try:
        for field in many_messages.fields(data):
            if field.number == _LINES:
                lines.append((place + field.content, data[field.content : field.end]))
            else:
                other_fields.append(data[field.start : field.end])
    except many_messages.DamagedError as error:
        raise many_messages.DamagedError(place + error.place, is_cut=False) from None
    return _PlaneParts(lines=lines, rest=b"".join(other_fields))


def _named_stats(names: Names, stats: Iterable[Message]) -> dict[str, object]:
    """Return statistics by the names of their ids, which are also texts to refer to."""
    values: dict[str, object] = {}
    for stat in stats:
        text = _text(stat.str_value)
        if stat.ref_value:
            text = names.get(stat.ref_value, "")
        value = stat.bytes_value or text or stat.int64_value or stat.uint64_value
        values[names.get(stat.metadata_id, "")] = value
    return values


class _LineReader:
    """Adds the lines of a plane to a profile."""

    def __init__(
        self, profile: XplaneProfile, plane: Message, name: str, stats: Names
    ) -> None:
        # The host's calls may be on a plane of their own: its ids are those of the same process.
        self._process = name
        if name.startswith("/host:"):
            self._process = _HOST
        self._profile = profile
        self._stats = stats
        profile.planes[self._process] = self._process
        self._event_names: dict[int, str] = {}
        for entry in plane.event_metadata:
            self._event_names[entry.key] = _text(entry.value.name)
        self._wanted: dict[int, str] = {}
        for stat_id, stat in stats.items():
            if stat in NUMBERS or stat in TEXTS:
                self._wanted[stat_id] = stat

    def read(self, line: Message) -> None:
        """Add the events of a line.

        Raises:
            MessageError: an event is damaged.
        """
        lane = (self._process, line.id)
        name = line.display_name or line.name
        self._profile.lines[lane] = _text(name)
        lane_code = self._profile.builder.threads[lane]
        for first in range(0, len(line.events), _EVENTS_AT_ONCE):
            events = line.events[first : first + _EVENTS_AT_ONCE]
            self._add_events(events, line.timestamp_ns, lane_code)

    def _add_events(
        self, events: Sequence[bytes], line_start_ns: int, lane: int
    ) -> None:
        count = len(events)
        data, start, end = many_messages.joined(events)
        fields = many_messages.fields_of(data, start, end)
        metadata = fields.numbers(_EventField.METADATA, count)
        offset_ps = fields.numbers(_EventField.OFFSET, count)
        duration_ps = fields.numbers(_EventField.DURATION, count)
        stands_for_several = fields.numbers(_EventField.OCCURRENCES, count) != 0
        start_ns = offset_ps // _PS_PER_NS
        # Ends are rounded as starts are: what encloses another still does.
        end_ns = (offset_ps + duration_ps) // _PS_PER_NS
        columns = {
            "ts": np.where(stands_for_several, _NO_TIME, line_start_ns + start_ns),
            "dur": end_ns - start_ns,
            "name": map_distinct_ids(metadata, self._codes_of_names),
            "lane": np.full(count, lane, dtype=np.int64),
        }
        self._profile.add(columns, self._stats_of(data, fields))

    def _codes_of_names(self, ids: Int64Array) -> list[int]:
        names = self._profile.builder.names
        return [
            names[self._event_names.get(number) or NO_NAME] for number in ids.tolist()
        ]

    def _codes_of_texts(self, ids: Int64Array) -> list[int]:
        return [
            self._profile.texts[self._stats.get(number, "")] for number in ids.tolist()
        ]

    def _stats_of(self, data: Bytes, events: Fields) -> Stats:
        """Return the wanted statistics of events: the rows that have them, and the values."""
        event, start, end = events.contents(_EventField.STATS)
        count = len(event)
        fields = many_messages.fields_of(data, start, end)
        stat_id = fields.numbers(_StatField.METADATA, count)
        unsigned = fields.numbers(_StatField.UINT64, count)
        signed = fields.numbers(_StatField.INT64, count)
        number = unsigned | signed  # only one of them is there
        number = np.where(number < 0, _MOST, np.minimum(number, _MOST))
        reference = fields.numbers(_StatField.REF, count)
        own_text = self._own_texts(data, fields, stat_id)
        stats: dict[str, tuple[Int64Array, Int64Array]] = {}
        for wanted_id, name in self._wanted.items():
            places = np.flatnonzero(stat_id == wanted_id)
            if name in NUMBERS:
                stats[name] = (event[places], number[places])
            else:
                referred_text = map_distinct_ids(
                    reference[places], self._codes_of_texts
                )
                text = np.where(
                    own_text[places] == NONE, referred_text, own_text[places]
                )
                stats[name] = (event[places], text)
        return stats

    def _own_texts(
        self, data: Bytes, fields: Fields, stat_id: Int64Array
    ) -> Int64Array:
        """Return the codes of the texts that statistics hold themselves, `NONE` without, (k,)."""
        code = np.full(len(stat_id), NONE, dtype=np.int64)
        stat, start, end = fields.contents(_StatField.STR)
        is_wanted = np.isin(stat_id[stat], list(self._wanted))
        texts = self._profile.texts
        for place in np.flatnonzero(is_wanted).tolist():
            content = data[start[place] : end[place]].tobytes()
            code[stat[place]] = texts[_text(content)]
        return code


def _decoded(message: str, data: bytes | memoryview, place: int) -> Message:
    """Return a message, which begins at a byte of the file."""
    from google.protobuf.message import DecodeError

    try:
        return message_class(message).FromString(data)
    except DecodeError:
        raise many_messages.DamagedError(place, is_cut=False) from None


def _device(ordinal: int, stats: Mapping[str, object]) -> Device:
    """Return a GPU, as the statistics of its plane describe it."""
    vendor = stats.get("device_vendor")
    major = stats.get("compute_cap_major")
    minor = stats.get("compute_cap_minor") or 0
    name = ""
    if vendor and major:
        name = f"{vendor} GPU, compute capability {major}.{minor}"
    warp = _USUAL_WARP
    if vendor == "AMD":
        warp = _AMD_WARP
    return Device(
        ordinal=ordinal,
        name=name,
        units=_plausible_size(stats.get("core_count")),
        warp=warp,
        memory_bytes=_plausible_size(stats.get("memory_size")),
    )


def _plausible_size(size: object) -> int:
    """Return a size as it is; 0, for unknown, if it cannot be one."""
    if isinstance(size, int) and 0 < size < _MOST:
        return size
    return 0


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


# The JSON for trace viewers (`*.trace.json.gz`): complete events (``ph: X``) of processes that are
# called like planes, with statistics as arguments. There is no HLO, and JAX leaves out what is
# beyond a million. Format: `trace_events_to_json` (tsl/profiler/convert) of openxla/xla.

_NS_PER_US = 1e3
_MOST_US = 2**53
_WHOLE_NUMBER: Final = re.compile("[0-9]{1,18}")
_JsonEvent = dict[str, Any]


class _JsonEvents:
    """Adds slices of events to a profile."""

    def __init__(self) -> None:
        self.profile = XplaneProfile()
        self.decode = msgspec.json.Decoder(list[_JsonEvent]).decode

    def repair(self, events: list[object]) -> list[_JsonEvent]:
        """Return events as they are; what is no object is counted."""
        objects = [event for event in events if isinstance(event, dict)]
        self.profile.builder.dropped["not a JSON object"] += len(events) - len(objects)
        return objects

    def add(self, events: list[_JsonEvent]) -> None:
        """Add a slice of events."""
        timed = []
        for event in events:
            phase = event.get("ph")
            is_last = not (phase or event.get("name"))  # the last event is empty
            if phase == "X":
                timed.append(event)
            elif phase == "M" or is_last:
                self._add_metadata(event)
            else:
                self.profile.builder.dropped["not complete (ph is not X)"] += 1
        names = [text_of(event.get("name")) or NO_NAME for event in timed]
        lanes = [
            (label_of(event.get("pid")), label_of(event.get("tid"))) for event in timed
        ]
        starts_us = [event.get("ts") for event in timed]
        durations_us = [event.get("dur") for event in timed]
        builder = self.profile.builder
        columns: dict[str, Int64Array] = {
            "ts": _nanoseconds(starts_us, -_MOST_US),
            "dur": _nanoseconds(durations_us, 0),
            "name": builder.names.codes(names, len(timed)).astype(np.int64),
            "lane": builder.threads.codes(lanes, len(timed)).astype(np.int64),
        }
        self.profile.add(columns, self._stats([_args(event) for event in timed]))

    def _add_metadata(self, event: _JsonEvent) -> None:
        """Keep the name of a process or a thread."""
        self.profile.builder.metadata_events += 1
        name = text_of(_args(event).get("name"))
        process = label_of(event.get("pid"))
        if event.get("name") == "process_name":
            self.profile.planes[process] = name
        elif event.get("name") == "thread_name":
            self.profile.lines[process, label_of(event.get("tid"))] = name

    def _stats(self, args: list[_JsonEvent]) -> Stats:
        stats = {}
        for stat in NUMBERS:
            stats[stat] = _values_of(args, stat, _whole_number)
        for stat in TEXTS:
            stats[stat] = _values_of(args, stat, self._code_of_text)
        return stats

    def _code_of_text(self, value: object) -> int:
        return self.profile.texts[text_of(value)]


def _values_of(
    args: list[_JsonEvent], stat: str, number_of: Callable[[object], int | None]
) -> tuple[Int64Array, Int64Array]:
    """Return the rows of events that have a statistic, and numbers for its values."""
    rows = []
    numbers = []
    for row, arguments in enumerate(args):
        value = arguments.get(stat)
        if not isinstance(value, str | int | float):
            continue
        number = number_of(value)
        if number is not None:
            rows.append(row)
            numbers.append(number)
    return np.array(rows, dtype=np.int64), np.array(numbers, dtype=np.int64)


def _whole_number(value: object) -> int | None:
    """Return a whole number, which JAX writes as a text; None for what is none."""
    text = str(value)
    if _WHOLE_NUMBER.fullmatch(text):
        return int(text)
    return None


def read_json(source: ByteSource) -> Trace:
    """Read the JSON that JAX writes beside a profile."""
    json_events = _JsonEvents()
    stream = EventStream(source, json_events)
    for events in stream:
        json_events.add(events)
    if not stream.found_events:
        raise TraceFormatError(source.path, "has no traceEvents", "record it again")
    profile = json_events.profile
    return profile.finish(
        Programs(),
        salvage_notes(
            source=source, damage=stream.damage, at=stream.place, events=profile.present
        ),
        path=source.path,
        format_name=JSON_FORMAT,
        bytes_read=source.bytes_read,
        metadata=stream.members,
    )


def _args(event: _JsonEvent) -> _JsonEvent:
    args = event.get("args")
    if isinstance(args, dict):
        return args
    return {}


def _nanoseconds(values: Sequence[Any], missing: float) -> Int64Array:
    """Return µs as ns; what cannot be a time becomes what the builder drops."""
    microseconds = np.full(len(values), missing, dtype=np.float64)
    for place, value in enumerate(values):
        with suppress(TypeError, ValueError, OverflowError):
            microseconds[place] = float(value)
    is_usable = np.abs(microseconds) < _MOST_US
    usable = np.where(is_usable, microseconds, -_MOST_US)
    nanoseconds = np.rint(usable * _NS_PER_US)
    return nanoseconds.astype(np.int64)
