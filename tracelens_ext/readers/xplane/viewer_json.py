"""Reader for the JSON for trace viewers that JAX writes beside a profile (`*.trace.json.gz`).

Supports: complete events (``ph: X``) of processes that are called like planes (`/device:GPU:0`,
`/host:CPU`), with statistics as arguments; counted otherwise: all other events.
Ignores: arguments that `recording.py` does not name. There is no HLO, so operations have no
arguments. JAX leaves out events beyond the first million.
Format: `trace_events_to_json` (tsl/profiler/convert) of openxla/xla, and the "Trace Event Format"
document of the Chromium project.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.readers.json_events import EventStream
from tracelens_ext.readers.source import salvage_note
from tracelens_ext.readers.xplane.recording import NUMBERS, TEXTS, Recording
from tracelens_ext.text import NO_NAME, encodable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens_ext.readers.source import ByteSource
    from tracelens_ext.trace import Int64Array, Trace

FORMAT = "JAX/XLA trace for viewers (JSON)"

_NS_PER_US: Final = 1e3
_MOST_US: Final = 2**53
_MOST_DIGITS: Final = 18
#: A member of any type: one that is no text is as good as none.
_Value = str | int | float | None


class _Args(msgspec.Struct, frozen=True, gc=False):
    correlation_id: _Value = None
    device_id: _Value = None
    program_id: _Value = None
    step_num: _Value = None
    hlo_op: _Value = None
    hlo_module: _Value = None
    name: _Value = None
    memcpy_details: _Value = None
    memset_details: _Value = None


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    pid: int | str = "?"
    tid: int | str = "?"
    ts: float | None = None
    dur: float | None = None
    args: _Args = _Args()


class _Columns:
    """Takes slices of events into a `Recording`."""

    def __init__(self) -> None:
        self.recording = Recording()
        self.decode = msgspec.json.Decoder(list[_Event]).decode

    def repair(self, event: object) -> _Event | None:
        """An event with members of unusual types; None, and counted, when it is no event."""
        if not isinstance(event, dict):
            self.recording.dropped["not a JSON object"] += 1
            return None
        args = event.get("args")
        ph, name, pid, tid = (
            encodable(str(event.get(key, ""))) for key in ("ph", "name", "pid", "tid")
        )
        ts, dur = (_number(event.get(key)) for key in ("ts", "dur"))
        known = _Args(**_plain(args)) if isinstance(args, dict) else _Args()
        return _Event(ph, name, pid, tid, ts, dur, known)

    def add(self, events: list[_Event]) -> None:
        """Take over a slice of events."""
        timed = []
        for each in events:
            if each.ph == "X":
                timed.append(each)
            elif each.ph == "M" or not (each.ph or each.name):  # the last event is empty
                self._take_label(each)
            else:
                self.recording.dropped["not complete (ph is not X)"] += 1
        names, lanes = self.recording.names, self.recording.lanes
        columns: dict[str, Int64Array] = {
            "ts": _nanoseconds([each.ts for each in timed]),
            "dur": _nanoseconds([each.dur or 0.0 for each in timed]),
            "name": names.codes([e.name or NO_NAME for e in timed], len(timed)).astype(np.int64),
            "lane": lanes.codes([(e.pid, e.tid) for e in timed], len(timed)).astype(np.int64),
        }
        self.recording.add(columns, self._stats(timed))

    def _take_label(self, each: _Event) -> None:
        self.recording.metadata_events += 1
        name = encodable(str(each.args.name or ""))
        if each.name == "process_name":
            self.recording.planes[each.pid] = name
        elif each.name == "thread_name":
            self.recording.lines[each.pid, each.tid] = name

    def _stats(self, events: list[_Event]) -> dict[str, tuple[Int64Array, Int64Array]]:
        texts = self.recording.texts
        found = {}
        for stat in (*NUMBERS, *TEXTS):
            values = [getattr(each.args, stat) for each in events]
            rows = [row for row, value in enumerate(values) if value is not None]
            if stat in NUMBERS:
                rows = [row for row in rows if _is_whole(values[row])]
                codes = [int(values[row]) for row in rows]
            else:
                codes = [texts[encodable(str(values[row]))] for row in rows]
            found[stat] = (np.array(rows, dtype=np.int64), np.array(codes, dtype=np.int64))
        return found


def read(source: ByteSource) -> Trace:
    """Read a document."""
    columns = _Columns()
    stream = EventStream(source, columns)
    for events in stream:
        columns.add(events)
    if not stream.found_events:
        raise TraceFormatError(source.path, "has no traceEvents", "record it again")
    notes = []
    if stream.damage is not None:
        notes = [salvage_note(source, stream.damage, stream.place, columns.recording.present)]
    return columns.recording.finish(
        lambda *_: None,
        lambda: notes,
        path=source.path,
        format_name=FORMAT,
        bytes_read=source.bytes_read,
        metadata=stream.members,
    )


def _plain(args: Mapping[str, Any]) -> dict[str, _Value]:
    wanted = {key: args[key] for key in (*NUMBERS, *TEXTS) if key in args}
    return {k: v if isinstance(v, _Value) else None for k, v in wanted.items()}


def _number(value: object) -> float | None:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


def _nanoseconds(values: list[float | None]) -> Int64Array:
    """µs as ns; what cannot be becomes what the builder drops."""
    usable = [v if v is not None and -_MOST_US < v < _MOST_US else -_MOST_US for v in values]
    return np.rint(np.array(usable, dtype=np.float64) * _NS_PER_US).astype(np.int64)


def _is_whole(value: _Value) -> bool:
    """Whether a number, which JAX writes as text, is whole and fits in 64 bits."""
    text = str(value)
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
