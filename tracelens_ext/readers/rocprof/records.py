"""The records of rocprofv3 as events: what its words mean, in each of its file formats.

A call (HIP, HSA, RCCL …) is a runtime or driver call and can launch; a roctx range is an
annotation, a roctx mark an instant. Dispatches and copies are GPU events. Correlation ids count
within a process, so GPU events are filed under the process that launched them.
Format: the documentation of ROCprofiler-SDK, "Using rocprofv3" and "Using rocpd output format"; of
JSON `source/lib/output/generateJSON.cpp` of ROCprofiler-SDK.
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
from tracelens_ext.readers.builder import Interner, Labels, TraceBuilder, of_rows
from tracelens_ext.text import NO_NAME
from tracelens_ext.trace import NONE, Conventions, Device, EventKind, Int64Array, Trace

DISPATCH = "KERNEL_DISPATCH"
RECORD = (
    "rocprofv3 --kernel-trace --hip-trace --marker-trace --memory-copy-trace -- PROGRAM"
)
#: Why records are left out.
ALLOCATION = "memory allocations, which are not analyzed"
COUNTER = "counter values, which are not analyzed"

#: Devices of the second machine in a file count from here, those of the third from twice this.
_DEVICES_A_MACHINE = 100
_SUFFIX = re.compile(r"(?:\.kd)?(?: \[clone \.kd\])?(?: \(\.kd\))?\Z")
MOST_ID = 2**62
#: What `Agent.type` says of a GPU.
GPU_AGENT = 2
#: No machine has as many GPUs.
MOST_GPUS = 1 << 20
#: What tells the blocks of a dispatch; grids count work items.
GEOMETRY = (
    "grid_size_x",
    "grid_size_y",
    "grid_size_z",
    "workgroup_size_x",
    "workgroup_size_y",
    "workgroup_size_z",
)
_DIMENSIONS = 3
#: Limits that keep the number of blocks within 64 bits; no more blocks are needed to fill a GPU.
_MOST_ITEMS = 2**40
_MOST_ITEMS_OF_A_BLOCK = 2**20
_MOST_BLOCKS_OF_A_DIMENSION = 2**20


class MemoryBank(msgspec.Struct):
    """A memory of an agent."""

    size_in_bytes: int = 0


class Handle(msgspec.Struct, frozen=True):
    """An id within the process, as JSON holds it."""

    handle: int = 0


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
        """Return the description of this agent as the GPU of that number."""
        memory_size = sum(bank.size_in_bytes for bank in self.mem_banks)
        return Device(
            ordinal=ordinal,
            name=self.product_name or self.name,
            units=_plausible_size(self.cu_count),
            warp=_plausible_size(self.wave_front_size),
            memory_bytes=_plausible_size(memory_size),
        )


def _plausible_size(size: int) -> int:
    """Return a size as it is; 0, for unknown, if it cannot be one."""
    if 0 < size < MOST_ID:
        return size
    return 0


def kernel_name(text: str | None, number: int) -> str:
    """Return a kernel's name without the suffix of its descriptor (`.kd`), or name its number."""
    if text is None:
        return f"kernel {number}"
    return _SUFFIX.sub("", text.strip().strip('"').strip()) or NO_NAME


class RecordingAdvice(NamedTuple):
    """What messages advise about recording."""

    command: str = RECORD  #: how to record
    calls: str = "record with --hip-trace"  #: how to record calls


