"""The statistics as tables and as a report."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from tracelens_ext.analysis.nsys_statistics.exact_numbers import NS_PER_MS, percentage
from tracelens_ext.analysis.nsys_statistics.statistics import ClassStatistics, Line
from tracelens_ext.analysis.nsys_statistics.totals import Total
from tracelens_ext.lazy import pd
from tracelens_ext.report.report import Report
from tracelens_ext.text import encodable

#: A row of a table: column → value.
Record = dict[str, object]

DESCRIPTIONS = {
    "inputs": "Kernel and NCCL time of each input, NVTX ranges, and the time without kernels",
    "kernel_classes": "Kernel time by class, without NCCL",
    "nccl": "NCCL time by collective",
    "memory_operations": "Memory operations by kind",
    "kernels": "The class of each kernel",
}


class TitledStatistics(NamedTuple):
    """The statistics of an input, and its title."""

    title: str
    statistics: ClassStatistics


def statistics_report(
    inputs: Sequence[TitledStatistics], problems: Sequence[str] = ()
) -> Report:
    """Return the statistics of inputs as a report.

    Args:
        inputs: title and statistics of each input.
        problems: a sentence for each other input that explains why it is left out.
    """
    notes = [f"Left out: {problem}" for problem in problems]
    titles = []
    for title, statistics in inputs:
        titles.append(title)
        notes_of_input = statistics.warnings + statistics.notes
        notes += [f"{title}: {note}" for note in notes_of_input]
    return Report(
        title="GPU time by kernel class",
        sheets=statistics_tables(inputs),
        facts=[("Inputs", ", ".join(titles))],
        notes=notes,
        descriptions=DESCRIPTIONS,
    )


def statistics_tables(inputs: Sequence[TitledStatistics]) -> dict[str, pd.DataFrame]:
    """Return the tables of the statistics of inputs by name.

    In each table, the column `title` has the title of the input. Tables without rows are left out.
    """
    records: dict[str, list[Record]] = {name: [] for name in DESCRIPTIONS}
    for title, statistics in inputs:
        records_of_input = _records(statistics)
        for table, rows in records_of_input.items():
            titled_rows = [{"title": title} | row for row in rows]
            records[table] += titled_rows
    frames = {}
    for table, rows in records.items():
        if rows:
            frames[table] = _frame(rows)
    return frames


def _frame(records: Sequence[Record]) -> pd.DataFrame:
    """Return rows as a table; characters that files cannot contain are replaced in texts."""
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
    """Return the row about a whole input; columns about ranges only if it has ranges."""
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
        "not_hidden_time_per_range_ms": _ms(statistics.not_hidden_ns),
        "not_hidden_percent_of_range": float(
            percentage(statistics.not_hidden_ns, statistics.range_average_ns)
        ),
        "not_hidden_time_total_ms": _ms(statistics.not_hidden_total_ns),
        "not_hidden_percent_of_total": float(
            percentage(statistics.not_hidden_total_ns, ranges.time_ns)
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


def _kernel_record(class_name: str, kernel: Total) -> Record:
    return {
        "kernel_name": kernel.name,
        "class": class_name,
        "total_time_ms": _ms(kernel.time_ns),
        "count": kernel.instances,
    }


def _ms(ns: Fraction | int) -> float:
    return float(Fraction(ns) / NS_PER_MS)
