"""rocprofv3 at scale: a database of a million dispatches, and the same as JSON and CSV.

    python benchmarks/rocprof.py [--dispatches 1000000] [--repeat 3]

The files are made once and kept in benchmarks/data: an inference-like run on one GPU with four
queues, each dispatch launched by a HIP call; tables and columns as rocprofv3 writes them. Each form
is read in a fresh process on two cores without the cache; the yardsticks are fetching the same
columns with `sqlite3`, and `json.loads`. Best of `--repeat`.
"""

from __future__ import annotations

import argparse
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "benchmarks" / "data"
DISPATCHES = 1_000_000
TARGET_S = 3.0
_QUEUES = 4
_KERNELS = [
    f"void kernel_{n}<float, {n % 7}>(float*, float const*, int)" for n in range(200)
]
_SUFFIX = "_0000aaaa_0000_7000_8000_000000000001"
_PLACE = "nid INTEGER NOT NULL, pid INTEGER NOT NULL, tid INTEGER"
_ID = "id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, guid TEXT DEFAULT 'g' NOT NULL"
_TABLES = {
    "string": f"{_ID}, string TEXT",
    "info_node": f"{_ID}, hash BIGINT, machine_id TEXT",
    "info_process": f"{_ID}, nid INTEGER, pid INTEGER, command TEXT",
    "info_thread": f"{_ID}, nid INTEGER, pid INTEGER, tid INTEGER, name TEXT",
    "info_agent": f"{_ID}, nid INTEGER, pid INTEGER, type TEXT, absolute_index INTEGER,"
    " type_index INTEGER, name TEXT, product_name TEXT, extdata JSONB DEFAULT '{}' NOT NULL",
    "info_kernel_symbol": f"{_ID}, kernel_name TEXT, display_name TEXT",
    "event": f"{_ID}, category_id INTEGER, stack_id INTEGER, parent_stack_id INTEGER,"
    " correlation_id INTEGER, call_stack JSONB DEFAULT '{}' NOT NULL,"
    " line_info JSONB DEFAULT '{}' NOT NULL, extdata JSONB DEFAULT '{}' NOT NULL",
    "region": f"{_ID}, {_PLACE}, start BIGINT, end BIGINT, name_id INTEGER, event_id INTEGER,"
    " extdata JSONB DEFAULT '{}' NOT NULL",
    "kernel_dispatch": f"{_ID}, {_PLACE}, agent_id INTEGER, kernel_id INTEGER, dispatch_id INTEGER,"
    " queue_id INTEGER, stream_id INTEGER, start BIGINT, end BIGINT, private_segment_size INTEGER,"
    " group_segment_size INTEGER, workgroup_size_x INTEGER, workgroup_size_y INTEGER,"
    " workgroup_size_z INTEGER, grid_size_x INTEGER, grid_size_y INTEGER, grid_size_z INTEGER,"
    " region_name_id INTEGER, event_id INTEGER, extdata JSONB DEFAULT '{}' NOT NULL",
}
_READ = """
import sys, time
from tracelens_ext.readers import read_trace
import tracelens_ext.readers.rocprof.rocpd, tracelens_ext.readers.rocprof.json_records
import tracelens_ext.readers.rocprof.csv_tables, tracelens_ext.readers.kineto.reader
begin = time.perf_counter()
trace = read_trace(sys.argv[1], cache=False)
print(time.perf_counter() - begin)
"""
_LOAD = """
import gc, json, sys, time
gc.disable()
begin = time.perf_counter()
with open(sys.argv[1], "rb") as file:
    json.loads(file.read())
print(time.perf_counter() - begin)
"""
_FETCH = f"""
import sqlite3, sys, time
begin = time.perf_counter()
connection = sqlite3.connect(sys.argv[1])
for table, columns in (
    ("kernel_dispatch", "start, end, kernel_id, pid, tid, agent_id, queue_id, stream_id, event_id"),
    ("region", "start, end, name_id, pid, tid, event_id"),
    ("event", "id, stack_id, category_id"),
):
    connection.execute(f"SELECT {{columns}} FROM rocpd_{{table}}{_SUFFIX}").fetchall()
print(time.perf_counter() - begin)
"""  # noqa: S608  # names of ours


