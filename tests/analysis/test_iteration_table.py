"""Measurements of iterations, compared with a loop over raw events and the definition of odd."""

from __future__ import annotations

import gzip
import json
import re
from decimal import Decimal
from pathlib import Path
from statistics import mean, median, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.comparison_helpers import ALL_REDUCE, GEMM, training
from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.iterations.measurement import (
    IterationTable,
    iteration_table,
)
from tracelens_ext.perf_report import build_perf_report

if TYPE_CHECKING:
    from collections.abc import Iterable

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
TRACES = sorted(str(p.relative_to(SHARED)) for p in SHARED.rglob("*.json.gz"))
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
#: Start and end, ns.
Span = tuple[int, int]


def table(
    maker: TraceMaker, annotation: str | None = None, **options: Any
) -> IterationTable:
    return iteration_table(
        TreePerfAnalyzer(maker.document(), **options).gpu_events, annotation
    )


def union(spans: Iterable[Span]) -> int:
    """Return the total length of the union of spans."""
    total = 0
    covered_until: int | None = None
    for start, end in sorted(spans):
        if covered_until is None:
            covered_until = start
        total += max(end - max(start, covered_until), 0)
        covered_until = max(covered_until, end)
    return total


def cut(spans: Iterable[Span], window_start: int, window_end: int) -> list[Span]:
    """Return the parts of spans within a window."""
    parts = []
    for start, end in spans:
        if end > window_start and start < window_end:
            parts.append((max(start, window_start), min(end, window_end)))
    return parts


class RawStep(NamedTuple):
    """A step; times are ns."""

    name: str
    process: Any
    start: int
    end: int


class RawGpuEvent(NamedTuple):
    """A GPU event."""

    correlation: int
    span: Span
    kind: str  #: `kernel`, `communication`, `gpu_memcpy` or `gpu_memset`


class RawLaunch(NamedTuple):
    """The launch of GPU events."""

    process: Any
    time: int


class RawTrace:
    """The events of a file, read by the standard library, with times as `Decimal`."""

    def __init__(self, path: Path) -> None:
        with gzip.open(path) as file:
            events = json.load(file, parse_float=Decimal)["traceEvents"]
        self.steps: list[RawStep] = []
        self.gpu_events: list[RawGpuEvent] = []
        self.launch_of_correlation: dict[int, RawLaunch] = {}
        for event in events:
            if isinstance(event, dict) and event.get("ph") == "X":
                self._add(event)

    def _add(self, event: dict[str, Any]) -> None:
        start = int(Decimal(event["ts"]) * 1000)
        end = start + int(Decimal(event.get("dur", 0)) * 1000)
        name = event["name"]
        process = event["pid"]
        category = event.get("cat", "").lower()
        correlation = event.get("args", {}).get("correlation", 0)
        is_step = re.fullmatch(r"ProfilerStep#\d+", name) is not None
        if is_step and category != "gpu_user_annotation":
            self.steps.append(RawStep(name, process, start, end))
        elif category in GPU:
            kind = category
            if category == "kernel" and re.match("(nccl|rccl|.*ncclDev)", name):
                kind = "communication"
            self.gpu_events.append(RawGpuEvent(correlation, (start, end), kind))
        elif category in ("cuda_runtime", "cuda_driver") and correlation:
            launch = RawLaunch(process, start)
            self.launch_of_correlation.setdefault(correlation, launch)

    def row(self, step: RawStep) -> tuple[int, ...]:
        """Return the times of a step in ns, as the columns of the table, and its kernels."""
        events_of_step = [
            event for event in self.gpu_events if self._belongs_to(event, step)
        ]
        spans = [event.span for event in events_of_step]
        computing = []
        without_copies = []
        kernel_count = 0
        for event in events_of_step:
            if event.kind in ("kernel", "gpu_memset"):
                computing.append(event.span)
            if event.kind != "gpu_memcpy":
                without_copies.append(event.span)
            if event.kind in ("kernel", "communication"):
                kernel_count += 1
        wall = step.end - step.start
        all_spans = [event.span for event in self.gpu_events]
        busy = union(cut(all_spans, step.start, step.end))
        return (
            wall,
            busy,
            wall - busy,
            union(spans),
            union(computing),
            union(without_copies) - union(computing),
            union(spans) - union(without_copies),
            kernel_count,
        )

    def _belongs_to(self, event: RawGpuEvent, step: RawStep) -> bool:
        # A GPU event without a launch belongs to the step during which it started.
        start, _ = event.span
        start_on_gpu = RawLaunch(step.process, start)
        launch = self.launch_of_correlation.get(event.correlation, start_on_gpu)
        is_inside = step.start <= launch.time < step.end
        return launch.process == step.process and is_inside


