"""The tables about idle time: its causes, what the host did, streams, kernels, longest gaps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from tracelens_ext.analysis.context import of_gpu_events
from tracelens_ext.analysis.idle_time.causes import (
    CAUSES,
    Cause,
    ClassifiedGaps,
    classify_gaps,
)
from tracelens_ext.analysis.idle_time.cpu_activity import (
    HOST_KINDS,
    cpu_activity_rows,
    event_labels,
)
from tracelens_ext.analysis.idle_time.histogram import BINS, telling_histogram
from tracelens_ext.analysis.idle_time.shapes import SHAPES, Shape, shapes_of_gaps
from tracelens_ext.analysis.iterations.selection import EventFilter
from tracelens_ext.analysis.kernels.statistics import simple_codes
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.table import Table
from tracelens_ext.trace import NONE, NS_PER_MS, NS_PER_US, Int64Array, IntArray
from tracelens_ext.trace.call_tree import UNLINKED
from tracelens_ext.trace.gpu_events import (
    Gaps,
    GpuEvents,
    GpuTracks,
    Scope,
    busy_within,
    find_tracks,
)
from tracelens_ext.trace.grouping import (
    LabeledColumns,
    group_by_labels,
    maxima,
    number_groups,
    percent,
    sums,
    texts,
)

GapSort = Literal["count", "avg", "avggap", "max", "maxgap", "stdev"]

#: Rows of the sheet of the longest gaps.
LONGEST_LISTED = 100


class PairSort(NamedTuple):
    """What a sort of pairs goes by."""

    column: str
    title: str


_BY_AVERAGE = PairSort("avg_gap_us", "average gap duration")
_BY_MAXIMUM = PairSort("max_gap_us", "maximum gap duration")
#: What each sort of pairs goes by.
PAIR_SORTS: dict[str, PairSort] = {
    "count": PairSort("count", "count"),
    "avg": _BY_AVERAGE,
    "avggap": _BY_AVERAGE,
    "max": _BY_MAXIMUM,
    "maxgap": _BY_MAXIMUM,
    "stdev": PairSort("std_gap_us", "standard deviation of gap duration"),
}


# In all functions, `selection` says which GPU events end the gaps, all by default.


def gap_summary(
    work: GpuEvents,
    scopes: Sequence[Scope] = ("device", "stream"),
    *,
    selection: EventFilter | None = None,
) -> pd.DataFrame:
    """Why the GPU was idle: idle time by cause."""
    parts = [_summary_of_scope(work, scope, selection) for scope in scopes]
    return pd.concat(parts, ignore_index=True)


def _summary_of_scope(
    work: GpuEvents, scope: Scope, selection: EventFilter | None
) -> pd.DataFrame:
    """Return a row for each cause of the gaps of streams, or of devices."""
    classified = classify_gaps(work, scope, selection)
    cause_count = Cause.EDGE.code  # the last; edges are not gaps
    intervals = classified.intervals
    intervals = intervals.chosen(intervals.cause != Cause.EDGE.code)
    duration = intervals.duration
    idle = sums(intervals.cause, duration, cause_count)
    # A gap may have several intervals of one cause; together they are one part of the gap.
    first, part = number_groups([intervals.cause, intervals.gap, intervals.track])
    cause_of_part = intervals.cause[first]
    length_of_part = sums(part, duration, len(first))
    count = np.bincount(cause_of_part, minlength=cause_count)
    longest = np.maximum(maxima(cause_of_part, length_of_part, cause_count), 0)
    overlapped = np.zeros(len(duration), dtype=np.int64)
    if scope == "stream":
        event_after = classified.gaps.after[intervals.gap]
        device = find_tracks(work, "device").of_gpu[event_after]
        overlapped = busy_within(
            gpu_events=work,
            device_index=device,
            start=intervals.start,
            end=intervals.end,
        )
    return pd.DataFrame(
        {
            "scope": pd.array([scope] * cause_count, dtype="str"),
            "cause": pd.array(list(CAUSES[:cause_count]), dtype="str"),
            "count": count,
            "idle_time_ms": idle / NS_PER_MS,
            "% of idle time": percent(idle, int(idle.sum())),
            "avg_gap_us": idle / NS_PER_US / np.maximum(count, 1),
            "max_gap_us": longest / NS_PER_US,
            "overlapped_time_ms": sums(intervals.cause, overlapped, cause_count)
            / NS_PER_MS,
        }
    )


def gap_shapes(
    work: GpuEvents, *, selection: EventFilter | None = None
) -> pd.DataFrame:
    """Return the idle time of devices by the shape of its gaps: short, long, recurring, last."""
    classified = classify_gaps(work, "device")
    chosen = np.ones(len(classified), dtype=bool)
    if selection is not None:
        chosen = selection.of(work)[classified.gaps.after]
    shapes = shapes_of_gaps(work)
    shape = shapes.shape[chosen].astype(np.int64)
    idle_ns = classified.gaps.duration[chosen]
    count = np.bincount(shape, minlength=len(SHAPES))
    idle = sums(shape, idle_ns, len(SHAPES))
    longest = np.maximum(maxima(shape, idle_ns, len(SHAPES)), 0)
    period_ms = np.full(len(SHAPES), np.nan)
    if shapes.pauses and count[Shape.PERIODIC.code]:
        period_ms[Shape.PERIODIC.code] = shapes.pauses[0].period_ms
    return pd.DataFrame(
        {
            "shape": pd.array(list(SHAPES), dtype="str"),
            "count": count,
            "idle_time_ms": idle / NS_PER_MS,
            "% of idle time": percent(idle, int(idle.sum())),
            "avg_gap_us": idle / NS_PER_US / np.maximum(count, 1),
            "max_gap_us": longest / NS_PER_US,
            "period_ms": period_ms,
        }
    )


def idle_cpu_activity(
    work: GpuEvents, scope: Scope = "device", *, selection: EventFilter | None = None
) -> pd.DataFrame:
    """Idle time by what the host was in, longest first."""
    classified = classify_gaps(work, scope, selection)
    duration = classified.gaps.duration
    trace = work.trace
    op, op_labels = event_labels(trace, cpu_activity_rows(work, classified, "host_op"))
    frame, frame_labels = event_labels(
        trace, cpu_activity_rows(work, classified, "python_frame")
    )
    op[classified.launch == NONE] = len(op_labels)
    keys = {
        "host_op": (op, [*op_labels, UNLINKED]),
        "python_frame": (frame, frame_labels),
    }
    columns, groups = group_by_labels(keys, duration)
    cause = classified.main_cause(groups.group_index, len(groups))
    return pd.DataFrame(
        {
            **columns,
            "main_cause": pd.array(texts(cause, CAUSES), dtype="str"),
            "count": groups.count,
            "idle_time_ms": groups.total / NS_PER_MS,
            "% of idle time": percent(groups.total, int(duration.sum())),
            **groups.figures("avg_gap_us", "max_gap_us"),
        }
    )


def gap_streams(
    work: GpuEvents, *, selection: EventFilter | None = None
) -> pd.DataFrame:
    """Gaps by stream, most gaps first; a stream without selected events is left out."""
    classified = classify_gaps(work, "stream", selection)
    gaps = classified.gaps
    tracks = gaps.tracks
    events = classified.events
    idle = sums(group_index=gaps.track, values=gaps.duration, group_count=len(tracks))
    overlapped = sums(
        group_index=gaps.track, values=gaps.overlapped, group_count=len(tracks)
    )
    longest = maxima(
        group_index=gaps.track, values=gaps.duration, group_count=len(tracks)
    )
    longest = np.maximum(longest, 0)  # 0 for a stream without gaps
    count = np.bincount(gaps.track, minlength=len(tracks))
    frame = pd.DataFrame(
        {
            **_track_columns(tracks),
            "events": events,
            "gap_count": count,
            "idle_time_us": idle / NS_PER_US,
            "avg_gap_us": idle / NS_PER_US / np.maximum(count, 1),
            "max_gap_us": longest / NS_PER_US,
            "overlapped_us": overlapped / NS_PER_US,
            "device_idle_us": (idle - overlapped) / NS_PER_US,
        }
    )
    order = np.lexsort((-idle, -count))
    has_events = events[order] > 0
    rows = order[has_events]
    return frame.iloc[rows].reset_index(drop=True)


def _track_columns(
    tracks: GpuTracks, chosen: IntArray | slice = slice(None)
) -> dict[str, object]:
    """Return the columns that name tracks."""
    process = np.array([str(process) for process in tracks.process], dtype=object)
    return {
        "process": pd.array(process[chosen], dtype="str"),
        "device": tracks.device[chosen],
        "stream": tracks.stream[chosen],
    }


def idle_by_kernel_pair(
    work: GpuEvents, sort: GapSort = "avg", *, selection: EventFilter | None = None
) -> pd.DataFrame:
    """Gaps by the kernels around them; `sort` by size."""
    sorts = get_args(GapSort)
    if sort not in sorts:
        raise UsageError(
            f"there is no sort order {sort!r}; choose from {', '.join(sorts)}"
        )
    classified = classify_gaps(work, "stream", selection)
    gaps = classified.gaps
    names, labels = simple_codes(work)
    columns, groups = group_by_labels(
        _names_around(gaps=gaps, column="kernel", code=names, labels=labels),
        gaps.duration,
    )
    first_of_full_names, _ = number_groups(
        [groups.group_index, work.name[gaps.before], work.name[gaps.after]]
    )
    group_of_full_names = groups.group_index[first_of_full_names]
    cause = classified.main_cause(groups.group_index, len(groups))
    frame = pd.DataFrame(
        {
            **columns,
            **groups.figures("count", "avg_gap_us", "max_gap_us", "min_gap_us"),
            "std_gap_us": groups.deviation(gaps.duration) / NS_PER_US,
            **groups.figures("total_gap_us"),
            "main_cause": pd.array(texts(cause, CAUSES), dtype="str"),
            "full_names": np.bincount(group_of_full_names, minlength=len(groups)),
        }
    )
    keys = [PAIR_SORTS[sort].column, "total_gap_us", "kernel_before", "kernel_after"]
    return frame.sort_values(keys, ascending=[False, False, True, True]).reset_index(
        drop=True
    )


def _names_around(
    gaps: Gaps, column: str, code: IntArray, labels: Sequence[str]
) -> LabeledColumns:
    """Return the names of the GPU events before and after each gap, as `group_labelled` takes them.

    Args:
        gaps: the gaps.
        column: how the names of both columns begin.
        code: the name of each GPU event, an index into `labels`, (g,).
        labels: the names.
    """
    return {
        f"{column}_before": (code[gaps.before], labels),
        f"{column}_after": (code[gaps.after], labels),
    }


def gap_full_names(
    work: GpuEvents, sort: GapSort = "avg", *, selection: EventFilter | None = None
) -> pd.DataFrame:
    """The full names behind the simplified ones of `idle_by_kernel_pair`."""
    gaps = classify_gaps(work, "stream", selection).gaps
    names, labels = simple_codes(work)
    keys = {
        **_names_around(gaps=gaps, column="kernel", code=names, labels=labels),
        **_names_around(
            gaps=gaps, column="full_name", code=work.name, labels=work.trace.names
        ),
    }
    columns, groups = group_by_labels(keys, gaps.duration)
    frame = pd.DataFrame({**columns, **groups.figures("count", "total_gap_us")})
    pairs = idle_by_kernel_pair(work, sort, selection=selection)[
        ["kernel_before", "kernel_after"]
    ]
    pairs.insert(0, "rank", np.arange(1, len(pairs) + 1))
    order = ["rank", "count", "total_gap_us"]
    return pairs.merge(frame).sort_values(
        order, ascending=[True, False, False], ignore_index=True
    )


def gaps(
    work: GpuEvents,
    scope: Scope = "stream",
    *,
    longest: int | None = None,
    selection: EventFilter | None = None,
) -> pd.DataFrame:
    """A row a gap, by stream and time; or so many of the longest, with what the host was doing.

    `scope` is `stream` for the idle times of each stream, `device` for those of all streams.

    Raises:
        UsageError: there is no such scope, `longest` is negative, or nothing is selected.
    """
    if longest is not None and longest < 0:
        raise UsageError(
            f"longest is the number of gaps to list, 0 or more; it is {longest}"
        )
    classified = classify_gaps(work, scope, selection)
    if longest is None:
        return pd.DataFrame(_gap_columns(work, classified, np.arange(len(classified))))
    order = np.argsort(-classified.gaps.duration, kind="stable")[:longest]
    columns = _gap_columns(work, classified, order)
    trace = work.trace
    for column in HOST_KINDS:
        rows = cpu_activity_rows(
            work=work, classified=classified, column=column, chosen=order
        ).tolist()
        names = [trace.name_of(row) if row != NONE else "" for row in rows]
        columns[column] = pd.array(names, dtype="str")
    return pd.DataFrame(columns)


def _gap_columns(
    work: GpuEvents, classified: ClassifiedGaps, order: Int64Array
) -> dict[str, object]:
    """Return the columns of the table of gaps, for some gaps in some order."""
    trace = work.trace
    gaps = classified.gaps.chosen(order)
    launch = classified.launch[order]
    delay = gaps.end - trace.ts[launch]
    op, op_labels = work.tree.cpu_op_label_of_gpu
    named: LabeledColumns = {
        "cause": (classified.cause[order], CAUSES),
        "cpu_op": (op[gaps.after], op_labels),
        **_names_around(gaps=gaps, column="kernel", code=work.name, labels=trace.names),
    }
    columns = {
        **_track_columns(classified.gaps.tracks, gaps.track),
        "start_us": gaps.start / NS_PER_US,
        "gap_us": gaps.duration / NS_PER_US,
        "overlapped_us": gaps.overlapped / NS_PER_US,
    }
    for name, (code, labels) in named.items():
        columns[name] = pd.array(texts(code, labels), dtype="str")
    has_launch = launch != NONE
    columns["launch_delay_us"] = np.where(has_launch, delay / NS_PER_US, np.nan)
    return columns


def gaps_longest(
    work: GpuEvents,
    scope: Scope = "device",
    *,
    longest: int = LONGEST_LISTED,
    selection: EventFilter | None = None,
) -> pd.DataFrame:
    """The longest gaps, and what the host was doing."""
    return gaps(work, scope, longest=longest, selection=selection)


def gap_histogram(
    work: GpuEvents,
    smallest: float | None = None,
    largest: float | None = None,
    *,
    log: bool = False,
    selection: EventFilter | None = None,
) -> pd.DataFrame:
    """How long the gaps of the streams are; the bounds are µs, those of the gaps by default."""
    length = classify_gaps(work, "stream", selection).gaps.duration / NS_PER_US
    counted = telling_histogram(
        values=length, bins=BINS, smallest=smallest, largest=largest, log=log
    ).histogram
    edges = counted.edges if len(counted.edges) else np.array([np.nan])
    bins = pd.DataFrame(
        {
            "from_us": [np.nan, *edges],
            "to_us": [*edges, np.nan],
            "count": [counted.below, *counted.counts.tolist(), counted.above],
        }
    )
    has_bounds = bins.notna().all(axis=1)
    return bins[has_bounds | (bins["count"] > 0)]


_GAP_COLUMNS = [
    Column("process", "as recorded in the trace"),
    Column("device", "-1 if not recorded; the stream is -1 for gaps of a whole device"),
    Column("stream", "-1 if not recorded; the stream is -1 for gaps of a whole device"),
    Column("start_us", "since the first event of the trace"),
    Column("gap_us", "duration of the gap"),
    Column(
        "overlapped_us",
        "part of the gap during which other streams were busy; 0 for a whole device",
    ),
    Column("cause", "the cause of most of the gap, as in `gap_summary`"),
    Column(
        "cpu_op",
        "operation that launched the next GPU event, as in `kernels_by_category`",
    ),
    Column("kernel_before", "GPU event before the gap, and after it"),
    Column("kernel_after", "GPU event before the gap, and after it"),
    Column(
        "launch_delay_us",
        "from the launch of the next GPU event to its start; empty if the launch is "
        "not recorded",
    ),
]

GAP_SUMMARY = Table(
    name="gap_summary",
    description="Why the GPU was idle: gaps by cause",
    columns=[
        Column(
            "scope",
            "`device`: times when all streams of a device were idle, which add up to "
            "the `idle_time` of `gpu_timeline`; `stream`: each stream separately",
        ),
        Column(
            "cause",
            "`synchronization`, `host`, `dependency`, `launch overhead`, `unknown`, "
            "`not_recorded` or `warm_up`; a gap may have several causes",
        ),
        Column("count", "gaps in which this cause occurs", unit="gaps"),
        Column("idle_time_ms", "idle time due to this cause"),
        Column("% of idle time", "of all idle time of that scope"),
        Column("avg_gap_us", "time due to this cause, in a gap in which it occurs"),
        Column("max_gap_us", "time due to this cause, in a gap in which it occurs"),
        Column(
            "overlapped_time_ms",
            "part of `idle_time_ms` during which other streams of the device were busy",
        ),
    ],
    build=of_gpu_events(gap_summary),
    enabled_by="gaps",
    on_every_page=True,
)
GAP_SHAPES = Table(
    name="gap_shapes",
    description="Idle time of the devices by the shape of its gaps",
    columns=[
        Column(
            "shape",
            "`short gaps`, `long gaps` (1 ms or longer), `recurring pauses` (long "
            "gaps of similar length at regular intervals or between iterations), or "
            "`end of the recording`",
        ),
        Column("count", "how many", unit="gaps"),
        Column(
            "idle_time_ms",
            (
                "of those gaps; the sum equals the idle time of the devices in "
                "`gap_summary`"
            ),
        ),
        Column("% of idle time", "of all idle time"),
        Column("avg_gap_us", "length of a gap"),
        Column("max_gap_us", "length of a gap"),
        Column(
            "period_ms",
            "typical time from one pause to the next, for the pauses with the most "
            "idle time",
        ),
    ],
    build=of_gpu_events(gap_shapes),
    enabled_by="gaps",
)
IDLE_CPU_ACTIVITY = Table(
    name="idle_cpu_activity",
    description="CPU activity while the GPU was idle",
    columns=[
        Column(
            "host_op",
            "the innermost operation or annotation that covers at least half of that "
            "time; empty if there is none, `(unlinked)` if the launch of the next GPU "
            "event is not in the trace",
        ),
        Column(
            "python_frame",
            "the innermost Python frame that covers at least half of that time, "
            "without memory addresses; empty if there is none",
        ),
        Column("main_cause", "cause of most of that time"),
        Column("count", "how many", unit="gaps"),
        Column("idle_time_ms", "idle time of those gaps"),
        Column("% of idle time", "of all idle time"),
        Column("avg_gap_us", "length of a gap"),
        Column("max_gap_us", "length of a gap"),
    ],
    build=of_gpu_events(idle_cpu_activity),
    enabled_by="gaps",
    on_every_page=True,
)
GAP_STREAMS = Table(
    name="gap_streams",
    description="Gaps between GPU events by stream",
    columns=[
        Column("process", "as recorded in the trace"),
        Column(
            "device",
            "-1 if not recorded; the stream is -1 for gaps of a whole device",
        ),
        Column(
            "stream",
            "-1 if not recorded; the stream is -1 for gaps of a whole device",
        ),
        Column("events", "on the stream", unit="GPU events"),
        Column("gap_count", "between them", unit="gaps"),
        Column("idle_time_us", "between the first and the last event of the stream"),
        Column("avg_gap_us", "length of a gap"),
        Column("max_gap_us", "length of a gap"),
        Column(
            "overlapped_us",
            "part of the idle time during which another stream was busy",
        ),
        Column(
            "device_idle_us",
            "part of the idle time during which no stream of the device was busy",
        ),
    ],
    build=of_gpu_events(gap_streams),
    enabled_by="gaps",
)
IDLE_BY_KERNEL_PAIR = Table(
    name="idle_by_kernel_pair",
    description="Gaps by the kernels around them",
    columns=[
        Column("kernel_before", "simplified name"),
        Column("kernel_after", "simplified name"),
        Column("count", "how many", unit="gaps"),
        Column("avg_gap_us", "length of a gap"),
        Column("max_gap_us", "length of a gap"),
        Column("min_gap_us", "length of a gap"),
        Column("std_gap_us", "sample standard deviation; 0 for a single gap"),
        Column("total_gap_us", "of all"),
        Column("main_cause", "cause of most of that time"),
        Column(
            "full_names",
            "number of full names that share the simplified ones",
            unit="pairs",
        ),
    ],
    build=of_gpu_events(idle_by_kernel_pair),
    enabled_by="gaps",
)
GAPS_LONGEST = Table(
    name="gaps_longest",
    description="Longest times without GPU work, and the CPU activity during them",
    columns=[
        *_GAP_COLUMNS,
        Column(
            "host_op",
            "the innermost operation or annotation of the launching thread for at "
            "least half of the time until the launch",
        ),
        Column(
            "host_call",
            "the same for the runtime call; for a synchronization, the call that "
            "synchronized",
        ),
        Column("python_frame", "the same for the Python frame"),
    ],
    build=of_gpu_events(gaps_longest),
    enabled_by="gaps",
)
GAPS = Table(
    name="gaps",
    description="Every gap of each stream, by stream and time",
    columns=_GAP_COLUMNS,
    build=of_gpu_events(gaps),
    enabled_by="tables",
)
GAP_FULL_NAMES = Table(
    name="gap_full_names",
    description="Full kernel names behind the simplified names of idle_by_kernel_pair",
    columns=[
        Column("rank", "rank in `idle_by_kernel_pair`, from 1"),
        Column("kernel_before", "as there"),
        Column("kernel_after", "as there"),
        Column("full_name_before", "full name, most frequent first within each rank"),
        Column("full_name_after", "full name, most frequent first within each rank"),
        Column("count", "how many", unit="gaps"),
        Column("total_gap_us", "of all"),
    ],
    build=of_gpu_events(gap_full_names),
    enabled_by="tables",
)
GAP_HISTOGRAM = Table(
    name="gap_histogram",
    description="Length of the gaps of all streams",
    columns=[
        Column(
            "from_us",
            "bounds of the bin; empty for gaps outside of all bins",
        ),
        Column(
            "to_us",
            "bounds of the bin; empty for gaps outside of all bins",
        ),
        Column("count", "how many", unit="gaps"),
    ],
    build=of_gpu_events(gap_histogram),
    enabled_by="tables",
)
