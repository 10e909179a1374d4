"""`tracelens-ext counters`: how much work waits for each stream, and how fast copies are."""

from __future__ import annotations

from tracelens_ext.cli import options as shared
from tracelens_ext.settings import ReadingOptions


def counters(
    trace: shared.Trace,
    json: shared.Json = False,
    *,
    reading: ReadingOptions,
) -> None:
    """Show the queue length of each stream and the bandwidth of copies."""
    from tracelens_ext.cli.load import analyze
    from tracelens_ext.cli.messages import print_json, print_line
    from tracelens_ext.counters.tables import copy_bandwidth, queue_length
    from tracelens_ext.errors import TraceError

    work = analyze(trace, shared.AnalysisOptions(reading=reading)).work
    if not len(work):
        raise TraceError(trace, "has no GPU events", "record a part of the run that uses the GPU")
    tables = {"queue_length": queue_length(work), "copy_bandwidth": copy_bandwidth(work)}
    if json:
        print_json("Counters", trace, tables)
        return
    from tracelens_ext.cli.screen import console
    from tracelens_ext.report.terminal import frame_table

    screen = console()
    print_line(f"Trace: {trace}")
    titles = ("Launched and not begun, by stream", "Speed of copies, GB/s")
    for title, table in zip(titles, tables.values(), strict=True):
        if len(table):
            screen.print(frame_table(table, title=title, rows=len(table)))
