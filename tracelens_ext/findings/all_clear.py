"""Whether nothing found means that all is well, or that too little is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.gaps.causes import UNKNOWN
from tracelens_ext.intervals import union_length
from tracelens_ext.recording.program import program_of
from tracelens_ext.trace import NS_PER_MS
from tracelens_ext.work.gpu_work import find_lanes
from tracelens_ext.work.grouping import group_durations

if TYPE_CHECKING:
    from tracelens_ext.findings.inspection import Inspection
    from tracelens_ext.trace import BoolArray
    from tracelens_ext.work.gpu_work import GpuWork

ENOUGH: Final = 0.5  # of the judged time
_NAME: Final = 80  # characters of a kernel
_AMD: Final = ("hip", "roc")


def not_known(inspection: Inspection) -> str:
    """What is not known of a trace without findings; empty where over half was compared.

    Of the idle time, the kernels without a model and the shapes, what is worth most.
    """
    work, judged = inspection.work, inspection.judged_ns
    rows = inspection.roofline.rows
    known = inspection.by_operation([float(row.roofline_ns is not None) for row in rows]) > 0
    if _busy(work, known) > ENOUGH * judged:
        return ""
    missing = inspection.missing
    unmodelled = _busy(work, ~known)
    if told := idle_of_unknown_cause(inspection, unmodelled):
        return told
    if "shapes" in missing and not inspection.roofline.has_shapes:
        share = 100 * unmodelled / judged
        return (
            f"No shapes were recorded: {share:.1f} % of the judged time cannot be compared with"
            f" anything: {missing['shapes']}."
        )
    return _unmodelled_text(work, ~known)


def idle_of_unknown_cause(inspection: Inspection, least_ns: float) -> str:
    """How much idle time has no cause, if it is so much at least; else empty."""
    pieces = inspection.wall.classified.pieces
    idle = inspection.wall.mean_ms((pieces.end - pieces.start)[pieces.cause == UNKNOWN]) * NS_PER_MS
    if idle < least_ns:
        return ""
    how = inspection.missing.get("API calls")
    return (
        f"The GPU is idle for {100 * idle / inspection.judged_ns:.1f} % of the judged time, and why"
        f" is not recorded{f': {how}' if how else ''}."
    )


def _unmodelled_text(work: GpuWork, which: BoolArray) -> str:
    """What is the work that no model knows."""
    trace = work.trace
    groups = group_durations([work.name[which]], work.duration[which])
    total = max(int(work.duration.sum()), 1)
    tool = kernel_profiler(work)
    largest = int(groups.total[0])
    if 2 * largest > int(work.duration[which].sum()):
        name = trace.names[int(groups.keys[0][0])]
        shown = name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"
        return (
            f"{100 * largest / total:.0f} % of GPU time is one kernel that no model knows,"
            f" {shown}: profile it with {tool}."
        )
    share = 100 * int(work.duration[which].sum()) / total
    return f"{share:.0f} % of GPU time is work that no model knows: profile it with {tool}."


def kernel_profiler(work: GpuWork) -> str:
    """What profiles single kernels on the trace's GPUs."""
    trace = work.trace
    names = " ".join(trace.names[code] for code in np.unique(trace.name).tolist()[:1000])
    is_amd = program_of(trace).tool == "rocprofv3" or any(f" {a}" in names for a in _AMD)
    is_amd |= any("AMD" in device.name for device in trace.devices)
    return "rocprof-compute" if is_amd else "ncu"


def _busy(work: GpuWork, which: BoolArray) -> float:
    """How long some GPU events run, the mean over the devices, ns."""
    lanes = find_lanes(work, "device")
    mine = [which & (lanes.of_gpu == lane) for lane in range(len(lanes))]
    return sum(union_length(work.start[m], work.end[m]) for m in mine) / max(len(lanes), 1)
