"""The share of the CPU's time that recording stacks and shapes may take."""

from __future__ import annotations

from typing import Final

from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.recording_cost import recorder_percent
from tracelens_ext.findings.texts import (
    PYTORCH_PROGRAMS,
    AdviceVariant,
    EvidenceText,
    FindingText,
)

TEXT: Final = FindingText(
    title="Recording stacks and shapes may take {percent:.0f} % of the CPU time",
    advices=(
        AdviceVariant(
            kinds=PYTORCH_PROGRAMS,
            advice=(
                "Compare the time of a step with a run without the profiler, or record without "
                "stacks and shapes, before changing the program: the profiler slows down the "
                "CPU, for which the GPU waits here."
            ),
            snippet="torch.profiler.profile(with_stack=False, record_shapes=False)",
        ),
        AdviceVariant(
            kinds=("jax",),
            advice=(
                "Compare the time of a step with a run without the profiler, or record without "
                "Python frames: the profiler slows down the CPU, for which the GPU waits here."
            ),
            snippet="options.python_tracer_level = 0",
        ),
        AdviceVariant(
            advice=(
                "Compare the time of a step with a run without the profiler, or record less of "
                "the CPU: the profiler slows down the CPU, for which the GPU waits here."
            ),
        ),
    ),
    confidence="low",
    reason="estimated at 0.5 µs per Python frame and 1 µs per operation with shapes",
    evidence={
        "percent": EvidenceText(
            what="estimated for the launching threads", unit="%", see="cpu_ops"
        ),
    },
)


@detector("profiler-overhead", TEXT)
def profiler_overhead(inspection: Inspection) -> Finding | None:
    """Report the share of the CPU's time that recording stacks and shapes may take."""
    percent = recorder_percent(inspection)
    if not percent:
        return None
    values = {"percent": percent}
    return inspection.finding(
        "profiler-overhead", None, values, text=TEXT, values=values
    )
