"""The tables about idle time: its causes, what the host did, streams, kernels, longest gaps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from tracelens_ext.analysis.context import of_gpu_events
from tracelens_ext.analysis.idle_time.causes import CAUSES, EDGE, classify_gaps
from tracelens_ext.analysis.idle_time.cpu_activity import HOST_KINDS, host_rows, labels_of
from tracelens_ext.analysis.idle_time.histogram import BINS, telling_histogram
from tracelens_ext.analysis.iterations.selection import Selection
from tracelens_ext.analysis.kernels.kernels import simple_codes
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.table import Table
from tracelens_ext.trace import NONE, NS_PER_MS, NS_PER_US, IntArray
from tracelens_ext.trace.call_tree import UNLINKED
from tracelens_ext.trace.gpu_events import (
    Gaps,
    GpuEvents,
    GpuTracks,
    Scope,
    busy_within,
    find_tracks,
)
from tracelens_ext.trace.grouping import group_labelled, maxima, number_groups, percent, sums, texts

GapSort = Literal["count", "avg", "avggap", "max", "maxgap", "stdev"]

#: Rows of the sheet of the longest gaps.
LONGEST_LISTED = 100
#: What a sort of pairs goes by: the column, and what it is called.
PAIR_SORTS: dict[str, tuple[str, str]] = {
    "count": ("count", "count"),
    **dict.fromkeys(("avg", "avggap"), ("avg_gap_us", "average gap duration")),
    **dict.fromkeys(("max", "maxgap"), ("max_gap_us", "maximum gap duration")),
    "stdev": ("std_gap_us", "standard deviation of gap duration"),
}


# `selection` says which GPU events end the gaps, all by default.


def gap_summary(
    work: GpuEvents,
    scopes: Sequence[Scope] = ("device", "stream"),
    *,
    selection: Selection | None = None,
) -> pd.DataFrame:
    """Why the GPU was idle: idle time by cause."""
    parts = []
    for scope in scopes:
        each = classify_gaps(work, scope, selection)
        pieces = each.pieces.chosen(each.pieces.cause != EDGE)
        length = pieces.end - pieces.start
        cause = pieces.cause
        first, number = number_groups([cause, pieces.gap, pieces.track])
        of_gap = cause[first], sums(number, length, len(first))
        count = np.bincount(of_gap[0], minlength=EDGE)
        idle = sums(cause, length, EDGE)
        overlapped = np.zeros(len(length), dtype=np.int64)
        if scope == "stream":
            device = find_tracks(work, "device").of_gpu[each.gaps.after[pieces.gap]]
            overlapped = busy_within(work, device, pieces.start, pieces.end)
        columns = {
            "scope": pd.array([scope] * EDGE, dtype="str"),
            "cause": pd.array(list(CAUSES[:EDGE]), dtype="str"),
            "count": count,
            "idle_time_ms": idle / NS_PER_MS,
            "% of idle time": percent(idle, int(idle.sum())),
            "avg_gap_us": idle / NS_PER_US / np.maximum(count, 1),
            "max_gap_us": np.maximum(maxima(*of_gap, EDGE), 0) / NS_PER_US,
            "overlapped_time_ms": sums(cause, overlapped, EDGE) / NS_PER_MS,
        }
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)


def gap_hosts(
    work: GpuEvents, scope: Scope = "device", *, selection: Selection | None = None
) -> pd.DataFrame:
    """Idle time by what the host was in, longest first."""
    classified = classify_gaps(work, scope, selection)
    duration = classified.gaps.duration
    trace = work.trace
    op, ops = labels_of(trace, host_rows(work, classified, "host_op"))
    frame, frames = labels_of(trace, host_rows(work, classified, "python_frame"))
    op[classified.launch == NONE] = len(ops)
    keys = {"host_op": (op, [*ops, UNLINKED]), "python_frame": (frame, frames)}
    columns, groups = group_labelled(keys, duration)
    cause = classified.main_cause(groups.number, len(groups))
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


def gap_streams(work: GpuEvents, *, selection: Selection | None = None) -> pd.DataFrame:
    """Gaps by stream, most gaps first; a stream without selected events is left out."""
    classified = classify_gaps(work, "stream", selection)
    gaps = classified.gaps
    tracks = classified.gaps.tracks
    events = classified.events
    idle, overlapped = (
        sums(gaps.track, ns, len(tracks)) for ns in (gaps.duration, gaps.overlapped)
    )
    count = np.bincount(gaps.track, minlength=len(tracks))
    frame = pd.DataFrame(
        {
            **_of_tracks(tracks),
            "events": events,
            "gap_count": count,
            "idle_time_us": idle / NS_PER_US,
            "avg_gap_us": idle / NS_PER_US / np.maximum(count, 1),
            "max_gap_us": np.maximum(maxima(gaps.track, gaps.duration, len(tracks)), 0) / NS_PER_US,
            "overlapped_us": overlapped / NS_PER_US,
            "device_idle_us": (idle - overlapped) / NS_PER_US,
        }
    )
    order = np.lexsort((-idle, -count))
    return frame.iloc[order[events[order] > 0]].reset_index(drop=True)


def _of_tracks(tracks: GpuTracks, chosen: IntArray | slice = slice(None)) -> dict[str, object]:
    process = np.array([str(process) for process in tracks.process], dtype=object)[chosen]
    columns = {"device": tracks.device[chosen], "stream": tracks.stream[chosen]}
    return {"process": pd.array(process, dtype="str"), **columns}


def gap_pairs(
    work: GpuEvents, sort: GapSort = "avg", *, selection: Selection | None = None
) -> pd.DataFrame:
    """Gaps by the kernels around them; `sort` by size."""
    if sort not in get_args(GapSort):
        raise UsageError(f"no such sort: {sort!r}; choose from {', '.join(get_args(GapSort))}")
    classified = classify_gaps(work, "stream", selection)
    gaps = classified.gaps
    columns, groups = group_labelled(_around(gaps, simple_codes(work)), gaps.duration)
    by_name, _ = number_groups([groups.number, work.name[gaps.before], work.name[gaps.after]])
    cause = classified.main_cause(groups.number, len(groups))
    frame = pd.DataFrame(
        {
            **columns,
            **groups.figures("count", "avg_gap_us", "max_gap_us", "min_gap_us"),
            "std_gap_us": groups.deviation(gaps.duration) / NS_PER_US,
            **groups.figures("total_gap_us"),
            "main_cause": pd.array(texts(cause, CAUSES), dtype="str"),
            "full_names": np.bincount(groups.number[by_name], minlength=len(groups)),
        }
    )
    keys = [PAIR_SORTS[sort][0], "total_gap_us", "kernel_before", "kernel_after"]
    return frame.sort_values(keys, ascending=[False, False, True, True]).reset_index(drop=True)


def _around(
    gaps: Gaps, names: tuple[IntArray, list[str]], called: str = "kernel"
) -> dict[str, tuple[IntArray, list[str]]]:
    """The names of the GPU events before and after each gap, as `group_labelled` takes them."""
    code, labels = names
    both = {"before": gaps.before, "after": gaps.after}
    return {f"{called}_{side}": (code[events], labels) for side, events in both.items()}


def gap_full_names(
    work: GpuEvents, sort: GapSort = "avg", *, selection: Selection | None = None
) -> pd.DataFrame:
    """The full names behind the simplified ones of `gap_pairs`."""
    gaps = classify_gaps(work, "stream", selection).gaps
    around = _around(gaps, simple_codes(work))
    around |= _around(gaps, (work.name, work.trace.names), "full_name")
    columns, groups = group_labelled(around, gaps.duration)
    frame = pd.DataFrame({**columns, **groups.figures("count", "total_gap_us")})
    pairs = gap_pairs(work, sort, selection=selection)[["kernel_before", "kernel_after"]]
    pairs.insert(0, "rank", np.arange(1, len(pairs) + 1))
    order = ["rank", "count", "total_gap_us"]
    return pairs.merge(frame).sort_values(order, ascending=[True, False, False], ignore_index=True)


def gaps(
    work: GpuEvents,
    scope: Scope = "stream",
    *,
    longest: int | None = None,
    selection: Selection | None = None,
) -> pd.DataFrame:
    """A row a gap, by stream and time; or so many of the longest, with what the host was doing.

    `scope` is `stream` for the idle times of each stream, `device` for those of all streams.

    Raises:
        UsageError: there is no such scope, `longest` is negative, or nothing is selected.
    """
    if longest is not None and longest < 0:
        raise UsageError(f"longest is how many gaps to list, 0 or more, and not {longest}")
    classified = classify_gaps(work, scope, selection)
    order = np.arange(len(classified))
    if longest is not None:
        order = np.argsort(-classified.gaps.duration, kind="stable")[:longest]
    gaps = classified.gaps.chosen(order)
    tracks = classified.gaps.tracks
    trace = work.trace
    names = work.trace.names
    launch = classified.launch[order]
    delay = gaps.end - trace.ts[launch]
    (op, ops) = work.tree.cpu_op_label_of_gpu
    told: dict[str, tuple[IntArray, Sequence[str]]] = {
        "cause": (classified.cause[order], CAUSES),
        "cpu_op": (op[gaps.after], ops),
        **_around(gaps, (work.name, names)),
    }
    columns = {
        **_of_tracks(tracks, gaps.track),
        "start_us": gaps.start / NS_PER_US,
        "gap_us": gaps.duration / NS_PER_US,
        "overlapped_us": gaps.overlapped / NS_PER_US,
        **{name: pd.array(texts(*column), dtype="str") for name, column in told.items()},
        "launch_delay_us": np.where(launch != NONE, delay / NS_PER_US, np.nan),
    }
    for column in HOST_KINDS if longest is not None else ():
        rows = host_rows(work, classified, column, order).tolist()
        shown = [names[trace.name[row]] if row != NONE else "" for row in rows]
        columns[column] = pd.array(shown, dtype="str")
    return pd.DataFrame(columns)


def gaps_longest(
    work: GpuEvents,
    scope: Scope = "device",
    *,
    longest: int = LONGEST_LISTED,
    selection: Selection | None = None,
) -> pd.DataFrame:
    """The longest gaps, and what the host was doing."""
    return gaps(work, scope, longest=longest, selection=selection)


def gap_histogram(
    work: GpuEvents,
    smallest: float | None = None,
    largest: float | None = None,
    *,
    log: bool = False,
    selection: Selection | None = None,
) -> pd.DataFrame:
    """How long the gaps of the streams are; the bounds are µs, those of the gaps by default."""
    length = classify_gaps(work, "stream", selection).gaps.duration / 1e3
    found, _ = telling_histogram(length, BINS, smallest, largest, log=log)
    edges = found.edges if len(found.edges) else np.array([np.nan])
    ends = {"from_us": [np.nan, *edges], "to_us": [*edges, np.nan]}
    bins = pd.DataFrame({**ends, "count": [found.below, *found.counts.tolist(), found.above]})
    return bins[bins.notna().all(axis=1) | (bins["count"] > 0)]


_GAP_COLUMNS = [
    Column("process", "as the trace names it"),
    Column("device", "-1 where the trace does not say; of a whole device the stream is -1"),
    Column("stream", "-1 where the trace does not say; of a whole device the stream is -1"),
    Column("start_us", "since the trace's first event"),
    Column("gap_us", "how long it was"),
    Column("overlapped_us", "while other streams were busy; 0 for a whole device"),
    Column("cause", "as in `gap_summary`, that of most of it"),
    Column("cpu_op", "that launched the event after it, as in `kernels_by_category`"),
    Column("kernel_before", "the GPU events around it"),
    Column("kernel_after", "the GPU events around it"),
    Column(
        "launch_delay_us",
        "from the launch of the event after to its start; empty without a launch",
    ),
]

GAP_SUMMARY = Table(
    name="gap_summary",
    shows="Why the GPU was idle: gaps by cause",
    columns=[
        Column(
            "scope",
            "`device`: times when all streams were idle, in sum the `idle_time` of "
            "`gpu_timeline`; `stream`: each stream by itself",
        ),
        Column(
            "cause",
            "`synchronisation`, `host`, `dependency`, `launch overhead`, `unknown`, "
            "`not_recorded` or `start_up`; a gap may have several",
        ),
        Column("count", "how many have time of this cause", unit="gaps"),
        Column("idle_time_ms", "of this cause"),
        Column("% of idle time", "of that scope"),
        Column("avg_gap_us", "of this cause, in a gap that has it"),
        Column("max_gap_us", "of this cause, in a gap that has it"),
        Column(
            "overlapped_time_ms",
            "of `idle_time_ms`, while other streams of the device were busy",
        ),
    ],
    table=of_gpu_events(gap_summary),
    asked_by="gaps",
    on_every_page=True,
)
GAP_HOSTS = Table(
    name="gap_hosts",
    shows="What the host was in while the GPU was idle",
    columns=[
        Column(
            "host_op",
            "the innermost operation or annotation that covers at least half of that time; "
            "empty for none, `(unlinked)` where the launch of the event after is not in the "
            "trace",
        ),
        Column(
            "python_frame",
            "likewise the innermost Python frame, without addresses in memory; empty for none",
        ),
        Column("main_cause", "of most of that time"),
        Column("count", "how many", unit="gaps"),
        Column("idle_time_ms", "of those gaps"),
        Column("% of idle time", "of all of it"),
        Column("avg_gap_us", "of a gap"),
        Column("max_gap_us", "of a gap"),
    ],
    table=of_gpu_events(gap_hosts),
    asked_by="gaps",
    on_every_page=True,
)
GAP_STREAMS = Table(
    name="gap_streams",
    shows="Gaps between GPU events by stream",
    columns=[
        Column("process", "as the trace names it"),
        Column("device", "-1 where the trace does not say; of a whole device the stream is -1"),
        Column("stream", "-1 where the trace does not say; of a whole device the stream is -1"),
        Column("events", "on the stream", unit="GPU events"),
        Column("gap_count", "between them", unit="gaps"),
        Column("idle_time_us", "between the first and the last event of the stream"),
        Column("avg_gap_us", "of a gap"),
        Column("max_gap_us", "of a gap"),
        Column("overlapped_us", "of the idle time, while another stream was busy"),
        Column("device_idle_us", "of the idle time, while no stream of the device was busy"),
    ],
    table=of_gpu_events(gap_streams),
    asked_by="gaps",
)
GAP_PAIRS = Table(
    name="gap_pairs",
    shows="Gaps by the kernels around them",
    columns=[
        Column("kernel_before", "simplified name"),
        Column("kernel_after", "simplified name"),
        Column("count", "how many", unit="gaps"),
        Column("avg_gap_us", "of a gap"),
        Column("max_gap_us", "of a gap"),
        Column("min_gap_us", "of a gap"),
        Column("std_gap_us", "standard deviation of a sample; 0 for a single gap"),
        Column("total_gap_us", "of all"),
        Column("main_cause", "of most of that time"),
        Column("full_names", "of full names that share the simplified ones", unit="pairs"),
    ],
    table=of_gpu_events(gap_pairs),
    asked_by="gaps",
)
GAPS_LONGEST = Table(
    name="gaps_longest",
    shows="The longest times without any GPU work, and what the host did",
    columns=[
        *_GAP_COLUMNS,
        Column(
            "host_op",
            "the innermost operation or annotation that the launching thread was in for half "
            "of the time until it launched",
        ),
        Column(
            "host_call",
            "likewise the runtime call; of a synchronisation the call that synchronised",
        ),
        Column("python_frame", "likewise the Python frame"),
    ],
    table=of_gpu_events(gaps_longest),
    asked_by="gaps",
)
GAPS = Table(
    name="gaps",
    shows="Every gap of each stream, by stream and time",
    columns=_GAP_COLUMNS,
    table=of_gpu_events(gaps),
    asked_by="tables",
)
GAP_FULL_NAMES = Table(
    name="gap_full_names",
    shows="The names behind the simplified ones of gap_pairs",
    columns=[
        Column("rank", "of the row of `gap_pairs`, from 1"),
        Column("kernel_before", "as there"),
        Column("kernel_after", "as there"),
        Column("full_name_before", "of each rank the most frequent first"),
        Column("full_name_after", "of each rank the most frequent first"),
        Column("count", "how many", unit="gaps"),
        Column("total_gap_us", "of all"),
    ],
    table=of_gpu_events(gap_full_names),
    asked_by="tables",
)
GAP_HISTOGRAM = Table(
    name="gap_histogram",
    shows="How long the gaps of the streams are",
    columns=[
        Column(
            "from_us",
            "bounds of the bin; empty for what is shorter, or longer, than all bins",
        ),
        Column(
            "to_us",
            "bounds of the bin; empty for what is shorter, or longer, than all bins",
        ),
        Column("count", "how many", unit="gaps"),
    ],
    table=of_gpu_events(gap_histogram),
    asked_by="tables",
)
