"""Reader for the JSON that PyTorch's profiler (libkineto) writes.

Supports: events of every kind that Kineto names, complete (``ph: X``), instant and flow events;
``.json`` and ``.json.gz``; Kineto's own layout and any other; integer or fractional µs since boot
or since 1970; the spellings of old versions (``Kernel``, ``Runtime``, ``Operator``, ``Memcpy``,
``async_gpu`` …); integer and text process and thread ids.
Ignores: arguments that `kineto_schema.Args` does not name. Unknown kinds are kept as `OTHER`.
Format: ``libkineto/src/output_json.cpp`` and ``ActivityType.cpp`` of pytorch/kineto, and the
"Trace Event Format" document of the Chromium project.
"""

from __future__ import annotations

import re
from operator import attrgetter, index
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec import Raw

from tracelens_ext.readers.builder import Interner, Labels, TraceBuilder
from tracelens_ext.readers.decimals import (
    MISSING,
    MISSING_TOKEN,
    UnusualNumberError,
    mend,
    parse_integers,
    parse_nanoseconds,
)
from tracelens_ext.readers.json_events import EventStream, Number
from tracelens_ext.readers.kineto_schema import (
    METADATA,
    NAME_IN_FILE,
    NO_DURATION,
    NO_PHASE,
    NO_TEXT,
    PLAN,
    Args,
    Event,
    kind_of,
)
from tracelens_ext.trace import Device, EventKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import numpy.typing as npt

    from tracelens_ext.readers.source import ByteSource
    from tracelens_ext.trace import Trace

    IntArray = npt.NDArray[np.integer]

_EVENTS_AT_ONCE = 4096
_ABSENT = {field: getattr(Args(), field) for field in NAME_IN_FILE}

FORMAT = "PyTorch profiler (Kineto) JSON"


