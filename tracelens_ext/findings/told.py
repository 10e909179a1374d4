"""Findings as a table, and their places and evidence as texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.text import NO_NAME, ms_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens_ext.findings.finding import Evidence, Finding, Findings

NOTHING: Final = "Nothing that was looked for would save more than 1 % of the judged time."
_TEXTS: Final = (
    *("finding", "title", "confidence", "confidence_reason", "largest_place", "where", "evidence"),
    *("see", "advice", "snippet", "documentation"),
)
#: What evidence cites that is no sheet.
_COMMANDS: Final = frozenset({"gaps", "tree"})
#: The share of a saving below which a place is not named in texts.
_LEAST_PLACE: Final = 0.02
#: Kinds of places, the one that tells most of what to change first.
_MOST_TELLING: Final = ("python_frames", "collectives", "operations", "kernels", "modules")


def findings_table(found: Findings) -> pd.DataFrame:
    """A row a finding, in their order.

    Returns:
        Columns `finding`, `title`, `saving_ms`, `claimed_ms`, `% of judged time`, `saving_low_ms`,
        `saving_high_ms` (both empty where the saving is that), `confidence`, `confidence_reason`,
        `largest_place` (its largest place), `where` (each kind of place) and `evidence` (each
        number), `see` (the sheets and commands with the evidence), `advice`, `snippet`,
        `documentation`.
    """
    rows = [
        {
            "finding": finding.id,
            "title": finding.title,
            "saving_ms": finding.saving_ms,
            "claimed_ms": finding.claimed_ms,
            "% of judged time": finding.share_percent,
            "saving_low_ms": _number(finding.saving_low_ms),
            "saving_high_ms": _number(finding.saving_high_ms),
            "confidence": finding.confidence,
            "confidence_reason": finding.confidence_reason,
            "largest_place": largest_place(finding),
            "where": " | ".join(f"{kind}: {text}" for kind, text in place_texts(finding).items()),
            "evidence": "; ".join(evidence_text(each) for each in finding.evidence),
            "see": ", ".join(dict.fromkeys(_seen(each) for each in finding.evidence)),
            "advice": finding.advice,
            "snippet": finding.snippet,
            "documentation": f"{finding.documentation} of tracelens-ext's source",
        }
        for finding in found.findings
    ]
    columns = ["finding", "title", "saving_ms", "claimed_ms", "% of judged time", "saving_low_ms"]
    columns += ["saving_high_ms", *_TEXTS[2:]]
    kinds = {name: "str" if name in _TEXTS else "float64" for name in columns}
    return pd.DataFrame(rows, columns=columns).astype(kinds)


def details_table(found: Findings) -> pd.DataFrame:
    """A row a place and a number that a finding rests on, as the sheet `finding_details`."""
    rows = [
        (finding.id, kind, each.name or NO_NAME, each.saving_ms, "ms", float(each.count), "")
        for finding in found.findings
        for kind, places in finding.where.items()
        for each in places
    ]
    rows += [
        (finding.id, "evidence", each.what, float(each.value), each.unit, np.nan, _seen(each))
        for finding in found.findings
        for each in finding.evidence
    ]
    columns = ["finding", "kind", "name", "amount", "unit", "count", "see"]
    kinds = dict.fromkeys(columns, "str") | {"amount": "float64", "count": "float64"}
    return pd.DataFrame(rows, columns=columns).astype(kinds)


def _number(value: float | None) -> float:
    return np.nan if value is None else value


def summary_sentence(found: Findings) -> str:
    """How much of the judged time the findings explain; without any, whether all is well."""
    if found.unknown or not found.findings:
        return NOTHING if found.all_clear else found.unknown
    share = 100.0 / max(found.judged_ms, 1e-6)
    return (
        f"Findings explain {ms_text(found.explained_ms)} ({share * found.explained_ms:.1f} %) of"
        f" the judged time of {ms_text(found.judged_ms)}; {ms_text(found.left_ms)}"
        f" ({share * found.left_ms:.1f} %) are left."
    )


def largest_place(finding: Finding) -> str:
    """Where most of a finding is, of the kind of places that tells most; empty if unknown."""
    kinds = [*_MOST_TELLING, *finding.where]
    found = next((finding.where[kind] for kind in kinds if finding.where.get(kind)), ())
    return (found[0].name or NO_NAME) if found else ""


def place_texts(finding: Finding, cut: Callable[[str], str] = str) -> dict[str, str]:
    """The places of each kind in words, the largest first; those with next to nothing left out.

    Args:
        finding: the finding.
        cut: makes a name shorter.
    """
    least = _LEAST_PLACE * finding.claimed_ms
    told = {
        kind: [
            f"{cut(place.name) or NO_NAME} {ms_text(place.saving_ms)} (×{place.count:,})"
            for place in places
            if place.saving_ms >= least
        ]
        for kind, places in finding.where.items()
    }
    return {kind.replace("_", " "): "; ".join(texts) for kind, texts in told.items() if texts}


def _seen(evidence: Evidence) -> str:
    """The sheet, or the whole command, that shows a number."""
    return f"tracelens-ext {evidence.see}" if evidence.see in _COMMANDS else evidence.see


def evidence_text(evidence: Evidence) -> str:
    """A number with what it is and where it is seen."""
    value = evidence.value
    if evidence.unit == "ms":
        return f"{evidence.what}: {ms_text(value)} ({_seen(evidence)})"
    shown = f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
    space = " " if evidence.unit else ""
    return f"{evidence.what}: {shown}{space}{evidence.unit} ({_seen(evidence)})"
