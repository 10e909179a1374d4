"""The tables of serving: what each phase takes (tokens, GPU time, idle time), steps and layers.

GPU work belongs to the step that launched it. Idle time of a device belongs to the phase of the GPU
event that ends it, and so the busy and idle time of all phases add up to the time of the devices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from tracelens_ext.analysis.context import AnalysisContext
from tracelens_ext.analysis.idle_time.causes import CAUSES, Cause, classify_gaps
from tracelens_ext.analysis.serving import layers
from tracelens_ext.analysis.serving.steps import Steps, find_steps
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.conditions import GPU_EVENTS, Condition
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import ScreenView, Table
from tracelens_ext.trace import (
    HOST_KINDS,
    NONE,
    NS_PER_MS,
    NS_PER_US,
    BoolArray,
    Float64Array,
    Int64Array,
)
from tracelens_ext.trace.busy_time import BusyTime
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import percent, sums
from tracelens_ext.trace.intervals import covered

NS_PER_S: Final = 1e9
#: What the CPU was doing: names of annotations, operations and Python frames.
_CPU_PARTS: Final = {
    "scheduler": re.compile(
        r"(?:## )?schedul(?:e|er|ing)\b(?!\.(?:run_batch|event_loop))|scheduler_step"
        r"|.*(?:get_next_batch|: _?schedule$)"
    ),
    "sampler": re.compile(
        r"(?:## )?sampl(?:e|er|ing)\b|.*(?:: _?sample(?:_tokens)?$|: Sampler)"
    ),
}
#: Categories whose share in the GPU time of a phase is shown, whatever a map calls them.
_SHARES: Final = {
    "attention": re.compile(r"att(?:entio)?n", re.IGNORECASE),
    "gemm": re.compile(r"gemm", re.IGNORECASE),
}


def busy_by_step(gpu_events: GpuEvents, steps: Steps) -> Int64Array:
    """Return the busy time of what each step launched, and of what lies outside, ns, (k + 1,)."""
    outside = len(steps)
    owner = np.where(steps.of_gpu == NONE, outside, steps.of_gpu)
    owner = np.where(gpu_events.counted, owner, NONE)
    return BusyTime(start=gpu_events.start, end=gpu_events.end).by_owner(
        owner, len(steps) + 1
    )


@dataclass(frozen=True, eq=False)
class _Counts:
    """What the annotations of k steps count, each of shape (k,); NaN where they do not say."""

    context_requests: Float64Array
    generation_requests: Float64Array
    context_tokens: Float64Array
    generation_tokens: Float64Array
    tokens: Float64Array

    @classmethod
    def of(cls, steps: Steps) -> _Counts:
        """Return the counts of these steps."""
        batches = steps.batch
        tokens = _numbers(batch.tokens for batch in batches)
        requests = _numbers(
            batch.context.requests + batch.generation.requests for batch in batches
        )
        knows_tokens = tokens > 0
        knows_requests = knows_tokens | (requests > 0)

        def known(is_known: BoolArray, numbers: Iterable[int]) -> Float64Array:
            return np.where(is_known, _numbers(numbers), np.nan)

        return cls(
            context_requests=known(
                knows_requests, (batch.context.requests for batch in batches)
            ),
            generation_requests=known(
                knows_requests, (batch.generation.requests for batch in batches)
            ),
            context_tokens=known(
                knows_tokens, (batch.context.tokens for batch in batches)
            ),
            generation_tokens=known(
                knows_tokens, (batch.generation.tokens for batch in batches)
            ),
            tokens=known(knows_tokens, (batch.tokens for batch in batches)),
        )


def _numbers(numbers: Iterable[int]) -> Float64Array:
    return np.fromiter(numbers, dtype=np.float64)


def _whole_numbers(values: Float64Array) -> pd.Series:
    """Return counts as whole numbers; missing where they are NaN."""
    return pd.Series(values).astype("Int64")


def phase_table(gpu_events: GpuEvents, steps: Steps) -> pd.DataFrame:
    """Return a row per phase, and `other` if GPU work lies outside of all steps.

    Columns as the table `phases`, but for those of the roofline.
    """
    rows = len(steps.labels)

    def by_phase(values: Int64Array) -> Int64Array:
        return sums(steps.phase, values, rows)

    def known_by_phase(values: Float64Array) -> Float64Array:
        """Return the sum of what is known in each phase; NaN where nothing is."""
        is_known = ~np.isnan(values)
        phase = steps.phase[is_known]
        total = np.bincount(phase, values[is_known], minlength=rows)
        count = np.bincount(phase, minlength=rows)
        return np.where(count > 0, total, np.nan)

    busy_of_steps_ns = busy_by_step(gpu_events, steps)
    phase_or_other = np.append(steps.phase, rows - 1)
    busy_ns = sums(phase_or_other, busy_of_steps_ns, rows)
    idle_ns_by_cause = _idle_ns(gpu_events, steps)
    not_recorded_ns = idle_ns_by_cause[Cause.NOT_RECORDED.code]
    idle_ns = idle_ns_by_cause.sum(axis=0) - not_recorded_ns
    recorded_ns = busy_ns + idle_ns
    counts = _Counts.of(steps)
    step_count = by_phase(np.ones(len(steps), dtype=np.int64))
    token_count = known_by_phase(counts.tokens)
    # Steps of which no GPU work was recorded have no time that their tokens can be divided by.
    has_work = busy_of_steps_ns[:-1] > 0
    timed_tokens = known_by_phase(np.where(has_work, counts.tokens, np.nan))
    columns: dict[str, object] = {
        "phase": steps.labels,
        "steps": step_count,
        "context_requests": _whole_numbers(known_by_phase(counts.context_requests)),
        "generation_requests": _whole_numbers(
            known_by_phase(counts.generation_requests)
        ),
        "context_tokens": _whole_numbers(known_by_phase(counts.context_tokens)),
        "generation_tokens": _whole_numbers(known_by_phase(counts.generation_tokens)),
        "tokens": _whole_numbers(token_count),
        "gpu_busy_ms": busy_ns / NS_PER_MS,
        "gpu_ms_per_step": _ratio(busy_ns / NS_PER_MS, step_count),
        "gpu_us_per_token": _ratio(busy_ns / NS_PER_US, timed_tokens),
        "idle_ms": idle_ns / NS_PER_MS,
        "busy_percent": percent(busy_ns, recorded_ns),
        "tokens_per_s": _ratio(timed_tokens * NS_PER_S, recorded_ns),
        "tokens_per_s_without_idle": _ratio(timed_tokens * NS_PER_S, busy_ns),
    }
    for cause, cause_ns in zip(CAUSES, idle_ns_by_cause, strict=True):
        if cause_ns.any():
            columns[f"idle_{cause.replace(' ', '_')}_ms"] = cause_ns / NS_PER_MS
    for part, share in _cpu_shares(gpu_events, steps).items():
        columns[f"{part}_percent"] = share
    columns.update(_category_columns(gpu_events, steps))
    frame = pd.DataFrame(columns)
    has_other_work = (gpu_events.counted & (steps.of_gpu == NONE)).any()
    if has_other_work:
        return frame
    return frame.iloc[:-1].copy()


def step_table(gpu_events: GpuEvents, steps: Steps) -> pd.DataFrame:
    """Return a row per step, the longest GPU time first; columns as the table `phase_steps`."""
    busy_ns = busy_by_step(gpu_events, steps)[:-1]
    gaps = classify_gaps(gpu_events, "device").gaps
    step_after_gap = steps.of_gpu[gaps.after]
    is_before_step = step_after_gap != NONE
    idle_ns = sums(
        group_index=step_after_gap[is_before_step],
        values=gaps.duration[is_before_step],
        group_count=len(steps),
    )
    is_of_step = gpu_events.counted & (steps.of_gpu != NONE)
    is_kernel_of_step = is_of_step & gpu_events.is_kernel
    counts = _Counts.of(steps)
    frame = pd.DataFrame(
        {
            "step": steps.name,
            "phase": [batch.phase for batch in steps.batch],
            "start_ms": steps.start / NS_PER_MS,
            "wall_time_ms": (steps.end - steps.start) / NS_PER_MS,
            "context_requests": _whole_numbers(counts.context_requests),
            "generation_requests": _whole_numbers(counts.generation_requests),
            "tokens": _whole_numbers(counts.tokens),
            "gpu_busy_ms": busy_ns / NS_PER_MS,
            "gpu_us_per_token": _ratio(busy_ns / NS_PER_US, counts.tokens),
            "idle_ms": idle_ns / NS_PER_MS,
            "gpu_events": np.bincount(steps.of_gpu[is_of_step], minlength=len(steps)),
            "kernels": np.bincount(
                steps.of_gpu[is_kernel_of_step], minlength=len(steps)
            ),
        }
    )
    order = np.lexsort((steps.start, -busy_ns))
    return frame.iloc[order].reset_index(drop=True)


def _idle_ns(gpu_events: GpuEvents, steps: Steps) -> Int64Array:
    """Return the idle time of devices by cause and phase, ns, (causes, phases + 1)."""
    classified = classify_gaps(gpu_events, "device")
    pieces = classified.within
    rows = len(steps.labels)
    phase_after_gap = steps.phase_of_gpu[classified.gaps.after[pieces.gap]]
    cell = pieces.cause * rows + phase_after_gap
    idle_ns = sums(
        group_index=cell,
        values=pieces.end - pieces.start,
        group_count=len(CAUSES) * rows,
    )
    return idle_ns.reshape(len(CAUSES), rows)


def _cpu_shares(gpu_events: GpuEvents, steps: Steps) -> dict[str, Float64Array]:
    """Return how much of the time from step to step the CPU is in scheduler and sampler, percent.

    A step is taken to begin when the one before it on its thread ends, since an engine schedules
    before it computes, and to end when its annotation does.
    """
    trace = gpu_events.trace
    phase_count = len(steps.labels)
    follows_step = np.diff(steps.thread, prepend=NONE) == 0
    previous_end = np.where(follows_step, np.roll(steps.end, 1), steps.start)
    begin = np.minimum(previous_end, steps.start)
    length_ns = sums(
        group_index=steps.phase, values=steps.end - begin, group_count=phase_count
    )
    cpu_rows = trace.rows_of(*HOST_KINDS)
    shares = {}
    for part, pattern in _CPU_PARTS.items():
        rows = cpu_rows[trace.named(trace.name[cpu_rows], pattern.match)]
        if len(rows):
            inside_ns = covered(
                start=trace.ts[rows],
                end=trace.end_of(rows),
                window_start=begin,
                window_end=steps.end,
            )
            shares[part] = percent(sums(steps.phase, inside_ns, phase_count), length_ns)
    return shares


def _category_columns(gpu_events: GpuEvents, steps: Steps) -> dict[str, Float64Array]:
    """Return the shares and summed durations of categories by phase; empty without categories."""
    categories = gpu_events.categories
    if categories is None:
        return {}
    labels = categories.labels
    rows = len(steps.labels)
    cell = categories.code.astype(np.int64) * rows + steps.phase_of_gpu
    counted = gpu_events.counted
    total_ns = sums(
        group_index=cell[counted],
        values=gpu_events.duration[counted],
        group_count=len(labels) * rows,
    )
    total_ns = total_ns.reshape(len(labels), rows)
    columns = {}
    for share, pattern in _SHARES.items():
        is_included = [bool(pattern.search(label)) for label in labels]
        columns[f"{share}_percent"] = percent(
            total_ns[is_included].sum(axis=0), total_ns.sum(axis=0)
        )
    longest_first = np.argsort(-total_ns.sum(axis=1), kind="stable")
    for category in longest_first.tolist():
        if total_ns[category].any():
            columns[f"{labels[category]}_time_ms"] = total_ns[category] / NS_PER_MS
    return columns


def _ratio(part: Float64Array, whole: Int64Array | Float64Array) -> Float64Array:
    """Divide one by the other; NaN where there is nothing to divide by."""
    return part / np.where(whole > 0, whole, np.nan)


class ServingContext(AnalysisContext, Protocol):
    """A trace that is being analyzed, and the steps of its serving engine."""

    def serving_steps(self, phases: Sequence[str] = ()) -> Steps:
        """Return the steps, with phases of the user's own, each `NAME=REGEX`."""


