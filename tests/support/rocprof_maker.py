"""Small runs that rocprofv3 could have recorded, written in each of its forms, and as PyTorch's.

Times are ns, ids are ours. A GPU has the agent after the CPU's: GPU 0 is Agent 1, handle 71.
"""

from __future__ import annotations

import csv
import json
import sqlite3
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support.make_trace import TraceMaker
from tracelens_ext.readers import read_trace
from tracelens_ext.settings import ReadingOptions

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.make_trace import Document
    from tracelens_ext.trace import Trace

PID = 4242
TID = 4243
GUID = "0000aaaa-0000-7000-8000-000000000001"
PRODUCT = "AMD Instinct MI350X"
UNITS = 256
MEMORY = 309_220_868_096
HIP = "HIP_RUNTIME_API_EXT"
MARKER = "MARKER_CORE_RANGE_API"
DISPATCH = "KERNEL_DISPATCH"
COPY = "MEMORY_COPY"
TO_DEVICE = "MEMORY_COPY_HOST_TO_DEVICE"
TO_HOST = "MEMORY_COPY_DEVICE_TO_HOST"
_HANDLE = 70

_ID = "id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT"
_RECORD = (
    "nid INTEGER NOT NULL, pid INTEGER NOT NULL, tid INTEGER, start BIGINT, end BIGINT"
)
#: What the reader needs of schema 3.0, and no more.
TABLES = {
    "metadata": f"{_ID}, tag TEXT, value TEXT",
    "string": f"{_ID}, string TEXT",
    "info_node": f"{_ID}, hash BIGINT, machine_id TEXT",
    "info_process": f"{_ID}, nid INTEGER, pid INTEGER, command TEXT",
    "info_thread": f"{_ID}, nid INTEGER, pid INTEGER, tid INTEGER, name TEXT",
    "info_agent": f"{_ID}, nid INTEGER, pid INTEGER, type TEXT, absolute_index INTEGER,"
    " type_index INTEGER, name TEXT, product_name TEXT, extdata JSONB",
    "info_kernel_symbol": f"{_ID}, kernel_name TEXT, display_name TEXT",
    "event": f"{_ID}, category_id INTEGER, stack_id INTEGER, parent_stack_id INTEGER,"
    " correlation_id INTEGER, extdata JSONB",
    "region": f"{_ID}, {_RECORD}, name_id INTEGER, event_id INTEGER",
    "kernel_dispatch": f"{_ID}, {_RECORD}, agent_id INTEGER, kernel_id INTEGER, dispatch_id"
    " INTEGER, queue_id INTEGER, stream_id INTEGER, event_id INTEGER",
    "memory_copy": f"{_ID}, {_RECORD}, name_id INTEGER, dst_agent_id INTEGER, src_agent_id"
    " INTEGER, size INTEGER, queue_id INTEGER, stream_id INTEGER, event_id INTEGER",
    "memory_allocate": f"{_ID}, {_RECORD}, type TEXT",
}
SCHEMA = "\n".join(
    f"CREATE TABLE `rocpd_{name}{{{{uuid}}}}` ({columns});"
    for name, columns in TABLES.items()
)


@dataclass(frozen=True)
class Record:
    """A call, range, dispatch or copy."""

    domain: str
    name: str
    start: int
    end: int
    correlation: int
    tid: int = TID
    gpu: int = 0
    queue: int = 3
    stream: int = 5
    size: int = 0


