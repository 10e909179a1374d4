"""How much of the GPU time the tables can explain: linked to a launch, known to a rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.trace import WHOLE_GRAPH
from tracelens_ext.work.grouping import group_durations

if TYPE_CHECKING:
    from tracelens_ext.trace import Trace
    from tracelens_ext.work.gpu_work import GpuWork


@dataclass(frozen=True)
class Coverage:
    """Shares of the summed durations of all GPU events; percent, 0 to 100."""

    events: int  #: GPU events
    total_ns: int  #: sum of their durations
    unlinked_events: int  #: those whose launch is not in the trace
    unlinked_percent: float  #: their share of the time
    #: share of the time that no rule knows; None without categories
    uncategorized_percent: float | None
    uncategorized_names: int  #: distinct names that no rule knows
    names: int  #: distinct names
    #: up to five of them by time: (name, percent of GPU time)
    largest_uncategorized: tuple[tuple[str, float], ...]


def whole_graphs(trace: Trace) -> set[str]:
    """Names of the CUDA graphs that were recorded as one GPU event each.

    No rule can tell what is in them: they have to be recorded in another way.
    """
    if WHOLE_GRAPH not in trace.categories:
        return set()
    rows = trace.gpu_rows[trace.category[trace.gpu_rows] == trace.categories.index(WHOLE_GRAPH)]
    return {trace.names[name] for name in np.unique(trace.name[rows]).tolist()}


def coverage(work: GpuWork) -> Coverage:
    """Measure what the tables leave unexplained."""
    total = int(work.duration.sum())

    def share(part: np.ndarray | int) -> float:
        return 100.0 * float(part) / total if total else 0.0

    unlinked = ~work.tree.linked
    unknown_percent: float | None = None
    unknown_names = 0
    largest: tuple[tuple[str, float], ...] = ()
    if work.categories is not None:
        unknown = ~work.categories.known
        groups = group_durations([work.name[unknown]], work.duration[unknown])
        unknown_percent, unknown_names = share(work.duration[unknown].sum()), len(groups)
        largest = tuple(
            (work.trace.names[name], share(time))
            for name, time in zip(groups.keys[0][:5].tolist(), groups.total.tolist(), strict=False)
        )
    return Coverage(
        events=len(work),
        total_ns=total,
        unlinked_events=int(unlinked.sum()),
        unlinked_percent=share(work.duration[unlinked].sum()),
        uncategorized_percent=unknown_percent,
        uncategorized_names=unknown_names,
        names=len(np.unique(work.name)),
        largest_uncategorized=largest,
    )
