"""`tracelens-ext counters`: how much work waits for each stream, and how fast copies are."""

from __future__ import annotations

from typing import Annotated

import typer

from tracelens_ext.cli import options as shared
from tracelens_ext.settings import ReadingOptions


def counters(
    trace: shared.Trace,
    as_json: Annotated[bool, typer.Option("--json", help="Print the tables as JSON.")] = False,
    *,
    reading: ReadingOptions,
) -> None:
    """Show the queue length of each stream and the bandwidth of copies."""
    from tracelens_ext.cli.load import AnalysisOptions, analyze
    from tracelens_ext.cli.messages import print_line, print_report
    from tracelens_ext.counters.tables import copy_bandwidth, queue_length
    from tracelens_ext.errors import TraceError
    from tracelens_ext.report.report import Report

    work = analyze(trace, AnalysisOptions(reading=reading)).work
    if not len(work):
        raise TraceError(trace, "has no GPU events", "record a part of the run that uses the GPU")
    tables = {"queue_length": queue_length(work), "copy_bandwidth": copy_bandwidth(work)}
    if as_json:
        print_report(Report("Counters", tables, [("Trace", str(trace))]))
        return
    from rich.console import Console

    from tracelens_ext.report.terminal import frame_table

    console = Console()
    print_line(f"Trace: {trace}")
    titles = ("Launched and not begun, by stream", "Speed of copies, GB/s")
    for title, table in zip(titles, tables.values(), strict=True):
        if len(table):
            console.print(frame_table(table, title=title, rows=len(table)))
