"""The device of one of several ranks for which the others wait in collectives."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.analysis import collectives
from tracelens_ext.analysis.collectives import communication_of
from tracelens_ext.analysis.iterations.iterations import find_iterations
from tracelens_ext.categorize.kernel_names import simple_name
from tracelens_ext.findings.attribution import places_of
from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.texts import EvidenceText, FindingText
from tracelens_ext.findings.transfer_facts import (
    named_collectives,
)
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, NS_PER_MS, Int64Array
from tracelens_ext.trace.intervals import union

TEXT: Final = FindingText(
    title="Collectives wait for device {name}: {saving}",
    advice=(
        "Look at what device {name} does meanwhile (see the places): where it is idle, its CPU "
        "process is late; where it computes, it has more work (balance the batches) or lower "
        "clocks."
    ),
    confidence="high",
    reason="the kernels of the other devices run longer in the same calls",
    evidence={
        "calls": EvidenceText(
            what="calls in which others waited for it",
            unit="calls",
            see="coll_analysis",
        ),
        "idle_ms": EvidenceText(
            what="device {name} idle meanwhile", unit="ms", see="idle_cpu_activity"
        ),
        "busy_ms": EvidenceText(
            what="device {name} busy meanwhile", unit="ms", see="kernels"
        ),
    },
    least_share=0.5,
)

_SAME: Final = [
    "collective",
    "Process Group Name",
    "Group size",
    "Process Group Description",
    "dtype",
    "iteration",
]
#: The others have to wait for the straggler more than this times as long as for any other device.
_FAR_WORSE: Final = 2


@detector("straggler", TEXT)
def straggler(inspection: Inspection) -> Finding | None:
    """Detect a device for which the other devices wait in collectives.

    A collective that needs every rank ends on all devices at about the same time. So a kernel that
    starts early runs longer than the last one, by the time that it waits. The n-th similar calls of
    an iteration on all devices are the same collective.
    """
    gpu_events = inspection.gpu_events
    wall = inspection.wall
    if len(wall.tracks) < 2 or not gpu_events.is_communication.any():
        return None
    waits = _find_waits(inspection)
    caused_ns = np.bincount(
        waits.last_device + 1, waits.wait_ns, minlength=len(wall.tracks) + 1
    )
    caused_ns = caused_ns[1:]
    worst, second = np.argsort(-caused_ns, kind="stable")[:2].tolist()
    if caused_ns[worst] <= _FAR_WORSE * caused_ns[second]:
        return None
    is_waiting = (waits.last_device == worst) & (waits.wait_ns > 0)
    claim = wall.claim_events(
        is_waiting,
        hiding=~(gpu_events.is_communication | gpu_events.is_copy),
        until=gpu_events.start + waits.wait_ns,
    )
    if not inspection.is_worth(claim):
        return None
    meanwhile = wall.on_device(
        worst, *union(claim.intervals.start, claim.intervals.end)
    )
    numbers = {
        "calls": len(claim.events),
        "idle_ms": meanwhile.idle_ns / NS_PER_MS,
        "busy_ms": (meanwhile.attributed_ns - meanwhile.idle_ns) / NS_PER_MS,
    }
    where = {
        **places_of(gpu_events, meanwhile, inspection.idle_moments),
        "streams": (),
        "collectives": named_collectives(inspection, claim),
    }
    return inspection.finding(
        "straggler",
        claim,
        numbers,
        text=TEXT,
        values={"name": claim.devices[worst]},
        where=where,
    )


class _Waits(NamedTuple):
    """The waits of the g GPU events."""

    #: how long the event waits for the last device of its call, (g,)
    wait_ns: Int64Array
    #: The last device, an index into the tracks of devices, (g,). `NONE` if the event itself is the
    #: last, or belongs to no call on several devices.
    last_device: Int64Array


def _find_waits(inspection: Inspection) -> _Waits:
    """Return how long each kernel of a collective waits for the last device of its call."""
    gpu_events = inspection.gpu_events
    device_of_gpu = inspection.wall.tracks.of_gpu
    table = _calls_of_collectives(inspection)
    same_call = table.groupby(["which", "sequence"])
    devices = same_call["device_index"].transform("size")
    # If devices have different numbers of calls, it is unknown which calls belong together.
    same_collective = table["calls"].groupby(table["which"])
    is_compared = same_collective.transform("nunique") == 1
    is_compared &= devices >= 2
    is_compared &= ~(devices > table["Group size"])
    shortest_of_calls = same_call["ns"].transform("idxmin")
    shortest = shortest_of_calls[is_compared].to_numpy()
    event = table.index[is_compared].to_numpy()
    wait_ns = np.zeros(len(gpu_events), dtype=np.int64)
    wait_ns[event] = gpu_events.duration[event] - gpu_events.duration[shortest]
    device_of_shortest = device_of_gpu[shortest]
    is_own = device_of_shortest == device_of_gpu[event]
    last_device = np.full(len(gpu_events), NONE)
    last_device[event] = np.where(is_own, NONE, device_of_shortest)
    return _Waits(wait_ns, last_device)


def _calls_of_collectives(inspection: Inspection) -> pd.DataFrame:
    """Return the kernels of collectives that need every rank, by start.

    Returns:
        A table whose index is the GPU event. `which` is a number for similar calls in the same
        iteration, `sequence` counts these calls on each device, and `calls` is their number on the
        device.
    """
    gpu_events = inspection.gpu_events
    iterations = find_iterations(gpu_events.tree)
    table = communication_of(gpu_events)
    event = table.index.to_numpy()
    kernels = table["kernel_name"]
    simple_name_of = {name: simple_name(name) for name in kernels.unique()}
    simple_names = kernels.map(simple_name_of)
    collective = table["Collective name"]
    has_name = collective != ""
    numbers_or_none = list(iterations.number) + [NONE]
    numbers = np.array(numbers_or_none, dtype=object)
    iteration = numbers[iterations.of_gpu[event]]
    table = table.assign(
        collective=collective.where(has_name, simple_names),
        iteration=iteration,
        device_index=inspection.wall.tracks.of_gpu[event],
        ns=gpu_events.duration[event],
        start=gpu_events.start[event],
    )
    needs_every_rank = table["collective"].str.contains(collectives.SYNCHRONOUS)
    table = table[needs_every_rank].sort_values("start")
    same = table.groupby(_SAME, dropna=False, sort=False)
    table["which"] = same.ngroup()
    of_device = table.groupby(["which", "device_index"])
    table["sequence"] = of_device.cumcount()
    table["calls"] = of_device["ns"].transform("size")
    return table
