"""The headline of the HTML report: the few numbers that say where the time went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens_ext.lazy import pd
from tracelens_ext.report.colours import colour_of, is_name
from tracelens_ext.report.html_figures import TIMELINE_PIECES, ms_per_unit
from tracelens_ext.report.html_text import duration_text, elided, percent_text
from tracelens_ext.tables.charts import Chart, chart_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


_NAME = 64  # characters of a name in a card
_ALL = 1_000_000_000  # no bar is summed with others

#: Where the time of an operation stands: table, column of names, column of times, what it is of.
_OPERATION_TIMES = (
    ("kernel_categories", "cpu_op", "total_time_ms", "GPU time"),
    ("kernels_by_category", "cpu_op", "total_time_ms", "GPU time"),
    ("kernel_summary", "Parent cpu_op", "Kernel duration (µs)_sum", "GPU time"),
    ("ops_summary", "name", "total_direct_kernel_time_ms", "GPU time in operations"),
    ("cpu_ops", "cpu_op", "self_time_ms", "CPU time in operations"),
)
_CATEGORY_TIMES = (
    ("gpu_time_by_category", "kernel_category", "total_time_ms", "GPU time"),
    (
        "ops_summary_by_category",
        "op category",
        "total_direct_kernel_time_ms",
        "GPU time in operations",
    ),
)


@dataclass(frozen=True)
class Card:
    """A number of the headline.

    Attributes:
        label: what it is.
        value: the number or the name.
        detail: what stands below it.
        colour: of its edge, the one that the charts use for it.
        full: the whole name when `value` is elided.
    """

    label: str
    value: str
    detail: str
    colour: str
    full: str = ""


def headline(sheets: Mapping[str, pd.DataFrame]) -> list[Card]:
    """Give the numbers that the tables allow, the most telling first."""
    cards = _timeline_cards(sheets.get("gpu_timeline"))
    category = _largest(sheets, _CATEGORY_TIMES)
    if category:
        name, detail = category
        cards.append(Card("Top category", elided(name, _NAME), detail, colour_of(name), name))
    operation = _largest(sheets, _OPERATION_TIMES)
    if operation:
        name, detail = operation
        cards.append(Card("Top operation", elided(name, _NAME), detail, "#5b6472", name))
    return cards


def _timeline_cards(frame: pd.DataFrame | None) -> list[Card]:
    """Sum the timeline of all devices; a percentage is of the sum of their total times."""
    if frame is None or not _has_columns(frame, ("type", "time ms")):
        return []
    times = {str(kind): float(ms) for kind, ms in frame.groupby("type")["time ms"].sum().items()}
    total = times.get("total_time", 0.0)
    if not total or "busy_time" not in times:
        return []
    devices = frame["device"].nunique() if "device" in frame else 1
    together = f" of {devices} GPUs together" if devices > 1 else ""
    colours = {kind: colour for kind, _, colour in TIMELINE_PIECES}

    def share(kind: str) -> str:
        return percent_text(100.0 * times.get(kind, 0.0) / total)

    def time(kind: str) -> str:
        return duration_text(times.get(kind, 0.0))

    communication = times.get("total_comm_time", 0.0)
    return [
        Card(
            "GPU busy",
            share("busy_time"),
            f"{time('busy_time')} of {time('total_time')}{together}",
            colours["computation_time"],
        ),
        Card(
            "Exposed communication",
            share("exposed_comm_time"),
            f"{time('exposed_comm_time')} of {time('total_comm_time')} communication"
            if communication
            else "no communication in the trace",
            colours["exposed_comm_time"],
        ),
        Card(
            "GPU idle",
            share("idle_time"),
            f"{time('idle_time')} without GPU work{together}",
            colours["idle_time"],
        ),
    ]


def _has_columns(frame: pd.DataFrame | None, names: Iterable[str]) -> bool:
    """Whether a table is there, with these columns, and with rows."""
    return frame is not None and len(frame) > 0 and set(names) <= set(frame.columns)


def _largest(
    sheets: Mapping[str, pd.DataFrame], places: Iterable[tuple[str, str, str, str]]
) -> tuple[str, str] | None:
    """Find the name with the largest sum in the first table that is there.

    What is not a name, as `(unlinked)`, is passed over, but its time counts in the whole.
    """
    for sheet, label, value, whole in places:
        if not _has_columns(sheets.get(sheet), (label, value)):
            continue
        chart = Chart("", sheet, label, value, top=_ALL)
        table = chart_table(sheets[sheet], chart)
        if table.empty:
            return None
        sums = table.iloc[:, 0]
        in_ms = sums * (ms_per_unit(value) or 1.0)
        for name, ms in in_ms.items():
            if is_name(str(name)):
                share = percent_text(100.0 * ms / float(in_ms.sum()))
                return str(name), f"{share} of {whole}, {duration_text(ms)}"
    return None
