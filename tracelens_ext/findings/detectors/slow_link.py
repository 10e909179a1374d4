"""Collectives and copies that are far slower than the link of the device allows."""

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

#: A transfer below this share of the rate of its link is slow.
_FAR: Final = 1 / 3
#: Smaller messages are not compared, because latency dominates them.
_LARGE_BYTES: Final = 2**20
#: Transfers between GPUs that need less time, ns, are not compared: they do not reach the full
#: rate.
_LARGE_NS: Final = 50_000
_BETWEEN_GPUS: Final = re.compile(r"Memcpy PtoP|.*Peer-to-Peer")
#: A collective that takes more than this times the shortest one of its size waits for other ranks.
_WAITS: Final = 1.5
#: With fewer collectives of a size, it is not known how long they wait.
_FEWEST_CALLS: Final = 3
#: The columns that tell the size of a collective.
_SIZE: Final = ["Collective name", "dtype", "In msg nelems", "Out msg nelems"]


@detector("slow-link", TEXT)
def slow_link(inspection: Inspection) -> Finding | None:
    """Detect collectives and copies that are far slower than the link of the device allows."""
    gpu_events = inspection.gpu_events
    between_gpus = _rate_between_gpus(inspection)
    to_host = inspection.by_device(link_to_host)
    rate = np.where(between_gpus > 0, between_gpus, to_host)
    # A transfer between GPUs only counts as slow if it is slower than the link to the host, too.
    far_rate = np.minimum(_FAR * rate, np.where(to_host > 0, to_host, np.inf))
    is_pageable, _ = are_pageable(gpu_events)
    crosses_link = (
        ~gpu_events.trace.named(gpu_events.name, WITHIN_DEVICE.match) & ~is_pageable
    )
    crosses_link |= gpu_events.trace.named(gpu_events.name, _BETWEEN_GPUS.match)
    moved = np.where(crosses_link, copied_bytes(inspection), 0.0)
    transfer_ns = gpu_events.duration.astype(np.float64)
    _set_collectives(
        inspection=inspection, far_rate=far_rate, moved=moved, transfer_ns=transfer_ns
    )
    needed_ns = moved / np.maximum(rate, 1)
    is_slow = (moved >= _LARGE_BYTES) & (moved < far_rate * transfer_ns)
    is_slow &= (between_gpus == 0) | (needed_ns >= _LARGE_NS)
    if not is_slow.any():
        return None
    # Other findings may have the rest of a call: its wait for other ranks, and the time that the
    # link needs.
    lost_ns = np.where(is_slow, transfer_ns - needed_ns, 0.0)
    claim = partial(
        WallTime.claim_events,
        events=is_slow,
        hiding=~(gpu_events.is_communication | gpu_events.is_copy),
        until=gpu_events.start + np.rint(lost_ns).astype(np.int64),
    )
    numbers = {
        "rate": float(moved[is_slow].sum() / transfer_ns[is_slow].sum()),
        "link_rate": float(rate[is_slow].max()),
    }
    is_between_gpus = gpu_events.is_communication | gpu_events.trace.named(
        gpu_events.name, _BETWEEN_GPUS.match
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
    """Return the rate between GPUs for the transfer of each GPU event, bytes a ns, (g,).

    This is the rate to one GPU times the number of other GPUs in the transfer, up to the rate to
    all GPUs. 0: not known.
    """
    gpu_events = inspection.gpu_events

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
    to_others = to_one * _other_gpus(gpu_events)
    return np.minimum(to_others, to_all)


def _other_gpus(gpu_events: GpuEvents) -> Int64Array:
    """Return the number of other GPUs in the transfer of each GPU event, (g,); 0: not known."""
    other_gpus = gpu_events.trace.named(gpu_events.name, _BETWEEN_GPUS.match).astype(
        np.int64
    )
    event = communication_of(gpu_events).index.to_numpy()
    gpu_count = len(gpu_events.trace.devices)
    described = collectives.describing_events(gpu_events, event)
    ranks = collectives.text_argument(gpu_events, "Process Group Ranks", described)
    distributed = gpu_events.trace.metadata.get("distributedInfo")
    world_size = None
    if isinstance(distributed, dict):
        world_size = distributed.get("world_size")
    if not isinstance(world_size, int) or not gpu_count:
        return other_gpus
    every_gpu_has_rank = world_size >= gpu_count and world_size % gpu_count == 0
    if every_gpu_has_rank:
        # So the machine of each rank is known.
        count = {text: _others_on_machine(text, gpu_count) for text in set(ranks)}
        other_gpus[event] = [count[text] for text in ranks]
    return other_gpus


def _others_on_machine(text: str, gpu_count: int) -> int:
    """Return how many other ranks a group has, if all are on one machine; 0: not known.

    Args:
        text: the ranks of the group as JSON.
        gpu_count: the number of GPUs, and ranks, of a machine.
    """
    try:
        ranks = json.loads(text)
        machines = {rank // gpu_count for rank in ranks}
    except (ValueError, TypeError, RecursionError):
        return 0
    if len(machines) != 1:
        return 0
    return len(ranks) - 1


def _set_collectives(
    inspection: Inspection,
    far_rate: Float64Array,
    moved: Float64Array,
    transfer_ns: Float64Array,
) -> None:
    """Set the bytes and the transfer times of collectives, in place.

    Args:
        inspection: the inspection of the trace.
        far_rate: below this rate, the transfer of each GPU event is slow, bytes a ns, (g,).
        moved: gets the bytes that each collective moves over the bus, (g,).
        transfer_ns: gets the time of each collective without its wait for other ranks, (g,); 0 for
            collectives that are not compared.
    """
    table = communication_of(inspection.gpu_events)
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
        return
    ns_of_calls = transfer_ns[event]
    reached = bytes_of_calls / np.maximum(ns_of_calls, 1)
    rate = np.where(bytes_of_calls >= _LARGE_BYTES, reached, 0)
    # If a group is fast in one call, its link is fast, and its slow calls wait for other ranks.
    groups = table.assign(rate=rate).groupby(GROUP, dropna=False)
    fastest = groups["rate"].transform("max")
    calls = table.groupby(same_size, dropna=False)["time"]
    shortest_ns = 1e3 * calls.transform("min")
    waits_for_others = ns_of_calls > _WAITS * shortest_ns
    ns_without_wait = np.where(waits_for_others, shortest_ns, ns_of_calls)
    is_compared = calls.transform("size") >= _FEWEST_CALLS
    is_compared &= fastest < far_rate[event]
    transfer_ns[event] = np.where(is_compared, ns_without_wait, 0.0)
