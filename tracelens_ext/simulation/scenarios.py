"""Changes that users name, such as `GEMM=0.5` or `host:aten::linear=0`, as changed programs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np

from tracelens_ext.categorize.user_patterns import UserPattern
from tracelens_ext.errors import UsageError
from tracelens_ext.simulation.dependency_graph import DependencyGraph
from tracelens_ext.simulation.replay import Change, Curve, Scaled, host_curve, run_starts
from tracelens_ext.trace import HOST_KINDS, NONE, BoolArray, EventKind, Int64Array, IntArray
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.intervals import union
from tracelens_ext.trace.nesting import ROOT, nearest_marked

_TERM: Final = re.compile(r"(.+?)=([0-9]{0,9}\.?[0-9]{1,9})(?:,|$)")
_FINDING: Final = "finding:"
_MOST_KNOWN: Final = 32


@dataclass(frozen=True)
class Named:
    """Changes that are made together."""

    text: str  #: as a table shows them: a single one without its factor
    terms: tuple[tuple[str, float], ...]  #: what is multiplied, and by what


def parse_change(text: str) -> Named:
    """A change as `--change` takes it."""
    terms = []
    at = 0
    while at < len(text) and (found := _TERM.match(text, at)):
        terms.append((found[1], float(found[2])))
        at = found.end()
    if not terms or at < len(text):
        raise UsageError(
            f"--change {text!r}: expected NAME=FACTOR, such as GEMM=0.5, several joined by commas"
        )
    if wrong := [name for name, factor in terms if name.startswith(_FINDING) and factor]:
        raise UsageError(f"--change {wrong[0]}: a finding's claim goes as a whole: {wrong[0]}=0")
    return Named(terms[0][0] if len(terms) == 1 else text, tuple(terms))


@dataclass(frozen=True, eq=False)
class Removed:
    """What a finding claims, as it goes."""

    shorter: Int64Array  #: by how much each node becomes shorter, ns, (n,)
    beside: BoolArray  #: nodes that run beside the rest instead, on their stream, (n,)
    host: Sequence[tuple[Int64Array, Int64Array]]  #: times of each clock that go
    sooner: Int64Array | int = 0  #: by how much each node starts sooner after its call, ns, (n,)
    tail: Int64Array | int = 0  #: by how much each block returns sooner, ns, (b,)
    standstill: Int64Array | int = 0  #: by how much each node stands still for less, ns, (n,)


@dataclass(eq=False)
class Changes:
    """What the names of changes stand for in a program."""

    program: DependencyGraph  #: its nodes and clocks
    #: what goes with each finding, by its id
    claims: Mapping[str, Removed] = field(default_factory=dict)
    #: what `_curves` has found, with the intervals, so that no other has their identity
    known: dict[Hashable, tuple[object, Sequence[Curve]]] = field(default_factory=dict)

    @property
    def _work(self) -> GpuEvents:
        return self.program.work

    def _nodes_of(self, events: BoolArray) -> BoolArray:
        """The nodes of some GPU events, (n,)."""
        return np.append(events, False)[self.program.event]

    @cached_property
    def is_copy(self) -> BoolArray:
        """Whether each node is a copy or a memset, (n,)."""
        return self._nodes_of(self._work.is_copy | (self._work.kind == EventKind.MEMSET))

    @cached_property
    def category(self) -> tuple[IntArray, list[str]]:
        """The category of each node, an index into the labels, `NONE` for none, (n,)."""
        found = self._work.categories
        if found is None:
            return np.full(len(self.program.event), NONE), []
        return np.append(found.code, NONE)[self.program.event], found.labels

    @property
    def _categories(self) -> list[str]:
        code, labels = self.category
        return [labels[i] for i in np.unique(code[code != NONE]).tolist()]

    def default(self) -> list[Named]:
        """What is tried unless something is asked for."""
        terms = [(name, factor) for name in self._categories for factor in (0.5, 0.0)]
        terms += [(name, 0.0) for name in ("kernels", "copies", "launch", "host")]
        terms += [(_FINDING + name, 0.0) for name in self.claims]
        return [Named(name, ((name, factor),)) for name, factor in terms]

    def change(self, named: Named) -> Change:
        """The changed durations."""
        program = self.program
        gap = 1.0
        duration = program.duration
        #: without what runs beside the rest
        own_duration = program.duration
        beside: list[BoolArray] = []
        waiting = program.waiting
        sooner: Int64Array | int = 0
        tail: Int64Array | int = 0
        standstill: Int64Array | int = 0
        scaled: list[list[Scaled]] = [[] for _ in program.clocks.end]
        for name, factor in named.terms:
            if name == "gaps":
                gap *= factor
            elif name.startswith(_FINDING):
                if (claim := name.removeprefix(_FINDING)) not in self.claims:
                    raise _unknown("finding", claim, list(self.claims))
                gone = self.claims[claim]
                duration = np.maximum(duration - gone.shorter, 0)
                shorter = np.where(gone.beside, 0, gone.shorter)
                own_duration = np.maximum(own_duration - shorter, 0)
                beside.append(gone.beside)
                sooner = sooner + gone.sooner
                tail = tail + gone.tail
                standstill = standstill + gone.standstill
                for clock, (start, end) in enumerate(gone.host):
                    scaled[clock].append((start, end, 0.0))
            elif name in {"host", "launch"} or name.startswith("host:"):
                for clock, (start, end) in enumerate(self.host_intervals(name)):
                    scaled[clock].append((start, end, factor))
            else:
                chosen = self._nodes(name)
                works = np.rint((duration - waiting) * factor).astype(np.int64)
                duration = np.where(chosen, waiting + works, duration)
                works = np.rint((own_duration - waiting) * factor).astype(np.int64)
                own_duration = np.where(chosen, waiting + works, own_duration)
        host = self._curves([[each for each in of_clock if len(each[0])] for of_clock in scaled])
        same = duration is program.duration
        least = 0
        for nodes in beside:
            if nodes.any():
                own_ns = np.where(nodes, own_duration - waiting, 0)
                least = max(least, self._longest_stream(own_ns))
        changed = None if same else duration
        return Change(changed, host, gap, least, sooner, tail, standstill)

    def _longest_stream(self, work_ns: Int64Array) -> int:
        """How long the stream with the most of some work takes, if nothing else runs, ns.

        Work that overlaps the work before it on its stream, as recorded, may do so here: what is
        left beside the rest never takes longer than the replay in which nothing was removed.
        """
        program = self.program
        real = program.event != NONE
        overlap = np.where(real, np.minimum(program.constant("gap"), 0), 0)
        # With c the time that all work up to a node takes: the node ends at c less the least c at
        # which any node so far began.
        ended = np.cumsum(work_ns + overlap)
        began = ended - work_ns
        longest = 0
        for start, stop in pairwise([*run_starts(program.track).tolist(), len(work_ns)]):
            reach = ended[start:stop] - np.minimum.accumulate(began[start:stop])
            longest = max(longest, int(reach.max()))
        return longest

    def _curves(self, scaled: Sequence[Sequence[Scaled]]) -> Sequence[Curve]:
        """The time of each clock of which intervals are scaled, found once for the same ones."""
        key = tuple(tuple((id(of[0]), id(of[1]), of[2]) for of in each) for each in scaled)
        if key not in self.known:
            if len(self.known) >= _MOST_KNOWN:  # what `--change` names has new intervals each time
                self.known.clear()
            curves = [host_curve(each, self.program.frozen) for each in scaled]
            self.known[key] = scaled, curves if any(scaled) else []
        return self.known[key][1]

    def _nodes(self, name: str) -> BoolArray:
        """The nodes that a name stands for."""
        trace = self._work.trace
        (prefix, _, rest) = name.partition(":")
        kernels: BoolArray = (self.program.event != NONE) & ~self.is_copy
        if name == "kernels":
            return kernels
        if name == "copies":
            return self.is_copy
        if name == "communication":
            return self._nodes_of(self._work.is_communication)
        if prefix == "op" and rest:
            return self._inside(rest) & kernels
        if prefix == "kernel" and rest:
            matching = trace.names_matching(UserPattern(rest, "--change kernel:").search)
            if not (found := self._nodes_of(matching[self._work.name]) & kernels).any():
                raise UsageError(f"--change {name}: no kernel's name matches")
            return found
        code, labels = self.category
        same = [each for each in self._categories if each.casefold() == name.casefold()]
        if not same:
            others = ("kernels", "copies", "communication", "launch", "gaps", "host")
            raise _unknown("category", name, [*self._categories, *others])
        return np.isin(code, labels.index(same[0]))

    def _inside(self, name: str) -> BoolArray:
        """The nodes launched in operations of a name, at any depth."""
        tree = self._work.tree
        trace = self._work.trace
        marked = tree.is_operation & trace.named(trace.name[tree.rows], name.__eq__)
        if not marked.any():
            there = np.unique(trace.name[tree.rows[tree.is_operation]]).tolist()
            raise _unknown("operation", name, [trace.names[i] for i in there])
        inside = marked | (nearest_marked(tree.parent_position, marked) != ROOT)
        return self._nodes_of(np.append(inside, False)[tree.launch_position_of_gpu])

    def host_intervals(self, name: str) -> list[tuple[Int64Array, Int64Array]]:
        """Times of the host that a name stands for, by clock, since the window's start."""
        program = self.program
        trace = self._work.trace
        length = program.window[1] - program.window[0]
        if name == "host":
            return [(np.array([0]), np.array([length]))] * len(program.clocks.end)
        rows = np.unique(program.launch[(program.call != NONE) & (program.launch != NONE)])
        if name != "launch":
            there = trace.rows_of(*HOST_KINDS)
            wanted = name.partition(":")[2]
            rows = there[trace.named(trace.name[there], wanted.__eq__)]
            if not len(rows):
                names = [trace.names[i] for i in np.unique(trace.name[there]).tolist()]
                raise _unknown("host event", wanted, names)
        clock = program.clocks.of_thread[trace.thread[rows]]
        start, end = (
            np.clip(time[rows] - program.window[0], 0, length) for time in (trace.ts, trace.end)
        )
        return [union(start[clock == c], end[clock == c]) for c in range(len(program.clocks.end))]


def _unknown(what: str, name: str, there: Sequence[str]) -> UsageError:
    near = difflib.get_close_matches(name, there, n=3, cutoff=0.5) or there[:20]
    has = f"; it has {', '.join(near)}" if near else ""
    return UsageError(f"--change: the trace has no {what} {name!r}{has}")
