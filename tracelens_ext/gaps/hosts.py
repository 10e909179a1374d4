"""What the host was in while the GPU was idle: gap by gap, and the idle time by it.

It is asked of the thread that launched the event after a gap, for the time until it launched: the
innermost event that covers at least half of that time.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import numpy as np

from tracelens_ext.gaps.causes import CAUSES
from tracelens_ext.gaps.host_activity import innermost_during
from tracelens_ext.lazy import pd
from tracelens_ext.trace import LAUNCH_KINDS, NONE, NS_PER_MS, NS_PER_US, EventKind
from tracelens_ext.tree import UNLINKED
from tracelens_ext.work.grouping import group_durations, number_groups, percent, texts

if TYPE_CHECKING:
    from tracelens_ext.gaps.classified import ClassifiedGaps
    from tracelens_ext.trace import Int64Array, IntArray, Trace

HostColumn = Literal["host_op", "host_call", "python_frame"]

#: As in `<built-in method item of Tensor object at 0x7f3a91c04d60>`.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
#: What is told of the host, by column.
HOST_KINDS: dict[HostColumn, tuple[EventKind, ...]] = {
    "host_op": (EventKind.CPU_OP, EventKind.USER_ANNOTATION),
    "host_call": LAUNCH_KINDS,
    "python_frame": (EventKind.PYTHON_FUNCTION,),
}


def gap_hosts(classified: ClassifiedGaps) -> pd.DataFrame:
    """Idle time by what the host was in.

    Returns:
        Columns as the sheet `gap_hosts`, the longest idle time first; all gaps count.
    """
    duration = classified.gaps.duration
    trace = classified.work.trace
    op, ops = labels_of(trace, host_rows(classified, "host_op"))
    frame, frames = labels_of(trace, host_rows(classified, "python_frame"))
    op[classified.launch == NONE] = len(ops)
    groups = group_durations([op, frame], duration)
    cause = classified.main_cause(groups.number, len(groups))
    return pd.DataFrame(
        {
            "host_op": pd.array(texts(groups.keys[0], [*ops, UNLINKED]), dtype="str"),
            "python_frame": pd.array(texts(groups.keys[1], frames), dtype="str"),
            "main_cause": pd.array(texts(cause, CAUSES), dtype="str"),
            "count": groups.count,
            "idle_time_ms": groups.total / NS_PER_MS,
            "% of idle time": percent(groups.total, int(duration.sum())),
            "avg_gap_us": groups.mean / NS_PER_US,
            "max_gap_us": groups.longest / NS_PER_US,
        }
    )


def labels_of(trace: Trace, rows: IntArray) -> tuple[Int64Array, list[str]]:
    """The names of events, without addresses in memory; empty where there is no event.

    Returns:
        Codes, shape of `rows`, and what they stand for.
    """
    name = np.full(len(rows), NONE, dtype=np.int64)
    name[rows != NONE] = trace.name[rows[rows != NONE]]
    first, number = number_groups([name])
    labels: dict[str, int] = {}
    of_present = [
        labels.setdefault(_ADDRESS.sub("", trace.names[i]) if i != NONE else "", len(labels))
        for i in name[first].tolist()
    ]
    return np.array(of_present, dtype=np.int64)[number], list(labels)


def host_rows(
    classified: ClassifiedGaps,
    column: HostColumn,
    chosen: IntArray | slice = slice(None),
    ignored: tuple[str, ...] = ("ProfilerStep#",),
) -> Int64Array:
    """Rows of the events that the host was in during each gap, `NONE` where there is none.

    Args:
        classified: the gaps.
        column: of which kinds; as `host_call` a synchronisation has the call that synchronised.
        chosen: which of the gaps, all by default.
        ignored: names that begin so tell nothing.

    Returns:
        One a gap.
    """
    trace = classified.work.trace
    start, end = classified.gaps.start[chosen], classified.gaps.end[chosen]
    launch = classified.launch[chosen]
    linked = launch != NONE
    safe = np.where(linked, launch, 0)
    begun, thread = trace.ts[safe], np.where(linked, trace.thread[safe], NONE)
    until = np.where(linked & (begun > start) & (begun < end), begun, end)
    tree, kinds = classified.work.tree, HOST_KINDS[column]
    rows = innermost_during(tree, kinds, thread, start, until, ignored)
    if column == "host_call":
        is_cause = classified.synchronising[chosen] != NONE
        rows = np.where(is_cause, classified.synchronising[chosen], rows)
    return rows
