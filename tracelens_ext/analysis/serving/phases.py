"""The tables of serving: tokens, GPU time and idle time of each phase; steps and layers.

A GPU event belongs to the step that launched it. Idle time of a device belongs to the phase of the
GPU event that ends it. So the busy and idle times of all phases add up to the time of the devices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from tracelens_ext.analysis.context import AnalysisContext
from tracelens_ext.analysis.idle_time.causes import CAUSES, Cause
from tracelens_ext.analysis.idle_time.classification import classify_gaps
from tracelens_ext.analysis.serving import layers
from tracelens_ext.analysis.serving.steps import Steps, find_steps
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.conditions import GPU_EVENTS, Condition
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import Table
from tracelens_ext.report.tables.views import ScreenView
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
#: Part of an engine → names of its annotations, operations and Python frames on the CPU.
_CPU_PARTS: Final = {
    "scheduler": re.compile(
        r"(?:## )?schedul(?:e|er|ing)\b(?!\.(?:run_batch|event_loop))|scheduler_step"
        r"|.*(?:get_next_batch|: _?schedule$)"
    ),
    "sampler": re.compile(
        r"(?:## )?sampl(?:e|er|ing)\b|.*(?:: _?sample(?:_tokens)?$|: Sampler)"
    ),
}
#: Column prefix → kernel categories whose share of the GPU time it shows. A category map may name
#: its categories differently, so they are found by pattern.
_CATEGORY_SHARES: Final = {
    "attention": re.compile(r"att(?:entio)?n", re.IGNORECASE),
    "gemm": re.compile(r"gemm", re.IGNORECASE),
}


def busy_by_step(gpu_events: GpuEvents, steps: Steps) -> Int64Array:
    """Return the GPU busy time of each step, and of the work outside of steps, ns, (k + 1,)."""
    outside_steps = len(steps)
    owner = np.where(steps.of_gpu == NONE, outside_steps, steps.of_gpu)
    owner = np.where(gpu_events.counted, owner, NONE)
    return BusyTime(start=gpu_events.start, end=gpu_events.end).by_owner(
        owner, len(steps) + 1
    )


@dataclass(frozen=True, eq=False)
class _Counts:
    """The counts in the annotations of k steps, each of shape (k,); NaN for unknown counts."""

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
        has_tokens = tokens > 0
        has_requests = has_tokens | (requests > 0)

        def nan_unless(is_known: BoolArray, numbers: Iterable[int]) -> Float64Array:
            return np.where(is_known, _numbers(numbers), np.nan)

        return cls(
            context_requests=nan_unless(
                has_requests, (batch.context.requests for batch in batches)
            ),
            generation_requests=nan_unless(
                has_requests, (batch.generation.requests for batch in batches)
            ),
            context_tokens=nan_unless(
                has_tokens, (batch.context.tokens for batch in batches)
            ),
            generation_tokens=nan_unless(
                has_tokens, (batch.generation.tokens for batch in batches)
            ),
            tokens=nan_unless(has_tokens, (batch.tokens for batch in batches)),
        )


def _numbers(numbers: Iterable[int]) -> Float64Array:
    return np.fromiter(numbers, dtype=np.float64)


def _whole_numbers(values: Float64Array) -> pd.Series:
    """Return counts as a nullable integer column; NaN becomes missing."""
    return pd.Series(values).astype("Int64")


def phase_table(gpu_events: GpuEvents, steps: Steps) -> pd.DataFrame:
    """Return a row per phase, and a row `other` if there is GPU work outside of all steps.

    The table has the columns of `phases` except those of the roofline.
    """
    label_count = len(steps.labels)

    def sum_by_phase(values: Float64Array) -> Float64Array:
        """Return the sum of the known values of each phase; NaN for a phase without any."""
        is_known = ~np.isnan(values)
        phase = steps.phase[is_known]
        total = np.bincount(phase, values[is_known], minlength=label_count)
        known_count = np.bincount(phase, minlength=label_count)
        return np.where(known_count > 0, total, np.nan)

    busy_of_steps_ns = busy_by_step(gpu_events, steps)
    phase_or_other = np.append(steps.phase, label_count - 1)
    busy_ns = sums(phase_or_other, busy_of_steps_ns, label_count)
    idle_ns_by_cause = _idle_ns(gpu_events, steps)
    not_recorded_ns = idle_ns_by_cause[Cause.NOT_RECORDED.code]
    idle_ns = idle_ns_by_cause.sum(axis=0) - not_recorded_ns
    recorded_ns = busy_ns + idle_ns
    counts = _Counts.of(steps)
    step_count = np.bincount(steps.phase, minlength=label_count)
    # Rates leave out the tokens of steps without recorded GPU work, which have no time either.
    has_work = busy_of_steps_ns[:-1] > 0
    timed_tokens = sum_by_phase(np.where(has_work, counts.tokens, np.nan))
    columns: dict[str, object] = {
        "phase": steps.labels,
        "steps": step_count,
        "context_requests": _whole_numbers(sum_by_phase(counts.context_requests)),
        "generation_requests": _whole_numbers(sum_by_phase(counts.generation_requests)),
        "context_tokens": _whole_numbers(sum_by_phase(counts.context_tokens)),
        "generation_tokens": _whole_numbers(sum_by_phase(counts.generation_tokens)),
        "tokens": _whole_numbers(sum_by_phase(counts.tokens)),
        "gpu_busy_ms": busy_ns / NS_PER_MS,
        "gpu_ms_per_step": _ratio(busy_ns / NS_PER_MS, step_count),
        "gpu_us_per_token": _ratio(busy_ns / NS_PER_US, timed_tokens),
        "idle_ms": idle_ns / NS_PER_MS,
        "busy_percent": percent(busy_ns, recorded_ns),
        "tokens_per_s": _ratio(timed_tokens * NS_PER_S, recorded_ns),
        "tokens_per_s_without_idle": _ratio(timed_tokens * NS_PER_S, busy_ns),
    }
    columns.update(_idle_columns(idle_ns_by_cause))
    for part, share in _cpu_shares(gpu_events, steps).items():
        columns[f"{part}_percent"] = share
    columns.update(_category_columns(gpu_events, steps))
    frame = pd.DataFrame(columns)
    has_other_work = (gpu_events.counted & (steps.of_gpu == NONE)).any()
    if has_other_work:
        return frame
    return frame.iloc[:-1].copy()


def step_table(gpu_events: GpuEvents, steps: Steps) -> pd.DataFrame:
    """Return a row per step, longest GPU time first, with the columns of `phase_steps`."""
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
    label_count = len(steps.labels)
    phase_after_gap = steps.phase_of_gpu[classified.gaps.after[pieces.gap]]
    # One sum per pair of a cause and a phase makes a table (causes, phases + 1).
    pair = pieces.cause * label_count + phase_after_gap
    idle_ns = sums(
        group_index=pair,
        values=pieces.end - pieces.start,
        group_count=len(CAUSES) * label_count,
    )
    return idle_ns.reshape(len(CAUSES), label_count)


def _idle_columns(idle_ns_by_cause: Int64Array) -> dict[str, Float64Array]:
    """Return a column with the idle time of each phase for each cause that occurs, ms.

    Args:
        idle_ns_by_cause: ns, (causes, phases + 1).
    """
    columns = {}
    for cause, cause_ns in zip(CAUSES, idle_ns_by_cause, strict=True):
        if cause_ns.any():
            columns[f"idle_{cause.replace(' ', '_')}_ms"] = cause_ns / NS_PER_MS
    return columns


def _cpu_shares(gpu_events: GpuEvents, steps: Steps) -> dict[str, Float64Array]:
    """Return the percentage of each phase's time that the CPU spends in scheduler and sampler.

    The time of a step lasts from the end of the previous step on its thread to the end of its own
    annotation, because an engine schedules a step before it computes the step.
    """
    trace = gpu_events.trace
    label_count = len(steps.labels)
    follows_step = np.diff(steps.thread, prepend=NONE) == 0
    previous_end = np.where(follows_step, np.roll(steps.end, 1), steps.start)
    begin = np.minimum(previous_end, steps.start)
    length_ns = sums(
        group_index=steps.phase, values=steps.end - begin, group_count=label_count
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
            shares[part] = percent(sums(steps.phase, inside_ns, label_count), length_ns)
    return shares


def _category_columns(gpu_events: GpuEvents, steps: Steps) -> dict[str, Float64Array]:
    """Return the shares and summed durations of categories by phase; empty without categories."""
    categories = gpu_events.categories
    if categories is None:
        return {}
    labels = categories.labels
    label_count = len(steps.labels)
    # One sum per pair of a category and a phase makes a table (categories, phases + 1).
    pair = categories.code.astype(np.int64) * label_count + steps.phase_of_gpu
    counted = gpu_events.counted
    total_ns = sums(
        group_index=pair[counted],
        values=gpu_events.duration[counted],
        group_count=len(labels) * label_count,
    )
    total_ns = total_ns.reshape(len(labels), label_count)
    columns = {}
    for share, pattern in _CATEGORY_SHARES.items():
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
    """Return `part` divided by `whole`, NaN where `whole` is not positive."""
    return part / np.where(whole > 0, whole, np.nan)


class ServingContext(AnalysisContext, Protocol):
    """A trace that is being analyzed, and the steps of its serving engine."""

    def serving_steps(self, phases: Sequence[str] = ()) -> Steps:
        """Return the steps; `phases` are the user's phases, each `NAME=REGEX`."""


