"""The sheets of serving: what each phase takes (tokens, GPU time, idle time), steps and layers.

GPU work belongs to the step that launched it. Idle time of a device belongs to the phase of the GPU
event that ends it, and so the busy and idle time of all phases add up to the time of the devices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Final, Protocol

import numpy as np

from tracelens_ext.analysis.context import AnalysisContext
from tracelens_ext.analysis.idle_time.causes import CAUSES, classify_gaps
from tracelens_ext.analysis.serving import layers
from tracelens_ext.analysis.serving.steps import Steps, find_steps
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.conditions import GPU_EVENTS, Condition
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import ScreenView, Table
from tracelens_ext.trace import HOST_KINDS, NONE, NS_PER_MS, NS_PER_US, Float64Array, Int64Array
from tracelens_ext.trace.busy_time import BusyTime
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import percent, sums
from tracelens_ext.trace.intervals import covered

NS_PER_S: Final = 1e9
#: What the host was in: names of annotations, operations and Python frames.
_HOST_PARTS: Final = {
    "scheduler": re.compile(
        r"(?:## )?schedul(?:e|er|ing)\b(?!\.(?:run_batch|event_loop))|scheduler_step"
        r"|.*(?:get_next_batch|: _?schedule$)"
    ),
    "sampler": re.compile(r"(?:## )?sampl(?:e|er|ing)\b|.*(?:: _?sample(?:_tokens)?$|: Sampler)"),
}
#: Categories whose share in the GPU time of a phase is shown, whatever a map calls them.
_SHARES: Final = {
    "attention": re.compile(r"att(?:entio)?n", re.IGNORECASE),
    "gemm": re.compile(r"gemm", re.IGNORECASE),
}


def busy_by_step(work: GpuEvents, steps: Steps) -> Int64Array:
    """The busy time of what each step launched, and of what lies outside, ns, (k + 1,)."""
    owner = np.where(steps.of_gpu == NONE, len(steps), steps.of_gpu)
    owner = np.where(work.counted, owner, NONE)
    return BusyTime(work.start, work.end).by_owner(owner, len(steps) + 1)


def phase_table(work: GpuEvents, steps: Steps) -> pd.DataFrame:
    """A row a phase, and `other` if GPU work lies outside of all steps; without the roofline."""
    count = len(steps.labels)
    busy = sums(np.append(steps.phase, count - 1), busy_by_step(work, steps), count)
    idle = _idle(work, steps)
    elapsed = busy + idle.sum(axis=0)
    told = {"steps": np.ones(len(steps), dtype=np.int64), **_told(steps)}
    columns: dict[str, object] = {"phase": steps.labels}
    columns |= {name: sums(steps.phase, each, count) for name, each in told.items()}
    tokens = sums(steps.phase, told["tokens"], count).astype(np.float64)
    tokens[tokens == 0] = np.nan
    columns |= {
        "gpu_busy_ms": busy / NS_PER_MS,
        "gpu_ms_per_step": _ratio(busy / NS_PER_MS, sums(steps.phase, told["steps"], count)),
        "gpu_us_per_token": _ratio(busy / NS_PER_US, tokens),
        "idle_ms": (elapsed - busy) / NS_PER_MS,
        "busy_%": percent(busy, elapsed),
        "tokens_per_s": _ratio(tokens * NS_PER_S, elapsed),
        "tokens_per_s_without_idle": _ratio(tokens * NS_PER_S, busy),
    }
    for cause, ns in zip(CAUSES, idle, strict=True):
        if ns.any():
            columns[f"idle_{cause.replace(' ', '_')}_ms"] = ns / NS_PER_MS
    columns |= {f"{part}_%": share for part, share in _host_shares(work, steps).items()}
    columns |= _categories(work, steps)
    frame = pd.DataFrame(columns)
    return frame if (work.counted & (steps.of_gpu == NONE)).any() else frame.iloc[:-1].copy()


def step_table(work: GpuEvents, steps: Steps) -> pd.DataFrame:
    """A row a step, the longest GPU time first; columns as the sheet `phase_steps`."""
    busy = busy_by_step(work, steps)[:-1]
    mine = work.counted & (steps.of_gpu != NONE)
    gaps = classify_gaps(work, "device").gaps
    ended_by = steps.of_gpu[gaps.after]
    idle = sums(ended_by[ended_by != NONE], gaps.duration[ended_by != NONE], len(steps))
    told = _told(steps)
    frame = pd.DataFrame(
        {
            "step": steps.name,
            "phase": [batch.phase for batch in steps.batch],
            "start_ms": steps.start / NS_PER_MS,
            "wall_time_ms": (steps.end - steps.start) / NS_PER_MS,
            **{name: told[name] for name in ("context_requests", "generation_requests", "tokens")},
            "gpu_busy_ms": busy / NS_PER_MS,
            "gpu_us_per_token": _ratio(busy / NS_PER_US, told["tokens"]),
            "idle_ms": idle / NS_PER_MS,
            "gpu_events": np.bincount(steps.of_gpu[mine], minlength=len(steps)),
            "kernels": np.bincount(steps.of_gpu[mine & work.is_kernel], minlength=len(steps)),
        }
    )
    return frame.iloc[np.lexsort((steps.start, -busy))].reset_index(drop=True)


def _told(steps: Steps) -> dict[str, Int64Array]:
    """Requests and tokens of each step."""
    figures = (
        "context.requests",
        "generation.requests",
        "context.tokens",
        "generation.tokens",
        "tokens",
    )
    told = {each: np.array([*map(attrgetter(each), steps.batch)], np.int64) for each in figures}
    return {name.replace(".", "_"): each for name, each in told.items()}


def _idle(work: GpuEvents, steps: Steps) -> Int64Array:
    """The idle time of devices by cause and phase, ns, (causes, phases + 1)."""
    classified = classify_gaps(work, "device")
    count = len(steps.labels)
    pieces = classified.within
    cell = pieces.cause * count + steps.phase_of_gpu[classified.gaps.after[pieces.gap]]
    return sums(cell, pieces.end - pieces.start, len(CAUSES) * count).reshape(-1, count)


def _host_shares(work: GpuEvents, steps: Steps) -> dict[str, Float64Array]:
    """How much of the time from step to step the host was in scheduler and sampler, percent.

    A step is taken to begin when the one before it on its thread ends, since an engine schedules
    before it computes, and to end when its annotation does.
    """
    trace = work.trace
    count = len(steps.labels)
    same = np.diff(steps.thread, prepend=NONE) == 0
    begin = np.minimum(np.where(same, np.roll(steps.end, 1), steps.start), steps.start)
    rows = trace.rows_of(*HOST_KINDS)
    length = sums(steps.phase, steps.end - begin, count)
    shares = {}
    for part, pattern in _HOST_PARTS.items():
        mine = rows[trace.named(trace.name[rows], pattern.match)]
        if len(mine):
            inside = covered(trace.ts[mine], trace.end_of(mine), begin, steps.end)
            shares[part] = percent(sums(steps.phase, inside, count), length)
    return shares


def _categories(work: GpuEvents, steps: Steps) -> dict[str, Float64Array]:
    """The summed durations of each category and phase; empty without categories."""
    if work.categories is None:
        return {}
    labels = work.categories.labels
    count = len(steps.labels)
    cell = work.categories.code.astype(np.int64) * count + steps.phase_of_gpu
    mine = work.counted
    table = sums(cell[mine], work.duration[mine], len(labels) * count).reshape(-1, count)
    order = np.argsort(-table.sum(axis=1), kind="stable")
    columns = {}
    for share, pattern in _SHARES.items():
        those = [bool(pattern.search(name)) for name in labels]
        columns[f"{share}_%"] = percent(table[those].sum(axis=0), table.sum(axis=0))
    times = {f"{labels[i]}_time_ms": table[i] / NS_PER_MS for i in order.tolist() if table[i].any()}
    return columns | times


def _ratio(part: Float64Array, whole: Int64Array | Float64Array) -> Float64Array:
    """One by the other, NaN where there is nothing to divide by."""
    return part / np.where(whole > 0, whole, np.nan)


class ServingContext(AnalysisContext, Protocol):
    """A trace that is being analyzed, and the steps of its serving engine."""

    def serving_steps(self, phases: Sequence[str] = ()) -> Steps:
        """Return the steps, with phases of the user's own, each `NAME=REGEX`."""


