"""Iterations: the `ProfilerStep#N` annotations of a trace, and the GPU work that each started.

PyTorch's profiler puts such an annotation around each step of a training loop. One that was still
open when recording ended is in the file too: of no length (profilers before 2024), or drawn out to
the end of the recording, which a `Record Window End` event marks.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from tracelens_ext.categorize.user_patterns import Expression, user_pattern
from tracelens_ext.compatibility.earlier_arguments import keeps_old_names
from tracelens_ext.errors import UsageError
from tracelens_ext.trace import NONE, BoolArray, EventKind, Int64Array, IntArray, Trace
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.sorted_groups import by_group_and_time, last_before, outermost

STEP = re.compile(r"ProfilerStep#([0-9]+)")
#: No name of a step is longer; a longer number is none.
_LONGEST_STEP_NAME = 39
_RECORDING_ENDS = re.compile(r"Record Window End\Z")
#: How Python frames of a step of a serving engine end: vLLM's and SGLang's.
_ENGINE_STEP = re.compile(r".*: (?:execute_model|forward_batch_generation)$")
#: Profilers before 2023 record the annotation as an operator.
ANNOTATION_KINDS = (EventKind.USER_ANNOTATION, EventKind.CPU_OP)
_VALUES_LISTED = 20


class IterationSpans(NamedTuple):
    """When iterations ran, by process, then by start; k of them."""

    process: Int64Array  #: of each, as in `Trace.process_of_thread`, (k,)
    start: Int64Array  #: ns since the trace's first event, (k,)
    end: Int64Array  #: ns since the trace's first event, (k,)


@dataclass(frozen=True, eq=False)
class Iterations:
    """The iterations of a trace, k of them, by process, then by start.

    Attributes:
        number: the N of each `ProfilerStep#N`.
        process: of each, as in `Trace.process_of_thread`, (k,).
        start: ns since the trace's first event, (k,).
        end: likewise, (k,).
        finished: whether each ended before the recording did, (k,).
        of_gpu: the iteration in which each GPU event was launched, as an index, `NONE` for an event
            launched outside of all of them or without a launch in the trace, (g,).
        started_in: the iteration during which each GPU event started on the GPU, likewise; `NONE`
            where it is not known which of several processes launched it, (g,).
    """

    number: list[int]
    process: Int64Array
    start: Int64Array
    end: Int64Array
    finished: BoolArray
    of_gpu: Int64Array
    started_in: Int64Array

    def __len__(self) -> int:
        return len(self.number)

    @property
    def spans(self) -> IterationSpans:
        """When the iterations ran."""
        return IterationSpans(process=self.process, start=self.start, end=self.end)

    def has_number(self, number: int) -> BoolArray:
        """Return whether each iteration has this number, (k,)."""
        return np.array([iteration == number for iteration in self.number], dtype=bool)

    def numbers(self, which: IntArray) -> list[str]:
        """Return the N of some iterations, by their index, as texts; empty for `NONE`."""
        texts = [str(number) for number in self.number]
        return [texts[index] if index != NONE else "" for index in which.tolist()]

    @cached_property
    def whole(self) -> BoolArray:
        """True for iterations that finished and launched GPU work, (k,)."""
        return self.finished & np.isin(np.arange(len(self)), self.of_gpu)

    @cached_property
    def whole_count(self) -> int:
        """How many whole iterations each process went through (the most, where they differ)."""
        return int(np.bincount(self.process[self.whole]).max(initial=0))

    @cached_property
    def run(self) -> Int64Array:
        """The number of the run of each whole iteration, `NONE` for one that is not whole, (k,).

        Iterations of a run follow one another without a hole: steps 3, 4, 7 and 8 are two runs, 0
        and 1. A recording may skip steps, and what lies between is no idle time.
        """
        whole = np.flatnonzero(self.whole)
        runs = np.full(len(self), NONE, dtype=np.int64)
        step_numbers = np.array(
            [self.number[index] for index in whole.tolist()], dtype=object
        )
        same_process = np.diff(self.process[whole]) == 0
        follows = same_process & (np.diff(step_numbers) == 1).astype(bool)
        runs[whole[:1]] = 0
        runs[whole[1:]] = np.cumsum(~follows)
        return runs

    def label(self, chosen: BoolArray) -> str:
        """Return a name for the chosen iterations: `ProfilerStep#5 to #7`; empty for none."""
        places = np.flatnonzero(chosen).tolist()
        numbers = sorted({self.number[place] for place in places})
        if not numbers:
            return ""
        first = numbers[0]
        last = numbers[-1]
        if len(numbers) == 1:
            return f"ProfilerStep#{first}"
        is_without_holes = last - first == len(numbers) - 1
        if is_without_holes:
            return f"ProfilerStep#{first} to #{last}"
        return f"{len(numbers)} between ProfilerStep#{first} and #{last}"


@cached_per_object
def find_iterations(tree: CallTree) -> Iterations:
    """Find the iterations of a trace.

    A GPU event belongs to the iteration in which its launch started, on any thread of the
    process: the backward pass has a thread of its own, and the GPU runs behind the host.
    """
    trace = tree.trace
    annotations = _step_annotations(trace)
    spans = _spans_of_events(trace, annotations.rows)
    order = np.lexsort((-spans.end, spans.start, spans.process))
    is_repeated = _repeated(
        numbers=annotations.numbers[order],
        process=spans.process[order],
        end=spans.end[order],
    )
    order = order[~is_repeated]
    # Of two with one start the longer comes last: one of no length hides no other.
    start = spans.start[order]
    end = spans.end[order]
    process = spans.process[order]
    order = order[np.lexsort((end, start, process))]
    numbers = [int(number) for number in annotations.numbers[order].tolist()]
    return iterations_of(tree, annotations.rows[order], numbers)


def iterations_of(tree: CallTree, rows: Int64Array, numbers: list[int]) -> Iterations:
    """Return annotations (by process, then by start) and their numbers as iterations."""
    trace = tree.trace
    spans = _spans_of_events(trace, rows)
    gpu_start = trace.ts[trace.gpu_rows]
    launch = tree.launch_of_gpu[tree.linked]
    launched_by = np.full(len(tree.linked), NONE, dtype=np.int64)
    launching_thread = trace.thread[launch]
    launched_by[tree.linked] = trace.process_of_thread[launching_thread]
    launched_at = gpu_start.copy()
    launched_at[tree.linked] = trace.ts[launch]
    run_by = launched_by
    if trace.conventions.gpu_by_process:
        thread = trace.thread[trace.gpu_rows]
        run_by = trace.process_of_thread[thread].astype(np.int64)
    elif len(np.unique(spans.process)) == 1:
        run_by = np.where(tree.linked, launched_by, spans.process[0])
    is_finished = spans.end > spans.start
    is_finished &= spans.end < _recording_end(trace)
    return Iterations(
        number=numbers,
        process=spans.process,
        start=spans.start,
        end=spans.end,
        finished=is_finished,
        of_gpu=iteration_at(spans, launched_by, launched_at),
        started_in=iteration_at(spans, run_by, gpu_start),
    )


def _spans_of_events(trace: Trace, rows: Int64Array) -> IterationSpans:
    return IterationSpans(
        process=trace.process_of_thread[trace.thread[rows]].astype(np.int64),
        start=trace.ts[rows],
        end=trace.end_of(rows),
    )


class _StepAnnotations(NamedTuple):
    """The annotations `ProfilerStep#N`."""

    rows: Int64Array
    numbers: npt.NDArray[np.object_]  #: the N of each, of any size, so objects


def _step_annotations(trace: Trace) -> _StepAnnotations:
    number_of_name = {}
    for code, name in enumerate(trace.names):
        match = STEP.fullmatch(name)
        if match is not None and len(name) <= _LONGEST_STEP_NAME:
            number_of_name[code] = int(match[1])
    rows = trace.rows_of(*ANNOTATION_KINDS)
    rows = rows[np.isin(trace.name[rows], list(number_of_name))]
    numbers = [number_of_name[code] for code in trace.name[rows].tolist()]
    return _StepAnnotations(rows, np.array(numbers, dtype=object))


def _repeated(
    numbers: npt.NDArray[np.object_], process: Int64Array, end: Int64Array
) -> BoolArray:
    """Return which annotations, by process, start and descending end, are a step recorded twice."""
    repeated = np.zeros(len(numbers), dtype=bool)
    last_end: dict[tuple[int, int], int] = {}
    steps = zip(process.tolist(), numbers.tolist(), end.tolist(), strict=True)
    for index, (process_number, step_number, step_end) in enumerate(steps):
        key = (process_number, step_number)
        repeated[index] = key in last_end and step_end <= last_end[key]
        last_end[key] = max(last_end.get(key, 0), step_end)
    return repeated


def _recording_end(trace: Trace) -> int:
    """Return when the recording ended, ns since the trace's first event; far off if not said."""
    rows = trace.rows_named(_RECORDING_ENDS, EventKind.INSTANT)
    if not len(rows):
        return np.iinfo(np.int64).max
    return int(trace.ts[rows].max())


