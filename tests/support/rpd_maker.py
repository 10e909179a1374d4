"""Small databases of rocmProfileData, of each version of its schema. Times are ns."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PID = 700
TID = 701
_ID = '"id" integer NOT NULL PRIMARY KEY AUTOINCREMENT'
_TIMES = '"start" integer NOT NULL, "end" integer NOT NULL'
_COMMON = f"""
CREATE TABLE rocpd_metadata ({_ID}, tag TEXT, value TEXT);
CREATE TABLE rocpd_string ({_ID}, string TEXT);
CREATE TABLE rocpd_op ({_ID}, gpuId integer, queueId integer, sequenceId integer,
 completionSignal TEXT, {_TIMES}, description_id integer, opType_id integer);
CREATE TABLE rocpd_api_ops ({_ID}, api_id integer, op_id integer);
CREATE TABLE rocpd_monitor ({_ID}, deviceType TEXT, deviceId integer, monitorType TEXT,
 {_TIMES}, value TEXT);
"""
_API = f"CREATE TABLE rocpd_api ({_ID}, pid integer, tid integer, {_TIMES}"
_SIZES = """gridX integer, gridY integer, {gridZ} integer, workgroupX integer,
 workgroupY integer, workgroupZ integer, kernelName_id integer"""
_BY_CALL = f"""
CREATE TABLE rocpd_kernelapi (api_ptr_id integer PRIMARY KEY, {_SIZES.format(gridZ="gridZ")});
CREATE TABLE rocpd_copyapi (api_ptr_id integer PRIMARY KEY, size integer, kind integer);
"""
SCHEMAS = {
    1: f"""{_COMMON}{_API}, apiName_id integer, args_id integer);
CREATE TABLE rocpd_kernelop (op_ptr_id integer PRIMARY KEY, {_SIZES.format(gridZ="gridz")});
CREATE TABLE rocpd_copyop (op_ptr_id integer PRIMARY KEY, size integer);
""",
    2: f"{_COMMON}{_API}, apiName_id integer, args_id integer);{_BY_CALL}",
    3: f"""{_COMMON}{_BY_CALL}{_API}, apiName_id integer, category_id integer,
 domain_id integer, args_id integer);
