"""Which rank each trace is of, and how that is known.

A trace says its rank itself, or the name of its file does. A trace that says nothing gets the next
number that is free; if it has several GPUs, each of them is a rank of its own:

    four_devices.json  GPU 0, 1, 2, 3   ranks 0, 1, 2, 3
    two_devices.json   GPU 0, 1         ranks 4, 5
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tracelens_ext.trace import distributed_info

_RANK_IN_PATH = re.compile(r"rank[ _.-]?(\d{1,7})(?!\d)", re.IGNORECASE)
#: A number at the end of a file's name; longer ones are times and process ids.
_LAST_NUMBER = re.compile(
    r"(?:^|[_.-])(\d{1,5})(?:\.pt)?(?:\.trace|\.xplane)?\.[a-z]+(?:-rep)?(?:\.gz)?$",
    re.IGNORECASE,
)
_MAX_RANKS = 10**7


class RankSource(StrEnum):
    """How the rank of a trace is known."""

    METADATA = "metadata"  #: the trace says it
    NAME = "name"  #: the name of its file says it
    ORDER = "order"  #: it is the next free number, in the order of the traces' names


@dataclass(frozen=True)
class RankHints:
    """What a trace and its name say of its rank, before the other traces are looked at."""

    recorded: int | None = None  #: the rank that the trace says
    in_name: int | None = None  #: the rank that its path says
    #: the GPUs that are ranks of their own, ascending; empty if the trace is of one rank
    separate_devices: tuple[int, ...] = ()

    @property
    def known(self) -> int | None:
        """The rank that is known without the other traces; None if it depends on them."""
        if self.recorded is not None:
            return self.recorded
        if self.separate_devices:
            return None  # the name speaks of one rank, and here are several
        return self.in_name

    @property
    def source(self) -> RankSource:
        """How the rank is known."""
        if self.recorded is not None:
            return RankSource.METADATA
        if self.known is not None:
            return RankSource.NAME
        return RankSource.ORDER


@dataclass(frozen=True)
class TraceRanks:
    """The rank or the ranks of one trace."""

    first: int  #: the rank, or the lowest of its ranks
    source: RankSource  #: how it is known
    #: the rank of each GPU that is a rank of its own; empty if the whole trace is of one rank
    of_device: Mapping[int, int]

    @property
    def numbers(self) -> list[int]:
        """All its ranks, ascending."""
        return sorted(self.of_device.values()) or [self.first]

    def on_device(self, device: int) -> int:
        """Return the rank that a GPU of the trace belongs to."""
        return self.of_device.get(device, self.first)


def rank_hints(
    metadata: Mapping[str, object], url: str, devices: Sequence[int]
) -> RankHints:
    """Return what is known of the rank of a trace.

    Args:
        metadata: of the trace.
        url: the path or URL of its file.
        devices: the GPUs of its events, ascending.
    """
    is_one_rank = len(devices) < 2 or "distributedInfo" in metadata
    return RankHints(
        recorded=_plausible(distributed_info(metadata).get("rank")),
        in_name=rank_in_name(url),
        separate_devices=() if is_one_rank else tuple(devices),
    )


def number_ranks(
    traces: Sequence[RankHints], *, first_place: int = 0, reserved: Collection[int] = ()
) -> list[TraceRanks]:
    """Give every trace its rank, and every GPU that is a rank of its own another one.

    The numbers that traces say themselves are given to no other trace.

    Args:
        traces: in the order in which numbers are given.
        first_place: the first number that may be given.
        reserved: further numbers that are not given.
    """
    taken = set(reserved)
    for hints in traces:
        if hints.known is not None:
            taken.add(hints.known)
    numbered = []
    next_number = first_place
    for hints in traces:
        if hints.known is not None:
            numbered.append(
                TraceRanks(first=hints.known, source=hints.source, of_device={})
            )
            next_number += 1  # its place in the order is used up
            continue
        numbers = []
        for _ in hints.separate_devices or ("the whole trace",):
            while next_number in taken:
                next_number += 1
            numbers.append(next_number)
            next_number += 1
        of_device = {}
        if hints.separate_devices:
            of_device = dict(zip(hints.separate_devices, numbers, strict=True))
        numbered.append(
            TraceRanks(first=numbers[0], source=hints.source, of_device=of_device)
        )
    return numbered


def rank_in_name(url: str) -> int | None:
    """Return the rank in a path: the last `rankN`, else the number that its name ends in."""
    file_name = url.rsplit("/", 1)[-1]
    numbers = _RANK_IN_PATH.findall(url) or _LAST_NUMBER.findall(file_name)
    return int(numbers[-1]) if numbers else None


def world_size_of(metadata: Mapping[str, object]) -> int | None:
    """Return how many ranks the job had, as a trace says; None if it does not."""
    return _plausible(distributed_info(metadata).get("world_size")) or None


def missing_ranks(present: Iterable[int], world_size: int) -> list[int]:
    """Return the ranks of a world of some size that no trace is of."""
    return sorted(set(range(world_size)).difference(present))


def _plausible(value: object) -> int | None:
    """Return a rank or a number of ranks; None for what it cannot be: a trace may say anything."""
    if type(value) is int and 0 <= value <= _MAX_RANKS:
        return value
    return None
