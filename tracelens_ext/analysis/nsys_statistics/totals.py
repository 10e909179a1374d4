"""Totals of kernels, memory operations and NVTX ranges in the tables of `nsys stats`."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple

from tracelens_ext.errors import TraceFormatError, UsageError
from tracelens_ext.readers.nsys.csv_tables import (
    NsysCsvReport,
    NsysCsvTable,
    TableSource,
    open_report,
)
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions

#: Number of similar names that an error suggests.
_SUGGESTIONS = 5
#: Largest number of names that are compared to find them; each takes tens of µs.
_MOST_COMPARED = 20_000


@dataclass
class Total:
    """Time and number of all instances of one kernel or memory operation."""

    name: str
    time_ns: int
    instances: int
    size_bytes: int | None = None  #: bytes that the instances moved, if known


class Totals(list[Total]):
    """Totals by name, in the order of their table.

    Attributes:
        doubt: a sentence that explains why rows of the table seem to be missing; empty if the table
            seems to be complete.
    """

    doubt = ""


@dataclass(frozen=True)
class RangeTotal:
    """Time and number of the ranges with one NVTX tag, projected onto the GPU."""

    tag: str
    time_ns: int
    count: int


def kernel_totals(
    source: TableSource, reading: ReadingOptions = DEFAULT_READING_OPTIONS
) -> Totals:
    """Return totals by kernel from a `cuda_gpu_kern_sum` table.

    Raises:
        TraceError: the table cannot be read, or has no kernels.
    """
    table = open_report(
        source, NsysCsvReport.KERNELS, label="the kernel table", reading=reading
    )
    totals = _totals(table, "name", "instances")
    if not totals:
        remedy = "create it again; it may be truncated"
        raise TraceFormatError(table.source, "has a header, but no kernels", remedy)
    return totals


def memory_totals(
    source: TableSource,
    sizes: TableSource | None = None,
    reading: ReadingOptions = DEFAULT_READING_OPTIONS,
) -> Totals:
    """Return totals by kind of memory operation.

    Args:
        source: a `cuda_gpu_mem_time_sum` table.
        sizes: the `cuda_gpu_mem_size_sum` table of the same recording, if there is one.
        reading: how files are read.
    """
    table = open_report(
        source, NsysCsvReport.MEMORY_TIME, label="the memory table", reading=reading
    )
    totals = _totals(table, "operation", "count")
    if sizes is not None:
        _add_sizes(totals, sizes, reading)
    return totals


def _add_sizes(totals: Totals, sizes: TableSource, reading: ReadingOptions) -> None:
    """Add the bytes in a table of sizes to the totals of the same operations."""
    table = open_report(
        sizes, NsysCsvReport.MEMORY_SIZE, label="the table of sizes", reading=reading
    )
    total_of_name = {total.name: total for total in totals}
    for batch in table.batches:
        sizes_of_rows = batch.required("total", batch.sizes("total"))
        for name, size in zip(batch.texts("operation"), sizes_of_rows, strict=True):
            total = total_of_name.get(name)
            if total is not None:
                total.size_bytes = (total.size_bytes or 0) + size


def range_total(
    source: TableSource, tag: str, reading: ReadingOptions = DEFAULT_READING_OPTIONS
) -> RangeTotal:
    """Return the total of the ranges with one tag from an `nvtx_gpu_proj_trace` table.

    `nsys stats` writes a colon before the names of the default domain; it is ignored.

    Raises:
        UsageError: no range has that tag.
    """
    table = open_report(
        source, NsysCsvReport.RANGES, label="the NVTX table", reading=reading
    )
    all_names: set[str] = set()
    durations_of_tag: list[int] = []
    for batch in table.batches:
        names = batch.texts("name")
        durations = batch.required(
            "projectedduration", batch.nanoseconds("projectedduration")
        )
        has_tag = [name.removeprefix(":") == tag.removeprefix(":") for name in names]
        durations_of_tag += compress(durations, has_tag)
        all_names.update(names)
    if not durations_of_tag:
        raise no_such_range(table.source, tag, all_names)
    return RangeTotal(
        tag=tag, time_ns=sum(durations_of_tag), count=len(durations_of_tag)
    )


def no_such_range(source: str, tag: str, names: Collection[str]) -> UsageError:
    """Return the error for a tag that no range has.

    Args:
        source: the file.
        tag: the tag.
        names: the names of all ranges in the file, to suggest similar ones.
    """
    if not names:
        reason = (
            "there are no ranges that started GPU work; record with: nsys profile -t "
            "cuda,nvtx"
        )
        return UsageError(f"{source}: no NVTX range {tag!r}: {reason}")
    compared = sorted(names)[:_MOST_COMPARED]
    nearest = difflib.get_close_matches(tag, compared, n=_SUGGESTIONS, cutoff=0.0)
    suggestions = ", ".join(repr(name) for name in nearest)
    return UsageError(
        f"{source}: there is no NVTX range called {tag!r}; the closest names: "
        f"{suggestions}"
    )


class _LongestRow(NamedTuple):
    """The row of a table with the longest time."""

    time_ns: int
    percentage: object  #: its share of the time of all rows, as the table states it


def _totals(table: NsysCsvTable, name_column: str, count_column: str) -> Totals:
    """Return totals by name, in the order of the table; rows with the same name are added up."""
    total_of_name: dict[str, Total] = {}
    longest_row = _LongestRow(0, None)
    last_line_is_cut_off = False
    for batch in table.batches:
        names = batch.texts(name_column)
        times = batch.required("totaltime", batch.nanoseconds("totaltime"))
        counts = batch.required(count_column, batch.whole(count_column))
        for name, time, count in zip(names, times, counts, strict=True):
            total = total_of_name.setdefault(
                name, Total(name=name, time_ns=0, instances=0)
            )
            total.time_ns += time
            total.instances += count
        rows = map(_LongestRow, times, batch.columns["time"])
        longest_row = max(longest_row, *rows, key=lambda row: row.time_ns)
        last_line_is_cut_off = batch.unfinished
    totals = Totals(total_of_name.values())
    totals.doubt = _missing_rows(
        source=table.source,
        longest_row=longest_row,
        total_ns=sum(total.time_ns for total in totals),
    )
    if last_line_is_cut_off and not totals.doubt:
        totals.doubt = (
            f"{table.source}: its last line is incomplete; the file may be truncated"
        )
    return totals


def _missing_rows(source: str, longest_row: _LongestRow, total_ns: int) -> str:
    """Return a sentence if the percentage of the longest row shows that rows are missing; else "".

    For example, a row of 50 ns states a share of 25 %, which implies a total of 200 ns. If the rows
    of the table add up to only 100 ns, rows with half of the time are missing.
    """
    text = str(longest_row.percentage).strip(" %")
    try:
        percent = float(text)
    except ValueError:
        return ""
    _, _, decimals = text.partition(".")
    # The percentage was rounded, so the true share may be larger by half of the last decimal.
    most_percent = percent + 0.5 * 10.0 ** -len(decimals)
    is_complete = total_ns * most_percent >= 100 * longest_row.time_ns
    if is_complete:
        return ""
    if not 0 < percent <= 100:
        return ""
    expected_ns = 100 * longest_row.time_ns / percent
    present_percent = 100 * total_ns / expected_ns
    return (
        f"{source}: its rows cover {present_percent:.0f} % of the time that its percentages "
        "imply; it was truncated or filtered, and the rest is not counted"
    )
