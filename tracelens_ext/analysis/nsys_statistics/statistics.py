"""The statistics: kernels by class, NCCL by collective, memory operations by kind, NVTX ranges.

They start from totals by name, of `nsys stats` tables or of a trace. All sums are whole
nanoseconds, all quotients exact; numbers are rounded when they are shown.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import compress
from typing import NamedTuple

from tracelens_ext.categorize.kernel_names import short_name
from tracelens_ext.categorize.maps import NCCL_CLASS, OTHERS_CLASS, substring_pack
from tracelens_ext.errors import RuleError, TraceFormatError, UsageError
from tracelens_ext.readers.nsys.csv_tables import (
    NsysCsvReport,
    NsysCsvTable,
    TableSource,
    open_report,
)
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions
from tracelens_ext.text import counted, encodable

#: How many names an error suggests, and how many it compares at most (tens of µs each).
_SUGGESTIONS = 5
_MOST_COMPARED = 20_000


@dataclass
class Total:
    """How long all instances of something lasted together, and the bytes they moved, if known."""

    name: str
    time_ns: int
    instances: int
    size_bytes: int | None = None


class Totals(list[Total]):
    """Totals by name, in the order of their table.

    Attributes:
        doubt: why rows of the table seem to be missing, in a sentence; empty if none seem to be.
    """

    doubt = ""


@dataclass(frozen=True)
class RangeTotal:
    """The ranges of one NVTX tag, projected onto the GPU."""

    tag: str
    time_ns: int
    count: int


# Totals of the tables of `nsys stats`.


def kernel_totals(
    source: TableSource, reading: ReadingOptions = DEFAULT_READING_OPTIONS
) -> Totals:
    """Return totals by kernel, of a `cuda_gpu_kern_sum` table.

    Raises:
        TraceError: the table cannot be read, or has no kernels.
    """
    table = open_report(
        source, NsysCsvReport.KERNELS, label="the kernel table", reading=reading
    )
    totals = _totals(table, "name", "instances")
    if not totals:
        remedy = "create it again; it may be truncated"
        raise TraceFormatError(table.source, "has a header, but no kernels", remedy)
    return totals


def memory_totals(
    source: TableSource,
    sizes: TableSource | None = None,
    reading: ReadingOptions = DEFAULT_READING_OPTIONS,
) -> Totals:
    """Return totals by kind of memory operation.

    Args:
        source: a `cuda_gpu_mem_time_sum` table.
        sizes: the `cuda_gpu_mem_size_sum` table that goes with it, if any.
        reading: how files are read.
    """
    table = open_report(
        source, NsysCsvReport.MEMORY_TIME, label="the memory table", reading=reading
    )
    totals = _totals(table, "operation", "count")
    if sizes is not None:
        _add_sizes(totals, sizes, reading)
    return totals


def _add_sizes(totals: Totals, sizes: TableSource, reading: ReadingOptions) -> None:
    """Add the bytes of a table of sizes to the totals of the same operations."""
    table = open_report(
        sizes, NsysCsvReport.MEMORY_SIZE, label="the table of sizes", reading=reading
    )
    total_of_name = {total.name: total for total in totals}
    for batch in table.batches:
        sizes_of_rows = batch.required("total", batch.sizes("total"))
        for name, size in zip(batch.texts("operation"), sizes_of_rows, strict=True):
            total = total_of_name.get(name)
            if total is not None:
                total.size_bytes = (total.size_bytes or 0) + size


def range_total(
    source: TableSource, tag: str, reading: ReadingOptions = DEFAULT_READING_OPTIONS
) -> RangeTotal:
    """Return the total of the ranges of a tag, of an `nvtx_gpu_proj_trace` table.

    The colon that `nsys stats` puts before names of the default domain does not matter.

    Raises:
        UsageError: no range has that tag.
    """
    table = open_report(
        source, NsysCsvReport.RANGES, label="the NVTX table", reading=reading
    )
    all_names: set[str] = set()
    durations_of_tag: list[int] = []
    for batch in table.batches:
        names = batch.texts("name")
        durations = batch.required(
            "projectedduration", batch.nanoseconds("projectedduration")
        )
        has_tag = [name.removeprefix(":") == tag.removeprefix(":") for name in names]
        durations_of_tag += compress(durations, has_tag)
        all_names.update(names)
    if not durations_of_tag:
        raise no_such_range(table.source, tag, all_names)
    return RangeTotal(
        tag=tag, time_ns=sum(durations_of_tag), count=len(durations_of_tag)
    )


def no_such_range(source: str, tag: str, names: Collection[str]) -> UsageError:
    """Return the error for a tag that no range has; `names` are those that there are."""
    if not names:
        reason = (
            "there are no ranges that started GPU work; record with: nsys profile -t "
            "cuda,nvtx"
        )
        return UsageError(f"{source}: no NVTX range {tag!r}: {reason}")
    compared = sorted(names)[:_MOST_COMPARED]
    nearest = difflib.get_close_matches(tag, compared, n=_SUGGESTIONS, cutoff=0.0)
    suggestions = ", ".join(repr(name) for name in nearest)
    return UsageError(
        f"{source}: there is no NVTX range called {tag!r}; the closest names: "
        f"{suggestions}"
    )


class _LongestRow(NamedTuple):
    """The time of a row (ns), and the percentage of all rows that the table says it is."""

    time_ns: int
    percentage: object


def _totals(table: NsysCsvTable, name_column: str, count_column: str) -> Totals:
    """Return totals by name, in the order of the table; rows of one name are added up."""
    total_of_name: dict[str, Total] = {}
    longest_row = _LongestRow(0, None)
    last_line_is_cut_off = False
    for batch in table.batches:
        names = batch.texts(name_column)
        times = batch.required("totaltime", batch.nanoseconds("totaltime"))
        counts = batch.required(count_column, batch.whole(count_column))
        for name, time, count in zip(names, times, counts, strict=True):
            total = total_of_name.setdefault(
                name, Total(name=name, time_ns=0, instances=0)
            )
            total.time_ns += time
            total.instances += count
        rows = map(_LongestRow, times, batch.columns["time"])
        longest_row = max(longest_row, *rows, key=lambda row: row.time_ns)
        last_line_is_cut_off = batch.unfinished
    totals = Totals(total_of_name.values())
    totals.doubt = _missing_rows(
        source=table.source,
        longest_row=longest_row,
        total_ns=sum(total.time_ns for total in totals),
    )
    if last_line_is_cut_off and not totals.doubt:
        totals.doubt = (
            f"{table.source}: its last line is incomplete; the file may be truncated"
        )
    return totals


def _missing_rows(source: str, longest_row: _LongestRow, total_ns: int) -> str:
    """Say that rows are missing, if the percentage of the longest row shows it; else empty.

    A row of 50 ns that is said to be 25 % stands for 200 ns in all; if the rows of the table add
    up to 100 ns, half of them are missing.
    """
    text = str(longest_row.percentage).strip(" %")
    try:
        percent = float(text)
    except ValueError:
        return ""
    _, _, decimals = text.partition(".")
    rounding = 0.5 * 10.0 ** -len(decimals)
    adds_up = total_ns * (percent + rounding) >= 100 * longest_row.time_ns
    if adds_up:
        return ""
    if not 0 < percent <= 100:
        return ""
    expected_ns = 100 * longest_row.time_ns / percent
    present = 100 * total_ns / expected_ns
    return (
        f"{source}: its rows cover {present:.0f} % of the time that its percentages "
        "imply; it was truncated or filtered, and the rest is not counted"
    )


# The statistics.

#: How copies are shown; all other operations have the names of the table.
_SHORT_COPIES = {
    "[CUDA memcpy Device-to-Device]": "[CUDA memcpy D2D]",
    "[CUDA memcpy Device-to-Host]": "[CUDA memcpy D2H]",
    "[CUDA memcpy Host-to-Device]": "[CUDA memcpy H2D]",
    "[CUDA memcpy Host-to-Host]": "[CUDA memcpy H2H]",
}


@dataclass
class Line(Total):
    """A class of kernels, a collective, or a kind of memory operation, by its name as shown.

    Attributes:
        per_iteration: instances in an iteration on one GPU, rounded down kernel by kernel.
    """

    per_iteration: int = 0


@dataclass(frozen=True)
class ClassStatistics:
    """The statistics of one input.

    Attributes:
        iterations: how many the input has.
        gpus: the number of GPUs, which all go through each iteration.
        kernels: by class, without NCCL: `others`, then the classes in their order.
        kernel_total: all kernels but those of NCCL.
        nccl: by collective, in the order of their kernels.
        nccl_total: all kernels of NCCL.
        memory: by kind, in the order of their table; None without a table.
        ranges: the NVTX ranges of the iterations; None without.
        kernel_classes: each kernel with its class, longest first.
        notes: what the user should know about the input, a sentence each.
        doubts: why rows of the tables seem to be missing, a sentence each.
    """

    iterations: int
    gpus: int
    kernels: tuple[Line, ...]
    kernel_total: Line
    nccl: tuple[Line, ...]
    nccl_total: Line
    memory: tuple[Line, ...] | None
    ranges: RangeTotal | None
    kernel_classes: tuple[tuple[str, Total], ...]
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def divisor(self) -> int:
        """Iterations times GPUs: also how many ranges there should be."""
        return self.iterations * self.gpus

    @property
    def range_average_ns(self) -> Fraction:
        """Average duration of a range; 0 without any."""
        if self.ranges is None or not self.ranges.count:
            return Fraction(0)
        return Fraction(self.ranges.time_ns, self.ranges.count)

    @property
    def exposed_ns(self) -> Fraction:
        """Of a range, the time that is not kernels': estimated NCCL, memory and bubbles."""
        return self.range_average_ns - Fraction(self.kernel_total.time_ns, self.divisor)

    @property
    def exposed_total_ns(self) -> Fraction:
        """Of all ranges together, the time that is not kernels'."""
        range_ns = 0 if self.ranges is None else self.ranges.time_ns
        return Fraction(range_ns - self.kernel_total.time_ns)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes the numbers doubtful, a sentence each."""
        if self.ranges is None:
            return self.doubts
        warnings = list(self.doubts)
        tag = self.ranges.tag
        if self.ranges.count != self.divisor:
            warnings.append(
                f"{counted(self.ranges.count, 'NVTX range')} {tag!r}, not "
                f"{self.divisor:,} ({counted(self.iterations, 'iteration')} times "
                f"{counted(self.gpus, 'GPU')}); the "
                "estimate assumes one range per iteration and GPU"
            )
        if self.exposed_ns < 0:
            warnings.append(
                f"the NVTX ranges {tag!r} are shorter than the kernels of an "
                "iteration: kernels ran at the same time, or outside of the ranges"
            )
        return tuple(warnings)


def compute(
    classifier: Classifier,
    kernels: Sequence[Total],
    memory: Sequence[Total] | None = None,
    ranges: RangeTotal | None = None,
    *,
    iterations: int,
    gpus: int,
    notes: tuple[str, ...] = (),
) -> ClassStatistics:
    """Compute the statistics of one input.

    Args:
        classifier: gives each kernel a class.
        kernels: totals by kernel.
        memory: totals by kind of memory operation, if known.
        ranges: the ranges of the iterations, if known.
        iterations: how many the input has.
        gpus: the number of GPUs.
        notes: what the user should know about the input, a sentence each.
    """
    divisor = iterations * gpus
    classes = classifier.classify([kernel.name for kernel in kernels])
    classified = list(zip(classes, kernels, strict=True))
    nccl_kernels = [kernel for name, kernel in classified if name == NCCL_CLASS]
    other_kernels = [
        (name, kernel) for name, kernel in classified if name != NCCL_CLASS
    ]
    line_of_class = _lines(other_kernels, divisor)
    memory_lines = None
    if memory is not None:
        named_totals = [
            (_SHORT_COPIES.get(total.name, total.name), total) for total in memory
        ]
        memory_lines = tuple(_lines(named_totals, divisor).values())
    collectives = [(collective_of(kernel.name), kernel) for kernel in nccl_kernels]
    doubts = [
        totals.doubt for totals in (kernels, memory) if isinstance(totals, Totals)
    ]
    return ClassStatistics(
        iterations=iterations,
        gpus=gpus,
        kernels=tuple(
            line_of_class.get(name, Line(name, 0, 0))
            for name in _order_of_classes(classifier, line_of_class)
        ),
        kernel_total=_sum([kernel for _, kernel in other_kernels], divisor),
        nccl=tuple(_lines(collectives, divisor).values()),
        nccl_total=_sum(nccl_kernels, divisor),
        memory=memory_lines,
        ranges=ranges,
        kernel_classes=tuple(sorted(classified, key=lambda pair: -pair[1].time_ns)),
        notes=notes,
        doubts=tuple(filter(None, doubts)),
    )


def _order_of_classes(
    classifier: Classifier, line_of_class: Mapping[str, Line]
) -> Iterable[str]:
    """Return the classes to show: `others`, then those of the map, or else by time."""
    classes: Iterable[str]
    if classifier.classes is not None:
        classes = classifier.classes
    else:
        classes = sorted(line_of_class, key=lambda name: -line_of_class[name].time_ns)
    return dict.fromkeys([OTHERS_CLASS] + list(classes))


def _sum(kernels: Iterable[Total], divisor: int) -> Line:
    """Return the sum of some kernels, without a name."""
    lines = _lines([("", kernel) for kernel in kernels], divisor)
    return lines.get("", Line("", 0, 0))


def _lines(named_totals: Iterable[tuple[str, Total]], divisor: int) -> dict[str, Line]:
    """Add up the totals of each name."""
    lines: dict[str, Line] = {}
    for name, total in named_totals:
        line = lines.setdefault(name, Line(name, 0, 0))
        line.time_ns += total.time_ns
        line.instances += total.instances
        line.per_iteration += total.instances // divisor
        if total.size_bytes is not None:
            line.size_bytes = (line.size_bytes or 0) + total.size_bytes
    return lines


class Classifier:
    """Gives each kernel a class, by its name: `nccl` for those of NCCL, `others` for what is left.

    A map is from parts of kernel names to classes: case does not matter, and the first key in its
    order that a name contains wins. Without one the built-in categories are the classes.

    Attributes:
        classes: all but `others` and `nccl` in the order to show; None: those that occur, by time.
    """

    def __init__(
        self, mapping: Mapping[str, str] | None, name: str = "class map"
    ) -> None:
        from tracelens_ext.categorize import KernelCategorizer, builtin_categorizer
        from tracelens_ext.categorize.matcher import BoundPack

        self.classes: tuple[str, ...] | None = None
        if mapping is None:
            self._categorizer = builtin_categorizer()
            return
        pack = substring_pack(mapping, name)
        for key, category in mapping.items():
            if category.strip().lower() == OTHERS_CLASS:
                raise RuleError(
                    f"{name}: {key!r}: the class {category!r} is reserved for kernels "
                    "without a key; leave the key out, or rename its class"
                )
        classes = dict.fromkeys(
            encodable(category).lower() for category in mapping.values()
        )
        self.classes = tuple(
            kernel_class for kernel_class in classes if kernel_class != NCCL_CLASS
        )
        self._categorizer = KernelCategorizer(
            [BoundPack(pack, "categorizer", limited=False)]
        )

    def classify(self, names: Sequence[str]) -> list[str]:
        """Return the class of each kernel."""
        decisions = self._categorizer.categorize(names)
        classes = [category.lower() for category in decisions.category]
        if self.classes is not None:
            return classes
        for index, name in enumerate(names):
            if NCCL_CLASS in name.lower():
                classes[index] = NCCL_CLASS
            elif not decisions.known[index]:
                classes[index] = OTHERS_CLASS
        return classes


_COLLECTIVE_PATTERNS = (
    r"nccl(?:Symk?)?(?:Dev)?Kernel_([A-Z][A-Za-z]*)",
    r"nccl([A-Z][A-Za-z]*?)(?:Ring|Tree|CollNet)?(?:LL128|LL|Simple)?Kernel(?![A-Za-z])",
)


def collective_of(name: str) -> str:
    """Return the collective of a kernel, such as `AllGather`; its own short name if it has none."""
    for pattern in _COLLECTIVE_PATTERNS:
        match = re.search(pattern, name)
        if match is not None:
            return match[1]
    return short_name(name)
