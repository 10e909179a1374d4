"""`tracelens-ext roofline`: how good each operation is, and how many milliseconds are lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.load import analyze, show_problems
from tracelens_ext.cli.screen import Block, Part, fact_text, first_lines, folded, show, trace_report
from tracelens_ext.errors import UsageError
from tracelens_ext.report.terminal import name_text
from tracelens_ext.settings import ReadingOptions
from tracelens_ext.tables.short_names import cut_middle

if TYPE_CHECKING:
    from rich.console import Console

    from tracelens_ext.roofline.found import RooflineRow

Sort = Literal["lost", "time", "percent", "count"]
#: Column, whether the largest comes first, and title.
_SORTS: dict[Sort, tuple[str, bool, str]] = {
    "lost": ("time_lost_ms", False, "Operations that lose the most time"),
    "time": ("gpu_time_ms", False, "Operations that take longest"),
    "percent": ("% of roofline", True, "Operations furthest from their roofline"),
    "count": ("count", False, "Operations called most often"),
}
_MOST_ITERATIONS = 10
_HEADER = f"{'lost ms':>10} {'GPU ms':>10} {'% of roof':>9}  {'bound':7} {'calls':>7}  operation"
_INDENT = " " * 12


def roofline(
    trace: Path,
    device_peaks: str | None = None,
    sort: Sort = "lost",
    family: str | None = None,
    top: int = 10,
    annotation: str | None = None,
    pstep: int | None = None,
    device: int | None = None,
    capture: Path | None = None,
    json: bool = False,
    *,
    reading: ReadingOptions,
    screen: shared.Screen,
) -> None:
    """Show how far each operation is from what the GPU can do, and the time that is lost.

    Options:
        sort -s: lost: the most time lost; time: GPU time; percent: furthest from the roofline;
            count: calls.
        family: Only operations of this family, such as GEMM.
        top -t 0..: Operations to print.
    """
    from tracelens_ext.iterations.iterations import Selection
    from tracelens_ext.roofline.summary import advice, modelled, roofline_facts

    how = shared.AnalysisOptions(kernel_categories=False, capture=capture, reading=reading)
    analyzer = analyze(trace, how)
    selection = Selection(pstep, device=device)
    found = analyzer.roofline(device_peaks, selection)
    show_problems(analyzer.problems)
    frame = analyzer.get_df_roofline(device_peaks, selection=selection)
    column, ascending, title = _SORTS[sort]
    if sort == "lost" and frame[column].isna().all():
        column = "gpu_time_ms"  # without peaks
    frame = frame.sort_values(column, ascending=ascending, kind="stable")
    if family is not None:
        names = frame["family"].fillna("")
        chosen = names.str.casefold() == family.casefold()
        if not chosen.any():
            has = ", ".join(sorted(set(names) - {""})) or "none"
            raise UsageError(f"no operation is of the family {family!r}; the trace has {has}")
        frame = frame[chosen]
    facts = roofline_facts(analyzer.trace, found)
    if selection.text:
        facts.append(("Selected", selection.text))
    families = analyzer.get_df_families(device_peaks, selection=selection)
    steps = analyzer.get_df_mfu_by_iteration(device_peaks, annotation, selection=selection)
    tables = {"roofline": frame, "families": families, "mfu_by_iteration": steps}
    notes = advice(analyzer.work, found)

    def blocks() -> Iterator[Block]:
        yield from first_lines(analyzer.work, trace)
        told = [fact_text(*fact) for fact in facts if fact[0] != "GPU time modelled (%)"]
        told.append(f"{modelled(found)}.")
        yield lambda console: [folded(text, console.width, "  ") for text in told]
        shown = [column for column in steps if column != "mfu_%" or steps[column].notna().any()]
        yield Part.of("mfu_by_iteration", steps[shown].head(_MOST_ITERATIONS))
        if (more := len(steps) - _MOST_ITERATIONS) > 0:
            yield [f"{more:,} more iterations (--json shows all)"]
        yield Part.of("families", families.dropna(axis="columns", how="all"))
        rows = [found.rows[i] for i in frame.index[:top].tolist()]
        yield lambda console: [_operations(rows, title, console)]
        if rows and (more := len(frame) - len(rows)):
            yield [f"{more:,} more not shown (--top)"]

    report = trace_report("Roofline", trace, tables, notes, facts=facts)
    show(report, blocks(), json=json, all_notes=screen.notes)


def _operations(rows: Sequence[RooflineRow], title: str, console: Console) -> list[str]:
    """Operations, each in three lines at most: numbers, shapes, why it is slow."""
    from tracelens_ext.roofline.found import shape_text
    from tracelens_ext.trace import NS_PER_MS

    if not rows:
        return []
    lines = ["", title, _HEADER, "-" * min(console.width, 79)]
    for row in rows:
        percent = lost = ""
        if row.roofline_ns is not None:
            lost = f"{(row.lost_ns or 0.0) / NS_PER_MS:,.3f}"
            percent = f"{100.0 * row.roofline_ns / row.gpu_ns:,.1f}" if row.gpu_ns else ""
        numbers = f"{lost:>10} {row.gpu_ns / NS_PER_MS:>10,.3f} {percent:>9}"
        head = f"{numbers}  {row.bound or '':7} {row.count:>7,}  "
        room = max(console.width - len(head), 16)
        lines.append(head + cut_middle(name_text(row.operation.name), room))
        why = row.why_slow or (f"no model: {row.why_no_model}" if row.why_no_model else "")
        for text in (shape_text(row), why):
            lines += folded(_INDENT + text, console.width, _INDENT) if text else []
    return lines
