"""NVTX ranges of a trace: found by their tag, and projected onto the GPU."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np

from tracelens_ext.analysis.nsys_statistics.totals import RangeTotal, no_such_range
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.readers.nsys.nvtx import DOMAIN
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


def total_of_ranges(trace: Trace, tag: str) -> RangeTotal:
    """Return the total of the ranges with one tag, projected onto the GPU.

    Raises:
        UsageError: no range has that tag, or none of them started GPU work.
    """
    path = trace.provenance.path
    rows = _rows_called(trace, tag)
    if not len(rows):
        raise no_such_range(path, tag, _range_names(trace))
    projected = project_ranges(trace, link(trace), rows)
    durations = projected["end"] - projected["start"]
    if not len(durations):
        raise UsageError(
            f"{path}: the NVTX ranges {tag!r} started no GPU work on their threads; "
            "give ranges around the launches"
        )
    return RangeTotal(tag=tag, time_ns=sum(durations.tolist()), count=len(durations))


def _range_names(trace: Trace) -> set[str]:
    """Return the names of all ranges, after the name of their domain unless it is the default."""
    rows = trace.rows_of(EventKind.USER_ANNOTATION)
    prefix_of_domain = _domain_prefixes(trace)
    prefix_of_domain[NONE] = ""
    names = set()
    domain_and_name = np.column_stack((trace.arg(DOMAIN).at(rows), trace.name[rows]))
    for domain, name in np.unique(domain_and_name, axis=0).tolist():
        names.add(prefix_of_domain[domain] + trace.names[name])
    return names


def _rows_called(trace: Trace, tag: str) -> Int64Array:
    """Return the rows of the ranges with a tag, which may include their domain.

    The tag may be `Step`, `:Step` or `DOMAIN:Step`. The last two are how the tables of `nsys stats`
    write a range of the default domain, and of another domain.
    """
    # Profilers before 2023 record annotations as operations.
    rows = trace.rows_of(EventKind.USER_ANNOTATION, EventKind.CPU_OP)

    def is_named(name: str) -> BoolArray:
        """Return a mask of the ranges with this name."""
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
    """Return the prefix of names in each NVTX domain, by the code of the domain.

    The code of the default domain is `NONE`.
    """
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
    """Project ranges onto the devices on which they started work.

    As in the report `nvtx_gpu_proj_trace` of Nsight Systems, a GPU event belongs to a range if the
    range contains its launch, on the same thread. The projection lasts from the first start to the
    last end of these GPU events.

    Args:
        trace: the trace.
        launch_of_gpu: the launch of each GPU event, `NONE` for an event without one, (g,).
        rows: the ranges, (r,).

    Returns:
        A row for each range and device with work, by device, then in the order of the ranges. The
        columns are `row` (of the range), `device`, `count` (of GPU events), `start` (of the first
        GPU event) and `end` (of the last), ns since the trace's first event.
    """
    launched = _launched_work(trace, launch_of_gpu)
    # Each range is projected onto each device.
    device_count = len(launched.devices)
    device_index = np.repeat(np.arange(device_count), len(rows))
    range_rows = np.tile(rows, device_count)
    track = device_index * len(trace.threads) + trace.thread[range_rows]
    # The launches within a range are a slice of the sorted ones.
    slice_start = sorted_groups.items_before(
        group=launched.track,
        time=launched.launch_time,
        query_group=track,
        query_time=trace.ts[range_rows],
    )
    slice_end = sorted_groups.items_before(
        group=launched.track,
        time=launched.launch_time,
        query_group=track,
        query_time=trace.end_of(range_rows),
    )
    projected = pd.DataFrame(
        {
            "row": range_rows,
            "device": launched.devices[device_index],
            "count": slice_end - slice_start,
        }
    )
    has_work = slice_end > slice_start
    slice_start = slice_start[has_work]
    slice_end = slice_end[has_work]
    return projected[has_work].assign(
        start=_reduce_slices(
            function=np.minimum,
            values=trace.ts[launched.gpu_rows],
            start=slice_start,
            end=slice_end,
        ),
        end=_reduce_slices(
            function=np.maximum,
            values=trace.end_of(launched.gpu_rows),
            start=slice_start,
            end=slice_end,
        ),
    )


class _LaunchedWork(NamedTuple):
    """The GPU events with a launch by track and time of their launch, l of them.

    A track is a pair of a device and a thread: index of the device * number of threads + thread.
    """

    devices: Int64Array  #: numbers of the devices, ascending
    gpu_rows: Int64Array  #: the GPU events, (l,)
    track: Int64Array  #: the track of each event, (l,)
    #: when each launch began, ns since the trace's first event, (l,)
    launch_time: Int64Array


def _launched_work(trace: Trace, launch_of_gpu: Int64Array) -> _LaunchedWork:
    """Sort the GPU events with a launch by track and time of their launch.

    Args:
        trace: the trace.
        launch_of_gpu: the launch of each GPU event, `NONE` for an event without one, (g,).
    """
    linked = np.flatnonzero(launch_of_gpu != NONE)
    launch = launch_of_gpu[linked]
    devices, device_index = np.unique(trace.device[linked], return_inverse=True)
    track = device_index.reshape(-1) * len(trace.threads) + trace.thread[launch]
    order = sorted_groups.by_group_and_time(track, trace.ts[launch])
    return _LaunchedWork(
        devices=devices,
        gpu_rows=trace.gpu_rows[linked[order]],
        track=track[order],
        launch_time=trace.ts[launch[order]],
    )


def _reduce_slices(
    function: np.ufunc, values: Int64Array, start: Int64Array, end: Int64Array
) -> Int64Array:
    """Return the minimum or maximum of each slice of values, (s,).

    Args:
        function: `np.minimum` or `np.maximum`.
        values: the values.
        start: index of the first value of each slice, (s,).
        end: index after the last value of each slice, (s,); no slice is empty.
    """
    if not len(start):
        return np.empty(0, dtype=np.int64)
    # Equal slices are reduced once: a thousand ranges may contain the same launches.
    distinct, slice_index = grouping.number_groups([start, end])
    # `reduceat` with the bounds [2, 5, 5, 9] reduces 2 to 5, 5 to 5, 5 to 9, and 9 to the end.
    # Every other result is that of a slice. Because slices are sorted by start, the parts between
    # them are short.
    bounds = np.column_stack((start[distinct], end[distinct])).ravel()
    # The bounds must be indices of values, so the end of the last slice needs one, too.
    padded = np.append(values, values[-1:])
    reduced: Int64Array = function.reduceat(padded, bounds)[::2]
    return reduced[slice_index]
