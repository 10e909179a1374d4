"""JSON against the screen: what each command takes to print the one and the other."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: Commands that have `--json`, and what else is asked of it.
COMMANDS = {
    "kernels": ["--gaps", "--all"],
    "gaps": ["--all"],
    "iterations": [],
    "tree": [],
    "counters": [],
    "roofline": [],
    "findings": ["--intervals"],
    "what-if": [],
}
#: What is aimed at: the screen's time, and this much more.
TARGET_RATIO = 1.25
TARGET_SECONDS = 0.5


def table(trace: Path, repeat: int) -> str:
    """Return a Markdown table: a row for each command, wall time of whole processes."""
    lines = [
        f"Target: at most {TARGET_RATIO} times the screen's time and {TARGET_SECONDS} s.",
        "",
        "| command | screen, s | JSON, s | JSON / screen | MB of JSON | target |",
        "|---|---|---|---|---|---|",
    ]
    for command, options in COMMANDS.items():
        screen, _ = _best([command, str(trace)], repeat)
        seconds, size = _best([command, str(trace), "--json", *options], repeat)
        verdict = "missed"
        if seconds <= TARGET_RATIO * screen + TARGET_SECONDS:
            verdict = "met"
        cells = [
            " ".join([command, "--json", *options]),
            f"{screen:.2f}",
            f"{seconds:.2f}",
            f"{seconds / screen:.2f}",
            f"{size / 1e6:.1f}",
            verdict,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _best(arguments: list[str], repeat: int) -> tuple[float, int]:
    """Return the seconds of the fastest of several runs, and the bytes that it printed."""
    environment = os.environ | {"TRACELENS_EXT_NO_CACHE": "1"}
    best = float("inf")
    size = 0
    for _ in range(repeat):
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "tracelens_ext", *arguments],
            capture_output=True,
            check=True,
            env=environment,
        )
        best = min(best, time.perf_counter() - started)
        size = len(done.stdout)
    return best, size
