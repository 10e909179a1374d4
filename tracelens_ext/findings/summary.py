"""Findings as a table, and their savings, places and evidence in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from tracelens_ext.lazy import pd
from tracelens_ext.text import NO_NAME, NO_OPERATION, ms_text

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Evidence, Finding, Findings, Place

NOTHING: Final = "No finding would save more than 1 % of the analyzed time."
_COLUMNS: Final = (
    "finding",
    "title",
    "saving",
    "saving_ms",
    "attributed_ms",
    "% of analyzed time",
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
_NUMBERS: Final = frozenset(
    {
        "saving_ms",
        "attributed_ms",
        "% of analyzed time",
        "saving_low_ms",
        "saving_high_ms",
    }
)
#: Commands that evidence cites instead of a sheet.
_COMMANDS: Final = frozenset({"gaps", "tree"})
#: Texts leave out places with a smaller share of the attributed time.
_LEAST_PLACE: Final = 0.02
#: A place with a smaller share of the attributed time is not shown as the largest.
LARGEST_SHARE: Final = 1 / 3
#: A place with more than this share of the attributed time is named in the title.
TITLE_SHARE: Final = 0.5
#: Kinds of places by how well they show what to change, the best first.
_MOST_TELLING: Final = (
    "python_frames",
    "main_thread",
    "collectives",
    "operations",
    "kernels",
    "modules",
)
#: Kinds used only if no kind above has a place with a third of the finding.
_LESS_TELLING: Final = ("python_files", "parts_of_step", "next_work", "calls")
#: Kinds used only if a finding has places of no other kind.
_LEAST_TELLING: Final = frozenset({"iterations", "streams", "devices"})
#: A saving within this share of the attributed time needs no explanation.
_SAME_SHARE: Final = 0.1
#: A range of a user with this share of the attributed time is around the whole program.
_WHOLE_SHARE: Final = 0.95
#: A saving of a smaller percentage of the analyzed time counts as none.
_NO_SAVING_PERCENT: Final = 0.05


def findings_table(findings: Findings) -> pd.DataFrame:
    """Return the sheet `findings`: a row for each finding that is listed."""
    rows = [_table_row(finding) for finding in findings.worthwhile]
    types = {}
    for column in _COLUMNS:
        types[column] = "str"
        if column in _NUMBERS:
            types[column] = "float64"
    return pd.DataFrame(rows, columns=list(_COLUMNS)).astype(types)


def _table_row(finding: Finding) -> dict[str, object]:
    """Return the values of a finding's row, by column."""
    places = [f"{kind}: {text}" for kind, text in place_texts(finding).items()]
    sources = [cited(evidence) for evidence in finding.evidence]
    return {
        "finding": finding.id,
        "title": finding.title,
        "saving": saving_phrase(finding),
        "saving_ms": finding.saving_ms,
        "attributed_ms": finding.attributed_ms,
        "% of analyzed time": finding.share_percent,
        "saving_low_ms": finding.saving_low_ms,
        "saving_high_ms": finding.saving_high_ms,
        "confidence": finding.confidence,
        "confidence_reason": finding.confidence_reason,
        "largest_place": largest_place(finding),
        "where": " | ".join(places),
        "evidence": "; ".join(evidence_text(each) for each in finding.evidence),
        "see": ", ".join(dict.fromkeys(sources)),
        "advice": finding.advice,
        "snippet": finding.snippet,
        "documentation": finding.documentation,
    }


def saving_phrase(finding: Finding) -> str:
    """Return what fixing a finding saves, as `saves about 6.6 ms (4.4 %)`.

    It is a range if the saving depends on the CPU, an upper bound without a good simulation, and
    empty if the finding only informs.
    """
    if finding.informs_only:
        return ""
    percent = finding.saving_percent
    amount = f"{ms_text(finding.saving_ms)} ({percent:.1f} %)"
    if not finding.simulated:
        return f"saves up to {amount}"
    if percent < _NO_SAVING_PERCENT:
        return "saves nothing, because other work is the limit here"
    low_ms = finding.saving_low_ms
    if low_ms is not None and low_ms < (1 - _SAME_SHARE) * finding.saving_ms:
        high_ms = max(finding.saving_ms, finding.saving_high_ms or 0.0)
        low_percent = finding.percent_of_analyzed(low_ms)
        high_percent = finding.percent_of_analyzed(high_ms)
        low = _without_unit(low_ms, high_ms)
        high = ms_text(high_ms)
        return f"saves {low} to {high} ({low_percent:.1f} to {high_percent:.1f} %)"
    phrase = f"saves about {amount}"
    share = finding.saving_ms / finding.attributed_ms
    if share > 1 + _SAME_SHARE:
        return f"{phrase}, because its launches hold up the CPU"
    if share < 1 - _SAME_SHARE:
        return f"{phrase}, because other work then becomes the limit"
    return phrase


def _without_unit(low_ms: float, high_ms: float) -> str:
    """Return the lower end of a range, without its unit if the upper end has the same unit."""
    low = ms_text(low_ms)
    (number, _, unit) = low.partition(" ")
    if ms_text(high_ms).endswith(f" {unit}"):
        return number
    return low


def summary_sentence(findings: Findings) -> str:
    """Return how much of the analyzed time the findings explain, or why there are none."""
    if findings.unknown:
        return findings.unknown
    if not findings.findings and not findings.all_clear:
        return ""
    if not findings.worthwhile:
        return NOTHING
    percent = 100.0 * findings.explained_ms / max(findings.analyzed_ms, 1e-6)
    explained = f"{ms_text(findings.explained_ms)} ({percent:.1f} %)"
    return f"Findings explain {explained} of {ms_text(findings.analyzed_ms)} of analyzed time."


