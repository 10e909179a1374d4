"""The statistics as text, in the layout of GPU Performance Analyser, as tables, and from Python.

`StatisticClassifier` computes and shows them; its names are those of that program's users' scripts.
"""

from __future__ import annotations

import csv
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from tracelens_ext.analysis.nsys_statistics import statistics as totals
from tracelens_ext.analysis.nsys_statistics.statistics import (
    ClassStatistics,
    Line,
    RangeTotal,
)
from tracelens_ext.categorize.maps import NCCL_CLASS, OTHERS_CLASS
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.notebook import cell_html, short_repr
from tracelens_ext.readers.nsys.csv_tables import TableSource
from tracelens_ext.report.report import Report
from tracelens_ext.report.terminal import safe_text
from tracelens_ext.text import encodable

#: Statistics, each with the title of its input.
Titled = Sequence[tuple[str, ClassStatistics]]
Record = dict[str, object]

_NS_PER_MS = 10**6
_CLASS_WIDTH = 15
_MEMORY_WIDTH = 21


class _TextColumn(NamedTuple):
    """A column of a table of text: its title, and the width from there to the next title."""

    title: str
    width: int


_TIME_PER_ITERATION = _TextColumn("TimePerIter(ms)", 17)
_INSTANCES_PER_ITERATION = _TextColumn("InstancePerIter", 17)
_PERCENT_PER_ITERATION = _TextColumn("TimePerIter(%)", 17)
_TOTAL_TIME = _TextColumn("TotalTime(ms)", 17)
_TOTAL_INSTANCES = _TextColumn("TotalInstance", 15)
_TOTAL_PERCENT = _TextColumn("TotalTime(%)", 15)
_ESTIMATED = "Estimated non-hidden NCCL, mem ops and bubble"


# As text.


def text(statistics: ClassStatistics, title: str | None) -> str:
    """Return the statistics of one input as text, in lines that end with a line feed."""
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
    """Return a number with so many decimals, rounded exactly, halves to even."""
    scaled = round(value * 10**decimals)
    return f"{Decimal(f'{scaled}e-{decimals}'):f}"


def percentage(part: Fraction | int, whole: Fraction | int) -> Fraction:
    """Return `part` in percent of `whole`; 0 if that is 0."""
    if not whole:
        return Fraction(0)
    return 100 * Fraction(part) / whole


def _milliseconds(ns: Fraction | int, decimals: int = 3) -> str:
    return fixed(Fraction(ns) / _NS_PER_MS, decimals)


def _summary(statistics: ClassStatistics, what: str, total: Line) -> list[str]:
    """Return the lines above a table: times and instances of all its rows."""
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
    """Return a header, and a row for each line.

    Args:
        statistics: what the lines are of.
        lines: the rows.
        name_width: the width of the column of names; wider if a name is.
        percent_of_ns: what percentages are of; None for no percentages.
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
    """Return a row whose cells end where the titles of their columns do."""
    row = name
    column_begin = name_width + 2
    for column, cell in zip(columns, cells, strict=True):
        title_end = column_begin + len(column.title)
        row += " " + cell.rjust(title_end - len(row) - 1)
        column_begin += column.width
    return row


def _estimates(statistics: ClassStatistics, ranges: RangeTotal) -> list[str]:
    """Return the lines about NVTX ranges, and the time in them that is not kernels'."""
    average_ns = statistics.range_average_ns
    total_ns = Fraction(ranges.time_ns)
    return (
        [
            f"NVTX range count: {ranges.count}",
            f"NVTX average range time: {_milliseconds(average_ns)} (ms)",
            f"NVTX total range time: {_milliseconds(total_ns)} (ms)\n",
        ]
        + _estimate("time per range", statistics.exposed_ns, average_ns)
        + _estimate("total time", statistics.exposed_total_ns, total_ns)
    )


def _estimate(what: str, part_ns: Fraction, whole_ns: Fraction) -> list[str]:
    return [
        f"{_ESTIMATED} {what}: {_milliseconds(part_ns)} (ms)",
        f"{_ESTIMATED} {what}: {fixed(percentage(part_ns, whole_ns), 2)} (%)",
    ]


# As tables.

DESCRIPTIONS = {
    "inputs": "Kernel and NCCL time of each input, NVTX ranges, and the time without kernels",
    "kernel_classes": "Kernel time by class, without NCCL",
    "nccl": "NCCL time by collective",
    "memory_operations": "Memory operations by kind",
    "kernels": "The class of each kernel",
}


