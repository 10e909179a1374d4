"""Time and memory of the main job against a fixed yardstick, on one core.

    python benchmarks/bench.py [--megabytes 500] [--layouts kineto,indented,compact] [--repeat 3]

The yardstick is `json.loads` of the decompressed bytes with the garbage collector off. Everything
runs in a fresh process with its imports done first; the best of `--repeat` runs counts. Machines
differ and are noisy: the ratio is what carries over. A real trace from ../shared is grown to the
wanted size; where that folder is absent the demo trace takes its place.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
DATA = ROOT / "benchmarks" / "data"
GROWN_FROM = SHARED / "traces" / "nvidia" / "training_large.json.gz"

_YARDSTICK = """
import gc, json, sys, time
data = open(sys.argv[1], "rb").read()
gc.disable()
started = time.perf_counter()
json.loads(data)
print(json.dumps({"yardstick": time.perf_counter() - started}))
"""

_SUMMARY = """
import json, sys, time
import msgspec, numpy, pandas
from tracelens_ext.readers import read_trace
from tracelens_ext.analyzer import TreePerfAnalyzer
import tracelens_ext.analysis.kernels, tracelens_ext.categorize
started = time.perf_counter()
trace = read_trace(sys.argv[1])
read = time.perf_counter()
analyzer = TreePerfAnalyzer(trace)
linked = analyzer.tree.linked.sum()
tree = time.perf_counter()
frame = analyzer.get_df_kernel_summary()
done = time.perf_counter()
print(json.dumps({"events": len(trace), "gpu": int(frame["count"].sum()), "read": read - started,
                  "tree": tree - read, "table": done - tree, "all": done - started}))
"""

_REPORT = """
import importlib, json, pkgutil, sys, time, tempfile, os
import msgspec, numpy, openpyxl.chart, openpyxl.formatting.rule, pandas, pluggy, regex
import tracelens_ext.analysis, tracelens_ext.categorize, tracelens_ext.readers
import tracelens_ext.report
for package in ("analysis", "categorize", "readers", "report"):
    for module in pkgutil.iter_modules([os.path.join(tracelens_ext.__path__[0], package)]):
        importlib.import_module(f"tracelens_ext.{package}.{module.name}")
from tracelens_ext import generate_perf_report_pytorch
with tempfile.TemporaryDirectory() as folder:
    started = time.perf_counter()
    generate_perf_report_pytorch(sys.argv[1], os.path.join(folder, "r.xlsx"),
                                 use_kernel_name_categories=True, short_kernel_study=True)
    print(json.dumps({"report": time.perf_counter() - started}))
"""

_CATEGORIZE = """
import json, time, tomllib, pathlib
import numpy, regex
import tracelens_ext_categorizers
from tracelens_ext.categorize import builtin_categorizer
packs = sorted(pathlib.Path(tracelens_ext_categorizers.__file__).parent.glob("*.toml"))
real = []
for pack in packs:
    document = tomllib.loads(pack.read_text(encoding="utf-8"))
    if document.get("pack", {}).get("kind") != "op":
        for rule in document["rule"]:
            real += [e["name"] if isinstance(e, dict) else e for e in rule["examples"]]
names = [f"{real[i % len(real)]}_{i}" for i in range(100_000)]
started = time.perf_counter()
builtin_categorizer().categorize(names)
print(json.dumps({"categorize": time.perf_counter() - started, "names": len(names)}))
"""


@dataclass
class Run:
    """What a process printed, and the most anonymous memory it was seen to have, bytes."""

    figures: dict[str, float]
    peak: int


def run(program: str, trace: Path) -> Run:
    """Run a program on one core in a fresh process and watch its memory."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(trace)],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    )
    peak = 0
    while process.poll() is None:
        peak = max(peak, _anonymous(process.pid))
        time.sleep(0.01)
    output = process.communicate()[0]
    if process.returncode:
        raise SystemExit(f"{trace.name}: a benchmark process failed")
    return Run(json.loads(output), peak)


