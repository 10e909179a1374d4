"""`Trace`: the columnar event table that every reader fills and every analysis reads.

One row an event, in file order; a column is a numpy array. Texts are interned: a column holds
codes, a list holds the distinct texts. Arguments that only some events have are `ArgColumn`s.
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

#: What an integer column holds where an event has no such number.
NONE = -1


class EventKind(IntEnum):
    """What an event is, whatever its format calls it; those of host threads come first."""

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
    """An argument that some events have."""

    rows: Int32Array  #: the events that have it, ascending, shape (k,)
    #: shape (k,): the number itself or, when `texts` is given, an index into it
    values: Int64Array
    #: the distinct raw JSON texts; analyses parse those that they need
    texts: list[str] | None = None

    def dense(self, length: int, missing: int = NONE) -> Int64Array:
        """Return the values as one array over all events, shape (length,)."""
        values = np.full(length, missing, dtype=np.int64)
        values[self.rows] = self.values
        return values

    def at(self, rows: npt.NDArray[np.integer], missing: int = NONE) -> Int64Array:
        """Return the values of some events, `missing` where one has none; shape of `rows`."""
        if not len(self.rows):
            return np.full(len(rows), missing, dtype=np.int64)
        last_place = len(self.rows) - 1
        place = np.searchsorted(self.rows, rows)
        place = np.minimum(place, last_place)
        is_given = self.rows[place] == rows
        values = self.values[place]
        return np.where(is_given, values, missing)

    def selected(self, is_kept: BoolArray, new_row: IntArray) -> ArgColumn:
        """Return the column of some of the events, under their new rows; both of shape (n,)."""
        having = is_kept[self.rows]
        rows = new_row[self.rows[having]].astype(np.int32, copy=False)
        return ArgColumn(rows=rows, values=self.values[having], texts=self.texts)


def no_arg(texts: bool = False) -> ArgColumn:
    """Return an argument that no event has."""
    rows = np.empty(0, dtype=np.int32)
    values = np.empty(0, dtype=np.int64)
    return ArgColumn(rows=rows, values=values, texts=[] if texts else None)


#: Arguments of copies: the kind of memory that is read and written, in the numbers of
#: Nsight Systems (0 pageable, 1 pinned, 2 device, 3 array, 4 managed); PyTorch says it in the name.
MEMORY_KINDS = ("srcKind", "dstKind")


@dataclass(frozen=True)
class Device:
    """A GPU that the trace describes; a number is 0 if the trace does not say."""

    ordinal: int  #: its number
    name: str  #: as the profiler gives it; empty, or of no use, for some
    units: int = 0  #: compute units (multiprocessors)
    warp: int = 0  #: threads of a warp or wave
    memory_bytes: int = 0  #: size of its memory
    clock_hz: int = 0  #: the highest clock of its compute units
    bandwidth: int = 0  #: bytes a second that its memory can move
    capability: int = 0  #: ten times NVIDIA's compute capability, such as 86 for 8.6


@dataclass(frozen=True)
class Conventions:
    """What the columns of a trace mean, as far as profilers differ."""

    #: the entry in `threads` of a GPU event is (process, stream) and names the process that
    #: launched it; correlation ids count within a process
    gpu_by_process: bool = False
    #: annotations stand for operations as CPU ops do, because the trace has no CPU ops, or few
    annotations_are_operations: bool = False
    #: what ran, where rule packs may be usual for it (`RulePack.usual_for`), such as `JAX`
    framework: str = ""


#: More digits may not fit in 64 bits.
_MOST_DIGITS: Final = 19
#: How far the number of a program stands left of that of its instruction.
PROGRAM_SHIFT: Final = 32
#: The word for a CUDA graph that was recorded as one GPU event: nothing is known of its kernels.
WHOLE_GRAPH = "cuda_graph"


#: How notes begin that say what of a file is lost.
SALVAGED: Final = "Salvaged "


@dataclass(frozen=True)
class Provenance:
    """Where a trace came from, and what became of each of its events."""

    path: str = "<memory>"  #: the file as the user named it, or `<memory>`
    format: str = ""  #: what the reader calls the format
    bytes_read: int = 0  #: size of the text, decompressed
    #: events in the file; always rows + metadata events + the sum of `dropped`
    present: int = 0
    metadata_events: int = 0  #: those that only name processes and threads
    #: reason → number of events that could not be used
    dropped: dict[str, int] = field(default_factory=dict)
    #: what else the user should know about the file, a sentence each
    notes: tuple[str, ...] = ()
    #: kind of event, in the words of the file → number of events that no table shows
    unread: dict[str, int] = field(default_factory=dict)

    @property
    def dropped_text(self) -> str:
        """How many events were dropped for which reason; empty for none."""
        parts = [f"{count:,} {reason}" for reason, count in self.dropped.items()]
        return "; ".join(parts)

    @property
    def unread_text(self) -> str:
        """How many events of which kind no table shows; empty for none."""
        parts = [f"{count:,} {kind}" for kind, count in self.unread.items()]
        return ", ".join(parts)

    @property
    def all_notes(self) -> tuple[str, ...]:
        """Everything that the user should know about the file and its events, a sentence each.

        These are the `notes`, and what was dropped or is not read.
        """
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
        """What is known of what a cut or damage took away; empty for a whole file."""
        notes = [note for note in self.notes if note.startswith(SALVAGED)]
        return " ".join(notes)


@dataclass(frozen=True, eq=False)
class Replays:
    """The events of a trace that are from captures of CUDA graphs: its last rows, r of them.

    They are the host events around the launches that a graph was captured from, once for each
    launch of the graph that replays them, parents before children. They took no time there.
    """

    #: the event around each, an index into them; `NONE` for the outermost, (r,)
    parent: Int32Array
    graph_launch: Int64Array  #: row of the launch that replays each, (r,)
    #: row of the captured launch that each GPU event replays, `NONE` where it is not known, (g,)
    launch_of_gpu: Int64Array


@dataclass(frozen=True, eq=False)
class Trace:
    """The events of one trace, in file order, n of them."""

    ts: Int64Array  #: start, ns since the trace's first event, (n,)
    dur: Int64Array  #: duration in ns, (n,); 0 for flows and instants
    name: Int32Array  #: index into `names`, (n,)
    kind: npt.NDArray[np.uint8]  #: an `EventKind`, (n,)
    thread: Int32Array  #: index into `threads`, (n,)
    #: id that a launch shares with its GPU events, `NONE` without, (n,)
    correlation: Int64Array
    #: id of the CPU op, or of the one around a launch, `NONE` without, (n,)
    external_id: Int64Array
    category: Int32Array  #: index into `categories`, (n,)
    names: list[str]  #: the distinct event names
    #: (process, thread) as the trace spells them; of a GPU event (device, stream), unless
    #: `conventions` tells otherwise
    threads: list[tuple[int | str, int | str]]
    categories: list[str]  #: the trace's own words for the kinds of events
    args: Mapping[str, ArgColumn]  #: further arguments by their name in the trace
    #: absolute time of the first event in ns, in the clock of the trace
    base_ns: int = 0
    devices: tuple[Device, ...] = ()  #: the GPUs that the trace describes
    #: the document's other top-level members
    metadata: Mapping[str, object] = field(default_factory=dict)
    #: process → the name that a metadata event gives it
    process_names: Mapping[int | str, str] = field(default_factory=dict)
    #: process → its label, such as `CPU` or `GPU 0`
    process_labels: Mapping[int | str, str] = field(default_factory=dict)
    #: entry of `threads` → the name that a metadata event gives it
    thread_names: Mapping[tuple[int | str, int | str], str] = field(
        default_factory=dict
    )
    #: the file, and what became of its events
    provenance: Provenance = field(default_factory=Provenance)
    #: what `threads`, correlation ids and annotations mean
    conventions: Conventions = field(default_factory=Conventions)
    replays: Replays | None = None  #: the events that captures of graphs add
    #: compiled ones, each as the message `HloProto` of XLA
    programs: tuple[bytes, ...] = ()
    #: of operations: which program, shifted by `PROGRAM_SHIFT`, and which of its instructions, in
    #: their order there
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
        """Return the end of some events; `end` adds up all of them, which are millions."""
        ends: Int64Array = self.ts[rows] + self.dur[rows]
        return ends

    @property
    def recorded(self) -> int:
        """How many events the file holds; the rows from here on are `replays`."""
        if self.replays is None:
            return len(self)
        return len(self) - len(self.replays.parent)

    def rows_of(self, *kinds: EventKind) -> npt.NDArray[np.int64]:
        """Return the recorded events of these kinds, in file order."""
        is_wanted = np.zeros(self.recorded, dtype=bool)
        recorded_kind = self.kind[: self.recorded]
        # comparing a few times takes less time than one look-up an event
        for kind in kinds:
            is_wanted |= recorded_kind == kind
        return np.flatnonzero(is_wanted)

    def count_of(self, *kinds: EventKind) -> int:
        """Return how many recorded events are of these kinds."""
        return len(self.rows_of(*kinds))

    def described(self, number: int) -> Device | None:
        """Return what the file says of a device; None where it says nothing.

        ROCm's numbers may be others than those of the description: then it is known where all
        devices are equal.
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
        """Return the argument of that name; an empty column if no event has it."""
        column = self.args.get(name)
        return no_arg() if column is None else column

    def name_of(self, row: int) -> str:
        """Return the name of one event."""
        return self.names[int(self.name[row])]

    def names_matching(self, test: Callable[[str], object]) -> npt.NDArray[np.bool_]:
        """Return which of `names` pass a test, such as the `search` of a pattern."""
        return np.fromiter(map(test, self.names), bool, len(self.names))

    def named(self, codes: IntArray, test: Callable[[str], object]) -> BoolArray:
        """Return which of some codes of `names` pass a test; each name is tested once."""
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
        """A small number for the process of each entry of `threads`, shape (len(threads),)."""
        code_of_process: dict[int | str, int] = {}
        codes = [
            code_of_process.setdefault(process, len(code_of_process))
            for process, _ in self.threads
        ]
        return np.array(codes, dtype=np.int32)

    @cached_property
    def device(self) -> Int64Array:
        """Device of each of `gpu_rows`; `NONE` where the trace does not say."""
        processes = [process for process, _ in self.threads]
        return self._argument_or_number("device", processes)

    @cached_property
    def stream(self) -> Int64Array:
        """Stream of each of `gpu_rows`; `NONE` where the trace does not say."""
        threads = [thread for _, thread in self.threads]
        return self._argument_or_number("stream", threads)

    def _argument_or_number(
        self, argument: str, labels: Sequence[int | str]
    ) -> Int64Array:
        """Return an argument of the GPU events, else the number in a label of their thread."""
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
        """From the first start to the last end of all events, ns."""
        return int(self.end.max()) if len(self) else 0


def distributed_info(metadata: Mapping[str, object]) -> Mapping[str, object]:
    """Return what PyTorch notes of the rank and of its job; a trace may say anything."""
    info = metadata.get("distributedInfo")
    return info if isinstance(info, dict) else {}


def _number(label: int | str) -> int:
    """Return 7 for 7, '7' and 'stream 7'; `NONE` for a text without digits, or a huge number."""
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
