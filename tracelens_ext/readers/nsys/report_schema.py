"""Describes the messages in an Nsight Systems report, and the tables of an export they belong to.

NVIDIA does not document the format. It was learned by comparing reports of 28 versions (2020.3 to
2026.2) with their exports. Fields that are listed as ignored are understood, but no analysis needs
them. Fields that are not listed are counted, and the notes of a trace report them. The graph node
of a kernel (`graphNodeId`) is not listed, because no known report has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np

from tracelens_ext.readers.nsys.protobuf import Message, MessagePlan
from tracelens_ext.trace import BoolArray, Int64Array


class Kind(IntEnum):
    """Known kinds of events, numbered as in the table `ENUM_NSYS_EVENT_TYPE` of exports.

    Kinds that none of `TABLES` selects are not needed by any analysis.
    """

    PROCESS = 27
    MAPPED_FILE = 28
    CPU_SAMPLE = 31
    NVTX_MARK = 34
    NVTX_THREAD_NAME = 39
    SCHEDULING = 41
    PROCESS_EVENT = 47
    CALL = 48
    DIAGNOSTIC = 49
    NVTX_PUSH_POP = 59
    NVTX_START_END = 60
    NVTX_DOMAIN = 75
    NVTX_DOMAIN_END = 76
    VERTICAL_SYNC = 78
    KERNEL = 79
    MEMORY = 80
    SYNCHRONIZATION = 106
    GPU_MEMORY_IN_USE = 117
    CUDA_EVENT = 127
    GRAPH_LAUNCH = 130
    GRAPH_INSTANTIATED = 131
    GRAPH_CREATED = 132


NVTX_KINDS: Final = (
    Kind.NVTX_MARK,
    Kind.NVTX_THREAD_NAME,
    Kind.NVTX_PUSH_POP,
    Kind.NVTX_START_END,
    Kind.NVTX_DOMAIN,
    Kind.NVTX_DOMAIN_END,
)


class CallClass(IntEnum):
    """Classes of calls, numbered as in the table `ENUM_NSYS_EVENT_CLASS` of exports."""

    CUDA_RUNTIME = 0
    CUDA_DRIVER = 1
    PROFILER_OVERHEAD = 3
    NVTX_START = 6
    NVTX_FINISH = 7
    CUDA_START = 10
    CUDA_FINISH = 11
    OS_RUNTIME = 27
    OS_RUNTIME_START = 31
    OS_RUNTIME_FINISH = 32
    OPENACC_START = 45
    OPENACC_FINISH = 46
    OPENACC = 48
    CUDA_COMPILATION = 102
    CUDA_OVERHEAD = 103


class Activity(IntEnum):
    """Kinds of operations on memory, as CUPTI numbers them."""

    COPY = 1
    SET = 2


class Severity(IntEnum):
    """The severities of the profiler's diagnostics that are read."""

    WARNING = 2
    ERROR = 3