@pytest.mark.real_data
@pytest.mark.parametrize("name", TRACES)
def test_measurements_are_those_of_a_loop_over_the_raw_events(name: str) -> None:
    path = SHARED / name
    frame = iteration_table(TreePerfAnalyzer(path).gpu_events).frame
    assert "device" not in frame
    raw = RawTrace(path)
    steps = sorted(raw.steps, key=lambda step: (str(step.process), step.start))
    assert len(frame) == len(steps)
    if not steps:
        return
    assert frame["iteration"].tolist() == [step.name for step in steps]
    columns = [
        "wall_time_ms",
        "busy_time_ms",
        "idle_time_ms",
        "launched_time_ms",
        "computation_time_ms",
        "exposed_comm_time_ms",
        "exposed_memcpy_time_ms",
    ]
    times_ns = np.round(frame[columns].to_numpy() * 1e6).astype(int).tolist()
    kernel_counts = frame["kernels"].tolist()
    for index, step in enumerate(steps):
        measured = (*times_ns[index], kernel_counts[index])
        assert measured == raw.row(step), step.name


def test_times_of_overlapping_work_are_exposed_times_and_sums_by_category() -> None:
    maker = TraceMaker()
    for step, start in ((1, 0), (2, 1000)):
        correlation = 10 * step
        maker.annotation(f"ProfilerStep#{step}", start, 1000)
        maker.launched(GEMM, start + 100, 300, correlation=correlation, at=start + 10)
        maker.launched(
            ALL_REDUCE,
            start + 300,
            200,
            correlation=correlation + 1,
            at=start + 20,
            stream=9,
        )
        maker.launched(
            "Memcpy",
            start + 450,
            100,
            correlation=correlation + 2,
            at=start + 30,
            category="gpu_memcpy",
        )
    measured = table(maker, use_kernel_name_categories=True)
    row = {
        "wall_time_ms": 1.0,
        "busy_time_ms": 0.45,
        "idle_time_ms": 0.55,
        "launched_time_ms": 0.45,
        "computation_time_ms": 0.3,
        "exposed_comm_time_ms": 0.1,
        "exposed_memcpy_time_ms": 0.05,
        "kernels": 2,
        "unmatched_launches": 0,
        "whole": True,
        "odd": "",
        "GEMM_time_ms": 0.3,
        "Communication_time_ms": 0.2,
        "Memory Ops_time_ms": 0.1,
    }
    assert measured.frame.to_dict("records") == [
        {"iteration": "ProfilerStep#1", "start_ms": 0.0} | row,
        {"iteration": "ProfilerStep#2", "start_ms": 1.0} | row,
    ]
    assert measured.notes == (
        "Outliers are only determined for 5 or more complete iterations.",
    )


def test_work_that_runs_after_its_iteration_counts_as_launched_in_it() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#1", 0, 100)
    maker.annotation("ProfilerStep#2", 100, 100)
    maker.launched(GEMM, 60, 120, correlation=1, at=10)
    maker.launched(GEMM, 180, 500, correlation=2, at=110)
    frame = table(maker).frame
    assert frame["launched_time_ms"].tolist() == [0.12, 0.5]
    assert frame["busy_time_ms"].tolist() == [0.04, 0.1]
    assert frame["idle_time_ms"].tolist() == [0.06, 0.0]


def test_each_device_has_a_row_for_each_iteration() -> None:
    maker = training(6)
    for step, duration in enumerate([7, 7, 7, 7, 7, 97]):
        start = 1000 + 200 * step
        correlation = 900 + step
        maker.call("cudaLaunchKernel", start + 5, correlation=correlation)
        maker.kernel(GEMM, start + 60, duration, correlation=correlation, device=1)
    measured = table(maker)
    assert measured.frame["device"].tolist() == [0, 1] * 6
    assert (measured.frame["kernels"] == [2, 1] * 6).all()
    odd = measured.frame[measured.frame["odd"] != ""]
    assert odd["device"].tolist() == [1]
    assert "busy_time_ms" in odd["odd"].iloc[0]
    assert set(measured.statistics["device"]) == {0, 1}


def test_iterations_of_each_process_have_their_own_work() -> None:
    maker = TraceMaker()
    for process in (100, 200):
        maker.process = process
        maker.annotation("ProfilerStep#1", 0, 90)
        maker.call("cudaLaunchKernel", 5, correlation=process)
        maker.kernel(GEMM, 50 + process, 10, correlation=process)
    frame = table(maker).frame
    assert frame["process"].tolist() == [100, 200]
    assert frame["kernels"].tolist() == [1, 1]


