"""The annotated steps of a serving engine, and the GPU events that each step launched.

A step is an annotation of a serving engine (see `annotations.py`), or one that matches a phase of
the user. Nested annotations on a thread are a single step: it is as long as the outermost of them,
and its batch comes from the most detailed of them. Without annotations, see `inferred_steps.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from tracelens_ext.analysis.serving.annotations import (
    DECODE,
    DIFFUSION,
    MIXED,
    OTHER,
    PREFILL,
    Batch,
    parse_annotation,
)
from tracelens_ext.categorize.user_patterns import UserPattern
from tracelens_ext.errors import UsageError
from tracelens_ext.trace import (
    NONE,
    NS_PER_US,
    BoolArray,
    EventKind,
    Int64Array,
    IntArray,
    Trace,
)
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.sorted_groups import last_before, outermost

#: The order in which tables show phases; the phases of the user follow.
PHASE_ORDER: Final = (PREFILL, DECODE, MIXED, DIFFUSION)
_ON_GPU_NOTE = (
    "Steps are annotated only on the GPU, so work belongs to the step during which it "
    "started."
)
#: The name of a phase, and a regular expression for the annotations of its steps.
UserPhase = tuple[str, str]


@dataclass(frozen=True, eq=False)
class Steps:
    """The k steps of a trace, by thread and start.

    Attributes:
        name: the most detailed annotation of each step.
        batch: the batch that this annotation describes.
        thread: index into `Trace.threads`, shape (k,). For steps that are annotated only on the
            GPU, it is the index of their process.
        start: ns since the trace's first event, (k,).
        end: ns since the trace's first event, (k,).
        of_gpu: the step that launched each GPU event, `NONE` for an event of no step, (g,).
        note: how the steps were found; empty if annotations on the CPU name them.
    """

    name: list[str]
    batch: list[Batch]
    thread: Int64Array
    start: Int64Array
    end: Int64Array
    of_gpu: Int64Array
    note: str = ""

    def __len__(self) -> int:
        return len(self.name)

    @cached_property
    def phases(self) -> list[str]:
        """The phases that occur, in the order of tables."""
        phases_of_steps = [batch.phase for batch in self.batch]
        present = dict.fromkeys(phases_of_steps)
        engine_phases = [phase for phase in PHASE_ORDER if phase in present]
        user_phases = [phase for phase in present if phase not in PHASE_ORDER]
        return engine_phases + user_phases

    @cached_property
    def phase(self) -> Int64Array:
        """The phase of each step, an index into `phases`, (k,)."""
        indices = [self.phases.index(batch.phase) for batch in self.batch]
        return np.array(indices, dtype=np.int64)

    @property
    def phase_of_gpu(self) -> Int64Array:
        """The phase of each GPU event, an index into `labels`, (g,)."""
        return values_at(self.phase, self.of_gpu, missing=len(self.phases))

    @property
    def labels(self) -> list[str]:
        """The names of the phases, followed by the name for work outside of all steps."""
        return self.phases + [OTHER]


def parse_user_phases(texts: Sequence[str]) -> tuple[UserPhase, ...]:
    """Parse the phases that the user gives, each as `NAME=REGEX`.

    Raises:
        UsageError: a text is not of that form, or its regular expression is invalid.
    """
    phases = []
    for text in texts:
        name, equals, pattern = text.partition("=")
        name = name.strip()
        if not (name and equals and pattern):
            raise UsageError(
                f"--phase {text!r}: expected NAME=REGEX, such as 'draft=propose_'"
            )
        if name == OTHER:
            raise UsageError(
                f"--phase {text!r}: the name {OTHER!r} is reserved for work outside "
                "of all steps"
            )
        UserPattern(pattern, "--phase")
        phases.append((name, pattern))
    return tuple(phases)


@dataclass(frozen=True)
class _Description:
    """The description of a step in an annotation.

    Attributes:
        detail: how much the annotation says; the larger, the more.
        batch: the batch of the step.
    """

    detail: int
    batch: Batch


@dataclass(frozen=True, eq=False)
class StepIntervals:
    """The intervals of k steps; each array is (k,).

    Attributes:
        thread: index into `Trace.threads`; for annotations on the GPU, the index of the process.
        start: ns since the trace's first event.
        end: ns since the trace's first event.
    """

    thread: Int64Array
    start: Int64Array
    end: Int64Array


@cached_per_object
def find_steps(tree: CallTree, user_phases: tuple[UserPhase, ...] = ()) -> Steps:
    """Return the annotated steps of a trace; they are empty if there are no such annotations.

    A GPU event belongs to the step during which its launch began on the step's thread. If only the
    GPU has annotations, it belongs to the step during which it started on its device.

    Args:
        tree: the call tree of the trace.
        user_phases: phases of the user, which take precedence over those of engines.
    """
    trace = tree.trace
    patterns = [(phase, UserPattern(text, "--phase")) for phase, text in user_phases]
    rows, descriptions = _described_rows(trace, EventKind.USER_ANNOTATION, patterns)
    is_on_gpu = False
    if not len(rows):
        rows, descriptions = _described_rows(trace, EventKind.GPU_ANNOTATION, patterns)
        is_on_gpu = len(rows) > 0
    track = trace.thread[rows].astype(np.int64)
    if is_on_gpu:  # the annotations of all streams of a device belong together
        track = trace.process_of_thread[track].astype(np.int64)
    order = np.lexsort((rows, -trace.end_of(rows), trace.ts[rows], track))
    rows = rows[order]
    track = track[order]
    begins_step = _begins_step(trace, rows, track, is_on_gpu=is_on_gpu)
    step_of_row = np.cumsum(begins_step) - 1
    first_rows = np.flatnonzero(begins_step)
    end = trace.end_of(rows)
    if len(rows):  # the latest end of the annotations of each step
        end = np.maximum.reduceat(end, first_rows)
    intervals = StepIntervals(
        thread=track[first_rows], start=trace.ts[rows][first_rows], end=end
    )
    step_names = _most_detailed_names(trace.name[rows], step_of_row, descriptions)
    return steps_at(
        tree,
        intervals,
        names=[trace.names[code] for code in step_names],
        batches=[descriptions[code].batch for code in step_names],
        is_on_gpu=is_on_gpu,
        note=_ON_GPU_NOTE if is_on_gpu else "",
    )


def _most_detailed_names(
    name_codes: IntArray, step_of_row: Int64Array, descriptions: dict[int, _Description]
) -> list[int]:
    """Return the code of the most detailed name of each step; of equal names, the first.

    Args:
        name_codes: the name of each annotation, (n,).
        step_of_row: the step of each annotation, ascending from 0, (n,).
        descriptions: the description in each name.
    """
    details = [descriptions[code].detail for code in name_codes.tolist()]
    detail = np.array(details, dtype=np.int64)
    # Sorted by step and descending detail, the first annotation of each step is the most detailed.
    order = np.lexsort((-detail, step_of_row))
    _, first_of_step = np.unique(step_of_row, return_index=True)
    codes: list[int] = name_codes[order[first_of_step]].tolist()
    return codes


def _described_rows(
    trace: Trace, kind: EventKind, user_patterns: Sequence[tuple[str, UserPattern]]
) -> tuple[Int64Array, dict[int, _Description]]:
    """Return the annotations of a kind that describe steps.

    Returns:
        The rows of the annotations, and the description of the step for each of their name codes.
    """
    rows = trace.rows_of(kind)
    descriptions = {}
    for code in np.unique(trace.name[rows]).tolist():
        description = _describe(trace.names[code], user_patterns)
        if description is not None:
            descriptions[code] = description
    return rows[np.isin(trace.name[rows], list(descriptions))], descriptions


#: Added to the detail of annotations that the user named; it exceeds every `Batch.detail`.
_USER_DETAIL: Final = 8


def _describe(
    name: str, user_patterns: Sequence[tuple[str, UserPattern]]
) -> _Description | None:
    """Return the description of a step in an annotation's name; None if it describes no step."""
    batch = parse_annotation(name)
    for phase, pattern in user_patterns:
        if pattern.search(name):
            batch = replace(batch or Batch(phase), phase=phase)
            return _Description(_USER_DETAIL + batch.detail, batch)
    if batch is None:
        return None
    return _Description(batch.detail, batch)


