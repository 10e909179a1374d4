"""Changes that users name, such as `GEMM=0.5` or `host:aten::linear=0`, as changed programs."""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.errors import UsageError
from tracelens_ext.intervals import union
from tracelens_ext.nesting import ROOT, nearest_marked
from tracelens_ext.replay.host import HostTime
from tracelens_ext.replay.replay import Change
from tracelens_ext.trace import HOST_KINDS, NONE, EventKind
from tracelens_ext.work.patterns import UserPattern

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens_ext.replay.host import Scaled
    from tracelens_ext.replay.program import Program
    from tracelens_ext.trace import BoolArray, Int64Array
    from tracelens_ext.work.gpu_work import GpuWork

_TERM: Final = re.compile(r"(.+?)=([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)(?:,|$)")
_FINDING: Final = "finding:"
_PLAIN: Final = ("kernels", "copies", "communication", "launch", "gaps", "host")
_PREFIXED: Final = ("kernel:REGEX", "op:NAME", "host:NAME", "finding:ID")


@dataclass(frozen=True)
class Named:
    """Changes that are made together.

    Attributes:
        text: as given, or as a table shows it: without the factor if it is only one.
        terms: what is multiplied, and by what.
    """

    text: str
    terms: tuple[tuple[str, float], ...]

    @property
    def factor(self) -> float | None:
        """The factor of the only change."""
        return self.terms[0][1] if len(self.terms) == 1 else None


def parse_change(text: str) -> Named:
    """A change as `--change` takes it.

    Raises:
        UsageError: it has another form.
    """
    terms, at = [], 0
    while at < len(text) and (found := _TERM.match(text, at)):
        terms.append((found[1], float(found[2])))
        at = found.end()
    if not terms or at < len(text) or not all(math.isfinite(f) for _, f in terms):
        raise UsageError(
            f"--change {text!r}: expected NAME=FACTOR, such as GEMM=0.5, several joined by commas"
        )
    if wrong := [name for name, f in terms if name.startswith(_FINDING) and f]:
        raise UsageError(f"--change {wrong[0]}: a finding's claim goes as a whole: {wrong[0]}=0")
    return Named(terms[0][0] if len(terms) == 1 else text, tuple(terms))


@dataclass(frozen=True, eq=False)
class Removed:
    """What a finding claims, as it goes."""

    shorter: Int64Array  #: by how much each node becomes shorter, ns, (n,)
    on_link: Int64Array  #: work of each stream that runs beside the rest instead, ns
    host: Sequence[tuple[Int64Array, Int64Array]]  #: times of each clock that go


