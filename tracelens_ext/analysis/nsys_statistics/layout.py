"""The statistics as text, in the layout of GPU Performance Analyser."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from tracelens_ext.analysis.nsys_statistics.statistics import ClassStatistics, Line
from tracelens_ext.analysis.nsys_statistics.totals import RangeTotal
from tracelens_ext.report.terminal import safe_text

_NS_PER_MS = 10**6
_CLASS_WIDTH = 15
_MEMORY_WIDTH = 21


class _TextColumn(NamedTuple):
    """A column of a table in text."""

    title: str
    #: number of characters from the start of the title to that of the next one
    width: int


_TIME_PER_ITERATION = _TextColumn("TimePerIter(ms)", 17)
_INSTANCES_PER_ITERATION = _TextColumn("InstancePerIter", 17)
_PERCENT_PER_ITERATION = _TextColumn("TimePerIter(%)", 17)
_TOTAL_TIME = _TextColumn("TotalTime(ms)", 17)
_TOTAL_INSTANCES = _TextColumn("TotalInstance", 15)
_TOTAL_PERCENT = _TextColumn("TotalTime(%)", 15)
_ESTIMATED = "Estimated non-hidden NCCL, mem ops and bubble"


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
        percent_of_ns=statistics.kernel_total.time_ns,
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
        blocks.append(_estimates(statistics, statistics.ranges))
    texts = ["\n".join(block) for block in blocks]
    return "\n\n".join(texts) + "\n"


def fixed(value: Fraction, decimals: int) -> str:
    """Return a number as text, rounded to a number of decimals; halves are rounded to even."""
    # A float would round twice: once to a binary fraction, then to decimals.
    scaled = round(value * 10**decimals)
    return f"{Decimal(f'{scaled}e-{decimals}'):f}"


def percentage(part: Fraction | int, whole: Fraction | int) -> Fraction:
    """Return `part` as a percentage of `whole`, and 0 if the whole is 0."""
    if not whole:
        return Fraction(0)
    return 100 * Fraction(part) / whole


def _milliseconds(ns: Fraction | int, decimals: int = 3) -> str:
    return fixed(Fraction(ns) / _NS_PER_MS, decimals)


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
    percent_of_ns: int | None = None,
) -> list[str]:
    """Return the lines of a table: its header, and a row for each class, collective or operation.

    Args:
        statistics: the statistics, for the number of iterations and GPUs.
        lines: the rows.
        name_width: the least width of the column of names; it grows with the longest name.
        percent_of_ns: the time that percentages are of, ns; None for no columns of percentages.
    """
    names = [safe_text(line.name) for line in lines]
    name_width = max(name_width, *map(len, names), 0)
    columns = [_TIME_PER_ITERATION, _INSTANCES_PER_ITERATION]
    if percent_of_ns is not None:
        columns.append(_PERCENT_PER_ITERATION)
    columns += [_TOTAL_TIME, _TOTAL_INSTANCES]
    if percent_of_ns is not None:
        columns.append(_TOTAL_PERCENT)
    titles = "".join(column.title.ljust(column.width) for column in columns)
    rows = ["Class".ljust(name_width + 2) + titles.rstrip()]
    for name, line in zip(names, lines, strict=True):
        cells = _cells(statistics, line, percent_of_ns)
        rows.append(
            _row(name=name, name_width=name_width, columns=columns, cells=cells)
        )
    return rows


def _cells(
    statistics: ClassStatistics, line: Line, percent_of_ns: int | None
) -> list[str]:
    """Return the cells of a row, in the order of the columns."""
    mean_ns = Fraction(line.time_ns, statistics.divisor)
    per_iteration = [_milliseconds(mean_ns, 2), str(line.per_iteration)]
    in_total = [_milliseconds(line.time_ns, 2), str(line.instances)]
    if percent_of_ns is None:
        return per_iteration + in_total
    percent = fixed(percentage(line.time_ns, percent_of_ns), 2)
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


def _estimates(statistics: ClassStatistics, ranges: RangeTotal) -> list[str]:
    """Return the lines about NVTX ranges, and about the time in them without kernels."""
    average_ns = statistics.range_average_ns
    total_ns = Fraction(ranges.time_ns)
    lines = [
        f"NVTX range count: {ranges.count}",
        f"NVTX average range time: {_milliseconds(average_ns)} (ms)",
        f"NVTX total range time: {_milliseconds(total_ns)} (ms)",
        "",
    ]
    lines += _estimate("time per range", statistics.exposed_ns, average_ns)
    lines += _estimate("total time", statistics.exposed_total_ns, total_ns)
    return lines


def _estimate(what: str, part_ns: Fraction, whole_ns: Fraction) -> list[str]:
    """Return the time without kernels in ms, and as a percentage of the time of the ranges."""
    return [
        f"{_ESTIMATED} {what}: {_milliseconds(part_ns)} (ms)",
        f"{_ESTIMATED} {what}: {fixed(percentage(part_ns, whole_ns), 2)} (%)",
    ]
