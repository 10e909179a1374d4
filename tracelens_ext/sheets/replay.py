"""The sheets about the replay: what the wall time would be, and what bounds it."""

from __future__ import annotations

from tracelens_ext.report.charts import Chart
from tracelens_ext.sheets.sheet import GPU_EVENTS, Sheet

SHEETS = [
    Sheet(
        name="what_if",
        shows="The wall time if something took longer or shorter, by a replay of the trace",
        columns="""
            change: what is multiplied; [replay](replay.md) has all names
            factor: by what; empty where several are, which `change` then tells
            wall_ms: the wall time then
            saved_ms: of the unchanged replay's wall time
            saved (%): likewise
            """,
        table=lambda analyzer, _: analyzer.get_df_what_if(),
        when=[GPU_EVENTS],
        asked_by="what_if",
        notes=lambda analyzer, _, tables: (
            analyzer.simulation().lines() if "what_if" in tables else []
        ),
        method="get_df_what_if()",
    ),
    Sheet(
        name="critical_path_summary",
        shows="What the wall time hangs on, by kind and category",
        columns="""
            kind: `host`, `launch` (calls that launch, and the latency after them), `kernel`,
                `copy`, `communication`, `other rank`, `gap` or `sync`
            category: of the GPU work
            on_path_ms: time on the critical path
            on_path (%): of all of it
            total_ms: all GPU work of the kind and category; empty of what is none
            """,
        table=lambda analyzer, _: analyzer.get_df_critical_path_summary(),
        when=[GPU_EVENTS],
        asked_by="what_if",
        charts=[
            Chart(
                "Critical path",
                "critical_path_summary",
                "kind",
                "on_path_ms",
                kind="stacked",
                on="page",
            )
        ],
        on_every_page=True,
        method="get_df_critical_path_summary()",
    ),
    Sheet(
        name="critical_path",
        shows="What the wall time hangs on, segment by segment",
        columns="""
            start_us: from the start of the window
            duration_us: segments leave no gap: they sum to the replayed wall time
            kind, category: as in `critical_path_summary`
            name: of the kernel, the copy, or the call
            operation: the one that launched it, or the host was in
            stream: -1 of the host
            edge: what bound it: `stream`, `wait`, `launch`, `sync` or `not in the file`
            known [yes/no]: whether the recording tells that, and how long it lasts by itself
            """,
        table=lambda analyzer, _: analyzer.get_df_critical_path(),
        when=[GPU_EVENTS],
        asked_by="what_if",
        method="get_df_critical_path()",
    ),
]
