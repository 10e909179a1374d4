"""Which GPU events a question is about: those of an iteration, a stream, a device, a category."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.analysis.gpu_work import GpuWork
    from tracelens_ext.trace import BoolArray, Int64Array


@dataclass(frozen=True)
class Selection:
    """What is asked for; None for no condition."""

    pstep: int | None = None  #: the N of a `ProfilerStep#N` in which an event was launched
    stream: int | None = None  #: number of a stream
    device: int | None = None  #: number of a device
    category: str | None = None  #: a kernel category, in upper or lower case

    def of(self, work: GpuWork) -> BoolArray:
        """Which of the GPU events are selected, (g,).

        Raises:
            UsageError: the trace has no such iteration, stream, device or category.
        """
        selected = np.ones(len(work), dtype=bool)
        if self.pstep is not None:
            selected &= _of_step(work, self.pstep)
        if self.stream is not None:
            selected &= _numbered("stream", work.trace.stream, self.stream)
        if self.device is not None:
            selected &= _numbered("device", work.trace.device, self.device)
        if self.category is not None:
            selected &= _of_category(work, self.category)
        return selected

    @property
    def text(self) -> str:
        """The conditions in words, such as `ProfilerStep#5, stream 7`; empty for none."""
        parts = []
        if self.pstep is not None:
            parts.append(f"ProfilerStep#{self.pstep}")
        if self.device is not None:
            parts.append(f"device {self.device}")
        if self.stream is not None:
            parts.append(f"stream {self.stream}")
        if self.category is not None:
            parts.append(f"category {self.category}")
        return ", ".join(parts)


def _of_step(work: GpuWork, number: int) -> BoolArray:
    from tracelens_ext.analysis.iterations import find_iterations

    iterations = find_iterations(work.tree)
    wanted = np.array([n == number for n in iterations.number], dtype=bool)
    if not wanted.any():
        there = iterations.label(np.ones(len(iterations), dtype=bool))
        has = f"it has {there}" if there else "it has no ProfilerStep#N at all"
        raise UsageError(f"there is no ProfilerStep#{number} in the trace; {has}")
    return np.append(wanted, False)[iterations.of_gpu]  # NONE is the last: of no iteration


def _numbered(what: str, numbers: Int64Array, wanted: int) -> BoolArray:
    selected: BoolArray = numbers == wanted
    if not selected.any():
        present = ", ".join(str(n) for n in np.unique(numbers).tolist()[:20]) or "none"
        raise UsageError(f"no GPU event ran on {what} {wanted}; the trace has {present}")
    return selected


def _of_category(work: GpuWork, wanted: str) -> BoolArray:
    categories = work.categories
    if categories is None:
        raise UsageError("kernel categories are switched off; switch them on to select by one")
    labels: Sequence[str] = [categories.labels[i] for i in np.unique(categories.code).tolist()]
    found = [label for label in labels if label.casefold() == wanted.casefold()]
    if not found:
        nearest = difflib.get_close_matches(wanted, labels, n=3, cutoff=0.5) or labels
        raise UsageError(
            f"no GPU event is of the category {wanted!r}; the trace has {', '.join(nearest)}"
        )
    selected: BoolArray = categories.code == categories.labels.index(found[0])
    return selected
