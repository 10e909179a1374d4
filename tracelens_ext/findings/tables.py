"""The tables of findings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from tracelens_ext.findings.context import FindingsContext
from tracelens_ext.findings.finding import Finding, Findings
from tracelens_ext.findings.summary import (
    cited,
    findings_table,
    hidden_findings,
    summary_sentence,
)
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import Table, Tables
from tracelens_ext.text import NO_NAME

_DETAIL_COLUMNS: Final = ("finding", "kind", "name", "amount", "unit", "count", "see")


def _details(
    context: FindingsContext, device_peaks: str | os.PathLike[str] | None = None
) -> pd.DataFrame | None:
    """Return where each finding is, and the numbers it rests on; None without any."""
    findings = context.findings(device_peaks).worthwhile
    rows: list[dict[str, object]] = []
    for finding in findings:
        rows.extend(_place_rows(finding))
    for finding in findings:
        rows.extend(_evidence_rows(finding))
    if not rows:
        return None
    types = dict.fromkeys(_DETAIL_COLUMNS, "str")
    types["amount"] = "float64"
    types["count"] = "float64"
    return pd.DataFrame(rows, columns=list(_DETAIL_COLUMNS)).astype(types)


def _place_rows(finding: Finding) -> Iterator[dict[str, object]]:
    for kind, places in finding.where.items():
        for place in places:
            yield {
                "finding": finding.id,
                "kind": kind,
                "name": place.name or NO_NAME,
                "amount": place.attributed_ms,
                "unit": "ms",
                "count": float(place.count),
                "see": "",
            }


def _evidence_rows(finding: Finding) -> Iterator[dict[str, object]]:
    for evidence in finding.evidence:
        yield {
            "finding": finding.id,
            "kind": "evidence",
            "name": evidence.what,
            "amount": float(evidence.value),
            "unit": evidence.unit,
            "count": np.nan,
            "see": cited(evidence),
        }


def _findings_of(context: FindingsContext, options: ReportOptions) -> Findings:
    return context.findings(options.device_peaks)


def _findings(
    context: FindingsContext, device_peaks: str | os.PathLike[str] | None = None
) -> pd.DataFrame:
    """Return what would save the most wall time, a row for each finding; see `findings`."""
    return findings_table(context.findings(device_peaks))


def _notes(
    context: FindingsContext, options: ReportOptions, tables: Tables
) -> Sequence[str]:
    if "findings" not in tables:
        return ()
    findings = _findings_of(context, options)
    notes = [*findings.first_sentences, *findings.notes]
    hidden = len(findings.findings) - len(findings.worthwhile)
    if hidden:
        notes.append(hidden_findings(hidden))
    return notes


def _heading_without_findings(context: FindingsContext, options: ReportOptions) -> str:
    return summary_sentence(_findings_of(context, options)).rstrip(".")


FINDINGS = Table(
    name="findings",
    shows="What would save the most time, why, and what to do",
    columns=[
        Column(
            "finding",
            "the kind of finding, such as `host-bound`",
        ),
        Column("title", "the problem and its cost"),
        Column(
            "saving",
            "what fixing it saves, in words; a range where the CPU decides how much",
        ),
        Column(
            "saving_ms",
            "wall time that fixing it saves, as the simulation of the trace shows; savings do not "
            "add up. 0 of what only informs",
        ),
        Column(
            "attributed_ms",
            "attributed wall time; none is attributed to two findings",
        ),
        Column(
            "% of analyzed time",
            "the attributed time, of the time that was recorded and is no warm-up",
        ),
        Column(
            "saving_low_ms",
            "the least that fixing it saves; empty where that is the saving",
        ),
        Column(
            "saving_high_ms",
            "the most that fixing it saves; empty where that is the saving",
        ),
        Column("confidence", "`high`, `medium` or `low`"),
        Column("confidence_reason", "why"),
        Column("largest_place", "the place with the most of the saving"),
        Column(
            "where",
            "places by their kind (operations, Python frames, kernels …), between bars, with "
            "their part of the saving and how many gaps or GPU events that is, the largest "
            "first",
        ),
        Column(
            "evidence",
            "the numbers it rests on, and the sheet or command that shows each",
        ),
        Column("see", "those sheets and commands"),
        Column("advice", "what to change"),
        Column("snippet", "the change in code, where one line does it"),
        Column("documentation", "where the text about it is"),
    ],
    table=_findings,
    options=["device_peaks"],
    notes=_notes,
    answer="What would save the most time",
    answer_if_empty=_heading_without_findings,
    answer_columns=[
        "title",
        "% of analyzed time",
        "confidence",
        "advice",
        "see",
        "saving",
        "largest_place",
    ],
    answer_links="see",
)
FINDING_DETAILS = Table(
    name="finding_details",
    shows="Where each finding is, and the numbers it rests on",
    columns=[
        Column("finding", "which kind of finding"),
        Column(
            "kind",
            "of place (`operations`, `python_frames`, `kernels` …), or `evidence`",
        ),
        Column("name", "the place, or what the number is"),
        Column("amount", "the part of the saving that is there, or the number"),
        Column("unit", "of the amount"),
        Column("count", "in the place", unit="GPU events or gaps"),
        Column("see", "the sheet or the command that shows the number"),
    ],
    table=_details,
    options=["device_peaks"],
    asked_by="finding_details",
    on_every_page=True,
)
