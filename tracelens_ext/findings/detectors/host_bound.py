"""Idle time of the GPU because the CPU launches work too slowly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from tracelens_ext.analysis.coverage.program import program_of
from tracelens_ext.analysis.idle_time.cpu_activity import (
    HostIntervals,
    innermost_during,
    innermost_segments,
)
from tracelens_ext.analysis.idle_time.shapes import Shape
from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Claim, Finding
from tracelens_ext.findings.host_phases import ShapedClaim
from tracelens_ext.findings.idle_places import idle_places
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.launch_bound import LaunchBound, launch_bound
from tracelens_ext.findings.program_facts import Fact
from tracelens_ext.findings.recording_cost import recorder_percent
from tracelens_ext.findings.summary import LARGEST_SHARE, places_of_most_telling_kind
from tracelens_ext.findings.texts import (
    PYTORCH_JOBS,
    AdviceVariant,
    EvidenceText,
    FindingText,
    VariantText,
)
from tracelens_ext.findings.wall_time import WallTime
from tracelens_ext.report.tables.short_names import cut_middle
from tracelens_ext.text import NO_OPERATION
from tracelens_ext.trace import (
    LAUNCH_KINDS,
    NONE,
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
        kinds=("jax",),
        requires=(Fact.RESHARDED_INPUTS,),
        advice=(
            "Put the inputs onto the devices once, before the loop, with the sharding that "
            "the compiled function expects: each call copies them between devices here."
        ),
        snippet="x = jax.device_put(x, sharding)",
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
            "Move the CPU work that runs in these gaps onto another thread, beside the work of "
            "the GPU; what need not run in each iteration belongs before or after the loop."
        ),
    ),
)
#: What the CPU does is to be found out first.
_UNSEEN_ADVICES: Final = (
    AdviceVariant(
        advice=(
            "Find out what the CPU does in these gaps, which the trace does not show: {how} "
            "records it. Then move that work onto another thread, beside the work of the GPU, "
            "or do it less often."
        ),
    ),
)
_PHASE_REASON: Final = (
    "the CPU launches nothing for a millisecond or more in each of these gaps; what replaces "
    "the CPU work decides the gain{hint}{recorder}"
)
_REDUCE_OVERHEAD: Final = 'model = torch.compile(model, mode="reduce-overhead")'
_ADVICES: Final = (
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
            "Replay the compiled model as {graphs}, which needs fixed shapes, and "
            "remove graph breaks (TORCH_LOGS=graph_breaks lists them)."
        ),
        snippet=_REDUCE_OVERHEAD,
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
            "Give the GPU more work per launch: compile {region}, replay the whole step "
            "with {graphs}, or use larger batches."
        ),
        snippet=_REDUCE_OVERHEAD,
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
)
#: What comes first where the trace shows why launches are too slow, as `launch_bound` tells.
_SPECIAL_ADVICES: Final = {
    "optimizer": (
        AdviceVariant(
            kinds=PYTORCH_JOBS,
            excludes=(Fact.GPU_GRAPHS,),
            advice=(
                "Update all parameters in a few kernels first: {optimizer_percent:.0f} % of "
                "this time is in the step of the optimizer."
            ),
            snippet="torch.optim.{optimizer}(model.parameters(), {option}=True)",
        ),
    ),
    "rounds": (
        AdviceVariant(
            kinds=("native",),
            excludes=(Fact.GPU_GRAPHS, Fact.DIRECTIVES),
            advice=(
                "Launch the work of several rounds before waiting for results: the CPU waits "
                "{how_often} on average ({waiting_call}), so it cannot launch ahead."
            ),
        ),
    ),
    "gradients": (
        AdviceVariant(
            kinds=PYTORCH_JOBS,
            follows=(Fact.COMPILED,),
            excludes=(Fact.GPU_GRAPHS,),
            advice=(
                "Combine gradients into buckets before they are reduced: each iteration has "
                "{reductions:.0f} all-reduces. Then replay the compiled model as {graphs}, "
                "which needs fixed sizes."
            ),
            snippet="model = DistributedDataParallel(model, gradient_as_bucket_view=True)",
        ),
        AdviceVariant(
            kinds=PYTORCH_JOBS,
            excludes=(Fact.GPU_GRAPHS,),
            advice=(
                "Combine gradients into buckets before they are reduced: each iteration has "
                "{reductions:.0f} all-reduces. Then compile {region}."
            ),
            snippet="model = DistributedDataParallel(model, gradient_as_bucket_view=True)",
        ),
    ),
    "sizes": (
        AdviceVariant(
            kinds=PYTORCH_JOBS,
            follows=(Fact.COMPILED,),
            excludes=(Fact.GPU_GRAPHS,),
            advice=(
                "Pad batches to a few sizes: {changing_percent:.0f} % of the launches change "
                "from iteration to iteration, and {graphs} need fixed sizes. Then replay "
                "the compiled model as graphs."
            ),
            snippet=_REDUCE_OVERHEAD,
        ),
        AdviceVariant(
            kinds=PYTORCH_JOBS,
            excludes=(Fact.GPU_GRAPHS,),
            advice=(
                "Compile {region} for changing sizes, or pad batches to a few sizes: "
                "{changing_percent:.0f} % of the launches change from iteration to iteration, "
                "so {graphs} cannot replay them."
            ),
            snippet="model = torch.compile(model, dynamic=True)",
        ),
    ),
    "waits": (
        AdviceVariant(
            kinds=PYTORCH_JOBS,
            follows=(Fact.COMPILED,),
            excludes=(Fact.GPU_GRAPHS,),
            advice=(
                "Find other ways for what waits for the GPU {waits:.0f} times in each "
                "iteration ({waiting_operation}): it breaks compiled regions, and {graphs} "
                "cannot contain it."
            ),
        ),
        AdviceVariant(
            kinds=PYTORCH_JOBS,
            excludes=(Fact.GPU_GRAPHS,),
            advice=(
                "Compile {region}. Move out of it what waits for the GPU {waits:.0f} times in "
                "each iteration ({waiting_operation}): {graphs} cannot contain it."
            ),
            snippet="model = torch.compile(model)",
        ),
    ),
    "batch": (
        AdviceVariant(
            kinds=PYTORCH_JOBS,
            follows=(Fact.COMPILED,),
            excludes=(Fact.GPU_GRAPHS,),
            advice=(
                "Use larger batches, which need no more launches: the program computes "
                "{batches}. If they must be small, replay the compiled model as {graphs}."
            ),
            snippet=_REDUCE_OVERHEAD,
        ),
        AdviceVariant(
            kinds=PYTORCH_JOBS,
            excludes=(Fact.GPU_GRAPHS,),
            advice=(
                "Use larger batches, which need no more launches: the program computes "
                "{batches}. If they must be small, compile {region}, and replay it as {graphs}."
            ),
            snippet=_REDUCE_OVERHEAD,
        ),
    ),
    "fusible": (
        AdviceVariant(
            kinds=PYTORCH_JOBS,
            excludes=(Fact.GPU_GRAPHS, Fact.COMPILED),
            requires=(Fact.GRADIENT_BUCKETS,),
            advice=(
                "Compile {region}: {fusible_percent:.0f} % of the kernels are element-wise, "
                "copies, norms or reductions, which the compiler fuses into few launches."
            ),
            snippet="model = torch.compile(DistributedDataParallel(model))",
        ),
        AdviceVariant(
            kinds=PYTORCH_JOBS,
            excludes=(Fact.GPU_GRAPHS, Fact.COMPILED),
            advice=(
                "Compile {region}: {fusible_percent:.0f} % of the kernels are element-wise, "
                "copies, norms or reductions, which the compiler fuses; it can replay the "
                "rest as {graphs}."
            ),
            snippet=_REDUCE_OVERHEAD,
        ),
    ),
}
TEXT: Final = FindingText(
    title="GPU waits for the CPU: {saving}",
    advices=_ADVICES,
    reason=(
        "each launch came after the GPU had run out of work; what replaces the CPU work "
        "decides the gain{frames}{recorder}"
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
        "few, unseen": VariantText(
            title="GPU waits for the CPU, mostly in {large}: {saving}",
            advices=_UNSEEN_ADVICES,
            reason=_PHASE_REASON,
        ),
        "pauses, unseen": VariantText(
            title="GPU waits for the CPU, {part:.0f} % of it in {large}: {saving}",
            advices=_UNSEEN_ADVICES,
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
    }
    | {
        name: VariantText(advices=advices + _ADVICES)
        for name, advices in _SPECIAL_ADVICES.items()
    },
)

#: Shows the CPU's activity, if the tool that recorded the trace cannot.
_SAMPLING_PROFILER: Final = "a sampling profiler, such as perf or py-spy,"
_RECORDER: Final = "; recording may take {:.0f} % of the CPU time (profiler-overhead)"
_HINT: Final = "; for most of it, CPU activity is not recorded"
#: A gap in which the CPU launches nothing for at least this time is part of a phase of the CPU.
_LONG_NS: Final = 1_000_000
#: The share from which on something counts as most of the attributed time.
_MOST: Final = 0.5
#: Commands that record calls of the operating system, by tool.
_SYSTEM_CALLS: Final = {
    "nsys": "nsys profile -t cuda,nvtx,osrt",
    "rocprofv3": "rocprofv3 --hip-trace --marker-trace",
}
#: A range that is longer than this many gaps does not tell what the CPU does in one of them.
_CLOSE_FACTOR: Final = 4
#: Variants for long gaps, in which the question is what the CPU does.
_PHASES: Final = ("few", "pauses")
#: Parts of a training step that become faster if the model is compiled.
_PARTS_TO_COMPILE: Final = (
    "the backward pass",
    "the forward pass and other operations",
)
_NAME_LENGTH: Final = 60
_SHAPE_NUMBERS: Final = {
    Shape.SHORT: "short_gaps_ms",
    Shape.LONG: "long_gaps_ms",
    Shape.PERIODIC: "pauses_ms",
    Shape.TAIL: "tail_ms",
}


@detector("host-bound", TEXT)
def host_bound(inspection: Inspection) -> Finding | None:
    """Detect idle time of the GPU because the CPU launches work too slowly."""
    wall = inspection.wall
    is_late = _is_late(wall)
    is_launch_latency = is_late & wall.is_launch_overhead(wall.idle)
    length = wall.idle.end - wall.idle.start
    latency_ns = wall.mean_ms(length[is_launch_latency]) * NS_PER_MS
    claim = wall.claim_idle(is_late)
    if not inspection.is_worth(claim):
        return None
    shaped = ShapedClaim(inspection, claim)
    cpu_time = _cpu_time_during(inspection, claim)
    lead = shaped.lead()
    places = idle_places(inspection, claim)
    shape = lead.variant
    how = _what_would_show_it(inspection, claim, cpu_time)
    special = LaunchBound()
    evidence = []
    if latency_ns > _MOST * claim.attributed_ns:
        shape = "holes"
    elif shape:
        evidence = shaped.longest()
        if how and shape in _PHASES:
            shape = f"{shape}, unseen"
    else:
        shape = max(cpu_time, key=lambda part: cpu_time[part])
        special = launch_bound(inspection, claim, places.get("parts_of_step", ()))
    numbers = _numbers_of_gaps(shaped)
    numbers["short_ms"] = latency_ns / NS_PER_MS
    for part, part_ms in cpu_time.items():
        numbers[f"{part}_ms"] = part_ms or None
    values = {
        "large": lead.words,
        "part": 100 * lead.share,
        "inside": _inside_graphs(inspection, claim),
        "recorder": _recorder_note(inspection),
        "hint": _HINT if how else "",
        "how": how,
        "graphs": _graphs_of_maker(inspection),
        "frames": _what_shows_python_code(inspection, shape),
    }
    finding = inspection.finding(
        "host-bound",
        claim,
        numbers,
        text=TEXT,
        variant=special.variant or shape,
        title=TEXT.variants[shape].title or TEXT.title,
        evidence=evidence,
        where=places,
        values={**values, **special.values},
    )
    if finding is None:
        return None
    advice = finding.advice.replace("{region}", _region(finding))
    where = dict(finding.where)
    if shape == "holes":
        # The kernels had been launched before, so calls during the gaps do not matter.
        where.pop("calls", None)
    finding = replace(finding, advice=advice, where=where)
    if not evidence:
        return finding
    return _with_place(finding, lead.words)


def _numbers_of_gaps(shaped: ShapedClaim) -> dict[str, float | None]:
    """Return the number of gaps, the length of gaps with half of the time, and time by shape."""
    longest_first = np.sort(shaped.ns_of_gap[shaped.ns_of_gap > 0])[::-1]
    # The gap with which the longest gaps together reach half of the time.
    middle = np.searchsorted(np.cumsum(longest_first), longest_first.sum() / 2)
    numbers: dict[str, float | None] = {
        "gaps": len(longest_first),
        "half_us": float(longest_first[middle]) / NS_PER_US,
    }
    for shape, name in _SHAPE_NUMBERS.items():
        numbers[name] = shaped.ms_by_shape.get(shape.value)
    return numbers


def _region(finding: Finding) -> str:
    """Return what to compile: the model, and the part of it with much of the time."""
    places = list(places_of_most_telling_kind(finding)[:1])
    places.extend(finding.where.get("parts_of_step", ())[:1])
    for place in places:
        share = place.attributed_ms / finding.attributed_ms
        is_part = place.name in _PARTS_TO_COMPILE or place.name.endswith("forward")
        if is_part and share >= LARGEST_SHARE:
            name = cut_middle(place.name, _NAME_LENGTH)
            return f"the model, above all {name} ({100 * share:.0f} % of this time)"
    return "the model"


def _inside_graphs(inspection: Inspection, claim: Claim) -> str:
    """Return ` inside graph launches` if most of the gaps are between kernels of one launch."""
    tree = inspection.gpu_events.tree
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
    """Return a finding about long gaps, with the place of most of them in its title, if known.

    Args:
        finding: the finding.
        words: the gaps in words, as they are in the title.
    """
    for kind in ("python_frames", "main_thread", "operations"):
        for place in finding.where.get(kind, ())[:1]:
            has_most = place.attributed_ms > _MOST * finding.attributed_ms
            if has_most and place.name != NO_OPERATION:
                gaps, _, _ = words.partition(" before ")
                title = finding.title.replace(words, f"{gaps} in {place.name}")
                return replace(finding, title=title)
    return finding


def _graphs_of_maker(inspection: Inspection) -> str:
    """Return what the maker of the GPU calls its graphs."""
    if inspection.facts.shows(Fact.AMD):
        return "HIP graphs"
    return "CUDA graphs"


def _what_shows_python_code(inspection: Inspection, shape: str) -> str:
    """Return how to record which Python code the GPU waits for, as a reason goes on."""
    how = inspection.missing.get("stacks", "")
    if shape != "python" or not how:
        return ""
    return f"; {how} shows which code that is"


def _recorder_note(inspection: Inspection) -> str:
    """Return the end of a reason, about the share of the CPU's time that recording may take."""
    percent = recorder_percent(inspection)
    if not percent:
        return ""
    return _RECORDER.format(percent)


