"""What is marked on the time axis of a report: iterations, parts of the recording, findings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracelens_ext.analysis.coverage.coverage import recording_of
from tracelens_ext.analysis.iterations.selection import find_iterations
from tracelens_ext.analysis.timeline.time_axis import MOST_BINS
from tracelens_ext.findings.context import FindingsContext
from tracelens_ext.findings.finding import Finding
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.table import Table
from tracelens_ext.trace import NONE, NS_PER_MS
from tracelens_ext.trace.gpu_events import find_tracks
from tracelens_ext.trace.intervals import union


def timeline_markers(
    context: FindingsContext, *, device_peaks: str | None = None
) -> pd.DataFrame | None:
    """Iterations of the first process that has any, parts of the recording, findings."""
    work = context.gpu_events
    found = find_iterations(work.tree)
    recording = recording_of(work)
    first = found.process == found.process[:1]
    parts = recording.parts
    names = np.array(
        [f"ProfilerStep#{number}" for number in found.number], dtype=object
    )[first]
    steps = {"kind": "iteration", "name": names, "device": NONE, "finding": ""}
    steps |= {"start": found.start[first], "end": found.end[first]}
    device = find_tracks(work, "device").device[parts["device"].to_numpy()]
    kind = parts["kind"].replace({"before": "hole"})
    cuts = parts[["start", "end"]].assign(
        kind=kind, name=parts["what"], device=device, finding=""
    )
    tables = [pd.DataFrame(steps), cuts]
    bin_ns = recording.wall_ns // MOST_BINS
    findings: Sequence[Finding] = ()
    with context.failures.isolate("The findings on the time axis"):
        findings = context.findings(device_peaks).findings
    for finding in findings:
        if finding.claim is not None:
            start, end, *_ = finding.claim.intervals
            start, end = union(start, end + bin_ns)
            row = {
                "kind": "finding",
                "name": finding.title,
                "device": NONE,
                "finding": finding.id,
            }
            tables.append(pd.DataFrame({**row, "start": start, "end": end - bin_ns}))
    marks = pd.concat(
        [table for table in tables if len(table)] or tables[:1], ignore_index=True
    )
    for name in ("start", "end"):
        marks[f"{name}_ms"] = marks.pop(name) / NS_PER_MS
    return marks if len(marks) else None


TIME_AXIS_MARKS = Table(
    name="time_axis_marks",
    shows="What is marked on the time axis",
    columns=[
        Column("kind", "`iteration`, `hole`, `start_up` or `finding`"),
        Column("name", "what it is"),
        Column("device", "-1 for all"),
        Column("finding", "which kind of finding; empty for what is none"),
        Column(
            "start_ms",
            "since the trace's first event; what a finding claims less than a 600th of the "
            "wall time apart is one stretch",
        ),
        Column(
            "end_ms",
            "since the trace's first event; what a finding claims less than a 600th of the "
            "wall time apart is one stretch",
        ),
    ],
    table=timeline_markers,
    options=["device_peaks"],
    asked_by="time_axis",
    on_every_page=True,
)
