"""`full-launch-queue`: launches take long as the queue is full: the GPU limits, not the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.findings.finding import Evidence
from tracelens_ext.findings.inspection import Detector
from tracelens_ext.intervals import covered
from tracelens_ext.text import ms_text
from tracelens_ext.trace import NONE, NS_PER_MS, NS_PER_US
from tracelens_ext.work.launches import find_launches

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.findings.inspection import Inspection

#: A launch that does not block takes a few microseconds.
_BLOCKED_NS: Final = 50_000
_FEWEST: Final = 10
_LEAST_PERCENT: Final = 5.0  # of the wall time, that launches block
_BUSY: Final = 0.9


def _detect(inspection: Inspection) -> Finding | None:
    work, trace = inspection.work, inspection.work.trace
    launches = find_launches(work)
    calls = launches.rows[launches.is_kernel & (launches.lane != NONE)]
    events = np.flatnonzero(work.tree.linked & work.is_kernel)
    events = events[np.argsort(work.start[events], kind="stable")]
    _, first = np.unique(work.name[events], return_index=True)  # loads its code
    later = np.delete(events, first)
    later = later[np.isin(work.tree.launch_of_gpu[later], calls)]
    call = work.tree.launch_of_gpu[later]
    begun, ended = trace.ts[call], trace.end_of(call)
    blocked = (ended - begun >= _BLOCKED_NS) & (work.start[later] > ended)
    later, call, begun, ended = later[blocked], call[blocked], begun[blocked], ended[blocked]
    lane = inspection.wall.lanes.of_gpu
    busy = np.zeros(len(call))
    for device in np.unique(lane[later]).tolist():
        mine, here = lane == device, lane[later] == device
        busy[here] = covered(work.start[mine], work.end[mine], begun[here], ended[here])
    full = np.unique(call[busy >= _BUSY * (ended - begun)])
    time = float(trace.dur[full].sum())
    share = 100.0 * time / inspection.judged_ns
    if len(full) < _FEWEST or share < _LEAST_PERCENT:
        return None
    mean = time / len(full) / NS_PER_US
    return inspection.information(
        DETECTOR.id,
        inspection.wall.about(np.zeros(len(work), dtype=bool)),
        title=(
            f"The queue of launches is full: {len(full):,} launches block for {mean:,.0f} µs on"
            f" average, {ms_text(time / NS_PER_MS)} in all; the host is no limit there"
        ),
        advice=(
            "Nothing to do about the launches: the host is ahead, and long launch calls in tables"
            " of the host are its waiting. What makes kernels faster saves time."
        ),
        reason="the GPU was busy during these calls, and their kernels started after they returned",
        evidence=[
            Evidence("launches that block", len(full), "calls", "tree"),
            Evidence("of all launches of kernels", len(calls), "calls", "tree"),
            Evidence("host time in them", time / NS_PER_MS, "ms", "tree"),
        ],
    )


DETECTOR = Detector("full-launch-queue", _detect)
