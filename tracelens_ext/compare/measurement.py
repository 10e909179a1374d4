"""What a comparison knows of a trace or of a report, and how a trace is measured for it."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from tracelens_ext.analysis.iterations.candidates import likely_iterations
from tracelens_ext.analysis.iterations.iterations import Iterations
from tracelens_ext.analysis.iterations.named_iterations import named_iterations
from tracelens_ext.analysis.serving.phases import busy_by_step
from tracelens_ext.analysis.serving.steps import find_steps
from tracelens_ext.analysis.timeline.overview import device_names
from tracelens_ext.analysis.timeline.timeline import gpu_timeline
from tracelens_ext.categorize import KernelCategorizer
from tracelens_ext.compare.periods import Period, find_period
from tracelens_ext.compare.program_places import PlacesWithWork, calls_of, places
from tracelens_ext.isolation import PartFailures
from tracelens_ext.lazy import pd
from tracelens_ext.trace import (
    NONE,
    NS_PER_MS,
    NS_PER_US,
    BoolArray,
    Int64Array,
    IntArray,
)
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import (
    group_by_labels,
    maxima,
    minima,
    number_groups,
    sums,
)
from tracelens_ext.trace.lookup import values_at

#: What a finding saves: ms, and percent of the wall time.
Saving = tuple[float, float]

#: Table → the columns that name its rows; of `phases` it is `phase`.
KEYS: Mapping[str, tuple[str, ...]] = {
    "timeline": ("device", "type"),
    "categories": ("kernel_category",),
    "operations": ("cpu_op",),
    "kernels": ("kernel_category", "kernel_name"),
}
#: Table → the one that has what TraceLens's sheet has, which is less, called as its only key:
#: categories of operations and not of kernels; operations as launchers, by busy time; kernels
#: without copies and fills.
STAND_INS = {
    "categories": "op category",
    "operations": "launcher",
    "kernels": "kernel_name",
}
#: What the iterations of PyTorch's profiler are called.
PROFILER_STEP = "ProfilerStep"
#: Annotations that are tried as iterations, and the GPU work that must be launched within them.
_MOST_CANDIDATES = 3
_MOST_GPU_WORK = 0.8
_NUMBER = re.compile(r"\d+")
#: The program whose reports are read besides ours.
TRACELENS = "TraceLens"


@dataclass(frozen=True)
class Figures:
    """Where the GPU time of a trace, or of its whole iterations, went."""

    #: each with its key columns, `ns`, `count` (GPU events; steps in `phases`) and `calls` (of
    #: operations), both 0 in the timeline. Those of a report may lack some; `STAND_INS` are there
    #: where they are known, `phases` of a whole trace in which a serving engine names its steps.
    tables: Mapping[str, pd.DataFrame]
    places: PlacesWithWork | None = None  #: where it was launched; None of a report

    def whole(self, column: Literal["ns", "count"]) -> int | None:
        """Return the sum over all GPU events; None if a report does not have it."""
        for name in STAND_INS:
            table = self.tables.get(name)
            if table is None:
                continue
            return int(table[column].sum())
        return None


@dataclass(frozen=True)
class Measurement:
    """What a comparison needs to know of one trace, or of one report."""

    path: str  #: the file as the user named it
    devices: str  #: its GPUs
    total: Figures  #: figures of the whole trace
    #: every category that the rules could have given; of a report, those it names
    categories: frozenset[str]
    #: figures of its whole iterations together; None when there are none
    whole_iterations: Figures | None = None
    iterations: int = 0  #: how many those are
    #: what those are called, without their numbers
    step_name: str = PROFILER_STEP
    #: how many, which ones, and which are not whole
    iterations_told: str = "not in the report"
    report: str = ""  #: the program whose report was measured; empty for a trace
    #: what the reader of a comparison should know of it, clauses
    notes: tuple[str, ...] = ()
    period: Period | None = None  #: in which kernel names come back
    #: time lost against the best case by operation and shapes, ms; None where no shapes are known
    lost: pd.DataFrame | None = None
    #: what each finding of the whole trace saves, by its id; None where that is not known
    findings: Mapping[str, Saving] | None = None

    @property
    def events(self) -> int | None:
        """How many GPU events it has; None if a report does not say."""
        return self.total.whole("count")

    def figures(self, basis: str) -> Figures:
        """Return what is compared: for `iteration` that of whole iterations, else of all."""
        if basis == "iteration" and self.whole_iterations is not None:
            return self.whole_iterations
        return self.total


def measure(
    work: GpuEvents,
    *,
    micro_idle_thresh_us: float | None = None,
    failures: PartFailures | None = None,
) -> Measurement:
    """Measure one trace for a comparison.

    Args:
        work: the GPU events, with categories.
        micro_idle_thresh_us: when given, the timeline also splits idle time at this many µs.
        failures: takes the parts that fail.

    Raises:
        UsageError: the analyzer was made without categories.
    """
    failures = PartFailures() if failures is None else failures
    meter = _Meter(
        gpu_events=work, micro_idle_thresh_us=micro_idle_thresh_us, failures=failures
    )
    steps = _steps(work)
    iterations = steps.iterations
    total = meter.figures(np.ones(len(work), dtype=bool))
    phases: pd.DataFrame | None = None
    with failures.isolate("The table phases of the comparison"):
        phases = _phases(work)
    if phases is not None:
        total = replace(total, tables={**total.tables, "phases": phases})
    period: Period | None = None
    with failures.isolate("The period of kernel names"):
        period = find_period(work)
    return Measurement(
        path=work.trace.provenance.path,
        devices=device_names(work.trace),
        total=total,
        categories=_possible_categories(work),
        whole_iterations=meter.figures_of_iterations(iterations),
        iterations=iterations.whole_count,
        iterations_told=_iterations_text(steps),
        step_name=steps.name,
        period=period,
    )


class _Steps(NamedTuple):
    """The iterations of a trace, and what they are called, without their numbers."""

    iterations: Iterations
    name: str


def _steps(gpu_events: GpuEvents) -> _Steps:
    """Return the steps of a trace: by the profiler, by a serving engine, or by an annotation.

    An annotation of the program counts if nearly all GPU work is launched within it.
    """
    tree = gpu_events.tree
    usual = named_iterations(tree, None)
    if len(usual.iterations):
        name, _, _ = usual.labels[0].partition("#")
        return _Steps(usual.iterations, name)
    for expression in likely_iterations(tree, _MOST_CANDIDATES):
        named = named_iterations(tree, expression)
        if named.iterations.whole_count < 2:
            continue
        is_inside = named.iterations.of_gpu != NONE
        launched_inside = int(is_inside.sum())
        if launched_inside >= _MOST_GPU_WORK * len(gpu_events):
            name = _NUMBER.sub("#", named.labels[0])
            return _Steps(named.iterations, name)
    return _Steps(usual.iterations, PROFILER_STEP)


def _possible_categories(gpu_events: GpuEvents) -> frozenset[str]:
    """Return every category that the rules could give a kernel."""
    categorizer = gpu_events.categorizer
    if not isinstance(categorizer, KernelCategorizer):
        return frozenset()
    categories: set[str] = set()
    for bound in categorizer.packs:
        if bound.pack.kind != "kernel":
            continue
        for rule in bound.pack.rules:
            categories.add(rule.category)
    return frozenset(categories)


def _phases(gpu_events: GpuEvents) -> pd.DataFrame | None:
    """Return GPU time by phase of serving; None if no engine names its steps."""
    steps = find_steps(gpu_events.tree)
    if not len(steps):
        return None
    phase_count = len(steps.phases)
    busy_of_step = busy_by_step(gpu_events, steps)[: len(steps)]
    return pd.DataFrame(
        {
            "phase": steps.phases,
            "ns": sums(steps.phase, busy_of_step, phase_count),
            "count": np.bincount(steps.phase, minlength=phase_count),
            "calls": 0,
        }
    )


def _iterations_text(steps: _Steps) -> str:
    """Return how many iterations are whole and which, and which are not."""
    iterations = steps.iterations
    if steps.name != PROFILER_STEP:
        return f"{iterations.whole_count} ({steps.name})"
    left_out = iterations.label(~iterations.whole)
    if not iterations.whole_count:
        return "none whole" if left_out else "none"
    label = iterations.label(iterations.whole)
    text = f"{iterations.whole_count} ({label})"
    if left_out:
        text = f"{text}, not {left_out}"
    return text


class _Key(NamedTuple):
    """A column that names rows."""

    code: IntArray  #: of each GPU event
    labels: Sequence[str]


@dataclass(frozen=True, eq=False)
class _Meter:
    """Measures chosen GPU events of a trace."""

    gpu_events: GpuEvents
    micro_idle_thresh_us: float | None
    failures: PartFailures  #: takes the parts that fail

    def figures(self, chosen: BoolArray) -> Figures:
        """Return the figures of the chosen GPU events."""
        categories = self.gpu_events.needed_categories
        category = _Key(code=categories.code, labels=categories.labels)
        kernel = _Key(code=self.gpu_events.name, labels=self.gpu_events.trace.names)
        op_code, op_labels = self.gpu_events.tree.cpu_op_label_of_gpu
        operation = _Key(code=op_code, labels=op_labels)
        keys_of_table = {
            "categories": {"kernel_category": category},
            "operations": {"cpu_op": operation},
            "kernels": {"kernel_category": category, "kernel_name": kernel},
        }
        tables = {"timeline": self.timeline(chosen)}
        for name, keys in keys_of_table.items():
            with self.failures.isolate(f"The table {name} of the comparison"):
                tables[name] = self.grouped(chosen, keys)
        places_of_events: PlacesWithWork | None = None
        with self.failures.isolate("The table places of the comparison"):
            places_of_events = places(self.gpu_events, chosen)
        return Figures(tables, places_of_events)

    def grouped(self, chosen: BoolArray, keys: Mapping[str, _Key]) -> pd.DataFrame:
        """Return GPU time, GPU events and calls of operations by some columns."""
        columns, groups = group_by_labels(
            keys=dict(keys), duration=self.gpu_events.duration, chosen=chosen
        )
        call = calls_of(self.gpu_events)[chosen]
        first_of_call, _ = number_groups([groups.group_index, call])
        calls = np.bincount(groups.group_index[first_of_call], minlength=len(groups))
        figures = {"ns": groups.total, "count": groups.count, "calls": calls}
        return pd.DataFrame({**columns, **figures})

    def timeline(self, chosen: BoolArray) -> pd.DataFrame:
        """Return the GPU timeline of the chosen GPU events, by device."""
        selected = copy.copy(self.gpu_events)
        selected.counted = self.gpu_events.counted & chosen
        frame = gpu_timeline(selected, self.micro_idle_thresh_us)
        if "device" not in frame:  # a single one, or none
            device = self.gpu_events.trace.device[selected.counted].max(initial=NONE)
            frame.insert(0, "device", device)
        ns = np.rint(frame["time ms"].to_numpy() * NS_PER_MS).astype(np.int64)
        frame = frame.drop(columns=["time ms", "percent"])
        return frame.assign(ns=ns, count=0, calls=0)

    def figures_of_iterations(self, iterations: Iterations) -> Figures | None:
        """Return the figures of whole iterations together; None if there are none."""
        if not iterations.whole_count:
            return None
        gpu_events = self.gpu_events
        iteration = iterations.of_gpu
        chosen = values_at(iterations.whole, iteration, missing=False)
        figures = self.figures(chosen)
        timeline = figures.tables["timeline"]
        counted = np.flatnonzero(chosen & gpu_events.counted)
        for device in timeline["device"].unique().tolist():
            events = counted[gpu_events.trace.device[counted] == device]
            changes = _idle_changes(
                iteration=iteration[events],
                start=gpu_events.start[events],
                end=gpu_events.end[events],
                run=iterations.run,
            )
            for change_ns in changes:
                kinds = ["idle_time", "total_time", self._kind_of_idle(change_ns)]
                is_changed = (timeline["device"] == device) & timeline["type"].isin(
                    kinds
                )
                timeline.loc[is_changed, "ns"] += change_ns
        return figures

    def _kind_of_idle(self, ns: int) -> str:
        """Return the row of the timeline that counts a gap of this length."""
        threshold_us = self.micro_idle_thresh_us
        if threshold_us is None:
            return "macro_idle_time"
        threshold_ns = threshold_us * NS_PER_US
        if abs(ns) > threshold_ns:
            return "macro_idle_time"
        return "micro_idle_time"


def _idle_changes(
    iteration: Int64Array, start: Int64Array, end: Int64Array, run: Int64Array
) -> list[int]:
    """Return what to add to the idle time of a device so that each iteration has one gap after it.

    Where the recording skips iterations, the time between is not idle time: it is taken away. The
    gap after the last iteration of a run is not in the trace: it is taken to be average.

    Args:
        iteration: of each GPU event, an index, (e,).
        start: of each GPU event, ns, (e,).
        end: of each GPU event, ns, (e,).
        run: of each iteration, the number of the run of consecutive iterations that it is in, (k,).
    """
    first_start = minima(iteration, start, len(run))
    last_end = maxima(iteration, end, len(run))
    # the device has work in these iterations
    is_busy = first_start < np.iinfo(np.int64).max
    order = np.argsort(first_start, kind="stable")
    order = order[is_busy[order]]
    latest_end = np.maximum.accumulate(last_end[order])
    idle_ns = np.maximum(first_start[order][1:] - latest_end[:-1], 0)
    # The step from an iteration to the next, by time, is within a run that has not ended yet.
    position = np.arange(len(order))
    run_of_position = run[order]
    run_count = int(run_of_position.max(initial=-1)) + 1
    last_position = maxima(run_of_position, position, run_count)[run_of_position]
    is_within_run = np.maximum.accumulate(last_position)[:-1] > position[:-1]
    changes = [-int(hole) for hole in idle_ns[~is_within_run]]
    if is_within_run.any():
        mean_gap = round(float(idle_ns[is_within_run].mean()))
        missing_gaps = len(order) - int(is_within_run.sum())
        changes += [mean_gap] * missing_gaps
    return changes
