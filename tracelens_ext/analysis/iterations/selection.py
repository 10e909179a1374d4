"""Selection of GPU events by iteration, stream, device and category."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from tracelens_ext.analysis.iterations.iterations import Iterations, find_iterations
from tracelens_ext.compatibility.earlier_arguments import keeps_old_names
from tracelens_ext.errors import UsageError
from tracelens_ext.trace import BoolArray, Int64Array
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.lookup import values_at

#: Largest number of streams or devices that an error lists.
_VALUES_LISTED = 20
#: How events are assigned to a step: by the time of their launch, or by their start on the GPU.
StepBy = Literal["launch", "time"]


@keeps_old_names
@dataclass(frozen=True)
class EventFilter:
    """Conditions that choose GPU events; None stands for no condition.

    Attributes:
        step: the N of a `ProfilerStep#N`.
        step_by: `launch` chooses the events that were launched in the step, `time` those that
            started on the GPU during the step.
        stream: number of a stream.
        device: number of a device.
        category: a kernel category; case does not matter.
    """

    step: int | None = None
    step_by: StepBy = "launch"
    stream: int | None = None
    device: int | None = None
    category: str | None = None

    def __post_init__(self) -> None:
        choices = get_args(StepBy)
        if self.step_by not in choices:
            raise UsageError(
                f"step_by is {self.step_by!r}; choose from {', '.join(choices)}"
            )

    def of(self, gpu_events: GpuEvents) -> BoolArray:
        """Return a mask of the GPU events that meet all conditions, (g,).

        Raises:
            UsageError: the trace has no such step, stream, device or category.
        """
        selected = np.ones(len(gpu_events), dtype=bool)
        if self.step is not None:
            iterations = _with_step(gpu_events, self.step)
            by_time = self.step_by == "time"
            of_gpu = iterations.started_in if by_time else iterations.of_gpu
            selected &= _is_of_step(iterations, self.step, of_gpu)
        if self.stream is not None:
            selected &= _has_number(
                what="stream", numbers=gpu_events.trace.stream, wanted=self.stream
            )
        if self.device is not None:
            selected &= _has_number(
                what="device", numbers=gpu_events.trace.device, wanted=self.device
            )
        if self.category is not None:
            selected &= _of_category(gpu_events, self.category)
        return selected

    @property
    def text(self) -> str:
        """The conditions in words, such as `ProfilerStep#5, stream 7`; empty for none."""
        conditions = []
        if self.step is not None:
            conditions.append(f"ProfilerStep#{self.step} (by {self.step_by})")
        if self.device is not None:
            conditions.append(f"device {self.device}")
        if self.stream is not None:
            conditions.append(f"stream {self.stream}")
        if self.category is not None:
            conditions.append(f"category {self.category}")
        return ", ".join(conditions)

    def left_out(self, gpu_events: GpuEvents) -> str:
        """Return a sentence about events that a step leaves out because they have no launch.

        The text is empty if there are no such events, or no step by launch.
        """
        is_unlinked = ~gpu_events.tree.linked
        if self.step is None or self.step_by == "time" or not is_unlinked.any():
            return ""
        iterations = _with_step(gpu_events, self.step)
        started_in_step = _is_of_step(
            iterations=iterations, number=self.step, of_gpu=iterations.started_in
        )
        count_in_step = int((started_in_step & is_unlinked).sum())
        return (
            "Left out because their launch is not in the trace: "
            f"{gpu_events.count_text(is_unlinked)}, of which {count_in_step:,} started during "
            f"ProfilerStep#{self.step}."
        )


def span_of_step(gpu_events: GpuEvents, number: int) -> tuple[int, int]:
    """Return start and end of the iteration with this number, ns since the trace's first event."""
    iterations = _with_step(gpu_events, number)
    index = iterations.number.index(number)
    return int(iterations.start[index]), int(iterations.end[index])


def _is_of_step(iterations: Iterations, number: int, of_gpu: Int64Array) -> BoolArray:
    """Return a mask of the GPU events whose iteration has this number, (g,).

    Args:
        iterations: the iterations.
        number: the number.
        of_gpu: index of the iteration of each GPU event, `NONE` for an event without one, (g,).
    """
    return values_at(iterations.has_number(number), of_gpu, missing=False)


def _with_step(gpu_events: GpuEvents, number: int) -> Iterations:
    """Return the iterations of a trace; raise a `UsageError` if none has this number."""
    iterations = find_iterations(gpu_events.tree)
    if number not in iterations.number:
        present = iterations.label(np.ones(len(iterations), dtype=bool))
        has = f"it has {present}" if present else "it has no ProfilerStep#N at all"
        raise UsageError(f"there is no ProfilerStep#{number} in the trace; {has}")
    return iterations


def _has_number(what: str, numbers: Int64Array, wanted: int) -> BoolArray:
    """Return a mask of the GPU events on a stream or a device, (g,).

    Args:
        what: `stream` or `device`, for the error.
        numbers: the number of the stream or device of each GPU event, (g,).
        wanted: the number to choose.
    """
    selected: BoolArray = numbers == wanted
    if not selected.any():
        present = np.unique(numbers).tolist()[:_VALUES_LISTED]
        has = ", ".join(map(str, present)) or "none"
        raise UsageError(f"no GPU event ran on {what} {wanted}; the trace has {has}")
    return selected


def _of_category(gpu_events: GpuEvents, wanted: str) -> BoolArray:
    """Return a mask of the GPU events of a category, (g,)."""
    categories = gpu_events.needed_categories
    codes = np.unique(categories.code)
    labels = [categories.labels[code] for code in codes.tolist()]
    folded = wanted.casefold()
    matching = [label for label in labels if label.casefold() == folded]
    if not matching:
        nearest = difflib.get_close_matches(wanted, labels, n=3, cutoff=0.5) or labels
        has = f"the trace has {', '.join(nearest)}"
        raise UsageError(f"no GPU event belongs to the category {wanted!r}; {has}")
    code = categories.labels.index(matching[0])
    selected: BoolArray = categories.code == code
    return selected
