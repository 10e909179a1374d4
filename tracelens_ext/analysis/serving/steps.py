"""The steps of a serving engine, and the GPU work that each launched.

A step is an annotation that an engine (`annotations.py`) or the user named; annotations within one
another on a thread are one step, which is as long as the outermost and holds what the most telling
of them says.

Where no annotation names them, shapes may show them. A pass through the model begins with a look-up
in the largest embedding table, and lasts until the next on its thread; where none was recorded, it
begins with the first attention whose sizes differ from those before it. One query a sequence is
`decode`, more are `prefill`. A trace with a backward pass, without attention, or of images
(convolutions, and no vocabulary) has no steps. Python frames of an engine's step say where steps
are, shapes then only their phase.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from tracelens_ext.analysis.iterations.selection import engine_frames
from tracelens_ext.analysis.serving import annotations as said
from tracelens_ext.analysis.serving.annotations import Batch, Group
from tracelens_ext.categorize.user_patterns import UserPattern
from tracelens_ext.errors import UsageError
from tracelens_ext.text import json_value
from tracelens_ext.trace import NONE, NS_PER_US, BoolArray, EventKind, Int64Array, Trace
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.grouping import items_before, last_before, outermost

#: The order in which tables show phases; those of the user follow.
ORDER: Final = (said.PREFILL, said.DECODE, said.MIXED, said.DIFFUSION)
_ON_GPU = "Steps are annotated on the GPU alone: work belongs to that during which it started."
#: A phase and a regular expression for its annotations.
OwnPhase = tuple[str, str]


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of a trace by thread and start, k of them."""

    name: list[str]  #: the annotation that says most of each
    batch: list[Batch]  #: what it says
    thread: Int64Array  #: index into `Trace.threads`, (k,)
    start: Int64Array  #: ns since the trace's first event, (k,)
    end: Int64Array  #: likewise, (k,)
    of_gpu: Int64Array  #: the step in which each GPU event was launched, `NONE` for none, (g,)
    note: str = ""  #: how they were found, where no annotation of the host tells; empty otherwise

    def __len__(self) -> int:
        return len(self.name)

    @cached_property
    def phases(self) -> list[str]:
        """The phases that occur, in the order of tables."""
        found = dict.fromkeys(batch.phase for batch in self.batch)
        return [*(p for p in ORDER if p in found), *(p for p in found if p not in ORDER)]

    @cached_property
    def phase(self) -> Int64Array:
        """Of each step, an index into those, (k,)."""
        return np.array([self.phases.index(b.phase) for b in self.batch], dtype=np.int64)

    @property
    def phase_of_gpu(self) -> Int64Array:
        """The phase of each GPU event, an index into `labels`, (g,)."""
        return np.append(self.phase, len(self.phases))[self.of_gpu]

    @property
    def labels(self) -> list[str]:
        """What `phase_of_gpu` stands for."""
        return [*self.phases, said.OTHER]


def own_phases(texts: Sequence[str]) -> tuple[OwnPhase, ...]:
    """The phases that a user names, each `NAME=REGEX`."""
    found = []
    for text in texts:
        name, equals, pattern = text.partition("=")
        if not (name.strip() and equals and pattern):
            raise UsageError(f"--phase {text!r}: expected NAME=REGEX, such as 'draft=propose_'")
        if name.strip() == said.OTHER:
            raise UsageError(f"--phase {text!r}: {said.OTHER!r} is what lies outside of all steps")
        UserPattern(pattern, "--phase")
        found.append((name.strip(), pattern))
    return tuple(found)


