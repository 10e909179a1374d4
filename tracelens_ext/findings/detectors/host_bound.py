"""The GPU is idle because the host launches too slowly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.analysis.idle_time.causes import Cause
from tracelens_ext.analysis.idle_time.cpu_activity import (
    HostIntervals,
    innermost_segments,
)
from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Claim, Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.program_facts import Fact
from tracelens_ext.findings.recording_cost import recorder_percent
from tracelens_ext.findings.texts import (
    PYTORCH_JOBS,
    AdviceVariant,
    EvidenceText,
    FindingText,
    VariantText,
)
from tracelens_ext.findings.wall_time import WallTime
from tracelens_ext.text import ms_text
from tracelens_ext.trace import (
    LAUNCH_KINDS,
    NS_PER_MS,
    NS_PER_US,
    BoolArray,
    EventKind,
    Int64Array,
)
from tracelens_ext.trace.grouping import sums

TEXT: Final = FindingText(
    title="GPU waits for the CPU: {saving}",
    advices=(
        AdviceVariant(
            kinds=("serving",),
            follows=(Fact.GPU_GRAPHS, Fact.ASYNC_SCHEDULING),
            advice=(
                "Give the engine more requests at a time, or shorten what the CPU does "
                "between graph launches (input preparation, sampling, scheduling)."
            ),
        ),
        AdviceVariant(
            kinds=("serving",),
            follows=(Fact.GPU_GRAPHS,),
            advice=(
                "Let the engine prepare the next step while the GPU computes (asynchronous "
                "scheduling), and shorten what the CPU does between graph launches."
            ),
        ),
        AdviceVariant(
            kinds=("serving",),
            follows=(Fact.ASYNC_SCHEDULING,),
            advice=(
                "Let the engine replay CUDA graphs for decoding (no eager mode), or give it "
                "more requests at a time."
            ),
        ),
        AdviceVariant(
            kinds=("serving",),
            advice=(
                "Let the engine replay CUDA graphs for decoding (no eager mode) and schedule "
                "the next step while the GPU computes, or give it more requests at a time."
            ),
        ),
        AdviceVariant(
            kinds=PYTORCH_JOBS,
            follows=(Fact.GPU_GRAPHS,),
            advice=(
                "Shorten the CPU work between graph launches, or capture it in the graph: "
                "copies of inputs, checks of results, Python around the step."
            ),
        ),
        AdviceVariant(
            kinds=PYTORCH_JOBS,
            follows=(Fact.COMPILED,),
            requires=(Fact.SHORT_LAUNCHES,),
            advice=(
                "Replay the compiled model as CUDA graphs, which needs fixed shapes, and "
                "remove graph breaks (TORCH_LOGS=graph_breaks lists them)."
            ),
            snippet='model = torch.compile(model, mode="reduce-overhead")',
        ),
        AdviceVariant(
            kinds=PYTORCH_JOBS,
            follows=(Fact.COMPILED,),
            advice=(
                "Move the CPU work between compiled regions out of the loop, or onto another "
                "thread; TORCH_LOGS=graph_breaks lists what was not compiled."
            ),
        ),
        AdviceVariant(
            kinds=PYTORCH_JOBS,
            requires=(Fact.SHORT_LAUNCHES,),
            advice=(
                "Give the GPU more work per launch: compile the model, replay the whole step "
                "as a CUDA graph, or use larger batches."
            ),
            snippet='model = torch.compile(model, mode="reduce-overhead")',
        ),
        AdviceVariant(
            kinds=PYTORCH_JOBS,
            advice=(
                "Move the CPU work that runs in these gaps out of the loop, or onto another "
                "thread, so that launches stay ahead of the GPU."
            ),
        ),
        AdviceVariant(
            kinds=("jax",),
            advice=(
                "Put the whole step, or several steps, into one compiled function, so that "
                "the GPU gets more work per call."
            ),
            snippet="step = jax.jit(lambda s: jax.lax.fori_loop(0, 10, body, s))",
        ),
        AdviceVariant(
            kinds=("tensorflow",),
            advice=(
                "Put the whole step into one compiled function, so that the GPU gets more "
                "work per call."
            ),
            snippet="@tf.function(jit_compile=True)",
        ),
        AdviceVariant(
            follows=(Fact.GPU_GRAPHS,),
            advice=(
                "Put more work into each graph, or move the CPU work between graph launches "
                "onto another thread."
            ),
        ),
        AdviceVariant(
            requires=(Fact.SHORT_LAUNCHES,),
            advice=(
                "Give the GPU more work per launch: larger problems, or one graph for what is "
                "launched again and again. Move CPU work onto another thread."
            ),
        ),
        AdviceVariant(
            advice=(
                "Move the CPU work that runs in these gaps onto another thread, beside the "
                "work of the GPU, and launch the next work before it is needed."
            ),
        ),
    ),
    reason=(
        "each launch came after the GPU had run out of work; what replaces the CPU work "
        "decides the gain{recorder}"
    ),
    evidence={
        "gaps": EvidenceText("gaps", "gaps", "gap_summary"),
        "half_us": EvidenceText(
            "half of the time is in gaps of at least", "µs", "gaps"
        ),
        "short_ms": EvidenceText(
            "in gaps no longer than a launch takes", "ms", "gap_summary"
        ),
        "launching_ms": EvidenceText("while the CPU launches", "ms", "gap_hosts"),
        "operations_ms": EvidenceText("in CPU operations", "ms", "gap_hosts"),
        "python_ms": EvidenceText("in Python", "ms", "gap_hosts"),
        "calls_ms": EvidenceText("between API calls", "ms", "gap_hosts"),
        "phases_ms": EvidenceText("in long phases without a launch", "ms", "gap_hosts"),
    },
    variants={
        "holes": VariantText(
            title="Short gaps between kernels: {saving}",
            advices=(
                AdviceVariant(
                    follows=(Fact.GPU_GRAPHS,),
                    advice=(
                        "Fuse kernels, so that there are fewer gaps; recording adds to each "
                        "gap, so compare with a run without the profiler."
                    ),
                ),
                AdviceVariant(
                    kinds=PYTORCH_JOBS,
                    follows=(Fact.COMPILED,),
                    advice=(
                        "Replay the compiled model as CUDA graphs, which make such gaps "
                        "shorter."
                    ),
                    snippet='model = torch.compile(model, mode="reduce-overhead")',
                ),
                AdviceVariant(
                    kinds=PYTORCH_JOBS,
                    advice=(
                        "Fuse kernels by compiling the model, or replay the step as a CUDA "
                        "graph, which makes such gaps shorter."
                    ),
                    snippet='model = torch.compile(model, mode="reduce-overhead")',
                ),
                AdviceVariant(
                    advice=(
                        "Fuse kernels, or launch them as one graph, which makes such gaps "
                        "shorter."
                    ),
                ),
            ),
            confidence="low",
            reason=(
                "the kernels were launched in time; graphs shorten such gaps and do not remove "
                "them{recorder}"
            ),
        ),
        "few": VariantText(title="GPU waits for the CPU, mostly in {large}: {saving}"),
        "launching": VariantText(title="CPU launches too slowly: {saving}"),
        "operations": VariantText(title="GPU waits for CPU operations: {saving}"),
        "python": VariantText(title="GPU waits for Python code: {saving}"),
        "calls": VariantText(title="GPU waits for CPU code between calls: {saving}"),
        "phases": VariantText(title="GPU waits during long CPU phases: {saving}"),
    },
)

_RECORDER: Final = "; recording may take {:.0f} % of the CPU time (profiler-overhead)"
#: A gap in which the CPU launches nothing for so long is part of a phase of the CPU.
_LONG_NS: Final = 1_000_000
#: So many gaps at most, and a tenth of the GPU events, are a few; of lengths within a factor.
_MOST_FEW_GAPS: Final = 20
_ALIKE_FACTOR: Final = 10
#: They lead the title if they make so much of the attributed time, percent.
_LEADING_PERCENT: Final = 50


@detector("host-bound", TEXT)
def host_bound(inspection: Inspection) -> Finding | None:
    """The GPU is idle because the CPU launches too slowly."""
    wall = inspection.wall
    is_late = _is_late(wall)
    is_short_hole = is_late & (wall.idle.cause == Cause.LAUNCH_OVERHEAD.code)
    length = wall.idle.end - wall.idle.start
    holes_ns = wall.mean_ms(length[is_short_hole]) * NS_PER_MS
    claim = wall.claim_idle(is_late)
    if not inspection.is_worth(claim):
        return None
    gaps, number = np.unique(claim.intervals.gap, return_inverse=True)
    gap_ns = sums(number, claim.intervals.end - claim.intervals.start, len(gaps))
    longest_first = np.sort(gap_ns)[::-1]
    middle = np.searchsorted(np.cumsum(longest_first), longest_first.sum() / 2)
    cpu_time = _cpu_time_during(inspection, claim)
    lead = _leading_part(longest_first, len(inspection.work), cpu_time)
    variant = lead.variant
    if holes_ns > claim.saving_ns / 2:
        variant = "holes"
    recorder = ""
    percent = recorder_percent(inspection)
    if percent:
        recorder = _RECORDER.format(percent)
    numbers: dict[str, float | None] = {
        "gaps": len(gaps),
        "half_us": float(longest_first[middle]) / NS_PER_US,
        "short_ms": holes_ns / NS_PER_MS,
    }
    for part, part_ms in cpu_time.items():
        numbers[f"{part}_ms"] = part_ms or None
    return inspection.finding(
        "host-bound",
        claim,
        numbers,
        text=TEXT,
        variant=variant,
        values={"large": lead.large_gaps, "recorder": recorder},
    )


def _is_late(wall: WallTime) -> BoolArray:
    """Tell in which intervals of idle time the GPU waits for a launch."""
    idle = wall.idle
    of_cpu = (Cause.HOST.code, Cause.LAUNCH_OVERHEAD.code, Cause.SYNCHRONIZATION.code)
    is_late: BoolArray = np.isin(idle.cause, of_cpu)
    return is_late


def _cpu_time_during(inspection: Inspection, claim: Claim) -> Mapping[str, float]:
    """Return what the CPU was in during a claim, ms, by variant of the text."""
    trace = inspection.work.trace
    intervals = claim.intervals
    segments = innermost_segments(
        trace,
        (EventKind.CPU_OP, *LAUNCH_KINDS),
        HostIntervals(intervals.thread, intervals.start, intervals.end),
    )
    overlap = segments.during(intervals.thread, intervals.start, intervals.end)
    inside_ns = overlap.of_segment
    result = dict.fromkeys(
        ("launching", "operations", "python", "calls", "phases"), 0.0
    )
    if not inside_ns.any():  # no operation and no call is recorded
        return result
    mean_ms = inspection.wall.mean_ms
    is_launch = trace.kind[segments.row] != EventKind.CPU_OP
    is_launch |= inspection.starts_work(segments.row)
    result["launching"] = mean_ms(inside_ns[is_launch])
    result["operations"] = mean_ms(inside_ns[~is_launch])

    outside_ns = intervals.end - intervals.start - overlap.of_interval
    _, number = np.unique(intervals.gap, return_inverse=True)
    is_phase = np.bincount(number, outside_ns)[number] >= _LONG_NS
    result["phases"] = mean_ms(outside_ns[is_phase])
    between = "calls"
    if inspection.is_of_pytorch and trace.count_of(EventKind.CPU_OP) > 0:
        between = "python"
    result[between] = mean_ms(outside_ns[~is_phase])
    return result


class _Lead(NamedTuple):
    """What the title of the finding is about: the largest part of the attributed time."""

    variant: str  #: of the text
    percent: float  #: its share of the attributed time
    large_gaps: str = ""  #: a few long gaps, in words


def _leading_part(
    longest_first: Int64Array, gpu_events: int, cpu_time: Mapping[str, float]
) -> _Lead:
    """Return the largest part: a few long gaps that make most of it, or what the CPU was in."""
    is_large = longest_first >= max(_LONG_NS, longest_first[0] / _ALIKE_FACTOR)
    large = longest_first[is_large]
    percent = 100 * large.sum() / longest_first.sum()
    most = min(_MOST_FEW_GAPS, gpu_events / 10)
    if 0 < len(large) <= most and percent >= _LEADING_PERCENT:
        return _Lead("few", percent, _gaps_in_words(large))
    variant = max(cpu_time, key=lambda part: cpu_time[part])
    total_ms = max(sum(cpu_time.values()), 1e-9)
    return _Lead(variant, 100 * cpu_time[variant] / total_ms)


def _gaps_in_words(longest_first: Int64Array) -> str:
    """Return `1 gap of 2.0 ms`, or `3 gaps of 1.2 to 2.0 ms`."""
    shortest = ms_text(longest_first[-1] / NS_PER_MS)
    longest = ms_text(longest_first[0] / NS_PER_MS)
    lengths = longest
    if shortest != longest:
        lengths = f"{shortest.removesuffix(' ms')} to {longest}"
    if len(longest_first) == 1:
        return f"1 gap of {lengths}"
    return f"{len(longest_first)} gaps of {lengths}"
