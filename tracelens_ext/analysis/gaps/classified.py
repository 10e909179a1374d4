"""Gaps with their causes: what all tables of idle time are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import numpy as np

from tracelens_ext.analysis.gaps.causes import GapCauses, find_causes
from tracelens_ext.analysis.gaps.find import Gaps, Lanes, Scope, find_gaps, processes_of
from tracelens_ext.analysis.memoize import once_for_each
from tracelens_ext.analysis.selection import Selection
from tracelens_ext.errors import UsageError

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracelens_ext.analysis.gpu_work import GpuWork
    from tracelens_ext.analysis.kept import Arrays
    from tracelens_ext.trace import Int64Array

    BoolArray = npt.NDArray[np.bool_]

_OF_LANES = ("first", "device", "stream", "of_gpu")
_OF_GAPS = ("lane", "start", "end", "before", "after", "overlapped")
_OF_CAUSES = ("code", "launch", "synchronising")


@dataclass(frozen=True, eq=False)
class JudgedGaps:
    """Gaps with their causes, k of them.

    Attributes:
        work: the GPU events.
        gaps: the gaps.
        causes: of each.
        selected: which GPU events are selected, (g,).
        events: how many of those each lane has, (p,).
    """

    work: GpuWork
    gaps: Gaps
    causes: GapCauses
    selected: BoolArray
    events: Int64Array

    def __len__(self) -> int:
        return len(self.gaps)


def judge_gaps(
    work: GpuWork, scope: Scope = "stream", selection: Selection | None = None
) -> JudgedGaps:
    """Find the gaps and their causes.

    Args:
        work: the GPU events.
        scope: `stream`, or `device` for the times when all streams of a device were idle.
        selection: a gap is selected when the event after it is. (The gaps of a device do not
            belong to a stream: its number does not restrict them.)

    Raises:
        UsageError: there is no such scope, or nothing that could be selected.
    """
    if scope not in (scopes := get_args(Scope)):
        raise UsageError(f"no such scope: {scope!r}; choose from {', '.join(scopes)}")
    asked = selection or Selection()
    selected = asked.of(work)
    if scope == "device" and asked.stream is not None:
        selected = Selection(asked.pstep, None, asked.device, asked.category).of(work)
    gaps, causes = _judged(work, scope)
    events = np.bincount(gaps.lanes.of_gpu[selected], minlength=len(gaps.lanes))
    if not selected.all():
        chosen = selected[gaps.after]
        gaps, causes = gaps.chosen(chosen), causes.chosen(chosen)
    return JudgedGaps(work, gaps, causes, selected, events)


@once_for_each
def _judged(work: GpuWork, scope: Scope) -> tuple[Gaps, GapCauses]:
    def find() -> Arrays:
        gaps = find_gaps(work, scope)
        causes = find_causes(work, gaps)
        return {
            "launch_latency_ns": np.array([causes.launch_latency_ns]),
            **{name: getattr(gaps.lanes, name) for name in _OF_LANES},
            **{name: getattr(gaps, name) for name in _OF_GAPS},
            **{name: getattr(causes, name) for name in _OF_CAUSES},
        }

    kept = work.keep(f"gaps-{scope}", find)
    process = processes_of(work, kept["first"])
    lanes = Lanes(scope, process=process, **{name: kept[name] for name in _OF_LANES})
    gaps = Gaps(lanes, **{name: kept[name] for name in _OF_GAPS})
    latency = int(kept["launch_latency_ns"][0])
    causes = GapCauses(**{name: kept[name] for name in _OF_CAUSES}, launch_latency_ns=latency)
    return gaps, causes
