"""Which charts a set of tables allows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracelens_ext.report.charts import Chart, chart_table
from tracelens_ext.report.html_figures import Figure, Palette, bar_figure, timeline_figure
from tracelens_ext.report.html_iterations import NEEDED, iteration_figures

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pandas as pd

_OPERATIONS, _KERNELS, _LAUNCHES, _MODULES = 15, 20, 15, 15  # bars

_CATEGORIES = (
    Chart("GPU time by category", "kernel_categories", "kernel_category", "total_time_ms"),
    Chart(
        "GPU time by operation category",
        "ops_summary_by_category",
        "op category",
        "total_direct_kernel_time_ms",
    ),
)
_BY_OPERATION = (
    Chart(
        "GPU time by operation",
        "kernel_categories",
        "cpu_op",
        "total_time_ms",
        kind="stacked",
        top=_OPERATIONS,
        series_column="kernel_category",
    ),
    Chart(
        "GPU time by operation",
        "kernel_summary",
        "Parent cpu_op",
        "Kernel duration (µs)_sum",
        top=_OPERATIONS,
    ),
    Chart(
        "GPU time by operation",
        "ops_summary",
        "name",
        "total_direct_kernel_time_ms",
        top=_OPERATIONS,
    ),
    Chart("CPU time by operation", "cpu_ops", "cpu_op", "self_time_ms", top=_OPERATIONS),
)
_BY_KERNEL = (
    Chart(
        "Top kernels",
        "kernels_by_category",
        "kernel_name",
        "total_time_ms",
        kind="stacked",
        top=_KERNELS,
        series_column="kernel_category",
    ),
    Chart("Top kernels", "kernel_summary", "Kernel name", "Kernel duration (µs)_sum", top=_KERNELS),
)
_BY_MODULE = (Chart("GPU time by module", "nn_modules", "path", "gpu_time_self_ms", top=_MODULES),)

_LAUNCH_COLUMNS = ("launch", "path", "launches", "kernels_per_launch", "busy_time_ms")
_MODULE_COLUMNS = ("path", "gpu_time_self_ms")
_INSTANCE = re.compile(r"_\d+$")  # PyTorch numbers the modules of a class
_CATEGORY_SHARE = re.compile(r"(?P<category>.+) \(% of kernel time\)")


def page_figures(sheets: Mapping[str, pd.DataFrame], palette: Palette) -> list[Figure]:
    """Give the charts that the tables allow, the most telling first.

    Args:
        sheets: the tables by name. A chart whose table or columns are absent is left out, and so
            is one without a number other than zero.
        palette: the colours, given out in the order of the categories' times.
    """
    figures: list[Figure | None] = []
    timeline = sheets.get("gpu_timeline")
    if timeline is not None and has_columns(timeline, ("type", "time ms", "percent")):
        figures.append(timeline_figure(timeline))
    figures += [_first_of(sheets, charts, palette) for charts in (_CATEGORIES, _BY_OPERATION)]
    iterations = sheets.get("iterations")
    if iterations is not None and has_columns(iterations, NEEDED):
        figures += iteration_figures(iterations, palette)
    figures.append(_launches_figure(sheets.get("graph_launches"), palette))
    figures.append(_modules_figure(sheets.get("nn_modules"), palette))
    figures.append(_first_of(sheets, _BY_KERNEL, palette))
    return [figure for figure in figures if figure is not None]


def chart_figure(sheets: Mapping[str, pd.DataFrame], chart: Chart, palette: Palette) -> Figure:
    """Turn a chart of a table into one of the page.

    Raises:
        ValueError: the table or one of its columns is absent.
    """
    if chart.sheet not in sheets:
        message = f"the chart {chart.title!r} needs the sheet {chart.sheet!r}"
        raise ValueError(message)
    return bar_figure(chart, chart_table(sheets[chart.sheet], chart), palette)


def has_columns(frame: pd.DataFrame | None, names: Iterable[str]) -> bool:
    """Whether a table is there, with these columns, and with rows."""
    return frame is not None and len(frame) > 0 and set(names) <= set(frame.columns)


def _first_of(
    sheets: Mapping[str, pd.DataFrame], charts: Iterable[Chart], palette: Palette
) -> Figure | None:
    """Draw the first of some charts that has its table."""
    for chart in charts:
        needed = [chart.label_column, chart.value_column, chart.series_column]
        if has_columns(sheets.get(chart.sheet), [name for name in needed if name is not None]):
            table = chart_table(sheets[chart.sheet], chart)
            return bar_figure(chart, table, palette) if len(table) else None
    return None


def _launches_figure(frame: pd.DataFrame | None, palette: Palette) -> Figure | None:
    """Draw the busy time of each graph launch site, divided as its kernels' durations are."""
    import pandas as pd

    if frame is None or not has_columns(frame, _LAUNCH_COLUMNS):
        return None
    site = [
        f"{launches:,} \u00d7 {kernels:,} kernels: {path or launch}"
        for launch, path, launches, kernels in frame[list(_LAUNCH_COLUMNS[:4])].itertuples(
            index=False
        )
    ]
    if len(set(site)) < len(site):  # same path, as many kernels, but not the same ones
        site = [f"#{number} {text}" for number, text in enumerate(site, 1)]
    shares = {
        found["category"]: frame[column] / 100.0
        for column in frame.columns
        if (found := _CATEGORY_SHARE.fullmatch(str(column)))
    }
    busy = frame["busy_time_ms"]
    parts = [
        pd.DataFrame({"site": site, "category": category, "busy_time_ms": busy * share})
        for category, share in shares.items()
    ] or [pd.DataFrame({"site": site, "category": "", "busy_time_ms": busy})]
    chart = Chart(
        "GPU time by graph launch",
        "graph_launches",
        "site",
        "busy_time_ms",
        kind="stacked" if shares else "bar",
        top=_LAUNCHES,
        series_column="category" if shares else None,
    )
    table = chart_table(pd.concat(parts, ignore_index=True), chart)
    return bar_figure(chart, table, palette) if len(table) else None


def _modules_figure(frame: pd.DataFrame | None, palette: Palette) -> Figure | None:
    """Draw the time of each class of modules: 24 layers of a kind are one bar, not 24."""
    import pandas as pd

    if frame is None or not has_columns(frame, _MODULE_COLUMNS):
        return None
    paths = frame["path"].astype(str).tolist()
    classes = [_INSTANCE.sub("", path.rpartition("/")[2]) for path in paths]
    summed = pd.DataFrame({"module": classes, "gpu_time_self_ms": frame["gpu_time_self_ms"]})
    chart = Chart(
        "GPU time by module class, without the modules within",
        "nn_modules",
        "module",
        "gpu_time_self_ms",
        top=_MODULES,
    )
    table = chart_table(summed, chart)
    return bar_figure(chart, table, palette) if len(table) else None
