"""Kernels, copies and collectives with the marks of a problem are put into real traces.

Each finding claims its bound of what was put in, and no other finding grows by it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.counterfactuals import (
    Room,
    Shape,
    places,
    read,
    tensor,
    with_problem,
)
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.roofline.peaks import DevicePeaks, peaks_of_devices

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.counterfactuals import Document
    from tracelens_ext.findings.finding import Finding

SHARED = Path(__file__).resolve().parents[3] / "shared"
TRACES = {
    "bert on H100": "traces/nvidia/gaunernst_bert-small-uncased__1016001.json.gz",
    "a program on A100": "replay/programs/single.json.gz",
    "nsfw detection on MI300X": "traces/amd/Falconsai_nsfw_image_detection__1016002.json.gz",
}
BF16 = "c10::BFloat16"
#: For each finding: the function that adds the problem, and the share of its time that is claimed.
PROBLEMS: dict[
    str, tuple[Callable[[Room, DevicePeaks], None], Callable[[DevicePeaks], float]]
] = {}


def _marks(
    ident: str, share: Callable[[DevicePeaks], float]
) -> Callable[[Callable[[Room, DevicePeaks], None]], None]:
    def add(problem: Callable[[Room, DevicePeaks], None]) -> None:
        PROBLEMS[ident] = problem, share

    return add


def run(
    room: Room,
    name: str,
    times: int,
    *shapes: Shape,
    kind: str = "kernel",
    op: str = "mine::op",
    us: float = 0.0,
    **args: Any,
) -> None:
    """So many GPU events that fill the room, or take a time each."""
    length = us or (room.cost - 10.0) / times
    begun = sum("correlation" in event["args"] for event in room.events) // 2
    for number in range(begun, begun + times):
        room.op(op, number * 7.0, 6.0, *shapes)
        call = room.call("cudaLaunchKernel", number * 7.0 + 1.0, 4.0)
        room.work(kind, name, room._gpu_free, length, call, **args)


@_marks("launch-geometry", lambda peaks: 1 - 1 / peaks.units)
def _one_block(room: Room, _: DevicePeaks) -> None:
    run(room, "my_kernel(int)", 3, grid=[1, 1, 1], block=[256, 1, 1])


@_marks("double-precision", lambda _: 0.5)
def _doubles(room: Room, _: DevicePeaks) -> None:
    run(
        room,
        "void at::native::upsample_bilinear2d_out_frame<double, double>(int, double)",
        3,
    )


@_marks("fallback-kernels", lambda _: 0.75)
def _naive(room: Room, _: DevicePeaks) -> None:
    run(room, "naive_conv_ab_nonpacked_fwd_nchw_half_double_half", 3)


@_marks(
    "no-tensor-cores",
    lambda peaks: 1 - peaks.vector["fp32"] / 0.6 / peaks.matrix["tf32"],
)
def _single_precision(room: Room, _: DevicePeaks) -> None:
    name = "Cijk_Ailk_Bljk_SB_MT64x64x8_SE_K1" if room.amd else "ampere_sgemm_128x64_tn"
    run(room, name, 3)


@_marks("old-kernels", lambda _: 0.4)
def _of_volta(room: Room, _: DevicePeaks) -> None:
    run(room, "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_tn", 3)


@_marks("slow-attention", lambda _: 2 / 3)
def _attention(room: Room, peaks: DevicePeaks) -> None:
    """Three times as long as at 40 % of the peak, with tiles in whole waves."""
    size = tensor(BF16, 1, peaks.units, 4096, 64)
    needed = 5 + 4 * peaks.units * 4096**2 * 64 / (0.4e6 * peaks.matrix["bf16"])
    op = "aten::_scaled_dot_product_flash_attention"
    times = max(1, round(room.cost / needed / 3))
    for _number in range(times):
        before = len(room.events)
        run(room, "my_flash", 1, size, size, size, op=op, us=(room.cost - 10) / times)
        said = ["", "", "", "0.", "False"]
        for event in room.events[before:]:
            if event["name"] == op:
                event["args"]["Concrete Inputs"] = said


@_marks("uneven-gemm", lambda _: 1 / 4)
def _uneven(room: Room, peaks: DevicePeaks) -> None:
    """Of twelve units a layout has six, one a call, and another three of two."""
    needed = 2 * 4096**3 / (0.6e6 * peaks.matrix["bf16"])
    times = max(1, round(room.cost / 12 / needed))
    unit = (room.cost - 10) / 12 / times
    size = tensor(BF16, 4096, 4096)
    name = "my_product"
    turned: Shape = (BF16, [4096, 4096], [1, 4096])
    run(room, name, 6 * times, size, size, op="aten::mm", us=unit)
    run(room, name, 3 * times, size, turned, op="aten::mm", us=2 * unit)


@_marks("slow-moe", lambda _: 1.0)
def _experts(room: Room, _: DevicePeaks) -> None:
    """Products that need next to nothing."""
    shapes = tensor(BF16, 64, 64), tensor(BF16, 8, 64, 64)
    run(room, "grouped_kernel", 1, *shapes, op="aten::_grouped_mm")


@_marks("small-copies", lambda _: 1.0)
def _buckets(room: Room, _: DevicePeaks) -> None:
    call = room.call("cudaLaunchKernel", 1, 5)
    for _number in range(120):
        name = "Memcpy DtoD (Device -> Device)"
        length = (room.cost - 10) / 120
        room.work("gpu_memcpy", name, room._gpu_free, length, call, bytes=100_000)


@_marks("pageable-copies", lambda _: 1.0)
def _pageable(room: Room, _: DevicePeaks) -> None:
    size = int(room.cost * 2e3)
    run(room, "Memcpy HtoD (Pageable -> Device)", 1, kind="gpu_memcpy", bytes=size)


@_marks("slow-link", lambda peaks: 1 - 2 / (peaks.link or 0))
def _slow_all_reduces(room: Room, _: DevicePeaks) -> None:
    """Four ranks, 2 GB/s on the bus: elements of 2 bytes, times 3/2."""
    elements = int((room.cost - 10) / 4 * 2e3 / 3)
    said: dict[str, Any] = {
        "Collective name": "allreduce",
        "dtype": "BFloat16",
        "Group size": 4,
    }
    said |= {"In msg nelems": elements, "Out msg nelems": elements}
    if elements * 3 < 2**20:
        pytest.skip("the trace is too short for large messages")
    run(room, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(int)", 4, **said)


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("world", "ranks", "copies", "claimed"),
    [
        (16, [8, 9, 10, 11], False, True),
        (16, [0, 8], False, False),  # on two machines
        # of eight GPUs: perhaps one on each of four machines
        (4, [0, 1, 2, 3], False, False),
        (0, [], True, True),
    ],
)
def test_links_between_gpus(
    world: int, ranks: list[int], copies: bool, claimed: bool
) -> None:
    """30 GB/s are all that a link to the host moves, and a fifteenth of NVLink."""
    document, _, total, _ = before("bert on H100")
    size = 64_000_000
    us = size * (1 if copies else 1.5) / 30e3
    said: dict[str, Any] = {
        "Collective name": "allreduce",
        "dtype": "Byte",
        "Group size": 4,
    }
    said |= {
        "Process Group Ranks": str(ranks),
        "In msg nelems": size,
        "Out msg nelems": size,
    }

    def transfers(room: Room, _: DevicePeaks) -> None:
        if copies:
            name = "Memcpy PtoP (Device -> Device)"
            run(room, name, 4, kind="gpu_memcpy", us=us, bytes=size)
        else:
            run(room, "ncclDevKernel_AllReduce_Sum_u8_RING_LL(int)", 4, us=us, **said)

    gpus = [{**document["deviceProperties"][0], "id": number} for number in range(8)]
    more = {
        "deviceProperties": gpus,
        "distributedInfo": {"world_size": world, "rank": 8},
    }
    *_, found = with_marks("bert on H100", transfers, (4 * us + 10) / 1e3 / total, more)
    assert ("slow-link" in found) == claimed
    if claimed:
        assert found["slow-link"].evidence[-1].value == 450.0
        lasts = found["slow-link"].evidence[1].value
        assert found["slow-link"].attributed_ms == pytest.approx(
            lasts * (1 - 30 / 450), rel=0.05
        )


def ids(document: Document) -> tuple[float, dict[str, Finding]]:
    found = TreePerfAnalyzer(document, use_kernel_name_categories=True).findings()
    assert found.explained_ms <= found.total_ms * (1 + 1e-9)
    return found.total_ms, {each.id: each for each in found.findings}


@cache
def before(name: str) -> tuple[Document, DevicePeaks, float, dict[str, Finding]]:
    document = read(SHARED / TRACES[name])
    peaks = next(
        iter(peaks_of_devices(TreePerfAnalyzer(document).gpu_events.trace).values())
    )
    assert peaks
    return document, peaks, *ids(document)


def with_marks(
    name: str,
    problem: Callable[[Room, DevicePeaks], None],
    times: float = 1.0,
    members: dict[str, Any] | None = None,
) -> tuple[float, float, dict[str, Finding]]:
    """The cost of the added problem, the time of the trace with it, and the findings."""
    document, peaks, total, _ = before(name)
    ahead = [place for place in places(document) if not place.after_wait]
    cost = times * total
    place = ahead[len(ahead) // 2]
    made = with_problem(document, place, cost * 1e3, lambda room: problem(room, peaks))
    return cost, *ids(made | (members or {}))


@pytest.mark.real_data
@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("ident", PROBLEMS)
def test_marks_of_a_problem_are_its_finding(name: str, ident: str) -> None:
    if ident == "old-kernels" and "MI300X" in name:
        pytest.skip("kernels of NVIDIA")
    problem, share = PROBLEMS[ident]
    _, peaks, _, had = before(name)
    cost, total, found = with_marks(name, problem)
    earlier = {each: finding.attributed_ms for each, finding in had.items()}
    grown = {
        each: f.attributed_ms - earlier.get(each, 0.0) for each, f in found.items()
    }
    assert grown.pop(ident, 0.0) == pytest.approx(share(peaks) * cost, rel=0.3)
    allowed = max(0.15 * cost, 0.01 * total)
    assert {each: ms for each, ms in grown.items() if ms > allowed} == {}
    claims = {each: f.attributed_ms for each, f in found.items()}
    if claims[ident] > 1.15 * max(earlier.values()):
        assert max(claims, key=lambda each: claims[each]) == ident


@pytest.mark.real_data
@pytest.mark.parametrize("name", TRACES)
def test_one_kernel_that_no_model_knows(name: str) -> None:
    """It informs, with a command to paste."""
    _, _, found = with_marks(
        name, lambda room, _: run(room, "my_scan<int>(int*)", 3, tensor(BF16, 8)), 3.0
    )
    finding = found["dominant-kernel"]
    assert finding.informs_only
    assert ("rocprof-compute" if "MI300X" in name else "ncu") in finding.advice
    assert "my_scan" in finding.advice


@pytest.mark.real_data
def test_experts_that_get_very_different_numbers_of_tokens() -> None:
    def experts(room: Room, _: DevicePeaks) -> None:
        for tokens in (17, 341, 5, 1003, 77, 129):
            shapes = tensor(BF16, tokens, 1024), tensor(BF16, 1024, 4096)
            run(room, "nvjet_hsh", 1, *shapes, op="aten::mm", us=room.cost / 7)
        room.span("python_function", "nn.Module: MixtralExperts_0", 0, room.cost)

    *_, found = with_marks("bert on H100", experts)
    assert found["imbalance"].informs_only
    assert "5 to 1,003 tokens" in found["imbalance"].title
