"""The comparison of traces as a report: its tables, charts and descriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.compare.findings import compare_findings
from tracelens_ext.lazy import pd
from tracelens_ext.report.report import Report
from tracelens_ext.tables.charts import Chart

if TYPE_CHECKING:
    from tracelens_ext.compare.comparison import Comparison

TITLE = "GPU performance comparison"

_DESCRIPTIONS = {
    "findings": "What would save time in whole traces, the largest change first",
    "timeline": "How the GPU spent its time; overlaps counted once",
    "phases": "GPU time by phase of serving; counts are steps",
    "categories": "GPU time by category, the largest change first",
    "ops": "GPU time by CPU operation, the largest change first",
    "kernels": "GPU time by kernel, the largest change first",
    "roofline": "Time lost against the best case, whole traces, the largest change first",
}


def comparison_report(comparison: Comparison, lost: pd.DataFrame | None = None) -> Report:
    """A comparison, ready for any format; with the table of time lost, if there is one."""
    letters = comparison.letters
    differences = (
        {letters[1]: "difference_ms"}
        if len(letters) == 2
        else {letter: f"{letter}_difference_ms" for letter in letters[1:]}
    )
    charts = [
        Chart(
            title=f"Change of GPU time by category, {letter} against {letters[0]}",
            sheet="categories",
            label_column=str(categories.columns[0]),
            value_column=column,
        )
        for letter, column in differences.items()
        if (categories := comparison.tables.get("categories")) is not None
    ]
    findings = compare_findings(comparison)
    return Report(
        title=TITLE,
        sheets=({} if findings is None else {"findings": findings})
        | comparison.tables
        | ({} if lost is None else {"roofline": lost}),
        facts=comparison.facts,
        notes=comparison.notes,
        descriptions=_DESCRIPTIONS,
        charts=charts,
    )
