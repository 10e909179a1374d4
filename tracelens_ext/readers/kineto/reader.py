"""Reader for the JSON that PyTorch's profiler (libkineto) writes.

Supports: events of every kind that Kineto names, complete (``ph: X``), instant and flow events;
``.json`` and ``.json.gz``; Kineto's own layout and any other; integer or fractional µs since boot
or since 1970; the spellings of old versions (``Kernel``, ``Runtime``, ``Operator``, ``Memcpy``,
``async_gpu`` …); integer and text process and thread ids.
Ignores: arguments that `schema.py` does not name. Unknown kinds are kept as `OTHER`.
Format: ``libkineto/src/output_json.cpp`` and ``ActivityType.cpp`` of pytorch/kineto, and the
"Trace Event Format" document of the Chromium project.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from operator import index
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw

from tracelens_ext.readers.builder import Interner, Labels, TraceBuilder
from tracelens_ext.readers.call_stacks import with_frames_of_call_stacks
from tracelens_ext.readers.json_events import REFUSED, EventStream
from tracelens_ext.readers.kineto import compiled_reader, schema
from tracelens_ext.readers.kineto.columns import (
    ArgumentPiece,
    Slice,
    Special,
    native_schema,
    native_slice,
    slice_of,
)
from tracelens_ext.readers.kineto.schema import ARGUMENTS, NO_PHASE, Event
from tracelens_ext.readers.lenient_json import Number
from tracelens_ext.readers.source import (
    ByteSource,
    in_a_line,
    refuse_members,
    salvage_notes,
)
from tracelens_ext.text import encodable
from tracelens_ext.trace import Conventions, Device, EventKind, Trace

_EVENTS_AT_ONCE = 4096
_decode_text = msgspec.json.Decoder(str).decode
#: The first of the kinds whose events may lack a duration.
_MOMENTARY = EventKind.FLOW_START

FORMAT = "PyTorch profiler (Kineto) JSON"
#: The top-level member of the traces that this program exports.
EXPORTED_BY = "tracelens_ext"
#: Kinds of events of which nothing is read that are told, the most frequent first.
_MOST_UNREAD_KINDS = 8


class KinetoColumns:
    """Decodes events as slices of columns, which go into a `TraceBuilder`; repairs unusual ones.

    Attributes:
        rank_label: put before processes, for documents of several ranks in one file.
    """

    def __init__(self, library: ModuleType | None = None) -> None:
        self.builder = TraceBuilder()
        self.labels = Labels()
        self.rank_label = ""
        self.events_of = msgspec.json.Decoder(list[Event]).decode
        self._parse = (
            partial(library.parse, native_schema(library)) if library else None
        )
        #: (phase, category, process) → events of which nothing is read
        self._unread: Counter[tuple[str, str, int | str]] = Counter()

    def decode(self, text: bytes) -> Slice:
        """Return the columns of an array of events."""
        return self.parse(text) or slice_of(self.events_of(text))

    def parse(self, text: bytes) -> Slice | None:
        """Ask the compiled reader for an array; None if that is not there, or refuses it."""
        if self._parse is None:
            return None
        try:
            answer = self._parse(text, _decode_text)
        except REFUSED:
            return None
        return None if answer is None else native_slice(answer)

    def repair(self, events: list[object]) -> Slice:
        """Return the columns of events whose fields have unusual types.

        What is no object is counted as dropped.
        """
        repaired = map(self._repaired, events)
        return slice_of([event for event in repaired if event is not None])

    def _repaired(self, event: object) -> Event | None:
        if not isinstance(event, dict):
            self.builder.dropped["not a JSON object"] += 1
            return None
        args = event.get("args")
        fields: dict[str, object] = {
            key: text_of(event.get(key)) for key in ("ph", "cat", "name")
        }
        fields |= _present(event, ("ts", "dur", "id"))
        try:
            fields["args"] = _present(args, ARGUMENTS) if isinstance(args, dict) else {}
            (repaired,) = self.events_of(
                msgspec.json.encode([fields], enc_hook=_python_value)
            )
        except RecursionError:
            self.builder.dropped["nested too deeply"] += 1
            return None
        # Apart, because numbers beyond 64 bits cannot be encoded.
        repaired.pid = label_of(event.get("pid"))
        repaired.tid = label_of(event.get("tid"))
        return repaired

    def take(self, batch: Slice) -> None:
        """Take over a slice, in the order of the file."""
        builder = self.builder
        thread_of_track = []
        category_of_track = []
        for track in batch.tracks:
            process = self._labelled(track.process)
            thread_of_track.append(builder.threads[process, track.thread])
            category_of_track.append(builder.categories[track.category])
        self._take_special(batch.special)
        self._count_unread(batch)
        has_no_duration = (batch.kind >= _MOMENTARY) & (batch.dur < 0)
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

    def _labelled(self, process: int | str) -> int | str:
        if not self.rank_label:
            return process
        return f"[{self.rank_label}] {process}"

    def _take_special(self, events: list[Special]) -> None:
        """Take over events that are not on a timeline: what processes and threads are called."""
        for event in events:
            if event.kind == NO_PHASE:
                self.builder.dropped["no phase (ph)"] += 1
                continue
            self.builder.metadata_events += 1
            if event.name == "process_name":
                process = self._labelled(event.process)
                self.labels.processes[process] = event.label_name
            elif event.name == "process_labels":
                process = self._labelled(event.process)
                self.labels.process_labels[process] = event.labels
            elif event.name == "thread_name":
                process = self._labelled(event.process)
                self.labels.threads[process, event.thread] = event.label_name

    def _count_unread(self, batch: Slice) -> None:
        """Count the events of a slice of which nothing is read."""
        unread = [
            code
            for code, track in enumerate(batch.tracks)
            if schema.unread_text(
                phase=track.phase, category=track.category, process=""
            )
        ]
        if not unread:
            return
        events_of_track = np.bincount(batch.track, minlength=len(batch.tracks))
        for code in unread:
            track = batch.tracks[code]
            process = self._labelled(track.process)
            kind = (track.phase, track.category, process)
            self._unread[kind] += int(events_of_track[code])

    def _unread_texts(self, members: Mapping[str, object]) -> dict[str, int]:
        """Return the kinds of events of which nothing is read, and how many there are.

        A trace that this program exported has further events, which it has no need to read.
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
        """Return the trace of all that was taken over.

        Args:
            members: the other top-level members of the document.
            path: the file as the user named it.
            size: of the text, bytes.
            notes: what the user should know about the file.
        """
        trace = self.builder.finish(
            path=path,
            format_name=FORMAT,
            bytes_read=size,
            devices=_devices(members.get("deviceProperties")),
            metadata=members,
            labels=self.labels,
            notes=tuple(notes),
            unread=self._unread_texts(members),
        )
        return with_frames_of_call_stacks(restored(trace))


