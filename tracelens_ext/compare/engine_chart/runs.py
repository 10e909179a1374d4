"""Measures the inputs of a chart: GPU time by kernel and category, and time without GPU work."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.analysis.idle_time.classification import classify_gaps
from tracelens_ext.analysis.serving.steps import find_steps
from tracelens_ext.categorize import KernelCategorizer
from tracelens_ext.compare.engine_chart.specification import NS_PER_S, ChartInput
from tracelens_ext.errors import TraceError, UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.text import encodable
from tracelens_ext.trace import NONE, BoolArray, EventKind, Int64Array
from tracelens_ext.trace.categorization import Categorizer
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import group_durations, sums, texts
from tracelens_ext.trace.intervals import non_overlapped_time

NOT_GPU: Final = "CPU(non-GPU)"
"""The category and name of the elapsed time without GPU work."""

#: The direction in the name of a copy, such as `HtoD` or `Host-to-Device`.
_DIRECTION: Final = re.compile(r"([HDAP])(?:ost|evice|rray|eer)?-?[tT]o-?([HDAP])")
_MEMORY_KINDS: Final = {"H": "Host", "D": "Device", "A": "Array", "P": "Peer"}


@dataclass(frozen=True)
class EngineRun:
    """The measurements of one bar: k kernels, which are GPU events of one name and category."""

    label: str  #: the name of the bar
    chart_input: ChartInput  #: the input as the user wrote it
    kernel: list[str]  #: the name of each kernel, longest time first, (k,)
    category: list[str]  #: the category of each kernel, (k,)
    instances: Int64Array  #: the number of GPU events of each kernel, (k,)
    #: the time during which each kernel ran and no GPU event that started earlier did, (k,)
    gpu_ns_of_kernel: Int64Array
    elapsed_ns: int  #: the length of the whole bar; never less than the GPU time
    #: the source of the elapsed time: `given`, `the trace` or `GPU time`
    elapsed_from: str
    devices: tuple[int, ...]  #: the GPUs whose events are part of the bar
    notes: tuple[str, ...] = ()  #: remarks for the user, one sentence each
    #: problems that the user should solve, one clause each
    warnings: tuple[str, ...] = ()

    @property
    def gpu_ns(self) -> int:
        """The time during which at least one GPU was busy."""
        return int(self.gpu_ns_of_kernel.sum())

    @property
    def not_gpu_ns(self) -> int:
        """The elapsed time without GPU work."""
        return self.elapsed_ns - self.gpu_ns


def measure_run(
    gpu_events: GpuEvents, chart_input: ChartInput, position: int
) -> EngineRun:
    """Measure an input with all of its GPUs together.

    Args:
        gpu_events: the GPU events of the trace.
        chart_input: the input.
        position: the number of the input, which is part of its label.
    """
    return measure(gpu_events, chart_input, position)[0]


def measure(
    gpu_events: GpuEvents, chart_input: ChartInput, position: int, split: str = ""
) -> list[EngineRun]:
    """Measure an input as a whole, or split into devices or serving phases.

    Args:
        gpu_events: the GPU events of the trace.
        chart_input: the input.
        position: the number of the input, which is part of its label.
        split: `device`, `phase`, or empty for the whole input.

    Raises:
        TraceError: the trace has no GPU event.
        UsageError: the trace has no serving phases.
    """
    if not len(gpu_events):
        remedy = (
            "record it with GPU activity "
            "(nsys profile -t cuda; ProfilerActivity.CUDA in PyTorch)"
        )
        raise TraceError(
            path=chart_input.path, problem="contains no GPU event", remedy=remedy
        )
    if split == "device":
        return _by_device(gpu_events, chart_input, position)
    whole = _whole_run(gpu_events, chart_input, position)
    if split == "phase":
        return _by_phase(gpu_events, whole)
    return [whole]


def _by_device(
    gpu_events: GpuEvents, chart_input: ChartInput, position: int
) -> list[EngineRun]:
    """Measure each GPU of a trace separately."""
    runs = []
    for device in np.unique(gpu_events.trace.device).tolist():
        name = "?" if device == NONE else device
        is_on_device = gpu_events.trace.device == device
        bar = _BarInput(
            chart_input=chart_input,
            label=f"{chart_input.label(position)}_gpu{name}",
            devices=[device],
        )
        runs.append(_measure_events(gpu_events, bar, is_on_device))
    return runs


def _whole_run(
    gpu_events: GpuEvents, chart_input: ChartInput, position: int
) -> EngineRun:
    """Measure all GPUs of a trace together."""
    devices = np.unique(gpu_events.trace.device).tolist()
    bar = _BarInput(
        chart_input=chart_input, label=chart_input.label(position), devices=devices
    )
    all_events = np.ones(len(gpu_events), dtype=bool)
    run = _measure_events(gpu_events, bar, all_events)
    if len(devices) < 2:
        return run
    note = (
        f"the trace has {len(devices)} GPUs: time during which several are busy "
        "counts once, for the GPU event that started first; use --per-device to draw "
        "one bar per GPU"
    )
    return replace(run, notes=run.notes + (note,))


def _by_phase(gpu_events: GpuEvents, whole: EngineRun) -> list[EngineRun]:
    """Measure each serving phase separately.

    The time without GPU work is divided among the phases in proportion to the idle time before
    their GPU work.
    """
    steps = find_steps(gpu_events.tree)
    if not len(steps):
        raise UsageError(
            f"{whole.chart_input.path}: no annotation of a serving engine names a phase; "
            "leave out --by-phase"
        )
    phase = steps.phase_of_gpu
    gaps = classify_gaps(gpu_events, "device").gaps
    idle_of_phase = sums(
        group_index=phase[gaps.after],
        values=gaps.duration,
        group_count=len(steps.labels),
    )
    total_idle = max(int(idle_of_phase.sum()), 1)
    runs = []
    for number in np.unique(phase[phase >= 0]).tolist():
        bar = _BarInput(
            chart_input=whole.chart_input,
            label=f"{whole.label}_{steps.labels[number]}",
            devices=whole.devices,
        )
        run = _measure_events(gpu_events, bar, phase == number)
        not_gpu_ns = whole.not_gpu_ns * int(idle_of_phase[number]) // total_idle
        run = replace(
            run,
            elapsed_ns=run.gpu_ns + not_gpu_ns,
            elapsed_from=whole.elapsed_from,
            notes=whole.notes,
        )
        runs.append(run)
    return runs


class NoteAbout(NamedTuple):
    """A note, and the names of the bars to which it applies."""

    note: str
    names: str  #: separated by commas


def names_of_notes(notes: Iterable[tuple[str, Iterable[str]]]) -> list[NoteAbout]:
    """Return each distinct note once, in order, with the names to which it applies.

    Args:
        notes: a name and its notes, for each name.
    """
    names_of_note: dict[str, dict[str, None]] = {}
    for name, notes_of_name in notes:
        for note in notes_of_name:
            names_of_note.setdefault(note, {})[name] = None
    return [NoteAbout(note, ", ".join(names)) for note, names in names_of_note.items()]


class _BarInput(NamedTuple):
    """The part of an input that one bar shows."""

    chart_input: ChartInput
    label: str
    devices: Sequence[int]  #: the GPUs whose events are part of the bar


@dataclass(frozen=True)
class _Elapsed:
    """The length of a bar."""

    ns: int
    source: str  #: `given`, `the trace` or `GPU time`
    warnings: tuple[str, ...] = ()


def _elapsed(gpu_events: GpuEvents, chart_input: ChartInput, gpu_ns: int) -> _Elapsed:
    """Return the run time that the user gave, or else the one in the trace.

    A run time below the GPU time must be wrong, so the GPU time is used instead.
    """
    if not chart_input.elapsed_ns:
        return _Elapsed(gpu_events.trace.span_ns, "the trace")
    if chart_input.elapsed_ns >= gpu_ns:
        return _Elapsed(chart_input.elapsed_ns, "given")
    given_text = f"{chart_input.elapsed_ns / NS_PER_S:,.6g} s"
    gpu_text = f"{gpu_ns / NS_PER_S:,.6g} s"
    warning = f"{given_text} elapsed is less than the GPU time of {gpu_text}, which is used instead"
    return _Elapsed(ns=gpu_ns, source="GPU time", warnings=(warning,))


def _measure_events(
    gpu_events: GpuEvents, bar: _BarInput, chosen: BoolArray
) -> EngineRun:
    """Measure the chosen GPU events of a trace."""
    code, labels = _categories(gpu_events)
    time = non_overlapped_time(gpu_events.start[chosen], gpu_events.end[chosen])
    groups = group_durations([gpu_events.name[chosen], code[chosen]], time)
    name_of_group, category_of_group = groups.keys
    gpu_ns = int(time.sum())
    elapsed = _elapsed(
        gpu_events=gpu_events, chart_input=bar.chart_input, gpu_ns=gpu_ns
    )
    return EngineRun(
        label=bar.label,
        chart_input=bar.chart_input,
        kernel=texts(name_of_group, gpu_events.trace.names),
        category=texts(category_of_group, labels),
        instances=groups.count,
        gpu_ns_of_kernel=groups.total,
        elapsed_ns=elapsed.ns,
        elapsed_from=elapsed.source,
        devices=tuple(device for device in bar.devices if device != NONE),
        notes=tuple(gpu_events.trace.provenance.notes),
        warnings=elapsed.warnings,
    )


class _RunCategories(NamedTuple):
    """The category of each GPU event."""

    code: Int64Array  #: the index of each GPU event's category in `labels`, (g,)
    labels: list[str]


def _categories(gpu_events: GpuEvents) -> _RunCategories:
    """Return the category of each GPU event.

    Engine/model maps are written for the names of copies and memsets in Nsight Systems, such as
    `[CUDA memset]`. Therefore, the maps are applied to these names, whatever the trace calls them.
    """
    categories = gpu_events.needed_categories
    code = categories.code.astype(np.int64)
    events = np.flatnonzero(~gpu_events.is_kernel)
    name_and_kind = np.column_stack((gpu_events.name[events], gpu_events.kind[events]))
    distinct, number = np.unique(name_and_kind, axis=0, return_inverse=True)
    names = [gpu_events.trace.names[name] for name in distinct[:, 0].tolist()]
    by_map = _memory_categories(
        categorizer=gpu_events.op_categorizer,
        names=names,
        kinds=distinct[:, 1].tolist(),
    )
    new_labels = [category for category in by_map if category]
    labels = list(dict.fromkeys(categories.labels + new_labels))
    code_of_label = {label: index for index, label in enumerate(labels)}
    code_by_map = [code_of_label[category] if category else NONE for category in by_map]
    code_of_event = np.array(code_by_map, dtype=np.int64)[number]
    code[events] = np.where(code_of_event == NONE, code[events], code_of_event)
    return _RunCategories(code, labels)


def _memory_categories(
    categorizer: Categorizer, names: list[str], kinds: list[int]
) -> list[str | None]:
    """Return the categories that a map assigns to copies and memsets.

    A category is None if only the catch-all rule of the map matches.
    """
    if not names:
        return []
    if not isinstance(categorizer, KernelCategorizer):
        return [None] * len(names)
    # The user's own rules are written for the names in the trace, and take precedence.
    user_rules = {bound.name for bound in categorizer.packs if bound.origin == "rules"}
    by_recorded_name = categorizer.categorize(names)
    nsight_names = [
        _nsight_name(name, kind) for name, kind in zip(names, kinds, strict=True)
    ]
    by_nsight_name = categorizer.categorize(nsight_names)
    categories: list[str | None] = []
    for index, pack in enumerate(by_recorded_name.pack):
        results = [by_nsight_name, by_recorded_name]
        if pack in user_rules:
            results = [by_recorded_name]
        known_categories = [
            result.category[index] for result in results if result.known[index]
        ]
        categories.append(known_categories[0] if known_categories else None)
    return categories


def _nsight_name(name: str, kind: int) -> str:
    """Return the name of a copy or memset in Nsight Systems: `[CUDA memcpy Host-to-Device]`."""
    if name.startswith("[CUDA mem"):
        return name
    if kind == EventKind.MEMSET:
        return "[CUDA memset]"
    direction = _DIRECTION.search(name)
    if direction is None:
        return "[CUDA memcpy]"
    source, target = direction.groups()
    return f"[CUDA memcpy {_MEMORY_KINDS[source]}-to-{_MEMORY_KINDS[target]}]"


ELAPSED: Final = "Elapsed Time (sec)"
TOTAL: Final = "total_elapsed_sec"


def kernel_table(runs: Sequence[EngineRun]) -> pd.DataFrame:
    """Return the table in `result.csv`: the category and time of each kernel of each run.

    The rows are ordered by category, then by run, then by time, longest first. Each run has a row
    `CPU(non-GPU)`.
    """
    parts = []
    for run in runs:
        elapsed_ns = np.append(run.gpu_ns_of_kernel, run.not_gpu_ns)
        columns = {
            "Model_Engine": run.label,
            "Category": run.category + [NOT_GPU],
            "Instances": run.instances.tolist() + [1],
            "Name": run.kernel + [NOT_GPU],
            ELAPSED: elapsed_ns / NS_PER_S,
        }
        parts.append(pd.DataFrame(columns))
    # A stable sort keeps the order of runs, and of kernels by time, within a category.
    return pd.concat(parts).sort_values("Category", kind="stable", ignore_index=True)


def category_table(runs: Sequence[EngineRun]) -> pd.DataFrame:
    """Return the elapsed seconds of each category (rows) in each run (columns).

    The largest category comes first, and `CPU(non-GPU)` comes last.
    """
    seconds = []
    for run in runs:
        ns = pd.Series(run.gpu_ns_of_kernel, index=run.category, dtype="int64")
        seconds.append(ns.groupby(level=0, sort=False).sum() / NS_PER_S)
    table = pd.concat(seconds, axis=1, keys=range(len(runs)), sort=False)
    order = np.argsort(-table.sum(axis=1).to_numpy(), kind="stable")
    not_gpu = [run.not_gpu_ns / NS_PER_S for run in runs]
    last_row = pd.DataFrame([not_gpu], index=[NOT_GPU])
    return pd.concat([table.iloc[order], last_row])


def input_table(runs: Sequence[EngineRun]) -> pd.DataFrame:
    """Return the file, engine and model, elapsed time and GPU time of each bar."""
    rows = [
        {
            "Model_Engine": run.label,
            "file": encodable(str(run.chart_input.path)),
            "engine": encodable(run.chart_input.engine),
            "model": encodable(run.chart_input.model),
            "elapsed (sec)": run.elapsed_ns / NS_PER_S,
            "elapsed from": run.elapsed_from,
            "GPU (sec)": run.gpu_ns / NS_PER_S,
            "GPU (%)": 100.0 * run.gpu_ns / (run.elapsed_ns or 1),
            "GPU events": int(run.instances.sum()),
            "GPUs": ", ".join(map(str, run.devices)),
        }
        for run in runs
    ]
    return pd.DataFrame(rows)
