"""Finds by the dumps of a job which call hangs, and which rank is to blame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tracelens_ext.distributed.flight_recorder.dumps import FlightCall, FlightDump
from tracelens_ext.distributed.flight_recorder.groups import (
    FlightGroup,
    Pair,
    Signature,
    are_all_to_all,
    flight_groups,
    majority_value,
    ranks_text,
    signature_of,
)
from tracelens_ext.distributed.flight_recorder.job_dumps import JobDumps, StuckCall
from tracelens_ext.distributed.flight_recorder.report_tables import job_report_tables
from tracelens_ext.distributed.verdicts import Verdict, VerdictKind
from tracelens_ext.lazy import pd

#: How many calls after a mismatch are searched for the same calls in a different order.
_ORDER_WINDOW: Final = 4
#: How many ranks without a dump get a verdict.
_MOST_MISSING_RANKS: Final = 64


def analyze_dumps(dumps: Sequence[FlightDump]) -> dict[str, pd.DataFrame]:
    """Analyze the dumps of a job, one per rank; return the tables of `report_tables`."""
    job = JobDumps(dumps, flight_groups(dumps))
    for group in job.groups:
        if not _find_mismatch(job, group):
            _find_incomplete_collective(job, group)
        _find_unmatched_pairs(job, group)
    if not _find_groups_in_different_order(job):
        _blame_absent_ranks(job)
    _find_ranks_without_dump(job)
    return job_report_tables(job)


# Collectives that ranks do not make alike.


def _find_mismatch(job: JobDumps, group: FlightGroup) -> bool:
    """Find the first collective of a group that differs between ranks; tell if there is one.

    Later calls are not compared: after one mismatch, the ranks are no longer in step.
    """
    for sequence in group.sequences:
        calls_of_rank = group.calls_of(sequence)
        signature_of_rank = {
            rank: signature_of(calls) for rank, calls in calls_of_rank.items()
        }
        usual_signature = majority_value(signature_of_rank)
        deviating_ranks = [
            rank
            for rank in sorted(calls_of_rank)
            if signature_of_rank[rank] != usual_signature
        ]
        if deviating_ranks:
            usual_ranks = set(calls_of_rank).difference(deviating_ranks)
            _blame_deviating_ranks(
                job=job,
                group=group,
                sequence=sequence,
                deviating_ranks=deviating_ranks,
                usual_rank=min(usual_ranks),
            )
            return True
        if _all_to_all_sizes_disagree(group, calls_of_rank):
            call = _stuck_collective(group, sequence, VerdictKind.MISMATCH)
            job.stuck_calls.append(call)
            problem = "the ranks send and receive different numbers of elements"
            evidence = f"{call.title}: {problem}"
            job.add_verdict(VerdictKind.MISMATCH, None, call, evidence)
            return True
    return False


def _blame_deviating_ranks(
    job: JobDumps,
    group: FlightGroup,
    sequence: int,
    deviating_ranks: Sequence[int],
    usual_rank: int,
) -> None:
    """Add a verdict on each rank whose call differs from that of `usual_rank`."""
    call = _stuck_collective(group, sequence, VerdictKind.MISMATCH)
    job.stuck_calls.append(call)
    for rank in deviating_ranks:
        difference = _difference(
            group=group,
            sequence=sequence,
            rank=rank,
            usual_rank=usual_rank,
        )
        evidence = f"{call.title}: {difference}"
        job.add_verdict(VerdictKind.MISMATCH, rank, call, evidence)


def _all_to_all_sizes_disagree(
    group: FlightGroup, calls_of_rank: Mapping[int, Sequence[FlightCall]]
) -> bool:
    """Tell whether all ranks of an all-to-all together send and receive different amounts."""
    if set(calls_of_rank) != set(group.key.ranks):
        return False
    all_calls = [call for calls in calls_of_rank.values() for call in calls]
    if not are_all_to_all(all_calls):
        return False
    sent_elements = sum(call.input_elements for call in all_calls)
    received_elements = sum(call.output_elements for call in all_calls)
    return sent_elements != received_elements


def _difference(group: FlightGroup, sequence: int, rank: int, usual_rank: int) -> str:
    """Return in words how the call of a rank differs from that of a usual rank."""
    calls = group.collectives[rank][sequence]
    usual_calls = group.collectives[usual_rank][sequence]
    signature = signature_of(calls)
    usual_signature = signature_of(usual_calls)
    call = calls[0]
    usual_call = usual_calls[0]
    location = _location_text(call.frames)
    if _is_in_different_order(
        group=group,
        sequence=sequence,
        rank=rank,
        usual_rank=usual_rank,
    ):
        return (
            f"rank {rank} makes its calls in a different order: it calls "
            f"{call.operation} {call.sizes_text} where others call "
            f"{usual_call.operation} {usual_call.sizes_text}{location}"
        )
    if signature.operations != usual_signature.operations:
        return (
            f"rank {rank} calls {', '.join(signature.operations)} where others call"
            f" {', '.join(usual_signature.operations)}{location}"
        )
    if signature.elements != usual_signature.elements:
        return (
            f"rank {rank} has the sizes {call.sizes_text} where others have"
            f" {usual_call.sizes_text}{location}"
        )
    return (
        f"rank {rank} has the type {', '.join(signature.dtypes)} where others have"
        f" {', '.join(usual_signature.dtypes)}{location}"
    )


def _is_in_different_order(
    group: FlightGroup, sequence: int, rank: int, usual_rank: int
) -> bool:
    """Tell whether each of two ranks makes the call of the other one a few calls later."""
    signature = signature_of(group.collectives[rank][sequence])
    usual_signature = signature_of(group.collectives[usual_rank][sequence])
    return usual_signature in _next_signatures(
        group, sequence, rank
    ) and signature in _next_signatures(group, sequence, usual_rank)


def _next_signatures(group: FlightGroup, sequence: int, rank: int) -> list[Signature]:
    """Return the signatures of the calls that a rank makes after a sequence number."""
    calls = group.collectives[rank]
    first_next = sequence + 1
    next_sequences = range(first_next, first_next + _ORDER_WINDOW)
    return [signature_of(calls[number]) for number in next_sequences if number in calls]


# Sends and receives that do not match.


def _find_unmatched_pairs(job: JobDumps, group: FlightGroup) -> None:
    """Find sends without a receive, receives without a send, and pairs that do not match.

    The open sends of a pair of ranks belong to its open receives, in order. Completed ones are
    compared only if there are as many sends as receives; otherwise a dump lacks some of them.
    """
    for pair in sorted(set(group.sends) | set(group.receives)):
        has_both_dumps = (
            pair.source in group.dumped_ranks and pair.target in group.dumped_ranks
        )
        if not has_both_dumps:
            continue
        sends = group.sends.get(pair, [])
        receives = group.receives.get(pair, [])
        open_sends = [call for call in sends if not call.is_completed]
        open_receives = [call for call in receives if not call.is_completed]
        pair_count = min(len(open_sends), len(open_receives))
        if len(open_sends) > pair_count:
            unmatched_send = _stuck_send_or_receive(
                group=group,
                call=open_sends[pair_count],
                waiting_rank=pair.source,
                absent_rank=pair.target,
            )
            job.stuck_calls.append(unmatched_send)
        elif len(open_receives) > pair_count:
            unmatched_receive = _stuck_send_or_receive(
                group=group,
                call=open_receives[pair_count],
                waiting_rank=pair.target,
                absent_rank=pair.source,
            )
            job.stuck_calls.append(unmatched_receive)
        _find_unequal_pair(
            job=job,
            group=group,
            pair=pair,
            sends=open_sends[:pair_count],
            receives=open_receives[:pair_count],
        )
        if len(sends) == len(receives):
            _find_unequal_pair(
                job=job,
                group=group,
                pair=pair,
                sends=[call for call in sends if call.is_completed],
                receives=[call for call in receives if call.is_completed],
            )


def _find_unequal_pair(
    job: JobDumps,
    group: FlightGroup,
    pair: Pair,
    sends: Sequence[FlightCall],
    receives: Sequence[FlightCall],
) -> None:
    """Find the first send whose receive has a different size or type."""
    for send, receive in zip(sends, receives, strict=False):
        sent_elements = send.input_elements or send.output_elements
        received_elements = receive.output_elements or receive.input_elements
        has_same_size = sent_elements == received_elements
        if has_same_size and set(send.dtypes) == set(receive.dtypes):
            continue
        call = StuckCall(
            group=group,
            operation=f"send from {pair.source} to {pair.target}",
            sequence=send.sequence,
            entered_ranks=(pair.source, pair.target),
            completed_ranks=(),
            absent_ranks=(),
            state=VerdictKind.MISMATCH,
            sizes=send.sizes_text,
            frames=send.frames,
        )
        job.stuck_calls.append(call)
        evidence = (
            f"{call.title}: rank {pair.target} receives {receive.sizes_text}"
            f" {'/'.join(receive.dtypes)} where rank {pair.source} sends"
            f" {send.sizes_text} {'/'.join(send.dtypes)}{_location_text(receive.frames)}"
        )
        job.add_verdict(VerdictKind.MISMATCH, pair.target, call, evidence)
        return


def _stuck_send_or_receive(
    group: FlightGroup, call: FlightCall, waiting_rank: int, absent_rank: int
) -> StuckCall:
    """Return a send or a receive that waits for the other rank of its pair."""
    return StuckCall(
        group=group,
        operation=f"{call.operation} from {call.source} to {call.target}",
        sequence=call.sequence,
        entered_ranks=(waiting_rank,),
        completed_ranks=(),
        absent_ranks=(absent_rank,),
        state=VerdictKind.HANG,
        sizes=call.sizes_text,
        frames=call.frames,
    )


# Collectives that did not complete.


def _find_incomplete_collective(job: JobDumps, group: FlightGroup) -> None:
    """Find the first collective of a group that did not complete."""
    sequence = group.first_incomplete
    if sequence is not None:
        call = _stuck_collective(group, sequence, VerdictKind.HANG)
        job.stuck_calls.append(call)


def _stuck_collective(
    group: FlightGroup, sequence: int, state: VerdictKind
) -> StuckCall:
    """Return the collective of a group with a sequence number, with the ranks in each state."""
    calls_of_rank = group.calls_of(sequence)
    completed_ranks = [
        rank
        for rank, calls in calls_of_rank.items()
        if all(call.is_completed for call in calls)
    ]
    entered_ranks = sorted(calls_of_rank)
    first_call = calls_of_rank[entered_ranks[0]][0]
    # Ranks that do not make the call alike may even call different operations.
    operations = dict.fromkeys(calls[0].operation for calls in calls_of_rank.values())
    return StuckCall(
        group=group,
        operation=" or ".join(operations),
        sequence=sequence,
        entered_ranks=tuple(entered_ranks),
        completed_ranks=tuple(sorted(completed_ranks)),
        absent_ranks=tuple(group.absent_ranks(sequence)),
        state=state,
        sizes=first_call.sizes_text,
        frames=first_call.frames,
    )


# Calls of two groups that ranks make in different orders.


def _find_groups_in_different_order(job: JobDumps) -> bool:
    """Find the first two hanging calls that ranks make in different orders; tell if there are any.

    Rank 0 waits in a call of group A and would call group B next; rank 1 waits in the call of
    group B and would call group A next. Each of them waits for the other one.
    """
    hanging_calls = job.hanging_calls()
    for index, first_call in enumerate(hanging_calls):
        for second_call in hanging_calls[index + 1 :]:
            is_same_group = first_call.group is second_call.group
            if not is_same_group and _blame_different_order(
                job=job,
                first_call=first_call,
                second_call=second_call,
            ):
                return True
    return False


def _blame_different_order(
    job: JobDumps, first_call: StuckCall, second_call: StuckCall
) -> bool:
    """Blame the ranks that make two calls in a different order than most; tell if there are any."""
    makes_first_call_first = _ranks_by_order(
        job=job,
        first_call=first_call,
        second_call=second_call,
    )
    ranks_of_both = set(first_call.group.dumped_ranks) & set(
        second_call.group.dumped_ranks
    )
    order_of_rank = {
        rank: order
        for rank, order in makes_first_call_first.items()
        if rank in ranks_of_both
    }
    has_one_order = len(set(order_of_rank.values())) < 2
    if has_one_order:
        return False
    usual_order = majority_value(makes_first_call_first)
    for rank, order in order_of_rank.items():
        if order == usual_order:
            continue
        earlier_call = first_call if order else second_call
        later_call = second_call if order else first_call
        evidence = (
            f"rank {rank} makes its calls in a different order: it enters "
            f"{earlier_call.title} before {later_call.title}; the others enter them "
            "the other way around, and they wait for each other"
        )
        job.add_verdict(VerdictKind.MISMATCH, rank, later_call, evidence)
    return True


def _ranks_by_order(
    job: JobDumps, first_call: StuckCall, second_call: StuckCall
) -> dict[int, bool]:
    """Return the ranks that make one of two calls: True if a rank makes the first call first.

    Two ranks alone do not show which of them is wrong. Therefore ranks outside of the two groups
    count, too, if they belong to groups with the same descriptions, such as those of the other
    replicas of a model.
    """
    makes_first_call_first = {}
    for rank in job.dumped_ranks:
        first_group = _counterpart_group(job, first_call.group, rank)
        second_group = _counterpart_group(job, second_call.group, rank)
        if first_group is None or second_group is None:
            continue
        first_position = _position_of(first_group, first_call.sequence, rank)
        second_position = _position_of(second_group, second_call.sequence, rank)
        if first_position is None and second_position is None:
            continue
        if second_position is None:
            makes_first_call_first[rank] = True
        elif first_position is None:
            makes_first_call_first[rank] = False
        else:
            makes_first_call_first[rank] = first_position < second_position
    return makes_first_call_first


def _position_of(group: FlightGroup, sequence: int, rank: int) -> int | None:
    """Return the position of a collective in the dump of a rank; None if it is not in there."""
    calls = group.collectives.get(rank, {}).get(sequence)
    return calls[0].position if calls else None


def _counterpart_group(
    job: JobDumps, group: FlightGroup, rank: int
) -> FlightGroup | None:
    """Return the group of a rank that corresponds to `group`; None if it cannot be told.

    It is `group` itself for the ranks of that group. For other ranks, it is the only group of the
    rank that has the same description.
    """
    if rank in group.key.ranks:
        return group
    description = group.key.description
    if description in ("", "undefined"):
        return None
    candidates = [
        candidate
        for candidate in job.groups
        if candidate.key.description == description and rank in candidate.key.ranks
    ]
    return candidates[0] if len(candidates) == 1 else None


# The ranks that hanging calls wait for.


def _blame_absent_ranks(job: JobDumps) -> None:
    """Blame the ranks that did not enter a call, unless they wait in another call themselves.

    A rank that waits elsewhere is held up by the ranks that it waits for, so these are to blame.
    If every absent rank waits, the calls wait for each other in a circle, and all are to blame.
    Calls whose absent ranks wait nowhere come first, because the other calls hang due to them.
    """
    hanging_calls = job.hanging_calls()
    waiting_ranks = {rank for call in job.stuck_calls for rank in call.waiting_ranks}
    absent_ranks = {rank for call in hanging_calls for rank in call.absent_ranks}
    has_culprit = not absent_ranks <= waiting_ranks
    has_culprit |= any(
        _waits_for_rank_without_dump(job, call) for call in hanging_calls
    )

    def absent_ranks_that_wait(call: StuckCall) -> int:
        return len(waiting_ranks.intersection(call.absent_ranks))

    for call in sorted(hanging_calls, key=absent_ranks_that_wait):
        for rank in call.absent_ranks:
            if rank not in waiting_ranks or not has_culprit:
                evidence = _evidence_of_absence(job=job, call=call, rank=rank)
                job.add_verdict(VerdictKind.HANG, rank, call, evidence)
        if not call.absent_ranks:
            is_only_stuck_call = len(job.stuck_calls) == 1
            _blame_ranks_that_entered(job, call, is_only_stuck_call=is_only_stuck_call)


def _waits_for_rank_without_dump(job: JobDumps, call: StuckCall) -> bool:
    """Tell whether a call can wait only for ranks that have no dump."""
    has_missing = any(rank in job.missing_ranks for rank in call.group.key.ranks)
    return has_missing and bool(call.waiting_ranks) and not call.absent_ranks


def _evidence_of_absence(job: JobDumps, call: StuckCall, rank: int) -> str:
    """Return who waits for a rank that did not enter a call, and what the rank did last."""
    waiting = ranks_text(call.waiting_ranks)
    verb = "waits" if len(call.waiting_ranks) == 1 else "wait"
    text = f"it never entered {call.title}, in which {waiting} {verb}"
    last_call = job.last_call(rank)
    if last_call is None:
        return f"{text}; its dump contains no earlier call"
    title = (
        f"{last_call.operation} {last_call.sequence} of group {last_call.group.name}"
    )
    location = _location_text(last_call.frames)
    return f"{text}; its last call is {title} ({last_call.state}){location}"


def _blame_ranks_that_entered(
    job: JobDumps, call: StuckCall, *, is_only_stuck_call: bool
) -> None:
    """Add verdicts on a call that every rank with a dump entered and that did not complete.

    Ranks whose GPU has not started the call are to blame if other GPUs have started it. Otherwise
    the network or a GPU is, but only if no other call is stuck that may be the reason.
    """
    has_ranks_without_dump = set(call.group.key.ranks) - set(call.group.dumped_ranks)
    if has_ranks_without_dump:
        return  # `_find_ranks_without_dump` adds the verdicts on these ranks
    state_of_rank = {}
    for rank in call.waiting_ranks:
        calls = call.group.collectives.get(rank, {}).get(call.sequence)
        if calls:
            state_of_rank[rank] = calls[0].state
    not_started_ranks = [
        rank for rank, state in state_of_rank.items() if state == "scheduled"
    ]
    is_started_elsewhere = (
        len(not_started_ranks) < len(state_of_rank) or call.completed_ranks
    )
    location = _location_text(call.frames)
    if not_started_ranks and is_started_elsewhere:
        evidence = (
            f"it entered {call.title}, but its GPU has not started it, while "
            f"others are in it{location}"
        )
        for rank in not_started_ranks:
            job.add_verdict(VerdictKind.HANG, rank, call, evidence)
    elif is_only_stuck_call:
        evidence = (
            f"all {len(call.entered_ranks)} ranks entered {call.title}, and it has not "
            f"finished on {ranks_text(call.waiting_ranks)}: the cause is the network or "
            f"a GPU, unless the job was still running when it was dumped{location}"
        )
        job.add_verdict(VerdictKind.HANG, None, call, evidence)


def _find_ranks_without_dump(job: JobDumps) -> None:
    """Add a verdict on each rank of the process groups that has no dump."""
    for rank in job.missing_ranks[:_MOST_MISSING_RANKS]:
        calls_that_wait = [
            call
            for call in job.stuck_calls
            if rank in call.group.key.ranks and _waits_for_rank_without_dump(job, call)
        ]
        evidence = (
            "there is no dump of this rank: it may have ended, or its file is not among"
            " those given"
        )
        group_name = None
        if calls_that_wait:
            evidence += f"; {calls_that_wait[0].title} waits for it"
            group_name = calls_that_wait[0].group.key.name
        verdict = Verdict(
            verdict=VerdictKind.MISSING_RANK,
            rank=rank,
            process_group=group_name,
            evidence=evidence,
        )
        job.verdicts.append(verdict)


def _location_text(frames: Sequence[str]) -> str:
    """Return where a call was made, as the end of a sentence; empty if that is not known."""
    if not frames:
        return ""
    return f", in {frames[0]}"
