"""Records of rocprofv3 as events, whatever the form of the file: its words, and what they mean.

A call (HIP, HSA, RCCL …) is a runtime or driver call and can launch; a roctx range is an
annotation, a roctx mark an instant. Dispatches and copies are GPU events. Correlation ids count
within a process, so GPU events are filed under the process that launched them.
Format: the documentation of ROCprofiler-SDK, "Using rocprofv3" and "Using rocpd output format"; of
JSON `source/lib/output/generateJSON.cpp` of ROCprofiler-SDK.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.readers.builder import Labels, TraceBuilder, distinct_rows
from tracelens_ext.readers.sqlite_columns import MISSING
from tracelens_ext.text import NO_NAME
from tracelens_ext.trace import NONE, Conventions, Device, EventKind

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

    from tracelens_ext.trace import Int32Array, Int64Array, Trace


DISPATCH = "KERNEL_DISPATCH"
RECORD = "rocprofv3 --kernel-trace --hip-trace --marker-trace --memory-copy-trace -- PROGRAM"
#: Why records are left out.
ALLOCATION = "memory allocations, which are not analysed"
COUNTER = "counter values, which are not analysed"

#: Devices of the second machine in a file count from here, those of the third from twice this.
_DEVICES_A_MACHINE = 100
_ROWS_AT_ONCE = 1 << 19
_SUFFIXES = (".kd", " [clone .kd]", " (.kd)")
MOST_ID = 2**62
#: No machine has as many GPUs.
MOST_GPUS = 1 << 20
#: What tells the blocks of a dispatch; grids count work items.
GEOMETRY = tuple(f"{what}_size_{axis}" for what in ("grid", "workgroup") for axis in "xyz")


class Handle(msgspec.Struct, frozen=True):
    """An id within the process, as JSON holds it."""

    handle: int = 0


class MemoryBank(msgspec.Struct):
    """A memory of an agent."""

    size_in_bytes: int = 0


class Agent(msgspec.Struct):
    """A processor: an item of `agents` in JSON, `extdata` of an agent in rocpd."""

    id: Handle = Handle()
    type: int = 0  #: 1 CPU, 2 GPU
    logical_node_type_id: int = 0  #: among the GPUs
    name: str = ""
    product_name: str = ""
    cu_count: int = 0
    wave_front_size: int = 0
    mem_banks: list[MemoryBank] = []

    def device(self, ordinal: int) -> Device:
        """What it is as a GPU of that number."""
        memory = sum(bank.size_in_bytes for bank in self.mem_banks)
        sizes = (self.cu_count, self.wave_front_size, memory)
        numbers = (size if 0 < size < MOST_ID else 0 for size in sizes)
        return Device(ordinal, self.product_name or self.name, *numbers)


def kernel_name(text: str | None, number: int) -> str:
    """A kernel's name without the suffix of its descriptor (`.kd`), else its number."""
    if text is None:
        return f"kernel {number}"
    text = text.strip().strip('"').strip()
    for suffix in reversed(_SUFFIXES):
        text = text.removesuffix(suffix)
    return text or NO_NAME


def call_kind(domain: str) -> EventKind:
    """What records of a domain are, such as `HIP_RUNTIME_API_EXT`, `marker_api`."""
    word = domain.casefold()
    if "marker" in word:
        return EventKind.USER_ANNOTATION
    return EventKind.DRIVER if "hsa" in word else EventKind.RUNTIME


