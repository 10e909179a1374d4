"""The model FLOPs utilization (MFU) of iterations."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.roofline.analysis import Roofline
from tracelens_ext.roofline.operation import Engine
from tracelens_ext.trace import NONE, NS_PER_MS

if TYPE_CHECKING:
    from tracelens_ext.trace import Float64Array, Int64Array
    from tracelens_ext.trace.gpu_events import GpuEvents

_WHOLE_TRACE: Final = "the whole trace"
#: Rates are unknown if less than this percentage of the GPU time has a performance model.
LEAST_COVERAGE: Final = 50.0


class _MatrixWork(NamedTuple):
    """The work of the matrix units in c calls."""

    flops: Float64Array  #: operations of the matrix units, (c,)
    at_peak_ns: Float64Array  #: time that `flops` take at the peak of the type, (c,)
    gpu_ns: Float64Array  #: GPU time, (c,)
    #: GPU time of calls with a performance model, 0 for the others, (c,)
    modelled_ns: Float64Array


class _IterationSpans(NamedTuple):
    """The s intervals of time whose utilization is computed."""

    names: list[str]
    wall_ns: Int64Array  #: duration, (s,)
    # The sums of `_MatrixWork` over the calls in each interval.
    flops: Float64Array  #: (s,)
    at_peak_ns: Float64Array  #: (s,)
    gpu_ns: Float64Array  #: (s,)
    modelled_ns: Float64Array  #: (s,)


def utilization(
    gpu_events: GpuEvents,
    roofline: Roofline,
    annotation: str | re.Pattern[str] | None = None,
) -> pd.DataFrame:
    """Return the model FLOPs utilization (MFU) of each whole iteration.

    MFU is the time that all products, convolutions and attention would take at the peak of their
    type, divided by the wall time of all devices. A trace without iterations has one row for the
    whole trace. MFU is empty if less than half of the GPU time has a performance model.
    """
    matrix_work = _matrix_work_of_calls(roofline)
    spans = _iterations(
        gpu_events=gpu_events,
        roofline=roofline,
        matrix_work=matrix_work,
        annotation=annotation,
    )
    if spans is None:
        spans = _whole_trace(gpu_events, roofline, matrix_work)
    device_ns = np.maximum(spans.wall_ns, 1) * max(len(roofline.peaks), 1)
    covered_percent = 100.0 * spans.modelled_ns / np.maximum(spans.gpu_ns, 1.0)
    is_covered = covered_percent >= LEAST_COVERAGE
    flops = np.where(is_covered, spans.flops, np.nan)
    at_peak_ns = np.where(is_covered, spans.at_peak_ns, np.nan)
    return pd.DataFrame(
        {
            "iteration": spans.names,
            "wall_time_ms": spans.wall_ns / NS_PER_MS,
            "tflop": flops / 1e12,
            "tflops_per_s": flops / device_ns / 1e3,
            "mfu_percent": 100.0 * at_peak_ns / device_ns,
            "modeled_percent": covered_percent,
        }
    )


def _matrix_work_of_calls(roofline: Roofline) -> _MatrixWork:
    """Return the work of the matrix units in each call.

    Calls without matrix work count as 0 operations; if no operation has a model, as NaN (unknown).
    """
    default = 0.0 if roofline.families else np.nan
    groups = len(roofline.rows)
    flops = np.full(groups, default)
    at_peak_ns = np.full(groups, default)
    gpu_ns = np.zeros(groups)
    modelled_ns = np.zeros(groups)
    for group, row in enumerate(roofline.rows):
        gpu_ns[group] = row.gpu_ns / row.count
        if row.cost is None:
            continue
        modelled_ns[group] = gpu_ns[group]
        if row.cost.engine == Engine.MATRIX:
            flops[group] = row.cost.flops
            flops_per_ns = (row.peak or np.nan) * 1e3
            at_peak_ns[group] = row.cost.flops / flops_per_ns
    group_of_call = roofline.groups.of_gpu[roofline.groups.first_gpu]
    return _MatrixWork(
        flops=flops[group_of_call],
        at_peak_ns=at_peak_ns[group_of_call],
        gpu_ns=gpu_ns[group_of_call],
        modelled_ns=modelled_ns[group_of_call],
    )


def _iterations(
    gpu_events: GpuEvents,
    roofline: Roofline,
    matrix_work: _MatrixWork,
    annotation: str | re.Pattern[str] | None,
) -> _IterationSpans | None:
    """Return the whole iterations in which calls launched GPU work; None without any."""
    from tracelens_ext.analysis.iterations.named_iterations import named_iterations

    iterations, names, _ = named_iterations(gpu_events.tree, annotation)
    iteration_of_call = iterations.of_gpu[roofline.groups.first_gpu]
    has_calls = np.isin(np.arange(len(iterations)), iteration_of_call)
    chosen = np.flatnonzero(iterations.whole & has_calls)
    if not len(chosen):
        return None
    is_inside = iteration_of_call != NONE
    iteration = iteration_of_call[is_inside]

    def sum_of(values: Float64Array) -> Float64Array:
        sums = np.bincount(iteration, values[is_inside], len(iterations))
        return sums[chosen].astype(np.float64)

    return _IterationSpans(
        names=[names[number] for number in chosen.tolist()],
        wall_ns=(iterations.end - iterations.start)[chosen],
        flops=sum_of(matrix_work.flops),
        at_peak_ns=sum_of(matrix_work.at_peak_ns),
        gpu_ns=sum_of(matrix_work.gpu_ns),
        modelled_ns=sum_of(matrix_work.modelled_ns),
    )


def _whole_trace(
    gpu_events: GpuEvents, roofline: Roofline, matrix_work: _MatrixWork
) -> _IterationSpans:
    """Return one interval, from the first to the last GPU event of an operation."""
    has_operation = roofline.groups.of_gpu != NONE
    latest_time = np.iinfo(np.int64).max
    start = gpu_events.start[has_operation].min(initial=latest_time)
    end = gpu_events.end[has_operation].max(initial=0)
    wall_ns = max(int(end - start), 0)
    return _IterationSpans(
        names=[_WHOLE_TRACE],
        wall_ns=np.array([wall_ns], dtype=np.int64),
        flops=matrix_work.flops.sum(keepdims=True),
        at_peak_ns=matrix_work.at_peak_ns.sum(keepdims=True),
        gpu_ns=matrix_work.gpu_ns.sum(keepdims=True),
        modelled_ns=matrix_work.modelled_ns.sum(keepdims=True),
    )
