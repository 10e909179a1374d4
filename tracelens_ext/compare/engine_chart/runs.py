"""The inputs of a chart, measured: GPU time by kernel and category, and what is not GPU time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.analysis.idle_time.causes import classify_gaps
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
"""The category, and the name, of the elapsed time without GPU work."""

_DIRECTION: Final = re.compile(r"([HDAP])(?:ost|evice|rray|eer)?-?[tT]o-?([HDAP])")
_PLACES: Final = {"H": "Host", "D": "Device", "A": "Array", "P": "Peer"}


@dataclass(frozen=True)
class EngineRun:
    """An input and its measures, k kernels (GPU events of one name and category)."""

    label: str  #: what its bar is called
    given: ChartInput  #: as the user named it
    kernel: list[str]  #: the names, as the trace spells them, longest time first
    category: list[str]  #: of each kernel
    instances: Int64Array  #: GPU events of each kernel, shape (k,)
    #: time in which a kernel was the first to cover the GPU, shape (k,)
    gpu_ns_of: Int64Array
    elapsed_ns: int  #: the whole bar; never less than the GPU time
    elapsed_from: str  #: where that was taken from: `given`, `the trace` or `GPU time`
    devices: tuple[int, ...]  #: the GPUs of the trace whose events are in it
    notes: tuple[str, ...] = ()  #: what the reader should know, a sentence each
    #: what the user should do something about, a clause each
    warnings: tuple[str, ...] = ()

    @property
    def gpu_ns(self) -> int:
        """Time in which the GPU (any of several) was busy."""
        return int(self.gpu_ns_of.sum())

    @property
    def not_gpu_ns(self) -> int:
        """The elapsed time without GPU work."""
        return self.elapsed_ns - self.gpu_ns


def measure_run(work: GpuEvents, given: ChartInput, position: int) -> EngineRun:
    """Measure an input, all its GPUs together.

    Args:
        work: the GPU events of its trace.
        given: the input.
        position: its place among all inputs, which its label has.
    """
    return measure(work, given, position)[0]


def measure(
    work: GpuEvents, given: ChartInput, position: int, split: str = ""
) -> list[EngineRun]:
    """Measure an input: as a whole, or split by `device` or by `phase` of serving.

    Args:
        work: the GPU events of its trace.
        given: the input.
        position: its place among all inputs, which its label has.
        split: `device`, `phase`, or empty for the whole.

    Raises:
        TraceError: the trace has no GPU event.
        UsageError: no serving engine names a phase.
    """
    if not len(work):
        remedy = (
            "record it with GPU activity "
            "(nsys profile -t cuda; ProfilerActivity.CUDA in PyTorch)"
        )
        raise TraceError(
            path=given.path, problem="contains no GPU event", remedy=remedy
        )
    if split == "device":
        return _by_device(work, given, position)
    whole = _whole_run(work, given, position)
    if split == "phase":
        return _by_phase(work, whole)
    return [whole]


def _by_device(
    gpu_events: GpuEvents, given: ChartInput, position: int
) -> list[EngineRun]:
    """Measure each GPU of a trace."""
    runs = []
    for device in np.unique(gpu_events.trace.device).tolist():
        name = "?" if device == NONE else device
        is_on_device = gpu_events.trace.device == device
        bar = _Bar(
            given=given, label=f"{given.label(position)}_gpu{name}", devices=[device]
        )
        runs.append(_measured(gpu_events, bar, is_on_device))
    return runs


def _whole_run(gpu_events: GpuEvents, given: ChartInput, position: int) -> EngineRun:
    """Measure all GPUs of a trace together."""
    devices = np.unique(gpu_events.trace.device).tolist()
    bar = _Bar(given=given, label=given.label(position), devices=devices)
    all_events = np.ones(len(gpu_events), dtype=bool)
    run = _measured(gpu_events, bar, all_events)
    if len(devices) < 2:
        return run
    note = (
        f"the trace has {len(devices)} GPUs: time during which several are busy "
        "counts once, for the GPU event that started first; use --per-device to draw "
        "one bar per GPU"
    )
    return replace(run, notes=run.notes + (note,))


def _by_phase(gpu_events: GpuEvents, whole: EngineRun) -> list[EngineRun]:
    """Measure each phase of serving.

    The time without GPU work is divided as the idle time before the work of each phase is.
    """
    steps = find_steps(gpu_events.tree)
    if not len(steps):
        raise UsageError(
            f"{whole.given.path}: no annotation of a serving engine names a phase; "
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
        bar = _Bar(
            given=whole.given,
            label=f"{whole.label}_{steps.labels[number]}",
            devices=whole.devices,
        )
        run = _measured(gpu_events, bar, phase == number)
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
    """A note, and what it is about."""

    note: str
    names: str  #: separated by commas


def grouped(notes: Iterable[tuple[str, Iterable[str]]]) -> list[NoteAbout]:
    """Return each distinct note once, in order, with the names that it is about.

    Args:
        notes: names, each with its notes.
    """
    names_of_note: dict[str, dict[str, None]] = {}
    for name, notes_of_name in notes:
        for note in notes_of_name:
            names_of_note.setdefault(note, {})[name] = None
    return [NoteAbout(note, ", ".join(names)) for note, names in names_of_note.items()]


class _Bar(NamedTuple):
    """A bar that is measured."""

    given: ChartInput
    label: str
    devices: Sequence[int]  #: the GPUs whose events are in it


@dataclass(frozen=True)
class _Elapsed:
    """The length of a bar."""

    ns: int
    source: str  #: `given`, `the trace` or `GPU time`
    warnings: tuple[str, ...] = ()


def _elapsed(gpu_events: GpuEvents, given: ChartInput, gpu_ns: int) -> _Elapsed:
    """Return how long a run took, as the user says or as the trace does."""
    if not given.elapsed_ns:
        return _Elapsed(gpu_events.trace.span_ns, "the trace")
    if given.elapsed_ns >= gpu_ns:
        return _Elapsed(given.elapsed_ns, "given")
    given_text = f"{given.elapsed_ns / NS_PER_S:,.6g} s"
    gpu_text = f"{gpu_ns / NS_PER_S:,.6g} s"
    warning = f"{given_text} elapsed is less than the GPU time of {gpu_text}, which is used instead"
    return _Elapsed(ns=gpu_ns, source="GPU time", warnings=(warning,))


def _measured(gpu_events: GpuEvents, bar: _Bar, chosen: BoolArray) -> EngineRun:
    """Measure the chosen GPU events of a trace."""
    code, labels = _categories(gpu_events)
    time = non_overlapped_time(gpu_events.start[chosen], gpu_events.end[chosen])
    groups = group_durations([gpu_events.name[chosen], code[chosen]], time)
    name_of_group, category_of_group = groups.keys
    gpu_ns = int(time.sum())
    elapsed = _elapsed(gpu_events=gpu_events, given=bar.given, gpu_ns=gpu_ns)
    return EngineRun(
        label=bar.label,
        given=bar.given,
        kernel=texts(name_of_group, gpu_events.trace.names),
        category=texts(category_of_group, labels),
        instances=groups.count,
        gpu_ns_of=groups.total,
        elapsed_ns=elapsed.ns,
        elapsed_from=elapsed.source,
        devices=tuple(device for device in bar.devices if device != NONE),
        notes=tuple(gpu_events.trace.provenance.notes),
        warnings=elapsed.warnings,
    )


class _RunCategories(NamedTuple):
    """The category of each GPU event."""

    code: Int64Array  #: an index into `labels`, (g,)
    labels: list[str]


def _categories(gpu_events: GpuEvents) -> _RunCategories:
    """Return the category of each GPU event.

    Engine/model maps are written for the names that Nsight Systems gives to copies and sets
    (`CUDA mem`), so they are asked about these, whatever the trace calls them.
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
    """Return what the map says of copies and sets; None if only its catch-all matches."""
    if not names:
        return []
    if not isinstance(categorizer, KernelCategorizer):
        return [None] * len(names)
    # The user's own rules are about the names of the trace, and win.
    user_rules = {bound.name for bound in categorizer.packs if bound.origin == "rules"}
    by_recorded_name = categorizer.categorize(names)
    nsight_names = [
        _nsight_name(name, kind) for name, kind in zip(names, kinds, strict=True)
    ]
    by_nsight_name = categorizer.categorize(nsight_names)
    categories: list[str | None] = []
    for index, pack in enumerate(by_recorded_name.pack):
        answers = [by_nsight_name, by_recorded_name]
        if pack in user_rules:
            answers = [by_recorded_name]
        known_categories = [
            answer.category[index] for answer in answers if answer.known[index]
        ]
        categories.append(known_categories[0] if known_categories else None)
    return categories


