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
from tracelens_ext.readers.json_events import REFUSED, EventStream
from tracelens_ext.readers.kineto import compiled_reader, schema
from tracelens_ext.readers.kineto.columns import Slice, native_schema, native_slice, slice_of
from tracelens_ext.readers.kineto.schema import ARGUMENTS, NO_PHASE, Event
from tracelens_ext.readers.lenient_json import Number
from tracelens_ext.readers.source import ByteSource, in_a_line, refuse_members, salvage_notes
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
    """Decodes events as slices of columns, which go into a `TraceBuilder`; repairs unusual ones."""

    def __init__(self, library: ModuleType | None = None) -> None:
        self.builder = TraceBuilder()
        self.labels = Labels()
        self.events_of = msgspec.json.Decoder(list[Event]).decode
        self._parse = partial(library.parse, native_schema(library)) if library else None
        #: (phase, category, process) → events of which nothing is read
        self._unread: Counter[tuple[str, str, int | str]] = Counter()

    def decode(self, text: bytes) -> Slice:
        """The columns of an array of events."""
        return self.parse(text) or slice_of(self.events_of(text))

    def parse(self, text: bytes) -> Slice | None:
        """What an array holds by the compiled reader; None if that is not there, or refuses it."""
        try:
            answer = self._parse(text, _decode_text) if self._parse is not None else None
        except REFUSED:
            return None
        return None if answer is None else native_slice(answer)

    def repair(self, events: list[object]) -> Slice:
        """The columns of events whose fields have unusual types; what is no object is counted."""
        return slice_of([each for each in map(self._repaired, events) if each is not None])

    def _repaired(self, event: object) -> Event | None:
        if not isinstance(event, dict):
            self.builder.dropped["not a JSON object"] += 1
            return None
        args = event.get("args")
        fields: dict[str, object] = {key: text_of(event.get(key)) for key in ("ph", "cat", "name")}
        fields |= _present(event, ("ts", "dur", "id"))
        try:
            fields["args"] = _present(args, ARGUMENTS) if isinstance(args, dict) else {}
            (repaired,) = self.events_of(msgspec.json.encode([fields], enc_hook=_python_value))
        except RecursionError:
            self.builder.dropped["nested too deeply"] += 1
            return None
        # Apart, because numbers beyond 64 bits cannot be encoded.
        repaired.pid = label_of(event.get("pid"))
        repaired.tid = label_of(event.get("tid"))
        return repaired

    def take(self, found: Slice) -> None:
        """Take over a slice, in the order of the file."""
        builder = self.builder
        threads = [builder.threads[process, thread] for _, _, process, thread in found.lanes]
        categories = [builder.categories[category] for _, category, _, _ in found.lanes]
        for kind, event, process, thread, name, labels in found.special:
            if kind == NO_PHASE:
                builder.dropped["no phase (ph)"] += 1
                continue
            builder.metadata_events += 1
            if event == "process_name":
                self.labels.processes[process] = name
            elif event == "process_labels":
                self.labels.process_labels[process] = labels
            elif event == "thread_name":
                self.labels.threads[process, thread] = name
        self._count_unread(found)
        words = builder.texts.codes(found.words, len(found.words))
        columns = {
            "ts": found.ts,
            "dur": np.where((found.kind >= _MOMENTARY) & (found.dur < 0), 0, found.dur),
            "name": builder.names.codes(found.names, len(found.names))[found.name],
            "kind": found.kind,
            "thread": np.array(threads, dtype=np.int32)[found.lane],
            "category": np.array(categories, dtype=np.int32)[found.lane],
        }
        texts = {name: (rows, words[codes]) for name, (rows, codes) in found.texts.items()}
        builder.add(columns, found.numbers, texts)

    def _count_unread(self, found: Slice) -> None:
        """Count the events of a slice of which nothing is read."""
        unread: dict[int, tuple[str, str, int | str]] = {}
        for code, (phase, category, process, _) in enumerate(found.lanes):
            if schema.unread_text(phase, category, ""):
                unread[code] = (phase, category, process)
        if not unread:
            return
        count_of_code = np.bincount(found.lane, minlength=len(found.lanes))
        for code, kind in unread.items():
            self._unread[kind] += int(count_of_code[code])

    def _unread_texts(self, members: Mapping[str, object]) -> dict[str, int]:
        """Return the kinds of events of which nothing is read, and how many there are.

        A trace that this program exported has further events, which it has no need to read.
        """
        if EXPORTED_BY in members:
            return {}
        counts: Counter[str] = Counter()
        for (phase, category, process), count in self._unread.items():
            name = self.labels.processes.get(process, "")
            counts[in_a_line(schema.unread_text(phase, category, name))] += count
        return {kind: count for kind, count in counts.most_common(_MOST_UNREAD_KINDS) if count}

    def finish(
        self, members: Mapping[str, object], path: str, size: int = 0, notes: Iterable[str] = ()
    ) -> Trace:
        """The trace of all that was taken over."""
        devices = _devices(members.get("deviceProperties"))
        told = tuple(notes)
        about: dict[str, Any] = {"path": path, "bytes_read": size, "notes": told}
        about |= {"devices": devices, "metadata": members, "labels": self.labels}
        about["unread"] = self._unread_texts(members)
        return restored(self.builder.finish(format_name=FORMAT, **about))


