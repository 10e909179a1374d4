"""Changes that users name, such as `GEMM=0.5` or `host:aten::linear=0`, as changed programs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np

from tracelens_ext.categorize.user_patterns import UserPattern
from tracelens_ext.compatibility.earlier_names import new_finding_id
from tracelens_ext.errors import UsageError
from tracelens_ext.simulation.dependency_graph import DependencyGraph
from tracelens_ext.simulation.replay import Change, Scaled
from tracelens_ext.trace import (
    HOST_KINDS,
    NONE,
    BoolArray,
    EventKind,
    Int64Array,
    IntArray,
    Trace,
)
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.intervals import begins_run, union
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.nesting import ROOT, nearest_marked

_TERM: Final = re.compile(r"(.+?)=([0-9]{0,9}\.?[0-9]{1,9})(?:,|$)")
_FINDING: Final = "finding:"
_WAITS: Final = "waits"
#: What a change may name beside categories.
_NAMES_OF_CHANGES: Final = [
    "kernels",
    "copies",
    "communication",
    "launch",
    "gaps",
    "host",
    _WAITS,
]


@dataclass(frozen=True)
class Named:
    """Changes that are made together."""

    text: str  #: as a table shows them: a single one without its factor
    terms: tuple[tuple[str, float], ...]  #: what is multiplied, and by what

    @property
    def factor(self) -> float | None:
        """What is multiplied by; None if several things are."""
        if len(self.terms) > 1:
            return None
        _, factor = self.terms[0]
        return factor


def parse_change(text: str) -> Named:
    """Return a change as `--change` takes it."""
    terms = []
    position = 0
    while position < len(text):
        match = _TERM.match(text, position)
        if match is None:
            break
        terms.append((match[1], float(match[2])))
        position = match.end()
    if not terms or position < len(text):
        raise UsageError(
            f"--change {text!r}: expected NAME=FACTOR, such as GEMM=0.5, separated by "
            "commas"
        )
    for name, factor in terms:
        if name.startswith(_FINDING) and factor:
            raise UsageError(
                f"--change {name}: a finding can only be removed as a whole; write "
                f"{name}=0"
            )
        if name == _WAITS and factor:
            raise UsageError(
                "--change waits: the CPU waits for the GPU, or it does not: waits=0"
            )
    label = text
    if len(terms) == 1:
        label = terms[0][0]
    return Named(label, tuple(terms))


@dataclass(frozen=True, eq=False)
class Removed:
    """What becomes shorter, or no longer waits, if a finding is fixed."""

    shorter: Int64Array  #: by how much each node becomes shorter, ns, (n,)
    #: nodes that run beside the rest instead, on their stream, (n,); None for none
    beside: BoolArray | None
    #: the intervals of each clock that disappear
    host: Sequence[tuple[Int64Array, Int64Array]]
    host_factor: float = 0.0  #: what is left of those times
    #: by how much each node starts sooner after its call, ns, (n,)
    sooner: Int64Array | int = 0
    #: by how much each block returns sooner after what it waits for, ns, (b,)
    tail: Int64Array | int = 0
    #: by how much each node stands still for less, ns, (n,)
    standstill: Int64Array | int = 0
    #: by how much the gap before each node is shorter, ns, (n,)
    shorter_gap: Int64Array | int = 0
    #: blocks that do not wait, so that the CPU runs ahead, (b,); None for none
    freed: BoolArray | None = None
    #: blocks that need not wait, which is what the finding is about, (b,); None for none
    freed_blocks: BoolArray | None = None


@dataclass(eq=False)
class Changes:
    """What the names of changes stand for in a program."""

    program: DependencyGraph  #: its nodes and clocks
    #: what fixing each finding removes, by its id
    claims: Mapping[str, Removed] = field(default_factory=dict)

    @property
    def _work(self) -> GpuEvents:
        return self.program.work

    def _nodes_of(self, events: BoolArray) -> BoolArray:
        """The nodes of some GPU events, (n,)."""
        return values_at(events, self.program.event, missing=False)

    @cached_property
    def is_copy(self) -> BoolArray:
        """True for a copy or a memset, (n,)."""
        is_memset = self._work.kind == EventKind.MEMSET
        return self._nodes_of(self._work.is_copy | is_memset)

    @cached_property
    def category(self) -> tuple[IntArray, list[str]]:
        """The category of each node, an index into the labels, `NONE` for none, (n,)."""
        categories = self._work.categories
        if categories is None:
            return np.full(len(self.program.event), NONE), []
        code_of_node = values_at(categories.code, self.program.event)
        return code_of_node, categories.labels

    @property
    def _categories(self) -> list[str]:
        code, labels = self.category
        used_codes = np.unique(code[code != NONE]).tolist()
        return [labels[used] for used in used_codes]

    def default(self) -> list[Named]:
        """Return what is tried unless something is asked for."""
        changes: list[Named] = []
        for category in self._categories:
            changes.append(_single_change(category, 0.5))
            changes.append(_single_change(category, 0.0))
        names = ["kernels", "copies", "launch", "host"]
        if len(self.program.block_start):
            names.append(_WAITS)
        names.extend(_FINDING + ident for ident in self.claims)
        changes.extend(_single_change(name, 0.0) for name in names)
        return changes

    def change(self, named: Named) -> Change:
        """Return the program with the durations, gaps and waits that a change gives it."""
        changed = _ChangedProgram(self.program)
        for name, factor in named.terms:
            if name == "gaps":
                changed.gap *= factor
            elif name == _WAITS:
                changed.free(np.ones(len(self.program.block_start), dtype=bool))
            elif name.startswith(_FINDING):
                changed.remove(self._claim(name.removeprefix(_FINDING)))
            elif name in {"host", "launch"} or name.startswith("host:"):
                changed.scale_host(self.host_intervals(name), factor)
            else:
                changed.scale_nodes(self._nodes(name), factor)
        # What runs beside the rest still takes as long as its own stream.
        least = 0
        for nodes in changed.beside:
            if nodes.any():
                own_ns = np.where(nodes, changed.own_duration - self.program.waiting, 0)
                least = max(least, self._longest_stream(own_ns))
        duration = None
        if changed.duration is not self.program.duration:
            duration = changed.duration
        return Change(
            duration=duration,
            host=changed.scaled,
            gap=changed.gap,
            at_least=least,
            sooner=changed.sooner,
            tail=changed.tail,
            standstill=changed.standstill,
            shorter_gap=changed.shorter_gap,
            freed=changed.freed,
        )

    def _claim(self, ident: str) -> Removed:
        """Return what goes with a finding."""
        current = new_finding_id(ident)
        if current not in self.claims:
            raise _unknown("finding", ident, list(self.claims))
        return self.claims[current]

    def _longest_stream(self, work_ns: Int64Array) -> int:
        """How long the stream with the most of some work takes, if nothing else runs, ns.

        Work that overlaps the work before it on its stream, as recorded, may do so here: what is
        left beside the rest never takes longer than the replay in which nothing was removed.
        """
        program = self.program
        real = program.event != NONE
        overlap = np.where(real, np.minimum(program.gap, 0), 0)
        # With c the time that all work up to a node takes: the node ends at c less the least c at
        # which any node so far began.
        ended = np.cumsum(work_ns + overlap)
        began = ended - work_ns
        longest = 0
        first_of_stream = np.flatnonzero(begins_run(program.track))
        limits = np.append(first_of_stream, len(work_ns)).tolist()
        for first, stop in pairwise(limits):
            reach = ended[first:stop] - np.minimum.accumulate(began[first:stop])
            longest = max(longest, int(reach.max()))
        return longest

    def _nodes(self, name: str) -> BoolArray:
        """The nodes that a name stands for."""
        prefix, _, label = name.partition(":")
        kernels: BoolArray = (self.program.event != NONE) & ~self.is_copy
        if name == "kernels":
            return kernels
        if name == "copies":
            return self.is_copy
        if name == "communication":
            return self._nodes_of(self._work.is_communication)
        if prefix == "op" and label:
            return self._launched_in(label) & kernels
        if prefix == "kernel" and label:
            matching = self._nodes_of(self._events_named(label)) & kernels
            if not matching.any():
                raise UsageError(f"--change {name}: no kernel name matches")
            return matching
        return self._nodes_of_category(name)

    def _nodes_of_category(self, name: str) -> BoolArray:
        """The nodes of a category, whose name may differ in case."""
        code, labels = self.category
        wanted = name.casefold()
        for category in self._categories:
            if category.casefold() != wanted:
                continue
            is_chosen: BoolArray = code == labels.index(category)
            return is_chosen
        raise _unknown("category", name, self._categories + _NAMES_OF_CHANGES)

    def _events_named(self, pattern: str) -> BoolArray:
        """The GPU events whose names match a pattern, (g,)."""
        search = UserPattern(pattern, "--change kernel:").search
        return self._work.trace.names_matching(search)[self._work.name]

    def _launched_in(self, name: str) -> BoolArray:
        """The nodes launched in operations of a name, at any depth."""
        tree = self._work.tree
        trace = self._work.trace
        has_name = trace.named(trace.name[tree.rows], name.__eq__)
        is_chosen = tree.is_operation & has_name
        if not is_chosen.any():
            operations = tree.rows[tree.is_operation]
            raise _unknown("operation", name, _distinct_names(trace, operations))
        nearest = nearest_marked(tree.parent_position, is_chosen)
        is_inside = is_chosen | (nearest != ROOT)
        launch = tree.launch_position_of_gpu
        return self._nodes_of(values_at(is_inside, launch, missing=False))

    def host_intervals(self, name: str) -> list[tuple[Int64Array, Int64Array]]:
        """Return times of the host that a name stands for, by clock, since the window's start."""
        program = self.program
        trace = self._work.trace
        window_start, window_end = program.window
        length = window_end - window_start
        if name == "host":
            return [(np.array([0]), np.array([length]))] * len(program.clocks.end)
        if name == "launch":
            is_called = (program.call != NONE) & (program.launch != NONE)
            rows = np.unique(program.launch[is_called])
        else:
            rows = self._host_rows(name.partition(":")[2])
        clock = program.clocks.of_thread[trace.thread[rows]]
        start = np.clip(trace.ts[rows] - window_start, 0, length)
        end = np.clip(trace.end[rows] - window_start, 0, length)
        result: list[tuple[Int64Array, Int64Array]] = []
        for number in range(len(program.clocks.end)):
            is_of_clock = clock == number
            result.append(union(start[is_of_clock], end[is_of_clock]))
        return result

    def _host_rows(self, name: str) -> Int64Array:
        """Return the host events of a name."""
        trace = self._work.trace
        host_rows = trace.rows_of(*HOST_KINDS)
        rows: Int64Array = host_rows[trace.named(trace.name[host_rows], name.__eq__)]
        if not len(rows):
            raise _unknown("host event", name, _distinct_names(trace, host_rows))
        return rows


