"""`slow-link`: collectives and copies far below what the link of the device moves.

That is the link to the host, unless a copy goes to another GPU, or all ranks of a collective are on
one board whose GPUs are known to be connected: then it is NVLink, or xGMI.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.collectives.collectives import (
    bus_factor,
    communication_of,
    described_by,
    element_bytes,
    text_argument,
)
from tracelens_ext.findings.exposed_copy import WITHIN_DEVICE
from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.findings.kernel_claims import by_device, claimed, copied_bytes, link
from tracelens_ext.roofline.peaks import peer_links_of
from tracelens_ext.work.gpu_work import pageable_copies

if TYPE_CHECKING:
    from tracelens_ext.trace import Float64Array

#: Less than this share of the link is far below it. Smaller messages take their latency.
_FAR, _LARGE_BYTES = 1 / 3, 2**20
#: Between GPUs what takes less has not reached its rate, ns.
_LARGE_NS: Final = 50_000
_BETWEEN_GPUS: Final = re.compile(r"Memcpy PtoP|.*Peer-to-Peer")
#: A collective that takes so many times as long as the best of its size waits for others; one call
#: of a size cannot tell.
_WAITS, _CALLS = 1.5, 3
_SIZE: Final = ["Collective name", "dtype", "In msg nelems", "Out msg nelems"]
_GROUP: Final = ["Process Group Name", "Group size"]


def _detect(inspection: Inspection) -> Finding | None:
    work, between = inspection.work, _between_gpus(inspection)
    to_host = by_device(inspection, link)
    rate = np.where(between > 0, between, to_host)
    # What is slower than the link to the host might as well go over that.
    far = np.minimum(_FAR * rate, np.where(to_host > 0, to_host, np.inf))
    crosses = ~work.trace.named(work.name, WITHIN_DEVICE.match) & ~pageable_copies(work)[0]
    crosses |= work.trace.named(work.name, _BETWEEN_GPUS.match)
    moved = np.where(crosses, copied_bytes(inspection), 0.0)
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
    return claimed(
        inspection,
        DETECTOR.id,
        lambda wall: wall.claim_events(slow, hiding=computation, until=until),
        [
            Evidence("they move (collectives: on the bus)", reached, "GB/s", "coll_analysis"),
            Evidence("the link moves", float(rate[slow].max()), "GB/s", "roofline"),
        ],
    )


def _between_gpus(inspection: Inspection) -> Float64Array:
    """The rate of the links between GPUs over which each GPU event goes; 0: none is known, (g,).

    Those of a product to one other GPU, as often as there are others, as far as it has links.
    """
    work = inspection.work
    one = by_device(inspection, lambda _, its: peer_links_of(its.name)[0] if its else 0)
    every = by_device(inspection, lambda _, its: peer_links_of(its.name)[1] if its else 0)
    others = work.trace.named(work.name, _BETWEEN_GPUS.match).astype(np.int64)
    event, gpus = communication_of(work).index.to_numpy(), len(work.trace.devices)
    ranks = text_argument(work, "Process Group Ranks", described_by(work, event))
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
    event, same = table.index.to_numpy(), [*_GROUP, *_SIZE]
    told = table[_SIZE + _GROUP].drop_duplicates()
    told["moved"] = [
        np.fmax(sent, received) * element_bytes(kind) * bus_factor(name, ranks)
        for name, kind, sent, received, _, ranks in told.itertuples(index=False)
    ]
    moved[event] = np.nan_to_num(table[same].merge(told, how="left", on=same)["moved"])
    rate = np.where(moved[event] >= _LARGE_BYTES, moved[event] / np.maximum(transfer[event], 1), 0)
    # A group that is fast in one call has a fast link: others of its calls wait for other ranks.
    fastest = table.assign(rate=rate).groupby(_GROUP, dropna=False)["rate"].transform("max")
    calls = table.groupby(same, dropna=False)["time"]
    shortest = 1e3 * calls.transform("min")
    alone = np.where(transfer[event] > _WAITS * shortest, shortest, transfer[event])
    judged = calls.transform("size") >= _CALLS
    judged &= fastest < far[event]
    transfer[event] = np.where(judged, alone, 0.0)


DETECTOR = Detector("slow-link", _detect)
