"""The calls of a process group on all ranks, put side by side by their sequence numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

from tracelens_ext.distributed.flight_recorder.dumps import (
    FlightCall,
    FlightDump,
    GroupKey,
)

#: Collectives whose ranks may have inputs, or outputs, of different sizes.
_OUTPUTS_ALONE: Final = frozenset({"all_gather", "all_gather_v", "scatter"})
_INPUTS_ALONE: Final = frozenset(
    {"reduce_scatter", "reduce_scatter_v", "gather", "reduce", "_reduce_oop"}
)
#: Those whose sizes differ between ranks as a rule; what all send is what all receive.
_ANY_SIZES: Final = ("all_to_all", "alltoall")
#: Those that a rank may leave before another one enters.
_MAY_END_EARLY: Final = frozenset(
    {"broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter"}
)
#: The end of a group of calls, which is no call of its own.
_END_OF_COALESCED: Final = "coalesced"


def _ended_for_all(call: FlightCall) -> bool:
    return call.is_completed and call.operation not in _MAY_END_EARLY


class Pair(NamedTuple):
    """A rank that sends to another one."""

    source: int
    target: int


class Signature(NamedTuple):
    """What must be equal on all ranks of a collective."""

    operations: tuple[str, ...]
    elements: tuple[int, ...]
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class GroupCalls:
    """The calls of a process group.

    Attributes:
        key: the group; its ranks are those with a dump where no dump says which they are.
        dumped: ranks of the group that have a dump, ascending.
        collectives: rank → sequence number → its calls; several if they were coalesced.
        sends: from and to which rank → calls of the sender, in order.
        receives: likewise → calls of the receiver.
    """

    key: GroupKey
    dumped: tuple[int, ...]
    collectives: Mapping[int, Mapping[int, Sequence[FlightCall]]]
    sends: Mapping[Pair, Sequence[FlightCall]]
    receives: Mapping[Pair, Sequence[FlightCall]]

    @cached_property
    def sequences(self) -> list[int]:
        """The sequence numbers that every rank that has any still holds, or has not reached."""
        firsts = [min(calls) for calls in self.collectives.values() if calls]
        if not firsts:
            return []
        start = max(firsts)
        numbers: set[int] = set()
        for calls in self.collectives.values():
            numbers.update(calls)
        return sorted(number for number in numbers if number >= start)

    def calls_at(self, sequence: int) -> dict[int, Sequence[FlightCall]]:
        """Return the calls with a sequence number, by rank."""
        return {
            rank: calls[sequence]
            for rank, calls in self.collectives.items()
            if sequence in calls
        }

    def absent_at(self, sequence: int) -> list[int]:
        """Return the ranks with a dump that have not reached a call.

        A rank whose dump is older than the others is not among them: a later call than its last
        one has ended elsewhere, and could not without it.
        """
        absent = []
        for rank in self.dumped:
            last = max(self.collectives.get(rank, {}), default=None)
            if last is None or last < sequence:
                first_after = 0 if last is None else last + 1
                if not self._ended_without_it(range(first_after, sequence)):
                    absent.append(rank)
        return absent

    def _ended_without_it(self, numbers: range) -> bool:
        """Tell if a call that needs all ranks ended, of those that a rank did not make."""
        for calls in self.collectives.values():
            for number, made in calls.items():
                if number in numbers and all(map(_ended_for_all, made)):
                    return True
        return False

    @cached_property
    def first_incomplete(self) -> int | None:
        """The sequence number of the first call that did not complete; None if all did."""
        for sequence in self.sequences:
            for calls in self.calls_at(sequence).values():
                if not all(call.is_completed for call in calls):
                    return sequence
        return None


def signature_of(calls: Sequence[FlightCall]) -> Signature:
    """Return what must be equal on all ranks of the calls of one sequence number."""
    operations = tuple(call.operation for call in calls)
    elements: list[int] = []
    dtypes: set[str] = set()
    for call in calls:
        dtypes.update(call.dtypes)
        if call.operation.startswith(_ANY_SIZES):
            continue
        if call.operation not in _OUTPUTS_ALONE:
            elements.append(call.input_elements)
        if call.operation not in _INPUTS_ALONE:
            elements.append(call.output_elements)
    return Signature(
        operations=operations, elements=tuple(elements), dtypes=tuple(sorted(dtypes))
    )


def exchanges_any_sizes(calls: Sequence[FlightCall]) -> bool:
    """Tell if a call is an all-to-all, whose ranks may all have other sizes."""
    return all(call.operation.startswith(_ANY_SIZES) for call in calls)


def group_calls(dumps: Sequence[FlightDump]) -> list[GroupCalls]:
    """Return the calls of each process group, sorted by its name."""
    keys = _Keys(dumps)
    collectives: dict[GroupKey, dict[int, dict[int, list[FlightCall]]]] = {}
    sends: dict[GroupKey, dict[Pair, list[FlightCall]]] = {}
    receives: dict[GroupKey, dict[Pair, list[FlightCall]]] = {}
    for dump in dumps:
        for call in dump.calls:
            key = keys.of(call.group, dump.rank)
            of_rank = collectives.setdefault(key, {}).setdefault(dump.rank, {})
            placed = replace(call, group=key)
            if call.source is not None and call.target is not None:
                pair = Pair(source=call.source, target=call.target)
                table = sends if call.operation == "send" else receives
                table.setdefault(key, {}).setdefault(pair, []).append(placed)
            elif not call.is_p2p and call.operation != _END_OF_COALESCED:
                of_rank.setdefault(call.sequence, []).append(placed)
    dumped = {dump.rank for dump in dumps}
    groups = []
    for key in sorted(collectives):
        members = key.ranks or tuple(sorted(collectives[key]))
        groups.append(
            GroupCalls(
                key=key._replace(ranks=members),
                dumped=tuple(rank for rank in members if rank in dumped),
                collectives=collectives[key],
                sends=sends.get(key, {}),
                receives=receives.get(key, {}),
            )
        )
    return groups


class _Keys:
    """Which group a call is of, also where its rank does not know the ranks of the group."""

    def __init__(self, dumps: Sequence[FlightDump]) -> None:
        self._known: defaultdict[str, set[GroupKey]] = defaultdict(set)
        for dump in dumps:
            for key in dump.groups.values():
                if key.ranks:
                    self._known[key.name].add(key)

    def of(self, key: GroupKey, rank: int) -> GroupKey:
        """Return the group with its ranks, if another dump says which these are."""
        if key.ranks:
            return key
        same_name = [other for other in self._known[key.name] if rank in other.ranks]
        return same_name[0] if len(same_name) == 1 else key


def majority(values: Mapping[int, object]) -> object:
    """Return the value that most ranks have; of equally many that of the lowest rank."""
    counts = Counter(values.values())
    most = max(counts.values())
    frequent = [value for value, count in counts.items() if count == most]
    for rank in sorted(values):
        if values[rank] in frequent:
            return values[rank]
    raise ValueError("no rank has a value")


def ranks_text(ranks: Iterable[int], most: int = 8) -> str:
    """Return `rank 3` or `ranks 0, 1, 3`."""
    listed = sorted(ranks)
    named = listed[:most]
    others = len(listed) - len(named)
    text = ", ".join(map(str, named))
    if len(listed) == 1:
        return f"rank {text}"
    if others:
        text = f"{text} and {others} more"
    return f"ranks {text}"
