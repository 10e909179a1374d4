"""The findings of an HTML page: a card for each, with its details and its explanation."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.excel_text import cleaned
from tracelens_ext.report.html_texts import amount_text, elided
from tracelens_ext.report.report import Answer
from tracelens_ext.report.simple_markdown import html_of
from tracelens_ext.text import with_units_attached

_MOST_CARDS = 6
#: Columns that a card shows as they are.
_COLUMNS_OF_CARD = ("confidence", "advice", "snippet")
_PLACE_CHARACTERS = 90  # the most characters of the name of a place
#: A Python frame such as `train.py(12): step`.
_FRAME = re.compile(r"(.+)\(([0-9]+)\): ")


def finding_cards(
    sheets: Mapping[str, pd.DataFrame],
    answers: Sequence[Answer],
    source_url: str = "",
    explanations: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """Return the heading, the cards and the number of further findings for the page's template.

    The result is empty if the report has no answer from the table of findings.

    Args:
        sheets: the tables of the report.
        answers: the answers of the report.
        source_url: the address of a line of Python code, with `{path}` and `{line}`; empty for no
            links.
        explanations: id of a finding → what it means, in Markdown.
    """
    for answer in answers:
        if answer.sheet != "findings":
            continue
        rows = sheets[answer.sheet].to_dict("records")
        details = sheets.get("finding_details", pd.DataFrame({"finding": []}))
        cards = []
        for row in rows[:_MOST_CARDS]:
            card: dict[str, object] = {
                name: cleaned(row[name]) for name in _COLUMNS_OF_CARD
            }
            card["id"] = cleaned(row["finding"])
            card["title"] = with_units_attached(cleaned(row["title"]))
            card["saving"] = with_units_attached(cleaned(row.get("saving", "")))
            card["place"] = elided(row["largest_place"], _PLACE_CHARACTERS)
            card["sheet"] = answer.linked(row["see"], sheets)
            explanation = (explanations or {}).get(str(row["finding"]), "")
            card["explanation"] = html_of(explanation)
            own_details = details[details["finding"] == row["finding"]]
            card["details"] = _details(own_details, source_url)
            cards.append(card)
        return {"heading": answer.title, "cards": cards, "more": len(rows) - len(cards)}
    return {}


class _FindingDetail(NamedTuple):
    """A place of a finding, or a piece of evidence."""

    text: str
    address: str  #: the address of the source code; empty for none


_DETAIL_COLUMNS = ["kind", "name", "amount", "unit", "count", "see"]


def _details(table: pd.DataFrame, source_url: str) -> dict[str, list[_FindingDetail]]:
    """Return the details of a finding by kind of place, or `evidence`."""
    details: defaultdict[str, list[_FindingDetail]] = defaultdict(list)
    rows = table.reindex(columns=_DETAIL_COLUMNS).to_numpy().tolist()
    for kind, name, amount, unit, count, see in rows:
        text = f"{elided(name, _PLACE_CHARACTERS)}: {amount_text(amount, unit, 0.0)}"
        if not math.isnan(count):
            text += f" (×{count:,.0f})"
        if see:
            text += f" ({see})"
        address = ""
        if kind == "python_frames":
            address = _source(name, source_url)
        details[kind.replace("_", " ")].append(_FindingDetail(text, address))
    return details


def _source(frame: str, source_url: str) -> str:
    """Return the address of a frame such as `train.py(12): step`; empty if it has no line."""
    from urllib.parse import quote

    parts = _FRAME.match(frame)
    if parts is None:
        return ""
    relative_path = parts[1].lstrip("/")
    line = parts[2]
    path = quote(relative_path, safe="/", errors="replace")
    return source_url.replace("{line}", line).replace("{path}", path)


def check_source_url(url: str) -> None:
    """Raise a UsageError for an address that cannot lead to lines of source code."""
    from urllib.parse import urlsplit

    with suppress(ValueError):
        parts = urlsplit(url)
        has_host = bool(parts.netloc) and "{" not in parts.netloc
        is_web_address = parts.scheme in ("http", "https") and has_host
        if is_web_address and "{path}" in url:
            return
    raise UsageError(
        f"--source-url {url!r}: give an address such as "
        f"'https://github.com/NAME/REPOSITORY/blob/main/{{path}}#L{{line}}'"
    )
