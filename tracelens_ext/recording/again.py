"""Compilation and capture of graphs: start-up as a rule, and from when on they come again.

* Something is compiled *again* if its names say so (`Torch-Compiled Region: 0/1` is the second code
  of the first region); if a region was run quickly three times before; or if a tenth of all GPU
  work has run since the last compilation, and most of what runs later consists of kernels that ran
  before: the program had its code already.
* A graph is captured *again* after graphs were launched, if a tenth of all GPU work has run since
  the last capture, or if graphs are hardly launched more often than captured.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tracelens_ext.intervals import covered
from tracelens_ext.iterations.iterations import find_iterations
from tracelens_ext.trace import LAUNCH_KINDS, EventKind, Float64Array, Int64Array, Trace
from tracelens_ext.work.gpu_work import GpuWork
from tracelens_ext.work.grouping import minima, number_groups
from tracelens_ext.work.launches import captures, find_launches
from tracelens_ext.work.memoize import once_for_each

OPERATIONS: Final = (EventKind.CPU_OP, EventKind.USER_ANNOTATION)
#: A slow run of a compiled region is a compilation if it takes as long.
_LONG_NS: Final = 5_000_000
_TIMES_THE_SHORTEST: Final = 10
_SINCE_THE_LAST: Final = 0.1  # of the GPU time
_LAUNCHES_A_CAPTURE: Final = 1.5  # at most, of graphs that are captured for each use
_NEVER: Final = np.iinfo(np.int64).max

_COMPILED_REGION: Final = re.compile(r"Torch-Compiled Region|CompiledFunction$")
_AROUND: Final = re.compile(
    r"(?i).*(?:dynamo_timed|\bcompile_fx|async_compile|triton.*compile|xlacompile"
    r"|\b(?:re|jit[_ ]|backend_)?compil(?:e|ing|ation)\b)"
)
_FRAMES: Final = re.compile(
    r".*(?:_dynamo[/\\]convert_frame\.py\(\d+\): _compile$|_inductor[/\\]compile_fx\.py"
    r"|triton[/\\]compiler[/\\]compiler\.py\(\d+\): compile$|\bbackend_compile)"
)
_AGAIN: Final = re.compile(r"(?i).*recompil|Torch-Compiled Region: \d+/[1-9]")
_INSTANTIATION: Final = re.compile(r"(?:cuda|hip|cu)GraphInstantiate")


@once_for_each
def compilations(trace: Trace) -> Int64Array:
    """The host events that are compilations by their names."""
    frames = trace.rows_named(_FRAMES, EventKind.PYTHON_FUNCTION)
    return np.append(frames, trace.rows_named(_AROUND, *OPERATIONS))


def slow_regions(trace: Trace) -> Int64Array:
    """The runs of compiled regions that take so long that they must compile."""
    rows = trace.rows_named(_COMPILED_REGION, *OPERATIONS)
    _, number = number_groups([trace.name[rows]])
    shortest = minima(number, trace.dur[rows], int(number.max(initial=0)) + 1)[number]
    return rows[trace.dur[rows] > np.maximum(_TIMES_THE_SHORTEST * shortest, _LONG_NS)]


def instantiations(trace: Trace) -> Int64Array:
    """The calls that instantiate graphs."""
    return trace.rows_named(_INSTANTIATION, *LAUNCH_KINDS)


@once_for_each
def compiled_again_from(work: GpuWork) -> int:
    """When something is compiled again for the first time, ns; far ahead for never."""
    trace, iterations = work.trace, find_iterations(work.tree)
    times, named = np.sort(trace.ts[compilations(trace)]), trace.rows_named(_AGAIN, *OPERATIONS)
    within = covered(trace.ts[named], trace.end_of(named), times, times + 1) > 0
    slow = slow_regions(trace)
    quick = np.setdiff1d(trace.rows_named(_COMPILED_REGION, *OPERATIONS), slow)
    quick = quick[np.lexsort((trace.ts[quick], trace.name[quick]))]
    third = quick[2:][trace.name[quick[2:]] == trace.name[quick[:-2]]]  # of its name, or later
    names, first = np.unique(trace.name[third], return_index=True)
    known_from = np.full(len(trace.names), _NEVER)
    known_from[names] = trace.ts[third[first]]
    slow = slow[trace.ts[slow] > known_from[trace.name[slow]]]
    if len(slow) or within.any():
        return int(np.append(times[within], trace.ts[slow]).min())
    if len(iterations) > 1:  # in the first one everything is new
        times = times[times >= iterations.end.min()]
    for time in times[_work_since_the_last(work, times) >= _SINCE_THE_LAST].tolist():
        after = work.start >= time
        known = np.isin(work.name[after], np.unique(work.name[~after]))
        later = work.duration[after]
        if later[known].sum() * 2 >= later.sum() > 0:
            return int(time)
    return _NEVER


@once_for_each
def captured_again_from(work: GpuWork) -> int:
    """When a graph is captured or instantiated again for the first time, likewise."""
    trace, launches = work.trace, find_launches(work)
    times = np.sort(trace.ts[np.append(captures(trace)[0], instantiations(trace))])
    launched = trace.ts[launches.rows[launches.is_graph]]
    captured = max(len(captures(trace)[0]), len(instantiations(trace)))
    since = _work_since_the_last(work, times)
    again = since >= _SINCE_THE_LAST
    again |= 0 < len(launched) <= _LAUNCHES_A_CAPTURE * captured
    again &= times > launched.min(initial=_NEVER)
    found = times[again]
    if len(found) > 2 and since[0] >= _SINCE_THE_LAST:
        found = times
    return int(found.min(initial=_NEVER))


def _work_since_the_last(work: GpuWork, times: Int64Array) -> Float64Array:
    """The share of the GPU time between each of some ascending moments and the one before it."""
    order = np.argsort(work.start, kind="stable")
    done = np.concatenate(([0], np.cumsum(work.duration[order])))
    before = done[np.searchsorted(work.start[order], times)]
    return np.diff(before, prepend=0) / max(int(done[-1]), 1)
