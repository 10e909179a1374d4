"""`tracelens-ext kernels`: which kernels ran, how often and how long; and the gaps between them."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens_ext.cli import gap_options
from tracelens_ext.cli import options as shared

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.iterations.selection import Selection


class KernelSort(Enum):
    """What kernels are sorted by, largest first."""

    count = "count"
    duration = "duration"
    percentage = "percentage"
    duration_percentage = "duration-percentage"


def kernels(
    trace: shared.Trace,
    top: Annotated[int, typer.Option("--top", "-t", help="Kernels to print.", min=0)] = 10,
    sort: Annotated[
        KernelSort,
        typer.Option(
            "--sort",
            "-s",
            help="count; duration: the average; percentage: of the launches;"
            " duration-percentage: of the total duration.",
        ),
    ] = KernelSort.count,
    category: Annotated[
        str | None, typer.Option("--category", help="Only kernels of this category, such as GEMM.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also print full kernel names.")
    ] = False,
    sources: Annotated[
        bool,
        typer.Option(
            "--sources",
            help="Also print the source line and layer of each (recorded with with_stack=True).",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write every kernel to a text file (- prints it).",
        ),
    ] = None,
    gaps: Annotated[
        bool, typer.Option("--gaps", "-g", help="Also analyse the idle time between kernels.")
    ] = False,
    gap_output: Annotated[
        Path | None,
        typer.Option(
            "--gap-output",
            metavar="FILE",
            help="Write all about the gaps to a text file (- prints it).",
        ),
    ] = None,
    json: shared.Json = False,
    force: shared.Force = False,
    *,
    selecting: gap_options.SelectionOptions,
    options: gap_options.GapOptions,
    analysis: shared.AnalysisOptions,
) -> None:
    """List kernels by count or duration; with --gaps, the idle time between them too."""
    from tracelens_ext.cli import kernel_view
    from tracelens_ext.cli.gap_view import GapReport, show_gaps
    from tracelens_ext.cli.load import analyze, show_problems
    from tracelens_ext.cli.messages import print_json
    from tracelens_ext.cli.screen import console, first_lines, show_lines
    from tracelens_ext.cli.text_output import STANDARD_OUTPUT, check_texts, tell_written, write_text
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
    chosen = {"selection": selection}
    statistics = kernel_statistics(analyzer.work, sort.value, **chosen)
    tables = {
        "kernel_statistics": statistics,
        "kernel_full_names": kernel_full_names(analyzer.work, sort.value, **chosen),
    }
    if sources:
        tables["kernel_sources"] = kernel_sources(analyzer.work, **chosen)
    notes = [] if len(statistics) else [_why_none(analyzer, selection)]
    report = GapReport.of(analyzer, selection, options) if wants_gaps else None
    show_problems(analyzer.problems, set())
    selected = gap_options.selected_text(selection, analyzer.work)
    listed = {"sorted_by": SORTS[sort.value][1], "selected": selected}
    if output is not None:
        write_text(output, kernel_text(statistics, tables["kernel_full_names"], **listed))
    if gap_output is not None and report is not None:
        write_text(gap_output, report.text())
    if json:
        more, told = report.document() if report is not None else ({}, [])
        print_json(
            "GPU kernels",
            trace,
            tables | more,
            list(dict.fromkeys([*notes, *told])),
            facts=[("Selected", selected)] if selected else [],
            members=report.members if report is not None else {},
        )
        return
    if STANDARD_OUTPUT not in (output, gap_output):
        screen = console()
        first = first_lines(analyzer.work)
        kernel_view.show_kernels(statistics, screen, top=top, first=first, **listed)
        if report is None:
            show_lines([line for note in notes for line in ("", note)], screen)
        if verbose and len(statistics):
            kernel_view.show_full_names(tables["kernel_full_names"], screen, top=top)
        if sources:
            kernel_view.show_sources(tables["kernel_sources"], screen, top=top)
        if report is not None:
            screen.print()
            show_gaps(report, screen)
    tell_written([output, gap_output])


def _why_none(analyzer: TreePerfAnalyzer, selection: Selection) -> str:
    """Why no kernel is listed."""
    if len(analyzer.work):
        return f"No GPU event is of {selection.text}, so all counts are 0."
    from tracelens_ext.recording.told import no_gpu_work

    return no_gpu_work(analyzer.work)
