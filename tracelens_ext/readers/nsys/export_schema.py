"""What is where in an Nsight Systems export: processes, threads, devices, names, and NVTX.

A global id packs, from the top: 8 bits of hardware, 8 of a virtual machine, 24 of the process and
24 of the thread. The first two tell several machines in one report apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

import msgspec
import numpy as np

from tracelens_ext.readers.builder import Interner, Labels, TraceBuilder, looked_up, of_rows
from tracelens_ext.readers.tables import MISSING, Equal, Tables
from tracelens_ext.trace import NONE, Device, EventKind, Int64Array

Columns = dict[str, Int64Array]
Names = dict[tuple[int, ...], bytes]


PROCESS_SHIFT = 24
_MACHINE_SHIFT = 48
_LOW_BITS = (1 << 24) - 1

#: Devices of the second machine in a report count from here, those of the third from twice this.
DEVICES_A_MACHINE = 100
UNKNOWN = "?"
#: Where GPUs are described: the columns of their machine, number, compute capability,
#: multiprocessors, threads of a warp, memory, clock and bandwidth; `a|b`: whichever is there.
_DEVICES = {
    "TARGET_INFO_GPU": "vmId id|deviceId computeMajor computeMinor smCount threadsPerWarp"
    " totalMemory clockRate memoryBandwidth",
    "TARGET_INFO_CUDA_GPU": "vmId deviceId|id computeCapabilityMajor computeCapabilityMinor"
    " numMultiprocessors numThreadsPerWarp globalMemorySize coreClockRate globalMemoryBandwidth",
}

NVTX = "NVTX_EVENTS"
STRINGS = ("StringIds", "value")
#: Numbers of `ENUM_NSYS_EVENT_TYPE`: the same in all versions of the export.
_CATEGORY = 33
_MARK = 34
_PUSH_POP = 59
_START_END = 60
_DOMAIN = 75
_NAMING = (_CATEGORY, 39, _DOMAIN, 76, 97, 98, 99)  # of threads, devices, contexts, streams too

DOMAIN = "NVTX domain"
CATEGORY = "NVTX category"
_NO_TEXT = b"(no text)"
#: The trace's own word for an event's kind.
_STYLES = {_MARK: "nvtx_mark", _PUSH_POP: "nvtx_push_pop", _START_END: "nvtx_start_end"}
_COLUMNS = ("start", "end", "eventType", "globalTid", "domainId", "category")


class Places:
    """Gives the events of an export their threads; says what processes and devices are called.

    It adds the NVTX events too; `open_ranges` of them have no end, so get no length.
    """

    def __init__(self, database: Tables, builder: TraceBuilder) -> None:
        self._database = database
        self._builder = builder
        self._threads = builder.threads
        self.open_ranges = 0
        self._machines: Interner[int] = Interner()
        self._machine_of_pid: dict[int, int] = {}
        self._processes: dict[int, int | str] = {}
        self._thread_ids: dict[int, tuple[int | str, int | str]] = {}

    def host_threads(self, global_tid: Int64Array) -> Int64Array:
        """The entry of `threads` for each global thread id, shape (m,)."""
        return of_rows(lambda tid: self._threads[self._thread(tid)], global_tid)

    def streams(self, chunk: Columns) -> tuple[Int64Array, Int64Array]:
        """The entry of `threads`, a process's stream, and the device of each GPU event, (m,)."""
        device = of_rows(self._device, chunk["globalPid"], chunk["deviceId"])
        return of_rows(self._stream, chunk["globalPid"], device, chunk["streamId"]), device

    def _thread(self, global_tid: int) -> tuple[int | str, int | str]:
        if global_tid == MISSING:
            return UNKNOWN, UNKNOWN
        process = self._process(global_tid >> PROCESS_SHIFT)
        return self._thread_ids.setdefault(global_tid, (process, global_tid & _LOW_BITS))

    def _process(self, number: int) -> int | str:
        """A process id; of one that two machines both have, the second time with the machine."""
        if number not in self._processes:
            pid = number & _LOW_BITS
            machine = number >> (_MACHINE_SHIFT - PROCESS_SHIFT)
            index = self._machines[machine]
            is_first = self._machine_of_pid.setdefault(pid, machine) == machine
            self._processes[number] = pid if is_first else f"{pid} on machine {index + 1}"
        return self._processes[number]

    def _stream(self, global_pid: int, device: int, stream: int) -> int:
        process: int | str = UNKNOWN
        if global_pid != MISSING:
            process = self._process(global_pid >> PROCESS_SHIFT)
        elif len(self._processes) == 1:
            (process,) = self._processes.values()
        return self._threads[process, f"GPU {device} stream {stream}"]

    def _device(self, global_pid: int, ordinal: int) -> int:
        if global_pid == MISSING or ordinal < 0:
            return max(ordinal, -1)
        return ordinal + self._machines[global_pid >> _MACHINE_SHIFT] * DEVICES_A_MACHINE

    def labels(self) -> Labels:
        """The names that the export has for the processes and threads of events."""
        labels = Labels()
        names = self._database.words("PROCESSES", "name")
        for global_pid, name in zip(self._first("PROCESSES", "globalPid"), names, strict=True):
            if name and (process := self._processes.get(global_pid >> PROCESS_SHIFT)) is not None:
                labels.processes.setdefault(process, name)
        for chunk in self._database.chunks("ThreadNames", ("globalTid", "nameId", "priority")):
            order = np.argsort(-chunk["priority"], kind="stable")
            order = order[np.isin(chunk["globalTid"][order], list(self._thread_ids))]
            texts = self._database.look_up(*STRINGS, chunk["nameId"][order])
            for global_tid, text in zip(chunk["globalTid"][order].tolist(), texts, strict=True):
                if text:
                    labels.threads.setdefault(self._thread_ids[global_tid], text)
        return labels

    def devices(self) -> tuple[Device, ...]:
        """The GPUs that the export describes."""
        found: dict[int, Device] = {}
        for table, columns in _DEVICES.items():
            names = self._database.words(table, "name")
            told = [self._first(table, *choice.split("|")) for choice in columns.split()]
            for name, machine, ordinal, major, minor, *sizes in zip(names, *told, strict=True):
                index = self._machines.get(machine >> _MACHINE_SHIFT, 0)
                number = max(ordinal, 0) + index * DEVICES_A_MACHINE
                capability = 10 * max(major, 0) + max(minor, 0)
                units, warp, memory, clock, bandwidth = (max(size, 0) for size in sizes)
                # The old table counts clocks in kHz, and bandwidth in kB/s.
                rates = _scaled(clock, 10**8), _scaled(bandwidth, 10**10), capability
                found.setdefault(number, Device(number, name, units, warp, memory, *rates))
        return tuple(found[number] for number in sorted(found))

    def _first(self, table: str, *choice: str) -> list[int]:
        """The first of some columns in which there is anything."""
        read: list[list[int]] = [c.tolist() for c in self._database.whole(table, *choice).values()]
        return next((ids for ids in read if any(n != MISSING for n in ids)), read[0])

    # NVTX events: a range is a `USER_ANNOTATION` called by its text; one that PyTorch's `emit_nvtx`
    # wrote is the `CPU_OP` that it tells of. Domain and category are arguments, where they are not
    # the default.

    def add_nvtx(self) -> None:
        """Add all NVTX events."""
        words = self._builder.categories
        domains = self._named(_DOMAIN, "domainId")
        categories = self._named(_CATEGORY, "domainId", "category")
        for chunk, texts in self._chunks(*_COLUMNS):
            naming = int(np.isin(chunk["eventType"], _NAMING).sum())
            rows = np.flatnonzero(np.isin(chunk["eventType"], list(_STYLES)))
            others = len(texts) - len(rows) - naming
            self._builder.metadata_events += naming
            self._builder.dropped["an NVTX event that is no range and no mark"] += others
            if not len(rows):
                continue
            chunk = {name: column[rows] for name, column in chunk.items()}
            distinct: Interner[bytes] = Interner()
            codes = distinct.codes((texts[row] for row in rows.tolist()), len(rows))
            domain = chunk["globalTid"] >> PROCESS_SHIFT, chunk["domainId"]
            groups = {
                DOMAIN: self._group(domains, "domain", *domain),
                CATEGORY: self._group(categories, "category", *domain, chunk["category"]),
            }
            about = np.array([self._about(text) for text in distinct], dtype=np.int64)
            name, kind, call, sequence, dims = about.T[:, codes]
            style = chunk["eventType"]
            is_open = (style != _MARK) & (chunk["end"] == MISSING)
            self.open_ranges += int(is_open.sum())
            category = looked_up(style, lambda used: [words[_STYLES[s]] for s in used.tolist()])
            chunk["end"] = np.where(is_open | (style == _MARK), chunk["start"], chunk["end"])
            kind = np.where(style == _MARK, EventKind.INSTANT, kind)
            thread = self.host_threads(chunk["globalTid"])
            numbers = {"External id": call, "Sequence number": sequence}
            texts_of = {"Input Dims": dims} | groups
            self._builder.add_rows(chunk, name, kind, thread, category, numbers, texts_of)

    def _chunks(
        self, *columns: str, where: Equal | None = None
    ) -> Iterator[tuple[Columns, list[bytes]]]:
        """Events, and the text of each: its own, else the registered one."""
        own = self._database.texts(NVTX, "text", where)
        for chunk in self._database.chunks(NVTX, (*columns, "textId"), where):
            texts = list(islice(own, len(chunk["textId"])))
            lacking = [at for at, text in enumerate(texts) if not text]
            found = self._database.look_up(*STRINGS, chunk["textId"][lacking]) if lacking else []
            for at, text in zip(lacking, found, strict=True):
                texts[at] = text.encode() if text else None
            yield chunk, [text or _NO_TEXT for text in texts]

    def _named(self, event_type: int, *columns: str) -> Names:
        """What a process calls its domains or categories: (process, id …) → JSON text."""
        names: Names = {}
        if "eventType" in self._database.tables.get(NVTX, ()):
            where = Equal("eventType", event_type)
            for chunk, texts in self._chunks("globalTid", *columns, where=where):
                process = (chunk["globalTid"] >> PROCESS_SHIFT).tolist()
                keys = zip(process, *(chunk[name].tolist() for name in columns), strict=True)
                for key, text in zip(keys, texts, strict=True):
                    names[key] = msgspec.json.encode(text.decode("utf-8", "replace"))
        return names

    def _group(self, names: Names, what: str, *key: Int64Array) -> Int64Array:
        """The text of each event's domain or category, `NONE` of the default one, (m,)."""

        def code(*ids: int) -> int:
            if ids[-1] in (MISSING, 0):
                return NONE
            return self._builder.texts[names.get(ids) or msgspec.json.encode(f"{what} {ids[-1]}")]

        return of_rows(code, *key)

    def _about(self, text: bytes) -> tuple[int, ...]:
        """Codes and numbers of what a text says: name, kind, call, sequence, shapes; or `NONE`."""
        kind = EventKind.USER_ANNOTATION
        call = NONE
        sequence = NONE
        dims = NONE
        if operation := emitted_op(text):
            text, sequence, call, sizes = operation
            kind = EventKind.CPU_OP
            dims = self._builder.texts[sizes] if sizes else NONE
        return self._builder.names[text.decode("utf-8", "replace")], kind, call, sequence, dims


