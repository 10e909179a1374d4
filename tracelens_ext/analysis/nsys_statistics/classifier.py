"""The statistics from Python: `StatisticClassifier`.

Its names, arguments and attributes are those of GPU Performance Analyser, so that scripts for that
program run unchanged.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TextIO

from tracelens_ext.analysis.nsys_statistics.exact_numbers import NS_PER_MS
from tracelens_ext.analysis.nsys_statistics.kernel_classes import Classifier
from tracelens_ext.analysis.nsys_statistics.layout import text
from tracelens_ext.analysis.nsys_statistics.report_tables import (
    TitledStatistics,
    statistics_tables,
)
from tracelens_ext.analysis.nsys_statistics.statistics import (
    ClassStatistics,
    Line,
    compute,
)
from tracelens_ext.analysis.nsys_statistics.totals import (
    kernel_totals,
    memory_totals,
    range_total,
)
from tracelens_ext.categorize.maps import NCCL_CLASS, OTHERS_CLASS
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.notebook import cell_html, short_repr
from tracelens_ext.readers.nsys.csv_tables import TableSource, read_rows

#: `time_scale_to_ms` → the unit of the times.
_UNIT_OF_SCALE = {1e-6: "ns", 1e-3: "us", 1.0: "ms", 1e3: "s"}


class StatisticClassifier:
    """Sums the tables of `nsys stats` by classes of kernels.

    Args:
        name_to_class_map: part of a kernel name → class. Case does not matter. If a name contains
            several keys, the first one counts. Kernels without a key are `others`. Kernels of NCCL
            are counted separately.

    Attributes:
        name_to_class_map: the map in lower case.

    Raises:
        RuleError: a key contains another key, a class is `others`, or a key or class is not text.
    """

    OTHER_CLASS_NAME = OTHERS_CLASS
    NCCL_CLASS_NAME = NCCL_CLASS

    def __init__(self, name_to_class_map: Mapping[str, str]) -> None:
        self._classifier = Classifier(name_to_class_map)
        self.name_to_class_map = {
            key.lower(): kernel_class.lower()
            for key, kernel_class in name_to_class_map.items()
        }

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

        A table is a path, a DataFrame, or a list of rows. A row is a mapping or a list; the first
        of the lists is the header. Columns and units are recognized by the header. The indices of
        columns (from 0) and `time_scale_to_ms` are used only for tables without a header.

        Args:
            iter_times: number of iterations that were recorded.
            kernels: a `cuda_gpu_kern_sum` table.
            nvtxes: an `nvtx_gpu_proj_trace` table; None for no NVTX ranges.
            mems: a `cuda_gpu_mem_time_sum` table; None for no memory operations.
            num_processes: number of GPUs that went through each iteration.
            with_header: whether the first row of each table is its header.
            time_scale_to_ms: factor that converts times to ms: 1e-6, 1e-3, 1 or 1000.
            kernel_total_time_idx: index of the column with the total time of a kernel.
            kernel_instance_idx: index of the column with the number of its instances.
            kernel_name_idx: index of the column with its name.
            nvtx_iter_name: name of the ranges that are iterations; required with `nvtxes`.
            nvtx_name_idx: index of the column with the name of a range.
            nvtx_proj_duration_idx: index of the column with its duration on the GPU.
            mem_name_idx: index of the column with the name of a memory operation.
            mem_time_idx: index of the column with its total time.
            mem_count_idx: index of the column with its count.

        Returns:
            The statistics. There is a `UserWarning` if the number of ranges differs from iterations
            times GPUs, and if rows of a table seem to be missing.

        Raises:
            TraceError: a file does not exist, or a table has the wrong columns or values.
            UsageError: no range has the given name, or an argument is invalid.
        """
        _check_count("iter_times", iter_times)
        _check_count("num_processes", num_processes)
        if nvtxes is not None and nvtx_iter_name is None:
            raise UsageError(
                "an NVTX table needs nvtx_iter_name, the name of the iteration ranges"
            )
        tables = _NsysTables(kernels=kernels, ranges=nvtxes, memory=mems)
        if not with_header:
            columns = _ColumnIndices(
                kernel_time=kernel_total_time_idx,
                kernel_count=kernel_instance_idx,
                kernel_name=kernel_name_idx,
                range_name=nvtx_name_idx,
                range_duration=nvtx_proj_duration_idx,
                memory_name=mem_name_idx,
                memory_time=mem_time_idx,
                memory_count=mem_count_idx,
            )
            tables = _add_headers(tables, columns, _unit_of(time_scale_to_ms))
        statistics = _statistics_of(
            self._classifier,
            tables=tables,
            range_name=nvtx_iter_name or "",
            iterations=iter_times,
            gpus=num_processes,
        )
        for warning in statistics.warnings:
            warnings.warn(warning, UserWarning, stacklevel=2)
        return StatisticReport(statistics)