def _has_steps(context: ServingContext, options: ReportOptions) -> bool:
    """Whether there are steps; if nobody asked for them, annotated ones."""
    asked = options.names("phases", "phase_steps", "layers", "layer_kernels")
    return len(context.serving_steps() if asked else find_steps(context.tree)) > 0


HAS_STEPS = Condition("annotations of a serving engine name its steps", _has_steps)


def _has_layers(context: ServingContext, _options: ReportOptions) -> bool:
    return bool(layers.find_layers(context.gpu_events, context.serving_steps()))


_LAYERS = Condition("a block of kernels repeats within a step", _has_layers)


def phase_notes(context: ServingContext, phases: Sequence[str] = ()) -> Iterable[str]:
    """What the reader of the phases should know, a sentence each."""
    steps = context.serving_steps(phases)
    if not len(steps):
        yield "Neither annotations nor shapes show a step; --phase NAME=REGEX names them."
        return
    if steps.note:
        yield steps.note
    work = context.gpu_events
    mine = int(work.duration[steps.of_gpu != NONE].sum())
    share = 100.0 * mine / max(int(work.duration.sum()), 1)
    yield f"The steps launched {share:.1f} % of the GPU time; the rest is `other`."
    if any(batch.tokens == 0 for batch in steps.batch):
        yield "The annotations of some steps say nothing of tokens; those count as none."
    yield from layers.layer_notes(work, steps)