def _times(dispatches: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Of each dispatch: when its call begins, when it begins and ends, its kernel, its queue."""
    import numpy as np

    random = np.random.default_rng(0)
    kernel = random.integers(0, len(_KERNELS), dispatches)
    length = random.integers(2_000, 60_000, dispatches)
    call = 60_000_000_000 + np.cumsum(random.integers(3_000, 30_000, dispatches))
    start = np.maximum(call + 5_000, np.cumsum(length) // _QUEUES + call[0])
    columns = (
        call,
        start,
        start + length,
        kernel,
        random.integers(0, _QUEUES, dispatches),
    )
    return zip(*(column.tolist() for column in columns), strict=True)


def database(path: Path, dispatches: int) -> Path:
    """A database with that many dispatches, made once."""
    if path.exists():
        return path
    beside = path.with_suffix(".tmp")
    beside.unlink(missing_ok=True)
    connection = sqlite3.connect(beside)
    connection.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;")

    def insert(table: str, columns: str, rows: object) -> None:
        marks = ", ".join("?" * (columns.count(",") + 1))
        query = f"INSERT INTO rocpd_{table}{_SUFFIX} ({columns}) VALUES ({marks})"  # noqa: S608
        connection.executemany(query, rows)  # type: ignore[arg-type]

    for name, columns in _TABLES.items():
        connection.execute(f"CREATE TABLE rocpd_{name}{_SUFFIX} ({columns})")
    words = ["hipLaunchKernel", "HIP_RUNTIME_API_EXT", "KERNEL_DISPATCH"]
    insert("string", "id, string", list(enumerate(words, 1)))
    insert("info_node", "id, hash, machine_id", [(1, 1, "m")])
    insert("info_process", "id, nid, pid, command", [(7, 1, 7, "python")])
    insert("info_thread", "id, nid, pid, tid", [(7, 1, 7, 7)])
    agent = "id, nid, pid, type, absolute_index, type_index, product_name"
    insert("info_agent", agent, [(1, 1, 7, "GPU", 1, 0, "AMD Instinct MI350X")])
    insert(
        "info_kernel_symbol",
        "id, kernel_name, display_name",
        [(n, f"{name}.kd", name) for n, name in enumerate(_KERNELS, 1)],
    )
    insert(
        "event",
        "category_id, stack_id, parent_stack_id, correlation_id",
        ((2, n + 1, 0, 0) for n in range(dispatches)),
    )
    insert(
        "event",
        "category_id, stack_id, parent_stack_id, correlation_id",
        ((3, n + 1, n + 1, 0) for n in range(dispatches)),
    )
    insert(
        "region",
        "nid, pid, tid, start, end, name_id, event_id",
        (
            (1, 7, 7, call, call + 2_500, 1, n)
            for n, (call, *_) in enumerate(_times(dispatches), 1)
        ),
    )
    insert(
        "kernel_dispatch",
        "nid, pid, tid, agent_id, kernel_id, dispatch_id, queue_id, stream_id, start, end,"
        " private_segment_size, group_segment_size, workgroup_size_x, workgroup_size_y,"
        " workgroup_size_z, grid_size_x, grid_size_y, grid_size_z, region_name_id, event_id",
        (
            (
                1,
                7,
                7,
                1,
                kernel + 1,
                n,
                queue,
                queue,
                start,
                end,
                0,
                0,
                256,
                1,
                1,
                1024,
                1,
                1,
                1,
                dispatches + n,
            )
            for n, (_, start, end, kernel, queue) in enumerate(_times(dispatches), 1)
        ),
    )
    connection.commit()
    connection.close()
    return beside.replace(path)


def document(path: Path, dispatches: int) -> Path:
    """The same as JSON, made once."""
    if path.exists():
        return path
    record = (
        '{"size":184,"kind":%d,"operation":%d,"thread_id":7,"correlation_id":{"internal":%d,'
        '"external":0},"start_timestamp":%d,"end_timestamp":%d'
    )
    rest = (
        ',"dispatch_info":{"size":72,"agent_id":{"handle":37946},"queue_id":{"handle":%d},'
        '"kernel_id":%d,"dispatch_id":%d,"private_segment_size":0,"group_segment_size":0,'
        '"workgroup_size":{"x":256,"y":1,"z":1},"grid_size":{"x":1024,"y":1,"z":1}},'
        '"stream_id":{"handle":%d}}'
    )
    symbol = '{"size":88,"kernel_id":%d,"formatted_kernel_name":"%s"}'
    kinds = '{"kind":"HIP_RUNTIME_API_EXT","operations":["hipLaunchKernel"]}'
    beside = path.with_suffix(".tmp")
    with beside.open("w", encoding="utf-8") as file:
        file.write(
            '{"rocprofiler-sdk-tool":[{"metadata":{"pid":7},"agents":[{"size":312,"id":'
        )
        file.write(
            '{"handle":37946},"type":2,"product_name":"AMD Instinct MI350X"}],"strings":'
        )
        file.write(f'{{"buffer_records":[{kinds}]}},"kernel_symbols":[')
        file.write(",".join(symbol % (n, name) for n, name in enumerate(_KERNELS, 1)))
        file.write('],"buffer_records":{"kernel_dispatch":[')
        for n, (_, start, end, kernel, queue) in enumerate(_times(dispatches), 1):
            file.write("," * (n > 1) + record % (11, 2, n, start, end))
            file.write(rest % (queue, kernel + 1, n, queue))
        file.write('],"hip_api":[')
        for n, (call, *_) in enumerate(_times(dispatches), 1):
            file.write("," * (n > 1) + record % (0, 0, n, call, call + 2_500) + "}")
        file.write("]}}]}")
    return beside.replace(path)


def tables(path: Path, dispatches: int) -> Path:
    """The same as CSV, made once."""
    if path.exists():
        return path
    times = '"Correlation_Id","Start_Timestamp","End_Timestamp"'
    with path.with_name("calls_hip_api_trace.csv").open("w", encoding="utf-8") as file:
        file.write(f'"Domain","Function","Process_Id","Thread_Id",{times}\n')
        for n, (call, *_) in enumerate(_times(dispatches), 1):
            file.write(
                f'"HIP_RUNTIME_API_EXT","hipLaunchKernel",7,7,{n},{call},{call + 2500}\n'
            )
    with path.with_suffix(".tmp").open("w", encoding="utf-8") as file:
        file.write(
            '"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Kernel_Name",'
        )
        file.write(f"{times}\n")
        for n, (_, start, end, kernel, queue) in enumerate(_times(dispatches), 1):
            file.write(
                f'"KERNEL_DISPATCH","Agent 1",{queue},{queue},7,"{_KERNELS[kernel]}",'
            )
            file.write(f"{n},{start},{end}\n")
    path.with_name("calls_hip_api_trace.csv").replace(
        path.with_name(path.name.replace("kernel_trace", "hip_api_trace"))
    )
    return path.with_suffix(".tmp").replace(path)


def _seconds(program: str, path: Path, repeat: int) -> float:
    command = [sys.executable, "-c", program, str(path)]
    runs = (
        subprocess.run(command, check=True, capture_output=True) for _ in range(repeat)
    )
    return min(float(run.stdout) for run in runs)


def table(folder: Path, repeat: int, dispatches: int = DISPATCHES) -> str:
    """The figures, as a Markdown table.

    Args:
        folder: where the files are kept.
        repeat: runs of each; the best counts.
        dispatches: how many the database has; the JSON and the CSV have a fifth.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fewer = dispatches // 5
    lines = [
        "| form | dispatches | MB | s | MB/s | yardstick | read / yardstick |",
        "|---" * 7 + "|",
    ]
    for form, path, count, program in (
        (
            "rocpd",
            database(folder / f"rocprof_{dispatches}.db", dispatches),
            dispatches,
            _FETCH,
        ),
        ("JSON", document(folder / f"rocprof_{fewer}.json", fewer), fewer, _LOAD),
        ("CSV", tables(folder / f"rocprof_{fewer}_kernel_trace.csv", fewer), fewer, ""),
    ):
        seconds = _seconds(_READ, path, repeat)
        size = path.stat().st_size / 1e6
        cells = [
            form,
            f"{count:,}",
            f"{size:.0f}",
            f"{seconds:.2f}",
            f"{size / seconds:.0f}",
        ]
        if program:
            yardstick = _seconds(program, path, repeat)
            what = "sqlite3" if form == "rocpd" else "json.loads"
            cells += [f"{what}, {yardstick:.2f} s", f"{seconds / yardstick:.2f}"]
        else:
            cells += ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append(f"\nTarget: a million dispatches of a database in {TARGET_S:.0f} s.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dispatches", type=int, default=DISPATCHES)
    parser.add_argument("--repeat", type=int, default=3)
    asked = parser.parse_args()
    print(table(DATA, asked.repeat, asked.dispatches))


if __name__ == "__main__":
    main()
