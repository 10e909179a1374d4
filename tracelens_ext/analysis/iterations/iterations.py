"""Iterations: the `ProfilerStep#N` annotations of a trace, and the GPU work that each started.

PyTorch's profiler puts such an annotation around each step of a training loop. The annotation of a
step that had not ended when the recording did is in the file, too. Profilers before 2024 give it no
length; later ones end it with the recording, which a `Record Window End` event marks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens_ext.trace import NONE, BoolArray, EventKind, Int64Array, IntArray, Trace
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.sorted_groups import last_before

STEP = re.compile(r"ProfilerStep#([0-9]+)")
#: A longer name is not that of a step; its number would be absurdly large.
_LONGEST_STEP_NAME = 39
_RECORDING_ENDS = re.compile(r"Record Window End\Z")
#: Kinds of events that annotations may have; profilers before 2023 record them as operations.
ANNOTATION_KINDS = (EventKind.USER_ANNOTATION, EventKind.CPU_OP)


class IterationSpans(NamedTuple):
    """The times of k iterations, sorted by process, then by start."""

    process: Int64Array  #: the process of each, as in `Trace.process_of_thread`, (k,)
    start: Int64Array  #: ns since the trace's first event, (k,)
    end: Int64Array  #: ns since the trace's first event, (k,)


@dataclass(frozen=True, eq=False)
class Iterations:
    """The k iterations of a trace, sorted by process, then by start.

    Attributes:
        number: the N of each `ProfilerStep#N`.
        process: the process of each, as in `Trace.process_of_thread`, (k,).
        start: ns since the trace's first event, (k,).
        end: ns since the trace's first event, (k,).
        finished: mask of the iterations that ended before the recording did, (k,).
        of_gpu: index of the iteration in which each GPU event was launched; `NONE` for an event
            that was launched outside of all iterations, or has no launch in the trace, (g,).
        started_in: index of the iteration during which each GPU event started on the GPU; `NONE`
            outside of all iterations, or if it is not known which of several processes launched
            the event, (g,).
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
        """The times of the iterations."""
        return IterationSpans(process=self.process, start=self.start, end=self.end)

    def has_number(self, number: int) -> BoolArray:
        """Return a mask of the iterations with this number, (k,)."""
        return np.array([iteration == number for iteration in self.number], dtype=bool)

    def numbers(self, indices: IntArray) -> list[str]:
        """Return the N of each iteration as text; empty for the index `NONE`."""
        texts = [str(number) for number in self.number]
        return [texts[index] if index != NONE else "" for index in indices.tolist()]

    @cached_property
    def whole(self) -> BoolArray:
        """Mask of the iterations that finished and launched GPU work, (k,)."""
        return self.finished & np.isin(np.arange(len(self)), self.of_gpu)

    @cached_property
    def whole_count(self) -> int:
        """Number of whole iterations of a process: of the one that has most of them."""
        return int(np.bincount(self.process[self.whole]).max(initial=0))

    @cached_property
    def run(self) -> Int64Array:
        """The index of the run of each whole iteration, `NONE` for one that is not whole, (k,).

        A run consists of iterations with successive numbers: steps 3, 4, 7 and 8 are the runs 0 and
        1. A recording may skip steps; the time between two runs is not idle time.
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
        """Return a name for some iterations, such as `ProfilerStep#5 to #7`; empty for none.

        Args:
            chosen: mask of the iterations, (k,).
        """
        indices = np.flatnonzero(chosen).tolist()
        numbers = sorted({self.number[index] for index in indices})
        if not numbers:
            return ""
        first = numbers[0]
        last = numbers[-1]
        if len(numbers) == 1:
            return f"ProfilerStep#{first}"
        is_successive = last - first == len(numbers) - 1
        if is_successive:
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
    spans = spans_of_events(trace, annotations.rows)
    order = np.lexsort((-spans.end, spans.start, spans.process))
    is_repeated = _records_step_again(
        numbers=annotations.numbers[order],
        process=spans.process[order],
        end=spans.end[order],
    )
    order = order[~is_repeated]
    # Of two iterations with the same start, the longer comes last. Looking up the last iteration
    # that began by a time then never finds one without length instead of the other.
    start = spans.start[order]
    end = spans.end[order]
    process = spans.process[order]
    order = order[np.lexsort((end, start, process))]
    numbers = [int(number) for number in annotations.numbers[order].tolist()]
    return iterations_of(tree, annotations.rows[order], numbers)


def iterations_of(tree: CallTree, rows: Int64Array, numbers: list[int]) -> Iterations:
    """Return annotations as iterations.

    Args:
        tree: the call tree.
        rows: the annotations, sorted by process, then by start, (k,).
        numbers: the number of each.
    """
    trace = tree.trace
    spans = spans_of_events(trace, rows)
    gpu_start = trace.ts[trace.gpu_rows]
    launch = tree.launch_of_gpu[tree.linked]
    launching_process = np.full(len(tree.linked), NONE, dtype=np.int64)
    launching_process[tree.linked] = trace.process_of_thread[trace.thread[launch]]
    launch_time = gpu_start.copy()
    launch_time[tree.linked] = trace.ts[launch]
    process_of_gpu = launching_process
    if trace.conventions.gpu_by_process:
        thread = trace.thread[trace.gpu_rows]
        process_of_gpu = trace.process_of_thread[thread].astype(np.int64)
    elif len(np.unique(spans.process)) == 1:
        only_process = spans.process[0]
        process_of_gpu = np.where(tree.linked, launching_process, only_process)
    is_finished = spans.end > spans.start
    is_finished &= spans.end < _recording_end(trace)
    return Iterations(
        number=numbers,
        process=spans.process,
        start=spans.start,
        end=spans.end,
        finished=is_finished,
        of_gpu=iteration_at(spans, launching_process, launch_time),
        started_in=iteration_at(spans, process_of_gpu, gpu_start),
    )


def spans_of_events(trace: Trace, rows: Int64Array) -> IterationSpans:
    """Return the times of annotations, in their order."""
    return IterationSpans(
        process=trace.process_of_thread[trace.thread[rows]].astype(np.int64),
        start=trace.ts[rows],
        end=trace.end_of(rows),
    )


class _StepAnnotations(NamedTuple):
    """The annotations `ProfilerStep#N`, k of them."""

    rows: Int64Array  #: (k,)
    #: the N of each, as Python integers of any size, (k,)
    numbers: npt.NDArray[np.object_]


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


def _records_step_again(
    numbers: npt.NDArray[np.object_], process: Int64Array, end: Int64Array
) -> BoolArray:
    """Return a mask of the annotations that record a step again.

    Such an annotation ends no later than an earlier one of the same process and number. The
    annotations are sorted by process, start and descending end.
    """
    repeated = np.zeros(len(numbers), dtype=bool)
    last_end: dict[tuple[int, int], int] = {}
    steps = zip(process.tolist(), numbers.tolist(), end.tolist(), strict=True)
    for index, (process_number, step_number, step_end) in enumerate(steps):
        key = (process_number, step_number)
        repeated[index] = key in last_end and step_end <= last_end[key]
        last_end[key] = max(last_end.get(key, 0), step_end)
    return repeated


def _recording_end(trace: Trace) -> int:
    """Return the end of the recording, ns since the trace's first event.

    It is far in the future if the trace does not mark it.
    """
    rows = trace.rows_named(_RECORDING_ENDS, EventKind.INSTANT)
    if not len(rows):
        return np.iinfo(np.int64).max
    return int(trace.ts[rows].max())


def iteration_at(
    spans: tuple[Int64Array, Int64Array, Int64Array],
    process: Int64Array,
    time: Int64Array,
) -> Int64Array:
    """Return the iteration of each of g moments, as an index, (g,).

    The index is `NONE` for a moment outside of all iterations.

    Args:
        spans: the times of the iterations, as `IterationSpans`.
        process: the process of each moment, `NONE` if it is not known, (g,).
        time: the time of each moment, ns since the trace's first event, (g,).
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
