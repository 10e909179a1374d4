"""Which GPU events a question is about: those of an iteration, a stream, a device, a category."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from tracelens_ext.errors import UsageError
from tracelens_ext.iterations.iterations import Iterations, find_iterations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.trace import BoolArray, Int64Array
    from tracelens_ext.work.gpu_work import GpuWork

#: How an event is of a step: it was launched in it, or started on the GPU during it.
PStepBy = Literal["launch", "time"]


@dataclass(frozen=True)
class Selection:
    """What is asked for; None for no condition."""

    pstep: int | None = None  #: the N of a `ProfilerStep#N` in which an event was launched
    pstep_by: PStepBy = "launch"  #: or `time`: the events that started on the GPU during that step
    stream: int | None = None  #: number of a stream
    device: int | None = None  #: number of a device
    category: str | None = None  #: a kernel category, in upper or lower case

    def __post_init__(self) -> None:
        if self.pstep_by not in (choices := get_args(PStepBy)):
            raise UsageError(f"pstep_by is {self.pstep_by!r}; choose from {', '.join(choices)}")

    def of(self, work: GpuWork) -> BoolArray:
        """Which of the GPU events are selected, (g,)."""
        selected = np.ones(len(work), dtype=bool)
        if self.pstep is not None:
            iterations = _with_step(work, self.pstep)
            of_gpu = iterations.started_in if self.pstep_by == "time" else iterations.of_gpu
            selected &= iterations.has_number(self.pstep)[of_gpu]
        for what, wanted in (("stream", self.stream), ("device", self.device)):
            if wanted is not None:
                selected &= _numbered(what, getattr(work.trace, what), wanted)
        if self.category is not None:
            selected &= _of_category(work, self.category)
        return selected

    @property
    def text(self) -> str:
        """The conditions in words, such as `ProfilerStep#5, stream 7`; empty for none."""
        step = f"ProfilerStep#{self.pstep} (by {self.pstep_by})" if self.pstep is not None else ""
        others = {name: getattr(self, name) for name in ("device", "stream", "category")}
        told = [f"{name} {value}" for name, value in others.items() if value is not None]
        return ", ".join(filter(None, [step, *told]))

    def left_out(self, work: GpuWork) -> str:
        """What a step by launch leaves out for want of a launch, a sentence; empty for nothing."""
        unlinked = ~work.tree.linked
        if self.pstep is None or self.pstep_by == "time" or not unlinked.any():
            return ""
        iterations = _with_step(work, self.pstep)
        during = int((iterations.has_number(self.pstep)[iterations.started_in] & unlinked).sum())
        return (
            f"{work.count_text(unlinked)} without a launch in the trace are left out; {during:,} of"
            f" them started during ProfilerStep#{self.pstep}."
        )


def span_of_step(work: GpuWork, number: int) -> tuple[int, int]:
    """Start and end of an iteration, ns since the trace's first event."""
    iterations = _with_step(work, number)
    at = iterations.number.index(number)
    return int(iterations.start[at]), int(iterations.end[at])


def _with_step(work: GpuWork, number: int) -> Iterations:
    """The iterations of a trace, one of which at least has this number."""
    iterations = find_iterations(work.tree)
    if number not in iterations.number:
        there = iterations.label(np.ones(len(iterations), dtype=bool))
        has = f"it has {there}" if there else "it has no ProfilerStep#N at all"
        raise UsageError(f"there is no ProfilerStep#{number} in the trace; {has}")
    return iterations


def _numbered(what: str, numbers: Int64Array, wanted: int) -> BoolArray:
    selected: BoolArray = numbers == wanted
    if not selected.any():
        present = ", ".join(str(n) for n in np.unique(numbers).tolist()[:20]) or "none"
        raise UsageError(f"no GPU event ran on {what} {wanted}; the trace has {present}")
    return selected


def _of_category(work: GpuWork, wanted: str) -> BoolArray:
    categories = work.needed_categories
    labels: Sequence[str] = [categories.labels[i] for i in np.unique(categories.code).tolist()]
    found = [label for label in labels if label.casefold() == wanted.casefold()]
    if not found:
        nearest = difflib.get_close_matches(wanted, labels, n=3, cutoff=0.5) or labels
        raise UsageError(
            f"no GPU event is of the category {wanted!r}; the trace has {', '.join(nearest)}"
        )
    selected: BoolArray = categories.code == categories.labels.index(found[0])
    return selected
