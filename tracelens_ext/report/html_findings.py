"""The findings at the top of the page: what would save the most time, and where to look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens_ext.lazy import pd
from tracelens_ext.report.excel_text import cleaned
from tracelens_ext.report.html_text import elided

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens_ext.report.report import Answer

_SHEET = "findings"
_MOST = 6
_PLACE = 90  # characters of a name


@dataclass(frozen=True)
class FindingCard:
    """A finding, as the page shows it.

    Attributes:
        title: a sentence.
        confidence: `high`, `medium` or `low`.
        place: where most of it is; empty if unknown.
        advice: what to change.
        snippet: the change in code; may be empty.
        sheet: the table that shows the evidence.
    """

    title: str
    confidence: str
    place: str
    advice: str
    snippet: str
    sheet: str


def finding_cards(
    sheets: Mapping[str, pd.DataFrame], answers: Sequence[Answer]
) -> dict[str, object]:
    """What the page's template needs of the findings: a heading, cards, how many more there are.

    Nothing without the sheet.
    """
    answer = next((each for each in answers if each.sheet == _SHEET), None)
    if answer is None:
        return {}
    rows = sheets[_SHEET].to_dict("records")
    cards = [
        FindingCard(
            title=cleaned(row["title"]),
            confidence=row["confidence"],
            place=elided(row["largest_place"], _PLACE),
            advice=cleaned(row["advice"]),
            snippet=cleaned(row["snippet"]),
            sheet=answer.linked(row["see"], sheets),
        )
        for row in rows[:_MOST]
    ]
    return {
        "findings_heading": answer.title,
        "findings": cards,
        "more_findings": len(rows) - len(cards),
    }