def _what_would_show_it(
    inspection: Inspection, claim: Claim, cpu_time: Mapping[str, float]
) -> str:
    """Return what would record the CPU's activity in a claim; empty if most of it is recorded."""
    trace = inspection.gpu_events.trace
    recorded_ms = cpu_time["launching"] + cpu_time["operations"]
    recorded_ms += _in_close_ranges_ms(inspection, claim)
    has_frames = trace.count_of(EventKind.PYTHON_FUNCTION) > 0
    if has_frames or recorded_ms > _MOST * claim.attributed_ms:
        return ""
    how = inspection.missing.get("stacks")
    return how or _SYSTEM_CALLS.get(program_of(trace).tool, _SAMPLING_PROFILER)


def _in_close_ranges_ms(inspection: Inspection, claim: Claim) -> float:
    """Return how much of a claim is in ranges of the program that are not much longer than gaps."""
    intervals = claim.intervals
    trace = inspection.gpu_events.trace
    gaps = inspection.wall.classified.gaps
    rows = innermost_during(
        trace=trace,
        kinds=(EventKind.USER_ANNOTATION, EventKind.CPU_OP),
        intervals=HostIntervals(intervals.thread, intervals.start, intervals.end),
        ignored=("ProfilerStep#",),
    )
    gap_ns = gaps.end[intervals.gap] - gaps.start[intervals.gap]
    is_close = (rows != NONE) & (trace.dur[rows] <= _CLOSE_FACTOR * gap_ns)
    is_close &= trace.kind[rows] == EventKind.USER_ANNOTATION
    return float(claim.ns[is_close].sum()) / NS_PER_MS