@dataclass
class RunMaker:
    """Collects the records of a process."""

    pid: int = PID
    guid: str = GUID
    machine: str = "abc"
    gpus: int = 2
    records: list[Record] = field(default_factory=list)

    def call(
        self, name: str, start: int, length: int, *, correlation: int, domain: str = HIP
    ) -> None:
        self.records.append(Record(domain, name, start, start + length, correlation))

    def range(self, name: str, start: int, end: int, *, tid: int = TID) -> None:
        self.records.append(
            Record(MARKER, name, start, end, 9_000 + len(self.records), tid)
        )

    def kernel(
        self, name: str, start: int, length: int, *, correlation: int, **where: int
    ) -> None:
        self.records.append(
            Record(DISPATCH, name, start, start + length, correlation, **where)
        )

    def copy(
        self, name: str, start: int, length: int, *, correlation: int, **where: int
    ) -> None:
        self.records.append(
            Record(COPY, name, start, start + length, correlation, **where)
        )

    def launched(
        self, name: str, start: int, length: int, *, at: int, correlation: int
    ) -> None:
        """Add a kernel, and its launch, which lasts 10 ns."""
        self.call("hipLaunchKernel", at, 10, correlation=correlation)
        self.kernel(name, start, length, correlation=correlation)

    def of(self, *domains: str) -> list[Record]:
        return [record for record in self.records if record.domain in domains]

    @property
    def calls(self) -> list[Record]:
        return [
            record for record in self.records if record.domain not in (DISPATCH, COPY)
        ]

    # rocpd.

    def into(self, connection: sqlite3.Connection, schema: str = SCHEMA) -> None:
        """Write the tables of this process, with the names that the schema has."""
        suffix = "_" + self.guid.replace("-", "_")
        connection.executescript(
            schema.replace("{{uuid}}", suffix).replace("{{guid}}", self.guid)
        )
        connection.execute("PRAGMA foreign_keys=OFF")
        connection.execute("BEGIN")
        writer = _RocpdWriter(connection, suffix)
        writer.insert("info_node", id=1, hash=1, machine_id=self.machine)
        writer.insert(
            "info_process", id=self.pid, nid=1, pid=self.pid, command="python run.py"
        )
        for tid in sorted({record.tid for record in self.records}):
            writer.insert(
                "info_thread", id=tid, nid=1, pid=self.pid, tid=tid, name=f"t{tid}"
            )
        for agent in range(self.gpus + 1):
            place = {"absolute_index": agent, "type_index": max(agent - 1, 0)}
            kind, name = ("GPU", PRODUCT) if agent else ("CPU", "a CPU")
            names = {"type": kind, "name": name, "product_name": name}
            more = json.dumps(self._agent(agent))
            writer.insert(
                "info_agent",
                id=agent,
                nid=1,
                pid=self.pid,
                extdata=more,
                **place,
                **names,
            )
        for record in self.records:
            writer.add(record, self.pid)
        connection.execute("COMMIT")

    def write_rocpd(self, path: Path, *others: RunMaker, schema: str = SCHEMA) -> Path:
        connection = sqlite3.connect(path, isolation_level=None)
        for number, run in enumerate((self, *others)):
            run.into(connection, schema if not number else _only_tables(schema))
        connection.close()
        return path

    # JSON.

    def _agent(self, agent: int) -> dict[str, Any]:
        return {
            "size": 312,
            "id": {"handle": _HANDLE + agent},
            "type": 2 if agent else 1,
            "cu_count": UNITS,
            "wave_front_size": 64,
            "name": "gfx950",
            "product_name": PRODUCT,
            "logical_node_type_id": max(agent - 1, 0),
            "mem_banks": [{"heap_type": 1, "size_in_bytes": MEMORY}],
        }

    def process(self) -> dict[str, Any]:
        kinds = list(
            dict.fromkeys(["NONE", *(record.domain for record in self.records)])
        )
        operations = [
            list(dict.fromkeys(r.name for r in self.of(kind)))
            if kind != MARKER
            else ["range"]
            for kind in kinds
        ]
        kernels = list(dict.fromkeys(record.name for record in self.of(DISPATCH)))
        buffers: dict[str, list[Any]] = {
            "kernel_dispatch": [],
            "memory_copy": [],
            "hip_api": [],
        }
        for record in self.records:
            kind = kinds.index(record.domain)
            names = operations[kind]
            item = {
                "size": 184,
                "kind": kind,
                "operation": names.index(record.name) if record.name in names else 0,
                "thread_id": record.tid,
                "correlation_id": {"internal": record.correlation, "external": 0},
                "start_timestamp": record.start,
                "end_timestamp": record.end,
            }
            if record.domain == DISPATCH:
                item["stream_id"] = {"handle": record.stream}
                item["dispatch_info"] = {
                    "size": 72,
                    "agent_id": {"handle": _HANDLE + 1 + record.gpu},
                    "queue_id": {"handle": record.queue},
                    "kernel_id": 10 + kernels.index(record.name),
                    "grid_size": {"x": 1, "y": 1, "z": 1},
                }
            elif record.domain == COPY:
                source, target = _ends_of_copy(record)
                item |= {"bytes": record.size, "stream_id": {"handle": record.stream}}
                item |= {"src_agent_id": {"handle": _HANDLE + source}}
                item |= {"dst_agent_id": {"handle": _HANDLE + target}}
            buffers.setdefault(_buffer_of(record.domain), []).append(item)
        return {
            "metadata": {
                "node": {"machine_id": self.machine},
                "pid": self.pid,
                "command": ["python", "run.py"],
            },
            "agents": [self._agent(agent) for agent in range(self.gpus + 1)],
            "counters": [],
            "strings": {
                "callback_records": [{"kind": "NONE", "operations": ["not these"]}],
                "buffer_records": [
                    {"kind": kind, "operations": names}
                    for kind, names in zip(kinds, operations, strict=True)
                ],
                "marker_api": [
                    {"key": r.correlation, "value": r.name} for r in self.of(MARKER)
                ],
                "counters": {"dimension_ids": []},
            },
            "kernel_symbols": [
                {
                    "size": 88,
                    "kernel_id": 10 + number,
                    "kernel_name": f"_Z{number}.kd",
                    "formatted_kernel_name": name,
                    "demangled_kernel_name": f"{name} [clone .kd]",
                }
                for number, name in enumerate(kernels)
            ],
            "callback_records": {"counter_collection": []},
            "buffer_records": buffers,
        }

    def document_of_rocprof(self, *others: RunMaker) -> dict[str, Any]:
        return {"rocprofiler-sdk-tool": [run.process() for run in (self, *others)]}

    def write_json(self, path: Path, *others: RunMaker) -> Path:
        path.write_text(json.dumps(self.document_of_rocprof(*others)), encoding="utf-8")
        return path

    # CSV.

    def write_csv(self, folder: Path, prefix: str = "run_") -> Path:
        """Write the tables, and return the path of the table of kernels."""
        folder.mkdir(exist_ok=True)
        tables: dict[str, list[dict[str, object]]] = {
            "agent_info": [self._agent_row(agent) for agent in range(self.gpus + 1)]
        }
        for record in self.records:
            times: dict[str, object] = {
                "Correlation_Id": record.correlation,
                "Start_Timestamp": record.start,
                "End_Timestamp": record.end,
            }
            where: dict[str, object] = {"Thread_Id": record.tid}
            if record.domain == DISPATCH:
                place = {
                    "Agent_Id": f"Agent {record.gpu + 1}",
                    "Queue_Id": record.queue,
                }
                name = {"Kind": DISPATCH, "Kernel_Name": record.name}
                row = {**name, **place, "Stream_Id": record.stream, **where, **times}
            elif record.domain == COPY:
                origin, goal = (f"Agent {agent}" for agent in _ends_of_copy(record))
                ends = {"Source_Agent_Id": origin, "Destination_Agent_Id": goal}
                copied = {"Kind": COPY, "Direction": record.name}
                row = {**copied, "Stream_Id": record.stream, **ends, **times}
            else:
                call = {"Domain": record.domain, "Function": record.name}
                row = {**call, "Process_Id": self.pid, **where, **times}
            table = {DISPATCH: "kernel_trace", COPY: "memory_copy_trace"}.get(
                record.domain, f"{_buffer_of(record.domain)}_trace"
            )
            tables.setdefault(table, []).append(row)
        for title, rows in tables.items():
            with (folder / f"{prefix}{title}.csv").open(
                "w", newline="", encoding="utf-8"
            ) as file:
                writer = csv.DictWriter(
                    file, list(rows[0]), quoting=csv.QUOTE_NONNUMERIC
                )
                writer.writeheader()
                writer.writerows(rows)
        return folder / f"{prefix}kernel_trace.csv"

    def _agent_row(self, agent: int) -> dict[str, object]:
        return {
            "Node_Id": agent,
            "Logical_Node_Id": agent,
            "Agent_Type": "GPU" if agent else "CPU",
            "Wave_Front_Size": 64,
            "Cu_Count": UNITS,
            "Name": "gfx950",
            "Product_Name": PRODUCT,
        }

    # PyTorch.

    def document(self) -> Document:
        """Return the same run as PyTorch's profiler writes it, with ranges as operations."""
        maker = TraceMaker(self.pid, TID)
        for record in self.records:
            start = record.start / 1000
            length = (record.end - record.start) / 1000
            if record.domain == MARKER:
                maker.op(record.name, start, length, thread=record.tid)
            elif record.domain in (DISPATCH, COPY):
                gpu = record.domain == DISPATCH
                maker.gpu(
                    "kernel" if gpu else "gpu_memcpy",
                    record.name,
                    start,
                    length,
                    correlation=record.correlation,
                    device=record.gpu,
                    stream=record.queue if gpu else record.stream,
                )
            else:
                maker.call(record.name, start, length, correlation=record.correlation)
        return maker.document()


