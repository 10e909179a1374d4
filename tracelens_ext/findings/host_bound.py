"""`host-bound`: the GPU is idle because the host launches too slowly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.findings.profiler_overhead import recorder_percent
from tracelens_ext.gaps.causes import HOST, LAUNCH_OVERHEAD, SYNCHRONISATION
from tracelens_ext.gaps.hosts import innermost_moments
from tracelens_ext.text import ms_text
from tracelens_ext.trace import LAUNCH_KINDS, NS_PER_MS, NS_PER_US, EventKind
from tracelens_ext.work.grouping import sums

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens_ext.findings.claim import Claim
    from tracelens_ext.trace import Int64Array

_LAUNCHING: Final = "while the host launches"
#: Where the host is, and how the line begins if it is there most.
_LEADS: Final = {
    _LAUNCHING: "The host launches too slowly: the GPU idles for {saving}",
    "in operations of the CPU": "Operations of the CPU delay launches: the GPU idles for {saving}",
    "in Python": "Python between operations is slow: the GPU idles for {saving}",
    "between calls": "The host is slow between calls: the GPU idles for {saving}",
    "in phases of the CPU alone": "The host launches nothing for long: the GPU idles for {saving}",
}
_RECORDER: Final = "; recording may be {:.0f} % of the host's time, see profiler-overhead"
_LONG_NS: Final = 1_000_000
#: So many gaps (and a tenth of the GPU events) at most are a few; of lengths within such a factor.
_FEW, _ALIKE = 20, 10


def _detect(inspection: Inspection) -> Finding | None:
    wall = inspection.wall
    idle, length = wall.idle, wall.idle.end - wall.idle.start
    late = np.isin(idle.cause, (HOST, LAUNCH_OVERHEAD, SYNCHRONISATION))
    # Why something starts late that was launched long before is not known, unless the host, too,
    # stood still.
    late |= wall.may_wait(idle) & wall.nothing_launched[idle.gap]
    holes = wall.mean_ms(length[late & (idle.cause == LAUNCH_OVERHEAD)]) * NS_PER_MS
    claim = wall.claim_idle(late)
    if not inspection.is_worth(claim):
        return None
    split, of_gap = _split(inspection, claim), _of_gaps(claim)
    half = float(of_gap[np.searchsorted(np.cumsum(of_gap), of_gap.sum() / 2)])
    recorder = recorder_percent(inspection)
    holes_lead = holes > claim.saving_ns / 2
    return inspection.finding(
        DETECTOR.id,
        claim,
        title=None if holes_lead else _title(of_gap, min(_FEW, len(inspection.work) / 10), split),
        variant="holes" if holes_lead else "late",
        values={"recorder": _RECORDER.format(recorder) if recorder else ""},
        evidence=[
            Evidence("gaps", len(claim.gaps), "gaps", "gap_summary"),
            Evidence("half of it is in gaps of at least", half / NS_PER_US, "µs", "gaps"),
            Evidence("of it no longer than a launch takes", holes / NS_PER_MS, "ms", "gap_summary"),
            *(Evidence(what, ms, "ms", "gap_hosts") for what, ms in split.items() if ms),
        ],
    )


def _split(inspection: Inspection, claim: Claim) -> dict[str, float]:
    """What the host was in during a claim, ms; nothing where no operation and call is recorded."""
    trace, (start, end, _, gap, _, thread) = inspection.work.trace, claim.intervals
    kinds = EventKind.CPU_OP, *LAUNCH_KINDS
    moments = innermost_moments(trace, kinds, thread, start, end)
    row, ns = moments.row, moments.time_of(thread, start, end)
    if not ns.any():
        return {}
    launches = (trace.kind[row] != EventKind.CPU_OP) | inspection.starts_work(row)
    left = end - start - moments.time_in(thread, start, end)
    _, number = np.unique(gap, return_inverse=True)
    long = np.bincount(number, left)[number] >= _LONG_NS
    nothing = left[:0]
    operations = inspection.is_of_pytorch and trace.count_of(EventKind.CPU_OP) > 0
    short = (left[~long], nothing) if operations else (nothing, left[~long])
    parts = ns[launches], ns[~launches], *short, left[long]
    return {what: inspection.wall.mean_ms(of) for what, of in zip(_LEADS, parts, strict=True)}


def _of_gaps(claim: Claim) -> Int64Array:
    """What is claimed of each gap, the longest first, ns."""
    _, number = np.unique(claim.intervals.gap, return_inverse=True)
    length = claim.intervals.end - claim.intervals.start
    return -np.sort(-sums(number, length, len(claim.gaps)))


def _title(of_gap: Int64Array, few: float, split: Mapping[str, float]) -> str:
    """The largest part of a claim first: a few long gaps that make most of it, or what it is in."""
    large = of_gap[of_gap >= max(_LONG_NS, of_gap[0] / _ALIKE)]
    share = 100 * large.sum() / of_gap.sum()
    if 0 < len(large) <= few and share >= 50:
        first, last = (ms_text(ns / NS_PER_MS) for ns in (large[-1], large[0]))
        sizes = last if first == last else f"{first.removesuffix(' ms')} to {last}"
        make = "1 gap of {} makes" if len(large) == 1 else f"{len(large)} gaps of {{}} make"
        which = make.format(sizes)
        return f"{which} {share:.0f} % of what the GPU idles for the host, {{saving}}"
    what = max(split, key=lambda part: split[part], default=_LAUNCHING)
    share = 100 * split.get(what, 0) / max(sum(split.values()), 1e-9)
    return _LEADS[what] + (f", {share:.0f} % of it {what}" if what != _LAUNCHING else "")


DETECTOR = Detector("host-bound", _detect)
