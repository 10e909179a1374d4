"""What a host thread was in for most of a stretch of time: the innermost event that covers half."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.analysis.codes import last_before
from tracelens_ext.nesting import ROOT, nest
from tracelens_ext.trace import NONE, EventKind

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracelens_ext.trace import Int64Array, Trace

    IntArray = npt.NDArray[np.integer]


class HostActivity:
    """The events of some kinds on the host threads of a trace.

    Args:
        trace: the events.
        kinds: those that are asked about.
        ignored: names that begin so tell nothing, such as `ProfilerStep#`.
    """

    def __init__(self, trace: Trace, *kinds: EventKind, ignored: str | None = None) -> None:
        rows = trace.rows_of(*kinds)
        if ignored is not None:
            silent = np.fromiter((n.startswith(ignored) for n in trace.names), bool)
            rows = rows[~silent[trace.name[rows]]]
        childless = np.zeros(len(rows), dtype=bool)
        nesting = nest(
            trace.thread[rows], trace.ts[rows], trace.end[rows], trace.external_id[rows], childless
        )
        self.rows: Int64Array = rows[nesting.order]
        self._parent = nesting.parent
        self._trace = trace

    def during(self, thread: IntArray, start: Int64Array, end: Int64Array) -> Int64Array:
        """The innermost event that covers at least half of each stretch of time.

        Args:
            thread: an index into `trace.threads`, `NONE` where it is not known, shape (k,).
            start: ns since the trace's first event, shape (k,).
            end: more than `start`, shape (k,).

        Returns:
            Rows, `NONE` where no event does, shape (k,).
        """
        trace, rows = self._trace, self.rows
        middle = start + (end - start) // 2  # what covers more than half covers this
        at = last_before(trace.thread[rows], trace.ts[rows], thread, middle + 1)
        climbing = np.flatnonzero(at != NONE)
        while len(climbing):
            row = rows[at[climbing]]
            inside = np.minimum(trace.end[row], end[climbing])
            inside = inside - np.maximum(trace.ts[row], start[climbing])
            climbing = climbing[inside * 2 < (end - start)[climbing]]
            at[climbing] = self._parent[at[climbing]]
            climbing = climbing[at[climbing] != ROOT]
        return np.where(at >= 0, rows[np.maximum(at, 0)] if len(rows) else NONE, NONE)
