"""The sheets about memory: `memory_peaks`, `memory_at_peak` and `memory_by_operation`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from tracelens_ext.lazy import pd
from tracelens_ext.memory import usage
from tracelens_ext.memory.events import has_memory_events
from tracelens_ext.tables.charts import Chart
from tracelens_ext.tables.options import ReportOptions
from tracelens_ext.tables.table import Condition, Table

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer

_HAS_MEMORY = Condition(
    "the trace has memory events (`profile_memory=True`)",
    lambda analyzer, _: has_memory_events(analyzer.trace),
)


def _of(make: Callable[[usage.Memory], pd.DataFrame]) -> Callable[..., pd.DataFrame]:
    """A table of what the memory events tell."""

    def table(
        analyzer: TreePerfAnalyzer, annotation: str | re.Pattern[str] | None = None
    ) -> pd.DataFrame:  # `annotation` chooses the iterations, as of the table `iterations`
        return make(analyzer.memory(annotation))

    return table


def _largest(analyzer: TreePerfAnalyzer, largest: int = 10) -> pd.DataFrame:
    """The largest blocks of each device."""
    return usage.memory_blocks(analyzer.memory(), largest)


def _notes(
    analyzer: TreePerfAnalyzer, options: ReportOptions, tables: Mapping[str, pd.DataFrame]
) -> Iterable[str]:
    if "memory_peaks" not in tables:
        return ()
    return usage.memory_notes(analyzer.memory(options.annotation))


_table = partial(Table, when=[_HAS_MEMORY])
_OWNER = """phase: `forward`, `backward` or `optimizer`; empty outside of all operations
            operation: the innermost CPU op on the thread at that time; or `(no operation)`
            outer_operation: the outermost CPU op around it
            """

TABLES = [
    _table(
        name="memory_peaks",
        shows="The most memory that each device had allocated, and when",
        columns="""
            device: its number; -1 is the host
            events [memory events]: all of the device
            allocations [memory events]: how many
            frees [memory events]: how many
            allocated_bytes [bytes]: sum of the allocations
            freed_bytes [bytes]: sum of the frees
            peak_allocated_bytes [bytes]: the most that was allocated at once, with what was there
             before the recording
            peak_at_ms: when that was first so, since the trace's first event
            peak_iteration: in which iteration; empty outside of all
            peak_reserved_bytes [bytes]: the most that the caching allocator held, 0 on the host
            unused_at_peak_bytes [bytes]: reserved, but not allocated, at the peak: fragmentation
            most_unused_bytes [bytes]: the most at any time
            end_total_bytes [bytes]: allocated after the last event
            alive_at_end [blocks]: allocated in the trace, and not freed in it
            alive_at_end_bytes [bytes]: of those
            older_frees [memory events]: frees of what the trace did not see allocated
            change_per_iteration_bytes [bytes]: how much more was allocated at the end of an
             iteration than at the end of the one before, on average
            breaks [memory events]: where the recorded totals do not add up: events before it were
             lost by the profiler
            """,
        table=_of(usage.memory_peaks),
        notes=_notes,
    ),
    _table(
        name="memory_at_peak",
        shows="What was alive when the most memory was allocated, and who allocated it",
        columns=f"""
            device: its number; -1 is the host
            {_OWNER}module: the `nn.Module`s around it, as `path` of `nn_modules`; in the backward
                pass those of the forward operation
            python_frame: the innermost Python frame that is not PyTorch's; likewise
            blocks [blocks]: how many
            bytes [bytes]: their sum; those of a device add up to its peak
            largest_bytes [bytes]: the largest block
            % of peak [%]: of the device
            """,
        table=_of(usage.memory_at_peak),
        charts=[Chart("Memory", "memory_at_peak", "operation", "bytes", kind="memory", on="page")],
    ),
    _table(
        name="memory_by_operation",
        shows="What each operation allocated, and for how long",
        columns=f"""
            device: its number; -1 is the host
            {_OWNER}allocations [blocks]: how many
            allocated_bytes [bytes]: their sum
            largest_bytes [bytes]: the largest
            frees [blocks]: of those, how many were freed in the trace
            frees_within_operation [blocks]: freed before the outermost operation ended: churn
            mean_lifetime_us: of those that were freed
            alive_at_peak_bytes [bytes]: of those that were alive at the peak
            kept [blocks]: still alive when the iteration after that of the allocation had ended
            kept_bytes [bytes]: of those
            kept_from_iterations [iterations]: from how many; from every one is a leak
            """,
        table=_of(usage.memory_by_operation),
        screen=(
            "Allocated most in all: outer_operation, operation, allocations, allocated_bytes, "
            "kept_bytes, mean_lifetime_us, frees_within_operation"
        ),
    ),
    _table(
        name="memory_largest",
        shows="The largest blocks of each device",
        columns=f"""
            device: its number; -1 is the host
            bytes [bytes]: of the block
            allocated_at_ms: since the trace's first event
            lifetime_us: empty where it was not freed
            iteration: of the allocation; empty outside of all
            {_OWNER}module, python_frame: as in `memory_at_peak`
            """,
        table=_largest,
        screen=(
            "Largest blocks: outer_operation, bytes, allocated_at_ms, lifetime_us, module, "
            "python_frame"
        ),
        asked_by="tables",
    ),
    _table(
        name="memory_over_time",
        shows="How much memory was allocated and reserved, in at most a thousand points",
        columns="""
            device: its number; -1 is the host
            at_ms: since the trace's first event
            allocated_bytes [bytes]: the most in a stretch of time
            reserved_bytes [bytes]: likewise; empty where it is not recorded
            """,
        table=_of(usage.memory_over_time),
        asked_by="tables",
        on_every_page=True,
    ),
    _table(
        name="memory_iterations",
        shows="When the first hundred iterations begin",
        columns="""
            iteration: its name
            start_ms: since the trace's first event
            """,
        table=_of(usage.memory_iterations),
        asked_by="tables",
        on_every_page=True,
    ),
]
