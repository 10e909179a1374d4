"""From what an input is to its statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.class_statistics.events import EventTotals, event_totals
from tracelens_ext.class_statistics.statistics import ClassStatistics, compute
from tracelens_ext.class_statistics.totals import kernel_totals, memory_totals, range_total
from tracelens_ext.errors import ConfigurationError, TraceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracelens_ext.class_statistics.class_map import Classifier
    from tracelens_ext.class_statistics.configuration import InputSpec
    from tracelens_ext.settings import ReadingOptions
    from tracelens_ext.trace import Trace


def statistics_of(
    spec: InputSpec,
    classifier: Classifier,
    read: Callable[[Path, ReadingOptions], Trace],
    reading: ReadingOptions,
) -> ClassStatistics:
    """Compute the statistics of an input.

    Raises:
        TraceError: a file is not there, is not what it should be, or holds no kernels.
        ConfigurationError: a configuration names a file that is nowhere.
        UsageError: no NVTX range has the tag, or it is not said how many iterations there are.
    """
    if spec.missing:
        raise ConfigurationError(spec.missing)
    if spec.trace is None:
        totals = _table_totals(spec, reading)
    else:
        totals = _trace_totals(spec, spec.trace, read(spec.trace, reading))
    gpus = spec.gpus or totals.gpus
    return compute(
        classifier,
        totals.kernels,
        totals.memory,
        totals.ranges,
        iterations=spec.iterations or _iterations(spec, totals, gpus),
        gpus=gpus,
        notes=(*spec.notes, *totals.notes),
    )


def _trace_totals(spec: InputSpec, path: Path, trace: Trace) -> EventTotals:
    totals = event_totals(trace, with_memory=spec.with_memory, tag=spec.tag)
    if not totals.kernels:
        raise TraceError(
            path, "holds no GPU kernels", "record them: nsys profile -t cuda,nvtx PROGRAM"
        )
    return totals


def _table_totals(spec: InputSpec, reading: ReadingOptions) -> EventTotals:
    if spec.kernels is None:
        raise UsageError(f"{spec.title}: name a table of kernels, or a trace")
    return EventTotals(
        kernels=kernel_totals(spec.kernels, reading),
        memory=memory_totals(spec.memory, spec.sizes, reading) if spec.memory else None,
        ranges=range_total(spec.ranges, spec.tag, reading) if spec.ranges and spec.tag else None,
        gpus=1,
    )


def _iterations(spec: InputSpec, totals: EventTotals, gpus: int) -> int:
    """How many iterations the ranges make.

    Raises:
        UsageError: there are no ranges, or not as many on each GPU.
    """
    if totals.ranges is None:
        raise UsageError(
            f"{spec.title}: say how many iterations were recorded, or with an iteration range"
            " where they are"
        )
    iterations, rest = divmod(totals.ranges.count, gpus)
    if rest or not iterations:
        raise UsageError(
            f"{spec.title}: {totals.ranges.count:,} NVTX ranges {totals.ranges.tag!r} do not go"
            f" evenly into {gpus:,} GPUs; say how many iterations and GPUs there are"
        )
    return iterations
