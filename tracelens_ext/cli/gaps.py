"""`tracelens-ext gaps`: how long the GPU was idle, between which kernels, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracelens_ext.cli import gap_options
from tracelens_ext.cli import options as shared
from tracelens_ext.settings import ReadingOptions


def gaps(
    trace: shared.Trace,
    sort: Annotated[
        gap_options.GapSort,
        typer.Option(
            "--gap-sort", "--sort", "-s", help="What kernel pairs are sorted by, largest first."
        ),
    ] = gap_options.GAP_SORT,
    top: Annotated[
        int,
        typer.Option(
            "--gap-top",
            "--top",
            "-t",
            help="Kernel pairs, longest gaps and (at most 8) host rows to print.",
            min=0,
        ),
    ] = gap_options.GAP_TOP,
    output: Annotated[
        Path | None,
        typer.Option(
            "--gap-output",
            "--output",
            "-o",
            metavar="FILE",
            help="Write all about the gaps to a text file (- prints it).",
        ),
    ] = None,
    hist_min: gap_options.HistMin = None,
    hist_max: gap_options.HistMax = None,
    log: gap_options.Log = False,
    pstep: gap_options.PStep = None,
    pstep_by: gap_options.PStepBy = None,
    stream: gap_options.Stream = None,
    device: gap_options.Device = None,
    json: gap_options.Json = False,
    every: gap_options.All = False,
    force: shared.Force = False,
    *,
    reading: ReadingOptions,
) -> None:
    """Show why the GPU was idle: gaps by cause, stream, length and kernels around them."""
    from tracelens_ext.cli.gap_view import GapReport, show_gaps
    from tracelens_ext.cli.kernel_view import console, first_lines
    from tracelens_ext.cli.load import AnalysisOptions, analyze
    from tracelens_ext.cli.text_output import (
        STANDARD_OUTPUT,
        check_texts,
        tell_written,
        write_text,
    )

    selection = gap_options.selection_of(pstep, pstep_by, stream, device)
    options = gap_options.GapOptions(sort, top, hist_min, hist_max, log, every)
    check_texts([output], trace, force=force, json=json, every=every)
    analyzer = analyze(
        trace, AnalysisOptions(reading=reading, kernel_categories=False), without_tpu=True
    )
    report = GapReport.of(analyzer.work, selection, options)
    if output is not None:
        write_text(output, report.text())
    if json:
        sheets, notes = report.document()
        gap_options.print_json(
            "GPU idle time", trace, sheets, report.selected, notes, report.members
        )
    elif output != STANDARD_OUTPUT:
        screen = console()
        show_gaps(report, screen, first_lines(analyzer.work))
        tell_written([output])
