"""`Trace`: the columnar event table that every reader fills and every analysis reads.

Each event is a row, in file order; each column is a numpy array. A column of texts holds codes,
which are indices into a list of the distinct texts. Arguments that only some events have are
`ArgColumn`s.
Times are int64 nanoseconds since the trace's first event.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelens_ext.notebook import short_repr

Int64Array = npt.NDArray[np.int64]
Int8Array = npt.NDArray[np.int8]
Int32Array = npt.NDArray[np.int32]
IntArray = npt.NDArray[np.integer]
BoolArray = npt.NDArray[np.bool_]
Float64Array = npt.NDArray[np.float64]

NS_PER_US = 1e3
NS_PER_MS = 1e6

#: The value of an integer column for an event that has no such number.
NONE = -1


class EventKind(IntEnum):
    """The kind of an event, in all formats; the kinds of host events come first."""

    CPU_OP = 0
    USER_ANNOTATION = 1
    PYTHON_FUNCTION = 2
    RUNTIME = 3
    DRIVER = 4
    KERNEL = 5
    MEMCPY = 6
    MEMSET = 7
    GPU_ANNOTATION = 8
    FLOW_START = 9
    FLOW_END = 10
    INSTANT = 11
    OTHER = 12


#: Events on a host thread that nest by time.
HOST_KINDS = (
    EventKind.CPU_OP,
    EventKind.USER_ANNOTATION,
    EventKind.PYTHON_FUNCTION,
    EventKind.RUNTIME,
    EventKind.DRIVER,
)
#: Calls that start GPU work.
LAUNCH_KINDS = (EventKind.RUNTIME, EventKind.DRIVER)
#: Work on a GPU stream.
GPU_KINDS = (EventKind.KERNEL, EventKind.MEMCPY, EventKind.MEMSET)


@dataclass(frozen=True, eq=False)
class ArgColumn:
    """An argument that k of the events have."""

    rows: Int32Array  #: the events with the argument, ascending, (k,)
    #: the number that is the argument or, with `texts`, an index into them, (k,)
    values: Int64Array
    #: the distinct raw JSON texts, which analyses parse if they need them; None for numbers
    texts: list[str] | None = None

    def dense(self, length: int, missing: int = NONE) -> Int64Array:
        """Return the values as one array over all events, shape (length,)."""
        values = np.full(length, missing, dtype=np.int64)
        values[self.rows] = self.values
        return values

    def at(self, rows: npt.NDArray[np.integer], missing: int = NONE) -> Int64Array:
        """Return the argument of each event, `missing` if it has none; shape of `rows`."""
        if not len(self.rows):
            return np.full(len(rows), missing, dtype=np.int64)
        index = np.searchsorted(self.rows, rows)
        index = np.minimum(index, len(self.rows) - 1)
        has_argument = self.rows[index] == rows
        return np.where(has_argument, self.values[index], missing)

    def selected(self, is_kept: BoolArray, new_row: IntArray) -> ArgColumn:
        """Return the column for a part of the events.

        Args:
            is_kept: True for each event of the part, (n,).
            new_row: the row that each event has in the part, (n,).
        """
        is_selected = is_kept[self.rows]
        rows = new_row[self.rows[is_selected]].astype(np.int32, copy=False)
        return ArgColumn(rows=rows, values=self.values[is_selected], texts=self.texts)


def no_arg(texts: bool = False) -> ArgColumn:
    """Return the column of an argument that no event has."""
    rows = np.empty(0, dtype=np.int32)
    values = np.empty(0, dtype=np.int64)
    return ArgColumn(rows=rows, values=values, texts=[] if texts else None)


#: Arguments of copies: the kinds of memory that they read and write, in the numbers of Nsight
#: Systems (0 pageable, 1 pinned, 2 device, 3 array, 4 managed). PyTorch has the kinds in the name.
MEMORY_KINDS = ("srcKind", "dstKind")


@dataclass(frozen=True)
class Device:
    """A GPU that the trace describes. Numbers are 0 if the trace does not tell them."""

    ordinal: int  #: the number of the device
    name: str  #: as the profiler writes it; some write nothing, or nothing useful
    units: int = 0  #: number of compute units (multiprocessors)
    warp: int = 0  #: threads per warp or wave
    memory_bytes: int = 0  #: size of the memory
    clock_hz: int = 0  #: the highest clock rate of the compute units
    bandwidth: int = 0  #: peak memory bandwidth, bytes per second
    capability: int = 0  #: ten times NVIDIA's compute capability, such as 86 for 8.6


@dataclass(frozen=True)
class Conventions:
    """The meaning of columns that differs between profilers."""

    #: True if the entry of a GPU event in `threads` is (process, stream), with the process that
    #: launched the event, and correlation ids are unique within a process only
    gpu_by_process: bool = False
    #: True if annotations stand for operations because the trace has no CPU ops, or few
    annotations_are_operations: bool = False
    #: the framework of the program, such as `JAX`, if rule packs name it in
    #: `RulePack.usual_for`
    framework: str = ""


#: Numbers of so many digits may not fit in 64 bits.
_MOST_DIGITS: Final = 19
#: Number of bits by which `Trace.instructions` shifts a program, to leave room for its instruction.
PROGRAM_SHIFT: Final = 32
#: The category of a GPU event that stands for a whole CUDA graph, whose kernels are unknown.
WHOLE_GRAPH = "cuda_graph"


#: How notes about the lost part of a damaged file begin.
SALVAGED: Final = "Salvaged "


@dataclass(frozen=True)
class Provenance:
    """The origin of a trace, and how many of its events were used, dropped or not read."""

    path: str = "<memory>"  #: the file as the user named it, or `<memory>`
    format: str = ""  #: the name of the format, from the reader
    bytes_read: int = 0  #: size of the decompressed text
    #: number of events in the file: always rows + metadata events + the sum of `dropped`
    present: int = 0
    #: number of events that only name processes and threads
    metadata_events: int = 0
    #: reason → number of events that could not be used for this reason
    dropped: dict[str, int] = field(default_factory=dict)
    #: further sentences about the file that the user should read
    notes: tuple[str, ...] = ()
    #: kind of event as the file names it → number of events of a kind that no table shows
    unread: dict[str, int] = field(default_factory=dict)

    @property
    def dropped_text(self) -> str:
        """The number of dropped events for each reason, as text; empty if none were dropped."""
        parts = [f"{count:,} {reason}" for reason, count in self.dropped.items()]
        return "; ".join(parts)

    @property
    def unread_text(self) -> str:
        """The number of unread events of each kind, as text; empty if all were read."""
        parts = [f"{count:,} {kind}" for kind, count in self.unread.items()]
        return ", ".join(parts)

    @property
    def all_notes(self) -> tuple[str, ...]:
        """All sentences about the file: `notes`, and how many events were dropped or not read."""
        sentences = list(self.notes)
        if self.dropped:
            count = sum(self.dropped.values())
            sentences.append(
                f"{count:,} of {self.present:,} events dropped: {self.dropped_text}."
            )
        if self.unread:
            count = sum(self.unread.values())
            sentences.append(
                f"{count:,} of {self.present:,} events not read: {self.unread_text}."
            )
        return tuple(sentences)

    @property
    def salvaged(self) -> str:
        """The notes about the lost part of a damaged file; empty for an intact file."""
        notes = [note for note in self.notes if note.startswith(SALVAGED)]
        return " ".join(notes)


@dataclass(frozen=True, eq=False)
class Replays:
    """The r events from captures of CUDA graphs, which are the last rows of a trace.

    A graph is captured from launches and the host events around them. Each launch of the graph adds
    these host events to the trace again, parents before children, although they take no time there.
    """

    #: index among these events of the event around each; `NONE` for an outermost event, (r,)
    parent: Int32Array
    graph_launch: Int64Array  #: row of the graph launch that replays each event, (r,)
    #: row of the captured launch that each GPU event replays, `NONE` if not known, (g,)
    launch_of_gpu: Int64Array


@dataclass(frozen=True, eq=False)
class Trace:
    """The n events of a trace, in file order."""

    ts: Int64Array  #: start, ns since the trace's first event, (n,)
    dur: Int64Array  #: duration, ns, 0 for flows and instants, (n,)
    name: Int32Array  #: index into `names`, (n,)
    kind: npt.NDArray[np.uint8]  #: an `EventKind`, (n,)
    thread: Int32Array  #: index into `threads`, (n,)
    #: id that a launch shares with its GPU events, `NONE` for an event without one, (n,)
    correlation: Int64Array
    #: id of a CPU op or of the CPU op around a launch, `NONE` for an event without one, (n,)
    external_id: Int64Array
    category: Int32Array  #: index into `categories`, (n,)
    names: list[str]  #: the distinct event names
    #: (process, thread) as the trace spells them, or (device, stream) for GPU events, unless
    #: `conventions.gpu_by_process` is set
    threads: list[tuple[int | str, int | str]]
    #: the distinct names of kinds of events, as the trace spells them
    categories: list[str]
    args: Mapping[str, ArgColumn]  #: further arguments of events, by name
    #: absolute time of the first event in ns, in the clock of the trace
    base_ns: int = 0
    devices: tuple[Device, ...] = ()  #: the GPUs that the trace describes
    #: the other top-level members of the document
    metadata: Mapping[str, object] = field(default_factory=dict)
    #: process → its name from a metadata event
    process_names: Mapping[int | str, str] = field(default_factory=dict)
    #: process → its label from a metadata event, such as `CPU` or `GPU 0`
    process_labels: Mapping[int | str, str] = field(default_factory=dict)
    #: entry of `threads` → its name from a metadata event
    thread_names: Mapping[tuple[int | str, int | str], str] = field(
        default_factory=dict
    )
    #: the file, and how many of its events were dropped or not read
    provenance: Provenance = field(default_factory=Provenance)
    #: what `threads`, correlation ids and annotations mean
    conventions: Conventions = field(default_factory=Conventions)
    replays: Replays | None = None  #: the events from captures of CUDA graphs
    #: the compiled programs, each an `HloProto` message of XLA
    programs: tuple[bytes, ...] = ()
    #: the instruction of operations: index of the program, shifted left by `PROGRAM_SHIFT`, plus
    #: index of the instruction in the program
    instructions: ArgColumn = field(default_factory=no_arg)

    def __len__(self) -> int:
        return len(self.ts)

    def __repr__(self) -> str:
        size = f"{len(self):,} events, {len(self.gpu_rows):,} of GPUs, {len(self.names):,} names"
        origin = f"{self.provenance.format} {self.provenance.path!r}"
        return short_repr("Trace", f"{size}; {origin}")

    @property
    def end(self) -> Int64Array:
        """End of each event, ns since the first event, shape (n,)."""
        return self.ts + self.dur

    def end_of(self, rows: npt.NDArray[np.integer]) -> Int64Array:
        """Return the end of some events; quicker than `end`, which computes all of them."""
        ends: Int64Array = self.ts[rows] + self.dur[rows]
        return ends

    @property
    def recorded(self) -> int:
        """The number of events in the file; the rows from this one on are the `replays`."""
        if self.replays is None:
            return len(self)
        return len(self) - len(self.replays.parent)

    def rows_of(self, *kinds: EventKind) -> npt.NDArray[np.int64]:
        """Return the recorded events of these kinds, in file order."""
        is_wanted = np.zeros(self.recorded, dtype=bool)
        recorded_kind = self.kind[: self.recorded]
        # A few comparisons of whole columns take less time than a look-up for each event.
        for kind in kinds:
            is_wanted |= recorded_kind == kind
        return np.flatnonzero(is_wanted)

    def count_of(self, *kinds: EventKind) -> int:
        """Return how many recorded events are of these kinds."""
        return len(self.rows_of(*kinds))

    def described(self, number: int) -> Device | None:
        """Return the description of a device in the file; None if there is none.

        ROCm may number the devices of events and of descriptions differently. If no description has
        the number and all devices are equal, the result is the description of any of them.
        """
        for device in self.devices:
            if device.ordinal == number:
                return device
        distinct = {replace(device, ordinal=number) for device in self.devices}
        if len(distinct) != 1:
            return None
        return distinct.pop()

    @cached_property
    def gpu_rows(self) -> npt.NDArray[np.int64]:
        """The GPU events (kernels, memcpys, memsets), in file order."""
        return self.rows_of(*GPU_KINDS)

    @property
    def operation_kinds(self) -> tuple[EventKind, ...]:
        """The kinds of host events to which tables attribute GPU work."""
        if self.conventions.annotations_are_operations:
            return (EventKind.CPU_OP, EventKind.USER_ANNOTATION)
        return (EventKind.CPU_OP,)

    def arg(self, name: str) -> ArgColumn:
        """Return the column of an argument; an empty column if no event has the argument."""
        column = self.args.get(name)
        return no_arg() if column is None else column

    def name_of(self, row: int) -> str:
        """Return the name of one event."""
        return self.names[int(self.name[row])]

    def names_matching(self, test: Callable[[str], object]) -> npt.NDArray[np.bool_]:
        """Return True for each of `names` that passes a test, such as the `search` of a pattern."""
        return np.fromiter(map(test, self.names), bool, len(self.names))

    def named(self, codes: IntArray, test: Callable[[str], object]) -> BoolArray:
        """Return True for each code whose name passes a test; every name is tested only once."""
        passes = np.zeros(len(self.names), dtype=bool)
        used_codes = np.flatnonzero(np.bincount(codes, minlength=1))
        for code in used_codes.tolist():
            name = self.names[code]
            passes[code] = bool(test(name))
        return passes[codes]

    def rows_named(
        self, pattern: re.Pattern[str], *kinds: EventKind
    ) -> npt.NDArray[np.int64]:
        """Return the recorded events of these kinds whose names match from the beginning."""
        rows = self.rows_of(*kinds)
        codes = self.name[rows]
        is_match = self.named(codes, pattern.match)
        return rows[is_match]

    @cached_property
    def process_of_thread(self) -> Int32Array:
        """The process of each entry of `threads` as a code from 0 on, shape (len(threads),)."""
        code_of_process: dict[int | str, int] = {}
        codes = [
            code_of_process.setdefault(process, len(code_of_process))
            for process, _ in self.threads
        ]
        return np.array(codes, dtype=np.int32)

    @cached_property
    def device(self) -> Int64Array:
        """Device of each of `gpu_rows`; `NONE` if the trace does not tell it."""
        processes = [process for process, _ in self.threads]
        return self._argument_or_number("device", processes)

    @cached_property
    def stream(self) -> Int64Array:
        """Stream of each of `gpu_rows`; `NONE` if the trace does not tell it."""
        threads = [thread for _, thread in self.threads]
        return self._argument_or_number("stream", threads)

    def _argument_or_number(
        self, argument: str, labels: Sequence[int | str]
    ) -> Int64Array:
        """Return an argument of the GPU events.

        An event without the argument has the number in the label of its thread.
        """
        values = self.arg(argument).at(self.gpu_rows)
        unknown = np.flatnonzero(values == NONE)
        if len(unknown):
            number_of_thread = np.array(
                [_number(label) for label in labels], dtype=np.int64
            )
            values[unknown] = number_of_thread[self.thread[self.gpu_rows[unknown]]]
        return values

    @property
    def span_ns(self) -> int:
        """Time from the first start to the last end of all events, ns."""
        return int(self.end.max()) if len(self) else 0


def distributed_info(metadata: Mapping[str, object]) -> Mapping[str, object]:
    """Return PyTorch's description of the rank and its job; empty if it is missing or malformed."""
    info = metadata.get("distributedInfo")
    return info if isinstance(info, dict) else {}


def _number(label: int | str) -> int:
    """Return the number in a label: 7 for 7, '7' and 'stream 7'.

    The result is `NONE` for a text without digits and for a number that may not fit in 64 bits.
    """
    if isinstance(label, int):
        number = label
    else:
        digits = "".join(re.findall("[0-9]", label))
        if not 0 < len(digits) < _MOST_DIGITS:
            return NONE
        number = int(digits)
    if abs(number) >= 2**62:
        return NONE
    return number
