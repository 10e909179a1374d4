"""What the cache saves: each command on a large trace for the first and for the second time.

    python benchmarks/second_run.py [TRACE] [--megabytes 500] [--repeat 3] [--compare]

Every run is a fresh process on one core, with its imports, as a user starts it; the cache is a
folder of its own, empty before each first run. The trace has been read once before, so that the
disk plays no part. Seconds are of the processor, which on one core is what a user waits for, less
what else the machine does; the best of `--repeat` runs counts. Without TRACE that of `bench.py` is
taken.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

#: What a row is called → the command. TRACE is the trace, OUT the name of a file or folder that may
#: be written.
COMMANDS = {
    "report": "report TRACE --output OUT.xlsx --force --quiet",
    "kernels": "kernels TRACE",
    "gaps": "gaps TRACE",
    "iterations": "iterations TRACE",
    "tree": "tree TRACE",
    "nsys stats": "nsys stats TRACE --iterations 1 --json",
    "chart": "chart TRACE,vllm,gpt-oss,0 --out-dir OUT --quiet",
    "report --html": "report TRACE --output OUT.xlsx --html OUT.html --force --quiet",
}
_MARKS = re.compile("TRACE|COPY|OUT")
_AT_ONCE = 1 << 20


def seconds(arguments: list[str], cache: Path) -> float:
    """The processor's time that a command takes in a fresh process on one core."""
    environment = os.environ | {"TRACELENS_EXT_CACHE_DIR": str(cache)}
    environment.pop("TRACELENS_EXT_NO_CACHE", None)
    # an installation has compiled modules
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "tracelens_ext", *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)  # it is not waited for again
    if process.returncode:
        raise SystemExit(
            f"tracelens-ext {arguments[0]} failed: exit code {process.returncode}"
        )
    return usage.ru_utime + usage.ru_stime


def first_and_second(arguments: list[str], repeat: int) -> tuple[float, float]:
    """The best time of a first and of a second run, s."""
    firsts = []
    seconds_ = []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            firsts.append(seconds(arguments, Path(folder)))
            seconds_ += [seconds(arguments, Path(folder)) for _ in range(repeat)]
    return min(firsts), min(seconds_)


def table(trace: Path, repeat: int, *, compare: bool = False) -> str:
    """First and second runs of the commands on a trace, in Markdown.

    Args:
        trace: the file, of 20 MB of text or more: smaller ones are not kept in the cache.
        repeat: how many times each run is made; the best counts.
        compare: also compare the trace with a copy of itself, which takes longest.
    """
    _read_once(trace)
    lines = [
        "| command | first run, s | second run, s | second / first |",
        "|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        commands = dict(COMMANDS)
        if compare:
            commands["compare"] = "compare TRACE COPY"
            shutil.copyfile(trace, Path(folder) / f"copy_{trace.name}")
        meant = {
            "TRACE": str(trace),
            "COPY": f"{folder}/copy_{trace.name}",
            "OUT": f"{folder}/out",
        }
        for name, command in commands.items():
            arguments = [
                _MARKS.sub(lambda mark: meant[mark[0]], word)
                for word in command.split()
            ]
            first, second = first_and_second(arguments, repeat)
            lines.append(
                f"| {name} | {first:.2f} | {second:.2f} | {second / first:.2f} |"
            )
    return "\n".join(lines)


def _read_once(trace: Path) -> None:
    with trace.open("rb", buffering=0) as file:
        while file.read(_AT_ONCE):
            pass


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--compare", action="store_true")
    options = parser.parse_args()
    trace = options.trace
    if trace is None:
        import bench

        trace = bench.grown("kineto", options.megabytes)
    print(table(trace, options.repeat, compare=options.compare))


if __name__ == "__main__":
    main()
