"""Comparing traces: the numbers by hand, by a naive loop, and on real traces."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.comparison_helpers import (
    ALL_REDUCE,
    GEMM,
    STEP_US,
    measured,
    training,
)
from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.compare.comparison import KEYS, Comparison, compare, measure
from tracelens_ext.errors import TracelensError, UsageError

if TYPE_CHECKING:
    import pandas as pd

SHARED = Path(__file__).resolve().parents[3] / "shared"


def of_row(frame: pd.DataFrame, name: str) -> dict[str, float]:
    """The numbers of the row whose first text column says `name`."""
    text = next(
        c for c in ("type", "cpu_op", "kernel_name", "kernel_category") if c in frame
    )
    (row,) = frame[frame[text] == name].to_dict("records")
    return {str(key): value for key, value in row.items() if not isinstance(value, str)}


def test_times_are_per_average_iteration() -> None:
    comparison = compare([measured(training(2)), measured(training(4, gemm_us=50))])
    assert comparison.basis == "iteration"
    gemm = of_row(comparison.tables["categories"], "GEMM")
    assert gemm == pytest.approx(
        {
            "A_time_ms": 0.040,
            "B_time_ms": 0.050,
            "difference_ms": 0.010,
            "difference_percent": 25.0,
            "ratio": 1.25,
            "by_calls_ms": 0.0,
            "by_speed_ms": 0.010,
            "A_count": 1,
            "A_calls": 1,
            "B_count": 1,
            "B_calls": 1,
        }
    )
    assert of_row(comparison.tables["operations"], "nccl:all_reduce")[
        "B_time_ms"
    ] == pytest.approx(0.030)
    assert of_row(comparison.tables["kernels"], GEMM)["B_time_ms"] == pytest.approx(
        0.050
    )


def test_the_number_of_iterations_changes_nothing() -> None:
    """Two iterations have one gap between them, five have four: each is given one."""
    comparison = compare([measured(training(2)), measured(training(5))])
    for table in comparison.tables.values():
        assert table["difference_ms"].tolist() == [0.0] * len(table)
    total = of_row(comparison.tables["timeline"], "total_time")
    assert total["A_time_ms"] == pytest.approx(STEP_US / 1000)
    idle = of_row(comparison.tables["timeline"], "idle_time")
    assert idle["A_time_ms"] == pytest.approx((STEP_US - 40 - 30) / 1000)


def test_skipped_steps_are_not_idle_time() -> None:
    comparison = compare([measured(training(4)), measured(training(4, skip_after=2))])
    assert comparison.tables["timeline"]["difference_ms"].tolist() == [0.0] * 8


@pytest.mark.parametrize(
    ("threshold_us", "kind"), [(129, "macro_idle_time"), (130, "micro_idle_time")]
)
def test_the_gaps_between_iterations_are_micro_or_macro(
    threshold_us: int, kind: str
) -> None:
    def of(maker: TraceMaker) -> pd.DataFrame:
        analyzer = TreePerfAnalyzer(maker.document(), use_kernel_name_categories=True)
        measurement = measure(analyzer.gpu_events, micro_idle_thresh_us=threshold_us)
        return compare([measurement] * 2).tables["timeline"]

    for maker in (training(3), training(4, skip_after=2)):
        timeline = of(maker)
        idle = of_row(timeline, "idle_time")["A_time_ms"]
        assert idle == pytest.approx(0.130)
        both = ("micro_idle_time", "macro_idle_time")
        parts = {part: of_row(timeline, part)["A_time_ms"] for part in both}
        assert parts[kind] == pytest.approx(0.130)
        assert sum(parts.values()) == pytest.approx(idle)


def test_work_outside_of_iterations_does_not_count() -> None:
    maker = training(2)
    maker.call("cudaLaunchKernel", 900, correlation=900)
    maker.kernel(GEMM, 950, 20, correlation=900)
    maker.kernel(GEMM, 980, 10, correlation=901)  # its launch was not recorded
    comparison = compare([measured(training(2)), measured(maker)])
    assert comparison.tables["categories"]["difference_ms"].tolist() == [0.0, 0.0]
    assert any(
        note.startswith("B: 17.6 % of the GPU time was not")
        for note in comparison.notes
    )
    total = compare([measured(training(2)), measured(maker)], total=True)
    gemm = of_row(total.tables["categories"], "GEMM")
    assert (gemm["A_time_ms"], gemm["B_time_ms"]) == pytest.approx((0.080, 0.110))
    assert (gemm["A_count"], gemm["B_count"]) == (2, 4)
    assert of_row(total.tables["operations"], "(unlinked)")[
        "difference_ms"
    ] == pytest.approx(0.010)


def test_whole_traces_are_compared_when_one_has_no_iterations() -> None:
    comparison = compare(
        [measured(training(2)), measured(training(2, annotated=False))]
    )
    assert comparison.basis == "trace"
    assert of_row(comparison.tables["categories"], "GEMM")[
        "A_time_ms"
    ] == pytest.approx(0.080)
    assert any(
        "because B has no complete iteration" in note for note in comparison.notes
    )


def test_kernels_that_one_trace_lacks() -> None:
    comparison = compare(
        [measured(training(2)), measured(training(2, all_reduce_us=0))]
    )
    lost = of_row(comparison.tables["kernels"], ALL_REDUCE)
    assert lost["ratio"] == 0
    assert lost["difference_percent"] == -100
    assert lost["B_count"] == 0
    back = compare(comparison.measurements[::-1])
    new = of_row(back.tables["kernels"], ALL_REDUCE)
    assert np.isnan(new["ratio"])
    assert np.isnan(new["difference_percent"])
    assert new["difference_ms"] == pytest.approx(0.030)
    (place,) = [r for r in back.tables["places"].to_dict("records") if r["only_in"]]
    assert (place["only_in"], place["by_calls_ms"], place["by_speed_ms"]) == (
        "B",
        0.030,
        0.0,
    )


def test_the_largest_change_comes_first_whatever_its_sign() -> None:
    comparison = compare(
        [measured(training(1)), measured(training(1, gemm_us=45, all_reduce_us=10))]
    )
    assert comparison.tables["categories"]["kernel_category"].tolist() == [
        "Communication",
        "GEMM",
    ]
    assert comparison.tables["timeline"]["type"].tolist()[:4] == [
        "computation_time",
        "exposed_comm_time",
        "exposed_memcpy_time",
        "busy_time",
    ], "the timeline keeps its order"
    assert comparison.verdicts[0].text == (
        "B did the same work as A, and took 21.4 % less GPU time for it; the largest changes:"
        " nccl:all_reduce -0.020 ms, aten::mm +0.005 ms."
    )


def test_the_first_of_several_traces_is_the_baseline() -> None:
    comparison = compare([measured(training(2, gemm_us=us)) for us in (40, 50, 20)])
    assert comparison.letters == ["A", "B", "C"]
    gemm = of_row(comparison.tables["categories"], "GEMM")
    assert gemm["B_difference_ms"] == pytest.approx(0.010)
    assert gemm["C_difference_ms"] == pytest.approx(-0.020)
    assert gemm["C_ratio"] == pytest.approx(0.5)
    facts = dict(comparison.facts)
    assert facts["A iterations"] == "2 (ProfilerStep#5 to #6)"
    assert facts["C total time (ms)"] == pytest.approx(0.200)


def test_letters_of_many_traces_are_not_units() -> None:
    letters = Comparison([measured(training(1))] * 60, total=True).letters
    assert len(set(letters)) == 60
    assert "S" not in letters


def test_single_devices_are_compared_whatever_their_number() -> None:
    comparison = compare([measured(training(2)), measured(training(2, device=3))])
    assert "device" not in comparison.tables["timeline"]
    assert comparison.tables["timeline"]["difference_ms"].tolist() == [0.0] * 8


def test_several_devices_are_compared_one_by_one() -> None:
    both = training(2)
    for step in range(2):
        both.call(
            "cudaLaunchKernel", 1000 + STEP_US * step + 40, correlation=500 + step
        )
        both.kernel(GEMM, 1070 + STEP_US * step, 60, correlation=500 + step, device=1)
    comparison = compare([measured(both), measured(training(2, device=1))])
    timeline = comparison.tables["timeline"]
    assert timeline["device"].tolist() == [0] * 8 + [1] * 8
    busy = timeline[timeline["type"] == "busy_time"]
    assert busy["A_time_ms"].tolist() == pytest.approx([0.070, 0.060])
    assert busy["B_time_ms"].tolist() == pytest.approx([0.0, 0.070])
    total = timeline[timeline["type"] == "total_time"]
    assert total["A_time_ms"].tolist() == pytest.approx([0.200, 0.200])


def test_two_processes_may_take_turns_on_a_device() -> None:
    maker = TraceMaker()
    for process, offset in ((100, 0), (200, 50)):
        maker.process = process
        for step in range(3):
            at = 100 * step + offset
            maker.annotation(f"ProfilerStep#{step}", at, 45)
            maker.call("cudaLaunchKernel", at + 1, correlation=process + step)
            maker.kernel(GEMM, at + 10, 30, correlation=process + step)
    timeline = compare([measured(maker)] * 2).tables["timeline"]
    assert of_row(timeline, "busy_time")["A_time_ms"] == pytest.approx(0.060)
    assert of_row(timeline, "idle_time")["A_time_ms"] == pytest.approx(6 * 0.020 / 3)


def test_a_note_mentions_a_single_iteration_compared_with_several() -> None:
    comparison = compare([measured(training(1)), measured(training(3))])
    assert any(
        note.startswith("A has only one complete iteration")
        for note in comparison.notes
    )
    same = compare([measured(training(1)), measured(training(1))])
    assert not any("only one" in note for note in same.notes)


def test_a_note_mentions_different_kernels() -> None:
    other = training(2)
    for event in other.events:
        event["name"] = event["name"].replace("sm90_xmma", "sm100_xmma")
    notes = compare([measured(training(2)), measured(other)]).notes
    assert any(
        note.startswith("B runs different kernels: those that A has too make up 42.9 %")
        for note in notes
    )
    assert not any(
        "other kernels" in n for n in compare([measured(training(2))] * 2).notes
    )


def test_traces_that_cannot_be_compared() -> None:
    with pytest.raises(UsageError, match="two traces"):
        compare([measured(training(2))])
    host_only = TraceMaker()
    host_only.op("aten::mm", 0, 10)
    with pytest.raises(TracelensError, match="no trace contains GPU events"):
        compare([measured(host_only)] * 2)
    one_sided = compare([measured(training(2)), measured(host_only)])
    assert of_row(one_sided.tables["categories"], "GEMM")["B_time_ms"] == 0
    assert any(note == "B contains no GPU events." for note in one_sided.notes)
    with pytest.raises(UsageError, match="use_kernel_name_categories=True"):
        measure(TreePerfAnalyzer(training(1).document()).gpu_events)


def test_unlinked_kernels_count_in_the_timeline_when_asked() -> None:
    maker = training(2, annotated=False)
    maker.kernel(GEMM, 5000, 100, correlation=999)
    with_them = measured(maker)
    without = measured(maker, include_unlinked_kernels=False)
    comparison = compare([with_them, without])
    busy = of_row(comparison.tables["timeline"], "busy_time")
    assert (busy["A_time_ms"], busy["B_time_ms"]) == pytest.approx((0.240, 0.140))
    assert comparison.tables["kernels"]["difference_ms"].tolist() == [0.0, 0.0]


step_lists = st.lists(
    st.lists(
        st.tuples(st.integers(0, 90), st.integers(1, 60), st.integers(0, 2)), max_size=3
    ),
    min_size=1,
    max_size=4,
)
NAMES = (GEMM, ALL_REDUCE, "void at::native::vectorized_elementwise_kernel<4>(int)")


def random_trace(steps: list[list[tuple[int, int, int]]]) -> TraceMaker:
    maker = TraceMaker()
    correlations = itertools.count(1)
    for number, kernels in enumerate(steps):
        start = 100 * number
        maker.annotation(f"ProfilerStep#{number}", start, 100)
        for offset, length, name in kernels:
            correlation = next(correlations)
            maker.call("cudaLaunchKernel", start + offset, 0, correlation=correlation)
            # On a stream of its own: an event that contains the next one of its stream is cut.
            maker.kernel(
                NAMES[name],
                start + offset + 5,
                length,
                correlation=correlation,
                stream=correlation,
            )
    return maker


@settings(max_examples=25)
@given(step_lists, step_lists)
def test_the_tables_are_what_a_naive_loop_finds(
    first: list[list[tuple[int, int, int]]], second: list[list[tuple[int, int, int]]]
) -> None:
    whole = [[step for step in steps if step] for steps in (first, second)]
    if not all(whole):
        return
    comparison = compare(
        [measured(random_trace(first)), measured(random_trace(second))]
    )
    kernels = comparison.tables["kernels"]
    for letter, steps in zip("AB", whole, strict=True):
        for place, name in enumerate(NAMES):
            lengths = [
                length for step in steps for _, length, which in step if which == place
            ]
            of_name = kernels[kernels["kernel_name"] == name]
            assert of_name[f"{letter}_time_ms"].sum() == pytest.approx(
                sum(lengths) / 1000 / len(steps)
            )
            assert of_name[f"{letter}_count"].sum() == pytest.approx(
                len(lengths) / len(steps)
            )
    for name in ("categories", "operations", "kernels"):
        table = comparison.tables[name]
        for column in ("A_time_ms", "B_time_ms", "A_count", "B_count"):
            assert table[column].sum() == pytest.approx(kernels[column].sum())
        change = table["difference_ms"].abs().to_numpy()
        assert (np.diff(change) <= 1e-12).all()
    timeline = comparison.tables["timeline"].set_index("type")["A_time_ms"]
    assert timeline["busy_time"] + timeline["idle_time"] == pytest.approx(
        timeline["total_time"]
    )
    assert timeline["idle_time"] >= 0


@pytest.mark.slow
@settings(max_examples=25)
@given(step_lists, step_lists)
def test_swapping_two_traces_reverses_every_sign(
    first: list[list[tuple[int, int, int]]], second: list[list[tuple[int, int, int]]]
) -> None:
    both = [measured(random_trace(first)), measured(random_trace(second))]
    if not any(m.events for m in both):
        return
    there = compare(both)
    back = compare(both[::-1])
    for name, keys in KEYS.items():
        keys = tuple(key for key in keys if key in there.tables[name])
        one = there.tables[name].set_index(list(keys))["difference_ms"]
        other = (
            back.tables[name].set_index(list(keys))["difference_ms"].reindex(one.index)
        )
        assert one.to_numpy() == pytest.approx(-other.to_numpy())


def _shared(name: str) -> TreePerfAnalyzer:
    path = SHARED / "traces" / f"{name}.json.gz"
    return TreePerfAnalyzer(path, use_kernel_name_categories=True)


@pytest.mark.real_data
@pytest.mark.parametrize(
    "name", ["nvidia/nccl", "graphs/vllm_decode_hip_graph", "amd/gpu_only_trace"]
)
def test_a_real_trace_is_like_itself_and_like_its_own_report(name: str) -> None:
    analyzer = _shared(name)
    comparison = compare([measure(analyzer.gpu_events)] * 2, total=True)
    for table in comparison.tables.values():
        assert not table["difference_ms"].any()
    timeline = analyzer.get_df_gpu_timeline()
    assert comparison.tables["timeline"]["A_time_ms"].tolist() == pytest.approx(
        timeline["time ms"].tolist()
    )
    summary = analyzer.get_df_kernel_summary()
    for table_name, key in (
        ("operations", "cpu_op"),
        ("categories", "kernel_category"),
    ):
        compared = (
            comparison.tables[table_name].set_index(key)["A_time_ms"].sort_index()
        )
        expected = summary.groupby(key)["total_time_ms"].sum().sort_index()
        assert compared.index.tolist() == expected.index.tolist()
        assert compared.tolist() == pytest.approx(expected.tolist())


@pytest.mark.real_data
def test_one_model_on_two_makers_gpus() -> None:
    name = "Qwen_Qwen1.5-0.5B-Chat__1016005"
    analyzers = [_shared(f"nvidia/{name}"), _shared(f"amd/{name}")]
    comparison = compare([measure(analyzer.gpu_events) for analyzer in analyzers])
    assert comparison.basis == "iteration"
    attention = of_row(
        comparison.tables["operations"], "aten::_flash_attention_forward"
    )
    assert (attention["A_count"], attention["B_count"]) == (24, 24)
    assert any("runs different kernels" in note for note in comparison.notes)
