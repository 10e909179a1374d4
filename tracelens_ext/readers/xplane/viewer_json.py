"""Reader for the JSON for trace viewers that JAX writes beside a profile (`*.trace.json.gz`).

Supports complete events (``ph: X``) of processes that are called like planes, with statistics as
arguments (`recording.py` names them). There is no HLO, and JAX leaves out events beyond a million.
Format: `trace_events_to_json` (tsl/profiler/convert) of openxla/xla, "Trace Event Format".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.readers.json_events import EventStream
from tracelens_ext.readers.kineto.reader import label_of, text_of
from tracelens_ext.readers.source import salvage_notes
from tracelens_ext.readers.xplane.recording import NUMBERS, TEXTS, Recording
from tracelens_ext.text import NO_NAME

if TYPE_CHECKING:
    from tracelens_ext.readers.source import ByteSource
    from tracelens_ext.trace import Int64Array, Trace

FORMAT = "JAX/XLA trace for viewers (JSON)"

_NS_PER_US: Final = 1e3
_MOST_US: Final = 2**53
_MOST_DIGITS: Final = 18


class _Columns:
    """Takes slices of events into a `Recording`."""

    def __init__(self) -> None:
        self.recording = Recording()
        self.decode = msgspec.json.Decoder(list[dict[str, Any]]).decode

    def repair(self, events: list[object]) -> list[dict[str, Any]]:
        """Events as they are; what is none is counted."""
        found = [event for event in events if isinstance(event, dict)]
        self.recording.dropped["not a JSON object"] += len(events) - len(found)
        return found

    def add(self, events: list[dict[str, Any]]) -> None:
        """Take over a slice of events."""
        recording = self.recording
        timed = [event for event in events if event.get("ph") == "X"]
        for event in events:
            phase = event.get("ph")
            if phase == "M" or not (phase or event.get("name")):  # the last event is empty
                self._take_label(event)
            elif phase != "X":
                recording.dropped["not complete (ph is not X)"] += 1
        names = [text_of(event.get("name")) or NO_NAME for event in timed]
        lanes = [(label_of(event.get("pid")), label_of(event.get("tid"))) for event in timed]
        columns: dict[str, Int64Array] = {
            "ts": _nanoseconds([_number(event.get("ts")) for event in timed]),
            "dur": _nanoseconds([_number(event.get("dur") or 0.0) or 0.0 for event in timed]),
            "name": recording.names.codes(names, len(timed)).astype(np.int64),
            "lane": recording.lanes.codes(lanes, len(timed)).astype(np.int64),
        }
        recording.add(columns, self._stats([_args(event) for event in timed]))

    def _take_label(self, event: dict[str, Any]) -> None:
        self.recording.metadata_events += 1
        name, process = text_of(_args(event).get("name")), label_of(event.get("pid"))
        if event.get("name") == "process_name":
            self.recording.planes[process] = name
        elif event.get("name") == "thread_name":
            self.recording.lines[process, label_of(event.get("tid"))] = name

    def _stats(self, args: list[dict[str, Any]]) -> dict[str, tuple[Int64Array, Int64Array]]:
        texts = self.recording.texts
        found = {}
        for stat in (*NUMBERS, *TEXTS):
            values = [(row, each[stat]) for row, each in enumerate(args) if stat in each]
            values = [(row, value) for row, value in values if isinstance(value, str | int | float)]
            if stat in NUMBERS:
                told = [(row, int(value)) for row, value in values if _is_whole(value)]
            else:
                told = [(row, texts[text_of(value)]) for row, value in values]
            rows, codes = np.array(told, dtype=np.int64).reshape(-1, 2).T
            found[stat] = rows, codes
        return found


def read(source: ByteSource) -> Trace:
    """Read a document."""
    columns = _Columns()
    stream = EventStream(source, columns)
    for events in stream:
        columns.add(events)
    if not stream.found_events:
        raise TraceFormatError(source.path, "has no traceEvents", "record it again")
    notes = salvage_notes(source, stream.damage, stream.place, columns.recording.present)
    return columns.recording.finish(
        lambda *_: None,
        lambda: notes,
        path=source.path,
        format_name=FORMAT,
        bytes_read=source.bytes_read,
        metadata=stream.members,
    )


def _args(event: dict[str, Any]) -> dict[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _number(value: object) -> float | None:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


def _nanoseconds(values: list[float | None]) -> Int64Array:
    """µs as ns; what cannot be becomes what the builder drops."""
    usable = [v if v is not None and -_MOST_US < v < _MOST_US else -_MOST_US for v in values]
    return np.rint(np.array(usable, dtype=np.float64) * _NS_PER_US).astype(np.int64)


def _is_whole(value: object) -> bool:
    """Whether a number, which JAX writes as text, is whole and fits in 64 bits."""
    text = str(value)
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
