"""The sheet `unlinked_kernels`: GPU events whose launch is not in the trace."""

from __future__ import annotations

from tracelens_ext.report.short_names import with_short_names
from tracelens_ext.sheets.sheet import GPU_EVENTS, Condition, Sheet

UNLINKED_KERNELS = Sheet(
    name="unlinked_kernels",
    shows="GPU events whose launch is not in the trace",
    columns="""
        kernel: a short name, which tells it from the others of the sheet
        kernel_category: of the kernel, by its name; when categories are on
        kind: `kernel`, `memcpy` or `memset`
        reason: `launch not in the trace` (as when the profiler started between launch and kernel)
            or `no correlation id`
        count [GPU events]: how many
        total_time_ms: summed duration
        avg_time_us, min_time_us, max_time_us: of a GPU event
        % of unlinked time: of the summed durations of unlinked GPU events
        % of GPU time: of all summed durations
        first_start_ms: since the trace's first event
        last_end_ms: likewise; all early means that the profiler started late
        kernel_name: as the trace has it
        """,
    table=lambda analyzer, _: with_short_names(analyzer.get_df_unlinked_kernels()),
    when=[
        GPU_EVENTS,
        Condition(
            "some GPU events are unlinked", lambda analyzer, _: not analyzer.tree.linked.all()
        ),
    ],
    method="get_df_unlinked_kernels()",
)

SHEETS = [UNLINKED_KERNELS]
