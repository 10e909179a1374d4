"""Determines the rank of each trace.

The rank is the one that the trace records, or else the one in the name of its file. A trace with
neither gets the next free number. If such a trace has several GPUs, each GPU counts as a rank:

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
#: A number at the end of a file name. Longer numbers are times or process ids, not ranks.
_LAST_NUMBER = re.compile(
    r"(?:^|[_.-])(\d{1,5})(?:\.pt)?(?:\.trace|\.xplane)?\.[a-z]+(?:-rep)?(?:\.gz)?$",
    re.IGNORECASE,
)
_MAX_RANKS = 10**7


class RankSource(StrEnum):
    """Where the rank of a trace comes from."""

    METADATA = "metadata"  #: the trace records its rank
    NAME = "name"  #: the name of the file contains the rank
    #: the rank is the next free number, in the order of the traces' names
    ORDER = "order"


@dataclass(frozen=True)
class RankHints:
    """The hints at the rank of a trace in the trace itself, without the other traces."""

    recorded: int | None = None  #: the rank that the trace records
    in_name: int | None = None  #: the rank in the path of the file
    #: the GPUs that count as ranks, ascending; empty if the whole trace is one rank
    separate_devices: tuple[int, ...] = ()

    @property
    def known_rank(self) -> int | None:
        """The rank if it does not depend on the other traces; None if it does."""
        if self.recorded is not None:
            return self.recorded
        if self.separate_devices:
            return None  # the name contains one rank, but the trace has several
        return self.in_name

    @property
    def source(self) -> RankSource:
        """Where the rank comes from."""
        if self.recorded is not None:
            return RankSource.METADATA
        if self.known_rank is not None:
            return RankSource.NAME
        return RankSource.ORDER


@dataclass(frozen=True)
class TraceRanks:
    """The rank or the ranks of one trace."""

    first: int  #: the rank of the trace, or the lowest of its ranks
    source: RankSource  #: where the rank comes from
    #: device → its rank, if each GPU counts as a rank; empty if the whole trace is one rank
    of_device: Mapping[int, int]

    @property
    def numbers(self) -> list[int]:
        """All ranks of the trace, ascending."""
        return sorted(self.of_device.values()) or [self.first]

    def on_device(self, device: int) -> int:
        """Return the rank that a GPU of the trace belongs to."""
        return self.of_device.get(device, self.first)


def rank_hints(
    metadata: Mapping[str, object], url: str, devices: Sequence[int]
) -> RankHints:
    """Return the hints at the rank of a trace.

    Args:
        metadata: the metadata of the trace.
        url: the path or URL of the trace.
        devices: the GPUs of the events of the trace, ascending.
    """
    is_one_rank = len(devices) < 2 or "distributedInfo" in metadata
    return RankHints(
        recorded=_plausible(distributed_info(metadata).get("rank")),
        in_name=rank_in_name(url),
        separate_devices=() if is_one_rank else tuple(devices),
    )


def assign_ranks(
    traces: Sequence[RankHints], *, lowest_rank: int = 0, reserved: Collection[int] = ()
) -> list[TraceRanks]:
    """Assign a rank to every trace, or to every GPU of a trace whose GPUs count as ranks.

    Ranks that a trace records or has in its name are not assigned to other traces.

    Args:
        traces: the hints of each trace, in the order in which free numbers are assigned.
        lowest_rank: the lowest number that may be assigned.
        reserved: further numbers that must not be assigned.
    """
    used_numbers = set(reserved)
    for hints in traces:
        if hints.known_rank is not None:
            used_numbers.add(hints.known_rank)
    ranks_of_traces = []
    next_number = lowest_rank
    for hints in traces:
        if hints.known_rank is not None:
            known = TraceRanks(
                first=hints.known_rank, source=hints.source, of_device={}
            )
            ranks_of_traces.append(known)
            # The second trace gets rank 1 even if the first one has rank 7.
            next_number += 1
            continue
        rank_count = len(hints.separate_devices) or 1
        numbers = []
        for _ in range(rank_count):
            while next_number in used_numbers:
                next_number += 1
            numbers.append(next_number)
            next_number += 1
        of_device = {}
        if hints.separate_devices:
            of_device = dict(zip(hints.separate_devices, numbers, strict=True))
        ranks_of_traces.append(
            TraceRanks(first=numbers[0], source=hints.source, of_device=of_device)
        )
    return ranks_of_traces


def rank_in_name(url: str) -> int | None:
    """Return the rank in a path: the last `rankN`, or else the number at the end of the name."""
    file_name = url.rsplit("/", 1)[-1]
    numbers = _RANK_IN_PATH.findall(url) or _LAST_NUMBER.findall(file_name)
    return int(numbers[-1]) if numbers else None


def world_size_of(metadata: Mapping[str, object]) -> int | None:
    """Return the number of ranks of the job that a trace records; None if it does not."""
    return _plausible(distributed_info(metadata).get("world_size")) or None


def missing_ranks(present: Iterable[int], world_size: int) -> list[int]:
    """Return the ranks below the world size that are not present, ascending."""
    return sorted(set(range(world_size)).difference(present))


def _plausible(value: object) -> int | None:
    """Return a value that can be a rank or a number of ranks; None for any other value."""
    if type(value) is int and 0 <= value <= _MAX_RANKS:
        return value
    return None
