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


_PHASE = Column(
    "phase", "`forward`, `backward` or `optimizer`; empty outside of all operations"
)
_OPERATION = Column(
    "operation", "the innermost CPU op on the thread at that time, or `(no operation)`"
)
_OUTER_OPERATION = Column("outer_operation", "the outermost CPU op around it")

MEMORY_PEAKS = Table(
    name="memory_peaks",
    description="Peak memory of each device, and when it occurred",
    columns=[
        Column("device", "number of the device; -1 is the CPU"),
        Column("events", "number of memory events of the device", unit="memory events"),
        Column("allocations", "number of allocations", unit="memory events"),
        Column("frees", "number of frees", unit="memory events"),
        Column("allocated_bytes", "sum of the allocations", unit="bytes"),
        Column("freed_bytes", "sum of the frees", unit="bytes"),
        Column(
            "peak_allocated_bytes",
            "most memory allocated at any time, including what was there before the "
            "recording",
            unit="bytes",
        ),
        Column(
            "peak_at_ms", "first time of the peak, since the first event of the trace"
        ),
        Column(
            "peak_iteration", "iteration of the peak; empty outside of all iterations"
        ),
        Column(
            "peak_reserved_bytes",
            "most memory reserved by the caching allocator, 0 on the CPU",
            unit="bytes",
        ),
        Column(
            "unused_at_peak_bytes",
            "reserved but not allocated at the peak: fragmentation",
            unit="bytes",
        ),
        Column(
            "most_unused_bytes",
            "most memory reserved but not allocated at any time",
            unit="bytes",
        ),
        Column("end_total_bytes", "allocated after the last event", unit="bytes"),
        Column(
            "alive_at_end", "allocated and not freed within the trace", unit="blocks"
        ),
        Column("alive_at_end_bytes", "their total size", unit="bytes"),
        Column(
            "older_frees",
            "frees of memory whose allocation was not recorded",
            unit="memory events",
        ),
        Column(
            "change_per_iteration_bytes",
            "mean growth of the allocated memory from the end of one iteration to the "
            "end of the next",
            unit="bytes",
        ),
        Column(
            "breaks",
            "number of times the recorded totals are inconsistent because the "
            "profiler lost events",
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
    description="What used memory at the peak, and what allocated it",
    columns=[
        Column("device", "number of the device; -1 is the CPU"),
        _PHASE,
        _OPERATION,
        _OUTER_OPERATION,
        Column(
            "module",
            "the `nn.Module`s around it, as `path` of `nn_modules`; in the backward "
            "pass, those of the forward operation",
        ),
        Column(
            "python_frame",
            (
                "the innermost Python frame outside of PyTorch; in the backward pass, "
                "that of the forward operation"
            ),
        ),
        Column("blocks", "number of blocks", unit="blocks"),
        Column(
            "bytes",
            "sum of the blocks; those of a device add up to its peak",
            unit="bytes",
        ),
        Column("largest_bytes", "size of the largest block", unit="bytes"),
        Column("% of peak", "of the device's peak", unit="%"),
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
    description="What each operation allocated, and for how long",
    columns=[
        Column("device", "number of the device; -1 is the CPU"),
        _PHASE,
        _OPERATION,
        _OUTER_OPERATION,
        Column("allocations", "number of allocations", unit="blocks"),
        Column("allocated_bytes", "sum of the allocations", unit="bytes"),
        Column("largest_bytes", "size of the largest allocation", unit="bytes"),
        Column("frees", "allocations that were freed within the trace", unit="blocks"),
        Column(
            "frees_within_operation",
            "freed before the outermost operation ended (churn)",
            unit="blocks",
        ),
        Column("mean_lifetime_us", "mean lifetime of the allocations that were freed"),
        Column(
            "alive_at_peak_bytes",
            "sum of the allocations that were in use at the peak",
            unit="bytes",
        ),
        Column(
            "kept",
            "not freed by the end of the iteration after the one of the allocation",
            unit="blocks",
        ),
        Column("kept_bytes", "their total size", unit="bytes"),
        Column(
            "kept_from_iterations",
            "number of iterations that leave such memory; if all do, it is a leak",
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
    description="Largest blocks of each device",
    columns=[
        Column("device", "number of the device; -1 is the CPU"),
        Column("bytes", "size of the block", unit="bytes"),
        Column("allocated_at_ms", "since the first event of the trace"),
        Column("lifetime_us", "empty if it was not freed"),
        Column(
            "iteration", "iteration of the allocation; empty outside of all iterations"
        ),
        _PHASE,
        _OPERATION,
        _OUTER_OPERATION,
        Column("module", "as in `memory_at_peak`"),
        Column("python_frame", "as in `memory_at_peak`"),
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
    description="Allocated and reserved memory over time, at most a thousand points",
    columns=[
        Column("device", "number of the device; -1 is the CPU"),
        Column("at_ms", "since the first event of the trace"),
        Column("allocated_bytes", "maximum in the time bin", unit="bytes"),
        Column(
            "reserved_bytes",
            "maximum in the time bin; empty if not recorded",
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
    description="Start of the first hundred iterations",
    columns=[
        Column("iteration", "its name"),
        Column("start_ms", "since the first event of the trace"),
    ],
    build=_of_memory(memory_iterations),
    options=["annotation"],
    requires=[_HAS_MEMORY],
    enabled_by="tables",
    on_every_page=True,
)
