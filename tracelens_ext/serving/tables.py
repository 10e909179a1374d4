"""The sheets of serving engines: `phases`, `phase_steps`, `layers` and `layer_kernels`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.lazy import pd
from tracelens_ext.serving import layers
from tracelens_ext.serving.phases import step_table
from tracelens_ext.serving.steps import find_steps
from tracelens_ext.tables.table import GPU_EVENTS, Condition, Table
from tracelens_ext.trace import NONE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.serving.steps import Steps
    from tracelens_ext.tables.options import ReportOptions
    from tracelens_ext.work.gpu_work import GpuWork


def _has_steps(analyzer: TreePerfAnalyzer, options: ReportOptions) -> bool:
    """Whether there are steps; if nobody asked for them, annotated ones."""
    asked = options.names("phases", "phase_steps", "layers", "layer_kernels")
    return len(analyzer.serving_steps() if asked else find_steps(analyzer.tree)) > 0


def _has_layers(analyzer: TreePerfAnalyzer, options: ReportOptions) -> bool:
    return _has_steps(analyzer, options) and bool(
        layers.find_layers(analyzer.work, analyzer.serving_steps())
    )


HAS_STEPS = Condition("annotations of a serving engine name its steps", _has_steps)
_LAYERS = Condition("a block of kernels repeats within a step", _has_layers)


def phase_notes(analyzer: TreePerfAnalyzer, phases: Sequence[str] = ()) -> Iterable[str]:
    """What the reader of the phases should know, a sentence each."""
    steps = analyzer.serving_steps(phases)
    if not len(steps):
        yield "Neither annotations nor shapes show a step; --phase NAME=REGEX names them."
        return
    if steps.note:
        yield steps.note
    work = analyzer.work
    mine = int(work.duration[steps.of_gpu != NONE].sum())
    share = 100.0 * mine / max(int(work.duration.sum()), 1)
    yield f"The steps launched {share:.1f} % of the GPU time; the rest is `other`."
    if any(batch.tokens == 0 for batch in steps.batch):
        yield "The annotations of some steps say nothing of tokens; those count as none."
    yield from layers.layer_notes(analyzer.work, steps)


def _of(make: Callable[[GpuWork, Steps], pd.DataFrame]) -> Callable[..., pd.DataFrame]:
    """A table of the steps."""

    def table(analyzer: TreePerfAnalyzer, phases: Sequence[str] = ()) -> pd.DataFrame:
        return make(analyzer.work, analyzer.serving_steps(phases))

    return table


TABLES = [
    Table(
        name="phase_steps",
        shows="Each step of the serving engine, the slowest first",
        columns="""
            step: the annotation that says most of it
            phase: as in `phases`
            start_ms: since the trace's first event
            wall_time_ms: of the annotation, on the host
            context_requests, generation_requests [requests]: its requests
            tokens [tokens]: those that they compute
            gpu_busy_ms: busy time of what it launched on its thread
            gpu_us_per_token: by tokens
            idle_ms: of the devices, before its GPU events
            gpu_events [GPU events]: that it launched
            kernels [kernels]: those of them that are kernels
            """,
        table=_of(step_table),
        screen=(
            "Slowest steps: step, phase, start_ms, generation_requests, tokens, gpu_busy_ms, "
            "gpu_us_per_token, idle_ms, kernels"
        ),
        when=[GPU_EVENTS, HAS_STEPS],
    ),
    Table(
        name="layers",
        shows="The repeating block of kernels: time of each layer, and which are odd",
        columns="""
            phase: as in `phases`
            layer: its number, from 0 on
            kind: equal for layers that run the same kernels
            kernels [GPU events]: of the layer
            steps [steps]: those looked at: with the most common order of kernels
            busy_time_us: mean over the steps
            std_busy_time_us: standard deviation of a sample, 0 for a single step
            min_busy_time_us, max_busy_time_us: over the steps
            span_us [µs]: first start to last end, mean over the steps
            odd: `time` far from other layers of its kind, `kernels` if no other runs the same
            """,
        table=_of(layers.layer_table),
        when=[GPU_EVENTS, HAS_STEPS, _LAYERS],
    ),
    Table(
        name="layer_kernels",
        shows="The GPU events of one layer, in order",
        columns="""
            phase: as in `phases`
            kind: as in `layers`; kinds of a single layer only where there is no other
            layers [layers]: of this kind
            position: in the layer, from 0 on
            kernel_name: the GPU event
            cpu_op: its operation, or `graph`
            kernel_category: when categories are on
            avg_duration_us: mean over the layers and steps
            % of layer: of the durations of the layer
            """,
        table=_of(layers.layer_kernel_table),
        screen="A layer: position, avg_duration_us, % of layer, cpu_op, kernel_name",
        when=[GPU_EVENTS, HAS_STEPS, _LAYERS],
    ),
]
