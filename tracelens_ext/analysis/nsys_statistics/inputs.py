"""From what an input is to its statistics."""

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
from tracelens_ext.readers.nsys.export_schema import DOMAIN
from tracelens_ext.settings import ReadingOptions
from tracelens_ext.trace import NONE, BoolArray, EventKind, Int64Array, Trace, grouping
from tracelens_ext.trace.linking import link

Reader = Callable[[Path, ReadingOptions], Trace]


def statistics_of(
    spec: InputSpec, classifier: statistics.Classifier, read: Reader, reading: ReadingOptions
) -> statistics.ClassStatistics:
    """Compute the statistics of an input."""
    if spec.missing:
        raise ConfigurationError(spec.missing)
    if spec.trace is not None:
        totals = event_totals(read(spec.trace, reading), spec.with_memory, spec.iteration_range)
        if not totals.kernels:
            remedy = "record them: nsys profile -t cuda,nvtx PROGRAM"
            raise TraceError(spec.trace, "holds no GPU kernels", remedy)
    elif spec.kernels is not None:
        tag = spec.iteration_range
        totals = EventTotals(
            statistics.kernel_totals(spec.kernels, reading),
            statistics.memory_totals(spec.mem, spec.mem_size, reading) if spec.mem else None,
            statistics.range_total(spec.nvtx, tag, reading) if spec.nvtx and tag else None,
        )
    else:
        raise UsageError(f"{spec.heading}: name a table of kernels, or a trace")
    gpus = spec.gpus or totals.gpus
    iterations = spec.iterations or _iterations(spec.heading, totals.ranges, gpus)
    tables = (totals.kernels, totals.memory, totals.ranges)
    notes = (*spec.remarks, *totals.notes)
    return statistics.compute(classifier, *tables, iterations=iterations, gpus=gpus, notes=notes)


def _iterations(title: str, ranges: statistics.RangeTotal | None, gpus: int) -> int:
    """How many iterations the ranges make."""
    if ranges is None:
        asked = "say how many iterations were recorded, or with an iteration range where they are"
        raise UsageError(f"{title}: {asked}")
    iterations, rest = divmod(ranges.count, gpus)
    if rest or not iterations:
        odd = f"{ranges.count:,} NVTX ranges {ranges.tag!r} do not go evenly into {gpus:,} GPUs"
        raise UsageError(f"{title}: {odd}; say how many iterations and GPUs there are")
    return iterations


@dataclass(frozen=True)
class EventTotals:
    """What the statistics start from."""

    kernels: list[statistics.Total]  #: by name, longest first
    memory: list[statistics.Total] | None  #: by kind, longest first; None when not asked for
    ranges: statistics.RangeTotal | None  #: of the tag that was asked for
    gpus: int = 1  #: devices that kernels ran on, at least 1
    notes: tuple[str, ...] = ()  #: what the user should know about the trace, a sentence each


def event_totals(trace: Trace, with_memory: bool = True, tag: str | None = None) -> EventTotals:
    """Sum the events of a trace."""
    kernels = trace.rows_of(EventKind.KERNEL)
    copies = (EventKind.MEMCPY, EventKind.MEMSET)
    memory = _totals(trace, trace.rows_of(*copies)) if with_memory else None
    ranges = _ranges(trace, tag) if tag is not None else None
    gpus = len(np.unique(trace.device[trace.kind[trace.gpu_rows] == EventKind.KERNEL]))
    notes = trace.provenance.notes
    return EventTotals(_totals(trace, kernels), memory, ranges, max(gpus, 1), notes)


def _totals(trace: Trace, rows: Int64Array) -> list[statistics.Total]:
    groups = grouping.group_durations([trace.name[rows]], trace.dur[rows])
    columns = (groups.keys[0], groups.total, groups.count)
    # Bytes that all events of a name moved, if the trace tells: it may say anything, so exact.
    size = trace.arg("bytes").at(rows)
    exact = pd.Series(size[size >= 0].astype(object))
    sizes = exact.groupby(trace.name[rows][size >= 0]).sum().to_dict()
    return [
        statistics.Total(trace.names[name], time, count, sizes.get(name))
        for name, time, count in zip(*(c.tolist() for c in columns), strict=True)
    ]


