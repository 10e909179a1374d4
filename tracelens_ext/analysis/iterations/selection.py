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
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from tracelens_ext.categorize.user_patterns import Expression, user_pattern
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, BoolArray, EventKind, Int64Array, IntArray, Trace
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import by_group_and_time, items_before, last_before, outermost

STEP = re.compile(r"ProfilerStep#([0-9]+)")
_RECORDING_ENDS = re.compile(r"Record Window End\Z")
#: How Python frames of a step of a serving engine end: vLLM's and SGLang's.
_ENGINE_STEP = re.compile(r".*: (?:execute_model|forward_batch_generation)$")
#: Profilers before 2023 record the annotation as an operator.
_KINDS = (EventKind.USER_ANNOTATION, EventKind.CPU_OP)


@dataclass(frozen=True, eq=False)
class Iterations:
    """The iterations of a trace, k of them, by process, then by start."""

    number: list[int]  #: the N of each `ProfilerStep#N`
    process: Int64Array  #: of each, as in `Trace.process_of_thread`, (k,)
    start: Int64Array  #: ns since the trace's first event, (k,)
    end: Int64Array  #: likewise, (k,)
    finished: BoolArray  #: whether each ended before the recording did, (k,)
    #: the iteration in which each GPU event was launched, as an index, `NONE` for an event launched
    #: outside of all of them or without a launch in the trace, (g,)
    of_gpu: Int64Array
    #: the iteration during which each GPU event started on the GPU, likewise; `NONE` where it is
    #: not known which of several processes launched it, (g,)
    started_in: Int64Array

    def __len__(self) -> int:
        return len(self.number)

    def has_number(self, number: int) -> BoolArray:
        """Whether each iteration has this number; and False for the index `NONE`, (k + 1,)."""
        return np.array([each == number for each in [*self.number, None]], dtype=bool)

    def numbers(self, which: IntArray) -> list[str]:
        """The N of some iterations, by their index, as texts; empty for `NONE`."""
        texts = [*map(str, self.number), ""]  # the last is that of NONE
        return [texts[at] for at in which.tolist()]

    @cached_property
    def whole(self) -> BoolArray:
        """Whether each iteration is finished and launched GPU work; a last one may not, (k,)."""
        return self.finished & np.isin(np.arange(len(self)), self.of_gpu)

    @cached_property
    def whole_count(self) -> int:
        """How many whole iterations each process went through (the most, where they differ)."""
        return int(np.bincount(self.process[self.whole]).max(initial=0))

    @cached_property
    def run(self) -> Int64Array:
        """Numbers the whole iterations that follow one another without a hole, (k,).

        `NONE` for an iteration that is not whole. A recording may skip steps, and what lies
        between is no idle time.
        """
        runs = np.full(len(self), NONE, dtype=np.int64)
        whole = np.flatnonzero(self.whole)
        steps = np.array([self.number[at] for at in whole.tolist()], dtype=object)
        follows = (np.diff(self.process[whole]) == 0) & (np.diff(steps) == 1)
        runs[whole[:1]], runs[whole[1:]] = 0, np.cumsum(~follows.astype(bool))
        return runs

    def label(self, chosen: BoolArray) -> str:
        """Name the chosen iterations: `ProfilerStep#5 to #7`; empty for none."""
        numbers = sorted({self.number[at] for at in np.flatnonzero(chosen).tolist()})
        if len(numbers) < 2:
            return "".join(f"ProfilerStep#{number}" for number in numbers)
        if numbers[-1] - numbers[0] == len(numbers) - 1:
            return f"ProfilerStep#{numbers[0]} to #{numbers[-1]}"
        return f"{len(numbers)} between ProfilerStep#{numbers[0]} and #{numbers[-1]}"


