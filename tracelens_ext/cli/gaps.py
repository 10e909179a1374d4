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
    json: shared.Json = False,
    force: shared.Force = False,
    *,
    selecting: gap_options.SelectionOptions,
    options: gap_options.OwnGapOptions,
    reading: ReadingOptions,
) -> None:
    """Show why the GPU was idle: gaps by cause, stream, length and kernels around them."""
    from tracelens_ext.cli.gap_view import GapReport, show_gaps
    from tracelens_ext.cli.load import analyze
    from tracelens_ext.cli.messages import print_json
    from tracelens_ext.cli.screen import console, first_lines
    from tracelens_ext.cli.text_output import STANDARD_OUTPUT, check_texts, tell_written, write_text

    selection = selecting.selection()
    check_texts([output], trace, force=force, json=json, every=options.all)
    how = shared.AnalysisOptions(kernel_categories=False, reading=reading)
    analyzer = analyze(trace, how, without_tpu=True)
    report = GapReport.of(analyzer, selection, options)
    if output is not None:
        write_text(output, report.text())
    if json:
        tables, notes = report.document()
        print_json(
            "GPU idle time", trace, tables, notes, facts=report.facts, members=report.members
        )
    elif output != STANDARD_OUTPUT:
        screen = console()
        show_gaps(report, screen, first_lines(analyzer.work))
        tell_written([output])