def _anonymous(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def best(program: str, trace: Path, repeat: int, key: str) -> Run:
    """The run with the least `key`; its peak is the largest of all."""
    runs = [run(program, trace) for _ in range(repeat)]
    fastest = min(runs, key=lambda r: r.figures[key])
    return Run(fastest.figures, max(r.peak for r in runs))


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


def _grow(path: Path, layout: str, copies: int) -> None:
    command = [sys.executable, str(SHARED / "check" / "grow.py"), str(GROWN_FROM), str(copies)]
    subprocess.run([*command, str(path), "--style", layout], check=True)


def _demo(path: Path, layout: str, megabytes: int) -> Path:
    """A long demo trace in place of a real one."""
    from tracelens_ext.demo import build_demo_trace, write_demo_trace

    steps = max(1, round(megabytes / 1.7))
    if layout == "kineto":
        return write_demo_trace(path, steps=steps)
    indent = 2 if layout == "indented" else None
    path.write_text(json.dumps(build_demo_trace(steps=steps), indent=indent), encoding="utf-8")
    return path


def measure(name: str, trace: Path, repeat: int) -> list[str]:
    """A row of the table."""
    yard = yardstick(trace, repeat)
    ours = best(_SUMMARY, trace, repeat, "all")
    report = best(_REPORT, trace, repeat, "report")
    f, size = ours.figures, trace.stat().st_size
    return [
        name,
        f"{size / 1e6:.0f}",
        f"{f['events']:,}",
        f"{yard:.2f}",
        f"{f['all'] / yard:.2f}",
        f"{f['read'] / yard:.2f}",
        f"{f['tree'] / yard:.2f}",
        f"{f['table'] / yard:.2f}",
        f"{report.figures['report'] / yard:.2f}",
        f"{ours.peak / 1e6:.0f}",
        f"{size / 1e6 / f['all']:.0f}",
    ]


def yardstick(trace: Path, repeat: int) -> float:
    """Seconds of the yardstick, on the decompressed text of a trace."""
    if trace.suffix != ".gz":
        return best(_YARDSTICK, trace, repeat, "yardstick").figures["yardstick"]
    with tempfile.NamedTemporaryFile(suffix=".json") as text:
        text.write(gzip.decompress(trace.read_bytes()))
        text.flush()
        return best(_YARDSTICK, Path(text.name), repeat, "yardstick").figures["yardstick"]


def recorded(repeat: int) -> None:
    """The whole report of real traces, gzipped, against the yardstick."""
    _print_row(
        ["trace", "MB gzipped", "yardstick, s", "report, s", "report / yardstick"], rule=True
    )
    for trace in sorted(SHARED.glob("traces/*/*.json.gz")):
        if trace.stat().st_size < 100_000:
            continue
        yard = yardstick(trace, repeat)
        report = best(_REPORT, trace, repeat, "report").figures["report"]
        size = f"{trace.stat().st_size / 1e6:.1f}"
        name = f"{trace.parent.name}/{trace.name.split('__')[0].removesuffix('.json.gz')}"
        _print_row([name, size, f"{yard:.3f}", f"{report:.3f}", f"{report / yard:.2f}"])


def _print_row(cells: list[str], *, rule: bool = False) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)
    if rule:
        print("|" + "---|" * len(cells), flush=True)


def main() -> None:
    """Print the tables, in Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--layouts", default="kineto,indented,compact")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    header = ["trace", "MB", "events", "yardstick, s", "summary / yardstick", "read", "tree"]
    header += ["table", "whole report / yardstick", "peak anonymous, MB", "summary, MB/s"]
    _print_row(header, rule=True)
    for layout in options.layouts.split(","):
        _print_row(measure(layout, grown(layout, options.megabytes), options.repeat))
    if SHARED.exists():
        print()
        recorded(options.repeat)
    found = best(_CATEGORIZE, ROOT, options.repeat, "categorize").figures
    print(f"\n{found['names']:,} distinct kernel names categorized in {found['categorize']:.1f} s")


if __name__ == "__main__":
    main()
