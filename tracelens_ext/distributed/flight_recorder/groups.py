"""The calls of each process group on all of its ranks, aligned by their sequence numbers."""

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

#: Collectives whose inputs may differ in size between ranks, so that only outputs are compared.
_COMPARED_BY_OUTPUT: Final = frozenset({"all_gather", "all_gather_v", "scatter"})
#: Collectives whose outputs may differ in size between ranks, so that only inputs are compared.
_COMPARED_BY_INPUT: Final = frozenset(
    {"reduce_scatter", "reduce_scatter_v", "gather", "reduce", "_reduce_oop"}
)
#: Names of all-to-alls begin with these. Their ranks usually have different sizes, but all ranks
#: together send as many elements as they receive.
_ANY_SIZE_PREFIXES: Final = ("all_to_all", "alltoall")
#: Collectives that can end on one rank before another rank enters them.
_ENDS_BEFORE_OTHERS_ENTER: Final = frozenset(
    {"broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter"}
)
#: Name of the entry that ends a batch of coalesced calls. It is not a call itself.
_COALESCED_END: Final = "coalesced"


def _shows_that_all_entered(call: FlightCall) -> bool:
    """Tell whether a call could end only because every rank of its group entered it."""
    return call.is_completed and call.operation not in _ENDS_BEFORE_OTHERS_ENTER


class Pair(NamedTuple):
    """A sending and a receiving rank."""

    source: int
    target: int


class Signature(NamedTuple):
    """The properties of a collective that must be equal on all of its ranks."""

    operations: tuple[str, ...]
    elements: tuple[int, ...]
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class FlightGroup:
    """The calls of a process group in all dumps.

    Attributes:
        key: the identity of the group. If no dump lists its ranks, they are the ranks whose
            dumps contain calls of the group.
        dumped_ranks: the ranks of the group that have a dump, ascending.
        collectives: rank → sequence number → calls. Coalesced calls share one number.
        sends: pair of ranks → calls of the sender, oldest first.
        receives: pair of ranks → calls of the receiver, oldest first.
    """

    key: GroupKey
    dumped_ranks: tuple[int, ...]
    collectives: Mapping[int, Mapping[int, Sequence[FlightCall]]]
    sends: Mapping[Pair, Sequence[FlightCall]]
    receives: Mapping[Pair, Sequence[FlightCall]]

    @cached_property
    def sequences(self) -> list[int]:
        """The sequence numbers that can be compared between ranks, ascending.

        A dump contains only the latest calls of its rank. The numbers begin where the dump that
        starts last begins, because before it, calls are missing that the rank may have made.
        """
        first_numbers = [min(calls) for calls in self.collectives.values() if calls]
        if not first_numbers:
            return []
        first_comparable = max(first_numbers)
        numbers: set[int] = set()
        for calls in self.collectives.values():
            numbers.update(calls)
        return sorted(number for number in numbers if number >= first_comparable)

    def calls_of(self, sequence: int) -> dict[int, Sequence[FlightCall]]:
        """Return the calls with a sequence number, by the ranks that made them."""
        return {
            rank: calls[sequence]
            for rank, calls in self.collectives.items()
            if sequence in calls
        }

    def absent_ranks(self, sequence: int) -> list[int]:
        """Return the ranks that have a dump and have not entered a call.

        A rank whose dump was written earlier than the others is left out. Such a dump shows in a
        call after its last one that has ended on other ranks and cannot end without this rank.
        """
        absent = []
        for rank in self.dumped_ranks:
            last_number = max(self.collectives.get(rank, {}), default=-1)
            if last_number >= sequence:
                continue
            is_old_dump = self._all_ranks_entered_one_of(
                range(last_number + 1, sequence)
            )
            if not is_old_dump:
                absent.append(rank)
        return absent

    def _all_ranks_entered_one_of(self, numbers: range) -> bool:
        """Tell whether the end of a call in a range of sequence numbers needed every rank."""
        for calls_by_number in self.collectives.values():
            for number, calls in calls_by_number.items():
                if number in numbers and all(map(_shows_that_all_entered, calls)):
                    return True
        return False

    @cached_property
    def first_incomplete(self) -> int | None:
        """The sequence number of the first call that did not complete; None if there is none."""
        for sequence in self.sequences:
            for calls in self.calls_of(sequence).values():
                if not all(call.is_completed for call in calls):
                    return sequence
        return None


