"""Which call of a job hangs, and which rank is to blame, by dumps of the flight recorder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tracelens_ext.distributed.flight_recorder.dumps import FlightCall, FlightDump
from tracelens_ext.distributed.flight_recorder.groups import (
    GroupCalls,
    Pair,
    Signature,
    exchanges_any_sizes,
    group_calls,
    majority,
    ranks_text,
    signature_of,
)
from tracelens_ext.distributed.verdicts import Verdict, VerdictKind, verdict_table
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NS_PER_MS

#: How far apart two calls may be that a rank makes in another order.
_ORDER_WINDOW: Final = 4
_MOST_MISSING: Final = 64
_LAST_CALLS: Final = 5
#: The tables, in the order in which they are shown.
TABLES: Final = ("verdicts", "stuck_calls", "rank_progress", "last_calls")


@dataclass(frozen=True)
class StuckCall:
    """A call that did not complete, or that ranks made in different ways."""

    group: GroupCalls
    operation: str
    sequence: int
    entered: tuple[int, ...]  #: ranks that made it
    completed: tuple[int, ...]  #: ranks on which it ended
    absent: tuple[int, ...]  #: ranks with a dump that did not make it
    state: str  #: a `VerdictKind`
    sizes: str
    frames: tuple[str, ...]  #: of the lowest rank that made it

    @property
    def title(self) -> str:
        """The call in words."""
        return f"{self.operation}, call {self.sequence} of process group {self.group.key.title}"

    @property
    def waiting(self) -> tuple[int, ...]:
        """Ranks that made it and on which it did not end."""
        return tuple(rank for rank in self.entered if rank not in self.completed)


@dataclass
class JobDumps:
    """The dumps of a job, and what is found in them."""

    dumps: Sequence[FlightDump]
    groups: Sequence[GroupCalls]
    stuck: list[StuckCall] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def dumped(self) -> list[int]:
        """The ranks that have a dump."""
        return sorted({dump.rank for dump in self.dumps})

    @property
    def missing(self) -> list[int]:
        """The ranks of the process groups that have no dump."""
        members = {rank for group in self.groups for rank in group.key.ranks}
        for dump in self.dumps:
            for key in dump.groups.values():
                members.update(key.ranks)
        return sorted(members.difference(self.dumped))

    def last_call(self, rank: int) -> FlightCall | None:
        """Return the last call of a rank."""
        for dump in self.dumps:
            if dump.rank == rank and dump.calls:
                return dump.calls[-1]
        return None

    def add(
        self, kind: VerdictKind, rank: int | None, call: StuckCall, evidence: str
    ) -> None:
        """Note a verdict on a call."""
        verdict = Verdict(
            verdict=kind,
            rank=rank,
            process_group=call.group.key.name,
            evidence=evidence,
        )
        self.verdicts.append(verdict)


def analyze_dumps(dumps: Sequence[FlightDump]) -> dict[str, pd.DataFrame]:
    """Return the tables of `TABLES` for the dumps of a job, one a rank."""
    job = JobDumps(dumps, group_calls(dumps))
    for group in job.groups:
        if not _find_mismatch(job, group):
            _find_incomplete(job, group)
        _find_unmatched_pairs(job, group)
    if not _find_other_order(job):
        _blame_absent_ranks(job)
    _find_missing_ranks(job)
    return {
        "verdicts": verdict_table(job.verdicts),
        "stuck_calls": _stuck_table(job),
        "rank_progress": _progress_table(job),
        "last_calls": _last_table(job),
    }


# Calls that ranks make in different ways.


def _find_mismatch(job: JobDumps, group: GroupCalls) -> bool:
    """Find the first call of a group that is not the same on all ranks."""
    for sequence in group.sequences:
        calls = group.calls_at(sequence)
        signatures = {rank: signature_of(made) for rank, made in calls.items()}
        usual = majority(signatures)
        others = [rank for rank in sorted(calls) if signatures[rank] != usual]
        if others:
            stuck = _stuck(
                group=group,
                sequence=sequence,
                state=VerdictKind.MISMATCH,
            )
            job.stuck.append(stuck)
            usual_rank = min(rank for rank in calls if rank not in others)
            for rank in others:
                evidence = _difference(
                    group=group,
                    sequence=sequence,
                    rank=rank,
                    usual_rank=usual_rank,
                )
                job.add(VerdictKind.MISMATCH, rank, stuck, f"{stuck.title}: {evidence}")
            return True
        if _sends_and_receives_differ(group, calls):
            stuck = _stuck(
                group=group,
                sequence=sequence,
                state=VerdictKind.MISMATCH,
            )
            job.stuck.append(stuck)
            evidence = "the ranks send and receive different numbers of elements"
            job.add(VerdictKind.MISMATCH, None, stuck, f"{stuck.title}: {evidence}")
            return True
    return False


def _sends_and_receives_differ(
    group: GroupCalls, calls: Mapping[int, Sequence[FlightCall]]
) -> bool:
    """Tell if an all-to-all sends other numbers of elements than it receives, over all ranks."""
    if set(calls) != set(group.key.ranks):
        return False
    made = [call for of_rank in calls.values() for call in of_rank]
    if not exchanges_any_sizes(made):
        return False
    sent = sum(call.input_elements for call in made)
    received = sum(call.output_elements for call in made)
    return sent != received


def _difference(group: GroupCalls, sequence: int, rank: int, usual_rank: int) -> str:
    """Return how the call of a rank differs from that of another one."""
    made = group.collectives[rank][sequence]
    usual = group.collectives[usual_rank][sequence]
    of_rank = signature_of(made)
    of_others = signature_of(usual)
    where = _frames_text(made[0].frames)
    if _is_in_other_order(
        group=group,
        sequence=sequence,
        rank=rank,
        usual_rank=usual_rank,
    ):
        return (
            f"rank {rank} makes its calls in a different order: it calls "
            f"{made[0].operation} {made[0].sizes_text} where others call "
            f"{usual[0].operation} {usual[0].sizes_text}{where}"
        )
    if of_rank.operations != of_others.operations:
        return (
            f"rank {rank} calls {', '.join(of_rank.operations)} where others call"
            f" {', '.join(of_others.operations)}{where}"
        )
    if of_rank.elements != of_others.elements:
        return (
            f"rank {rank} has the sizes {made[0].sizes_text} where others have"
            f" {usual[0].sizes_text}{where}"
        )
    return (
        f"rank {rank} has the type {', '.join(of_rank.dtypes)} where others have"
        f" {', '.join(of_others.dtypes)}{where}"
    )


def _is_in_other_order(
    group: GroupCalls, sequence: int, rank: int, usual_rank: int
) -> bool:
    """Tell if a rank makes the calls of another one soon, and the other one those of the rank."""

    def soon(who: int) -> list[Signature]:
        calls = group.collectives[who]
        window = range(sequence + 1, sequence + 1 + _ORDER_WINDOW)
        return [signature_of(calls[number]) for number in window if number in calls]

    own = signature_of(group.collectives[rank][sequence])
    usual = signature_of(group.collectives[usual_rank][sequence])
    return usual in soon(rank) and own in soon(usual_rank)


def _find_unmatched_pairs(job: JobDumps, group: GroupCalls) -> None:
    """Find sends without receive and receives without send, and pairs of other sizes."""
    for pair in sorted({*group.sends, *group.receives}):
        if pair.source not in group.dumped or pair.target not in group.dumped:
            continue
        sends = group.sends.get(pair, [])
        receives = group.receives.get(pair, [])
        open_sends = [call for call in sends if not call.is_completed]
        open_receives = [call for call in receives if not call.is_completed]
        matched = min(len(open_sends), len(open_receives))
        if len(open_sends) > matched:
            job.stuck.append(
                _stuck_pair(
                    group=group,
                    call=open_sends[matched],
                    waiting=pair.source,
                    absent=pair.target,
                )
            )
        elif len(open_receives) > matched:
            waiting = open_receives[matched]
            job.stuck.append(
                _stuck_pair(
                    group=group,
                    call=waiting,
                    waiting=pair.target,
                    absent=pair.source,
                )
            )
        _find_unequal_pair(
            job=job,
            group=group,
            pair=pair,
            sends=open_sends[:matched],
            receives=open_receives[:matched],
        )
        if len(sends) == len(receives):
            done_sends = [call for call in sends if call.is_completed]
            done_receives = [call for call in receives if call.is_completed]
            _find_unequal_pair(
                job=job,
                group=group,
                pair=pair,
                sends=done_sends,
                receives=done_receives,
            )


def _find_unequal_pair(
    job: JobDumps,
    group: GroupCalls,
    pair: Pair,
    sends: Sequence[FlightCall],
    receives: Sequence[FlightCall],
) -> None:
    """Find the first send whose receive has other sizes or another type."""
    for send, receive in zip(sends, receives, strict=False):
        sent = send.input_elements or send.output_elements
        received = receive.output_elements or receive.input_elements
        if sent == received and set(send.dtypes) == set(receive.dtypes):
            continue
        stuck = StuckCall(
            group=group,
            operation=f"send from {pair.source} to {pair.target}",
            sequence=send.sequence,
            entered=(pair.source, pair.target),
            completed=(),
            absent=(),
            state=VerdictKind.MISMATCH,
            sizes=send.sizes_text,
            frames=send.frames,
        )
        job.stuck.append(stuck)
        evidence = (
            f"rank {pair.target} receives {receive.sizes_text}"
            f" {'/'.join(receive.dtypes)} where rank {pair.source} sends"
            f" {send.sizes_text} {'/'.join(send.dtypes)}{_frames_text(receive.frames)}"
        )
        job.add(VerdictKind.MISMATCH, pair.target, stuck, f"{stuck.title}: {evidence}")
        return


def _stuck_pair(
    group: GroupCalls, call: FlightCall, waiting: int, absent: int
) -> StuckCall:
    return StuckCall(
        group=group,
        operation=f"{call.operation} from {call.source} to {call.target}",
        sequence=call.sequence,
        entered=(waiting,),
        completed=(),
        absent=(absent,),
        state=VerdictKind.HANG,
        sizes=call.sizes_text,
        frames=call.frames,
    )


# Calls that did not complete.


def _find_incomplete(job: JobDumps, group: GroupCalls) -> None:
    """Find the first collective of a group that did not complete."""
    if group.first_incomplete is not None:
        job.stuck.append(
            _stuck(
                group=group,
                sequence=group.first_incomplete,
                state=VerdictKind.HANG,
            )
        )


def _stuck(group: GroupCalls, sequence: int, state: VerdictKind) -> StuckCall:
    calls = group.calls_at(sequence)
    completed = [
        rank for rank, made in calls.items() if all(call.is_completed for call in made)
    ]
    entered = sorted(calls)
    first = calls[entered[0]][0]
    operations = dict.fromkeys(made[0].operation for made in calls.values())
    return StuckCall(
        group=group,
        operation=" or ".join(operations),
        sequence=sequence,
        entered=tuple(entered),
        completed=tuple(sorted(completed)),
        absent=tuple(group.absent_at(sequence)),
        state=state,
        sizes=first.sizes_text,
        frames=first.frames,
    )


def _find_other_order(job: JobDumps) -> bool:
    """Find ranks that make two calls of different groups in another order than the others."""
    hanging = [call for call in job.stuck if call.state == VerdictKind.HANG]
    for place, one in enumerate(hanging):
        for other in hanging[place + 1 :]:
            if one.group is other.group:
                continue
            if _blame_other_order(
                job=job,
                one=one,
                other=other,
            ):
                return True
    return False


def _blame_other_order(job: JobDumps, one: StuckCall, other: StuckCall) -> bool:
    """Blame the ranks that make the second of two calls first, if most make it second."""
    is_first = _ranks_that_make_first(
        job=job,
        one=one,
        other=other,
    )
    common = set(one.group.dumped) & set(other.group.dumped)
    is_first_of_common = {
        rank: value for rank, value in is_first.items() if rank in common
    }
    if len(set(is_first_of_common.values())) < 2:
        return False
    usual = majority(is_first)
    for rank, value in is_first_of_common.items():
        if value == usual:
            continue
        earlier = one if value else other
        later = other if value else one
        evidence = (
            f"rank {rank} makes its calls in a different order: it enters "
            f"{earlier.title} before {later.title}; the others enter them the other "
            "way around, and they wait for each other"
        )
        job.add(VerdictKind.MISMATCH, rank, later, evidence)
    return True


def _ranks_that_make_first(
    job: JobDumps, one: StuckCall, other: StuckCall
) -> dict[int, bool]:
    """Return for each rank that makes one of two calls if it makes the first one first.

    Ranks outside of a group count by the group that they have in its stead, as replicas of a model
    do: two ranks alone do not show which of them is wrong.
    """
    is_first = {}
    for rank in job.dumped:
        group = _group_in_its_stead(job=job, group=one.group, rank=rank)
        other_group = _group_in_its_stead(job=job, group=other.group, rank=rank)
        if group is None or other_group is None:
            continue
        order = _order_of(group=group, sequence=one.sequence, rank=rank)
        other_order = _order_of(group=other_group, sequence=other.sequence, rank=rank)
        if order is None and other_order is None:
            continue
        is_first[rank] = other_order is None or (
            order is not None and order < other_order
        )
    return is_first


def _order_of(group: GroupCalls, sequence: int, rank: int) -> int | None:
    """Return the place of a collective among the calls of a rank; None if it did not make it."""
    made = group.collectives.get(rank, {}).get(sequence)
    return made[0].order if made else None


def _group_in_its_stead(
    job: JobDumps, group: GroupCalls, rank: int
) -> GroupCalls | None:
    """Return the group itself for its ranks, else the only one of its description with a rank."""
    if rank in group.key.ranks:
        return group
    description = group.key.description
    if description in ("", "undefined"):
        return None
    alike = [
        other
        for other in job.groups
        if other.key.description == description and rank in other.key.ranks
    ]
    return alike[0] if len(alike) == 1 else None


def _blame_absent_ranks(job: JobDumps) -> None:
    """Blame the ranks that did not enter a call, unless they wait in another one themselves.

    Calls whose absent ranks wait nowhere come first: the others hang because of them.
    """
    hanging = [call for call in job.stuck if call.state == VerdictKind.HANG]
    waits_in: dict[int, list[StuckCall]] = defaultdict(list)
    for call in job.stuck:
        for rank in call.waiting:
            waits_in[rank].append(call)
    # The root of all waiting: a rank that waits nowhere, or one of which there is no dump.
    absent_ranks = {rank for call in hanging for rank in call.absent}
    has_root = any(not waits_in[rank] for rank in absent_ranks)
    has_root |= any(_waits_for_missing(job, call) for call in hanging)

    def absent_that_wait(call: StuckCall) -> int:
        return sum(bool(waits_in[rank]) for rank in call.absent)

    for call in sorted(hanging, key=absent_that_wait):
        for rank in call.absent:
            if not waits_in[rank] or not has_root:
                job.add(
                    VerdictKind.HANG,
                    rank,
                    call,
                    _absence(
                        job=job,
                        call=call,
                        rank=rank,
                    ),
                )
        if not call.absent:
            _blame_started_ranks(job, call, is_only=len(job.stuck) == 1)


def _waits_for_missing(job: JobDumps, call: StuckCall) -> bool:
    """Tell if only ranks without a dump can be what a call waits for."""
    has_missing = any(rank in job.missing for rank in call.group.key.ranks)
    return has_missing and bool(call.waiting) and not call.absent


def _absence(job: JobDumps, call: StuckCall, rank: int) -> str:
    """Return what is known of a rank that did not enter a call."""
    waiting = ranks_text(call.waiting)
    verb = "waits" if len(call.waiting) == 1 else "wait"
    text = f"it never entered {call.title}, in which {waiting} {verb}"
    last = job.last_call(rank)
    if last is None:
        return f"{text}; its dump contains no earlier call"
    title = f"{last.operation} {last.sequence} of group {last.group.name}"
    where = _frames_text(last.frames)
    return f"{text}; its last call is {title} ({last.state}){where}"


def _blame_started_ranks(job: JobDumps, call: StuckCall, *, is_only: bool) -> None:
    """Blame the ranks whose GPU has not begun a call that all ranks entered, if others have."""
    state_of_rank = {}
    for rank in call.waiting:
        made = call.group.collectives.get(rank, {}).get(call.sequence)
        if made:
            state_of_rank[rank] = made[0].state
    has_missing = set(call.group.key.ranks) - set(call.group.dumped)
    if has_missing:
        return  # those without a dump have verdicts of their own
    scheduled = [rank for rank, state in state_of_rank.items() if state == "scheduled"]
    has_started = len(scheduled) < len(state_of_rank) or call.completed
    if scheduled and has_started:
        for rank in scheduled:
            evidence = (
                f"it entered {call.title}, but its GPU has not started it, while "
                f"others are in it{_frames_text(call.frames)}"
            )
            job.add(VerdictKind.HANG, rank, call, evidence)
        return
    if not is_only:
        return
    evidence = (
        f"all {len(call.entered)} ranks entered {call.title}, and it has not finished "
        f"on {ranks_text(call.waiting)}: the cause is the network or a GPU, unless "
        f"the job was still running when it was dumped{_frames_text(call.frames)}"
    )
    job.add(VerdictKind.HANG, None, call, evidence)


def _find_missing_ranks(job: JobDumps) -> None:
    """Note ranks of the process groups that have no dump, and the calls that wait for them."""
    for rank in job.missing[:_MOST_MISSING]:
        waiting = [
            call
            for call in job.stuck
            if rank in call.group.key.ranks and _waits_for_missing(job, call)
        ]
        evidence = (
            "there is no dump of this rank: it may have ended, or its file is not among"
            " those given"
        )
        group = None
        if waiting:
            evidence += f"; {waiting[0].title} waits for it"
            group = waiting[0].group.key.name
        verdict = Verdict(
            verdict=VerdictKind.MISSING_RANK,
            rank=rank,
            process_group=group,
            evidence=evidence,
        )
        job.verdicts.append(verdict)


def _frames_text(frames: Sequence[str]) -> str:
    """Return where a call was made, to be put behind a sentence."""
    if not frames:
        return ""
    return f", in {frames[0]}"


# Tables.


_STUCK_COLUMNS: Final = {
    "state": "str",
    "process_group": "str",
    "description": "str",
    "collective": "str",
    "sequence": "int64",
    "ranks": "int64",
    "entered_ranks": "str",
    "completed_ranks": "str",
    "missing_ranks": "str",
    "sizes": "str",
    "frames": "str",
}
_PROGRESS_COLUMNS: Final = {
    "rank": "int64",
    "process_group": "str",
    "description": "str",
    "last_entered": "int64",
    "last_completed": "int64",
    "behind": "int64",
    "collective": "str",
    "state": "str",
    "frames": "str",
}
_LAST_COLUMNS: Final = {
    "rank": "int64",
    "process_group": "str",
    "collective": "str",
    "sequence": "int64",
    "state": "str",
    "sizes": "str",
    "dtype": "str",
    "before_last_ms": "float64",
    "frames": "str",
}


def _table(rows: list[dict[str, object]], columns: Mapping[str, str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(columns)).astype(dict(columns))


def _stuck_table(job: JobDumps) -> pd.DataFrame:
    """Return the calls that did not complete, or that ranks made in different ways."""
    return _table([_stuck_row(call) for call in job.stuck], _STUCK_COLUMNS)


def _stuck_row(call: StuckCall) -> dict[str, object]:
    return {
        "state": str(call.state),
        "process_group": call.group.key.name,
        "description": call.group.key.description,
        "collective": call.operation,
        "sequence": call.sequence,
        "ranks": len(call.group.key.ranks),
        "entered_ranks": _listed(call.entered),
        "completed_ranks": _listed(call.completed),
        "missing_ranks": _listed(call.absent),
        "sizes": call.sizes,
        "frames": "; ".join(call.frames),
    }


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


def _progress_table(job: JobDumps) -> pd.DataFrame:
    """Return how far each rank is in each process group, those behind first."""
    rows = []
    for group in job.groups:
        last_of_rank = {
            rank: max(calls) for rank, calls in group.collectives.items() if calls
        }
        furthest = max(last_of_rank.values(), default=0)
        rows += [
            _progress_row(
                group=group,
                rank=rank,
                last=last,
                furthest=furthest,
            )
            for rank, last in last_of_rank.items()
        ]
    table = _table(rows, _PROGRESS_COLUMNS)
    order = ["behind", "process_group", "rank"]
    return table.sort_values(order, ascending=[False, True, True], ignore_index=True)


def _progress_row(
    group: GroupCalls, rank: int, last: int, furthest: int
) -> dict[str, object]:
    calls = group.collectives[rank]
    completed = [
        sequence
        for sequence, made in calls.items()
        if all(call.is_completed for call in made)
    ]
    last_call = calls[last][-1]
    return {
        "rank": rank,
        "process_group": group.key.name,
        "description": group.key.description,
        "last_entered": last,
        "last_completed": max(completed, default=-1),
        "behind": furthest - last,
        "collective": last_call.operation,
        "state": last_call.state,
        "frames": "; ".join(last_call.frames),
    }


def _last_table(job: JobDumps) -> pd.DataFrame:
    """Return the last calls of each rank."""
    rows: list[dict[str, object]] = []
    dumps = sorted(job.dumps, key=lambda dump: dump.rank)
    for dump in dumps:
        last_calls = dump.calls[-_LAST_CALLS:]
        rows += [_last_row(dump, call) for call in last_calls]
    return _table(rows, _LAST_COLUMNS)


def _last_row(dump: FlightDump, call: FlightCall) -> dict[str, object]:
    return {
        "rank": dump.rank,
        "process_group": call.group.name,
        "collective": call.operation,
        "sequence": call.sequence,
        "state": call.state,
        "sizes": call.sizes_text,
        "dtype": ", ".join(dict.fromkeys(call.dtypes)),
        "before_last_ms": (dump.last_ns - call.created_ns) / NS_PER_MS,
        "frames": "; ".join(call.frames),
    }