@cached_per_object
def find_steps(tree: CallTree, own: tuple[OwnPhase, ...] = ()) -> Steps:
    """The steps that annotations name, none where there is no such annotation.

    A GPU event belongs to the step during which, on the step's thread, its launch began; where only
    the GPU has annotations, to the one during which it started on its device. Phases of the user's
    `own` win over those of engines.
    """
    trace = tree.trace
    patterns = [(phase, UserPattern(text, "--phase")) for phase, text in own]
    for kind in (EventKind.USER_ANNOTATION, EventKind.GPU_ANNOTATION):
        rows = trace.rows_of(kind)
        every = ((c, _told(trace.names[c], patterns)) for c in np.unique(trace.name[rows]).tolist())
        batch_of = {code: told for code, told in every if told is not None}
        rows = rows[np.isin(trace.name[rows], list(batch_of))]
        if len(rows):
            break
    on_gpu = bool(len(rows)) and kind == EventKind.GPU_ANNOTATION
    # On the GPU, of all streams of a device.
    place = trace.process_of_thread if on_gpu else np.arange(len(trace.threads))
    rows = rows[np.lexsort((rows, -trace.end_of(rows), trace.ts[rows], place[trace.thread[rows]]))]
    thread = place[trace.thread[rows]].astype(np.int64)
    start = trace.ts[rows]
    end = trace.end_of(rows)
    begins = outermost(thread, end)
    # Some are within the one before but for rounded times; each stream of a step on the GPU has an
    # annotation of its own.
    begins &= ~_goes_on(begins, thread, start, end, end - int(NS_PER_US))
    if on_gpu:
        key = thread * (len(trace.names) + 1) + trace.name[rows]
        begins &= ~_goes_on(begins, key, start, end, np.zeros_like(end))
    step = np.cumsum(begins) - 1
    first = np.flatnonzero(np.diff(step, prepend=-1))
    codes = trace.name[rows].tolist()
    told = np.array([batch_of[code][0] for code in codes], dtype=np.int64)
    most = np.lexsort((-told, step))[first].tolist()  # the first of those that tell most
    names = [trace.names[codes[at]] for at in most]
    batches = [batch_of[codes[at]][1] for at in most]
    where = thread[first], start[first], np.maximum.reduceat(end, first) if len(first) else end
    return _steps_at(tree, names, batches, where, _ON_GPU if on_gpu else "")


def _goes_on(
    begins: BoolArray, key: Int64Array, start: Int64Array, end: Int64Array, least: Int64Array
) -> BoolArray:
    """Which ranges that begin a step overlap the one before of their key, which ends so late."""
    at = np.flatnonzero(begins)
    before = at[:-1]
    this = at[1:]
    result: BoolArray = np.zeros(len(begins), dtype=bool)
    overlaps = (key[this] == key[before]) & (start[this] < end[before])
    result[this] = overlaps & (least[this] <= end[before])
    return result


def _steps_at(
    tree: CallTree, names: list[str], batches: list[Batch], where: Sequence[Int64Array], note: str
) -> Steps:
    """Steps at these places, with the GPU work that each launched; k names and batches.

    `where` is thread, start and end of each, by thread and start, none within another, each (k,).
    Of steps on the GPU they are times of devices, whose numbers among processes stand for threads.
    """
    trace = tree.trace
    (thread, start, end) = where
    on_gpu = note == _ON_GPU
    of_gpu = np.full(len(tree.linked), NONE, dtype=np.int64)
    if len(names):
        asked = np.ones(len(of_gpu), dtype=bool) if on_gpu else tree.linked
        rows = trace.gpu_rows if on_gpu else tree.launch_of_gpu[asked]
        at = trace.thread[rows].astype(np.int64)
        at = trace.process_of_thread[at].astype(np.int64) if on_gpu else at
        found = last_before(thread, start, at, trace.ts[rows] + 1)
        of_gpu[asked] = np.where((found != NONE) & (trace.ts[rows] < end[found]), found, NONE)
    return Steps(names, batches, thread, start, end, of_gpu, note)


def _told(name: str, own: Sequence[tuple[str, UserPattern]]) -> tuple[int, Batch] | None:
    """How much a name tells of a step, and what; None of another. Those of the user tell most."""
    batch = said.parse_annotation(name)
    phase = next((phase for phase, pattern in own if pattern.search(name)), None)
    if phase is not None:
        batch = replace(batch or Batch(phase), phase=phase)
    return None if batch is None else (8 * (phase is not None) + batch.detail, batch)


