"""The steps of a serving engine, and the GPU work that each launched.

A step is an annotation that an engine (`annotations.py`) or the user named. Annotations within one
another on a thread are one step, which is as long as the outermost and contains what the most
detailed of them says.

Where no annotation names them, shapes may show them. A pass through the model begins with a look-up
in the largest embedding table, and lasts until the next on its thread; where none was recorded, it
begins with the first attention whose sizes differ from those before it. One query per sequence is
`decode`, more are `prefill`. A trace with a backward pass, without attention, or of images
(convolutions, and no vocabulary) has no steps. Where Python frames of an engine's step were
recorded, they mark the steps, and shapes only tell their phase.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from tracelens_ext.analysis.iterations.selection import engine_frames
from tracelens_ext.analysis.serving.annotations import (
    DECODE,
    DIFFUSION,
    MIXED,
    OTHER,
    PREFILL,
    Batch,
    Group,
    parse_annotation,
)
from tracelens_ext.categorize.user_patterns import UserPattern
from tracelens_ext.errors import UsageError
from tracelens_ext.text import json_value
from tracelens_ext.trace import NONE, NS_PER_US, BoolArray, EventKind, Int64Array, Trace
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.sorted_groups import items_before, last_before, outermost

#: The order in which tables show phases; those of the user follow.
ORDER: Final = (PREFILL, DECODE, MIXED, DIFFUSION)
_ON_GPU = (
    "Steps are annotated only on the GPU, so work belongs to the step during which it "
    "started."
)
#: A phase, and a regular expression for its annotations.
OwnPhase = tuple[str, str]


@dataclass(frozen=True, eq=False)
class Steps:
    """The k steps of a trace, by thread and start.

    Attributes:
        name: the annotation of each step that says most.
        batch: what that annotation says.
        thread: index into `Trace.threads`, shape (k,). Of steps that are annotated on the GPU
            alone it is the index of their process.
        start: ns since the trace's first event, (k,).
        end: ns since the trace's first event, (k,).
        of_gpu: the step in which each GPU event was launched, `NONE` for none, (g,).
        note: how the steps were found, where no annotation of the CPU names them; else empty.
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
        known_phases = [phase for phase in ORDER if phase in present]
        of_the_user = [phase for phase in present if phase not in ORDER]
        return known_phases + of_the_user

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
        """The names of the phases, and of what lies outside of all steps."""
        return self.phases + [OTHER]


