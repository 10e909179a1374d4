"""Totals by name: what the statistics start from, whether of `nsys stats` tables or of a trace."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracelens_ext.errors import TraceFormatError, UsageError
from tracelens_ext.readers.nsys.csv_tables import Report, TableSource, open_report
from tracelens_ext.settings import AS_USUAL, ReadingOptions

if TYPE_CHECKING:
    from collections.abc import Collection


_NEAREST = 5
_MOST_COMPARED = 20_000  # names; comparing one takes some tens of microseconds


@dataclass(frozen=True)
class Total:
    """How long all instances of something lasted together, and what they moved, if known."""

    name: str
    time_ns: int
    instances: int
    size_bytes: int | None = None


class Totals(list[Total]):
    """Totals by name, in the order of their table."""

    doubt = ""  #: why rows of the table seem to be missing; empty if none seem to be


@dataclass(frozen=True)
class RangeTotal:
    """The ranges of one NVTX tag, projected onto the GPU."""

    tag: str
    time_ns: int
    count: int


def kernel_totals(source: TableSource, reading: ReadingOptions = AS_USUAL) -> Totals:
    """Totals by kernel, of a `cuda_gpu_kern_sum` table."""
    totals = _totals(source, Report.KERNELS, "name", "instances", "the kernel table", reading)
    if not totals:
        path = source if isinstance(source, str | os.PathLike) else "the kernel table"
        raise TraceFormatError(
            path, "has a header and no kernels", "make it again; perhaps it was cut off"
        )
    return totals


def memory_totals(
    source: TableSource, sizes: TableSource | None = None, reading: ReadingOptions = AS_USUAL
) -> Totals:
    """Totals by kind of memory operation."""
    totals = _totals(source, Report.MEMORY_TIME, "operation", "count", "the memory table", reading)
    if sizes is None:
        return totals
    moved: Counter[str] = Counter()
    table = open_report(sizes, Report.MEMORY_SIZE, label="the table of sizes", reading=reading)
    for piece in table.pieces:
        given = piece.required("total", piece.sizes("total"))
        for name, size in zip(piece.texts("operation"), given, strict=True):
            moved[name] += size
    totals[:] = [replace(total, size_bytes=moved.get(total.name)) for total in totals]
    return totals


def range_total(source: TableSource, tag: str, reading: ReadingOptions = AS_USUAL) -> RangeTotal:
    """The ranges of a tag, of an `nvtx_gpu_proj_trace` table.

    The colon that `nsys stats` puts before names of the default domain does not matter.
    """
    table = open_report(source, Report.RANGES, label="the NVTX table", reading=reading)
    seen: set[str] = set()
    time = count = 0
    for piece in table.pieces:
        names = piece.texts("name")
        durations = piece.required("projectedduration", piece.nanoseconds("projectedduration"))
        chosen = [
            duration
            for name, duration in zip(names, durations, strict=True)
            if name.removeprefix(":") == tag.removeprefix(":")
        ]
        time, count = time + sum(chosen), count + len(chosen)
        seen.update(names)
    if not count:
        raise no_such_range(table.source, tag, seen)
    return RangeTotal(tag, time, count)


def idle_range(source: str, tag: str) -> UsageError:
    """The error for a tag whose ranges started no GPU work."""
    return UsageError(
        f"{source}: the NVTX ranges {tag!r} started no GPU work on their threads; name ranges"
        " around the launches"
    )


def no_such_range(source: str, tag: str, names: Collection[str]) -> UsageError:
    """The error for a tag that no range has."""
    if not names:
        return UsageError(
            f"{source}: no NVTX range {tag!r}: there are no ranges that started GPU work;"
            " record with: nsys profile -t cuda,nvtx"
        )
    some = sorted(names)[:_MOST_COMPARED]
    near = difflib.get_close_matches(tag, some, n=_NEAREST, cutoff=0.0)
    shown = ", ".join(repr(name) for name in near)
    return UsageError(f"{source}: no NVTX range is called {tag!r}; the nearest: {shown}")


def _totals(
    source: TableSource,
    report: Report,
    name_column: str,
    count_column: str,
    label: str,
    reading: ReadingOptions,
) -> Totals:
    """Totals by name, in the order of the table; rows of one name are taken together."""
    table = open_report(source, report, label=label, reading=reading)
    sums: dict[str, tuple[int, int]] = {}
    longest: tuple[int, object] = (0, None)
    unfinished = False
    for piece in table.pieces:
        times = piece.required("totaltime", piece.nanoseconds("totaltime"))
        counts = piece.required(count_column, piece.whole(count_column))
        for name, time, count in zip(piece.texts(name_column), times, counts, strict=True):
            time_before, count_before = sums.get(name, (0, 0))
            sums[name] = time_before + time, count_before + count
        shares = piece.columns.get("time", [None] * len(times))
        unfinished = piece.unfinished
        longest = max(longest, *zip(times, shares, strict=True), key=lambda row: row[0])
    totals = Totals(Total(name, time, count) for name, (time, count) in sums.items())
    totals.doubt = _missing_rows(table.source, *longest, sum(time for time, _ in sums.values()))
    if unfinished and not totals.doubt:
        totals.doubt = f"{table.source}: its last line does not end; perhaps it was cut off there"
    return totals


def _missing_rows(source: str, time: int, share: object, total: int) -> str:
    """A sentence if a table holds less than the percentage of its longest row tells; else empty."""
    text = str(share).strip(" %")
    try:
        percent = float(text)
    except ValueError:
        return ""
    rounded = 0.5 * 10.0 ** -len(text.partition(".")[2])
    if not 0 < percent <= 100 or total * (percent + rounded) >= 100 * time:
        return ""
    found = 100 * total / (100 * time / percent)
    return (
        f"{source}: its rows are {found:.0f} % of the time that its percentages tell; it was"
        " cut off or filtered, and the rest counts nowhere"
    )