def _has_steps(context: ServingContext, options: ReportOptions) -> bool:
    """Tell whether there are steps; if no table of them was asked for, annotated ones."""
    if options.names("phases", "phase_steps", "layers", "layer_kernels"):
        return len(context.serving_steps()) > 0
    return len(find_steps(context.tree)) > 0


HAS_STEPS = Condition("the trace has steps of a serving engine", _has_steps)


def _has_layers(context: ServingContext, _options: ReportOptions) -> bool:
    return bool(layers.find_layers(context.gpu_events, context.serving_steps()))


_LAYERS = Condition("a block of kernels repeats within a step", _has_layers)


def phase_notes(context: ServingContext, phases: Sequence[str] = ()) -> Iterable[str]:
    """Yield what the reader of the phases should know, a sentence each."""
    steps = context.serving_steps(phases)
    if not len(steps):
        yield (
            "Neither annotations nor shapes identify steps; name them with --phase "
            "NAME=REGEX."
        )
        return
    if steps.note:
        yield steps.note
    gpu_events = context.gpu_events
    launched_by_steps = int(gpu_events.duration[steps.of_gpu != NONE].sum())
    share = 100.0 * launched_by_steps / max(int(gpu_events.duration.sum()), 1)
    yield (
        f"The steps launched {share:.1f} % of the GPU time; the rest is listed as "
        "`other`."
    )
    if any(batch.tokens == 0 for batch in steps.batch):
        yield (
            "Some steps do not record how many tokens they compute; sums leave them "
            "out."
        )
    yield from layers.layer_notes(gpu_events, steps)


