"""Explains why a trace has no GPU work, as far as the file shows, and how to record GPU work."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tracelens_ext.analysis.coverage.coverage import Coverage, coverage_of
from tracelens_ext.analysis.coverage.program import program_of
from tracelens_ext.text import counted
from tracelens_ext.trace import EventKind, Trace
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import number_groups
from tracelens_ext.trace.linking import is_graph_launch

#: The option or activity with which each tool records GPU work.
_RECORD_GPU: Final = {
    "torch": "ProfilerActivity.CUDA",
    "nsys": "nsys profile -t cuda",
    "rocprofv3": "rocprofv3 --kernel-trace --memory-copy-trace",
}
#: The activity with which PyTorch's profiler records each other accelerator, and a pattern of the
#: categories, processes and devices in its traces.
_RECORD_ACCELERATOR: Final = {
    "ProfilerActivity.XPU": re.compile(r"xpu_|Intel\(R\)|LEVEL-ZERO"),
    "ProfilerActivity.MTIA": re.compile(r"mtia_|MTIA"),
    "ProfilerActivity.HPU": re.compile(r"hpu_|HPU"),
    "torch_npu.profiler.ProfilerActivity.NPU": re.compile(r"async_npu|NPU|Ascend"),
}
#: How JAX names the processes of TPUs.
_TPU: Final = "/device:TPU"
#: Categories of PyTorch's profiler whose events are not work of an accelerator.
_NOT_WORK: Final = frozenset(
    {"Trace", "overhead", "Overhead", "cuda_sync", "gpu_user_annotation"}
)


def no_gpu_work(gpu_events: GpuEvents) -> str:
    """Return a sentence or two: why the trace has no GPU work, and how to record it."""
    trace = gpu_events.trace
    recording = coverage_of(gpu_events)
    if is_of_tpu(trace):
        return "This is a TPU profile; only its CPU part is analyzed."
    if trace.provenance.salvaged:
        return _maybe_in_the_lost_part(trace, recording)
    if recording.launch_count:
        return _launched_but_not_recorded(trace, recording)
    unsupported = _unsupported_events(trace)
    if unsupported:
        return (
            "No GPU work was read. These events, which may be GPU work, are not "
            f"supported: {unsupported}."
        )
    tool = program_of(trace).tool
    activity = _accelerator_activity(trace) if tool == "torch" else None
    if activity is not None:
        devices = [device.name for device in trace.devices if device.name]
        accelerator = ", ".join(dict.fromkeys(devices)) or "an accelerator"
        return (
            f"The trace contains no work of {accelerator}; record it with {activity}."
        )
    remedy = _RECORD_GPU.get(tool)
    if tool == "torch":
        return (
            "The trace contains no GPU work. If the program uses a GPU, record it "
            f"with {remedy}."
        )
    if remedy is not None:
        return f"The trace contains no GPU work; record it with {remedy}."
    return "The trace contains no GPU work."


def is_of_tpu(trace: Trace) -> bool:
    """Return True if a trace is a profile of TPUs and contains no GPU work."""
    has_tpu = any(str(name).startswith(_TPU) for name in trace.process_names.values())
    return has_tpu and not len(trace.gpu_rows)


def _maybe_in_the_lost_part(trace: Trace, recording: Coverage) -> str:
    """Return the explanation for a truncated file."""
    part = "The readable part of the file contains"
    if recording.launch_count:
        launches = counted(recording.launch_count, "launch", "launches")
        part += f" {launches} but"
    return (
        f"{part} no GPU work, which may be in the lost part. "
        f"{trace.provenance.salvaged}"
    )


def _launched_but_not_recorded(trace: Trace, recording: Coverage) -> str:
    """Return how much was launched, and the profiler's own notes about missing work."""
    is_graph = trace.named(trace.name[recording.unmatched_rows], is_graph_launch)
    has_graphs = bool(is_graph.any())
    if recording.launch_count == 1:
        launched = "1 graph was" if has_graphs else "1 kernel was"
        sentence = f"{launched} launched, but not recorded."
    else:
        launched = "kernels and graphs" if has_graphs else "kernels"
        sentence = f"{recording.launch_count:,} {launched} were launched, but none was recorded."
    for note in trace.provenance.notes:
        sentence += f" {note}"
        if not note.endswith((".", "?", "!")):
            sentence += "."
    return sentence


def _unsupported_events(trace: Trace) -> str:
    """Return the events that may be GPU work of an unknown kind, by category and process.

    Only PyTorch's traces are searched. The text is empty if there are no such events.
    """
    if not trace.provenance.format.startswith("PyTorch"):
        return ""
    rows = trace.rows_of(EventKind.OTHER)
    rows = rows[trace.dur[rows] > 0]
    if len(trace.categories):
        is_work = [name not in _NOT_WORK for name in trace.categories]
        rows = rows[np.array(is_work, dtype=bool)[trace.category[rows]]]
    if not len(rows):
        return ""
    first, group = number_groups([trace.category[rows], trace.thread[rows]])
    events_in_group = np.bincount(group).tolist()
    counts: dict[str, int] = {}
    for row, count in zip(rows[first].tolist(), events_in_group, strict=True):
        label = _kind_of_event(trace, row)
        counts[label] = counts.get(label, 0) + count
    parts = [f"{counted(count, 'event')} {label}" for label, count in counts.items()]
    return ", ".join(parts)


def _kind_of_event(trace: Trace, row: int) -> str:
    """Return the category of an event and the name of its process, if the process has one."""
    kind = "without a category"
    category = trace.categories[trace.category[row]]
    if category:
        kind = f"of the category {category}"
    process, _ = trace.threads[trace.thread[row]]
    name = trace.process_names.get(process, "")
    if name:
        kind = f"{kind} under {name!r}"
    return kind


def _accelerator_activity(trace: Trace) -> str | None:
    """Return the activity that records the accelerator that the trace names; None without one."""
    names = list(trace.categories)
    names += [str(name) for name in trace.process_names.values()]
    names += [str(label) for label in trace.process_labels.values()]
    names += [device.name for device in trace.devices if device.name]
    for activity, pattern in _RECORD_ACCELERATOR.items():
        if any(pattern.search(name) for name in names):
            return activity
    return None