def _nsight_name(name: str, kind: int) -> str:
    """Return what Nsight Systems calls a copy or a set: `[CUDA memcpy Host-to-Device]`."""
    if name.startswith("[CUDA mem"):
        return name
    if kind == EventKind.MEMSET:
        return "[CUDA memset]"
    direction = _DIRECTION.search(name)
    if direction is None:
        return "[CUDA memcpy]"
    source, target = direction.groups()
    return f"[CUDA memcpy {_PLACES[source]}-to-{_PLACES[target]}]"


ELAPSED: Final = "Elapsed Time (sec)"
TOTAL: Final = "total_elapsed_sec"


def kernel_table(runs: Sequence[EngineRun]) -> pd.DataFrame:
    """Return how kernel names map to categories, and the time in which each was the first.

    This is `result.csv`: by category, in the order of the runs, the longest first; `CPU(non-GPU)`
    is a row of each run.
    """
    parts = []
    for run in runs:
        elapsed_ns = np.append(run.gpu_ns_of, run.not_gpu_ns)
        columns = {
            "Model_Engine": run.label,
            "Category": run.category + [NOT_GPU],
            "Instances": run.instances.tolist() + [1],
            "Name": run.kernel + [NOT_GPU],
            ELAPSED: elapsed_ns / NS_PER_S,
        }
        parts.append(pd.DataFrame(columns))
    # Stable: within a category runs keep their order, and kernels their order by time.
    return pd.concat(parts).sort_values("Category", kind="stable", ignore_index=True)


def category_table(runs: Sequence[EngineRun]) -> pd.DataFrame:
    """Return elapsed seconds by category and run.

    A row for each category, the largest first, `CPU(non-GPU)` last; a column for each run.
    """
    seconds = []
    for run in runs:
        ns = pd.Series(run.gpu_ns_of, index=run.category, dtype="int64")
        seconds.append(ns.groupby(level=0, sort=False).sum() / NS_PER_S)
    table = pd.concat(seconds, axis=1, keys=range(len(runs)), sort=False)
    order = np.argsort(-table.sum(axis=1).to_numpy(), kind="stable")
    not_gpu = [run.not_gpu_ns / NS_PER_S for run in runs]
    last_row = pd.DataFrame([not_gpu], index=[NOT_GPU])
    return pd.concat([table.iloc[order], last_row])


def input_table(runs: Sequence[EngineRun]) -> pd.DataFrame:
    """Return what each bar is of: file, engine and model, elapsed and GPU time."""
    rows = [
        {
            "Model_Engine": run.label,
            "file": encodable(str(run.given.path)),
            "engine": encodable(run.given.engine),
            "model": encodable(run.given.model),
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
