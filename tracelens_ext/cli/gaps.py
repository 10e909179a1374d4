"""`tracelens-ext gaps`: how long the GPU was idle, between which kernels, and why."""

from __future__ import annotations

from pathlib import Path

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.load import analyze
from tracelens_ext.cli.outputs import STANDARD_OUTPUT, check_texts, tell_written, write_text
from tracelens_ext.cli.screen import first_lines, show, trace_report
from tracelens_ext.settings import ReadingOptions


def gaps(
    trace: Path,
    output: Path | None = None,
    json: bool = False,
    force: bool = False,
    *,
    selecting: shared.SelectionOptions,
    options: shared.OwnGapOptions,
    reading: ReadingOptions,
) -> None:
    """Show why the GPU was idle: gaps by cause, stream, length and kernels around them.

    Options:
        output --gap-output --output -o FILE: Write all about the gaps to a text file (- prints it).
    """
    from tracelens_ext.cli.gap_view import GapReport

    selection = selecting.selection()
    check_texts([output], trace, force=force, json=json, every=options.all)
    how = shared.AnalysisOptions(kernel_categories=False, reading=reading)
    analyzer = analyze(trace, how, without_tpu=True)
    found = GapReport.of(analyzer, selection, options)
    if output is not None:
        write_text(output, found.text())
    if json or output != STANDARD_OUTPUT:
        tables, notes = found.document() if json else ({}, [])
        report = trace_report(
            "GPU idle time", trace, tables, notes, facts=found.facts, members=found.members
        )
        show(report, found.blocks(first_lines(analyzer.work)), json=json)
    if not json:
        tell_written([output])
