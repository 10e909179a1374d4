"""`exposed-communication`: collectives that run while nothing is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.collectives.collectives import communication_of
from tracelens_ext.findings.finding import Evidence, Finding, Place
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.findings.places import MOST_PLACES
from tracelens_ext.trace import NS_PER_MS

if TYPE_CHECKING:
    from tracelens_ext.findings.claim import Claim


def _detect(inspection: Inspection) -> Finding | None:
    work = inspection.work
    communication = work.is_communication
    computation = ~(communication | work.is_copy)
    claim = inspection.wall.claim_events(communication, hiding=computation)
    if not inspection.is_worth(claim):
        return None
    total = inspection.wall.mean_ms(work.duration[communication])
    return inspection.finding(
        DETECTOR.id,
        claim,
        evidence=[
            Evidence("communication in all", total, "ms", "coll_analysis"),
            Evidence("of it claimed here", claim.saving_ns / NS_PER_MS, "ms", "gpu_timeline"),
        ],
        where={"collectives": named_collectives(inspection, claim)},
    )


def named_collectives(inspection: Inspection, claim: Claim) -> list[Place]:
    """The collectives with their groups, the largest first."""
    keys = ["Collective name", "Process Group Name", "Group size"]
    claimed = communication_of(inspection.work).loc[claim.events, keys].assign(ns=claim.event_ns)
    sums = claimed.groupby(keys, sort=False, dropna=False)["ns"].agg(["sum", "size"])
    largest = sums.sort_values("sum", ascending=False, kind="stable").head(MOST_PLACES)
    return [
        Place(_name(*group), float(ns) / NS_PER_MS, int(count))
        for group, ns, count in largest.itertuples()
        if group[0]
    ]


def _name(collective: str, group: str, ranks: float) -> str:
    name = f"{collective}, group {group}" if group else collective
    return name if np.isnan(ranks) else f"{name} of {ranks:.0f}"


DETECTOR = Detector("exposed-communication", _detect, instead="overlaps")
