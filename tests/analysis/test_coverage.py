"""What a recording covers: dropped events, earlier work, warm-up; and the kind of program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from tests.support.make_trace import TraceMaker
from tests.support.strategies import traces
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.coverage.coverage import coverage_of
from tracelens_ext.analysis.coverage.program import program_of
from tracelens_ext.analysis.coverage.report_tables import recording_dict
from tracelens_ext.findings.inspection import Detector

if TYPE_CHECKING:
    from tests.support.make_trace import Document

SHARED = Path(__file__).parents[3] / "shared"
DROPPED = SHARED / "recording/dropped"
WILD = SHARED / "recording/wild"
#: Unchanged recordings of several tools and GPU vendors.
RECORDED = [
    "traces/amd/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "traces/nvidia/nccl.json.gz",
    "traces/nvidia/gaunernst_bert-small-uncased__1016001.json.gz",
    "nsys/two_gpu_training.sqlite",
    "traces/graphs/training_cuda_graph.json.gz",
    "recording/wild/saf_false.json.gz",
    "recording/wild/mordred_report1.sqlite",
    "recording/wild/llamacpp_r9700_results.db",
]


def parts_of(maker: TraceMaker) -> list[tuple[object, ...]]:
    """Return (kind, start in µs, end in µs, count) of each part."""
    parts = coverage_of(TreePerfAnalyzer(maker.document()).gpu_events).parts
    columns = (
        parts["kind"],
        parts["start"] // 1000,
        parts["end"] // 1000,
        parts["count"],
    )
    return list(zip(*columns, strict=True))


def steps(lost: range, calls: int = 40) -> TraceMaker:
    """Return launches every 100 µs; a kernel of 50 µs starts 10 µs after each but the lost ones."""
    maker = TraceMaker()
    for index in range(calls):
        launch_time = 100 * index
        if index in lost:
            maker.call("cudaLaunchKernel", launch_time, 5, correlation=index + 1)
        else:
            maker.launched(
                "k", launch_time + 10, 50, correlation=index + 1, at=launch_time
            )
    return maker


def test_dropped_events_last_from_the_first_lost_launch_to_the_next_work() -> None:
    assert parts_of(steps(range(10, 20))) == [("dropped_events", 1000, 2010, 10)]


def test_nine_lost_launches_and_those_at_the_end_are_not_dropped_events() -> None:
    assert parts_of(steps(range(10, 19))) == []
    assert parts_of(steps(range(20, 40))) == []


def test_the_wall_time_begins_with_dropped_events_before_all_work() -> None:
    coverage = coverage_of(TreePerfAnalyzer(steps(range(12)).document()).gpu_events)
    assert coverage.wall_start == 0
    assert coverage.launch_count == 40
    assert coverage.unmatched_launches == 12
    assert coverage.parts[["start", "end"]].to_numpy().tolist() == [[0, 1_210_000]]


def test_launches_during_a_capture_are_not_lost() -> None:
    maker = steps(range(10, 30))
    maker.call("cudaStreamBeginCapture", 990, 5, correlation=901)
    maker.call("cudaStreamEndCapture", 2990, 5, correlation=902)
    coverage = coverage_of(TreePerfAnalyzer(maker.document()).gpu_events)
    assert (coverage.launch_count, coverage.unmatched_launches) == (20, 0)
    assert set(coverage.parts["kind"]) == {"warm_up"}  # the capture itself


def test_a_single_lost_graph_launch_counts_as_dropped_events() -> None:
    maker = steps(range(0))
    maker.call("cudaGraphLaunch", 1505, 5, correlation=900)
    assert parts_of(maker) == [("dropped_events", 1560, 1610, 1)]


def test_first_events_wait_for_work_that_was_launched_before_the_recording() -> None:
    maker = TraceMaker()
    maker.launched("copy", 90, 5, correlation=1, at=0)
    maker.launched("k", 3000, 50, correlation=2, at=20)
    maker.launched("k", 5000, 5000, correlation=3, at=30)
    assert parts_of(maker) == [
        ("pre_recording", 95, 3000, 1),
        ("pre_recording", 3050, 5000, 1),
    ]


@pytest.mark.parametrize("again", [False, True])
def test_a_long_first_launch_is_warm_up_unless_the_kernel_ran_before(
    again: bool,
) -> None:
    maker = TraceMaker()
    maker.launched("a", 100, 50, correlation=1, at=0)
    maker.call("cudaLaunchKernel", 1000, 20_000, correlation=2)
    maker.kernel("a" if again else "b", 21_010, 50, correlation=2)
    expected = [] if again else [("warm_up", 1000, 21_000, 1)]
    assert parts_of(maker) == expected


@pytest.mark.parametrize("in_one_operation", [True, False])
def test_the_time_between_first_uses_of_one_operation_is_warm_up(
    in_one_operation: bool,
) -> None:
    maker = TraceMaker()
    maker.launched("a", 100, 50, correlation=1, at=0)
    if in_one_operation:
        maker.op("aten::cudnn_convolution", 900, 40_200)
    maker.call("cudaStreamCreateWithFlags", 1_000, 8_000)
    maker.call("cudaEventCreateWithFlags", 30_000, 10_000)
    maker.launched("b", 41_050, 50, correlation=2, at=41_000)
    expected = [("warm_up", 1_000, 9_000, 1), ("warm_up", 30_000, 40_000, 1)]
    if in_one_operation:
        expected = [("warm_up", 1_000, 40_000, 1)]
    assert parts_of(maker) == expected


def iterations_with_stream_creation(creating_steps: set[int]) -> TraceMaker:
    """Return four iterations of 99 ms; some create a stream, which takes 8 ms."""
    maker = TraceMaker()
    for step in range(4):
        start = 100_000 * step
        maker.annotation(f"ProfilerStep#{step}", start, 99_000)
        if step in creating_steps:
            maker.call("cudaStreamCreate", start + 70_000, 8_000)
        maker.launched("k", start + 90_000, 50, correlation=step + 1, at=start + 89_990)
    return maker


@pytest.mark.parametrize("creating_steps", [{1}, {1, 2}])
def test_long_calls_are_warm_up_if_the_last_iteration_has_none(
    creating_steps: set[int],
) -> None:
    parts = parts_of(iterations_with_stream_creation(creating_steps))
    assert [kind for kind, *_ in parts] == ["warm_up"] * len(creating_steps)


def test_long_calls_that_come_back_until_the_last_iteration_are_not_warm_up() -> None:
    assert parts_of(iterations_with_stream_creation({1, 2, 3})) == []


@given(traces())
def test_parts_do_not_overlap_and_set_time_within_the_wall_time_aside(
    document: Document,
) -> None:
    gpu_events = TreePerfAnalyzer(document).gpu_events
    coverage = coverage_of(gpu_events)
    parts = coverage.parts
    assert (parts["start"] >= coverage.wall_start).all()
    assert (parts["end"] <= coverage.wall_end).all()
    assert (parts["ns"] > 0).all()
    assert (parts["ns"] <= parts["end"] - parts["start"]).all()
    for _, parts_of_device in parts.groupby("device"):
        start = parts_of_device["start"].to_numpy()
        end = parts_of_device["end"].to_numpy()
        assert (start[1:] >= end[:-1]).all()
    assert 0 <= coverage.analyzed_ns <= coverage.wall_ns or not len(gpu_events)


def test_without_gpu_work_the_launches_are_counted() -> None:
    recording = recording_dict(TreePerfAnalyzer(steps(range(40)).document()).gpu_events)
    assert recording["wall_ms"] is None
    assert recording["analyzed_ms"] is None
    assert recording["launches"] == 40
    assert recording["unmatched_launches"] == 40
    assert recording["parts"] == []


def test_advice_is_for_the_kind_of_program() -> None:
    (finding,) = TreePerfAnalyzer(steps(range(0)).document()).findings().findings
    advice = {"serving": ["engine"], "other": ["plain", "code"]}
    detector = Detector("x", lambda _: None, advice=advice)
    for_serving = detector.with_advice(finding, "serving")
    assert (for_serving.advice, for_serving.snippet) == ("engine", "")
    for_native = detector.with_advice(finding, "native")
    assert (for_native.advice, for_native.snippet) == ("plain", "code")
    assert detector.with_advice(finding, "pytorch-training") is finding


@pytest.mark.real_data
@pytest.mark.parametrize(
    "name", sorted(path.name for path in DROPPED.glob("*.truth.json"))
)
def test_events_that_were_taken_out_of_a_trace_are_found_missing(name: str) -> None:
    truth = json.loads((DROPPED / name).read_text(encoding="utf-8"))
    trace = DROPPED / name.replace(".truth.json", ".json.gz")
    recording = recording_dict(TreePerfAnalyzer(trace).gpu_events)
    wall_ms = truth["wall_ms"]
    assert recording["wall_ms"] == pytest.approx(wall_ms, abs=1e-6)
    if "before" in truth:
        gaps = [truth["before"] | {"idle_ms": truth["before"]["ms"]}]
    else:
        gaps = truth["holes"]
        assert recording["launches"] == truth["launches"]
        assert recording["unmatched_launches"] == truth["launches_without_gpu_work"]
    parts: list[dict[str, float]] = recording["parts"]  # type: ignore[assignment]  # of dictionaries
    assert len(parts) == len(gaps)
    tolerance_ms = 0.001 * wall_ms
    for part, gap in zip(parts, gaps, strict=True):
        assert abs(part["start_ms"] - gap["start_ms"]) <= tolerance_ms
        assert abs(part["end_ms"] - gap["end_ms"]) <= tolerance_ms
        assert abs(part["duration_ms"] - gap["idle_ms"]) <= tolerance_ms


@pytest.mark.real_data
@pytest.mark.parametrize("name", RECORDED)
def test_complete_recordings_have_no_parts_that_cannot_be_analyzed(name: str) -> None:
    parts = coverage_of(TreePerfAnalyzer(SHARED / name).gpu_events).parts
    assert not len(parts)


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("recording/wild/k18_resnet_autograd.pt.trace.json.gz", "pytorch-training"),
        ("recording/wild/saf_false.json.gz", "pytorch-inference"),
        ("recording/wild/llamacpp_r9700_results.db", "native"),
        ("recording/wild/mordred_report1.sqlite", "native"),
        ("inference/vllm_decode_full/graph_execution.json.gz", "serving"),
        ("jax/conv_mi300.xplane.pb", "jax"),
        ("nsys/two_gpu_training.sqlite", "pytorch-training"),
    ],
)
def test_the_kind_of_program_is_recognized(name: str, kind: str) -> None:
    assert program_of(TreePerfAnalyzer(SHARED / name).trace).kind == kind


@pytest.mark.real_data
def test_first_uses_and_captures_of_real_traces_are_warm_up() -> None:
    training = recording_dict(
        TreePerfAnalyzer(WILD / "k18_resnet_autograd.pt.trace.json.gz").gpu_events
    )
    parts: list[dict[str, float]] = training["parts"]  # type: ignore[assignment]  # of dictionaries
    launches = [
        part["start_ms"] for part in parts if "cudaLaunchKernel" in str(part["what"])
    ]
    # The first of them is in a convolution that measures algorithms, from 0.4 ms before it on.
    assert launches == pytest.approx([1447.932, 3016.395], abs=0.5)
    vision = recording_dict(TreePerfAnalyzer(WILD / "ao_vit_bf16.json.gz").gpu_events)
    assert vision["warm_up_ms"] == pytest.approx(621.3, abs=1)


@pytest.mark.real_data
def test_an_idle_gpu_gets_no_all_clear() -> None:
    findings = TreePerfAnalyzer(WILD / "llamacpp_r9700_results.db").findings()
    assert not findings.all_clear
    assert findings.unknown.startswith(
        "The GPU is idle for 80.8 % of the analyzed time, for an unknown reason"
    )
    assert "rocprofv3 --hip-trace" in findings.unknown