class NamedIterations(NamedTuple):
    """Iterations by `ProfilerStep#N`, by another annotation, or by the steps of an engine."""

    iterations: Iterations
    labels: list[str]  #: what each is called
    #: how many annotations were left out because they lie in another that matches
    nested: int


def named_iterations(tree: CallTree, annotation: Expression | None) -> NamedIterations:
    """Return the iterations of a trace, and what they are called.

    Args:
        tree: the call tree.
        annotation: a regular expression for annotations, or for CPU ops where it matches no
            annotation; `ProfilerStep#N` by default, or else the steps of a serving engine.
    """
    pattern = user_pattern(annotation, "annotation")
    if pattern is None:
        return _usual_iterations(tree)
    trace = tree.trace
    matches = trace.names_matching(pattern.search)
    rows = trace.rows_of(*ANNOTATION_KINDS)
    rows = rows[matches[trace.name[rows]]]
    annotations = rows[trace.kind[rows] == EventKind.USER_ANNOTATION]
    matching = annotations if len(annotations) else rows
    spans = _spans_of_events(trace, matching)
    order = np.lexsort((matching, -spans.end, spans.start, spans.process))
    is_outermost = outermost(spans.process[order], spans.end[order])
    chosen = matching[order[is_outermost]]
    labels = [trace.name_of(row) for row in chosen.tolist()]
    iterations = iterations_of(tree, chosen, list(range(len(chosen))))
    return NamedIterations(
        iterations=iterations, labels=labels, nested=len(matching) - len(chosen)
    )


