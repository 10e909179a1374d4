"""What a recording holds: lost work, work of before it, warm-up; and of which program it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from tests.support.make_trace import TraceMaker
from tests.support.strategies import traces
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.coverage.coverage import recording_of
from tracelens_ext.analysis.coverage.program import program_of
from tracelens_ext.analysis.coverage.report_tables import recording_dict
from tracelens_ext.findings.inspection import Detector

if TYPE_CHECKING:
    from tests.support.make_trace import Document

SHARED = Path(__file__).parents[3] / "shared"
DROPPED = SHARED / "recording/dropped"
WILD = SHARED / "recording/wild"
#: Traces as they were recorded, of all makers.
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
    """Kind, start and end in µs, count of each part."""
    parts = recording_of(TreePerfAnalyzer(maker.document()).work).parts
    columns = (
        parts["kind"],
        parts["start"] // 1000,
        parts["end"] // 1000,
        parts["count"],
    )
    return list(zip(*columns, strict=True))


def steps(lost: range, calls: int = 40) -> TraceMaker:
    """Launches 100 µs apart, each 10 µs before its kernel of 50 µs; some kernels are lost."""
    maker = TraceMaker()
    for at in range(calls):
        if at in lost:
            maker.call("cudaLaunchKernel", 100 * at, 5, correlation=at + 1)
        else:
            maker.launched("k", 100 * at + 10, 50, correlation=at + 1, at=100 * at)
    return maker


def test_a_hole_lasts_from_the_first_lost_launch_to_the_next_work() -> None:
    assert parts_of(steps(range(10, 20))) == [("dropped_events", 1000, 2010, 10)]


def test_nine_in_a_row_and_what_the_end_cut_off_are_no_holes() -> None:
    assert parts_of(steps(range(10, 19))) == []
    assert parts_of(steps(range(20, 40))) == []


def test_the_wall_begins_with_a_hole_before_all_work() -> None:
    found = recording_of(TreePerfAnalyzer(steps(range(12)).document()).work)
    assert (found.wall_start, found.launches, found.unmatched_launches) == (
        0,
        40,
        12,
    )
    assert found.parts[["start", "end"]].to_numpy().tolist() == [[0, 1_210_000]]


def test_what_a_thread_calls_while_it_captures_is_not_lost() -> None:
    maker = steps(range(10, 30))
    maker.call("cudaStreamBeginCapture", 990, 5, correlation=901)
    maker.call("cudaStreamEndCapture", 2990, 5, correlation=902)
    found = recording_of(TreePerfAnalyzer(maker.document()).work)
    assert (found.launches, found.unmatched_launches) == (20, 0)
    assert set(found.parts["kind"]) == {"warm_up"}  # the capture itself


def test_a_lost_graph_is_a_hole_by_itself() -> None:
    maker = steps(range(0))
    maker.call("cudaGraphLaunch", 1505, 5, correlation=900)
    assert parts_of(maker) == [("dropped_events", 1560, 1610, 1)]


def test_work_of_before_is_what_the_first_events_wait_for() -> None:
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
    found = [("warm_up", 1000, 21_000, 1)]
    assert parts_of(maker) == ([] if again else found)


@pytest.mark.parametrize("outer", [True, False])
def test_between_first_uses_of_one_operation_is_warm_up(outer: bool) -> None:
    maker = TraceMaker()
    maker.launched("a", 100, 50, correlation=1, at=0)
    if outer:
        maker.op("aten::cudnn_convolution", 900, 40_200)
    maker.call("cudaStreamCreateWithFlags", 1_000, 8_000)
    maker.call("cudaEventCreateWithFlags", 30_000, 10_000)
    maker.launched("b", 41_050, 50, correlation=2, at=41_000)
    apart = [("warm_up", 1_000, 9_000, 1), ("warm_up", 30_000, 40_000, 1)]
    assert parts_of(maker) == ([("warm_up", 1_000, 40_000, 1)] if outer else apart)


def test_what_comes_back_in_later_iterations_is_no_warm_up() -> None:
    def maker(steps_with: set[int]) -> TraceMaker:
        made = TraceMaker()
        for step in range(4):
            made.annotation(f"ProfilerStep#{step}", 100_000 * step, 99_000)
            made.launched(
                "k",
                100_000 * step + 90_000,
                50,
                correlation=step + 1,
                at=100_000 * step + 89_990,
            )
            if step in steps_with:
                made.call("cudaStreamCreate", 100_000 * step + 70_000, 8_000)
        return made

    assert [part[0] for part in parts_of(maker({1}))] == ["warm_up"]
    assert [part[0] for part in parts_of(maker({1, 2}))] == ["warm_up", "warm_up"]
    assert parts_of(maker({1, 2, 3})) == []


@given(traces())
def test_parts_are_apart_lie_in_the_wall_and_hold_idle_time(document: Document) -> None:
    work = TreePerfAnalyzer(document).work
    found = recording_of(work)
    parts = found.parts
    assert (parts["start"] >= found.wall_start).all()
    assert (parts["end"] <= found.wall_end).all()
    assert ((parts["ns"] > 0) & (parts["ns"] <= parts["end"] - parts["start"])).all()
    for _, mine in parts.groupby("device"):
        assert (mine["start"].to_numpy()[1:] >= mine["end"].to_numpy()[:-1]).all()
    assert 0 <= found.analyzed_ns <= found.wall_ns or not len(work)


def test_without_gpu_work_the_launches_are_told() -> None:
    told = recording_dict(TreePerfAnalyzer(steps(range(40)).document()).work)
    assert (told["wall_ms"], told["analyzed_ms"]) == (None, None)
    assert (told["launches"], told["unmatched_launches"], told["parts"]) == (
        40,
        40,
        [],
    )


def test_advice_is_for_the_kind_of_program() -> None:
    (finding,) = TreePerfAnalyzer(steps(range(0)).document()).findings().findings
    advice = {"serving": ["engine"], "other": ["plain", "code"]}
    detector = Detector("x", lambda _: None, advice=advice)
    told = {kind: detector.with_advice(finding, kind) for kind in ("serving", "native")}
    assert [(each.advice, each.snippet) for each in told.values()] == [
        ("engine", ""),
        ("plain", "code"),
    ]
    assert detector.with_advice(finding, "pytorch-training") is finding


@pytest.mark.real_data
@pytest.mark.parametrize(
    "name", sorted(path.name for path in DROPPED.glob("*.truth.json"))
)
def test_what_was_taken_out_is_found(name: str) -> None:
    truth = json.loads((DROPPED / name).read_text(encoding="utf-8"))
    trace = DROPPED / name.replace(".truth.json", ".json.gz")
    told = recording_dict(TreePerfAnalyzer(trace).work)
    wall = truth["wall_ms"]
    assert told["wall_ms"] == pytest.approx(wall, abs=1e-6)
    if "before" in truth:
        holes = [truth["before"] | {"idle_ms": truth["before"]["ms"]}]
    else:
        holes = truth["holes"]
        assert told["launches"] == truth["launches"]
        assert told["unmatched_launches"] == truth["launches_without_gpu_work"]
    parts: list[dict[str, float]] = told["parts"]  # type: ignore[assignment]  # of dictionaries
    assert len(parts) == len(holes)
    for part, hole in zip(parts, holes, strict=True):
        assert abs(part["start_ms"] - hole["start_ms"]) <= 0.001 * wall
        assert abs(part["end_ms"] - hole["end_ms"]) <= 0.001 * wall
        assert abs(part["duration_ms"] - hole["idle_ms"]) <= 0.001 * wall


@pytest.mark.real_data
@pytest.mark.parametrize("name", RECORDED)
def test_nothing_is_called_a_hole_in_traces_as_recorded(name: str) -> None:
    parts = recording_of(TreePerfAnalyzer(SHARED / name).work).parts
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
def test_the_program(name: str, kind: str) -> None:
    assert program_of(TreePerfAnalyzer(SHARED / name).trace).kind == kind


@pytest.mark.real_data
def test_first_uses_are_warm_up_and_captures_in_compiled_regions() -> None:
    told = recording_dict(
        TreePerfAnalyzer(WILD / "k18_resnet_autograd.pt.trace.json.gz").work
    )
    parts: list[dict[str, float]] = told["parts"]  # type: ignore[assignment]  # of dictionaries
    launches = [
        part["start_ms"] for part in parts if "cudaLaunchKernel" in str(part["what"])
    ]
    assert launches == pytest.approx([1447.932, 3016.395], abs=0.01)
    vision = recording_dict(TreePerfAnalyzer(WILD / "ao_vit_bf16.json.gz").work)
    assert vision["warm_up_ms"] == pytest.approx(621.3, abs=1)


@pytest.mark.real_data
def test_an_idle_gpu_gets_no_all_clear() -> None:
    found = TreePerfAnalyzer(WILD / "llamacpp_r9700_results.db").findings()
    assert not found.all_clear
    assert found.unknown.startswith(
        "The GPU is idle for 80.8 % of the analyzed time, for an unknown reason"
    )
    assert "rocprofv3 --hip-trace" in found.unknown