def hidden_findings(count: int) -> str:
    """Return how many findings are not listed, and how to see them."""
    if count == 1:
        return "1 more finding saves less than 1 %; show it with findings --all."
    return (
        f"{count} more findings save less than 1 % each; show them with findings --all."
    )


def first_sentences(findings: Findings) -> list[str]:
    """Return the sentences before the list of findings.

    If no finding saves time, they say how the time is used.
    """
    sentences = list(findings.first_sentences)
    summary = summary_sentence(findings)
    if any(not finding.informs_only for finding in findings.worthwhile):
        sentences.append(summary)
    elif findings.unknown:
        sentences.extend(findings.time_use)
        sentences.append(summary)
    else:
        sentences.append(summary)
        sentences.extend(findings.time_use)
    return list(dict.fromkeys(sentence for sentence in sentences if sentence))


def places_of_most_telling_kind(finding: Finding) -> Sequence[Place]:
    """Return the places of the kind that shows best what to change; none if there are no places.

    It is the first kind whose largest place has half of the finding, else a third, else any share.
    Less telling kinds, and a kind whose largest place is no operation, come after those with a
    third.
    """
    where = dict(finding.where)
    if _is_whole_program(where.get("operations", ()), finding) and "kernels" in where:
        del where["operations"]
    in_order = list(_MOST_TELLING + _LESS_TELLING) + list(where)
    kinds = [kind for kind in in_order if where.get(kind)]
    telling = [kind for kind in kinds if kind not in _LEAST_TELLING]
    kinds = telling or kinds
    named = [kind for kind in kinds if where[kind][0].name != NO_OPERATION]
    most_telling = [kind for kind in named if kind not in _LESS_TELLING]
    for candidates, share in (
        (most_telling, TITLE_SHARE),
        (most_telling, LARGEST_SHARE),
        (named, TITLE_SHARE),
        (named, LARGEST_SHARE),
        (kinds, LARGEST_SHARE),
        (kinds, 0.0),
    ):
        least_ms = share * finding.attributed_ms
        for kind in candidates:
            if where[kind][0].attributed_ms >= least_ms:
                return where[kind]
    return ()


def _is_whole_program(places: Sequence[Place], finding: Finding) -> bool:
    """Return whether the only place is a range around the whole program."""
    if len(places) != 1 or "::" in places[0].name:
        return False
    return places[0].attributed_ms >= _WHOLE_SHARE * finding.attributed_ms


def largest_place(finding: Finding) -> str:
    """Return the largest place of the most telling kind, with its share of the finding.

    Empty if it has less than a third.
    """
    places = places_of_most_telling_kind(finding)
    if not places:
        return ""
    largest = places[0]
    least_ms = LARGEST_SHARE * finding.attributed_ms
    if largest.attributed_ms < least_ms:
        return ""
    name = largest.name or NO_NAME
    if not finding.attributed_ms:
        return name
    percent = _percent_of(largest, finding)
    return f"{name} ({percent:.0f} %)"


def _percent_of(place: Place, finding: Finding) -> float:
    """Return the part of a finding's attributed time that is in a place, at most 100 %."""
    percent = 100 * place.attributed_ms / finding.attributed_ms
    return min(percent, 100.0)


def where_text(finding: Finding, cut: Callable[[str], str] = str) -> str:
    """Return the largest place in words, or that there are many places.

    Args:
        finding: with the places.
        cut: makes names shorter.
    """
    places = places_of_most_telling_kind(finding)
    if not places:
        return ""
    largest = places[0]
    least_ms = LARGEST_SHARE * finding.attributed_ms
    if largest.attributed_ms < least_ms:
        return "many places, each with less than a third; --verbose shows the largest"
    text = place_text(largest, cut)
    if finding.attributed_ms:
        percent = _percent_of(largest, finding)
        text += f", {percent:.0f} % of it"
    return text


def place_texts(finding: Finding, cut: Callable[[str], str] = str) -> dict[str, str]:
    """Return the places of each kind in words, the largest first, without the smallest.

    Args:
        finding: with the places.
        cut: makes names shorter.
    """
    least_ms = _LEAST_PLACE * finding.attributed_ms
    result = {}
    for kind, places in finding.where.items():
        texts = [
            place_text(place, cut)
            for place in places
            if place.attributed_ms >= least_ms
        ]
        if texts:
            result[kind.replace("_", " ")] = "; ".join(texts)
    return result


def place_text(place: Place, cut: Callable[[str], str] = str) -> str:
    """Return a place in words: `aten::addmm 1.8 ms (×80)`."""
    name = cut(place.name) or NO_NAME
    return f"{name} {ms_text(place.attributed_ms)} (×{place.count:,})"


def cited(evidence: Evidence) -> str:
    """Return the sheet, or the command, that shows a number."""
    if evidence.see in _COMMANDS:
        return f"tracelens-ext {evidence.see}"
    return evidence.see


def evidence_text(evidence: Evidence) -> str:
    """Return a number with its description and its source."""
    return f"{evidence.what}: {_amount_text(evidence)} ({cited(evidence)})"


def _amount_text(evidence: Evidence) -> str:
    """Return a number with its unit, which is singular for 1."""
    value = evidence.value
    unit = evidence.unit
    if unit == "ms":
        return ms_text(value)
    number = f"{value:,.1f}"
    if isinstance(value, int):
        number = f"{value:,}"
    if value == 1 and unit.endswith("s") and "/" not in unit and unit != "µs":
        unit = unit.removesuffix("s")
    return f"{number} {unit}".rstrip()
