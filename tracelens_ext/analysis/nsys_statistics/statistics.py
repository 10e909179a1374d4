"""The statistics: kernels by class, NCCL by collective, memory operations by kind, NVTX ranges.

They start from totals by name, whether of `nsys stats` tables or of a trace. All sums are whole
nanoseconds, all quotients exact; numbers are rounded when they are shown.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import compress, product

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
from tracelens_ext.text import encodable

_NEAREST = 5
_MOST_COMPARED = 20_000  # names; comparing one takes some tens of microseconds


@dataclass
class Total:
    """How long all instances of something lasted together, and what they moved, if known."""

    name: str
    time_ns: int
    instances: int
    size_bytes: int | None = None


class Totals(list[Total]):
    """Totals by name, in the order of their table."""

    doubt = ""  #: why rows of the table seem to be missing; empty if none seem to be


@dataclass(frozen=True)
class RangeTotal:
    """The ranges of one NVTX tag, projected onto the GPU."""

    tag: str
    time_ns: int
    count: int


def kernel_totals(source: TableSource, reading: ReadingOptions = DEFAULT_READING_OPTIONS) -> Totals:
    """Totals by kernel, of a `cuda_gpu_kern_sum` table."""
    table = open_report(source, NsysCsvReport.KERNELS, label="the kernel table", reading=reading)
    if totals := _totals(table, "name", "instances"):
        return totals
    remedy = "make it again; perhaps it was cut off"
    raise TraceFormatError(table.source, "has a header and no kernels", remedy)


def memory_totals(
    source: TableSource,
    sizes: TableSource | None = None,
    reading: ReadingOptions = DEFAULT_READING_OPTIONS,
) -> Totals:
    """Totals by kind of memory operation."""
    table = open_report(
        source, NsysCsvReport.MEMORY_TIME, label="the memory table", reading=reading
    )
    totals = _totals(table, "operation", "count")
    if sizes is None:
        return totals
    table = open_report(
        sizes, NsysCsvReport.MEMORY_SIZE, label="the table of sizes", reading=reading
    )
    by_name = {total.name: total for total in totals}
    for piece in table.pieces:
        given = piece.required("total", piece.sizes("total"))
        for name, size in zip(piece.texts("operation"), given, strict=True):
            if total := by_name.get(name):
                total.size_bytes = (total.size_bytes or 0) + size
    return totals


def range_total(
    source: TableSource, tag: str, reading: ReadingOptions = DEFAULT_READING_OPTIONS
) -> RangeTotal:
    """The ranges of a tag, of an `nvtx_gpu_proj_trace` table.

    The colon that `nsys stats` puts before names of the default domain does not matter.
    """
    table = open_report(source, NsysCsvReport.RANGES, label="the NVTX table", reading=reading)
    seen: set[str] = set()
    found: list[int] = []
    for piece in table.pieces:
        names = piece.texts("name")
        durations = piece.required("projectedduration", piece.nanoseconds("projectedduration"))
        own = [name.removeprefix(":") == tag.removeprefix(":") for name in names]
        found += compress(durations, own)
        seen.update(names)
    if not found:
        raise no_such_range(table.source, tag, seen)
    return RangeTotal(tag, sum(found), len(found))


def no_such_range(source: str, tag: str, names: Collection[str]) -> UsageError:
    """The error for a tag that no range has."""
    said = f"{source}: no NVTX range"
    if not names:
        why = "there are no ranges that started GPU work; record with: nsys profile -t cuda,nvtx"
        return UsageError(f"{said} {tag!r}: {why}")
    some = sorted(names)[:_MOST_COMPARED]
    near = map(repr, difflib.get_close_matches(tag, some, n=_NEAREST, cutoff=0.0))
    return UsageError(f"{said} is called {tag!r}; the nearest: {', '.join(near)}")


def _totals(table: NsysCsvTable, name_column: str, count_column: str) -> Totals:
    """Totals by name, in the order of the table; rows of one name are taken together."""
    totals: dict[str, Total] = {}
    longest: tuple[int, object] = (0, None)
    unfinished = False
    for piece in table.pieces:
        times = piece.required("totaltime", piece.nanoseconds("totaltime"))
        counts = piece.required(count_column, piece.whole(count_column))
        for name, time, count in zip(piece.texts(name_column), times, counts, strict=True):
            total = totals.setdefault(name, Total(name, 0, 0))
            total.time_ns = total.time_ns + time
            total.instances = total.instances + count
        unfinished = piece.unfinished
        shares = zip(times, piece.columns["time"], strict=True)
        longest = max(longest, *shares, key=lambda row: row[0])
    result = Totals(totals.values())
    result.doubt = _missing_rows(table.source, *longest, sum(each.time_ns for each in result))
    if unfinished and not result.doubt:
        result.doubt = f"{table.source}: its last line does not end; perhaps it was cut off there"
    return result


def _missing_rows(source: str, time: int, share: object, total: int) -> str:
    """A sentence if a table holds less than the percentage of its longest row tells; else empty."""
    text = str(share).strip(" %")
    percent = 0.0
    with suppress(ValueError):
        percent = float(text)
    rounded = 0.5 * 10.0 ** -len(text.partition(".")[2])
    if not 0 < percent <= 100 or total * (percent + rounded) >= 100 * time:
        return ""
    found = 100 * total / (100 * time / percent)
    said = f"{source}: its rows are {found:.0f} % of the time that its percentages tell"
    return f"{said}; it was cut off or filtered, and the rest counts nowhere"


#: How copies are shown; all others by the names that they have.
_SHORT_COPIES = {
    f"[CUDA memcpy {start}-to-{end}]": f"[CUDA memcpy {start[0]}2{end[0]}]"
    for start, end in product(("Device", "Host"), repeat=2)
}


@dataclass
class Line(Total):
    """A class of kernels, a collective, or a kind of memory operation, by its name as shown."""

    per_iteration: int = 0  #: instances in an iteration on one GPU, rounded down kernel by kernel


@dataclass(frozen=True)
class ClassStatistics:
    """The statistics of one input."""

    iterations: int  #: how many the input holds
    gpus: int  #: the number of GPUs, which all go through each iteration
    kernels: tuple[Line, ...]  #: by class, without NCCL: `others`, then the classes in their order
    kernel_total: Line  #: all kernels but those of NCCL
    nccl: tuple[Line, ...]  #: by collective, in the order of their kernels
    nccl_total: Line
    memory: tuple[Line, ...] | None  #: by kind, in the order of their table; None without
    ranges: RangeTotal | None  #: the NVTX ranges of the iterations; None without
    kernel_classes: tuple[tuple[str, Total], ...]  #: each kernel with its class, longest first
    notes: tuple[str, ...] = ()  #: what the user should know about the input, a sentence each
    doubts: tuple[str, ...] = ()  #: why rows of the tables seem to be missing, likewise

    @property
    def divisor(self) -> int:
        """Iterations times GPUs: also how many ranges there should be."""
        return self.iterations * self.gpus

    @property
    def range_average_ns(self) -> Fraction:
        """Average duration of a range; 0 without any."""
        ranges = self.ranges
        return Fraction(ranges.time_ns, ranges.count) if ranges and ranges.count else Fraction(0)

    @property
    def exposed_ns(self) -> Fraction:
        """Of a range, the time that is not kernels': estimated NCCL, memory and bubbles."""
        return self.range_average_ns - Fraction(self.kernel_total.time_ns, self.divisor)

    @property
    def exposed_total_ns(self) -> Fraction:
        """Of all ranges together."""
        return Fraction((self.ranges.time_ns if self.ranges else 0) - self.kernel_total.time_ns)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes the numbers doubtful, a sentence each."""
        warnings = list(self.doubts)
        ranges = self.ranges
        if ranges is not None and ranges.count != self.divisor:
            expected = f"{self.divisor:,} ({self.iterations:,} iterations by {self.gpus:,} GPUs)"
            said = "the estimate assumes that every iteration is one range on each GPU"
            found = f"{ranges.count:,} NVTX ranges {ranges.tag!r}, not {expected}"
            warnings.append(f"{found}; {said}")
        if ranges is not None and self.exposed_ns < 0:
            said = f"the NVTX ranges {ranges.tag!r} are shorter than the kernels of an iteration"
            warnings.append(f"{said}: kernels ran at the same time, or outside of the ranges")
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
    """Compute the statistics of one input."""
    divisor = iterations * gpus
    classes = classifier.classify([kernel.name for kernel in kernels])
    of_class = list(zip(classes, kernels, strict=True))
    nccl = [kernel for name, kernel in of_class if name == NCCL_CLASS]
    others = [pair for pair in of_class if pair[0] != NCCL_CLASS]
    lines = _lines(others, divisor)
    by_time = sorted(lines, key=lambda name: -lines[name].time_ns)
    order = dict.fromkeys((OTHERS_CLASS, *(by_time if (c := classifier.classes) is None else c)))
    shown = [(_SHORT_COPIES.get(each.name, each.name), each) for each in memory or ()]
    total, nccl_total = (
        _lines([("", kernel) for kernel in of], divisor).get("", Line("", 0, 0))
        for of in ([kernel for _, kernel in others], nccl)
    )
    return ClassStatistics(
        iterations=iterations,
        gpus=gpus,
        kernels=tuple(lines.get(name, Line(name, 0, 0)) for name in order),
        kernel_total=total,
        nccl=tuple(_lines([(collective_of(k.name), k) for k in nccl], divisor).values()),
        nccl_total=nccl_total,
        memory=None if memory is None else tuple(_lines(shown, divisor).values()),
        ranges=ranges,
        kernel_classes=tuple(sorted(of_class, key=lambda pair: -pair[1].time_ns)),
        notes=notes,
        doubts=tuple(t.doubt for t in (kernels, memory) if isinstance(t, Totals) and t.doubt),
    )


def _lines(named: Iterable[tuple[str, Total]], divisor: int) -> dict[str, Line]:
    """Sum what has one name."""
    lines: dict[str, Line] = {}
    for name, total in named:
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
    """

    def __init__(self, mapping: Mapping[str, str] | None, name: str = "class map") -> None:
        from tracelens_ext.categorize import KernelCategorizer, builtin_categorizer
        from tracelens_ext.categorize.matcher import BoundPack

        #: all but `others` in the order to show; None: those that occur, by time
        self.classes: tuple[str, ...] | None = None
        if mapping is None:
            self._categorizer = builtin_categorizer()
            return
        pack = substring_pack(mapping, name)
        for key, category in mapping.items():
            if category.strip().lower() == OTHERS_CLASS:
                said = f"the class {category!r} is that of all kernels without a key"
                remedy = "leave the key out, or name its class otherwise"
                raise RuleError(f"{name}: {key!r}: {said}; {remedy}")
        lower = (encodable(category).lower() for category in mapping.values())
        self.classes = tuple(c for c in dict.fromkeys(lower) if c != NCCL_CLASS)
        self._categorizer = KernelCategorizer([BoundPack(pack, "categorizer", limited=False)])

    def classify(self, names: Sequence[str]) -> list[str]:
        """The class of each kernel."""
        found = self._categorizer.categorize(names)
        classes = [category.lower() for category in found.category]
        if self.classes is not None:
            return classes
        return [
            NCCL_CLASS if NCCL_CLASS in name.lower() else each if known else OTHERS_CLASS
            for name, each, known in zip(names, classes, found.known, strict=True)
        ]


_NAMED = (
    r"nccl(?:Symk?)?(?:Dev)?Kernel_([A-Z][A-Za-z]*)",
    r"nccl([A-Z][A-Za-z]*?)(?:Ring|Tree|CollNet)?(?:LL128|LL|Simple)?Kernel(?![A-Za-z])",
)


def collective_of(name: str) -> str:
    """The collective, such as `AllGather`; of a kernel that names none its own short name."""
    found = next(filter(None, (re.search(pattern, name) for pattern in _NAMED)), None)
    return found[1] if found else short_name(name)
