"""`StatisticClassifier`: the statistics from Python, in the words of its users' scripts."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING

from tracelens_ext.class_statistics.class_map import ClassMap
from tracelens_ext.class_statistics.document import tables
from tracelens_ext.class_statistics.layout import text
from tracelens_ext.class_statistics.statistics import ClassStatistics, compute
from tracelens_ext.class_statistics.totals import kernel_totals, memory_totals, range_total
from tracelens_ext.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

    import pandas as pd

    from tracelens_ext.readers.nsys.csv_tables import TableSource


class StatisticClassifier:
    """Sums `nsys stats` tables by classes of kernels.

    Args:
        class_map: part of a kernel name → class. Case does not matter, the first key that a name
            contains wins, kernels without a key are `others`, and NCCL's are counted apart.

    Raises:
        RuleError: a key contains another, a class is `others`, or something is no text.
    """

    def __init__(self, class_map: Mapping[str, str]) -> None:
        self._classes = ClassMap(class_map)

    def statistic(
        self,
        num_iters: int,
        kernels: TableSource,
        nvtx: TableSource | None = None,
        mem: TableSource | None = None,
        *,
        num_processes: int = 1,
        nvtx_iter_name: str | None = None,
    ) -> StatisticReport:
        """Compute the statistics of one run.

        A table is a path, a DataFrame, or a list of rows: mappings, or lists of which the first is
        the header. Its columns are found by their titles.

        Args:
            num_iters: iterations that were recorded.
            kernels: a `cuda_gpu_kern_sum` table.
            nvtx: an `nvtx_gpu_proj_trace` table; None for no NVTX ranges.
            mem: a `cuda_gpu_mem_time_sum` table; None for no memory operations.
            num_processes: GPUs that went through each iteration.
            nvtx_iter_name: the name of the ranges that are iterations; `nvtx` needs it.

        Returns:
            The statistics. A number of ranges that differs from iterations times GPUs is told as a
            `UserWarning`.

        Raises:
            TraceError: a file is not there, or a table is not what it should be.
            UsageError: no range has that name, or an argument does not make sense.
        """
        for name, number in (("num_iters", num_iters), ("num_processes", num_processes)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise UsageError(f"{name} is {number!r}; give a whole number from 1")
        if nvtx is not None and nvtx_iter_name is None:
            raise UsageError("an NVTX table needs nvtx_iter_name, the name of the iterations")
        statistics = compute(
            self._classes,
            kernel_totals(kernels),
            memory_totals(mem) if mem is not None else None,
            range_total(nvtx, nvtx_iter_name)
            if nvtx is not None and nvtx_iter_name is not None
            else None,
            iterations=num_iters,
            gpus=num_processes,
        )
        for warning in statistics.warnings:
            warnings.warn(warning, UserWarning, stacklevel=2)
        return StatisticReport(statistics)


class StatisticReport:
    """The statistics of one run, to be shown or used.

    Attributes:
        statistics: the numbers, exact.
    """

    def __init__(self, statistics: ClassStatistics) -> None:
        self.statistics = statistics

    def text(self, title: str) -> str:
        """The statistics as text."""
        return text(self.statistics, title)

    def tables(self, title: str = "") -> dict[str, pd.DataFrame]:
        """The statistics as tables by name, as `document.tables` describes them."""
        return tables([(title, self.statistics)])

    def show(self, title: str, *, file: TextIO | None = None) -> None:
        """Write the statistics as text to a file, standard output unless told otherwise."""
        (file or sys.stdout).write(self.text(title))
