"""The GPU is idle because the host launches too slowly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from tracelens_ext.analysis.coverage.program import program_of
from tracelens_ext.analysis.idle_time.causes import Cause
from tracelens_ext.analysis.idle_time.cpu_activity import (
    HostIntervals,
    innermost_segments,
)
from tracelens_ext.analysis.idle_time.shapes import Shape
from tracelens_ext.findings.attribution import NO_OPERATION
from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Claim, Finding
from tracelens_ext.findings.host_phases import ShapedClaim
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
from tracelens_ext.trace import (
    LAUNCH_KINDS,
    NS_PER_MS,
    NS_PER_US,
    BoolArray,
    EventKind,
)

#: What the CPU does in long gaps is the question, not how fast it launches.
_PHASE_ADVICES: Final = (
    AdviceVariant(
        follows=(Fact.GPU_GRAPHS,),
        advice=(
            "Shorten the CPU work between graph launches, or move it onto another thread, "
            "beside the work of the GPU."
        ),
    ),
    AdviceVariant(
        kinds=("serving",),
        advice=(
            "Move the CPU work that runs in these gaps onto another "
            "thread or process, beside the work of the GPU."
        ),
    ),
    AdviceVariant(
        kinds=("jax", "tensorflow"),
        advice=(
            "Move the CPU work that runs in these gaps out of the loop, "
            "or prepare the next step while the GPU computes."
        ),
    ),
    AdviceVariant(
        advice=(
            "Move the CPU work that runs in these gaps out of the loop, "
            "or onto another thread beside the work of the GPU."
        ),
    ),
)
_PHASE_REASON: Final = (
    "the CPU launches nothing for a millisecond or more in each of these gaps; what replaces "
    "the CPU work decides the gain{hint}{recorder}"
)
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
            kinds=("native",),
            requires=(Fact.DIRECTIVES,),
            advice=(
                "Merge small target regions into larger ones, launch them asynchronously "
                "(nowait, async), and keep their data on the GPU."
            ),
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
        "launching_ms": EvidenceText(
            "while the CPU launches", "ms", "idle_cpu_activity"
        ),
        "operations_ms": EvidenceText("in CPU operations", "ms", "idle_cpu_activity"),
        "python_ms": EvidenceText("in Python", "ms", "idle_cpu_activity"),
        "calls_ms": EvidenceText("between API calls", "ms", "idle_cpu_activity"),
        "phases_ms": EvidenceText(
            "in long phases without a launch", "ms", "idle_cpu_activity"
        ),
        "short_gaps_ms": EvidenceText("in short gaps", "ms", "gap_shapes"),
        "long_gaps_ms": EvidenceText("in long gaps", "ms", "gap_shapes"),
        "pauses_ms": EvidenceText("in pauses that recur", "ms", "gap_shapes"),
        "tail_ms": EvidenceText("at the end of the recording", "ms", "gap_shapes"),
    },
    variants={
        "holes": VariantText(
            title="Short gaps between kernels{inside}: {saving}",
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
        "few": VariantText(
            title="GPU waits for the CPU, mostly in {large}: {saving}",
            advices=_PHASE_ADVICES,
            reason=_PHASE_REASON,
        ),
        "pauses": VariantText(
            title="GPU waits for the CPU, {part:.0f} % of it in {large}: {saving}",
            advices=_PHASE_ADVICES,
            reason=_PHASE_REASON,
        ),
        "tail": VariantText(
            title="GPU waits for the CPU at the end of the recording, in {large}: {saving}",
            advice=(
                "Stop recording right after the last iteration, so that the end does not count; "
                "if the program does this work after each iteration, move it onto another thread."
            ),
            snippet="",
            confidence="low",
            reason="hardly any GPU work follows, so this may not be part of the "
            "loop{hint}",
        ),
        "launching": VariantText(title="CPU launches too slowly: {saving}"),
        "operations": VariantText(title="GPU waits for CPU operations: {saving}"),
        "python": VariantText(title="GPU waits for Python code: {saving}"),
        "calls": VariantText(title="GPU waits for CPU code between calls: {saving}"),
        "phases": VariantText(title="GPU waits during long CPU phases: {saving}"),
    },
)

_RECORDER: Final = "; recording may take {:.0f} % of the CPU time (profiler-overhead)"
_HINT: Final = "; for most of it, CPU activity is not recorded; {} records it"
#: A gap in which the CPU launches nothing for so long is part of a phase of the CPU.
_LONG_NS: Final = 1_000_000
#: A share of the attributed time that is most of it.
_MOST: Final = 0.5
#: What records the calls of the operating system, by tool.
_SYSTEM_CALLS: Final = {
    "nsys": "nsys profile -t cuda,nvtx,osrt",
    "rocprofv3": "rocprofv3 --hip-trace --marker-trace",
}
_SHAPE_NUMBERS: Final = {
    Shape.SHORT: "short_gaps_ms",
    Shape.LONG: "long_gaps_ms",
    Shape.PERIODIC: "pauses_ms",
    Shape.TAIL: "tail_ms",
}


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
    shaped = ShapedClaim(inspection, claim)
    longest_first = np.sort(shaped.ns_of_gap[shaped.ns_of_gap > 0])[::-1]
    middle = np.searchsorted(np.cumsum(longest_first), longest_first.sum() / 2)
    cpu_time = _cpu_time_during(inspection, claim)
    lead = shaped.lead()
    variant = lead.variant
    evidence = []
    if holes_ns > _MOST * claim.attributed_ns:
        variant = "holes"
    elif variant:
        evidence = shaped.longest()
    else:
        variant = max(cpu_time, key=lambda part: cpu_time[part])
    numbers: dict[str, float | None] = {
        "gaps": len(longest_first),
        "half_us": float(longest_first[middle]) / NS_PER_US,
        "short_ms": holes_ns / NS_PER_MS,
    }
    for part, part_ms in cpu_time.items():
        numbers[f"{part}_ms"] = part_ms or None
    for shape, name in _SHAPE_NUMBERS.items():
        numbers[name] = shaped.ms_by_shape.get(shape.value)
    finding = inspection.finding(
        "host-bound",
        claim,
        numbers,
        text=TEXT,
        variant=variant,
        evidence=evidence,
        values={
            "large": lead.words,
            "part": 100 * lead.share,
            "inside": _inside_graphs(inspection, claim),
            "recorder": _recorder_note(inspection),
            "hint": _recording_hint(inspection, claim, cpu_time),
        },
    )
    if finding is None or not evidence:
        return finding
    return _with_place(finding, lead.words)


def _inside_graphs(inspection: Inspection, claim: Claim) -> str:
    """Return ` inside graph launches` if most of the gaps are between kernels of one launch."""
    tree = inspection.work.tree
    gaps = inspection.wall.classified.gaps
    gap = claim.intervals.gap
    event_before = gaps.before[gap]
    event_after = gaps.after[gap]
    launch_before = tree.launch_of_gpu[event_before]
    launch_after = tree.launch_of_gpu[event_after]
    is_inside = launch_before == launch_after
    is_inside &= tree.by_graph[event_after]
    inside_ns = float(claim.ns[is_inside].sum())
    if inside_ns <= _MOST * claim.attributed_ns:
        return ""
    return " inside graph launches"


def _with_place(finding: Finding, words: str) -> Finding:
    """Return a finding about long gaps whose title says where most of them are, if known."""
    for kind in ("python_frames", "operations"):
        for place in finding.where.get(kind, ())[:1]:
            has_most = place.attributed_ms > _MOST * finding.attributed_ms
            if has_most and place.name != NO_OPERATION:
                gaps, _, _ = words.partition(" before ")
                title = finding.title.replace(words, f"{gaps} in {place.name}")
                return replace(finding, title=title)
    return finding


def _recorder_note(inspection: Inspection) -> str:
    """Return how much of the CPU's time recording may take, as a reason goes on."""
    percent = recorder_percent(inspection)
    if not percent:
        return ""
    return _RECORDER.format(percent)


