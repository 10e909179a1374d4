"""`slow-link`: collectives and copies far below what the link of the device moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.collectives.collectives import bus_factor, communication_of, element_bytes
from tracelens_ext.findings.exposed_communication import named_collectives
from tracelens_ext.findings.exposed_copy import WITHIN_DEVICE
from tracelens_ext.findings.finding import Evidence
from tracelens_ext.findings.inspection import Detector
from tracelens_ext.findings.kernel_claims import by_device, copied_bytes, link
from tracelens_ext.work.copies import pageable_copies

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.findings.inspection import Inspection
    from tracelens_ext.trace import Float64Array

#: Less than this share of the link is far below it. Smaller messages take their latency.
_FAR, _LARGE_BYTES = 1 / 3, 2**20
#: A collective that takes so many times as long as the best of its size waits for others.
_WAITS: Final = 1.5
#: One call of a kind cannot tell whether it waited.
_CALLS: Final = 3
_SAME: Final = [
    *("Collective name", "Process Group Name", "Group size", "dtype", "In msg nelems"),
]


def _detect(inspection: Inspection) -> Finding | None:
    work, rate = inspection.work, by_device(inspection, link)
    crosses = work.is_copy & ~work.trace.named(work.name, WITHIN_DEVICE.match)
    crosses &= ~pageable_copies(work)[0]
    moved = np.where(crosses, copied_bytes(work), _bus_bytes(inspection))
    large = (moved >= _LARGE_BYTES) & (rate > 0)
    if not large.any():
        return None
    needed = moved / np.maximum(rate, 1)
    transfer = work.duration.astype(np.float64)
    transfer[work.is_communication] = _transfers(inspection, moved)[work.is_communication]
    slow = large & (needed < _FAR * transfer)
    # What is left of a call is its wait for others, and what the link needs.
    until = work.start + np.rint(np.where(slow, transfer - needed, 0.0)).astype(np.int64)
    wall = inspection.wall.copy()
    claim = wall.claim_events(
        slow, hiding=~(work.is_communication | work.is_copy), until=until
    )
    if not inspection.is_worth(claim):
        return None
    inspection.wall = wall
    events = claim.events
    collectives = named_collectives(inspection, claim) if work.is_communication.any() else []
    reached = float(moved[events].sum()) / max(float(transfer[events].sum()), 1.0)
    return inspection.finding(
        DETECTOR.id,
        claim,
        title="Transfers far below the rate of the link cost {saving}",
        advice=(
            "Find out over what they go (nvidia-smi topo -m, NCCL_DEBUG=INFO; rocm-smi"
            " --showtopo): let peers use NVLink, xGMI or InfiniBand with GPUDirect instead of"
            " sockets and the host's memory, pin processes to the GPU's socket, look for links of"
            " fewer lanes. Until then send less: lower precision, larger messages."
        ),
        confidence="medium",
        reason=(
            "a bound: as if all of them reached the rate of the device's link to the host; a call"
            f" longer than {_WAITS} times the best of its size is taken to wait for other ranks"
        ),
        evidence=[
            Evidence("slow transfers", len(events), "GPU events", "coll_analysis"),
            Evidence("they move (collectives: bus bandwidth)", reached, "GB/s", "coll_analysis"),
            Evidence("the link moves", float(rate.max()), "GB/s", "roofline"),
        ],
        where={"collectives": collectives} if collectives else {},
    )


def _bus_bytes(inspection: Inspection) -> Float64Array:
    """What each collective sends over the slowest link, as bus bandwidth counts; else 0, (g,)."""
    moved = np.zeros(len(inspection.work))
    table = communication_of(inspection.work)
    columns = ["Collective name", "dtype", "Group size", "In msg nelems", "Out msg nelems"]
    told = table[columns].drop_duplicates()
    told["moved"] = [
        np.fmax(sent, received) * element_bytes(kind) * bus_factor(name, ranks)
        for name, kind, ranks, sent, received in told.itertuples(index=False)
    ]
    bytes_ = table[columns].merge(told, how="left", on=columns)["moved"].to_numpy()
    moved[table.index.to_numpy()] = np.nan_to_num(bytes_)
    return moved


def _transfers(inspection: Inspection, moved: Float64Array) -> Float64Array:
    """How long each collective transfers, without the wait for others, ns; else 0, (g,)."""
    work, table = inspection.work, communication_of(inspection.work)
    result = np.zeros(len(work))
    event = table.index.to_numpy()
    large = event[moved[event] >= _LARGE_BYTES]
    duration = work.duration[large].astype(np.float64)
    calls = table.loc[large, _SAME].assign(ns=duration).groupby(_SAME, dropna=False)["ns"]
    best, enough = (calls.transform(how).to_numpy() for how in ("min", "size"))
    transfers = np.where(duration > _WAITS * best, best, duration)
    result[large] = np.where(enough >= _CALLS, transfers, 0.0)
    return result


DETECTOR = Detector("slow-link", _detect)