@dataclass(eq=False)
class Changes:
    """What the names of changes stand for in a program.

    Attributes:
        work: the GPU events.
        program: their nodes.
        claims: what goes with each finding, by its id.
    """

    work: GpuWork
    program: Program
    claims: Mapping[str, Removed] = field(default_factory=dict)

    @cached_property
    def _event(self) -> Int64Array:
        return np.maximum(self.program.event, 0)

    @cached_property
    def is_copy(self) -> BoolArray:
        """Whether each node is a copy or a memset, (n,)."""
        work = self.work
        copies = work.is_copy | (work.kind == EventKind.MEMSET)
        return self._of_events(copies)

    @cached_property
    def category(self) -> tuple[Int64Array, list[str]]:
        """The category of each node, an index into the labels, `NONE` for none, (n,)."""
        categories = self.work.categories
        if categories is None or not len(self.work):
            return np.full(len(self.program.event), NONE), []
        code = np.where(self.program.event == NONE, NONE, categories.code[self._event])
        return code, categories.labels

    def default(self) -> list[Named]:
        """What is tried unless something is asked for."""
        code, labels = self.category
        there = [labels[i] for i in np.unique(code[code != NONE]).tolist()]
        names = [(name, factor) for name in there for factor in (0.5, 0.0)]
        names += [(name, 0.0) for name in ("kernels", "copies", "launch", "host")]
        names += [(_FINDING + name, 0.0) for name in self.claims]
        return [Named(name, ((name, factor),)) for name, factor in names]

    def change(self, named: Named) -> Change:
        """The changed durations.

        Raises:
            UsageError: a name is of nothing that the trace has.
        """
        program, gap, on_link = self.program, 1.0, np.zeros(1, dtype=np.int64)
        duration = program.duration
        host: list[list[Scaled]] = [[] for _ in program.clocks.end]
        for name, factor in named.terms:
            if factor == 1:
                self._check(name)
            elif name == "gaps":
                gap *= factor
            elif name.startswith(_FINDING):
                gone = self.claims[self._known_finding(name)]
                duration = np.maximum(duration - gone.shorter, 0)
                on_link = on_link + gone.on_link
                for clock, (start, end) in enumerate(gone.host):
                    host[clock] += [(start, end, 0.0)] if len(start) else []
            elif name in {"host", "launch"} or name.startswith("host:"):
                for clock, (start, end) in enumerate(self.host_intervals(name)):
                    host[clock].append((start, end, factor))
            else:
                waiting = program.waiting
                changed = waiting + np.rint((duration - waiting) * factor).astype(np.int64)
                duration = np.where(self._nodes(name), changed, duration)
        some = any(host)
        return Change(
            None if duration is program.duration else duration,
            HostTime(host, program.frozen) if some else None,
            gap,
            int(on_link.max()),
        )

    def _check(self, name: str) -> None:
        if name.startswith(_FINDING):
            self._known_finding(name)
        elif name.startswith("host:"):
            self.host_intervals(name)
        elif name not in {"gaps", "host", "launch"}:
            self._nodes(name)

    def _known_finding(self, name: str) -> str:
        wanted = name.removeprefix(_FINDING)
        if wanted not in self.claims:
            raise _unknown("finding", wanted, list(self.claims))
        return wanted

    def _of_events(self, which: BoolArray) -> BoolArray:
        result = self.program.event != NONE
        result[result] = which[self.program.event[result]]
        return result

    def _nodes(self, name: str) -> BoolArray:
        """The nodes that a name stands for."""
        work, trace = self.work, self.work.trace
        kernels = (self.program.event != NONE) & ~self.is_copy
        if name == "kernels":
            return kernels
        if name == "copies":
            return self.is_copy
        if name == "communication":
            return self._of_events(work.is_communication)
        if name.startswith("kernel:"):
            pattern = UserPattern(name.removeprefix("kernel:"), "--change kernel:")
            found = self._of_events(trace.names_matching(pattern.search)[work.name]) & kernels
            if not found.any():
                raise UsageError(f"--change {name}: no kernel's name matches")
            return found
        if name.startswith("op:"):
            return self._inside(name.removeprefix("op:")) & kernels
        code, labels = self.category
        there = [labels[i] for i in np.unique(code[code != NONE]).tolist()]
        same = [label for label in there if label.casefold() == name.casefold()]
        if not same:
            raise _unknown("category", name, [*there, *_PLAIN, *_PREFIXED])
        result: BoolArray = code == labels.index(same[0])
        return result

    def _inside(self, name: str) -> BoolArray:
        """The nodes launched in operations of a name, at any depth."""
        tree, trace = self.work.tree, self.work.trace
        marked = trace.names_matching(lambda each: each == name)[trace.name[tree.rows]]
        marked &= tree.is_operation
        if not marked.any():
            operations = np.unique(trace.name[tree.rows[tree.is_operation]]).tolist()
            raise _unknown("operation", name, [trace.names[i] for i in operations])
        inside = marked | (nearest_marked(tree.parent_position, marked) != ROOT)
        launch = tree.launch_position_of_gpu
        return self._of_events((launch != NONE) & inside[np.maximum(launch, 0)])

    def host_intervals(self, name: str) -> list[tuple[Int64Array, Int64Array]]:
        """Times of the host that a name stands for, by clock, since the window's start."""
        program, trace = self.program, self.work.trace
        origin, length = program.window[0], program.window[1] - program.window[0]
        if name == "host":
            whole = np.array([0]), np.array([length])
            return [whole for _ in program.clocks.end]
        if name == "launch":
            rows = np.unique(self.work.tree.launch_of_gpu[program.event[program.call != NONE]])
            rows = rows[rows != NONE]
        else:
            wanted = name.removeprefix("host:")
            matching = trace.names_matching(lambda each: each == wanted)
            rows = trace.rows_of(*HOST_KINDS)
            rows = rows[matching[trace.name[rows]]]
            if not len(rows):
                names = np.unique(trace.name[trace.rows_of(*HOST_KINDS)]).tolist()
                raise _unknown("host event", wanted, [trace.names[i] for i in names])
        clock = program.clocks.of_thread[trace.thread[rows]]
        start = np.clip(trace.ts[rows] - origin, 0, length)
        end = np.clip(trace.end_of(rows) - origin, 0, length)
        return [union(start[clock == c], end[clock == c]) for c in range(len(program.clocks.end))]


def _unknown(what: str, name: str, there: Sequence[str]) -> UsageError:
    near = difflib.get_close_matches(name, there, n=3, cutoff=0.5) or list(there[:20])
    has = ", ".join(near) or "none"
    return UsageError(f"--change: the trace has no {what} {name!r}; it has {has}")
