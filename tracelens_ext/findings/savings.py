"""What findings save: the wall time of the replay without what they claim."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, get_args

import numpy as np

from tracelens_ext.findings.finding import Confidence, Finding, saving_text
from tracelens_ext.replay.changes import Named, Removed
from tracelens_ext.trace import NONE, NS_PER_MS
from tracelens_ext.work.lanes import find_gaps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens_ext.findings.claim import Claim
    from tracelens_ext.findings.inspection import Instead
    from tracelens_ext.replay.program import Program
    from tracelens_ext.replay.what_if import Simulation
    from tracelens_ext.trace import BoolArray, Int64Array

#: An error of the replay below which the edges alone tell how sure a saving is, percent.
_SMALL_ERROR: Final = 3.0

#: A saving that differs by less, as a share, is not told beside the claim.
_SAME = 0.1


def remove_claims(
    simulation: Simulation, findings: Sequence[Finding], instead: Mapping[str, Instead]
) -> None:
    """Tell a simulation what goes with each finding.

    Args:
        simulation: learns the changes `finding:ID`.
        findings: those that claim nothing are left out.
        instead: what happens to what some claim, by their id.
    """
    simulation.changes.claims = {
        each.id: _removed(simulation, each.claim, instead.get(each.id, ""))
        for each in findings
        if each.claim is not None and not each.informs_only
    }


def _removed(simulation: Simulation, claim: Claim, instead: Instead) -> Removed:
    """Kernels become shorter by what is claimed; the host needs no time where the GPU idles.

    What overlaps leaves its streams. Where launches go, so does the time in their operations. Where
    the host waited, the idle time goes to its end: also what the call needs to return, and
    the launch after it to start.
    """
    program, claimed = simulation.program, claim.intervals
    busy = claimed.event != NONE
    of_node, ns = program.node_of_event[claimed.event[busy]], (claimed.end - claimed.start)[busy]
    shorter = np.zeros_like(program.duration)
    np.add.at(shorter, of_node[of_node != NONE], ns[of_node != NONE])
    on_link = np.zeros(len(program.lanes), dtype=np.int64)
    if instead == "overlaps":
        shorter = np.where(shorter > 0, program.duration - program.waiting, 0)
        np.add.at(on_link, program.lane, shorter)
    clock = np.where(claimed.thread == NONE, 0, program.clocks.of_thread[claimed.thread])
    start, end = claimed.start - program.window[0], claimed.end - program.window[0]
    idle = ~busy & (end > 0)
    mine = [idle & (clock == number) for number in range(len(program.clocks.end))]
    host = [(np.maximum(start[m], 0), end[m]) for m in mine]
    if instead == "launches go":
        host = _with_operations(program, 2 * shorter > program.duration, host)
    sooner, tail = np.zeros_like(shorter), np.zeros_like(program.block_start)
    if instead == "waits no longer":
        after = find_gaps(program.work, "device").after[claimed.gap[idle]]
        node = program.node_of_event[after]
        called = (node != NONE) & (program.call[node] != NONE)
        node, until = node[called], end[idle][called]
        np.add.at(sooner, node, until - np.maximum(start[idle][called], program.call[node]))
        sooner = np.clip(sooner, 0, simulation.replay.latency)
        for number, which in enumerate(mine):
            block = np.flatnonzero(program.block_clock == number)
            at = np.searchsorted(program.block_start[block], end[which]) - 1
            block, begin = np.append(block, NONE)[np.where(at < 0, len(block), at)], start[which]
            np.add.at(tail, block[block != NONE], (program.block_end[block] - begin)[block != NONE])
        tail = np.clip(tail, 0, np.maximum(simulation.replay.tail, 0))
    return Removed(shorter, on_link, host, sooner, tail)


def _with_operations(
    program: Program, gone: BoolArray, host: Sequence[tuple[Int64Array, Int64Array]]
) -> list[tuple[Int64Array, Int64Array]]:
    """Times of each clock with those in the operations, or calls, that launched some nodes."""
    trace, called = program.work.trace, np.flatnonzero(gone & (program.launch != NONE))
    operation = program.work.tree.cpu_op_of_gpu[program.event[called]]
    rows = np.unique(np.where(operation == NONE, program.launch[called], operation))
    rows = rows[rows < trace.recorded]
    clock = program.clocks.of_thread[trace.thread[rows]]
    start, end = (
        np.maximum(time - program.window[0], 0) for time in (trace.ts[rows], trace.end_of(rows))
    )
    return [
        (np.append(first, start[clock == number]), np.append(last, end[clock == number]))
        for number, (first, last) in enumerate(host)
    ]


def with_savings(simulation: Simulation, findings: Sequence[Finding]) -> list[Finding]:
    """The findings with what each saves alone, and after those before it, the most first."""
    claims = simulation.changes.claims
    asked = [each for each in findings if each.id in claims]
    if simulation.state != "good" or not asked:
        return list(findings)
    alone = _saved(simulation, [[each.id] for each in asked])
    order = sorted(range(len(asked)), key=lambda i: -alone[i])
    ranked = [asked[i].id for i in order]
    together = _saved(simulation, [ranked[: i + 1] for i in range(len(ranked))])
    more = dict(zip(ranked, np.diff(together, prepend=0), strict=True))
    sure, why = _confidence(simulation)
    result = []
    for i in order:
        finding, saving = asked[i], alone[i] / NS_PER_MS
        share = saving / finding.claimed_ms
        low, high = finding.saving_low_ms, finding.saving_high_ms
        levels = get_args(Confidence)  # the surest first
        result.append(
            replace(
                finding,
                title=_title(finding, saving),
                saving_ms=saving,
                saving_together_ms=float(more[finding.id]) / NS_PER_MS,
                simulated=True,
                saving_low_ms=None if low is None else low * share,
                saving_high_ms=None if high is None else max(high * share, saving),
                confidence=max(finding.confidence, sure, key=levels.index),
                confidence_reason=f"{finding.confidence_reason}; {why}",
            )
        )
    return result + [each for each in findings if each.id not in claims]


def _title(finding: Finding, saving: float) -> str:
    """The title, which tells the claim, with the saving where that is another number."""
    share = saving / finding.claimed_ms
    if abs(1 - share) <= _SAME:
        return finding.title
    told = saving_text(saving, share * finding.share_percent)
    return f"{finding.title}; without it {told} are saved"


def _saved(simulation: Simulation, together: Sequence[Sequence[str]]) -> list[int]:
    """What is saved without the claims of some findings, ns."""
    changes = (  # one at a time: each has as many numbers as the program
        simulation.changes.change(Named("", tuple((f"finding:{each}", 0.0) for each in ids)))
        for ids in together
    )
    return [simulation.replayed.wall - wall for wall in simulation.replay.run(changes)[0].tolist()]


def _confidence(simulation: Simulation) -> tuple[Confidence, str]:
    """How sure a replay is by the edges that its critical path hangs on."""
    known = simulation.known_edges
    error = f"the replay of the trace is {simulation.error_percent:+.1f} % off"
    if known == 1.0:
        level: Confidence = "high" if abs(simulation.error_percent) <= _SMALL_ERROR else "medium"
        return level, f"{error}, by edges that the recording tells"
    return "medium", f"{error}; {100 * (1 - known):.0f} % of the waits it hangs on are assumed"