CREATE TABLE rocpd_ustring ({_ID}, string TEXT);
CREATE TABLE rocpd_counter ({_ID}, value real, op_id integer, name_id integer);
""",
}
NO_GRID = (1, 1, 1, 64, 1, 1)


@dataclass
class RpdMaker:
    """Writes the rows of a database.

    Attributes:
        version: of the schema.
    """

    version: int = 2
    connection: sqlite3.Connection = field(
        default_factory=lambda: sqlite3.connect(":memory:", isolation_level=None)
    )

    def __post_init__(self) -> None:
        self.connection.executescript(SCHEMAS[self.version])
        self.insert("rocpd_metadata", tag="schema_version", value=str(self.version))
        self.text("")

    def insert(self, table: str, **values: object) -> int:
        columns = ", ".join(f'"{name}"' for name in values)
        places = ", ".join("?" * len(values))
        statement = f"INSERT INTO {table} ({columns}) VALUES ({places})"  # noqa: S608  # ours
        return self.connection.execute(statement, list(values.values())).lastrowid or 0

    def text(self, string: str, table: str = "rocpd_string") -> int:
        query = f"SELECT id FROM {table} WHERE string = ?"  # noqa: S608  # ours
        row = self.connection.execute(query, (string,)).fetchone()
        return int(row[0]) if row else self.insert(table, string=string)

    def call(
        self,
        name: str,
        start: int,
        length: int,
        *,
        args: str = "",
        pid: int = PID,
        tid: int = TID,
        domain: str = "hip",
    ) -> int:
        """Insert a row of `rocpd_api`, and return its id."""
        columns: dict[str, object] = {"args_id": self.text(args)}
        if self.version == 3:
            columns["args_id"] = self.insert("rocpd_ustring", string=args)
            columns |= {"domain_id": self.text(domain), "category_id": self.text("")}
        return self.insert(
            "rocpd_api",
            pid=pid,
            tid=tid,
            start=start,
            end=start + length,
            apiName_id=self.text(name),
            **columns,
        )

    def marker(self, text: str, start: int, end: int) -> int:
        return self.call("UserMarker", start, end - start, args=text, domain="roctx")

    def operation(
        self,
        op_type: str,
        start: int,
        length: int,
        *,
        call: int = 0,
        name: str = "",
        gpu: int = 2,
        queue: int = 1,
        sequence: int = 0,
    ) -> int:
        """Insert a row of `rocpd_op` with its link to a call, and return its id."""
        operation = self.insert(
            "rocpd_op",
            gpuId=gpu,
            queueId=queue,
            sequenceId=sequence,
            completionSignal="",
            start=start,
            end=start + length,
            description_id=self.text(name),
            opType_id=self.text(op_type),
        )
        if call:
            self.insert("rocpd_api_ops", api_id=call, op_id=operation)
        return operation

    def launched(
        self,
        name: str,
        start: int,
        length: int,
        *,
        at: int,
        call_name: str = "hipLaunchKernel",
        grid: tuple[int, int, int, int, int, int] = NO_GRID,
        pid: int = PID,
        gpu: int = 2,
    ) -> None:
        """Add a kernel and its launch."""
        call = self.call(call_name, at, 10, pid=pid)
        op_type = "KernelExecution"
        operation = self.operation(
            op_type, start, length, call=call, name=name, gpu=gpu
        )
        grid_z = "gridz" if self.version == 1 else "gridZ"
        names = ("gridX", "gridY", grid_z, "workgroupX", "workgroupY", "workgroupZ")
        sizes: dict[str, object] = dict(zip(names, grid, strict=True))
        sizes["kernelName_id"] = self.text(name)
        if self.version == 1:
            self.insert("rocpd_kernelop", op_ptr_id=operation, **sizes)
        else:
            self.insert("rocpd_kernelapi", api_ptr_id=call, **sizes)

    def copied(
        self, op_type: str, start: int, length: int, *, at: int, size: int
    ) -> None:
        """Add a copy and its call."""
        call = self.call("hipMemcpyAsync", at, 10)
        operation = self.operation(op_type, start, length, call=call)
        if self.version == 1:
            self.insert("rocpd_copyop", op_ptr_id=operation, size=size)
        else:
            self.insert("rocpd_copyapi", api_ptr_id=call, size=size, kind=1)

    def write(self, path: Path) -> Path:
        path.write_bytes(self.connection.serialize())
        return path


def training(version: int = 2) -> RpdMaker:
    """Two steps: a copy, a fill, kernels launched one by one and by a graph, and markers."""
    run = RpdMaker(version)
    for step in range(2):
        t = 1_000_000 + step * 10_000
        run.marker(f"step {step}", t, t + 9_000)
        run.marker(
            "aten::mm, seq = 5, op_id = 9, sizes = [[8, 4], [4, 2]]", t + 100, t + 400
        )
        run.copied("CopyHostToDevice", t + 300, 500, at=t + 20, size=4096)
        fill = run.call("hipMemsetAsync", t + 40, 10)
        run.operation("FillBuffer", t + 820, 20, call=fill)
        run.launched("gemm(float)", t + 900, 700, at=t + 200, grid=(7, 5, 1, 256, 1, 1))
        run.launched("relu(float*)", t + 1_700, 300, at=t + 500)
        graph = run.call("hipGraphLaunch", t + 4_100, 90)
        for number in range(3):
            begin = t + 4_500 + 200 * number
            run.operation("KernelExecution", begin, 150, call=graph, name="in_graph")
        run.call("hipDeviceSynchronize", t + 4_400, 2_000)
    run.marker("a mark", 1_000_500, 1_000_500)
    return run