def _ranges(trace: Trace, tag: str) -> statistics.RangeTotal:
    path = trace.provenance.path
    chosen = _called(trace, tag)
    if not len(chosen):  # those there are, with their domains where these are not the default
        rows = trace.rows_of(EventKind.USER_ANNOTATION)
        pairs = np.column_stack((trace.arg(DOMAIN).at(rows), trace.name[rows]))
        prefixes = _domains(trace) | {NONE: ""}
        names = {prefixes[domain] + trace.names[name] for domain, name in pairs.tolist()}
        raise statistics.no_such_range(path, tag, names)
    projected = project_ranges(trace, link(trace), chosen)
    durations = projected["end"] - projected["start"]
    if not len(durations):
        problem = f"the NVTX ranges {tag!r} started no GPU work on their threads"
        raise UsageError(f"{path}: {problem}; name ranges around the launches")
    return statistics.RangeTotal(tag, sum(durations.tolist()), len(durations))


def _called(trace: Trace, tag: str) -> Int64Array:
    """The ranges of a name, with or without their domain: `Step`, `:Step` and `DOMAIN:Step`.

    The tables of `nsys stats` write the domain before the name, the default one as nothing.
    """
    # Profilers before 2023 record annotations as operators.
    rows = trace.rows_of(EventKind.USER_ANNOTATION, EventKind.CPU_OP)

    def is_named(name: str) -> BoolArray:
        codes = [code for code, known in enumerate(trace.names) if known == name]
        return np.isin(trace.name[rows], codes)

    found = is_named(tag)
    domain = trace.arg(DOMAIN).at(rows)
    for code, prefix in _domains(trace).items():
        if tag.startswith(prefix):
            found |= (domain == code) & is_named(tag.removeprefix(prefix))
    return rows[found]


def _domains(trace: Trace) -> dict[int, str]:
    """Code of each NVTX domain, `NONE` of the default one → what stands before a name."""
    texts = trace.arg(DOMAIN).texts or []
    codes = np.unique(trace.arg(DOMAIN).values).tolist()
    return {NONE: ":"} | {code: f"{json.loads(texts[code])}:" for code in codes if code != NONE}


def project_ranges(trace: Trace, launch_of_gpu: Int64Array, rows: Int64Array) -> pd.DataFrame:
    """Project ranges onto the devices that they started work on.

    As the report `nvtx_gpu_proj_trace` of Nsight Systems has it, a GPU event is inside a range when
    the call that launched it is, on the range's own thread: from the first to the last of these.
    By device, then in the order of the ranges: `row`, the range; `device`; `start` of the first GPU
    event and `end` of the last, ns since the trace's first event; `count` of GPU events inside.
    """
    linked = np.flatnonzero(launch_of_gpu != NONE)
    launch = launch_of_gpu[linked]
    devices, number = np.unique(trace.device[linked], return_inverse=True)
    lane = number.reshape(-1) * len(trace.threads) + trace.thread[launch]
    order = grouping.by_group_and_time(lane, trace.ts[launch])
    gpu = trace.gpu_rows[linked[order]]
    lane = lane[order]
    moment = trace.ts[launch[order]]
    # Each range is asked about on each device.
    number = np.repeat(np.arange(len(devices)), len(rows))
    rows = np.tile(rows, len(devices))
    own_lane = number * len(trace.threads) + trace.thread[rows]
    times = (trace.ts[rows], trace.end_of(rows))
    first, last = (grouping.items_before(lane, moment, own_lane, time) for time in times)
    found = pd.DataFrame({"row": rows, "device": devices[number], "count": last - first})
    some = last > first
    first = first[some]
    last = last[some]
    return found[some].assign(
        start=_reduced(np.minimum, trace.ts[gpu], first, last),
        end=_reduced(np.maximum, trace.end_of(gpu), first, last),
    )


def _reduced(of: np.ufunc, values: Int64Array, first: Int64Array, last: Int64Array) -> Int64Array:
    """A function of each slice of values, `first` inclusive, `last` exclusive; none is empty.

    Slices are taken in order of their starts, so that what lies between two is looked at once.
    """
    if not len(first):
        return np.empty(0, dtype=np.int64)
    # Equal slices are computed once: a thousand ranges may hold the same launches.
    chosen, code = grouping.number_groups([first, last])
    bounds = np.column_stack((first[chosen], last[chosen])).ravel()
    padded = np.append(values, values[-1:])  # the end of the last slice must be an index too
    return of.reduceat(padded, bounds)[::2][code]
