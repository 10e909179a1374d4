"""Findings as a table, and their places and evidence as texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tracelens_ext.lazy import pd
from tracelens_ext.text import NO_NAME, ms_text

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Evidence, Finding, Findings

NOTHING: Final = (
    "Nothing that was looked for would save more than 1 % of the judged time."
)
_COLUMNS: Final = (
    "finding",
    "title",
    "saving_ms",
    "claimed_ms",
    "% of judged time",
    "saving_low_ms",
    "saving_high_ms",
    "confidence",
    "confidence_reason",
    "largest_place",
    "where",
    "evidence",
    "see",
    "advice",
    "snippet",
    "documentation",
)
#: Those of `findings`, and their types.
_KINDS: Final = {
    c: "float64" if c.endswith(("_ms", "time")) else "str" for c in _COLUMNS
}
#: What evidence cites that is no sheet.
_COMMANDS: Final = frozenset({"gaps", "tree"})
#: The share of a saving below which a place is not named in texts.
_LEAST_PLACE: Final = 0.02
#: Kinds of places, the one that tells most of what to change first.
_MOST_TELLING: Final = (
    "python_frames",
    "collectives",
    "operations",
    "kernels",
    "modules",
)


def findings_table(found: Findings) -> pd.DataFrame:
    """A row a finding, in their order; columns as the sheet `findings`."""
    rows = [
        {
            **vars(finding),
            "finding": finding.id,
            "claimed_ms": finding.claimed_ms,
            "% of judged time": finding.share_percent,
            "largest_place": largest_place(finding),
            "where": " | ".join(
                f"{kind}: {text}" for kind, text in place_texts(finding).items()
            ),
            "evidence": "; ".join(evidence_text(each) for each in finding.evidence),
            "see": ", ".join(dict.fromkeys(cited(each) for each in finding.evidence)),
            "documentation": f"{finding.documentation} of tracelens-ext's source",
        }
        for finding in found.findings
    ]
    return pd.DataFrame(rows, columns=_COLUMNS).astype(_KINDS)


def summary_sentence(found: Findings) -> str:
    """How much of the judged time the findings explain; without any, whether all is well."""
    if found.unknown or not found.findings:
        return NOTHING if found.all_clear else found.unknown
    share = 100.0 / max(found.judged_ms, 1e-6)
    parts = (found.explained_ms, found.left_ms)
    explained, left = (f"{ms_text(ms)} ({share * ms:.1f} %)" for ms in parts)
    whole = f"the judged time of {ms_text(found.judged_ms)}"
    return f"Findings explain {explained} of {whole}; {left} are left."


def largest_place(finding: Finding) -> str:
    """Where most of a finding is, of the kind of places that tells most; empty if unknown."""
    kinds = [*_MOST_TELLING, *finding.where]
    found = next((finding.where[kind] for kind in kinds if finding.where.get(kind)), ())
    return (found[0].name or NO_NAME) if found else ""


def place_texts(finding: Finding, cut: Callable[[str], str] = str) -> dict[str, str]:
    """The places of each kind in words, the largest first, names cut; not those with hardly any."""
    told = {}
    least = _LEAST_PLACE * finding.claimed_ms
    for kind, places in finding.where.items():
        told[kind.replace("_", " ")] = "; ".join(
            f"{cut(place.name) or NO_NAME} {ms_text(place.saving_ms)} (×{place.count:,})"
            for place in places
            if place.saving_ms >= least
        )
    return {kind: text for kind, text in told.items() if text}


def cited(evidence: Evidence) -> str:
    """The sheet, or the whole command, that shows a number."""
    return (
        f"tracelens-ext {evidence.see}" if evidence.see in _COMMANDS else evidence.see
    )


def evidence_text(evidence: Evidence) -> str:
    """A number with what it is and where it is seen."""
    value = evidence.value
    unit = evidence.unit
    shown = f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
    shown = ms_text(value) if unit == "ms" else f"{shown} {unit}" if unit else shown
    return f"{evidence.what}: {shown} ({cited(evidence)})"
