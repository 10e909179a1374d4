"""What the host was in while the GPU was idle: gap by gap, and the idle time by it.

It is asked of the thread that launched the event after a gap, for the time until it launched: the
innermost event that covers at least half of that time.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.analysis.codes import dense_codes, spread
from tracelens_ext.analysis.gaps.causes import CAUSES, SYNCHRONISATION
from tracelens_ext.analysis.gaps.classified import judge_gaps
from tracelens_ext.analysis.grouping import percent, texts
from tracelens_ext.analysis.host_activity import innermost_during
from tracelens_ext.analysis.memoize import once_for_each
from tracelens_ext.trace import LAUNCH_KINDS, NONE, NS_PER_MS, NS_PER_US, EventKind
from tracelens_ext.tree import UNLINKED

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd

    from tracelens_ext.analysis.gaps.classified import JudgedGaps
    from tracelens_ext.analysis.gaps.find import Scope
    from tracelens_ext.analysis.gpu_work import GpuWork
    from tracelens_ext.analysis.kept import Arrays
    from tracelens_ext.trace import Int64Array

    IntArray = npt.NDArray[np.integer]

#: As in `<built-in method item of Tensor object at 0x7f3a91c04d60>`.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
#: What is told of the host, by column.
_ASKED: dict[str, tuple[EventKind, ...]] = {
    "host_op": (EventKind.CPU_OP, EventKind.USER_ANNOTATION),
    "host_call": LAUNCH_KINDS,
    "python_frame": (EventKind.PYTHON_FUNCTION,),
}


def gap_hosts(judged: JudgedGaps) -> pd.DataFrame:
    """Idle time by what the host was in.

    Returns:
        A row an operation and Python frame, the longest idle time first; all gaps count. Columns
        `host_op` (the innermost operation or annotation; empty for none, `(unlinked)` where the
        launch of the event after the gap is not in the trace), `python_frame` (likewise; empty for
        none), both without addresses in memory, `main_cause` (of most of that time), `count`,
        `idle_time_ms`, `% of idle time`, `avg_gap_us`, `max_gap_us`.
    """
    import pandas as pd

    duration, rows = judged.gaps.duration, host_rows(judged)
    op, ops = _labels(judged, rows["host_op"])
    frame, frames = _labels(judged, rows["python_frame"])
    op[judged.causes.launch == NONE] = len(ops)
    first, code = dense_codes([op, frame])
    groups = spread(code, duration)
    by_cause = np.zeros((len(first), len(CAUSES)), dtype=np.int64)
    np.add.at(by_cause, (code, judged.causes.code), duration)
    table = pd.DataFrame(
        {
            "host_op": pd.array(texts(op[first], [*ops, UNLINKED]), dtype="str"),
            "python_frame": pd.array(texts(frame[first], frames), dtype="str"),
            "main_cause": pd.array(texts(by_cause.argmax(axis=1), CAUSES), dtype="str"),
            "count": groups.count,
            "idle_time_ms": groups.total / NS_PER_MS,
            "% of idle time": percent(groups.total, int(duration.sum())),
            "avg_gap_us": groups.mean / NS_PER_US,
            "max_gap_us": groups.largest / NS_PER_US,
        }
    )
    order = np.lexsort((first, -groups.total))
    return table.iloc[order].reset_index(drop=True)


def _labels(judged: JudgedGaps, rows: IntArray) -> tuple[Int64Array, list[str]]:
    """The names of events, without addresses in memory; empty where there is no event.

    Returns:
        Codes, shape of `rows`, and what they stand for.
    """
    trace = judged.work.trace
    found = rows != NONE
    name = np.where(found, trace.name[np.where(found, rows, 0)], NONE)
    first, code = dense_codes([name])
    labels: dict[str, int] = {}
    of_present = [
        labels.setdefault(_ADDRESS.sub("", trace.names[i]) if i != NONE else "", len(labels))
        for i in name[first].tolist()
    ]
    return np.array(of_present, dtype=np.int64)[code], list(labels)


def host_rows(judged: JudgedGaps, chosen: IntArray | None = None) -> dict[str, IntArray]:
    """Rows of the events that the host was in during each gap.

    Args:
        judged: the gaps.
        chosen: places of some of them, all by default, shape (k,).

    Returns:
        `host_op`, `host_call` (of a synchronisation the call that synchronised) and
        `python_frame`, each shape (k,), `NONE` where there is none.
    """
    work, scope = judged.work, judged.gaps.lanes.scope
    found = _found(work, scope)
    whole = judge_gaps(work, scope).gaps.after
    at: IntArray = np.arange(len(whole)) if chosen is None else chosen
    if len(judged) < len(whole):  # a selection
        place = np.zeros(len(work), dtype=np.int64)  # an event ends one gap at most
        place[whole] = np.arange(len(whole))
        at = place[judged.gaps.after if chosen is None else judged.gaps.after[chosen]]
    return {column: rows[at] for column, rows in found.items()}


@once_for_each
def _found(work: GpuWork, scope: Scope) -> Arrays:
    """What `host_rows` gives, of all gaps."""

    def find() -> Arrays:
        judged = judge_gaps(work, scope)
        trace, gaps, causes = work.trace, judged.gaps, judged.causes
        linked = causes.launch != NONE
        safe = np.where(linked, causes.launch, 0)
        thread = np.where(linked, trace.thread[safe], NONE)
        begun = trace.ts[safe]
        until = np.where(linked & (begun > gaps.start) & (begun < gaps.end), begun, gaps.end)
        rows = {
            column: innermost_during(
                trace, kinds, thread, gaps.start, until, ignored="ProfilerStep#"
            )
            for column, kinds in _ASKED.items()
        }
        is_cause = causes.code == SYNCHRONISATION
        rows["host_call"] = np.where(is_cause, causes.synchronising, rows["host_call"])
        return {column: found.astype(np.int32) for column, found in rows.items()}

    return work.keep(f"gap-hosts-{scope}", find)