class _RocpdWriter:
    """Inserts rows; values without a column are left out."""

    def __init__(self, connection: sqlite3.Connection, suffix: str) -> None:
        self._connection = connection
        self._suffix = suffix
        self._columns: dict[str, dict[str, bool]] = {}  # whether each must be given
        self._ids: dict[tuple[str, object], int] = {}

    def insert(self, table: str, **values: object) -> int:
        name = f"rocpd_{table}{self._suffix}"
        if name not in self._columns:
            info = self._connection.execute(f"PRAGMA table_info(`{name}`)").fetchall()
            self._columns[name] = {
                column: bool(required) and default is None and not key
                for _, column, _, required, default, key in info
            }
        columns = self._columns[name]
        row: dict[str, object] = {c: 0 for c, required in columns.items() if required}
        row |= {column: value for column, value in values.items() if column in columns}
        names = ", ".join(f'"{c}"' for c in row)
        marks = ", ".join("?" * len(row))
        query = f"INSERT INTO `{name}` ({names}) VALUES ({marks})"  # noqa: S608  # names of ours
        return self._connection.execute(query, [*row.values()]).lastrowid or 0

    def _columns_of(self, table: str) -> set[str]:
        info = self._connection.execute(
            f"PRAGMA table_info(`rocpd_{table}{self._suffix}`)"
        )
        return {column for _, column, *_ in info}

    def once(self, table: str, column: str, text: str) -> int:
        """Return the id of a text in a table."""
        if (table, text) not in self._ids:
            more = {"display_name": text} if column == "kernel_name" else {}
            kernel = f"{text}.kd" if column == "kernel_name" else text
            self._ids[table, text] = self.insert(table, **{column: kernel}, **more)
        return self._ids[table, text]

    def add(self, record: Record, pid: int) -> None:
        category = (
            ("info_category", "name")
            if self._columns_of("info_category")
            else ("string", "string")
        )
        is_mark = record.domain == MARKER
        event = self.insert(
            "event",
            category_id=self.once(*category, record.domain),
            stack_id=record.correlation,
            parent_stack_id=0,
            correlation_id=0,
            extdata=json.dumps({"message": record.name} if is_mark else {}),
        )
        place: dict[str, object] = {"nid": 1, "pid": pid, "tid": record.tid}
        if record.domain == DISPATCH:
            place |= {"agent_id": record.gpu + 1}
        if record.domain in (DISPATCH, COPY):
            place |= {"queue_id": record.queue, "stream_id": record.stream}
        if "track_id" in self._columns_of("region"):
            key = ("track", tuple(place.items()))
            if key not in self._ids:
                self._ids[key] = self.insert("track", **place)
            place["track_id"] = self._ids[key]
        values = place | {"start": record.start, "end": record.end, "event_id": event}
        if record.domain == DISPATCH:
            values["kernel_id"] = self.once(
                "info_kernel_symbol", "kernel_name", record.name
            )
            self.insert("kernel_dispatch", **values)
        elif record.domain == COPY:
            source, target = _ends_of_copy(record)
            values |= {
                "src_agent_id": source,
                "dst_agent_id": target,
                "size": record.size,
            }
            values["name_id"] = self.once("string", "string", record.name)
            self.insert("memory_copy", **values)
        else:
            name = "roctxThreadRangeA" if is_mark else record.name
            self.insert("region", name_id=self.once("string", "string", name), **values)


