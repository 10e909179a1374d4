"""The statistics of an input: of tables of `nsys stats`, or of the events of a trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tracelens_ext.analysis.nsys_statistics import statistics
from tracelens_ext.analysis.nsys_statistics.configuration import InputSpec
from tracelens_ext.errors import ConfigurationError, TraceError, UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.readers.nsys.nvtx import DOMAIN
from tracelens_ext.settings import ReadingOptions
from tracelens_ext.trace import (
    NONE,
    BoolArray,
    EventKind,
    Int64Array,
    Trace,
    grouping,
    sorted_groups,
)
from tracelens_ext.trace.linking import link

#: Reads a trace.
Reader = Callable[[Path, ReadingOptions], Trace]


def statistics_of(
    spec: InputSpec,
    classifier: statistics.Classifier,
    read: Reader,
    reading: ReadingOptions,
) -> statistics.ClassStatistics:
    """Compute the statistics of an input.

    Args:
        spec: what the input is.
        classifier: gives each kernel a class.
        read: reads a trace.
        reading: how files are read.

    Raises:
        TraceError: a file cannot be read, or has no kernels.
        UsageError: the number of iterations or GPUs is not known.
    """
    if spec.missing:
        raise ConfigurationError(spec.missing)
    if spec.trace is not None:
        totals = event_totals(
            trace=read(spec.trace, reading),
            with_memory=spec.with_memory,
            tag=spec.iteration_range,
        )
        if not totals.kernels:
            remedy = "record them with: nsys profile -t cuda,nvtx PROGRAM"
            raise TraceError(
                path=spec.trace, problem="contains no GPU kernels", remedy=remedy
            )
    elif spec.kernels is not None:
        totals = _table_totals(spec, spec.kernels, reading)
    else:
        raise UsageError(f"{spec.heading}: give a table of kernels, or a trace")
    gpus = spec.gpus or totals.gpus
    iterations = spec.iterations or _iterations(
        title=spec.heading, ranges=totals.ranges, gpus=gpus
    )
    return statistics.compute(
        classifier,
        kernels=totals.kernels,
        memory=totals.memory,
        ranges=totals.ranges,
        iterations=iterations,
        gpus=gpus,
        notes=spec.remarks + totals.notes,
    )


def _iterations(title: str, ranges: statistics.RangeTotal | None, gpus: int) -> int:
    """Return how many iterations the ranges make."""
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
    """What the statistics start from.

    Attributes:
        kernels: totals by name, longest first.
        memory: totals by kind of operation, longest first; None when not wanted.
        ranges: the ranges of the wanted tag; None without a tag.
        gpus: devices that kernels ran on, at least 1.
        notes: what the user should know about the trace, a sentence each.
    """

    kernels: list[statistics.Total]
    memory: list[statistics.Total] | None
    ranges: statistics.RangeTotal | None
    gpus: int = 1
    notes: tuple[str, ...] = ()


def _table_totals(
    spec: InputSpec, kernels: Path, reading: ReadingOptions
) -> EventTotals:
    """Return the totals of the tables of an input."""
    memory = None
    if spec.mem is not None:
        memory = statistics.memory_totals(
            source=spec.mem, sizes=spec.mem_size, reading=reading
        )
    ranges = None
    if spec.nvtx is not None and spec.iteration_range:
        ranges = statistics.range_total(
            source=spec.nvtx, tag=spec.iteration_range, reading=reading
        )
    return EventTotals(
        kernels=statistics.kernel_totals(kernels, reading), memory=memory, ranges=ranges
    )


def event_totals(
    trace: Trace, with_memory: bool = True, tag: str | None = None
) -> EventTotals:
    """Add up the events of a trace.

    Args:
        trace: the trace.
        with_memory: memory operations are wanted.
        tag: the name of the ranges that are wanted, if any.
    """
    memory = None
    if with_memory:
        memory = _totals(trace, trace.rows_of(EventKind.MEMCPY, EventKind.MEMSET))
    is_kernel = trace.kind[trace.gpu_rows] == EventKind.KERNEL
    devices = np.unique(trace.device[is_kernel])
    return EventTotals(
        kernels=_totals(trace, trace.rows_of(EventKind.KERNEL)),
        memory=memory,
        ranges=None if tag is None else _ranges(trace, tag),
        gpus=max(len(devices), 1),
        notes=trace.provenance.notes,
    )


def _totals(trace: Trace, rows: Int64Array) -> list[statistics.Total]:
    """Return the totals of some events by name, longest first."""
    groups = grouping.group_durations([trace.name[rows]], trace.dur[rows])
    # The bytes in a trace may be any number, so they are added up without a limit of 64 bits.
    size = trace.arg("bytes").at(rows)
    has_size = size >= 0
    exact_sizes = pd.Series(size[has_size].astype(object))
    names = trace.name[rows]
    sums_by_name = exact_sizes.groupby(names[has_size]).sum()
    size_of_name = sums_by_name.to_dict()
    totals = []
    for index, name in enumerate(groups.keys[0].tolist()):
        total = statistics.Total(
            name=trace.names[name],
            time_ns=int(groups.total[index]),
            instances=int(groups.count[index]),
            size_bytes=size_of_name.get(name),
        )
        totals.append(total)
    return totals


def _ranges(trace: Trace, tag: str) -> statistics.RangeTotal:
    """Return the total of the ranges of a tag, projected onto the GPU."""
    path = trace.provenance.path
    rows = _rows_called(trace, tag)
    if not len(rows):
        raise statistics.no_such_range(path, tag, _range_names(trace))
    projected = project_ranges(trace, link(trace), rows)
    durations = projected["end"] - projected["start"]
    if not len(durations):
        raise UsageError(
            f"{path}: the NVTX ranges {tag!r} started no GPU work on their threads; "
            "give ranges around the launches"
        )
    return statistics.RangeTotal(
        tag=tag, time_ns=sum(durations.tolist()), count=len(durations)
    )


def _range_names(trace: Trace) -> set[str]:
    """Return the names of all ranges, with their domains where these are not the default."""
    rows = trace.rows_of(EventKind.USER_ANNOTATION)
    prefix_of_domain = _domain_prefixes(trace)
    prefix_of_domain[NONE] = ""
    names = set()
    domain_and_name = np.column_stack((trace.arg(DOMAIN).at(rows), trace.name[rows]))
    for domain, name in np.unique(domain_and_name, axis=0).tolist():
        names.add(prefix_of_domain[domain] + trace.names[name])
    return names


def _rows_called(trace: Trace, tag: str) -> Int64Array:
    """Return the ranges of a name, with or without their domain.

    The tables of `nsys stats` write the domain before the name, the default one as nothing: the
    tag may be `Step`, `:Step` or `DOMAIN:Step`.
    """
    # Profilers before 2023 record annotations as operators.
    rows = trace.rows_of(EventKind.USER_ANNOTATION, EventKind.CPU_OP)

    def is_named(name: str) -> BoolArray:
        codes = [
            code for code, trace_name in enumerate(trace.names) if trace_name == name
        ]
        return np.isin(trace.name[rows], codes)

    is_called = is_named(tag)
    domain = trace.arg(DOMAIN).at(rows)
    for code, prefix in _domain_prefixes(trace).items():
        if tag.startswith(prefix):
            is_called |= (domain == code) & is_named(tag.removeprefix(prefix))
    return rows[is_called]


def _domain_prefixes(trace: Trace) -> dict[int, str]:
    """Return what stands before a name, by code of the NVTX domain; `NONE` is the default one."""
    column = trace.arg(DOMAIN)
    texts = column.texts or []
    prefixes = {NONE: ":"}
    for code in np.unique(column.values).tolist():
        if code != NONE:
            prefixes[code] = f"{json.loads(texts[code])}:"
    return prefixes


def project_ranges(
    trace: Trace, launch_of_gpu: Int64Array, rows: Int64Array
) -> pd.DataFrame:
    """Project ranges onto the devices that they started work on.

    As the report `nvtx_gpu_proj_trace` of Nsight Systems has it, a GPU event is inside a range when
    the call that launched it is, on the range's own thread: from the first to the last of these.

    Args:
        trace: the trace.
        launch_of_gpu: the launch of each GPU event, `NONE` without one, (g,).
        rows: the ranges, (r,).

    Returns:
        By device, then in the order of the ranges: `row`, the range; `device`; `start` of the first
        GPU event and `end` of the last, ns since the trace's first event; `count` of GPU events
        inside.
    """
    linked = np.flatnonzero(launch_of_gpu != NONE)
    launch = launch_of_gpu[linked]
    devices, device_index = np.unique(trace.device[linked], return_inverse=True)
    thread_count = len(trace.threads)
    # A track is a pair of device and thread; launches are sorted by track and time.
    track = device_index.reshape(-1) * thread_count + trace.thread[launch]
    order = sorted_groups.by_group_and_time(track, trace.ts[launch])
    gpu_rows = trace.gpu_rows[linked[order]]
    track = track[order]
    launch_time = trace.ts[launch[order]]
    # Each range is looked for on each device.
    range_device = np.repeat(np.arange(len(devices)), len(rows))
    range_rows = np.tile(rows, len(devices))
    range_track = range_device * thread_count + trace.thread[range_rows]
    first = sorted_groups.items_before(
        group=track,
        time=launch_time,
        query_group=range_track,
        query_time=trace.ts[range_rows],
    )
    last = sorted_groups.items_before(
        group=track,
        time=launch_time,
        query_group=range_track,
        query_time=trace.end_of(range_rows),
    )
    projected = pd.DataFrame(
        {"row": range_rows, "device": devices[range_device], "count": last - first}
    )
    has_work = last > first
    first = first[has_work]
    last = last[has_work]
    return projected[has_work].assign(
        start=_reduce_slices(
            function=np.minimum, values=trace.ts[gpu_rows], first=first, last=last
        ),
        end=_reduce_slices(
            function=np.maximum, values=trace.end_of(gpu_rows), first=first, last=last
        ),
    )


def _reduce_slices(
    function: np.ufunc, values: Int64Array, first: Int64Array, last: Int64Array
) -> Int64Array:
    """Return a function of each slice of values.

    Slices are taken in order of their starts, so that what lies between two is looked at once.
    `reduceat` with the bounds [2, 5, 5, 9] gives the slices 2 to 5, 5 to 5, 5 to 9 and from 9 on;
    every other one is wanted.

    Args:
        function: `np.minimum` or `np.maximum`.
        values: of any length.
        first: where each slice begins, (s,).
        last: one past its last value, (s,); no slice is empty.
    """
    if not len(first):
        return np.empty(0, dtype=np.int64)
    # Equal slices are computed once: a thousand ranges may contain the same launches.
    distinct, number = grouping.number_groups([first, last])
    bounds = np.column_stack((first[distinct], last[distinct])).ravel()
    # the end of the last slice must be an index, too
    padded = np.append(values, values[-1:])
    reduced: Int64Array = function.reduceat(padded, bounds)[::2]
    return reduced[number]
