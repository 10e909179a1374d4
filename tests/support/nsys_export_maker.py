"""Small exports of Nsight Systems made by hand, in any schema, and what was read of them."""

from __future__ import annotations

import io
import json
import sqlite3
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens_ext.readers import read_trace
from tracelens_ext.trace import NONE
from tracelens_ext.trace.call_tree import CallTree

if TYPE_CHECKING:
    from tracelens_ext.trace import Trace

SHARED = Path(__file__).resolve().parents[3] / "shared" / "nsys"
SCHEMAS = {path.stem: path for path in sorted(SHARED.glob("schema-*.sql"))}
REAL = SHARED / "two_gpu_training.sqlite"

PID = 144
PUSH_POP = 59
START_END = 60
MARK = 34
CATEGORY = 33
DOMAIN = 75
HOST_TO_DEVICE = 1
DEVICE_TO_DEVICE = 8

#: What the reader needs, and no more.
TABLES = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER NOT NULL, end INTEGER NOT NULL,"
    " eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER,"
    " nameId INTEGER NOT NULL",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER NOT NULL, end INTEGER NOT NULL,"
    " deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL,"
    " correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER,"
    " mangledName INTEGER, graphNodeId INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,"
    " srcKind INTEGER, dstKind INTEGER,"
    " correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,"
    " correlationId INTEGER, globalPid INTEGER, bytes INTEGER",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start INTEGER, end INTEGER, deviceId INTEGER,"
    " contextId INTEGER, greenContextId INTEGER, streamId INTEGER, correlationId INTEGER,"
    " globalPid INTEGER, graphId INTEGER, graphExecId INTEGER",
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL,"
    " category INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,"
    " domainId INTEGER",
    "CUBLAS_EVENTS": "start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER",
    "OSRT_API": "start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER",
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "ThreadNames": "nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER",
    "TARGET_INFO_GPU": "vmId INTEGER, id INTEGER, name TEXT, smCount INTEGER,"
    " threadsPerWarp INTEGER, totalMemory INTEGER",
    "ENUM_CUDA_MEMCPY_OPER": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT",
}


def global_pid(pid: int, machine: int = 1) -> int:
    return machine << 48 | pid << 24


def global_tid(pid: int, tid: int | None = None, machine: int = 1) -> int:
    return global_pid(pid, machine) | (pid if tid is None else tid)


class ExportMaker:
    """Collects rows; times are ns.

    Args:
        schema: SQL of the tables; those that it lacks are made when something goes into them.
    """

    def __init__(self, schema: str = "") -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.executescript(schema)
        for table in ("StringIds", "META_DATA_EXPORT"):
            self.table(table)
        self._strings: dict[str, int] = {}

    def table(self, name: str) -> None:
        self.connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({TABLES[name]})")

    def insert(self, table: str, **values: Any) -> None:
        """Insert a row; required columns default to 0, unknown columns are ignored."""
        self.table(table)
        row: dict[str, Any] = {}
        columns = self.connection.execute(f"PRAGMA table_info({table})").fetchall()
        for _, name, _, is_required, _, _ in columns:
            if name in values:
                row[name] = values[name]
            elif is_required:
                row[name] = 0
        names = ", ".join(f'"{name}"' for name in row)
        marks = ", ".join("?" * len(row))
        query = f"INSERT INTO {table} ({names}) VALUES ({marks})"  # noqa: S608  # names of ours
        self.connection.execute(query, list(row.values()))

    def string(self, text: str) -> int:
        if text not in self._strings:
            self._strings[text] = 1000 + 7 * len(self._strings)
            self.insert("StringIds", id=self._strings[text], value=text)
        return self._strings[text]

    def call(
        self,
        name: str,
        start: int,
        duration: int,
        *,
        correlation: int | None = None,
        pid: int = PID,
        tid: int | None = None,
        machine: int = 1,
        driver: bool = False,
    ) -> None:
        self.insert(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=start,
            end=start + duration,
            eventClass=int(driver),
            globalTid=global_tid(pid, tid, machine),
            correlationId=correlation,
            nameId=self.string(name),
        )

    def gpu(
        self,
        table: str,
        start: int,
        duration: int,
        *,
        correlation: int | None = None,
        pid: int = PID,
        device: int = 0,
        stream: int = 7,
        machine: int = 1,
        **values: Any,
    ) -> None:
        place = {
            "deviceId": device,
            "streamId": stream,
            "globalPid": global_pid(pid, machine),
        }
        times = {"start": start, "end": start + duration, "correlationId": correlation}
        self.insert(f"CUPTI_ACTIVITY_KIND_{table}", **(times | place | values))

    def kernel(self, name: str, start: int, duration: int, **values: Any) -> None:
        ids = {"demangledName": self.string(name), "shortName": self.string(name[:4])}
        self.gpu("KERNEL", start, duration, **(ids | values))

    def launched(
        self,
        name: str,
        start: int,
        duration: int,
        *,
        at: int,
        correlation: int,
        **values: Any,
    ) -> None:
        """Add a kernel, and its launch, which lasts 10 ns."""
        where = {name: values[name] for name in ("pid", "machine") if name in values}
        call = {"tid": values.pop("tid", None)} | where
        self.call("cudaLaunchKernel_v7000", at, 10, correlation=correlation, **call)
        self.kernel(name, start, duration, correlation=correlation, **values)

    def range(
        self,
        text: str | None,
        start: int,
        end: int | None,
        *,
        pid: int = PID,
        tid: int | None = None,
        style: int = PUSH_POP,
        **values: Any,
    ) -> None:
        where = {"globalTid": global_tid(pid, tid), "eventType": style}
        self.insert(
            "NVTX_EVENTS",
            **({"start": start, "end": end, "text": text} | where | values),
        )

    @cached_property
    def content(self) -> bytes:
        return self.connection.serialize()

    def write(self, path: Path) -> Path:
        path.write_bytes(self.content)
        return path


