"""The statistics as text, in the layout of GPU Performance Analyser."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from tracelens_ext.analysis.nsys_statistics.exact_numbers import (
    NS_PER_MS,
    fixed_point_text,
    percentage,
)
from tracelens_ext.analysis.nsys_statistics.statistics import ClassStatistics, Line
from tracelens_ext.analysis.nsys_statistics.totals import RangeTotal
from tracelens_ext.report.terminal import safe_text

_CLASS_WIDTH = 15
_MEMORY_WIDTH = 21


class _TextColumn(NamedTuple):
    """A column of a table in text."""

    title: str
    width: int  #: characters from the start of its title to that of the next title


_TIME_PER_ITERATION = _TextColumn("TimePerIter(ms)", 17)
_INSTANCES_PER_ITERATION = _TextColumn("InstancePerIter", 17)
_PERCENT_PER_ITERATION = _TextColumn("TimePerIter(%)", 17)
_TOTAL_TIME = _TextColumn("TotalTime(ms)", 17)
_TOTAL_INSTANCES = _TextColumn("TotalInstance", 15)
_TOTAL_PERCENT = _TextColumn("TotalTime(%)", 15)
_NOT_HIDDEN = "Estimated non-hidden NCCL, mem ops and bubble"


def text(statistics: ClassStatistics, title: str | None) -> str:
    """Return the statistics of one input as text, in lines that end with a line feed.

    Args:
        statistics: the statistics.
        title: the heading; None for no heading.
    """
    kernel_block = _summary(statistics, "Kernel", statistics.kernel_total)
    kernel_block += _table(
        statistics=statistics,
        lines=statistics.kernels,
        name_width=_CLASS_WIDTH,
        whole_ns=statistics.kernel_total.time_ns,
    )
    if title is not None:
        kernel_block.insert(0, f"===== {safe_text(title)} =====")
    nccl_block = _summary(statistics, "NCCL", statistics.nccl_total)
    nccl_block += _table(
        statistics=statistics, lines=statistics.nccl, name_width=_CLASS_WIDTH
    )
    blocks = [kernel_block, nccl_block]
    if statistics.memory is not None:
        memory_table = _table(statistics, statistics.memory, _MEMORY_WIDTH)
        blocks.append(["Mem Ops Statistic:"] + memory_table)
    if statistics.ranges is not None:
        blocks.append(_range_lines(statistics, statistics.ranges))
    texts = ["\n".join(block) for block in blocks]
    return "\n\n".join(texts) + "\n"


def _milliseconds(ns: Fraction | int, decimals: int = 3) -> str:
    """Return a time in ns as text in ms."""
    return fixed_point_text(Fraction(ns) / NS_PER_MS, decimals)


def _summary(statistics: ClassStatistics, what: str, total: Line) -> list[str]:
    """Return the lines above a table: the time and the instances of all its rows."""
    per_iteration = Fraction(total.time_ns, statistics.divisor)
    return [
        f"{what} time per iteration: {_milliseconds(per_iteration)} (ms)",
        f"{what} instances per iteration: {total.per_iteration}",
        f"{what} total time: {_milliseconds(total.time_ns)} (ms)",
        f"{what} total instances: {total.instances}",
        f"{what} Statistic:",
    ]


def _table(
    statistics: ClassStatistics,
    lines: Sequence[Line],
    name_width: int,
    whole_ns: int | None = None,
) -> list[str]:
    """Return the lines of a table: its header, and a row for each class, collective or operation.

    Args:
        statistics: the statistics, for the number of iterations and GPUs.
        lines: the rows.
        name_width: the least width of the column of names; it grows with the longest name.
        whole_ns: the time that is 100 %, ns; None for a table without percentages.
    """
    names = [safe_text(line.name) for line in lines]
    name_width = max(name_width, *map(len, names), 0)
    columns = [_TIME_PER_ITERATION, _INSTANCES_PER_ITERATION]
    if whole_ns is not None:
        columns.append(_PERCENT_PER_ITERATION)
    columns += [_TOTAL_TIME, _TOTAL_INSTANCES]
    if whole_ns is not None:
        columns.append(_TOTAL_PERCENT)
    titles = "".join(column.title.ljust(column.width) for column in columns)
    rows = ["Class".ljust(name_width + 2) + titles.rstrip()]
    for name, line in zip(names, lines, strict=True):
        cells = _cells(statistics, line, whole_ns)
        rows.append(
            _row(name=name, name_width=name_width, columns=columns, cells=cells)
        )
    return rows


def _cells(statistics: ClassStatistics, line: Line, whole_ns: int | None) -> list[str]:
    """Return the cells of a row, in the order of the columns."""
    mean_ns = Fraction(line.time_ns, statistics.divisor)
    per_iteration = [_milliseconds(mean_ns, 2), str(line.per_iteration)]
    in_total = [_milliseconds(line.time_ns, 2), str(line.instances)]
    if whole_ns is None:
        return per_iteration + in_total
    # Both times are divided by the same number, so the share per iteration is that of the total.
    percent = fixed_point_text(percentage(line.time_ns, whole_ns), 2)
    return per_iteration + [percent] + in_total + [percent]


def _row(
    name: str, name_width: int, columns: Sequence[_TextColumn], cells: Sequence[str]
) -> str:
    """Return a row in which each cell ends below the end of the title of its column."""
    row = name
    column_start = name_width + 2
    for column, cell in zip(columns, cells, strict=True):
        title_end = column_start + len(column.title)
        row += " " + cell.rjust(title_end - len(row) - 1)
        column_start += column.width
    return row


def _range_lines(statistics: ClassStatistics, ranges: RangeTotal) -> list[str]:
    """Return the lines about NVTX ranges, and about the time in them without kernels."""
    average_ns = statistics.range_average_ns
    total_ns = Fraction(ranges.time_ns)
    lines = [
        f"NVTX range count: {ranges.count}",
        f"NVTX average range time: {_milliseconds(average_ns)} (ms)",
        f"NVTX total range time: {_milliseconds(total_ns)} (ms)",
        "",
    ]
    lines += _not_hidden_lines("time per range", statistics.not_hidden_ns, average_ns)
    lines += _not_hidden_lines("total time", statistics.not_hidden_total_ns, total_ns)
    return lines


def _not_hidden_lines(what: str, part_ns: Fraction, whole_ns: Fraction) -> list[str]:
    """Return the time without kernels in ms, and as a percentage of the time of the ranges."""
    return [
        f"{_NOT_HIDDEN} {what}: {_milliseconds(part_ns)} (ms)",
        f"{_NOT_HIDDEN} {what}: {fixed_point_text(percentage(part_ns, whole_ns), 2)} (%)",
    ]
