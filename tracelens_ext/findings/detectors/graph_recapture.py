"""Idle time of the GPU while the CPU captures a graph again."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracelens_ext.analysis.coverage.warm_up_events import instantiations
from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.texts import (
    PYTORCH_JOBS,
    AdviceVariant,
    EvidenceText,
    FindingText,
)
from tracelens_ext.trace.launches import captures, find_launches

TEXT: Final = FindingText(
    title="GPU waits for graph capture: {saving}",
    advices=(
        AdviceVariant(
            kinds=("serving",),
            advice=(
                "Capture a graph for each batch size at the start, and pad batches to those "
                "sizes (the engine's list of capture sizes)."
            ),
        ),
        AdviceVariant(
            kinds=PYTORCH_JOBS,
            advice=(
                "Capture each graph once and launch it often: copy inputs into buffers that "
                "stay, keep one graph per size, and pad to those sizes."
            ),
            snippet="static_input.copy_(batch); graph.replay()",
        ),
        AdviceVariant(
            advice=(
                "Capture each graph once and launch it often: update the parameters of its "
                "nodes (cudaGraphExecUpdate, hipGraphExecUpdate) and keep its buffers."
            ),
        ),
    ),
    confidence="high",
    reason="the CPU was capturing or instantiating during all of this idle time",
    evidence={
        "captures": EvidenceText(what="captures", unit="captures", see="tree"),
        "graph_launches": EvidenceText(what="graph launches", unit="calls", see="tree"),
    },
)


@detector("graph-recapture", TEXT)
def graph_recapture(inspection: Inspection) -> Finding | None:
    """Detect idle time of the GPU while the CPU captures or instantiates a graph."""
    trace = inspection.gpu_events.trace
    launches = find_launches(inspection.gpu_events)
    graph_launches = int(launches.is_graph.sum())
    capture_starts, capture_ends = captures(trace)
    instantiating_calls = instantiations(trace)
    rows = np.append(capture_starts, instantiating_calls)
    last_rows = np.append(capture_ends, instantiating_calls)
    until = trace.end_of(last_rows)
    claim = inspection.claim(lambda wall: wall.claim_idle_during(rows, until))
    numbers = {"captures": len(capture_starts), "graph_launches": graph_launches}
    return inspection.finding("graph-recapture", claim, numbers, text=TEXT)
