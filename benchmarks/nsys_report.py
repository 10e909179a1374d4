"""Reading a report of Nsight Systems against reading its export: time and memory, one run.

Usage:
    benchmarks/nsys_report.py [--kernels 200000] [--repeat 3]

A report is made with as many kernels, and a launch and sometimes an NVTX range for each, and the
export that has the same rows. Each is read in a process of its own, one after the other in turn;
the best counts. Their traces must be equal.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(__file__).with_name("data")
KERNELS = 200_000
sys.path.insert(0, str(ROOT / "tests"))

_READ = """
import json, resource, sys, time
from tracelens_ext.readers import read_trace
from tracelens_ext.readers.nsys import report, sqlite
import tracelens_ext.readers.formats, pandas
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
started = time.perf_counter()
trace = read_trace(sys.argv[1], cache=False)
seconds = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
sums = [int(trace.ts.sum()), int(trace.dur.sum()), len(trace.names)]
print(json.dumps({"seconds": seconds, "mb": (peak - base) / 1024, "same": [len(trace), *sums]}))
"""


def write_both(folder: Path, kernels: int) -> tuple[Path, Path, int]:
    """A report and its export; and how many events they have."""
    import random

    from nsys_export_maker import ExportMaker
    from nsys_report_maker import GLOBAL_PID, GLOBAL_TID, call, copy, kernel, nvtx, report

    random_numbers = random.Random(0)
    names = [f"void kernel_{n}<float, {n % 7}>(float*, int)" for n in range(300)]
    strings = [*names, "cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020"]
    launch, copying = len(names), len(names) + 1
    ids = {}
    maker = ExportMaker()
    for number, text in enumerate(strings):
        maker.insert("StringIds", id=number, value=text)
        ids[text] = number
    for name in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"):
        maker.table(name)
    maker.table("CUPTI_ACTIVITY_KIND_MEMCPY")
    events = []
    rows: dict[str, list[tuple[object, ...]]] = {"calls": [], "kernels": [], "copies": [], "nvtx": []}
    now = 1_000_000
    for number in range(kernels):
        now += random_numbers.randrange(2_000, 20_000)
        duration = random_numbers.randrange(1_000, 90_000)
        is_copy = number % 17 == 0
        name = random_numbers.randrange(len(names))
        called = copying if is_copy else launch
        events.append(call(called, now, 1_500, number))
        rows["calls"].append((now, now + 1_500, 0, GLOBAL_TID, number, called))
        if is_copy:
            events.append(copy(1, 4096, now + 3_000, duration, number))
            rows["copies"].append((now + 3_000, now + 3_000 + duration, 0, 7, 1, 2, number, GLOBAL_PID, 4096, 1))
        else:
            events.append(kernel(name, now + 3_000, duration, number))
            rows["kernels"].append((now + 3_000, now + 3_000 + duration, 0, 1, 7, number, GLOBAL_PID, name, name, name, None))
        if number % 5 == 0:
            events.append(nvtx(59, now, now + 2_000, f7=f"step {number % 50}", f13=0))
            rows["nvtx"].append((now, now + 2_000, 59, None, f"step {number % 50}", GLOBAL_TID, None, None, 0))
    for table, key in (
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "calls"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "kernels"),
        ("CUPTI_ACTIVITY_KIND_MEMCPY", "copies"),
        ("NVTX_EVENTS", "nvtx"),
    ):
        marks = ", ".join("?" * len(rows[key][0]))
        maker.connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows[key])  # noqa: S608
    blocks = [events[start : start + 7000] for start in range(0, len(events), 7000)]
    report_path = folder / "run.nsys-rep"
    report_path.write_bytes(report(*blocks, strings=strings))
    export_path = folder / "run.sqlite"
    maker.write(export_path)
    return report_path, export_path, len(events)