class _NsysTables(NamedTuple):
    """The tables of one run."""

    kernels: TableSource
    ranges: TableSource | None
    memory: TableSource | None


class _ColumnIndices(NamedTuple):
    """The indices of the columns of tables without a header, from 0."""

    kernel_time: int
    kernel_count: int
    kernel_name: int
    range_name: int
    range_duration: int
    memory_name: int
    memory_time: int
    memory_count: int


def _statistics_of(
    classifier: Classifier,
    tables: _NsysTables,
    range_name: str,
    iterations: int,
    gpus: int,
) -> ClassStatistics:
    """Read the tables of a run and compute its statistics."""
    memory = None
    if tables.memory is not None:
        memory = memory_totals(tables.memory)
    ranges = None
    if tables.ranges is not None:
        ranges = range_total(tables.ranges, range_name)
    return compute(
        classifier,
        kernels=kernel_totals(tables.kernels),
        memory=memory,
        ranges=ranges,
        iterations=iterations,
        gpus=gpus,
    )


def _add_headers(
    tables: _NsysTables, columns: _ColumnIndices, unit: str
) -> _NsysTables:
    """Return tables without a header as tables that have one.

    Args:
        tables: the tables.
        columns: the indices of their columns.
        unit: the unit of all times.
    """
    total_time = f"Total Time ({unit})"
    kernels = _add_header(
        tables.kernels,
        {
            columns.kernel_time: total_time,
            columns.kernel_count: "Instances",
            columns.kernel_name: "Name",
        },
    )
    ranges = tables.ranges
    if ranges is not None:
        ranges = _add_header(
            ranges,
            {
                columns.range_name: "Name",
                columns.range_duration: f"Projected Duration ({unit})",
            },
            first_other_title="Projected Start",
        )
    memory = tables.memory
    if memory is not None:
        memory = _add_header(
            memory,
            {
                columns.memory_time: total_time,
                columns.memory_count: "Count",
                columns.memory_name: "Operation",
            },
        )
    return _NsysTables(kernels=kernels, ranges=ranges, memory=memory)


def _check_count(name: str, number: object) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise UsageError(f"{name} is {number!r}; give an integer from 1")


def _unit_of(time_scale_to_ms: float) -> str:
    """Return the unit of times that this factor converts to ms."""
    unit = _UNIT_OF_SCALE.get(time_scale_to_ms)
    if unit is None:
        raise UsageError(
            f"time_scale_to_ms is {time_scale_to_ms!r}; give 1e-6 for times in ns, 1e-3 for us,"
            " 1 for ms, or 1000 for s"
        )
    return unit


