"""The GPU timeline against sets of unit cells; and what counts as what."""

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
#: What: the kind of event, its name, what the timeline takes it for.
WORK = {
    "gemm": ("kernel", GEMM, "computation"),
    "unknown": ("kernel", "a_kernel_that_no_rule_knows", "computation"),
    "nccl": ("kernel", NCCL, "communication"),
    "copy": ("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", "copy"),
    "fill": ("gpu_memset", "Memset (Device)", "computation"),
    "rocm copy": ("kernel", "MEMORY_COPY_DEVICE_TO_HOST", "copy"),
    "rocm copy kernel": ("kernel", "__amd_rocclr_copyBuffer.kd", "copy"),
    "rocm fill": ("kernel", "__amd_rocclr_fillBufferAligned", "computation"),
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


class Work(NamedTuple):
    what: str
    start: int
    duration: int
    device: int = 0
    stream: int = 7
    linked: bool = True


def analyzer_of(work: list[Work], **options: Any) -> TreePerfAnalyzer:
    maker = TraceMaker()
    maker.op("one at least", 0, 1)
    for number, one in enumerate(work, start=1):
        kind, name, _ = WORK[one.what]
        if one.linked:
            maker.call("cudaLaunchKernel", 0, correlation=number)
        maker.gpu(
            kind,
            name,
            one.start,
            one.duration,
            correlation=number,
            device=one.device,
            # Work of one stream does not contain other work of it, so each has a stream of its own.
            stream=100 * one.stream + number,
        )
    return TreePerfAnalyzer(maker.document(), **options)


def timeline_of(
    work: list[Work], micro_idle_thresh_us: float | None = None, **options: Any
) -> dict[int | None, dict[str, float]]:
    """device (None when there is one) → type → µs."""
    frame = analyzer_of(work, **options).get_df_gpu_timeline(micro_idle_thresh_us)
    result: dict[int | None, dict[str, float]] = {}
    for row in frame.to_dict("records"):
        block = result.setdefault(row.get("device"), {})
        block[str(row["type"])] = round(row["time ms"] * 1000, 6)
    return result


def naive_timeline(work: list[Work]) -> dict[str, float]:
    cells: dict[str, set[int]] = {
        "computation": set(),
        "communication": set(),
        "copy": set(),
    }
    for one in work:
        cells[WORK[one.what][2]] |= set(range(one.start, one.start + one.duration))
    computation, communication, copy = cells.values()
    busy = computation | communication | copy
    total = max(w.start + w.duration for w in work) - min(w.start for w in work)
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


some_work = st.lists(
    st.builds(
        Work,
        st.sampled_from(sorted(WORK)),
        st.integers(1, 25),  # an event that starts and ends at 0 was not collected
        st.integers(0, 8),
        st.integers(0, 1),
        st.integers(7, 9),
        st.booleans(),
    ),
    max_size=12,
)


@given(some_work, st.booleans())
@settings(max_examples=200)
def test_the_timeline_is_that_of_the_rules(
    work: list[Work], include_unlinked: bool
) -> None:
    counted = [w for w in work if w.linked or include_unlinked]
    devices = sorted({w.device for w in counted})
    expected: dict[int | None, dict[str, float]] = {
        device if len(devices) > 1 else None: naive_timeline(
            [w for w in counted if w.device == device]
        )
        for device in devices
    }
    assert timeline_of(work, include_unlinked_kernels=include_unlinked) == expected


@given(some_work.filter(bool))
@settings(max_examples=60)
def test_shares_sum_to_a_hundred(work: list[Work]) -> None:
    frame = analyzer_of(work).get_df_gpu_timeline(3)
    blocks = (
        [block for _, block in frame.groupby("device")]
        if "device" in frame
        else [frame]
    )
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


# One by one.


def test_columns_and_rows() -> None:
    one = analyzer_of([Work("gemm", 0, 5)]).get_df_gpu_timeline()
    assert list(one.columns) == ["type", "time ms", "percent"]
    assert one["type"].tolist() == TYPES
    assert one["time ms"].tolist() == [0.005, 0, 0, 0.005, 0, 0.005, 0, 0]
    two = analyzer_of(
        [Work("gemm", 0, 5), Work("gemm", 2, 9, device=3)]
    ).get_df_gpu_timeline()
    assert list(two.columns) == ["device", "type", "time ms", "percent"]
    assert two["device"].tolist() == [0] * len(TYPES) + [3] * len(TYPES)
    assert two["type"].tolist() == TYPES * 2


def test_no_gpu_events() -> None:
    frame = analyzer_of([]).get_df_gpu_timeline()
    assert list(frame.columns) == ["type", "time ms", "percent"]
    assert frame.empty
    unlinked = analyzer_of(
        [Work("gemm", 0, 5, linked=False)], include_unlinked_kernels=False
    )
    assert unlinked.get_df_gpu_timeline().empty


def test_work_that_takes_no_time() -> None:
    frame = analyzer_of([Work("gemm", 4, 0)]).get_df_gpu_timeline(5)
    assert frame["time ms"].tolist() == [0] * 10
    assert frame["percent"].tolist() == [0] * 10


@pytest.mark.parametrize("what", WORK)
def test_what_counts_as_what(what: str) -> None:
    (times,) = timeline_of([Work(what, 0, 5)]).values()
    kind = WORK[what][2]
    assert times["computation_time"] == (5 if kind == "computation" else 0)
    assert times["exposed_comm_time"] == times["total_comm_time"]
    assert times["total_comm_time"] == (5 if kind == "communication" else 0)
    assert times["exposed_memcpy_time"] == times["total_memcpy_time"]
    assert times["total_memcpy_time"] == (5 if kind == "copy" else 0)


@pytest.mark.parametrize(
    "options",
    [
        {"categorizer": lambda table: ["GEMM"] * len(table)},
        {"categorizer": {"nccl": "my collectives", "nvjet": "Communication"}},
        {"use_kernel_name_categories": True},
        {},
    ],
)
def test_communication_is_what_the_builtins_say_whoever_categorises(
    options: dict[str, Any],
) -> None:
    (times,) = timeline_of(
        [Work("nccl", 0, 5), Work("gemm", 10, 5)], **options
    ).values()
    assert (times["total_comm_time"], times["computation_time"]) == (5, 5)


def test_a_copy_that_is_called_after_a_collective_is_a_copy() -> None:
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
def test_micro_idle(threshold: float, micro: float, macro: float) -> None:
    """Holes of 2 and 11 µs; one of the threshold's length is a micro one."""
    work = [Work("gemm", 0, 5), Work("gemm", 7, 5, stream=8), Work("copy", 23, 1)]
    (times,) = timeline_of(work, micro_idle_thresh_us=threshold).values()
    assert (times["idle_time"], times["micro_idle_time"], times["macro_idle_time"]) == (
        13,
        micro,
        macro,
    )


def test_a_nanosecond_is_not_lost() -> None:
    maker = TraceMaker()
    maker.kernel(GEMM, 0, 0.001)
    maker.kernel(GEMM, 0.003, 0.001)
    frame = TreePerfAnalyzer(maker.document()).get_df_gpu_timeline().set_index("type")
    assert frame["time ms"].to_dict()["idle_time"] == 2e-6
    assert frame["time ms"].to_dict()["total_time"] == 4e-6
