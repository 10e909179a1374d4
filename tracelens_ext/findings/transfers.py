"""Copies and collectives."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Final

import numpy as np

from tracelens_ext.analysis import collectives
from tracelens_ext.analysis.collectives import bus_factor, communication_of, element_bytes
from tracelens_ext.analysis.iterations.selection import find_iterations
from tracelens_ext.categorize.kernel_names import simple_name
from tracelens_ext.findings.attribution import MOST_PLACES, places_of
from tracelens_ext.findings.finding import Claim, Finding, Place
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.wall_time import WallTime
from tracelens_ext.roofline.peaks import DevicePeaks, peer_links_of
from tracelens_ext.trace import NONE, NS_PER_MS, BoolArray, Device, Float64Array, Int64Array
from tracelens_ext.trace.gpu_events import GpuEvents, gigabytes_per_second
from tracelens_ext.trace.gpu_events import pageable_copies as are_pageable
from tracelens_ext.trace.intervals import union

#: Copies within a device are work like any other: those of layouts have findings of their own.
_WITHIN_DEVICE = re.compile(r".*(?:DtoD|Device(?:To|-to-| -> )Device|DEVICE_TO_DEVICE|copyBuffer)")
_TO_DEVICE = re.compile(r".*(?:HtoD|Host(?:To|-to-| -> )Device|HOST_TO_DEVICE)")
_COPIES = re.compile(r"(?:cuda|hip|cu)Memcpy")
_GROUP: Final = ["Process Group Name", "Group size"]
_SAME: Final = ["collective", *_GROUP, "Process Group Description", "dtype", "iteration"]
#: The others wait for it so many times as long as for any other device.
_FAR_WORSE: Final = 2


def straggler(inspection: Inspection) -> Finding | None:
    """The device of one of several ranks for which the others wait in collectives.

    One that needs every rank ends on all at about the same time: a kernel that comes early runs
    longer than the last one by its wait. The n-th calls alike in an iteration are the same.
    """
    work = inspection.work
    wall = inspection.wall
    if len(wall.tracks) < 2 or not work.is_communication.any():
        return None
    wait, last = _waits(inspection)
    caused = np.bincount(last + 1, wait, minlength=len(wall.tracks) + 1)[1:]
    worst, second = np.argsort(-caused, kind="stable")[:2].tolist()
    if caused[worst] <= _FAR_WORSE * caused[second]:
        return None
    which = (last == worst) & (wait > 0)
    hiding = ~(work.is_communication | work.is_copy)
    claim = wall.claim_events(which, hiding=hiding, until=work.start + wait)
    if not inspection.is_worth(claim):
        return None
    meanwhile = wall.on_device(worst, *union(claim.intervals.start, claim.intervals.end))
    busy = meanwhile.saving_ns - meanwhile.idle_ns
    idle = meanwhile.idle_ns
    numbers = len(claim.events), idle / NS_PER_MS, busy / NS_PER_MS
    where = places_of(work, meanwhile, inspection.idle_moments) | {"streams": ()}
    where["collectives"] = _named_collectives(inspection, claim)
    return inspection.finding(
        "straggler", claim, numbers, told={"name": claim.devices[worst]}, where=where
    )


def _waits(inspection: Inspection) -> tuple[Int64Array, Int64Array]:
    """How long each GPU event waits for the last device of its call, ns, and which that is.

    Returns:
        Both (g,); `NONE` for an event that is in no call of several devices.
    """
    work = inspection.work
    steps = find_iterations(inspection.work.tree)
    table = communication_of(work)
    of_gpu = inspection.wall.tracks.of_gpu
    event = table.index.to_numpy()
    kernels = table["kernel_name"]
    simple = kernels.map({name: simple_name(name) for name in kernels.unique()})
    table = table.assign(
        collective=table["Collective name"].where(table["Collective name"] != "", simple),
        iteration=np.array([*steps.number, NONE], dtype=object)[steps.of_gpu[event]],
        device_index=of_gpu[event],
        ns=work.duration[event],
        start=work.start[event],
    )
    named = table["collective"].str.contains(collectives.SYNCHRONOUS)
    table = table[named].sort_values("start")
    table["which"] = table.groupby(_SAME, dropna=False, sort=False).ngroup()
    of_device = table.groupby(["which", "device_index"])
    table["sequence"], calls = of_device.cumcount(), of_device["ns"].transform("size")
    call = table.groupby(["which", "sequence"])
    devices = call["device_index"].transform("size")
    judged = calls.groupby(table["which"]).transform("nunique") == 1
    judged &= (devices >= 2) & ~(devices > table["Group size"])
    shortest = call["ns"].transform("idxmin")[judged].to_numpy()
    event = table.index[judged].to_numpy()
    wait = np.zeros(len(work), dtype=np.int64)
    last = np.full(len(work), NONE)
    wait[event] = work.duration[event] - work.duration[shortest]
    last[event] = np.where(of_gpu[shortest] == of_gpu[event], NONE, of_gpu[shortest])
    return wait, last


def pageable_copies(inspection: Inspection) -> Finding | None:
    """Copies from or to pageable memory, which go through a buffer of the driver."""
    work = inspection.work
    size = _copied_bytes(inspection)
    pageable = are_pageable(work)[0] & work.is_copy
    pageable &= ~((size > 0) & (size <= _SMALL_BYTES))  # for which the rate is no matter
    if not pageable.any():
        return None
    rate = inspection.by_device(_link)
    known = bool(((size > 0) & (rate > 0))[pageable].all())
    total = max(int(work.duration[pageable].sum()), 1)
    needed = float((size / np.maximum(rate, 1))[pageable].sum()) / total
    claim = inspection.claim(
        lambda wall: wall.claim_events(pageable) + _claim_waits(wall, pageable)
    )
    copied = claim.saving_ns - claim.idle_ns
    waits = claim.idle_ns
    rates = *_copy_rates(work, np.flatnonzero(pageable)), float(rate.max()) if known else None
    numbers = *inspection.size_of(claim), *rates, waits / NS_PER_MS
    # The link needs the rest, if each is exposed as much as all are.
    low_ms = (copied * max(0.0, 1 - needed) + waits) / NS_PER_MS if known else None
    return inspection.finding("pageable-copies", claim, numbers, low_ms=low_ms)


#: A copy of so many bytes is mostly its own start and end; without a size, one that is as short.
_SMALL_BYTES = 65_536
_SHORT_NS = 5_000
#: Within a device: a parameter of this size and less, copied into a bucket.
_PARAMETER_BYTES = 2**22
_PARAMETER_NS = 25_000
_FLOOD: Final = 100


def small_copies(inspection: Inspection) -> Finding | None:
    """Floods of copies that are too small for the link or the memory to matter."""
    work = inspection.work
    size = _copied_bytes(inspection)
    within = work.trace.named(work.name, _WITHIN_DEVICE.match)
    short = work.duration <= np.where(within, _PARAMETER_NS, _SHORT_NS)
    few = size <= np.where(within, _PARAMETER_BYTES, _SMALL_BYTES)
    small = work.is_copy & np.where(size > 0, few, short)
    if small.sum() < _FLOOD:
        return None
    launches = len(np.unique(work.tree.launch_of_gpu[small]))
    kinds = {"copies": (work.name, work.trace.names)}
    return inspection.claimed("small-copies", small.astype(np.float64), [launches], kinds=kinds)


#: Less than this share of the link is far below it. Smaller messages take their latency.
_FAR = 1 / 3
_LARGE_BYTES = 2**20
#: Between GPUs what takes less has not reached its rate, ns.
_LARGE_NS: Final = 50_000
_BETWEEN_GPUS: Final = re.compile(r"Memcpy PtoP|.*Peer-to-Peer")
#: A collective that takes so many times as long as the best of its size waits for others; one call
#: of a size cannot tell.
_WAITS = 1.5
_CALLS = 3
_SIZE: Final = ["Collective name", "dtype", "In msg nelems", "Out msg nelems"]


def slow_link(inspection: Inspection) -> Finding | None:
    """Collectives and copies far below what the link of the device moves."""
    work = inspection.work
    between = _between_gpus(inspection)
    to_host = inspection.by_device(_link)
    rate = np.where(between > 0, between, to_host)
    # What is slower than the link to the host might as well go over that.
    far = np.minimum(_FAR * rate, np.where(to_host > 0, to_host, np.inf))
    crosses = ~work.trace.named(work.name, _WITHIN_DEVICE.match) & ~are_pageable(work)[0]
    crosses |= work.trace.named(work.name, _BETWEEN_GPUS.match)
    moved = np.where(crosses, _copied_bytes(inspection), 0.0)
    transfer = work.duration.astype(np.float64)
    _set_collectives(inspection, far, moved, transfer)
    needed = moved / np.maximum(rate, 1)
    slow = (moved >= _LARGE_BYTES) & (moved < far * transfer)
    slow &= (between == 0) | (needed >= _LARGE_NS)
    if not slow.any():
        return None
    # What is left of a call is its wait for others, and what the link needs.
    until = work.start + np.rint(np.where(slow, transfer - needed, 0.0)).astype(np.int64)
    computation = ~(work.is_communication | work.is_copy)
    reached = float(moved[slow].sum() / transfer[slow].sum())
    claims = partial(WallTime.claim_events, which=slow, hiding=computation, until=until)
    return inspection.claimed("slow-link", claims, [reached, float(rate[slow].max())])


def _between_gpus(inspection: Inspection) -> Float64Array:
    """The rate of the links between GPUs over which each GPU event goes; 0: none is known, (g,).

    Those of a product to one other GPU, as often as there are others, as far as it has links.
    """
    work = inspection.work
    one = inspection.by_device(lambda _, its: peer_links_of(its.name)[0] if its else 0)
    every = inspection.by_device(lambda _, its: peer_links_of(its.name)[1] if its else 0)
    others = work.trace.named(work.name, _BETWEEN_GPUS.match).astype(np.int64)
    event = communication_of(work).index.to_numpy()
    gpus = len(work.trace.devices)
    described = collectives.described_by(work, event)
    ranks = collectives.text_argument(work, "Process Group Ranks", described)
    told = work.trace.metadata.get("distributedInfo")
    world = told.get("world_size") if isinstance(told, dict) else None
    if isinstance(world, int) and gpus and world >= gpus and world % gpus == 0:
        # Else GPUs of a machine are without a rank, so where the ranks are is not known.
        count = {text: _others_on_board(text, gpus) for text in {*ranks}}
        others[event] = [count[text] for text in ranks]
    return np.minimum(one * others, every)


def _others_on_board(text: str, gpus: int) -> int:
    """How many others a group has whose ranks are on one machine of so many GPUs; 0: not known."""
    try:
        ranks = json.loads(text)
        boards = {rank // gpus for rank in ranks}
    except (ValueError, TypeError, RecursionError):
        return 0
    return len(ranks) - 1 if len(boards) == 1 else 0


def _set_collectives(
    inspection: Inspection, far: Float64Array, moved: Float64Array, transfer: Float64Array
) -> None:
    """Set the bytes of collectives, as bus bandwidth counts, and ns without the wait for others."""
    table = communication_of(inspection.work)
    event = table.index.to_numpy()
    same = [*_GROUP, *_SIZE]
    told = table[_SIZE + _GROUP].drop_duplicates()
    told["moved"] = [
        np.fmax(sent, received) * element_bytes(kind) * bus_factor(name, ranks)
        for name, kind, sent, received, _, ranks in told.itertuples(index=False)
    ]
    moved[event] = np.nan_to_num(table[same].merge(told, how="left", on=same)["moved"])
    if moved[event].max(initial=0) < _LARGE_BYTES:
        return  # none is judged
    rate = np.where(moved[event] >= _LARGE_BYTES, moved[event] / np.maximum(transfer[event], 1), 0)
    # A group that is fast in one call has a fast link: others of its calls wait for other ranks.
    fastest = table.assign(rate=rate).groupby(_GROUP, dropna=False)["rate"].transform("max")
    calls = table.groupby(same, dropna=False)["time"]
    shortest = 1e3 * calls.transform("min")
    alone = np.where(transfer[event] > _WAITS * shortest, shortest, transfer[event])
    judged = calls.transform("size") >= _CALLS
    judged &= fastest < far[event]
    transfer[event] = np.where(judged, alone, 0.0)


def exposed_copy(inspection: Inspection) -> Finding | None:
    """Copies that nothing hides, and idle time in which the host waits for one to the device."""
    work = inspection.work
    wall = inspection.wall
    crosses = ~work.trace.named(work.name, _WITHIN_DEVICE.match)
    claim = wall.claim_events(work.is_copy & crosses)
    pageable, _ = are_pageable(work)
    wait = _claim_waits(wall, pageable | (work.trace.end_of(work.tree.launch_of_gpu) >= work.end))
    numbers = len(claim.events), *_copy_rates(work, claim.events), wait.saving_ms
    return inspection.finding("exposed-copy", claim + wait, numbers)


def _copy_rates(work: GpuEvents, events: Int64Array) -> list[float | None]:
    """How fast some copies run, GB/s, to the device and from it; None for what is not known."""
    to_device = work.trace.named(work.name[events], _TO_DEVICE.match)
    rates = [gigabytes_per_second(work, events[way]) for way in (to_device, ~to_device)]
    return [rate if rate > 0 else None for rate in rates]


def _claim_waits(wall: WallTime, waited_for: BoolArray) -> Claim:
    """Claim the idle time in and after the calls of some copies to a device, (g,)."""
    work = wall.work
    trace = wall.work.trace
    launch = work.tree.launch_of_gpu
    copies = waited_for & work.is_copy & (launch != NONE)
    copies &= trace.named(work.name, _TO_DEVICE.match)
    copies &= trace.named(trace.name[launch], _COPIES.match)
    idle = wall.claim_idle_during(np.unique(launch[copies]))
    after = copies[wall.classified.gaps.before]
    return idle + wall.claim_idle_after(np.where(after, wall.classified.synchronizing_call, NONE))


def exposed_communication(inspection: Inspection) -> Finding | None:
    """Collectives that run while nothing is computed."""
    work = inspection.work
    communication = inspection.work.is_communication
    claim = inspection.wall.claim_events(communication, hiding=~(communication | work.is_copy))
    total = inspection.wall.mean_ms(work.duration[communication])
    numbers = (total, claim.saving_ms)
    where = {"collectives": _named_collectives(inspection, claim)}
    return inspection.finding("exposed-communication", claim, numbers, where=where)


def _named_collectives(inspection: Inspection, claim: Claim) -> list[Place]:
    """The collectives with their groups, the largest first."""
    keys = ["Collective name", *_GROUP]
    claimed = communication_of(inspection.work).loc[claim.events, keys].assign(ns=claim.event_ns)
    sums = claimed.groupby(keys, sort=False, dropna=False)["ns"].agg(["sum", "size"])
    largest = sums.sort_values("sum", ascending=False, kind="stable").head(MOST_PLACES)
    named = [(_name(*group), ns, count) for group, ns, count in largest.itertuples() if group[0]]
    return [Place(name, float(ns) / NS_PER_MS, int(count)) for name, ns, count in named]


def _name(collective: str, group: str, ranks: float) -> str:
    name = f"{collective}, group {group}" if group else collective
    return name if np.isnan(ranks) else f"{name} of {ranks:.0f}"


def _link(_: Device | None, peaks: DevicePeaks | None) -> float:
    """Its link to the host in one direction, bytes a ns; 0: not known."""
    return (peaks.link or 0.0) if peaks else 0.0


def _copied_bytes(inspection: Inspection) -> Float64Array:
    """The bytes of each copy; 0 for what is none, or not known, (g,)."""
    work = inspection.work
    size = np.maximum(work.trace.arg("bytes").at(work.rows, 0), 0)
    return np.where(work.is_copy, size, 0).astype(np.float64)
