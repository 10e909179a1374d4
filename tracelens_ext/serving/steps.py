"""The steps of a serving engine, and the GPU work that each launched.

A step is an annotation that an engine (`annotations.py`) or the user named; annotations within one
another on a thread are one step, which is as long as the outermost and holds what the most telling
of them says.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.errors import UsageError
from tracelens_ext.serving.annotations import (
    DECODE,
    DIFFUSION,
    MIXED,
    OTHER,
    PREFILL,
    Batch,
    parse_annotation,
)
from tracelens_ext.trace import NONE, NS_PER_US, EventKind
from tracelens_ext.work.grouping import last_before, outermost
from tracelens_ext.work.memoize import once_for_each
from tracelens_ext.work.patterns import UserPattern

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.trace import BoolArray, Int64Array, Trace
    from tracelens_ext.tree import CallTree

#: The order in which tables show phases; those of the user follow.
ORDER: Final = (PREFILL, DECODE, MIXED, DIFFUSION)
_ON_GPU: Final = (
    "Steps are annotated on the GPU alone: work belongs to that during which it started."
)
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
    phases: list[str] = field(init=False)  #: the phases that occur, in the order of tables
    phase: Int64Array = field(init=False)  #: of each step, an index into those, (k,)

    def __post_init__(self) -> None:
        found = dict.fromkeys(batch.phase for batch in self.batch)
        phases = [*(p for p in ORDER if p in found), *(p for p in found if p not in ORDER)]
        place = {name: i for i, name in enumerate(phases)}
        phase = np.array([place[batch.phase] for batch in self.batch], dtype=np.int64)
        object.__setattr__(self, "phases", phases)
        object.__setattr__(self, "phase", phase)

    def __len__(self) -> int:
        return len(self.name)

    @property
    def phase_of_gpu(self) -> Int64Array:
        """The phase of each GPU event, an index into `labels`, (g,)."""
        of_step = np.append(self.phase, len(self.phases))
        result: Int64Array = of_step[self.of_gpu]
        return result

    @property
    def labels(self) -> list[str]:
        """What `phase_of_gpu` stands for."""
        return [*self.phases, OTHER]


def own_phases(texts: Sequence[str]) -> tuple[OwnPhase, ...]:
    """The phases that a user names, each `NAME=REGEX`."""
    found = []
    for text in texts:
        name, equals, pattern = text.partition("=")
        if not (name.strip() and equals and pattern):
            raise UsageError(f"--phase {text!r}: expected NAME=REGEX, such as 'draft=propose_'")
        if name.strip() == OTHER:
            raise UsageError(f"--phase {text!r}: {OTHER!r} is what lies outside of all steps")
        UserPattern(pattern, "--phase")
        found.append((name.strip(), pattern))
    return tuple(found)


@once_for_each
def find_steps(tree: CallTree, own: tuple[OwnPhase, ...] = ()) -> Steps:
    """The steps that annotations name, none where there is no such annotation.

    A GPU event belongs to the step during which, on the step's thread, its launch began; where only
    the GPU has annotations, to the one during which it started on its device. Phases of the user's
    `own` win over those of engines.
    """
    trace = tree.trace
    for kind in (EventKind.USER_ANNOTATION, EventKind.GPU_ANNOTATION):
        rows = trace.rows_of(kind)
        batch_of = _batches(trace, np.unique(trace.name[rows]), own)
        rows = rows[np.isin(trace.name[rows], list(batch_of))]
        if len(rows):
            break
    on_gpu = bool(len(rows)) and kind == EventKind.GPU_ANNOTATION
    thread, start, end = trace.thread[rows].astype(np.int64), trace.ts[rows], trace.end_of(rows)
    if on_gpu:  # of all streams of a device
        thread = trace.process_of_thread[thread].astype(np.int64)
    order = np.lexsort((rows, -end, start, thread))
    rows, thread, start, end = rows[order], thread[order], start[order], end[order]
    begins = outermost(thread, end)
    # Some are within the one before but for rounded times; each stream of a step on the GPU has an
    # annotation of its own.
    begins &= ~_goes_on(begins, thread, start, end, end - int(NS_PER_US))
    if on_gpu:
        name = trace.name[rows].astype(np.int64)
        key = thread * (len(trace.names) + 1) + name
        begins &= ~_goes_on(begins, key, start, end, np.zeros_like(end))
    step = np.cumsum(begins) - 1
    first = np.flatnonzero(np.diff(step, prepend=-1))
    best = first.tolist()
    codes, whose = trace.name[rows].tolist(), step.tolist()
    for at in np.flatnonzero(np.diff(step, prepend=-1) == 0).tolist():
        if batch_of[codes[at]][0] > batch_of[codes[best[whose[at]]]][0]:
            best[whose[at]] = at
    return steps_at(
        tree,
        [trace.names[codes[at]] for at in best],
        [batch_of[codes[at]][1] for at in best],
        (thread[first], start[first], np.maximum.reduceat(end, first) if len(first) else end),
        _ON_GPU if on_gpu else "",
        on_gpu=on_gpu,
    )


def _goes_on(
    begins: BoolArray,
    key: Int64Array,
    start: Int64Array,
    end: Int64Array,
    least: Int64Array,
) -> BoolArray:
    """Which ranges that begin a step overlap the one before of their key, which ends so late."""
    at = np.flatnonzero(begins)
    before, this = at[:-1], at[1:]
    result: BoolArray = np.zeros(len(begins), dtype=bool)
    overlaps = (key[this] == key[before]) & (start[this] < end[before])
    result[this] = overlaps & (least[this] <= end[before])
    return result


def steps_at(
    tree: CallTree,
    names: list[str],
    batches: list[Batch],
    where: tuple[Int64Array, Int64Array, Int64Array],
    note: str = "",
    *,
    on_gpu: bool = False,
) -> Steps:
    """Steps at these places, with the GPU work that each launched; k names and batches.

    `where` is thread, start and end of each, by thread and start, none within another, each (k,).
    With `on_gpu` they are times of devices, whose numbers among processes stand for threads.
    """
    trace, (thread, start, end) = tree.trace, where
    of_gpu = np.full(len(tree.linked), NONE, dtype=np.int64)
    if len(names):
        asked = np.ones(len(of_gpu), dtype=bool) if on_gpu else tree.linked
        rows = trace.gpu_rows if on_gpu else tree.launch_of_gpu[asked]
        at = trace.thread[rows].astype(np.int64)
        at = trace.process_of_thread[at].astype(np.int64) if on_gpu else at
        found = last_before(thread, start, at, trace.ts[rows] + 1)
        of_gpu[asked] = np.where((found != NONE) & (trace.ts[rows] < end[found]), found, NONE)
    return Steps(names, batches, thread, start, end, of_gpu, note)


def _batches(
    trace: Trace, codes: Int64Array, own: tuple[OwnPhase, ...]
) -> dict[int, tuple[int, Batch]]:
    """How much each name of a step tells, and what; those of the user tell most."""
    patterns = [(phase, UserPattern(pattern, "--phase")) for phase, pattern in own]
    found: dict[int, tuple[int, Batch]] = {}
    for code in codes.tolist():
        name = trace.names[code]
        batch = parse_annotation(name)
        phase = next((phase for phase, pattern in patterns if pattern.search(name)), None)
        if phase is not None:
            batch = replace(batch or Batch(phase), phase=phase)
        if batch is not None:
            found[code] = 8 * (phase is not None) + batch.detail, batch
    return found