def document(statistics: Titled, problems: Sequence[str] = ()) -> Report:
    """Return the statistics of some inputs as a report; `problems` say why others are left out."""
    notes = [f"Left out: {problem}" for problem in problems]
    titles = []
    for title, of_input in statistics:
        titles.append(title)
        notes += [f"{title}: {note}" for note in of_input.warnings + of_input.notes]
    return Report(
        title="GPU time by kernel class",
        sheets=tables(statistics),
        facts=[("Inputs", ", ".join(titles))],
        notes=notes,
        descriptions=DESCRIPTIONS,
    )


def tables(statistics: Titled) -> dict[str, pd.DataFrame]:
    """Return the statistics of some inputs by table, each with the column `title`; times in ms."""
    records: dict[str, list[Record]] = {name: [] for name in DESCRIPTIONS}
    for title, of_input in statistics:
        records_of_input = _records(of_input)
        for table, rows in records_of_input.items():
            titled_rows = [{"title": title} | row for row in rows]
            records[table] += titled_rows
    frames = {}
    for table, rows in records.items():
        if rows:
            frames[table] = _frame(rows)
    return frames


def _frame(records: Sequence[Record]) -> pd.DataFrame:
    """Return rows as a table; texts can be written anywhere."""
    rows = []
    for record in records:
        row = dict(record)
        for name, value in record.items():
            if isinstance(value, str):
                row[name] = encodable(value)
        rows.append(row)
    return pd.DataFrame(rows)


def _records(statistics: ClassStatistics) -> dict[str, list[Record]]:
    """Return the rows of one input by table."""
    memory = statistics.memory or ()
    return {
        "inputs": [_input_record(statistics)],
        "kernel_classes": [
            _class_record(statistics, line) for line in statistics.kernels
        ],
        "nccl": [
            _line_record(statistics, line, "collective") for line in statistics.nccl
        ],
        "memory_operations": [_memory_record(statistics, line) for line in memory],
        "kernels": [
            _kernel_record(class_name, kernel)
            for class_name, kernel in statistics.kernel_classes
        ],
    }


def _input_record(statistics: ClassStatistics) -> Record:
    record: Record = {
        "iteration_count": statistics.iterations,
        "gpu_count": statistics.gpus,
    }
    for what, total in (
        ("kernel", statistics.kernel_total),
        ("nccl", statistics.nccl_total),
    ):
        for column, value in _time_columns(statistics, total).items():
            record[f"{what}_{column}"] = value
    ranges = statistics.ranges
    if ranges is None:
        return record
    return record | {
        "range_tag": ranges.tag,
        "range_count": ranges.count,
        "expected_range_count": statistics.divisor,
        "range_time_average_ms": _ms(statistics.range_average_ns),
        "range_time_total_ms": _ms(ranges.time_ns),
        "not_hidden_time_per_range_ms": _ms(statistics.exposed_ns),
        "not_hidden_percent_of_range": float(
            percentage(statistics.exposed_ns, statistics.range_average_ns)
        ),
        "not_hidden_time_total_ms": _ms(statistics.exposed_total_ns),
        "not_hidden_percent_of_total": float(
            percentage(statistics.exposed_total_ns, ranges.time_ns)
        ),
    }


def _time_columns(statistics: ClassStatistics, line: Line) -> Record:
    return {
        "time_per_iteration_ms": _ms(Fraction(line.time_ns, statistics.divisor)),
        "count_per_iteration": line.per_iteration,
        "total_time_ms": _ms(line.time_ns),
        "total_count": line.instances,
    }


def _line_record(statistics: ClassStatistics, line: Line, name_column: str) -> Record:
    return {name_column: line.name, **_time_columns(statistics, line)}


def _class_record(statistics: ClassStatistics, line: Line) -> Record:
    kernel_ns = statistics.kernel_total.time_ns
    record = _line_record(statistics, line, "class")
    record["% of kernel time"] = float(percentage(line.time_ns, kernel_ns))
    return record


def _memory_record(statistics: ClassStatistics, line: Line) -> Record:
    record = _line_record(statistics, line, "operation")
    if line.size_bytes is not None:
        record["total_bytes"] = line.size_bytes
    return record


def _kernel_record(class_name: str, kernel: totals.Total) -> Record:
    return {
        "kernel_name": kernel.name,
        "class": class_name,
        "total_time_ms": _ms(kernel.time_ns),
        "count": kernel.instances,
    }


def _ms(ns: Fraction | int) -> float:
    return float(Fraction(ns) / _NS_PER_MS)


# From Python.

