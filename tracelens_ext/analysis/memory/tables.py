"""The declarations of the tables about memory: columns, charts, conditions and notes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Protocol

from tracelens_ext.analysis.context import AnalysisContext
from tracelens_ext.analysis.memory.events import has_memory_events
from tracelens_ext.analysis.memory.usage import (
    Memory,
    memory_at_peak,
    memory_blocks,
    memory_by_operation,
    memory_iterations,
    memory_notes,
    memory_over_time,
    memory_peaks,
)
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.conditions import Condition
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import Table, Tables
from tracelens_ext.report.tables.views import ScreenView


class MemoryContext(AnalysisContext, Protocol):
    """A trace that is being analyzed, with its memory events."""

    def memory(self, annotation: str | re.Pattern[str] | None = None) -> Memory:
        """Return the memory events; iterations are found by the pattern `annotation`."""


def _has_memory_events(context: AnalysisContext, _options: ReportOptions) -> bool:
    return has_memory_events(context.trace)


_HAS_MEMORY = Condition(
    "the trace has memory events (`profile_memory=True`)", _has_memory_events
)


def _of_memory(
    make_table: Callable[[Memory], pd.DataFrame],
) -> Callable[..., pd.DataFrame]:
    """Return a function that makes a table of a context from one that makes it of `Memory`."""

    def table(
        context: MemoryContext, annotation: str | re.Pattern[str] | None = None
    ) -> pd.DataFrame:
        return make_table(context.memory(annotation))

    return table


def _largest(context: MemoryContext, largest: int = 10) -> pd.DataFrame:
    """Return the largest blocks of each device."""
    return memory_blocks(context.memory(), largest)


def _notes(
    context: MemoryContext, options: ReportOptions, tables: Tables
) -> Iterable[str]:
    if "memory_peaks" not in tables:
        return ()
    return memory_notes(context.memory(options.annotation))


_DEVICE = Column("device", "number of the device; -1 for the CPU")
_PHASE = Column(
    "phase",
    "phase of training in which the memory was allocated: `forward`, "
    "`backward` or `optimizer`; empty outside of all operations",
)
_OPERATION = Column(
    "operation",
    "innermost CPU op that was running on the allocating thread; `(no "
    "operation)` outside of all CPU ops",
)
_OUTER_OPERATION = Column(
    "outer_operation",
    "outermost CPU op around the allocation; empty outside of all CPU ops",
)
_MODULE = Column(
    "module",
    "the `nn.Module`s around the allocation, as in `path` of `nn_modules`; in the "
    "backward pass, those around the forward operation",
)
_PYTHON_FRAME = Column(
    "python_frame",
    "innermost Python frame outside of PyTorch around the allocation; in the backward "
    "pass, that around the forward operation",
)

MEMORY_PEAKS = Table(
    name="memory_peaks",
    description="Peak memory of each device, and when it occurred",
    columns=[
        _DEVICE,
        Column("events", "number of memory events", unit="memory events"),
        Column(
            "allocations", "number of allocations, freed or not", unit="memory events"
        ),
        Column(
            "frees",
            "number of frees, including those of memory whose allocation was "
            "not recorded",
            unit="memory events",
        ),
        Column("allocated_bytes", "total size of all allocations", unit="bytes"),
        Column("freed_bytes", "total size of all frees", unit="bytes"),
        Column(
            "peak_allocated_bytes",
            "most memory allocated at any time, including memory from before "
            "the recording; empty if the totals were not recorded",
            unit="bytes",
        ),
        Column(
            "peak_at_ms",
            "first time at which the peak was reached, since the first event "
            "of the trace",
        ),
        Column(
            "peak_iteration",
            "iteration in which the peak was reached; empty outside of all iterations",
        ),
        Column(
            "peak_reserved_bytes",
            "most memory reserved by the caching allocator at any time; 0 for "
            "the CPU, empty if not recorded",
            unit="bytes",
        ),
        Column(
            "unused_at_peak_bytes",
            "memory reserved but not allocated at the peak of the allocated "
            "memory; much of it suggests fragmentation",
            unit="bytes",
        ),
        Column(
            "most_unused_bytes",
            "most memory reserved but not allocated at any time",
            unit="bytes",
        ),
        Column(
            "end_total_bytes",
            "memory allocated after the last event; empty if the totals were "
            "not recorded",
            unit="bytes",
        ),
        Column(
            "alive_at_end",
            "number of blocks that were allocated within the trace and not freed",
            unit="blocks",
        ),
        Column("alive_at_end_bytes", "total size of these blocks", unit="bytes"),
        Column(
            "older_frees",
            "number of frees of memory whose allocation was not recorded",
            unit="memory events",
        ),
        Column(
            "change_per_iteration_bytes",
            "mean change of the allocated memory from the end of one complete "
            "iteration to the end of the next; empty for fewer than two",
            unit="bytes",
        ),
        Column(
            "breaks",
            "number of events at which the recorded totals are inconsistent, "
            "because the profiler lost events",
            unit="memory events",
        ),
    ],
    build=_of_memory(memory_peaks),
    options=["annotation"],
    requires=[_HAS_MEMORY],
    notes=_notes,
)
MEMORY_AT_PEAK = Table(
    name="memory_at_peak",
    description="What used memory at the peak, and what had allocated it",
    columns=[
        _DEVICE,
        _PHASE,
        Column(
            "operation",
            "innermost CPU op that was running on the allocating thread; `(no "
            "operation)` outside of all CPU ops; `(before the recording)` or `(events "
            "lost)` for memory whose allocation was not recorded",
        ),
        _OUTER_OPERATION,
        _MODULE,
        _PYTHON_FRAME,
        Column(
            "blocks",
            "number of blocks; empty if their allocation was not recorded",
            unit="blocks",
        ),
        Column(
            "bytes",
            "total size of the blocks; the rows of a device add up to its peak",
            unit="bytes",
        ),
        Column("largest_bytes", "size of the largest block", unit="bytes"),
        Column("% of peak", "`bytes` as a share of the peak of the device", unit="%"),
    ],
    build=_of_memory(memory_at_peak),
    options=["annotation"],
    requires=[_HAS_MEMORY],
    charts=[
        Chart(
            title="Memory",
            sheet="memory_at_peak",
            label_column="operation",
            value_column="bytes",
            kind="memory",
            on="page",
        )
    ],
)
MEMORY_BY_OPERATION = Table(
    name="memory_by_operation",
    description="What each operation allocated, and how long it was in use",
    columns=[
        _DEVICE,
        _PHASE,
        _OPERATION,
        _OUTER_OPERATION,
        Column("allocations", "number of allocations", unit="blocks"),
        Column("allocated_bytes", "total size of the allocations", unit="bytes"),
        Column("largest_bytes", "size of the largest allocation", unit="bytes"),
        Column(
            "frees",
            "number of these allocations that were freed within the trace",
            unit="blocks",
        ),
        Column(
            "frees_within_operation",
            "number of these allocations that were freed before the outermost "
            "operation ended",
            unit="blocks",
        ),
        Column(
            "mean_lifetime_us",
            "mean time from allocation to free, of the allocations that were "
            "freed; empty if none was",
        ),
        Column(
            "alive_at_peak_bytes",
            "total size of the allocations that were in use at the peak of the device",
            unit="bytes",
        ),
        Column(
            "kept",
            "number of allocations that were still in use at the end of the "
            "iteration after the one that made them",
            unit="blocks",
        ),
        Column("kept_bytes", "total size of these allocations", unit="bytes"),
        Column(
            "kept_from_iterations",
            "number of iterations that made such allocations; if all "
            "iterations did, the memory is probably leaking",
            unit="iterations",
        ),
    ],
    build=_of_memory(memory_by_operation),
    options=["annotation"],
    requires=[_HAS_MEMORY],
    screen=ScreenView(
        title="Most memory allocated in total",
        columns=[
            "outer_operation",
            "operation",
            "allocations",
            "allocated_bytes",
            "kept_bytes",
            "mean_lifetime_us",
            "frees_within_operation",
        ],
    ),
)
MEMORY_LARGEST = Table(
    name="memory_largest",
    description="Largest blocks of memory of each device",
    columns=[
        _DEVICE,
        Column("bytes", "size of the block", unit="bytes"),
        Column(
            "allocated_at_ms",
            "time of the allocation, since the first event of the trace",
        ),
        Column(
            "lifetime_us",
            "time from allocation to free; empty if the block was not freed "
            "within the trace",
        ),
        Column(
            "iteration",
            "iteration in which the block was allocated; empty outside of all "
            "iterations",
        ),
        _PHASE,
        _OPERATION,
        _OUTER_OPERATION,
        _MODULE,
        _PYTHON_FRAME,
    ],
    build=_largest,
    requires=[_HAS_MEMORY],
    screen=ScreenView(
        title="Largest blocks",
        columns=[
            "outer_operation",
            "bytes",
            "allocated_at_ms",
            "lifetime_us",
            "module",
            "python_frame",
        ],
    ),
    enabled_by="tables",
)
MEMORY_OVER_TIME = Table(
    name="memory_over_time",
    description="Allocated and reserved memory over time, at most a thousand "
    "points per device",
    columns=[
        _DEVICE,
        Column(
            "at_ms",
            "time at which the allocated memory was highest in the time bin, "
            "since the first event of the trace",
        ),
        Column(
            "allocated_bytes", "most allocated memory in the time bin", unit="bytes"
        ),
        Column(
            "reserved_bytes",
            "most reserved memory in the time bin; empty if not recorded, and for the CPU, whose "
            "memory is never reserved",
            unit="bytes",
        ),
    ],
    build=_of_memory(memory_over_time),
    options=["annotation"],
    requires=[_HAS_MEMORY],
    enabled_by="tables",
    on_every_page=True,
)
MEMORY_ITERATIONS = Table(
    name="memory_iterations",
    description="Starts of the first hundred iterations",
    columns=[
        Column("iteration", "name of the iteration"),
        Column(
            "start_ms", "start of the iteration, since the first event of the trace"
        ),
    ],
    build=_of_memory(memory_iterations),
    options=["annotation"],
    requires=[_HAS_MEMORY],
    enabled_by="tables",
    on_every_page=True,
)
