"""Tables of gaps: by cause, by stream, by pair of kernels, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from tracelens_ext.analysis.codes import dense_codes, spread
from tracelens_ext.analysis.gap_causes import CAUSES, SYNCHRONISATION
from tracelens_ext.analysis.grouping import percent, texts
from tracelens_ext.analysis.host_activity import innermost_during
from tracelens_ext.analysis.judged_gaps import judge_gaps
from tracelens_ext.analysis.kernel_statistics import simple_codes
from tracelens_ext.errors import UsageError
from tracelens_ext.trace import LAUNCH_KINDS, NONE, NS_PER_MS, NS_PER_US, EventKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import pandas as pd

    from tracelens_ext.analysis.gaps import Gaps
    from tracelens_ext.analysis.gpu_work import GpuWork
    from tracelens_ext.analysis.judged_gaps import JudgedGaps
    from tracelens_ext.trace import Int64Array

    IntArray = npt.NDArray[np.integer]

GapSort = Literal["count", "avg", "avggap", "max", "maxgap", "stdev"]

#: Rows of the sheet of the longest gaps.
LONGEST_LISTED = 100
_WORTH_SAYING = 0.0005  # of the idle time: less would be shown as 0.0 %
#: What a sort of pairs goes by: the column, and what it is called.
PAIR_SORTS: dict[str, tuple[str, str]] = {
    "count": ("count", "count"),
    "avg": ("avg_gap_us", "average gap duration"),
    "avggap": ("avg_gap_us", "average gap duration"),
    "max": ("max_gap_us", "maximum gap duration"),
    "maxgap": ("max_gap_us", "maximum gap duration"),
    "stdev": ("std_gap_us", "standard deviation of gap duration"),
}


def gap_summary(judged: Sequence[JudgedGaps]) -> pd.DataFrame:
    """Idle time by cause.

    Args:
        judged: the gaps of the devices, and those of the streams.

    Returns:
        A row a `scope` (`device`: all streams idle, the idle time of the timeline; `stream`: each
        stream by itself) and `cause`, in the order in which causes are looked for; `count`,
        `idle_time_ms`, `% of idle time` (of the scope), `avg_gap_us`, `max_gap_us`,
        `overlapped_time_ms` (other streams of the device were busy).
    """
    import pandas as pd

    return pd.concat([_by_cause(each) for each in judged], ignore_index=True)


def _by_cause(judged: JudgedGaps) -> pd.DataFrame:
    import pandas as pd

    code, duration = judged.causes.code, judged.gaps.duration
    size = len(CAUSES)
    count = np.bincount(code, minlength=size)
    idle, overlapped, longest = (np.zeros(size, dtype=np.int64) for _ in range(3))
    np.add.at(idle, code, duration)
    np.add.at(overlapped, code, judged.gaps.overlapped)
    np.maximum.at(longest, code, duration)
    return pd.DataFrame(
        {
            "scope": pd.array([judged.gaps.lanes.scope] * size, dtype="str"),
            "cause": pd.array(list(CAUSES), dtype="str"),
            "count": count,
            "idle_time_ms": idle / NS_PER_MS,
            "% of idle time": percent(idle, int(idle.sum())),
            "avg_gap_us": idle / NS_PER_US / np.maximum(count, 1),
            "max_gap_us": longest / NS_PER_US,
            "overlapped_time_ms": overlapped / NS_PER_MS,
        }
    )


def gap_streams(judged: JudgedGaps) -> pd.DataFrame:
    """Idle time by stream, for gaps of streams; a stream without selected events is left out.

    Returns:
        Columns `process`, `device`, `stream` (-1 where the trace does not say), `events`,
        `gap_count`, `idle_time_us`, `avg_gap_us`, `max_gap_us`, `overlapped_us` (other streams of
        the device were busy), `device_idle_us` (none was). The stream with most gaps first.
    """
    import pandas as pd

    gaps, lanes = judged.gaps, judged.gaps.lanes
    size = len(lanes)
    count = np.bincount(gaps.lane, minlength=size)
    idle, overlapped, longest = (np.zeros(size, dtype=np.int64) for _ in range(3))
    np.add.at(idle, gaps.lane, gaps.duration)
    np.add.at(overlapped, gaps.lane, gaps.overlapped)
    np.maximum.at(longest, gaps.lane, gaps.duration)
    frame = pd.DataFrame(
        {
            "process": pd.array([str(process) for process in lanes.process], dtype="str"),
            "device": lanes.device,
            "stream": lanes.stream,
            "events": judged.events,
            "gap_count": count,
            "idle_time_us": idle / NS_PER_US,
            "avg_gap_us": idle / NS_PER_US / np.maximum(count, 1),
            "max_gap_us": longest / NS_PER_US,
            "overlapped_us": overlapped / NS_PER_US,
            "device_idle_us": (idle - overlapped) / NS_PER_US,
        }
    )
    order = np.lexsort((np.arange(size), -idle, -count))
    order = order[judged.events[order] > 0]
    return frame.iloc[order].reset_index(drop=True)


def gap_pairs(judged: JudgedGaps, *, sort: GapSort = "avg") -> pd.DataFrame:
    """Gaps by the kernels around them, by simplified name.

    Args:
        judged: the gaps.
        sort: `count`, `avg` (or `avggap`), `max` (or `maxgap`), `stdev`; largest first.

    Returns:
        Columns `kernel_before`, `kernel_after`, `count`, `avg_gap_us`, `max_gap_us`,
        `min_gap_us`, `std_gap_us` (of a sample; 0 for a single gap), `total_gap_us`, `main_cause`
        (of most of that time), `full_names` (how many pairs of names share the simplified ones).

    Raises:
        UsageError: there is no such sort.
    """
    import pandas as pd

    if sort not in get_args(GapSort):
        raise UsageError(f"no such sort: {sort!r}; choose from {', '.join(get_args(GapSort))}")
    work, gaps = judged.work, judged.gaps
    simple, names = simple_codes(work)
    before, after = simple[gaps.before], simple[gaps.after]
    first, code = dense_codes([before, after])
    groups = spread(code, gaps.duration)
    by_name, _ = dense_codes([code, work.name[gaps.before], work.name[gaps.after]])
    by_cause = np.zeros((len(first), len(CAUSES)), dtype=np.int64)
    np.add.at(by_cause, (code, judged.causes.code), gaps.duration)
    frame = pd.DataFrame(
        {
            "kernel_before": pd.array(texts(before[first], names), dtype="str"),
            "kernel_after": pd.array(texts(after[first], names), dtype="str"),
            "count": groups.count,
            "avg_gap_us": groups.mean / NS_PER_US,
            "max_gap_us": groups.largest / NS_PER_US,
            "min_gap_us": groups.smallest / NS_PER_US,
            "std_gap_us": groups.deviation / NS_PER_US,
            "total_gap_us": groups.total / NS_PER_US,
            "main_cause": pd.array(texts(by_cause.argmax(axis=1), CAUSES), dtype="str"),
            "full_names": np.bincount(code[by_name], minlength=len(first)),
        }
    )
    keys = [PAIR_SORTS[sort][0], "total_gap_us", "kernel_before", "kernel_after"]
    return frame.sort_values(keys, ascending=[False, False, True, True]).reset_index(drop=True)


def gap_list(judged: JudgedGaps, *, longest: int | None = None) -> pd.DataFrame:
    """A row a gap, by stream and time; or the longest, with what the host was in.

    Args:
        judged: the gaps.
        longest: only so many, the longest first, with three columns more.

    Returns:
        Columns `process`, `device`, `stream` (-1 for a gap of a whole device), `start_us` (since
        the trace's first event), `gap_us`, `overlapped_us` (other streams of the device were
        busy), `cause`, `cpu_op` (of the event after, as in `kernel_summary`), `kernel_before`,
        `kernel_after`, `launch_delay_us` (from the launch of the event after to its start; empty
        without a launch). With `longest` also `host_op`, `host_call`, `python_frame`: the
        innermost operation or annotation, runtime call and Python frame that the launching thread
        was in for at least half of the time until it launched (`host_call` of a synchronisation is
        the call that synchronised); empty where there is none.
    """
    import pandas as pd

    order = np.arange(len(judged))
    if longest is not None:
        order = np.argsort(-judged.gaps.duration, kind="stable")[:longest]
    work, gaps, lanes = judged.work, judged.gaps.chosen(order), judged.gaps.lanes
    trace = work.trace
    op, labels = work.tree.cpu_op_label_of_gpu
    launch = judged.causes.launch[order]
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
            "cause": pd.array(texts(judged.causes.code[order], CAUSES), dtype="str"),
            "cpu_op": pd.array(texts(op[gaps.after], labels), dtype="str"),
            "kernel_before": pd.array(texts(work.name[gaps.before], names), dtype="str"),
            "kernel_after": pd.array(texts(work.name[gaps.after], names), dtype="str"),
            "launch_delay_us": np.where(linked, (gaps.end - begun) / NS_PER_US, np.nan),
        }
    )
    if longest is not None:
        for column, rows in _host_columns(judged, gaps, order).items():
            shown = [names[trace.name[row]] if row != NONE else "" for row in rows.tolist()]
            frame[column] = pd.array(shown, dtype="str")
    return frame


def _host_columns(judged: JudgedGaps, gaps: Gaps, chosen: IntArray) -> dict[str, Int64Array]:
    """Rows of the events that the launching thread was in, `NONE` without."""
    trace, launch = judged.work.trace, judged.causes.launch[chosen]
    linked = launch != NONE
    safe = np.where(linked, launch, 0)
    thread = np.where(linked, trace.thread[safe], NONE)
    begun = trace.ts[safe]
    until = np.where(linked & (begun > gaps.start) & (begun < gaps.end), begun, gaps.end)
    kinds: dict[str, tuple[EventKind, ...]] = {
        "host_op": (EventKind.CPU_OP, EventKind.USER_ANNOTATION),
        "host_call": LAUNCH_KINDS,
        "python_frame": (EventKind.PYTHON_FUNCTION,),
    }
    columns = {
        column: innermost_during(trace, those, thread, gaps.start, until, ignored="ProfilerStep#")
        for column, those in kinds.items()
    }
    synchronising = judged.causes.synchronising[chosen]
    is_cause = judged.causes.code[chosen] == SYNCHRONISATION
    columns["host_call"] = np.where(is_cause, synchronising, columns["host_call"])
    return columns


def answer(judged: JudgedGaps) -> str:
    """Why the GPU was idle, in a sentence.

    Args:
        judged: the gaps of whole devices; or of streams, then the sentence is about those.
    """
    who = "The GPU" if judged.gaps.lanes.scope == "device" else "The stream"
    idle = np.zeros(len(CAUSES), dtype=np.int64)
    np.add.at(idle, judged.causes.code, judged.gaps.duration)
    total = int(idle.sum())
    if not len(judged.work):
        return "There is no GPU work in the trace."
    if not total:
        return f"{who} was never idle between its first and its last event."
    order = [int(i) for i in np.argsort(-idle, kind="stable") if idle[i]]
    shown = [i for i in order if idle[i] >= total * _WORTH_SAYING]
    shares = ", ".join(f"{CAUSES[i]} {100 * idle[i] / total:.1f} %" for i in shown)
    return f"{who} was idle for {total / NS_PER_MS:,.3f} ms: {shares}."


def gap_sheets(work: GpuWork) -> dict[str, pd.DataFrame]:
    """The tables of a report: `gap_summary`, `gap_streams`, `gap_pairs`, `gaps_longest`."""
    devices, streams = judge_gaps(work, "device"), judge_gaps(work, "stream")
    return {
        "gap_summary": gap_summary([devices, streams]),
        "gap_streams": gap_streams(streams),
        "gap_pairs": gap_pairs(streams),
        "gaps_longest": gap_list(devices, longest=LONGEST_LISTED),
    }
