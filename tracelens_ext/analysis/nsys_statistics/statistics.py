"""The statistics: kernels by class, NCCL by collective, memory operations by kind, NVTX ranges.

They are computed from totals by name, of `nsys stats` tables or of a trace. Sums are whole
nanoseconds and quotients are exact fractions, so numbers are only rounded for display.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from tracelens_ext.analysis.nsys_statistics.kernel_classes import (
    Classifier,
    collective_of,
)
from tracelens_ext.analysis.nsys_statistics.totals import RangeTotal, Total, Totals
from tracelens_ext.categorize.maps import NCCL_CLASS, OTHERS_CLASS
from tracelens_ext.text import counted

#: Name of a copy in the tables → the shorter name to show. Other operations keep their names.
_SHORT_COPIES = {
    "[CUDA memcpy Device-to-Device]": "[CUDA memcpy D2D]",
    "[CUDA memcpy Device-to-Host]": "[CUDA memcpy D2H]",
    "[CUDA memcpy Host-to-Device]": "[CUDA memcpy H2D]",
    "[CUDA memcpy Host-to-Host]": "[CUDA memcpy H2H]",
}


@dataclass
class Line(Total):
    """The total of a class of kernels, a collective, or a kind of memory operation.

    Attributes:
        per_iteration: number of instances per iteration and GPU: the sum over the kernels, each
            rounded down.
    """

    per_iteration: int = 0


@dataclass(frozen=True)
class ClassStatistics:
    """The statistics of one input.

    Attributes:
        iterations: number of iterations.
        gpus: number of GPUs; all of them go through each iteration.
        kernels: totals by class, without NCCL: first `others`, then the classes in their order.
        kernel_total: total of all kernels except those of NCCL.
        nccl: totals by collective, in the order of their kernels.
        nccl_total: total of all kernels of NCCL.
        memory: totals by kind of memory operation, in the order of their table; None without one.
        ranges: the NVTX ranges of the iterations; None without ranges.
        kernel_classes: each kernel with its class, longest total first.
        notes: sentences about the input for the user.
        doubts: sentences that explain why rows of the tables seem to be missing.
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
        """Iterations times GPUs, which is also the expected number of ranges."""
        return self.iterations * self.gpus

    @property
    def range_average_ns(self) -> Fraction:
        """Average duration of a range, ns; 0 without ranges."""
        if self.ranges is None or not self.ranges.count:
            return Fraction(0)
        return Fraction(self.ranges.time_ns, self.ranges.count)

    @property
    def not_hidden_ns(self) -> Fraction:
        """Average time of a range without kernels, ns: NCCL, memory operations and bubbles.

        This is an estimate, which assumes one range per iteration and GPU.
        """
        return self.range_average_ns - Fraction(self.kernel_total.time_ns, self.divisor)

    @property
    def not_hidden_total_ns(self) -> Fraction:
        """Time of all ranges without kernels, ns."""
        range_ns = 0 if self.ranges is None else self.ranges.time_ns
        return Fraction(range_ns - self.kernel_total.time_ns)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences that explain why the numbers may be wrong."""
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
        if self.not_hidden_ns < 0:
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
        iterations: number of iterations.
        gpus: number of GPUs.
        notes: sentences about the input for the user.
    """
    divisor = iterations * gpus
    classes = classifier.classify([kernel.name for kernel in kernels])
    classified = list(zip(classes, kernels, strict=True))
    nccl_kernels = [kernel for name, kernel in classified if name == NCCL_CLASS]
    collectives = [(collective_of(kernel.name), kernel) for kernel in nccl_kernels]
    classified_others = [pair for pair in classified if pair[0] != NCCL_CLASS]
    line_of_class = _lines(classified_others, divisor)
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
        kernel_total=_sum([kernel for _, kernel in classified_others], divisor),
        nccl=tuple(_lines(collectives, divisor).values()),
        nccl_total=_sum(nccl_kernels, divisor),
        memory=_memory_lines(memory, divisor),
        ranges=ranges,
        kernel_classes=tuple(sorted(classified, key=lambda pair: -pair[1].time_ns)),
        notes=notes,
        doubts=tuple(filter(None, doubts)),
    )


def _memory_lines(
    memory: Sequence[Total] | None, divisor: int
) -> tuple[Line, ...] | None:
    """Return the totals by kind of memory operation with short names; None if they are unknown."""
    if memory is None:
        return None
    named_totals = []
    for total in memory:
        short_name = _SHORT_COPIES.get(total.name, total.name)
        named_totals.append((short_name, total))
    return tuple(_lines(named_totals, divisor).values())


def _order_of_classes(
    classifier: Classifier, line_of_class: Mapping[str, Line]
) -> Iterable[str]:
    """Return the classes to show: `others`, then those of the map, or without a map by time."""
    classes: Iterable[str]
    if classifier.classes is not None:
        classes = classifier.classes
    else:
        classes = sorted(line_of_class, key=lambda name: -line_of_class[name].time_ns)
    return dict.fromkeys([OTHERS_CLASS] + list(classes))


def _sum(kernels: Iterable[Total], divisor: int) -> Line:
    """Return the total of kernels as a line without a name."""
    lines = _lines([("", kernel) for kernel in kernels], divisor)
    return lines.get("", Line("", 0, 0))


def _lines(named_totals: Iterable[tuple[str, Total]], divisor: int) -> dict[str, Line]:
    """Add up the totals with the same name.

    Args:
        named_totals: totals, each with the name to add it to.
        divisor: iterations times GPUs.
    """
    lines: dict[str, Line] = {}
    for name, total in named_totals:
        line = lines.setdefault(name, Line(name, 0, 0))
        line.time_ns += total.time_ns
        line.instances += total.instances
        line.per_iteration += total.instances // divisor
        if total.size_bytes is not None:
            line.size_bytes = (line.size_bytes or 0) + total.size_bytes
    return lines
