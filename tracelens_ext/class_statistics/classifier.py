"""`StatisticClassifier`: the statistics from Python, in the words of its users' scripts."""

from __future__ import annotations

import csv
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from tracelens_ext.categorize.maps import NCCL_CLASS, OTHERS_CLASS
from tracelens_ext.class_statistics import statistics as totals
from tracelens_ext.class_statistics.layout import tables, text
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.notebook import cell_html, short_repr
from tracelens_ext.readers.nsys.csv_tables import TableSource

_NS_PER_MS = 10**6
#: `time_scale_to_ms` → the unit of the times.
_UNITS = {1e-6: "ns", 1e-3: "us", 1.0: "ms", 1e3: "s"}


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
        self.name_to_class_map = {
            key.lower(): name.lower() for key, name in name_to_class_map.items()
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
        for name, number in (("iter_times", iter_times), ("num_processes", num_processes)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise UsageError(f"{name} is {number!r}; give a whole number from 1")
        if nvtxes is not None and nvtx_iter_name is None:
            raise UsageError("an NVTX table needs nvtx_iter_name, the name of the iterations")
        if not with_header:
            if (unit := _UNITS.get(time_scale_to_ms)) is None:
                raise UsageError(f"time_scale_to_ms is {time_scale_to_ms!r}; give 1e-6 for ns")
            time, instances = f"Total Time ({unit})", kernel_instance_idx
            places = {kernel_total_time_idx: time, instances: "Instances", kernel_name_idx: "Name"}
            kernels = _with_titles(kernels, places)
            if nvtxes is not None:
                duration = f"Projected Duration ({unit})"
                places = {nvtx_name_idx: "Name", nvtx_proj_duration_idx: duration}
                nvtxes = _with_titles(nvtxes, places, "Projected Start")
            if mems is not None:
                places = {mem_time_idx: time, mem_count_idx: "Count", mem_name_idx: "Operation"}
                mems = _with_titles(mems, places)
        statistics = totals.compute(
            self._classes,
            totals.kernel_totals(kernels),
            None if mems is None else totals.memory_totals(mems),
            None if nvtxes is None else totals.range_total(nvtxes, nvtx_iter_name or ""),
            iterations=iter_times,
            gpus=num_processes,
        )
        for warning in statistics.warnings:
            warnings.warn(warning, UserWarning, stacklevel=2)
        return StatisticReport(statistics)


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

    def __init__(self, statistics: totals.ClassStatistics) -> None:
        self.statistics = statistics

        def numbers(line: totals.Line) -> list[float]:
            time = line.time_ns / _NS_PER_MS
            return [time / statistics.divisor, line.per_iteration, time, line.instances]

        def table(lines: Sequence[totals.Line]) -> dict[str, list[float]]:
            return {line.name: numbers(line) for line in lines}

        ranges, memory = statistics.ranges, statistics.memory
        self.kernel_statistic_table = table(statistics.kernels)
        total = numbers(statistics.kernel_total)
        self.kernel_total_time_per_iter, self.kernel_total_instancess_per_iter = total[:2]
        self.kernel_total_time, self.kernel_total_instances = total[2:]
        self.nccl_statistic_table = table(statistics.nccl)
        total = numbers(statistics.nccl_total)
        self.nccl_total_time_per_iter, self.nccl_total_kernels_per_iter = total[:2]
        self.nccl_total_time, self.nccl_total_kernels = total[2:]
        self.nvtx_avg_range_time = float(statistics.range_average_ns) / _NS_PER_MS
        self.nvtx_total_range_time = ranges.time_ns / _NS_PER_MS if ranges else 0.0
        self.nvtx_range_count = ranges.count if ranges else 0
        self.mem_statistic_table = table(memory) if memory is not None else None

    def __repr__(self) -> str:
        return short_repr("StatisticReport", self.text())

    def _repr_html_(self) -> str:
        """What a notebook shows: the tables."""
        return cell_html("GPU time by class of kernel", (), self.tables())

    def text(self, title: str | None = None) -> str:
        """The statistics as text, without a heading unless a title is given."""
        return text(self.statistics, title)

    def tables(self, title: str = "") -> dict[str, pd.DataFrame]:
        """The statistics as tables by name, as `document.tables` describes them."""
        return tables([(title, self.statistics)])

    def show(self, title: str | None = None, *, file: TextIO | None = None) -> None:
        """Write the statistics as text to a file, standard output unless told otherwise."""
        (file or sys.stdout).write(self.text(title))


def _with_titles(
    table: TableSource, places: Mapping[int, str], *more: str
) -> list[Sequence[object]]:
    """The rows of a table without a header, below titles: `places`, else `more`, as expected."""
    rows: list[Sequence[object]]
    if isinstance(table, str | os.PathLike):
        with Path(table).open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.reader(file))
    else:
        given: Any = table
        if isinstance(table, pd.DataFrame):
            given = table.itertuples(index=False, name=None)
        rows = [list(row) for row in given]
    width, free = max(map(len, rows), default=0), iter(more)
    titles = [places[at] if at in places else next(free, f"column {at}") for at in range(width)]
    return [titles, *rows]
