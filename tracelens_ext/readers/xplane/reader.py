"""Reads profiles of JAX and XLA (`*.xplane.pb`).

A profile has planes (a GPU, the host), a plane has lines (a stream, a thread), and a line has
events with statistics.

Supports: several GPUs of NVIDIA and AMD; runtime calls, annotations and Python frames on the host;
the HLO of the programs in `/host:metadata`. Metadata may come before or after the events that refer
to it.
Ignores: statistics that `recorded_events.py` does not list. Events of other planes, such as those
of TPUs, are kept with the kind `OTHER`.
Format: `xplane.proto` of openxla/xla (`messages.py` has the fields that are read).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from tracelens_ext.errors import TraceCutOffError, TraceError, TraceFormatError
from tracelens_ext.readers.builder import map_distinct_ids
from tracelens_ext.readers.messages import REMEDY_COPY_AGAIN
from tracelens_ext.readers.salvage import salvage_notes
from tracelens_ext.readers.source import ByteSource
from tracelens_ext.readers.xplane import many_messages
from tracelens_ext.readers.xplane.many_messages import Bytes, Fields
from tracelens_ext.readers.xplane.messages import Message, message_class
from tracelens_ext.readers.xplane.profile import Stats, XplaneProfile
from tracelens_ext.readers.xplane.programs import Programs
from tracelens_ext.readers.xplane.recorded_events import NUMBERS, TEXTS, gpu_of_plane
from tracelens_ext.text import NO_NAME
from tracelens_ext.trace import NONE, Device, Int64Array, Trace

Names = Mapping[int, str]

FORMAT = "JAX/XLA profile (xplane)"


class _SpaceField(IntEnum):
    """The fields of `XSpace`, a file."""

    PLANES = 1
    HOST_NAMES = 4


#: The number of the field of `XPlane` that contains its lines.
_LINES = 3
_METADATA_PLANE = "/host:metadata"
#: Names of the statistic that contains the HLO of a program, in newer and older profiles.
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


#: Start of an event that sums up several occurrences. The builder drops events with this start.
_NO_TIME = -(2**62)
#: Larger numbers are limited to this value, which is too large for any id or size.
_MOST_NUMBER = 2**62
_AMD_WARP_SIZE = 64
_USUAL_WARP_SIZE = 32


def read(source: ByteSource) -> Trace:
    """Read a profile.

    Raises:
        TraceFormatError: the file is damaged, and damaged files are not to be salvaged.
    """
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
            source=source,
            damage=damage,
            end_of_text=place,
            events=reader.profile.present,
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
        return TraceCutOffError(path, problem, REMEDY_COPY_AGAIN)
    return TraceFormatError(path, f"is damaged at byte {place:,}", REMEDY_COPY_AGAIN)


class _PlaneParts(NamedTuple):
    """An encoded plane, split into its lines and its other fields."""

    #: byte of the file where a line begins, and its content
    lines: list[tuple[int, memoryview]]
    other_fields: bytes  #: the encoded other fields: a plane without lines


class _ProfileReader:
    """Reads the planes of a file.

    Attributes:
        profile: collects the events.
        hosts: the names of the machines.
        programs: the compiled programs.
        devices: the GPUs by number.
        versions: `jax_version` and `jaxlib_version`, if the file has them.
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
            DamagedError: the file is damaged; the planes and lines before the damage were read.
        """
        for field in many_messages.fields(data):
            content = data[field.content : field.end]
            if field.number == _SpaceField.PLANES:
                self._read_plane(content, field.content)
            elif field.number == _SpaceField.HOST_NAMES:
                self.hosts.append(_text(bytes(content)))

    def _read_plane(self, data: memoryview, offset: int) -> None:
        """Read a plane; `offset` is the byte of the file where it begins."""
        # The lines are read last, as the metadata that they refer to may come after them.
        parts = _plane_parts(data, offset)
        plane = _decoded("XPlane", parts.other_fields, offset)
        name = _text(plane.name)
        stat_names = {
            entry.key: _text(entry.value.name) for entry in plane.stat_metadata
        }
        stats = _named_stats(stat_names, plane.stats)
        gpu = gpu_of_plane(name)
        if name == _METADATA_PLANE:
            self._read_programs(plane, stat_names)
            for version in _VERSIONS:
                if version in stats:
                    self.versions[version] = stats[version]
        elif gpu != NONE:
            self.devices[gpu] = _device(gpu, stats)
        reader = _LineReader(
            profile=self.profile, plane=plane, plane_name=name, stat_names=stat_names
        )
        for start, content in parts.lines:
            line = _decoded("XLine", content, start)
            try:
                reader.read(line)
            except many_messages.MessageError:
                raise many_messages.DamagedError(start, is_cut=False) from None

    def _read_programs(self, plane: Message, stat_names: Names) -> None:
        """Keep the encoded programs in the metadata of a plane."""
        for entry in plane.event_metadata:
            stats = _named_stats(stat_names, entry.value.stats)
            for stat in _HLO_STATS:
                content = stats.get(stat)
                if not isinstance(content, bytes):
                    continue
                name = _text(entry.value.name)
                self.programs.add(name, content)


def _plane_parts(data: memoryview, offset: int) -> _PlaneParts:
    """Split an encoded plane; `offset` is the byte of the file where it begins."""
    lines: list[tuple[int, memoryview]] = []
    other_fields: list[memoryview] = []
    try:
        for field in many_messages.fields(data):
            if field.number == _LINES:
                line = data[field.content : field.end]
                lines.append((offset + field.content, line))
            else:
                other_fields.append(data[field.start : field.end])
    except many_messages.DamagedError as error:
        raise many_messages.DamagedError(offset + error.place, is_cut=False) from None
    return _PlaneParts(lines=lines, other_fields=b"".join(other_fields))


def _named_stats(stat_names: Names, stats: Iterable[Message]) -> dict[str, object]:
    """Return the values of statistics by name.

    Args:
        stat_names: id → name of a statistic. A statistic with a reference instead of a value has
            one of these names as its value.
        stats: the decoded statistics.
    """
    values: dict[str, object] = {}
    for stat in stats:
        text = _text(stat.str_value)
        if stat.ref_value:
            text = stat_names.get(stat.ref_value, "")
        value = stat.bytes_value or text or stat.int64_value or stat.uint64_value
        values[stat_names.get(stat.metadata_id, "")] = value
    return values


class _LineReader:
    """Adds the lines of a plane to a profile."""

    def __init__(
        self,
        profile: XplaneProfile,
        plane: Message,
        plane_name: str,
        stat_names: Names,
    ) -> None:
        # Runtime calls may be on another plane of the host, but they ran on the same threads.
        self._process = plane_name
        if plane_name.startswith("/host:"):
            self._process = _HOST
        self._profile = profile
        self._stat_names = stat_names
        profile.planes[self._process] = self._process
        self._event_names: dict[int, str] = {}
        for entry in plane.event_metadata:
            self._event_names[entry.key] = _text(entry.value.name)
        self._wanted_stats: dict[int, str] = {}
        for stat_id, stat in stat_names.items():
            if stat in NUMBERS or stat in TEXTS:
                self._wanted_stats[stat_id] = stat

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
        """Add encoded events of a line.

        Args:
            events: the encoded events.
            line_start_ns: the time that the offsets of the events count from.
            lane: the code of the line.
        """
        count = len(events)
        data, start, end = many_messages.join_messages(events)
        fields = many_messages.fields_of(data, start, end)
        metadata = fields.numbers(_EventField.METADATA, count)
        offset_ps = fields.numbers(_EventField.OFFSET, count)
        duration_ps = fields.numbers(_EventField.DURATION, count)
        sums_up_several = fields.numbers(_EventField.OCCURRENCES, count) != 0
        start_ns = offset_ps // _PS_PER_NS
        # Start and end are rounded alike, so that an event still encloses those that it enclosed.
        end_ns = (offset_ps + duration_ps) // _PS_PER_NS
        columns = {
            "ts": np.where(sums_up_several, _NO_TIME, line_start_ns + start_ns),
            "dur": end_ns - start_ns,
            "name": map_distinct_ids(metadata, self._name_codes),
            "lane": np.full(count, lane, dtype=np.int64),
        }
        self._profile.add(columns, self._stats_of(data, fields))

    def _name_codes(self, metadata_ids: Int64Array) -> list[int]:
        """Return the codes of the names of events, by the id of their metadata."""
        names = self._profile.builder.names
        codes = []
        for metadata_id in metadata_ids.tolist():
            name = self._event_names.get(metadata_id) or NO_NAME
            codes.append(names[name])
        return codes

    def _text_codes(self, references: Int64Array) -> list[int]:
        """Return the codes of the texts that statistics refer to: names of statistics."""
        codes = []
        for stat_id in references.tolist():
            text = self._stat_names.get(stat_id, "")
            codes.append(self._profile.texts[text])
        return codes

    def _stats_of(self, data: Bytes, events: Fields) -> Stats:
        """Return the wanted statistics of events: the rows that have them, and the values.

        Args:
            data: the joined encoded events.
            events: the fields of the events.
        """
        event, start, end = events.contents(_EventField.STATS)
        count = len(event)
        fields = many_messages.fields_of(data, start, end)
        stat_id = fields.numbers(_StatField.METADATA, count)
        unsigned = fields.numbers(_StatField.UINT64, count)
        signed = fields.numbers(_StatField.INT64, count)
        number = unsigned | signed  # a statistic has one of them, the other one is 0
        number = np.where(number < 0, _MOST_NUMBER, np.minimum(number, _MOST_NUMBER))
        reference = fields.numbers(_StatField.REF, count)
        own_text = self._own_texts(data, fields, stat_id)
        stats: dict[str, tuple[Int64Array, Int64Array]] = {}
        for wanted_id, name in self._wanted_stats.items():
            rows = np.flatnonzero(stat_id == wanted_id)
            if name in NUMBERS:
                stats[name] = (event[rows], number[rows])
            else:
                referenced_text = map_distinct_ids(reference[rows], self._text_codes)
                has_own_text = own_text[rows] != NONE
                text = np.where(has_own_text, own_text[rows], referenced_text)
                stats[name] = (event[rows], text)
        return stats

    def _own_texts(
        self, data: Bytes, fields: Fields, stat_id: Int64Array
    ) -> Int64Array:
        """Return the code of the text that each statistic contains, (k,); `NONE` without a text.

        Args:
            data: the joined encoded events.
            fields: the fields of k statistics.
            stat_id: the id of the name of each statistic, (k,).
        """
        code = np.full(len(stat_id), NONE, dtype=np.int64)
        stat, start, end = fields.contents(_StatField.STR)
        is_wanted = np.isin(stat_id[stat], list(self._wanted_stats))
        texts = self._profile.texts
        for index in np.flatnonzero(is_wanted).tolist():
            content = data[start[index] : end[index]].tobytes()
            code[stat[index]] = texts[_text(content)]
        return code


def _decoded(message: str, data: bytes | memoryview, offset: int) -> Message:
    """Return a decoded message; `offset` is the byte of the file where it begins."""
    from google.protobuf.message import DecodeError

    try:
        return message_class(message).FromString(data)
    except DecodeError:
        raise many_messages.DamagedError(offset, is_cut=False) from None


def _device(ordinal: int, stats: Mapping[str, object]) -> Device:
    """Return the description of a GPU from the statistics of its plane."""
    vendor = stats.get("device_vendor")
    major = stats.get("compute_cap_major")
    minor = stats.get("compute_cap_minor") or 0
    name = ""
    if vendor and major:
        name = f"{vendor} GPU, compute capability {major}.{minor}"
    warp_size = _USUAL_WARP_SIZE
    if vendor == "AMD":
        warp_size = _AMD_WARP_SIZE
    return Device(
        ordinal=ordinal,
        name=name,
        units=_plausible_size(stats.get("core_count")),
        warp=warp_size,
        memory_bytes=_plausible_size(stats.get("memory_size")),
    )


def _plausible_size(size: object) -> int:
    """Return the size itself, or 0 (unknown) if no GPU can have such a size."""
    if isinstance(size, int) and 0 < size < _MOST_NUMBER:
        return size
    return 0


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")
