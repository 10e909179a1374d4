"""Damaged traces through both readers of Kineto's JSON: equal columns, or equal errors.

    fuzz/native.py [--mutants 20000] [--seconds 480] [--seed 0]

The C file is compiled with AddressSanitizer and UndefinedBehaviorSanitizer, and handed texts that
end where their memory ends. Exit code 1 when the readers differ, one takes too long, or a sanitizer
reports; 2 where there is no compiler. What made them differ is kept in `fuzz/findings/native/`.
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
SOURCE = ROOT / "tracelens_ext/readers/kineto/_native.c"
MODULE = "tracelens_ext.readers.kineto._native"
_LIBRARY = "TRACELENS_EXT_SANITIZED"
_SLICES = (256, 4096, 1 << 20)
_MOST_SECONDS = 2.0
_EVENTS = 25
sys.path.insert(0, str(ROOT / "tests"))


def build(folder: Path) -> dict[str, str] | None:
    """Compile the C file; the environment of a process that loads it. None without a compiler."""
    compiler = shutil.which(os.environ.get("CC", "gcc"))
    library = folder / "_native.so"
    if compiler is None:
        return None
    flags = ["-std=c11", "-g", "-O1", "-fPIC", "-shared", "-fsanitize=address,undefined"]
    flags += ["-fno-sanitize-recover=all", f"-I{sysconfig.get_paths()['include']}"]
    done = subprocess.run([compiler, *flags, str(SOURCE), "-o", str(library)], check=False)
    if done.returncode:
        return None
    found = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True
        ).stdout
        for name in ("libasan.so", "libubsan.so")
    ]
    options = {"ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc", _LIBRARY: str(library)}
    return os.environ | options | {"LD_PRELOAD": " ".join(path.strip() for path in found)}


def _seeds() -> list[bytes]:
    """Eight small traces: parts of recorded ones where those are, else made ones."""
    from make_trace import LAYOUTS, cuda_graph_example, short_demo

    demo = short_demo()
    made = [layout(cuda_graph_example()) for layout in LAYOUTS.values()]
    made += [LAYOUTS["kineto"](demo | {"traceEvents": demo["traceEvents"][:_EVENTS]})]
    recorded = []
    for path in sorted(SHARED.glob("*/*.json.gz"), key=lambda path: path.stat().st_size)[::3]:
        document = json.loads(gzip.decompress(path.read_bytes()))
        events = document["traceEvents"]
        some = events[:10] + events[10 :: max(1, len(events) // _EVENTS)]
        recorded.append(LAYOUTS["kineto"]({**document, "traceEvents": some}))
    return [text.encode() for text in [*made[-3:], *recorded, *made][:8]]


def _load() -> None:
    """Put the library that was compiled for this in the place of the package's own."""
    import numpy as np

    from tracelens_ext.readers.kineto.reader import KinetoColumns

    spec = importlib.util.spec_from_file_location(MODULE, os.environ[_LIBRARY])
    assert spec is not None
    assert spec.loader is not None
    sys.modules[MODULE] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    parse = KinetoColumns.parse

    def parse_exactly(self: KinetoColumns, text: bytes) -> object:
        return parse(self, memoryview(np.frombuffer(text, np.uint8).copy()))  # type: ignore[arg-type]

    mock.patch.object(KinetoColumns, "parse", parse_exactly).start()


def compare(mutants: int, seconds: float, seed: int) -> int:
    """Read so many mutants, or for so long; the exit code."""
    from trace_mutations import mutate
    from trace_properties import readers_agree

    _load()
    seeds = _seeds()
    end = time.monotonic() + seconds
    slowest = 0.0
    done = 0
    while done < mutants and time.monotonic() < end:
        rng = random.Random(f"{seed} {done}")
        data = mutate(seeds[done % len(seeds)], rng)
        started = time.process_time()
        try:
            readers_agree(data, rng.choice(_SLICES), salvage=rng.random() < 0.5)
            slowest = max(slowest, time.process_time() - started)
            assert slowest < 2 * _MOST_SECONDS, f"{slowest:.1f} s"
        except BaseException:
            FINDINGS.mkdir(parents=True, exist_ok=True)
            (FINDINGS / f"{seed}-{done}.json").write_bytes(data)
            print(f"FOUND: {FINDINGS / f'{seed}-{done}.json'}", flush=True)
            raise
        done += 1
    print(f"{done:,} mutants of {len(seeds)} traces: both readers agree; slowest {slowest:.2f} s")
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
