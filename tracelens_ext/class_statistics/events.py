"""The totals of a trace, made of the events themselves."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.class_statistics.nvtx_projection import project_ranges
from tracelens_ext.class_statistics.totals import RangeTotal, Total, idle_range, no_such_range
from tracelens_ext.linking import link
from tracelens_ext.readers.nsys.ranges import DOMAIN
from tracelens_ext.trace import NONE, EventKind
from tracelens_ext.work.grouping import group_durations

if TYPE_CHECKING:
    from tracelens_ext.trace import BoolArray, Int64Array, Trace

#: Profilers before 2023 record annotations as operators.
_RANGE_KINDS = (EventKind.USER_ANNOTATION, EventKind.CPU_OP)


@dataclass(frozen=True)
class EventTotals:
    """What the statistics start from."""

    kernels: list[Total]  #: by name, longest first
    memory: list[Total] | None  #: by kind, longest first; None when not asked for
    ranges: RangeTotal | None  #: of the tag that was asked for
    gpus: int  #: devices that kernels ran on, at least 1
    notes: tuple[str, ...] = ()  #: what the user should know about the trace, a sentence each


def event_totals(trace: Trace, *, with_memory: bool = True, tag: str | None = None) -> EventTotals:
    """Sum the events of a trace.

    Args:
        trace: the events.
        with_memory: whether memory operations are wanted.
        tag: the name of the NVTX ranges that are iterations; None for no ranges.

    Raises:
        UsageError: no range of that name started GPU work.
        MergedRanksError: ranges are asked for, and several ranks reuse correlation ids.
    """
    memory = (EventKind.MEMCPY, EventKind.MEMSET)
    kernel_places = trace.kind[trace.gpu_rows] == EventKind.KERNEL
    return EventTotals(
        kernels=_totals(trace, trace.rows_of(EventKind.KERNEL)),
        memory=_totals(trace, trace.rows_of(*memory)) if with_memory else None,
        ranges=_ranges(trace, tag) if tag is not None else None,
        gpus=max(len(np.unique(trace.device[kernel_places])), 1),
        notes=trace.provenance.notes,
    )


def _totals(trace: Trace, rows: Int64Array) -> list[Total]:
    groups = group_durations([trace.name[rows]], trace.dur[rows])
    columns = (groups.keys[0], groups.total, groups.count)
    sizes = _sizes(trace, rows)
    return [
        Total(trace.names[name], time, count, sizes.get(name))
        for name, time, count in zip(*(c.tolist() for c in columns), strict=True)
    ]


def _sizes(trace: Trace, rows: Int64Array) -> dict[int, int]:
    """Code of a name → bytes that all events of that name moved, if the trace tells."""
    size = trace.arg("bytes").at(rows)
    known = size >= 0
    names, code = np.unique(trace.name[rows][known], return_inverse=True)
    sums = np.zeros(len(names), dtype=object)  # a trace may say anything: exact, of any size
    np.add.at(sums, code, size[known].astype(object))
    return dict(zip(names.tolist(), sums.tolist(), strict=True))


def _ranges(trace: Trace, tag: str) -> RangeTotal:
    chosen = _called(trace, tag)
    if not len(chosen):
        raise no_such_range(trace.provenance.path, tag, _range_names(trace))
    projected = project_ranges(trace, link(trace), chosen)
    if not len(projected):
        raise idle_range(trace.provenance.path, tag)
    return RangeTotal(tag, sum(projected.duration.tolist()), len(projected))


def _called(trace: Trace, tag: str) -> Int64Array:
    """The ranges of a name, with or without their domain: `Step`, `:Step` and `DOMAIN:Step`.

    The tables of `nsys stats` write the domain before the name, the default one as nothing.
    """
    rows = trace.rows_of(*_RANGE_KINDS)
    found = _is_named(trace, rows, tag)
    domain = trace.arg(DOMAIN).at(rows)
    for code, prefix in _domains(trace).items():
        if tag.startswith(prefix):
            found |= (domain == code) & _is_named(trace, rows, tag.removeprefix(prefix))
    return rows[found]


def _is_named(trace: Trace, rows: Int64Array, name: str) -> BoolArray:
    return np.isin(trace.name[rows], [i for i, known in enumerate(trace.names) if known == name])


def _domains(trace: Trace) -> dict[int, str]:
    """Code of each NVTX domain, `NONE` of the default one → what stands before a name."""
    texts = trace.arg(DOMAIN).texts or []
    codes = np.unique(trace.arg(DOMAIN).values).tolist()
    return {NONE: ":"} | {code: f"{json.loads(texts[code])}:" for code in codes if code != NONE}


def _range_names(trace: Trace) -> set[str]:
    """The names of all ranges, with their domains where these are not the default."""
    rows = trace.rows_of(EventKind.USER_ANNOTATION)
    pairs = np.unique(np.column_stack((trace.arg(DOMAIN).at(rows), trace.name[rows])), axis=0)
    prefixes = _domains(trace) | {NONE: ""}
    return {f"{prefixes[domain]}{trace.names[name]}" for domain, name in pairs.tolist()}