def _is_late(wall: WallTime) -> BoolArray:
    """Return in which intervals of idle time the GPU waits for a launch."""
    return wall.waits_for_cpu(wall.idle) | wall.is_launch_overhead(wall.idle)


def _cpu_time_during(inspection: Inspection, claim: Claim) -> Mapping[str, float]:
    """Return the time of a claim by what the CPU did: the variants of the text, ms."""
    trace = inspection.gpu_events.trace
    intervals = claim.intervals
    kinds = (EventKind.CPU_OP,) + LAUNCH_KINDS
    times = HostIntervals(intervals.thread, intervals.start, intervals.end)
    segments = innermost_segments(trace, kinds, times)
    overlap = segments.during(intervals.thread, intervals.start, intervals.end)
    inside_ns = overlap.of_segment
    result = dict.fromkeys(
        ("launching", "operations", "python", "calls", "phases"), 0.0
    )
    if not inside_ns.any():
        # No operations and no calls are recorded.
        return result
    mean_ms = inspection.wall.mean_ms
    is_launch = trace.kind[segments.row] != EventKind.CPU_OP
    is_launch |= inspection.starts_work(segments.row)
    result["launching"] = mean_ms(inside_ns[is_launch])
    result["operations"] = mean_ms(inside_ns[~is_launch])

    outside_ns = intervals.end - intervals.start - overlap.of_interval
    _, gap_number = np.unique(intervals.gap, return_inverse=True)
    outside_ns_of_gap = np.bincount(gap_number, outside_ns)
    is_phase = outside_ns_of_gap[gap_number] >= _LONG_NS
    result["phases"] = mean_ms(outside_ns[is_phase])
    # Between the operations of PyTorch, the CPU runs Python.
    part_between = "calls"
    if inspection.is_of_pytorch and trace.count_of(EventKind.CPU_OP) > 0:
        part_between = "python"
    result[part_between] = mean_ms(outside_ns[~is_phase])
    return result
