"""What findings save: the simulated wall time without what goes with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tracelens_ext.findings.finding import Confidence, Finding, saving_text
from tracelens_ext.findings.ranking import LEVELS, ranked_findings
from tracelens_ext.findings.removal import partly_removed
from tracelens_ext.simulation.scenarios import NamedChange, Term
from tracelens_ext.simulation.simulation import Simulation, State
from tracelens_ext.trace import NS_PER_MS

#: An error of the simulation below which its dependencies alone tell how sure a saving is, percent.
_SMALL_ERROR: Final = 3.0
#: A finding of more idle time than this, as a share, saves what the CPU makes of it.
_IDLE_SHARE: Final = 0.1
#: What a change is called in which only a part of the CPU's time goes.
_PARTLY: Final = " partly"
#: What a change is called in which the CPU runs ahead instead of waiting.
_AHEAD: Final = " ahead"
_UP_TO: Final = "up to "


def with_savings(simulation: Simulation, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with what each saves, alone and after those before it, the best first.

    Where the simulation is not good, savings stay what they are: the attributed time, which bounds
    them, as the titles then say. What frees the CPU saves at least what remains if only half of its
    time goes. Without its waits, the CPU may run ahead of the GPU. What runs beside other work
    saves the attributed time at most: the rest of these GPU events belongs to other findings.
    """
    changes = simulation.changes
    claims = changes.claims
    simulated = [finding for finding in findings if finding.id in claims]
    others = [finding for finding in findings if finding.id not in claims]
    if not simulated:
        return list(findings)
    partial_claims = {}
    for finding in simulated:
        claim = claims[finding.id]
        if _depends_on_cpu(finding):
            partial_claims[finding.id + _PARTLY] = partly_removed(claim)
        if claim.avoidable_blocks is not None:
            ahead = replace(claim, nonblocking=claim.avoidable_blocks)
            partial_claims[finding.id + _AHEAD] = ahead
    changes.claims = {**claims, **partial_claims}
    try:
        result = _simulated_savings(simulation, simulated)
    finally:
        changes.claims = claims
    if result is None:
        return bounded(findings)
    return result + others