#: The unit of the times, by `time_scale_to_ms`.
_UNIT_OF_SCALE = {1e-6: "ns", 1e-3: "us", 1.0: "ms", 1e3: "s"}


class StatisticClassifier:
    """Sums `nsys stats` tables by classes of kernels.

    Args:
        name_to_class_map: part of a kernel name → class. Case does not matter, the first key that a
            name contains wins, kernels without a key are `others`, and NCCL's are counted apart.

    Attributes:
        name_to_class_map: the same in lower case.

    Raises:
        RuleError: a key contains another, a class is `others`, or something is no text.
    """

    OTHER_CLASS_NAME = OTHERS_CLASS
    NCCL_CLASS_NAME = NCCL_CLASS

    def __init__(self, name_to_class_map: Mapping[str, str]) -> None:
        self._classes = totals.Classifier(name_to_class_map)
        lower = ((key.lower(), name.lower()) for key, name in name_to_class_map.items())
        self.name_to_class_map = dict(lower)

    def statistic(
        self,
        iter_times: int,
        kernels: TableSource,
        nvtxes: TableSource | None = None,
        mems: TableSource | None = None,
        num_processes: int = 1,
        with_header: bool = True,
        time_scale_to_ms: float = 1e-6,
        kernel_total_time_idx: int = 1,
        kernel_instance_idx: int = 2,
        kernel_name_idx: int = 8,
        nvtx_iter_name: str | None = None,
        nvtx_name_idx: int = 0,
        nvtx_proj_duration_idx: int = 2,
        mem_name_idx: int = 8,
        mem_time_idx: int = 1,
        mem_count_idx: int = 2,
    ) -> StatisticReport:
        """Compute the statistics of one run.

        A table is a path, a DataFrame, or a list of rows: mappings, or lists of which the first is
        the header. Its columns and units are found by their titles; the places of columns and
        `time_scale_to_ms` count only for tables without a header.

        Args:
            iter_times: iterations that were recorded.
            kernels: a `cuda_gpu_kern_sum` table.
            nvtxes: an `nvtx_gpu_proj_trace` table; None for no NVTX ranges.
            mems: a `cuda_gpu_mem_time_sum` table; None for no memory operations.
            num_processes: GPUs that went through each iteration.
            with_header: whether the first row of a table holds the titles.
            time_scale_to_ms: what makes ms of a time: 1e-6, 1e-3, 1 or 1000.
            kernel_total_time_idx: place of the total time, from 0.
            kernel_instance_idx: that of the number of instances.
            kernel_name_idx: that of the name.
            nvtx_iter_name: the name of the ranges that are iterations; `nvtxes` needs it.
            nvtx_name_idx: place of a range's name.
            nvtx_proj_duration_idx: that of its duration on the GPU.
            mem_name_idx: place of a memory operation's name.
            mem_time_idx: that of its total time.
            mem_count_idx: that of its count.

        Returns:
            The statistics. A number of ranges that differs from iterations times GPUs, and rows
            that seem to be missing, are told as a `UserWarning`.

        Raises:
            TraceError: a file is not there, or a table is not what it should be.
            UsageError: no range has that name, or an argument does not make sense.
        """
        _check_count("iter_times", iter_times)
        _check_count("num_processes", num_processes)
        if nvtxes is not None and nvtx_iter_name is None:
            raise UsageError(
                "an NVTX table needs nvtx_iter_name, the name of the iteration ranges"
            )
        if not with_header:
            unit = _unit_of(time_scale_to_ms)
            total_time = f"Total Time ({unit})"
            kernels = _with_titles(
                kernels,
                {
                    kernel_total_time_idx: total_time,
                    kernel_instance_idx: "Instances",
                    kernel_name_idx: "Name",
                },
            )
            if nvtxes is not None:
                nvtxes = _with_titles(
                    nvtxes,
                    {
                        nvtx_name_idx: "Name",
                        nvtx_proj_duration_idx: f"Projected Duration ({unit})",
                    },
                    first_other_title="Projected Start",
                )
            if mems is not None:
                mems = _with_titles(
                    mems,
                    {
                        mem_time_idx: total_time,
                        mem_count_idx: "Count",
                        mem_name_idx: "Operation",
                    },
                )
        statistics = totals.compute(
            self._classes,
            kernels=totals.kernel_totals(kernels),
            memory=None if mems is None else totals.memory_totals(mems),
            ranges=None
            if nvtxes is None
            else totals.range_total(nvtxes, nvtx_iter_name or ""),
            iterations=iter_times,
            gpus=num_processes,
        )
        for warning in statistics.warnings:
            warnings.warn(warning, UserWarning, stacklevel=2)
        return StatisticReport(statistics)


