"""`small-kernels`: runs of kernels that are shorter than launching them takes.

The holes between them are idle time, and `host-bound`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Detector, Inspection

#: A launch takes the host about this long (the call 3 µs, PyTorch around it more), and the GPU two
#: or three to start and end a kernel: what a shorter one computes is the smaller part of its cost.
_LAUNCH_NS: Final = 5_000
#: Fewer in a row lie between the large kernels of any model.
_RUN: Final = 8


def _detect(inspection: Inspection) -> Finding | None:
    work, wall = inspection.work, inspection.wall
    order, stream = inspection.stream_order
    short = (work.duration < _LAUNCH_NS)[order] & ~work.is_communication[order]
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (stream[1:] != stream[:-1]) | (short[1:] != short[:-1])
    run = np.cumsum(begins) - 1
    mine = short & (wall.free & work.is_kernel)[order]
    count = np.bincount(run[mine], minlength=int(run[-1]) + 1)
    chosen = np.zeros(len(work), dtype=bool)
    chosen[order] = mine & (count >= _RUN)[run]
    share = np.zeros(len(work))
    share[order] = 1.0 - 1.0 / np.maximum(count, 1)[run]  # one kernel of each run stays
    claim = wall.claim_events(chosen, share)
    runs = int((count >= _RUN).sum())
    claimed = work.duration[claim.events]
    median = float(np.median(claimed)) / 1e3 if len(claimed) else 0.0
    return inspection.finding(
        DETECTOR.id,
        claim,
        evidence=[
            Evidence("kernels", len(claim.events), "GPU events", "short_kernels_summary"),
            Evidence("runs of them", runs, "runs", "kernels"),
            Evidence("median duration", median, "µs", "short_kernels_summary"),
            Evidence("their time", wall.mean_ms(claimed), "ms", "kernels"),
        ],
    )


DETECTOR = Detector("small-kernels", _detect, instead="launches go")
