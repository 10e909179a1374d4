"""A kernel without a performance model that takes more than half of GPU time; only informs."""

from __future__ import annotations

import shlex
from typing import Final

import numpy as np

from tracelens_ext.categorize.kernel_names import short_name
from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.texts import EvidenceText, FindingText
from tracelens_ext.hooks import default_registry
from tracelens_ext.roofline.analysis import RooflineRow
from tracelens_ext.roofline.models import model_of, offered_models
from tracelens_ext.trace import NS_PER_MS

TEXT: Final = FindingText(
    title="Kernel {name} takes {part:.0f} % of GPU time and has no performance model",
    advice="Find out what limits it with a kernel profiler: {command}",
    confidence="high",
    reason="a trace shows how long a kernel takes, not how fast it could be",
    evidence={
        "calls": EvidenceText("calls", "GPU events", "kernels"),
        "time_ms": EvidenceText("their time", "ms", "kernels"),
    },
    informs_only=True,
)

#: The share of GPU time from which on a kernel is dominant.
_LEAST_SHARE: Final = 0.5
_COMMANDS: Final = {
    "ncu": "ncu --set full --kernel-name {name} --launch-count 3 -o dominant <your command>",
    "rocprof-compute": "rocprof-compute profile -n dominant -k {name} -- <your command>",
}


@detector("dominant-kernel", TEXT)
def dominant_kernel(inspection: Inspection) -> Finding | None:
    """Detect a kernel without a performance model that takes more than half of GPU time."""
    gpu_events = inspection.gpu_events
    ns_of_names = np.bincount(gpu_events.name, gpu_events.duration, minlength=1)
    total_ns = float(ns_of_names.sum())
    largest = int(ns_of_names.argmax())
    is_transfer = gpu_events.is_communication | gpu_events.is_copy
    is_largest = (gpu_events.name == largest) & gpu_events.is_kernel & ~is_transfer
    # If there is only one kernel, everybody knows that it takes all the time.
    is_only_name = np.count_nonzero(ns_of_names) < 2
    if (
        is_only_name
        or not is_largest.any()
        or ns_of_names[largest] <= _LEAST_SHARE * total_ns
    ):
        return None
    models = offered_models(default_registry())

    def has_model(row: RooflineRow) -> bool:
        """Return whether a model exists for an operation, even if shapes for it are missing."""
        return bool(model_of(row.operation.model_name, models))

    is_unknown = is_largest & (inspection.by_operation(has_model) == 0)
    if gpu_events.duration[is_unknown].sum() <= _LEAST_SHARE * total_ns:
        return None
    without_arguments = (
        short_name(gpu_events.trace.names[largest]).partition("<")[0].partition("(")[0]
    )
    name = without_arguments.strip()
    command = _COMMANDS[inspection.kernel_profiler].format(name=shlex.quote(name))
    numbers = {
        "calls": int(is_largest.sum()),
        "time_ms": float(ns_of_names[largest]) / NS_PER_MS,
    }
    values = {
        "part": 100 * ns_of_names[largest] / total_ns,
        "name": name,
        "command": command,
    }
    return inspection.finding(
        "dominant-kernel",
        inspection.wall.about(is_largest),
        numbers,
        text=TEXT,
        values=values,
    )