class RocprofRecords:
    """Collects records, with codes of its `builder`, and makes the trace.

    Attributes:
        builder: what the records are added to.
        notes: sentences about what was left out or guessed.
        processes: the label of each process.
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
        """Return the number of a process.

        Args:
            key: tells the process from those with its pid on other machines.
            pid: its id, or a text where that is not known.
            command: what it ran; empty where that is not known.
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
        """Return the number of a GPU: of an agent that has an ordinal on its machine."""
        number = ordinal + self._machines[machine] * _DEVICES_A_MACHINE
        self._devices.setdefault(number, agent.device(number))
        return number

    def kinds(self, domain: Int64Array) -> Int64Array:
        """Return the event kinds of domains such as `HIP_RUNTIME_API_EXT`, given as codes."""
        categories = self.builder.categories
        kind_of_code = np.full(len(categories), EventKind.RUNTIME, dtype=np.int64)
        for code, category in enumerate(categories):
            word = category.casefold()
            if "marker" in word:
                kind_of_code[code] = EventKind.USER_ANNOTATION
            elif "hsa" in word:
                kind_of_code[code] = EventKind.DRIVER
        return kind_of_code[domain]

    def add(self, record_kind: EventKind, columns: Mapping[str, Int64Array]) -> None:
        """Add dispatches (`KERNEL`), copies (`MEMCPY`), fills (`MEMSET`), or calls and markers.

        Columns: `start`, `end` in ns; `process` of this object; `name` and `domain`, codes of the
        builder; `correlation`, if it is known. Of calls `thread`; of dispatches `device` and
        `lane`, their queue; of copies the same, or `source` and `target`, devices, and `lane`,
        their stream; `bytes` and `GEOMETRY`, if they are known. Dispatches need no domain.
        """
        if record_kind == EventKind.RUNTIME:
            self._add_calls(columns)
        else:
            self._add_gpu_events(record_kind, columns)

    def _add_calls(self, columns: Mapping[str, Int64Array]) -> None:
        kind = self.kinds(columns["domain"])
        is_marker = kind == EventKind.USER_ANNOTATION
        is_instant = is_marker & (columns["start"] == columns["end"])
        kind[is_instant] = EventKind.INSTANT
        if not is_marker.all():
            self._has_calls = True
        threads = of_rows(self._thread, columns["process"], columns["thread"])
        numbers = _known_numbers(columns)
        domain = columns["domain"]
        self.builder.add_rows(columns, columns["name"], kind, threads, domain, numbers)

    def add_ranges(
        self,
        columns: Mapping[str, Int64Array],
        kind: Int64Array,
        numbers: Mapping[str, Int64Array],
        texts: Mapping[str, Int64Array],
    ) -> None:
        """Add m ranges and marks of known kinds.

        Args:
            columns: as of calls.
            kind: the `EventKind` of each, (m,).
            numbers: argument → integers, (m,).
            texts: argument → codes of texts of the builder, (m,).
        """
        threads = of_rows(self._thread, columns["process"], columns["thread"])
        name = columns["name"]
        domain = columns["domain"]
        self.builder.add_rows(columns, name, kind, threads, domain, numbers, texts)

    def _add_gpu_events(
        self, kind: EventKind, columns: Mapping[str, Int64Array]
    ) -> None:
        described = dict(columns)
        described["stream"] = columns["lane"]
        lane_word = "queue"
        if "device" not in columns:
            lane_word = "stream"
            described["device"] = self._device_of_copy(columns)
        if GEOMETRY[0] in columns:
            geometry = [columns[name] for name in GEOMETRY]
            described["grid"] = _blocks(geometry)

        def thread_of(process: int, device: int, lane: int) -> int:
            return self._thread(process, f"GPU {device} {lane_word} {lane}")

        device = described["device"]
        threads = of_rows(thread_of, columns["process"], device, columns["lane"])
        domain: Int64Array | int | None = columns.get("domain")
        if domain is None:
            domain = self.builder.categories[DISPATCH]
        numbers = _known_numbers(described)
        self.builder.add_rows(columns, columns["name"], kind, threads, domain, numbers)

    def _thread(self, process: int, lane: int | str) -> int:
        return self.builder.threads[self.processes[process], lane]

    def _device_of_copy(self, columns: Mapping[str, Int64Array]) -> Int64Array:
        """Return the GPU of each copy, `NONE` for none.

        It is the target where the name says that the copy goes to a device, else the source. Where
        that one is a CPU, it is the other one.
        """
        source = columns["source"]
        target = columns["target"]
        goes_to_device = [name.endswith("TO_DEVICE") for name in self.builder.names]
        is_to_device = np.array(goes_to_device, dtype=bool)[columns["name"]]
        preferred = np.where(is_to_device, target, source)
        other = np.where(is_to_device, source, target)
        return np.where(preferred == NONE, other, preferred)

    def drop(self, reason: str, count: int) -> None:
        """Count records that are left out."""
        if count:
            self.builder.dropped[reason] += count

    def finish(self, path: str, format_name: str, bytes_read: int) -> Trace:
        """Return the trace.

        Raises:
            TraceFormatError: there is no record that becomes an event.
        """
        if not self._has_calls:
            note = "No calls were recorded, so no GPU event has a launch"
            self.notes.append(f"{note}: {self._advice.calls}.")
        devices = [self._devices[number] for number in sorted(self._devices)]
        trace = self.builder.finish(
            path=path,
            format_name=format_name,
            bytes_read=bytes_read,
            devices=tuple(devices),
            labels=Labels(self._process_names, threads=self.thread_names),
            notes=tuple(self.notes),
            streams_run_in_order=False,  # kernels are filed under their hardware queue
        )
        if not len(trace):
            problem = "contains no calls, markers, kernels or copies"
            left_out = trace.provenance.dropped_text
            if left_out:
                problem += f" (left out: {left_out})"
            raise TraceFormatError(
                path, problem, f"record with: {self._advice.command}"
            )
        conventions = Conventions(gpu_by_process=True, annotations_are_operations=True)
        return replace(trace, conventions=conventions)


def _known_numbers(columns: Mapping[str, Int64Array]) -> dict[str, Int64Array]:
    """Return the columns that become arguments of events; `NONE` for an impossible number."""
    numbers = {}
    for name in ("stream", "correlation", "device", "bytes", "grid"):
        if name in columns:
            numbers[name] = np.where(columns[name] < MOST_ID, columns[name], NONE)
    return numbers


def _blocks(geometry: list[Int64Array]) -> Int64Array:
    """Return the number of blocks of dispatches, (n,); `NONE` where the first size is unknown.

    Args:
        geometry: sizes of grids in work items, then sizes of workgroups, each (n,), as `GEOMETRY`.
    """
    items = np.clip(geometry[:_DIMENSIONS], 1, _MOST_ITEMS)
    items_of_block = np.clip(geometry[_DIMENSIONS:], 1, _MOST_ITEMS_OF_A_BLOCK)
    blocks_by_dimension = -(-items // items_of_block)  # rounded up
    limited_blocks = np.minimum(blocks_by_dimension, _MOST_BLOCKS_OF_A_DIMENSION)
    blocks = limited_blocks.prod(axis=0)
    has_items = geometry[0] > 0
    has_items_of_block = geometry[_DIMENSIONS] > 0
    is_known = has_items & has_items_of_block
    return np.where(is_known, blocks, NONE)