def _usual_iterations(tree: CallTree) -> NamedIterations:
    """Return the iterations by `ProfilerStep#N`, or by the steps of a serving engine."""
    trace = tree.trace
    steps = find_iterations(tree)
    frames = np.empty(0, dtype=np.int64)
    if not len(steps):
        frames = engine_frames(trace)
    if not len(frames):
        return NamedIterations(
            iterations=steps,
            labels=[f"ProfilerStep#{number}" for number in steps.number],
            nested=0,
        )
    process = trace.process_of_thread[trace.thread[frames]]
    by_process_and_time = np.lexsort((trace.ts[frames], process))
    frames = frames[by_process_and_time]
    labels = []
    for number, row in enumerate(frames.tolist()):
        _, _, name = trace.name_of(row).rpartition(": ")
        labels.append(f"{name}#{number}")
    return NamedIterations(
        iterations=iterations_of(tree, frames, list(range(len(frames)))),
        labels=labels,
        nested=0,
    )


def engine_frames(trace: Trace) -> Int64Array:
    """Return the rows of the outermost Python frames of an engine's steps, by thread and start.

    None where annotations name the steps: where one is around a frame, and not twice as long.
    """
    rows = trace.rows_named(_ENGINE_STEP, EventKind.PYTHON_FUNCTION)
    order = np.lexsort((rows, -trace.end_of(rows), trace.ts[rows], trace.thread[rows]))
    rows = rows[order]
    rows = rows[outermost(trace.thread[rows].astype(np.int64), trace.end_of(rows))]
    if _annotations_name_steps(trace, rows):
        return rows[:0]
    return rows


def _annotations_name_steps(trace: Trace, frames: Int64Array) -> bool:
    """Return whether an annotation is around one of some frames, and not twice as long."""
    annotations = trace.rows_of(EventKind.USER_ANNOTATION)
    annotations = annotations[
        by_group_and_time(trace.thread[annotations], trace.ts[annotations])
    ]
    last = last_before(
        group=trace.thread[annotations].astype(np.int64),
        time=trace.ts[annotations],
        query_group=trace.thread[frames].astype(np.int64),
        query_time=trace.ts[frames] + 1,
    )
    frames = frames[last != NONE]
    around = annotations[last[last != NONE]]
    encloses = trace.end_of(around) >= trace.end_of(frames)
    is_as_long = trace.dur[around] < 2 * trace.dur[frames]
    return bool((encloses & is_as_long).any())