def _begins_step(
    trace: Trace, rows: Int64Array, track: Int64Array, *, is_on_gpu: bool
) -> BoolArray:
    """Tell which annotations begin a step; the others belong to the step before them, (n,).

    Args:
        trace: the trace.
        rows: the annotations by track, start and descending end, (n,).
        track: the thread of each annotation, or the process of an annotation on the GPU, (n,).
        is_on_gpu: the annotations are on the GPU.
    """
    start = trace.ts[rows]
    end = trace.end_of(rows)
    begins = outermost(track, end)
    # Profilers round times, so an inner annotation may end up to 1 µs after the outer one.
    begins &= ~_continues(
        begins=begins, key=track, start=start, end=end, min_end=end - int(NS_PER_US)
    )
    if is_on_gpu:  # each stream of a step has an annotation of its own
        track_and_name = track * (len(trace.names) + 1) + trace.name[rows]
        begins &= ~_continues(
            begins=begins,
            key=track_and_name,
            start=start,
            end=end,
            min_end=np.zeros_like(end),
        )
    return begins


def _continues(
    begins: BoolArray,
    key: Int64Array,
    start: Int64Array,
    end: Int64Array,
    min_end: Int64Array,
) -> BoolArray:
    """Tell which ranges continue the step before them instead of beginning one, (n,).

    A range continues the step of the previous range that begins a step, if both have the same key
    and overlap, and if the previous range ends at the `min_end` of this range or later.

    Args:
        begins: the ranges that begin a step so far; only these are compared, (n,).
        key: equal for ranges that may belong to the same step, (n,).
        start: ns, (n,).
        end: ns, (n,).
        min_end: the earliest end of the previous range, ns, (n,).
    """
    candidates = np.flatnonzero(begins)
    previous = candidates[:-1]
    current = candidates[1:]
    overlaps = key[current] == key[previous]
    overlaps &= start[current] < end[previous]
    result: BoolArray = np.zeros(len(begins), dtype=bool)
    result[current] = overlaps & (min_end[current] <= end[previous])
    return result


