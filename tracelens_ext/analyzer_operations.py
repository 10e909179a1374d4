"""The part of `TreePerfAnalyzer` about operations: who launched GPU work, and how much."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

    import pandas as pd

    from tracelens_ext.analysis.gpu_work import GpuWork
    from tracelens_ext.analysis.launchers import Launchers
    from tracelens_ext.trace import Trace
    from tracelens_ext.tree import CallTree


class OperationTables:
    """Tables by operation, collective, graph launch and module."""

    trace: Trace
    tree: CallTree
    work: GpuWork

    def get_df_kernel_launchers(
        self, *, id_cols: bool = False, include_kernel_details: bool = False
    ) -> pd.DataFrame:
        """A row an operation that launched GPU work, in order of start, without communication.

        See `analysis.launchers` for what the launcher, the direct and the subtree time are.

        Args:
            id_cols: also `pid`, `tid` and `external_id` (-1 without one).
            include_kernel_details: also `kernel_details`: for each GPU event launched a dictionary
                with `name`, `dur` (µs) and `stream`.

        Returns:
            Columns `name`, `op category`, `UID` (the event's row in the trace),
            `total_direct_kernel_time`, `total_subtree_kernel_time` (µs), `direct_kernel_count`,
            `Input Dims`, `Input type`, `Input Strides`, `Concrete Inputs`, `process_name`,
            `process_label`, `thread_name`.
        """
        from tracelens_ext.analysis.launchers import TEXT_COLUMNS

        frame = self._launcher_table.astype(dict.fromkeys(TEXT_COLUMNS, "str"))
        if id_cols:
            where = [self.trace.threads[i] for i in self.trace.thread[self._launchers.rows]]
            frame["pid"] = [process for process, _ in where]
            frame["tid"] = [thread for _, thread in where]
            frame["external_id"] = self.trace.external_id[self._launchers.rows]
        if include_kernel_details:
            import pandas as pd

            from tracelens_ext.analysis.op_tables import LaunchedKernels

            launched = LaunchedKernels(self.work, self._launchers)
            details = launched.of_each(self._launchers.rows)
            frame["kernel_details"] = pd.Series(details, dtype="object")
        return frame

    def get_df_kernel_launchers_summary(
        self, df_kernel_launchers: pd.DataFrame | None = None
    ) -> pd.DataFrame:
        """GPU time by operation; see `analysis.op_tables.summary`.

        Args:
            df_kernel_launchers: rows of `get_df_kernel_launchers()`, all of them by default.

        Returns:
            Columns `name`, `total_direct_kernel_time_sum`, `total_subtree_kernel_time_sum` (µs),
            `total_direct_kernel_time_ms`, `total_subtree_kernel_time_ms`, `Count`, `Categories`,
            `Percentage (%)`, `Cumulative Percentage (%)`; longest first.
        """
        from tracelens_ext.analysis.op_tables import summary

        return summary(self._launcher_table if df_kernel_launchers is None else df_kernel_launchers)

    def get_df_kernel_launchers_summary_by_category(
        self, df_kernel_launchers: pd.DataFrame | None = None
    ) -> pd.DataFrame:
        """GPU time by category of operation; see `analysis.op_tables.summary_by_category`.

        Args:
            df_kernel_launchers: rows of `get_df_kernel_launchers()`, all of them by default.

        Returns:
            Columns `op category`, `Count`, `total_direct_kernel_time_ms`, `Percentage (%)`,
            `Cumulative Percentage (%)`; longest first.
        """
        from tracelens_ext.analysis.op_tables import summary_by_category

        return summary_by_category(
            self._launcher_table if df_kernel_launchers is None else df_kernel_launchers
        )

    def get_df_kernel_launchers_unique_args(
        self,
        df_kernel_launchers: pd.DataFrame | None = None,
        event_name: str | None = None,
        agg_metrics: Sequence[str] = ("mean", "median", "std", "min", "max"),
        include_pct: bool = True,
        *,
        group_by_num_kernels: bool = False,
    ) -> pd.DataFrame:
        """GPU time by operation and its arguments; see `analysis.op_tables.unique_args`.

        Args:
            df_kernel_launchers: rows of `get_df_kernel_launchers()`, all of them by default.
            event_name: only operations of this name.
            agg_metrics: statistics over the operations of a row, besides their sum.
            include_pct: whether the two columns of percentages are wanted.
            group_by_num_kernels: whether operations that launched different numbers of GPU events
                are rows of their own.

        Returns:
            Columns `name`, `op category`, `process_name`, `process_label`, `thread_name`,
            `Input Dims`, `Input type`, `Input Strides`, `Concrete Inputs`, `operation_count`,
            `total_direct_kernel_time_…` and `total_subtree_kernel_time_…` (µs) for each metric,
            `ex_UID`, `kernel_details_summary`, `trunc_kernel_details`, `Percentage (%)`,
            `Cumulative Percentage (%)`; longest first.

        Raises:
            UsageError: there is no such metric.
        """
        from tracelens_ext.analysis.op_tables import PERCENTAGES, LaunchedKernels, unique_args

        table = self._launcher_table if df_kernel_launchers is None else df_kernel_launchers
        if event_name is not None:
            table = table[table["name"] == event_name]
        frame = unique_args(
            table,
            LaunchedKernels(self.work, self._launchers),
            metrics=agg_metrics,
            group_by_num_kernels=group_by_num_kernels,
        )
        return frame if include_pct else frame.drop(columns=list(PERCENTAGES))

    def get_df_collectives(self) -> pd.DataFrame:
        """Communication kernels by collective, group, size and type; see `analysis.collectives`.

        Returns:
            Columns `Collective name`, `Process Group Name`, `Process Group Description`,
            `Group size`, `dtype`, `In msg nelems`, `Out msg nelems`, `kernel_name`,
            `In msg bytes`, `Out msg bytes`, `count`, `total_time_ms`, `avg_time_us`,
            `std_time_us`, `min_time_us`, `max_time_us`, `% of communication time`,
            `algorithm bandwidth (GB/s)`, `bus bandwidth (GB/s)`, `best bus bandwidth (GB/s)`;
            longest first.
        """
        from tracelens_ext.analysis.collectives import collectives

        return collectives(self.work)

    def get_df_graph_launches(self) -> pd.DataFrame:
        """A row a site that launches a graph; see `analysis.graphs.graph_launches`.

        Returns:
            Columns `launch`, `path`, `launches`, `kernels_per_launch`, `busy_time_ms`,
            `avg_busy_time_us`, `min_busy_time_us`, `max_busy_time_us`, `avg_span_time_us`,
            `% of GPU busy time`, with categories a share for each; longest first.
        """
        from tracelens_ext.analysis.graphs import graph_launches

        return graph_launches(self.work)

    def get_df_nn_modules(self) -> pd.DataFrame:
        """GPU time by path of `nn.Module`s; see `analysis.modules.nn_modules`.

        The trace must have been recorded with stacks; `add_python_func` is not needed.

        Returns:
            Columns `path`, `calls`, `kernels`, `gpu_time_total_ms`, `gpu_time_self_ms`,
            `% of GPU busy time`, with categories `top_category` and
            `top_category (% of kernel time)`, in training `backward_time_ms`; longest first.
        """
        from tracelens_ext.analysis.modules import nn_modules

        return nn_modules(self.work)

    def get_df_unlinked_kernels(self) -> pd.DataFrame:
        """GPU events without a launch in the trace; see `analysis.unlinked.unlinked_kernels`.

        Returns:
            Columns `kernel_name`, `kernel_category` (with categories), `kind`, `reason`, `count`,
            `total_time_ms`, `avg_time_us`, `min_time_us`, `max_time_us`, `% of unlinked time`,
            `% of GPU time`, `first_start_ms`, `last_end_ms`; longest first.
        """
        from tracelens_ext.analysis.unlinked import unlinked_kernels

        return unlinked_kernels(self.work)

    def get_df_call_tree(
        self, op: str | re.Pattern[str] | None = None, *, merge: bool = True
    ) -> pd.DataFrame:
        """The call tree with GPU time; see `analysis.tree_table.call_tree_table`.

        Args:
            op: a regular expression; only operations whose name matches, and what is below them.
            merge: whether siblings of one name are one row.

        Returns:
            Columns `depth`, `name`, `kind`, `count`, `gpu_events`, `busy_time_ms`,
            `% of GPU busy time`; parents before children, longest sibling first.

        Raises:
            UsageError: `op` is no regular expression.
        """
        from tracelens_ext.analysis.tree_table import call_tree_table

        return call_tree_table(self.work, op=op, merge=merge)

    def get_df_cpu_ops(self) -> pd.DataFrame:
        """Host time by CPU op; see `analysis.cpu_ops.cpu_ops`."""
        from tracelens_ext.analysis.cpu_ops import cpu_ops

        return cpu_ops(self.tree)

    @cached_property
    def _launchers(self) -> Launchers:
        from tracelens_ext.analysis.launchers import find_launchers

        return find_launchers(self.work)

    @cached_property
    def _launcher_table(self) -> pd.DataFrame:
        from tracelens_ext.analysis.launchers import launcher_table

        return launcher_table(self.work, self._launchers)
