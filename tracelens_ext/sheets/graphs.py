"""The sheet `graph_launches`: graph launches by the place that launches them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracelens_ext.report.charts import Chart
from tracelens_ext.sheets.sheet import GPU_EVENTS, Condition, Sheet

if TYPE_CHECKING:
    import pandas as pd

_CATEGORY_SHARE = re.compile(r"(?P<category>.+) \(% of kernel time\)")


def _sites(table: pd.DataFrame) -> pd.DataFrame:
    """The busy time of each launch site, divided as the durations of its kernels are."""
    import pandas as pd

    columns = ["launch", "path", "launches", "kernels_per_launch"]
    site = [
        f"{launches:,} \u00d7 {kernels:,} kernels: {path or launch}"
        for launch, path, launches, kernels in table[columns].itertuples(index=False)
    ]
    if len(set(site)) < len(site):  # same path, as many kernels, but not the same ones
        site = [f"#{number} {text}" for number, text in enumerate(site, 1)]
    shares = {
        found["category"]: table[column] / 100.0
        for column in table.columns
        if (found := _CATEGORY_SHARE.fullmatch(str(column)))
    }
    shares = shares or {"": pd.Series(1.0, index=table.index)}
    parts = [
        pd.DataFrame(
            {"site": site, "category": name, "busy_time_ms": table["busy_time_ms"] * share}
        )
        for name, share in shares.items()
    ]
    return pd.concat(parts, ignore_index=True)


GRAPH_LAUNCHES = Sheet(
    name="graph_launches",
    shows="Graph launches by the place that launches them",
    columns="""
        launch: the runtime call
        path: the CPU ops around it, outermost first, joined by ` > `; annotations such as
            `ProfilerStep#3` are no part of it
        launches [launches]: how many
        kernels_per_launch [GPU events]: 0 if the trace does not hold their work
        busy_time_ms: busy time of the launches, summed
        avg_busy_time_us, min_busy_time_us, max_busy_time_us: of a launch
        avg_span_time_us: first start to last end of a launch; what exceeds the busy time is gaps
            within the graph
        % of GPU busy time: of the busy time of all GPU events
        CATEGORY (% of kernel time): when categories are on: share in the summed durations of the
            site
        """,
    table=lambda analyzer, _: analyzer.get_df_graph_launches(),
    when=[
        GPU_EVENTS,
        Condition(
            "a graph launch started GPU events",
            lambda analyzer, _: bool(analyzer.tree.by_graph.any()),
        ),
    ],
    method="get_df_graph_launches()",
    charts=[
        Chart(
            "GPU time by graph launch",
            "graph_launches",
            "site",
            "busy_time_ms",
            kind="stacked",
            top=15,
            series_column="category",
            prepare=_sites,
            on="page",
        )
    ],
)

SHEETS = [GRAPH_LAUNCHES]
