"""Collects the events of a JAX profile and makes the trace.

The xplane file and the JSON for trace viewers contain the same data: planes (processes) of lines
(threads, streams) of events with statistics.

* A GPU event is an event with a `correlation_id` on a plane `/device:GPU:N`.
* A launch is an event on the host with the same `correlation_id`.
* All other events of a GPU plane summarize its GPU events by module, operation, scope or step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

import numpy as np

from tracelens_ext.readers.builder import Interner, Labels, TraceBuilder
from tracelens_ext.readers.kineto.schema import CATEGORY_OF_KIND
from tracelens_ext.readers.xplane.host_operations import OperationMaker
from tracelens_ext.readers.xplane.programs import Programs
from tracelens_ext.readers.xplane.recorded_events import (
    NUMBERS,
    TEXTS,
    RecordedEvents,
    gpu_of_plane,
)
from tracelens_ext.trace import NONE, ArgColumn, EventKind, Int64Array, Trace
from tracelens_ext.trace.lookup import values_at

Columns = Mapping[str, Int64Array]
#: Statistic → rows of the events that have it, and its values.
Stats = Mapping[str, tuple[Int64Array, Int64Array]]

_COLUMNS: Final = ("ts", "dur", "name", "lane")
_STREAM: Final = re.compile(r"Stream #(\d{1,9})")
_SIZE: Final = re.compile(r"\bsize:(\d{1,18})\b")
#: A line with a number from this value on is not taken for a stream.
_MOST_STREAMS: Final = 1 << 31
#: The argument that temporarily holds what becomes `Trace.instructions`.
_INSTRUCTION: Final = "instruction"
_XPLANE_CATEGORIES: Final = {
    **CATEGORY_OF_KIND,
    EventKind.RUNTIME: "runtime",
    EventKind.DRIVER: "driver",
}
#: Argument of an operation in traces of PyTorch → attribute of `Arguments`.
_ARGUMENTS: Final = {
    "Input Dims": "dims",
    "Input type": "types",
    "Concrete Inputs": "concrete",
}
_NO_NUMBERS: Final = np.empty(0, dtype=np.int64)


class XplaneProfile:
    """Collects the events of a profile and makes the trace.

    A lane is a line of a process. Names and lanes are passed as codes of the interners `names` and
    `threads` of `builder`, texts of statistics as codes of `texts`.

    Attributes:
        builder: the builder of the trace.
        texts: texts of statistics → their codes.
        planes: process → name of its plane.
        lines: lane → name of the line.
    """

    def __init__(self) -> None:
        self.builder = TraceBuilder()
        self.texts: Interner[str] = Interner()
        self.planes: dict[int | str, str] = {}
        self.lines: dict[tuple[int | str, int | str], str] = {}
        self._column_parts: dict[str, list[Int64Array]] = {}
        for column in _COLUMNS:
            self._column_parts[column] = [_NO_NUMBERS]
        self._stat_rows: dict[str, list[Int64Array]] = {}
        self._stat_values: dict[str, list[Int64Array]] = {}
        for stat in NUMBERS + TEXTS:
            self._stat_rows[stat] = [_NO_NUMBERS]
            self._stat_values[stat] = [_NO_NUMBERS]
        self._count = 0

    @property
    def present(self) -> int:
        """The number of events so far, including those that were dropped."""
        return self._count + self.builder.present

    def add(self, columns: Columns, stats: Stats) -> None:
        """Add m events.

        Args:
            columns: `ts` and `dur` in ns, `name` and `lane` as codes, each (m,).
            stats: the statistics of these events; rows count from 0 to m - 1.
        """
        for column, parts in self._column_parts.items():
            parts.append(columns[column])
        for stat, (rows, values) in stats.items():
            self._stat_rows[stat].append(rows + self._count)
            self._stat_values[stat].append(values)
        self._count += len(columns["ts"])

    def finish(self, programs: Programs, notes: list[str], **about: Any) -> Trace:  # noqa: ANN401
        """Return the trace of all events that were added.

        Args:
            programs: the programs in which the arguments of operations are looked up.
            notes: sentences for the user about the file.
            about: further arguments of `TraceBuilder.finish`.
        """
        builder = self.builder
        recorded = self._recorded_events()
        maker = OperationMaker(recorded, builder.names, list(self.texts))
        made = maker.make_operations(programs)
        operations = made.operations
        columns = {
            "ts": np.append(recorded.columns["ts"], made.columns["ts"]),
            "dur": np.append(recorded.columns["dur"], made.columns["dur"]),
            "name": np.append(recorded.columns["name"], made.columns["name"]),
            "thread": np.append(recorded.columns["lane"], made.columns["lane"]),
            "kind": np.append(recorded.kind, made.columns["kind"]),
        }
        columns["category"] = self._categories(columns["kind"])
        texts = {}
        for argument, attribute in _ARGUMENTS.items():
            values = map(attrgetter(attribute), operations.arguments)
            codes = builder.texts.codes(values, len(operations.arguments))
            texts[argument] = (operations.rows, codes)
        instructions = [arguments.instruction for arguments in operations.arguments]
        numbers = self._number_arguments(recorded)
        numbers[_INSTRUCTION] = (
            operations.rows,
            np.array(instructions, dtype=np.int64),
        )
        builder.add(columns, numbers, texts)
        labels = Labels(processes=self.planes, threads=self.lines)
        all_notes = tuple(notes) + tuple(programs.notes())
        trace = builder.finish(labels=labels, notes=all_notes, **about)
        args = dict(trace.args)
        instructions_of_rows = args.pop(_INSTRUCTION)
        return replace(
            trace,
            args=args,
            instructions=instructions_of_rows,
            programs=tuple(programs.used),
            conventions=replace(trace.conventions, framework="JAX"),
        )

    def _recorded_events(self) -> RecordedEvents:
        """Join the parts of all columns and find out what each event is."""
        columns = {}
        for name, parts in self._column_parts.items():
            columns[name] = np.concatenate(parts)
        stats = {}
        for stat in NUMBERS + TEXTS:
            rows = np.concatenate(self._stat_rows[stat])
            values = np.concatenate(self._stat_values[stat])
            distinct_rows, first = np.unique(rows, return_index=True)
            stats[stat] = ArgColumn(
                rows=distinct_rows.astype(np.int32), values=values[first]
            )
        devices = []
        is_host_lane = []
        for process, _ in self.builder.threads:
            plane = self.planes.get(process, "")
            devices.append(gpu_of_plane(plane))
            is_host_lane.append(plane.startswith("/host:"))
        lane = columns["lane"]
        return RecordedEvents(
            columns=columns,
            stats=stats,
            device=np.array(devices, dtype=np.int64)[lane],
            is_on_host=np.array(is_host_lane, dtype=bool)[lane],
            names=self.builder.names,
        )

    def _categories(self, kind: Int64Array) -> Int64Array:
        """Return the code of the category of each event, given its kind, (n,)."""
        code_of_kind = np.zeros(max(EventKind) + 1, dtype=np.int64)
        for number in np.unique(kind).tolist():
            category = _XPLANE_CATEGORIES.get(EventKind(number), "")
            code_of_kind[number] = self.builder.categories[category]
        return code_of_kind[kind]

    def _number_arguments(
        self, recorded: RecordedEvents
    ) -> dict[str, tuple[Int64Array, Int64Array]]:
        """Return the arguments of recorded events that are whole numbers.

        Returns:
            Name of the argument in other traces → rows of the events that have it, and its values.
        """
        gpu_rows = recorded.gpu_rows
        linked = np.flatnonzero(recorded.correlation != NONE)
        copies = gpu_rows[recorded.kind[gpu_rows] != EventKind.KERNEL]
        size = self._bytes_of_copies(recorded, copies)
        has_size = size != NONE
        streams = [
            _stream(self.lines.get(lane, ""), lane[1]) for lane in self.builder.threads
        ]
        stream_of_lane = np.array(streams, dtype=np.int64)
        lane_of_gpu_event = recorded.columns["lane"][gpu_rows]
        return {
            "correlation": (linked, recorded.correlation[linked]),
            "device": (gpu_rows, recorded.device[gpu_rows]),
            "stream": (gpu_rows, stream_of_lane[lane_of_gpu_event]),
            "bytes": (copies[has_size], size[has_size]),
        }

    def _bytes_of_copies(
        self, recorded: RecordedEvents, copies: Int64Array
    ) -> Int64Array:
        """Return the number of bytes that copies and memsets move, (c,); `NONE` if unknown."""
        sizes = []
        for text in self.texts:
            size = _SIZE.search(text)
            sizes.append(int(size[1]) if size else NONE)
        copy_details = recorded.stats["memcpy_details"].at(copies)
        memset_details = recorded.stats["memset_details"].at(copies)
        details = np.maximum(copy_details, memset_details)
        return values_at(np.array(sizes, dtype=np.int64), details)


def _stream(line_name: str, line_id: int | str) -> int:
    """Return the number of the stream that a line shows.

    It is in the name of the line (`Stream #7(Kernel)`), else it is the id of the line. The result
    is `NONE` if neither is the number of a stream.
    """
    stream = _STREAM.search(line_name)
    if stream:
        return int(stream[1])
    if isinstance(line_id, int) and 0 <= line_id < _MOST_STREAMS:
        return line_id
    return NONE
