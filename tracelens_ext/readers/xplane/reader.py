"""Reader for profiles of JAX and XLA (`*.xplane.pb`): planes of lines of events.

Supports: GPU planes of NVIDIA and AMD, planes of the host with runtime calls, annotations and
Python frames, the HLO of `/host:metadata`; several devices; any order of metadata and events.
Ignores: statistics that `recording.py` does not name. Events of other planes, such as those of
TPUs, are kept as events of no known kind.
Format: `xplane.proto` of openxla/xla (`schema.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import numpy as np

from tracelens_ext.errors import TraceCutOffError, TraceError, TraceFormatError
from tracelens_ext.readers.builder import looked_up
from tracelens_ext.readers.json_events import EventStream
from tracelens_ext.readers.kineto.reader import label_of, text_of
from tracelens_ext.readers.source import AGAIN, ByteSource, salvage_notes
from tracelens_ext.readers.xplane import many_messages as wire
from tracelens_ext.readers.xplane.hlo import Message, Programs, message_class
from tracelens_ext.readers.xplane.profile import GPU_PLANE, NUMBERS, TEXTS, Stats, XplaneProfile
from tracelens_ext.text import NO_NAME
from tracelens_ext.trace import Device, Int64Array, Trace

Names = Mapping[int, str]

FORMAT = "JAX/XLA profile (xplane)"
JSON_FORMAT = "JAX/XLA trace for viewers (JSON)"

_PLANES = 1
_HOST_NAMES = 4
_LINES = 3
_HLO_STATS = ("Hlo Proto", "hlo_proto")
_HOST = "/host:CPU"
_VERSIONS = ("jax_version", "jaxlib_version")
_PS_PER_NS = 1000
_EVENTS_AT_ONCE = 1 << 16
#: Numbers of fields: of an event its metadata, offset and duration; of a statistic its values.
_EVENT = (1, 2, 3)
_STATS = 4
_OCCURRENCES = 5
_STAT_ID = 1
_UINT64 = 3
_INT64 = 4
_STR = 5
_REF = 7
#: A start that is dropped: that of an event that stands for several.
_NO_TIME = -(2**62)
_MOST = 2**62
_ABOUT = ("device_vendor", "compute_cap_major", "compute_cap_minor", "core_count", "memory_size")
_WARP = {"AMD": 64}
_USUAL_WARP = 32


def read(source: ByteSource) -> Trace:
    """Read a profile."""
    data = memoryview(source.read_all())
    profile = _Profile()
    damage: TraceError | None = source.damage
    place = len(data)
    try:
        profile.read(data)
    except wire.DamagedError as error:
        place = error.place
        at = f"at byte {error.place:,}"
        problem = f"is damaged {at}"
        kind = TraceFormatError
        if error.is_cut:
            problem = f"the profile ends in the middle (the plane {at} is not whole)"
            kind = TraceCutOffError
        damage = damage or kind(source.path, problem, AGAIN)
    return profile.recording.finish(
        profile.programs,
        salvage_notes(source, damage, place, profile.recording.present),
        path=source.path,
        format_name=FORMAT,
        bytes_read=len(data),
        devices=tuple(device for _, device in sorted(profile.devices.items())),
        metadata={"hostnames": profile.hosts, **profile.about},
    )


class _Profile:
    """A profile on its way to a trace."""

    def __init__(self) -> None:
        self.recording = XplaneProfile()
        self.hosts: list[str] = []
        self.programs = Programs()
        self.devices: dict[int, Device] = {}
        self.about: dict[str, object] = {}

    def read(self, data: memoryview) -> None:
        """Read a whole file."""
        for number, _, start, end in wire.fields(data):
            if number == _PLANES:
                self._read_plane(data[start:end], start)
            elif number == _HOST_NAMES:
                self.hosts.append(_text(bytes(data[start:end])))

    def _read_plane(self, data: memoryview, place: int) -> None:
        """Read a plane, which begins at a byte of the file; metadata may come after lines."""
        lines: list[tuple[int, memoryview]] = []
        others: list[memoryview] = []
        try:
            for number, first, start, end in wire.fields(data):
                if number == _LINES:
                    lines.append((place + start, data[start:end]))
                else:
                    others.append(data[first:end])
        except wire.DamagedError as error:
            raise wire.DamagedError(place + error.place, is_cut=False) from None
        plane = _decoded("XPlane", b"".join(others), place)
        name = _text(plane.name)
        stats = {entry.key: _text(entry.value.name) for entry in plane.stat_metadata}
        about = _told(stats, plane.stats)
        if name == "/host:metadata":
            for entry in plane.event_metadata:
                told = _told(stats, entry.value.stats)
                for content in (told.get(stat) for stat in _HLO_STATS):
                    if isinstance(content, bytes):
                        self.programs.add(_text(entry.value.name), content)
            self.about |= {key: about[key] for key in _VERSIONS if key in about}
        elif found := GPU_PLANE.match(name):
            self.devices[int(found[1])] = _device(int(found[1]), about)
        reader = _LineReader(self.recording, plane, name, stats)
        for start, line in lines:
            try:
                reader.read(_decoded("XLine", line, start))
            except wire.MessageError:
                raise wire.DamagedError(start, is_cut=False) from None


def _told(names: Names, stats: Iterable[Message]) -> dict[str, object]:
    """Statistics by the names of their ids, which are texts to refer to too; bytes of no text."""
    found: dict[str, object] = {}
    for stat in stats:
        text = names.get(stat.ref_value) if stat.ref_value else _text(stat.str_value)
        value = stat.bytes_value or text or stat.int64_value or stat.uint64_value
        found[names.get(stat.metadata_id, "")] = value
    return found


class _LineReader:
    """Adds the lines of a plane to a recording."""

    def __init__(self, recording: XplaneProfile, plane: Message, name: str, stats: Names) -> None:
        # The host's calls may be on a plane of their own: its ids are those of the same process.
        self._process = _HOST if name.startswith("/host:") else name
        self._recording = recording
        self._stats = stats
        recording.planes[self._process] = self._process
        self._names = {entry.key: _text(entry.value.name) for entry in plane.event_metadata}
        self._wanted = {key: name for key, name in stats.items() if name in (*NUMBERS, *TEXTS)}

    def read(self, line: Message) -> None:
        """Add the events of a line."""
        recording = self._recording
        lane = (self._process, line.id)
        recording.lines[lane] = _text(line.display_name or line.name)
        code = recording.builder.threads[lane]
        for first in range(0, len(line.events), _EVENTS_AT_ONCE):
            events = line.events[first : first + _EVENTS_AT_ONCE]
            data, start, end = wire.joined(events)
            found = wire.fields_of(data, start, end)
            count = len(events)
            metadata, offset, duration = (found.numbers(number, count) for number in _EVENT)
            start = offset // _PS_PER_NS
            repeated = found.numbers(_OCCURRENCES, count)
            begin = line.timestamp_ns + start
            columns = {
                "ts": np.where(repeated, _NO_TIME, begin),
                # Ends are rounded as starts are: what encloses another still does.
                "dur": (offset + duration) // _PS_PER_NS - start,
                "name": looked_up(metadata, self._codes),
                "lane": np.full(count, code, dtype=np.int64),
            }
            recording.add(columns, self._stats_of(data, found))

    def _codes(self, ids: Int64Array) -> list[int]:
        names = self._recording.builder.names
        return [names[self._names.get(number) or NO_NAME] for number in ids.tolist()]

    def _texts(self, ids: Int64Array) -> list[int]:
        return [self._recording.texts[self._stats.get(number, "")] for number in ids.tolist()]

    def _stats_of(self, data: wire.Bytes, events: wire.Fields) -> Stats:
        event, start, end = events.contents(_STATS)
        found = wire.fields_of(data, start, end)
        count = len(event)
        key = found.numbers(_STAT_ID, count)
        whole = found.numbers(_UINT64, count) | found.numbers(_INT64, count)
        whole = np.where(whole < 0, _MOST, np.minimum(whole, _MOST))
        referred = found.numbers(_REF, count)
        texts = self._recording.texts
        given = {
            int(stat): texts[_text(data[a:b].tobytes())]
            for stat, a, b in zip(*found.contents(_STR), strict=True)
            if int(key[stat]) in self._wanted
        }
        result = {}
        for number, name in self._wanted.items():
            places = np.flatnonzero(key == number)
            values = whole[places]
            if name in TEXTS:
                values = looked_up(referred[places], self._texts)
                for i in np.flatnonzero(np.isin(places, list(given))).tolist() if given else ():
                    values[i] = given[int(places[i])]
            result[name] = event[places], values
        return result


def _decoded(message: str, data: bytes | memoryview, place: int) -> Message:
    """A message, which begins at a byte of the file."""
    from google.protobuf.message import DecodeError

    try:
        return message_class(message).FromString(data)
    except DecodeError:
        raise wire.DamagedError(place, is_cut=False) from None


def _device(ordinal: int, about: Mapping[str, object]) -> Device:
    """A GPU, as the statistics of its plane describe it."""
    vendor, major, minor, *sizes = map(about.get, _ABOUT)
    units, memory = (n if isinstance(n, int) and 0 < n < 1 << 62 else 0 for n in sizes)
    name = f"{vendor} GPU, compute capability {major}.{minor or 0}" if vendor and major else ""
    return Device(ordinal, name, units, _WARP.get(str(vendor), _USUAL_WARP), memory)


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


# The JSON for trace viewers (`*.trace.json.gz`): complete events (``ph: X``) of processes that are
# called like planes, with statistics as arguments. There is no HLO, and JAX leaves out what is
# beyond a million. Format: `trace_events_to_json` (tsl/profiler/convert) of openxla/xla.

_NS_PER_US = 1e3
_MOST_US = 2**53
_WHOLE: Final = re.compile("[0-9]{1,18}")


class _Columns:
    """Takes slices of events into a `XplaneProfile`."""

    def __init__(self) -> None:
        self.recording = XplaneProfile()
        self.decode = msgspec.json.Decoder(list[dict[str, Any]]).decode

    def repair(self, events: list[object]) -> list[dict[str, Any]]:
        """Events as they are; what is none is counted."""
        found = [event for event in events if isinstance(event, dict)]
        self.recording.builder.dropped["not a JSON object"] += len(events) - len(found)
        return found

    def add(self, events: list[dict[str, Any]]) -> None:
        """Take over a slice of events."""
        recording = self.recording
        timed = [event for event in events if event.get("ph") == "X"]
        for event in events:
            phase = event.get("ph")
            word = event.get("name")
            if phase == "M" or not (phase or word):  # the last event is empty
                recording.builder.metadata_events += 1
                name = text_of(_args(event).get("name"))
                process = label_of(event.get("pid"))
                if word == "process_name":
                    recording.planes[process] = name
                elif word == "thread_name":
                    recording.lines[process, label_of(event.get("tid"))] = name
            elif phase != "X":
                recording.builder.dropped["not complete (ph is not X)"] += 1
        names = [text_of(event.get("name")) or NO_NAME for event in timed]
        lanes = [(label_of(event.get("pid")), label_of(event.get("tid"))) for event in timed]
        columns: dict[str, Int64Array] = {
            "ts": _nanoseconds([event.get("ts") for event in timed], -_MOST_US),
            "dur": _nanoseconds([event.get("dur") for event in timed], 0),
            "name": recording.builder.names.codes(names, len(timed)).astype(np.int64),
            "lane": recording.builder.threads.codes(lanes, len(timed)).astype(np.int64),
        }
        recording.add(columns, self._stats([_args(event) for event in timed]))

    def _stats(self, args: list[dict[str, Any]]) -> Stats:
        texts = self.recording.texts
        found = {}
        for stat in (*NUMBERS, *TEXTS):
            told = enumerate(each.get(stat) for each in args)
            values = [(row, value) for row, value in told if isinstance(value, str | int | float)]
            if stat in NUMBERS:  # which JAX writes as texts
                pairs = [(row, int(v)) for row, v in values if _WHOLE.fullmatch(str(v))]
            else:
                pairs = [(row, texts[text_of(value)]) for row, value in values]
            rows, codes = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
            found[stat] = rows, codes
        return found


def read_json(source: ByteSource) -> Trace:
    """Read the JSON that JAX writes beside a profile."""
    columns = _Columns()
    stream = EventStream(source, columns)
    for events in stream:
        columns.add(events)
    if not stream.found_events:
        raise TraceFormatError(source.path, "has no traceEvents", "record it again")
    return columns.recording.finish(
        Programs(),
        salvage_notes(source, stream.damage, stream.place, columns.recording.present),
        path=source.path,
        format_name=JSON_FORMAT,
        bytes_read=source.bytes_read,
        metadata=stream.members,
    )


def _args(event: dict[str, Any]) -> dict[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _nanoseconds(values: Sequence[Any], missing: float) -> Int64Array:
    """µs as ns; what cannot be becomes what the builder drops."""
    result = np.full(len(values), missing, dtype=np.float64)
    for at, value in enumerate(values):
        with suppress(TypeError, ValueError, OverflowError):
            result[at] = float(value)
    usable = np.where(np.abs(result) < _MOST_US, result, -_MOST_US)
    return np.rint(usable * _NS_PER_US).astype(np.int64)
