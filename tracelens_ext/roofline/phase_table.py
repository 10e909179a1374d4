"""The table of the phases of serving, with the roofline time of each phase."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.analysis.serving.phases import HAS_STEPS, phase_notes, phase_table
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.conditions import GPU_EVENTS
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import Table, Tables
from tracelens_ext.roofline.analysis import Roofline
from tracelens_ext.roofline.context import RooflineContext
from tracelens_ext.roofline.utilization import LEAST_COVERAGE
from tracelens_ext.trace import NS_PER_MS

if TYPE_CHECKING:
    from tracelens_ext.analysis.operations.launchers import Launchers
    from tracelens_ext.analysis.serving.steps import Steps


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
    return _with_roofline(
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


def _with_roofline(
    frame: pd.DataFrame, roofline: Roofline, launchers: Launchers, steps: Steps
) -> pd.DataFrame:
    """Return the table of phases with columns for the roofline time of each phase.

    Args:
        frame: the table of phases.
        roofline: the roofline of the trace.
        launchers: the operations that launched the GPU events.
        steps: the steps of the serving engine.
    """
    groups = roofline.groups
    best_ns_of_row = np.array(
        [row.roofline_ns for row in roofline.rows], dtype=np.float64
    )
    best_ns_of_group = best_ns_of_row / groups.count
    best_ns = best_ns_of_group[groups.of_gpu[groups.first_gpu]]
    is_known = ~np.isnan(best_ns)
    if not is_known.any():
        return frame
    first_gpu = groups.first_gpu[is_known]
    phase = steps.phase_of_gpu[first_gpu]
    gpu_ns = launchers.direct_ns[launchers.of_gpu[first_gpu]]
    phases = len(steps.labels)
    gpu_ns_of_phase = np.bincount(phase, gpu_ns, phases)[: len(frame)]
    best_ns_of_phase = np.bincount(phase, best_ns[is_known], phases)[: len(frame)]
    busy_ns_of_phase = frame["gpu_busy_ms"].to_numpy(np.float64) * NS_PER_MS
    covered_percent = 100.0 * gpu_ns_of_phase / np.maximum(busy_ns_of_phase, 1)
    covered_percent = np.minimum(covered_percent, 100.0)
    measured_ns = np.where(covered_percent >= LEAST_COVERAGE, gpu_ns_of_phase, np.nan)
    column = list(frame.columns).index("tokens_per_s_without_idle")
    frame.insert(column + 1, "modeled_ms", gpu_ns_of_phase / NS_PER_MS)
    frame.insert(column + 2, "roofline_time_ms", best_ns_of_phase / NS_PER_MS)
    frame.insert(column + 3, "modeled_percent", covered_percent)
    frame.insert(column + 4, "% of roofline", 100.0 * best_ns_of_phase / measured_ns)
    return frame


PHASES = Table(
    name="phases",
    description="Tokens, GPU time and idle time of prefill, decode and mixed steps",
    columns=[
        Column(
            "phase",
            "`prefill`, `decode`, `mixed` or `diffusion`; `other` for the "
            "work outside of all steps",
        ),
        Column("steps", "number of steps; nested annotations count once", unit="steps"),
        Column(
            "context_requests",
            "number of requests whose prompt a step reads, summed over the steps",
            unit="requests",
        ),
        Column(
            "generation_requests",
            "number of requests for which a step generates tokens, summed "
            "over the steps",
            unit="requests",
        ),
        Column(
            "context_tokens",
            "number of tokens of prompts that the steps compute",
            unit="tokens",
        ),
        Column(
            "generation_tokens",
            "number of tokens of generating requests that the steps compute",
            unit="tokens",
        ),
        Column("tokens", "number of all tokens that the steps compute", unit="tokens"),
        Column(
            "gpu_busy_ms",
            (
                "busy time of the GPU events that were launched on the thread of "
                "a step, summed over the steps"
            ),
        ),
        Column("gpu_ms_per_step", "`gpu_busy_ms` divided by the number of steps"),
        Column(
            "gpu_us_per_token",
            "`gpu_busy_ms` divided by the number of tokens, in µs; steps "
            "without recorded GPU work count no tokens",
        ),
        Column(
            "idle_ms",
            "idle time of the devices directly before GPU events of the "
            "phase, without what was not recorded",
        ),
        Column(
            "busy_percent",
            "busy time as a share of busy and idle time",
        ),
        Column("tokens_per_s", "number of tokens divided by busy and idle time"),
        Column(
            "tokens_per_s_without_idle",
            "number of tokens divided by busy time: what the GPU could reach "
            "if it never idled",
        ),
        Column("modeled_ms", "GPU time of the operations whose roofline time is known"),
        Column(
            "roofline_time_ms",
            "least time that the hardware limits allow for these operations",
        ),
        Column("modeled_percent", "`modeled_ms` as a share of the busy time"),
        Column(
            "% of roofline",
            "`roofline_time_ms` as a share of `modeled_ms`; empty if "
            "`modeled_ms` is less than half of the busy time",
            unit="%",
        ),
        Column(
            "idle_synchronization_ms",
            "idle time due to the cause `synchronization`, as in `gap_summary`",
        ),
        Column(
            "idle_host_ms", "idle time due to the cause `host`, as in `gap_summary`"
        ),
        Column(
            "idle_dependency_ms",
            "idle time due to the cause `dependency`, as in `gap_summary`",
        ),
        Column(
            "idle_launch_overhead_ms",
            "idle time due to the cause `launch overhead`, as in `gap_summary`",
        ),
        Column(
            "idle_unknown_ms",
            "idle time due to the cause `unknown`, as in `gap_summary`",
        ),
        Column(
            "scheduler_percent",
            "share of the time from step to step that the CPU spent in the "
            "scheduler, if annotations or frames name it",
        ),
        Column(
            "sampler_percent",
            "share of the time from step to step that the CPU spent in the "
            "sampler, if annotations or frames name it",
        ),
        Column(
            "attention_percent",
            "share of attention kernels in the total duration of the GPU "
            "events of the phase, when categories are on",
        ),
        Column(
            "gemm_percent",
            "share of GEMM kernels in the total duration of the GPU events of "
            "the phase, when categories are on",
        ),
        Column(
            "CATEGORY_time_ms",
            "total duration of the GPU events of the kernel category, when "
            "categories are on",
        ),
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
