"""The statistics as text, in the layout of GPU Performance Analyser, as tables, and from Python.

`StatisticClassifier` computes and shows them in the words of its users' scripts.
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
from typing import Any, TextIO

from tracelens_ext.analysis.nsys_statistics import statistics as totals
from tracelens_ext.analysis.nsys_statistics.statistics import ClassStatistics, Line, RangeTotal
from tracelens_ext.categorize.maps import NCCL_CLASS, OTHERS_CLASS
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.notebook import cell_html, short_repr
from tracelens_ext.readers.nsys.csv_tables import TableSource
from tracelens_ext.report.report import Report
from tracelens_ext.report.terminal import safe_text
from tracelens_ext.text import encodable

Titled = Sequence[tuple[str, ClassStatistics]]
Record = dict[str, object]

_NS_PER_MS = 10**6
_CLASS_WIDTH = 15
_MEMORY_WIDTH = 21
#: Title and the width of the column that it begins; numbers end where their titles do.
_COLUMNS = (
    ("TimePerIter(ms)", 17),
    ("InstancePerIter", 17),
    ("TimePerIter(%)", 17),
    ("TotalTime(ms)", 17),
    ("TotalInstance", 15),
    ("TotalTime(%)", 15),
)
_PERCENT = "(%)"
_ESTIMATED = "Estimated non-hidden NCCL, mem ops and bubble"


def text(statistics: ClassStatistics, title: str | None) -> str:
    """The statistics of one input, lines that end with a line feed."""
    heading = [f"===== {safe_text(title)} ====="] if title is not None else []
    kernels = statistics.kernel_total
    nccl = statistics.nccl_total
    table = _table(statistics, statistics.kernels, _CLASS_WIDTH, of=kernels.time_ns)
    blocks = [[*heading, *_head(statistics, "Kernel", kernels), *table]]
    table = _table(statistics, statistics.nccl, _CLASS_WIDTH)
    blocks.append([*_head(statistics, "NCCL", nccl), *table])
    if statistics.memory is not None:
        table = _table(statistics, statistics.memory, _MEMORY_WIDTH)
        blocks.append(["Mem Ops Statistic:", *table])
    if statistics.ranges is not None:
        blocks.append(_estimates(statistics, statistics.ranges))
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def fixed(value: Fraction, decimals: int) -> str:
    """A number with so many decimals, rounded exactly, halves to even."""
    return f"{Decimal(f'{round(value * 10**decimals)}e-{decimals}'):f}"


def percentage(part: Fraction | int, whole: Fraction | int) -> Fraction:
    """`part` in percent of `whole`; 0 if that is 0."""
    return 100 * Fraction(part) / whole if whole else Fraction(0)


def _milliseconds(ns: Fraction | int, decimals: int = 3) -> str:
    return fixed(Fraction(ns) / _NS_PER_MS, decimals)


def _head(statistics: ClassStatistics, what: str, total: Line) -> list[str]:
    per_iteration = Fraction(total.time_ns, statistics.divisor)
    return [
        f"{what} time per iteration: {_milliseconds(per_iteration)} (ms)",
        f"{what} instances per iteration: {total.per_iteration}",
        f"{what} total time: {_milliseconds(total.time_ns)} (ms)",
        f"{what} total instances: {total.instances}",
        f"{what} Statistic:",
    ]


def _table(
    statistics: ClassStatistics, lines: Sequence[Line], width: int, of: int | None = None
) -> list[str]:
    """The header and a line a class; percentages of `of` ns, if given."""
    names = [safe_text(line.name) for line in lines]
    width = max(width, *map(len, names), 0)
    columns = [c for c in _COLUMNS if of is not None or not c[0].endswith(_PERCENT)]
    rows = ["Class".ljust(width + 2) + "".join(name.ljust(wide) for name, wide in columns).rstrip()]
    for shown, line in zip(names, lines, strict=True):
        percent = [fixed(percentage(line.time_ns, of), 2)] if of is not None else []
        mean = _milliseconds(Fraction(line.time_ns, statistics.divisor), 2)
        cells = [mean, str(line.per_iteration), *percent]
        cells += [_milliseconds(line.time_ns, 2), str(line.instances), *percent]
        row = shown
        begins = width + 2
        for (name, wide), cell in zip(columns, cells, strict=True):
            row += " " + cell.rjust(begins + len(name) - len(row) - 1)
            begins += wide
        rows.append(row)
    return rows


def _estimates(statistics: ClassStatistics, ranges: RangeTotal) -> list[str]:
    average = statistics.range_average_ns
    total = Fraction(ranges.time_ns)
    lines = [
        f"NVTX range count: {ranges.count}",
        f"NVTX average range time: {_milliseconds(average)} (ms)",
        f"NVTX total range time: {_milliseconds(total)} (ms)\n",
    ]
    parts = {"time per range": statistics.exposed_ns, "total time": statistics.exposed_total_ns}
    for (what, part), whole in zip(parts.items(), (average, total), strict=True):
        lines.append(f"{_ESTIMATED} {what}: {_milliseconds(part)} (ms)")
        lines.append(f"{_ESTIMATED} {what}: {fixed(percentage(part, whole), 2)} (%)")
    return lines


_OF_KERNEL = ("title", "kernel_name", "class", "total_time_ms", "count")
DESCRIPTIONS = {
    "inputs": "Kernel and NCCL time of each input, NVTX ranges, and what kernels do not fill",
    "kernel_classes": "Kernel time by class, without NCCL",
    "nccl": "NCCL time by collective",
    "memory_operations": "Memory operations by kind",
    "kernels": "The class of each kernel",
}


def document(statistics: Titled, problems: Sequence[str] = ()) -> Report:
    """The statistics of some inputs, each with its title; and why others are left out."""
    return Report(
        title="GPU time by kernel class",
        sheets=tables(statistics),
        facts=[("Inputs", ", ".join(title for title, _ in statistics))],
        notes=[f"Left out: {problem}" for problem in problems]
        + [f"{title}: {n}" for title, each in statistics for n in (*each.warnings, *each.notes)],
        descriptions=DESCRIPTIONS,
    )


def tables(statistics: Titled) -> dict[str, pd.DataFrame]:
    """The statistics of some inputs by table, each with the column `title`; times in ms."""
    sheets: dict[str, list[Record]] = {name: [] for name in DESCRIPTIONS}
    for title, each in statistics:
        sheets["inputs"].append({"title": title} | _input(each))
        for table, name, lines in (
            ("kernel_classes", "class", each.kernels),
            ("nccl", "collective", each.nccl),
            ("memory_operations", "operation", each.memory or ()),
        ):
            sheets[table] += ({"title": title} | _line(each, line, name) for line in lines)
        sheets["kernels"] += (
            dict(zip(_OF_KERNEL, (title, k.name, name, _ms(k.time_ns), k.instances), strict=True))
            for name, k in each.kernel_classes
        )
    return {
        table: pd.DataFrame(
            [{k: encodable(v) if isinstance(v, str) else v for k, v in r.items()} for r in records]
        )
        for table, records in sheets.items()
        if records
    }


def _input(statistics: ClassStatistics) -> Record:
    record: Record = {"iteration_count": statistics.iterations, "gpu_count": statistics.gpus}
    for what, total in (("kernel", statistics.kernel_total), ("nccl", statistics.nccl_total)):
        line = _line(statistics, total, "")
        record |= {f"{what}_{column}": value for column, value in line.items() if column}
    if (ranges := statistics.ranges) is None:
        return record
    average = statistics.range_average_ns
    whole = ranges.time_ns
    exposed = statistics.exposed_ns
    exposed_total = statistics.exposed_total_ns
    return record | {
        "range_tag": ranges.tag,
        "range_count": ranges.count,
        "expected_range_count": statistics.divisor,
        "range_time_average_ms": _ms(average),
        "range_time_total_ms": _ms(whole),
        "not_hidden_time_per_range_ms": _ms(exposed),
        "not_hidden_percent_of_range": float(percentage(exposed, average)),
        "not_hidden_time_total_ms": _ms(exposed_total),
        "not_hidden_percent_of_total": float(percentage(exposed_total, whole)),
    }


def _line(statistics: ClassStatistics, line: Line, name: str) -> Record:
    record: Record = {
        name: line.name,
        "time_per_iteration_ms": _ms(Fraction(line.time_ns, statistics.divisor)),
        "count_per_iteration": line.per_iteration,
        "total_time_ms": _ms(line.time_ns),
        "total_count": line.instances,
    }
    if name == "class":
        of = statistics.kernel_total.time_ns
        record["% of kernel time"] = float(percentage(line.time_ns, of))
    if name == "operation" and line.size_bytes is not None:
        record["total_bytes"] = line.size_bytes
    return record


def _ms(ns: Fraction | int) -> float:
    return float(Fraction(ns) / _NS_PER_MS)


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
        for name, number in (("iter_times", iter_times), ("num_processes", num_processes)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise UsageError(f"{name} is {number!r}; give a whole number from 1")
        if nvtxes is not None and nvtx_iter_name is None:
            raise UsageError("an NVTX table needs nvtx_iter_name, the name of the iterations")
        if not with_header:
            if (unit := _UNITS.get(time_scale_to_ms)) is None:
                raise UsageError(f"time_scale_to_ms is {time_scale_to_ms!r}; give 1e-6 for ns")
            time = f"Total Time ({unit})"
            instances = kernel_instance_idx
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

    def __init__(self, statistics: ClassStatistics) -> None:
        self.statistics = statistics

        def numbers(line: Line) -> list[float]:
            time = line.time_ns / _NS_PER_MS
            return [time / statistics.divisor, line.per_iteration, time, line.instances]

        def table(lines: Sequence[Line]) -> dict[str, list[float]]:
            return {line.name: numbers(line) for line in lines}

        ranges = statistics.ranges
        memory = statistics.memory
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


def _with_titles(table: TableSource, places: Mapping[int, str], *more: str) -> list[list[Any]]:
    """The rows of a table without a header, below titles: `places`, else `more`, as expected."""
    rows: list[list[Any]]
    if isinstance(table, str | os.PathLike):
        with Path(table).open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.reader(file))
    else:
        given: Any = table
        if isinstance(table, pd.DataFrame):
            given = table.itertuples(index=False, name=None)
        rows = [list(row) for row in given]
    width = max(map(len, rows), default=0)
    free = iter(more)
    titles = [places[at] if at in places else next(free, f"column {at}") for at in range(width)]
    return [titles, *rows]
