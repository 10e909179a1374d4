"""How much of the host's time recording stacks and shapes may be."""

from __future__ import annotations

from typing import Final

from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.recording_cost import recorder_percent
from tracelens_ext.findings.texts import Advice, EvidenceText, FindingText

TEXT: Final = FindingText(
    title="Recording stacks and shapes may be {percent:.0f} % of the host's time",
    advice=(
        "The GPU waits for the host here, and the profiler makes the host slower: compare the "
        "time of a step with a run without the profiler, or record without stacks and shapes, "
        "before changing the program."
    ),
    snippet="torch.profiler.profile(with_stack=False, record_shapes=False)",
    confidence="low",
    reason="0.5 µs a Python frame and 1 µs an operation with shapes is an estimate",
    evidence={
        "percent": EvidenceText("estimated for the launching threads", "%", "cpu_ops"),
    },
    advice_for={
        "jax": Advice(
            (
                "The GPU waits for the host here, and the profiler makes the host slower: "
                "compare the time of a step with a run without it, or record without Python's "
                "frames."
            ),
            "options.python_tracer_level = 0",
        ),
        "other": Advice(
            (
                "The GPU waits for the host here, and the profiler makes the host slower: "
                "compare the time of a step with a run without it, or record less of the host."
            ),
        ),
    },
)


@detector("profiler-overhead", TEXT)
def profiler_overhead(inspection: Inspection) -> Finding | None:
    """How much of the CPU's time recording stacks and shapes may be."""
    percent = recorder_percent(inspection)
    if not percent:
        return None
    values = {"percent": percent}
    return inspection.finding(
        "profiler-overhead", None, values, text=TEXT, values=values
    )
