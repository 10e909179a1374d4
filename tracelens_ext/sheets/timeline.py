"""The sheet `gpu_timeline`: how the GPU spent its time."""

from __future__ import annotations

from tracelens_ext.lazy import pd
from tracelens_ext.report.charts import Chart
from tracelens_ext.sheets.sheet import Sheet


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
    answer_columns=("device", "type", "time ms", "percent"),
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

SHEETS = [GPU_TIMELINE]
