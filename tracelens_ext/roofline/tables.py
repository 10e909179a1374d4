"""The roofline, a table for each family that experts look at, and the phases of serving."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tracelens_ext.analysis.iterations.selection import Selection
from tracelens_ext.analysis.serving.phases import HAS_STEPS, phase_notes, phase_table
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import GPU_EVENTS, Condition, Table
from tracelens_ext.roofline import summary
from tracelens_ext.roofline.analysis import Roofline, roofline_table

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer

_SHAPES = Condition(
    "shapes were recorded",
    lambda analyzer, options: (
        analyzer.roofline(options.device_peaks).has_shapes
        or options.names("roofline", "families", "mfu_by_iteration")
    ),
)


def _of(make: Callable[[Roofline], pd.DataFrame]) -> Callable[..., pd.DataFrame]:
    """A table of the roofline."""

    def table(
        analyzer: TreePerfAnalyzer,
        device_peaks: str | os.PathLike[str] | None = None,
        *,
        selection: Selection | None = None,
    ) -> pd.DataFrame:
        return make(analyzer.roofline(device_peaks, selection))

    table.__doc__ = f"""{make.__doc__}

    Args:
        device_peaks: see `roofline.peaks.read_peaks`.
        selection: which GPU events are asked about, all by default.

    Raises:
        UsageError: the peaks cannot be read, or nothing is selected.
    """
    return table


def _peaks(
    analyzer: TreePerfAnalyzer, device_peaks: str | os.PathLike[str] | None = None
) -> pd.DataFrame:
    """The peaks that operations are judged by."""
    return summary.roofline_peaks(analyzer.roofline(device_peaks))


def _utilisation(
    analyzer: TreePerfAnalyzer,
    device_peaks: str | os.PathLike[str] | None = None,
    annotation: str | re.Pattern[str] | None = None,
    *,
    selection: Selection | None = None,
) -> pd.DataFrame:
    """Model FLOPs utilisation (MFU) of each whole iteration."""
    roofline = analyzer.roofline(device_peaks, selection)
    return summary.utilisation(analyzer.work, roofline, annotation)


def _family(
    family: str, analyzer: TreePerfAnalyzer, device_peaks: str | os.PathLike[str] | None = None
) -> pd.DataFrame:
    return summary.family_table(analyzer.roofline(device_peaks), family)


def _has(family: str, analyzer: TreePerfAnalyzer, options: ReportOptions) -> bool:
    return family in analyzer.roofline(options.device_peaks).families


def _notes(
    analyzer: TreePerfAnalyzer, options: ReportOptions, tables: Mapping[str, pd.DataFrame]
) -> Iterator[str]:
    if "roofline" in tables:
        roofline = analyzer.roofline(options.device_peaks)
        yield f"Roofline: {summary.modelled(roofline)}."
        yield from summary.advice(analyzer.work, roofline)


_LAST_COLUMNS = """bound: `compute`, `memory` or `link`: what limits the best case
            % of roofline [%]: the best case in percent of the GPU time
            time_lost_ms: GPU time beyond the best case, never negative
            why_slow: the reason, where names and shapes show one
            """
_FAMILY_COLUMNS = f"""
            name: the operation
            PARAMETERS: as the performance model has them; strides in elements
            GFLOPS_first: 10⁹ floating point operations of a call
            Data Moved (MB)_first [MB]: 10^6 bytes, of a call: inputs once, results once
            FLOPS/Byte_first: one by the other
            TB/s, TFLOPS/s: of all calls, by their GPU time
            Compute Spec: engine and data type, such as `matrix_bf16`
            Input Dims_first, Input type_first, Input Strides_first, Concrete Inputs_first: tuples
                as text
            Kernel Time (µs)_mean, Kernel Time (µs)_sum: GPU time of a call, and of all calls
            name_count [operations]: calls
            {_LAST_COLUMNS}"""

TABLES = [
    Table(
        name="roofline",
        shows="Each operation against what the GPU can do, and the time lost",
        columns=f"""
            op_name: the *launcher*, as in `ops_unique_args`
            family: of the performance model
            Input Dims, Input type, Input Strides, Concrete Inputs: tuples as text
            count [operations]: calls
            gpu_time_ms: busy time of what all calls launched
            flops [FLOP]: floating point operations of a call
            bytes [bytes]: of a call: what crosses the device's memory at the least
            engine: `matrix`, `vector`, or `link` for copies between host and device
            data_type: whose peak it is judged by
            model: the performance model
            why_no_model: why there is none
            tflops_per_s, tb_per_s: of all calls, by their GPU time
            roofline_time_ms: the best case of all calls
            {_LAST_COLUMNS}""",
        table=_of(roofline_table),
        when=[GPU_EVENTS, _SHAPES],
        notes=_notes,
        charts=[
            Chart("Roofline", "roofline", "op_name", "time_lost_ms", kind="roofline", on="page")
        ],
    ),
    *(
        Table(
            name=family,
            shows=f"Operations of the family {family}, with their parameters",
            columns=_FAMILY_COLUMNS.replace(
                "PARAMETERS", ", ".join(f"param: {key}" for key in parameters.split())
            ),
            table=partial(_family, family),
            when=[GPU_EVENTS, Condition("an operation is of that family", partial(_has, family))],
            method=f'get_df_performance_model("{family}")',
        )
        for family, parameters in summary.FAMILIES.items()
    ),
]


def _phases(
    analyzer: TreePerfAnalyzer,
    phases: Sequence[str] = (),
    device_peaks: str | os.PathLike[str] | None = None,
) -> pd.DataFrame:
    """Prefill, decode …: tokens, GPU time and idle time.

    Args:
        analyzer: of the trace.
        phases: phases of your own, each `NAME=REGEX`, as `--phase` takes them.
        device_peaks: see `roofline.peaks.read_peaks`.
    """
    steps = analyzer.serving_steps(phases)
    frame = phase_table(analyzer.work, steps)
    roofline = analyzer.roofline(device_peaks)
    return summary.with_roofline(frame, roofline, analyzer.launchers, steps)


def _by_category(table: pd.DataFrame) -> pd.DataFrame:
    """GPU time by phase and category; without categories by phase alone."""
    times = [
        c for c in map(str, table.columns) if c.endswith("_time_ms") and c != "roofline_time_ms"
    ]
    if not times:
        return table.assign(category="")
    long = table[["phase", *times]].melt(id_vars=["phase"], value_name="gpu_busy_ms")
    long["category"] = long["variable"].str.removesuffix("_time_ms")
    return long


PHASES = [
    Table(
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
        table=_phases,
        when=[GPU_EVENTS, HAS_STEPS],
        notes=lambda analyzer, _, tables: phase_notes(analyzer) if "phases" in tables else (),
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
    )
]
_more = partial(Table, when=[GPU_EVENTS, _SHAPES], asked_by="tables")
MORE = [
    _more(
        name="roofline_peaks",
        shows="What the GPU can do at best, of the types in use",
        columns="""
            what: engine and data type, or `memory`
            peak [10¹²/s]: operations, or bytes
            """,
        table=_peaks,
        on_every_page=True,
    ),
    _more(
        name="families",
        shows="Families of operations against what the GPU can do",
        columns="""
            family: of the performance model; `(no model)`
            gpu_time_ms: busy time of what all calls launched
            gpu_time_%: of all operations
            tflops_per_s, tb_per_s: of all calls, by their GPU time
            % of roofline [%]: the best case in percent of the GPU time, of what has one
            time_lost_ms: GPU time beyond the best case
            """,
        table=_of(summary.family_summary),
        screen="By family",
    ),
    _more(
        name="mfu_by_iteration",
        shows="Model FLOPs utilisation of each whole iteration; of the whole trace without any",
        columns="""
            iteration: its name
            wall_time_ms: of the iteration
            tflop [TFLOP]: of the products, convolutions and attention
            tflops_per_s: of those, by the wall time
            mfu_%: the time they would take at the peak of their type, by the wall time
            """,
        table=_utilisation,
        screen="Model FLOPs utilisation (products, convolutions, attention; by wall time)",
    ),
]
