"""Phases of generated traces: exact numbers, nested steps, phases of the user, inferred steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import SHARED
from tests.support.make_trace import TraceMaker
from tests.support.serving_helpers import Engine, sums, tensors, vllm
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.iterations.measurement import iteration_table
from tracelens_ext.errors import UsageError
from tracelens_ext.trace.busy_time import BusyTime

if TYPE_CHECKING:
    from collections.abc import Hashable

    import pandas as pd

    Lengths = list[tuple[int, int]]

#: The query length and the key length of a request; the keys include the queries.
_LENGTHS = st.tuples(st.integers(1, 99), st.integers(0, 999)).map(
    lambda lengths: (lengths[0], sum(lengths))
)
#: The requests of a step in context and in generation, at least one.
_STEP = st.tuples(
    st.lists(_LENGTHS, max_size=3), st.lists(_LENGTHS, max_size=3)
).filter(any)


def row(frame: pd.DataFrame, phase: str) -> dict[Hashable, Any]:
    """Return the row of a phase in the table `phases`."""
    return frame[frame["phase"] == phase].to_dict("records")[0]


def phase_of(context: Lengths, generation: Lengths) -> str:
    """Return the phase of a step with these requests."""
    if context and generation:
        return "mixed"
    if context:
        return "prefill"
    return "decode"


@given(steps=st.lists(_STEP, min_size=1, max_size=6), outside=st.integers(0, 9))
def test_steps_tokens_and_busy_time_are_exact(
    steps: list[tuple[Lengths, Lengths]], outside: int
) -> None:
    engine = Engine(layers=1)
    expected: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for number, (context, generation) in enumerate(steps):
        busy_us = engine.step(vllm(context, generation), scale=1 + number)
        counts_of_step = {
            "steps": 1,
            "context_requests": len(context),
            "generation_requests": len(generation),
            "context_tokens": sums(context)[0],
            "generation_tokens": sums(generation)[0],
            "tokens": sums(context)[0] + sums(generation)[0],
            "busy_us": busy_us,
        }
        expected[phase_of(context, generation)].update(counts_of_step)
    if outside:
        engine.outside(outside)
    analyzer = TreePerfAnalyzer(engine.document(), use_kernel_name_categories=True)
    frame = analyzer.get_df_phases()
    order = [name for name in ("prefill", "decode", "mixed") if name in expected]
    if outside:
        order.append("other")
    assert frame["phase"].tolist() == order
    for phase, counts in expected.items():
        row_of_phase = row(frame, phase)
        assert row_of_phase["gpu_busy_ms"] == counts.pop("busy_us") / 1000
        for column, count in counts.items():
            assert row_of_phase[column] == count
    if outside:
        assert row(frame, "other")["gpu_busy_ms"] == outside / 1000
    timeline = analyzer.get_df_gpu_timeline().set_index("type")["time ms"]
    assert frame["gpu_busy_ms"].sum() == pytest.approx(timeline["busy_time"])
    assert frame["idle_ms"].sum() == pytest.approx(timeline["idle_time"])
    times = [column for column in frame if str(column).endswith("_time_ms")]
    assert frame[times].to_numpy().sum() == pytest.approx(frame["gpu_busy_ms"].sum())


@pytest.mark.parametrize(
    ("outer", "inner", "tokens", "generating"),
    [
        ("step[DECODE bs=2]", vllm([], [(1, 100), (1, 50)]), 2, 2),
        ("step[DECODE bs=2]", "execute_context_0(0)_generation_2(8)", 8, 2),
        ("step[MIXED bs=3 toks=9]", "execute_context_1(7)_generation_2(2)", 9, 2),
    ],
)
def test_nested_annotations_are_one_step_with_the_batch_of_the_most_detailed(
    outer: str, inner: str, tokens: int, generating: int
) -> None:
    engine = Engine()
    busy = engine.step(outer, inner)
    analyzer = TreePerfAnalyzer(engine.document())
    steps = analyzer.get_df_phase_steps()
    columns = ["step", "tokens", "generation_requests"]
    assert steps[columns].to_numpy().tolist() == [[inner, tokens, generating]]
    assert steps["gpu_busy_ms"].tolist() == [busy / 1000]
    # All kernels were launched within the step, so there is no phase `other`.
    assert len(analyzer.get_df_phases()) == 1


def test_an_inner_annotation_may_end_a_little_later_than_the_outer_one() -> None:
    """Profilers round times."""
    maker = TraceMaker()
    maker.annotation("step[DECODE bs=2]", 10, 20)
    maker.annotation("execute_context_0(0)_generation_2(2)", 11, 19.001)
    maker.annotation("execute_context_0(0)_generation_2(2)", 30.001, 0.5)  # a new step
    maker.launched("gemm", 50, 5, correlation=1, at=15)
    frame = TreePerfAnalyzer(maker.document()).get_df_phases()
    assert frame[["steps", "tokens"]].to_numpy().tolist() == [[2, 4]]


def test_kernels_launched_on_another_thread_are_outside_of_the_step() -> None:
    engine = Engine(layers=0)
    engine.step("step[DECODE bs=1]")
    engine.maker.launched("side", 500, 40, correlation=999, at=15, stream=9)
    launch = engine.maker.events[-2]
    launch["tid"] = 77  # another thread, while the step runs
    frame = TreePerfAnalyzer(engine.document()).get_df_phases()
    assert row(frame, "other")["gpu_busy_ms"] == 0.04


def test_busy_time_counts_overlapping_kernels_once() -> None:
    maker = TraceMaker()
    maker.annotation("step[DECODE bs=1]", 0, 100)
    maker.launched("a", 200, 50, correlation=1, at=10)
    maker.launched("b", 220, 50, correlation=2, at=20, stream=9)
    frame = TreePerfAnalyzer(maker.document()).get_df_phases()
    assert frame["gpu_busy_ms"].tolist() == [0.07]


def test_phases_of_the_user_take_precedence_and_come_after_those_of_engines() -> None:
    engine = Engine(layers=1)
    for name in ("draft_3", "step[DECODE bs=2]", "step[EXTEND bs=1 toks=9]"):
        engine.step(name)
    analyzer = TreePerfAnalyzer(engine.document())
    assert analyzer.get_df_phases()["phase"].tolist() == ["prefill", "decode", "other"]
    frame = analyzer.get_df_phases(["draft=^draft", "short=toks=9"])
    assert frame["phase"].tolist() == ["decode", "draft", "short"]
    assert row(frame, "short")["tokens"] == 9
    for wrong in ("draft", "=x", "draft=", "other=x", "draft=("):
        with pytest.raises(UsageError, match="--phase"):
            analyzer.get_df_phases([wrong])


def test_idle_time_belongs_to_the_phase_of_the_kernel_after_it() -> None:
    maker = TraceMaker()
    maker.annotation("step[EXTEND bs=1 toks=4]", 0, 10)
    maker.launched("a", 20, 10, correlation=1, at=5)
    maker.annotation("step[DECODE bs=1]", 80, 30)
    maker.launched("b", 100, 10, correlation=2, at=90)
    maker.launched("c", 115, 5, correlation=3, at=95)
    frame = TreePerfAnalyzer(maker.document()).get_df_phases()
    prefill = row(frame, "prefill")
    decode = row(frame, "decode")
    assert (prefill["idle_ms"], decode["idle_ms"]) == (0, 0.075)
    # The kernel was launched 61 µs after the GPU had become idle.
    assert decode["idle_host_ms"] == 0.061
    assert decode["busy_percent"] == pytest.approx(100 * 15 / 90)
    assert decode["tokens_per_s"] == pytest.approx(1 / 90e-6)
    assert decode["tokens_per_s_without_idle"] == pytest.approx(1 / 15e-6)


def test_shares_of_scheduler_and_sampler_are_of_the_time_from_step_to_step() -> None:
    engine = Engine(layers=0)
    engine.step("step[DECODE bs=1]")
    first_end = engine.host - 20
    engine.maker.annotation("scheduler_step", first_end + 5, 10)
    begin = engine.host
    engine.step("step[DECODE bs=1]")
    engine.maker.annotation("gpu_model_runner: sample", begin + 20, 14)
    length = first_end + (engine.host - 20 - first_end)
    frame = TreePerfAnalyzer(engine.document()).get_df_phases()
    assert row(frame, "decode")["scheduler_percent"] == pytest.approx(100 * 10 / length)
    assert row(frame, "decode")["sampler_percent"] == pytest.approx(100 * 14 / length)


def model_pass(
    maker: TraceMaker, start: int, indices: list[int], correlation: int
) -> None:
    """Add an embedding and an attention, each with a kernel."""
    table = tensors([1000, 8], indices, kinds=["float", "long int"])
    maker.op("aten::embedding", start, 20, args=table)
    maker.launched("embed", start + 5, 5, correlation=correlation, at=start + 2)
    lengths = tensors(
        [5, 2, 8], [5, 2, 8], [5, 2, 8], [4], kinds=["float"] * 3 + ["int"]
    )
    maker.op("flash_attn::_flash_attn_varlen_forward", start + 30, 20, args=lengths)
    maker.launched(
        "attention", start + 40, 5, correlation=correlation + 1, at=start + 32
    )


def test_without_annotations_steps_are_inferred_from_shapes() -> None:
    maker = TraceMaker()
    for number, indices in enumerate(([2, 7], [2, 1], [2, 1], [5], [3])):
        model_pass(maker, 100 * number, indices, 10 * number + 1)
    analyzer = TreePerfAnalyzer(maker.document())
    frame = analyzer.get_df_phases()
    assert row(frame, "prefill")["tokens"] == 2 * 7 + 5
    assert row(frame, "prefill")["context_requests"] == 2 + 3
    assert row(frame, "decode")["tokens"] == 2 + 2 + 3
    assert frame["gpu_busy_ms"].sum() == 0.05
    assert "inferred" in analyzer.serving_steps().note


def test_training_has_no_inferred_steps() -> None:
    maker = TraceMaker()
    model_pass(maker, 0, [2, 7], 1)
    assert len(TreePerfAnalyzer(maker.document()).serving_steps()) == 1
    maker.op("MmBackward0", 900, 5)
    assert not len(TreePerfAnalyzer(maker.document()).serving_steps())


def test_annotations_on_the_gpu_are_steps_if_the_cpu_has_none() -> None:
    maker = TraceMaker()
    for stream in (7, 9):
        maker.gpu(
            "gpu_user_annotation", "step[DECODE bs=3]", 10 + stream, 40, stream=stream
        )
    maker.gpu("gpu_user_annotation", "step[EXTEND bs=1 toks=8]", 60, 40)
    maker.kernel("a", 17, 20)
    maker.kernel("b", 30, 10, stream=9)
    maker.kernel("c", 61, 30)
    maker.kernel("late", 120, 5)
    analyzer = TreePerfAnalyzer(maker.document())
    busy_times = analyzer.get_df_phases()[["phase", "gpu_busy_ms"]].to_numpy().tolist()
    assert busy_times == [["prefill", 0.03], ["decode", 0.023], ["other", 0.005]]
    assert "annotated only on the GPU" in analyzer.serving_steps().note


def test_without_embeddings_steps_are_inferred_from_the_shapes_of_attention() -> None:
    maker = TraceMaker()
    for number, (queries, keys) in enumerate([(7, 7), (7, 7), (1, 8), (1, 8), (1, 9)]):
        sizes = tensors([2, 4, queries, 8], [2, 4, keys, 8], [2, 4, keys, 8])
        maker.op(
            "aten::_scaled_dot_product_flash_attention", 100 * number, 20, args=sizes
        )
        maker.launched(
            "sdpa", 100 * number + 40, 5, correlation=number + 1, at=100 * number + 2
        )
    frame = TreePerfAnalyzer(maker.document()).get_df_phases()
    assert frame[["phase", "steps", "tokens"]].to_numpy().tolist() == [
        ["prefill", 1, 14],
        ["decode", 2, 4],
    ]


def test_a_model_of_images_has_no_inferred_steps_unless_it_has_a_vocabulary() -> None:
    maker = TraceMaker()
    maker.op(
        "aten::cudnn_convolution",
        0,
        20,
        args=tensors([1, 3, 224, 224], [64, 3, 16, 16]),
    )
    maker.op(
        "aten::embedding",
        30,
        20,
        args=tensors([4, 8], [1, 4], kinds=["float", "long int"]),
    )
    sizes = tensors([2, 4, 7, 8], [2, 4, 7, 8], [2, 4, 7, 8])
    maker.op("aten::_scaled_dot_product_flash_attention", 100, 20, args=sizes)
    maker.launched("sdpa", 140, 5, correlation=1, at=102)
    assert not len(TreePerfAnalyzer(maker.document()).serving_steps())

    model_pass(maker, 200, [2, 7], 11)
    assert len(TreePerfAnalyzer(maker.document()).serving_steps()) == 1


def test_without_annotations_python_frames_of_the_engine_are_steps() -> None:
    maker = TraceMaker()
    for number in range(3):
        start = 100 * number
        maker.frame("vllm/v1/worker/gpu_worker.py(9): execute_model", start, 90)
        maker.frame(
            "vllm/v1/worker/gpu_model_runner.py(7): execute_model", start + 1, 80
        )
        if number == 0:
            model_pass(maker, start + 5, [2, 7], 1)
        if number == 1:
            model_pass(maker, start + 5, [2, 1], 11)
        # The last step has no shapes, as if a graph replayed it.
        maker.launched(
            "replayed", start + 82, 5, correlation=10 * number + 5, at=start + 75
        )
    analyzer = TreePerfAnalyzer(maker.document())
    steps = analyzer.serving_steps()
    assert [batch.phase for batch in steps.batch] == ["prefill", "decode", "step"]
    assert "Python frames" in steps.note
    frame = iteration_table(analyzer.gpu_events).frame
    assert frame["iteration"].tolist() == [
        f"execute_model#{number}" for number in range(3)
    ]
    assert frame["kernels"].tolist() == [3, 3, 1]


def test_a_trace_without_steps_only_has_the_phase_other() -> None:
    maker = TraceMaker()
    maker.launched("a", 20, 10, correlation=1, at=5)
    frame = TreePerfAnalyzer(maker.document()).get_df_phases()
    assert frame["phase"].tolist() == ["other"]


@pytest.mark.real_data
def test_a_recorded_decode_step_has_its_tokens_busy_time_and_layers() -> None:
    path = SHARED / "inference" / "vllm_decode_full" / "graph_execution.json.gz"
    analyzer = TreePerfAnalyzer(path)
    decode = row(analyzer.get_df_phases(), "decode")
    assert decode["steps"] == 1
    assert decode["generation_requests"] == 32
    assert decode["tokens"] == 32
    assert round(decode["gpu_busy_ms"] * 1e6) == 10_717_708
    assert len(analyzer.get_df_layers()) == 24  # the model is gpt-oss-20b
    gpu_events = analyzer.gpu_events
    busy_time = BusyTime(gpu_events.start, gpu_events.end)
    owner = np.zeros(len(gpu_events), dtype=np.int64)
    assert busy_time.by_owner(owner, 1).tolist() == [10_717_708]


def test_rates_leave_out_time_that_was_not_recorded() -> None:
    """Two steps of one token and 1 ms each; the GPU events between them were dropped."""
    maker = TraceMaker()
    for number, start in enumerate((0, 100_000)):
        maker.annotation("step[DECODE bs=1]", start, 500)
        maker.launched("decode", start + 100, 1_000, correlation=number + 1, at=start)
    for number in range(12):
        maker.call(
            "cudaLaunchKernel", 10_000 + 1_000 * number, 5, correlation=9 + number
        )
    frame = TreePerfAnalyzer(maker.document()).get_df_phases()
    decode = row(frame, "decode")
    recorded_ms = decode["gpu_busy_ms"] + decode["idle_ms"]
    assert decode["idle_not_recorded_ms"] > 0
    assert decode["gpu_busy_ms"] == pytest.approx(2)
    assert recorded_ms < 101.1 - decode["idle_not_recorded_ms"] + 1e-6
    assert decode["tokens_per_s"] == pytest.approx(2 / recorded_ms * 1000)
    assert decode["busy_percent"] == pytest.approx(200 / recorded_ms)


def test_tokens_are_unknown_if_the_annotations_only_name_the_phase() -> None:
    maker = TraceMaker()
    for number, name in enumerate(("prefill", "decode 1", "decode 2")):
        maker.annotation(name, 100 * number, 50)
        maker.launched(
            "k", 100 * number + 20, 10, correlation=number + 1, at=100 * number
        )
    frame = TreePerfAnalyzer(maker.document()).get_df_phases()
    assert frame["phase"].tolist() == ["prefill", "decode"]
    assert frame["steps"].tolist() == [1, 2]
    for column in ("tokens", "generation_requests", "tokens_per_s"):
        assert frame[column].isna().all()


def test_a_range_decode_alone_is_not_a_phase() -> None:
    """A program may also decode images."""
    maker = TraceMaker()
    maker.annotation("decode", 0, 50)
    maker.launched("k", 20, 10, correlation=1, at=0)
    assert not len(TreePerfAnalyzer(maker.document()).serving_steps())


def test_python_frames_of_the_engine_give_the_phase() -> None:
    maker = TraceMaker()
    for number, name in enumerate(("extend", "decode")):
        start = 1_000 * number
        maker.frame(
            "sglang/srt/model_executor/model_runner.py(9): forward_batch_generation",
            start,
            900,
        )
        maker.frame(
            f"sglang/srt/model_executor/model_runner.py(5): forward_{name}",
            start + 1,
            800,
        )
        maker.launched("k", start + 20, 10, correlation=number + 1, at=start + 5)
    steps = TreePerfAnalyzer(maker.document()).serving_steps()
    assert [batch.phase for batch in steps.batch] == ["prefill", "decode"]
