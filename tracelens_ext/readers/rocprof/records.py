"""Records of rocprofv3 as events, whatever the form of the file: its words, and what they mean.

A call (HIP, HSA, RCCL …) is a runtime or driver call and can launch; a roctx range is an
annotation, a roctx mark an instant. Dispatches and copies are GPU events. Correlation ids count
within a process, so GPU events are filed under the process that launched them.
Format: the documentation of ROCprofiler-SDK, "Using rocprofv3" and "Using rocpd output format"; of
JSON `source/lib/output/generateJSON.cpp` of ROCprofiler-SDK.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

import msgspec
import numpy as np

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.readers.builder import Interner, Labels, TraceBuilder, of_rows
from tracelens_ext.text import NO_NAME
from tracelens_ext.trace import NONE, Conventions, Device, EventKind, Int64Array, Trace

DISPATCH = "KERNEL_DISPATCH"
RECORD = "rocprofv3 --kernel-trace --hip-trace --marker-trace --memory-copy-trace -- PROGRAM"
#: Why records are left out.
ALLOCATION = "memory allocations, which are not analysed"
COUNTER = "counter values, which are not analysed"

#: Devices of the second machine in a file count from here, those of the third from twice this.
_DEVICES_A_MACHINE = 100
_SUFFIXES = (".kd", " [clone .kd]", " (.kd)")
MOST_ID = 2**62
#: No machine has as many GPUs.
MOST_GPUS = 1 << 20
#: What tells the blocks of a dispatch; grids count work items.
GEOMETRY = tuple(f"{what}_size_{axis}" for what in ("grid", "workgroup") for axis in "xyz")


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


class RocprofRecords:
    """Collects records, with codes of its `builder`, and makes the trace; `notes` are sentences."""

    def __init__(self) -> None:
        self.builder = TraceBuilder()
        self.notes: list[str] = []
        self._labels = Labels()
        self._processes: list[int | str] = []
        self._process_of: dict[Hashable, int] = {}
        self._same_pid: dict[int | str, int] = {}
        self._machines: Interner[Hashable] = Interner()
        self._devices: dict[int, Device] = {}
        self._has_calls = False

    def process(self, key: Hashable, pid: int | str, command: str = "") -> int:
        """The number of a process; the key tells it from those with its pid on other machines."""
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
        return ordinal + self._machines[machine] * _DEVICES_A_MACHINE

    def describe(self, device: Device) -> None:
        """Say what a GPU is."""
        self._devices.setdefault(device.ordinal, device)

    def name_thread(self, process: int, thread: int, name: str) -> None:
        """Give a thread its name."""
        self._labels.threads[self._processes[process], thread] = name

    def kinds(self, domain: Int64Array) -> Int64Array:
        """What records of domains such as `HIP_RUNTIME_API_EXT`, as codes, are; same shape."""
        words = [word.casefold() for word in self.builder.categories]
        markers = np.array(["marker" in word for word in words], dtype=bool)[domain]
        driver = np.array(["hsa" in word for word in words], dtype=bool)[domain]
        calls = np.where(driver, EventKind.DRIVER, EventKind.RUNTIME)
        return np.where(markers, EventKind.USER_ANNOTATION, calls)

    def add(self, what: EventKind, columns: Mapping[str, Int64Array]) -> None:
        """Add dispatches (`KERNEL`), copies (`MEMCPY`), or else calls, ranges and marks.

        Columns: `start`, `end` in ns; `process` of this object; `name` and `domain`, codes of the
        builder; `correlation`, if it is known. Of calls `thread`; of others `device`, and `lane`:
        the queue of a dispatch, the stream of a copy; `bytes` and `GEOMETRY`, if they are known.
        """
        kind: Int64Array | int = what
        if what in (EventKind.KERNEL, EventKind.MEMCPY):
            word = "queue" if what == EventKind.KERNEL else "stream"
            threads = of_rows(
                lambda process, gpu, lane: self._thread(process, f"GPU {gpu} {word} {lane}"),
                *(columns[key] for key in ("process", "device", "lane")),
            )
            told = {"stream": columns["lane"]}
        else:
            kind = self.kinds(columns["domain"])
            marker = kind == EventKind.USER_ANNOTATION
            self._has_calls |= not marker.all()
            kind = np.where(marker & (columns["start"] == columns["end"]), EventKind.INSTANT, kind)
            threads, told = of_rows(self._thread, columns["process"], columns["thread"]), {}
        told |= {of: columns[of] for of in ("correlation", "device", "bytes") if of in columns}
        if GEOMETRY[0] in columns:
            told["grid"] = _blocks([columns[of] for of in GEOMETRY])
        numbers = {of: np.where(ids < MOST_ID, ids, NONE) for of, ids in told.items()}
        self.builder.add_rows(columns, columns["name"], kind, threads, columns["domain"], numbers)

    def _thread(self, process: int, lane: int | str) -> int:
        return self.builder.threads[self._processes[process], lane]

    def device_of_copy(
        self, name: Int64Array, source: Int64Array, target: Int64Array
    ) -> Int64Array:
        """The GPU (`NONE`: a CPU) of copies: the target if their name says so, or the source."""
        to_device = np.array([known.endswith("TO_DEVICE") for known in self.builder.names])[name]
        first, other = np.where(to_device, target, source), np.where(to_device, source, target)
        return np.where(first == NONE, other, first)

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
    return np.where((geometry[0] > 0) & (geometry[3] > 0), blocks, NONE)
