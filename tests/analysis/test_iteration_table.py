"""Iterations one by one: against a loop over the raw events, and against the definition of odd."""

from __future__ import annotations

import gzip
import json
import re
from decimal import Decimal
from pathlib import Path
from statistics import mean, median, stdev
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from collections.abc import Iterable

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
TRACES = sorted(str(p.relative_to(SHARED)) for p in SHARED.rglob("*.json.gz"))
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
Span = tuple[int, int]


def table(
    maker: TraceMaker, annotation: str | None = None, **options: Any
) -> IterationTable:
    return iteration_table(
        TreePerfAnalyzer(maker.document(), **options).work, annotation
    )


def union(spans: Iterable[Span]) -> int:
    total = 0
    reach: int | None = None
    for start, end in sorted(spans):
        total += max(end - (start if reach is None else max(start, reach)), 0)
        reach = end if reach is None else max(reach, end)
    return total


def cut(spans: Iterable[Span], start: int, end: int) -> list[Span]:
    return [(max(a, start), min(b, end)) for a, b in spans if b > start and a < end]


class Raw:
    """The events of a file, read by the standard library, times as `Decimal`."""

    def __init__(self, path: Path) -> None:
        with gzip.open(path) as file:
            events = json.load(file, parse_float=Decimal)["traceEvents"]
        self.steps: list[tuple[str, Any, int, int]] = []
        self.gpu: list[tuple[int, Any, Span, str]] = []
        self.launch: dict[int, tuple[Any, int]] = {}
        for event in events:
            if not isinstance(event, dict) or event.get("ph") != "X":
                continue
            start = int(Decimal(event["ts"]) * 1000)
            end = start + int(Decimal(event.get("dur", 0)) * 1000)
            category = event.get("cat", "").lower()
            arguments = event.get("args", {})
            if (
                re.fullmatch(r"ProfilerStep#\d+", event["name"])
                and category != "gpu_user_annotation"
            ):
                self.steps.append((event["name"], event["pid"], start, end))
            elif category in GPU:
                device = arguments["device"]
                correlation = arguments.get("correlation", 0)
                kind = self.kind(category, event["name"])
                self.gpu.append((correlation, device, (start, end), kind))
            elif category in ("cuda_runtime", "cuda_driver") and arguments.get(
                "correlation"
            ):
                self.launch.setdefault(arguments["correlation"], (event["pid"], start))

    @staticmethod
    def kind(category: str, name: str) -> str:
        if category != "kernel":
            return category
        return "communication" if re.match("(nccl|rccl|.*ncclDev)", name) else "kernel"

    def row(self, at: int) -> tuple[int, ...]:
        """The times of a step in ns, as the columns of the table, and its kernels."""
        _, process, start, end = self.steps[at]
        mine = []
        for correlation, _, span, kind in self.gpu:
            of, at = self.launch.get(correlation, (process, span[0]))
            if of == process and start <= at < end:
                mine.append((span, kind))
        computing = [span for span, kind in mine if kind in ("kernel", "gpu_memset")]
        either = [span for span, kind in mine if kind != "gpu_memcpy"]
        idle = (
            end - start - union(cut((span for _, _, span, _ in self.gpu), start, end))
        )
        return (
            end - start,
            end - start - idle,
            idle,
            union(span for span, _ in mine),
            union(computing),
            union(either) - union(computing),
            union(span for span, _ in mine) - union(either),
            sum(kind in ("kernel", "communication") for _, kind in mine),
        )


@pytest.mark.real_data
@pytest.mark.parametrize("name", TRACES)
def test_against_the_raw_events(name: str) -> None:
    path = SHARED / name
    frame = iteration_table(TreePerfAnalyzer(path).work).frame
    assert "device" not in frame
    raw = Raw(path)
    if not len(frame):
        assert raw.steps == []
        return
    raw.steps.sort(key=lambda step: (str(step[1]), step[2]))
    assert frame["iteration"].tolist() == [step[0] for step in raw.steps]
    of_wall = ["wall", "busy", "idle"]
    of_launched = ["launched", "computation", "exposed_comm", "exposed_memcpy"]
    columns = [f"{part}_time_ms" for part in of_wall + of_launched]
    found = np.round(frame[columns].to_numpy() * 1e6).astype(int).tolist()
    for at, (times, kernels) in enumerate(
        zip(found, frame["kernels"].tolist(), strict=True)
    ):
        assert (*times, kernels) == raw.row(at), raw.steps[at][0]


