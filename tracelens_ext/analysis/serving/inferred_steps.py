"""The steps of a serving engine that has no annotations, from Python frames and shapes.

Where Python frames of an engine's step function were recorded, they are the steps, and shapes only
determine their phase.

Otherwise the shapes of operations determine the steps. A step is one pass through the model: it
begins with a lookup in the largest embedding table and lasts until the next such lookup on its
thread. If no lookup was recorded, a step begins with the first attention whose sizes differ from
those of the attention before it. One query per sequence is `decode`, more are `prefill`. A trace
has no steps if it has a backward pass, no attention, or images (convolutions, but no vocabulary).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracelens_ext.analysis.iterations.named_iterations import engine_frames
from tracelens_ext.analysis.serving.annotations import (
    DECODE,
    PREFILL,
    Batch,
    RequestGroup,
)
from tracelens_ext.analysis.serving.steps import (
    StepIntervals,
    Steps,
    UserPhase,
    find_steps,
    steps_at,
)
from tracelens_ext.text import json_value
from tracelens_ext.trace import NONE, EventKind, Int64Array, Trace
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.sorted_groups import items_before

_EMBEDDING: Final = "aten::embedding"
_ATTENTION: Final = re.compile(
    r"(?i)scaled_dot_product|attention|flash_attn|varlen_fwd|fmha|mha_"
)
_BACKWARD: Final = re.compile(r"autograd::engine|.*Backward\d*$|.*_backward$")
_CONVOLUTION: Final = re.compile(
    r"aten::(?:_?convolution|conv[23]d|(?:cudnn|miopen)_convolution)"
)
#: The least number of dimensions of the input of a convolution of images.
_MIN_IMAGE_DIMENSIONS: Final = 4
#: The least number of rows of a language model's largest embedding table.
_MIN_VOCABULARY: Final = 1000
#: The largest plausible number of tokens in a step.
_MAX_TOKENS: Final = 10**12
#: The phase of a step whose phase the shapes do not determine.
_UNKNOWN_PHASE: Final = "step"
_INTEGER_TYPES: Final = frozenset({"int", "long", "long int", "int32", "int64"})
#: Annotations such as `decode_step 3`, which name nothing but their phase. They are steps only if
#: both phases occur.
_PLAIN_PHASES: Final = (
    (PREFILL, r"^(?:.*[ /:._])?(?i:prefill)(?:[ _]?step)?[ _#:]*\d*$"),
    (DECODE, r"^(?:.*[ /:._])?(?i:decode)(?:[ _]?step)?[ _#:]*\d*$"),
)
#: Phase → the Python frames of engines that run it.
_PHASE_FRAMES: Final = {
    PREFILL: re.compile(r".*: _?(?:forward|run|process)_(?:extend|prefill)\b"),
    DECODE: re.compile(r".*: _?(?:forward|run|process)_decode\b"),
}
_FRAMES_NOTE: Final = (
    "No annotation names the steps, so the calls of the engine's step function in the "
    "Python frames are used; their phase is inferred from shapes, if recorded."
)
_SHAPES_NOTE: Final = (
    "No annotation names the steps, so they are inferred from shapes: each lasts from "
    "one lookup in the largest embedding table (or one size of attention) to the "
    "next; one query per sequence is decode, more are prefill."
)


def serving_steps(tree: CallTree, user_phases: tuple[UserPhase, ...] = ()) -> Steps:
    """Return the steps of a trace, annotated or inferred.

    Steps are inferred only if there are neither annotated steps nor phases of the user.
    """
    steps = find_steps(tree, user_phases)
    if len(steps) or user_phases:
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
    """Return the steps at Python frames.

    Args:
        tree: the call tree of the trace.
        rows: the frames of an engine's step function, by thread and start.
        inferred: the steps that shapes show. A frame takes the batch of the first one that begins
            within it.
    """
    trace = tree.trace
    intervals = StepIntervals(
        thread=trace.thread[rows].astype(np.int64),
        start=trace.ts[rows],
        end=trace.end_of(rows),
    )
    first_inferred = items_before(
        group=inferred.thread,
        time=inferred.start,
        query_group=intervals.thread,
        query_time=intervals.start,
    )
    is_inside = values_at(inferred.thread, first_inferred) == intervals.thread
    is_inside &= values_at(inferred.start, first_inferred, missing=0) < intervals.end
    batches = []
    for index, inside in zip(first_inferred.tolist(), is_inside.tolist(), strict=True):
        batch = Batch(_UNKNOWN_PHASE)
        if inside:
            batch = inferred.batch[index]
        batches.append(batch)
    _set_phases_by_frames(trace, intervals, batches)
    names = [trace.name_of(row) for row in rows.tolist()]
    return steps_at(
        tree=tree,
        intervals=intervals,
        names=names,
        batches=batches,
        note=_FRAMES_NOTE,
    )


def _set_phases_by_frames(
    trace: Trace, steps: StepIntervals, batches: list[Batch]
) -> None:
    """Replace the batches of steps of unknown phase that contain a frame such as `forward_decode`.

    Args:
        trace: the trace.
        steps: the intervals of the steps.
        batches: the batch of each step; modified.
    """
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
            if batches[step].phase == _UNKNOWN_PHASE:
                batches[step] = Batch(phase)


@cached_per_object
def infer_steps(tree: CallTree) -> Steps:
    """Return the steps that shapes show, as the module describes; they may be empty."""
    trace = tree.trace
    batch_of_row = _batches_by_first_operation(trace)
    rows = np.array(list(batch_of_row), dtype=np.int64)
    rows = rows[np.lexsort((trace.ts[rows], trace.thread[rows]))]
    thread = trace.thread[rows].astype(np.int64)
    start = trace.ts[rows]
    # A step lasts until the next step on its thread begins; the last one, until the trace ends.
    after_trace = trace.span_ns + 1
    end = np.full(len(rows), after_trace, dtype=np.int64)
    is_followed = thread[1:] == thread[:-1]
    end[:-1][is_followed] = start[1:][is_followed]
    batches = [batch_of_row[row] for row in rows.tolist()]
    names = [f"{batch.phase} (inferred)" for batch in batches]
    return steps_at(
        tree=tree,
        intervals=StepIntervals(thread=thread, start=start, end=end),
        names=names,
        batches=batches,
        note=_SHAPES_NOTE,
    )


@dataclass(frozen=True)
class _Lookup:
    """The shapes of a lookup in an embedding table.

    Attributes:
        table: the shape of the table, [rows, columns].
        indices: the shape of the indices, [sequences, queries] or [tokens].
    """

    table: list[int]
    indices: list[int]


def _batches_by_first_operation(trace: Trace) -> dict[int, Batch]:
    """Return the row of the operation that begins each step → the batch of the step."""
    rows = trace.rows_of(EventKind.CPU_OP)
    attention = rows[trace.named(trace.name[rows], _ATTENTION.search)]
    is_training = trace.named(trace.name[rows], _BACKWARD.match).any()
    if not len(attention) or is_training:
        return {}
    attention = attention[np.argsort(trace.ts[attention], kind="stable")]
    embeddings = rows[trace.named(trace.name[rows], _EMBEDDING.__eq__)].tolist()
    lookups = _embedding_lookups(trace, embeddings)
    largest_table = max((lookup.table[0] for lookup in lookups.values()), default=0)
    if largest_table < _MIN_VOCABULARY and _has_images(trace, rows):
        return {}
    batch_of_row = {}
    for row, lookup in lookups.items():
        if lookup.table[0] == largest_table:
            batch = _batch_of_lookup(
                trace=trace, row=row, indices=lookup.indices, attention=attention
            )
            if batch is not None:
                batch_of_row[row] = batch
    if batch_of_row:
        return batch_of_row
    return _batches_by_first_attention(trace, attention)


def _embedding_lookups(trace: Trace, embeddings: Sequence[int]) -> dict[int, _Lookup]:
    """Return row → lookup for the embedding operations whose shapes were recorded."""
    lookups = {}
    for row in embeddings:
        shapes = _tensor_shapes(trace, row)
        if len(shapes) >= 2 and len(shapes[0]) == 2:
            lookups[row] = _Lookup(table=shapes[0], indices=shapes[1])
    return lookups


def _has_images(trace: Trace, rows: Int64Array) -> bool:
    """Tell whether an operation is a convolution of images."""
    convolutions = rows[trace.named(trace.name[rows], _CONVOLUTION.match)]
    for row in convolutions.tolist():
        shapes = _tensor_shapes(trace, row)
        if shapes and len(shapes[0]) >= _MIN_IMAGE_DIMENSIONS:
            return True
    return False


def _batch_of_lookup(
    trace: Trace, row: int, indices: list[int], attention: Int64Array
) -> Batch | None:
    """Return the batch of the step that a lookup begins; None if it cannot be determined.

    Indices of the shape [sequences, queries] determine it. Indices of the shape [tokens] only have
    the number of tokens. The number of sequences then comes from the next attention, if that has a
    vector of integers: the places where the sequences begin, and the end of the last one.

    Args:
        trace: the trace.
        row: the lookup.
        indices: the shape of its indices.
        attention: the attention operations, by start.
    """
    if len(indices) == 2:
        sequences, queries = indices
        return _inferred_batch(sequences, sequences * queries)
    next_attention = int(np.searchsorted(trace.ts[attention], trace.ts[row]))
    if len(indices) != 1 or next_attention == len(attention):
        return None
    attention_row = int(attention[next_attention])
    types = _argument_list(trace, "Input type", attention_row)
    shapes = _tensor_shapes(trace, attention_row)
    for shape, type_name in zip(shapes, types, strict=False):
        if type_name in _INTEGER_TYPES and len(shape) == 1 and shape[0] > 1:
            return _inferred_batch(sequences=shape[0] - 1, tokens=indices[0])
    return None


def _batches_by_first_attention(
    trace: Trace, attention: Int64Array
) -> dict[int, Batch]:
    """Return the row of the first attention of each step → the batch of the step.

    A step is a run of attention operations on a thread with the same shapes of Q and K.
    """
    batch_of_row = {}
    previous: tuple[int, ...] = ()
    by_thread = attention[np.argsort(trace.thread[attention], kind="stable")]
    for row in by_thread.tolist():
        shapes = _tensor_shapes(trace, row)[:2]
        if [len(shape) for shape in shapes] != [4, 4]:
            continue
        query, key = shapes
        # [batch, heads, length, head size] in PyTorch, [batch, length, heads, head size] elsewhere
        length_axis = 1
        if "scaled_dot_product" in trace.name_of(row):
            length_axis = 2
        sequences = query[0]
        query_length = query[length_axis]
        current = (int(trace.thread[row]), sequences, query_length, key[length_axis])
        batch = _inferred_batch(sequences, sequences * query_length)
        if current != previous and batch is not None:
            batch_of_row[row] = batch
        previous = current
    return batch_of_row


def _inferred_batch(sequences: int, tokens: int) -> Batch | None:
    """Return the batch with these numbers of sequences and tokens; None if they are implausible."""
    if not 0 < sequences <= tokens < _MAX_TOKENS:
        return None
    group = RequestGroup(sequences, tokens)
    if tokens == sequences:
        return Batch(DECODE, generation=group)
    return Batch(PREFILL, context=group)


def _tensor_shapes(trace: Trace, row: int) -> list[list[int]]:
    """Return the shape of each argument of an operation, an empty list if it is not a tensor."""
    shapes = []
    for dims in _argument_list(trace, "Input Dims", row):
        shape: list[int] = []
        if isinstance(dims, list) and all(type(size) is int for size in dims):
            shape = dims
        shapes.append(shape)
    return shapes


def _argument_list(trace: Trace, argument: str, row: int) -> list[object]:
    """Return the value of an event's argument if it is a list, else an empty list."""
    column = trace.arg(argument)
    code = int(column.at(np.array([row]))[0])
    if code == NONE or not column.texts:
        return []
    value = json_value(column.texts[code])
    return value if isinstance(value, list) else []