_KERNEL = Message(
    "kernel",
    numbers={
        1: "kernel.demangledName",
        2: "kernel.shortName",
        3: "kernel.mangledName",
        10: "kernel.gridX",
        11: "kernel.gridY",
        12: "kernel.gridZ",
        16: "kernel.staticSharedMemory",
        17: "kernel.dynamicSharedMemory",
    },
    # the name again, block size, local memory, grid id, registers, caches, clusters
    ignored=frozenset({8, 13, 14, 15, 28} | set(range(18, 27)) | set(range(31, 37))),
    counted=True,
)
_COPY = Message(
    "memory copy",
    numbers={1: "copy.bytes", 2: "copy.copyKind", 4: "copy.srcKind", 5: "copy.dstKind"},
    # cause of a migration, address, number of copies, two of unknown meaning
    ignored=frozenset({10, 12, 16, 17}),
    counted=True,
)
_SET = Message(
    "memset",
    numbers={1: "set.bytes"},
    # value, kind of memory, one of unknown meaning
    ignored=frozenset({2, 4, 8}),
    counted=True,
)
_GPU_WORK = Message(
    "GPU work",
    numbers={
        1: "gpu.start",
        2: "gpu.end",
        3: "gpu.correlationId",
        4: "gpu.deviceId",
        6: "gpu.streamId",
        7: "gpu.activity",
        8: "gpu.globalPid",
    },
    messages={101: _KERNEL, 102: _COPY, 103: _SET},
    # contexts; synchronizations, CUDA events and graph launches (which of the two numbers of a
    # launch is the graph is not known)
    ignored=frozenset({5, 9, 105, 106, 107}),
    counted=True,
)
_CALL = Message(
    "call",
    numbers={
        1: "call.start",
        2: "call.end",
        3: "call.correlationId",
        6: "call.eventClass",
        7: "call.nameId",
        13: "call.globalTid",
    },
)
_NVTX = Message(
    "NVTX",
    numbers={
        2: "nvtx.start",
        9: "nvtx.globalTid",
        10: "nvtx.end",
        12: "nvtx.textId",
        13: "nvtx.domainId",
    },
    texts={7: "nvtx.text"},
)
#: `process.program` is the program that the process was started with, without its arguments.
_PROCESS = Message(
    "process",
    numbers={2: "process.globalPid"},
    texts={5: "process.program", 6: "process.name"},
)
_DIAGNOSTIC = Message(
    "diagnostic", numbers={3: "diagnostic.severity"}, texts={4: "diagnostic.text"}
)
EVENTS: Final = MessagePlan(
    Message(
        "event",
        numbers={1: "kind"},
        messages={
            102: _NVTX,
            107: _GPU_WORK,
            108: _CALL,
            110: _DIAGNOSTIC,
            113: _PROCESS,
        },
    )
)
THREADS: Final = MessagePlan(
    Message(
        "thread",
        numbers={2: "thread.nameId", 3: "thread.priority", 4: "thread.globalTid"},
    )
)

#: Numbers of fields in the message of GPUs and streams: it has machines, these have parts, and
#: these have GPUs.
MACHINES = 1
MACHINE_ID = 1
MACHINE_PARTS = 2
GPUS = 7
GPU_NAME: Final = 2
#: Number of a field of a GPU → its column in the table of GPUs.
GPU_NUMBERS: Final = {
    1: "id",
    11: "totalMemory",
    12: "memoryBandwidth",
    13: "clockRate",
    14: "smCount",
    30: "threadsPerWarp",
    41: "computeMajor",
    42: "computeMinor",
}
#: Number of the field with the version that wrote the report, in the section "UI Data".
WRITTEN_BY: Final = 7


@dataclass(frozen=True)
class ExportTable:
    """A table of an export, and the events of a report that are its rows."""

    name: str
    #: given the columns of n events, returns whether each is a row of the table, (n,)
    rows: Callable[[Mapping[str, Int64Array]], BoolArray]
    #: column of numbers of the table → column of the events
    numbers: Mapping[str, str]
    #: column of texts of the table → column of the events
    texts: Mapping[str, str] = field(default_factory=dict)
    #: True if the table is read only once, so that its rows can be released after that
    read_once: bool = True


def _columns_with_prefix(prefix: str, *names: str) -> dict[str, str]:
    """Return columns of a table and of events with the same names, apart from a prefix."""
    return {name: f"{prefix}.{name}" for name in names}


_ON_GPU = _columns_with_prefix(
    "gpu", "start", "end", "deviceId", "streamId", "correlationId", "globalPid"
)


def _calls_of(*classes: CallClass) -> Callable[[Mapping[str, Int64Array]], BoolArray]:
    """Return a function that selects the calls of some classes."""

    def rows(events: Mapping[str, Int64Array]) -> BoolArray:
        is_call = np.isin(events["kind"], (Kind.CALL, Kind.PROCESS_EVENT))
        is_of_class: BoolArray = is_call & np.isin(events["call.eventClass"], classes)
        return is_of_class

    return rows


