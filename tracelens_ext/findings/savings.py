"""What findings save: the simulated wall time without what goes with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, get_args

from tracelens_ext.findings.finding import Confidence, Finding, saving_text
from tracelens_ext.simulation.scenarios import Named
from tracelens_ext.simulation.simulation import Simulation, State
from tracelens_ext.trace import NS_PER_MS

#: An error of the simulation below which its dependencies alone tell how sure a saving is, percent.
_SMALL_ERROR: Final = 3.0
#: A saving that differs by less, as a share, is not told beside the attributed time.
_SAME_SHARE: Final = 0.1
#: The surest first.
_LEVELS: Final[tuple[Confidence, ...]] = get_args(Confidence)


def with_savings(simulation: Simulation, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with what each saves, alone and after those before it, the most first.

    Where the simulation is not good, savings stay what they are: the attributed time.
    """
    has_claim = simulation.changes.claims.keys()
    simulated = [finding for finding in findings if finding.id in has_claim]
    others = [finding for finding in findings if finding.id not in has_claim]
    if not simulated:
        return list(findings)
    savings = _Savings(simulation)
    # A pass costs much the same for any number of changes. What has more time mostly saves more, so
    # that few sums, if any, are left for a second pass.
    savings.simulate([*_alone(simulated), *_beginnings(simulated)])
    if simulation.state is not State.GOOD:
        return list(findings)
    simulated.sort(key=lambda finding: -savings.of([finding]))
    savings.simulate(_beginnings(simulated))
    confidence = _confidence_of(simulation)
    result = []
    saved_before = 0
    for several in _beginnings(simulated):
        finding = several[-1]
        saved = savings.of(several)
        result.append(
            _with_saving(
                finding,
                confidence,
                saving_ms=savings.of([finding]) / NS_PER_MS,
                together_ms=(saved - saved_before) / NS_PER_MS,
            )
        )
        saved_before = saved
    return result + others


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

    def of(self, findings: Sequence[Finding]) -> int:
        """Return what some findings save together, which was simulated."""
        return self._saved[_ids(findings)]

    def simulate(self, combinations: Iterable[Sequence[Finding]]) -> None:
        """Simulate combinations of findings that were not simulated yet."""
        asked = {}
        for findings in combinations:
            ids = _ids(findings)
            if ids not in self._saved:
                asked[ids] = findings
        if not asked:
            return
        changes = self.simulation.changes
        # One change at a time: each has as many numbers as the program.
        saved = self.simulation.saved(
            changes.change(_change(each)) for each in asked.values()
        )
        self._saved.update(zip(asked, saved.tolist(), strict=True))


def _ids(findings: Sequence[Finding]) -> frozenset[str]:
    return frozenset(finding.id for finding in findings)


def _change(findings: Sequence[Finding]) -> Named:
    """Return the change in which all that goes with some findings goes."""
    return Named("", tuple((f"finding:{finding.id}", 0.0) for finding in findings))


@dataclass(frozen=True)
class _SimulationConfidence:
    """How sure savings of a simulation are, and why."""

    level: Confidence
    reason: str


def _confidence_of(simulation: Simulation) -> _SimulationConfidence:
    """Return how sure a simulation is, by the dependencies that its critical path hangs on."""
    known_share = simulation.known_edges
    error = f"the replay of the trace is {simulation.error_percent:+.1f} % off"
    if known_share < 1.0:
        assumed = 100 * (1 - known_share)
        reason = f"{error}; {assumed:.0f} % of the waits it hangs on are assumed"
        return _SimulationConfidence("medium", reason)
    reason = f"{error}, by edges that the recording tells"
    if abs(simulation.error_percent) <= _SMALL_ERROR:
        return _SimulationConfidence("high", reason)
    return _SimulationConfidence("medium", reason)


def _with_saving(
    finding: Finding,
    confidence: _SimulationConfidence,
    *,
    saving_ms: float,
    together_ms: float,
) -> Finding:
    """Return a finding with a simulated saving; what it says of more or less follows it."""
    share = saving_ms / finding.claimed_ms
    title = finding.title
    if abs(1 - share) > _SAME_SHARE:
        title += f"; without it {saving_text(saving_ms, share * finding.share_percent)} are saved"
    low_ms = finding.saving_low_ms
    if low_ms is not None:
        low_ms *= share
    high_ms = finding.saving_high_ms
    if high_ms is not None:
        high_ms = max(high_ms * share, saving_ms)
    return replace(
        finding,
        title=title,
        saving_ms=saving_ms,
        saving_together_ms=together_ms,
        simulated=True,
        saving_low_ms=low_ms,
        saving_high_ms=high_ms,
        confidence=max(finding.confidence, confidence.level, key=_LEVELS.index),
        confidence_reason=f"{finding.confidence_reason}; {confidence.reason}",
    )
