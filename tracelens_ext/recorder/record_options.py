"""The options for recording a program, and their text forms on the command line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from tracelens_ext.errors import UsageError

_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|min|h)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
DEFAULT_AFTER_S = 30.0
DEFAULT_FOR_S = 5.0


class StepsBy(StrEnum):
    """What counts as the end of an iteration."""

    auto = "auto"
    """A step of an optimizer; without an optimizer, a call of the outermost module."""
    optimizer = "optimizer"
    """A step of the optimizer that steps least often."""
    forward = "forward"
    """A call of the outermost module."""
    time = "time"
    """Iterations are not counted: a period of time is recorded."""


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """What to record of each process; the defaults are those of the command."""

    skip: int = 10  #: number of iterations before the profiler is prepared
    warmup: int = 2  #: number of iterations between the preparation and the recording
    steps: int = 3  #: number of iterations to record
    steps_by: StepsBy = StepsBy.auto
    after_s: float = DEFAULT_AFTER_S  #: with `time`: start of the recording
    for_s: float = DEFAULT_FOR_S  #: with `time`: length of the recording
    ranks: tuple[int, ...] | None = None  #: ranks that record; None for all
    stacks: bool = True  #: record Python frames
    memory: bool = False  #: record memory allocations
    memory_snapshot: bool = False  #: write a snapshot of the GPU's memory

    @property
    def is_by_time(self) -> bool:
        """True if a period of time is recorded instead of iterations."""
        return self.steps_by is StepsBy.time

    @property
    def first_recorded(self) -> int:
        """The number of the first iteration that is recorded, from 0."""
        return self.skip + self.warmup

    @property
    def last_recorded(self) -> int:
        """The number of the last iteration that is recorded, from 0."""
        return self.first_recorded + self.steps - 1


def duration_s(text: str) -> float:
    """Return a duration such as `30s`, `500ms`, `2m` or `30` in seconds.

    Raises:
        UsageError: The text is not a duration.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a duration; write one like 30s, 500ms or 2m")
    return float(match[1]) * _SECONDS[match[2] or "s"]


def rank_numbers(text: str) -> tuple[int, ...]:
    """Return the ranks in a text such as `0,1` or `0-3`.

    Raises:
        UsageError: The text is not a list of ranks.
    """
    ranks: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        is_range = not dash or last.isdecimal()
        if not first.isdecimal() or not is_range:
            raise UsageError(
                f"{text!r} is not a list of ranks; write it like 0,1 or 0-3"
            )
        ranks.extend(range(int(first), int(last or first) + 1))
    return tuple(ranks)
