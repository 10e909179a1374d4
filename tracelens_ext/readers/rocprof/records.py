"""Records of rocprofv3 as events, whatever the form of the file: its words, and what they mean.

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
_SUFFIX = re.compile(r"(?:\.kd)?(?: \[clone \.kd\])?(?: \(\.kd\))?\Z")
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
    return _SUFFIX.sub("", text.strip().strip('"').strip()) or NO_NAME


class RocprofRecords:
    """Collects records, with codes of its `builder`, and makes the trace.

    Attributes: `notes`, sentences; `processes`, the label of each; `thread_names` by that and id.
    """

    def __init__(self) -> None:
        self.builder = TraceBuilder()
        self.notes: list[str] = []
        self.processes: list[int | str] = []
        self.thread_names: dict[tuple[int | str, int | str], str] = {}
        self._process_names: dict[int | str, str] = {}
        self._process_of: dict[Hashable, int] = {}
        self._same_pid: Counter[int | str] = Counter()
        self._machines: Interner[Hashable] = Interner()
        self._devices: dict[int, Device] = {}
        self._has_calls = False

    def process(self, key: Hashable, pid: int | str, command: str = "") -> int:
        """The number of a process; the key tells it from those with its pid on other machines."""
        if key not in self._process_of:
            self._same_pid[pid] += 1
            label = f"{pid} ({same})" if (same := self._same_pid[pid]) > 1 else pid
            self._process_of[key] = len(self.processes)
            self.processes.append(label)
            if command:
                self._process_names[label] = command
        return self._process_of[key]

    def device(self, machine: Hashable, ordinal: int, agent: Agent) -> int:
        """The number of a GPU that has this one on its machine, and is this agent."""
        number = ordinal + self._machines[machine] * _DEVICES_A_MACHINE
        self._devices.setdefault(number, agent.device(number))
        return number

    def kinds(self, domain: Int64Array) -> Int64Array:
        """What records of domains such as `HIP_RUNTIME_API_EXT`, as codes, are; same shape."""
        found = np.full(len(self.builder.categories), EventKind.RUNTIME, dtype=np.int64)
        for code, word in enumerate(map(str.casefold, self.builder.categories)):
            if "marker" in word or "hsa" in word:
                found[code] = EventKind.USER_ANNOTATION if "marker" in word else EventKind.DRIVER
        return found[domain]

    def add(self, what: EventKind, columns: Mapping[str, Int64Array]) -> None:
        """Add dispatches (`KERNEL`), copies (`MEMCPY`), or else calls, ranges and marks.

        Columns: `start`, `end` in ns; `process` of this object; `name` and `domain`, codes of the
        builder; `correlation`, if it is known. Of calls `thread`; of dispatches `device` and
        `lane`, their queue; of copies `source` and `target`, devices, and `lane`, their stream;
        `bytes` and `GEOMETRY`, if they are known. Dispatches need no domain.
        """
        kind: Int64Array | int = what
        domain = columns["domain"] if "domain" in columns else self.builder.categories[DISPATCH]
        told = dict(columns)
        if what == EventKind.RUNTIME:
            kind = self.kinds(columns["domain"])
            marker = kind == EventKind.USER_ANNOTATION
            self._has_calls |= not marker.all()
            kind = np.where(marker & (columns["start"] == columns["end"]), EventKind.INSTANT, kind)
            threads = of_rows(self._thread, columns["process"], columns["thread"])
        else:
            word = "queue"
            if what == EventKind.MEMCPY:
                word, told["device"] = "stream", self._device_of_copy(columns)
            threads = of_rows(
                lambda process, gpu, lane: self._thread(process, f"GPU {gpu} {word} {lane}"),
                *(told[key] for key in ("process", "device", "lane")),
            )
            told["stream"] = columns["lane"]
        if GEOMETRY[0] in columns:
            told["grid"] = _blocks([columns[of] for of in GEOMETRY])
        arguments = ("stream", "correlation", "device", "bytes", "grid")
        numbers = {
            of: np.where(told[of] < MOST_ID, told[of], NONE) for of in arguments if of in told
        }
        self.builder.add_rows(columns, columns["name"], kind, threads, domain, numbers)

    def _thread(self, process: int, lane: int | str) -> int:
        return self.builder.threads[self.processes[process], lane]

    def _device_of_copy(self, columns: Mapping[str, Int64Array]) -> Int64Array:
        """The GPU (`NONE`: a CPU) of copies: the target if their name says so, or the source."""
        source = columns["source"]
        target = columns["target"]
        named = np.array([known.endswith("TO_DEVICE") for known in self.builder.names])
        to_device = named[columns["name"]]
        first = np.where(to_device, target, source)
        other = np.where(to_device, source, target)
        return np.where(first == NONE, other, first)

    def drop(self, reason: str, count: int) -> None:
        """Count records that are left out."""
        if count:
            self.builder.dropped[reason] += count

    def finish(self, path: str, format_name: str, bytes_read: int) -> Trace:
        """The trace."""
        if not self._has_calls:
            told = "No calls were recorded, so no GPU event has a launch: record with --hip-trace."
            self.notes.append(told)
        trace = self.builder.finish(
            path=path,
            format_name=format_name,
            bytes_read=bytes_read,
            devices=tuple(device for _, device in sorted(self._devices.items())),
            labels=Labels(self._process_names, threads=self.thread_names),
            notes=tuple(self.notes),
        )
        if not len(trace):
            left_out = trace.provenance.dropped_text
            problem = "holds no calls, markers, kernels or copies"
            problem += f" (left out: {left_out})" if left_out else ""
            raise TraceFormatError(path, problem, f"record with: {RECORD}")
        conventions = Conventions(gpu_by_process=True, annotations_are_operations=True)
        return replace(trace, conventions=conventions)


def _blocks(geometry: list[Int64Array]) -> Int64Array:
    """How many blocks dispatches have, `NONE` where the first dimension is not told, (n,)."""
    items = np.clip(geometry[:3], 1, 2**40)
    block = np.clip(geometry[3:], 1, 2**20)
    blocks = np.minimum(-(-items // block), 2**20).prod(axis=0)  # no more are needed to fill a GPU
    return np.where((geometry[0] > 0) & (geometry[3] > 0), blocks, NONE)
