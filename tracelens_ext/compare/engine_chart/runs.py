"""The inputs of a chart, measured: GPU time by kernel and category, and what is not GPU time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

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
    gpu_ns_of: Int64Array  #: time in which a kernel was the first to cover the GPU, shape (k,)
    elapsed_ns: int  #: the whole bar; never less than the GPU time
    elapsed_from: str  #: where that was taken from: `given`, `the trace` or `GPU time`
    devices: tuple[int, ...]  #: the GPUs of the trace whose events are in it
    notes: tuple[str, ...] = ()  #: what the reader should know, a sentence each
    warnings: tuple[str, ...] = ()  #: what the user should do something about, a clause each

    @property
    def gpu_ns(self) -> int:
        """Time in which the GPU (any of several) was busy."""
        return int(self.gpu_ns_of.sum())

    @property
    def not_gpu_ns(self) -> int:
        """The elapsed time without GPU work."""
        return self.elapsed_ns - self.gpu_ns


def measure_run(work: GpuEvents, given: ChartInput, position: int) -> EngineRun:
    """Measure an input, all its GPUs together."""
    return measure(work, given, position)[0]


def measure(work: GpuEvents, given: ChartInput, position: int, split: str = "") -> list[EngineRun]:
    """Measure an input: as a whole, or split by `device` or by `phase` of serving.

    The time without GPU work is divided as the idle time before the work of each phase is.
    """
    if not len(work):
        remedy = (
            "record it with GPU activity (nsys profile -t cuda; ProfilerActivity.CUDA in PyTorch)"
        )
        raise TraceError(given.path, "holds no GPU event", remedy)
    label = given.label(position)
    notes = work.trace.provenance.notes
    devices: list[int] = np.unique(work.trace.device).tolist()
    if split == "device":
        bars = {each: f"{label}_gpu{'?' if each == NONE else each}" for each in devices}
        on = work.trace.device
        return [_measured(work, given, bars[n], on == n, [n], notes) for n in devices]
    if len(devices) > 1:
        several = (
            f"the trace has {len(devices)} GPUs: an instant in which several are busy counts once,"
            " for the GPU event that started first; --per-device draws a bar for each"
        )
        notes = (*notes, several)
    whole = _measured(work, given, label, np.ones(len(work), dtype=bool), devices, notes)
    if split != "phase":
        return [whole]
    steps = find_steps(work.tree)
    if not len(steps):
        raise UsageError(
            f"{given.path}: no annotation of a serving engine names a phase; leave out --by-phase"
        )
    phase = steps.phase_of_gpu
    gaps = classify_gaps(work, "device").gaps
    idle = sums(phase[gaps.after], gaps.duration, len(steps.labels))
    runs = []
    for number in np.unique(phase[phase >= 0]).tolist():
        named = f"{label}_{steps.labels[number]}"
        run = _measured(work, given, named, phase == number, devices, notes)
        share = int(whole.not_gpu_ns * int(idle[number]) // max(int(idle.sum()), 1))
        elapsed = run.gpu_ns + share
        runs.append(replace(run, elapsed_ns=elapsed, elapsed_from=whole.elapsed_from))
    return runs


def grouped(notes: Iterable[tuple[str, Iterable[str]]]) -> list[tuple[str, str]]:
    """Each distinct note once, in order, with the names that it is about, separated by commas."""
    about: dict[str, dict[str, None]] = {}
    for name, own in notes:
        for note in own:
            about.setdefault(note, {})[name] = None
    return [(note, ", ".join(names)) for note, names in about.items()]


def _measured(
    work: GpuEvents,
    given: ChartInput,
    label: str,
    chosen: BoolArray,
    devices: Sequence[int],
    notes: tuple[str, ...],
) -> EngineRun:
    code, labels = _categories(work)
    share = non_overlapped_time(work.start[chosen], work.end[chosen])
    groups = group_durations([work.name[chosen], code[chosen]], share)
    gpu_ns = int(share.sum())
    warnings = tuple[str, ...]()
    elapsed_ns = given.elapsed_ns
    source = "given"
    if not elapsed_ns:
        elapsed_ns = work.trace.span_ns
        source = "the trace"
    elif elapsed_ns < gpu_ns:
        told, used = (f"{ns / NS_PER_S:,.6g} s" for ns in (elapsed_ns, gpu_ns))
        warnings = (f"{told} elapsed is less than the GPU time, {used}, which is used instead",)
        elapsed_ns = gpu_ns
        source = "GPU time"
    return EngineRun(
        label=label,
        given=given,
        kernel=texts(groups.keys[0], work.trace.names),
        category=texts(groups.keys[1], labels),
        instances=groups.count,
        gpu_ns_of=groups.total,
        elapsed_ns=elapsed_ns,
        elapsed_from=source,
        devices=tuple(device for device in devices if device != NONE),
        notes=notes,
        warnings=warnings,
    )


def _categories(work: GpuEvents) -> tuple[Int64Array, list[str]]:
    """The category of each GPU event: codes, shape (g,), and what they stand for.

    Engine/model maps are written for the names that Nsight Systems gives to copies and sets
    (`CUDA mem`), so they are asked about these, whatever the trace calls them.
    """
    found = work.needed_categories
    code = found.code.astype(np.int64)
    labels = list(found.labels)
    events = np.flatnonzero(~work.is_kernel)
    pairs = np.column_stack((work.name[events], work.kind[events]))
    distinct, number = np.unique(pairs, axis=0, return_inverse=True)
    names = [work.trace.names[name] for name in distinct[:, 0].tolist()]
    told = _memory_categories(work.op_categorizer, names, distinct[:, 1].tolist())
    labels = list(dict.fromkeys([*labels, *filter(None, told)]))
    of_event = np.array([labels.index(name) if name else NONE for name in told], np.int64)[number]
    code[events] = np.where(of_event == NONE, code[events], of_event)
    return code, labels


def _memory_categories(
    categorizer: Categorizer, names: list[str], kinds: list[int]
) -> list[str | None]:
    """What the map says of copies and sets; None if only its catch-all matches."""
    if not names:
        return []
    if not isinstance(categorizer, KernelCategorizer):
        return [None] * len(names)
    # The user's own rules are about the names of the trace, and win.
    rules = {bound.name for bound in categorizer.packs if bound.origin == "rules"}
    own = categorizer.categorize(names)
    spelled = categorizer.categorize([*map(_nsight_name, names, kinds)])
    return [
        next((found.category[at] for found in (first, own) if found.known[at]), None)
        for at, first in enumerate(own if pack in rules else spelled for pack in own.pack)
    ]


def _nsight_name(name: str, kind: int) -> str:
    """What Nsight Systems calls a copy or a set: `[CUDA memcpy Host-to-Device]`."""
    if name.startswith("[CUDA mem"):
        return name
    if kind == EventKind.MEMSET:
        return "[CUDA memset]"
    way = _DIRECTION.search(name)
    return f"[CUDA memcpy {_PLACES[way[1]]}-to-{_PLACES[way[2]]}]" if way else "[CUDA memcpy]"


ELAPSED: Final = "Elapsed Time (sec)"
TOTAL: Final = "total_elapsed_sec"


def kernel_table(runs: Sequence[EngineRun]) -> pd.DataFrame:
    """How kernel names map to categories, and the time in which each was the first on the GPU.

    This is `result.csv`: by category, in the order of the runs, the longest first; `CPU(non-GPU)`
    is a row of each run.
    """
    parts = [
        pd.DataFrame(
            {
                "Model_Engine": run.label,
                "Category": [*run.category, NOT_GPU],
                "Instances": [*run.instances.tolist(), 1],
                "Name": [*run.kernel, NOT_GPU],
                ELAPSED: np.append(run.gpu_ns_of, run.not_gpu_ns) / NS_PER_S,
            }
        )
        for run in runs
    ]
    # Stable: within a category runs keep their order, and kernels their order by time.
    return pd.concat(parts).sort_values("Category", kind="stable", ignore_index=True)


def category_table(runs: Sequence[EngineRun]) -> pd.DataFrame:
    """Elapsed seconds: a row a category, the largest first, `CPU(non-GPU)` last; a column a run."""
    times = [pd.Series(run.gpu_ns_of, index=run.category, dtype="int64") for run in runs]
    sums = [ns.groupby(level=0, sort=False).sum() / NS_PER_S for ns in times]
    frame = pd.concat(sums, axis=1, keys=range(len(runs)), sort=False)
    order = np.argsort(-frame.sum(axis=1).to_numpy(), kind="stable")
    rest = pd.DataFrame([[run.not_gpu_ns / NS_PER_S for run in runs]], index=[NOT_GPU])
    return pd.concat([frame.iloc[order], rest])


def input_table(runs: Sequence[EngineRun]) -> pd.DataFrame:
    """What each bar is of: file, engine and model, elapsed and GPU time."""
    return pd.DataFrame(
        {
            "Model_Engine": [run.label for run in runs],
            "file": [encodable(str(run.given.path)) for run in runs],
            "engine": [encodable(run.given.engine) for run in runs],
            "model": [encodable(run.given.model) for run in runs],
            "elapsed (sec)": [run.elapsed_ns / NS_PER_S for run in runs],
            "elapsed from": [run.elapsed_from for run in runs],
            "GPU (sec)": [run.gpu_ns / NS_PER_S for run in runs],
            "GPU (%)": [100.0 * run.gpu_ns / (run.elapsed_ns or 1) for run in runs],
            "GPU events": [int(run.instances.sum()) for run in runs],
            "GPUs": [", ".join(map(str, run.devices)) for run in runs],
        }
    )
