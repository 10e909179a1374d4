"""Detectors of idle time: CPU operations, compilation, capture, full queues, the profiler."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.cli.finding_blocks import finding_blocks
from tracelens_ext.cli.screen import show_blocks
from tracelens_ext.findings.finding import Finding, Findings

if TYPE_CHECKING:
    from pathlib import Path

MS = 1_000


def findings_of(maker: TraceMaker) -> dict[str, Finding]:
    return {
        each.id: each for each in TreePerfAnalyzer(maker.document()).findings().findings
    }


def loop(
    *, holes: dict[int, int], steps: int = 20
) -> tuple[TraceMaker, dict[int, int]]:
    """Kernels of 2 ms one after the other; the CPU pauses for some ms before those in `holes`.

    Returns:
        The trace, and the begin of each hole in µs.
    """
    maker = TraceMaker()
    at = 0
    begins = {}
    for step in range(steps):
        if step in holes:
            begins[step] = at
            at += holes[step] * MS
        maker.launched(
            "gemm",
            at,
            2 * MS,
            correlation=step,
            at=at - 10 if step in holes else at - 900,
        )
        at += 2 * MS
    return maker, begins


def test_idle_time_during_a_cpu_operation_is_its_finding() -> None:
    maker, begins = loop(holes={10: 8})
    maker.op("aten::randn", begins[10], 7 * MS)
    maker.op("aten::normal_", begins[10] + 5, 7 * MS - 10)
    found = findings_of(maker)
    assert found["cpu-operation"].attributed_ms == pytest.approx(7.0)
    assert found["cpu-operation"].title.startswith(
        "GPU waits while the CPU runs aten::randn (the longest of 2 operations)"
    )
    assert found["host-bound"].attributed_ms == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("inside", ["launch", "many"])
def test_idle_time_during_launches_and_views_is_host_bound(inside: str) -> None:
    maker, begins = loop(holes={10: 8})
    maker.op("aten::unflatten_dense_tensors", begins[10], 8 * MS + 5)
    if inside == "many":
        maker.events[-1]["dur"] = 7 * MS
        for part in range(60):
            maker.op("aten::narrow", begins[10] + 100 * part + 5, 90)
    found = findings_of(maker)
    assert "cpu-operation" not in found
    assert found["host-bound"].attributed_ms == pytest.approx(8.0, rel=0.05)


def test_only_compilations_after_the_first_are_a_finding() -> None:
    name = "_compile.compile_inner (dynamo_timed)"
    maker, begins = loop(holes={1: 9, 10: 8, 15: 6})
    maker.annotation(name, begins[1], 9 * MS)
    first = findings_of(maker)
    assert "recompilation" not in first
    for step in (10, 15):
        maker.annotation(name, begins[step], 6 * MS)
    found = findings_of(maker)
    assert found["recompilation"].attributed_ms == pytest.approx(12.0, rel=0.01)
    assert "cpu-operation" not in found


def test_a_region_that_was_quick_before_compiles_again() -> None:
    maker, begins = loop(holes={15: 8}, steps=30)
    for step in (2, 5, 8):
        maker.annotation("Torch-Compiled Region: 0/0", 2 * MS * step, 200)
    maker.annotation("Torch-Compiled Region: 0/0", begins[15], 8 * MS)
    assert findings_of(maker)["recompilation"].attributed_ms == pytest.approx(
        8.0, rel=0.01
    )


def captured(steps: list[int], launches: int) -> TraceMaker:
    """Captures before some steps, and launches of a graph."""
    maker, begins = loop(holes=dict.fromkeys(steps, 4), steps=40)
    for step in steps:
        maker.call("cudaStreamBeginCapture", begins[step], 5)
        maker.call("cudaStreamEndCapture", begins[step] + 3 * MS, 5)
        maker.call("cudaGraphInstantiate", begins[step] + 3 * MS + 10, 900)
    for number in range(launches):
        at = begins[steps[0]] + 4 * MS + 20 + number * 3
        maker.launched(
            "node", at, 1, correlation=900 + number, at=at, api="cudaGraphLaunch"
        )
    return maker


def test_only_captures_within_the_loop_are_a_finding() -> None:
    assert "graph-recapture" not in findings_of(captured([1, 2, 3], launches=200))
    found = findings_of(captured([1, 12, 25], launches=200))["graph-recapture"]
    assert found.attributed_ms == pytest.approx(2 * 3.9, rel=0.02)


def test_a_full_launch_queue_informs_and_saves_nothing() -> None:
    maker = TraceMaker()
    for number in range(100):
        at = number * 200
        start = 10 * MS + number * 200
        maker.call(
            "cudaLaunchKernel",
            at if number < 50 else start - 8 * MS,
            180,
            correlation=number,
        )
        maker.kernel("gemm", start, 200, correlation=number)
    found = findings_of(maker)
    assert list(found) == ["full-launch-queue"]
    assert found["full-launch-queue"].informs_only
    assert "180 µs on average" in found["full-launch-queue"].title


@pytest.mark.parametrize(("frames", "doubted"), [(16_000, True), (200, False)])
def test_many_cpu_events_lower_the_confidence_in_idle_time(
    frames: int, *, doubted: bool
) -> None:
    maker, begins = loop(holes={5: 10, 10: 10})
    last = begins[10] + 10 * MS
    for number in range(frames):
        maker.frame("model.py(3): f", number * last / frames, last / frames / 2)
    found = findings_of(maker)
    assert ("profiler-overhead" in found) is doubted
    assert ("profiler-overhead" in found["host-bound"].confidence_reason) is doubted


def test_a_few_long_gaps_lead_the_line_and_the_median_is_theirs() -> None:
    maker, _ = loop(
        holes={number: 10 if number in (7, 20) else 0 for number in range(1, 40)},
        steps=40,
    )
    finding = findings_of(maker)["host-bound"]
    assert finding.title.startswith(
        "GPU waits for the CPU, mostly in 2 gaps of 10.0 ms"
    )
    (median,) = [
        each.value
        for each in finding.evidence
        if each.what.startswith("half of the time")
    ]
    assert median == pytest.approx(10 * MS)


def many(count: int) -> Findings:
    shown = [
        Finding(
            f"f-{n}",
            f"Finding {n} of many",
            9.0,
            9.0,
            confidence="high",
            confidence_reason="",
            where={},
            evidence=[],
            advice="",
            documentation="",
        )
        for n in range(count)
    ]
    return Findings(100.0, shown, analyzed_ms=100.0)


def test_the_screen_shows_eight_and_all_if_asked(tmp_path: Path) -> None:
    for whole, rows in ((False, 8), (True, 11)):
        console = Console(width=100, record=True, file=StringIO())
        show_blocks(finding_blocks(tmp_path, many(11), whole, console), console)
        text = console.export_text()
        assert text.count("of many") == rows
        assert ("3 more: --all shows them" in text) is not whole
