"""Identities in an Nsight Systems export: processes, threads, devices, and names of calls.

A global id packs, from the top: 8 bits of hardware, 8 of a virtual machine, 24 of the process and
24 of the thread. The first two tell several machines in one report apart.
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

#: Devices of the second machine in a report count from here, those of the third from twice this.
DEVICES_A_MACHINE = 100
UNKNOWN = "?"
#: The table of texts, and its column.
STRINGS = ("StringIds", "value")
#: The table of NVTX events.
NVTX = "NVTX_EVENTS"


class _DeviceColumns(NamedTuple):
    """The columns in which a table describes GPUs; of several names the first that has values."""

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
#: Smaller values are in kHz and kB/s, as the older table has them.
_LEAST_HZ = 10**8
_LEAST_BYTES_PER_SECOND = 10**10


class Identities:
    """Gives the events of an export their threads; says what processes and devices are called."""

    def __init__(self, database: Tables, builder: TraceBuilder) -> None:
        self._database = database
        self._threads = builder.threads
        self._machines: Interner[int] = Interner()
        self._machine_of_pid: dict[int, int] = {}
        self._processes: dict[int, int | str] = {}
        self._thread_ids: dict[int, tuple[int | str, int | str]] = {}

    def cpu_threads(self, global_tid: Int64Array) -> Int64Array:
        """Return the entry of the builder's `threads` for each global thread id, (m,)."""
        return map_distinct_rows(
            lambda tid: self._threads[self._thread(tid)], global_tid
        )

    def streams(self, chunk: Columns) -> tuple[Int64Array, Int64Array]:
        """Return the entry of `threads`, a process's stream, and the device of GPU events, (m,)."""
        device = map_distinct_rows(self._device, chunk["globalPid"], chunk["deviceId"])
        stream = map_distinct_rows(
            self._stream, chunk["globalPid"], device, chunk["streamId"]
        )
        return stream, device

    def _thread(self, global_tid: int) -> tuple[int | str, int | str]:
        if global_tid == MISSING:
            return UNKNOWN, UNKNOWN
        process = self._process(global_tid >> PROCESS_SHIFT)
        thread = global_tid & _LOW_BITS
        return self._thread_ids.setdefault(global_tid, (process, thread))

    def _process(self, number: int) -> int | str:
        """Return a process id; of one that two machines both have, the second with its machine."""
        if number not in self._processes:
            pid = number & _LOW_BITS
            machine = number >> (_MACHINE_SHIFT - PROCESS_SHIFT)
            machine_number = self._machines[machine] + 1
            if self._machine_of_pid.setdefault(pid, machine) == machine:
                self._processes[number] = pid
            else:
                self._processes[number] = f"{pid} on machine {machine_number}"
        return self._processes[number]

    def _stream(self, global_pid: int, device: int, stream: int) -> int:
        process: int | str = UNKNOWN
        if global_pid != MISSING:
            process = self._process(global_pid >> PROCESS_SHIFT)
        elif len(self._processes) == 1:
            process = next(iter(self._processes.values()))
        return self._threads[process, f"GPU {device} stream {stream}"]

    def _device(self, global_pid: int, ordinal: int) -> int:
        if global_pid == MISSING or ordinal < 0:
            return max(ordinal, -1)
        machine = self._machines[global_pid >> _MACHINE_SHIFT]
        return ordinal + machine * DEVICES_A_MACHINE

    def labels(self) -> Labels:
        """Return the names that the export has for the processes and threads of events."""
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
        """Return the GPUs that the export describes, by number."""
        device_of_number: dict[int, Device] = {}
        for table in _DEVICE_TABLES:
            for device in self._devices_of_table(table):
                device_of_number.setdefault(device.ordinal, device)
        return tuple(device_of_number[number] for number in sorted(device_of_number))

    def _devices_of_table(self, table: str) -> list[Device]:
        columns = _DEVICE_TABLES[table]
        values = [self._first_with_values(table, names) for names in columns]
        names = self._database.words(table, "name")
        devices = []
        for name, *row in zip(names, *values, strict=True):
            machine, *known_values = row
            known_ids = [max(value, 0) for value in known_values]
            ordinal, major, minor, units, warp, memory, clock, bandwidth = known_ids
            machine_index = self._machines.get(machine >> _MACHINE_SHIFT, 0)
            devices.append(
                Device(
                    ordinal=ordinal + machine_index * DEVICES_A_MACHINE,
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
        """Return the first of some columns that has a value in any row."""
        columns: list[list[int]] = [
            column.tolist() for column in self._database.whole(table, *names).values()
        ]
        for column in columns:
            if any(value != MISSING for value in column):
                return column
        return columns[0]


def _whole_units(value: int, least: int) -> int:
    """Return a value in Hz or bytes per second that may have been recorded in thousands of it."""
    if 0 < value < least:
        return value * 1000
    return value


# Names.

_API_VERSION = re.compile(r"(?:_pt[sd][sz])?(?:_v[0-9]{4,6})?(?:_pt[sd][sz])?\Z")
#: `copyKind` → how the newer exports label it (`ENUM_CUDA_MEMCPY_OPER`), in every version.
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
    """Return the name that `nsys stats` gives a copy; of an unknown kind, by the export's label."""
    if 0 <= copy_kind < len(_COPY_KINDS):
        return f"[CUDA memcpy {_COPY_KINDS[copy_kind]}]"
    return f"[CUDA memcpy {label or f'kind {copy_kind}'}]"


def api_name(name: str) -> str:
    """Return a CUDA call without the version of its interface.

    `cudaLaunchKernel_v7000` becomes `cudaLaunchKernel`; `_v2` belongs to a name.
    """
    return _API_VERSION.sub("", name, count=1) or name
