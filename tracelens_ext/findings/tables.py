"""The sheet `findings`: what would save the most time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.findings.told import details_table, findings_table, summary_sentence
from tracelens_ext.lazy import pd
from tracelens_ext.tables.table import Table

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.tables.options import ReportOptions


def _notes(
    analyzer: TreePerfAnalyzer, options: ReportOptions, tables: Mapping[str, pd.DataFrame]
) -> Iterable[str]:
    if "findings" not in tables:
        return []
    return analyzer.findings(options.device_peaks).notes


def _nothing(analyzer: TreePerfAnalyzer, options: ReportOptions) -> str:
    return summary_sentence(analyzer.findings(options.device_peaks)).rstrip(".")


def _findings(
    analyzer: TreePerfAnalyzer, device_peaks: str | os.PathLike[str] | None = None
) -> pd.DataFrame:
    """What would save the most wall time, a row a finding; see `findings`."""
    return findings_table(analyzer.findings(device_peaks))


def _details(
    analyzer: TreePerfAnalyzer, device_peaks: str | os.PathLike[str] | None = None
) -> pd.DataFrame | None:
    """Where each finding is, and the numbers it rests on."""
    table = details_table(analyzer.findings(device_peaks))
    return table if len(table) else None


TABLES = [
    Table(
        name="findings",
        shows="What would save the most time, why, and what to do",
        columns="""
            finding: which kind of finding; [findings](findings.md) has a section on each
            title: what it is, a sentence
            saving_ms: wall time that the fix removes, as a replay of the trace tells; savings
                overlap. 0 of what only informs
            claimed_ms: wall time that it is about; no time is claimed by two findings
            % of judged time: the claim, of the time that was recorded and is no start-up
            saving_low_ms, saving_high_ms: the least and the most that the fix saves; empty where
                that is the saving
            confidence: `high`, `medium` or `low`
            confidence_reason: why
            largest_place: the place with the most of the saving
            where: places by their kind (operations, Python frames, kernels …), between bars, with
                their part of the saving and how many gaps or GPU events that is, the largest first
            evidence: the numbers it rests on, and the sheet or command that shows each
            see: those sheets and commands
            advice: what to change
            snippet: the change in code, where one line does it
            documentation: the section about it
            """,
        table=_findings,
        notes=_notes,
        answer="What would save the most time",
        answer_if_empty=_nothing,
        answer_columns=[
            *("title", "saving_ms", "% of judged time", "advice", "confidence", "largest_place"),
            "see",
        ],
        answer_links="see",
    ),
    Table(
        name="finding_details",
        shows="Where each finding is, and the numbers it rests on",
        columns="""
            finding: which kind of finding
            kind: of place (`operations`, `python_frames`, `kernels` …), or `evidence`
            name: the place, or what the number is
            amount: the part of the saving that is there, or the number
            unit: of the amount
            count [GPU events or gaps]: in the place
            see: the sheet or the command that shows the number
            """,
        table=_details,
        asked_by="finding_details",
        on_every_page=True,
    ),
]