def text_of(value: object) -> str:
    """Return any JSON value as clean text; bytes that were no UTF-8 become U+FFFD."""
    return "" if value is None else encodable(str(value))


def label_of(value: object) -> int | str:
    """Return a process or thread id."""
    if value is None:
        return "?"
    try:
        return int(value) if isinstance(value, Number) else index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return text_of(value)


def _present(holder: Mapping[str, object], names: Iterable[str]) -> dict[str, object]:
    """Return those members that are neither missing nor null, fit for being encoded."""
    return {name: plain(holder[name]) for name in names if holder.get(name) is not None}


def _python_value(value: object) -> object:
    """Return what a numpy scalar or array in a hand-made document stands for; others as text."""
    to_list = getattr(value, "tolist", None)
    return to_list() if callable(to_list) else str(value)


def plain(value: object) -> object:
    """Return a value decoded leniently as one that can be encoded again, numbers unchanged."""
    if isinstance(value, Number):
        return Raw(value.encode())
    if isinstance(value, str):
        return text_of(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {text_of(key): plain(item) for key, item in value.items()}
    return value


def read(source: ByteSource) -> Trace:
    """Read a Kineto document; JSON without `traceEvents` is refused, by name if it is known."""
    library = compiled_reader()
    columns = KinetoColumns(library)
    threads = source.threads() if library else 0
    with ThreadPoolExecutor(threads) if threads else nullcontext() as pool:
        stream = EventStream(source, columns, threads=pool)
        for batch in stream:
            columns.take(batch)
    if not stream.found_events:
        raise refuse_members(source.path, stream.members)
    notes = salvage_notes(
        source=source,
        damage=stream.damage,
        at=stream.place,
        events=columns.builder.present,
    )
    return columns.finish(stream.members, source.path, source.bytes_read, notes)


def from_events(
    events: Iterable[object], members: Mapping[str, object], path: str
) -> Trace:
    """Return the trace of events that are Python objects already (a loaded JSON document)."""
    columns = KinetoColumns()
    take_events(columns, list(events))
    return columns.finish(members, path)


def take_events(columns: KinetoColumns, all_events: list[object]) -> None:
    """Take over events that are Python objects."""
    for start in range(0, len(all_events), _EVENTS_AT_ONCE):
        batch = all_events[start : start + _EVENTS_AT_ONCE]
        try:
            decoded = columns.decode(msgspec.json.encode(batch, enc_hook=_python_value))
        except (
            msgspec.MsgspecError,
            UnicodeError,
            TypeError,
            ValueError,
            RecursionError,
        ):
            decoded = columns.repair(batch)
        columns.take(decoded)


def _number(value: object) -> int:
    """Return a positive integer of the description of a device; 0 for anything else."""
    return value if type(value) is int and 0 < value < 1 << 62 else 0


def _devices(properties: object) -> tuple[Device, ...]:
    """Return the devices that the member `deviceProperties` describes."""
    devices = []
    if not isinstance(properties, list):
        return ()
    for entry in properties:
        if not isinstance(entry, dict):
            continue
        if not isinstance(entry.get("id"), int):
            continue
        major = _number(entry.get("computeMajor"))
        minor = _number(entry.get("computeMinor"))
        device = Device(
            ordinal=entry["id"],
            name=text_of(entry.get("name")),
            units=_number(entry.get("numSms")),
            warp=_number(entry.get("warpSize")),
            memory_bytes=_number(entry.get("totalGlobalMem")),
            capability=10 * major + minor,
        )
        devices.append(device)
    return tuple(devices)


class _Head(msgspec.Struct):
    """What an exported trace says of the one that it was made of."""

    #: of each thread as it is exported the process and the thread, and what they were
    threads: list[tuple[int | str, int | str, int | str, int | str]] = []
    conventions: dict[str, object] = {}


def restored(trace: Trace) -> Trace:
    """Return a trace with the threads and the conventions that it had before it was exported."""
    try:
        head = msgspec.convert(trace.metadata[EXPORTED_BY], _Head)
    except (KeyError, msgspec.ValidationError):
        return trace
    recorded_thread = {entry[:2]: entry[2:] for entry in head.threads}
    codes: Interner[tuple[int | str, int | str]] = Interner()
    recorded_threads = [recorded_thread.get(place, place) for place in trace.threads]
    code_of_thread = codes.codes(recorded_threads, len(trace.threads))
    thread_names = {}
    for place, name in trace.thread_names.items():
        recorded = recorded_thread.get(place, place)
        thread_names[recorded] = name
    thread = trace.thread
    if len(trace.threads):
        thread = code_of_thread[thread]
    base_ns = trace.base_ns
    recorded_base = trace.metadata.get("baseTimeNanoseconds")
    if type(recorded_base) is int and 0 <= recorded_base < 1 << 62:
        base_ns = recorded_base
    return replace(
        trace,
        thread=thread,
        threads=list(codes),
        conventions=_conventions(head.conventions),
        base_ns=base_ns,
        thread_names=thread_names,
    )


def _conventions(recorded: Mapping[str, object]) -> Conventions:
    """Return the conventions that a trace was exported with, as far as they are known here."""
    usual = asdict(Conventions())
    known_fields: dict[str, Any] = {
        name: value
        for name, value in recorded.items()
        if name in usual and type(value) is type(usual[name])
    }
    return Conventions(**known_fields)