def _of(make: Callable[[GpuEvents, Steps], pd.DataFrame]) -> Callable[..., pd.DataFrame]:
    """A table of the steps."""

    def table(context: ServingContext, phases: Sequence[str] = ()) -> pd.DataFrame:
        return make(context.gpu_events, context.serving_steps(phases))

    return table


PHASE_STEPS = Table(
    name="phase_steps",
    shows="Each step of the serving engine, the slowest first",
    columns=[
        Column("step", "the annotation that says most of it"),
        Column("phase", "as in `phases`"),
        Column("start_ms", "since the trace's first event"),
        Column("wall_time_ms", "of the annotation, on the host"),
        Column("context_requests", "its requests", unit="requests"),
        Column("generation_requests", "its requests", unit="requests"),
        Column("tokens", "those that they compute", unit="tokens"),
        Column("gpu_busy_ms", "busy time of what it launched on its thread"),
        Column("gpu_us_per_token", "by tokens"),
        Column("idle_ms", "of the devices, before its GPU events"),
        Column("gpu_events", "that it launched", unit="GPU events"),
        Column("kernels", "those of them that are kernels", unit="kernels"),
    ],
    table=_of(step_table),
    screen=ScreenView(
        "Slowest steps",
        [
            "step",
            "phase",
            "start_ms",
            "generation_requests",
            "tokens",
            "gpu_busy_ms",
            "gpu_us_per_token",
            "idle_ms",
            "kernels",
        ],
    ),
    when=[GPU_EVENTS, HAS_STEPS],
)
LAYERS = Table(
    name="layers",
    shows="The repeating block of kernels: time of each layer, and which are odd",
    columns=[
        Column("phase", "as in `phases`"),
        Column("layer", "its number, from 0 on"),
        Column("kind", "equal for layers that run the same kernels"),
        Column("kernels", "of the layer", unit="GPU events"),
        Column("steps", "those looked at: with the most common order of kernels", unit="steps"),
        Column("busy_time_us", "mean over the steps"),
        Column("std_busy_time_us", "standard deviation of a sample, 0 for a single step"),
        Column("min_busy_time_us", "over the steps"),
        Column("max_busy_time_us", "over the steps"),
        Column("span_us", "first start to last end, mean over the steps", unit="µs"),
        Column(
            "odd",
            "`time` far from other layers of its kind, `kernels` if no other runs the same",
        ),
    ],
    table=_of(layers.layer_table),
    when=[GPU_EVENTS, HAS_STEPS, _LAYERS],
)
LAYER_KERNELS = Table(
    name="layer_kernels",
    shows="The GPU events of one layer, in order",
    columns=[
        Column("phase", "as in `phases`"),
        Column("kind", "as in `layers`; kinds of a single layer only where there is no other"),
        Column("layers", "of this kind", unit="layers"),
        Column("position", "in the layer, from 0 on"),
        Column("kernel_name", "the GPU event"),
        Column("cpu_op", "its operation, or `graph`"),
        Column("kernel_category", "when categories are on"),
        Column("avg_duration_us", "mean over the layers and steps"),
        Column("% of layer", "of the durations of the layer"),
    ],
    table=_of(layers.layer_kernel_table),
    screen=ScreenView(
        "A layer",
        [
            "position",
            "avg_duration_us",
            "% of layer",
            "cpu_op",
            "kernel_name",
        ],
    ),
    when=[GPU_EVENTS, HAS_STEPS, _LAYERS],
)
