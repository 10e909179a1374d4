"""Reads the JSON that PyTorch's profiler (libkineto) writes, `.json` or `.json.gz`.

Supports: all kinds of events that Kineto writes: complete events (`ph: X`), instants, flows;
Kineto's own layout of the JSON and any other; times in whole or fractional µs, since boot or since
1970; the spellings of old versions (`Kernel`, `Runtime`, `Operator`, `Memcpy`, `async_gpu` …);
numbers and texts as process and thread ids.
Ignores: arguments that `schema.py` does not name. Events of unknown kinds are kept as `OTHER`.
Format: ``libkineto/src/output_json.cpp`` and ``ActivityType.cpp`` of pytorch/kineto, and the
"Trace Event Format" document of the Chromium project.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from types import ModuleType

import msgspec
import numpy as np

from tracelens_ext.readers.builder import Labels, TraceBuilder
from tracelens_ext.readers.call_stacks import with_frames_of_call_stacks
from tracelens_ext.readers.json_events import REFUSED, EventStream
from tracelens_ext.readers.kineto import compiled_reader, schema
from tracelens_ext.readers.kineto.columns import (
    ArgumentPiece,
    Slice,
    TimelessEvent,
    slice_of,
)
from tracelens_ext.readers.kineto.exported import EXPORTED_BY, restored
from tracelens_ext.readers.kineto.native_columns import native_schema, native_slice
from tracelens_ext.readers.kineto.schema import ARGUMENTS, NO_PHASE, Event
from tracelens_ext.readers.kineto.values import (
    label_of,
    present_members,
    python_value,
    text_of,
)
from tracelens_ext.readers.messages import in_a_line
from tracelens_ext.readers.salvage import salvage_notes
from tracelens_ext.readers.source import ByteSource
from tracelens_ext.readers.unsupported_documents import error_for_document
from tracelens_ext.trace import Device, EventKind, Trace

_EVENTS_AT_ONCE = 4096
_decode_text = msgspec.json.Decoder(str).decode
#: Events of this kind and of all higher ones may lack a duration.
_FIRST_MOMENTARY_KIND = EventKind.FLOW_START

FORMAT = "PyTorch profiler (Kineto) JSON"
#: The most frequent kinds of unread events are reported, up to this many.
_MOST_UNREAD_KINDS = 8


class KinetoColumns:
    """Decodes slices of events into columns, and collects them in a builder.

    Args:
        library: the compiled reader; None to decode in Python.

    Attributes:
        builder: the builder of the trace.
        labels: the names of processes and threads.
        rank_label: put before the ids of processes, if a file has documents of several ranks.
    """

    def __init__(self, library: ModuleType | None = None) -> None:
        self.builder = TraceBuilder()
        self.labels = Labels()
        self.rank_label = ""
        self.decode_events = msgspec.json.Decoder(list[Event]).decode
        self._parse = (
            partial(library.parse, native_schema(library)) if library else None
        )
        #: phase, category, process → number of events that are not read
        self._unread: Counter[tuple[str, str, int | str]] = Counter()

    def decode(self, text: bytes) -> Slice:
        """Return the events of a JSON array as columns; may be called in any thread.

        Raises:
            MsgspecError, UnicodeError, RecursionError: an event is unusual or damaged.
        """
        return self.parse(text) or slice_of(self.decode_events(text))

    def parse(self, text: bytes) -> Slice | None:
        """Decode a JSON array with the compiled reader.

        The result is None if there is no compiled reader, or if it refuses the array.
        """
        if self._parse is None:
            return None
        try:
            answer = self._parse(text, _decode_text)
        except REFUSED:
            return None
        if answer is None:
            return None
        return native_slice(answer)

    def repair(self, events: list[object]) -> Slice:
        """Return events whose fields have unusual types as columns.

        Items that are not objects, or are nested too deeply, are dropped and counted.
        """
        repaired_events = []
        for event in events:
            repaired = self._repaired(event)
            if repaired is not None:
                repaired_events.append(repaired)
        return slice_of(repaired_events)

    def _repaired(self, event: object) -> Event | None:
        """Return an event with fields of the usual types; None if that is impossible."""
        if not isinstance(event, dict):
            self.builder.dropped["not a JSON object"] += 1
            return None
        args = event.get("args")
        fields: dict[str, object] = {
            key: text_of(event.get(key)) for key in ("ph", "cat", "name")
        }
        fields |= present_members(event, ("ts", "dur", "id"))
        try:
            fields["args"] = {}
            if isinstance(args, dict):
                fields["args"] = present_members(args, ARGUMENTS)
            text = msgspec.json.encode([fields], enc_hook=python_value)
            (repaired,) = self.decode_events(text)
        except RecursionError:
            self.builder.dropped["nested too deeply"] += 1
            return None
        # These are set afterwards, because numbers beyond 64 bits cannot be encoded.
        repaired.pid = label_of(event.get("pid"))
        repaired.tid = label_of(event.get("tid"))
        return repaired

    def add(self, batch: Slice) -> None:
        """Add the events of a slice to the builder; slices come in the order of the file."""
        builder = self.builder
        thread_of_track = []
        category_of_track = []
        for track in batch.tracks:
            process = self._label_of_process(track.process)
            thread_of_track.append(builder.threads[process, track.thread])
            category_of_track.append(builder.categories[track.category])
        self._add_timeless_events(batch.timeless_events)
        self._count_unread(batch)
        may_lack_duration = batch.kind >= _FIRST_MOMENTARY_KIND
        has_no_duration = may_lack_duration & (batch.dur < 0)
        code_of_name = builder.names.codes(batch.names, len(batch.names))
        columns = {
            "ts": batch.ts,
            "dur": np.where(has_no_duration, 0, batch.dur),
            "name": code_of_name[batch.name],
            "kind": batch.kind,
            "thread": np.array(thread_of_track, dtype=np.int32)[batch.track],
            "category": np.array(category_of_track, dtype=np.int32)[batch.track],
        }
        code_of_word = builder.texts.codes(batch.words, len(batch.words))
        texts = {}
        for name, piece in batch.texts.items():
            texts[name] = ArgumentPiece(
                rows=piece.rows, values=code_of_word[piece.values]
            )
        builder.add(columns, batch.numbers, texts)

    def _label_of_process(self, process: int | str) -> int | str:
        """Return the id of a process, with its rank if the file has several."""
        if not self.rank_label:
            return process
        return f"[{self.rank_label}] {process}"

    def _add_timeless_events(self, events: list[TimelessEvent]) -> None:
        """Keep the names of processes and threads; count events without a phase as dropped."""
        for event in events:
            if event.kind == NO_PHASE:
                self.builder.dropped["no phase (ph)"] += 1
                continue
            self.builder.metadata_events += 1
            if event.name == "process_name":
                process = self._label_of_process(event.process)
                self.labels.processes[process] = event.label_name
            elif event.name == "process_labels":
                process = self._label_of_process(event.process)
                self.labels.process_labels[process] = event.labels
            elif event.name == "thread_name":
                process = self._label_of_process(event.process)
                self.labels.threads[process, event.thread] = event.label_name

    def _count_unread(self, batch: Slice) -> None:
        """Count the events of kinds that are not read."""
        unread_tracks = []
        for code, track in enumerate(batch.tracks):
            if schema.unread_text(track.phase, track.category, process=""):
                unread_tracks.append(code)
        if not unread_tracks:
            return
        events_of_track = np.bincount(batch.track, minlength=len(batch.tracks))
        for code in unread_tracks:
            track = batch.tracks[code]
            process = self._label_of_process(track.process)
            kind = (track.phase, track.category, process)
            self._unread[kind] += int(events_of_track[code])

    def _unread_counts(self, members: Mapping[str, object]) -> dict[str, int]:
        """Return the kinds of events that are not read, with their numbers of events.

        A trace that this program exported has further events that it added itself; they are not
        reported.
        """
        if EXPORTED_BY in members:
            return {}
        counts: Counter[str] = Counter()
        for (phase, category, process), count in self._unread.items():
            name = self.labels.processes.get(process, "")
            text = schema.unread_text(phase, category, name)
            counts[in_a_line(text)] += count
        return {
            kind: count
            for kind, count in counts.most_common(_MOST_UNREAD_KINDS)
            if count
        }

    def finish(
        self,
        members: Mapping[str, object],
        path: str,
        size: int = 0,
        notes: Iterable[str] = (),
    ) -> Trace:
        """Return the trace of all events that were added.

        Args:
            members: the other top-level members of the document.
            path: the file as the user named it.
            size: the number of bytes of the text.
            notes: sentences for the user about the file.
        """
        trace = self.builder.finish(
            path=path,
            format_name=FORMAT,
            bytes_read=size,
            devices=_devices(members.get("deviceProperties")),
            metadata=members,
            labels=self.labels,
            notes=tuple(notes),
            unread=self._unread_counts(members),
        )
        return with_frames_of_call_stacks(restored(trace))


def read(source: ByteSource) -> Trace:
    """Read a document of Kineto.

    Raises:
        TraceFormatError: the JSON has no `traceEvents` (if it is JSON of another program, the
            message names the program), or it is damaged.
    """
    library = compiled_reader()
    columns = KinetoColumns(library)
    threads = source.threads() if library else 0
    with ThreadPoolExecutor(threads) if threads else nullcontext() as pool:
        stream = EventStream(source, columns, threads=pool)
        for batch in stream:
            columns.add(batch)
    if not stream.found_events:
        raise error_for_document(source.path, stream.members)
    notes = salvage_notes(
        source=source,
        damage=stream.damage,
        end_of_text=stream.place,
        events=columns.builder.present,
    )
    return columns.finish(stream.members, source.path, source.bytes_read, notes)


def from_events(
    events: Iterable[object], members: Mapping[str, object], path: str
) -> Trace:
    """Return the trace of a JSON document that is already parsed.

    Args:
        events: its events, as Python objects.
        members: its other top-level members.
        path: what messages call the document.
    """
    columns = KinetoColumns()
    add_events(columns, list(events))
    return columns.finish(members, path)


def add_events(columns: KinetoColumns, all_events: list[object]) -> None:
    """Add events that are Python objects to the columns."""
    for start in range(0, len(all_events), _EVENTS_AT_ONCE):
        batch = all_events[start : start + _EVENTS_AT_ONCE]
        try:
            decoded = columns.decode(msgspec.json.encode(batch, enc_hook=python_value))
        except (
            msgspec.MsgspecError,
            UnicodeError,
            TypeError,
            ValueError,
            RecursionError,
        ):
            decoded = columns.repair(batch)
        columns.add(decoded)


def _plausible_number(value: object) -> int:
    """Return a positive integer as it is; 0 (unknown) for any other value."""
    return value if type(value) is int and 0 < value < 1 << 62 else 0


def _devices(properties: object) -> tuple[Device, ...]:
    """Return the devices that the top-level member `deviceProperties` describes."""
    devices = []
    if not isinstance(properties, list):
        return ()
    for entry in properties:
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), int):
            continue
        major = _plausible_number(entry.get("computeMajor"))
        minor = _plausible_number(entry.get("computeMinor"))
        device = Device(
            ordinal=entry["id"],
            name=text_of(entry.get("name")),
            units=_plausible_number(entry.get("numSms")),
            warp=_plausible_number(entry.get("warpSize")),
            memory_bytes=_plausible_number(entry.get("totalGlobalMem")),
            capability=10 * major + minor,
        )
        devices.append(device)
    return tuple(devices)
