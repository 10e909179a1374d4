"""The coverage of a recording as a table, as JSON, and in sentences."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

import numpy as np

from tracelens_ext.analysis.context import of_gpu_events
from tracelens_ext.analysis.coverage.coverage import Coverage, coverage_of
from tracelens_ext.analysis.coverage.missing_gpu_work import no_gpu_work
from tracelens_ext.analysis.coverage.outside import time_outside
from tracelens_ext.analysis.coverage.part_kinds import (
    DROPPED_EVENTS,
    PRE_RECORDING,
    WARM_UP,
)
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.table import Table
from tracelens_ext.trace import LAUNCH_KINDS, NS_PER_MS, NS_PER_US, Trace
from tracelens_ext.trace.gpu_events import GpuEvents, find_tracks
from tracelens_ext.trace.grouping import group_durations

#: If the share of launches without GPU work is larger than this, a sentence mentions it.
_MANY_LOST_SHARE: Final = 0.01
#: Number of API calls that the table shows of a trace without GPU work.
_CALLS_SHOWN: Final = 10
_COLUMN_TYPES: Final = {
    "kind": "str",
    "device": "float64",
    "start_ms": "float64",
    "end_ms": "float64",
    "duration_ms": "float64",
    "count": "float64",
    "what": "str",
    "place": "str",
    "how": "str",
}
_TEXT_COLUMNS: Final = ("what", "place", "how")


def recording_dict(gpu_events: GpuEvents) -> dict[str, object]:
    """Return the coverage for JSON; `wall_ms` and `analyzed_ms` are None without GPU work."""
    recording = coverage_of(gpu_events)
    wall_ms = None
    analyzed_ms = None
    if len(gpu_events):
        wall_ms = recording.wall_ns / NS_PER_MS
        analyzed_ms = recording.analyzed_ns / NS_PER_MS
    return {
        "wall_ms": wall_ms,
        "not_recorded_ms": recording.mean_ns(DROPPED_EVENTS, PRE_RECORDING) / NS_PER_MS,
        "warm_up_ms": recording.mean_ns(WARM_UP) / NS_PER_MS,
        "analyzed_ms": analyzed_ms,
        "launches": recording.launch_count,
        "unmatched_launches": recording.unmatched_launches,
        "parts": _part_records(gpu_events, recording),
        "missing": [asdict(missing) for missing in recording.missing],
    }


def _part_records(
    gpu_events: GpuEvents, recording: Coverage
) -> list[dict[str, object]]:
    """Return the parts that cannot be analyzed, with times since the start of the wall."""
    parts = recording.parts
    device_numbers = find_tracks(gpu_events, "device").device
    table = pd.DataFrame(
        {
            "kind": parts["kind"],
            "device": device_numbers[parts["device"].to_numpy()],
            "start_ms": (parts["start"] - recording.wall_start) / NS_PER_MS,
            "end_ms": (parts["end"] - recording.wall_start) / NS_PER_MS,
            "duration_ms": parts["ns"] / NS_PER_MS,
            "count": parts["count"],
            "what": parts["what"],
            "place": parts["place"],
        }
    )
    records: list[dict[str, object]] = table.to_dict("records")  # type: ignore[assignment]  # texts
    return records


def recording_table(gpu_events: GpuEvents) -> pd.DataFrame:
    """Return the totals, then the parts, longest first, and finally the data not recorded."""
    recording = coverage_of(gpu_events)
    document = recording_dict(gpu_events)
    rows: list[dict[str, object]] = [
        {"kind": "wall", "duration_ms": document["wall_ms"]},
        {"kind": "not_recorded", "duration_ms": document["not_recorded_ms"]},
        {"kind": "warm_up", "duration_ms": document["warm_up_ms"]},
        {"kind": "analyzed", "duration_ms": document["analyzed_ms"]},
        {"kind": "launches", "count": recording.launch_count},
        {
            "kind": "unmatched_launches",
            "count": recording.unmatched_launches,
        },
    ]
    records = _part_records(gpu_events, recording)
    longest_first = np.argsort(-recording.parts["ns"], kind="stable").tolist()
    rows += [records[index] for index in longest_first]
    if not len(gpu_events):
        rows += _api_call_rows(gpu_events.trace)
    for missing in recording.missing:
        what = f"{missing.what}: {missing.adds}"
        rows.append({"kind": "missing", "what": what, "how": missing.how})
    no_texts = dict.fromkeys(_TEXT_COLUMNS, "")
    rows = [{**no_texts, **row} for row in rows]
    table = pd.DataFrame(rows, columns=list(_COLUMN_TYPES)).astype(_COLUMN_TYPES)
    wall_ms = recording.wall_ns / NS_PER_MS or np.nan
    table.insert(5, "% of wall time", 100.0 * table["duration_ms"] / wall_ms)
    return table


def _api_call_rows(trace: Trace) -> list[dict[str, object]]:
    """Return a row for each of the API calls that take most time, by name."""
    rows = trace.rows_of(*LAUNCH_KINDS)
    calls = group_durations([trace.name[rows]], trace.dur[rows])
    table: list[dict[str, object]] = []
    for index, name in enumerate(calls.keys[0][:_CALLS_SHOWN].tolist()):
        table.append(
            {
                "kind": "api_calls",
                "what": trace.names[name],
                "duration_ms": int(calls.total[index]) / NS_PER_MS,
                "count": int(calls.count[index]),
            }
        )
    return table


def recording_lines(gpu_events: GpuEvents) -> list[str]:
    """Return sentences about the analyzed time, and about launches without GPU work if many.

    Without GPU work, the only sentence explains why there is none.
    """
    if not len(gpu_events):
        return [no_gpu_work(gpu_events)]
    recording = coverage_of(gpu_events)
    wall = recording.wall_ns
    left_out_ns = {
        "not recorded": recording.mean_ns(DROPPED_EVENTS, PRE_RECORDING),
        "of warm-up (start recording later)": recording.mean_ns(WARM_UP),
    }
    left_out = []
    for reason, time in left_out_ns.items():
        if time:
            percent = 100 * time / max(wall, 1)
            left_out.append(f"{_time_text(time)} ({percent:.1f} %) {reason}")
    analyzed = "all of it analyzed."
    if left_out:
        analyzed_time = _time_text(recording.analyzed_ns)
        analyzed = f"{analyzed_time} of it analyzed; left out: {', '.join(left_out)}."
    wall_time_line = f"{_time_text(wall)} of wall time, {analyzed}"
    outside = time_outside(gpu_events)
    if outside:
        wall_time_line += f" {outside}"
    lines = [wall_time_line]
    unmatched = recording.unmatched_launches
    launches = recording.launch_count
    if unmatched > _MANY_LOST_SHARE * launches:
        percent = 100 * unmatched / launches
        lines.append(
            f"{unmatched:,} of {launches:,} launches ({percent:.1f} %) have no GPU work in the "
            "file."
        )
    return lines


def _time_text(nanoseconds: float) -> str:
    if nanoseconds >= NS_PER_MS:
        return f"{nanoseconds / NS_PER_MS:,.1f} ms"
    return f"{nanoseconds / NS_PER_US:,.1f} µs"


RECORDING = Table(
    name="recording",
    description="How much of the wall time can be analyzed, and what was not recorded",
    columns=[
        Column(
            "kind",
            "what the row shows: the `wall` time; its parts that are "
            "`not_recorded`, `warm_up` and `analyzed`, as means over the "
            "devices; the `launches` of kernels, graphs and copies, and the "
            "`unmatched_launches` without GPU work; each interval that cannot "
            "be analyzed (`dropped_events`, `pre_recording` or `warm_up`), "
            "longest first; without GPU work, the longest `api_calls`; and "
            "what is `missing`",
        ),
        Column("device", "number of the device"),
        Column("start_ms", "start of the interval, since the start of the wall time"),
        Column("end_ms", "end of the interval, since the start of the wall time"),
        Column(
            "duration_ms",
            "the time that the row shows; of an interval, the part that "
            "cannot be analyzed: idle time, and work that is set aside",
        ),
        Column("% of wall time", "`duration_ms` as a share of the wall time"),
        Column("count", "number of launches or calls", unit="launches"),
        Column(
            "what",
            "what happened in the interval, or what is missing and what it would add",
        ),
        Column(
            "place",
            "operation, annotation or Python frame in which the interval begins",
        ),
        Column("how", "how to record the missing data"),
    ],
    build=of_gpu_events(recording_table),
    requires=(),
)
