"""The statistics as text, in the layout of GPU Performance Analyser."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

from tracelens_ext.class_statistics.statistics import ClassStatistics, Line, RangeTotal
from tracelens_ext.lazy import pd
from tracelens_ext.report.report import Report
from tracelens_ext.report.terminal import safe_text
from tracelens_ext.text import encodable

Titled = Sequence[tuple[str, ClassStatistics]]
Record = dict[str, object]

_NS_PER_MS = 10**6
_CLASS_WIDTH, _MEMORY_WIDTH = 15, 21
#: Title and the width of the column that it begins; numbers end where their titles do.
_COLUMNS = (
    *(("TimePerIter(ms)", 17), ("InstancePerIter", 17), ("TimePerIter(%)", 17)),
    *(("TotalTime(ms)", 17), ("TotalInstance", 15), ("TotalTime(%)", 15)),
)
_PERCENT = "(%)"
_ESTIMATED = "Estimated non-hidden NCCL, mem ops and bubble"


def text(statistics: ClassStatistics, title: str | None) -> str:
    """The statistics of one input, lines that end with a line feed."""
    heading = [f"===== {safe_text(title)} ====="] if title is not None else []
    kernels, nccl = statistics.kernel_total, statistics.nccl_total
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
        row, begins = shown, width + 2
        for (name, wide), cell in zip(columns, cells, strict=True):
            row += " " + cell.rjust(begins + len(name) - len(row) - 1)
            begins += wide
        rows.append(row)
    return rows


def _estimates(statistics: ClassStatistics, ranges: RangeTotal) -> list[str]:
    average, total = statistics.range_average_ns, Fraction(ranges.time_ns)
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
        notes=[
            *(f"Left out: {problem}" for problem in problems),
            *(f"{title}: {n}" for title, each in statistics for n in (*each.warnings, *each.notes)),
        ],
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
    ranges = statistics.ranges
    if ranges is None:
        return record
    average, whole = statistics.range_average_ns, ranges.time_ns
    exposed, exposed_total = statistics.exposed_ns, statistics.exposed_total_ns
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
