"""The sheets of how the GPUs spent their time, and of their counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.lazy import pd
from tracelens_ext.tables.charts import Chart
from tracelens_ext.tables.table import Condition, Table
from tracelens_ext.timeline.timeline import gpu_counters, gpu_timeline, has_gpu_counters

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer


def _with_device(table: pd.DataFrame) -> pd.DataFrame:
    """A chart has a bar a device; of a single one nothing need be said."""
    return table if "device" in table else table.assign(device="")


def _gpu_timeline(
    analyzer: TreePerfAnalyzer, micro_idle_thresh_us: float | None = None
) -> pd.DataFrame:
    """How the GPU spent its time.

    Args:
        analyzer: of the trace.
        micro_idle_thresh_us: splits idle time into holes up to this many µs and longer ones.
    """
    return gpu_timeline(analyzer.work, micro_idle_thresh_us)


def _gpu_counters(analyzer: TreePerfAnalyzer) -> pd.DataFrame:
    """Sampled counters of GPUs."""
    return gpu_counters(analyzer.trace)


GPU_TIMELINE = Table(
    name="gpu_timeline",
    shows="How the GPU spent its time; overlaps counted once",
    columns="""
        device: where there are several; a block each
        type: `computation_time`: kernels that are neither communication nor copies, and memsets.
            `exposed_comm_time`: communication under which nothing computes. `exposed_memcpy_time`:
            copies under which nothing computes or communicates. `busy_time`: all. `idle_time`: the
            rest, with `micro_idle_thresh_us` also split into `micro_idle_time` (holes up to that
            long) and `macro_idle_time`. `total_time`: first start to last end. `total_comm_time`,
            `total_memcpy_time`: hidden or not.
        time ms: busy time over all streams
        percent: of `total_time`
        """,
    table=_gpu_timeline,
    answer="GPU timeline",
    answer_columns=("type", "time ms", "percent", "device"),
    charts=[
        Chart(
            "GPU timeline",
            "gpu_timeline",
            "device",
            "time ms",
            kind="stacked",
            series_column="type",  # The rows that do not overlap and add up to the total.
            only=("computation_time", "exposed_comm_time", "exposed_memcpy_time", "idle_time"),
            prepare=_with_device,
            on="workbook",
        ),
        Chart("GPU timeline", "gpu_timeline", "type", "percent", kind="timeline", on="page"),
    ],
)

GPU_COUNTERS = Table(
    name="gpu_counters",
    shows="Counters of the GPUs, sampled while the program ran",
    columns="""
        device: the GPU
        counter: its name, with its unit
        samples [samples]: how many have a value
        mean, min, max: of their values
        """,
    table=_gpu_counters,
    when=[
        Condition(
            "counters of a GPU were sampled", lambda analyzer, _: has_gpu_counters(analyzer.trace)
        )
    ],
)
TABLES = [GPU_TIMELINE, GPU_COUNTERS]
