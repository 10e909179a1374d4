"""Fresh processes on some of the cores, their time and memory; and the traces that they read."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from programs import YARDSTICK

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
DATA = ROOT / "benchmarks" / "data"
GROWN_FROM = SHARED / "traces" / "nvidia" / "training_large.json.gz"
SMALL = SHARED / "traces" / "nvidia" / "gaunernst_bert-small-uncased__1016001.json.gz"
#: Memory that the yardstick takes, times the text.
_YARDSTICK_TIMES = 7


@dataclass
class Run:
    """What a process printed, and the most anonymous memory it was seen to have, bytes.

    Attributes:
        figures: by name.
        peak: of the process itself.
        peak_of_all: of the process and those that it started, with what they share.
    """

    figures: dict[str, float]
    peak: int
    peak_of_all: int


def run(program: str, *arguments: str, cores: int = 1) -> Run:
    """Run a program in a fresh process and watch its memory."""
    chosen = set(sorted(os.sched_getaffinity(0))[:cores])
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        env=os.environ | {"TRACELENS_EXT_NO_CACHE": "1"},
        preexec_fn=lambda: os.sched_setaffinity(0, chosen),
    )
    peak = peak_of_all = 0
    while process.poll() is None:
        own = _memory(process.pid)
        peak = max(peak, own)
        peak_of_all = max(
            peak_of_all, own + sum(_memory(pid) for pid in _children(process.pid))
        )
        time.sleep(0.01)
    output = process.communicate()[0]
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)}: a benchmark process failed")
    return Run(json.loads(output), peak, peak_of_all)


def best(program: str, *arguments: str, repeat: int, key: str, cores: int = 1) -> Run:
    """The run with the least `key`; its peaks are the largest of all."""
    runs = [run(program, *arguments, cores=cores) for _ in range(repeat)]
    fastest = min(runs, key=lambda r: r.figures[key])
    return Run(
        fastest.figures, max(r.peak for r in runs), max(r.peak_of_all for r in runs)
    )


def _memory(pid: int) -> int:
    """Anonymous memory of a process, bytes."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def _children(pid: int) -> list[int]:
    try:
        return [
            int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except OSError:
        return []


def yardstick(trace: Path, repeat: int) -> float:
    """Seconds of the yardstick, on the decompressed text of a trace."""
    with text_of(trace) as text:
        runs = best(YARDSTICK, str(text), repeat=repeat, key="yardstick")
    return runs.figures["yardstick"]


def text_size(trace: Path) -> int:
    """Bytes of a trace's text."""
    if trace.suffix != ".gz":
        return trace.stat().st_size
    with gzip.open(trace) as file:
        return sum(map(len, iter(lambda: file.read(1 << 20), b"")))


@contextmanager
def text_of(trace: Path) -> Iterator[Path]:
    """A file with the decompressed text."""
    if trace.suffix != ".gz":
        yield trace
        return
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        with gzip.open(trace) as packed:
            shutil.copyfileobj(packed, file, 1 << 20)
        file.flush()
        yield Path(file.name)


def grown(layout: str, megabytes: int) -> Path:
    """A trace of about that size, made once and kept in benchmarks/data."""
    DATA.mkdir(parents=True, exist_ok=True)
    path = DATA / f"{layout}_{megabytes}.json"
    if path.exists():
        return path
    if not GROWN_FROM.exists():
        return _demo(path, layout, megabytes)
    one = DATA / f"one_{layout}.json"
    _grow(one, layout, 1)
    copies = max(1, round(megabytes * 1e6 / one.stat().st_size))
    one.unlink()
    _grow(path, layout, copies)
    return path


def packed(trace: Path) -> Path:
    """The same, gzipped; made once."""
    path = trace.with_name(f"{trace.name}.gz")
    if not path.exists():
        with trace.open("rb") as text, gzip.open(path, "wb", compresslevel=6) as file:
            shutil.copyfileobj(text, file, 1 << 20)
    return path


def _grow(path: Path, layout: str, copies: int) -> None:
    command = [
        sys.executable,
        str(SHARED / "check" / "grow.py"),
        str(GROWN_FROM),
        str(copies),
    ]
    subprocess.run([*command, str(path), "--style", layout], check=True)


def _demo(path: Path, layout: str, megabytes: int) -> Path:
    """A long demo trace in place of a real one."""
    sys.path.append(str(ROOT))
    from tests.support.simulated_job import build_demo_trace, write_demo_trace

    steps = max(1, round(megabytes / 1.7))
    if layout == "kineto":
        return write_demo_trace(path, steps=steps)
    indent = 2 if layout == "indented" else None
    path.write_text(
        json.dumps(build_demo_trace(steps=steps), indent=indent), encoding="utf-8"
    )
    return path


def room_for(megabytes: int) -> str:
    """Why a trace of that size cannot be measured here; empty when it can."""
    need = megabytes * 1e6
    if not (DATA / f"kineto_{megabytes}.json").exists():
        DATA.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(DATA).free < 1.5 * need:
            return f"{need / 1e9:.0f} GB do not fit on the disk"
    available = 0
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    if available < _YARDSTICK_TIMES * need:
        return f"the yardstick alone needs about {_YARDSTICK_TIMES * need / 1e9:.0f} GB of memory"
    return ""
