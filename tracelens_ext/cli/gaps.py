"""`tracelens-ext gaps`: how long the GPU was idle, between which kernels, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracelens_ext.cli import gap_options as asked
from tracelens_ext.cli import options as shared
from tracelens_ext.cli.messages import say


def gaps(
    trace: asked.Trace,
    sort: Annotated[
        asked.GapSort,
        typer.Option(
            "--gap-sort", "--sort", "-s", help="What kernel pairs are sorted by, largest first."
        ),
    ] = asked.GAP_SORT,
    top: Annotated[
        int,
        typer.Option(
            "--gap-top",
            "--top",
            "-t",
            help="Kernel pairs, longest gaps and (at most 8) rows of what the host was in to"
            " print.",
            min=0,
        ),
    ] = asked.GAP_TOP,
    output: Annotated[
        Path | None,
        typer.Option(
            "--gap-output",
            "--output",
            "-o",
            metavar="FILE",
            help="Write all about the gaps to a text file.",
        ),
    ] = None,
    hist_min: asked.HistMin = None,
    hist_max: asked.HistMax = None,
    log: asked.Log = False,
    pstep: asked.PStep = None,
    stream: asked.Stream = None,
    device: asked.Device = None,
    json: asked.Json = False,
    force: shared.Force = False,
) -> None:
    """Show why the GPU was idle: gaps by cause, stream, length and kernels around them."""
    from tracelens_ext.analysis.selection import Selection
    from tracelens_ext.cli.load import AnalysisOptions, analyze
    from tracelens_ext.cli.text_output import check_texts, write_text

    options = asked.GapOptions(sort, top, hist_min, hist_max, log)
    check_texts([output], trace, force=force)
    analyzer = analyze(trace, AnalysisOptions(kernel_categories=False))
    report = options.report(analyzer.work, Selection(pstep, stream, device))
    if output is not None:
        write_text(output, report.text())
    if json:
        sheets = asked.gap_sheets(report)
        asked.print_json("GPU idle time", trace, sheets, report.selected)
        return
    from tracelens_ext.cli.gap_view import show_gaps
    from tracelens_ext.cli.kernel_view import console

    show_gaps(report, console(), top=top)
    if output is not None:
        say(f"Wrote {output}")
