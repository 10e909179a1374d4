"""Which rank a trace is of: what it says itself, else its name, else its place among the others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

METADATA, NAME, ORDER = "metadata", "name", "order"
_SAID = re.compile(r"rank[ _.-]?(\d{1,7})(?!\d)", re.IGNORECASE)
#: A number at the end of a file's name; longer ones are times and processes.
_LAST = re.compile(
    r"(?:^|[_.-])(\d{1,5})(?:\.pt)?(?:\.trace|\.xplane)?\.[a-z]+(?:-rep)?(?:\.gz)?$", re.IGNORECASE
)
_MOST_RANKS = 10**7


def rank_of(metadata: Mapping[str, object], url: str, place: int) -> tuple[int, str]:
    """The rank of a trace, and how it is known.

    Args:
        metadata: of the trace.
        url: its path or URL.
        place: its place among all traces by name, from 0.

    Returns:
        The rank, and `metadata` (the trace's `distributedInfo` says it), `name` (`rank12`,
        `rank_12` anywhere in the path, or a number at the end of the file's name) or `order`.
    """
    said = _whole(_distributed(metadata).get("rank"))
    if said is not None:
        return said, METADATA
    named = rank_in_name(url)
    return (named, NAME) if named is not None else (place, ORDER)


def rank_in_name(url: str) -> int | None:
    """The rank that a path names: the last `rankN` in it, else the number its name ends in."""
    said = _SAID.findall(url)
    if said:
        return int(said[-1])
    last = _LAST.search(url.rsplit("/", 1)[-1])
    return int(last[1]) if last else None


def world_size_of(metadata: Mapping[str, object]) -> int | None:
    """How many ranks the job had, as a trace says; None if it does not."""
    size = _whole(_distributed(metadata).get("world_size"))
    return size or None


def missing_ranks(present: Iterable[int], world_size: int) -> list[int]:
    """The ranks from 0 to the size of the world that no trace is of."""
    there = set(present)
    return [rank for rank in range(world_size) if rank not in there]


def _distributed(metadata: Mapping[str, object]) -> Mapping[str, object]:
    info = metadata.get("distributedInfo")
    return info if isinstance(info, dict) else {}


def _whole(value: object) -> int | None:
    """A rank or a number of ranks; a trace may say anything."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= _MOST_RANKS else None