def text_of(value: object) -> str:
    """Any JSON value as clean text; bytes that were no UTF-8 become U+FFFD."""
    return "" if value is None else encodable(str(value))


def label_of(value: object) -> int | str:
    """A process or thread id."""
    if value is None:
        return "?"
    try:
        return int(value) if isinstance(value, Number) else index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return text_of(value)


def _present(holder: Mapping[str, object], names: Iterable[str]) -> dict[str, object]:
    """Those of the members that are neither missing nor null, fit for being encoded."""
    return {name: plain(holder[name]) for name in names if holder.get(name) is not None}


def _python_value(value: object) -> object:
    """What a numpy scalar or array in a hand-made document stands for; any other as text."""
    to_list = getattr(value, "tolist", None)
    return to_list() if callable(to_list) else str(value)


def plain(value: object) -> object:
    """A value decoded leniently as one that can be encoded again, numbers unchanged."""
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
    count = source.threads() if library else 0
    with ThreadPoolExecutor(count) if count else nullcontext() as pool:
        stream = EventStream(source, columns, threads=pool)
        for found in stream:
            columns.take(found)
    if not stream.found_events:
        raise refuse_members(source.path, stream.members)
    notes = salvage_notes(source, stream.damage, stream.place, columns.builder.present)
    return columns.finish(stream.members, source.path, source.bytes_read, notes)


def from_events(events: Iterable[object], members: Mapping[str, object], path: str) -> Trace:
    """The trace of events that are Python objects already (a loaded JSON document)."""
    columns = KinetoColumns()
    events = list(events)
    for start in range(0, len(events), _EVENTS_AT_ONCE):
        some = events[start : start + _EVENTS_AT_ONCE]
        try:
            found = columns.decode(msgspec.json.encode(some, enc_hook=_python_value))
        except (msgspec.MsgspecError, UnicodeError, TypeError, ValueError, RecursionError):
            found = columns.repair(some)
        columns.take(found)
    return columns.finish(members, path)


def _number(value: object) -> int:
    return value if type(value) is int and 0 < value < 1 << 62 else 0


def _devices(properties: object) -> tuple[Device, ...]:
    devices = []
    for entry in properties if isinstance(properties, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("id"), int):
            words = ("numSms", "warpSize", "totalGlobalMem", "computeMajor", "computeMinor")
            units, warp, memory, major, minor = (_number(entry.get(word)) for word in words)
            about = {"memory_bytes": memory, "capability": 10 * major + minor}
            devices.append(Device(entry["id"], text_of(entry.get("name")), units, warp, **about))
    return tuple(devices)


class _Head(msgspec.Struct):
    """What an exported trace says of the one that it was made of."""

    #: of each thread as it is exported the process and the thread, and what they were
    threads: list[tuple[int | str, int | str, int | str, int | str]] = []
    conventions: dict[str, object] = {}


def restored(trace: Trace) -> Trace:
    """A trace with the threads and the conventions that it had before it was exported."""
    try:
        head = msgspec.convert(trace.metadata[EXPORTED_BY], _Head)
    except (KeyError, msgspec.ValidationError):
        return trace
    usual = asdict(Conventions())
    said = {n: v for n, v in head.conventions.items() if n in usual and type(v) is type(usual[n])}
    recorded = {entry[:2]: entry[2:] for entry in head.threads}
    threads = [recorded.get(thread, thread) for thread in trace.threads]
    codes: Interner[tuple[int | str, int | str]] = Interner()
    of_thread = codes.codes(threads, len(threads))
    base = trace.metadata.get("baseTimeNanoseconds")
    return replace(
        trace,
        thread=of_thread[trace.thread] if len(threads) else trace.thread,
        threads=list(codes),
        conventions=Conventions(**said),  # type: ignore[arg-type]
        base_ns=base if type(base) is int and 0 <= base < 1 << 62 else trace.base_ns,
        thread_names={recorded.get(key, key): name for key, name in trace.thread_names.items()},
    )
