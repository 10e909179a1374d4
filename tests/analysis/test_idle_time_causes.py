"""Each cause of a gap in a trace made for it; the shared traces; and HTA's breakdown."""

from __future__ import annotations

import csv
from collections import defaultdict
from decimal import Decimal
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
from tracelens_ext.analysis.idle_time.after_launch import usual_launch_latency
from tracelens_ext.analysis.idle_time.causes import CAUSES, Cause
from tracelens_ext.analysis.idle_time.classification import classify_gaps


def gaps_of(maker: TraceMaker, **options: Any) -> list[dict[str, Any]]:
    records: Any = (
        TreePerfAnalyzer(maker.document()).get_df_gaps(**options).to_dict("records")
    )
    return list(records)


def cause(maker: TraceMaker) -> str:
    """The cause of the last gap of stream 7."""
    found = str([gap for gap in gaps_of(maker) if gap["stream"] == 7][-1]["cause"])
    assert found in CAUSES
    return found


def queued(second: float = 200, **options: Any) -> TraceMaker:
    """Two kernels, both launched long before the first ends at 100."""
    maker = TraceMaker()
    maker.launched("first", 50, 50, correlation=1, at=10)
    maker.launched("second", second, 50, correlation=2, at=20, **options)
    return maker


# One trace a cause.


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
def test_synchronisation(call: str) -> None:
    maker = TraceMaker()
    maker.launched("first", 50, 50, correlation=1, at=10)
    maker.call(call, 15, 103)  # returns 18 µs after the kernel
    maker.launched("second", 130, 50, correlation=2, at=120)
    assert cause(maker) == "synchronization"
    (longest,) = gaps_of(maker, longest=1)
    assert longest["host_call"] == call


def test_giving_memory_back_is_work_of_the_host() -> None:
    """`cudaFree` waits too, but for its memory: nobody asked for a value of the GPU."""
    maker = TraceMaker()
    maker.launched("first", 50, 50, correlation=1, at=10)
    maker.call("cudaFree", 15, 104)
    maker.launched("second", 130, 50, correlation=2, at=120)
    assert cause(maker) == "host"


def test_synchronisation_that_begins_late_and_takes_most_of_the_gap() -> None:
    maker = TraceMaker()
    maker.launched("first", 50, 50, correlation=1, at=10)
    maker.call("cudaDeviceSynchronize", 105, 80)  # for another device, say
    maker.launched("second", 200, 50, correlation=2, at=190)
    assert cause(maker) == "synchronization"