class RocprofRecords:
    """Collects the records of one or more processes, and makes the trace.

    Attributes:
        builder: its interners give the codes of names and domains (`categories`).
        notes: what the user should know, a sentence each.
    """

    def __init__(self) -> None:
        self.builder = TraceBuilder()
        self.notes: list[str] = []
        self._labels = Labels()
        self._processes: list[int | str] = []
        self._process_of: dict[Hashable, int] = {}
        self._same_pid: dict[int | str, int] = {}
        self._machines: dict[Hashable, int] = {}
        self._devices: dict[int, Device] = {}
        self._has_calls = False

    def process(self, key: Hashable, pid: int | str, command: str = "") -> int:
        """The number of a process for `add_calls` and `add_work`.

        The key tells it from others, which may have the same pid on another machine.
        """
        if key not in self._process_of:
            same = self._same_pid[pid] = self._same_pid.get(pid, 0) + 1
            label = f"{pid} ({same})" if same > 1 else pid
            self._process_of[key] = len(self._processes)
            self._processes.append(label)
            if command:
                self._labels.processes[label] = command
        return self._process_of[key]

    def device(self, machine: Hashable, ordinal: int) -> int:
        """The number of a GPU that has this one on its machine."""
        index = self._machines.setdefault(machine, len(self._machines))
        return ordinal + index * _DEVICES_A_MACHINE

    def describe(self, device: Device) -> None:
        """Say what a GPU is."""
        self._devices.setdefault(device.ordinal, device)

    def name_thread(self, process: int, thread: int, name: str) -> None:
        """Give a thread its name."""
        self._labels.threads[self._processes[process], thread] = name

    def names(self, texts: Iterable[str | None]) -> list[int]:
        """The codes of names of calls, ranges and copies."""
        return [self.builder.names[text or NO_NAME] for text in texts]

    def kinds(self, domain: Int64Array) -> Int64Array:
        """What records of these domains, codes of `categories`, are; shape as `domain`."""
        kinds = [int(call_kind(word)) for word in self.builder.categories]
        return np.array(kinds, dtype=np.int64)[domain]

    def add_calls(self, columns: Mapping[str, Int64Array]) -> None:
        """Add calls, ranges and marks.

        Columns: `start`, `end` in ns; `process` of this object; `thread`; `name` and `domain`,
        codes of the builder; `correlation`.
        """
        for piece in _pieces(columns):
            kind = self.kinds(piece["domain"])
            self._has_calls |= bool((kind != EventKind.USER_ANNOTATION).any())
            mark = (kind == EventKind.USER_ANNOTATION) & (piece["start"] == piece["end"])
            self._add(
                piece,
                np.where(mark, EventKind.INSTANT, kind),
                self._threads(lambda _process, thread: thread, piece["process"], piece["thread"]),
                {"correlation": piece["correlation"]},
            )

    def add_work(self, kind: EventKind, columns: Mapping[str, Int64Array]) -> None:
        """Add dispatches or copies: columns as of `add_calls`, without `thread`.

        Also `device`, and `lane`: the queue of a dispatch, the stream of a copy; `bytes`, and those
        of `GEOMETRY`, if they are known.
        """
        word = "queue" if kind == EventKind.KERNEL else "stream"
        for piece in _pieces(columns):
            lanes = piece["process"], piece["device"], piece["lane"]
            threads = self._threads(lambda _p, gpu, lane: f"GPU {gpu} {word} {lane}", *lanes)
            numbers = {"stream": piece["lane"]}
            for name in ("correlation", "device", "bytes"):
                if name in piece:
                    numbers[name] = piece[name]
            if GEOMETRY[0] in piece:
                numbers["grid"] = _blocks([piece[name] for name in GEOMETRY])
            self._add(piece, kind, threads, numbers)

    def device_of_copy(
        self, name: Int64Array, source: Int64Array, target: Int64Array
    ) -> Int64Array:
        """The GPU that copies belong to: that which their name says is the target, or the source.

        Names are codes of the builder (`MEMORY_COPY_HOST_TO_DEVICE`); GPUs are numbers, `NONE` of a
        CPU.
        """
        to_device = np.array([known.endswith("TO_DEVICE") for known in self.builder.names])[name]
        first, other = np.where(to_device, target, source), np.where(to_device, source, target)
        device: Int64Array = np.where(first == NONE, other, first)
        return device

    def _threads(self, spell: Callable[..., int | str], *columns: Int64Array) -> Int32Array:
        """The entry of `threads` of each row, whose first column is its process."""
        distinct, number = distinct_rows(*columns)
        codes = [self.builder.threads[self._processes[row[0]], spell(*row)] for row in distinct]
        return np.array(codes, dtype=np.int32)[number]

    def _add(
        self,
        piece: Mapping[str, Int64Array],
        kind: Int64Array | int,
        thread: Int32Array,
        columns: Mapping[str, Int64Array],
    ) -> None:
        numbers = {name: np.where(ids < MOST_ID, ids, NONE) for name, ids in columns.items()}
        self.builder.add_rows(piece, piece["name"], kind, thread, piece["domain"], numbers)

    def drop(self, reason: str, count: int) -> None:
        """Count records that are left out."""
        if count:
            self.builder.dropped[reason] += count

    def finish(self, path: str, format_name: str, bytes_read: int) -> Trace:
        """The trace."""
        if not self._has_calls:
            self.notes.append(
                "No calls were recorded, so no GPU event has a launch: record with --hip-trace."
            )
        trace = self.builder.finish(
            path=path,
            format_name=format_name,
            bytes_read=bytes_read,
            devices=tuple(self._devices[number] for number in sorted(self._devices)),
            labels=self._labels,
            notes=tuple(self.notes),
        )
        if not len(trace):
            left_out = trace.provenance.dropped_text
            raise TraceFormatError(
                path,
                "holds no calls, markers, kernels or copies"
                + (f" (left out: {left_out})" if left_out else ""),
                f"record with: {RECORD}",
            )
        conventions = Conventions(gpu_by_process=True, annotations_are_operations=True)
        return replace(trace, conventions=conventions)