def _work_of(kind: Kind, activity: Activity | None = None) -> Callable[..., BoolArray]:
    """Return a function that selects the GPU events of a kind, and of an activity if given."""

    def rows(events: Mapping[str, Int64Array]) -> BoolArray:
        is_work: BoolArray = events["kind"] == kind
        if activity is not None:
            is_work = is_work & (events["gpu.activity"] == activity)
        return is_work

    return rows


def _events_of(*kinds: Kind) -> Callable[[Mapping[str, Int64Array]], BoolArray]:
    return lambda events: np.isin(events["kind"], kinds)


def _severe(events: Mapping[str, Int64Array]) -> BoolArray:
    """Select the diagnostics that are warnings or errors."""
    is_diagnostic = events["kind"] == Kind.DIAGNOSTIC
    severities = (Severity.WARNING, Severity.ERROR)
    is_severe: BoolArray = is_diagnostic & np.isin(
        events["diagnostic.severity"], severities
    )
    return is_severe


TABLES: Final = (
    ExportTable(
        name="CUPTI_ACTIVITY_KIND_RUNTIME",
        rows=_calls_of(CallClass.CUDA_RUNTIME, CallClass.CUDA_DRIVER),
        numbers=_columns_with_prefix(
            "call", "start", "end", "globalTid", "nameId", "correlationId", "eventClass"
        ),
    ),
    ExportTable(
        name="CUPTI_ACTIVITY_KIND_KERNEL",
        rows=_work_of(Kind.KERNEL),
        numbers=_ON_GPU
        | _columns_with_prefix(
            "kernel",
            "demangledName",
            "shortName",
            "mangledName",
            "gridX",
            "gridY",
            "gridZ",
        )
        | _columns_with_prefix("kernel", "staticSharedMemory", "dynamicSharedMemory"),
    ),
    ExportTable(
        name="CUPTI_ACTIVITY_KIND_MEMCPY",
        rows=_work_of(Kind.MEMORY, Activity.COPY),
        numbers=_ON_GPU
        | _columns_with_prefix("copy", "bytes", "copyKind", "srcKind", "dstKind"),
    ),
    ExportTable(
        name="CUPTI_ACTIVITY_KIND_MEMSET",
        rows=_work_of(Kind.MEMORY, Activity.SET),
        numbers=_ON_GPU | _columns_with_prefix("set", "bytes"),
    ),
    ExportTable(
        name="CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
        rows=_work_of(Kind.GRAPH_LAUNCH),
        numbers=_ON_GPU,
    ),
    ExportTable(
        name="NVTX_EVENTS",
        rows=_events_of(*NVTX_KINDS),
        numbers=_columns_with_prefix(
            "nvtx", "start", "end", "globalTid", "domainId", "textId"
        )
        | {"eventType": "kind"},
        texts=_columns_with_prefix("nvtx", "text"),
    ),
    ExportTable(
        name="OSRT_API",
        rows=_calls_of(
            CallClass.OS_RUNTIME,
            CallClass.OS_RUNTIME_START,
            CallClass.OS_RUNTIME_FINISH,
        ),
        numbers={},
    ),
    ExportTable(name="COMPOSITE_EVENTS", rows=_events_of(Kind.CPU_SAMPLE), numbers={}),
    ExportTable(
        name="PROCESSES",
        rows=_events_of(Kind.PROCESS),
        numbers=_columns_with_prefix("process", "globalPid"),
        texts=_columns_with_prefix("process", "program", "name"),
        read_once=False,
    ),
    ExportTable(
        name="DIAGNOSTIC_EVENT",
        rows=_severe,
        numbers=_columns_with_prefix("diagnostic", "severity"),
        texts=_columns_with_prefix("diagnostic", "text"),
        read_once=False,
    ),
)
