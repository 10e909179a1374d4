"""`TreePerfAnalyzer`: the thin face over trace, call tree, categories and analyses."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from tracelens_ext.analysis.coverage import Coverage, coverage
from tracelens_ext.analysis.gpu_work import GpuWork
from tracelens_ext.categorize import KernelCategorizer, default_registry
from tracelens_ext.errors import UsageError
from tracelens_ext.readers import read_trace
from tracelens_ext.tree import CallTree

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    import pandas as pd

    from tracelens_ext.analysis.launchers import Launchers
    from tracelens_ext.categorize import CategorizerLike
    from tracelens_ext.readers import TraceSource
    from tracelens_ext.trace import Trace


class TreePerfAnalyzer:
    """Answers where the GPU time of one trace went.

    Args:
        trace: a path, an open file, a loaded JSON document, or a `Trace`.
        use_kernel_name_categories: whether tables gain the column `kernel_category`.
        add_python_func: whether Python frames are part of the call tree (needed for `nn.Module`
            columns; the trace must have been recorded with stacks).
        include_unlinked_kernels: whether GPU events whose launch is not in the trace count in the
            GPU timeline. They are in the kernel tables either way.
        rules: TOML files of categorisation rules that win over all others.
        categorizer: `"jax"`, `"vllm:gpt-oss"` …, a class map, or a callable, that is asked before
            the built-in rules. Giving `rules` or `categorizer` switches categories on.
        maps: folders of engine/model maps that `categorizer` may name.
        progress: called with (bytes of the file read so far, its size or None) while reading.

    Raises:
        TraceError: the trace cannot be analysed; the message says why and what to do.
        RuleError, UsageError: `rules` or `categorizer` are no good.
    """

    def __init__(
        self,
        trace: TraceSource,
        *,
        use_kernel_name_categories: bool = False,
        add_python_func: bool = False,
        include_unlinked_kernels: bool = True,
        rules: Sequence[str | os.PathLike[str]] = (),
        categorizer: CategorizerLike | None = None,
        maps: Sequence[str | os.PathLike[str]] = (),
        progress: Callable[[int, int | None], None] | None = None,
    ) -> None:
        self.use_kernel_name_categories = bool(
            use_kernel_name_categories or rules or categorizer is not None
        )
        self.categorizer: KernelCategorizer | None = None
        if self.use_kernel_name_categories:
            self.categorizer = KernelCategorizer.create(
                rules=rules, categorizer=categorizer, maps=maps
            )
        self.trace: Trace = read_trace(
            trace, progress=progress, other_formats=default_registry().read_trace
        )
        self.tree = CallTree(self.trace, add_python_func=add_python_func)
        self.work = GpuWork(self.tree, self.categorizer, include_unlinked=include_unlinked_kernels)

    @classmethod
    def from_file(
        cls,
        profile_filepath: str | os.PathLike[str],
        *,
        use_kernel_name_categories: bool = False,
        add_python_func: bool = False,
        include_unlinked_kernels: bool = True,
        rules: Sequence[str | os.PathLike[str]] = (),
        categorizer: CategorizerLike | None = None,
        maps: Sequence[str | os.PathLike[str]] = (),
    ) -> TreePerfAnalyzer:
        """The analyzer of a trace file; as the constructor."""
        return cls(
            profile_filepath,
            use_kernel_name_categories=use_kernel_name_categories,
            add_python_func=add_python_func,
            include_unlinked_kernels=include_unlinked_kernels,
            rules=rules,
            categorizer=categorizer,
            maps=maps,
        )

    @property
    def problems(self) -> list[str]:
        """What went wrong in plugins so far, each `NAME: error`; their part is left out."""
        return list(dict.fromkeys(default_registry().problems))

    def get_df_kernel_summary(self) -> pd.DataFrame:
        """GPU time by operation and kernel; see `analysis.kernels.kernel_summary`.

        Returns:
            Columns `cpu_op`, `kernel_category` (with categories), `kernel_name`, `count`,
            `total_time_ms`, `avg_time_us`, `min_time_us`, `max_time_us`, `% of GPU time`, `kind`
            (kernel, memcpy, memset); longest total first.
        """
        from tracelens_ext.analysis.kernels import kernel_summary

        return kernel_summary(self.work)

    def get_df_kernel_category_summary(self) -> pd.DataFrame:
        """GPU time by operation and category; see `analysis.kernels.kernel_category_summary`.

        Returns:
            Columns `cpu_op`, `kernel_category`, `count`, `total_time_ms`, `% of cpu_op time`,
            `% of GPU time`, `kind`.

        Raises:
            UsageError: the analyzer was made without categories.
        """
        from tracelens_ext.analysis.kernels import kernel_category_summary

        if self.work.categories is None:
            raise UsageError(
                "kernel categories are switched off; make the analyzer with"
                " TreePerfAnalyzer(trace, use_kernel_name_categories=True)"
            )
        return kernel_category_summary(self.work)

    def get_df_kernels(
        self,
        *,
        launcher_detail: bool = False,
        cpu_op_detail: bool = False,
        nn_module_detail: bool = False,
    ) -> pd.DataFrame:
        """A row a GPU event, in order of start; see `analysis.kernels.kernels`.

        Args:
            launcher_detail: also which launch started it, when, and the CPU op around it.
            cpu_op_detail: also the arguments of the CPU op around the launch, and the share that
                the event has in its GPU time; see `analysis.kernel_detail.cpu_op_detail`.
            nn_module_detail: also the `nn.Module`s around the launch.

        Raises:
            UsageError: `nn_module_detail` without `add_python_func=True`.
        """
        from tracelens_ext.analysis.kernels import kernels

        if nn_module_detail and not self.tree.add_python_func:
            raise UsageError("nn_module_detail needs TreePerfAnalyzer(…, add_python_func=True)")
        frame = kernels(
            self.work, launcher_detail=launcher_detail, nn_module_detail=nn_module_detail
        )
        if cpu_op_detail:
            from tracelens_ext.analysis import kernel_detail

            detail = kernel_detail.cpu_op_detail(self.work)
            frame[detail.columns] = detail
        return frame

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

    def get_df_gpu_timeline(self, micro_idle_thresh_us: float | None = None) -> pd.DataFrame:
        """How the GPU spent its time; see `analysis.timeline.gpu_timeline`.

        Returns:
            A row a `type` (computation_time, exposed_comm_time, exposed_memcpy_time, busy_time,
            idle_time, total_time, total_comm_time, total_memcpy_time), columns `time ms` and
            `percent` of the total time; a block for each `device` when there are several.
        """
        from tracelens_ext.analysis.timeline import gpu_timeline

        return gpu_timeline(self.work, micro_idle_thresh_us)

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

    @cached_property
    def coverage(self) -> Coverage:
        """How much of the GPU time is linked, and how much of it the categories explain."""
        return coverage(self.work)