def _recording_hint(
    inspection: Inspection, claim: Claim, cpu_time: Mapping[str, float]
) -> str:
    """Return how to record what the CPU does, where the file does not tell; as a reason goes on."""
    seen_ms = cpu_time["launching"] + cpu_time["operations"]
    has_frames = inspection.work.trace.count_of(EventKind.PYTHON_FUNCTION) > 0
    if has_frames or seen_ms > _MOST * claim.attributed_ms:
        return ""
    how = inspection.missing.get("stacks") or _SYSTEM_CALLS.get(
        program_of(inspection.work.trace).tool
    )
    if how is None:
        return ""
    return _HINT.format(how)


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
    kinds = (EventKind.CPU_OP,) + LAUNCH_KINDS
    times = HostIntervals(intervals.thread, intervals.start, intervals.end)
    segments = innermost_segments(trace, kinds, times)
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
    outside_ns_of_gap = np.bincount(number, outside_ns)
    is_phase = outside_ns_of_gap[number] >= _LONG_NS
    result["phases"] = mean_ms(outside_ns[is_phase])
    between = "calls"
    if inspection.is_of_pytorch and trace.count_of(EventKind.CPU_OP) > 0:
        between = "python"
    result[between] = mean_ms(outside_ns[~is_phase])
    return result
