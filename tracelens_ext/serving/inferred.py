"""Steps of a trace that no annotation names, by the shapes of its operations.

A pass through the model begins with a look-up in the largest embedding table, and lasts until the
next on its thread; where none was recorded, it begins with the first attention whose sizes differ
from those before it. One query a sequence is `decode`, more are `prefill`. A trace with a backward
pass, without attention, or of images (convolutions, and no vocabulary) has no steps. Python frames
of an engine's step say where steps are, shapes then only their phase.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.iterations.iterations import engine_frames
from tracelens_ext.serving.annotations import DECODE, PREFILL, Batch, Group
from tracelens_ext.serving.steps import Steps, find_steps, steps_at
from tracelens_ext.text import json_value
from tracelens_ext.trace import NONE, EventKind
from tracelens_ext.work.grouping import items_before
from tracelens_ext.work.memoize import once_for_each

if TYPE_CHECKING:
    from tracelens_ext.serving.steps import OwnPhase
    from tracelens_ext.trace import Int64Array, Trace
    from tracelens_ext.tree import CallTree

_EMBEDDING: Final = "aten::embedding"
_ATTENTION: Final = re.compile(
    r"scaled_dot_product|attention|flash_attn|varlen_fwd|fmha|mha_", re.IGNORECASE
)
_HEADS_FIRST: Final = re.compile(r"scaled_dot_product")
_BACKWARD: Final = re.compile(r"autograd::engine|.*Backward\d*$|.*_backward$")
_CONVOLUTION: Final = re.compile(r"aten::(?:_?convolution|conv[23]d|(?:cudnn|miopen)_convolution)")
_OF_IMAGES: Final = 4  # sizes of what a convolution of images gets, at least
_VOCABULARY: Final = 1000  # rows of the largest table of a language model, at least
#: The phase of a step whose shapes tell none.
STEP: Final = "step"
_WHOLE: Final = frozenset({"int", "long", "long int", "int32", "int64"})
BY_FRAMES: Final = (
    "No annotation names the steps: they are the calls of the engine's step among Python frames;"
    " their phase is inferred from shapes, where those were recorded."
)
#: What the reader of a table is told.
HOW: Final = (
    "No annotation names the steps: they are inferred from shapes, each from one look-up in the"
    " largest embedding table (else from one size of attention) to the next; one query a sequence"
    " is decode, more are prefill."
)


def serving_steps(tree: CallTree, own: tuple[OwnPhase, ...] = ()) -> Steps:
    """The steps that annotations name; without `own` and annotations those that shapes show."""
    steps = find_steps(tree, own)
    if len(steps) or own:
        return steps
    inferred = infer_steps(tree)
    frames = engine_frames(tree.trace)
    return _at_frames(tree, frames, inferred) if len(frames) else inferred


def _at_frames(tree: CallTree, rows: Int64Array, inferred: Steps) -> Steps:
    """The steps by Python frames; the phase of each is the first that shapes show in it."""
    trace = tree.trace
    thread, start, end = trace.thread[rows].astype(np.int64), trace.ts[rows], trace.end_of(rows)
    at = items_before(inferred.thread, inferred.start, thread, start)
    batches = [
        inferred.batch[i]
        if i < len(inferred) and inferred.thread[i] == one and inferred.start[i] < last
        else Batch(STEP)
        for i, one, last in zip(at.tolist(), thread.tolist(), end.tolist(), strict=True)
    ]
    names = [trace.name_of(row) for row in rows.tolist()]
    return steps_at(tree, names, batches, (thread, start, end), BY_FRAMES)


@once_for_each
def infer_steps(tree: CallTree) -> Steps:
    """The steps by shapes, none where the trace does not show them; see the module."""
    trace = tree.trace
    empty = np.empty(0, dtype=np.int64)
    rows = trace.rows_of(EventKind.CPU_OP)
    attention = rows[trace.named(trace.name[rows], _ATTENTION.search)]
    training = trace.named(trace.name[rows], _BACKWARD.match).any()
    if training or not len(attention):
        return steps_at(tree, [], [], (empty, empty, empty), HOW)
    attention = attention[np.argsort(trace.ts[attention], kind="stable")]
    starts, batches, vocabulary = _embeddings(trace, rows, attention)
    if vocabulary < _VOCABULARY and _has_images(trace, rows):
        return steps_at(tree, [], [], (empty, empty, empty), HOW)
    if not len(starts):
        starts, batches = _by_attention(trace, attention)
    order = np.lexsort((trace.ts[starts], trace.thread[starts]))
    starts = starts[order]
    thread, start = trace.thread[starts].astype(np.int64), trace.ts[starts]
    same = thread[1:] == thread[:-1]
    end = np.append(np.where(same, start[1:], trace.span_ns + 1), trace.span_ns + 1)[: len(start)]
    batches = [batches[i] for i in order.tolist()]
    names = [f"{batch.phase} (inferred)" for batch in batches]
    return steps_at(tree, names, batches, (thread, start, end), HOW)


def _embeddings(
    trace: Trace, rows: Int64Array, attention: Int64Array
) -> tuple[Int64Array, list[Batch], int]:
    """The look-ups in the largest table, the batches that their indices show, and its rows."""
    named = trace.names_matching(lambda name: name == _EMBEDDING)
    found = []
    for row in rows[named[trace.name[rows]]].tolist():
        sizes = _sizes(trace, row)
        if len(sizes) > 1 and len(sizes[0]) == 2:
            found.append((sizes[0][0], row, sizes[1]))
    largest = max((size for size, *_ in found), default=0)
    starts, batches = [], []
    for size, row, indices in found:
        batch = _batch(trace, row, indices, attention) if size == largest else None
        if batch is not None:
            starts.append(row)
            batches.append(batch)
    return np.array(starts, dtype=np.int64), batches, largest


def _has_images(trace: Trace, rows: Int64Array) -> bool:
    """Whether a convolution gets images or videos."""
    named = rows[trace.named(trace.name[rows], _CONVOLUTION.match)].tolist()
    return any(len((_sizes(trace, row) or [[]])[0]) >= _OF_IMAGES for row in named)


def _batch(trace: Trace, row: int, indices: list[int], attention: Int64Array) -> Batch | None:
    """The batch of indices [sequences, queries]; of [tokens] the next attention tells more."""
    if len(indices) == 2:
        return _phase(indices[0], indices[1] * indices[0])
    later = int(np.searchsorted(trace.ts[attention], trace.ts[row]))
    if len(indices) != 1 or later == len(attention):
        return None
    first = int(attention[later])
    kinds = _parsed(trace, "Input type", first)
    for sizes, kind in zip(_sizes(trace, first), kinds, strict=False):
        if kind in _WHOLE and len(sizes) == 1 and sizes[0] > 1:  # where sequences begin
            return _phase(sizes[0] - 1, indices[0])
    return None


def _by_attention(trace: Trace, attention: Int64Array) -> tuple[Int64Array, list[Batch]]:
    """The first attention of each run with the same sizes of Q and K on a thread."""
    starts, batches = [], []
    before: tuple[object, ...] = ()
    for row in attention[np.argsort(trace.thread[attention], kind="stable")].tolist():
        sizes = _sizes(trace, row)[:2]
        if len(sizes) < 2 or any(len(each) != 4 for each in sizes):
            continue
        heads_first = bool(_HEADS_FIRST.search(trace.name_of(row)))
        queries, keys = (each[2 if heads_first else 1] for each in sizes)
        this = (int(trace.thread[row]), sizes[0][0], queries, keys)
        batch = _phase(sizes[0][0], sizes[0][0] * queries)
        if this != before and batch is not None:
            starts.append(row)
            batches.append(batch)
        before = this
    return np.array(starts, dtype=np.int64), batches


def _phase(sequences: int, tokens: int) -> Batch | None:
    if not 0 < sequences <= tokens < 10**12:
        return None
    group = Group(sequences, tokens)
    return Batch(DECODE, generation=group) if tokens == sequences else Batch(PREFILL, group)


def _sizes(trace: Trace, row: int) -> list[list[int]]:
    """The sizes of each argument; empty for what is no tensor."""
    dims = _parsed(trace, "Input Dims", row)
    return [
        each if isinstance(each, list) and all(type(n) is int for n in each) else []
        for each in dims
    ]


def _parsed(trace: Trace, argument: str, row: int) -> list[object]:
    column = trace.arg(argument)
    code = int(column.at(np.array([row]))[0])
    if code == NONE or not column.texts:
        return []
    value = json_value(column.texts[code])
    return value if isinstance(value, list) else []
