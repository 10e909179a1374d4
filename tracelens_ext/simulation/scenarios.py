"""What-if scenarios: the changes that users write, such as `GEMM=0.5` or `host:aten::linear=0`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.categorize.user_patterns import UserPattern
from tracelens_ext.compatibility.earlier_names import new_finding_id
from tracelens_ext.errors import UsageError
from tracelens_ext.simulation.change import Change, DelaySavings, Scaled
from tracelens_ext.simulation.dependency_graph import DependencyGraph
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
from tracelens_ext.trace.integer_sorting import begins_run
from tracelens_ext.trace.intervals import DisjointIntervals, union
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.nesting import ROOT, nearest_marked

_TERM: Final = re.compile(r"(.+?)=([0-9]{0,9}\.?[0-9]{1,9})(?:,|$)")
_FINDING: Final = "finding:"
_WAITS: Final = "waits"

#: The names that a change may have besides those of categories.
_NAMES_OF_CHANGES: Final = [
    "kernels",
    "copies",
    "communication",
    "launch",
    "gaps",
    "host",
    _WAITS,
]


class Term(NamedTuple):
    """A part of a trace whose time is multiplied, such as `GEMM=0.5`."""

    name: str
    factor: float


@dataclass(frozen=True)
class NamedChange:
    """A change as users write it: one or more terms that apply together."""

    text: str  #: label in tables; without the factor if there is a single term
    terms: tuple[Term, ...]

    @property
    def factor(self) -> float | None:
        """The factor of a single term; None if there are several terms."""
        if len(self.terms) > 1:
            return None
        return self.terms[0].factor


def parse_change(text: str) -> NamedChange:
    """Parse the value of `--change`: NAME=FACTOR, or several of these separated by commas.

    Raises:
        UsageError: the text has another form, or a factor that its name does not allow.
    """
    terms = []
    position = 0
    while position < len(text):
        match = _TERM.match(text, position)
        if match is None:
            break
        terms.append(Term(name=match[1], factor=float(match[2])))
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
        label = terms[0].name
    return NamedChange(label, tuple(terms))


@dataclass(frozen=True, eq=False)
class Removed:
    """The time that disappears from a program if a finding is fixed."""

    shorter: Int64Array  #: by how much each node becomes shorter, ns, (n,)
    #: Nodes that then overlap all other work: they only hold up their own stream, (n,). None: no
    #: node does.
    overlapped: BoolArray | None
    #: the intervals of each clock that become shorter, ns since the window's start
    host_intervals: Sequence[DisjointIntervals]
    host_factor: float = 0.0  #: what the time of these intervals is multiplied by
    #: by how much delays become shorter
    delays: DelaySavings = field(default_factory=DelaySavings)
    #: blocks that no longer wait, so that the CPU runs ahead, (b,); None: no block
    nonblocking: BoolArray | None = None
    #: Blocks whose wait the finding is about, (b,); None: no block. They go on waiting here unless
    #: they are in `nonblocking`, too.
    avoidable_blocks: BoolArray | None = None


class NodeCategories(NamedTuple):
    """The categories of the n nodes of a program."""

    code: IntArray  #: index into `labels`, `NONE` for a node without a category, (n,)
    labels: list[str]


class Changes:
    """Turns changes that users write into changes of a program.

    Attributes:
        claims: what fixing each finding removes, by the id of the finding.
    """

    def __init__(self, program: DependencyGraph) -> None:
        self.program = program
        self.claims: Mapping[str, Removed] = {}

    @property
    def _gpu_events(self) -> GpuEvents:
        return self.program.gpu_events

    def _nodes_of(self, events: BoolArray) -> BoolArray:
        """Return which nodes belong to some GPU events, (n,)."""
        return values_at(events, self.program.event, missing=False)

    @cached_property
    def is_copy(self) -> BoolArray:
        """True for each node that is a copy or a memset, (n,)."""
        is_memset = self._gpu_events.kind == EventKind.MEMSET
        return self._nodes_of(self._gpu_events.is_copy | is_memset)

    @cached_property
    def categories(self) -> NodeCategories:
        """The category of each node."""
        categories = self._gpu_events.categories
        if categories is None:
            no_category = np.full(len(self.program.event), NONE)
            return NodeCategories(code=no_category, labels=[])
        code_of_node = values_at(categories.code, self.program.event)
        return NodeCategories(code=code_of_node, labels=categories.labels)

    @property
    def _used_categories(self) -> list[str]:
        """The labels of the categories that the program has nodes of."""
        code, labels = self.categories
        used_codes = np.unique(code[code != NONE]).tolist()
        return [labels[used_code] for used_code in used_codes]

    def default(self) -> list[NamedChange]:
        """Return the changes that are simulated if the user names none."""
        changes: list[NamedChange] = []
        for category in self._used_categories:
            changes.append(_single_change(category, 0.5))
            changes.append(_single_change(category, 0.0))
        names = ["kernels", "copies", "launch", "host"]
        if len(self.program.block_start):
            names.append(_WAITS)
        names.extend(_FINDING + ident for ident in self.claims)
        changes.extend(_single_change(name, 0.0) for name in names)
        return changes

    def change(self, named: NamedChange) -> Change:
        """Return what a change does to the program.

        Raises:
            UsageError: the trace has nothing of a name in the change.
        """
        changed = _ChangedProgram(self.program)
        for name, factor in named.terms:
            if name == "gaps":
                changed.gap_factor *= factor
            elif name == _WAITS:
                all_blocks = np.ones(len(self.program.block_start), dtype=bool)
                changed.let_run_ahead(all_blocks)
            elif name.startswith(_FINDING):
                changed.remove(self._removed_by(name.removeprefix(_FINDING)))
            elif name in {"host", "launch"} or name.startswith("host:"):
                changed.scale_host(self.host_intervals(name), factor)
            else:
                changed.scale_nodes(self._nodes(name), factor)
        duration = None
        if changed.duration is not self.program.duration:
            duration = changed.duration
        return Change(
            duration=duration,
            host=changed.scaled,
            gap_factor=changed.gap_factor,
            least_wall=self._least_wall(changed),
            delays=changed.delays,
            nonblocking=changed.nonblocking,
        )

    def _removed_by(self, finding_id: str) -> Removed:
        """Return what fixing a finding removes."""
        current_id = new_finding_id(finding_id)
        if current_id not in self.claims:
            raise _unknown("finding", finding_id, list(self.claims))
        return self.claims[current_id]

    def _least_wall(self, changed: _ChangedProgram) -> int:
        """Return the least wall time of a changed program, ns: that of its overlapped work.

        Work that overlaps everything else still takes as long as it does on its own stream.
        """
        least = 0
        for nodes in changed.overlapped:
            if nodes.any():
                work_ns = changed.duration_if_overlapped - self.program.waiting
                least = max(least, self._longest_stream(np.where(nodes, work_ns, 0)))
        return least

    def _longest_stream(self, work_ns: Int64Array) -> int:
        """Return how long the busiest stream takes if only some work runs, ns.

        Work that overlaps the work before it on its stream in the recording overlaps it here, too.
        So the result is never longer than the unchanged replay.

        Args:
            work_ns: the time of each node, 0 for nodes that do not run, (n,).
        """
        program = self.program
        is_event = program.event != NONE
        overlap = np.where(is_event, np.minimum(program.gap, 0), 0)  # negative
        # Run all nodes one after another. Nodes that take 10, 10 and 10, the last one with an
        # overlap of -15, begin at 0, 10 and 5 and end at 10, 20 and 15. The stream is busy from the
        # earliest beginning so far to each end.
        end = np.cumsum(work_ns + overlap)
        begin = end - work_ns
        longest = 0
        first_of_stream = np.flatnonzero(begins_run(program.track))
        limits = np.append(first_of_stream, len(work_ns)).tolist()
        for first, stop in pairwise(limits):
            earliest_begin = np.minimum.accumulate(begin[first:stop])
            busy_ns = end[first:stop] - earliest_begin
            longest = max(longest, int(busy_ns.max()))
        return longest

    def _nodes(self, name: str) -> BoolArray:
        """Return the nodes that a name stands for, (n,)."""
        prefix, _, label = name.partition(":")
        kernels: BoolArray = (self.program.event != NONE) & ~self.is_copy
        if name == "kernels":
            return kernels
        if name == "copies":
            return self.is_copy
        if name == "communication":
            return self._nodes_of(self._gpu_events.is_communication)
        if prefix == "op" and label:
            return self._launched_in(label) & kernels
        if prefix == "kernel" and label:
            matching = self._nodes_of(self._events_named(label)) & kernels
            if not matching.any():
                raise UsageError(f"--change {name}: no kernel name matches")
            return matching
        return self._nodes_of_category(name)

    def _nodes_of_category(self, name: str) -> BoolArray:
        """Return the nodes of a category, whose name may differ in case, (n,)."""
        code, labels = self.categories
        folded_name = name.casefold()
        for category in self._used_categories:
            if category.casefold() != folded_name:
                continue
            is_of_category: BoolArray = code == labels.index(category)
            return is_of_category
        raise _unknown("category", name, self._used_categories + _NAMES_OF_CHANGES)

    def _events_named(self, pattern: str) -> BoolArray:
        """Return the GPU events whose names match a pattern, (g,)."""
        search = UserPattern(pattern, "--change kernel:").search
        return self._gpu_events.trace.names_matching(search)[self._gpu_events.name]

    def _launched_in(self, name: str) -> BoolArray:
        """Return the nodes that operations of a name launched, at any depth, (n,)."""
        tree = self._gpu_events.tree
        trace = self._gpu_events.trace
        has_name = trace.named(trace.name[tree.rows], name.__eq__)
        is_named_operation = tree.is_operation & has_name
        if not is_named_operation.any():
            operations = tree.rows[tree.is_operation]
            raise _unknown("operation", name, _distinct_names(trace, operations))
        enclosing = nearest_marked(tree.parent_position, is_named_operation)
        is_inside = is_named_operation | (enclosing != ROOT)
        launch = tree.launch_position_of_gpu
        return self._nodes_of(values_at(is_inside, launch, missing=False))

    def host_intervals(self, name: str) -> list[DisjointIntervals]:
        """Return the host time that a name stands for: intervals of each clock.

        Args:
            name: `host` for all time, `launch` for the calls that launched GPU work, or
                `host:NAME` for host events of a name.

        Returns:
            For each clock disjoint intervals, ns since the window's start.
        """
        program = self.program
        trace = self._gpu_events.trace
        window_start, window_end = program.window
        length = window_end - window_start
        if name == "host":
            whole_window = DisjointIntervals(
                start=np.array([0]), end=np.array([length])
            )
            return [whole_window] * len(program.clocks.end)
        if name == "launch":
            is_called = (program.call != NONE) & (program.launch != NONE)
            rows = np.unique(program.launch[is_called])
        else:
            rows = self._host_rows(name.partition(":")[2])
        clock = program.clocks.of_thread[trace.thread[rows]]
        start = np.clip(trace.ts[rows] - window_start, 0, length)
        end = np.clip(trace.end[rows] - window_start, 0, length)
        intervals: list[DisjointIntervals] = []
        for clock_number in range(len(program.clocks.end)):
            is_of_clock = clock == clock_number
            intervals.append(union(start[is_of_clock], end[is_of_clock]))
        return intervals

    def _host_rows(self, name: str) -> Int64Array:
        """Return the rows of the host events of a name."""
        trace = self._gpu_events.trace
        host_rows = trace.rows_of(*HOST_KINDS)
        rows: Int64Array = host_rows[trace.named(trace.name[host_rows], name.__eq__)]
        if not len(rows):
            raise _unknown("host event", name, _distinct_names(trace, host_rows))
        return rows


class _ChangedProgram:
    """The durations and delays of a program, to which terms of a change are applied in turn."""

    def __init__(self, program: DependencyGraph) -> None:
        self._waiting = program.waiting
        self.gap_factor = 1.0  #: what gaps are multiplied by
        self.duration = program.duration  #: of each node, 0 for overlapped nodes, ns
        #: the duration of each node, overlapped nodes included, ns
        self.duration_if_overlapped = program.duration
        #: for each removed finding the nodes that overlap all other work
        self.overlapped: list[BoolArray] = []
        self.delays = DelaySavings()
        self.nonblocking: BoolArray | None = None  #: blocks that do not wait
        #: the scaled intervals of each clock
        self.scaled: list[list[Scaled]] = [[] for _ in program.clocks.end]

    def remove(self, removed: Removed) -> None:
        """Remove the time of a finding."""
        self.duration = np.maximum(self.duration - removed.shorter, 0)
        shorter_if_overlapped = removed.shorter
        if removed.overlapped is not None:
            self.overlapped.append(removed.overlapped)
            shorter_if_overlapped = np.where(removed.overlapped, 0, removed.shorter)
        if self.overlapped:
            self.duration_if_overlapped = np.maximum(
                self.duration_if_overlapped - shorter_if_overlapped, 0
            )
        else:
            self.duration_if_overlapped = self.duration
        self.delays = self.delays.plus(removed.delays)
        if removed.nonblocking is not None:
            self.let_run_ahead(removed.nonblocking)
        self.scale_host(removed.host_intervals, removed.host_factor)

    def let_run_ahead(self, blocks: BoolArray) -> None:
        """Let some blocks return without waiting, so that the CPU runs ahead."""
        if self.nonblocking is None:
            self.nonblocking = blocks
        else:
            self.nonblocking = self.nonblocking | blocks

    def scale_host(self, intervals: Sequence[DisjointIntervals], factor: float) -> None:
        """Multiply the time of some intervals of each clock."""
        for scaled_of_clock, (start, end) in zip(self.scaled, intervals, strict=True):
            if len(start):
                scaled_of_clock.append(Scaled(start=start, end=end, factor=factor))

    def scale_nodes(self, nodes: BoolArray, factor: float) -> None:
        """Multiply the work of some nodes; the time that they wait for other ranks stays."""
        self.duration = self._scaled_nodes(self.duration, nodes, factor)
        self.duration_if_overlapped = self._scaled_nodes(
            self.duration_if_overlapped, nodes, factor
        )

    def _scaled_nodes(
        self, duration: Int64Array, nodes: BoolArray, factor: float
    ) -> Int64Array:
        work_ns = duration - self._waiting
        scaled_work_ns = np.rint(work_ns * factor).astype(np.int64)
        scaled_duration = self._waiting + scaled_work_ns
        return np.where(nodes, scaled_duration, duration)


def _single_change(name: str, factor: float) -> NamedChange:
    return NamedChange(text=name, terms=(Term(name, factor),))


def _distinct_names(trace: Trace, rows: IntArray) -> list[str]:
    codes = np.unique(trace.name[rows]).tolist()
    return [trace.names[code] for code in codes]


def _unknown(what: str, name: str, names: Sequence[str]) -> UsageError:
    """Return the error for a name that the trace does not have, with similar names."""
    message = f"--change: the trace has no {what} {name!r}"
    similar = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or names[:20]
    if similar:
        message += f"; it has {', '.join(similar)}"
    return UsageError(message)
