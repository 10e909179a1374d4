"""GPU work that is not analyzed: benchmarks of autotuning, and events that cannot be right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.coverage.coverage import Coverage, coverage_of
from tracelens_ext.analysis.coverage.suspects import find_suspects
from tracelens_ext.analysis.coverage.warm_up_work import find_benchmarks

SHARED = Path(__file__).resolve().parents[3] / "shared"
FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>"


def coverage(maker: TraceMaker) -> Coverage:
    return coverage_of(TreePerfAnalyzer(maker.document()).gpu_events)


def launches(
    maker: TraceMaker, names: list[str], start: float, length: float = 50
) -> float:
    """Add kernels one after the other, each with its launch; return a start for the next, µs."""
    for name in names:
        maker.launched(
            name,
            start,
            length,
            correlation=len(maker.events) + 1,
            at=start - 5,
        )
        start += length + 10
    return start


def test_fills_that_alternate_with_one_kernel_are_benchmarks() -> None:
    maker = TraceMaker()
    end = launches(maker, [FILL, "my_kernel"] * 12, 10)
    launches(maker, ["my_kernel", "gemm"] * 12, end)
    recording = coverage(maker)
    (part,) = recording.parts.to_dict("records")
    assert part["kind"] == "warm_up"
    assert part["what"] == "benchmarks of autotuning"
    assert part["count"] == 24
    assert part["busy_ns"] == 24 * 50_000
    gpu_events = TreePerfAnalyzer(maker.document()).gpu_events
    assert recording.is_set_aside(gpu_events).tolist() == [True] * 24 + [False] * 24


def test_kernels_launched_by_a_benchmark_are_benchmarks() -> None:
    maker = TraceMaker()
    end = launches(maker, [f"triton_mm_{number}" for number in range(12)], 10)
    maker.op("CachingAutotuner.benchmark_all_configs (dynamo_timed)", 0, end)
    launches(maker, ["triton_mm_3"] * 20, end + 100)
    gpu_events = TreePerfAnalyzer(maker.document()).gpu_events
    assert coverage_of(gpu_events).is_set_aside(gpu_events).sum() == 12


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([FILL, "scatter"] * 4, id="a few"),
        pytest.param([FILL, "scatter", "gemm"] * 12, id="other kernels between"),
    ],
)
def test_fills_that_do_not_alternate_with_one_kernel_for_long_are_work(
    names: list[str],
) -> None:
    maker = TraceMaker()
    end = launches(maker, names, 10)
    launches(maker, ["gemm", "softmax"] * 10, end)
    assert not len(find_benchmarks(TreePerfAnalyzer(maker.document()).gpu_events))


def test_short_fills_do_not_clear_a_cache_and_are_work() -> None:
    maker = TraceMaker()
    end = launches(maker, [FILL, "scatter"] * 12, 10, length=5)
    launches(maker, ["gemm", "softmax"] * 10, end)
    assert not len(find_benchmarks(TreePerfAnalyzer(maker.document()).gpu_events))


def test_benchmarks_in_each_iteration_are_work() -> None:
    maker = TraceMaker()
    end = 10.0
    for step in range(4):
        begin = end - 8
        end = launches(maker, [FILL, "my_kernel"] * 12 + ["gemm"], end)
        maker.annotation(f"ProfilerStep#{step}", begin, end - begin - 8)
    assert not len(find_benchmarks(TreePerfAnalyzer(maker.document()).gpu_events))


def test_a_recording_of_benchmarks_alone_is_analyzed() -> None:
    maker = TraceMaker()
    launches(maker, [FILL, "my_kernel"] * 40, 10)
    recording = coverage(maker)
    assert not len(recording.parts)
    assert recording.analyzed_ns == recording.wall_ns


def suspect(lost: int, length: float) -> TraceMaker:
    """Return one long kernel, `stale`, during which some launches lose their kernels."""
    maker = TraceMaker()
    launches(maker, ["gemm"] * 20, 10)
    maker.launched("stale", 2_000, length, correlation=900, at=1_990)
    for number in range(lost):
        maker.call("cudaLaunchKernel", 2_100 + 10 * number, 5, correlation=901 + number)
    return maker


def test_an_event_over_lost_launches_that_is_most_of_the_time_is_suspect() -> None:
    maker = suspect(lost=30, length=50_000)
    gpu_events = TreePerfAnalyzer(maker.document()).gpu_events
    suspects = find_suspects(gpu_events)
    assert gpu_events.trace.names[int(gpu_events.name[suspects.event[0]])] == "stale"
    assert suspects.lost_launches.tolist() == [30]
    recording = coverage_of(gpu_events)
    assert recording.mean_ns("dropped_events") == 50_000_000


@pytest.mark.parametrize(("lost", "length"), [(0, 50_000), (30, 500)])
def test_a_long_kernel_alone_or_lost_launches_alone_are_not_suspect(
    lost: int, length: float
) -> None:
    gpu_events = TreePerfAnalyzer(suspect(lost, length).document()).gpu_events
    assert not len(find_suspects(gpu_events).event)


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("name", "share"),
    [("41_autotune_dynamo_timed", 0.9), ("42_user_triton_autotune", 0.9)],
)
def test_autotuning_of_shared_traces_is_warm_up(name: str, share: float) -> None:
    gpu_events = TreePerfAnalyzer(SHARED / "field" / f"{name}.json").gpu_events
    recording = coverage_of(gpu_events)
    assert recording.mean_ns("warm_up") / recording.wall_ns >= share
    assert recording.busy_set_aside_ns > 0


def test_the_first_launch_of_a_kernel_that_loads_its_module_is_warm_up() -> None:
    maker = TraceMaker()
    maker.call("cudaLaunchKernel", 0, 300, correlation=1)
    maker.kernel("gemm", 305, 50, correlation=1)
    maker.call("cudaLaunchKernel", 400, 1_000, correlation=2)
    maker.kernel("softmax", 1_405, 50, correlation=2)
    for number in range(30):
        begin = 1_500 + 100 * number
        maker.call("cudaLaunchKernel", begin, 5, correlation=10 + 2 * number)
        maker.kernel("gemm", begin + 10, 40, correlation=10 + 2 * number)
        maker.call("cudaLaunchKernel", begin + 50, 5, correlation=11 + 2 * number)
        maker.kernel("softmax", begin + 60, 35, correlation=11 + 2 * number)
    parts = coverage(maker).parts
    # Only the one of softmax: the first launch of gemm lies before the wall time.
    assert parts["what"].tolist() == ["first launch of a kernel: cudaLaunchKernel"]
    assert parts["ns"].tolist() == [1_000_000]


def test_a_first_launch_like_the_others_is_work() -> None:
    maker = TraceMaker()
    launches(maker, ["gemm"] * 30, 10)
    assert not len(coverage(maker).parts)


def test_benchmarks_do_not_count_for_any_category() -> None:
    maker = TraceMaker()
    end = launches(maker, [FILL, "my_kernel"] * 12, 10)
    launches(maker, ["gemm"] * 20, end)
    analyzer = TreePerfAnalyzer(maker.document(), use_kernel_name_categories=True)
    table = analyzer.get_df_gpu_time_by_category()
    times = dict(zip(table["kernel_category"], table["total_time_ms"], strict=True))
    assert times == {"(not analyzed)": 1.2, "GEMM": 1.0}


def convolution(maker: TraceMaker, start: float, *, waits: int) -> float:
    """A convolution that launches a kernel and waits for its event some times; return its end."""
    begin = start
    for _ in range(waits):
        start = launches(maker, ["candidate"], start + 10)
        maker.call("cudaEventSynchronize", start - 8, 5)
    end = launches(maker, ["implicit_gemm"], start + 10)
    maker.op("aten::cudnn_convolution", begin, end - begin)
    return end


def set_aside_names(maker: TraceMaker) -> list[str]:
    gpu_events = TreePerfAnalyzer(maker.document()).gpu_events
    is_set_aside = coverage_of(gpu_events).is_set_aside(gpu_events)
    return [
        gpu_events.trace.names[code] for code in gpu_events.name[is_set_aside].tolist()
    ]


def test_a_convolution_that_measures_its_algorithms_is_warm_up() -> None:
    maker = TraceMaker()
    end = convolution(maker, 10, waits=4)
    for _ in range(20):
        end = convolution(maker, end + 10, waits=0)
    assert set_aside_names(maker) == ["candidate"] * 4 + ["implicit_gemm"]


def test_a_convolution_that_waits_once_measures_nothing() -> None:
    maker = TraceMaker()
    end = convolution(maker, 10, waits=1)
    for _ in range(20):
        end = convolution(maker, end + 10, waits=0)
    assert set_aside_names(maker) == []


def test_measuring_in_each_iteration_is_the_work_of_the_program() -> None:
    maker = TraceMaker()
    end = 10.0
    for number in range(5):
        begin = end
        end = convolution(maker, end + 10, waits=4) + 10
        maker.annotation(f"ProfilerStep#{number}", begin, end - begin)
    assert set_aside_names(maker) == []


@pytest.mark.parametrize(
    ("name", "is_warm_up"),
    [
        ("warmup", True),
        ("[param|model|warmup|forward]", True),
        ("Warm-up iterations", True),
        ("lr_warmup", False),
        ("update learning rate warmup", False),
        ("unwarmuped", False),
    ],
)
def test_what_a_program_calls_warm_up_is_warm_up(
    name: str, *, is_warm_up: bool
) -> None:
    maker = TraceMaker()
    end = launches(maker, ["gemm"] * 5, 10)
    maker.annotation(name, 0, end)
    launches(maker, ["gemm"] * 20, end + 100)
    assert len(set_aside_names(maker)) == (5 if is_warm_up else 0)


def test_a_recording_of_warm_up_alone_is_analyzed() -> None:
    maker = TraceMaker()
    end = launches(maker, ["gemm"] * 20, 10)
    maker.annotation("warmup", 0, end)
    assert set_aside_names(maker) == []
