"""What a comparison knows of a trace or of a report, and how a trace is measured for it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tracelens_ext.analysis.iterations.selection import Iterations, find_iterations
from tracelens_ext.analysis.serving.phases import busy_by_step
from tracelens_ext.analysis.serving.steps import find_steps
from tracelens_ext.analysis.timeline.overview import devices
from tracelens_ext.analysis.timeline.timeline import gpu_timeline
from tracelens_ext.categorize import KernelCategorizer, RulePack
from tracelens_ext.compare.alignment import PlaceWork, ProgramPlace, calls_of, places
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, NS_PER_MS, BoolArray, Float64Array, Int64Array, IntArray
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import group_labelled, maxima, minima, number_groups, ranks, sums

#: What a finding saves: ms, and percent of the wall time.
Saving = tuple[float, float]

#: Table → the columns that name its rows; of `phases` it is `phase`.
KEYS: Mapping[str, tuple[str, ...]] = {
    "timeline": ("device", "type"),
    "categories": ("kernel_category",),
    "operations": ("cpu_op",),
    "kernels": ("kernel_category", "kernel_name"),
}
#: Table → the one that holds what TraceLens's sheet does, which is less, called as its only key:
#: categories of operations and not of kernels; operations as launchers, by busy time; kernels
#: without copies and fills.
STAND_INS = {"categories": "op category", "operations": "launcher", "kernels": "kernel_name"}
#: The program whose reports are read besides ours.
TRACELENS = "TraceLens"


@dataclass(frozen=True)
class Figures:
    """Where the GPU time of a trace, or of its whole iterations, went."""

    #: each with its key columns, `ns`, `count` (GPU events; steps in `phases`) and `calls` (of
    #: operations), both 0 in the timeline. Those of a report may lack some; `STAND_INS` are there
    #: where they are known, `phases` of a whole trace in which a serving engine names its steps.
    tables: Mapping[str, pd.DataFrame]
    places: Mapping[ProgramPlace, PlaceWork] | None = (
        None  #: where it was launched; None of a report
    )

    def whole(self, column: Literal["ns", "count"]) -> int | None:
        """The sum of all GPU events; None if a report does not tell."""
        held = (self.tables[name] for name in STAND_INS if name in self.tables)
        return next((int(each[column].sum()) for each in held), None)


@dataclass(frozen=True)
class Measurement:
    """What a comparison needs to know of one trace, or of one report."""

    path: str  #: the file as the user named it
    devices: str  #: its GPUs
    total: Figures  #: figures of the whole trace
    #: every category that the rules could have given; of a report, those it names.
    categories: frozenset[str]
    #: figures of its whole iterations together; None when there are none.
    whole_iterations: Figures | None = None
    iterations: int = 0  #: how many those are
    iterations_told: str = "not in the report"  #: how many, which ones, and which are not whole
    report: str = ""  #: the program whose report was measured; empty for a trace
    notes: tuple[str, ...] = ()  #: what the reader of a comparison should know of it, clauses
    period: Period | None = None  #: in which kernel names come back
    #: time lost against the best case by operation and shapes, ms; None where no shapes are known
    lost: pd.DataFrame | None = None
    #: what each finding of the whole trace saves, by its id; None where that is not known.
    findings: Mapping[str, Saving] | None = None

    @property
    def events(self) -> int | None:
        """How many GPU events it holds; None if a report does not tell."""
        return self.total.whole("count")

    def figures(self, basis: str) -> Figures:
        """What is compared: of `iteration` those of whole iterations, else of the whole trace."""
        return (basis == "iteration" and self.whole_iterations) or self.total


def measure(work: GpuEvents, *, micro_idle_thresh_us: float | None = None) -> Measurement:
    """Measure one trace for a comparison.

    Args:
        work: the GPU events, with categories.
        micro_idle_thresh_us: when given, the timeline also splits idle time at this many µs.

    Raises:
        UsageError: the analyzer was made without categories.
    """
    iterations = find_iterations(work.tree)
    total = _figures(work, micro_idle_thresh_us)
    packs: list[RulePack] = []
    if isinstance(work.categorizer, KernelCategorizer):
        packs = [bound.pack for bound in work.categorizer.packs]
    rules = [rule for pack in packs if pack.kind == "kernel" for rule in pack.rules]
    if len(steps := find_steps(work.tree)):
        ns = sums(steps.phase, busy_by_step(work, steps)[:-1], len(steps.phases))
        phases = pd.DataFrame({"phase": steps.phases, "ns": ns})
        number = np.bincount(steps.phase, minlength=len(phases))
        tables = {**total.tables, "phases": phases.assign(count=number, calls=0)}
        total = replace(total, tables=tables)
    return Measurement(
        path=work.trace.provenance.path,
        devices=devices(work.trace),
        total=total,
        categories=frozenset(rule.category for rule in rules),
        whole_iterations=_iteration_figures(work, iterations, micro_idle_thresh_us),
        iterations=iterations.whole_count,
        iterations_told=_told(iterations),
        period=find_period(work),
    )


def _told(iterations: Iterations) -> str:
    """How many iterations are whole and which, and which are not."""
    left_out = iterations.label(~iterations.whole)
    if not iterations.whole_count:
        return "none whole" if left_out else "none"
    those = f"{iterations.whole_count} ({iterations.label(iterations.whole)})"
    return f"{those}, not {left_out}" if left_out else those


def _figures(
    work: GpuEvents, micro_idle_thresh_us: float | None, chosen: BoolArray | None = None
) -> Figures:
    """The figures of the chosen GPU events, of all by default."""
    categories = work.needed_categories
    every: slice | BoolArray = slice(None) if chosen is None else chosen
    call = calls_of(work)[every]
    by_category = (categories.code, categories.labels)

    def grouped(**keys: tuple[IntArray, Sequence[str]]) -> pd.DataFrame:
        columns, groups = group_labelled(keys, work.duration, every)
        first, _ = number_groups([groups.number, call])
        calls = np.bincount(groups.number[first], minlength=len(groups))
        return pd.DataFrame({**columns, "ns": groups.total, "count": groups.count, "calls": calls})

    tables = {"timeline": _timeline(work, micro_idle_thresh_us, chosen)}
    tables["categories"] = grouped(kernel_category=by_category)
    tables["operations"] = grouped(cpu_op=work.tree.cpu_op_label_of_gpu)
    by_name = work.name, work.trace.names
    tables["kernels"] = grouped(kernel_category=by_category, kernel_name=by_name)
    return Figures(tables, places(work, every))


def _timeline(
    work: GpuEvents, micro_idle_thresh_us: float | None, chosen: BoolArray | None
) -> pd.DataFrame:
    part = copy.copy(work)
    part.counted = work.counted if chosen is None else work.counted & chosen
    frame = gpu_timeline(part, micro_idle_thresh_us)
    if "device" not in frame:  # a single one, or none
        frame.insert(0, "device", work.trace.device[part.counted].max(initial=NONE))
    ns = np.rint(frame.pop("time ms").to_numpy() * NS_PER_MS).astype(np.int64)
    return frame.drop(columns="percent").assign(ns=ns, count=0, calls=0)


def _iteration_figures(
    work: GpuEvents, iterations: Iterations, micro_idle_thresh_us: float | None
) -> Figures | None:
    if not iterations.whole_count:
        return None
    iteration = iterations.of_gpu
    chosen = np.append(iterations.whole, False)[iteration]  # the last is that of NONE, -1
    figures = _figures(work, micro_idle_thresh_us, chosen)
    timeline = figures.tables["timeline"]
    counted = np.flatnonzero(chosen & work.counted)
    for device in timeline["device"].unique().tolist():
        those = counted[work.trace.device[counted] == device]
        gaps = _gaps(iteration[those], work.start[those], work.end[those], iterations.run)
        for gap in gaps:
            longer = micro_idle_thresh_us is None or abs(gap) > micro_idle_thresh_us * 1000
            kinds = ["idle_time", "total_time", "macro_idle_time" if longer else "micro_idle_time"]
            rows = (timeline["device"] == device) & timeline["type"].isin(kinds)
            timeline.loc[rows, "ns"] += gap
    return figures


def _gaps(iteration: Int64Array, start: Int64Array, end: Int64Array, run: Int64Array) -> list[int]:
    """What to add to the idle time of a device, so that each iteration has one gap after it.

    Where the recording skips iterations, the hole is nobody's idle time: it is taken away. The gap
    after the last iteration of a run is not in the trace: it is taken to be average.

    `iteration`, `start`, `end`: of each GPU event, (e,), ns. `run`: of each iteration, (k,).
    """
    first = minima(iteration, start, len(run))
    until = maxima(iteration, end, len(run))
    order = np.argsort(first, kind="stable")
    order = order[first[order] < np.iinfo(np.int64).max]  # this device was idle in the others
    idle = np.maximum(first[order][1:] - np.maximum.accumulate(until[order])[:-1], 0)
    # Whether the step from each iteration to the next, by time, lies within some run.
    places = np.arange(len(order))
    run = run[order]
    last = maxima(run, places, int(run.max(initial=-1)) + 1)
    within = np.maximum.accumulate(last[run])[:-1] > places[:-1]
    holes = [-int(hole) for hole in idle[~within]]
    mean = [round(float(idle[within].mean()))] if within.any() else []
    return holes + mean * (len(order) - int(within.sum()))


_LEAST_KERNELS = 8
_TWICE = 1.8
_MOST_CELLS = 1 << 22  # names of all stretches
_MOST_TRIED = 48  # counts of occurrences, the smallest of which are the longest periods
#: Share of a stretch's time and kernels that it has in common with the typical one.
_ALIKE = 0.9
_COVERED = 0.8  # share of the GPU time in such stretches
#: A shorter period instead of a multiple of it may leave out no more than this besides.
_SAME_COVER = 0.01
_MOST_UNEVEN = 0.5  # how far, of the mean, distances between occurrences may lie from it


@dataclass(frozen=True)
class Period:
    """A period that comes back."""

    count: float  #: how often, in kernels of a typical one; whole where the recording is
    confidence: float  #: share of the GPU time in stretches that are alike, 0 to 1


def find_period(work: GpuEvents) -> Period | None:
    """Find the longest period that occurs twice; of its multiples the shortest."""
    chosen = np.flatnonzero(work.is_kernel & ~work.is_communication)
    chosen = chosen if len(chosen) >= _LEAST_KERNELS else np.arange(len(work))
    if len(chosen) < _LEAST_KERNELS:
        return None
    _, stream = number_groups([work.trace.device[chosen], work.trace.stream[chosen]])
    chosen = chosen[stream == np.bincount(stream).argmax()]
    chosen = chosen[np.argsort(work.start[chosen], kind="stable")]
    name, names = ranks(work.name[chosen])
    weight = np.maximum(work.duration[chosen], 1).astype(np.float64)
    weight = np.bincount(name, weight, names) / np.bincount(name, minlength=names)
    found: Period | None = None
    for period in (_judged(name, weight, starts) for starts in _candidates(name)):
        times = period.count / found.count if found else 1.0
        least = max(_COVERED, found.confidence - _SAME_COVER if found else 0.0)
        fits = period.confidence >= least and period.count >= _TWICE
        if fits and abs(times - round(times)) < 0.02:
            found = period
    return found


def _candidates(name: Int64Array) -> list[Int64Array]:
    """Where stretches could start: occurrences of a few kernels in a row, the fewest first."""
    best: dict[int, tuple[float, Int64Array]] = {}
    code = name
    for half in (0, 1, 2, 4, 8, 16, 32):
        if half:  # twice as many in a row
            if len(code) <= half:
                break
            code, _ = ranks(code[:-half] * len(name) + code[half:])
        order = np.argsort(code, kind="stable")
        counts = np.bincount(code)
        ends = np.cumsum(counts)
        for group in np.flatnonzero((counts >= 2) & (counts <= len(name) // 2)).tolist():
            places = order[ends[group] - counts[group] : ends[group]]
            first = int(places[0])
            count = int(counts[group])
            mean = (len(name) - first) / count
            apart = np.diff(np.append(places, len(name) if first < mean else places[-1] + mean))
            uneven = float(np.abs(apart - mean).max()) / mean
            quality = uneven + first / len(name)
            fits = uneven <= _MOST_UNEVEN and count * (int(name.max()) + 1) <= _MOST_CELLS
            if fits and quality < best.get(count, (np.inf,))[0]:
                best[count] = quality, places
    return [best[count][1] for count in sorted(best)[:_MOST_TRIED]]


def _judged(name: Int64Array, weight: Float64Array, starts: Int64Array) -> Period:
    """How alike the stretches are, the part before the first start being one of them."""
    names = len(weight)
    stretches = len(starts) + 1
    stretch = np.searchsorted(starts, np.arange(len(name)), side="right")
    number = np.bincount(stretch * names + name, minlength=stretches * names)
    number = number.reshape(stretches, names)
    typical = np.percentile(number[1:], 50, axis=0, method="lower")
    common = np.minimum(number, typical)
    ends = np.isin(np.arange(stretches), (0, stretches - 1))  # which may be cut off
    alike = np.ones(stretches)
    for unit in (weight, np.ones(names)):
        own = number @ unit
        whole = typical @ unit
        shared = common @ unit
        size = np.maximum(own, np.where(ends, 0.0, whole))
        alike = np.minimum(alike, np.where(size > 0, shared / np.maximum(size, 1e-9), 1.0))
    time = np.bincount(stretch, weight[name], stretches)
    good = float(time[alike >= _ALIKE].sum() / time.sum())
    return Period(_count(np.bincount(name, minlength=names), typical, weight), good)


def _count(number: Int64Array, typical: Float64Array, weight: Float64Array) -> float:
    """How many typical stretches there are: what most kernels say, else their mean."""
    time = typical * weight
    if not time.any():
        return 0.0
    ratio = number[time > 0] / typical[time > 0]
    share = np.bincount(np.rint(ratio).astype(np.int64), time[time > 0] * (ratio == np.rint(ratio)))
    most = int(share.argmax())
    if share[most] >= _COVERED * time.sum():
        return most
    return float((number * weight).sum() / time.sum())