def _of_steps(
    make_table: Callable[[GpuEvents, Steps], pd.DataFrame],
) -> Callable[..., pd.DataFrame]:
    """Return the function of a table that takes the steps of a trace."""

    def table(context: ServingContext, phases: Sequence[str] = ()) -> pd.DataFrame:
        return make_table(context.gpu_events, context.serving_steps(phases))

    return table


PHASE_STEPS = Table(
    name="phase_steps",
    shows="Each step of the serving engine, slowest first",
    columns=[
        Column("step", "the most informative annotation of the step"),
        Column("phase", "as in `phases`"),
        Column("start_ms", "since the first event of the trace"),
        Column("wall_time_ms", "duration of the annotation on the CPU"),
        Column(
            "context_requests",
            "requests in the step; empty if unknown",
            unit="requests",
        ),
        Column(
            "generation_requests",
            "requests in the step; empty if unknown",
            unit="requests",
        ),
        Column(
            "tokens", "tokens that the step computes; empty if unknown", unit="tokens"
        ),
        Column("gpu_busy_ms", "busy time of the work launched on the step's thread"),
        Column("gpu_us_per_token", "by tokens"),
        Column("idle_ms", "idle time of the devices before the GPU events of the step"),
        Column("gpu_events", "GPU events that it launched", unit="GPU events"),
        Column("kernels", "kernels among them", unit="kernels"),
    ],
    table=_of_steps(step_table),
    screen=ScreenView(
        title="Slowest steps",
        columns=[
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
    shows="The repeating block of kernels: time of each layer, and the outliers",
    columns=[
        Column("phase", "as in `phases`"),
        Column("layer", "number of the layer, from 0"),
        Column("kind", "the same for layers that run the same kernels"),
        Column("kernels", "GPU events of the layer", unit="GPU events"),
        Column(
            "steps",
            "steps used: those with the most common order of kernels",
            unit="steps",
        ),
        Column("busy_time_us", "mean over the steps"),
        Column("std_busy_time_us", "sample standard deviation, 0 for a single step"),
        Column("min_busy_time_us", "over the steps"),
        Column("max_busy_time_us", "over the steps"),
        Column(
            "span_us", "from first start to last end, mean over the steps", unit="µs"
        ),
        Column(
            "odd",
            "`time` if it differs much from other layers of its kind, `kernels` if no "
            "other layer runs the same kernels",
        ),
    ],
    table=_of_steps(layers.layer_table),
    when=[GPU_EVENTS, HAS_STEPS, _LAYERS],
)
LAYER_KERNELS = Table(
    name="layer_kernels",
    shows="GPU events of one layer, in order",
    columns=[
        Column("phase", "as in `phases`"),
        Column(
            "kind",
            "as in `layers`; kinds with a single layer only if there is no other",
        ),
        Column("layers", "number of layers of this kind", unit="layers"),
        Column("position", "position in the layer, from 0"),
        Column("kernel_name", "the GPU event"),
        Column("cpu_op", "operation that launched it, or `graph`"),
        Column("kernel_category", "when categories are on"),
        Column("avg_duration_us", "mean over the layers and steps"),
        Column("% of layer", "of the durations of the layer"),
    ],
    table=_of_steps(layers.layer_kernel_table),
    screen=ScreenView(
        title="A layer",
        columns=[
            "position",
            "avg_duration_us",
            "% of layer",
            "cpu_op",
            "kernel_name",
        ],
    ),
    when=[GPU_EVENTS, HAS_STEPS, _LAYERS],
)
