"""`tracelens-ext counters`: how much work waits for each stream, and how fast copies are."""

from __future__ import annotations

from pathlib import Path

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.load import analyze
from tracelens_ext.cli.screen import Part, show, trace_report
from tracelens_ext.settings import ReadingOptions


def counters(trace: Path, json: bool = False, *, reading: ReadingOptions) -> None:
    """Show the queue length of each stream and the bandwidth of copies."""
    from tracelens_ext.errors import TraceError
    from tracelens_ext.timeline.timeline import COUNTERS, copy_bandwidth, queue_length

    work = analyze(trace, shared.AnalysisOptions(reading=reading)).work
    if not len(work):
        raise TraceError(trace, "has no GPU events", "record a part of the run that uses the GPU")
    tables = {"queue_length": queue_length(work), "copy_bandwidth": copy_bandwidth(work)}
    parts = [Part.of(table, tables[table.name]) for table in COUNTERS]
    show(trace_report("Counters", trace, tables), [[f"Trace: {trace}"], *parts], json=json)
