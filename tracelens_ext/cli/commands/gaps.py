"""`tracelens-ext gaps`: shows how long the GPU was idle, between which kernels, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracelens_ext.cli.gap_options import (
    DEFAULT_SORT,
    DEFAULT_TOP,
    EveryGap,
    GapOptions,
    GapSort,
    HistMax,
    HistMin,
    Logarithmic,
)
from tracelens_ext.cli.options import (
    AnalysisOptions,
    Force,
    Json,
    ReadingFlags,
    SelectionOptions,
    TraceArgument,
)
from tracelens_ext.cli.screen import first_lines, show, trace_report
from tracelens_ext.hooks import Command


def gaps(
    trace: TraceArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "--gap-output",
            "--output",
            "-o",
            metavar="FILE",
            help="Write all gap tables to a text file (- prints them).",
        ),
    ] = None,
    json: Json = False,
    force: Force = False,
    *,
    selecting: SelectionOptions,
    gap_top: Annotated[
        int,
        typer.Option(
            "--gap-top",
            "--top",
            "-t",
            min=0,
            help="Kernel pairs, longest gaps, and (at most 8) rows of CPU activity to "
            "print.",
        ),
    ] = DEFAULT_TOP,
    gap_sort: Annotated[
        GapSort,
        typer.Option(
            "--gap-sort",
            "--sort",
            "-s",
            help="How to sort the kernel pairs, largest first.",
        ),
    ] = DEFAULT_SORT,
    hist_min: HistMin = None,
    hist_max: HistMax = None,
    log: Logarithmic = False,
    all: EveryGap = False,  # noqa: A002  # as the option is called
    reading: ReadingFlags,
) -> None:
    """Show why the GPU was idle: gaps by cause, stream, length and surrounding kernels."""
    from tracelens_ext.cli.gap_report import GapReport
    from tracelens_ext.cli.load import analyze, recording_notes
    from tracelens_ext.cli.outputs import check_texts

    options = GapOptions(
        gap_top=gap_top,
        gap_sort=gap_sort,
        hist_min=hist_min,
        hist_max=hist_max,
        log=log,
        all=all,
    )
    selection = selecting.selection()
    outputs = [output] if output else []
    check_texts(outputs, trace, force=force, json=json, every_gap=all)
    analysis = AnalysisOptions(kernel_categories=False, reading=reading)
    analyzer = analyze(trace, analysis, refuses_tpu=True)
    gap_report = GapReport(analyzer=analyzer, selection=selection, options=options)
    notes = list(gap_report.notes) if json else []
    notes += recording_notes(analyzer, for_json=json)
    facts = []
    if gap_report.selected:
        facts.append(("Selected", gap_report.selected))
    report = trace_report(
        title="GPU idle time",
        trace=trace,
        tables=gap_report.tables,
        notes=notes,
        facts=facts,
        members=gap_report.members,
    )
    blocks = gap_report.blocks(first_lines(analyzer.gpu_events))
    texts = dict.fromkeys(outputs, gap_report.text)
    show(report, blocks, json=json, texts=texts)


COMMAND = Command(
    name="gaps",
    summary="Show why the GPU was idle.",
    function=gaps,
    group="Inspect",
    examples=(
        "gaps trace.json.gz",
        "gaps trace.json.gz --step 7 --stream 7",
        "gaps trace.json.gz --output - | less",
    ),
)
