"""The headline of an HTML page: cards with the most important numbers of the tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tracelens_ext.lazy import pd
from tracelens_ext.report.colors import color_of, is_name
from tracelens_ext.report.html_texts import (
    duration_text,
    elided,
    ms_per_unit,
    percent_text,
)
from tracelens_ext.report.tables.charts import Chart, chart_table
from tracelens_ext.report.tables.timeline_rows import analyzed_rows

# characters of a name in a card; no bar is summed with others
_NAME = 64
_ALL = 1_000_000_000

_OPERATION_COLOR = "#5b6472"


class _TimeSource(NamedTuple):
    """Where the time of an operation or a category stands."""

    sheet: str  #: the table
    names: str  #: the column of names
    times: str  #: the column of times
    whole: str  #: what all times are


_OPERATION_TIMES = (
    _TimeSource(
        sheet="kernel_categories",
        names="cpu_op",
        times="total_time_ms",
        whole="GPU time",
    ),
    _TimeSource(
        sheet="kernels_by_category",
        names="cpu_op",
        times="total_time_ms",
        whole="GPU time",
    ),
    _TimeSource(
        sheet="kernel_summary",
        names="Parent cpu_op",
        times="Kernel duration (µs)_sum",
        whole="GPU time",
    ),
    _TimeSource(
        sheet="ops_summary",
        names="name",
        times="total_direct_kernel_time_ms",
        whole="GPU time in operations",
    ),
    _TimeSource(
        sheet="cpu_ops",
        names="cpu_op",
        times="self_time_ms",
        whole="CPU time in operations",
    ),
)
_KERNEL_TIMES = (
    _TimeSource("kernels_by_category", "kernel", "total_time_ms", "GPU time"),
    _TimeSource(
        "kernel_summary", "Kernel name", "Kernel duration (µs)_sum", "GPU time"
    ),
)
#: What launches kernels where no operation is around it.
_API_CALL = re.compile(r"(cuda|cu|hip)[A-Z]\w*$")
_CATEGORY_TIMES = (
    _TimeSource(
        sheet="gpu_time_by_category",
        names="kernel_category",
        times="total_time_ms",
        whole="GPU time",
    ),
    _TimeSource(
        sheet="ops_summary_by_category",
        names="op category",
        times="total_direct_kernel_time_ms",
        whole="GPU time in operations",
    ),
)


class Card(NamedTuple):
    """A number of the headline."""

    label: str  #: what it is
    value: str  #: the number or the name
    detail: str  #: what stands below it
    color: str  #: of its edge, the one that the charts use for it
    full: str = ""  #: the whole name when `value` is elided


def headline(sheets: Mapping[str, pd.DataFrame]) -> list[Card]:
    """Return the numbers that the tables allow, the most telling first."""
    cards = _timeline_cards(sheets.get("gpu_timeline"))
    category = _largest(sheets, _CATEGORY_TIMES)
    if category is not None:
        color = color_of(category.name)
        card = _card_of_name("Top category", category, color)
        cards.append(card)
    operation = _largest(sheets, _OPERATION_TIMES)
    kernel = _largest(sheets, _KERNEL_TIMES)
    if operation is not None and not _API_CALL.match(operation.name):
        cards.append(_card_of_name("Top operation", operation, _OPERATION_COLOR))
    elif kernel is not None:
        cards.append(_card_of_name("Top kernel", kernel, _OPERATION_COLOR))
    return cards


class _Largest(NamedTuple):
    """The name that has the largest sum, and what that is."""

    name: str
    detail: str


def _card_of_name(label: str, largest: _Largest, color: str) -> Card:
    return Card(
        label=label,
        value=elided(largest.name, _NAME),
        detail=largest.detail,
        color=color,
        full=largest.name,
    )


def _timeline_cards(frame: pd.DataFrame | None) -> list[Card]:
    """Sum the timeline of all devices; a percentage is of the sum of their total times."""
    if frame is None or not {"type", "time ms"} <= set(frame.columns):
        return []
    analyzed = analyzed_rows(frame)
    sums = frame.groupby("type")["time ms"].sum()
    if len(analyzed):
        of_analyzed = analyzed.groupby("type")["time ms"].sum()
        sums = pd.concat([sums.drop(of_analyzed.index), of_analyzed])
    times = {str(kind): float(time) for kind, time in sums.items()}
    total = times.get("total_time", 0.0)
    if not total or "busy_time" not in times:
        return []
    together = ""
    if "device" in frame and frame["device"].nunique() > 1:
        together = f" of {frame['device'].nunique()} GPUs together"
    prefix = ""
    if times.get("analyzed_time"):
        # Shares of what was not recorded would say nothing of the GPU.
        prefix = "analyzed_"
        total = times["analyzed_time"]
    busy = times[f"{prefix}busy_time"]
    exposed = times.get(f"{prefix}exposed_comm_time", 0.0)
    idle = times.get(f"{prefix}idle_time", 0.0)
    text = duration_text
    communication = times.get("total_comm_time")
    of_communication = "no communication in the trace"
    if communication:
        of_communication = f"{text(exposed)} of {text(communication)} communication"
    return [
        Card(
            label="GPU busy",
            value=percent_text(100.0 * busy / total),
            detail=f"{text(busy)} of {text(total)}{together}{_of_what(prefix)}",
            color=color_of("computation_time"),
        ),
        Card(
            label="Exposed communication",
            value=percent_text(100.0 * exposed / total),
            detail=of_communication,
            color=color_of("exposed_comm_time"),
        ),
        Card(
            label="GPU idle",
            value=percent_text(100.0 * idle / total),
            detail=f"{text(idle)} without GPU work{together}",
            color=color_of("idle_time"),
        ),
        *_set_aside_cards(times),
    ]


def _of_what(prefix: str) -> str:
    if not prefix:
        return ""
    return " of analyzed time"


def _set_aside_cards(times: Mapping[str, float]) -> list[Card]:
    """Return a card about what is not analyzed, if there is any."""
    set_aside = {
        "not recorded": times.get("not_recorded_time", 0.0),
        "warm-up": times.get("warm_up_time", 0.0),
    }
    whole = sum(set_aside.values())
    if not whole:
        return []
    wall = whole + times["analyzed_time"]
    words = [
        f"{duration_text(time)} {name}" for name, time in set_aside.items() if time
    ]
    return [
        Card(
            "Not analyzed",
            percent_text(100.0 * whole / wall),
            f"{', '.join(words)} of {duration_text(wall)}",
            color_of("not_recorded_time"),
        )
    ]


def _largest(
    sheets: Mapping[str, pd.DataFrame], sources: Iterable[_TimeSource]
) -> _Largest | None:
    """Return the name with the largest sum in the first table that has one.

    `(unlinked)` and its like are no names.
    """
    for source in sources:
        chart = Chart(
            title="",
            sheet=source.sheet,
            label_column=source.names,
            value_column=source.times,
            top=_ALL,
        )
        if source.sheet not in sheets or not chart.fits(sheets[source.sheet]):
            continue
        table = chart_table(sheets[source.sheet], chart)
        in_ms = table.sum(axis=1) * (ms_per_unit(source.times) or 1.0)
        for name, ms in in_ms.items():
            if is_name(str(name)):
                share = percent_text(100.0 * ms / float(in_ms.sum()))
                detail = f"{share} of {source.whole}, {duration_text(ms)}"
                return _Largest(str(name), detail)
        if table.empty:
            return None
    return None
