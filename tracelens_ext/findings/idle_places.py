"""Further places of idle time, for idle time in which the launching thread was in no operation.

These are the parts of the training step, the files of Python frames, the compiled functions that
the main thread of JAX calls, and the GPU work that ends the gaps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from tracelens_ext.analysis.coverage.program import program_of
from tracelens_ext.analysis.cpu_time.activities import Activity, time_by_activity
from tracelens_ext.analysis.idle_time.cpu_activity import (
    HostIntervals,
    event_labels,
    innermost_segments,
)
from tracelens_ext.categorize.kernel_names import simple_name
from tracelens_ext.findings.attribution import MOST_PLACES, python_files, ranked
from tracelens_ext.findings.finding import Claim, Intervals, Place
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.summary import LARGEST_SHARE
from tracelens_ext.trace import NONE, NS_PER_MS, EventKind, Int64Array, IntArray
from tracelens_ext.trace.intervals import covered

#: The parts of a training step in words.
_PARTS_OF_STEP: Final = {
    Activity.DATA_LOADING: "data loading",
    Activity.OPTIMIZER: "the optimizer",
    Activity.BACKWARD: "the backward pass",
    Activity.OPERATIONS: "the forward pass and other operations",
}
#: The call of a compiled function of JAX, on the thread of the program.
_COMPILED_CALL: Final = re.compile(r"PjitFunction\(")
#: How frames of JAX's profiler begin that nobody can change.
_BUILT_IN: Final = ("$builtins ", "$<unknown> ", "$<frozen ", "<built-in")


def idle_places(inspection: Inspection, claim: Claim) -> dict[str, Sequence[Place]]:
    """Return further places of the idle time of a claim by kind, without kinds with no place."""
    kind = program_of(inspection.gpu_events.trace).kind
    idle = claim.intervals.chosen(claim.intervals.gap != NONE)
    places: dict[str, Sequence[Place]] = {}
    if kind == "jax":
        places["main_thread"] = _compiled_calls(inspection, claim, idle)
    places["python_files"] = python_files(
        inspection.gpu_events, claim, inspection.idle_moments
    )
    if kind == "pytorch-training":
        places["parts_of_step"] = _parts_of_step(inspection, claim, idle)
    places["next_work"] = _next_work(inspection, claim, idle)
    return {name: found for name, found in places.items() if found}


def _parts_of_step(
    inspection: Inspection, claim: Claim, idle: Intervals
) -> list[Place]:
    """Return the parts of the training step in which the idle time is."""
    trace = inspection.gpu_events.trace
    has_thread = idle.thread != NONE
    known = idle.chosen(has_thread)
    process = trace.process_of_thread[known.thread].astype(np.int64)
    times = time_by_activity(trace, process, known.start, known.end)
    names = {_PARTS_OF_STEP[part]: times[part] for part in _PARTS_OF_STEP}
    return _places(names, known.gap, len(claim.devices))


def _compiled_calls(
    inspection: Inspection, claim: Claim, idle: Intervals
) -> list[Place]:
    """Return the compiled functions of JAX that the program calls during idle time.

    Threads of the runtime launch the work of these functions, so the launching threads do not tell
    what the program does.
    """
    times = time_in_compiled_calls(inspection, idle.start, idle.end)
    places = _places(times, idle.gap, len(claim.devices))
    if places and places[0].attributed_ms >= LARGEST_SHARE * claim.attributed_ms:
        return places
    return places + _frames_of_main_thread(inspection, claim, idle)


def _frames_of_main_thread(
    inspection: Inspection, claim: Claim, idle: Intervals
) -> list[Place]:
    """Return the Python frames of the program's thread during idle time, the innermost ones."""
    trace = inspection.gpu_events.trace
    frames = trace.rows_of(EventKind.PYTHON_FUNCTION)
    if not len(frames):
        return []
    frames_of_threads = np.bincount(trace.thread[frames])
    main_thread = np.full(len(idle.start), frames_of_threads.argmax())
    during = HostIntervals(main_thread, idle.start, idle.end)
    kinds = (EventKind.PYTHON_FUNCTION,)
    segments = innermost_segments(trace, kinds, during, _BUILT_IN)
    ns = segments.during(main_thread, idle.start, idle.end).of_segment
    code, labels = event_labels(trace, segments.row)
    code = np.where(ns > 0, code, NONE)
    return ranked(code, labels, ns / len(claim.devices))[:MOST_PLACES]


def time_in_compiled_calls(
    inspection: Inspection, start: Int64Array, end: Int64Array
) -> dict[str, Int64Array]:
    """Return how long each compiled function of JAX runs in each of n intervals, ns, (n,)."""
    trace = inspection.gpu_events.trace
    rows = inspection.host_rows(
        _COMPILED_CALL, EventKind.CPU_OP, EventKind.USER_ANNOTATION
    )
    times = {}
    for code in np.unique(trace.name[rows]).tolist():
        calls = rows[trace.name[rows] == code]
        times[trace.names[code]] = covered(
            trace.ts[calls], trace.end_of(calls), start, end
        )
    return times


def _places(
    times: Mapping[str, Int64Array], gap: IntArray, devices: int
) -> list[Place]:
    """Return places, the largest first.

    Args:
        times: the time of each interval in each place, ns, by the name of the place.
        gap: the gap of each interval.
        devices: the number of devices.
    """
    places = []
    for name, ns in times.items():
        total_ms = float(ns.sum()) / devices / NS_PER_MS
        count = len(np.unique(gap[ns > 0]))
        if count:
            places.append(Place(name, total_ms, count))
    places.sort(key=lambda place: -place.attributed_ms)
    return places[:MOST_PLACES]


def _next_work(inspection: Inspection, claim: Claim, idle: Intervals) -> list[Place]:
    """Return the GPU work that ends the gaps as places: `before gemm`."""
    gpu_events = inspection.gpu_events
    length = idle.end - idle.start
    _, first_of_gap, number = np.unique(
        idle.gap, return_index=True, return_inverse=True
    )
    ns_of_gap = np.bincount(number, length) / len(claim.devices)
    gap = idle.gap[first_of_gap]
    event_after = inspection.wall.classified.gaps.after[gap]
    places = ranked(gpu_events.name[event_after], gpu_events.trace.names, ns_of_gap)
    named = []
    for place in places[:MOST_PLACES]:
        name = simple_name(place.name) or place.name
        named.append(Place(f"before {name}", place.attributed_ms, place.count))
    return named