def bounded(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings whose savings are not simulated: their titles say that they are bounds."""
    result = []
    for finding in findings:
        title = finding.title
        cost = saving_text(finding.saving_ms, finding.share_percent)
        if not finding.informs_only and _UP_TO not in title:
            title = title.replace(cost, _UP_TO + cost)
        result.append(replace(finding, title=title))
    return ranked_findings(result)


def _depends_on_cpu(finding: Finding) -> bool:
    """Return whether the saving depends on what the CPU does with the time that it gains."""
    claim = finding.claim
    return claim is not None and claim.idle_ns > _IDLE_SHARE * claim.attributed_ns


def _simulated_savings(
    simulation: Simulation, findings: Sequence[Finding]
) -> list[Finding] | None:
    """Return findings with simulated savings, the best first; None if the simulation is bad."""
    savings = _Savings(simulation)
    partial_ids = [
        finding.id + _PARTLY for finding in findings if _depends_on_cpu(finding)
    ]
    known_claims = simulation.changes.claims
    ids_ahead = [
        finding.id for finding in findings if finding.id + _AHEAD in known_claims
    ]
    partial_ids += [ident + _AHEAD for ident in ids_ahead]
    # A pass costs much the same for any number of changes. What has more time mostly saves more, so
    # that few sums, if any, are left for a second pass.
    ids_of_first_pass = [_ids(several) for several in _alone(findings)]
    ids_of_first_pass += [_ids(several) for several in _beginnings(findings)]
    ids_of_first_pass.extend(frozenset([ident]) for ident in partial_ids)
    savings.simulate(ids_of_first_pass)
    if simulation.state is not State.OK:
        return None
    confidence = _confidence_of(simulation)
    alone = []
    for finding in findings:
        low_ns = None
        if _depends_on_cpu(finding):
            low_ns = savings.of(frozenset([finding.id + _PARTLY]))
        saving_ns = savings.alone(finding)
        if finding.id in ids_ahead:
            ahead_ns = savings.of(frozenset([finding.id + _AHEAD]))
            saving_ns = _saving_ahead(finding, saving_ns, ahead_ns)
        if known_claims[finding.id].overlapped is not None:
            saving_ns = min(saving_ns, _attributed_ns(finding))
        alone.append(_with_saving(finding, confidence, saving_ns, low_ns))
    in_order = ranked_findings(alone)
    savings.simulate([_ids(several) for several in _beginnings(in_order)])
    result = []
    saved_before = 0
    for several in _beginnings(in_order):
        saved = savings.of(_ids(several))
        together_ms = (saved - saved_before) / NS_PER_MS
        result.append(replace(several[-1], saving_together_ms=together_ms))
        saved_before = saved
    return result


def _saving_ahead(finding: Finding, saving_ns: int, ahead_ns: int) -> int:
    """Return what is saved where the CPU runs ahead: of the attributed time at most.

    The CPU may then hide other idle time as well, which other findings have.
    """
    return max(saving_ns, min(ahead_ns, _attributed_ns(finding)))


def _attributed_ns(finding: Finding) -> int:
    return round(finding.attributed_ms * NS_PER_MS)


def _alone(findings: Sequence[Finding]) -> list[Sequence[Finding]]:
    """Return each finding by itself."""
    return [[finding] for finding in findings]


def _beginnings(findings: Sequence[Finding]) -> list[Sequence[Finding]]:
    """Return the first finding, the first two, and so on."""
    return [findings[:count] for count in range(1, len(findings) + 1)]


class _Savings:
    """What is saved without some findings, whatever their order, ns."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self._saved: dict[frozenset[str], int] = {}

    def of(self, ids: frozenset[str]) -> int:
        """Return what some findings save together, which was simulated."""
        return self._saved[ids]

    def alone(self, finding: Finding) -> int:
        """Return what a finding saves by itself, which was simulated."""
        return self._saved[frozenset([finding.id])]

    def simulate(self, combinations: Iterable[frozenset[str]]) -> None:
        """Simulate combinations of findings, by their ids, that were not simulated yet."""
        missing = [ids for ids in dict.fromkeys(combinations) if ids not in self._saved]
        if not missing:
            return
        saved = self.simulation.saved([_change_without(ids) for ids in missing])
        self._saved.update(zip(missing, saved.tolist(), strict=True))


def _ids(findings: Sequence[Finding]) -> frozenset[str]:
    return frozenset(finding.id for finding in findings)


def _change_without(ids: frozenset[str]) -> NamedChange:
    """Return the change that removes the time of some findings, by their ids."""
    terms = [Term(f"finding:{finding_id}", 0.0) for finding_id in sorted(ids)]
    return NamedChange("", tuple(terms))


@dataclass(frozen=True)
class _SimulationConfidence:
    """How sure savings of a simulation are, and why."""

    level: Confidence
    reason: str


def _confidence_of(simulation: Simulation) -> _SimulationConfidence:
    """Return how sure a simulation is, by the dependencies that its critical path hangs on."""
    known_share = simulation.known_edges
    if known_share < 1.0:
        assumed = 100 * (1 - known_share)
        reason = f"{assumed:.0f} % of the waits on the critical path are assumed"
        return _SimulationConfidence("medium", reason)
    error = simulation.error_percent
    if abs(error) <= _SMALL_ERROR:
        return _SimulationConfidence("high", "")
    return _SimulationConfidence("medium", f"the simulation is {error:+.1f} % off")


def _with_saving(
    finding: Finding,
    confidence: _SimulationConfidence,
    saving_ns: int,
    low_ns: int | None,
) -> Finding:
    """Return a finding with a simulated saving; its least and most follow it."""
    saving_ms = saving_ns / NS_PER_MS
    share = saving_ms / finding.attributed_ms
    low_ms = finding.saving_low_ms
    if low_ms is not None:
        low_ms *= share
    if low_ns is not None:
        partial_ms = min(low_ns / NS_PER_MS, saving_ms)
        if low_ms is None or partial_ms < low_ms:
            low_ms = partial_ms
    high_ms = finding.saving_high_ms
    if high_ms is not None:
        high_ms = max(high_ms * share, saving_ms)
    level = max(finding.confidence, confidence.level, key=LEVELS.index)
    reason = finding.confidence_reason
    if level != finding.confidence:
        reason = f"{reason}; {confidence.reason}"
    return replace(
        finding,
        saving_ms=saving_ms,
        simulated=True,
        saving_low_ms=low_ms,
        saving_high_ms=high_ms,
        confidence=level,
        confidence_reason=reason,
    )
