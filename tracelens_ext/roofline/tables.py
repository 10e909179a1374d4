"""Tables of the roofline: all operations, each family, peaks, iterations, phases of serving."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

from tracelens_ext.analysis.iterations.selection import EventFilter
from tracelens_ext.analysis.operations.launchers import Launchers
from tracelens_ext.analysis.serving.phases import (
    HAS_STEPS,
    ServingContext,
    phase_notes,
    phase_table,
)
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.conditions import GPU_EVENTS, Condition
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import Table, Tables
from tracelens_ext.report.tables.views import ScreenView
from tracelens_ext.roofline import summary
from tracelens_ext.roofline.analysis import Roofline, roofline_table


class RooflineContext(ServingContext, Protocol):
    """A trace that is being analyzed, with its serving steps and its roofline."""

    @property
    def launchers(self) -> Launchers:
        """The operations that launched GPU work."""

    def roofline(
        self,
        device_peaks: str | os.PathLike[str] | None = None,
        selection: EventFilter | None = None,
    ) -> Roofline:
        """Return the operations and their best case."""


def _has_shapes(context: RooflineContext, options: ReportOptions) -> bool:
    """Return whether shapes were recorded, or a table that needs them was requested by name."""
    if context.roofline(options.device_peaks).has_shapes:
        return True
    return options.names_any_of("roofline", "families", "mfu_by_iteration")


_SHAPES = Condition("shapes were recorded", _has_shapes)


def _table_of_roofline(
    make: Callable[[Roofline], pd.DataFrame],
) -> Callable[..., pd.DataFrame]:
    """Return a function that makes a table from the roofline of a context."""

    def table(
        context: RooflineContext,
        device_peaks: str | os.PathLike[str] | None = None,
        *,
        selection: EventFilter | None = None,
    ) -> pd.DataFrame:
        return make(context.roofline(device_peaks, selection))

    table.__doc__ = f"""{make.__doc__}

    Args:
        device_peaks: see `roofline.peaks.read_peaks`.
        selection: which GPU events are asked about, all by default.

    Raises:
        UsageError: the peaks cannot be read, or nothing is selected.
    """
    return table


def _peaks(
    context: RooflineContext, device_peaks: str | os.PathLike[str] | None = None
) -> pd.DataFrame:
    """The peaks that operations are judged by."""
    return summary.roofline_peaks(context.roofline(device_peaks))


def _utilisation(
    context: RooflineContext,
    device_peaks: str | os.PathLike[str] | None = None,
    annotation: str | re.Pattern[str] | None = None,
    *,
    selection: EventFilter | None = None,
) -> pd.DataFrame:
    """Model FLOPs utilization (MFU) of each whole iteration."""
    roofline = context.roofline(device_peaks, selection)
    return summary.utilisation(context.gpu_events, roofline, annotation)


def _family(
    family: str,
    context: RooflineContext,
    device_peaks: str | os.PathLike[str] | None = None,
) -> pd.DataFrame:
    return summary.family_table(context.roofline(device_peaks), family)


def _has_family(family: str, context: RooflineContext, options: ReportOptions) -> bool:
    """Return whether an operation of a family has a performance model."""
    return family in context.roofline(options.device_peaks).families


def _notes(
    context: RooflineContext, options: ReportOptions, tables: Tables
) -> Iterator[str]:
    if "roofline" in tables:
        roofline = context.roofline(options.device_peaks)
        yield f"Roofline: {summary.modelled(roofline)}."
        yield from summary.advice(context.gpu_events, roofline)


_BOUND = Column("bound", "`compute`, `memory` or `link`: what limits the roofline time")
_SHARE_OF_ROOFLINE = Column(
    "% of roofline", "roofline time as a percentage of the GPU time", unit="%"
)
_TIME_LOST = Column("time_lost_ms", "GPU time beyond the roofline time, never negative")
_DEVICE_MODEL = Column(
    "device_model",
    "the GPU that ran it; only if GPUs of several models did the work",
)
_WHY_SLOW = Column("why_slow", "likely reason, if names and shapes show one")
_PARAMETER = "parameters of the performance model; strides in elements"
#: The columns that follow the parameters in the table of a family.
_FAMILY_MEASUREMENTS = [
    Column("GFLOPS_first", "10⁹ floating-point operations per call"),
    Column(
        "Data Moved (MB)_first",
        "10⁶ bytes per call: each input once, each result once",
        unit="MB",
    ),
    Column("FLOPS/Byte_first", "FLOPs divided by bytes"),
    Column("TB/s", "of all calls, by GPU time"),
    Column("TFLOPS/s", "of all calls, by GPU time"),
    Column("Compute Spec", "engine and data type, such as `matrix_bf16`"),
    Column("Input Dims_first", "tuples as text"),
    Column("Input type_first", "tuples as text"),
    Column("Input Strides_first", "tuples as text"),
    Column("Concrete Inputs_first", "tuples as text"),
    Column("Kernel Time (µs)_mean", "GPU time of a call, and of all calls"),
    Column("Kernel Time (µs)_sum", "GPU time of a call, and of all calls"),
    Column("name_count", "calls", unit="operations"),
    _BOUND,
    _SHARE_OF_ROOFLINE,
    _TIME_LOST,
    _WHY_SLOW,
    _DEVICE_MODEL,
]


def _family_columns(parameters: tuple[str, ...]) -> list[Column]:
    """Return the columns of the table of a family, given the names of its parameters."""
    columns = [Column("name", "the operation")]
    columns += [Column(f"param: {name}", _PARAMETER) for name in parameters]
    columns += _FAMILY_MEASUREMENTS
    return columns


ROOFLINE = Table(
    name="roofline",
    description="Each operation compared with the hardware limits, and the time lost",
    columns=[
        Column("op_name", "the *launcher*, as in `ops_unique_args`"),
        Column("family", "family of the performance model"),
        Column("Input Dims", "tuples as text"),
        Column("Input type", "tuples as text"),
        Column("Input Strides", "tuples as text"),
        Column("Concrete Inputs", "tuples as text"),
        Column("count", "calls", unit="operations"),
        Column("gpu_time_ms", "busy time of the GPU events that all calls launched"),
        Column("flops", "floating-point operations per call", unit="FLOP"),
        Column(
            "bytes",
            "bytes per call that cross the device memory at least",
            unit="bytes",
        ),
        Column(
            "engine", "`matrix`, `vector`, or `link` for copies between CPU and device"
        ),
        Column("data_type", "data type whose peak is used"),
        Column("model", "performance model"),
        Column("why_no_model", "why there is no performance model"),
        Column("tflops_per_s", "of all calls, by GPU time"),
        Column("tb_per_s", "of all calls, by GPU time"),
        Column("roofline_time_ms", "roofline time of all calls"),
        _BOUND,
        _SHARE_OF_ROOFLINE,
        _TIME_LOST,
        _WHY_SLOW,
        _DEVICE_MODEL,
    ],
    build=_table_of_roofline(roofline_table),
    options=["device_peaks"],
    requires=[GPU_EVENTS, _SHAPES],
    notes=_notes,
    charts=[
        Chart(
            title="Roofline",
            sheet="roofline",
            label_column="op_name",
            value_column="time_lost_ms",
            kind="roofline",
            on="page",
        )
    ],
)


def _family_table(family: str, parameters: tuple[str, ...]) -> Table:
    """Declare the table of a family of operations."""
    return Table(
        name=family,
        description=f"Operations of the family {family}, with their parameters",
        columns=_family_columns(parameters),
        build=partial(_family, family),
        options=["device_peaks"],
        requires=[
            GPU_EVENTS,
            Condition(
                "an operation belongs to that family", partial(_has_family, family)
            ),
        ],
        analyzer_call=f'get_df_performance_model("{family}")',
    )


FAMILY_TABLES = [
    _family_table(family, parameters) for family, parameters in summary.FAMILIES.items()
]


def _phases(
    context: RooflineContext,
    phases: Sequence[str] = (),
    device_peaks: str | os.PathLike[str] | None = None,
) -> pd.DataFrame:
    """Prefill, decode …: tokens, GPU time and idle time.

    Args:
        context: of the trace.
        phases: phases of your own, each `NAME=REGEX`, as `--phase` takes them.
        device_peaks: see `roofline.peaks.read_peaks`.
    """
    steps = context.serving_steps(phases)
    frame = phase_table(context.gpu_events, steps)
    roofline = context.roofline(device_peaks)
    return summary.with_roofline(
        frame=frame, roofline=roofline, launchers=context.launchers, steps=steps
    )


def _by_category(table: pd.DataFrame) -> pd.DataFrame:
    """GPU time by phase and category; only by phase if the table has no categories.

    A column for each category, such as `gemm_time_ms`, becomes a row for each.
    """
    category_columns = [
        name
        for name in map(str, table.columns)
        if name.endswith("_time_ms") and name != "roofline_time_ms"
    ]
    if not category_columns:
        return table.assign(category="")
    phase_and_categories = table[["phase"] + category_columns]
    rows = phase_and_categories.melt(id_vars=["phase"], value_name="gpu_busy_ms")
    rows["category"] = rows["variable"].str.removesuffix("_time_ms")
    return rows


def _phase_notes(
    context: RooflineContext, _options: ReportOptions, tables: Tables
) -> Iterable[str]:
    if "phases" not in tables:
        return ()
    return phase_notes(context)


PHASES = Table(
    name="phases",
    description="Prefill, decode and mixed steps: tokens, GPU time, idle time",
    columns=[
        Column(
            "phase",
            "`prefill`, `decode`, `mixed`, `diffusion`; `other` is outside of all "
            "steps",
        ),
        Column("steps", "annotations; nested ones count once", unit="steps"),
        Column(
            "context_requests",
            "requests of all steps: those whose prompt is read, and those that "
            "generate",
            unit="requests",
        ),
        Column(
            "generation_requests",
            "requests of all steps: those whose prompt is read, and those that "
            "generate",
            unit="requests",
        ),
        Column("context_tokens", "tokens that the steps compute", unit="tokens"),
        Column("generation_tokens", "tokens that the steps compute", unit="tokens"),
        Column("tokens", "tokens that the steps compute", unit="tokens"),
        Column(
            "gpu_busy_ms",
            (
                "sum over the steps of the busy time of the work launched on the "
                "step's thread"
            ),
        ),
        Column("gpu_ms_per_step", "of an average step"),
        Column("gpu_us_per_token", "GPU time divided by tokens"),
        Column("idle_ms", "idle time of the devices before GPU events of the phase"),
        Column(
            "busy_percent",
            "busy time as a percentage of busy and idle time, as far as recorded",
        ),
        Column("tokens_per_s", "per busy and idle time, as far as recorded"),
        Column(
            "tokens_per_s_without_idle",
            "per busy time: what the GPU could reach if it never idled",
        ),
        Column("modeled_ms", "GPU time of operations with a roofline time"),
        Column("roofline_time_ms", "roofline time of those operations"),
        Column("modeled_percent", "that GPU time as a share of the busy time"),
        Column(
            "% of roofline",
            "roofline time as a percentage of that GPU time; empty if it is less than "
            "half of the busy time",
            unit="%",
        ),
        Column("idle_synchronization_ms", "idle time by cause, as in `gap_summary`"),
        Column("idle_host_ms", "idle time by cause, as in `gap_summary`"),
        Column("idle_dependency_ms", "idle time by cause, as in `gap_summary`"),
        Column("idle_launch_overhead_ms", "idle time by cause, as in `gap_summary`"),
        Column("idle_unknown_ms", "idle time by cause, as in `gap_summary`"),
        Column(
            "scheduler_percent",
            "share of the time from step to step that the CPU spent there, if "
            "annotations or frames name it",
        ),
        Column(
            "sampler_percent",
            "share of the time from step to step that the CPU spent there, if "
            "annotations or frames name it",
        ),
        Column(
            "attention_percent", "share of the sum of durations, when categories are on"
        ),
        Column("gemm_percent", "share of the sum of durations, when categories are on"),
        Column("CATEGORY_time_ms", "sum of durations, when categories are on"),
    ],
    build=_phases,
    options=["device_peaks"],
    requires=[GPU_EVENTS, HAS_STEPS],
    notes=_phase_notes,
    charts=[
        Chart(
            title="GPU time by phase",
            sheet="phases",
            label_column="phase",
            value_column="gpu_busy_ms",
            kind="stacked",
            series_column="category",
            prepare=_by_category,
            on="page",
        )
    ],
)

ROOFLINE_PEAKS = Table(
    name="roofline_peaks",
    description="Peak rates of the GPU for the data types in use",
    columns=[
        Column("what", "engine and data type, or `memory`"),
        Column("peak", "operations or bytes per second", unit="10¹²/s"),
        Column("device_model", "the GPU; only if GPUs of several models did the work"),
    ],
    build=_peaks,
    options=["device_peaks"],
    requires=[GPU_EVENTS, _SHAPES],
    enabled_by="tables",
    on_every_page=True,
)
FAMILIES = Table(
    name="families",
    description="Families of operations compared with the hardware limits",
    columns=[
        Column("family", "family of the performance model; `(no model)` without one"),
        Column("gpu_time_ms", "busy time of the GPU events that all calls launched"),
        Column("gpu_time_percent", "of the GPU time of all operations"),
        Column("tflops_per_s", "of all calls, by GPU time"),
        Column("tb_per_s", "of all calls, by GPU time"),
        Column("modeled_percent", "share of the GPU time that has a performance model"),
        Column(
            "% of roofline",
            "roofline time as a percentage of the GPU time that has one; empty if "
            "that is less than half",
            unit="%",
        ),
        Column("time_lost_ms", "GPU time beyond the roofline time"),
    ],
    build=_table_of_roofline(summary.family_summary),
    options=["device_peaks"],
    requires=[GPU_EVENTS, _SHAPES],
    enabled_by="tables",
    screen=ScreenView("By family"),
)
MFU_BY_ITERATION = Table(
    name="mfu_by_iteration",
    description="Model FLOPs utilization of each complete iteration, or of the whole trace if "
    "there is none",
    columns=[
        Column("iteration", "its name"),
        Column("wall_time_ms", "duration of the iteration"),
        Column("tflop", "of matrix products, convolutions and attention", unit="TFLOP"),
        Column("tflops_per_s", "of those, divided by the wall time"),
        Column(
            "mfu_percent",
            "the time they would take at the peak of their type, divided by the wall "
            "time; empty if less than half of the GPU time has a performance model",
        ),
        Column(
            "modeled_percent",
            "share of the GPU time of operations that has a performance model",
        ),
    ],
    build=_utilisation,
    options=["device_peaks", "annotation"],
    requires=[GPU_EVENTS, _SHAPES],
    enabled_by="tables",
    screen=ScreenView(
        "Model FLOPs utilization (matrix products, convolutions, attention; by wall "
        "time)"
    ),
)
