"""Which events of which ranks are exported, at which time, and why others are not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tracelens_ext.errors import UsageError
from tracelens_ext.fleet.places import rank_of
from tracelens_ext.iterations.iterations import find_iterations
from tracelens_ext.lazy import pd
from tracelens_ext.trace import GPU_KINDS, NONE, BoolArray, EventKind, Int64Array, Trace
from tracelens_ext.work.gpu_work import GpuWork

_TIME = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s)")
_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


@dataclass(frozen=True)
class Choice:
    """Which events are exported."""

    #: (start, end) in ns since the trace's first event; what touches it is in, whole
    window: tuple[int, int] | None = None
    #: the number of the one to export, with the GPU work that it launched
    iteration: int | None = None
    devices: frozenset[int] | None = None  #: of the GPU events; None for all
    streams: frozenset[int] | None = None
    min_ns: int = 0  #: GPU and host events that took less are left out
    host: bool = True  #: whether host events are in
    stacks: bool = False  #: whether Python frames are


def parse_window(text: str) -> tuple[int, int]:
    """`1200ms-1300ms` in ns."""
    times = [_TIME.fullmatch(part.strip()) for part in text.split("-")]
    if len(times) == 2 and times[0] and times[1]:
        first, last = (round(float(time[1]) * _NS[time[2]]) for time in times if time)
        if first < last:
            return first, last
    raise UsageError(
        f"--window {text!r} is no window; write START-END with units, such as 1200ms-1300ms"
    )


def choose(work: GpuWork, choice: Choice) -> tuple[Int64Array, Counter[str]]:
    """The rows to export but flow events, ascending; how many others are left out, and why."""
    trace = work.trace
    recorded = trace.recorded
    kind = trace.kind[:recorded]
    is_gpu = np.isin(kind, GPU_KINDS)
    is_host = ~is_gpu & (kind != EventKind.GPU_ANNOTATION)
    keep = ~np.isin(kind, (EventKind.FLOW_START, EventKind.FLOW_END))
    left_out: Counter[str] = Counter()

    def leave(which: BoolArray, reason: str) -> None:
        which = which & keep
        left_out[reason] += int(which.sum())
        keep[which] = False

    if (window := window_of(work, choice)) is not None:
        ends = trace.end[:recorded]
        leave((trace.ts[:recorded] >= window[1]) | (ends <= window[0]), "outside of the window")
    for numbers, of_gpu, what in (
        (choice.devices, trace.device, "devices"),
        (choice.streams, trace.stream, "streams"),
    ):
        if numbers is not None:
            others = np.zeros(recorded, dtype=bool)
            others[work.rows] = ~np.isin(of_gpu, list(numbers))
            leave(others, f"of other {what}")
    if not choice.host:
        leave(is_host, "on the host (--no-host)")
    if not choice.stacks:
        leave(kind == EventKind.PYTHON_FUNCTION, "Python frames (--stacks)")
    if choice.min_ns:
        spans = kind != EventKind.INSTANT
        leave(spans & (trace.dur[:recorded] < choice.min_ns), "shorter than --min-us")
    return np.flatnonzero(keep), +left_out


def window_of(work: GpuWork, choice: Choice) -> tuple[int, int] | None:
    """The window that is exported, ns since the trace's first event; None for all of it.

    Of an iteration from its start to its end, or that of the last work that it launched.
    """
    if (number := choice.iteration) is None:
        return choice.window
    found = find_iterations(work.tree)
    at = np.flatnonzero(found.has_number(number)[:-1])
    if not len(at):
        known = ", ".join(str(n) for n in dict.fromkeys(found.number[:20])) or "none"
        raise UsageError(f"--iteration {number}: there is none of that number; there are: {known}")
    at = at[found.start[at] < found.end[at[0]]]  # a later one of that number is another
    launched = np.isin(found.of_gpu, at) & (found.of_gpu != NONE)
    ends = np.concatenate((found.end[at], work.end[launched]))
    return int(found.start[at].min()), int(ends.max())


def shifts(
    traces: Sequence[Trace], names: Sequence[str], clocks: Path | None
) -> list[tuple[str, int, str]]:
    """What to call each trace, what to add to its times in ns, and how well that is known."""
    ranks = [
        rank_of(trace.metadata, name, at)[0]
        for at, (trace, name) in enumerate(zip(traces, names, strict=True))
    ]
    if clocks is None:
        alone = len(traces) == 1
        note = "" if alone else "from 0: clocks not compared"
        return [("" if alone else f"rank {rank}", 0, note) for rank in ranks]
    try:
        frame = pd.read_parquet(clocks)
    except (OSError, ValueError, ImportError) as error:
        raise UsageError(f"{clocks}: is no clocks.parquet of fleet ({error})") from None
    columns = ["rank", "offset_us", "error_us"]
    if not set(frame.columns) >= {*columns}:
        raise UsageError(f"{clocks}: is no clocks.parquet of fleet; it lacks rank or offset_us")
    rows = frame.dropna(subset=["offset_us"])[columns].itertuples(index=False, name=None)
    known = {int(rank): (float(offset), float(error)) for rank, offset, error in rows}
    if missing := [rank for rank in ranks if rank not in known]:
        raise UsageError(f"{clocks}: has no rank {missing[0]}; export the ranks of that fleet")
    starts = [
        trace.base_ns - round(known[rank][0] * 1000)
        for trace, rank in zip(traces, ranks, strict=True)
    ]
    return [
        (f"rank {rank}", start - min(starts), f"clock ± {known[rank][1]:.1f} µs")
        for rank, start in zip(ranks, starts, strict=True)
    ]
