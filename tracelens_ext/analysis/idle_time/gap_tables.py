"""The contents of the tables of idle time: causes, shapes, CPU activity, streams, and single gaps.

In all functions, `selection` restricts the gaps to those that end with a selected GPU event.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracelens_ext.analysis.idle_time.causes import CAUSES, Cause
from tracelens_ext.analysis.idle_time.classification import (
    ClassifiedGaps,
    classify_gaps,
)
from tracelens_ext.analysis.idle_time.cpu_activity import (
    KINDS_OF_COLUMN,
    cpu_activity_rows,
    event_labels,
)
from tracelens_ext.analysis.idle_time.histogram import BINS, readable_histogram
from tracelens_ext.analysis.idle_time.kernel_pairs import names_around
from tracelens_ext.analysis.idle_time.shapes import SHAPES, Shape, shapes_of_gaps
from tracelens_ext.analysis.iterations.selection import EventFilter
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, NS_PER_MS, NS_PER_US, Int64Array, IntArray
from tracelens_ext.trace.call_tree import UNLINKED
from tracelens_ext.trace.gpu_events import (
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

#: The number of rows in the table of the longest gaps.
LONGEST_LISTED = 100


def gap_summary(
    gpu_events: GpuEvents,
    scopes: Sequence[Scope] = ("device", "stream"),
    *,
    selection: EventFilter | None = None,
) -> pd.DataFrame:
    """Return the idle time by cause, for each of the scopes."""
    parts = [_summary_of_scope(gpu_events, scope, selection) for scope in scopes]
    return pd.concat(parts, ignore_index=True)


def _summary_of_scope(
    gpu_events: GpuEvents, scope: Scope, selection: EventFilter | None
) -> pd.DataFrame:
    """Return a row for each cause of the gaps of streams, or of devices."""
    classified = classify_gaps(gpu_events, scope, selection)
    # Edges, which are the last cause, are not gaps and have no row.
    cause_count = Cause.EDGE.code
    intervals = classified.intervals
    intervals = intervals.chosen(intervals.cause != Cause.EDGE.code)
    duration = intervals.duration
    idle_ns = sums(intervals.cause, duration, cause_count)
    # A gap may have several intervals with the same cause; together they are one part of the gap.
    first, part = number_groups([intervals.cause, intervals.gap, intervals.track])
    cause_of_part = intervals.cause[first]
    length_of_part = sums(part, duration, len(first))
    part_count = np.bincount(cause_of_part, minlength=cause_count)
    longest_ns = np.maximum(maxima(cause_of_part, length_of_part, cause_count), 0)
    overlapped = np.zeros(len(duration), dtype=np.int64)
    if scope == "stream":
        event_after = classified.gaps.after[intervals.gap]
        device = find_tracks(gpu_events, "device").of_gpu[event_after]
        overlapped = busy_within(
            gpu_events=gpu_events,
            device_index=device,
            start=intervals.start,
            end=intervals.end,
        )
    overlapped_ns = sums(intervals.cause, overlapped, cause_count)
    return pd.DataFrame(
        {
            "scope": pd.array([scope] * cause_count, dtype="str"),
            "cause": pd.array(list(CAUSES[:cause_count]), dtype="str"),
            "count": part_count,
            "idle_time_ms": idle_ns / NS_PER_MS,
            "% of idle time": percent(idle_ns, int(idle_ns.sum())),
            "avg_gap_us": idle_ns / NS_PER_US / np.maximum(part_count, 1),
            "max_gap_us": longest_ns / NS_PER_US,
            "overlapped_time_ms": overlapped_ns / NS_PER_MS,
        }
    )


def gap_shapes(
    gpu_events: GpuEvents, *, selection: EventFilter | None = None
) -> pd.DataFrame:
    """Return the idle time of devices by the shape of the gaps."""
    classified = classify_gaps(gpu_events, "device")
    is_selected = np.ones(len(classified), dtype=bool)
    if selection is not None:
        is_selected = selection.of(gpu_events)[classified.gaps.after]
    shapes = shapes_of_gaps(gpu_events)
    shape = shapes.shape[is_selected].astype(np.int64)
    duration = classified.gaps.duration[is_selected]
    gap_count = np.bincount(shape, minlength=len(SHAPES))
    idle_ns = sums(shape, duration, len(SHAPES))
    longest_ns = np.maximum(maxima(shape, duration, len(SHAPES)), 0)
    period_ms = np.full(len(SHAPES), np.nan)
    if shapes.pauses and gap_count[Shape.PERIODIC.code]:
        period_ms[Shape.PERIODIC.code] = shapes.pauses[0].period_ms
    return pd.DataFrame(
        {
            "shape": pd.array(list(SHAPES), dtype="str"),
            "count": gap_count,
            "idle_time_ms": idle_ns / NS_PER_MS,
            "% of idle time": percent(idle_ns, int(idle_ns.sum())),
            "avg_gap_us": idle_ns / NS_PER_US / np.maximum(gap_count, 1),
            "max_gap_us": longest_ns / NS_PER_US,
            "period_ms": period_ms,
        }
    )


def idle_cpu_activity(
    gpu_events: GpuEvents,
    scope: Scope = "device",
    *,
    selection: EventFilter | None = None,
) -> pd.DataFrame:
    """Return the idle time by the operation and the Python frame on the CPU, longest first."""
    classified = classify_gaps(gpu_events, scope, selection)
    duration = classified.gaps.duration
    trace = gpu_events.trace
    op, op_labels = event_labels(
        trace, cpu_activity_rows(gpu_events, classified, "host_op")
    )
    frame, frame_labels = event_labels(
        trace, cpu_activity_rows(gpu_events, classified, "python_frame")
    )
    op[classified.launch == NONE] = len(op_labels)
    keys = {
        "host_op": (op, op_labels + [UNLINKED]),
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
    gpu_events: GpuEvents, *, selection: EventFilter | None = None
) -> pd.DataFrame:
    """Return the gaps by stream, most gaps first; streams without selected events are left out."""
    classified = classify_gaps(gpu_events, "stream", selection)
    gaps = classified.gaps
    tracks = gaps.tracks
    events = classified.events
    track_count = len(tracks)
    idle_ns = sums(gaps.track, gaps.duration, track_count)
    overlapped_ns = sums(gaps.track, gaps.overlapped, track_count)
    # 0 for a stream without gaps
    longest_ns = np.maximum(maxima(gaps.track, gaps.duration, track_count), 0)
    gap_count = np.bincount(gaps.track, minlength=track_count)
    frame = pd.DataFrame(
        {
            **_track_columns(tracks),
            "events": events,
            "gap_count": gap_count,
            "idle_time_us": idle_ns / NS_PER_US,
            "avg_gap_us": idle_ns / NS_PER_US / np.maximum(gap_count, 1),
            "max_gap_us": longest_ns / NS_PER_US,
            "overlapped_us": overlapped_ns / NS_PER_US,
            "device_idle_us": (idle_ns - overlapped_ns) / NS_PER_US,
        }
    )
    order = np.lexsort((-idle_ns, -gap_count))
    has_events = events[order] > 0
    rows = order[has_events]
    return frame.iloc[rows].reset_index(drop=True)


def _track_columns(
    tracks: GpuTracks, indices: IntArray | slice = slice(None)
) -> dict[str, object]:
    """Return the columns that identify tracks; by default of all tracks, in order."""
    process = np.array([str(process) for process in tracks.process], dtype=object)
    return {
        "process": pd.array(process[indices], dtype="str"),
        "device": tracks.device[indices],
        "stream": tracks.stream[indices],
    }


def gaps(
    gpu_events: GpuEvents,
    scope: Scope = "stream",
    *,
    longest: int | None = None,
    selection: EventFilter | None = None,
) -> pd.DataFrame:
    """Return a row per gap, by stream and time.

    Args:
        gpu_events: the GPU events.
        scope: `stream` for the gaps of each stream, `device` for the gaps of whole devices.
        longest: the number of gaps to return, longest first, with columns about the CPU activity
            during them; None for all gaps, without these columns.
        selection: the GPU events that end the gaps; None for all.

    Raises:
        UsageError: there is no such scope, `longest` is negative, or nothing is selected.
    """
    if longest is not None and longest < 0:
        raise UsageError(
            f"longest is the number of gaps to list, 0 or more; it is {longest}"
        )
    classified = classify_gaps(gpu_events, scope, selection)
    if longest is None:
        return pd.DataFrame(
            _gap_columns(gpu_events, classified, np.arange(len(classified)))
        )
    order = np.argsort(-classified.gaps.duration, kind="stable")[:longest]
    columns = _gap_columns(gpu_events, classified, order)
    trace = gpu_events.trace
    for column in KINDS_OF_COLUMN:
        rows = cpu_activity_rows(
            gpu_events=gpu_events, classified=classified, column=column, chosen=order
        ).tolist()
        names = [trace.name_of(row) if row != NONE else "" for row in rows]
        columns[column] = pd.array(names, dtype="str")
    return pd.DataFrame(columns)


def _gap_columns(
    gpu_events: GpuEvents, classified: ClassifiedGaps, order: Int64Array
) -> dict[str, object]:
    """Return the columns of the table of gaps, for the gaps with the indices in `order`."""
    trace = gpu_events.trace
    gaps = classified.gaps.chosen(order)
    launch = classified.launch[order]
    delay = gaps.end - trace.ts[launch]
    op, op_labels = gpu_events.tree.cpu_op_label_of_gpu
    text_columns: LabeledColumns = {
        "cause": (classified.cause[order], CAUSES),
        "cpu_op": (op[gaps.after], op_labels),
        **names_around(
            gaps=gaps, column="kernel", code=gpu_events.name, labels=trace.names
        ),
    }
    columns = {
        **_track_columns(classified.gaps.tracks, gaps.track),
        "start_us": gaps.start / NS_PER_US,
        "gap_us": gaps.duration / NS_PER_US,
        "overlapped_us": gaps.overlapped / NS_PER_US,
    }
    for name, (code, labels) in text_columns.items():
        columns[name] = pd.array(texts(code, labels), dtype="str")
    has_launch = launch != NONE
    columns["launch_delay_us"] = np.where(has_launch, delay / NS_PER_US, np.nan)
    return columns


def gaps_longest(
    gpu_events: GpuEvents,
    scope: Scope = "device",
    *,
    longest: int = LONGEST_LISTED,
    selection: EventFilter | None = None,
) -> pd.DataFrame:
    """Return the longest gaps, and the CPU activity during them."""
    return gaps(gpu_events, scope, longest=longest, selection=selection)


def gap_histogram(
    gpu_events: GpuEvents,
    smallest: float | None = None,
    largest: float | None = None,
    *,
    log: bool = False,
    selection: EventFilter | None = None,
) -> pd.DataFrame:
    """Return a histogram of the lengths of the gaps of the streams.

    Args:
        gpu_events: the GPU events.
        smallest: the lower bound, µs; by default the shortest gap.
        largest: the upper bound, µs; by default the longest gap.
        log: use logarithmic bins.
        selection: the GPU events that end the gaps; None for all.
    """
    length = classify_gaps(gpu_events, "stream", selection).gaps.duration / NS_PER_US
    histogram, _ = readable_histogram(
        values=length, bins=BINS, smallest=smallest, largest=largest, log=log
    )
    edges = [np.nan]
    if len(histogram.edges):
        edges = histogram.edges.tolist()
    # Gaps below and above all bins have a row with one bound, if there are any.
    bins = pd.DataFrame(
        {
            "from_us": [np.nan] + edges,
            "to_us": edges + [np.nan],
            "count": [histogram.below] + histogram.counts.tolist() + [histogram.above],
        }
    )
    has_bounds = bins.notna().all(axis=1)
    return bins[has_bounds | (bins["count"] > 0)]