class KinetoColumns:
    """Turns decoded events into the columns of a `TraceBuilder`; also repairs unusual events."""

    def __init__(self) -> None:
        self.builder = TraceBuilder()
        self.labels = Labels()
        self._decoder = msgspec.json.Decoder(list[Event])
        self._lanes: Interner[tuple[str, str, int | str, int | str]] = Interner()
        self._lane_table = np.empty((0, 3), dtype=np.int32)

    def decode(self, text: bytes) -> list[Event]:
        """Decode a JSON array of events."""
        return self._decoder.decode(text)

    def repair(self, event: object) -> Event | None:
        """An event whose fields have unusual types; None, and counted, when it is no object."""
        if not isinstance(event, dict):
            self.builder.dropped["not a JSON object"] += 1
            return None
        try:
            return self._repaired(event)
        except RecursionError:
            self.builder.dropped["nested too deeply"] += 1
            return None

    def _repaired(self, event: dict[str, object]) -> Event:
        args = event.get("args")
        given = args if isinstance(args, dict) else {}
        return Event(
            ph=_text(event.get("ph")),
            cat=_text(event.get("cat")),
            name=_text(event.get("name")),
            pid=_label(event.get("pid")),
            tid=_label(event.get("tid")),
            ts=_raw(event, "ts", MISSING_TOKEN),
            dur=_raw(event, "dur", NO_DURATION),
            id=_raw(event, "id", MISSING_TOKEN),
            args=Args(
                **{
                    field: _raw(given, name, _ABSENT[field])
                    for field, name in NAME_IN_FILE.items()
                    if name in given
                }
            ),
        )

    def add_objects(self, events: list[object]) -> None:
        """Take over events that are Python objects already."""
        try:
            decoded = self.decode(msgspec.json.encode(events, enc_hook=_python_value))
        except (msgspec.MsgspecError, UnicodeError, TypeError, ValueError, RecursionError):
            decoded = [e for e in map(self.repair, events) if e is not None]
        self.add(decoded)

    def add(self, events: list[Event]) -> None:
        """Take over a slice of events."""
        lanes = self._lanes.codes(
            zip(
                [e.ph for e in events],
                [e.cat for e in events],
                [e.pid for e in events],
                [e.tid for e in events],
                strict=True,
            ),
            len(events),
        )
        if len(self._lanes) > len(self._lane_table):
            self._extend_lane_table()
        kind = self._lane_table[lanes, 0]
        special = np.flatnonzero(kind >= METADATA)
        if len(special):
            for row in special.tolist():
                self._add_special(events[row], int(kind[row]))
            keep = np.flatnonzero(kind < METADATA)
            events = [events[row] for row in keep.tolist()]
            lanes, kind = lanes[keep], kind[keep]
        columns: dict[str, IntArray] = {
            "ts": _parse([e.ts for e in events], parse_nanoseconds),
            "dur": _parse([e.dur for e in events], parse_nanoseconds),
            "name": self.builder.names.codes([e.name for e in events], len(events)),
            "kind": kind,
            "thread": self._lane_table[lanes, 1],
            "category": self._lane_table[lanes, 2],
        }
        momentary = kind >= EventKind.FLOW_START
        columns["dur"][momentary & (columns["dur"] < 0)] = 0
        self.builder.add(columns, *self._arguments(events, kind))

    def _extend_lane_table(self) -> None:
        """One row for each distinct (phase, category, process, thread): kind, thread, category."""
        builder = self.builder
        rows = [
            (kind_of(phase, category), builder.threads[pid, tid], builder.categories[category])
            for phase, category, pid, tid in self._lanes
        ]
        self._lane_table = np.array(rows, dtype=np.int32)

    def _add_special(self, event: Event, kind: int) -> None:
        if kind == NO_PHASE:
            self.builder.dropped["no phase (ph)"] += 1
            return
        self.builder.metadata_events += 1
        if event.name == "process_name":
            self.labels.processes[event.pid] = _decoded(event.args.name)
        elif event.name == "process_labels":
            self.labels.process_labels[event.pid] = _decoded(event.args.labels)
        elif event.name == "thread_name":
            self.labels.threads[event.pid, event.tid] = _decoded(event.args.name)

    def _arguments(
        self, events: list[Event], kind: IntArray
    ) -> tuple[dict[str, tuple[IntArray, IntArray]], dict[str, tuple[IntArray, IntArray]]]:
        numbers: dict[str, list[tuple[IntArray, IntArray]]] = {}
        texts: dict[str, list[tuple[IntArray, IntArray]]] = {}
        for plan in PLAN:
            rows = np.flatnonzero(plan.wanted[kind])
            if not len(rows):
                continue
            having = [events[row] for row in rows.tolist()]
            if plan.flow_id:
                _keep_numbers(numbers, "flow id", rows, [e.id for e in having])
            args = [e.args for e in having] if plan.numbers or plan.texts else []
            for field in plan.numbers:
                tokens = list(map(attrgetter(field), args))
                _keep_numbers(numbers, NAME_IN_FILE[field], rows, tokens)
            for group in plan.texts:
                for field, found in self._text_group(rows, args, group).items():
                    texts.setdefault(NAME_IN_FILE[field], []).append(found)
        return _in_row_order(numbers), _in_row_order(texts)

    def _text_group(
        self, rows: IntArray, args: list[Args], fields: tuple[str, ...]
    ) -> dict[str, tuple[IntArray, IntArray]]:
        leader = attrgetter(fields[0])
        having = [i for i, a in enumerate(args) if leader(a) is not NO_TEXT]
        if not having:
            return {}
        rows, args = rows[having], [args[i] for i in having]
        result: dict[str, tuple[IntArray, IntArray]] = {}
        for field in fields:
            tokens = list(map(attrgetter(field), args))
            codes = self.builder.texts.codes(map(bytes, tokens), len(tokens))
            absent = [self.builder.texts[b""], self.builder.texts[b"null"]]
            present = ~np.isin(codes, absent)
            if present.any():
                result[field] = (rows[present], codes[present])
        return result