def training(schema: str = "") -> ExportMaker:
    """Two steps of a process: a copy, a memset, three kernels, all launched within NVTX ranges."""
    maker = ExportMaker(schema)
    for step in range(2):
        t = 1_000_000 + step * 10_000
        first = 100 * (step + 1)
        maker.range("Step", t, t + 9_000)
        maker.range("forward", t + 100, t + 4_000)
        maker.call("cudaMemcpyAsync_v3020", t + 150, 20, correlation=first)
        maker.gpu(
            "MEMCPY",
            t + 300,
            500,
            correlation=first,
            bytes=4096,
            copyKind=HOST_TO_DEVICE,
        )
        maker.launched(
            "gemm<float>(int)", t + 900, 700, at=t + 200, correlation=first + 1
        )
        maker.launched(
            "relu<float>(int)", t + 1_700, 300, at=t + 250, correlation=first + 2
        )
        maker.call("cudaMemsetAsync_v3020", t + 4_100, 20, correlation=first + 3)
        maker.gpu("MEMSET", t + 4_200, 100, correlation=first + 3, bytes=64)
        maker.launched(
            "optimizer(float*)", t + 5_000, 900, at=t + 4_300, correlation=first + 4
        )
        maker.call(
            "cudaDeviceSynchronize_v3020", t + 4_400, 2_000, correlation=first + 5
        )
    return maker


def read(maker: ExportMaker) -> Trace:
    trace = read_trace(io.BytesIO(maker.content))
    made = trace.provenance
    assert made.present == len(trace) + made.metadata_events + sum(
        made.dropped.values()
    )
    return trace


def named(trace: Trace, name: str) -> list[int]:
    return [row for row in range(len(trace)) if trace.name_of(row) == name]


def text_arg(trace: Trace, name: str, row: int) -> Any:
    column = trace.arg(name)
    code = int(column.at(np.array([row]))[0])
    assert column.texts is not None or code == NONE
    return None if code == NONE else json.loads((column.texts or [])[code])


def parents(trace: Trace) -> dict[str, set[str]]:
    """Return the names of the events that enclose or launched each event, by its name."""
    tree = CallTree(trace)
    found: dict[str, set[str]] = {}
    for row in range(len(trace)):
        above = tree.parent(row)
        found.setdefault(trace.name_of(row), set()).add(
            "" if above is None else trace.name_of(above)
        )
    return found