@cached_per_object
def find_iterations(tree: CallTree) -> Iterations:
    """Find the iterations of a trace.

    A GPU event belongs to the iteration in which its launch started, on any thread of the
    process: the backward pass has a thread of its own, and the GPU runs behind the host.
    """
    trace = tree.trace
    rows, numbers = _annotations(trace)
    process = trace.process_of_thread[trace.thread[rows]].astype(np.int64)
    start = trace.ts[rows]
    end = trace.end_of(rows)
    order = np.lexsort((-end, start, process))
    order = order[~_repeated(numbers[order], process[order], end[order])]
    # Of two with one start the longer comes last: one of no length hides no other.
    order = order[np.lexsort((end[order], start[order], process[order]))]
    return iterations_of(tree, rows[order], [int(n) for n in numbers[order].tolist()])


def iterations_of(tree: CallTree, rows: Int64Array, numbers: list[int]) -> Iterations:
    """Annotations (by process, then by start) and their numbers as iterations."""
    trace = tree.trace
    process = trace.process_of_thread[trace.thread[rows]].astype(np.int64)
    start = trace.ts[rows]
    end = trace.end_of(rows)
    launched_by = np.full(len(tree.linked), NONE, dtype=np.int64)
    launch = tree.launch_of_gpu[tree.linked]
    launched_by[tree.linked] = trace.process_of_thread[trace.thread[launch]]
    launched_at = trace.ts[trace.gpu_rows]
    launched_at[tree.linked] = trace.ts[launch]
    of_gpu = iteration_at((process, start, end), launched_by, launched_at)
    if trace.conventions.gpu_by_process:
        launched_by = trace.process_of_thread[trace.thread[trace.gpu_rows]].astype(np.int64)
    elif len(np.unique(process)) == 1:
        launched_by[~tree.linked] = process[0]
    started_in = iteration_at((process, start, end), launched_by, trace.ts[trace.gpu_rows])
    finished = (end > start) & (end < _recording_end(trace))
    return Iterations(numbers, process, start, end, finished, of_gpu, started_in)


def _annotations(trace: Trace) -> tuple[Int64Array, npt.NDArray[np.object_]]:
    """The rows of the annotations, and their numbers (of any size, so objects)."""
    of_name = {
        code: int(found[1])
        for code, name in enumerate(trace.names)
        if (found := STEP.fullmatch(name)) and len(name) < 40  # no number of a step is longer
    }
    rows = trace.rows_of(*_KINDS)
    rows = rows[np.isin(trace.name[rows], list(of_name))]
    numbers = np.array([of_name[code] for code in trace.name[rows].tolist()], dtype=object)
    return rows, numbers


def _repeated(numbers: npt.NDArray[np.object_], process: Int64Array, end: Int64Array) -> BoolArray:
    """Which annotations, by process, start and descending end, are a step recorded twice."""
    repeated = np.zeros(len(numbers), dtype=bool)
    until: dict[tuple[int, int], int] = {}
    for at, key in enumerate(zip(process.tolist(), numbers.tolist(), strict=True)):
        repeated[at] = key in until and int(end[at]) <= until[key]
        until[key] = max(until.get(key, 0), int(end[at]))
    return repeated


def _recording_end(trace: Trace) -> int:
    """When the recording ended, ns since the trace's first event; far off when it is not said."""
    rows = trace.rows_named(_RECORDING_ENDS, EventKind.INSTANT)
    return int(trace.ts[rows].max()) if len(rows) else np.iinfo(np.int64).max


