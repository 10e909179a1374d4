"""The causes of gaps: in a trace made for each, in recorded traces, and compared with HTA."""

from __future__ import annotations

import csv
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.gap_helpers import (
    SHARED,
    TRACES,
    PlainEvent,
    gpu_events,
    load,
    plain_gaps,
    recorded,
)
from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.idle_time.after_launch import launch_latency_limit
from tracelens_ext.analysis.idle_time.causes import CAUSES, Cause
from tracelens_ext.analysis.idle_time.classification import classify_gaps


def gaps_of(maker: TraceMaker, **options: Any) -> list[dict[str, Any]]:
    gaps = TreePerfAnalyzer(maker.document()).get_df_gaps(**options)
    records: Any = gaps.to_dict("records")
    return list(records)


def cause(maker: TraceMaker) -> str:
    """Return the cause of the last gap of stream 7."""
    gaps_of_stream = [gap for gap in gaps_of(maker) if gap["stream"] == 7]
    return str(gaps_of_stream[-1]["cause"])


def queued(second_start: float = 200) -> TraceMaker:
    """Make a trace of two kernels that are both launched long before the first ends at 100."""
    maker = TraceMaker()
    maker.launched("first", 50, 50, correlation=1, at=10)
    maker.launched("second", second_start, 50, correlation=2, at=20)
    return maker


# A trace for each cause.


@pytest.mark.parametrize(
    "call",
    [
        "cudaStreamSynchronize",
        "cudaDeviceSynchronize",
        "cudaEventSynchronize",
        "cudaMemcpy",
        "hipDeviceSynchronize",
        "hipMemcpyWithStream",
        "cuCtxSynchronize",
    ],
)
def test_a_wait_for_the_gpu_before_the_launch_is_synchronization(call: str) -> None:
    maker = TraceMaker()
    maker.launched("first", 50, 50, correlation=1, at=10)
    maker.call(call, 15, 103)  # returns 18 µs after the end of the kernel
    maker.launched("second", 130, 50, correlation=2, at=120)
    assert cause(maker) == "synchronization"
    (longest,) = gaps_of(maker, longest=1)
    assert longest["host_call"] == call


def test_freeing_memory_is_work_of_the_host() -> None:
    """`cudaFree` also waits for the GPU, but the program does not need a result of the GPU."""
    maker = TraceMaker()
    maker.launched("first", 50, 50, correlation=1, at=10)
    maker.call("cudaFree", 15, 104)
    maker.launched("second", 130, 50, correlation=2, at=120)
    assert cause(maker) == "host"


def test_a_wait_that_takes_most_of_the_gap_is_synchronization_even_if_it_begins_late() -> (
    None
):
    maker = TraceMaker()
    maker.launched("first", 50, 50, correlation=1, at=10)
    maker.call("cudaDeviceSynchronize", 105, 80)  # for another device, say
    maker.launched("second", 200, 50, correlation=2, at=190)
    assert cause(maker) == "synchronization"


