"""Nsight Systems at scale: class statistics and the chart of an export with a million kernels.

    python benchmarks/nsys.py [--kernels 1000000] [--repeat 3]

The export is made once and kept in benchmarks/data: an inference-like run on one GPU with four
streams, each kernel launched by a runtime call, copies and sets between them, a push/pop range for
each iteration and the phases in it; tables and columns as `nsys export` writes them. The commands
run in fresh processes on two cores, without the cache of parsed traces. Best of `--repeat`.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "benchmarks" / "data"
KERNELS = 1_000_000
TARGET_S = 15.0
_ITERATIONS = 1000
_CORES = 2
_STREAMS = (7, 13, 14, 20)
#: A process and its threads as exports number them: vendor and process bits, then the thread's.
_GLOBAL_PID = 281_477_392_629_760
_THREADS = (_GLOBAL_PID + 144, _GLOBAL_PID + 145)
_PUSH_POP = 59
_HTOD = 1
_DTOH = 2
_DTOD = 8

#: Names of serving a model, with a number where kernels have variants; and how long each takes, ns.
_KERNELS_OF = (
    ("nvjet_tst_{0}x128_64x3_1x2_h_bz_coopB_TNT", 38_000, 24),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize{0}x128x64_cublas", 52_000, 24),
    ("fused_moe_kernel_{0}", 61_000, 8),
    (
        "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<{0}, 64, 128, 4>>",
        29_000,
        8,
    ),
    ("void vllm::rms_norm_kernel<c10::BFloat16, 8, {0}>(c10::BFloat16*)", 4_000, 4),
    ("void vllm::act_and_mul_kernel<c10::BFloat16, {0}>(c10::BFloat16*)", 6_000, 4),
    ("void vllm::rotary_embedding_kernel<c10::BFloat16, {0}>(long const*)", 3_000, 4),
    ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, {0}>", 2_500, 4),
    ("triton_poi_fused__to_copy_add_addmm_cat_{0}", 5_000, 40),
    ("void at::native::vectorized_elementwise_kernel<4, Functor{0}>(int)", 2_000, 30),
    ("void at::native::reduce_kernel<512, 1, ReduceOp<float, {0}>>", 3_500, 12),
    (
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL_{0}(ncclDevKernelArgsStorage<4096ul>)",
        45_000,
        2,
    ),
)
_PHASES = ("prepare_inputs", "forward", "sample")

_SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
CREATE TABLE ENUM_CUDA_MEMCPY_OPER (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE ENUM_NSYS_EVENT_TYPE (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
CREATE TABLE ThreadNames (nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL,
    correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,
    shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER, cacheConfig INTEGER,
    registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL,
    gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL,
    blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL,
    dynamicSharedMemory INTEGER NOT NULL, localMemoryPerThread INTEGER NOT NULL,
    localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL, sharedMemoryExecuted INTEGER,
    graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, srcKind INTEGER,
    dstKind INTEGER, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, value INTEGER NOT NULL, bytes INTEGER NOT NULL, graphNodeId INTEGER,
    memKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
    start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL,
    callchainId INTEGER);
CREATE TABLE NVTX_EVENTS (
    start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
    category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER,
    textId INTEGER, domainId INTEGER);
"""


def export(folder: Path, kernels: int = KERNELS) -> Path:
    """An SQLite export with that many kernels, made once and kept in the folder."""
    path = folder / f"nsys_{kernels}.sqlite"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".tmp")
    beside.unlink(missing_ok=True)
    connection = sqlite3.connect(beside)
    connection.executescript(
        "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;" + _SCHEMA
    )
    _fill(connection, kernels)
    connection.commit()
    connection.close()
    beside.replace(path)
    return path


