"""`tracelens-ext counters`: the queue length of each stream, and the bandwidth of copies."""

from __future__ import annotations

from tracelens_ext.cli.options import AnalysisOptions, Json, ReadingFlags, TraceArgument
from tracelens_ext.cli.screen import Block, Part, show, trace_report
from tracelens_ext.errors import TraceError
from tracelens_ext.hooks import Command


def counters(
    trace: TraceArgument, json: Json = False, *, reading: ReadingFlags
) -> None:
    """Show the queue length of each stream and the bandwidth of copies."""
    from tracelens_ext.analysis.timeline.counters import copy_bandwidth, queue_length
    from tracelens_ext.cli.load import analyze, computed_tables, recording_notes

    analyzer = analyze(trace, AnalysisOptions(reading=reading))
    gpu_events = analyzer.gpu_events
    if not len(gpu_events):
        raise TraceError(
            path=trace,
            problem="has no GPU events",
            remedy="record a part of the run that uses the GPU",
        )
    makers = {
        "queue_length": lambda: queue_length(gpu_events),
        "copy_bandwidth": lambda: copy_bandwidth(gpu_events),
    }
    tables = computed_tables(analyzer.failures, makers)
    blocks: list[Block] = [[f"Trace: {trace}"]]
    blocks += [Part.of(name, table) for name, table in tables.items()]
    notes = recording_notes(analyzer, for_json=json)
    show(
        trace_report(title="Counters", trace=trace, tables=tables, notes=notes),
        blocks,
        json=json,
    )


COMMAND = Command(
    name="counters",
    summary="Show stream queue lengths and copy bandwidth.",
    function=counters,
    group="Inspect",
    examples=(
        "counters trace.json.gz",
        "counters run.sqlite",
        "counters trace.json.gz --json",
    ),
)
