"""The statistics of several inputs as tables, ready for every format of report."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from tracelens_ext.class_statistics.layout import percentage
from tracelens_ext.lazy import pd
from tracelens_ext.report.report import Report
from tracelens_ext.text import encodable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.class_statistics.statistics import ClassStatistics, Line

    Titled = Sequence[tuple[str, ClassStatistics]]
    Record = dict[str, object]

TITLE = "GPU time by kernel class"
_NS_PER_MS = 10**6
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
        title=TITLE,
        sheets=tables(statistics),
        facts=[("Inputs", ", ".join(title for title, _ in statistics))],
        notes=[f"Left out: {problem}" for problem in problems]
        + [
            f"{title}: {note}"
            for title, each in statistics
            for note in (*each.warnings, *each.notes)
        ],
        descriptions=DESCRIPTIONS,
    )


def tables(statistics: Titled) -> dict[str, pd.DataFrame]:
    """The statistics of some inputs, each with its title.

    Returns:
        `inputs` (a row each), `kernel_classes`, `nccl`, `memory_operations` (when an input
        has them) and `kernels` (every kernel and its class); each with the column `title`, times
        in ms, percentages of the kernel time without NCCL, `total_bytes` where it is known.
    """
    sheets = {
        "inputs": [{"title": title} | _input(each) for title, each in statistics],
        "kernel_classes": [
            {"title": title} | _line(each, line, "class") | _share(each, line)
            for title, each in statistics
            for line in each.kernels
        ],
        "nccl": [
            {"title": title} | _line(each, line, "collective")
            for title, each in statistics
            for line in each.nccl
        ],
        "memory_operations": [
            {"title": title} | _line(each, line, "operation") | _size(line)
            for title, each in statistics
            for line in each.memory or ()
        ],
        "kernels": [
            {
                "title": title,
                "kernel_name": kernel.name,
                "class": name,
                "total_time_ms": _milliseconds(kernel.time_ns),
                "count": kernel.instances,
            }
            for title, each in statistics
            for name, kernel in each.kernel_classes
        ],
    }
    return {
        name: pd.DataFrame([_written(record) for record in records])
        for name, records in sheets.items()
        if records
    }


def _written(record: Record) -> Record:
    """A record whose texts can be written."""
    return {
        column: encodable(value) if isinstance(value, str) else value
        for column, value in record.items()
    }


def _input(statistics: ClassStatistics) -> Record:
    record: Record = {"iteration_count": statistics.iterations, "gpu_count": statistics.gpus}
    for what, total in (("kernel", statistics.kernel_total), ("nccl", statistics.nccl_total)):
        line = _line(statistics, total, "")
        record |= {f"{what}_{column}": value for column, value in line.items() if column}
    ranges = statistics.ranges
    if ranges is None:
        return record
    average, exposed = statistics.range_average_ns, statistics.exposed_ns
    return record | {
        "range_tag": ranges.tag,
        "range_count": ranges.count,
        "expected_range_count": statistics.divisor,
        "range_time_average_ms": _milliseconds(average),
        "range_time_total_ms": _milliseconds(ranges.time_ns),
        "not_hidden_time_per_range_ms": _milliseconds(exposed),
        "not_hidden_percent_of_range": float(percentage(exposed, average)),
        "not_hidden_time_total_ms": _milliseconds(statistics.exposed_total_ns),
        "not_hidden_percent_of_total": float(
            percentage(statistics.exposed_total_ns, ranges.time_ns)
        ),
    }


def _line(statistics: ClassStatistics, line: Line, name: str) -> Record:
    return {
        name: line.name,
        "time_per_iteration_ms": _milliseconds(Fraction(line.time_ns, statistics.divisor)),
        "count_per_iteration": line.per_iteration,
        "total_time_ms": _milliseconds(line.time_ns),
        "total_count": line.instances,
    }


def _size(line: Line) -> Record:
    return {} if line.size_bytes is None else {"total_bytes": line.size_bytes}


def _share(statistics: ClassStatistics, line: Line) -> Record:
    of = statistics.kernel_total.time_ns
    return {"% of kernel time": float(percentage(line.time_ns, of))}


def _milliseconds(ns: Fraction | int) -> float:
    return float(Fraction(ns) / _NS_PER_MS)