def _only_tables(schema: str) -> str:
    """Return a schema without its views, whose names would be the same for all processes."""
    statements = schema.split(";")
    return ";".join(s for s in statements if "CREATE VIEW" not in s)


def _ends_of_copy(record: Record) -> tuple[int, int]:
    """Return the source and target agents of a copy."""
    gpu = record.gpu + 1
    return (0, gpu) if record.name == TO_DEVICE else (gpu, 0)


def _buffer_of(domain: str) -> str:
    known = {DISPATCH: "kernel_dispatch", COPY: "memory_copy", MARKER: "marker_api"}
    return known.get(domain, domain.split("_", maxsplit=1)[0].lower() + "_api")


def training() -> RunMaker:
    """Two steps: a copy, kernels launched one by one and by a graph, on two queues, and a wait."""
    run = RunMaker()
    for step in range(2):
        t = 1_000_000 + step * 10_000
        first = 100 * (step + 1)
        run.range(f"step {step}", t, t + 9_000)
        run.range("forward", t + 100, t + 4_000)
        run.call("hipMemcpyAsync", t + 150, 20, correlation=first)
        run.copy(TO_DEVICE, t + 300, 500, correlation=first, size=4096)
        run.launched(
            "void gemm<float>(int)", t + 900, 700, at=t + 200, correlation=first + 1
        )
        run.launched("relu(float*)", t + 1_700, 300, at=t + 250, correlation=first + 2)
        run.call("hipGraphLaunch", t + 4_100, 90, correlation=first + 3)
        for number in range(3):
            begin = t + 4_500 + 200 * number
            run.kernel("in_graph(int)", begin, 150, correlation=first + 3, queue=4)
        run.call("hipDeviceSynchronize", t + 4_400, 2_000, correlation=first + 4)
    return run


def read(path: Path, *, allow_truncated: bool = False) -> Trace:
    """Return the trace of a file, after checking that every record is accounted for."""
    trace = read_trace(
        path, cache=False, reading=ReadingOptions(allow_truncated=allow_truncated)
    )
    made = trace.provenance
    assert made.present == len(trace) + made.metadata_events + sum(
        made.dropped.values()
    )
    return trace