def named_iterations(
    tree: CallTree, annotation: Expression | None
) -> tuple[Iterations, list[str], int]:
    """The iterations, what each is called, and how many were left out because they are nested."""
    trace = tree.trace
    pattern = user_pattern(annotation, "annotation")
    if pattern is None:
        steps = find_iterations(tree)
        if len(steps) or not len(frames := engine_frames(trace)):
            return steps, [f"ProfilerStep#{number}" for number in steps.number], 0
        process = trace.process_of_thread[trace.thread[frames]]
        frames = frames[np.lexsort((trace.ts[frames], process))]
        names = [trace.name_of(row).rpartition(": ")[2] for row in frames.tolist()]
        labels = [f"{name}#{at}" for at, name in enumerate(names)]
        return iterations_of(tree, frames, list(range(len(frames)))), labels, 0
    matching = trace.names_matching(pattern.search)
    rows = trace.rows_of(*_KINDS)
    rows = rows[matching[trace.name[rows]]]
    annotations = rows[trace.kind[rows] == EventKind.USER_ANNOTATION]
    rows = found = annotations if len(annotations) else rows  # CPU ops where no annotation matches
    process = trace.process_of_thread[trace.thread[rows]].astype(np.int64)
    start = trace.ts[rows]
    end = trace.end_of(rows)
    order = np.lexsort((rows, -end, start, process))
    rows = rows[order[outermost(process[order], end[order])]]
    labels = [trace.name_of(row) for row in rows.tolist()]
    return iterations_of(tree, rows, list(range(len(rows)))), labels, len(found) - len(rows)


def engine_frames(trace: Trace) -> Int64Array:
    """The rows of the outermost Python frames of an engine's steps, by thread and start.

    None where annotations name the steps: where one is around a frame, and not twice as long.
    """
    rows = trace.rows_named(_ENGINE_STEP, EventKind.PYTHON_FUNCTION)
    order = np.lexsort((rows, -trace.end_of(rows), trace.ts[rows], trace.thread[rows]))
    rows = rows[order]
    rows = rows[outermost(trace.thread[rows].astype(np.int64), trace.end_of(rows))]
    marks = trace.rows_of(EventKind.USER_ANNOTATION)
    marks = marks[by_group_and_time(trace.thread[marks], trace.ts[marks])]
    if len(marks) and len(rows):
        threads = trace.thread[marks].astype(np.int64)
        times = trace.ts[marks]
        at = last_before(threads, times, trace.thread[rows].astype(np.int64), trace.ts[rows] + 1)
        around = (at != NONE) & (trace.end_of(marks[at]) >= trace.end_of(rows))
        if (around & (trace.dur[marks[at]] < 2 * trace.dur[rows])).any():
            return rows[:0]
    return rows


def iteration_at(
    iterations: tuple[Int64Array, Int64Array, Int64Array], of: Int64Array, moment: Int64Array
) -> Int64Array:
    """The iteration in which a process (`NONE`: unknown) was at a moment, or `NONE`, (g,).

    `iterations` are process, start and end of each, by process and start, (k,).
    """
    process, start, end = iterations
    at = last_before(process, start, of, moment + 1)
    return np.where(moment < np.append(end, np.iinfo(np.int64).max)[at], at, NONE)


_OPERATION_AT_MOST = 5  # GPU events: what launches more could be an iteration
_OF_THE_BEST = 0.1  # a candidate that has less of the GPU's work than so much is no iteration
_NUMBER = re.compile("[0-9]+")
_SPECIAL = re.compile(r"[.^$*+?{}\[\]\\|()]")


