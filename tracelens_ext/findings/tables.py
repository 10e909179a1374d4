"""The tables of findings."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from tracelens_ext.findings.context import FindingsContext
from tracelens_ext.findings.finding import Findings
from tracelens_ext.findings.summary import cited, findings_table, summary_sentence
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import Table, Tables
from tracelens_ext.text import NO_NAME


def _details(
    context: FindingsContext, device_peaks: str | os.PathLike[str] | None = None
) -> pd.DataFrame | None:
    """Where each finding is, and the numbers it rests on."""
    found = context.findings(device_peaks)
    rows = [
        (
            finding.id,
            kind,
            each.name or NO_NAME,
            each.saving_ms,
            "ms",
            float(each.count),
            "",
        )
        for finding in found.findings
        for kind, places in finding.where.items()
        for each in places
    ]
    rows += [
        (
            finding.id,
            "evidence",
            each.what,
            float(each.value),
            each.unit,
            np.nan,
            cited(each),
        )
        for finding in found.findings
        for each in finding.evidence
    ]
    columns = ["finding", "kind", "name", "amount", "unit", "count", "see"]
    kinds = dict.fromkeys(columns, "str") | {"amount": "float64", "count": "float64"}
    return pd.DataFrame(rows, columns=columns).astype(kinds) if rows else None


def _found(context: FindingsContext, options: ReportOptions) -> Findings:
    return context.findings(options.device_peaks)


def _findings(
    context: FindingsContext, device_peaks: str | os.PathLike[str] | None = None
) -> pd.DataFrame:
    """What would save the most wall time, a row a finding; see `findings`."""
    return findings_table(context.findings(device_peaks))


def _notes(
    context: FindingsContext, options: ReportOptions, tables: Tables
) -> Sequence[str]:
    if "findings" not in tables:
        return ()
    return _found(context, options).notes


def _heading_without_findings(context: FindingsContext, options: ReportOptions) -> str:
    return summary_sentence(_found(context, options)).rstrip(".")


FINDINGS = Table(
    name="findings",
    shows="What would save the most time, why, and what to do",
    columns=[
        Column(
            "finding",
            "which kind of finding; [findings](findings.md) has a section on each",
        ),
        Column("title", "what it is, a sentence"),
        Column(
            "saving_ms",
            "wall time that the fix removes, as a replay of the trace tells; savings overlap. "
            "0 of what only informs",
        ),
        Column(
            "claimed_ms",
            "wall time that it is about; no time is claimed by two findings",
        ),
        Column(
            "% of judged time",
            "the claim, of the time that was recorded and is no start-up",
        ),
        Column(
            "saving_low_ms",
            "the least and the most that the fix saves; empty where that is the saving",
        ),
        Column(
            "saving_high_ms",
            "the least and the most that the fix saves; empty where that is the saving",
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
        Column("documentation", "the section about it"),
    ],
    table=_findings,
    options=["device_peaks"],
    notes=_notes,
    answer="What would save the most time",
    answer_if_empty=_heading_without_findings,
    answer_columns=[
        "title",
        "saving_ms",
        "% of judged time",
        "advice",
        "confidence",
        "largest_place",
        "see",
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
