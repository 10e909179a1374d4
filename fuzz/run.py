"""Fuzz every target for a bounded time; exit code 1 when something was found.

    fuzz/run.py [--seconds 300] [TARGET ...]

What makes a property fail, crash or hang is kept in `fuzz/findings/TARGET/`; run
`fuzz/target.py TARGET FILE` to see it again. Inputs that reached new code are kept in
`fuzz/reached/TARGET/`, where the next run goes on from.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from hashlib import blake2b
from pathlib import Path

from targets import TARGETS

HERE = Path(__file__).resolve().parent
FINDINGS = HERE / "findings"
REACHED = HERE / "reached"
#: An input that takes longer hangs, as far as a user is concerned; there is a margin for a machine
#: that is busy, and for instrumented code.
_SECONDS_AN_INPUT = 25
_MEGABYTES = 4096
_LONGEST = 65536


def main() -> int:
    """Run the targets one after another; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seconds", type=int, default=300, help="for all targets together"
    )
    parser.add_argument("--seed", type=int, default=0, help="0: another one each time")
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}"
    )
    asked = parser.parse_args()
    chosen = asked.targets or list(TARGETS)
    unknown = set(chosen) - set(TARGETS)
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    shares = sum(TARGETS[name].share for name in chosen)
    failed = []
    for name in chosen:
        seconds = max(1, asked.seconds * TARGETS[name].share // shares)
        print(f"== {name}: {seconds} s", flush=True)
        if _fuzz(name, seconds, asked.seed):
            failed.append(name)
    for name in failed:
        print(f"FOUND by {name}: see {FINDINGS / name}")
    print("nothing found" if not failed else f"{len(failed)} targets failed")
    return 1 if failed else 0


def _fuzz(name: str, seconds: int, seed: int) -> int:
    """Fuzz one target; its exit code."""
    seeds = REACHED / name
    findings = FINDINGS / name
    for folder in (seeds, findings):
        folder.mkdir(parents=True, exist_ok=True)
    for data in TARGETS[name].seeds():
        (seeds / blake2b(data, digest_size=10).hexdigest()).write_bytes(data)
    command = [
        sys.executable,
        str(HERE / "target.py"),
        name,
        str(seeds),
        f"-max_total_time={seconds}",
        f"-artifact_prefix={findings}/",
        f"-timeout={_SECONDS_AN_INPUT}",
        f"-rss_limit_mb={_MEGABYTES}",
        f"-max_len={_LONGEST}",
        f"-seed={seed}",
        "-print_final_stats=1",
        "-verbosity=0",
    ]
    done = subprocess.run(command, cwd=HERE, check=False)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
