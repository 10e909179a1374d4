"""The statistics of one input: of tables of `nsys stats`, or of the events of a trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tracelens_ext.analysis.nsys_statistics.configuration import InputSpec
from tracelens_ext.analysis.nsys_statistics.kernel_classes import Classifier
from tracelens_ext.analysis.nsys_statistics.nvtx_ranges import total_of_ranges
from tracelens_ext.analysis.nsys_statistics.statistics import ClassStatistics, compute
from tracelens_ext.analysis.nsys_statistics.totals import (
    RangeTotal,
    Total,
    kernel_totals,
    memory_totals,
    range_total,
)
from tracelens_ext.errors import ConfigurationError, TraceError, UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.settings import ReadingOptions
from tracelens_ext.trace import EventKind, Int64Array, Trace, grouping

#: A function that reads a trace.
Reader = Callable[[Path, ReadingOptions], Trace]


def statistics_of(
    spec: InputSpec,
    classifier: Classifier,
    read: Reader,
    reading: ReadingOptions,
) -> ClassStatistics:
    """Compute the statistics of an input.

    Args:
        spec: the files of the input and the options for it.
        classifier: gives each kernel a class.
        read: function that reads a trace.
        reading: options for reading files.

    Raises:
        TraceError: a file cannot be read, or has no kernels.
        UsageError: the number of iterations or GPUs is not known.
    """
    if spec.missing:
        raise ConfigurationError(spec.missing)
    if spec.trace is not None:
        totals = _trace_totals(spec, spec.trace, read, reading)
    elif spec.kernels is not None:
        totals = _table_totals(spec, spec.kernels, reading)
    else:
        raise UsageError(f"{spec.heading}: give a table of kernels, or a trace")
    gpus = spec.gpus or totals.gpus
    iterations = spec.iterations or _iteration_count(
        title=spec.heading, ranges=totals.ranges, gpus=gpus
    )
    return compute(
        classifier,
        kernels=totals.kernels,
        memory=totals.memory,
        ranges=totals.ranges,
        iterations=iterations,
        gpus=gpus,
        notes=spec.remarks + totals.notes,
    )


def _trace_totals(
    spec: InputSpec, path: Path, read: Reader, reading: ReadingOptions
) -> EventTotals:
    """Return the totals of the events of a trace.

    Raises:
        TraceError: the trace cannot be read, or has no kernels.
    """
    totals = event_totals(
        trace=read(path, reading),
        with_memory=spec.with_memory,
        tag=spec.iteration_range,
    )
    if not totals.kernels:
        remedy = "record them with: nsys profile -t cuda,nvtx PROGRAM"
        raise TraceError(path=path, problem="contains no GPU kernels", remedy=remedy)
    return totals


def _iteration_count(title: str, ranges: RangeTotal | None, gpus: int) -> int:
    """Return the number of iterations: that of the ranges on each GPU."""
    if ranges is None:
        raise UsageError(
            f"{title}: the number of iterations is unknown; give it, or an iteration "
            "range if there is one"
        )
    iterations, remainder = divmod(ranges.count, gpus)
    if remainder or not iterations:
        raise UsageError(
            f"{title}: {ranges.count:,} NVTX ranges {ranges.tag!r} cannot be divided "
            f"evenly among {gpus:,} GPUs; give the numbers of iterations and GPUs"
        )
    return iterations


@dataclass(frozen=True)
class EventTotals:
    """The totals of an input, from which statistics are computed.

    Attributes:
        kernels: totals by kernel name.
        memory: totals by kind of memory operation; None if they are not requested.
        ranges: total of the ranges of the iterations; None if they are not requested.
        gpus: number of GPUs that ran kernels, at least 1.
        notes: sentences about the trace for the user.
    """

    kernels: list[Total]
    memory: list[Total] | None
    ranges: RangeTotal | None
    gpus: int = 1
    notes: tuple[str, ...] = ()


def _table_totals(
    spec: InputSpec, kernels: Path, reading: ReadingOptions
) -> EventTotals:
    """Return the totals of the tables of an input."""
    memory = None
    if spec.mem is not None:
        memory = memory_totals(source=spec.mem, sizes=spec.mem_size, reading=reading)
    ranges = None
    if spec.nvtx is not None and spec.iteration_range:
        ranges = range_total(
            source=spec.nvtx, tag=spec.iteration_range, reading=reading
        )
    return EventTotals(
        kernels=kernel_totals(kernels, reading), memory=memory, ranges=ranges
    )


def event_totals(
    trace: Trace, with_memory: bool = True, tag: str | None = None
) -> EventTotals:
    """Add up the events of a trace.

    Args:
        trace: the trace.
        with_memory: whether to add up memory operations.
        tag: the name of the ranges to add up; None for no ranges.
    """
    memory = None
    if with_memory:
        memory = _totals(trace, trace.rows_of(EventKind.MEMCPY, EventKind.MEMSET))
    is_kernel = trace.kind[trace.gpu_rows] == EventKind.KERNEL
    devices = np.unique(trace.device[is_kernel])
    return EventTotals(
        kernels=_totals(trace, trace.rows_of(EventKind.KERNEL)),
        memory=memory,
        ranges=None if tag is None else total_of_ranges(trace, tag),
        gpus=max(len(devices), 1),
        notes=trace.provenance.notes,
    )


def _totals(trace: Trace, rows: Int64Array) -> list[Total]:
    """Return the totals of some events by name, longest first."""
    groups = grouping.group_durations([trace.name[rows]], trace.dur[rows])
    # The sizes in a trace may be any numbers. Python's integers add them without overflow.
    size = trace.arg("bytes").at(rows)
    has_size = size >= 0
    exact_sizes = pd.Series(size[has_size].astype(object))
    names = trace.name[rows]
    sums_by_name = exact_sizes.groupby(names[has_size]).sum()
    size_of_name = sums_by_name.to_dict()
    totals = []
    for index, name in enumerate(groups.keys[0].tolist()):
        total = Total(
            name=trace.names[name],
            time_ns=int(groups.total[index]),
            instances=int(groups.count[index]),
            size_bytes=size_of_name.get(name),
        )
        totals.append(total)
    return totals
