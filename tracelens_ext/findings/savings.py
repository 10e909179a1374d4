"""What findings save: the wall time of the replay without what they claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, get_args

import numpy as np

from tracelens_ext.findings.finding import Claim, Confidence, Finding, saving_text
from tracelens_ext.findings.inspection import Instead
from tracelens_ext.replay.changes import Named, Removed
from tracelens_ext.replay.program import Program
from tracelens_ext.replay.what_if import Simulation
from tracelens_ext.trace import NONE, NS_PER_MS, BoolArray, Int64Array
from tracelens_ext.work.gpu_work import find_gaps

#: An error of the replay below which the edges alone tell how sure a saving is, percent.
_SMALL_ERROR: Final = 3.0

#: A saving that differs by less, as a share, is not told beside the claim.
_SAME = 0.1


def removed(simulation: Simulation, claim: Claim, instead: Instead) -> Removed:
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
    if instead != "waits no longer":
        return Removed(shorter, on_link, host)
    after = find_gaps(program.work, "device").after[claimed.gap[idle]]
    node = program.node_of_event[after]
    called = (node != NONE) & (program.call[node] != NONE)
    node, until = node[called], end[idle][called]
    sooner, tail = np.zeros_like(shorter), np.zeros_like(program.block_start)
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
    if not asked:
        return list(findings)
    ids = [each.id for each in asked]
    # A pass costs much the same for any number of changes. What claims more mostly saves more, so
    # that few sums, if any, are left for a second pass.
    saved = _saved(simulation, [[each] for each in ids] + _first(ids))
    if simulation.state != "good":
        return list(findings)
    alone = np.array([saved[frozenset([each])] for each in ids])
    order = np.argsort(-alone, kind="stable")
    asked = [asked[i] for i in order.tolist()]
    sums = _first([each.id for each in asked])
    saved |= _saved(simulation, [some for some in sums if frozenset(some) not in saved])
    more = np.diff([saved[frozenset(some)] for some in sums], prepend=0)
    both = zip((alone[order] / NS_PER_MS).tolist(), (more / NS_PER_MS).tolist(), strict=True)
    sure, why = _confidence(simulation)
    levels, result = get_args(Confidence), []  # the surest first
    for finding, (saving, together) in zip(asked, both, strict=True):
        share, title = saving / finding.claimed_ms, finding.title  # which tells the claim
        low, high = finding.saving_low_ms, finding.saving_high_ms
        if abs(1 - share) > _SAME:
            told = saving_text(saving, share * finding.share_percent)
            title += f"; without it {told} are saved"
        result.append(
            replace(
                finding,
                title=title,
                saving_ms=saving,
                saving_together_ms=together,
                simulated=True,
                saving_low_ms=None if low is None else low * share,
                saving_high_ms=None if high is None else max(high * share, saving),
                confidence=max(finding.confidence, sure, key=levels.index),
                confidence_reason=f"{finding.confidence_reason}; {why}",
            )
        )
    return result + [each for each in findings if each.id not in claims]


def _first(ids: Sequence[str]) -> list[Sequence[str]]:
    """The first of some findings, the first two, and so on."""
    return [ids[: i + 1] for i in range(len(ids))]


def _saved(simulation: Simulation, together: Sequence[Sequence[str]]) -> dict[frozenset[str], int]:
    """What is saved without the claims of some findings, whatever their order, ns."""
    asked = {frozenset(ids): ids for ids in together}
    named = [Named("", tuple((f"finding:{i}", 0.0) for i in ids)) for ids in asked.values()]
    if not named:
        return {}
    # One change at a time: each has as many numbers as the program.
    saved = simulation.saved(simulation.changes.change(each) for each in named)
    return dict(zip(asked, saved.tolist(), strict=True))


def _confidence(simulation: Simulation) -> tuple[Confidence, str]:
    """How sure a replay is by the edges that its critical path hangs on."""
    known = simulation.known_edges
    error = f"the replay of the trace is {simulation.error_percent:+.1f} % off"
    if known == 1.0:
        level: Confidence = "high" if abs(simulation.error_percent) <= _SMALL_ERROR else "medium"
        return level, f"{error}, by edges that the recording tells"
    return "medium", f"{error}; {100 * (1 - known):.0f} % of the waits it hangs on are assumed"
