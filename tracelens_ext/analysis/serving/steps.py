"""The steps of a serving engine, and the GPU work that each launched.

A step is an annotation that an engine (`annotations.py`) or the user named; annotations within one
another on a thread are one step, which is as long as the outermost and holds what the most telling
of them says.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.analysis.group_search import last_before, outermost
from tracelens_ext.analysis.memoize import once_for_each
from tracelens_ext.analysis.patterns import UserPattern
from tracelens_ext.analysis.serving.annotations import (
    DECODE,
    DIFFUSION,
    MIXED,
    OTHER,
    PREFILL,
    Batch,
    parse_annotation,
)
from tracelens_ext.errors import UsageError
from tracelens_ext.trace import NONE, EventKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.trace import Int64Array, Trace
    from tracelens_ext.tree import CallTree

#: The order in which tables show phases; those of the user follow.
ORDER: Final = (PREFILL, DECODE, MIXED, DIFFUSION)
#: A phase and a regular expression for its annotations.
OwnPhase = tuple[str, str]


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of a trace by thread and start, k of them.

    Attributes:
        name: the annotation that says most of each.
        batch: what it says.
        thread: index into `Trace.threads`, (k,).
        start: ns since the trace's first event, (k,).
        end: likewise, (k,).
        of_gpu: the step in which each GPU event was launched, `NONE` for none, (g,).
        inferred: how they were found, where no annotation tells; empty otherwise.
    """

    name: list[str]
    batch: list[Batch]
    thread: Int64Array
    start: Int64Array
    end: Int64Array
    of_gpu: Int64Array
    inferred: str = ""
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
    """The phases that a user names, each `NAME=REGEX`.

    Raises:
        UsageError: a text has another form, or its expression is none.
    """
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

    A GPU event belongs to the step during which, on the step's thread, its launch began.

    Args:
        tree: the call tree.
        own: phases that the user names; they win over those of engines.
    """
    trace = tree.trace
    rows = trace.rows_of(EventKind.USER_ANNOTATION)
    batch_of = _batches(trace, np.unique(trace.name[rows]), own)
    rows = rows[np.isin(trace.name[rows], list(batch_of))]
    thread, start, end = trace.thread[rows].astype(np.int64), trace.ts[rows], trace.end_of(rows)
    order = np.lexsort((rows, -end, start, thread))
    rows, thread, start, end = rows[order], thread[order], start[order], end[order]
    step = np.cumsum(outermost(thread, end)) - 1
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
        (thread[first], start[first], end[first]),
    )


def steps_at(
    tree: CallTree,
    names: list[str],
    batches: list[Batch],
    where: tuple[Int64Array, Int64Array, Int64Array],
    inferred: str = "",
) -> Steps:
    """Steps at these places, with the GPU work that each launched.

    Args:
        tree: the call tree.
        names: of each step, k of them.
        batches: of each, k of them.
        where: thread, start and end of each, by thread and start, none within another, each (k,).
        inferred: how they were found.
    """
    trace, (thread, start, end) = tree.trace, where
    of_gpu = np.full(len(tree.linked), NONE, dtype=np.int64)
    if len(names):
        launch = tree.launch_of_gpu[tree.linked]
        at, moment = trace.thread[launch].astype(np.int64), trace.ts[launch]
        found = last_before(thread, start, at, moment + 1)
        of_gpu[tree.linked] = np.where((found != NONE) & (moment < end[found]), found, NONE)
    return Steps(names, batches, thread, start, end, of_gpu, inferred)


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
            found[code] = 4 * (phase is not None) + batch.detail, batch
    return found
