"""The GPU timeline, compared with sets of microseconds; and the type of time of each GPU event."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "nvjet_tst_320x128_64x3_1x2_h_bz_coopB_TNT"


class Work(NamedTuple):
    """A kind of GPU work."""

    category: str  #: the category of its events in the trace
    name: str
    counts_as: str  #: the part of the timeline in which it counts


WORK = {
    "gemm": Work("kernel", GEMM, "computation"),
    "unknown": Work("kernel", "a_kernel_that_no_rule_knows", "computation"),
    "nccl": Work("kernel", NCCL, "communication"),
    "copy": Work("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", "copy"),
    "fill": Work("gpu_memset", "Memset (Device)", "computation"),
    "rocm copy": Work("kernel", "MEMORY_COPY_DEVICE_TO_HOST", "copy"),
    "rocm copy kernel": Work("kernel", "__amd_rocclr_copyBuffer.kd", "copy"),
    "rocm fill": Work("kernel", "__amd_rocclr_fillBufferAligned", "computation"),
}
TYPES = [
    "computation_time",
    "exposed_comm_time",
    "exposed_memcpy_time",
    "busy_time",
    "idle_time",
    "total_time",
    "total_comm_time",
    "total_memcpy_time",
]


class Event(NamedTuple):
    """A GPU event of a trace; times in µs."""

    work: str  #: a key of `WORK`
    start: int
    duration: int
    device: int = 0
    stream: int = 7
    linked: bool = True

    @property
    def end(self) -> int:
        return self.start + self.duration


def analyzer_of(events: list[Event], **options: Any) -> TreePerfAnalyzer:
    maker = TraceMaker()
    maker.op("at least one event", 0, 1)
    for number, event in enumerate(events, start=1):
        work = WORK[event.work]
        if event.linked:
            maker.call("cudaLaunchKernel", 0, correlation=number)
        maker.gpu(
            work.category,
            work.name,
            event.start,
            event.duration,
            correlation=number,
            device=event.device,
            # Events on one stream never contain one another, so each has a stream of its own.
            stream=100 * event.stream + number,
        )
    return TreePerfAnalyzer(maker.document(), **options)


def timeline_of(
    events: list[Event], micro_idle_thresh_us: float | None = None, **options: Any
) -> dict[int | None, dict[str, float]]:
    """Return device → type → µs; the device is None if there is only one."""
    frame = analyzer_of(events, **options).get_df_gpu_timeline(micro_idle_thresh_us)
    timelines: dict[int | None, dict[str, float]] = {}
    for row in frame.to_dict("records"):
        timeline = timelines.setdefault(row.get("device"), {})
        timeline[str(row["type"])] = round(row["time ms"] * 1000, 6)
    return timelines


def naive_timeline(events: list[Event]) -> dict[str, float]:
    """Return the timeline of a device from the sets of microseconds of its events."""
    computation: set[int] = set()
    communication: set[int] = set()
    copy: set[int] = set()
    parts = {"computation": computation, "communication": communication, "copy": copy}
    for event in events:
        part = parts[WORK[event.work].counts_as]
        part.update(range(event.start, event.end))
    busy = computation | communication | copy
    last_end = max(event.end for event in events)
    total = last_end - min(event.start for event in events)
    return {
        "computation_time": len(computation),
        "exposed_comm_time": len(communication - computation),
        "exposed_memcpy_time": len(copy - communication - computation),
        "busy_time": len(busy),
        "idle_time": total - len(busy),
        "total_time": total,
        "total_comm_time": len(communication),
        "total_memcpy_time": len(copy),
    }


EVENTS = st.lists(
    st.builds(
        Event,
        st.sampled_from(sorted(WORK)),
        st.integers(1, 25),  # the reader drops events that start and end at 0
        st.integers(0, 8),
        st.integers(0, 1),
        st.integers(7, 9),
        st.booleans(),
    ),
    max_size=12,
)


@given(EVENTS, st.booleans())
@settings(max_examples=200)
def test_the_timeline_agrees_with_sets_of_microseconds(
    events: list[Event], include_unlinked: bool
) -> None:
    counted = [event for event in events if event.linked or include_unlinked]
    devices = sorted({event.device for event in counted})
    expected: dict[int | None, dict[str, float]] = {}
    for device in devices:
        events_of_device = [event for event in counted if event.device == device]
        key = device if len(devices) > 1 else None
        expected[key] = naive_timeline(events_of_device)
    assert timeline_of(events, include_unlinked_kernels=include_unlinked) == expected


@given(EVENTS.filter(bool))
@settings(max_examples=60)
def test_shares_of_each_device_add_up_to_100_percent(events: list[Event]) -> None:
    frame = analyzer_of(events).get_df_gpu_timeline(3)
    blocks = [frame]
    if "device" in frame:
        blocks = [block for _, block in frame.groupby("device")]
    for block in blocks:
        percent = block.set_index("type")["percent"]
        if percent["total_time"] == 0:
            continue
        parts = [
            "computation_time",
            "exposed_comm_time",
            "exposed_memcpy_time",
            "idle_time",
        ]
        assert math.isclose(percent[parts].sum(), 100)
        assert math.isclose(percent[["busy_time", "idle_time"]].sum(), 100)
        idle = percent[["micro_idle_time", "macro_idle_time"]].sum()
        assert math.isclose(idle, percent["idle_time"], abs_tol=1e-9)
        assert percent["total_time"] == 100


# Single rules.


def test_the_timeline_of_one_device_has_no_device_column() -> None:
    frame = analyzer_of([Event("gemm", 0, 5)]).get_df_gpu_timeline()
    assert list(frame.columns) == ["type", "time ms", "percent"]
    assert frame["type"].tolist() == TYPES
    assert frame["time ms"].tolist() == [0.005, 0, 0, 0.005, 0, 0.005, 0, 0]


def test_the_timeline_of_two_devices_has_a_block_for_each() -> None:
    events = [Event("gemm", 0, 5), Event("gemm", 2, 9, device=3)]
    frame = analyzer_of(events).get_df_gpu_timeline()
    assert list(frame.columns) == ["device", "type", "time ms", "percent"]
    assert frame["device"].tolist() == [0] * len(TYPES) + [3] * len(TYPES)
    assert frame["type"].tolist() == TYPES * 2


def test_the_timeline_without_gpu_events_that_count_is_empty() -> None:
    frame = analyzer_of([]).get_df_gpu_timeline()
    assert list(frame.columns) == ["type", "time ms", "percent"]
    assert frame.empty
    unlinked = analyzer_of(
        [Event("gemm", 0, 5, linked=False)], include_unlinked_kernels=False
    )
    assert unlinked.get_df_gpu_timeline().empty


def test_shares_of_a_total_time_of_zero_are_zero() -> None:
    frame = analyzer_of([Event("gemm", 4, 0)]).get_df_gpu_timeline(5)
    assert frame["time ms"].tolist() == [0] * 10
    assert frame["percent"].tolist() == [0] * 10


@pytest.mark.parametrize("work", WORK)
def test_each_kind_of_work_counts_in_one_part(work: str) -> None:
    (times,) = timeline_of([Event(work, 0, 5)]).values()
    expected = {"computation": 0, "communication": 0, "copy": 0}
    expected[WORK[work].counts_as] = 5
    assert times["computation_time"] == expected["computation"]
    assert times["exposed_comm_time"] == expected["communication"]
    assert times["total_comm_time"] == expected["communication"]
    assert times["exposed_memcpy_time"] == expected["copy"]
    assert times["total_memcpy_time"] == expected["copy"]


@pytest.mark.parametrize(
    "options",
    [
        {"categorizer": lambda table: ["GEMM"] * len(table)},
        {"categorizer": {"nccl": "my collectives", "nvjet": "Communication"}},
        {"use_kernel_name_categories": True},
        {},
    ],
)
def test_communication_does_not_depend_on_the_categorizer(
    options: dict[str, Any],
) -> None:
    events = [Event("nccl", 0, 5), Event("gemm", 10, 5)]
    (times,) = timeline_of(events, **options).values()
    assert (times["total_comm_time"], times["computation_time"]) == (5, 5)


def test_a_copy_with_the_name_of_a_collective_is_a_copy() -> None:
    maker = TraceMaker()
    maker.gpu("gpu_memcpy", NCCL, 0, 5)
    maker.gpu("gpu_user_annotation", "nccl:all_reduce", 0, 50)
    frame = TreePerfAnalyzer(maker.document()).get_df_gpu_timeline().set_index("type")
    assert frame.loc["total_memcpy_time", "time ms"] == 0.005
    assert frame.loc["total_comm_time", "time ms"] == 0
    assert frame.loc["total_time", "time ms"] == 0.005


@pytest.mark.parametrize(
    ("threshold", "micro", "macro"),
    [(0, 0, 13), (2, 2, 11), (2.5, 2, 11), (10.999, 2, 11), (11, 13, 0)],
)
def test_gaps_up_to_the_threshold_are_micro_idle_time(
    threshold: float, micro: float, macro: float
) -> None:
    """The gaps are 2 and 11 µs long."""
    events = [Event("gemm", 0, 5), Event("gemm", 7, 5, stream=8), Event("copy", 23, 1)]
    (times,) = timeline_of(events, micro_idle_thresh_us=threshold).values()
    assert times["idle_time"] == 13
    assert times["micro_idle_time"] == micro
    assert times["macro_idle_time"] == macro


def test_times_are_exact_to_the_nanosecond() -> None:
    maker = TraceMaker()
    maker.kernel(GEMM, 0, 0.001)
    maker.kernel(GEMM, 0.003, 0.001)
    frame = TreePerfAnalyzer(maker.document()).get_df_gpu_timeline().set_index("type")
    assert frame["time ms"].to_dict()["idle_time"] == 2e-6
    assert frame["time ms"].to_dict()["total_time"] == 4e-6
