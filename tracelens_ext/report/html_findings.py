"""The findings at the top of the page: what would save the most time, and where to look."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.excel_text import cleaned
from tracelens_ext.report.html_text import duration_text, elided

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens_ext.report.report import Answer

_SHEET = "findings"
_MOST = 6
_PLACE = 90  # characters of a name
_FRAME = re.compile(r"(.+)\(([0-9]+)\): ")


@dataclass(frozen=True)
class FindingCard:
    """A finding, as the page shows it."""

    id: str  #: which kind of finding
    title: str  #: a sentence
    confidence: str  #: `high`, `medium` or `low`
    place: str  #: where most of it is; empty if unknown
    advice: str  #: what to change
    snippet: str  #: the change in code; may be empty
    sheet: str  #: the table that shows the evidence
    #: kind of place, or `evidence` → its texts, each with the address of its source
    details: Mapping[str, Sequence[tuple[str, str]]]


def finding_cards(
    sheets: Mapping[str, pd.DataFrame], answers: Sequence[Answer], source_url: str = ""
) -> dict[str, object]:
    """What the page's template needs of the findings: a heading, cards, how many more there are.

    Nothing without the sheet.

    `answers`: that of the sheet `findings` has the heading. `source_url`: where lines of Python
    are, with `{path}` and `{line}`; empty if nowhere.
    """
    answer = next((each for each in answers if each.sheet == _SHEET), None)
    if answer is None:
        return {}
    rows = sheets[_SHEET].to_dict("records")
    details = sheets.get("finding_details", pd.DataFrame({"finding": []}))
    cards = [
        FindingCard(
            id=cleaned(row["finding"]),
            title=cleaned(row["title"]),
            confidence=row["confidence"],
            place=elided(row["largest_place"], _PLACE),
            advice=cleaned(row["advice"]),
            snippet=cleaned(row["snippet"]),
            sheet=answer.linked(row["see"], sheets),
            details=_details(details[details["finding"] == row["finding"]], source_url),
        )
        for row in rows[:_MOST]
    ]
    return {
        "findings_heading": answer.title,
        "findings": cards,
        "more_findings": len(rows) - len(cards),
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
