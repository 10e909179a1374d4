"""The part of `TreePerfAnalyzer` about time: iterations, kernel durations, idle gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import re

    import pandas as pd

    from tracelens_ext.analysis.gaps.find import Scope
    from tracelens_ext.analysis.gaps.tables import GapSort
    from tracelens_ext.analysis.gpu_work import GpuWork
    from tracelens_ext.analysis.kernel_statistics import KernelSort
    from tracelens_ext.analysis.selection import Selection
    from tracelens_ext.trace import Trace
    from tracelens_ext.tree import CallTree


class TimeTables:
    """Tables of iterations, of kernel durations, and of the gaps between kernels."""

    trace: Trace
    tree: CallTree
    work: GpuWork

    def get_df_iterations(self, annotation: str | re.Pattern[str] | None = None) -> pd.DataFrame:
        """A row an iteration; see `analysis.iteration_table.IterationTable`.

        Args:
            annotation: a regular expression for the annotations that are iterations,
                `ProfilerStep#N` by default.

        Returns:
            Columns `iteration`, `process` and `device` where there are several, `start_ms`,
            `wall_time_ms`, `busy_time_ms`, `computation_time_ms`, `exposed_comm_time_ms`,
            `exposed_memcpy_time_ms`, `idle_time_ms`, `kernels`, `whole`, `odd`, and with categories
            a time for each.
        """
        from tracelens_ext.analysis.iteration_table import iteration_table

        return iteration_table(self.work, annotation).frame

    def get_df_iteration_statistics(
        self, annotation: str | re.Pattern[str] | None = None
    ) -> pd.DataFrame:
        """Mean and spread over whole iterations; see `analysis.iteration_table.IterationTable`.

        Returns:
            Columns `column`, `device` where there are several, `iterations`, `mean`, `std`,
            `median`, `mad`, `min`, `max`, `odd`.
        """
        from tracelens_ext.analysis.iteration_table import iteration_table

        return iteration_table(self.work, annotation).statistics

    def get_df_kernel_statistics(
        self, sort: KernelSort = "count", *, selection: Selection | None = None
    ) -> pd.DataFrame:
        """How often and how long kernels ran, by simplified name.

        See `analysis.kernel_statistics.kernel_statistics` for the arguments.

        Returns:
            Columns `rank`, `kernel_name`, `count`, `avg_time_us`, `total_time_us`, `std_time_us`,
            `% of launches`, `% of duration`, `min_time_us`, `max_time_us`, `kind`,
            `kernel_category` (with categories), `full_names`, `example_full_name`.
        """
        from tracelens_ext.analysis.kernel_statistics import kernel_statistics

        return kernel_statistics(self.work, sort=sort, selection=selection)

    def get_df_gaps(
        self,
        scope: Scope = "stream",
        *,
        longest: int | None = None,
        selection: Selection | None = None,
    ) -> pd.DataFrame:
        """A row a gap: idle time of a stream, or of a whole device; see `analysis.gap_tables`.

        Args:
            scope: `stream` or `device`.
            longest: only so many, the longest first, with what the host was doing.
            selection: which GPU events end the gaps, all by default.

        Returns:
            Columns `process`, `device`, `stream`, `start_us`, `gap_us`, `overlapped_us`, `cause`,
            `cpu_op`, `kernel_before`, `kernel_after`, `launch_delay_us`; with `longest` also
            `host_op`, `host_call`, `python_frame`.

        Raises:
            UsageError: there is no such scope, `longest` is negative, or nothing is selected.
        """
        from tracelens_ext.analysis.gaps.classified import judge_gaps
        from tracelens_ext.analysis.gaps.tables import gap_list
        from tracelens_ext.errors import UsageError

        if longest is not None and longest < 0:
            raise UsageError(f"longest is how many gaps to list, 0 or more, and not {longest}")
        return gap_list(judge_gaps(self.work, scope, selection), longest=longest)

    def get_df_gap_summary(self, *, selection: Selection | None = None) -> pd.DataFrame:
        """Why the GPU was idle; see `analysis.gap_causes` for the causes.

        Returns:
            A row a `scope` (device, stream) and `cause`; `count`, `idle_time_ms`,
            `% of idle time`, `avg_gap_us`, `max_gap_us`, `overlapped_time_ms`.
        """
        from tracelens_ext.analysis.gaps.classified import judge_gaps
        from tracelens_ext.analysis.gaps.tables import gap_summary

        return gap_summary(
            [judge_gaps(self.work, scope, selection) for scope in ("device", "stream")]
        )

    def get_df_gap_hosts(
        self, scope: Scope = "device", *, selection: Selection | None = None
    ) -> pd.DataFrame:
        """Idle time by what the host was in; see `analysis.gap_hosts.gap_hosts`.

        Args:
            scope: `device` for the times when all streams were idle, or `stream` for each by
                itself.
            selection: which GPU events end the gaps, all by default.

        Returns:
            Columns `host_op`, `python_frame`, `main_cause`, `count`, `idle_time_ms`,
            `% of idle time`, `avg_gap_us`, `max_gap_us`; the longest idle time first.

        Raises:
            UsageError: there is no such scope, or nothing is selected.
        """
        from tracelens_ext.analysis.gaps.classified import judge_gaps
        from tracelens_ext.analysis.gaps.hosts import gap_hosts

        return gap_hosts(judge_gaps(self.work, scope, selection))

    def get_df_gap_streams(self, *, selection: Selection | None = None) -> pd.DataFrame:
        """Gaps by stream; see `analysis.gap_tables.gap_streams`.

        Returns:
            Columns `process`, `device`, `stream`, `events`, `gap_count`, `idle_time_us`,
            `avg_gap_us`, `max_gap_us`, `overlapped_us`, `device_idle_us`; most gaps first.
        """
        from tracelens_ext.analysis.gaps.classified import judge_gaps
        from tracelens_ext.analysis.gaps.tables import gap_streams

        return gap_streams(judge_gaps(self.work, "stream", selection))

    def get_df_gap_pairs(
        self, sort: GapSort = "avg", *, selection: Selection | None = None
    ) -> pd.DataFrame:
        """Gaps by the kernels around them; see `analysis.gap_tables.gap_pairs`.

        Returns:
            Columns `kernel_before`, `kernel_after`, `count`, `avg_gap_us`, `max_gap_us`,
            `min_gap_us`, `std_gap_us`, `total_gap_us`, `main_cause`, `full_names`.
        """
        from tracelens_ext.analysis.gaps.classified import judge_gaps
        from tracelens_ext.analysis.gaps.tables import gap_pairs

        return gap_pairs(judge_gaps(self.work, "stream", selection), sort=sort)