def steps_at(
    tree: CallTree,
    intervals: StepIntervals,
    names: list[str],
    batches: list[Batch],
    note: str,
    *,
    is_on_gpu: bool = False,
) -> Steps:
    """Return steps at given intervals, with the GPU events of each step.

    Args:
        tree: the call tree of the trace.
        intervals: the intervals, sorted by thread and start; none lies within another.
        names: the name of each step.
        batches: the batch of each step.
        note: how the steps were found.
        is_on_gpu: the intervals are annotations on the GPU, which contain the GPU events of a step
            instead of their launches.
    """
    return Steps(
        name=names,
        batch=batches,
        thread=intervals.thread,
        start=intervals.start,
        end=intervals.end,
        of_gpu=_steps_of_gpu_events(tree, intervals, is_on_gpu=is_on_gpu),
        note=note,
    )


def _steps_of_gpu_events(
    tree: CallTree, intervals: StepIntervals, *, is_on_gpu: bool
) -> Int64Array:
    """Return the step of each GPU event, `NONE` outside of all steps, (g,).

    The arguments are those of `steps_at`.
    """
    trace = tree.trace
    of_gpu = np.full(len(tree.linked), NONE, dtype=np.int64)
    if not len(intervals.start):
        return of_gpu
    if is_on_gpu:
        is_assigned: BoolArray = np.ones(len(of_gpu), dtype=bool)
        rows = trace.gpu_rows
        track = trace.process_of_thread[trace.thread[rows]].astype(np.int64)
    else:
        is_assigned = tree.linked
        rows = tree.launch_of_gpu[is_assigned]
        track = trace.thread[rows].astype(np.int64)
    # An event that begins together with a step belongs to the step. `last_before` leaves out
    # equal times, so the time of the event is raised by 1 ns.
    step = last_before(
        group=intervals.thread,
        time=intervals.start,
        query_group=track,
        query_time=trace.ts[rows] + 1,
    )
    is_inside = trace.ts[rows] < values_at(intervals.end, step)
    of_gpu[is_assigned] = np.where(is_inside, step, NONE)
    return of_gpu
