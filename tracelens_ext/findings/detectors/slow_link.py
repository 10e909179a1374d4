"""Collectives and copies far below what the link of the device moves."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Final

import numpy as np

from tracelens_ext.analysis import collectives
from tracelens_ext.analysis.collectives import (
    bus_factor,
    communication_of,
    element_bytes,
)
from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.program_facts import Fact
from tracelens_ext.findings.texts import (
    AdviceVariant,
    EvidenceText,
    FindingText,
    VariantText,
)
from tracelens_ext.findings.transfer_facts import (
    GROUP,
    WITHIN_DEVICE,
    copied_bytes,
    link_to_host,
)
from tracelens_ext.findings.wall_time import WallTime
from tracelens_ext.roofline.peaks import DevicePeaks, peer_links_of
from tracelens_ext.trace import Device, Float64Array, Int64Array
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.gpu_events import pageable_copies as are_pageable

TEXT: Final = FindingText(
    title="Transfers far below the rate of the link: {saving}",
    reason="an upper bound: as if all of them reached the rate of their link",
    evidence={
        "events": EvidenceText(what="such transfers", unit="GPU events", see="kernels"),
        "time_ms": EvidenceText(what="their time", unit="ms", see="kernels"),
        "rate": EvidenceText(
            what="their rate (collectives: on the bus)",
            unit="GB/s",
            see="coll_analysis",
        ),
        "link_rate": EvidenceText(what="rate of the link", unit="GB/s", see="roofline"),
    },
    variants={
        "host": VariantText(
            title="Slow copies between CPU and GPU: {saving}",
            advice=(
                "Find out what slows them down: pin the process to the CPU socket of its GPU, "
                "check the link's width and generation ({topology}), and let copies not share "
                "the link."
            ),
        ),
        "peers": VariantText(
            title="Slow transfers between GPUs: {saving}",
            advices=(
                AdviceVariant(
                    requires=(Fact.FAST_LINK, Fact.AMD),
                    advice=(
                        "Find out what path they take (rocm-smi --showtopo, NCCL_DEBUG=INFO): "
                        "GPUs of one board should use xGMI, others InfiniBand or RoCE with "
                        "GPUDirect."
                    ),
                ),
                AdviceVariant(
                    requires=(Fact.FAST_LINK,),
                    advice=(
                        "Find out what path they take (nvidia-smi topo -m, NCCL_DEBUG=INFO): "
                        "GPUs of one board should use NVLink, others InfiniBand or RoCE with "
                        "GPUDirect."
                    ),
                ),
                AdviceVariant(
                    requires=(Fact.AMD,),
                    advice=(
                        "Find out what path they take (rocm-smi --showtopo, NCCL_DEBUG=INFO): "
                        "let GPUs reach each other directly over PCIe, and pin processes to "
                        "the CPU socket of their GPU."
                    ),
                ),
                AdviceVariant(
                    advice=(
                        "Find out what path they take (nvidia-smi topo -m, NCCL_DEBUG=INFO): "
                        "let GPUs reach each other directly over PCIe, and pin processes to "
                        "the CPU socket of their GPU."
                    ),
                ),
            ),
        ),
    },
    least_share=0.5,
)

#: Less than this share of the link is far below it. Smaller messages take their latency.
_FAR: Final = 1 / 3
_LARGE_BYTES: Final = 2**20
#: Between GPUs what takes less has not reached its rate, ns.
_LARGE_NS: Final = 50_000
_BETWEEN_GPUS: Final = re.compile(r"Memcpy PtoP|.*Peer-to-Peer")
#: A collective that takes so many times as long as the best of its size waits for others; one call
#: of a size cannot tell.
_WAITS: Final = 1.5
_FEWEST_CALLS: Final = 3
_SIZE: Final = ["Collective name", "dtype", "In msg nelems", "Out msg nelems"]


@detector("slow-link", TEXT)
def slow_link(inspection: Inspection) -> Finding | None:
    """Collectives and copies far below what the link of the device moves."""
    work = inspection.work
    between_gpus = _rate_between_gpus(inspection)
    to_host = inspection.by_device(link_to_host)
    rate = np.where(between_gpus > 0, between_gpus, to_host)
    # What is slower than the link to the host might as well go over that.
    far_rate = np.minimum(_FAR * rate, np.where(to_host > 0, to_host, np.inf))
    is_pageable, _ = are_pageable(work)
    crosses_link = ~work.trace.named(work.name, WITHIN_DEVICE.match) & ~is_pageable
    crosses_link |= work.trace.named(work.name, _BETWEEN_GPUS.match)
    moved = np.where(crosses_link, copied_bytes(inspection), 0.0)
    transfer_ns = work.duration.astype(np.float64)
    _set_collectives(
        inspection=inspection, far_rate=far_rate, moved=moved, transfer_ns=transfer_ns
    )
    needed_ns = moved / np.maximum(rate, 1)
    is_slow = (moved >= _LARGE_BYTES) & (moved < far_rate * transfer_ns)
    is_slow &= (between_gpus == 0) | (needed_ns >= _LARGE_NS)
    if not is_slow.any():
        return None
    # What is left of a call is its wait for others, and what the link needs.
    lost_ns = np.where(is_slow, transfer_ns - needed_ns, 0.0)
    claim = partial(
        WallTime.claim_events,
        events=is_slow,
        hiding=~(work.is_communication | work.is_copy),
        until=work.start + np.rint(lost_ns).astype(np.int64),
    )
    numbers = {
        "rate": float(moved[is_slow].sum() / transfer_ns[is_slow].sum()),
        "link_rate": float(rate[is_slow].max()),
    }
    is_between_gpus = work.is_communication | work.trace.named(
        work.name, _BETWEEN_GPUS.match
    )
    variant = "host"
    if 2 * lost_ns[is_between_gpus].sum() > lost_ns.sum():
        variant = "peers"
    topology = "nvidia-smi -q"
    if inspection.facts.shows(Fact.AMD):
        topology = "rocm-smi --showtopo"
    return inspection.finding_of_events(
        "slow-link",
        claim,
        numbers,
        text=TEXT,
        variant=variant,
        values={"topology": topology},
    )


def _rate_between_gpus(inspection: Inspection) -> Float64Array:
    """Return the rate of the links between GPUs over which each GPU event goes; 0: none known.

    Those of a product to one other GPU, as often as there are others, as far as it has links.
    """
    work = inspection.work

    def rate_to_one(_: Device | None, peaks: DevicePeaks | None) -> float:
        if peaks is None:
            return 0
        return peer_links_of(peaks.name).to_one_peer

    def rate_to_all(_: Device | None, peaks: DevicePeaks | None) -> float:
        if peaks is None:
            return 0
        return peer_links_of(peaks.name).to_all_peers

    to_one = inspection.by_device(rate_to_one)
    to_all = inspection.by_device(rate_to_all)
    to_others = to_one * _other_gpus(work)
    return np.minimum(to_others, to_all)


def _other_gpus(work: GpuEvents) -> Int64Array:
    """Return to how many other GPUs each GPU event transfers, as far as that is known, (g,)."""
    others = work.trace.named(work.name, _BETWEEN_GPUS.match).astype(np.int64)
    event = communication_of(work).index.to_numpy()
    gpus = len(work.trace.devices)
    described = collectives.describing_events(work, event)
    ranks = collectives.text_argument(work, "Process Group Ranks", described)
    distributed = work.trace.metadata.get("distributedInfo")
    world = None
    if isinstance(distributed, dict):
        world = distributed.get("world_size")
    if isinstance(world, int) and gpus and world >= gpus and world % gpus == 0:
        # Else GPUs of a machine are without a rank, so where the ranks are is not known.
        count = {text: _others_on_board(text, gpus) for text in set(ranks)}
        others[event] = [count[text] for text in ranks]
    return others


def _others_on_board(text: str, gpus: int) -> int:
    """Return how many others a group has whose ranks are on one machine; 0: not known."""
    try:
        ranks = json.loads(text)
        boards = {rank // gpus for rank in ranks}
    except (ValueError, TypeError, RecursionError):
        return 0
    if len(boards) != 1:
        return 0
    return len(ranks) - 1


def _set_collectives(
    inspection: Inspection,
    far_rate: Float64Array,
    moved: Float64Array,
    transfer_ns: Float64Array,
) -> None:
    """Set the bytes of collectives, as bus bandwidth counts, and ns without the wait for others."""
    table = communication_of(inspection.work)
    event = table.index.to_numpy()
    same_size = GROUP + _SIZE
    sizes = table[_SIZE + GROUP].drop_duplicates()
    bytes_of_sizes = []
    for name, data_type, sent, received, _, ranks in sizes.itertuples(index=False):
        elements = np.fmax(sent, received)
        message_bytes = elements * element_bytes(data_type)
        bus_bytes = message_bytes * bus_factor(name, ranks)
        bytes_of_sizes.append(bus_bytes)
    sizes["moved"] = bytes_of_sizes
    table_with_sizes = table[same_size].merge(sizes, how="left", on=same_size)
    moved[event] = np.nan_to_num(table_with_sizes["moved"])
    bytes_of_calls = moved[event]
    if bytes_of_calls.max(initial=0) < _LARGE_BYTES:
        return  # none is judged
    ns_of_calls = transfer_ns[event]
    reached = bytes_of_calls / np.maximum(ns_of_calls, 1)
    rate = np.where(bytes_of_calls >= _LARGE_BYTES, reached, 0)
    # A group that is fast in one call has a fast link: others of its calls wait for other ranks.
    groups = table.assign(rate=rate).groupby(GROUP, dropna=False)
    fastest = groups["rate"].transform("max")
    calls = table.groupby(same_size, dropna=False)["time"]
    shortest_ns = 1e3 * calls.transform("min")
    waits_for_others = ns_of_calls > _WAITS * shortest_ns
    own_ns = np.where(waits_for_others, shortest_ns, ns_of_calls)
    is_judged = calls.transform("size") >= _FEWEST_CALLS
    is_judged &= fastest < far_rate[event]
    transfer_ns[event] = np.where(is_judged, own_ns, 0.0)