def _has_steps(context: ServingContext, options: ReportOptions) -> bool:
    """Tell whether the trace has steps; inferred steps count only if their tables were chosen."""
    if options.names_any_of("phases", "phase_steps", "layers", "layer_kernels"):
        return len(context.serving_steps()) > 0
    return len(find_steps(context.tree)) > 0


HAS_STEPS = Condition("the trace has steps of a serving engine", _has_steps)


def _has_layers(context: ServingContext, _options: ReportOptions) -> bool:
    return bool(layers.find_layers(context.gpu_events, context.serving_steps()))


_LAYERS = Condition("a block of kernels repeats within a step", _has_layers)


def phase_notes(context: ServingContext, phases: Sequence[str] = ()) -> Iterable[str]:
    """Yield notes on the table of phases: how steps were found, and what the sums leave out."""
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
    """Return a function that makes a table from a context and the user's phases."""

    def table(context: ServingContext, phases: Sequence[str] = ()) -> pd.DataFrame:
        return make_table(context.gpu_events, context.serving_steps(phases))

    return table


_PHASE_OF_STEPS = Column("phase", "phase of the steps, as in `phases`")

PHASE_STEPS = Table(
    name="phase_steps",
    description="Each step of the serving engine, longest GPU time first",
    columns=[
        Column("step", "the most informative annotation of the step"),
        Column("phase", "phase of the step, as in `phases`"),
        Column("start_ms", "start of the step, since the first event of the trace"),
        Column("wall_time_ms", "duration of the annotation on the CPU"),
        Column(
            "context_requests",
            "number of requests whose prompt the step reads; empty if unknown",
            unit="requests",
        ),
        Column(
            "generation_requests",
            "number of requests for which the step generates tokens; empty if unknown",
            unit="requests",
        ),
        Column(
            "tokens",
            "number of tokens that the step computes; empty if unknown",
            unit="tokens",
        ),
        Column(
            "gpu_busy_ms",
            "busy time of the GPU events that were launched on the thread of the step",
        ),
        Column("gpu_us_per_token", "`gpu_busy_ms` divided by `tokens`, in µs"),
        Column(
            "idle_ms", "idle time of the devices directly before GPU events of the step"
        ),
        Column("gpu_events", "number of GPU events of the step", unit="GPU events"),
        Column("kernels", "number of kernels among these GPU events", unit="kernels"),
    ],
    build=_of_steps(step_table),
    screen=ScreenView(
        title="Steps with the most GPU time",
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
    requires=[GPU_EVENTS, HAS_STEPS],
)
LAYERS = Table(
    name="layers",
    description="The repeating block of kernels: times of each layer, and the outliers",
    columns=[
        _PHASE_OF_STEPS,
        Column("layer", "number of the layer, from 0"),
        Column(
            "kind",
            "number of the kind of layer; layers of one kind run the same kernels",
        ),
        Column("kernels", "number of GPU events of the layer", unit="GPU events"),
        Column(
            "steps",
            "number of steps that the times are from: those with the most "
            "common order of kernels",
            unit="steps",
        ),
        Column("busy_time_us", "mean busy time of the layer over the steps"),
        Column(
            "std_busy_time_us",
            "sample standard deviation of the busy time; 0 for a single step",
        ),
        Column("min_busy_time_us", "shortest busy time of the layer"),
        Column("max_busy_time_us", "longest busy time of the layer"),
        Column(
            "span_us",
            "mean time from the first start to the last end of the GPU events "
            "of the layer",
            unit="µs",
        ),
        Column(
            "odd",
            "`time` if the busy time differs much from that of other layers "
            "of the kind, `kernels` if no other layer runs the same kernels; "
            "else empty",
        ),
    ],
    build=_of_steps(layers.layer_table),
    requires=[GPU_EVENTS, HAS_STEPS, _LAYERS],
)
LAYER_KERNELS = Table(
    name="layer_kernels",
    description="GPU events of one layer of each kind, in order",
    columns=[
        _PHASE_OF_STEPS,
        Column(
            "kind",
            "kind of layer, as in `layers`; kinds with a single layer are "
            "left out unless all kinds have only one",
        ),
        Column("layers", "number of layers of this kind", unit="layers"),
        Column("position", "position of the GPU event in the layer, from 0"),
        Column("kernel_name", "full name of the GPU event"),
        Column(
            "cpu_op",
            "operation that launched the GPU event, as in `cpu_op` of "
            "`kernels_by_category`",
        ),
        Column("kernel_category", "category of the kernel, when categories are on"),
        Column(
            "avg_duration_us", "mean duration over the layers of the kind and the steps"
        ),
        Column(
            "% of layer", "share of the mean durations of all GPU events of the layer"
        ),
    ],
    build=_of_steps(layers.layer_kernel_table),
    screen=ScreenView(
        title="GPU events of one layer",
        columns=[
            "position",
            "avg_duration_us",
            "% of layer",
            "cpu_op",
            "kernel_name",
        ],
    ),
    requires=[GPU_EVENTS, HAS_STEPS, _LAYERS],
)
