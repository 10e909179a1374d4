"""The statistics: kernels by class, NCCL by collective, memory operations by kind, NVTX ranges.

All sums are whole nanoseconds, all quotients exact; numbers are rounded when they are shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

from tracelens_ext.categorize.maps import NCCL_CLASS, OTHERS_CLASS
from tracelens_ext.class_statistics.nccl import collective_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracelens_ext.class_statistics.class_map import Classifier
    from tracelens_ext.class_statistics.totals import RangeTotal, Total

#: `Device-to-Device`; other spellings of a direction (`DtoD`) are short already.
_DIRECTION = re.compile(r"\b([A-Z])[a-z]+-to-([A-Z])[a-z]+\b")


@dataclass(frozen=True)
class Line:
    """A class of kernels, a collective, or a kind of memory operation.

    Attributes:
        name: its name as shown.
        time_ns: summed duration of all instances.
        instances: their number.
        per_iteration: their number in an iteration on one GPU, rounded down kernel by kernel.
        size_bytes: what they moved; None if it is not known.
    """

    name: str
    time_ns: int
    instances: int
    per_iteration: int
    size_bytes: int | None = None


@dataclass(frozen=True)
class ClassStatistics:
    """The statistics of one input.

    Attributes:
        iterations: how many the input holds.
        gpus: the number of GPUs, which all go through each iteration.
        kernels: by class, without NCCL: `others`, then the classes in their order.
        nccl: by collective, longest first.
        memory: by kind, longest first; None when there is no table of them.
        ranges: the NVTX ranges of the iterations; None without.
        kernel_classes: each kernel with its class, longest first.
        notes: what the user should know about the input, a sentence each.
    """

    iterations: int
    gpus: int
    kernels: tuple[Line, ...]
    nccl: tuple[Line, ...]
    memory: tuple[Line, ...] | None
    ranges: RangeTotal | None
    kernel_classes: tuple[tuple[str, Total], ...]
    notes: tuple[str, ...] = ()

    @property
    def divisor(self) -> int:
        """Iterations times GPUs: also how many ranges there should be."""
        return self.iterations * self.gpus

    @cached_property
    def kernel_total(self) -> Line:
        """All kernels but those of NCCL."""
        return _sum(self.kernels)

    @cached_property
    def nccl_total(self) -> Line:
        """All kernels of NCCL."""
        return _sum(self.nccl)

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
        total = self.ranges.time_ns if self.ranges else 0
        return Fraction(total - self.kernel_total.time_ns)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes the numbers doubtful, a sentence each."""
        if self.ranges is None:
            return ()
        warnings = []
        if self.ranges.count != self.divisor:
            warnings.append(
                f"{self.ranges.count:,} NVTX ranges {self.ranges.tag!r}, not {self.divisor:,}"
                f" ({self.iterations:,} iterations by {self.gpus:,} GPUs); the estimate assumes"
                " that every iteration is one range on each GPU"
            )
        if self.exposed_ns < 0:
            warnings.append(
                f"the NVTX ranges {self.ranges.tag!r} are shorter than the kernels of an iteration:"
                " kernels ran at the same time, or outside of the ranges"
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
        classifier: gives each kernel its class.
        kernels: all kernels, NCCL's too.
        memory: memory operations.
        ranges: the NVTX ranges of the iterations.
        iterations: at least 1.
        gpus: at least 1.
        notes: what the user should know about the input.
    """
    divisor = iterations * gpus
    classes = classifier.classify([kernel.name for kernel in kernels])
    of_class = list(zip(classes, kernels, strict=True))
    nccl = [(collective_of(k.name), k) for name, k in of_class if name == NCCL_CLASS]
    others = [pair for pair in of_class if pair[0] != NCCL_CLASS]
    lines = {line.name: line for line in _longest_first(_lines(others, divisor))}
    order = dict.fromkeys(
        (OTHERS_CLASS, *(lines if classifier.classes is None else classifier.classes))
    )
    shown = [(_short_direction(operation.name), operation) for operation in memory or ()]
    return ClassStatistics(
        iterations=iterations,
        gpus=gpus,
        kernels=tuple(lines.get(name, Line(name, 0, 0, 0)) for name in order),
        nccl=_longest_first(_lines(nccl, divisor)),
        memory=None if memory is None else _longest_first(_lines(shown, divisor)),
        ranges=ranges,
        kernel_classes=tuple(sorted(of_class, key=lambda pair: -pair[1].time_ns)),
        notes=notes,
    )


def _lines(named: Iterable[tuple[str, Total]], divisor: int) -> list[Line]:
    """Sum what has one name."""
    lines: dict[str, Line] = {}
    for name, total in named:
        line = lines.get(name, Line(name, 0, 0, 0))
        lines[name] = Line(
            name,
            line.time_ns + total.time_ns,
            line.instances + total.instances,
            line.per_iteration + total.instances // divisor,
            _known_sum(line.size_bytes, total.size_bytes),
        )
    return list(lines.values())


def _known_sum(one: int | None, other: int | None) -> int | None:
    """The sum of what is known."""
    return other if one is None else one + (other or 0)


def _longest_first(lines: Iterable[Line]) -> tuple[Line, ...]:
    return tuple(sorted(lines, key=lambda line: -line.time_ns))


def _sum(lines: Sequence[Line]) -> Line:
    return Line(
        "",
        sum(line.time_ns for line in lines),
        sum(line.instances for line in lines),
        sum(line.per_iteration for line in lines),
    )


def _short_direction(name: str) -> str:
    return _DIRECTION.sub(r"\g<1>2\g<2>", name)
