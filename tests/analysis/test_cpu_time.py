"""CPU time by activity, iterations and Python frame, of traces without GPU work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.cli import run
from tracelens_ext.perf_report import build_perf_report

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
STEP_US = 1000


def training(steps: int = 3, slow_step: int | None = None) -> TraceMaker:
    """Return training steps of 1 ms, one after the other, without GPU work.

    A step consists of data loading (100 µs; 900 µs in `slow_step`, which is longer by as much),
    forward pass (200 µs), backward pass (300 µs), the optimizer (150 µs), Python between them
    (200 µs), and 50 µs without any event but the annotation of the step.
    """
    maker = TraceMaker()
    start = 0
    for step in range(steps):
        loading = 900 if step == slow_step else 100
        length = STEP_US + (loading - 100)
        maker.annotation(f"ProfilerStep#{step}", start, length)
        maker.frame("train.py(10): step", start, length - 50)
        maker.annotation(LOADER, start, loading)
        maker.op("aten::stack", start + 10, 20)
        begin = start + loading
        maker.op("aten::linear", begin, 200)
        maker.op(
            "autograd::engine::evaluate_function: AddmmBackward0", begin + 200, 300
        )
        maker.op("aten::mm", begin + 210, 100)
        maker.annotation("Optimizer.step#AdamW.step", begin + 500, 150)
        maker.op("aten::sqrt", begin + 510, 50)
        start += length
    return maker


def test_activities_are_disjoint_and_add_up_to_the_wall_time() -> None:
    frame = TreePerfAnalyzer(training().document()).get_df_cpu_timeline()
    assert frame is not None
    time = dict(zip(frame["activity"], frame["time_ms"].round(6), strict=True))
    assert time == {
        "data_loading": 0.3,
        "optimizer": 0.45,
        "backward": 0.9,
        "other_operations": 0.6,
        "python": 0.6,
        "not_recorded": 0.15,
        "wall_time": 3.0,
    }
    assert frame["% of wall time"].iloc[:-1].sum() == pytest.approx(100)


def test_iterations_without_gpu_work_are_whole_and_show_time_by_activity() -> None:
    frame = TreePerfAnalyzer(training().document()).get_df_cpu_iterations()
    assert frame["iteration"].tolist() == [f"ProfilerStep#{n}" for n in range(3)]
    assert frame["whole"].all()
    assert frame["wall_time_ms"].tolist() == pytest.approx([1.0] * 3)
    assert frame["backward_ms"].tolist() == pytest.approx([0.3] * 3)
    assert frame["cpu_ops"].tolist() == [5, 5, 5]


def test_an_iteration_that_waits_longer_for_data_is_marked() -> None:
    maker = training(steps=8, slow_step=5)
    frame = TreePerfAnalyzer(maker.document()).get_df_cpu_iterations()
    odd_columns = [""] * 8
    odd_columns[5] = "wall_time_ms, data_loading_ms"
    assert frame["odd"].tolist() == odd_columns


def test_an_iteration_without_operations_is_incomplete() -> None:
    maker = training()
    maker.annotation("ProfilerStep#3", 3 * STEP_US, 5)
    analyzer = TreePerfAnalyzer(maker.document())
    assert analyzer.get_df_cpu_iterations()["whole"].tolist() == [True] * 3 + [False]


def test_waiting_for_batches_is_listed_by_data_loader() -> None:
    frame = TreePerfAnalyzer(training().document()).get_df_cpu_data_loading()
    assert frame is not None
    (row,) = frame.to_dict("records")
    assert row["data_loader"] == LOADER
    assert (row["batches"], row["total_time_ms"]) == (3, pytest.approx(0.3))
    assert row["% of wall time"] == pytest.approx(10)


def test_self_time_of_a_python_frame_excludes_the_frames_that_it_called() -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 25, 10)
    maker.frame("outer", 0, 100)
    maker.frame("<built-in method item of Tensor object at 0x7f01>", 10, 20)
    maker.frame("<built-in method item of Tensor object at 0x7f02>", 40, 20)
    maker.frame("waits in another thread", 0, 5000, thread=99)
    frame = TreePerfAnalyzer(maker.document()).get_df_cpu_python_frames()
    assert frame is not None
    # Addresses of objects are left out of names, so that both calls of `item` are one frame; the
    # other thread runs no operation.
    assert frame["python_frame"].tolist() == [
        "outer",
        "<built-in method item of Tensor object>",
    ]
    assert frame["self_time_ms"].tolist() == pytest.approx([0.06, 0.04])
    assert frame["count"].tolist() == [1, 2]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [LOADER, "aten::mm", "Optimizer.step#SGD.step", "MulBackward0"]
            ),
            st.integers(0, 500),
            st.integers(0, 300),
            st.integers(1, 3),
        ),
        min_size=1,
    )
)
def test_activities_of_any_events_add_up(
    events: list[tuple[str, int, int, int]],
) -> None:
    maker = TraceMaker()
    for name, start, duration, thread in events:
        maker.op(name, start, duration, thread=thread)
    frame = TreePerfAnalyzer(maker.document()).get_df_cpu_timeline()
    assert frame is not None
    assert (frame["time_ms"] >= 0).all()
    activities = frame["time_ms"].iloc[:-1]
    assert activities.sum() == pytest.approx(frame["time_ms"].iloc[-1])


def test_tables_of_cpu_time_are_absent_where_there_is_gpu_work() -> None:
    maker = training()
    maker.launched("a_kernel", 30, 20, correlation=1, at=10)
    report = build_perf_report(TreePerfAnalyzer(maker.document()))
    assert not [name for name in report.sheets if name.startswith("cpu_")]


def test_the_command_shows_iterations_of_a_trace_without_gpu_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps(training().document()), encoding="utf-8")
    assert run(["iterations", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "Iterations on the CPU" in shown
    assert "ProfilerStep#2" in shown
    assert "incomplete" not in shown
