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
        Column("title", "the problem and what it costs"),
        Column(
            "saving",
            "what fixing the problem saves, in words: a range if the CPU "
            "determines how much, an upper bound without a good simulation, "
            "empty for findings that only inform",
        ),
        Column(
            "saving_ms",
            "wall time that fixing the problem saves in the simulation of the "
            "trace, 0 for findings that only inform; savings do not add up",
        ),
        Column(
            "attributed_ms",
            "wall time that is attributed to the finding; no time is "
            "attributed to two findings",
        ),
        Column(
            "% of analyzed time",
            "`attributed_ms` as a share of the analyzed time, which excludes "
            "warm-up and what was not recorded",
        ),
        Column(
            "saving_low_ms",
            "lower end of the saving; empty if it equals the saving",
        ),
        Column(
            "saving_high_ms",
            "upper end of the saving; empty if it equals the saving",
        ),
        Column("confidence", "how sure the finding is: `high`, `medium` or `low`"),
        Column("confidence_reason", "why the confidence is what it is"),
        Column(
            "largest_place",
            "the place to change with the largest share of the attributed "
            "time; empty if no place has a third of it",
        ),
        Column(
            "where",
            "the places by kind (operations, Python frames, kernels …), "
            "largest first, with their parts of the attributed time and their "
            "numbers of gaps or GPU events; kinds are separated by bars",
        ),
        Column(
            "evidence",
            "the numbers behind the finding, each with the table or command "
            "that shows it",
        ),
        Column("see", "the tables and commands that show the evidence"),
        Column("advice", "what to change"),
        Column("snippet", "the code change, if one line is enough; else empty"),
        Column("documentation", "where the finding is explained"),
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
    description="The places of each finding, and the numbers behind it",
    columns=[
        Column("finding", "kind of finding, such as `host-bound`"),
        Column(
            "kind",
            "kind of the place (`operations`, `python_frames`, `kernels` …), "
            "or `evidence` for a number behind the finding",
        ),
        Column("name", "name of the place, or what the number means"),
        Column("amount", "part of the attributed time at the place, or the number"),
        Column("unit", "unit of the amount"),
        Column(
            "count",
            "number of GPU events or gaps at the place",
            unit="GPU events or gaps",
        ),
        Column("see", "table or command that shows the number; empty for a place"),
    ],
    build=_details,
    options=["device_peaks"],
    enabled_by="finding_details",
    on_every_page=True,
)