def _scaled(value: int, least: int) -> int:
    """A value in Hz or bytes a second, which may have been told in thousands of it."""
    return value * 1000 if 0 < value < least else value


_API_VERSION = re.compile(r"(?:_pt[sd][sz])?(?:_v[0-9]{4,6})?(?:_pt[sd][sz])?\Z")
_EMITTED = re.compile(
    rb", (?:seq = ([0-9]{1,18})(?:, op_id = ([0-9]{1,18}))?|op_id = ([0-9]{1,18}))"
    rb"(?:, sizes = (\[[0-9\[\], -]*\]))?(?:, input_op_ids = .*)?\Z",
    re.DOTALL,
)

#: `copyKind` → how the newer exports label it (`ENUM_CUDA_MEMCPY_OPER`), whatever the version.
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
    """A copy as `nsys stats` names it; of an unknown kind, by the label of the export."""
    known = dict(enumerate(_COPY_KINDS)).get(copy_kind)
    return f"[CUDA memcpy {known or label or f'kind {copy_kind}'}]"


def api_name(name: str) -> str:
    """A CUDA call without its interface's version: `cudaLaunchKernel` of `…_v7000`; not `…_v2`."""
    return _API_VERSION.sub("", name, count=1) or name


def emitted_op(text: bytes) -> tuple[bytes, int, int, bytes] | None:
    """The operation that a range of `torch.autograd.profiler.emit_nvtx` is about; None of others.

    `aten::mm, seq = 12, op_id = 345, sizes = [[8, 4], [4, 2]]`: its name, its sequence number,
    the number of the call (an outer one is lower), `NONE` without; shapes as JSON, or empty.
    """
    if (found := _EMITTED.search(text)) is None or not found.start():
        return None
    sequence, op_id, only_id, sizes = found.groups()
    return text[: found.start()], int(sequence or NONE), int(op_id or only_id or NONE), sizes or b""
