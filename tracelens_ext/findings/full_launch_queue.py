"""`full-launch-queue`: launches take long as the queue is full: the GPU limits, not the host."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.intervals import covered
from tracelens_ext.text import ms_text
from tracelens_ext.trace import NS_PER_MS, NS_PER_US
from tracelens_ext.work.launches import find_launches

#: A launch that does not block takes a few microseconds; so many, and of the judged time, are told.
_BLOCKED_NS, _FEWEST, _LEAST = 50_000, 4, 0.05
_BUSY: Final = 0.9  # of a launch that blocks, at least


def _detect(inspection: Inspection) -> Finding | None:
    work, trace, lane = inspection.work, inspection.work.trace, inspection.wall.lanes.of_gpu
    launches = find_launches(work)
    events = np.flatnonzero(np.isin(work.tree.launch_of_gpu, launches.rows[launches.is_kernel]))
    events = events[np.argsort(work.start[events], kind="stable")]
    _, first = np.unique(work.name[events], return_index=True)
    events = np.delete(events, first)  # the first of a kernel loads its code
    calls = work.tree.launch_of_gpu[events]
    waits = (trace.dur[calls] >= _BLOCKED_NS) & (work.start[events] > trace.end_of(calls))
    events, calls = events[waits], calls[waits]
    for device in np.unique(lane[events]).tolist():
        mine, here = lane == device, calls[lane[events] == device]
        busy = covered(work.start[mine], work.end[mine], trace.ts[here], trace.end_of(here))
        calls = np.setdiff1d(calls, here[busy < _BUSY * trace.dur[here]])
    time = int(trace.dur[calls].sum())
    if len(calls) < _FEWEST or time < _LEAST * inspection.judged_ns:
        return None
    return inspection.finding(
        DETECTOR.id,
        None,
        title=(
            f"The queue of launches is full: {len(calls):,} launches block for"
            f" {time / len(calls) / NS_PER_US:,.0f} µs on average, {ms_text(time / NS_PER_MS)} in"
            " all; the host is no limit there"
        ),
        informs=True,
        evidence=[Evidence("launches that block", len(calls), "calls", "tree")],
    )


DETECTOR = Detector("full-launch-queue", _detect)
