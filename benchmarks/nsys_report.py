"""Nsight Systems at scale: reading a report against reading its export.

    python benchmarks/nsys_report.py [--kernels 200000] [--repeat 3]

The export is that of `nsys.py`; the report holds the same events, in blocks of 7,000, packed by the
library `lz4` where that is installed (else not made smaller). Each is read in a fresh process on
one core, without the cache, one after the other in turn; the least processor time counts. The
report must give the trace that the export gives.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nsys

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "benchmarks" / "data"
KERNELS = 200_000
#: The most that reading a report may take, of the time of its export.
MOST_OF_EXPORT = 1.5
NATIVE_EVENTS_A_SECOND = 500_000
PYTHON_EVENTS_A_SECOND = 80_000
_BLOCK = 7000

_READ = """
import json, resource, sys, time
import tracelens_ext.readers.formats
from tracelens_ext.readers import read_trace
from tracelens_ext.readers.nsys import report
import pandas
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
started = time.process_time()
trace = read_trace(sys.argv[1], cache=False)
seconds = time.process_time() - started
sums = [int(column.sum()) for column in (trace.ts, trace.dur, trace.name, trace.correlation)]
print(json.dumps({"seconds": seconds, "bytes": peak() - before, "trace": [len(trace), *sums]}))
"""
#: Tables of the export, in the order of the events; and the columns from which an event is made.
_TABLES = {
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start, end, correlationId, eventClass, nameId, globalTid",
    "NVTX_EVENTS": "start, end, eventType, text, domainId, globalTid",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start, end, correlationId, deviceId, streamId, globalPid,"
    " demangledName, gridX, gridY, gridZ, staticSharedMemory, dynamicSharedMemory",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start, end, correlationId, deviceId, streamId, globalPid,"
    " bytes, copyKind, srcKind, dstKind",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start, end, correlationId, deviceId, streamId, globalPid, bytes",
}


def _event(table: str, row: tuple[Any, ...]) -> dict[int, Any]:
    """An event of a report from a row of the export."""
    start, end, *others = row
    if table == "CUPTI_ACTIVITY_KIND_RUNTIME":
        correlation, event_class, name, thread = others
        body = {
            1: start,
            2: end,
            3: correlation,
            6: event_class,
            7: name,
            8: 0,
            13: thread,
        }
        return {1: 48, 108: body}
    if table == "NVTX_EVENTS":
        event_type, text, domain, thread = others
        body = {1: event_type, 2: start, 7: text, 9: thread, 10: end, 13: domain or 0}
        return {1: event_type, 102: body}
    correlation, device, stream, process, *details = others
    body = {1: start, 2: end, 3: correlation, 4: device, 5: 1, 6: stream, 8: process}
    if table == "CUPTI_ACTIVITY_KIND_KERNEL":
        name, x, y, z, static, dynamic = details
        shape = {
            1: name,
            2: name,
            3: name,
            8: name,
            10: x,
            11: y,
            12: z,
            13: 128,
            14: 1,
            15: 1,
        }
        shape |= {
            16: static,
            17: dynamic,
            20: correlation,
            21: 168,
            22: 233_472,
            23: 1,
            24: 1,
        }
        return {1: 79, 107: {**body, 7: 3, 101: shape}}
    if table == "CUPTI_ACTIVITY_KIND_MEMCPY":
        size, kind, source, target = details
        copied = {1: size, 2: kind}
        copied |= {
            n: memory for n, memory in ((4, source), (5, target)) if memory is not None
        }
        return {1: 80, 107: {**body, 7: 1, 102: copied}}
    return {1: 80, 107: {**body, 7: 2, 103: {1: details[0], 2: 0}}}


def report(export: Path) -> tuple[Path, int]:
    """The report of an export, made once and kept beside it; and how many events it holds."""
    sys.path.insert(0, str(ROOT))
    from tests.support.nsys_report_maker import block, message, sized, varint
    from tests.support.nsys_report_maker import report as report_of

    path = export.with_suffix(".nsys-rep")
    with closing(sqlite3.connect(f"file:{export}?mode=ro", uri=True)) as connection:
        counts = [
            connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608  # our names
            for table in _TABLES
        ]
        if path.exists():
            return path, sum(counts)

        def events() -> Iterator[dict[int, Any]]:
            for table, columns in _TABLES.items():
                for row in connection.execute(f"SELECT {columns} FROM {table}"):  # noqa: S608  # ours
                    yield _event(table, row)

        def packed(content: bytes) -> bytes:
            try:
                from lz4.block import compress
            except ImportError:
                return block(content)
            small = compress(content, store_size=False)
            return varint(len(small)) + varint(len(content)) + small

        waiting = events()
        blocks = b""
        while some := list(islice(waiting, _BLOCK)):
            blocks += packed(sized(message({1: some})))
        strings = [
            text
            for (text,) in connection.execute("SELECT value FROM StringIds ORDER BY id")
        ]
        threads = [
            {2: name, 3: priority, 4: thread}
            for name, priority, thread in connection.execute(
                "SELECT nameId, priority, globalTid FROM ThreadNames"
            )
        ]
    content = report_of(
        packed=blocks, strings=strings, threads=threads, counts={1: sum(counts)}
    )
    path.write_bytes(content)
    return path, sum(counts)


def _read(path: Path, *, pure: bool = False) -> dict[str, Any]:
    """The seconds and the memory of reading a file, and sums of its trace."""
    core = min(os.sched_getaffinity(0))
    environment = {**os.environ, "TRACELENS_EXT_PURE_PYTHON": "1" if pure else ""}
    done = subprocess.run(
        [sys.executable, "-c", _READ, str(path)],
        check=True,
        capture_output=True,
        env=environment,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def table(folder: Path, repeat: int, kernels: int = KERNELS) -> str:
    """The figures, as a Markdown table.

    Args:
        folder: where the files are kept.
        repeat: how often each is read; the best counts.
        kernels: how many they have.
    """
    export = nsys.export(folder, kernels).resolve()
    path, events = report(export)
    ways = {
        "report, compiled": (path, False),
        "report, Python": (path, True),
        "export": (export, False),
    }
    best: dict[str, dict[str, Any]] = {}
    for _ in range(repeat):
        for name, (file, pure) in ways.items():
            measured = _read(file, pure=pure)
            if name not in best or measured["seconds"] < best[name]["seconds"]:
                best[name] = measured
    traces = [measured["trace"] for measured in best.values()]
    assert traces[0] == traces[1] == traces[2], traces
    head = f"| {events:,} events, {kernels:,} kernels, one core | MB | processor s"
    head += " | events a second | of the export's time | memory, MB |"
    lines = [head, "|---|---|---|---|---|---|"]
    for name, (file, _) in ways.items():
        seconds = best[name]["seconds"]
        share = seconds / best["export"]["seconds"]
        size = file.stat().st_size / 1e6
        memory = best[name]["bytes"] / 1e6
        figures = f"{size:.0f} | {seconds:.2f} | {events / seconds:,.0f} | {share:.2f}"
        lines.append(f"| {name} | {figures} | {memory:.0f} |")
    targets = f"compiled: {NATIVE_EVENTS_A_SECOND:,} events a second and {MOST_OF_EXPORT} of the"
    targets += f" export's time; Python: {PYTHON_EVENTS_A_SECOND:,} events a second"
    return "\n".join([*lines, "", f"Targets: {targets}."]) + "\n"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernels", type=int, default=KERNELS)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    print(table(DATA, options.repeat, options.kernels), end="")


if __name__ == "__main__":
    main()