def _fill(connection: sqlite3.Connection, kernels: int) -> None:
    """The rows: a million launches, each of a kernel, and a copy or a set now and then."""
    import numpy as np

    random = np.random.default_rng(0)
    names, typical = _names()
    first_call = len(names)
    calls = ["cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync", "python"]
    _insert(connection, "StringIds", enumerate([*names, *calls]))

    kind = random.integers(0, len(names), kernels)
    duration = (typical[kind] * random.uniform(0.7, 1.4, kernels)).astype(np.int64)
    launch_ns = random.integers(3_000, 6_000, kernels)
    call = 60_000_000_000 + np.cumsum(launch_ns + random.integers(500, 30_000, kernels))
    # A kernel starts when its stream is free, which is about when it was launched.
    start = np.maximum(call + launch_ns, np.cumsum(duration) // len(_STREAMS) + call[0])
    stream = np.array(_STREAMS)[random.integers(0, len(_STREAMS), kernels)]
    correlation = np.arange(kernels) + 1000
    same = _constant(kernels)
    _insert(
        connection,
        "CUPTI_ACTIVITY_KIND_KERNEL",
        _rows(
            start,
            start + duration,
            same(0),
            same(1),
            same(0),
            stream,
            correlation,
            same(_GLOBAL_PID),
            kind,
            kind,
            kind,
            same(1),
            same(1),
            same(168),
            same(132),
            same(1),
            same(1),
            same(384),
            same(1),
            same(1),
            same(0),
            same(213_000),
            same(0),
            same(250_871_808),
            np.arange(kernels),
            same(233_472),
            same(None),
            same(0),
        ),
    )
    thread = np.array(_THREADS)[random.integers(0, 2, kernels)]
    _insert(
        connection,
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        _rows(
            call,
            call + launch_ns,
            same(0),
            thread,
            correlation,
            same(first_call),
            same(0),
            same(None),
        ),
    )
    _fill_memory(connection, random, start, call, int(correlation[-1]) + 1, first_call)
    _fill_ranges(connection, int(call[0]), int((start + duration).max()))
    _fill_small(connection, first_call)


def _fill_memory(
    connection: sqlite3.Connection,
    random: np.random.Generator,
    start: np.ndarray,
    call: np.ndarray,
    first_id: int,
    first_call: int,
) -> None:
    """Copies at one launch in 50, sets at one in 200, each with its own runtime call."""
    import numpy as np

    for table, every, name in (("MEMCPY", 50, 1), ("MEMSET", 200, 2)):
        rows = np.arange(every // 2, len(start), every)
        count = len(rows)
        same = _constant(len(rows))
        ids = np.arange(count) + first_id
        first_id += count
        begin = start[rows] + 200
        end = begin + random.integers(800, 20_000, count)
        shared = (
            begin,
            end,
            same(0),
            same(1),
            same(_STREAMS[0]),
            ids,
            same(_GLOBAL_PID),
        )
        kinds = np.array([_HTOD, _DTOH, _DTOD])[random.integers(0, 3, count)]
        rest = (
            (random.integers(4, 1 << 20, count), kinds, same(2), same(2), same(None))
            if table == "MEMCPY"
            else (same(0), random.integers(4, 1 << 20, count), same(None), same(2))
        )
        _insert(connection, f"CUPTI_ACTIVITY_KIND_{table}", _rows(*shared, *rest))
        _insert(
            connection,
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            _rows(
                call[rows] - 400,
                call[rows] - 100,
                same(0),
                same(_THREADS[0]),
                ids,
                same(first_call + name),
                same(0),
                same(None),
            ),
        )


def _fill_ranges(connection: sqlite3.Connection, first: int, last: int) -> None:
    """`Train_step` a thousand times, one after the other, with three phases in each."""
    step = (last - first) // _ITERATIONS
    ranges = []
    for number in range(_ITERATIONS):
        begin = first + number * step
        ranges.append((begin, begin + step - 100, "Train_step"))
        third = (step - 300) // 3
        ranges += [
            (begin + 50 + place * third, begin + 50 + (place + 1) * third - 1, phase)
            for place, phase in enumerate(_PHASES)
        ]
    _insert(
        connection,
        "NVTX_EVENTS",
        (
            (begin, end, _PUSH_POP, None, None, None, text, _THREADS[0], None, None, 0)
            for begin, end, text in ranges
        ),
    )


def _fill_small(connection: sqlite3.Connection, first_call: int) -> None:
    copies = [(_HTOD, "HTOD", "Host-to-Device"), (_DTOH, "DTOH", "Device-to-Host")]
    copies.append((_DTOD, "DTOD", "Device-to-Device"))
    _insert(
        connection,
        "ENUM_CUDA_MEMCPY_OPER",
        ((number, f"CUDA_MEMCPY_KIND_{name}", label) for number, name, label in copies),
    )
    kinds = [(_PUSH_POP, "NvtxPushPopRange", "NvtxPushPopRange")]
    _insert(connection, "ENUM_NSYS_EVENT_TYPE", kinds)
    _insert(connection, "PROCESSES", [(_GLOBAL_PID, 1, "python")])
    _insert(
        connection, "ThreadNames", [(first_call + 3, 20, thread) for thread in _THREADS]
    )
    facts = {
        "EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems",
        "EXPORT_SCHEMA_VERSION": "3.25.0",
    }
    _insert(connection, "META_DATA_EXPORT", facts.items())


def _names() -> tuple[list[str], np.ndarray]:
    """The kernels, and how long each typically takes, ns."""
    import numpy as np

    names = [
        pattern.format(n)
        for pattern, _, variants in _KERNELS_OF
        for n in range(variants)
    ]
    typical = [ns for _, ns, variants in _KERNELS_OF for _ in range(variants)]
    return names, np.array(typical)


def _constant(count: int) -> Callable[[object], list[object]]:
    """Makes columns of one value."""
    return lambda value: [value] * count


def _rows(*columns: np.ndarray | list[object]) -> Iterable[tuple[object, ...]]:
    lists = [
        column if isinstance(column, list) else column.tolist() for column in columns
    ]
    return zip(*lists, strict=True)


def _insert(
    connection: sqlite3.Connection, table: str, rows: Iterable[tuple[object, ...]]
) -> None:
    columns = len(connection.execute(f"PRAGMA table_info({table})").fetchall())
    marks = ", ".join("?" * columns)
    connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)  # noqa: S608  # ours


def table(folder: Path, repeat: int, kernels: int = KERNELS) -> str:
    """The figures, as a Markdown table.

    Args:
        folder: where the export is kept.
        repeat: runs of each command; the best counts.
        kernels: how many the export has.
    """
    path = export(folder, kernels).resolve()
    with tempfile.TemporaryDirectory() as here:
        config = Path(here) / "config.json"
        config.write_text(json.dumps(_config(path)), encoding="utf-8")
        commands = {
            "nsys stats": ["nsys", "stats", "--config", str(config)],
            "chart": ["chart", f"{path},vllm,gpt-oss,0", "--out-dir", here, "--quiet"],
        }
        best = {
            name: min(_seconds([*command, "--no-cache"]) for _ in range(repeat))
            for name, command in commands.items()
        }
    rows = [
        *best.items(),
        (f"both (target: under {TARGET_S:.0f} s)", sum(best.values())),
    ]
    megabytes = f"{path.stat().st_size / 1e6:.0f} MB"
    lines = [
        f"| an export of {kernels:,} kernels, {megabytes}, {_CORES} cores | s |",
        "|---|---|",
        *(f"| {name} | {seconds:.1f} |" for name, seconds in rows),
    ]
    return "\n".join(lines) + "\n"


def _config(path: Path) -> dict[str, object]:
    """What the statistics are of, as their configuration file says it."""
    return {
        "inputs": [
            {
                "format": "sqlite",
                "title": "benchmark",
                "nsys_report": {"path": str(path), "with_nvtx": True, "with_mem": True},
                "analysis_args": {
                    "num_of_iters": _ITERATIONS,
                    "num_of_gpus": 1,
                    "nvtx_tag_of_iter": "Train_step",
                },
            }
        ],
        "kernel_to_class_map": {
            "nvjet": "gemm",
            "xmma_gemm": "gemm",
            "fused_moe": "moe",
            "flash_fwd": "attention",
            "triton": "fusion",
            "rms_norm": "norm",
        },
    }


def _seconds(arguments: list[str]) -> float:
    """Wall-clock seconds of a command in a fresh process."""
    cores = set(sorted(os.sched_getaffinity(0))[:_CORES])
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "tracelens_ext", *arguments],
        check=False,
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    seconds = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments[:2])}: {done.stderr}")
    return seconds


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
