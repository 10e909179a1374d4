"""Tables of kernels, and of the categories that they get."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.tables.analyzed import Analyzed

if TYPE_CHECKING:
    from tracelens_ext.iterations.selection import Selection
    from tracelens_ext.kernels.statistics import KernelSort


class KernelTables(Analyzed):
    """What ran on the GPU, how often and how long."""

    def get_df_gpu_time_by_category(self) -> pd.DataFrame:
        """GPU time by category, longest first, as the sheet `gpu_time_by_category`.

        Raises:
            UsageError: the analyzer was made without categories.
        """
        from tracelens_ext.kernels.kernels import gpu_time_by_category

        self._require_categories()
        return gpu_time_by_category(self.work)

    def get_df_kernel_summary(self, *, detail: bool = False) -> pd.DataFrame:
        """GPU time by operation and kernel, longest first, as the sheet `kernels_by_category`.

        Args:
            detail: also `op category`, `streams` and `% of total time`.
        """
        from tracelens_ext.kernels.kernels import kernel_detail, kernel_summary
        from tracelens_ext.timeline.timeline import total_time_ns

        if detail:
            return kernel_detail(self.work, total_time_ns(self.work))
        return kernel_summary(self.work)

    def get_df_kernel_category_summary(self) -> pd.DataFrame:
        """GPU time by operation and category, as the sheet `kernel_categories`.

        Raises:
            UsageError: the analyzer was made without categories.
        """
        from tracelens_ext.kernels.kernels import kernel_category_summary

        self._require_categories()
        return kernel_category_summary(self.work)

    def _require_categories(self) -> None:
        if self.work.categories is None:
            raise UsageError(
                "kernel categories are switched off; make the analyzer with"
                " TreePerfAnalyzer(trace, use_kernel_name_categories=True)"
            )

    def get_df_kernels(
        self,
        *,
        launcher_detail: bool = False,
        cpu_op_detail: bool = False,
        nn_module_detail: bool = False,
    ) -> pd.DataFrame:
        """A row a GPU event, in order of start; see `kernels.kernels.kernels`.

        Args:
            launcher_detail: also which launch started it, when, and the CPU op around it.
            cpu_op_detail: also the arguments of the CPU op around the launch, and the share that
                the event has in its GPU time; see `kernels.kernels.cpu_op_detail`.
            nn_module_detail: also the `nn.Module`s around the launch.

        Raises:
            UsageError: `nn_module_detail` without `add_python_func=True`.
        """
        from tracelens_ext.kernels import kernels

        if nn_module_detail and not self.tree.add_python_func:
            raise UsageError("nn_module_detail needs TreePerfAnalyzer(…, add_python_func=True)")
        frame = kernels.kernels(
            self.work, launcher_detail=launcher_detail, nn_module_detail=nn_module_detail
        )
        if cpu_op_detail:
            detail = kernels.cpu_op_detail(self.work)
            frame[detail.columns] = detail
        return frame

    def get_df_kernel_statistics(
        self, sort: KernelSort = "count", *, selection: Selection | None = None
    ) -> pd.DataFrame:
        """How often and how long kernels ran, by simplified name.

        See `kernels.statistics.kernel_statistics` for arguments and columns.
        """
        from tracelens_ext.kernels.statistics import kernel_statistics

        return kernel_statistics(self.work, sort=sort, selection=selection)

    def get_df_kernel_sources(self, *, selection: Selection | None = None) -> pd.DataFrame:
        """Kernels by source line and layer; see `kernels.sources.kernel_sources`.

        Raises:
            UsageError: the analyzer was made without `add_python_func=True`.
        """
        from tracelens_ext.kernels.statistics import kernel_sources

        if not self.tree.add_python_func:
            raise UsageError("this needs TreePerfAnalyzer(…, add_python_func=True)")
        return kernel_sources(self.work, selection=selection)

    def get_df_unlinked_kernels(self) -> pd.DataFrame:
        """GPU events without a launch in the trace, as the sheet `unlinked_kernels`."""
        from tracelens_ext.kernels.statistics import unlinked_kernels

        return unlinked_kernels(self.work)
