"""Reads the JSON for trace viewers that JAX writes beside a profile (`*.trace.json.gz`).

Supports: complete events (`ph: X`) of processes that are named like the planes of a profile, with
statistics as arguments.
Ignores: events of all other phases, which are counted. The file has no HLO, and JAX leaves out all
events after the first million.
Format: `trace_events_to_json` (tsl/profiler/convert) of openxla/xla.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import numpy as np

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.readers.json_events import EventStream
from tracelens_ext.readers.kineto.values import label_of, text_of
from tracelens_ext.readers.salvage import salvage_notes
from tracelens_ext.readers.source import ByteSource
from tracelens_ext.readers.xplane.profile import Stats, XplaneProfile
from tracelens_ext.readers.xplane.programs import Programs
from tracelens_ext.readers.xplane.recorded_events import NUMBERS, TEXTS
from tracelens_ext.text import NO_NAME
from tracelens_ext.trace import Int64Array, Trace

FORMAT = "JAX/XLA viewer trace (JSON)"

_NS_PER_US = 1e3
#: Times beyond this value, µs, are damaged.
_MOST_US = 2**53
_WHOLE_NUMBER: Final = re.compile("[0-9]{1,18}")
_JsonEvent = dict[str, Any]


class _JsonEvents:
    """Decodes batches of events, and adds them to a profile."""

    def __init__(self) -> None:
        self.profile = XplaneProfile()
        self.decode = msgspec.json.Decoder(list[_JsonEvent]).decode

    def repair(self, events: list[object]) -> list[_JsonEvent]:
        """Return the events that are JSON objects; the others are counted."""
        objects = [event for event in events if isinstance(event, dict)]
        self.profile.builder.dropped["not a JSON object"] += len(events) - len(objects)
        return objects

    def add(self, events: list[_JsonEvent]) -> None:
        """Add a batch of events to the profile."""
        complete_events = []
        for event in events:
            phase = event.get("ph")
            is_empty = not (phase or event.get("name"))  # JAX ends the list like this
            if phase == "X":
                complete_events.append(event)
            elif phase == "M" or is_empty:
                self._add_metadata(event)
            else:
                self.profile.builder.dropped["not complete (ph is not X)"] += 1
        names = []
        lanes = []
        for event in complete_events:
            names.append(text_of(event.get("name")) or NO_NAME)
            lanes.append((label_of(event.get("pid")), label_of(event.get("tid"))))
        starts_us = [event.get("ts") for event in complete_events]
        durations_us = [event.get("dur") for event in complete_events]
        arguments = [_args(event) for event in complete_events]
        builder = self.profile.builder
        columns: dict[str, Int64Array] = {
            "ts": _nanoseconds(starts_us, missing_us=-_MOST_US),
            "dur": _nanoseconds(durations_us, missing_us=0),
            "name": builder.names.codes(names, len(names)).astype(np.int64),
            "lane": builder.threads.codes(lanes, len(lanes)).astype(np.int64),
        }
        self.profile.add(columns, self._stats(arguments))

    def _add_metadata(self, event: _JsonEvent) -> None:
        """Keep the name of a process or a thread, if the event has one."""
        self.profile.builder.metadata_events += 1
        name = text_of(_args(event).get("name"))
        process = label_of(event.get("pid"))
        if event.get("name") == "process_name":
            self.profile.planes[process] = name
        elif event.get("name") == "thread_name":
            self.profile.lines[process, label_of(event.get("tid"))] = name

    def _stats(self, arguments: list[_JsonEvent]) -> Stats:
        """Return the statistics of events, given the arguments of each."""
        stats = {}
        for stat in NUMBERS:
            stats[stat] = _values_of(arguments, stat, _whole_number)
        for stat in TEXTS:
            stats[stat] = _values_of(arguments, stat, self._code_of_text)
        return stats

    def _code_of_text(self, value: object) -> int:
        return self.profile.texts[text_of(value)]


def _values_of(
    arguments: list[_JsonEvent], stat: str, number_of: Callable[[object], int | None]
) -> tuple[Int64Array, Int64Array]:
    """Return the rows of the events that have a statistic, and its values as numbers.

    Args:
        arguments: the arguments of each event.
        stat: the name of the statistic.
        number_of: converts a value to a number, or to None if the value is unusable.
    """
    rows = []
    numbers = []
    for row, arguments_of_event in enumerate(arguments):
        value = arguments_of_event.get(stat)
        if not isinstance(value, str | int | float):
            continue
        number = number_of(value)
        if number is not None:
            rows.append(row)
            numbers.append(number)
    return np.array(rows, dtype=np.int64), np.array(numbers, dtype=np.int64)


def _whole_number(value: object) -> int | None:
    """Return a whole number, which JAX writes as a text; None for anything else."""
    text = str(value)
    if _WHOLE_NUMBER.fullmatch(text):
        return int(text)
    return None


def read(source: ByteSource) -> Trace:
    """Read the JSON for trace viewers of a profile.

    Raises:
        TraceFormatError: the file has no list of events, or is damaged.
    """
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
            source=source,
            damage=stream.damage,
            end_of_text=stream.place,
            events=profile.present,
        ),
        path=source.path,
        format_name=FORMAT,
        bytes_read=source.bytes_read,
        metadata=stream.members,
    )


def _args(event: _JsonEvent) -> _JsonEvent:
    args = event.get("args")
    if isinstance(args, dict):
        return args
    return {}


def _nanoseconds(values: Sequence[Any], missing_us: float) -> Int64Array:
    """Return times that are given in µs as ns, (m,).

    Args:
        values: the times as JSON has them.
        missing_us: the time in µs that replaces a value that is not a number.

    A number that is too large becomes a time that the builder drops.
    """
    microseconds = np.full(len(values), missing_us, dtype=np.float64)
    for row, value in enumerate(values):
        with suppress(TypeError, ValueError, OverflowError):
            microseconds[row] = float(value)
    is_usable = np.abs(microseconds) < _MOST_US
    usable = np.where(is_usable, microseconds, -_MOST_US)
    nanoseconds = np.rint(usable * _NS_PER_US)
    return nanoseconds.astype(np.int64)