def own_phases(texts: Sequence[str]) -> tuple[OwnPhase, ...]:
    """Return the phases that a user names, each as `NAME=REGEX`.

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


# Steps that annotations name.


@dataclass(frozen=True)
class _Description:
    """What an annotation says about a step.

    Attributes:
        detail: how much it says; the larger, the more.
        batch: what it says.
    """

    detail: int
    batch: Batch


@dataclass(frozen=True, eq=False)
class _StepIntervals:
    """Where steps lie: thread (of the GPU's annotations: process), start and end of each, (k,)."""

    thread: Int64Array
    start: Int64Array
    end: Int64Array


@cached_per_object
def find_steps(tree: CallTree, own: tuple[OwnPhase, ...] = ()) -> Steps:
    """Return the steps that annotations name; none where there is no such annotation.

    A GPU event belongs to the step during which, on the step's thread, its launch began; where only
    the GPU has annotations, to the one during which it started on its device. Phases of the user's
    `own` win over those of engines.
    """
    trace = tree.trace
    own_patterns = [(phase, UserPattern(text, "--phase")) for phase, text in own]
    rows, descriptions = _described_rows(trace, EventKind.USER_ANNOTATION, own_patterns)
    is_on_gpu = False
    if not len(rows):
        rows, descriptions = _described_rows(
            trace=trace, kind=EventKind.GPU_ANNOTATION, own_patterns=own_patterns
        )
        is_on_gpu = len(rows) > 0
    place = trace.thread[rows].astype(np.int64)
    if is_on_gpu:  # the annotations of all streams of a device belong together
        place = trace.process_of_thread[place].astype(np.int64)
    order = np.lexsort((rows, -trace.end_of(rows), trace.ts[rows], place))
    rows = rows[order]
    place = place[order]
    begins_step = _begins_step(trace, rows, place, is_on_gpu=is_on_gpu)
    step_of_row = np.cumsum(begins_step) - 1
    first_rows = np.flatnonzero(begins_step)
    end = trace.end_of(rows)
    if len(rows):
        end = np.maximum.reduceat(end, first_rows)
    intervals = _StepIntervals(
        thread=place[first_rows], start=trace.ts[rows][first_rows], end=end
    )
    name_codes = trace.name[rows].tolist()
    detail = np.array(
        [descriptions[code].detail for code in name_codes], dtype=np.int64
    )
    # the first of equal ones
    most_detailed = np.lexsort((-detail, step_of_row))[first_rows]
    step_names = [name_codes[index] for index in most_detailed.tolist()]
    return _steps_at(
        tree,
        intervals,
        names=[trace.names[code] for code in step_names],
        batches=[descriptions[code].batch for code in step_names],
        note=_ON_GPU if is_on_gpu else "",
    )


def _described_rows(
    trace: Trace, kind: EventKind, own_patterns: Sequence[tuple[str, UserPattern]]
) -> tuple[Int64Array, dict[int, _Description]]:
    """Return the annotations of a kind that describe steps, and what each name code says."""
    rows = trace.rows_of(kind)
    descriptions = {}
    for code in np.unique(trace.name[rows]).tolist():
        description = _describe(trace.names[code], own_patterns)
        if description is not None:
            descriptions[code] = description
    return rows[np.isin(trace.name[rows], list(descriptions))], descriptions


def _describe(
    name: str, own_patterns: Sequence[tuple[str, UserPattern]]
) -> _Description | None:
    """Return what a name says about a step; None for another name. The user's names say most."""
    batch = parse_annotation(name)
    for phase, pattern in own_patterns:
        if pattern.search(name):
            batch = replace(batch or Batch(phase), phase=phase)
            return _Description(8 + batch.detail, batch)
    if batch is None:
        return None
    return _Description(batch.detail, batch)


def _begins_step(
    trace: Trace, rows: Int64Array, place: Int64Array, *, is_on_gpu: bool
) -> BoolArray:
    """Tell which annotations, sorted by place and start, begin a step; others lie within one."""
    start = trace.ts[rows]
    end = trace.end_of(rows)
    begins = outermost(place, end)
    # Some lie within the one before but for rounded times.
    begins &= ~_continues(
        begins=begins, key=place, start=start, end=end, latest_end=end - int(NS_PER_US)
    )
    if is_on_gpu:  # each stream of a step has an annotation of its own
        place_and_name = place * (len(trace.names) + 1) + trace.name[rows]
        begins &= ~_continues(
            begins=begins,
            key=place_and_name,
            start=start,
            end=end,
            latest_end=np.zeros_like(end),
        )
    return begins


def _continues(
    begins: BoolArray,
    key: Int64Array,
    start: Int64Array,
    end: Int64Array,
    latest_end: Int64Array,
) -> BoolArray:
    """Tell which ranges that begin a step overlap the one before, of the same key.

    The one before must not end before `latest_end` of the range. All arrays have the shape (n,).
    """
    candidates = np.flatnonzero(begins)
    before = candidates[:-1]
    this = candidates[1:]
    overlaps = (key[this] == key[before]) & (start[this] < end[before])
    result: BoolArray = np.zeros(len(begins), dtype=bool)
    result[this] = overlaps & (latest_end[this] <= end[before])
    return result


def _steps_at(
    tree: CallTree,
    intervals: _StepIntervals,
    names: list[str],
    batches: list[Batch],
    note: str,
) -> Steps:
    """Return steps at these intervals, with the GPU work that each launched.

    The intervals are sorted by thread and start; none lies within another.
    """
    trace = tree.trace
    of_gpu = np.full(len(tree.linked), NONE, dtype=np.int64)
    if names:
        if note == _ON_GPU:
            has_row: BoolArray = np.ones(len(of_gpu), dtype=bool)
            rows = trace.gpu_rows
            place = trace.process_of_thread[trace.thread[rows]].astype(np.int64)
        else:
            has_row = tree.linked
            rows = tree.launch_of_gpu[has_row]
            place = trace.thread[rows].astype(np.int64)
        step = last_before(
            group=intervals.thread,
            time=intervals.start,
            query_group=place,
            query_time=trace.ts[rows] + 1,
        )
        is_inside = (step != NONE) & (trace.ts[rows] < intervals.end[step])
        of_gpu[has_row] = np.where(is_inside, step, NONE)
    return Steps(
        name=names,
        batch=batches,
        thread=intervals.thread,
        start=intervals.start,
        end=intervals.end,
        of_gpu=of_gpu,
        note=note,
    )


# Steps that shapes or Python frames show.

_EMBEDDING: Final = "aten::embedding"
_ATTENTION: Final = re.compile(
    r"(?i)scaled_dot_product|attention|flash_attn|varlen_fwd|fmha|mha_"
)
_BACKWARD: Final = re.compile(r"autograd::engine|.*Backward\d*$|.*_backward$")
_CONVOLUTION: Final = re.compile(
    r"aten::(?:_?convolution|conv[23]d|(?:cudnn|miopen)_convolution)"
)
#: The input of a convolution of images has at least so many dimensions.
_IMAGE_DIMENSIONS: Final = 4
#: The largest embedding table of a language model has at least so many rows.
_VOCABULARY: Final = 1000
#: More tokens than this are no plausible size.
_MOST_TOKENS: Final = 10**12
#: The phase of a step about which shapes say nothing.
STEP: Final = "step"
_INTEGER_TYPES: Final = frozenset({"int", "long", "long int", "int32", "int64"})
#: Annotations that name their phase and nothing else; only where both phases occur.
_PLAIN_PHASES: Final = (
    (PREFILL, r"^(?:.*[ /:._])?(?i:prefill)(?:[ _]?step)?[ _#:]*\d*$"),
    (DECODE, r"^(?:.*[ /:._])?(?i:decode)(?:[ _]?step)?[ _#:]*\d*$"),
)
#: Python frames of engines that run one phase.
_PHASE_FRAMES: Final = {
    PREFILL: re.compile(r".*: _?(?:forward|run|process)_(?:extend|prefill)\b"),
    DECODE: re.compile(r".*: _?(?:forward|run|process)_decode\b"),
}
BY_FRAMES: Final = (
    "No annotation names the steps, so the calls of the engine's step function in the "
    "Python frames are used; their phase is inferred from shapes, if recorded."
)
#: What the reader of a table is told.
HOW: Final = (
    "No annotation names the steps, so they are inferred from shapes: each lasts from "
    "one lookup in the largest embedding table (or one size of attention) to the "
    "next; one query per sequence is decode, more are prefill."
)


def serving_steps(tree: CallTree, own: tuple[OwnPhase, ...] = ()) -> Steps:
    """Return the steps that annotations name; without `own` and annotations those of shapes."""
    steps = find_steps(tree, own)
    if len(steps) or own:
        return steps
    named_steps = find_steps(tree, _PLAIN_PHASES)
    if len(named_steps.phases) == len(_PLAIN_PHASES):
        return named_steps
    inferred = infer_steps(tree)
    frames = engine_frames(tree.trace)
    if len(frames):
        return _steps_at_frames(tree, frames, inferred)
    return inferred


def _steps_at_frames(tree: CallTree, rows: Int64Array, inferred: Steps) -> Steps:
    """Return the steps by Python frames; the phase of each is the first that shapes show in it."""
    trace = tree.trace
    thread = trace.thread[rows].astype(np.int64)
    start = trace.ts[rows]
    end = trace.end_of(rows)
    first_inferred = items_before(
        group=inferred.thread, time=inferred.start, query_group=thread, query_time=start
    )
    is_inside = values_at(inferred.thread, first_inferred) == thread
    is_inside &= values_at(inferred.start, first_inferred, missing=0) < end
    batches = []
    for index, inside in zip(first_inferred.tolist(), is_inside.tolist(), strict=True):
        batch = Batch(STEP)
        if inside:
            batch = inferred.batch[index]
        batches.append(batch)
    _name_phases_by_frames(
        trace=trace,
        steps=_StepIntervals(thread=thread, start=start, end=end),
        batches=batches,
    )
    names = [trace.name_of(row) for row in rows.tolist()]
    return _steps_at(
        tree=tree,
        intervals=_StepIntervals(thread=thread, start=start, end=end),
        names=names,
        batches=batches,
        note=BY_FRAMES,
    )


def _name_phases_by_frames(
    trace: Trace, steps: _StepIntervals, batches: list[Batch]
) -> None:
    """Set the phase of steps of unknown phase in which a frame such as `forward_decode` runs."""
    for phase, pattern in _PHASE_FRAMES.items():
        rows = trace.rows_named(pattern, EventKind.PYTHON_FUNCTION)
        rows = rows[np.lexsort((trace.ts[rows], trace.thread[rows]))]
        thread = trace.thread[rows].astype(np.int64)
        start = trace.ts[rows]
        first = items_before(
            group=thread, time=start, query_group=steps.thread, query_time=steps.start
        )
        is_inside = values_at(thread, first, missing=NONE) == steps.thread
        is_inside &= values_at(start, first, missing=0) < steps.end
        for step in np.flatnonzero(is_inside).tolist():
            if batches[step].phase == STEP:
                batches[step] = Batch(phase)


@cached_per_object
def infer_steps(tree: CallTree) -> Steps:
    """Return the steps that shapes show, none where they show none; see the module."""
    trace = tree.trace
    batch_of_row = _first_operations(trace)
    rows = np.array(list(batch_of_row), dtype=np.int64)
    rows = rows[np.lexsort((trace.ts[rows], trace.thread[rows]))]
    thread = trace.thread[rows].astype(np.int64)
    start = trace.ts[rows]
    after_everything = trace.span_ns + 1
    # A step lasts until the next one of its thread.
    end = np.full(len(rows), after_everything, dtype=np.int64)
    is_followed = thread[1:] == thread[:-1]
    end[:-1][is_followed] = start[1:][is_followed]
    batches = [batch_of_row[row] for row in rows.tolist()]
    names = [f"{batch.phase} (inferred)" for batch in batches]
    return _steps_at(
        tree=tree,
        intervals=_StepIntervals(thread=thread, start=start, end=end),
        names=names,
        batches=batches,
        note=HOW,
    )


@dataclass(frozen=True)
class _LookUp:
    """A look-up in an embedding table.

    Attributes:
        table: the sizes of the table, [rows, columns].
        indices: the sizes of the indices, [sequences, queries] or [tokens].
    """

    table: list[int]
    indices: list[int]


def _first_operations(trace: Trace) -> dict[int, Batch]:
    """Return the operations that steps begin with, and what each step computes, by row."""
    rows = trace.rows_of(EventKind.CPU_OP)
    attention = rows[trace.named(trace.name[rows], _ATTENTION.search)]
    is_training = trace.named(trace.name[rows], _BACKWARD.match).any()
    if not len(attention) or is_training:
        return {}
    attention = attention[np.argsort(trace.ts[attention], kind="stable")]
    embeddings = rows[trace.named(trace.name[rows], _EMBEDDING.__eq__)].tolist()
    tables, look_ups = _embedding_look_ups(trace, embeddings)
    largest_table = max(tables, default=0)
    if largest_table < _VOCABULARY and _has_images(trace, rows):
        return {}
    first_operations = {}
    for row, look_up in look_ups.items():
        if look_up.table[0] == largest_table:
            batch = _batch_of_look_up(
                trace=trace, row=row, indices=look_up.indices, attention=attention
            )
            if batch is not None:
                first_operations[row] = batch
    return first_operations or _first_attentions(trace, attention)


def _embedding_look_ups(
    trace: Trace, embeddings: Sequence[int]
) -> tuple[list[int], dict[int, _LookUp]]:
    """Return the rows of each embedding table that is looked up, and the look-ups by row."""
    look_ups = {}
    for row in embeddings:
        sizes = _sizes(trace, row)
        if len(sizes) >= 2 and len(sizes[0]) == 2:
            look_ups[row] = _LookUp(table=sizes[0], indices=sizes[1])
    tables = [look_up.table[0] for look_up in look_ups.values()]
    return tables, look_ups


def _has_images(trace: Trace, rows: Int64Array) -> bool:
    """Tell whether some operation is a convolution of images."""
    convolutions = rows[trace.named(trace.name[rows], _CONVOLUTION.match)]
    for row in convolutions.tolist():
        sizes = _sizes(trace, row)
        if sizes and len(sizes[0]) >= _IMAGE_DIMENSIONS:
            return True
    return False


def _batch_of_look_up(
    trace: Trace, row: int, indices: list[int], attention: Int64Array
) -> Batch | None:
    """Return the batch of indices of the sizes [sequences, queries].

    Indices of the size [tokens] do not tell sequences apart; the next attention may: it has an
    argument of integers that says where sequences begin.
    """
    if len(indices) == 2:
        sequences, queries = indices
        return _inferred_batch(sequences, sequences * queries)
    next_attention = int(np.searchsorted(trace.ts[attention], trace.ts[row]))
    if len(indices) != 1 or next_attention == len(attention):
        return None
    attention_row = int(attention[next_attention])
    types = _argument_list(trace, "Input type", attention_row)
    for sizes, type_name in zip(_sizes(trace, attention_row), types, strict=False):
        if type_name in _INTEGER_TYPES and len(sizes) == 1 and sizes[0] > 1:
            return _inferred_batch(sizes[0] - 1, indices[0])
    return None


def _first_attentions(trace: Trace, attention: Int64Array) -> dict[int, Batch]:
    """Return the first attention of each run with the same sizes of Q and K on a thread."""
    first_operations = {}
    previous: tuple[int, ...] = ()
    by_thread = attention[np.argsort(trace.thread[attention], kind="stable")]
    for row in by_thread.tolist():
        sizes = _sizes(trace, row)[:2]
        if [len(of_tensor) for of_tensor in sizes] != [4, 4]:
            continue
        query, key = sizes
        # [batch, heads, length, head size] in PyTorch, [batch, length, heads, head size] elsewhere
        length = 2 if "scaled_dot_product" in trace.name_of(row) else 1
        sequences = query[0]
        current = (int(trace.thread[row]), sequences, query[length], key[length])
        batch = _inferred_batch(sequences, sequences * query[length])
        if current != previous and batch is not None:
            first_operations[row] = batch
        previous = current
    return first_operations


def _inferred_batch(sequences: int, tokens: int) -> Batch | None:
    """Return the batch of so many sequences and tokens; None where that cannot be."""
    if not 0 < sequences <= tokens < _MOST_TOKENS:
        return None
    group = Group(sequences, tokens)
    if tokens == sequences:
        return Batch(DECODE, generation=group)
    return Batch(PREFILL, context=group)


def _sizes(trace: Trace, row: int) -> list[list[int]]:
    """Return the sizes of each argument of an operation; empty for what is not a tensor."""
    sizes = []
    for dims in _argument_list(trace, "Input Dims", row):
        shape: list[int] = []
        if isinstance(dims, list) and all(type(size) is int for size in dims):
            shape = dims
        sizes.append(shape)
    return sizes


def _argument_list(trace: Trace, argument: str, row: int) -> list[object]:
    """Return a recorded argument of an event that is a list; empty for anything else."""
    column = trace.arg(argument)
    code = int(column.at(np.array([row]))[0])
    if code == NONE or not column.texts:
        return []
    value = json_value(column.texts[code])
    return value if isinstance(value, list) else []
