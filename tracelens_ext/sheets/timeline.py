"""The sheets of how the GPUs spent their time, and of their counters."""

from __future__ import annotations

from tracelens_ext.lazy import pd
from tracelens_ext.report.charts import Chart
from tracelens_ext.sheets.sheet import Condition, Sheet
from tracelens_ext.timeline.timeline import has_gpu_counters


def _with_device(table: pd.DataFrame) -> pd.DataFrame:
    """A chart has a bar a device; of a single one nothing need be said."""
    return table if "device" in table else table.assign(device="")


GPU_TIMELINE = Sheet(
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
    table=lambda analyzer, options: analyzer.get_df_gpu_timeline(options.micro_idle_thresh_us),
    options=["micro_idle_thresh_us"],
    method="get_df_gpu_timeline()",
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

GPU_COUNTERS = Sheet(
    name="gpu_counters",
    shows="Counters of the GPUs, sampled while the program ran",
    columns="""
        device: the GPU
        counter: its name, with its unit
        samples [samples]: how many have a value
        mean, min, max: of their values
        """,
    table=lambda analyzer, _: analyzer.get_df_gpu_counters(),
    when=[
        Condition(
            "counters of a GPU were sampled", lambda analyzer, _: has_gpu_counters(analyzer.trace)
        )
    ],
    method="get_df_gpu_counters()",
)
SHEETS = [GPU_TIMELINE, GPU_COUNTERS]
