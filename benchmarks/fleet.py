"""Time of a fleet of generated ranks: workers against one process, and with one of them killed.

    python benchmarks/fleet.py [--ranks 256] [--workers N]

The ranks are demo traces of one job, made once in benchmarks/data (1.6 MB of text
each, gzipped to 0.12 MB). Dask, Parquet files and the reductions are in the times of both;
processes are started anew for each run.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import signal
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "benchmarks" / "data"
_STEPS = 1


@dataclass(frozen=True)
class Measured:
    """One run: wall-clock seconds, those of the reductions alone, traces done and failed."""

    seconds: float
    reductions: float
    done: int
    failed: int


def ranks_folder(folder: Path, ranks: int) -> Path:
    """A folder with the traces of so many ranks of one job, made once."""
    here = folder / f"fleet_{ranks}"
    here.mkdir(parents=True, exist_ok=True)
    from tests.support.simulated_job import build_demo_trace

    for rank in range(ranks):
        path = here / f"rank{rank}.json.gz"
        if path.exists():
            continue
        document = build_demo_trace(steps=_STEPS, rank=rank, ranks=ranks)
        beside = path.with_suffix(".tmp")
        beside.write_bytes(gzip.compress(json.dumps(document).encode(), 6, mtime=0))
        beside.rename(path)
    return here


def measure(inputs: Path, workers: int, *, kill: bool = False) -> Measured:
    """Run a fleet into a new folder.

    Args:
        inputs: the traces.
        workers: processes; 0 for this one alone.
        kill: whether one of the processes is killed when half of the traces are done.
    """
    from tracelens_ext.distributed import run_fleet

    last = started = time.perf_counter()
    killed = threading.Event()

    def progress(done: int, failed: int, total: int) -> None:
        nonlocal last
        last = time.perf_counter()
        if kill and not killed.is_set() and done + failed > total // 2:
            killed.set()
            _kill_one()

    with tempfile.TemporaryDirectory() as folder:
        result = run_fleet(
            [inputs], folder, workers=workers, force=True, progress=progress
        )
        done = time.perf_counter()
    return Measured(done - started, done - last, result.done, result.failed)


def _kill_one() -> None:
    """Kill a worker: a child of this process that runs Dask's nanny program."""
    import psutil

    for child in psutil.Process(os.getpid()).children():
        if any("spawn_main" in word for word in child.cmdline()):
            os.kill(child.pid, signal.SIGKILL)
            return
    raise SystemExit("there is no worker to be killed")


def table(folder: Path, ranks: int = 256, workers: int | None = None) -> str:
    """Measure, and say it in Markdown.

    Args:
        folder: where the traces are kept.
        ranks: how many.
        workers: processes; as many as there are cores by default.
    """
    from tracelens_ext.distributed.cluster import default_workers

    count = workers or default_workers()
    inputs = ranks_folder(folder, ranks)
    size = sum(path.stat().st_size for path in inputs.iterdir()) / ranks / 1e6
    text = len(gzip.decompress((inputs / "rank0.json.gz").read_bytes())) / 1e6
    runs: list[tuple[str, Callable[[], Measured]]] = [
        ("this process alone (`--workers 0`)", lambda: measure(inputs, 0)),
        (f"{count} processes", lambda: measure(inputs, count)),
        (
            f"{count} processes, one killed in the middle",
            lambda: measure(inputs, count, kill=True),
        ),
    ]
    lines = [
        f"{ranks} generated ranks, {text:.1f} MB of text ({size:.2f} MB gzipped) each:",
        "",
        "| fleet | total (s) | a trace (ms) | of it reductions (s) | done | failed | of serial |",
        "| :--- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    serial = 0.0
    for name, run in runs:
        found = run()
        serial = serial or found.seconds
        lines.append(
            f"| {name} | {found.seconds:.1f} | {1e3 * found.seconds / ranks:.0f}"
            f" | {found.reductions:.1f} | {found.done} | {found.failed}"
            f" | {found.seconds / serial:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--workers", type=int, default=None)
    options = parser.parse_args()
    print(table(DATA, options.ranks, options.workers))


if __name__ == "__main__":
    main()
