"""The GPU is idle while the host captures a graph again."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracelens_ext.analysis.coverage.warm_up import instantiations
from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.texts import Advice, EvidenceText, FindingText
from tracelens_ext.trace.launches import captures, find_launches

TEXT: Final = FindingText(
    title="Graphs are captured again while the GPU idles for {saving}",
    advice=(
        "Capture each graph once and launch it often: keep addresses and sizes of its inputs "
        "(copy into buffers that stay), keep one graph a size, and pad to those sizes."
    ),
    snippet="static_input.copy_(batch); graph.replay()",
    confidence="high",
    reason="the host was capturing or instantiating during all of this idle time",
    evidence={
        "captures": EvidenceText("captures", "captures", "tree"),
        "graph_launches": EvidenceText("launches of graphs", "calls", "tree"),
    },
    advice_for={
        "serving": Advice(
            (
                "Capture a graph for each batch size at the start and pad batches to those "
                "sizes (the engine's list of capture sizes)."
            ),
        ),
        "other": Advice(
            (
                "Capture each graph once and launch it often: update the parameters of its "
                "nodes instead (cudaGraphExecUpdate, hipGraphExecUpdate), and keep the buffers "
                "that it reads and writes."
            ),
            "cudaGraphExecUpdate(exec, graph, &result)",
        ),
    },
)


@detector("graph-recapture", TEXT)
def graph_recapture(inspection: Inspection) -> Finding | None:
    """The GPU is idle while the CPU captures a graph again."""
    trace = inspection.work.trace
    graph_launches = int(find_launches(inspection.work).is_graph.sum())
    capture_starts, capture_ends = captures(trace)
    instantiating_calls = instantiations(trace)
    rows = np.append(capture_starts, instantiating_calls)
    until = trace.end_of(np.append(capture_ends, instantiating_calls))
    claim = inspection.claim(lambda wall: wall.claim_idle_during(rows, until))
    numbers = {"captures": len(capture_starts), "graph_launches": graph_launches}
    return inspection.finding("graph-recapture", claim, numbers, text=TEXT)