def test_a_copy_that_returns_after_it_has_ended_synchronises() -> None:
    maker = TraceMaker()
    maker.call("cudaMemcpyAsync", 10, 120, correlation=1)  # to pageable memory
    maker.gpu("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 50, 50, correlation=1)
    maker.launched("second", 160, 50, correlation=2, at=150)
    assert cause(maker) == "synchronization"


def test_no_synchronisation() -> None:
    """On another thread; after the launch; of no time; that does not wait; before the kernel."""
    for call, start, duration, options in (
        ("cudaStreamSynchronize", 15, 90, {"thread": 2}),
        ("cudaStreamSynchronize", 121, 90, {}),
        ("cudaStreamSynchronize", 104, 2, {}),
        ("cudaEventQuery", 15, 90, {}),
        ("cudaMemcpyAsync", 15, 90, {}),
        ("cudaStreamSynchronize", 15, 30, {}),
    ):
        maker = TraceMaker()
        maker.launched("first", 50, 50, correlation=1, at=10)
        maker.call(call, start, duration, **options)  # type: ignore[arg-type]
        maker.launched("second", 130, 50, correlation=2, at=120)
        assert cause(maker) == "host", call


@pytest.mark.parametrize("launched_at", [150, 190])
def test_host(launched_at: int) -> None:
    maker = TraceMaker()
    maker.launched("first", 50, 50, correlation=1, at=10)
    maker.launched("second", 200, 50, correlation=2, at=launched_at)
    assert cause(maker) == "host"


def test_each_moment_of_a_gap_has_its_own_cause() -> None:
    """From 100 to 200: 20 µs in a wait, 52 until the launch has returned, 28 until the start."""
    maker = TraceMaker()
    maker.launched("first", 50, 50, correlation=1, at=10)
    maker.call("cudaStreamSynchronize", 15, 105)
    maker.call("cudaLaunchKernel", 160, 12, correlation=2)
    maker.kernel("second", 200, 50, correlation=2)
    summary = TreePerfAnalyzer(maker.document()).get_df_gap_summary()
    device = summary[summary["scope"] == "device"].set_index("cause")["idle_time_ms"]
    expected = {"synchronization": 0.02, "host": 0.052, "launch overhead": 0.028}
    assert device[device > 0].to_dict() == pytest.approx(expected)


def test_host_in_a_launch_that_does_not_return() -> None:
    maker = TraceMaker()
    maker.launched("first", 50, 50, correlation=1, at=10)
    maker.call("cudaLaunchKernel", 90, 109, correlation=2)  # loads its module
    maker.kernel("second", 200, 50, correlation=2)
    assert cause(maker) == "host"
    (longest,) = gaps_of(maker, longest=1)
    assert longest["host_call"] == "cudaLaunchKernel"


@pytest.mark.parametrize(
    "call", ["cudaStreamWaitEvent", "hipStreamWaitEvent", "cuStreamWaitEvent"]
)
def test_dependency_on_an_event(call: str) -> None:
    maker = TraceMaker()
    maker.launched("first", 50, 50, correlation=1, at=10)
    maker.call(call, 15, 2)
    maker.launched("second", 200, 50, correlation=2, at=20)
    assert cause(maker) == "dependency"


@pytest.mark.parametrize(
    ("ended", "expected"), [(200, True), (196, True), (190, False)]
)
def test_dependency_on_another_stream(ended: int, expected: bool) -> None:
    maker = queued()
    maker.launched("other", 60, ended - 60, correlation=3, at=5, stream=9)
    assert cause(maker) == ("dependency" if expected else "unknown")


@pytest.mark.parametrize("scope", ["stream", "device"])
def test_an_event_of_no_length_does_not_wait_for_itself(scope: str) -> None:
    maker = queued()
    maker.launched("marker", 200, 0, correlation=3, at=25)
    assert [gap["cause"] for gap in gaps_of(maker, scope=scope)] == ["unknown"]
    maker.launched("other", 60, 140, correlation=4, at=5, stream=9)
    assert cause(maker) == "dependency", "what ended with the gap on another stream"


def test_no_dependency() -> None:
    """A wait for the stream launched on next; another device; before both launches."""
    of_another = TraceMaker()
    of_another.launched("first", 50, 50, correlation=1, at=10)
    of_another.call("cudaStreamWaitEvent", 12, 1)
    of_another.launched("other", 60, 10, correlation=3, at=14, stream=9)
    of_another.launched("second", 200, 50, correlation=2, at=20)
    assert cause(of_another) == "unknown"
    elsewhere = queued()
    elsewhere.kernel("other", 60, 140, device=1, stream=9)
    assert cause(elsewhere) == "unknown"
    before = TraceMaker()
    before.call("cudaStreamWaitEvent", 5, 1)
    before.launched("first", 50, 50, correlation=1, at=10)
    before.launched("second", 200, 50, correlation=2, at=20)
    assert cause(before) == "unknown"


def test_launch_overhead() -> None:
    assert cause(queued(108)) == "launch overhead"
    # 20 µs, where nothing tells the usual latency
    assert cause(queued(120)) == "launch overhead"
    assert cause(queued(120.001)) == "unknown"


def test_the_usual_launch_latency_is_that_of_the_trace() -> None:
    maker = TraceMaker()
    at = 0.0
    for number in range(1, 9):  # each 8 µs after its launch, on an idle stream
        maker.launched("k", at + 8, 10, correlation=number, at=at)
        at += 100
    work = TreePerfAnalyzer(maker.document()).work
    assert usual_launch_latency(work).tolist() == [16_000]
    maker.launched("k", at + 8, 50, correlation=20, at=at)
    maker.launched("k", at + 58 + 16, 50, correlation=21, at=at + 10)
    assert cause(maker) == "launch overhead"
    maker.launched("k", at + 58 + 16 + 50 + 17, 50, correlation=22, at=at + 20)
    assert cause(maker) == "unknown"


def test_the_usual_launch_latency_is_that_of_the_device() -> None:
    maker = TraceMaker()
    for number in range(1, 9):
        at = 100.0 * number
        maker.launched("k", at + 8, 10, correlation=number, at=at)
        maker.launched("k", at + 30, 10, correlation=100 + number, at=at + 9, device=1)
    work = TreePerfAnalyzer(maker.document()).work
    assert usual_launch_latency(work).tolist() == [16_000, 42_000]


def test_unknown() -> None:
    assert cause(queued()) == "unknown"


def test_kernels_of_a_graph_and_events_without_a_launch_were_issued_before() -> None:
    graph = TraceMaker()
    graph.call("cudaGraphLaunch", 10, 20, correlation=1)
    for name, start in (("a", 50), ("b", 105), ("c", 300)):
        graph.kernel(name, start, 50, correlation=1)
    assert [gap["cause"] for gap in gaps_of(graph)] == ["launch overhead", "unknown"]
    late = TraceMaker()
    late.kernel("first", 50, 50, correlation=99)
    late.kernel("second", 105, 50, correlation=98)
    late.launched("third", 300, 10, correlation=1, at=250)
    assert [gap["cause"] for gap in gaps_of(late)] == ["launch overhead", "host"]


def test_without_a_single_call_nothing_is_known_of_the_host() -> None:
    maker = TraceMaker()
    maker.kernel("first", 50, 50)
    maker.kernel("second", 101, 50)
    assert cause(maker) == "unknown"


def test_the_causes_are_tried_in_order() -> None:
    maker = TraceMaker()
    maker.launched("first", 50, 50, correlation=1, at=10)
    maker.call("cudaStreamSynchronize", 15, 90)
    maker.call("cudaStreamWaitEvent", 106, 1)
    maker.launched("second", 112, 50, correlation=2, at=108)
    assert cause(maker) == "synchronization", "also host, dependency and short"
    maker.events = [
        event for event in maker.events if event["name"] != "cudaStreamSynchronize"
    ]
    assert cause(maker) == "host", "also dependency and short"
    short = TraceMaker()
    short.launched("first", 50, 50, correlation=1, at=10)
    short.call("cudaStreamWaitEvent", 15, 1)
    short.launched("second", 102, 50, correlation=2, at=20)
    assert cause(short) == "dependency", "also short"


# What the host was in.


def test_the_operation_and_the_frame_that_the_host_was_in() -> None:
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


def test_the_longest_come_first_and_unlinked_ones_have_no_host() -> None:
    maker = TraceMaker()
    for number, start in enumerate((0, 20, 100, 130)):
        maker.kernel(f"k{number}", start, 10)
    found = gaps_of(maker, longest=2)
    assert [gap["gap_us"] for gap in found] == [70.0, 20.0]
    assert {gap["host_op"] + gap["python_frame"] for gap in found} == {""}
    assert np.isnan([gap["launch_delay_us"] for gap in found]).all()


# Real traces.

#: Of many of its device events the launch came before the recording, or has no correlation id.
ACCELERATOR = "edge/no_cuda_accelerator"


@pytest.mark.real_data
@pytest.mark.parametrize("name", [name for name in TRACES if name != ACCELERATOR])
def test_little_is_unknown(name: str) -> None:
    summary = recorded(name).get_df_gap_summary()
    for _, rows in summary.groupby("scope"):
        by_cause = rows.set_index("cause")["% of idle time"]
        assert list(by_cause.index) == list(CAUSES[: Cause.EDGE.code])
        assert by_cause["unknown"] < 2
        assert by_cause.sum() == pytest.approx(100 if rows["count"].sum() else 0)


HTA = sorted((SHARED / "traces" / "hta_idle").glob("*_idle.csv"))


@pytest.mark.real_data
@pytest.mark.parametrize("path", HTA, ids=lambda path: path.stem)
def test_host_time_agrees_with_hta(path: Any) -> None:
    """HTA leaves the last iteration out; its host wait is our synchronization and host.

    Recomputed without it by a plain loop over the events of the file. HTA cuts times to whole
    microseconds, which is why `nccl` differs a little.
    """
    (trace,) = [
        p
        for name, p in TRACES.items()
        if name.endswith("/" + path.stem[: -len("_idle")])
    ]
    expected: dict[int, dict[str, float]] = defaultdict(dict)
    with path.open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            expected[int(row["stream"])][row["idle_category"]] = float(row["idle_time"])
    events = load(trace)
    steps = [e for e in events if str(e.get("name", "")).startswith("ProfilerStep#")]
    cut = max(
        Decimal(e["ts"]) for e in steps if e.get("cat") in ("user_annotation", "cpu_op")
    )
    launched = {
        e["args"]["correlation"]: Decimal(e["ts"])
        for e in events
        if e.get("cat", "").lower() in ("cuda_runtime", "cuda_driver")
        and "correlation" in e.get("args", {})
    }

    def kept(event: PlainEvent) -> bool:
        return launched.get(event.correlation or 0, Decimal(0)) < cut

    for track, gaps in plain_gaps([e for e in gpu_events(events) if kept(e)]).items():
        late = sum(
            gap.nanoseconds
            for gap in gaps
            if launched.get(gap.after.correlation or 0, Decimal(0)) >= gap.start
        )
        hta = expected[track[2]]["host_wait"]
        assert late / 1000 == pytest.approx(hta, rel=0.01), track
    # Ours, of the same events: what is late is called synchronization or host.
    analyzer = TreePerfAnalyzer(trace)
    judged = classify_gaps(analyzer.work)
    launch = judged.launch
    begun = analyzer.trace.ts[np.maximum(launch, 0)]
    was_late = (launch >= 0) & (begun >= judged.gaps.start)
    pieces = judged.intervals.chosen(judged.intervals.gap >= 0)
    before = was_late[pieces.gap] & (pieces.end <= judged.launch_returned[pieces.gap])
    names = np.array(CAUSES)[pieces.cause]
    assert set(names[before]) <= {"synchronization", "host", "warm_up", "not_recorded"}
