"""Damaged traces through both readers of Kineto's JSON, and of Nsight's reports: equal columns.

    fuzz/native.py [--mutants 20000] [--seconds 480] [--seed 0]

Or equal errors. The C files are compiled with AddressSanitizer and UndefinedBehaviorSanitizer, and
that of Kineto is handed texts that end where their memory ends. Exit code 1 when the readers
differ, one takes too long, or a sanitizer reports; 2 where there is no compiler. What made them
differ is kept in `fuzz/findings/native/`.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
FINDINGS = ROOT / "fuzz" / "findings" / "native"
SHARED = ROOT.parent / "shared" / "traces"
REPORTS = ROOT.parent / "shared" / "nsys_rep"
#: Compiled module → its source.
SOURCES = {
    f"tracelens_ext.readers.{name}._native": ROOT
    / f"tracelens_ext/readers/{name}/_native.c"
    for name in ("kineto", "nsys")
}
_LIBRARY = "TRACELENS_EXT_SANITIZED"
_SLICES = (256, 4096, 1 << 20)
_MOST_SECONDS = 2.0
_EVENTS = 25
sys.path.insert(0, str(ROOT))


def build(folder: Path) -> dict[str, str] | None:
    """Compile the C files; the environment of a process that loads them, None if it cannot be."""
    compiler = shutil.which(os.environ.get("CC", "gcc"))
    if compiler is None:
        return None
    flags = [
        "-std=c11",
        "-g",
        "-O1",
        "-fPIC",
        "-shared",
        "-fsanitize=address,undefined",
    ]
    flags += ["-fno-sanitize-recover=all", f"-I{sysconfig.get_paths()['include']}"]
    for module, source in SOURCES.items():
        library = folder / f"{module}.so"
        done = subprocess.run(
            [compiler, *flags, str(source), "-o", str(library)], check=False
        )
        if done.returncode:
            return None
    found = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True
        ).stdout
        for name in ("libasan.so", "libubsan.so")
    ]
    options = {
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
        _LIBRARY: str(folder),
    }
    return (
        os.environ | options | {"LD_PRELOAD": " ".join(path.strip() for path in found)}
    )


def _seeds() -> list[bytes]:
    """Eight small traces: parts of recorded ones where those are, else made ones; and reports."""
    from tests.support.make_trace import LAYOUTS, cuda_graph_example, short_demo
    from tests.support.nsys_report_maker import steps

    demo = short_demo()
    made = [layout(cuda_graph_example()) for layout in LAYOUTS.values()]
    made += [LAYOUTS["kineto"](demo | {"traceEvents": demo["traceEvents"][:_EVENTS]})]
    recorded = []
    for path in sorted(
        SHARED.glob("*/*.json.gz"), key=lambda path: path.stat().st_size
    )[::3]:
        document = json.loads(gzip.decompress(path.read_bytes()))
        events = document["traceEvents"]
        some = events[:10] + events[10 :: max(1, len(events) // _EVENTS)]
        recorded.append(LAYOUTS["kineto"]({**document, "traceEvents": some}))
    traces = [text.encode() for text in [*made[-3:], *recorded, *made][:8]]
    reports = sorted(REPORTS.glob("*.nsys-rep"), key=lambda path: path.stat().st_size)[
        :2
    ]
    return [*traces, steps(), steps(), *(path.read_bytes() for path in reports)]


def damaged(content: bytes, rng: random.Random) -> bytes:
    """A report with bytes of it changed, zeroed, removed or repeated, or cut off."""
    made = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 5))):
        start = rng.randrange(len(made))
        length = rng.choice((1, 1, 8, 200))
        match rng.randrange(6):
            case 0 | 1:
                made[start] = rng.randrange(256)
            case 2:
                made[start : start + length] = bytes(len(made[start : start + length]))
            case 3:
                del made[start : start + length]
            case 4:
                made[start:start] = made[start : start + length]
            case _:
                del made[max(start, len(made) // 2) :]
    return bytes(made)


def _load() -> None:
    """Put the libraries that were compiled for this in the place of the package's own."""
    import numpy as np

    from tracelens_ext.readers.kineto.reader import KinetoColumns

    for name in SOURCES:
        library = Path(os.environ[_LIBRARY]) / f"{name}.so"
        spec = importlib.util.spec_from_file_location(name, library)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    parse = KinetoColumns.parse

    def parse_exactly(self: KinetoColumns, text: bytes) -> object:
        return parse(self, memoryview(np.frombuffer(text, np.uint8).copy()))  # type: ignore[arg-type]

    mock.patch.object(KinetoColumns, "parse", parse_exactly).start()


def compare(mutants: int, seconds: float, seed: int) -> int:
    """Read so many mutants, or for so long; the exit code."""
    from tests.support.trace_mutations import mutate
    from tests.support.trace_properties import readers_agree

    _load()
    seeds = _seeds()
    end = time.monotonic() + seconds
    slowest = 0.0
    done = 0
    while done < mutants and time.monotonic() < end:
        rng = random.Random(f"{seed} {done}")
        seed_of_this = seeds[done % len(seeds)]
        is_report = seed_of_this.startswith(b"NVIDIA")
        data = damaged(seed_of_this, rng) if is_report else mutate(seed_of_this, rng)
        started = time.process_time()
        try:
            readers_agree(data, rng.choice(_SLICES), allow_truncated=rng.random() < 0.5)
            slowest = max(slowest, time.process_time() - started)
            assert slowest < 2 * _MOST_SECONDS, f"{slowest:.1f} s"
        except BaseException:
            FINDINGS.mkdir(parents=True, exist_ok=True)
            (FINDINGS / f"{seed}-{done}.json").write_bytes(data)
            print(f"FOUND: {FINDINGS / f'{seed}-{done}.json'}", flush=True)
            raise
        done += 1
    print(
        f"{done:,} mutants of {len(seeds)} traces: both readers agree; slowest {slowest:.2f} s"
    )
    return 0


def main() -> int:
    """Compile, and start a process with the sanitizers; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    if _LIBRARY in os.environ:
        return compare(asked.mutants, asked.seconds, asked.seed)
    with tempfile.TemporaryDirectory() as folder:
        environment = build(Path(folder))
        if environment is None:
            print("there is no compiler with sanitizers")
            return 2
        command = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:]]
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
