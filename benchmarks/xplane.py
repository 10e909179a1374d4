"""A profile of JAX at scale, and the JSON for viewers of the same run.

    python benchmarks/xplane.py [--megabytes 30] [--repeat 3]

A program of a product and a fusion runs again and again: four calls, two kernels, an annotation and
two Python frames a step, with the statistics that JAX records.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from measuring import DATA, ROOT, best, yardstick

sys.path.insert(0, str(ROOT))

from tests.support import xplane_maker

if TYPE_CHECKING:
    from pathlib import Path

MEGABYTES = 30
TARGET_S = 3.0
_STEP_NS = 10_000
_BYTES_A_STEP = 280
_DETAILS = (
    "regs:40 static_shared:0 dynamic_shared:0 grid:128,1,1 block:256,1,1 occ_pct:100"
)
_READ = """
import json, sys, time
from tracelens_ext.readers import read_trace
import tracelens_ext.readers.xplane.reader
begin = time.perf_counter()
trace = read_trace(sys.argv[1], cache=False)
print(json.dumps({"read": time.perf_counter() - begin, "events": len(trace)}))
"""


def made(folder: Path, megabytes: int) -> tuple[Path, Path]:
    """The profile and the JSON, written once."""
    profile = folder / f"jax_{megabytes}.xplane.pb"
    viewer_json = folder / f"jax_{megabytes}.trace.json"
    if profile.exists() and viewer_json.exists():
        return profile, viewer_json
    folder.mkdir(parents=True, exist_ok=True)
    maker = xplane_maker.training()
    about = {"hlo_module": "jit_step", "program_id": 5, "kernel_details": _DETAILS}
    about |= {"theoretical_occupancy_pct": 100, "tf_op": "XlaModule:", "group_id": 0}
    for step in range(megabytes * 10**6 // _BYTES_A_STEP):
        t = (step + 10) * _STEP_NS
        ids = 2 * step + 1_000
        maker.event("train", t, 8_000, step_num=step % 1000)
        maker.event("$train.py:12 step", t + 10, 7_000)
        maker.event("$model.py:7 apply", t + 20, 6_000)
        for at, operation in enumerate(("dot.1", "loop_tanh_fusion")):
            named = {"hlo_op": operation, "name": f"jit(step)/{operation}"}
            maker.event("Execute", t + 100 + 200 * at, 150)
            maker.launched(
                operation,
                t + 1_000 + 500 * at,
                400,
                at=t + 110 + 200 * at,
                correlation=ids + at,
                **about,
                **named,
            )
    profile.write_bytes(maker.content)
    viewer_json.write_bytes(maker.for_viewers)
    return profile, viewer_json


def table(folder: Path, repeat: int, megabytes: int = MEGABYTES) -> str:
    """The figures, as a Markdown table."""
    profile, viewer_json = made(folder, megabytes)
    loaded = yardstick(viewer_json, repeat)
    lines = [
        "| form | events | MB | s | read / json.loads of the JSON |",
        "|---" * 5 + "|",
    ]
    for form, path in (("xplane", profile), ("JSON for viewers", viewer_json)):
        figures = best(_READ, str(path), repeat=repeat, key="read").figures
        size = path.stat().st_size / 1e6
        cells = [
            form,
            f"{figures['events']:,.0f}",
            f"{size:.0f}",
            f"{figures['read']:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} | {figures['read'] / loaded:.2f} |")
    lines.append(f"\nTarget: {MEGABYTES} MB of xplane in {TARGET_S:.0f} s.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=MEGABYTES)
    parser.add_argument("--repeat", type=int, default=3)
    asked = parser.parse_args()
    print(table(DATA, asked.repeat, asked.megabytes))


if __name__ == "__main__":
    main()