class StatisticReport:
    """The statistics of one run; all times are in ms.

    The attributes have the names of GPU Performance Analyser, and so its spelling "instancess". A
    row of a table is a list of four numbers: time per iteration, instances per iteration, total
    time, and total instances.

    Attributes:
        statistics: the exact statistics.
        kernel_statistic_table: class of kernels → its row, without NCCL.
        kernel_total_time_per_iter: time of all kernels per iteration, without NCCL.
        kernel_total_instancess_per_iter: instances of all kernels per iteration, without NCCL.
        kernel_total_time: time of all kernels, without NCCL.
        kernel_total_instances: instances of all kernels, without NCCL.
        nccl_statistic_table: collective of NCCL → its row.
        nccl_total_time_per_iter: time of all kernels of NCCL per iteration.
        nccl_total_kernels_per_iter: instances of all kernels of NCCL per iteration.
        nccl_total_time: time of all kernels of NCCL.
        nccl_total_kernels: instances of all kernels of NCCL.
        nvtx_avg_range_time: average time of a range; 0 without ranges.
        nvtx_total_range_time: time of all ranges; 0 without ranges.
        nvtx_range_count: number of ranges.
        mem_statistic_table: kind of memory operation → its row; None without a table of them.
    """

    def __init__(self, statistics: ClassStatistics) -> None:
        self.statistics = statistics

        divisor = statistics.divisor
        kernels = _figures(statistics.kernel_total, divisor)
        self.kernel_statistic_table = _statistic_table(statistics.kernels, divisor)
        self.kernel_total_time_per_iter = kernels.time_per_iteration_ms
        self.kernel_total_instancess_per_iter = kernels.instances_per_iteration
        self.kernel_total_time = kernels.time_ms
        self.kernel_total_instances = kernels.instances

        nccl = _figures(statistics.nccl_total, divisor)
        self.nccl_statistic_table = _statistic_table(statistics.nccl, divisor)
        self.nccl_total_time_per_iter = nccl.time_per_iteration_ms
        self.nccl_total_kernels_per_iter = nccl.instances_per_iteration
        self.nccl_total_time = nccl.time_ms
        self.nccl_total_kernels = nccl.instances

        self.nvtx_avg_range_time = float(statistics.range_average_ns) / NS_PER_MS
        self.nvtx_total_range_time = 0.0
        self.nvtx_range_count = 0
        if statistics.ranges is not None:
            self.nvtx_total_range_time = statistics.ranges.time_ns / NS_PER_MS
            self.nvtx_range_count = statistics.ranges.count

        self.mem_statistic_table: dict[str, list[float]] | None = None
        if statistics.memory is not None:
            self.mem_statistic_table = _statistic_table(statistics.memory, divisor)

    def __repr__(self) -> str:
        return short_repr("StatisticReport", self.text())

    def _repr_html_(self) -> str:
        """Return the tables as HTML, for a notebook."""
        return cell_html(
            title="GPU time by class of kernel", lines=(), tables=self.tables()
        )

    def text(self, title: str | None = None) -> str:
        """Return the statistics as text, without a heading unless a title is given."""
        return text(self.statistics, title)

    def tables(self, title: str = "") -> dict[str, pd.DataFrame]:
        """Return the statistics as tables by name; see `statistics_tables`."""
        return statistics_tables([TitledStatistics(title, self.statistics)])

    def show(self, title: str | None = None, *, file: TextIO | None = None) -> None:
        """Write the statistics as text to a file, by default to standard output."""
        (file or sys.stdout).write(self.text(title))


class _Figures(NamedTuple):
    """The numbers of a row of a statistic table, in its order."""

    time_per_iteration_ms: float
    instances_per_iteration: float
    time_ms: float
    instances: float


def _figures(line: Line, divisor: int) -> _Figures:
    """Return the numbers of a line.

    Args:
        line: a class, collective or kind of operation.
        divisor: the number of iterations of all GPUs.
    """
    time_ms = line.time_ns / NS_PER_MS
    return _Figures(
        time_per_iteration_ms=time_ms / divisor,
        instances_per_iteration=line.per_iteration,
        time_ms=time_ms,
        instances=line.instances,
    )


def _statistic_table(lines: Sequence[Line], divisor: int) -> dict[str, list[float]]:
    """Return the numbers of each line by its name."""
    return {line.name: list(_figures(line, divisor)) for line in lines}


def _add_header(
    table: TableSource, title_of_column: Mapping[int, str], first_other_title: str = ""
) -> list[list[Any]]:
    """Return the rows of a table without a header, preceded by a header.

    Args:
        table: the table, without a header.
        title_of_column: index of a column → its title. Other columns get a title that no reader
            looks for.
        first_other_title: the title of the first of these other columns, if a table must have a
            column of that title to be recognized.
    """
    rows = _rows(table)
    width = max(map(len, rows), default=0)
    header = []
    other_columns = []
    for index in range(width):
        if index not in title_of_column:
            other_columns.append(index)
        header.append(title_of_column.get(index, f"column {index}"))
    if first_other_title and other_columns:
        header[other_columns[0]] = first_other_title
    return [header] + rows


def _rows(table: TableSource) -> list[list[Any]]:
    """Return the rows of a table without a header."""
    if isinstance(table, str | os.PathLike):
        return [list(row) for _, row in read_rows(os.fspath(table))]
    rows: Any = table
    if isinstance(table, pd.DataFrame):
        rows = table.itertuples(index=False, name=None)
    return [_cells(row) for row in rows]


def _cells(row: Any) -> list[Any]:  # noqa: ANN401  # a row of the caller's
    """Return the cells of a row, which is a mapping or a sequence."""
    if isinstance(row, Mapping):
        return list(row.values())
    return list(row)
