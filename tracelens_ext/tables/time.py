"""Tables of time: of the GPU, iteration by iteration, and its gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.tables.analyzed import Analyzed

if TYPE_CHECKING:
    import re

    from tracelens_ext.gaps.tables import GapSort
    from tracelens_ext.iterations.selection import Selection
    from tracelens_ext.work.lanes import Scope


class TimeTables(Analyzed):
    """How the GPU spent its time, and when it was idle."""

    def get_df_gpu_timeline(self, micro_idle_thresh_us: float | None = None) -> pd.DataFrame:
        """How the GPU spent its time, as the sheet `gpu_timeline`.

        Args:
            micro_idle_thresh_us: splits idle time into holes up to this many µs and longer ones.
        """
        from tracelens_ext.timeline.timeline import gpu_timeline

        return gpu_timeline(self.work, micro_idle_thresh_us)

    def get_df_gpu_counters(self) -> pd.DataFrame:
        """Sampled counters of GPUs, as the sheet `gpu_counters`."""
        from tracelens_ext.timeline.timeline import gpu_counters

        return gpu_counters(self.trace)

    def get_df_iterations(self, annotation: str | re.Pattern[str] | None = None) -> pd.DataFrame:
        """A row an iteration, as the sheet `iterations`.

        Args:
            annotation: a regular expression for the annotations that are iterations,
                `ProfilerStep#N` by default.
        """
        from tracelens_ext.iterations.table import iteration_table

        return iteration_table(self.work, annotation).frame.copy()

    def get_df_iteration_statistics(
        self, annotation: str | re.Pattern[str] | None = None
    ) -> pd.DataFrame:
        """Mean and spread over whole iterations, as the sheet `iteration_statistics`."""
        from tracelens_ext.iterations.table import iteration_table

        return iteration_table(self.work, annotation).statistics.copy()

    # Gaps. Their `selection` says which GPU events end the gaps, all by default.

    def get_df_gaps(
        self,
        scope: Scope = "stream",
        *,
        longest: int | None = None,
        selection: Selection | None = None,
    ) -> pd.DataFrame:
        """A row a gap, as the sheet `gaps_longest`, which tells more of the host with `longest`.

        Args:
            scope: `stream` for the idle times of each stream, `device` for those of all streams.
            longest: only so many, the longest first, with what the host was doing.
            selection: which GPU events end the gaps, all by default.

        Raises:
            UsageError: there is no such scope, `longest` is negative, or nothing is selected.
        """
        from tracelens_ext.gaps.classified import classify_gaps
        from tracelens_ext.gaps.tables import gap_list

        if longest is not None and longest < 0:
            raise UsageError(f"longest is how many gaps to list, 0 or more, and not {longest}")
        return gap_list(classify_gaps(self.work, scope, selection), longest=longest)

    def get_df_gap_summary(self, *, selection: Selection | None = None) -> pd.DataFrame:
        """Why the GPU was idle, as the sheet `gap_summary`."""
        from tracelens_ext.gaps.classified import classify_gaps
        from tracelens_ext.gaps.tables import gap_summary

        return gap_summary(
            [classify_gaps(self.work, scope, selection) for scope in ("device", "stream")]
        )

    def get_df_gap_hosts(
        self, scope: Scope = "device", *, selection: Selection | None = None
    ) -> pd.DataFrame:
        """Idle time by what the host was in, longest first, as the sheet `gap_hosts`.

        Raises:
            UsageError: there is no such scope, or nothing is selected.
        """
        from tracelens_ext.gaps.classified import classify_gaps
        from tracelens_ext.gaps.hosts import gap_hosts

        return gap_hosts(classify_gaps(self.work, scope, selection))

    def get_df_gap_streams(self, *, selection: Selection | None = None) -> pd.DataFrame:
        """Gaps by stream, most gaps first, as the sheet `gap_streams`."""
        from tracelens_ext.gaps.classified import classify_gaps
        from tracelens_ext.gaps.tables import gap_streams

        return gap_streams(classify_gaps(self.work, "stream", selection))

    def get_df_gap_pairs(
        self, sort: GapSort = "avg", *, selection: Selection | None = None
    ) -> pd.DataFrame:
        """Gaps by the kernels around them, as the sheet `gap_pairs`; `sort` by size."""
        from tracelens_ext.gaps.classified import classify_gaps
        from tracelens_ext.gaps.tables import gap_pairs

        return gap_pairs(classify_gaps(self.work, "stream", selection), sort=sort)