def _blocks(geometry: list[Int64Array]) -> Int64Array:
    """How many blocks dispatches have, `NONE` where the first dimension is not told, (n,)."""
    items, block = np.clip(geometry[:3], 1, 2**40), np.clip(geometry[3:], 1, 2**20)
    blocks = np.minimum(-(-items // block), 2**20).prod(axis=0)  # no more are needed to fill a GPU
    told = (geometry[0] > 0) & (geometry[3] > 0)
    result: Int64Array = np.where(told, blocks, NONE)
    return result


def _pieces(columns: Mapping[str, Int64Array]) -> Iterable[dict[str, Int64Array]]:
    count = len(columns["start"])
    for at in range(0, count, _ROWS_AT_ONCE):
        yield {name: values[at : at + _ROWS_AT_ONCE] for name, values in columns.items()}


_Whole = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]


class _Correlation(msgspec.Struct, frozen=True):
    internal: _Whole = 0


class _Record(msgspec.Struct):
    start_timestamp: _Whole = MISSING
    end_timestamp: _Whole = MISSING
    kind: _Whole = -1
    operation: _Whole = -1
    correlation_id: _Correlation = _Correlation()


class Call(_Record):
    """A record of an API, or of markers."""

    thread_id: _Whole = 0


class _Size(msgspec.Struct, frozen=True):
    x: _Whole = MISSING
    y: _Whole = MISSING
    z: _Whole = MISSING


class _DispatchInfo(msgspec.Struct, frozen=True):
    agent_id: Handle = Handle()
    queue_id: Handle = Handle()
    kernel_id: _Whole = 0
    grid_size: _Size = _Size()
    workgroup_size: _Size = _Size()


class Dispatch(_Record):
    """A record of `kernel_dispatch`."""

    dispatch_info: _DispatchInfo = _DispatchInfo()


class Copy(_Record):
    """A record of `memory_copy`."""

    src_agent_id: Handle = Handle()
    dst_agent_id: Handle = Handle()
    stream_id: Handle = Handle()
    bytes: _Whole = -1


class Symbol(msgspec.Struct):
    """A kernel."""

    kernel_id: _Whole = -1
    formatted_kernel_name: str | None = None
    demangled_kernel_name: str | None = None
    kernel_name: str | None = None


class Operations(msgspec.Struct):
    """A kind of records, and the names of its operations."""

    kind: str = ""
    operations: list[str] = []


class Message(msgspec.Struct):
    """The text of a roctx range or mark, by its correlation id."""

    key: _Whole = -1
    value: str = ""


_OF_ALL = {
    "start": "start_timestamp",
    "end": "end_timestamp",
    "kind": "kind",
    "operation": "operation",
    "correlation": "correlation_id.internal",
}
#: Column → where a record has it. Handles can be any number of 64 bits: they are numbered.
COLUMNS: dict[type, dict[str, str]] = {
    Call: _OF_ALL | {"thread": "thread_id"},
    Dispatch: _OF_ALL
    | {
        "kernel": "dispatch_info.kernel_id",
        "agent handle": "dispatch_info.agent_id.handle",
        "queue handle": "dispatch_info.queue_id.handle",
        **{name: f"dispatch_info.{name[:-2]}.{name[-1]}" for name in GEOMETRY},
    },
    Copy: _OF_ALL
    | {
        "source handle": "src_agent_id.handle",
        "target handle": "dst_agent_id.handle",
        "stream handle": "stream_id.handle",
        "bytes": "bytes",
    },
}
#: Why records of a kind are left out.
LEFT_OUT = {
    "memory_allocation": ALLOCATION,
    "scratch_memory": ALLOCATION,
    "counter_collection": COUNTER,
}
_TYPES: dict[tuple[str, ...], type] = {
    ("agents",): Agent,
    ("kernel_symbols",): Symbol,
    ("strings", "buffer_records"): Operations,
    ("strings", "marker_api"): Message,
    ("buffer_records", "kernel_dispatch"): Dispatch,
    ("buffer_records", "memory_copy"): Copy,
}


def type_of(path: tuple[str, ...]) -> type:
    """What the items of a list are, by its place in a process; `Raw` of those that are not read."""
    if path[0] == "buffer_records" and path[-1].endswith("_api"):
        return Call
    return _TYPES.get(path, msgspec.Raw)