class _ChangedProgram:
    """The durations of a program while changes are made."""

    def __init__(self, program: DependencyGraph) -> None:
        self.waiting = program.waiting
        self.gap = 1.0  #: what gaps are multiplied by
        self.duration = program.duration  #: of each node, ns
        #: of each node without what runs beside the rest, ns
        self.own_duration = program.duration
        #: for each finding the nodes that run beside the rest
        self.beside: list[BoolArray] = []
        self.sooner: Int64Array | int = 0  #: by how much each node starts sooner
        self.tail: Int64Array | int = 0  #: by how much each block returns sooner
        #: by how much each node stands still for less
        self.standstill: Int64Array | int = 0
        #: by how much the gap before each node is shorter
        self.shorter_gap: Int64Array | int = 0
        self.freed: BoolArray | None = None  #: blocks that do not wait
        self.scaled: list[list[Scaled]] = [[] for _ in program.clocks.end]  #: by clock

    def remove(self, removed: Removed) -> None:
        """Remove what goes with a finding."""
        self.duration = np.maximum(self.duration - removed.shorter, 0)
        if removed.beside is not None:
            own_shorter = np.where(removed.beside, 0, removed.shorter)
            self.own_duration = np.maximum(self.own_duration - own_shorter, 0)
            self.beside.append(removed.beside)
        elif self.beside:
            self.own_duration = np.maximum(self.own_duration - removed.shorter, 0)
        else:
            self.own_duration = self.duration
        self.sooner = self.sooner + removed.sooner
        self.tail = self.tail + removed.tail
        self.standstill = self.standstill + removed.standstill
        self.shorter_gap = self.shorter_gap + removed.shorter_gap
        if removed.freed is not None:
            self.free(removed.freed)
        self.scale_host(removed.host, removed.host_factor)

    def free(self, blocks: BoolArray) -> None:
        """Let some blocks return without waiting."""
        if self.freed is None:
            self.freed = blocks
        else:
            self.freed = self.freed | blocks

    def scale_host(
        self, times: Sequence[tuple[Int64Array, Int64Array]], factor: float
    ) -> None:
        """Multiply times of the host, which are given by clock."""
        for scaled, (start, end) in zip(self.scaled, times, strict=True):
            if len(start):
                scaled.append(Scaled(start=start, end=end, factor=factor))

    def scale_nodes(self, nodes: BoolArray, factor: float) -> None:
        """Multiply the work of some nodes; their waiting for other ranks stays."""
        self.duration = self._scaled_nodes(self.duration, nodes, factor)
        self.own_duration = self._scaled_nodes(self.own_duration, nodes, factor)

    def _scaled_nodes(
        self, duration: Int64Array, nodes: BoolArray, factor: float
    ) -> Int64Array:
        work_ns = duration - self.waiting
        scaled_work_ns = np.rint(work_ns * factor).astype(np.int64)
        scaled_duration = self.waiting + scaled_work_ns
        return np.where(nodes, scaled_duration, duration)


def _single_change(name: str, factor: float) -> Named:
    return Named(name, ((name, factor),))


def _distinct_names(trace: Trace, rows: IntArray) -> list[str]:
    codes = np.unique(trace.name[rows]).tolist()
    return [trace.names[code] for code in codes]


def _unknown(what: str, name: str, names: Sequence[str]) -> UsageError:
    """Return the error for a name that nothing in the trace has, with similar ones."""
    message = f"--change: the trace has no {what} {name!r}"
    similar = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or names[:20]
    if similar:
        message += f"; it has {', '.join(similar)}"
    return UsageError(message)
