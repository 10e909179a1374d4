"""The comparison of traces as a report: how traces are measured, tables, charts, descriptions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tracelens_ext.compare.findings import compare_findings, with_findings
from tracelens_ext.compare.measurement import measure
from tracelens_ext.compare.place_tree import place_tree
from tracelens_ext.compare.roofline import compare_time_lost, lost_by_roofline, time_lost
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.report import Answer, Report
from tracelens_ext.tables.charts import Chart

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.compare.comparison import Comparison
    from tracelens_ext.compare.measurement import Measurement

TITLE = "GPU performance comparison"

_DESCRIPTIONS = {
    "verdict": "How much work each trace did, and how fast, compared with the first",
    "findings": "What would save time, the largest change of the share first",
    "timeline": "How the GPU spent its time; overlaps counted once",
    "phases": "GPU time by phase of serving; counts are steps",
    "categories": "GPU time by category, the largest change first",
    "operations": "GPU time by CPU operation, the largest change first",
    "kernels": "GPU time by kernel, the largest change first",
    "places": "GPU time by place in the program, the largest change first",
    "call_tree": "The places of both traces as a tree, as it is drawn",
    "roofline": "Time lost against the best case, the largest change first",
}


def measured_for_comparison(
    analyzer: TreePerfAnalyzer,
    micro_idle_thresh_us: float | None = None,
    device_peaks: str | None = None,
) -> Measurement:
    """Measure a trace, its findings and the time that it loses."""
    measured = measure(analyzer.work, micro_idle_thresh_us=micro_idle_thresh_us)
    measured = with_findings(measured, analyzer.findings(device_peaks))
    roofline = analyzer.roofline(device_peaks)
    return replace(measured, lost=time_lost(roofline)) if roofline.has_shapes else measured


def comparison_report(comparison: Comparison, *, normalize: bool = False) -> Report:
    """A comparison, ready for any format.

    Args:
        comparison: the traces.
        normalize: whether time lost is also told by the best case of each device.

    Raises:
        UsageError: that is not known.
    """
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
    lost = [m.lost for m in comparison.measurements if m.lost is not None and len(m.lost)]
    table, told = None, []
    if len(lost) == len(letters):
        table = compare_time_lost(lost, letters, comparison.divisors, normalize=normalize)
        told = [lost_by_roofline(lost, letters)] if normalize else []
    elif normalize:
        raise UsageError(
            "--normalize roofline needs recorded shapes and known devices in all traces;"
            " give the peaks with --device-peaks"
        )
    trees = {}
    if (places := comparison.tables.get("places")) is not None and len(places):
        own = places if len(letters) == 2 else places[places["trace"] == letters[1]]
        trees["call_tree"] = place_tree(own, letters[:2])
        title = f"GPU time of {letters[0]} and {letters[1]} by place"
        charts.append(Chart(title, "call_tree", "label", "gpu_time_ns", "call_tree", on="page"))
    verdicts = comparison.verdicts
    columns = {
        "trace": letters[1:],
        "verdict": [each.text for each in verdicts],
        "work_ratio": [each.work_ratio for each in verdicts],
        "speed_ratio": [each.speed_ratio for each in verdicts],
    }
    return Report(
        title=TITLE,
        sheets={"verdict": pd.DataFrame(columns)}
        | ({} if findings is None else {"findings": findings})
        | comparison.tables
        | ({} if table is None else {"roofline": table}),
        facts=comparison.facts,
        notes=[*told, *comparison.notes],
        descriptions=_DESCRIPTIONS,
        charts=charts,
        page_sheets=trees,
        units={"verdict": {}},
        answers=[Answer("Verdict", "verdict", list(columns))],
        members=comparison.members,
    )
