"""Turns the records of rocprofv3 into events; the readers of all its file formats share this code.

* A call (HIP, HSA, RCCL …) becomes a runtime or driver call, which can launch GPU work.
* A roctx range becomes an annotation, a roctx mark an instant.
* Dispatches and copies become GPU events. A correlation id is unique only within its process, so
  each GPU event belongs to the process that launched it.

Format: the documentation of ROCprofiler-SDK, "Using rocprofv3" and "Using rocpd output format"; for
JSON, `source/lib/output/generateJSON.cpp` of ROCprofiler-SDK.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.readers.builder import (
    Interner,
    Labels,
    TraceBuilder,
    map_distinct_rows,
)
from tracelens_ext.text import NO_NAME
from tracelens_ext.trace import NONE, Conventions, Device, EventKind, Int64Array, Trace

DISPATCH = "KERNEL_DISPATCH"
RECORD = (
    "rocprofv3 --kernel-trace --hip-trace --marker-trace --memory-copy-trace -- PROGRAM"
)
#: Reasons for dropping records, as the user reads them.
ALLOCATION = "memory allocations, which are not analyzed"
COUNTER = "counter values, which are not analyzed"

#: The GPUs of the first machine in a file are numbered from 0, of the second from 100, of the third
#: from 200.
_DEVICES_PER_MACHINE = 100
#: Endings that mark a symbol as a kernel descriptor rather than the kernel itself.
_DESCRIPTOR_SUFFIX = re.compile(r"(?:\.kd)?(?: \[clone \.kd\])?(?: \(\.kd\))?\Z")
#: Ids and sizes from this value on are treated as unknown.
MOST_ID = 2**62
#: Value of `Agent.type` for a GPU.
GPU_AGENT = 2
#: GPU numbers from this value on are treated as damaged.
MOST_GPUS = 1 << 20
#: Columns from which the number of blocks of a dispatch is computed. The grid is in work items.
GEOMETRY = (
    "grid_size_x",
    "grid_size_y",
    "grid_size_z",
    "workgroup_size_x",
    "workgroup_size_y",
    "workgroup_size_z",
)
_DIMENSIONS = 3
#: Limits that keep the product of three dimensions within 64 bits. Far fewer blocks fill any GPU.
_MOST_ITEMS = 2**40
_MOST_ITEMS_PER_BLOCK = 2**20
_MOST_BLOCKS_PER_DIMENSION = 2**20


class MemoryBank(msgspec.Struct):
    """One of the memories of an agent."""

    size_in_bytes: int = 0


class Handle(msgspec.Struct, frozen=True):
    """An id that is unique within its process, in the form that JSON has it."""

    handle: int = 0


class Agent(msgspec.Struct):
    """A processor: an item of `agents` in JSON, or the `extdata` of an agent in rocpd."""

    id: Handle = Handle()
    type: int = 0  #: 1 for a CPU, 2 for a GPU
    logical_node_type_id: int = 0  #: its number among the processors of its type
    name: str = ""
    product_name: str = ""
    cu_count: int = 0
    wave_front_size: int = 0
    mem_banks: list[MemoryBank] = []

    def device(self, ordinal: int) -> Device:
        """Return the description of this agent as the GPU with a number."""
        memory_size = sum(bank.size_in_bytes for bank in self.mem_banks)
        return Device(
            ordinal=ordinal,
            name=self.product_name or self.name,
            units=_plausible_size(self.cu_count),
            warp=_plausible_size(self.wave_front_size),
            memory_bytes=_plausible_size(memory_size),
        )


def _plausible_size(size: int) -> int:
    """Return the size itself, or 0 (unknown) if no processor can have such a size."""
    if 0 < size < MOST_ID:
        return size
    return 0


def kernel_name(symbol: str | None, kernel_id: int) -> str:
    """Return the name of a kernel without the suffix of its descriptor.

    Examples: `gemm.kd` → `gemm`; a kernel without a symbol and with the id 7 → `kernel 7`.
    """
    if symbol is None:
        return f"kernel {kernel_id}"
    unquoted = symbol.strip().strip('"').strip()
    return _DESCRIPTOR_SUFFIX.sub("", unquoted) or NO_NAME


class RecordingAdvice(NamedTuple):
    """Advice about recording, as it appears in messages."""

    command: str = RECORD  #: the command that records a complete trace
    calls: str = "record with --hip-trace"  #: how to record calls if they are missing


class RocprofRecords:
    """Collects the records of a file and makes the trace.

    Names and domains are passed as codes of the interners of `builder`.

    Attributes:
        builder: the builder that the records are added to.
        notes: sentences for the user about what was left out or guessed.
        processes: the label of each process, by its number.
        thread_names: the names of threads, by label of the process and id of the thread.
    """

    def __init__(self, advice: RecordingAdvice | None = None) -> None:
        self._advice = advice or RecordingAdvice()
        self.builder = TraceBuilder()
        self.notes: list[str] = []
        self.processes: list[int | str] = []
        self.thread_names: dict[tuple[int | str, int | str], str] = {}
        self._process_names: dict[int | str, str] = {}
        self._process_of_key: dict[Hashable, int] = {}
        self._processes_with_pid: Counter[int | str] = Counter()
        self._machines: Interner[Hashable] = Interner()
        self._devices: dict[int, Device] = {}
        self._has_calls = False

    def process(self, key: Hashable, pid: int | str, command: str = "") -> int:
        """Return the number of a process; a new key adds a process.

        Args:
            key: identifies the process, also among processes with the same pid on other machines.
            pid: the process id, or "?" if it is unknown.
            command: the command line that the process ran; empty if it is unknown.
        """
        if key not in self._process_of_key:
            self._processes_with_pid[pid] += 1
            label = pid
            if self._processes_with_pid[pid] > 1:
                label = f"{pid} ({self._processes_with_pid[pid]})"
            self._process_of_key[key] = len(self.processes)
            self.processes.append(label)
            if command:
                self._process_names[label] = command
        return self._process_of_key[key]

    def device(self, machine: Hashable, ordinal: int, agent: Agent) -> int:
        """Return the number of a GPU in the trace.

        Args:
            machine: identifies the machine that the GPU is in.
            ordinal: the number of the GPU on its machine.
            agent: the description of the GPU.
        """
        device_number = ordinal + self._machines[machine] * _DEVICES_PER_MACHINE
        self._devices.setdefault(device_number, agent.device(device_number))
        return device_number

    def kinds(self, domain_codes: Int64Array) -> Int64Array:
        """Return the `EventKind` of the calls of each domain, such as `HIP_RUNTIME_API_EXT`.

        Args:
            domain_codes: codes of the categories of the builder, (m,).
        """
        categories = self.builder.categories
        kind_of_code = np.full(len(categories), EventKind.RUNTIME, dtype=np.int64)
        for code, category in enumerate(categories):
            domain = category.casefold()
            if "marker" in domain:
                kind_of_code[code] = EventKind.USER_ANNOTATION
            elif "hsa" in domain:
                kind_of_code[code] = EventKind.DRIVER
        return kind_of_code[domain_codes]

    def add(self, record_kind: EventKind, columns: Mapping[str, Int64Array]) -> None:
        """Add m records of one kind.

        Args:
            record_kind: `RUNTIME` for calls and markers, `KERNEL` for dispatches, `MEMCPY` for
                copies, `MEMSET` for fills.
            columns: columns of shape (m,), as follows.

        Every record has `start` and `end` (ns), `process` (a number that `process` returned) and
        `name` (a code). `domain` (a code) is optional for dispatches only, `correlation` always.

        * Calls and markers also have `thread`.
        * GPU events also have `lane`: the queue of a dispatch, the stream of a copy.
        * GPU events have either `device` or, if they are copies, `source` and `target` devices.
        * GPU events may have `bytes` and the columns in `GEOMETRY`.
        """
        if record_kind == EventKind.RUNTIME:
            self._add_calls(columns)
        else:
            self._add_gpu_events(record_kind, columns)

    def _add_calls(self, columns: Mapping[str, Int64Array]) -> None:
        """Add calls, ranges and marks, whose domain tells which of these they are."""
        kind = self.kinds(columns["domain"])
        is_marker = kind == EventKind.USER_ANNOTATION
        is_instant = is_marker & (columns["start"] == columns["end"])
        kind[is_instant] = EventKind.INSTANT
        if not is_marker.all():
            self._has_calls = True
        threads = map_distinct_rows(self._thread, columns["process"], columns["thread"])
        numbers = _number_arguments(columns)
        domain = columns["domain"]
        self.builder.add_rows(columns, columns["name"], kind, threads, domain, numbers)

    def add_ranges(
        self,
        columns: Mapping[str, Int64Array],
        kind: Int64Array,
        numbers: Mapping[str, Int64Array],
        texts: Mapping[str, Int64Array],
    ) -> None:
        """Add m ranges and marks whose kinds the caller has determined.

        Args:
            columns: the columns that `add` expects for calls, each (m,).
            kind: the `EventKind` of each event, (m,).
            numbers: name of an argument → its integers, (m,).
            texts: name of an argument → codes of `builder.texts`, (m,).
        """
        threads = map_distinct_rows(self._thread, columns["process"], columns["thread"])
        name = columns["name"]
        domain = columns["domain"]
        self.builder.add_rows(columns, name, kind, threads, domain, numbers, texts)

    def _add_gpu_events(
        self, kind: EventKind, columns: Mapping[str, Int64Array]
    ) -> None:
        """Add dispatches, copies or fills."""
        event_columns = dict(columns)
        event_columns["stream"] = columns["lane"]
        lane_word = "queue"
        if "device" not in columns:
            lane_word = "stream"
            event_columns["device"] = self._device_of_copy(columns)
        if GEOMETRY[0] in columns:
            geometry = [columns[name] for name in GEOMETRY]
            event_columns["grid"] = _blocks(geometry)

        def thread_of(process: int, device: int, lane: int) -> int:
            return self._thread(process, f"GPU {device} {lane_word} {lane}")

        device = event_columns["device"]
        threads = map_distinct_rows(
            thread_of, columns["process"], device, columns["lane"]
        )
        domain: Int64Array | int | None = columns.get("domain")
        if domain is None:
            domain = self.builder.categories[DISPATCH]
        numbers = _number_arguments(event_columns)
        self.builder.add_rows(columns, columns["name"], kind, threads, domain, numbers)

    def _thread(self, process: int, thread: int | str) -> int:
        """Return the code of a thread of a process; GPU work has a "thread" for each lane."""
        return self.builder.threads[self.processes[process], thread]

    def _device_of_copy(self, columns: Mapping[str, Int64Array]) -> Int64Array:
        """Return the GPU to which each copy is attributed, (m,); `NONE` if no GPU takes part.

        A copy whose name ends in `TO_DEVICE` is attributed to its target, any other to its source.
        If that end of the copy is a CPU, the copy is attributed to the other end.
        """
        source = columns["source"]
        target = columns["target"]
        is_name_to_device = [name.endswith("TO_DEVICE") for name in self.builder.names]
        is_to_device = np.array(is_name_to_device, dtype=bool)[columns["name"]]
        preferred = np.where(is_to_device, target, source)
        other = np.where(is_to_device, source, target)
        return np.where(preferred == NONE, other, preferred)

    def drop(self, reason: str, count: int) -> None:
        """Count records that do not become events, with the reason that the user reads."""
        if count:
            self.builder.dropped[reason] += count

    def finish(self, path: str, format_name: str, bytes_read: int) -> Trace:
        """Return the trace of all records that were added.

        Args:
            path: the file as the user named it.
            format_name: what the trace reports as its format.
            bytes_read: size of the file, decompressed.

        Raises:
            TraceFormatError: no record became an event.
        """
        if not self._has_calls:
            note = "No calls were recorded, so no GPU event has a launch"
            self.notes.append(f"{note}: {self._advice.calls}.")
        devices = [self._devices[device] for device in sorted(self._devices)]
        trace = self.builder.finish(
            path=path,
            format_name=format_name,
            bytes_read=bytes_read,
            devices=tuple(devices),
            labels=Labels(self._process_names, threads=self.thread_names),
            notes=tuple(self.notes),
            # The stream of a kernel is its hardware queue here, which several HIP streams share.
            streams_run_in_order=False,
        )
        if not len(trace):
            problem = "contains no calls, markers, kernels or copies"
            dropped = trace.provenance.dropped_text
            if dropped:
                problem += f" (left out: {dropped})"
            raise TraceFormatError(
                path, problem, f"record with: {self._advice.command}"
            )
        conventions = Conventions(gpu_by_process=True, annotations_are_operations=True)
        return replace(trace, conventions=conventions)


def _number_arguments(columns: Mapping[str, Int64Array]) -> dict[str, Int64Array]:
    """Return the columns that become arguments of events, with `NONE` for impossible numbers."""
    numbers = {}
    for name in ("stream", "correlation", "device", "bytes", "grid"):
        if name in columns:
            numbers[name] = np.where(columns[name] < MOST_ID, columns[name], NONE)
    return numbers


def _blocks(geometry: list[Int64Array]) -> Int64Array:
    """Return the number of blocks of each of n dispatches, (n,).

    The number is `NONE` where the first size of the grid or of the workgroup is not recorded.

    Args:
        geometry: the six columns of `GEOMETRY` in this order, each (n,): the sizes of the grid in
            work items, then the sizes of the workgroup.
    """
    items = np.clip(geometry[:_DIMENSIONS], 1, _MOST_ITEMS)
    items_per_block = np.clip(geometry[_DIMENSIONS:], 1, _MOST_ITEMS_PER_BLOCK)
    blocks_by_dimension = -(-items // items_per_block)  # rounded up
    limited_blocks = np.minimum(blocks_by_dimension, _MOST_BLOCKS_PER_DIMENSION)
    blocks = limited_blocks.prod(axis=0)
    has_grid = geometry[0] > 0
    has_workgroup = geometry[_DIMENSIONS] > 0
    is_known = has_grid & has_workgroup
    return np.where(is_known, blocks, NONE)