def test_iterations_may_be_annotations_that_match_an_expression() -> None:
    maker = training(3)
    for step in range(3):
        maker.annotation(f"forward {step}", 1000 + 200 * step, 100)
        maker.annotation("forward inner", 1010 + 200 * step, 10)
    measured = table(maker, "^forward")
    assert measured.frame["iteration"].tolist() == [
        "forward 0",
        "forward 1",
        "forward 2",
    ]
    assert (measured.frame["wall_time_ms"] == 0.1).all()
    assert any("3 annotations nested in another" in note for note in measured.notes)
    assert len(table(maker, "forward inner")) == 3
    assert len(table(maker, "no such")) == 0
    maker.op("aten::forward_op", 5000, 10)
    assert len(table(maker, "forward_op")) == 1, "an op, because no annotation matches"
    assert len(table(maker, "forward")) == 3


def test_incomplete_iterations_are_not_in_the_statistics() -> None:
    maker = training(6)
    maker.annotation("ProfilerStep#11", 9000, 5000)  # launches nothing
    measured = table(maker)
    assert measured.frame["whole"].tolist() == [True] * 6 + [False]
    assert (measured.statistics["iterations"] == 6).all()
    assert measured.frame["odd"].iloc[-1] == ""
    assert "1 iteration is incomplete" in measured.notes[0]


def test_a_note_counts_work_outside_of_iterations() -> None:
    maker = training(2)
    maker.kernel("lost", 8000, 140, correlation=12345)
    (note, _) = table(maker).notes
    assert note == (
        "Launched outside of all iterations, or without a launch in the trace: "
        "1 GPU event (50.0 % of GPU time)."
    )


def test_notes_come_with_tables_that_are_requested_by_name() -> None:
    maker = training(4)
    maker.kernel("lost", 8000, 140, correlation=12345)
    analyzer = TreePerfAnalyzer(maker.document())
    report = build_perf_report(analyzer, tables="iterations")
    notes = " ".join(report.notes)
    assert "Launched outside of all iterations" in notes


def test_work_without_a_launch_counts_toward_busy_time() -> None:
    maker = training(2)
    maker.kernel("lost", maker.events[0]["ts"] + 150, 20, correlation=12345, stream=11)
    measured = table(maker)
    without = table(maker, include_unlinked_kernels=False)
    busy_ms = measured.frame["busy_time_ms"].sum()
    idle_ms = measured.frame["idle_time_ms"].sum()
    assert busy_ms == pytest.approx(without.frame["busy_time_ms"].sum() + 0.02)
    assert idle_ms == pytest.approx(without.frame["idle_time_ms"].sum() - 0.02)
    notes = " ".join(measured.notes)
    assert (
        "count toward the iteration during which they started: 1 GPU event (" in notes
    )
    assert "or without a launch in the trace: 1 GPU event (" in " ".join(without.notes)


def test_traces_without_iterations_or_gpu_work_can_be_measured() -> None:
    assert len(table(training(2, annotated=False))) == 0
    maker = TraceMaker()
    maker.annotation("ProfilerStep#1", 0, 100)
    measured = table(maker, use_kernel_name_categories=True)
    assert measured.frame["idle_time_ms"].tolist() == [0.1]
    assert measured.frame["whole"].tolist() == [False]
    assert len(measured.statistics) == 0


@given(st.lists(st.integers(1, 180), min_size=1, max_size=12))
def test_odd_is_far_from_the_median_in_deviations_and_in_percent(
    durations: list[int],
) -> None:
    maker = TraceMaker()
    for step, duration in enumerate(durations):
        maker.annotation(f"ProfilerStep#{step}", 200 * step, 200)
        maker.launched(
            GEMM, 200 * step + 10, duration, correlation=step + 1, at=200 * step + 1
        )
    measured = table(maker)
    middle = median(durations)
    deviation = median(abs(duration - middle) for duration in durations)
    threshold = max(3 * deviation, 0.05 * middle, 0.01 * 200)
    has_enough = len(durations) >= 5
    expected_odd = [
        has_enough and abs(duration - middle) > threshold for duration in durations
    ]
    odd = ["busy_time_ms" in text.split(", ") for text in measured.frame["odd"]]
    assert odd == expected_odd
    row = measured.statistics.set_index("column").loc["busy_time_ms"]
    expected = {
        "mean": mean(durations),
        "std": stdev(durations) if len(durations) > 1 else 0,
        "median": middle,
        "mad": deviation,
        "min": min(durations),
        "max": max(durations),
    }
    for name, value in expected.items():
        assert row[name] == pytest.approx(value / 1000), name
    assert row["odd"] == sum(odd)


def test_the_analyzer_has_both_tables() -> None:
    analyzer = TreePerfAnalyzer(training(6).document())
    assert analyzer.get_df_iterations().equals(
        iteration_table(analyzer.gpu_events).frame
    )
    statistics = analyzer.get_df_iteration_statistics("ProfilerStep#[5-7]")
    assert (statistics["iterations"] == 3).all()
