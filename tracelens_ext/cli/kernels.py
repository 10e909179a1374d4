"""`tracelens-ext kernels`: which kernels ran, how often and how long; and the gaps between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.load import analyze, show_problems
from tracelens_ext.cli.outputs import STANDARD_OUTPUT, check_texts, tell_written, write_text
from tracelens_ext.cli.screen import Block, first_lines, show, trace_report

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.iterations.iterations import Selection


def kernels(
    trace: Path,
    top: int = 10,
    sort: Literal["count", "duration", "percentage", "duration-percentage"] = "count",
    category: str | None = None,
    verbose: bool = False,
    sources: bool = False,
    output: Path | None = None,
    gaps: bool = False,
    gap_output: Path | None = None,
    json: bool = False,
    force: bool = False,
    *,
    selecting: shared.SelectionOptions,
    options: shared.GapOptions,
    analysis: shared.AnalysisOptions,
    screen: shared.Screen,
) -> None:
    """List kernels by count or duration; with --gaps, the idle time between them too.

    Options:
        top -t 0..: Kernels to print.
        sort -s: count; duration: the average; percentage: of the launches; duration-percentage: of
            the total duration.
        category: Only kernels of this category, such as GEMM.
        verbose -v: Also print full kernel names.
        sources: Also print the source line and layer of each (recorded with with_stack=True).
        output -o FILE: Write every kernel to a text file (- prints it).
        gaps -g: Also analyse the idle time between kernels.
        gap_output FILE: Write all about the gaps to a text file (- prints it).
    """
    from tracelens_ext.cli import kernel_view
    from tracelens_ext.cli.gaps import GapReport
    from tracelens_ext.kernels.statistics import (
        SORTS,
        kernel_full_names,
        kernel_sources,
        kernel_statistics,
    )
    from tracelens_ext.report.kernel_text import kernel_text

    wants_gaps = gaps or gap_output is not None
    if not wants_gaps:
        options.check_unused()
    selection = selecting.selection(category)
    check_texts([output, gap_output], trace, force=force, json=json, every=options.all)
    analyzer = analyze(trace, replace(analysis, python_frames=sources), without_tpu=True)
    statistics = kernel_statistics(analyzer.work, sort, selection=selection)
    names = kernel_full_names(analyzer.work, sort, selection=selection)
    tables = {"kernel_statistics": statistics, "kernel_full_names": names}
    if sources:
        tables["kernel_sources"] = kernel_sources(analyzer.work, selection=selection)
    notes = [] if len(statistics) else [_why_none(analyzer, selection)]
    report = GapReport.of(analyzer, selection, options) if wants_gaps else None
    show_problems(analyzer.problems)
    selected = shared.selected_text(selection, analyzer.work)
    sorted_by = SORTS[sort][1]
    if output is not None:
        write_text(output, kernel_text(statistics, names, sorted_by=sorted_by, selected=selected))
    if gap_output is not None and report is not None:
        write_text(gap_output, report.text())

    def blocks() -> Iterator[Block]:
        yield ["=== GPU KERNEL ANALYSIS ===", ""]
        yield from first_lines(analyzer.work)
        yield from kernel_view.kernel_blocks(statistics, top, sorted_by, selected)
        if verbose and len(statistics):
            yield lambda console: [kernel_view.full_name_lines(names, console, top=top)]
        if sources:
            yield lambda console: [
                kernel_view.source_lines(tables["kernel_sources"], console, top=top)
            ]
        if report is not None:
            yield [""]
            yield from report.blocks()

    if json or STANDARD_OUTPUT not in (output, gap_output):
        members: dict[str, object] = {}
        if report is not None:
            tables, members = tables | report.tables, report.members
            notes = list(dict.fromkeys([*notes, *report.notes])) if json else []
        facts = [("Selected", selected)] if selected else []
        document = trace_report("GPU kernels", trace, tables, notes, facts=facts, members=members)
        show(document, blocks(), json=json, all_notes=screen.notes)
    if not json:
        tell_written([output, gap_output])


def _why_none(analyzer: TreePerfAnalyzer, selection: Selection) -> str:
    """Why no kernel is listed."""
    if len(analyzer.work):
        return f"No GPU event is of {selection.text}, so all counts are 0."
    from tracelens_ext.recording.told import no_gpu_work

    return no_gpu_work(analyzer.work)