def iteration_at(
    spans: tuple[Int64Array, Int64Array, Int64Array],
    process: Int64Array,
    time: Int64Array,
) -> Int64Array:
    """Return the iteration in which processes were at some times, an index, or `NONE`, (g,).

    Args:
        spans: when the iterations ran, by process and start; `IterationSpans`.
        process: the process of each question, `NONE` where it is not known, (g,).
        time: the time of each question, ns since the trace's first event, (g,).
    """
    iterations = IterationSpans(*spans)
    last = last_before(
        group=iterations.process,
        time=iterations.start,
        query_group=process,
        query_time=time + 1,
    )
    ends_later = time < values_at(iterations.end, last, missing=np.iinfo(np.int64).min)
    return np.where(ends_later, last, NONE)


#: How an event is of a step: it was launched in it, or started on the GPU during it.
StepBy = Literal["launch", "time"]


@keeps_old_names
@dataclass(frozen=True)
class EventFilter:
    """The conditions that chosen GPU events meet; None for no condition.

    Attributes:
        step: the N of a `ProfilerStep#N` in which an event was launched.
        step_by: or `time`: the events that started on the GPU during that step.
        stream: number of a stream.
        device: number of a device.
        category: a kernel category, in upper or lower case.
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

    def of(self, work: GpuEvents) -> BoolArray:
        """Return which of the GPU events are selected, (g,).

        Raises:
            UsageError: the trace has no such step, stream, device or category.
        """
        selected = np.ones(len(work), dtype=bool)
        if self.step is not None:
            iterations = _with_step(work, self.step)
            by_time = self.step_by == "time"
            of_gpu = iterations.started_in if by_time else iterations.of_gpu
            selected &= _is_of_step(iterations, self.step, of_gpu)
        if self.stream is not None:
            selected &= _has_number(
                what="stream", numbers=work.trace.stream, wanted=self.stream
            )
        if self.device is not None:
            selected &= _has_number(
                what="device", numbers=work.trace.device, wanted=self.device
            )
        if self.category is not None:
            selected &= _of_category(work, self.category)
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

    def left_out(self, work: GpuEvents) -> str:
        """Return what a step by launch leaves out for want of a launch; empty for nothing."""
        is_unlinked = ~work.tree.linked
        if self.step is None or self.step_by == "time" or not is_unlinked.any():
            return ""
        iterations = _with_step(work, self.step)
        started_in_step = _is_of_step(
            iterations=iterations, number=self.step, of_gpu=iterations.started_in
        )
        during = int((started_in_step & is_unlinked).sum())
        return (
            f"{work.count_text(is_unlinked)} without a launch in the trace are left out;"
            f" {during:,} of them started during ProfilerStep#{self.step}."
        )


def span_of_step(work: GpuEvents, number: int) -> tuple[int, int]:
    """Return start and end of an iteration, ns since the trace's first event."""
    iterations = _with_step(work, number)
    index = iterations.number.index(number)
    return int(iterations.start[index]), int(iterations.end[index])


def _is_of_step(iterations: Iterations, number: int, of_gpu: Int64Array) -> BoolArray:
    """Return whether the iteration of each GPU event has a number, (g,)."""
    return values_at(iterations.has_number(number), of_gpu, missing=False)


def _with_step(work: GpuEvents, number: int) -> Iterations:
    """Return the iterations of a trace, one of which at least has this number."""
    iterations = find_iterations(work.tree)
    if number not in iterations.number:
        present = iterations.label(np.ones(len(iterations), dtype=bool))
        has = f"it has {present}" if present else "it has no ProfilerStep#N at all"
        raise UsageError(f"there is no ProfilerStep#{number} in the trace; {has}")
    return iterations


def _has_number(what: str, numbers: Int64Array, wanted: int) -> BoolArray:
    """Return which GPU events ran on a stream, or on a device, (g,)."""
    selected: BoolArray = numbers == wanted
    if not selected.any():
        present = np.unique(numbers).tolist()[:_VALUES_LISTED]
        has = ", ".join(map(str, present)) or "none"
        raise UsageError(f"no GPU event ran on {what} {wanted}; the trace has {has}")
    return selected


def _of_category(work: GpuEvents, wanted: str) -> BoolArray:
    """Return which GPU events are of a category, (g,)."""
    categories = work.needed_categories
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
