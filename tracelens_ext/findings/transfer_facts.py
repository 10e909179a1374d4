"""Facts about copies and collectives: sizes, rates, and idle time that copies cause."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tracelens_ext.analysis.collectives import communication_of
from tracelens_ext.findings.attribution import MOST_PLACES
from tracelens_ext.findings.finding import Claim, Place
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.wall_time import WallTime
from tracelens_ext.roofline.peaks import DevicePeaks
from tracelens_ext.trace import (
    NONE,
    NS_PER_MS,
    BoolArray,
    Device,
    Float64Array,
    Int64Array,
)
from tracelens_ext.trace.gpu_events import GpuEvents, gigabytes_per_second

#: Copies within a device. They are no transfers; layout conversions have their own findings.
WITHIN_DEVICE: Final = re.compile(
    r".*(?:DtoD|Device(?:To|-to-| -> )Device|DEVICE_TO_DEVICE|copyBuffer)"
)
#: Copies from the host to a device.
TO_DEVICE: Final = re.compile(r".*(?:HtoD|Host(?:To|-to-| -> )Device|HOST_TO_DEVICE)")
_COPY_CALLS: Final = re.compile(r"(?:cuda|hip|cu)Memcpy")
#: The columns with the group of a collective.
GROUP: Final = ["Process Group Name", "Group size"]
#: A copy of at most this many bytes spends most of its time starting and ending.
SMALL_BYTES: Final = 65_536


def copy_rates(gpu_events: GpuEvents, events: Int64Array) -> dict[str, float | None]:
    """Return the rates of some copies by direction, GB/s; None for an unknown rate."""
    goes_to_device = gpu_events.trace.named(gpu_events.name[events], TO_DEVICE.match)
    to_device = gigabytes_per_second(gpu_events, events[goes_to_device])
    to_host = gigabytes_per_second(gpu_events, events[~goes_to_device])
    result: dict[str, float | None] = {"rate_to_device": None, "rate_to_host": None}
    if to_device > 0:
        result["rate_to_device"] = to_device
    if to_host > 0:
        result["rate_to_host"] = to_host
    return result


def claim_waits(wall: WallTime, waited_for: BoolArray) -> Claim:
    """Claim the idle time during and after the calls of some copies to a device, (g,).

    After a call, at most the duration of the copy is claimed. Other findings may claim the rest.
    """
    gpu_events = wall.gpu_events
    trace = gpu_events.trace
    launch = gpu_events.tree.launch_of_gpu
    is_chosen = waited_for & gpu_events.is_copy & (launch != NONE)
    is_chosen &= trace.named(gpu_events.name, TO_DEVICE.match)
    is_chosen &= trace.named(trace.name[launch], _COPY_CALLS.match)
    idle_during = wall.claim_idle_during(np.unique(launch[is_chosen]))
    copies = wall.classified.gaps.before
    call_of_gap = np.where(is_chosen[copies], wall.classified.synchronizing_call, NONE)
    return idle_during + wall.claim_idle_after(call_of_gap, gpu_events.duration[copies])


def named_collectives(inspection: Inspection, claim: Claim) -> list[Place]:
    """Return the collectives with most of a claim, with their groups."""
    keys = ["Collective name"] + GROUP
    claimed = (
        communication_of(inspection.gpu_events)
        .loc[claim.events, keys]
        .assign(ns=claim.event_ns)
    )
    sums = claimed.groupby(keys, sort=False, dropna=False)["ns"].agg(["sum", "size"])
    largest = sums.sort_values("sum", ascending=False, kind="stable").head(MOST_PLACES)
    places = []
    for (collective, group, ranks), sum_ns, count in largest.itertuples():
        if collective:
            label = _collective_label(collective, group, ranks)
            places.append(
                Place(
                    name=label,
                    attributed_ms=float(sum_ns) / NS_PER_MS,
                    count=int(count),
                )
            )
    return places


def _collective_label(collective: str, group: str, ranks: float) -> str:
    """Return `allreduce, group 0 of 8`."""
    label = collective
    if group:
        label += f", group {group}"
    if not np.isnan(ranks):
        label += f" of {ranks:.0f}"
    return label


def link_to_host(_: Device | None, peaks: DevicePeaks | None) -> float:
    """Return the bandwidth from a device to the host, bytes a ns; 0: not known."""
    if peaks is None or peaks.link is None:
        return 0.0
    return peaks.link


def copied_bytes(inspection: Inspection) -> Float64Array:
    """Return the bytes of each copy, (g,); 0 for other events and unknown sizes."""
    gpu_events = inspection.gpu_events
    size = np.maximum(gpu_events.trace.arg("bytes").at(gpu_events.rows, 0), 0)
    return np.where(gpu_events.is_copy, size, 0).astype(np.float64)