def test_a_small_trace() -> None:
    maker = TraceMaker()
    for step, at in ((1, 0), (2, 1000)):
        maker.annotation(f"ProfilerStep#{step}", at, 1000)
        maker.launched(GEMM, at + 100, 300, correlation=10 * step, at=at + 10)
        maker.launched(
            ALL_REDUCE, at + 300, 200, correlation=10 * step + 1, at=at + 20, stream=9
        )
        maker.launched(
            "Memcpy",
            at + 450,
            100,
            correlation=10 * step + 2,
            at=at + 30,
            category="gpu_memcpy",
        )
    found = table(maker, use_kernel_name_categories=True)
    assert found.frame.drop(columns="start_ms").to_dict("records") == [
        {
            "iteration": f"ProfilerStep#{step}",
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
        for step in (1, 2)
    ]
    assert found.frame["start_ms"].tolist() == [0.0, 1.0]
    assert found.notes == (
        "Outliers are only determined for 5 or more complete iterations.",
    )


def test_the_gpu_may_lag_behind() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#1", 0, 100)
    maker.annotation("ProfilerStep#2", 100, 100)
    maker.launched(GEMM, 60, 120, correlation=1, at=10)
    maker.launched(GEMM, 180, 500, correlation=2, at=110)
    frame = table(maker).frame
    assert frame["launched_time_ms"].tolist() == [0.12, 0.5]
    assert frame["busy_time_ms"].tolist() == [0.04, 0.1]
    assert frame["idle_time_ms"].tolist() == [0.06, 0.0]


def test_devices_are_rows_of_their_own() -> None:
    maker = training(6)
    for step in range(6):
        correlation = 900 + step
        maker.call("cudaLaunchKernel", 1000 + 200 * step + 5, correlation=correlation)
        maker.kernel(
            GEMM,
            1000 + 200 * step + 60,
            7 + step // 5 * 90,
            correlation=correlation,
            device=1,
        )
    found = table(maker)
    assert found.frame["device"].tolist() == [0, 1] * 6
    assert (found.frame["kernels"] == [2, 1] * 6).all()
    odd = found.frame[found.frame["odd"] != ""]
    assert odd["device"].tolist() == [1]
    assert "busy_time_ms" in odd["odd"].iloc[0]
    assert set(found.statistics["device"]) == {0, 1}


def test_processes_are_told_apart() -> None:
    maker = TraceMaker()
    for process in (100, 200):
        maker.process = process
        maker.annotation("ProfilerStep#1", 0, 90)
        maker.call("cudaLaunchKernel", 5, correlation=process)
        maker.kernel(GEMM, 50 + process, 10, correlation=process)
    frame = table(maker).frame
    assert frame["process"].tolist() == [100, 200]
    assert frame["kernels"].tolist() == [1, 1]


def test_annotations_of_the_users_choice() -> None:
    maker = training(3)
    for step in range(3):
        maker.annotation(f"forward {step}", 1000 + 200 * step, 100)
        maker.annotation("forward inner", 1010 + 200 * step, 10)
    found = table(maker, "^forward")
    assert found.frame["iteration"].tolist() == ["forward 0", "forward 1", "forward 2"]
    assert (found.frame["wall_time_ms"] == 0.1).all()
    assert any("3 annotations nested in another" in note for note in found.notes)
    assert len(table(maker, "forward inner")) == 3
    assert len(table(maker, "no such")) == 0
    maker.op("aten::forward_op", 5000, 10)
    assert len(table(maker, "forward_op")) == 1, (
        "of the CPU ops, where no annotation matches"
    )
    assert len(table(maker, "forward")) == 3


def test_what_is_not_whole_is_not_in_the_statistics() -> None:
    maker = training(6)
    maker.annotation("ProfilerStep#11", 9000, 5000)  # launches nothing
    found = table(maker)
    assert found.frame["whole"].tolist() == [True] * 6 + [False]
    assert (found.statistics["iterations"] == 6).all()
    assert found.frame["odd"].iloc[-1] == ""
    assert "1 iteration is incomplete" in found.notes[0]


def test_work_outside_of_iterations_is_told() -> None:
    maker = training(2)
    maker.kernel("lost", 8000, 140, correlation=12345)
    (note, _) = table(maker).notes
    assert note.startswith("1 GPU events (50.0 % of GPU time) were launched outside")


def test_work_without_a_launch_counts_in_busy_time_as_in_idle_time() -> None:
    maker = training(2)
    maker.kernel("lost", maker.events[0]["ts"] + 150, 20, correlation=12345, stream=11)
    found = table(maker)
    alone = table(maker, include_unlinked_kernels=False)
    assert found.frame["busy_time_ms"].sum() == pytest.approx(
        alone.frame["busy_time_ms"].sum() + 0.02
    )
    assert found.frame["idle_time_ms"].sum() == pytest.approx(
        alone.frame["idle_time_ms"].sum() - 0.02
    )
    assert any(
        note.endswith("count toward the iteration during which they started.")
        for note in found.notes
    )
    assert any("or their launch is not in the trace" in note for note in alone.notes)


def test_without_iterations_or_gpu_work() -> None:
    assert len(table(training(2, annotated=False))) == 0
    maker = TraceMaker()
    maker.annotation("ProfilerStep#1", 0, 100)
    found = table(maker, use_kernel_name_categories=True)
    assert found.frame["idle_time_ms"].tolist() == [0.1]
    assert found.frame["whole"].tolist() == [False]
    assert len(found.statistics) == 0


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
    found = table(maker)
    middle = median(durations)
    deviation = median(abs(d - middle) for d in durations)
    odd = ["busy_time_ms" in text.split(", ") for text in found.frame["odd"]]
    enough = len(durations) >= 5
    least = max(3 * deviation, 0.05 * middle, 0.01 * 200)
    assert odd == [enough and abs(d - middle) > least for d in durations]
    row = found.statistics.set_index("column").loc["busy_time_ms"]
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
    assert analyzer.get_df_iterations().equals(iteration_table(analyzer.work).frame)
    statistics = analyzer.get_df_iteration_statistics("ProfilerStep#[5-7]")
    assert (statistics["iterations"] == 3).all()
