"""Doubts about a recording, in sentences that come before all findings."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracelens_ext.analysis.coverage.coverage import coverage_of
from tracelens_ext.analysis.coverage.program import program_of
from tracelens_ext.analysis.coverage.suspects import find_suspects
from tracelens_ext.categorize.kernel_names import simple_name
from tracelens_ext.report.tables.short_names import cut_middle
from tracelens_ext.text import ms_text
from tracelens_ext.trace import NS_PER_MS
from tracelens_ext.trace.gpu_events import GpuEvents

_NAME_LENGTH: Final = 60
#: With fewer GPU events there is no advice on rates.
FEWEST_EVENTS = 20
#: With less GPU work, ns, there is no advice on rates, unless a kernel runs several times.
LEAST_WORK_NS = 5_000_000
FEWEST_RUNS = 5
#: How to record more, by the tool that recorded the trace.
_HOW_TO_RECORD: Final = {
    "torch": (
        "ten iterations after a warm-up: "
        "torch.profiler.profile(schedule=torch.profiler.schedule(wait=1, warmup=3, active=10))"
    ),
    "jax": "ten steps after a warm-up, between jax.profiler.start_trace and stop_trace",
    "nsys": "a longer run, with the work of interest repeated at least ten times",
    "rocprofv3": "a longer run, with the work of interest repeated at least ten times",
}
_HOW_TO_RECORD_ANY: Final = (
    "a longer run, with the work of interest repeated at least ten times"
)


def suspect_sentences(gpu_events: GpuEvents) -> list[str]:
    """Return a sentence about each GPU event whose recorded end cannot be right."""
    suspects = find_suspects(gpu_events)
    total_ns = max(int(gpu_events.duration.sum()), 1)
    columns = zip(suspects.event.tolist(), suspects.lost_launches.tolist(), strict=True)
    sentences = []
    for event, lost_launches in columns:
        code = int(gpu_events.name[event])
        name = gpu_events.trace.names[code]
        short_name = simple_name(name) or name
        shown = cut_middle(short_name, _NAME_LENGTH)
        duration_ns = int(gpu_events.duration[event])
        percent = 100 * duration_ns / total_ns
        sentences.append(
            f"The recording is suspect: 1 of {len(gpu_events):,} GPU events, {shown}, lasts "
            f"{ms_text(duration_ns / NS_PER_MS)} ({percent:.1f} % of GPU time) while "
            f"{lost_launches:,} launches have no GPU work in the file. GPU events were lost or "
            "this one ends too late; its time is not analyzed. Record again before you act on "
            "the rest."
        )
    return sentences


def too_little_recorded(gpu_events: GpuEvents) -> str:
    """Return a sentence if too little is recorded for advice on rates; else an empty text.

    Fewer than 20 GPU events, or less than 5 ms of GPU work in which no kernel runs five times, may
    be the first use of something, or the wrong part of the program. Work that is set aside does not
    count.
    """
    is_analyzed = ~coverage_of(gpu_events).is_set_aside(gpu_events)
    count = int(is_analyzed.sum())
    work_ns = int(gpu_events.duration[is_analyzed].sum())
    runs_of_kernels = np.bincount(gpu_events.name[is_analyzed & gpu_events.is_kernel])
    is_short = work_ns < LEAST_WORK_NS and runs_of_kernels.max(initial=0) < FEWEST_RUNS
    if count >= FEWEST_EVENTS and not is_short:
        return ""
    events = f"{count:,} GPU events"
    if count == 1:
        events = "1 GPU event"
    tool = program_of(gpu_events.trace).tool
    how = _HOW_TO_RECORD.get(tool, _HOW_TO_RECORD_ANY)
    return (
        f"Too little is recorded for advice: {events} with {ms_text(work_ns / NS_PER_MS)} of "
        f"work. Record {how}."
    )


def has_little_work(gpu_events: GpuEvents) -> bool:
    """Return whether there is too little GPU work for a kernel to be worth attention."""
    is_analyzed = ~coverage_of(gpu_events).is_set_aside(gpu_events)
    return int(gpu_events.duration[is_analyzed].sum()) < LEAST_WORK_NS
