"""Host events that may be warm-up, found by their names and lengths.

Which of them are warm-up is decided in `warm_up`.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

import numpy as np

from tracelens_ext.analysis.coverage.benchmarks import benchmark_ranges
from tracelens_ext.analysis.coverage.first_launches import slow_first_launches
from tracelens_ext.analysis.coverage.warm_up_work import (
    find_benchmarks,
    find_named_warm_up,
    named_warm_up_ranges,
)
from tracelens_ext.lazy import pd
from tracelens_ext.trace import LAUNCH_KINDS, EventKind, Int64Array, Trace
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import minima, number_groups
from tracelens_ext.trace.launches import captures


class WarmUp(StrEnum):
    """The kinds of warm-up, in words."""

    FIRST_USE = "first use"
    CAPTURE = "graph capture"
    CODE_LOADING = "module loading"
    CONTEXT = "context creation"
    INSTANTIATION = "graph instantiation"
    COMPILATION = "compilation"
    SEARCH = "search for the best convolution algorithm"
    AUTOTUNING = "autotuning"
    FIRST_LAUNCH = "first launch of a kernel"
    NAMED = "range of the program"


#: A call that takes longer may be a first use. A run of a compiled region may contain a compilation
#: only if it takes longer.
LONG_CALL_NS: Final = 5_000_000
#: A run of a compiled region contains a compilation if it takes this many times as long as the
#: shortest run of the region.
_TIMES_THE_SHORTEST_RUN: Final = 10

OPERATIONS: Final = (EventKind.CPU_OP, EventKind.USER_ANNOTATION)

#: Calls that wait for the GPU, copy, or launch a graph may be long at any time.
_WAITS: Final = re.compile(r".*(?:Synchronize|Memcpy|GraphLaunch|Query|EventElapsed)")
_LOADS_CODE: Final = re.compile(r"(?:cuda|hip|cu)(?:Module|Library)Load")
_CREATES_CONTEXT: Final = re.compile(
    r"(?:cu|hip)(?:Init$|CtxCreate|DevicePrimaryCtxRetain)"
)
_SEARCHES: Final = re.compile(r"cudnn(?:Find|Get)\w*Algorithm")
_INSTANTIATES: Final = re.compile(r"(?:cuda|hip|cu)GraphInstantiate")
_COMPILED_REGION: Final = re.compile(r"Torch-Compiled Region|CompiledFunction$")
#: Operations and annotations that enclose a compilation.
_COMPILING_OPERATION: Final = re.compile(
    r"(?i).*(?:dynamo_timed|\bcompile_fx|async_compile|triton.*compile|xlacompile"
    r"|\b(?:re|jit[_ ]|backend_)?compil(?:e|ing|ation)\b)"
)
_COMPILING_FRAME: Final = re.compile(
    r".*(?:_dynamo[/\\]convert_frame\.py\(\d+\): _compile$|_inductor[/\\]compile_fx\.py"
    r"|triton[/\\]compiler[/\\]compiler\.py\(\d+\): compile$|\bbackend_compile)"
)


def warm_up_events(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return the host events that may be warm-up, on all devices; they may overlap.

    Returns:
        A table with the columns `what` (the value of a `WarmUp`), `row` (of the host event),
        `start` and `end` (ns since the trace's first event).
    """
    trace = gpu_events.trace
    capture_begins, capture_ends = captures(trace)
    tables = [
        _event_table(trace, WarmUp.FIRST_USE, _long_calls(trace)),
        _event_table(trace, WarmUp.CAPTURE, capture_begins, capture_ends),
        _event_table(
            trace, WarmUp.CODE_LOADING, trace.rows_named(_LOADS_CODE, *LAUNCH_KINDS)
        ),
        _event_table(
            trace, WarmUp.CONTEXT, trace.rows_named(_CREATES_CONTEXT, *LAUNCH_KINDS)
        ),
        _event_table(trace, WarmUp.INSTANTIATION, instantiations(trace)),
        _event_table(trace, WarmUp.COMPILATION, compilations(trace)),
        _event_table(trace, WarmUp.COMPILATION, slow_regions(trace)),
        _event_table(trace, WarmUp.SEARCH, trace.rows_named(_SEARCHES, *OPERATIONS)),
        _event_table(trace, WarmUp.FIRST_LAUNCH, slow_first_launches(gpu_events)),
    ]
    if len(find_benchmarks(gpu_events)):
        tables.append(
            _event_table(trace, WarmUp.AUTOTUNING, benchmark_ranges(gpu_events))
        )
    if len(find_named_warm_up(gpu_events)):
        tables.append(
            _event_table(trace, WarmUp.NAMED, named_warm_up_ranges(gpu_events))
        )
    return pd.concat(tables, ignore_index=True)


def _event_table(
    trace: Trace, what: WarmUp, rows: Int64Array, last_rows: Int64Array | None = None
) -> pd.DataFrame:
    """Return a table of events of one kind.

    Args:
        trace: the trace.
        what: the kind of warm-up.
        rows: the events, (n,).
        last_rows: the events whose end is the end of each row, (n,); by default, the events
            themselves.
    """
    if last_rows is None:
        last_rows = rows
    return pd.DataFrame(
        {
            "what": what.value,
            "row": rows,
            "start": trace.ts[rows],
            "end": trace.end_of(last_rows),
        }
    )


def _long_calls(trace: Trace) -> Int64Array:
    """Return the rows of long calls of the runtime or driver, except those that are often long."""
    calls = trace.rows_of(*LAUNCH_KINDS)
    is_long = trace.dur[calls] > LONG_CALL_NS
    long_calls = np.setdiff1d(calls[is_long], instantiations(trace))
    is_wait = trace.named(trace.name[long_calls], _WAITS.match)
    return long_calls[~is_wait]


@cached_per_object
def compilations(trace: Trace) -> Int64Array:
    """Return the rows of the host events that are compilations according to their names."""
    frames = trace.rows_named(_COMPILING_FRAME, EventKind.PYTHON_FUNCTION)
    operations = trace.rows_named(_COMPILING_OPERATION, *OPERATIONS)
    return np.append(frames, operations)


def compiled_regions(trace: Trace) -> Int64Array:
    """Return the rows of the runs of compiled regions."""
    return trace.rows_named(_COMPILED_REGION, *OPERATIONS)


def slow_regions(trace: Trace) -> Int64Array:
    """Return the rows of the runs of compiled regions that are so slow that they must compile."""
    rows = compiled_regions(trace)
    duration = trace.dur[rows]
    first_of_region, region = number_groups([trace.name[rows]])
    shortest = minima(
        group_index=region, values=duration, group_count=len(first_of_region)
    )
    threshold = np.maximum(_TIMES_THE_SHORTEST_RUN * shortest, LONG_CALL_NS)
    is_slow = duration > threshold[region]
    return rows[is_slow]


def instantiations(trace: Trace) -> Int64Array:
    """Return the rows of the calls that instantiate CUDA graphs."""
    return trace.rows_named(_INSTANTIATES, *LAUNCH_KINDS)
