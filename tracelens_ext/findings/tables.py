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
from tracelens_ext.report.tables.views import AnswerView
from tracelens_ext.text import NO_NAME

_DETAIL_COLUMNS: Final = ("finding", "kind", "name", "amount", "unit", "count", "see")


def _details(
    context: FindingsContext, device_peaks: str | os.PathLike[str] | None = None
) -> pd.DataFrame | None:
    """Return the places and the evidence of each finding; None without any."""
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
    """Yield a row for each place of a finding."""
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
    """Yield a row for each number that a finding rests on."""
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
    """Return the sentences about the recording, and the number of findings left out."""
    if "findings" not in tables:
        return ()
    findings = _findings_of(context, options)
    notes = list(findings.first_sentences)
    notes += findings.notes
    hidden = len(findings.findings) - len(findings.worthwhile)
    if hidden:
        notes.append(hidden_findings(hidden))
    return notes


def _heading_without_findings(context: FindingsContext, options: ReportOptions) -> str:
    return summary_sentence(_findings_of(context, options)).rstrip(".")


FINDINGS = Table(
    name="findings",
    description="What would save the most time, why, and what to do",
    columns=[
        Column(
            "finding",
            "kind of finding, such as `host-bound`",
        ),
        Column("title", "the problem and its cost"),
        Column(
            "saving",
            "what fixing it saves, in words; a range if the CPU determines how much",
        ),
        Column(
            "saving_ms",
            "wall time that fixing it saves in the simulation of the trace; savings "
            "do not add up. 0 for findings that only inform",
        ),
        Column(
            "attributed_ms",
            "attributed wall time; no time is attributed to two findings",
        ),
        Column(
            "% of analyzed time",
            "attributed time as a share of the analyzed time, which excludes warm-up "
            "and what was not recorded",
        ),
        Column(
            "saving_low_ms",
            "lower end of the saving; empty if it equals the saving",
        ),
        Column(
            "saving_high_ms",
            "upper end of the saving; empty if it equals the saving",
        ),
        Column("confidence", "`high`, `medium` or `low`"),
        Column("confidence_reason", "why"),
        Column("largest_place", "the place with the largest part of the saving"),
        Column(
            "where",
            "places by kind (operations, Python frames, kernels …), separated by "
            "bars, with their part of the saving and the number of gaps or GPU "
            "events, largest first",
        ),
        Column(
            "evidence",
            "the numbers behind the finding, and the sheet or command that shows each",
        ),
        Column("see", "those sheets and commands"),
        Column("advice", "what to change"),
        Column("snippet", "the code change, if one line is enough"),
        Column("documentation", "where the text about it is"),
    ],
    build=_findings,
    options=["device_peaks"],
    notes=_notes,
    answer=AnswerView(
        title="What would save the most time",
        title_if_empty=_heading_without_findings,
        columns=[
            "title",
            "% of analyzed time",
            "confidence",
            "advice",
            "see",
            "saving",
            "largest_place",
        ],
        link_column="see",
    ),
)
FINDING_DETAILS = Table(
    name="finding_details",
    description="Where each finding occurs, and the numbers behind it",
    columns=[
        Column("finding", "kind of finding"),
        Column(
            "kind",
            "kind of place (`operations`, `python_frames`, `kernels` …), or `evidence`",
        ),
        Column("name", "the place, or what the number means"),
        Column("amount", "part of the saving at this place, or the number"),
        Column("unit", "unit of the amount"),
        Column("count", "in the place", unit="GPU events or gaps"),
        Column("see", "sheet or command that shows the number"),
    ],
    build=_details,
    options=["device_peaks"],
    enabled_by="finding_details",
    on_every_page=True,
)