_EMBEDDING: Final = "aten::embedding"
_ATTENTION: Final = re.compile(r"(?i)scaled_dot_product|attention|flash_attn|varlen_fwd|fmha|mha_")
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
    thread = trace.thread[rows].astype(np.int64)
    start = trace.ts[rows]
    end = trace.end_of(rows)
    at = items_before(inferred.thread, inferred.start, thread, start)
    batches = [*inferred.batch, Batch(STEP)]
    inside = np.append(inferred.thread, NONE)[at] == thread
    inside &= np.append(inferred.start, 0)[at] < end
    batches = [batches[i] for i in np.where(inside, at, len(inferred)).tolist()]
    names = [trace.name_of(row) for row in rows.tolist()]
    return _steps_at(tree, names, batches, (thread, start, end), BY_FRAMES)


@cached_per_object
def infer_steps(tree: CallTree) -> Steps:
    """The steps by shapes, none where the trace does not show them; see the module."""
    trace = tree.trace
    starts = _starts(trace)
    rows = np.array([*starts], dtype=np.int64)
    rows = rows[np.lexsort((trace.ts[rows], trace.thread[rows]))]
    thread = trace.thread[rows].astype(np.int64)
    start = trace.ts[rows]
    same = thread[1:] == thread[:-1]
    end = np.append(np.where(same, start[1:], trace.span_ns + 1), trace.span_ns + 1)[: len(start)]
    batches = [starts[row] for row in rows.tolist()]
    names = [f"{batch.phase} (inferred)" for batch in batches]
    return _steps_at(tree, names, batches, (thread, start, end), HOW)


def _starts(trace: Trace) -> dict[int, Batch]:
    """The operations that steps begin with, and what each computes."""
    rows = trace.rows_of(EventKind.CPU_OP)
    attention = rows[trace.named(trace.name[rows], _ATTENTION.search)]
    if not len(attention) or trace.named(trace.name[rows], _BACKWARD.match).any():  # training
        return {}
    attention = attention[np.argsort(trace.ts[attention], kind="stable")]
    embeddings = rows[trace.named(trace.name[rows], _EMBEDDING.__eq__)].tolist()
    look_ups = {row: _sizes(trace, row)[:2] for row in embeddings}
    look_ups = {row: each for row, each in look_ups.items() if list(map(len, each[:1])) == [2]}
    tables = [table[0] for table, *indices in look_ups.values() if indices]
    if max(tables, default=0) < _VOCABULARY:
        convolutions = rows[trace.named(trace.name[rows], _CONVOLUTION.match)].tolist()
        if any(len((_sizes(trace, row) or [[]])[0]) >= _OF_IMAGES for row in convolutions):
            return {}
    starts = {
        row: batch
        for row, (table, *indices) in look_ups.items()
        if indices and table[0] == max(tables)
        if (batch := _batch(trace, row, indices[0], attention)) is not None
    }
    return starts or _by_attention(trace, attention)


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


def _by_attention(trace: Trace, attention: Int64Array) -> dict[int, Batch]:
    """The first attention of each run with the same sizes of Q and K on a thread."""
    starts = {}
    before: tuple[object, ...] = ()
    for row in attention[np.argsort(trace.thread[attention], kind="stable")].tolist():
        sizes = _sizes(trace, row)[:2]
        if list(map(len, sizes)) != [4, 4]:
            continue
        at = 2 if "scaled_dot_product" in trace.name_of(row) else 1
        this = (int(trace.thread[row]), sizes[0][0], sizes[0][at], sizes[1][at])
        batch = _phase(sizes[0][0], sizes[0][0] * sizes[0][at])
        if this != before and batch is not None:
            starts[row] = batch
        before = this
    return starts


def _phase(sequences: int, tokens: int) -> Batch | None:
    if not 0 < sequences <= tokens < 10**12:
        return None
    group = Group(sequences, tokens)
    decode = Batch(said.DECODE, generation=group)
    return decode if tokens == sequences else Batch(said.PREFILL, group)


def _sizes(trace: Trace, row: int) -> list[list[int]]:
    """The sizes of each argument; empty for what is no tensor."""
    dims = (each if isinstance(each, list) else [] for each in _parsed(trace, "Input Dims", row))
    return [each if all(type(n) is int for n in each) else [] for each in dims]


def _parsed(trace: Trace, argument: str, row: int) -> list[object]:
    column = trace.arg(argument)
    code = int(column.at(np.array([row]))[0])
    value = json_value(column.texts[code]) if code != NONE and column.texts else None
    return value if isinstance(value, list) else []
