"""`TreePerfAnalyzer`: the thin face over trace, call tree, categories and analyses."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from tracelens_ext.analysis.coverage import Coverage, coverage
from tracelens_ext.analysis.gpu_work import GpuWork
from tracelens_ext.analyzer_operations import OperationTables
from tracelens_ext.analyzer_time import TimeTables
from tracelens_ext.cache.store import open_cache
from tracelens_ext.categorize import KernelCategorizer, default_registry
from tracelens_ext.errors import UsageError
from tracelens_ext.readers import read_trace
from tracelens_ext.settings import read_settings, reading_with
from tracelens_ext.tree import CallTree

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    import pandas as pd

    from tracelens_ext.cache.store import TraceCache
    from tracelens_ext.categorize import CategorizerLike
    from tracelens_ext.readers import TraceSource
    from tracelens_ext.trace import Trace


class TreePerfAnalyzer(OperationTables, TimeTables):
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
        cache: whether a large trace, and its tree, are kept in the user's cache and taken from
            there; or a cache of your own.
        salvage: whether the events before the place where a file is cut off or damaged are
            analysed; `trace.provenance.notes` says what is lost. `settings.reading_with`
            sets this and what else can be chosen about reading for several calls.

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
        cache: TraceCache | bool | None = None,
        salvage: bool = False,
    ) -> None:
        self.use_kernel_name_categories = bool(
            use_kernel_name_categories or rules or categorizer is not None
        )
        self.categorizer: KernelCategorizer | None = None
        if self.use_kernel_name_categories:
            self.categorizer = KernelCategorizer.create(
                rules=rules, categorizer=categorizer, maps=maps
            )
        with reading_with(salvage=salvage or read_settings().salvage):
            self.trace: Trace = read_trace(
                trace,
                progress=progress,
                other_formats=default_registry().read_trace,
                cache=(store := open_cache(cache)),
            )
        links = store.links(self.trace) if store is not None and not add_python_func else None
        self.tree = CallTree(self.trace, add_python_func=add_python_func, links=links)
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
        progress: Callable[[int, int | None], None] | None = None,
        cache: TraceCache | bool | None = None,
        salvage: bool = False,
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
            progress=progress,
            cache=cache,
            salvage=salvage,
        )

    @property
    def problems(self) -> list[str]:
        """What went wrong in plugins so far, each `NAME: error`; their part is left out."""
        of_categorizer = self.categorizer.problems if self.categorizer else []
        return list(dict.fromkeys([*default_registry().problems, *of_categorizer]))

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

    def get_df_gpu_timeline(self, micro_idle_thresh_us: float | None = None) -> pd.DataFrame:
        """How the GPU spent its time; see `analysis.timeline.gpu_timeline`.

        Returns:
            A row a `type` (computation_time, exposed_comm_time, exposed_memcpy_time, busy_time,
            idle_time, total_time, total_comm_time, total_memcpy_time), columns `time ms` and
            `percent` of the total time; a block for each `device` when there are several.
        """
        from tracelens_ext.analysis.timeline import gpu_timeline

        return gpu_timeline(self.work, micro_idle_thresh_us)

    @cached_property
    def coverage(self) -> Coverage:
        """How much of the GPU time is linked, and how much of it the categories explain."""
        return coverage(self.work)