def likely_iterations(tree: CallTree, most: int) -> list[str]:
    """Regular expressions for what could be iterations, the likeliest first.

    Names that differ in their numbers are one candidate. It is the likelier the more GPU work is
    launched in its ranges, the more evenly that is spread over them, and the farther out they are;
    and less likely when there is but one. CPU ops, which annotations become in some traces, count
    where they are likelier than all annotations: several without another around them, that launch
    more than an operation does.
    """
    trace = tree.trace
    launch = tree.launch_of_gpu[tree.linked]
    rows = tree.rows[np.isin(trace.kind[tree.rows], _KINDS)]
    rows = rows[np.isin(trace.thread[rows], trace.thread[launch])]
    process = trace.process_of_thread[trace.thread]
    order = by_group_and_time(process[launch], trace.ts[launch])
    launches = process[launch[order]], trace.ts[launch[order]]
    spans = trace.ts[rows], trace.end_of(rows)
    begun, ended = (items_before(*launches, process[rows], times) for times in spans)
    is_op = trace.kind[rows] == EventKind.CPU_OP
    depth = tree.depth[tree.position[rows]]
    columns = {"work": ended - begun, "op": is_op, "depth": depth, "code": trace.name[rows]}
    ranges = pd.DataFrame(columns)[~is_op | ((depth == 0) & (ended - begun > _OPERATION_AT_MOST))]
    if not ranges["work"].any():
        return []
    ranges = ranges.sort_values("code", kind="stable")
    ranges["name"] = [trace.names[code] for code in ranges["code"].tolist()]
    families = ranges.groupby(ranges["name"].str.replace(_NUMBER, "0", regex=True), sort=False)
    found = families.agg(name=("name", "first"), names=("name", "nunique"), op=("op", "any"))
    work = families["work"]
    several = families.size() > 1
    spread = work.std(ddof=0) / work.mean().clip(lower=1)
    score = (work.sum() / len(launch)).clip(upper=1) / (1 + spread) / np.where(several, 1, 2)
    likelier = several & (score > score[~found["op"]].max()) if not found["op"].all() else several
    kept = (score >= max(_OF_THE_BEST * score.max(), 1e-9)) & (~found["op"] | likelier)
    found = found.assign(score=-score.round(2), depth=families["depth"].mean())[kept]
    found = found.sort_values(["score", "depth"]).head(most)
    expressions = []
    for name, names in zip(found["name"], found["names"], strict=True):
        text = _SPECIAL.sub(r"\\\g<0>", name)
        expressions.append(f"^{_NUMBER.sub('[0-9]+', text) if names > 1 else text}$")
    return expressions


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

    def of(self, work: GpuEvents) -> BoolArray:
        """Which of the GPU events are selected, (g,)."""
        selected = np.ones(len(work), dtype=bool)
        if self.pstep is not None:
            iterations = _with_step(work, self.pstep)
            of_gpu = iterations.started_in if self.pstep_by == "time" else iterations.of_gpu
            selected &= iterations.has_number(self.pstep)[of_gpu]
        for what, wanted in (("stream", self.stream), ("device", self.device)):
            if wanted is not None:
                numbers = getattr(work.trace, what)
                if wanted not in numbers:
                    has = ", ".join(map(str, np.unique(numbers).tolist()[:20])) or "none"
                    raise UsageError(f"no GPU event ran on {what} {wanted}; the trace has {has}")
                selected &= numbers == wanted
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

    def left_out(self, work: GpuEvents) -> str:
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


def span_of_step(work: GpuEvents, number: int) -> tuple[int, int]:
    """Start and end of an iteration, ns since the trace's first event."""
    iterations = _with_step(work, number)
    at = iterations.number.index(number)
    return int(iterations.start[at]), int(iterations.end[at])


def _with_step(work: GpuEvents, number: int) -> Iterations:
    """The iterations of a trace, one of which at least has this number."""
    iterations = find_iterations(work.tree)
    if number not in iterations.number:
        there = iterations.label(np.ones(len(iterations), dtype=bool))
        has = f"it has {there}" if there else "it has no ProfilerStep#N at all"
        raise UsageError(f"there is no ProfilerStep#{number} in the trace; {has}")
    return iterations


def _of_category(work: GpuEvents, wanted: str) -> BoolArray:
    categories = work.needed_categories
    labels = [categories.labels[i] for i in np.unique(categories.code).tolist()]
    found = [label for label in labels if label.casefold() == wanted.casefold()]
    if not found:
        nearest = difflib.get_close_matches(wanted, labels, n=3, cutoff=0.5) or labels
        has = f"the trace has {', '.join(nearest)}"
        raise UsageError(f"no GPU event is of the category {wanted!r}; {has}")
    selected: BoolArray = categories.code == categories.labels.index(found[0])
    return selected