def _keep_numbers(
    found: dict[str, list[tuple[IntArray, IntArray]]], name: str, rows: IntArray, tokens: list[Raw]
) -> None:
    values = _parse(tokens, parse_integers)
    present = values != MISSING
    if present.all():
        found.setdefault(name, []).append((rows, values))
    elif present.any():
        found.setdefault(name, []).append((rows[present], values[present]))


def _in_row_order(
    pieces: Mapping[str, list[tuple[IntArray, IntArray]]],
) -> dict[str, tuple[IntArray, IntArray]]:
    """Join what was found on several kinds of events; rows ascending."""
    result: dict[str, tuple[IntArray, IntArray]] = {}
    for name, found in pieces.items():
        rows, values = found[0]
        if len(found) > 1:
            rows, values = (np.concatenate(parts) for parts in zip(*found, strict=True))
            order = np.argsort(rows, kind="stable")
            rows, values = rows[order], values[order]
        result[name] = (rows, values)
    return result


def _parse(tokens: list[Raw], parse: Callable[[list[Raw]], IntArray]) -> IntArray:
    try:
        return parse(tokens)
    except UnusualNumberError:
        return parse(mend(tokens, integer=parse is parse_integers))


def _decoded(text: Raw) -> str:
    """The text that a JSON string stands for; empty when it is none."""
    try:
        return msgspec.json.decode(text, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


_SURROGATES = re.compile("[\ud800-\udfff]")


def _text(value: object) -> str:
    """Any JSON value as clean text; bytes that were no UTF-8 become U+FFFD."""
    return "" if value is None else _SURROGATES.sub("\ufffd", str(value))


def _label(value: object) -> int | str:
    """A process or thread id."""
    if value is None:
        return "?"
    try:
        return int(value) if isinstance(value, Number) else index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return _text(value)


def _raw(holder: Mapping[str, object], name: str, absent: Raw) -> Raw:
    """A member as raw JSON text, `absent` where it is missing or null."""
    value = holder.get(name)
    if value is None:
        return absent
    if isinstance(value, Number):
        return Raw(value.encode())
    return Raw(msgspec.json.encode(_plain(value), enc_hook=_python_value))


def _python_value(value: object) -> object:
    """What a numpy scalar or array in a hand-made document stands for; any other as text."""
    to_list = getattr(value, "tolist", None)
    return to_list() if callable(to_list) else str(value)


def _plain(value: object) -> object:
    """A value decoded leniently as one that can be encoded again, numbers unchanged."""
    if isinstance(value, Number):
        return Raw(value.encode())
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {_text(key): _plain(item) for key, item in value.items()}
    return value


def read(source: ByteSource) -> tuple[Trace | None, Mapping[str, object]]:
    """Read a Kineto document.

    Args:
        source: the document's bytes.

    Returns:
        The trace, None when the document is JSON but has no `traceEvents`; and the document's
        other top-level members.

    Raises:
        TraceCutOffError, TraceFormatError: as `EventStream` says.
    """
    columns = KinetoColumns()
    stream = EventStream(source, columns)
    for events in stream:
        columns.add(events)
    if not stream.found_events:
        return None, stream.members
    trace = _finish(columns, stream.members, source.path, source.bytes_read)
    return trace, stream.members


def from_events(events: Iterable[object], members: Mapping[str, object], path: str) -> Trace:
    """The trace of events that are Python objects already (a loaded JSON document)."""
    columns = KinetoColumns()
    events = list(events)
    for start in range(0, len(events), _EVENTS_AT_ONCE):
        columns.add_objects(events[start : start + _EVENTS_AT_ONCE])
    return _finish(columns, members, path, 0)


def _finish(
    columns: KinetoColumns, members: Mapping[str, object], path: str, bytes_read: int
) -> Trace:
    return columns.builder.finish(
        devices=_devices(members.get("deviceProperties")),
        metadata=members,
        labels=columns.labels,
        path=path,
        format_name=FORMAT,
        bytes_read=bytes_read,
    )


def _devices(properties: object) -> tuple[Device, ...]:
    entries = properties if isinstance(properties, list) else []
    return tuple(
        Device(entry["id"], _text(entry.get("name")))
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("id"), int)
    )
