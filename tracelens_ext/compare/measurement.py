"""Measures a trace for a comparison: its GPU time by category, operation, kernel and place."""

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

#: The saving of a finding: ms, and percent of the analyzed time.
Saving = tuple[float, float]

#: Table → the columns that identify its rows. Those of `phases` are identified by `phase`.
KEYS: Mapping[str, tuple[str, ...]] = {
    "timeline": ("device", "type"),
    "categories": ("kernel_category",),
    "operations": ("cpu_op",),
    "kernels": ("kernel_category", "kernel_name"),
}
#: Table → its stand-in, the corresponding table of TraceLens. A stand-in is called like its only
#: key and contains less: categories of operations instead of kernels; operations that launched GPU
#: work, with their busy time; kernels without copies and fills.
STAND_INS = {
    "categories": "op category",
    "operations": "launcher",
    "kernels": "kernel_name",
}
#: The name of the iterations that PyTorch's profiler annotates.
PROFILER_STEP = "ProfilerStep"
#: How many annotations of the program are tried as iterations.
_MAX_CANDIDATES = 3
#: The share of GPU events that must be launched within such iterations.
_MIN_SHARE_INSIDE = 0.8
_NUMBER = re.compile(r"\d+")
#: The other program whose reports can be read.
TRACELENS = "TraceLens"


@dataclass(frozen=True)
class Figures:
    """The GPU time of a whole trace, or of its whole iterations, in several tables."""

    #: Each table has its key columns, `ns`, `count` (of GPU events; of steps in `phases`) and
    #: `calls` (of operations). Both counts are 0 in the timeline. A report may lack tables, and
    #: may have their `STAND_INS`. `phases` exists for whole traces with steps of a serving engine.
    tables: Mapping[str, pd.DataFrame]
    #: the places at which the GPU work was launched; None for a report
    places: PlacesWithWork | None = None

    def whole(self, column: Literal["ns", "count"]) -> int | None:
        """Return the sum of a column over all GPU events; None if a report does not have it."""
        for name in STAND_INS:
            table = self.tables.get(name)
            if table is None:
                continue
            return int(table[column].sum())
        return None


@dataclass(frozen=True)
class Measurement:
    """Everything about a trace or a report that a comparison needs."""

    path: str  #: the file as the user named it
    devices: str  #: the names of the GPUs
    total: Figures  #: the figures of the whole trace
    #: all categories that the rules can assign; for a report, those that it contains
    categories: frozenset[str]
    #: the figures of all whole iterations together; None if there are none
    whole_iterations: Figures | None = None
    iterations: int = 0  #: the number of whole iterations
    step_name: str = PROFILER_STEP  #: the name of the iterations, without their numbers
    #: the number and labels of the whole iterations, and the labels of the others
    iterations_text: str = "not in the report"
    report: str = ""  #: the program that wrote the report; empty for a trace
    #: remarks for the user, as clauses
    notes: tuple[str, ...] = ()
    period: Period | None = None  #: the period of kernel names; None if there is none
    #: time lost by operation and shapes, ms, as `time_lost` returns it; None if it is not known
    lost: pd.DataFrame | None = None
    #: id → saving of each finding of the whole trace; None if the findings are not known
    findings: Mapping[str, Saving] | None = None

    @property
    def events(self) -> int | None:
        """The number of GPU events; None if a report does not contain it."""
        return self.total.whole("count")

    def figures(self, basis: str) -> Figures:
        """Return the figures of whole iterations for `iteration`, and of the whole trace else."""
        if basis == "iteration" and self.whole_iterations is not None:
            return self.whole_iterations
        return self.total


def measure(
    gpu_events: GpuEvents,
    *,
    micro_idle_thresh_us: float | None = None,
    failures: PartFailures | None = None,
) -> Measurement:
    """Measure one trace for a comparison.

    Args:
        gpu_events: the GPU events of the trace, with categories.
        micro_idle_thresh_us: idle gaps up to this length are reported separately in the timeline;
            None to report all idle time together.
        failures: receives a message for each part that fails.

    Raises:
        UsageError: the GPU events have no categories.
    """
    failures = PartFailures() if failures is None else failures
    meter = _Meter(
        gpu_events=gpu_events,
        micro_idle_thresh_us=micro_idle_thresh_us,
        failures=failures,
    )
    steps = _steps(gpu_events)
    iterations = steps.iterations
    total = meter.figures(np.ones(len(gpu_events), dtype=bool))
    phases: pd.DataFrame | None = None
    with failures.isolate("The table phases of the comparison"):
        phases = _phases(gpu_events)
    if phases is not None:
        total = replace(total, tables={**total.tables, "phases": phases})
    period: Period | None = None
    with failures.isolate("The period of kernel names"):
        period = find_period(gpu_events)
    return Measurement(
        path=gpu_events.trace.provenance.path,
        devices=device_names(gpu_events.trace),
        total=total,
        categories=_possible_categories(gpu_events),
        whole_iterations=meter.figures_of_iterations(iterations),
        iterations=iterations.whole_count,
        iterations_text=_iterations_text(steps),
        step_name=steps.name,
        period=period,
    )


class _Steps(NamedTuple):
    """The iterations of a trace and their name."""

    iterations: Iterations
    name: str  #: the name without the numbers