def _check_count(name: str, number: object) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise UsageError(f"{name} is {number!r}; give an integer from 1")


def _unit_of(time_scale_to_ms: float) -> str:
    unit = _UNIT_OF_SCALE.get(time_scale_to_ms)
    if unit is None:
        raise UsageError(f"time_scale_to_ms is {time_scale_to_ms!r}; give 1e-6 for ns")
    return unit


class StatisticReport:
    """The statistics of one run, to be shown or used.

    Attributes:
        statistics: the numbers, exact.
        kernel_statistic_table: class → time (ms) and instances per iteration, and in total;
            `nccl_statistic_table` is by collective, `mem_statistic_table` by kind of operation,
            None without a table of them.
        kernel_total_time_per_iter: ms, as all times, without NCCL; as are the next three.
        nccl_total_time_per_iter: of NCCL, as are the next three.
        nvtx_avg_range_time: 0 without ranges, as are the next two.
    """

    def __init__(self, statistics: ClassStatistics) -> None:
        self.statistics = statistics

        def numbers(line: Line) -> list[float]:
            time_ms = line.time_ns / _NS_PER_MS
            return [
                time_ms / statistics.divisor,
                line.per_iteration,
                time_ms,
                line.instances,
            ]

        def table(lines: Sequence[Line]) -> dict[str, list[float]]:
            return {line.name: numbers(line) for line in lines}

        kernels = numbers(statistics.kernel_total)
        self.kernel_statistic_table = table(statistics.kernels)
        self.kernel_total_time_per_iter = kernels[0]
        self.kernel_total_instancess_per_iter = kernels[1]
        self.kernel_total_time = kernels[2]
        self.kernel_total_instances = kernels[3]

        nccl = numbers(statistics.nccl_total)
        self.nccl_statistic_table = table(statistics.nccl)
        self.nccl_total_time_per_iter = nccl[0]
        self.nccl_total_kernels_per_iter = nccl[1]
        self.nccl_total_time = nccl[2]
        self.nccl_total_kernels = nccl[3]

        self.nvtx_avg_range_time = float(statistics.range_average_ns) / _NS_PER_MS
        self.nvtx_total_range_time = 0.0
        self.nvtx_range_count = 0
        if statistics.ranges is not None:
            self.nvtx_total_range_time = statistics.ranges.time_ns / _NS_PER_MS
            self.nvtx_range_count = statistics.ranges.count

        self.mem_statistic_table: dict[str, list[float]] | None = None
        if statistics.memory is not None:
            self.mem_statistic_table = table(statistics.memory)

    def __repr__(self) -> str:
        return short_repr("StatisticReport", self.text())

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the tables."""
        return cell_html(
            title="GPU time by class of kernel", lines=(), tables=self.tables()
        )

    def text(self, title: str | None = None) -> str:
        """Return the statistics as text, without a heading unless a title is given."""
        return text(self.statistics, title)

    def tables(self, title: str = "") -> dict[str, pd.DataFrame]:
        """Return the statistics as tables by name; see `tables`."""
        return tables([(title, self.statistics)])

    def show(self, title: str | None = None, *, file: TextIO | None = None) -> None:
        """Write the statistics as text to a file, standard output unless told otherwise."""
        (file or sys.stdout).write(self.text(title))


def _with_titles(
    table: TableSource, title_of_place: Mapping[int, str], first_other_title: str = ""
) -> list[list[Any]]:
    """Return the rows of a table without a header, below titles.

    Args:
        table: the table.
        title_of_place: the titles of the columns that are read, by their places.
        first_other_title: the title of the first column that is not; none is needed by default.
    """
    rows = _rows(table)
    width = max(map(len, rows), default=0)
    other_titles = [first_other_title] if first_other_title else []
    titles = []
    for place in range(width):
        if place in title_of_place:
            titles.append(title_of_place[place])
        elif other_titles:
            titles.append(other_titles.pop())
        else:
            titles.append(f"column {place}")
    return [titles] + rows


def _rows(table: TableSource) -> list[list[Any]]:
    if isinstance(table, str | os.PathLike):
        with Path(table).open(encoding="utf-8-sig", newline="") as file:
            return list(csv.reader(file))
    rows: Any = table
    if isinstance(table, pd.DataFrame):
        rows = table.itertuples(index=False, name=None)
    return [list(row) for row in rows]
