"""The top of a page: the few numbers that say where the time went, and the findings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.colours import colour_of, is_name
from tracelens_ext.report.excel_text import cleaned
from tracelens_ext.report.html_figures import TIMELINE_PIECES, ms_per_unit
from tracelens_ext.report.html_text import duration_text, elided, percent_text
from tracelens_ext.tables.charts import Chart, chart_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracelens_ext.report.report import Answer

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
    """A number of the headline."""

    label: str  #: what it is
    value: str  #: the number or the name
    detail: str  #: what stands below it
    colour: str  #: of its edge, the one that the charts use for it
    full: str = ""  #: the whole name when `value` is elided


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

    communication = times.get("total_comm_time", 0.0)
    whole = f"{duration_text(communication)} communication"
    told = [
        ("GPU busy", "busy_time", f"of {duration_text(total)}{together}", "computation_time"),
        ("Exposed communication", "exposed_comm_time", f"of {whole}", "exposed_comm_time"),
        ("GPU idle", "idle_time", f"without GPU work{together}", "idle_time"),
    ]
    cards = []
    for label, kind, of, colour in told:
        time = times.get(kind, 0.0)
        detail = f"{duration_text(time)} {of}"
        if kind == "exposed_comm_time" and not communication:
            detail = "no communication in the trace"
        cards.append(Card(label, percent_text(100.0 * time / total), detail, colours[colour]))
    return cards


def _has_columns(frame: pd.DataFrame | None, names: Iterable[str]) -> bool:
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


_SHEET = "findings"
_MOST = 6
_PLACE = 90  # characters of a name
_FRAME = re.compile(r"(.+)\(([0-9]+)\): ")


def finding_cards(
    sheets: Mapping[str, pd.DataFrame], answers: Sequence[Answer], source_url: str = ""
) -> dict[str, object]:
    """What the page's template shows of the findings: a heading, cards, how many more there are.

    Nothing without the sheet. Details are texts by kind of place, or `evidence`, each with the
    address of its source.

    `answers`: that of the sheet `findings` has the heading. `source_url`: where lines of Python
    are, with `{path}` and `{line}`; empty if nowhere.
    """
    answer = next((each for each in answers if each.sheet == _SHEET), None)
    if answer is None:
        return {}
    rows = sheets[_SHEET].to_dict("records")
    details = sheets.get("finding_details", pd.DataFrame({"finding": []}))
    cards = [
        {
            **{name: cleaned(row[name]) for name in ("title", "confidence", "advice", "snippet")},
            "id": cleaned(row["finding"]),
            "place": elided(row["largest_place"], _PLACE),
            "sheet": answer.linked(row["see"], sheets),
            "details": _details(details[details["finding"] == row["finding"]], source_url),
        }
        for row in rows[:_MOST]
    ]
    return {
        "heading": answer.title,
        "cards": cards,
        "more": len(rows) - len(cards),
    }


def _details(table: pd.DataFrame, source_url: str) -> dict[str, list[tuple[str, str]]]:
    details: dict[str, list[tuple[str, str]]] = {}
    for row in table.to_dict("records"):
        amount, unit = row["amount"], row["unit"]
        shown = duration_text(amount) if unit == "ms" else f"{amount:,.4g} {unit}".strip()
        times = f" (×{row['count']:,.0f})" if row["count"] == row["count"] else ""
        see = f" ({row['see']})" if row["see"] else ""
        text = f"{elided(row['name'], _PLACE)}: {shown}{times}{see}"
        url = _source(row["name"], source_url) if row["kind"] == "python_frames" else ""
        details.setdefault(row["kind"].replace("_", " "), []).append((text, url))
    return details


def _source(frame: str, source_url: str) -> str:
    """The address of a frame such as `train.py(12): step`; empty if it has no line."""
    from urllib.parse import quote

    found = _FRAME.match(frame)
    if not source_url or found is None:
        return ""
    path = quote(found[1].lstrip("/"), safe="/", errors="replace")
    return source_url.replace("{line}", found[2]).replace("{path}", path)


def check_source_url(url: str) -> None:
    """Refuse what is no place of sources."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        right = parts.scheme in ("http", "https") and parts.netloc and "{" not in parts.netloc
    except ValueError:
        right = False
    if not right or "{path}" not in url:
        raise UsageError(
            f"--source-url {url!r}: write an address such as"
            " 'https://github.com/NAME/REPOSITORY/blob/main/{path}#L{line}'"
        )
