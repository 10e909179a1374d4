"""The recording as a table, as JSON, and in sentences."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

import numpy as np

from tracelens_ext.analysis.context import of_gpu_events
from tracelens_ext.analysis.coverage.coverage import BEFORE, HOLE, START_UP, recording_of
from tracelens_ext.analysis.coverage.missing_gpu_work import no_gpu_work
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.table import Table
from tracelens_ext.trace import LAUNCH_KINDS, NS_PER_MS, Trace
from tracelens_ext.trace.gpu_events import GpuEvents, find_tracks
from tracelens_ext.trace.grouping import group_durations

_MANY_LOST: Final = 0.01  # of the launches
_CALLS_SHOWN: Final = 10
_SUMS: Final = "wall", "not_recorded", "start_up", "judged"
_COUNTS: Final = "launches", "launches_without_gpu_work"


def recording_dict(work: GpuEvents) -> dict[str, object]:
    """The recording for JSON; `wall_ms` and `judged_ms` are None without GPU work."""
    found = recording_of(work)
    there = len(work) > 0
    parts = found.parts
    shown = parts.assign(
        device=find_tracks(work, "device").device[parts["device"].to_numpy()],
        start_ms=(parts["start"] - found.wall_start) / NS_PER_MS,
        end_ms=(parts["end"] - found.wall_start) / NS_PER_MS,
        ms=parts["ns"] / NS_PER_MS,
    )[["kind", "device", "start_ms", "end_ms", "ms", "count", "what", "place"]]
    return {
        "wall_ms": found.wall_ns / NS_PER_MS if there else None,
        "not_recorded_ms": found.mean_ns(HOLE, BEFORE) / NS_PER_MS,
        "start_up_ms": found.mean_ns(START_UP) / NS_PER_MS,
        "judged_ms": found.judged_ns / NS_PER_MS if there else None,
        **{name: getattr(found, name) for name in _COUNTS},
        "parts": shown.to_dict("records"),
        "missing": [asdict(each) for each in found.missing],
    }


def recording_table(work: GpuEvents) -> pd.DataFrame:
    """What the recording holds: its sums, its parts, the longest first, and what it lacks."""
    found = recording_of(work)
    told = recording_dict(work)
    rows: list[dict[str, object]] = [{"kind": kind, "ms": told[f"{kind}_ms"]} for kind in _SUMS]
    rows += [{"kind": kind, "count": told[kind]} for kind in _COUNTS]
    parts: list[dict[str, object]] = told["parts"]  # type: ignore[assignment]  # of its own making
    rows += [parts[at] for at in np.argsort(-found.parts["ns"], kind="stable").tolist()]
    if not len(work):
        rows += _calls(work.trace)
    for each in found.missing:
        rows.append({"kind": "missing", "what": f"{each.what}: {each.adds}", "how": each.how})
    numbers = dict.fromkeys(("device", "start_ms", "end_ms", "ms", "count"), "float64")
    kinds = {"kind": "str", **numbers, "what": "str", "place": "str", "how": "str"}
    rows = [{"what": "", "place": "", "how": "", **row} for row in rows]
    table = pd.DataFrame(rows, columns=[*kinds]).astype(kinds)
    table.insert(5, "% of wall time", 100.0 * table["ms"] / (found.wall_ns / NS_PER_MS or np.nan))
    return table


def _calls(trace: Trace) -> list[dict[str, object]]:
    """The API calls by time."""
    rows = trace.rows_of(*LAUNCH_KINDS)
    groups = group_durations([trace.name[rows]], trace.dur[rows])
    columns = np.column_stack((groups.keys[0], groups.total, groups.count))[:_CALLS_SHOWN]
    return [
        {"kind": "api_calls", "what": trace.names[name], "ms": ns / NS_PER_MS, "count": count}
        for name, ns, count in columns.tolist()
    ]


def recording_lines(work: GpuEvents) -> list[str]:
    """The recording in words: what can be judged; and launches without GPU work, if many."""
    found = recording_of(work)
    if not len(work):
        return [no_gpu_work(work)]
    wall = found.wall_ns
    lost = found.mean_ns(HOLE, BEFORE)
    start_up = found.mean_ns(START_UP)
    parts = [
        f"{_time(ns)} ({100 * ns / max(wall, 1):.1f} %) {what}"
        for ns, what in ((lost, "not recorded"), (start_up, "start-up: record after a warm-up"))
        if ns
    ]
    told = f"{', '.join(parts)}; {_time(found.judged_ns)} judged." if parts else "all of it judged."
    lines = [f"{_time(wall)} of wall time, {told}"]
    missing = found.launches_without_gpu_work
    every = found.launches
    if missing > _MANY_LOST * every:
        told = f"{missing:,} of {every:,} launches ({100 * missing / every:.1f} %)"
        lines.append(f"{told} have no GPU work in the file.")
    return lines


def _time(ns: float) -> str:
    return f"{ns / NS_PER_MS:,.1f} ms" if ns >= NS_PER_MS else f"{ns / 1e3:,.1f} µs"


RECORDING = Table(
    name="recording",
    shows="How much of the wall time can be judged, and what was not recorded",
    columns=[
        Column(
            "kind",
            "`wall`, what of it is `not_recorded` and `start_up`, and what can be `judged`, "
            "as means over the devices; `launches` of kernels, graphs and copies, and how "
            "many of them have no GPU work; then each `hole`, work of `before` the recording "
            "and `start_up`, the longest first; without GPU work `api_calls` by time; and "
            "what is `missing`",
        ),
        Column("device", "the number of the device"),
        Column("start_ms", "since the start of the wall"),
        Column("end_ms", "since the start of the wall"),
        Column("ms", "idle time of the device in it"),
        Column("% of wall time", "`ms`, of the wall time"),
        Column("count", "launches, or calls, that it is about", unit="launches"),
        Column("what", "what it is"),
        Column("place", "the operation, annotation or frame in which it begins"),
        Column("how", "how to record what is missing"),
    ],
    table=of_gpu_events(recording_table),
    when=(),
)
