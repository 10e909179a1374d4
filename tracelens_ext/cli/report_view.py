"""A perf report on the terminal: where the time went, in one screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.lazy import pd
from tracelens_ext.tables.units import FIRST_FACTS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from tracelens_ext.compare.comparison import Comparison
    from tracelens_ext.report.report import Report

#: Facts that are worth a line above the tables.
_HEADLINES = (
    *("Trace", *FIRST_FACTS, "Duration (ms)", "Set by one event", "Devices", "Rank"),
    "Events dropped",
)
#: Column of the table of several traces → row of the timeline.
_SHARES = {
    "busy (%)": "busy_time",
    "computation (%)": "computation_time",
    "exposed comm (%)": "exposed_comm_time",
    "idle (%)": "idle_time",
}
_NAME_WIDTH = 28  # of a kernel: at 80 columns its category and operation fit beside it


def show_report(report: Report, console: Console, *, top: int) -> None:
    """Print timeline, categories, top kernels and notes."""
    from tracelens_ext.cli.findings_view import show_first
    from tracelens_ext.cli.screen import fact_text, show_notes
    from tracelens_ext.report.terminal import frame_table, safe_text

    facts = dict(report.facts)
    for label in _HEADLINES:
        value = facts.get(label)
        if value is None or (label == "Events dropped" and value == "none"):
            continue
        console.print(safe_text(fact_text(label, value)), markup=False, highlight=False)
    for answer in report.answers:
        if answer.sheet == "findings":
            show_first(report.sheets["findings"], answer.title, str(facts["Trace"]), console)
            continue
        frame = report.sheets[answer.sheet][list(answer.columns)]
        title, rows = answer.title, len(frame)
        if title.startswith("Top "):
            rows = min(top, rows)
            title = f"Top {rows} {title.removeprefix('Top ')}"
        if rows:
            console.print()
            console.print(frame_table(frame.head(rows), title=title, name_width=_NAME_WIDTH))
    console.print()
    show_notes([*_coverage(facts), *report.notes], console)


def summary_row(trace: Path, report: Report) -> dict[str, object]:
    """What is shown of one report among several: total and busy time, what it went to."""
    row: dict[str, object] = {"trace": str(trace), "total_time_ms": None}
    timeline = report.sheets.get("gpu_timeline")
    if timeline is not None and len(timeline):
        times = timeline.groupby("type", sort=False)["time ms"].sum()
        total = float(times["total_time"])
        row["total_time_ms"] = total
        for label, kind in _SHARES.items():
            row[label] = 100 * float(times[kind]) / total if total else 0.0
    findings = report.sheets.get("findings")
    if findings is not None and len(findings):
        largest = findings.iloc[0]
        row["top finding"] = f"{largest['finding']} {largest['% of judged time']:.0f} %"
    categories = report.sheets.get("gpu_time_by_category")
    if categories is not None and len(categories):
        longest = categories.iloc[0]
        row["top category"] = f"{longest['kernel_category']} {longest['% of GPU time']:.0f} %"
    return row


def show_summary(rows: Sequence[dict[str, object]], console: Console) -> None:
    """Print a line a trace: how long, how busy, and with what."""
    from tracelens_ext.report.terminal import frame_table

    console.print()
    console.print(frame_table(pd.DataFrame(rows), title="Traces"))


def show_comparison(comparison: Comparison, report: Report, console: Console, *, top: int) -> None:
    """Print the verdict, what was compared, the tables, and the notes."""
    from tracelens_ext.cli.screen import show_notes
    from tracelens_ext.compare.verdict import time_basis
    from tracelens_ext.report.terminal import frame_table, safe_text

    facts = dict(report.facts)
    console.print(safe_text(str(facts["Verdict"])), markup=False, highlight=False)
    for letter in () if comparison.history else comparison.letters:
        role = f"{letter} (baseline)" if letter == comparison.letters[0] else letter
        line = f"{role}: {facts[role]}; devices: {facts[f'{letter} devices']};"
        line += f" iterations: {facts[f'{letter} iterations']}"
        console.print(safe_text(line), markup=False, highlight=False)
    basis = time_basis(comparison)
    titles = {
        "history": f"Against the median of those before, {basis}",
        "findings": f"Findings, {basis}",
        "timeline": f"GPU timeline, {basis}",
        "phases": "GPU time by phase of serving, whole traces",
        "categories": f"GPU time by category, {basis}",
        "operations": f"GPU time by CPU operation, {basis}",
        "kernels": f"GPU time by kernel, {basis}",
        "places": f"GPU time by place in the program, {basis}",
        "roofline": f"Time lost against the best case, {basis}",
    }
    for name, title in titles.items():
        frame = report.sheets.get(name)
        if frame is None or not len(frame):
            continue
        rows = (
            top
            if name in ("history", "operations", "kernels", "places", "roofline")
            else len(frame)
        )
        if rows:
            console.print()
            shown = _of_comparison(frame.head(rows))
            console.print(frame_table(shown, title=title, rows=rows, keep=("difference_ms",)))
    console.print()
    show_notes(report.notes, console)


def _of_comparison(frame: pd.DataFrame) -> pd.DataFrame:
    """Leave out what other columns tell; simplify kernel names, which come first."""
    from tracelens_ext.kernel_names import short_name

    # Of several traces there is room for the percentages alone.
    several = () if "difference_ms" in frame else ("difference_ms", "by_speed_ms")
    told = ("ratio", "_count", "_calls", "_kernels", "by_calls_ms", "backward", "only_in", *several)
    shown = frame[[c for c in frame if not str(c).endswith(told)]]
    if "path" in shown:
        sides = [c for c in shown if str(c).endswith("_operation")]
        words = shown[sides].fillna("").to_numpy().tolist()
        operation = [" → ".join(dict.fromkeys(filter(None, each))) for each in words]
        shown = shown.drop(columns=[*sides, "path"])
        shown.insert(0, "operation", operation)
        shown.insert(0, "path", frame["path"])
    if "kernel_name" not in shown:
        return shown
    names = [short_name(name) for name in shown["kernel_name"]]
    return shown.drop(columns="kernel_category", errors="ignore").assign(kernel_name=names)


def _coverage(facts: dict[str, object]) -> list[str]:
    lines = []
    unlinked, unknown = facts.get("GPU time unlinked (%)"), facts.get("GPU time uncategorized (%)")
    if isinstance(unlinked, float) and facts.get("GPU events"):
        lines.append(f"Unlinked: {unlinked:.1f} % of GPU time has no launch in the trace.")
    if isinstance(unknown, float) and facts.get("GPU events"):
        names = facts["Kernel names uncategorized"]
        largest = facts.get("Largest uncategorized")
        more = f"; the largest: {largest}" if largest else ""
        lines.append(f"Uncategorized: {unknown:.1f} % of GPU time ({names} kernel names{more}).")
    return lines
