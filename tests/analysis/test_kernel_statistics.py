"""Statistics of kernels by simplified name, compared with plain loops over the files."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Any

import pytest

from tests.support.gap_helpers import TRACES, gpu_events_of, recorded
from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.iterations.selection import EventFilter
from tracelens_ext.analysis.kernels.statistics import SORTS, kernel_full_names
from tracelens_ext.categorize.kernel_names import simple_name
from tracelens_ext.errors import UsageError

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::Add<float>>(int, float*)"
MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::Mul<float>>(int, float*)"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_cublas"


def two_steps() -> TraceMaker:
    """Make a trace of two steps: three elementwise kernels; a GEMM and a fill on stream 9."""
    maker = TraceMaker()
    maker.annotation("ProfilerStep#1", 0, 100)
    maker.annotation("ProfilerStep#2", 100, 100)
    maker.launched(ADD, 10, 2, correlation=1, at=5)
    maker.launched(ADD, 20, 4, correlation=2, at=15)
    maker.launched(MUL, 30, 9, correlation=3, at=25)
    maker.launched(GEMM, 110, 100, correlation=4, at=105)
    maker.launched(
        "Memset (Device)",
        220,
        1,
        correlation=5,
        at=150,
        category="gpu_memset",
        stream=9,
    )
    return maker


@pytest.mark.parametrize(
    ("name", "simple"),
    [
        (ADD, "vectorized_elementwise_kernel"),
        (
            "void at::native::elementwise_kernel<128, 2, F>(int, F)",
            "elementwise_kernel",
        ),
        ("void at::native::reduce_kernel<512, 1, R>(R)", "reduce_kernel"),
        (
            "void at::native::unrolled_elementwise_kernel<F>(int)",
            "unrolled_elementwise_kernel<F>",
        ),
        ("splitKreduce_kernel<32, 16>(float*)", "splitKreduce_kernel<32, 16>"),
        ("triton_red_fused_add_reduce_kernel", "triton_red_fused_add_reduce_kernel"),
        (
            "void at::native::(anonymous namespace)::CatArrayBatched<int>(int)",
            "CatArrayBatched<int>",
        ),
        (
            "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_SendRecv",
        ),
        ("Memcpy DtoH (Device -> Pinned)", "Memcpy DtoH (Device -> Pinned)"),
        ("Memset (Device)", "Memset (Device)"),
        (
            "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, 6, 8>(Params<int>)",
            "kernel<int, 6, 8>",
        ),
        (
            "std::enable_if<(((8) > (0)) && ((8) < (9))), void>::type vllm::norm<float, 8>(float*)",
            "norm<float, 8>",
        ),
        ("unsigned long f<int>(float*)", "f<int>"),
        ("_ZN5aiter20fmha_fwd_hd128_i8fp8E.kd", "fmha_fwd_hd128_i8fp8"),
        ("_ZN2ck12_GLOBAL__N_13mlaILi8EEEvPf", "mla<8>"),
        ("_Z4axpyPf", "axpy"),
        ("_ZN99short", "_ZN99short"),
        ("a name in words", "a name in words"),
        ("", ""),
    ],
)
def test_names_are_simplified_to_the_function_that_matters(
    name: str, simple: str
) -> None:
    assert simple_name(name) == simple


def test_a_row_has_the_statistics_of_its_kernels() -> None:
    table = TreePerfAnalyzer(two_steps().document(), use_kernel_name_categories=True)
    frame = table.get_df_kernel_statistics()
    assert frame["rank"].tolist() == [1, 2, 3]
    assert "cudaLaunchKernel" not in set(frame["kernel_name"])
    assert frame.to_dict("records")[0] == {
        "rank": 1,
        "kernel_name": "vectorized_elementwise_kernel",
        "count": 3,
        "avg_time_us": 5.0,
        "total_time_us": 15.0,
        "std_time_us": pytest.approx(statistics.stdev([2, 4, 9])),
        "% of GPU events": 60.0,
        "% of duration": pytest.approx(100 * 15 / 116),
        "min_time_us": 2.0,
        "max_time_us": 9.0,
        "kind": "kernel",
        "kernel_category": "Elementwise",
        "full_names": 2,
        "example_full_name": ADD,
    }
    assert frame["std_time_us"].tolist()[1:] == [0.0, 0.0], "for a single kernel"
    assert frame["kind"].tolist()[2] == "memset"


def test_full_names_are_those_of_the_selection() -> None:
    maker = two_steps()
    # A kernel with the name of a memset has a row of its own.
    maker.kernel("Memset (Device)", 900, 1)
    gpu_events = TreePerfAnalyzer(maker.document()).gpu_events
    names = kernel_full_names(gpu_events)
    columns = ["rank", "kernel_name", "full_name", "count", "total_time_us"]
    assert names[columns].to_numpy().tolist()[:3] == [
        [1, "vectorized_elementwise_kernel", ADD, 2, 6.0],
        [1, "vectorized_elementwise_kernel", MUL, 1, 9.0],
        [2, GEMM, GEMM, 1, 100.0],
    ]
    assert names["rank"].tolist() == [1, 1, 2, 3, 4]
    names_of_step_2 = kernel_full_names(gpu_events, selection=EventFilter(step=2))
    assert names_of_step_2["full_name"].tolist() == [GEMM, "Memset (Device)"]


@pytest.mark.parametrize(
    ("sort", "first"),
    [
        ("count", "vectorized_elementwise_kernel"),
        ("percentage", "vectorized_elementwise_kernel"),
        ("duration", GEMM),
        ("duration-percentage", GEMM),
    ],
)
def test_rows_are_sorted_by_the_column_of_the_sort_order(sort: Any, first: str) -> None:
    frame = TreePerfAnalyzer(two_steps().document()).get_df_kernel_statistics(sort)
    assert frame["kernel_name"][0] == first
    values = frame[SORTS[sort][0]].tolist()
    assert values == sorted(values, reverse=True)
    assert "kernel_category" not in frame


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        (EventFilter(step=2), [GEMM, "Memset (Device)"]),
        (EventFilter(stream=9), ["Memset (Device)"]),
        (EventFilter(device=0, step=1), ["vectorized_elementwise_kernel"]),
        (EventFilter(category="gemm"), [GEMM]),
    ],
)
def test_only_selected_events_count(selection: EventFilter, names: list[str]) -> None:
    analyzer = TreePerfAnalyzer(two_steps().document(), use_kernel_name_categories=True)
    frame = analyzer.get_df_kernel_statistics(selection=selection)
    assert frame["kernel_name"].tolist() == names
    assert frame["% of GPU events"].sum() == pytest.approx(100)
    assert frame["% of duration"].sum() == pytest.approx(100)


def test_an_unknown_sort_order_is_refused_with_the_known_ones() -> None:
    analyzer = TreePerfAnalyzer(two_steps().document())
    with pytest.raises(
        UsageError, match="choose from count, total, duration, percentage"
    ):
        analyzer.get_df_kernel_statistics("name")  # type: ignore[arg-type]


@pytest.mark.real_data
@pytest.mark.parametrize("name", TRACES)
def test_statistics_of_recorded_traces_agree_with_a_loop(name: str) -> None:
    durations: dict[str, list[int]] = defaultdict(list)
    full_names: dict[str, set[str]] = defaultdict(set)
    for event in gpu_events_of(TRACES[name]):
        duration = (event.end - event.start) * 1000
        assert duration == int(duration)
        durations[simple_name(event.name)].append(int(duration))
        full_names[simple_name(event.name)].add(event.name)
    analyzer = recorded(name)
    frame = analyzer.get_df_kernel_statistics("duration-percentage")
    assert sorted(frame["kernel_name"]) == sorted(durations)
    count = sum(map(len, durations.values()))
    total = sum(map(sum, durations.values()))
    for row in frame.to_dict("records"):
        values = durations[row["kernel_name"]]
        assert row["count"] == len(values)
        assert round(row["total_time_us"] * 1000) == sum(values)
        assert row["avg_time_us"] * 1000 == pytest.approx(
            statistics.mean(values), abs=0.5
        )
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        assert row["std_time_us"] * 1000 == pytest.approx(deviation, rel=1e-9, abs=1e-6)
        assert row["% of GPU events"] == pytest.approx(100 * len(values) / count)
        assert row["% of duration"] == pytest.approx(100 * sum(values) / max(total, 1))
        assert row["full_names"] == len(full_names[row["kernel_name"]])
        assert row["example_full_name"] in full_names[row["kernel_name"]]
    names = kernel_full_names(analyzer.gpu_events, "duration-percentage")
    assert set(names["full_name"]) == set().union(*full_names.values())
    assert names["count"].sum() == count
    assert names.groupby("rank").size().tolist() == frame["full_names"].tolist()
    first = names.drop_duplicates("rank")
    assert first["full_name"].tolist() == frame["example_full_name"].tolist()
