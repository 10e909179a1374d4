"""The sheets of serving engines: `phases`, `phase_steps`, `layers` and `layer_kernels`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracelens_ext.lazy import pd
from tracelens_ext.report.charts import Chart
from tracelens_ext.sheets.sheet import GPU_EVENTS, Condition, Sheet
from tracelens_ext.trace import NONE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.sheets.options import ReportOptions

_CATEGORY_TIME: Final = "_time_ms"


def _has_steps(analyzer: TreePerfAnalyzer, _: ReportOptions) -> bool:
    from tracelens_ext.serving.steps import find_steps

    return len(find_steps(analyzer.tree)) > 0


def _has_layers(analyzer: TreePerfAnalyzer, options: ReportOptions) -> bool:
    from tracelens_ext.serving.layers import find_layers

    return _has_steps(analyzer, options) and bool(
        find_layers(analyzer.work, analyzer.serving_steps())
    )


_STEPS = Condition("annotations of a serving engine name its steps", _has_steps)
_LAYERS = Condition("a block of kernels repeats within a step", _has_layers)


def phase_notes(analyzer: TreePerfAnalyzer, phases: Sequence[str] = ()) -> Iterable[str]:
    """What the reader of the phases should know, a sentence each."""
    from tracelens_ext.serving.layers import layer_notes

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
    yield from layer_notes(analyzer.work, steps)


def _notes(
    analyzer: TreePerfAnalyzer, _: ReportOptions, tables: Mapping[str, pd.DataFrame]
) -> Iterable[str]:
    return phase_notes(analyzer) if "phases" in tables else ()


def _by_category(table: pd.DataFrame) -> pd.DataFrame:
    """GPU time by phase and category; without categories by phase alone."""
    times = [
        c for c in map(str, table.columns) if c.endswith(_CATEGORY_TIME) and c != "roofline_time_ms"
    ]
    if not times:
        return table.assign(category="")
    long = table[["phase", *times]].melt(id_vars=["phase"], value_name="gpu_busy_ms")
    long["category"] = long["variable"].str.removesuffix(_CATEGORY_TIME)
    return long


SHEETS = [
    Sheet(
        name="phases",
        shows="Prefill, decode and mixed steps: tokens, GPU time, idle time",
        columns="""
            phase: `prefill`, `decode`, `mixed`, `diffusion`; `other` is outside of all steps
            steps [steps]: annotations; those within one another are one
            context_requests, generation_requests [requests]: of all steps: whose prompt is read,
                and which generate
            context_tokens, generation_tokens, tokens [tokens]: those that they compute
            gpu_busy_ms: busy time of what each step launched on its thread, summed
            gpu_ms_per_step: of an average step
            gpu_us_per_token: GPU time by tokens
            idle_ms: of the devices, before GPU events of the phase
            busy_%: busy time in percent of busy and idle time
            tokens_per_s: by busy and idle time
            tokens_per_s_without_idle: by busy time: what the GPU could reach if it never idled
            modelled_ms: GPU time of operations with a best case
            roofline_time_ms: their best case
            % of roofline [%]: the best case in percent of that GPU time
            idle_synchronisation_ms, idle_host_ms, idle_dependency_ms, idle_launch_overhead_ms,
                idle_unknown_ms: idle time by cause, as in `gap_summary`
            scheduler_%, sampler_%: how much of the time from step to step the host spent there,
                where annotations or frames name it
            attention_%, gemm_%: when categories are on: share in the summed durations
            CATEGORY_time_ms: when categories are on: summed durations
            """,
        table=lambda analyzer, options: analyzer.get_df_phases(device_peaks=options.device_peaks),
        when=[GPU_EVENTS, _STEPS],
        options=["device_peaks"],
        notes=_notes,
        method="get_df_phases()",
        charts=[
            Chart(
                "GPU time by phase",
                "phases",
                "phase",
                "gpu_busy_ms",
                kind="stacked",
                series_column="category",
                prepare=_by_category,
                on="page",
            )
        ],
    ),
    Sheet(
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
        table=lambda analyzer, _: analyzer.get_df_phase_steps(),
        when=[GPU_EVENTS, _STEPS],
        method="get_df_phase_steps()",
    ),
    Sheet(
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
        table=lambda analyzer, _: analyzer.get_df_layers(),
        when=[GPU_EVENTS, _STEPS, _LAYERS],
        method="get_df_layers()",
    ),
    Sheet(
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
        table=lambda analyzer, _: analyzer.get_df_layer_kernels(),
        when=[GPU_EVENTS, _STEPS, _LAYERS],
        method="get_df_layer_kernels()",
    ),
]