def test_a_copy_whose_call_returns_after_the_copy_is_synchronization() -> None:
    maker = TraceMaker()
    maker.call("cudaMemcpyAsync", 10, 120, correlation=1)  # to pageable memory
    maker.gpu("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 50, 50, correlation=1)
    maker.launched("second", 160, 50, correlation=2, at=150)
    assert cause(maker) == "synchronization"


@pytest.mark.parametrize(
    ("call", "start", "duration", "thread"),
    [
        pytest.param("cudaStreamSynchronize", 15, 90, 2, id="on another thread"),
        pytest.param("cudaStreamSynchronize", 121, 90, 1, id="after the launch"),
        pytest.param(
            "cudaStreamSynchronize", 104, 2, 1, id="much shorter than the gap"
        ),
        pytest.param("cudaStreamSynchronize", 15, 30, 1, id="before the gap"),
        pytest.param("cudaEventQuery", 15, 90, 1, id="a query"),
        pytest.param("cudaMemcpyAsync", 15, 90, 1, id="an asynchronous copy"),
    ],
)
def test_other_calls_are_not_synchronization(
    call: str, start: int, duration: int, thread: int
) -> None:
    maker = TraceMaker()
    maker.launched("first", 50, 50, correlation=1, at=10)
    maker.call(call, start, duration, thread=thread)
    maker.launched("second", 130, 50, correlation=2, at=120)
    assert cause(maker) == "host"


@pytest.mark.parametrize("launch_start", [150, 190])
def test_a_launch_during_the_gap_is_late_because_of_the_host(launch_start: int) -> None:
    maker = TraceMaker()
    maker.launched("first", 50, 50, correlation=1, at=10)
    maker.launched("second", 200, 50, correlation=2, at=launch_start)
    assert cause(maker) == "host"


def test_a_gap_is_divided_by_cause() -> None:
    """The gap has 20 µs of a wait, 52 µs until the launch returns, and 28 µs until the start."""
    maker = TraceMaker()
    maker.launched("first", 50, 50, correlation=1, at=10)
    maker.call("cudaStreamSynchronize", 15, 105)
    maker.call("cudaLaunchKernel", 160, 12, correlation=2)
    maker.kernel("second", 200, 50, correlation=2)
    summary = TreePerfAnalyzer(maker.document()).get_df_gap_summary()
    device = summary[summary["scope"] == "device"].set_index("cause")["idle_time_ms"]
    expected = {"synchronization": 0.02, "host": 0.052, "launch overhead": 0.028}
    assert device[device > 0].to_dict() == pytest.approx(expected)


def test_a_launch_that_takes_long_is_time_of_the_host() -> None:
    maker = TraceMaker()
    maker.launched("first", 50, 50, correlation=1, at=10)
    maker.call("cudaLaunchKernel", 90, 109, correlation=2)  # such as to load a module
    maker.kernel("second", 200, 50, correlation=2)
    assert cause(maker) == "host"
    (longest,) = gaps_of(maker, longest=1)
    assert longest["host_call"] == "cudaLaunchKernel"


@pytest.mark.parametrize(
    "call", ["cudaStreamWaitEvent", "hipStreamWaitEvent", "cuStreamWaitEvent"]
)
def test_a_stream_that_waits_for_an_event_is_a_dependency(call: str) -> None:
    maker = TraceMaker()
    maker.launched("first", 50, 50, correlation=1, at=10)
    maker.call(call, 15, 2)
    maker.launched("second", 200, 50, correlation=2, at=20)
    assert cause(maker) == "dependency"


@pytest.mark.parametrize(
    ("other_end", "expected"),
    [(200, "dependency"), (196, "dependency"), (190, "unknown")],
)
def test_work_on_another_stream_that_just_ended_is_a_dependency(
    other_end: int, expected: str
) -> None:
    maker = queued()
    maker.launched("other", 60, other_end - 60, correlation=3, at=5, stream=9)
    assert cause(maker) == expected


@pytest.mark.parametrize("scope", ["stream", "device"])
def test_an_event_of_no_length_does_not_wait_for_itself(scope: str) -> None:
    maker = queued()
    maker.launched("marker", 200, 0, correlation=3, at=25)
    assert [gap["cause"] for gap in gaps_of(maker, scope=scope)] == ["unknown"]


def test_work_on_another_stream_may_end_with_an_event_of_no_length() -> None:
    maker = queued()
    maker.launched("marker", 200, 0, correlation=3, at=25)
    maker.launched("other", 60, 140, correlation=4, at=5, stream=9)
    assert cause(maker) == "dependency"


def test_a_wait_of_another_stream_is_not_a_dependency() -> None:
    """The wait is taken to be of the stream of the next launch."""
    maker = TraceMaker()
    maker.launched("first", 50, 50, correlation=1, at=10)
    maker.call("cudaStreamWaitEvent", 12, 1)
    maker.launched("other", 60, 10, correlation=3, at=14, stream=9)
    maker.launched("second", 200, 50, correlation=2, at=20)
    assert cause(maker) == "unknown"


def test_work_on_another_device_is_not_a_dependency() -> None:
    maker = queued()
    maker.kernel("other", 60, 140, device=1, stream=9)
    assert cause(maker) == "unknown"


def test_a_wait_before_an_earlier_launch_is_not_a_dependency() -> None:
    maker = TraceMaker()
    maker.call("cudaStreamWaitEvent", 5, 1)
    maker.launched("first", 50, 50, correlation=1, at=10)
    maker.launched("second", 200, 50, correlation=2, at=20)
    assert cause(maker) == "unknown"


@pytest.mark.parametrize(
    ("second_start", "expected"),
    [(108, "launch overhead"), (120, "launch overhead"), (120.001, "unknown")],
)
def test_a_short_gap_without_another_cause_is_launch_overhead(
    second_start: float, expected: str
) -> None:
    """The limit is 20 µs in a trace with few launches."""
    assert cause(queued(second_start)) == expected


def test_the_limit_of_launch_overhead_is_the_usual_latency_of_the_trace() -> None:
    maker = TraceMaker()
    launch = 0.0
    for number in range(1, 9):  # the kernels start 8 µs after their launches
        maker.launched("k", launch + 8, 10, correlation=number, at=launch)
        launch += 100
    gpu_events = TreePerfAnalyzer(maker.document()).gpu_events
    assert launch_latency_limit(gpu_events).tolist() == [16_000]
    start = launch + 8
    maker.launched("k", start, 50, correlation=20, at=launch)
    start += 50 + 16
    maker.launched("k", start, 50, correlation=21, at=launch + 10)
    assert cause(maker) == "launch overhead"
    start += 50 + 17
    maker.launched("k", start, 50, correlation=22, at=launch + 20)
    assert cause(maker) == "unknown"


def test_each_device_has_a_launch_latency_limit() -> None:
    maker = TraceMaker()
    for number in range(1, 9):
        launch = 100.0 * number
        maker.launched("k", launch + 8, 10, correlation=number, at=launch)
        maker.launched(
            "k", launch + 30, 10, correlation=100 + number, at=launch + 9, device=1
        )
    gpu_events = TreePerfAnalyzer(maker.document()).gpu_events
    assert launch_latency_limit(gpu_events).tolist() == [16_000, 42_000]


def test_a_long_gap_after_an_early_launch_has_an_unknown_cause() -> None:
    assert cause(queued()) == "unknown"


def test_kernels_of_a_graph_were_launched_before_the_gaps_between_them() -> None:
    maker = TraceMaker()
    maker.call("cudaGraphLaunch", 10, 20, correlation=1)
    for name, start in (("a", 50), ("b", 105), ("c", 300)):
        maker.kernel(name, start, 50, correlation=1)
    assert [gap["cause"] for gap in gaps_of(maker)] == ["launch overhead", "unknown"]


def test_events_without_a_launch_were_launched_before_the_recording() -> None:
    maker = TraceMaker()
    maker.kernel("first", 50, 50, correlation=99)
    maker.kernel("second", 105, 50, correlation=98)
    maker.launched("third", 300, 10, correlation=1, at=250)
    assert [gap["cause"] for gap in gaps_of(maker)] == ["launch overhead", "host"]


def test_causes_in_a_trace_without_runtime_calls_are_unknown() -> None:
    maker = TraceMaker()
    maker.kernel("first", 50, 50)
    maker.kernel("second", 101, 50)
    assert cause(maker) == "unknown"


def test_synchronization_takes_precedence_over_the_host() -> None:
    maker = TraceMaker()
    maker.launched("first", 50, 50, correlation=1, at=10)
    maker.call("cudaStreamSynchronize", 15, 90)
    maker.call("cudaStreamWaitEvent", 106, 1)
    maker.launched("second", 112, 50, correlation=2, at=108)
    assert cause(maker) == "synchronization"


def test_the_host_takes_precedence_over_a_dependency_and_launch_overhead() -> None:
    maker = TraceMaker()
    maker.launched("first", 50, 50, correlation=1, at=10)
    maker.call("cudaStreamWaitEvent", 106, 1)
    maker.launched("second", 112, 50, correlation=2, at=108)
    assert cause(maker) == "host"


def test_a_dependency_takes_precedence_over_launch_overhead() -> None:
    maker = TraceMaker()
    maker.launched("first", 50, 50, correlation=1, at=10)
    maker.call("cudaStreamWaitEvent", 15, 1)
    maker.launched("second", 102, 50, correlation=2, at=20)
    assert cause(maker) == "dependency"


# CPU activity during the longest gaps.


def test_the_longest_gaps_have_the_operation_and_the_frame_on_the_cpu() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#1", 0, 1000)
    maker.frame("train.py(10): main", 0, 1000)
    maker.frame("data.py(20): collate", 105, 150)
    maker.frame("data.py(30): short", 110, 5)
    maker.launched("first", 50, 50, correlation=1, at=10)
    maker.op("aten::stack", 120, 120)
    maker.op("aten::empty", 130, 5)
    maker.op("aten::mm", 290, 30)
    maker.launched("second", 310, 50, correlation=2, at=300)
    (gap,) = gaps_of(maker, longest=3)
    assert gap["cause"] == "host"
    assert gap["host_op"] == "aten::stack"
    assert gap["python_frame"] == "data.py(20): collate"
    assert gap["host_call"] == ""
    assert gap["cpu_op"] == "aten::mm"
    assert gap["launch_delay_us"] == 10


def test_the_longest_gaps_come_first_and_unlinked_ones_have_no_cpu_activity() -> None:
    maker = TraceMaker()
    for number, start in enumerate((0, 20, 100, 130)):
        maker.kernel(f"k{number}", start, 10)
    longest = gaps_of(maker, longest=2)
    assert [gap["gap_us"] for gap in longest] == [70.0, 20.0]
    for gap in longest:
        assert gap["host_op"] == ""
        assert gap["python_frame"] == ""
        assert np.isnan(gap["launch_delay_us"])


# Recorded traces.

#: A trace in which many GPU events were launched before the recording, or have no launch.
ACCELERATOR = "edge/no_cuda_accelerator"


@pytest.mark.real_data
@pytest.mark.parametrize("name", [name for name in TRACES if name != ACCELERATOR])
def test_less_than_2_percent_of_the_idle_time_has_an_unknown_cause(name: str) -> None:
    summary = recorded(name).get_df_gap_summary()
    for _, rows in summary.groupby("scope"):
        by_cause = rows.set_index("cause")["% of idle time"]
        assert list(by_cause.index) == list(CAUSES[: Cause.EDGE.code])
        assert by_cause["unknown"] < 2
        assert by_cause.sum() == pytest.approx(100 if rows["count"].sum() else 0)


HTA_RESULTS = sorted((SHARED / "traces" / "hta_idle").glob("*_idle.csv"))


def trace_of_hta_result(path: Path) -> Path:
    name = path.stem.removesuffix("_idle")
    (trace,) = [trace for key, trace in TRACES.items() if key.endswith(f"/{name}")]
    return trace


@pytest.mark.real_data
@pytest.mark.parametrize("path", HTA_RESULTS, ids=lambda path: path.stem)
def test_gaps_with_a_late_launch_agree_with_hta(path: Path) -> None:
    """HTA's host wait is the time of gaps in which the launch began; it leaves out the last step.

    HTA rounds times to whole microseconds, so the trace `nccl` differs a little.
    """
    host_wait_of_stream = {}
    with path.open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            if row["idle_category"] == "host_wait":
                host_wait_of_stream[int(row["stream"])] = float(row["idle_time"])
    events = load(trace_of_hta_result(path))
    launch_time: dict[int | None, Decimal] = {}
    last_step = Decimal(0)
    for event in events:
        category = event.get("cat", "").lower()
        is_step = str(event.get("name", "")).startswith("ProfilerStep#")
        if category in ("user_annotation", "cpu_op") and is_step:
            last_step = max(last_step, Decimal(event["ts"]))
        is_call = category in ("cuda_runtime", "cuda_driver")
        if is_call and "correlation" in event.get("args", {}):
            launch_time[event["args"]["correlation"]] = Decimal(event["ts"])

    def launched(event: PlainEvent) -> Decimal:
        return launch_time.get(event.correlation, Decimal(0))

    counted = [event for event in gpu_events(events) if launched(event) < last_step]
    for track, gaps in plain_gaps(counted).items():
        late_ns = sum(
            gap.nanoseconds for gap in gaps if launched(gap.after) >= gap.start
        )
        _, _, stream_number = track
        host_wait = host_wait_of_stream[stream_number]
        assert late_ns / 1000 == pytest.approx(host_wait, rel=0.01), track


@pytest.mark.real_data
@pytest.mark.parametrize("path", HTA_RESULTS, ids=lambda path: path.stem)
def test_idle_time_before_a_late_launch_belongs_to_the_cpu(path: Path) -> None:
    analyzer = TreePerfAnalyzer(trace_of_hta_result(path))
    classified = classify_gaps(analyzer.gpu_events)
    launch = classified.launch
    launch_begin = analyzer.trace.ts[np.maximum(launch, 0)]
    is_late = (launch >= 0) & (launch_begin >= classified.gaps.start)
    intervals = classified.within
    launch_returned = classified.launch_returned[intervals.gap]
    before_launch = is_late[intervals.gap] & (intervals.end <= launch_returned)
    causes = {CAUSES[code] for code in intervals.cause[before_launch]}
    assert causes <= {"synchronization", "host", "warm_up", "not_recorded"}
