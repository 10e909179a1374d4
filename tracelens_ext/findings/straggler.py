"""`straggler`: in a trace of several ranks, the device for which the others wait in collectives.

A collective that needs every rank ends on all of them at about the same time, and the kernel of a
rank that comes early runs while it waits: as long as it runs longer than that of the last one. The
n-th call of a collective, group and type in an iteration is the same on all devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.collectives.collectives import SYNCHRONOUS, communication_of
from tracelens_ext.findings.exposed_communication import named_collectives
from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.findings.places import places_of
from tracelens_ext.intervals import union
from tracelens_ext.iterations.iterations import find_iterations
from tracelens_ext.kernel_names import simple_name
from tracelens_ext.trace import NONE, NS_PER_MS

if TYPE_CHECKING:
    from tracelens_ext.trace import Int64Array

_SAME: Final = (
    *("collective", "Process Group Name", "Process Group Description", "Group size", "dtype"),
    "iteration",
)
#: The others wait for it so many times as long as for any other device.
_FAR_WORSE: Final = 2


def _detect(inspection: Inspection) -> Finding | None:
    work, wall = inspection.work, inspection.wall
    if len(wall.lanes) < 2 or not work.is_communication.any():
        return None
    wait, last = _waits(inspection)
    caused = np.bincount(last[last != NONE], wait[last != NONE], minlength=len(wall.lanes))
    worst, second = np.argsort(-caused, kind="stable")[:2].tolist()
    if caused[worst] <= _FAR_WORSE * caused[second]:
        return None
    claim = wall.claim_events(
        (last == worst) & (wait > 0),
        hiding=~(work.is_communication | work.is_copy),
        until=work.start + wait,
    )
    if not inspection.is_worth(claim):
        return None
    name = claim.devices[worst]
    meanwhile = wall.on_device(worst, *union(claim.intervals.start, claim.intervals.end))
    busy = (meanwhile.saving_ns - meanwhile.idle_ns) / NS_PER_MS
    return inspection.finding(
        DETECTOR.id,
        claim,
        values={"name": name},
        evidence=[
            Evidence(
                "calls in which others waited for it", len(claim.events), "calls", "coll_analysis"
            ),
            Evidence(f"device {name} idle then", meanwhile.idle_ns / NS_PER_MS, "ms", "gap_hosts"),
            Evidence(f"device {name} busy alone then", busy, "ms", "kernels"),
        ],
        where={
            **places_of(wall, meanwhile),
            "streams": (),
            "collectives": named_collectives(inspection, claim),
        },
    )


def _waits(inspection: Inspection) -> tuple[Int64Array, Int64Array]:
    """How long each GPU event waits for the last device of its call, ns, and which that is.

    Returns:
        Both (g,); `NONE` for an event that is in no call of several devices.
    """
    work, steps = inspection.work, find_iterations(inspection.work.tree)
    table = communication_of(work).copy()
    simple = table["kernel_name"].map({n: simple_name(n) for n in table["kernel_name"].unique()})
    table["collective"] = table["Collective name"].where(table["Collective name"] != "", simple)
    event = table.index.to_numpy()
    table["iteration"] = np.array([*steps.number, NONE], dtype=object)[steps.of_gpu[event]]
    table["lane"], table["ns"] = inspection.wall.lanes.of_gpu[event], work.duration[event]
    table["start"] = work.start[event]
    table = table[table["collective"].str.contains(SYNCHRONOUS)].sort_values("start")
    table["which"] = table.groupby(list(_SAME), dropna=False, sort=False).ngroup()
    table["sequence"] = table.groupby(["which", "lane"]).cumcount()
    calls = table.groupby(["which", "lane"])["ns"].transform("size")
    counts = calls.groupby(table["which"])
    call = table.groupby(["which", "sequence"])
    devices = call["lane"].transform("size")
    judged = (counts.transform("min") == counts.transform("max")) & (devices >= 2)
    judged &= ~(devices > table["Group size"])
    table = table[judged]
    lane = table["lane"].to_numpy()
    shortest = table.groupby(["which", "sequence"])["ns"].transform("idxmin").to_numpy()
    wait, last = np.zeros(len(work), dtype=np.int64), np.full(len(work), NONE)
    event = table.index.to_numpy()
    last[event] = inspection.wall.lanes.of_gpu[shortest]
    wait[event] = work.duration[event] - work.duration[shortest]
    last[event[last[event] == lane]] = NONE
    return wait, last


DETECTOR = Detector("straggler", _detect)
