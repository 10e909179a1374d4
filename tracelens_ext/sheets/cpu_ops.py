"""The sheet `cpu_ops`."""

from __future__ import annotations

from tracelens_ext.report.charts import Chart
from tracelens_ext.sheets.sheet import NO_GPU_EVENTS, Condition, Sheet, cited_sheets

CPU_OPS = Sheet(
    name="cpu_ops",
    shows="Host time by CPU operation",
    columns="""
        cpu_op: the operation
        count [operations]: how many
        total_time_ms: on the host; an operation within itself counts each time
        self_time_ms: without the CPU ops directly below
        avg_time_us: of one, with those
        % of CPU op time: of the sum of self times
        """,
    table=lambda analyzer, _: analyzer.get_df_cpu_ops(),
    when=[
        Condition(
            "the trace has no GPU events, or evidence names it",
            lambda analyzer, options: (
                NO_GPU_EVENTS.holds(analyzer, options)
                or "cpu_ops" in cited_sheets(analyzer, options)
            ),
        )
    ],
    method="get_df_cpu_ops()",
    answer="Top CPU operations",
    answer_when=NO_GPU_EVENTS,
    answer_columns=(
        *("cpu_op", "count", "total_time_ms", "self_time_ms", "avg_time_us"),
        "% of CPU op time",
    ),
    charts=[
        Chart(
            "CPU time by operation",
            "cpu_ops",
            "cpu_op",
            "self_time_ms",
            top=15,
            on="page",
        )
    ],
)

SHEETS = [CPU_OPS]
