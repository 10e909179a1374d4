"""Identifies processes, threads, streams and GPUs in an Nsight Systems export, and names calls.

A global id is a 64-bit number with four parts, from the highest bits down: 8 bits for the hardware,
8 for a virtual machine, 24 for the process, 24 for the thread. The first two parts together
identify the machine, as a report may contain several.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.readers.builder import (
    Interner,
    Labels,
    TraceBuilder,
    map_distinct_rows,
)
from tracelens_ext.readers.tables import MISSING, Tables
from tracelens_ext.trace import Device, Int64Array

Columns = dict[str, Int64Array]

PROCESS_SHIFT = 24
_MACHINE_SHIFT = 48
_LOW_BITS = (1 << 24) - 1

#: The GPUs of the first machine in a report are numbered from 0, of the second from 100, of the
#: third from 200.
DEVICES_PER_MACHINE = 100
UNKNOWN = "?"
#: The table of facts about the export, by its current and its former name.
META_DATA = ("META_DATA_EXPORT", "EXPORT_META_DATA")
#: The table of texts, and the column with the text.
STRINGS = ("StringIds", "value")
#: The table of NVTX events.
NVTX = "NVTX_EVENTS"


class _DeviceColumns(NamedTuple):
    """The columns in which a table describes GPUs.

    If a column has several names, the first one that has values in the table is read.
    """

    machine: tuple[str, ...]
    ordinal: tuple[str, ...]
    capability_major: tuple[str, ...]
    capability_minor: tuple[str, ...]
    multiprocessors: tuple[str, ...]
    warp: tuple[str, ...]
    memory: tuple[str, ...]
    clock: tuple[str, ...]
    bandwidth: tuple[str, ...]


_DEVICE_TABLES: Final = {
    "TARGET_INFO_GPU": _DeviceColumns(
        machine=("vmId",),
        ordinal=("id", "deviceId"),
        capability_major=("computeMajor",),
        capability_minor=("computeMinor",),
        multiprocessors=("smCount",),
        warp=("threadsPerWarp",),
        memory=("totalMemory",),
        clock=("clockRate",),
        bandwidth=("memoryBandwidth",),
    ),
    "TARGET_INFO_CUDA_GPU": _DeviceColumns(
        machine=("vmId",),
        ordinal=("deviceId", "id"),
        capability_major=("computeCapabilityMajor",),
        capability_minor=("computeCapabilityMinor",),
        multiprocessors=("numMultiprocessors",),
        warp=("numThreadsPerWarp",),
        memory=("globalMemorySize",),
        clock=("coreClockRate",),
        bandwidth=("globalMemoryBandwidth",),
    ),
}
#: Smaller values are in kHz and kB/s, the units of the older table.
_LEAST_HZ = 10**8
_LEAST_BYTES_PER_SECOND = 10**10


class Identities:
    """Finds the threads and devices of events, and the names of processes, threads and devices."""

    def __init__(self, database: Tables, builder: TraceBuilder) -> None:
        self._database = database
        self._threads = builder.threads
        self._machines: Interner[int] = Interner()
        self._machine_of_pid: dict[int, int] = {}
        self._processes: dict[int, int | str] = {}
        self._thread_ids: dict[int, tuple[int | str, int | str]] = {}

    def cpu_threads(self, global_tid: Int64Array) -> Int64Array:
        """Return the code of the thread of each event, (m,), given its global thread id."""
        return map_distinct_rows(
            lambda tid: self._threads[self._thread(tid)], global_tid
        )

    def streams(self, chunk: Columns) -> StreamsAndDevices:
        """Return where m GPU events ran."""
        device = map_distinct_rows(self._device, chunk["globalPid"], chunk["deviceId"])
        thread = map_distinct_rows(
            self._stream, chunk["globalPid"], device, chunk["streamId"]
        )
        return StreamsAndDevices(thread=thread, device=device)

    def _thread(self, global_tid: int) -> tuple[int | str, int | str]:
        if global_tid == MISSING:
            return UNKNOWN, UNKNOWN
        process = self._process(global_tid >> PROCESS_SHIFT)
        thread = global_tid & _LOW_BITS
        return self._thread_ids.setdefault(global_tid, (process, thread))

    def _process(self, global_process: int) -> int | str:
        """Return the label of a process, given its global id without the bits of the thread.

        The label is the process id. If two machines have a process with this id, the label of the
        second one also names its machine.
        """
        if global_process not in self._processes:
            pid = global_process & _LOW_BITS
            machine = global_process >> (_MACHINE_SHIFT - PROCESS_SHIFT)
            machine_number = self._machines[machine] + 1
            if self._machine_of_pid.setdefault(pid, machine) == machine:
                self._processes[global_process] = pid
            else:
                self._processes[global_process] = f"{pid} on machine {machine_number}"
        return self._processes[global_process]

    def _stream(self, global_pid: int, device: int, stream: int) -> int:
        """Return the code of a stream of a process as a thread."""
        process: int | str = UNKNOWN
        if global_pid != MISSING:
            process = self._process(global_pid >> PROCESS_SHIFT)
        elif len(self._processes) == 1:
            process = next(iter(self._processes.values()))
        return self._threads[process, f"GPU {device} stream {stream}"]

    def _device(self, global_pid: int, ordinal: int) -> int:
        """Return the number of a GPU in the trace, given its number on the machine of a process."""
        if global_pid == MISSING or ordinal < 0:
            return max(ordinal, -1)
        machine = self._machines[global_pid >> _MACHINE_SHIFT]
        return ordinal + machine * DEVICES_PER_MACHINE

    def labels(self) -> Labels:
        """Return the names of those processes and threads that have events.

        Of several names of a thread, the one with the highest priority is taken.
        """
        labels = Labels()
        global_pids = self._first_with_values("PROCESSES", ("globalPid",))
        process_names = self._database.words("PROCESSES", "name")
        for global_pid, name in zip(global_pids, process_names, strict=True):
            process = self._processes.get(global_pid >> PROCESS_SHIFT)
            if name and process is not None:
                labels.processes.setdefault(process, name)
        for chunk in self._database.chunks(
            "ThreadNames", ("globalTid", "nameId", "priority")
        ):
            highest_first = np.argsort(-chunk["priority"], kind="stable")
            is_used = np.isin(chunk["globalTid"][highest_first], list(self._thread_ids))
            rows = highest_first[is_used]
            names = self._database.look_up(*STRINGS, chunk["nameId"][rows])
            for global_tid, thread_name in zip(
                chunk["globalTid"][rows].tolist(), names, strict=True
            ):
                if thread_name:
                    labels.threads.setdefault(self._thread_ids[global_tid], thread_name)
        return labels

    def devices(self) -> tuple[Device, ...]:
        """Return the GPUs that the export describes, sorted by number."""
        device_of_number: dict[int, Device] = {}
        for table in _DEVICE_TABLES:
            for device in self._devices_of_table(table):
                device_of_number.setdefault(device.ordinal, device)
        return tuple(device_of_number[number] for number in sorted(device_of_number))

    def _devices_of_table(self, table: str) -> list[Device]:
        """Return the GPUs that a table describes; values that it does not have are 0."""
        columns = _DEVICE_TABLES[table]
        values = [self._first_with_values(table, names) for names in columns]
        names = self._database.words(table, "name")
        devices = []
        for name, machine, *row in zip(names, *values, strict=True):
            known_values = [max(value, 0) for value in row]
            ordinal, major, minor, units, warp, memory, clock, bandwidth = known_values
            machine_index = self._machines.get(machine >> _MACHINE_SHIFT, 0)
            devices.append(
                Device(
                    ordinal=ordinal + machine_index * DEVICES_PER_MACHINE,
                    name=name,
                    units=units,
                    warp=warp,
                    memory_bytes=memory,
                    clock_hz=_whole_units(clock, _LEAST_HZ),
                    bandwidth=_whole_units(bandwidth, _LEAST_BYTES_PER_SECOND),
                    capability=10 * major + minor,
                )
            )
        return devices

    def _first_with_values(self, table: str, names: tuple[str, ...]) -> list[int]:
        """Return the first of several columns that has a value in any row, else the first."""
        columns: list[list[int]] = [
            column.tolist() for column in self._database.whole(table, *names).values()
        ]
        for column in columns:
            if any(value != MISSING for value in column):
                return column
        return columns[0]


class StreamsAndDevices(NamedTuple):
    """Where m GPU events ran."""

    thread: Int64Array  #: code of the stream of the process as a thread, (m,)
    device: Int64Array  #: number of the GPU, (m,)


def _whole_units(value: int, least: int) -> int:
    """Convert a value from kHz or kB/s to Hz or bytes/s, unless it is at least `least`."""
    if 0 < value < least:
        return value * 1000
    return value


# Names.

#: Endings of the names of CUDA calls that say which version of the interface was called.
_API_VERSION = re.compile(r"(?:_pt[sd][sz])?(?:_v[0-9]{4,6})?(?:_pt[sd][sz])?\Z")
#: Value of `copyKind` → its label in newer exports (`ENUM_CUDA_MEMCPY_OPER`).
_COPY_KINDS = (
    "Unknown",
    "Host-to-Device",
    "Device-to-Host",
    "Host-to-Array",
    "Array-to-Host",
    "Array-to-Array",
    "Array-to-Device",
    "Device-to-Array",
    "Device-to-Device",
    "Host-to-Host",
    "Peer-to-Peer",
    "Unified Host-to-Device",
    "Unified Device-to-Host",
    "Unified Device-to-Device",
)
MEMSET_NAME = "[CUDA memset]"


def memcpy_name(copy_kind: int, label: str | None = None) -> str:
    """Return the name that `nsys stats` gives to copies of a kind.

    Args:
        copy_kind: the `copyKind` of the copy.
        label: the label of this kind in the export, for kinds that are unknown here.
    """
    if 0 <= copy_kind < len(_COPY_KINDS):
        return f"[CUDA memcpy {_COPY_KINDS[copy_kind]}]"
    return f"[CUDA memcpy {label or f'kind {copy_kind}'}]"


def api_name(name: str) -> str:
    """Return the name of a CUDA call without the version of the interface.

    Example: `cudaLaunchKernel_v7000` → `cudaLaunchKernel`. An ending such as `_v2` is not a version
    of the interface but a part of the name.
    """
    return _API_VERSION.sub("", name, count=1) or name
