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

_NAME_CHARACTERS = 64  # the most characters of a name in a card
_ALL_BARS = 1_000_000_000  # no bar is summed with others

_OPERATION_COLOR = "#5b6472"


class _TimeSource(NamedTuple):
    """A table with times of operations, kernels or categories."""

    sheet: str  #: the name of the table
    names: str  #: the column of names
    times: str  #: the column of times
    whole: str  #: the sum of all times, in words


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
#: Names of API calls that launch kernels, which stand for a missing operation.
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
    """A card with a number or a name."""

    label: str  #: what the number or name is
    value: str  #: the number or name
    detail: str  #: the text below the value
    color: str  #: the color of the edge, which charts use for the same thing
    full: str = ""  #: the full name if `value` may be shortened


def headline(sheets: Mapping[str, pd.DataFrame]) -> list[Card]:
    """Return the cards for which the report has tables, the most important first."""
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
    """The name with the largest sum of times."""

    name: str
    detail: str  #: the sum and its share, in words


def _card_of_name(label: str, largest: _Largest, color: str) -> Card:
    return Card(
        label=label,
        value=elided(largest.name, _NAME_CHARACTERS),
        detail=largest.detail,
        color=color,
        full=largest.name,
    )


def _timeline_cards(frame: pd.DataFrame | None) -> list[Card]:
    """Return the cards about the timeline of all devices together.

    Percentages are shares of the total time of all devices, or of their analyzed time if not all
    time is analyzed.
    """
    if frame is None or not {"type", "time ms"} <= set(frame.columns):
        return []
    times = _time_of_type(frame)
    total = times.get("total_time", 0.0)
    if not total or "busy_time" not in times:
        return []
    together = ""
    if "device" in frame and frame["device"].nunique() > 1:
        together = f" of {frame['device'].nunique()} GPUs together"
    prefix = ""
    if times.get("analyzed_time"):
        # Time that was not recorded tells nothing about the GPU.
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
    cards = [
        Card(
            label="GPU busy",
            value=percent_text(100.0 * busy / total),
            detail=f"{text(busy)} of {text(total)}{together}{_analyzed_words(prefix)}",
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
    ]
    return cards + _cards_of_time_not_analyzed(times)


def _time_of_type(frame: pd.DataFrame) -> dict[str, float]:
    """Return `type` → time of all devices, ms.

    If some devices are only analyzed in part, the time of the other devices counts as analyzed.
    """
    sums = frame.groupby("type")["time ms"].sum()
    analyzed = analyzed_rows(frame)
    if len(analyzed):
        analyzed_sums = analyzed.groupby("type")["time ms"].sum()
        sums = pd.concat([sums.drop(analyzed_sums.index), analyzed_sums])
    return {str(kind): float(time) for kind, time in sums.items()}


def _analyzed_words(prefix: str) -> str:
    return " of analyzed time" if prefix else ""


def _cards_of_time_not_analyzed(times: Mapping[str, float]) -> list[Card]:
    """Return a card about time that is not analyzed; empty if all time is analyzed."""
    not_analyzed = {
        "not recorded": times.get("not_recorded_time", 0.0),
        "warm-up": times.get("warm_up_time", 0.0),
    }
    total = sum(not_analyzed.values())
    if not total:
        return []
    wall_time = total + times["analyzed_time"]
    words = [
        f"{duration_text(time)} {name}" for name, time in not_analyzed.items() if time
    ]
    return [
        Card(
            "Not analyzed",
            percent_text(100.0 * total / wall_time),
            f"{', '.join(words)} of {duration_text(wall_time)}",
            color_of("not_recorded_time"),
        )
    ]


def _largest(
    sheets: Mapping[str, pd.DataFrame], sources: Iterable[_TimeSource]
) -> _Largest | None:
    """Return the name with the largest sum of times in the first table of the report.

    Labels such as `(unlinked)` do not count as names. The result is None without any name.
    """
    for source in sources:
        chart = Chart(
            title="",
            sheet=source.sheet,
            label_column=source.names,
            value_column=source.times,
            top=_ALL_BARS,
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