def _steps(gpu_events: GpuEvents) -> _Steps:
    """Return the iterations of the profiler or a serving engine, or those of another annotation.

    Another annotation is used only if at least 80 % of the GPU events are launched within it.
    """
    tree = gpu_events.tree
    default = named_iterations(tree, None)
    if len(default.iterations):
        name, _, _ = default.labels[0].partition("#")
        return _Steps(default.iterations, name)
    for expression in likely_iterations(tree, _MAX_CANDIDATES):
        named = named_iterations(tree, expression)
        if named.iterations.whole_count < 2:
            continue
        is_inside = named.iterations.of_gpu != NONE
        launched_inside = int(is_inside.sum())
        if launched_inside >= _MIN_SHARE_INSIDE * len(gpu_events):
            name = _NUMBER.sub("#", named.labels[0])
            return _Steps(named.iterations, name)
    return _Steps(default.iterations, PROFILER_STEP)


def _possible_categories(gpu_events: GpuEvents) -> frozenset[str]:
    """Return all categories that the rules can assign to a kernel."""
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
    """Return the GPU time of each serving phase; None if there are no steps of an engine."""
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
    """Return the number and labels of the whole iterations, and the labels of the others."""
    iterations = steps.iterations
    if steps.name != PROFILER_STEP:
        return f"{iterations.whole_count} ({steps.name})"
    incomplete_label = iterations.label(~iterations.whole)
    if not iterations.whole_count:
        return "none whole" if incomplete_label else "none"
    whole_label = iterations.label(iterations.whole)
    text = f"{iterations.whole_count} ({whole_label})"
    if incomplete_label:
        text = f"{text}, not {incomplete_label}"
    return text


class _KeyColumn(NamedTuple):
    """A column that identifies rows."""

    code: IntArray  #: the index of each GPU event's label, (g,)
    labels: Sequence[str]


@dataclass(frozen=True, eq=False)
class _Meter:
    """Computes the figures of chosen GPU events of a trace."""

    gpu_events: GpuEvents
    micro_idle_thresh_us: float | None
    failures: PartFailures  #: receives a message for each part that fails

    def figures(self, chosen: BoolArray) -> Figures:
        """Return the figures of the chosen GPU events, without tables that fail."""
        categories = self.gpu_events.needed_categories
        category = _KeyColumn(code=categories.code, labels=categories.labels)
        kernel = _KeyColumn(
            code=self.gpu_events.name, labels=self.gpu_events.trace.names
        )
        op_code, op_labels = self.gpu_events.tree.cpu_op_label_of_gpu
        operation = _KeyColumn(code=op_code, labels=op_labels)
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

    def grouped(
        self, chosen: BoolArray, keys: Mapping[str, _KeyColumn]
    ) -> pd.DataFrame:
        """Return GPU time, number of GPU events and number of calls, grouped by key columns."""
        columns, groups = group_by_labels(
            keys=dict(keys), duration=self.gpu_events.duration, chosen=chosen
        )
        call = calls_of(self.gpu_events)[chosen]
        first_of_call, _ = number_groups([groups.group_index, call])
        calls = np.bincount(groups.group_index[first_of_call], minlength=len(groups))
        figures = {"ns": groups.total, "count": groups.count, "calls": calls}
        return pd.DataFrame({**columns, **figures})

    def timeline(self, chosen: BoolArray) -> pd.DataFrame:
        """Return the GPU timeline of the chosen GPU events with a column `device`."""
        selected = copy.copy(self.gpu_events)
        selected.counted = self.gpu_events.counted & chosen
        frame = gpu_timeline(selected, self.micro_idle_thresh_us)
        if "device" not in frame:
            # The trace has one device, or no GPU events.
            device = self.gpu_events.trace.device[selected.counted].max(initial=NONE)
            frame.insert(0, "device", device)
        ns = np.rint(frame["time ms"].to_numpy() * NS_PER_MS).astype(np.int64)
        frame = frame.drop(columns=["time ms", "percent"])
        return frame.assign(ns=ns, count=0, calls=0)

    def figures_of_iterations(self, iterations: Iterations) -> Figures | None:
        """Return the figures of all whole iterations together; None if there are none."""
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
        """Return the row of the timeline to which a gap of some length belongs."""
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
    """Return the corrections of a device's idle time after which each iteration has one gap.

    Between two runs of consecutive iterations, the recording skips iterations. The time between the
    runs is not idle time, so it is subtracted. The gap after the last iteration of a run is not in
    the trace, so an average gap is added for it.

    Args:
        iteration: the index of each GPU event's iteration, (e,).
        start: the start of each GPU event, ns, (e,).
        end: the end of each GPU event, ns, (e,).
        run: the number of the run of consecutive iterations that each iteration belongs to, (k,).
    """
    first_start = minima(iteration, start, len(run))
    last_end = maxima(iteration, end, len(run))
    # `minima` returns the largest integer for iterations in which the device has no GPU work.
    has_work = first_start < np.iinfo(np.int64).max
    order = np.argsort(first_start, kind="stable")
    order = order[has_work[order]]
    latest_end = np.maximum.accumulate(last_end[order])
    # The gap from each iteration to the next one, in the order of time.
    gap_ns = np.maximum(first_start[order][1:] - latest_end[:-1], 0)
    # A gap is within a run if a run that began before it goes on after it. Runs may overlap in
    # time, for example those of two processes. With the runs 0 0 1 1, the last positions are
    # 1 1 3 3, and the gaps at the positions 0 and 2 are within a run.
    position = np.arange(len(order))
    run_of_position = run[order]
    run_count = int(run_of_position.max(initial=-1)) + 1
    last_position = maxima(run_of_position, position, run_count)[run_of_position]
    is_within_run = np.maximum.accumulate(last_position)[:-1] > position[:-1]
    changes = [-int(between_runs_ns) for between_runs_ns in gap_ns[~is_within_run]]
    if is_within_run.any():
        mean_gap = round(float(gap_ns[is_within_run].mean()))
        missing_gaps = len(order) - int(is_within_run.sum())
        changes += [mean_gap] * missing_gaps
    return changes
