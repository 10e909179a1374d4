"""The stages of a pipeline as the option `--pipeline-stages` names them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tracelens_ext.errors import UsageError

_RANKS = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")
_NUMBER = re.compile(r"[0-9]{1,7}")
_MOST_RANKS = 1_000_000
_FORM = "give a number of stages, such as 4, or the ranks of each, such as 0-3/4-7"


@dataclass(frozen=True)
class StageNames:
    """The ranks of each stage of a pipeline, or the number of stages."""

    count: int = 0  #: the number of stages of consecutive ranks; 0 if ranks are listed
    listed: tuple[tuple[int, ...], ...] = ()  #: the ranks of each stage, or empty

    @classmethod
    def of_text(cls, text: str) -> StageNames:
        """Return the stages that a text names: `4`, or `0-3/4-7`, or `0,2/1,3`.

        Raises:
            UsageError: the text has another form, or a rank is in two stages.
        """
        if _NUMBER.fullmatch(text):
            count = int(text)
            if count < 2:
                raise UsageError(f"a pipeline has at least 2 stages; {_FORM}")
            return cls(count=count)
        parts = text.split("/")
        if len(parts) < 2:
            raise UsageError(f"{text!r} names a single stage; {_FORM}")
        listed = tuple(_ranks_of_text(part, text) for part in parts)
        ranks = [rank for stage in listed for rank in stage]
        if len(set(ranks)) < len(ranks):
            raise UsageError(f"{text!r} names a rank twice; {_FORM}")
        return cls(listed=listed)

    def stages(self, ranks: Sequence[int]) -> Sequence[Sequence[int]]:
        """Return the ranks of each stage; empty if the ranks do not divide into the stages.

        Args:
            ranks: all ranks of the job, ascending.
        """
        if not self.count:
            return self.listed
        size = len(ranks) // self.count
        is_divided = size * self.count == len(ranks)
        if not size or not is_divided:
            return ()
        starts = range(0, len(ranks), size)
        return [ranks[start : start + size] for start in starts]


def _ranks_of_text(part: str, text: str) -> tuple[int, ...]:
    """Return the ranks of one stage, such as `0-3` or `0,2`."""
    ranks: list[int] = []
    for name in part.split(","):
        match = _RANKS.fullmatch(name.strip())
        if match is None:
            raise UsageError(f"{text!r} does not name stages; {_FORM}")
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if last < first or last >= _MOST_RANKS:
            raise UsageError(f"{name!r} is not a range of ranks; {_FORM}")
        ranks.extend(range(first, last + 1))
    return tuple(ranks)
