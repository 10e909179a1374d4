"""Turns a comparison of traces into a report, and measures traces for comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tracelens_ext.analyzer import TreePerfAnalyzer
from tracelens_ext.compare.comparison import Comparison
from tracelens_ext.compare.finding_changes import compare_findings
from tracelens_ext.compare.measurement import Measurement, Saving, measure
from tracelens_ext.compare.place_tree import place_tree
from tracelens_ext.compare.time_lost import (
    compare_time_lost,
    lost_by_roofline,
    time_lost,
)
from tracelens_ext.compare.verdict import prefixes
from tracelens_ext.compare.wall_time import (
    wall_time_chart,
    wall_time_table,
    wall_times,
)
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.report import Answer, Report
from tracelens_ext.report.tables.charts import Chart

_TITLE = "GPU performance comparison"
_DESCRIPTIONS = {
    "wall_time": "Wall time, and what the GPU did during it, as the mean over the devices",
    "verdict": "How much work each trace did, and how fast, compared with the first",
    "findings": "What would save time, largest change of the share first",
    "timeline": "How the GPU spent its time, with overlapping work counted once",
    "phases": "GPU time by serving phase; counts are steps",
    "categories": "GPU time by category, largest change first",
    "operations": "GPU time by CPU operation, largest change first",
    "kernels": "GPU time by kernel, largest change first",
    "places": "GPU time by place in the program, largest change first",
    "call_tree": "The places of both traces as a tree, as drawn in the chart",
    "roofline": "Time lost against the roofline, largest change first",
}
_VERDICT_COLUMNS = ["trace", "verdict", "work_ratio", "speed_ratio"]


def measured_for_comparison(
    analyzer: TreePerfAnalyzer,
    micro_idle_thresh_us: float | None = None,
    device_peaks: str | None = None,
) -> Measurement:
    """Measure a trace for a comparison, with its findings and its time lost.

    Parts that fail are left out, and the notes of the measurement name them.

    Args:
        analyzer: the analyzer of the trace, with categories.
        micro_idle_thresh_us: idle gaps up to this length are reported separately in the timeline;
            None to report all idle time together.
        device_peaks: peaks of the devices that replace the built-in ones.
    """
    failures = analyzer.failures
    measurement = measure(
        analyzer.gpu_events,
        micro_idle_thresh_us=micro_idle_thresh_us,
        failures=failures,
    )
    savings: dict[str, Saving] | None = None
    with failures.isolate("The findings"):
        findings = analyzer.findings(device_peaks).findings
        savings = {
            finding.id: (finding.attributed_ms, finding.share_percent)
            for finding in findings
        }
    lost: pd.DataFrame | None = None
    with failures.isolate("The roofline"):
        roofline = analyzer.roofline(device_peaks)
        if roofline.has_shapes:
            lost = time_lost(roofline)
    notes = measurement.notes + tuple(failures.messages)
    return replace(measurement, findings=savings, lost=lost, notes=notes)


@dataclass(frozen=True)
class _TimeLost:
    """The comparison of time lost."""

    table: pd.DataFrame | None = None  #: None if the time lost of a trace is not known
    notes: Sequence[str] = ()


def comparison_report(comparison: Comparison, *, normalize: bool = False) -> Report:
    """Return a comparison as a report.

    Args:
        comparison: the comparison.
        normalize: also compare the ratios of time lost to roofline time.

    Raises:
        UsageError: `normalize` is set, but the time lost of a trace is not known.
    """
    failures = comparison.failures
    findings: pd.DataFrame | None = None
    with failures.isolate("The table findings of the comparison"):
        findings = compare_findings(comparison)
    lost = _TimeLost()
    with failures.isolate("The table roofline of the comparison"):
        lost = _compare_lost(comparison, normalize=normalize)
    trees: dict[str, pd.DataFrame] = {}
    with failures.isolate("The tree of the comparison"):
        trees = _trees(comparison)
    sheets: dict[str, pd.DataFrame] = {}
    with failures.isolate("The wall time of the comparison"):
        times = wall_times(comparison)
        if times:
            sheets["wall_time"] = wall_time_table(times, comparison.letters)
    sheets["verdict"] = _verdict_table(comparison)
    if findings is not None:
        sheets["findings"] = findings
    sheets.update(comparison.tables)
    if lost.table is not None:
        sheets["roofline"] = lost.table
    return Report(
        _TITLE,
        sheets,
        facts=comparison.facts,
        notes=list(lost.notes) + comparison.notes + failures.messages,
        descriptions=_DESCRIPTIONS,
        charts=_charts(
            comparison, has_tree=bool(trees), has_wall_time="wall_time" in sheets
        ),
        page_sheets=trees,
        units={"verdict": {}},
        answers=_answers(sheets),
        members=comparison.members,
    )


def _answers(sheets: Mapping[str, pd.DataFrame]) -> list[Answer]:
    """Return the contents of the first sheet: the wall time, then the verdicts."""
    answers = []
    if "wall_time" in sheets:
        columns = [str(column) for column in sheets["wall_time"]]
        answers.append(Answer(title="Wall time", sheet="wall_time", columns=columns))
    answers.append(Answer(title="Verdict", sheet="verdict", columns=_VERDICT_COLUMNS))
    return answers


def _compare_lost(comparison: Comparison, *, normalize: bool) -> _TimeLost:
    """Compare the time that the traces lose against their rooflines."""
    letters = comparison.letters
    lost = [
        measurement.lost
        for measurement in comparison.measurements
        if measurement.lost is not None and len(measurement.lost)
    ]
    if len(lost) < len(letters):
        if normalize:
            raise UsageError(
                "--normalize roofline needs recorded shapes and known devices in all "
                "traces; give the peaks with --device-peaks"
            )
        return _TimeLost()
    table = compare_time_lost(lost, letters, comparison.divisors, normalize=normalize)
    notes = [lost_by_roofline(lost, letters)] if normalize else []
    return _TimeLost(table, notes)


def _trees(comparison: Comparison) -> dict[str, pd.DataFrame]:
    """Return name of the sheet → tree of the places of the first two traces; empty without any."""
    letters = comparison.letters
    places = comparison.tables.get("places")
    if places is None or not len(places):
        return {}
    if len(letters) > 2:
        places = places[places["trace"] == letters[1]]
    return {"call_tree": place_tree(places, letters[:2])}


def _charts(
    comparison: Comparison, *, has_tree: bool, has_wall_time: bool
) -> list[Chart]:
    """Return the charts: the wall time, changes by category, and the tree of places."""
    letters = comparison.letters
    charts = []
    if has_wall_time:
        charts.append(wall_time_chart())
    categories = comparison.tables.get("categories")
    if categories is not None:
        label_column = str(categories.columns[0])
        for letter, prefix in prefixes(letters).items():
            title = (
                f"Change of GPU time by category, {letter} compared with {letters[0]}"
            )
            charts.append(
                Chart(
                    title=title,
                    sheet="categories",
                    label_column=label_column,
                    value_column=f"{prefix}difference_ms",
                )
            )
    if has_tree:
        title = f"GPU time of {letters[0]} and {letters[1]} by place"
        charts.append(
            Chart(
                title=title,
                sheet="call_tree",
                label_column="label",
                value_column="gpu_time_ns",
                kind="call_tree",
                on="page",
            )
        )
    return charts


def _verdict_table(comparison: Comparison) -> pd.DataFrame:
    """Return a table with the verdict on each trace except the baseline."""
    rows = []
    for letter, verdict in zip(
        comparison.letters[1:], comparison.verdicts, strict=False
    ):
        rows.append(
            {
                "trace": letter,
                "verdict": verdict.text,
                "work_ratio": verdict.work_ratio,
                "speed_ratio": verdict.speed_ratio,
            }
        )
    return pd.DataFrame(rows, columns=_VERDICT_COLUMNS)