def signature_of(calls: Sequence[FlightCall]) -> Signature:
    """Return the signature of the calls that one rank made with one sequence number."""
    operations = tuple(call.operation for call in calls)
    elements: list[int] = []
    dtypes: set[str] = set()
    for call in calls:
        dtypes.update(call.dtypes)
        if call.operation.startswith(_ANY_SIZE_PREFIXES):
            continue
        if call.operation not in _COMPARED_BY_OUTPUT:
            elements.append(call.input_elements)
        if call.operation not in _COMPARED_BY_INPUT:
            elements.append(call.output_elements)
    return Signature(
        operations=operations, elements=tuple(elements), dtypes=tuple(sorted(dtypes))
    )


def are_all_to_all(calls: Sequence[FlightCall]) -> bool:
    """Tell whether all calls are all-to-alls, whose sizes may differ between ranks."""
    return all(call.operation.startswith(_ANY_SIZE_PREFIXES) for call in calls)


def flight_groups(dumps: Sequence[FlightDump]) -> list[FlightGroup]:
    """Return the process groups of a job with their calls, sorted by name."""
    keys = _GroupKeys(dumps)
    collectives: dict[GroupKey, dict[int, dict[int, list[FlightCall]]]] = {}
    sends: dict[GroupKey, dict[Pair, list[FlightCall]]] = {}
    receives: dict[GroupKey, dict[Pair, list[FlightCall]]] = {}
    for dump in dumps:
        for call in dump.calls:
            key = keys.with_ranks(call.group, dump.rank)
            call_of_group = replace(call, group=key)
            # A rank that makes only sends and receives in a group is one of its ranks, too.
            calls_of_rank = collectives.setdefault(key, {}).setdefault(dump.rank, {})
            if call.source is not None and call.target is not None:
                pair = Pair(source=call.source, target=call.target)
                calls_of_group = sends if call.operation == "send" else receives
                calls_of_pair = calls_of_group.setdefault(key, {}).setdefault(pair, [])
                calls_of_pair.append(call_of_group)
            elif not call.is_p2p and call.operation != _COALESCED_END:
                calls_of_rank.setdefault(call.sequence, []).append(call_of_group)
    dumped_ranks = {dump.rank for dump in dumps}
    groups = []
    for key in sorted(collectives):
        members = key.ranks or tuple(sorted(collectives[key]))
        groups.append(
            FlightGroup(
                key=key._replace(ranks=members),
                dumped_ranks=tuple(rank for rank in members if rank in dumped_ranks),
                collectives=collectives[key],
                sends=sends.get(key, {}),
                receives=receives.get(key, {}),
            )
        )
    return groups


class _GroupKeys:
    """Completes the keys of process groups whose ranks are listed only in other dumps."""

    def __init__(self, dumps: Sequence[FlightDump]) -> None:
        self._keys_of_name: defaultdict[str, set[GroupKey]] = defaultdict(set)
        for dump in dumps:
            for key in dump.groups.values():
                if key.ranks:
                    self._keys_of_name[key.name].add(key)

    def with_ranks(self, key: GroupKey, rank: int) -> GroupKey:
        """Return the key with its ranks, if exactly one group of this name contains a rank."""
        if key.ranks:
            return key
        candidates = [
            candidate
            for candidate in self._keys_of_name[key.name]
            if rank in candidate.ranks
        ]
        return candidates[0] if len(candidates) == 1 else key


def majority_value(values: Mapping[int, object]) -> object:
    """Return the value that most ranks have; on a tie, the one of the lowest rank."""
    counts = Counter(values.values())
    largest_count = max(counts.values())
    for rank in sorted(values):
        if counts[values[rank]] == largest_count:
            return values[rank]
    raise ValueError("no rank has a value")


def ranks_text(ranks: Iterable[int], most: int = 8) -> str:
    """Return ranks as a text, such as `rank 3` or `ranks 0, 1, 3`; at most `most` are listed."""
    sorted_ranks = sorted(ranks)
    listed_ranks = sorted_ranks[:most]
    unlisted_count = len(sorted_ranks) - len(listed_ranks)
    text = ", ".join(map(str, listed_ranks))
    if len(sorted_ranks) == 1:
        return f"rank {text}"
    if unlisted_count:
        text = f"{text} and {unlisted_count} more"
    return f"ranks {text}"
