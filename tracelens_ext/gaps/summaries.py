"""Tables of gaps: by cause, by stream, by pair of kernels, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from tracelens_ext.errors import UsageError
from tracelens_ext.gaps.causes import CAUSES, EDGE
from tracelens_ext.gaps.hosts import HOST_KINDS, host_rows
from tracelens_ext.kernels.statistics import simple_codes
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, NS_PER_MS, NS_PER_US
from tracelens_ext.work.grouping import group_durations, maxima, number_groups, percent, sums, texts
from tracelens_ext.work.lanes import busy_within, find_lanes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.gaps.classified import ClassifiedGaps
    from tracelens_ext.trace import IntArray

GapSort = Literal["count", "avg", "avggap", "max", "maxgap", "stdev"]

#: Rows of the sheet of the longest gaps.
LONGEST_LISTED = 100
#: What a sort of pairs goes by: the column, and what it is called.
PAIR_SORTS: dict[str, tuple[str, str]] = {
    "count": ("count", "count"),
    "avg": ("avg_gap_us", "average gap duration"),
    "avggap": ("avg_gap_us", "average gap duration"),
    "max": ("max_gap_us", "maximum gap duration"),
    "maxgap": ("max_gap_us", "maximum gap duration"),
    "stdev": ("std_gap_us", "standard deviation of gap duration"),
}


def gap_summary(classified: Sequence[ClassifiedGaps]) -> pd.DataFrame:
    """Idle time by cause."""
    parts = []
    for each in classified:
        pieces = each.pieces.chosen(each.pieces.cause != EDGE)
        idle_of, gap = pieces.end - pieces.start, pieces.gap
        first, number = number_groups([pieces.cause, gap, pieces.lane])
        of_gap = pieces.cause[first], sums(number, idle_of, len(first))
        count = np.bincount(of_gap[0], minlength=EDGE)
        idle = sums(pieces.cause, idle_of, EDGE)
        overlapped = np.zeros(len(gap), dtype=np.int64)
        if each.gaps.lanes.scope == "stream":
            device = find_lanes(each.work, "device").of_gpu[each.gaps.after[gap]]
            overlapped = busy_within(each.work, device, pieces.start, pieces.end)
        columns = {
            "scope": pd.array([each.gaps.lanes.scope] * EDGE, dtype="str"),
            "cause": pd.array(list(CAUSES[:EDGE]), dtype="str"),
            "count": count,
            "idle_time_ms": idle / NS_PER_MS,
            "% of idle time": percent(idle, int(idle.sum())),
            "avg_gap_us": idle / NS_PER_US / np.maximum(count, 1),
            "max_gap_us": np.maximum(maxima(*of_gap, EDGE), 0) / NS_PER_US,
            "overlapped_time_ms": sums(pieces.cause, overlapped, EDGE) / NS_PER_MS,
        }
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)


def gap_streams(classified: ClassifiedGaps) -> pd.DataFrame:
    """Idle time by stream, for gaps of streams; a stream without selected events is left out."""
    gaps, lanes, events = classified.gaps, classified.gaps.lanes, classified.events
    count = np.bincount(gaps.lane, minlength=len(lanes))
    idle, overlapped = (
        sums(gaps.lane, times, len(lanes)) for times in (gaps.duration, gaps.overlapped)
    )
    longest = np.maximum(maxima(gaps.lane, gaps.duration, len(lanes)), 0)
    frame = pd.DataFrame(
        {
            "process": pd.array([str(process) for process in lanes.process], dtype="str"),
            "device": lanes.device,
            "stream": lanes.stream,
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
    return frame.iloc[order[events[order] > 0]].reset_index(drop=True)


def gap_pairs(classified: ClassifiedGaps, *, sort: GapSort = "avg") -> pd.DataFrame:
    """Gaps by the kernels around them, by simplified name."""
    if sort not in get_args(GapSort):
        raise UsageError(f"no such sort: {sort!r}; choose from {', '.join(get_args(GapSort))}")
    work, gaps = classified.work, classified.gaps
    simple, names = simple_codes(work)
    groups = group_durations([simple[gaps.before], simple[gaps.after]], gaps.duration)
    by_name, _ = number_groups([groups.number, work.name[gaps.before], work.name[gaps.after]])
    cause = classified.main_cause(groups.number, len(groups))
    frame = pd.DataFrame(
        {
            "kernel_before": pd.array(texts(groups.keys[0], names), dtype="str"),
            "kernel_after": pd.array(texts(groups.keys[1], names), dtype="str"),
            "count": groups.count,
            "avg_gap_us": groups.mean / NS_PER_US,
            "max_gap_us": groups.longest / NS_PER_US,
            "min_gap_us": groups.shortest / NS_PER_US,
            "std_gap_us": groups.deviation(gaps.duration) / NS_PER_US,
            "total_gap_us": groups.total / NS_PER_US,
            "main_cause": pd.array(texts(cause, CAUSES), dtype="str"),
            "full_names": np.bincount(groups.number[by_name], minlength=len(groups)),
        }
    )
    keys = [PAIR_SORTS[sort][0], "total_gap_us", "kernel_before", "kernel_after"]
    return frame.sort_values(keys, ascending=[False, False, True, True]).reset_index(drop=True)


def gap_full_names(classified: ClassifiedGaps, pairs: pd.DataFrame) -> pd.DataFrame:
    """A row a pair of full names behind the rows of `gap_pairs`; `rank` is of those, from 1."""
    work, gaps = classified.work, classified.gaps
    simple, names = simple_codes(work)
    around = (gaps.before, gaps.after)
    codes: list[IntArray] = [*(simple[each] for each in around), *(work.name[e] for e in around)]
    groups = group_durations(codes, gaps.duration)
    full = work.trace.names
    frame = pd.DataFrame(
        {
            "kernel_before": pd.array(texts(groups.keys[0], names), dtype="str"),
            "kernel_after": pd.array(texts(groups.keys[1], names), dtype="str"),
            "full_name_before": pd.array(texts(groups.keys[2], full), dtype="str"),
            "full_name_after": pd.array(texts(groups.keys[3], full), dtype="str"),
            "count": groups.count,
            "total_gap_us": groups.total / NS_PER_US,
        }
    )
    same = ["kernel_before", "kernel_after"]
    ranked = pairs[same].assign(rank=np.arange(1, len(pairs) + 1))[["rank", *same]]
    frame = ranked.merge(frame, on=same, how="inner")
    order = ["rank", "count", "total_gap_us"]
    return frame.sort_values(order, ascending=[True, False, False], ignore_index=True)


def gap_list(classified: ClassifiedGaps, *, longest: int | None = None) -> pd.DataFrame:
    """A row a gap, by stream and time; or so many of the longest, with what the host was in."""
    order = np.arange(len(classified))
    if longest is not None:
        order = np.argsort(-classified.gaps.duration, kind="stable")[:longest]
    work, gaps, lanes = classified.work, classified.gaps.chosen(order), classified.gaps.lanes
    trace = work.trace
    op, labels = work.tree.cpu_op_label_of_gpu
    launch = classified.launch[order]
    linked = launch != NONE
    begun = trace.ts[np.where(linked, launch, 0)]
    names = trace.names
    process = [str(label) for label in lanes.process]
    frame = pd.DataFrame(
        {
            "process": pd.array(texts(gaps.lane, process), dtype="str"),
            "device": lanes.device[gaps.lane],
            "stream": lanes.stream[gaps.lane],
            "start_us": gaps.start / NS_PER_US,
            "gap_us": gaps.duration / NS_PER_US,
            "overlapped_us": gaps.overlapped / NS_PER_US,
            "cause": pd.array(texts(classified.cause[order], CAUSES), dtype="str"),
            "cpu_op": pd.array(texts(op[gaps.after], labels), dtype="str"),
            "kernel_before": pd.array(texts(work.name[gaps.before], names), dtype="str"),
            "kernel_after": pd.array(texts(work.name[gaps.after], names), dtype="str"),
            "launch_delay_us": np.where(linked, (gaps.end - begun) / NS_PER_US, np.nan),
        }
    )
    if longest is not None:
        for column in HOST_KINDS:
            rows = host_rows(classified, column, order).tolist()
            shown = [names[trace.name[row]] if row != NONE else "" for row in rows]
            frame[column] = pd.array(shown, dtype="str")
    return frame
