"""The savings of findings: how much shorter the simulated wall time is without their time."""

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

#: With a larger error of the simulation, percent, no saving is of high confidence.
_SMALL_ERROR: Final = 3.0
#: If a larger share of a finding is idle time, its saving depends on the CPU.
_IDLE_SHARE: Final = 0.1
#: Ending of the id of a change in which the CPU saves only a part of its time.
_PARTLY: Final = " partly"
#: Ending of the id of a change in which the CPU runs ahead instead of waiting.
_AHEAD: Final = " ahead"
_UP_TO: Final = "up to "


def with_savings(simulation: Simulation, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with simulated savings, the largest expected saving first.

    Each finding gets its saving alone, and its saving after those before it. If the saving depends
    on the CPU, the least saving is that of a CPU which saves only half of its time. If the finding
    is about waits, the saving may be that of a CPU which runs ahead of the GPU. A finding whose
    work would overlap other work saves at most its attributed time, because the other time of its
    GPU events belongs to other findings.

    If the simulation is not reliable, savings stay the attributed time, and titles say `up to`.
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
    """Return findings whose savings are not simulated: titles say `up to` before the time."""
    result = []
    for finding in findings:
        title = finding.title
        cost = saving_text(finding.saving_ms, finding.share_percent)
        if not finding.informs_only and _UP_TO not in title:
            title = title.replace(cost, _UP_TO + cost)
        result.append(replace(finding, title=title))
    return ranked_findings(result)


def _depends_on_cpu(finding: Finding) -> bool:
    """Return whether the saving depends on the CPU: much of the attributed time is idle time."""
    claim = finding.claim
    return claim is not None and claim.idle_ns > _IDLE_SHARE * claim.attributed_ns


def _simulated_savings(
    simulation: Simulation, findings: Sequence[Finding]
) -> list[Finding] | None:
    """Return findings with simulated savings, the largest expected saving first.

    None if the simulation is not reliable.
    """
    savings = _Savings(simulation)
    claims = simulation.changes.claims
    ids_partly = [
        finding.id + _PARTLY for finding in findings if _depends_on_cpu(finding)
    ]
    ids_ahead = [
        finding.id + _AHEAD for finding in findings if finding.id + _AHEAD in claims
    ]
    # Simulating many changes at once hardly takes longer than simulating one. So everything that
    # may be needed is simulated here. The order of findings rarely changes below, so the second
    # simulation has little to do.
    single_ids = [finding.id for finding in findings] + ids_partly + ids_ahead
    combinations = [frozenset([change_id]) for change_id in single_ids]
    combinations += _first_ids(findings)
    savings.simulate(combinations)
    if simulation.state is not State.OK:
        return None
    confidence = _confidence_of(simulation)
    findings_with_savings = []
    for finding in findings:
        low_ns = None
        if _depends_on_cpu(finding):
            low_ns = savings.of_single(finding.id + _PARTLY)
        saving_ns = savings.of_single(finding.id)
        if finding.id + _AHEAD in ids_ahead:
            ahead_ns = savings.of_single(finding.id + _AHEAD)
            saving_ns = _saving_ahead(finding, saving_ns, ahead_ns)
        if claims[finding.id].overlapped is not None:
            saving_ns = min(saving_ns, _attributed_ns(finding))
        findings_with_savings.append(
            _with_saving(finding, confidence, saving_ns, low_ns)
        )
    return _with_savings_together(ranked_findings(findings_with_savings), savings)


def _with_savings_together(
    findings: Sequence[Finding], savings: _Savings
) -> list[Finding]:
    """Return findings with what each saves if those before it are fixed, too."""
    combinations = _first_ids(findings)
    savings.simulate(combinations)
    result = []
    saved_before = 0
    for finding, ids in zip(findings, combinations, strict=True):
        saved = savings.of(ids)
        together_ms = (saved - saved_before) / NS_PER_MS
        result.append(replace(finding, saving_together_ms=together_ms))
        saved_before = saved
    return result


def _saving_ahead(finding: Finding, saving_ns: int, ahead_ns: int) -> int:
    """Return what is saved where the CPU runs ahead: of the attributed time at most.

    The CPU may then hide other idle time as well, which other findings have.
    """
    return max(saving_ns, min(ahead_ns, _attributed_ns(finding)))


def _attributed_ns(finding: Finding) -> int:
    return round(finding.attributed_ms * NS_PER_MS)


def _first_ids(findings: Sequence[Finding]) -> list[frozenset[str]]:
    """Return the ids of the first finding, of the first two, and so on."""
    ids = [finding.id for finding in findings]
    return [frozenset(ids[:count]) for count in range(1, len(ids) + 1)]


class _Savings:
    """The simulated savings of combinations of findings, ns, by their ids."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self._saved: dict[frozenset[str], int] = {}

    def of(self, ids: frozenset[str]) -> int:
        """Return the saving of a combination that was simulated."""
        return self._saved[ids]

    def of_single(self, change_id: str) -> int:
        """Return the saving of a single change that was simulated."""
        return self._saved[frozenset([change_id])]

    def simulate(self, combinations: Iterable[frozenset[str]]) -> None:
        """Simulate those of some combinations that were not simulated yet."""
        missing = [ids for ids in dict.fromkeys(combinations) if ids not in self._saved]
        if not missing:
            return
        saved = self.simulation.savings_ns([_change_without(ids) for ids in missing])
        self._saved.update(zip(missing, saved.tolist(), strict=True))


def _change_without(ids: frozenset[str]) -> NamedChange:
    """Return the change that removes the time of some findings, by their ids."""
    terms = [Term(f"finding:{finding_id}", 0.0) for finding_id in sorted(ids)]
    return NamedChange("", tuple(terms))


@dataclass(frozen=True)
class _SimulationConfidence:
    """The confidence in the savings of a simulation, and the reason."""

    level: Confidence
    reason: str


def _confidence_of(simulation: Simulation) -> _SimulationConfidence:
    """Return the confidence in a simulation, by its error and the waits on its critical path."""
    known_share = simulation.recorded_share_of_waits
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
    """Return a finding with a simulated saving.

    The detector's range around the attributed time is scaled to the saving.

    Args:
        finding: the finding.
        confidence: the confidence in the simulation.
        saving_ns: the simulated saving.
        low_ns: the simulated saving of a CPU that saves only half of its time; None: not simulated.
    """
    saving_ms = saving_ns / NS_PER_MS
    scale = saving_ms / finding.attributed_ms
    low_ms = finding.saving_low_ms
    if low_ms is not None:
        low_ms *= scale
    if low_ns is not None:
        partial_ms = min(low_ns / NS_PER_MS, saving_ms)
        if low_ms is None or partial_ms < low_ms:
            low_ms = partial_ms
    high_ms = finding.saving_high_ms
    if high_ms is not None:
        high_ms = max(high_ms * scale, saving_ms)
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
