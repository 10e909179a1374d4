"""`TreePerfAnalyzer`: the thin face over trace, call tree, categories and analyses.

The columns of a table stand with its sheet, under `sheets/`, and in `docs/tables.md`; those of
tables that are no sheets with the function that makes them, under `analysis/`.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from tracelens_ext.analysis.capture.replays import find_replays
from tracelens_ext.analysis.coverage import Coverage, coverage
from tracelens_ext.analysis.gpu_work import GpuWork
from tracelens_ext.cache.store import open_cache
from tracelens_ext.categorize import KernelCategorizer
from tracelens_ext.errors import UsageError
from tracelens_ext.hooks import default_registry
from tracelens_ext.readers import read_trace
from tracelens_ext.settings import read_settings, reading_with
from tracelens_ext.text import encodable
from tracelens_ext.tracelens_calls import OnClassToo, knows_tracelens
from tracelens_ext.tree import CallTree

if TYPE_CHECKING:
    import os
    import re
    from collections.abc import Callable, Sequence

    import pandas as pd

    from tracelens_ext.analysis.gaps.find import Scope
    from tracelens_ext.analysis.gaps.tables import GapSort
    from tracelens_ext.analysis.kernel_statistics import KernelSort
    from tracelens_ext.analysis.launchers import Launchers
    from tracelens_ext.analysis.memory.tables import Memory
    from tracelens_ext.analysis.selection import Selection
    from tracelens_ext.analysis.serving.steps import Steps
    from tracelens_ext.cache.store import TraceCache
    from tracelens_ext.categorize import CategorizerLike
    from tracelens_ext.findings.finding import Findings
    from tracelens_ext.readers import TraceSource
    from tracelens_ext.roofline.table import Roofline
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
            the built-in rules. Giving any of these, or `without_packs`, switches categories on.
        maps: folders of engine/model maps that `categorizer` may name.
        without_packs: names of rule packs, built-in ones too, that take no part.
        progress: called with (bytes of the file read so far, its size or None) while reading.
        cache: whether a large trace, and its tree, are kept in the user's cache and taken from
            there; or a cache of your own.
        capture: a trace, or a folder of traces, in which the CUDA graphs that this trace launches
            were captured: their kernels get operations, shapes and modules from there. Captures in
            the trace itself are always found.
        salvage: whether the events before the place where a file is cut off or damaged are
            analysed; `trace.provenance.notes` says what is lost. `settings.reading_with`
            sets this and what else can be chosen about reading for several calls.

    Raises:
        TraceError: the trace cannot be analysed; the message says why and what to do.
        RuleError, UsageError: `rules` or `categorizer` are no good.
    """

    @knows_tracelens
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
        without_packs: Sequence[str] = (),
        progress: Callable[[int, int | None], None] | None = None,
        cache: TraceCache | bool | None = None,
        capture: str | os.PathLike[str] | None = None,
        salvage: bool = False,
    ) -> None:
        self.use_kernel_name_categories = bool(
            use_kernel_name_categories or rules or without_packs or categorizer is not None
        )
        self.categorizer: KernelCategorizer | None = None
        asked = partial(
            KernelCategorizer.create, rules=rules, maps=maps, without_packs=without_packs
        )
        if self.use_kernel_name_categories:
            self.categorizer = asked(categorizer=categorizer)
        with reading_with(salvage=salvage or read_settings().salvage):
            self.trace: Trace = read_trace(
                trace,
                progress=progress,
                cache=(store := open_cache(cache)),
            )
            links = store.links(self.trace) if store is not None and not add_python_func else None
            self.tree: CallTree = CallTree(self.trace, add_python_func=add_python_func, links=links)
            self.graph_replays = find_replays(self.tree, capture, store)
        if self.graph_replays is not None:
            self.tree = self.graph_replays.tree
            self.trace = self.tree.trace
        usual = self.trace.conventions.categorizer
        if self.categorizer is not None and categorizer is None and usual is not None:
            self.categorizer = asked(categorizer=usual)
        self.work: GpuWork = GpuWork(
            self.tree, self.categorizer, include_unlinked=include_unlinked_kernels
        )

    @classmethod
    def from_file(
        cls,
        profile_filepath: str | os.PathLike[str],
        **options: Any,  # noqa: ANN401
    ) -> TreePerfAnalyzer:
        """The analyzer of a trace file; `options` are the keyword arguments of the constructor."""
        return cls(profile_filepath, **options)

    def __repr__(self) -> str:
        trace = self.trace
        holds = {
            "GPU event": len(self.work),
            "device": len(set(trace.device.tolist())),
            "CPU operation": trace.count_of(*trace.operation_kinds),
        }
        counts = [f"{n:,} {what}{'' if n == 1 else 's'}" for what, n in holds.items()]
        counts += [] if self.categorizer is None else ["kernel categories"]
        name = encodable(trace.provenance.path)
        return f"<TreePerfAnalyzer of {name!r}: {', '.join(counts)}; tables: get_df_…()>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the facts of the first sheet, and the methods for the tables."""
        from html import escape

        import pandas as pd

        from tracelens_ext.analysis.overview import overview

        facts = pd.DataFrame([[k, str(v)] for k, v in overview(self.work, self.coverage)])
        methods = ", ".join(f"{name}()" for name in dir(type(self)) if name.startswith("get_df_"))
        table: str = facts.to_html(index=False, header=False)
        return f"<b>TreePerfAnalyzer</b>{table}<p>Tables: {escape(methods)}</p>"

    @property
    def problems(self) -> list[str]:
        """What went wrong in plugins so far, each `NAME: error`; their part is left out."""
        of_categorizer = self.categorizer.problems if self.categorizer else []
        return list(dict.fromkeys([*default_registry().problems, *of_categorizer]))

    @cached_property
    def coverage(self) -> Coverage:
        """How much of the GPU time is linked, and how much of it the categories explain."""
        return coverage(self.work)

    # Time.

    def get_df_gpu_timeline(self, micro_idle_thresh_us: float | None = None) -> pd.DataFrame:
        """How the GPU spent its time, as the sheet `gpu_timeline`.

        Args:
            micro_idle_thresh_us: splits idle time into holes up to this many µs and longer ones.
        """
        from tracelens_ext.analysis.timeline import gpu_timeline

        return gpu_timeline(self.work, micro_idle_thresh_us)

    def get_df_iterations(self, annotation: str | re.Pattern[str] | None = None) -> pd.DataFrame:
        """A row an iteration, as the sheet `iterations`.

        Args:
            annotation: a regular expression for the annotations that are iterations,
                `ProfilerStep#N` by default.
        """
        from tracelens_ext.analysis.iteration_table import iteration_table

        return iteration_table(self.work, annotation).frame.copy()

    def get_df_iteration_statistics(
        self, annotation: str | re.Pattern[str] | None = None
    ) -> pd.DataFrame:
        """Mean and spread over whole iterations, as the sheet `iteration_statistics`."""
        from tracelens_ext.analysis.iteration_table import iteration_table

        return iteration_table(self.work, annotation).statistics.copy()

    # Serving. `phases` are phases of your own, each `NAME=REGEX`, as `--phase` takes them.

    def serving_steps(self, phases: Sequence[str] = ()) -> Steps:
        """The steps of a serving engine; see `analysis.serving.inferred.serving_steps`.

        Raises:
            UsageError: one of `phases` has another form.
        """
        from tracelens_ext.analysis.serving.inferred import serving_steps
        from tracelens_ext.analysis.serving.steps import own_phases

        return serving_steps(self.tree, own_phases(phases))

    def get_df_phases(
        self,
        phases: Sequence[str] = (),
        device_peaks: str | os.PathLike[str] | None = None,
    ) -> pd.DataFrame:
        """Prefill, decode …: tokens, GPU time and idle time, as the sheet `phases`."""
        from tracelens_ext.analysis.serving.phases import phase_table
        from tracelens_ext.roofline.phases import with_roofline

        steps = self.serving_steps(phases)
        frame = phase_table(self.work, steps)
        return with_roofline(frame, self.roofline(device_peaks), self._launchers, steps)

    def get_df_phase_steps(self, phases: Sequence[str] = ()) -> pd.DataFrame:
        """A row a step, the slowest first, as the sheet `phase_steps`."""
        from tracelens_ext.analysis.serving.phases import step_table

        return step_table(self.work, self.serving_steps(phases))

    def get_df_layers(self, phases: Sequence[str] = ()) -> pd.DataFrame:
        """A row a layer of each phase, as the sheet `layers`."""
        from tracelens_ext.analysis.serving.layers import layer_table

        return layer_table(self.work, self.serving_steps(phases))

    def get_df_layer_kernels(self, phases: Sequence[str] = ()) -> pd.DataFrame:
        """The kernels of one layer, as the sheet `layer_kernels`."""
        from tracelens_ext.analysis.serving.layers import layer_kernel_table

        return layer_kernel_table(self.work, self.serving_steps(phases))

    # Kernels.

    def get_df_gpu_time_by_category(self) -> pd.DataFrame:
        """GPU time by category, longest first, as the sheet `gpu_time_by_category`.

        Raises:
            UsageError: the analyzer was made without categories.
        """
        from tracelens_ext.analysis.kernels import gpu_time_by_category

        self._require_categories()
        return gpu_time_by_category(self.work)

    def get_df_kernel_summary(self, *, detail: bool = False) -> pd.DataFrame:
        """GPU time by operation and kernel, longest first, as the sheet `kernels_by_category`.

        Args:
            detail: also `op category`, `streams` and `% of total time`.
        """
        from tracelens_ext.analysis.kernels import kernel_detail, kernel_summary
        from tracelens_ext.analysis.timeline import total_time_ns

        if detail:
            return kernel_detail(self.work, total_time_ns(self.work))
        return kernel_summary(self.work)

    def get_df_kernel_category_summary(self) -> pd.DataFrame:
        """GPU time by operation and category, as the sheet `kernel_categories`.

        Raises:
            UsageError: the analyzer was made without categories.
        """
        from tracelens_ext.analysis.kernels import kernel_category_summary

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
        """A row a GPU event, in order of start; see `analysis.kernels.kernels`.

        Args:
            launcher_detail: also which launch started it, when, and the CPU op around it.
            cpu_op_detail: also the arguments of the CPU op around the launch, and the share that
                the event has in its GPU time; see `analysis.kernels.cpu_op_detail`.
            nn_module_detail: also the `nn.Module`s around the launch.

        Raises:
            UsageError: `nn_module_detail` without `add_python_func=True`.
        """
        from tracelens_ext.analysis import kernels

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

        See `analysis.kernel_statistics.kernel_statistics` for arguments and columns.
        """
        from tracelens_ext.analysis.kernel_statistics import kernel_statistics

        return kernel_statistics(self.work, sort=sort, selection=selection)

    def get_df_kernel_sources(self, *, selection: Selection | None = None) -> pd.DataFrame:
        """Kernels by source line and layer; see `analysis.kernel_sources.kernel_sources`.

        Raises:
            UsageError: the analyzer was made without `add_python_func=True`.
        """
        from tracelens_ext.analysis.kernel_sources import kernel_sources

        if not self.tree.add_python_func:
            raise UsageError("this needs TreePerfAnalyzer(…, add_python_func=True)")
        return kernel_sources(self.work, selection=selection)

    def get_df_unlinked_kernels(self) -> pd.DataFrame:
        """GPU events without a launch in the trace, as the sheet `unlinked_kernels`."""
        from tracelens_ext.analysis.unlinked import unlinked_kernels

        return unlinked_kernels(self.work)

    # Operations.

    @knows_tracelens
    def get_df_kernel_launchers(
        self, *, id_cols: bool = False, include_kernel_details: bool = False
    ) -> pd.DataFrame:
        """A row an operation that launched GPU work, in order of start, without communication.

        See `analysis.launchers` for what the launcher, the direct and the subtree time are.

        Args:
            id_cols: also `pid`, `tid` and `external_id` (-1 without one).
            include_kernel_details: also `kernel_details`: for each GPU event launched a dictionary
                with `name`, `dur` (µs) and `stream`.
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

    # The next three may be called on the class, with a table.

    @OnClassToo
    @knows_tracelens
    def get_df_kernel_launchers_summary(
        self: TreePerfAnalyzer | None, df_kernel_launchers: pd.DataFrame | None = None
    ) -> pd.DataFrame:
        """GPU time by operation, longest first, as the sheet `ops_summary`.

        `df_kernel_launchers` is a part of `get_df_kernel_launchers()`, all of it by default.
        """
        from tracelens_ext.analysis.op_tables import summary

        return summary(_given_or_all(self, df_kernel_launchers))

    @OnClassToo
    @knows_tracelens
    def get_df_kernel_launchers_summary_by_category(
        self: TreePerfAnalyzer | None, df_kernel_launchers: pd.DataFrame | None = None
    ) -> pd.DataFrame:
        """GPU time by category of operation, as the sheet `ops_summary_by_category`."""
        from tracelens_ext.analysis.op_tables import summary_by_category

        return summary_by_category(_given_or_all(self, df_kernel_launchers))

    @OnClassToo
    @knows_tracelens
    def get_df_kernel_launchers_unique_args(
        self: TreePerfAnalyzer | None,
        df_kernel_launchers: pd.DataFrame | None = None,
        event_name: str | None = None,
        agg_metrics: Sequence[str] = ("mean", "median", "std", "min", "max"),
        include_pct: bool = True,
        *,
        group_by_num_kernels: bool = False,
    ) -> pd.DataFrame:
        """GPU time by operation and its arguments, as the sheet `ops_unique_args`.

        Called on the class, it has no columns about kernels.

        Args:
            df_kernel_launchers: rows of `get_df_kernel_launchers()`, all of them by default.
            event_name: only operations of this name.
            agg_metrics: statistics over the operations of a row, besides their sum.
            include_pct: whether the two columns of percentages are wanted.
            group_by_num_kernels: whether operations that launched different numbers of GPU events
                are rows of their own.

        Raises:
            UsageError: there is no such metric.
        """
        from tracelens_ext.analysis.op_tables import PERCENTAGES, LaunchedKernels, unique_args

        table = _given_or_all(self, df_kernel_launchers)
        if event_name is not None:
            table = table[table["name"] == event_name]
        frame = unique_args(
            table,
            LaunchedKernels(self.work, self._launchers) if self is not None else None,
            metrics=agg_metrics,
            group_by_num_kernels=group_by_num_kernels,
        )
        return frame if include_pct else frame.drop(columns=list(PERCENTAGES))

    # How good operations are. `device_peaks` is a file of peaks or the name of a known device, the
    # device that the trace names by default.

    def get_df_roofline(
        self,
        device_peaks: str | os.PathLike[str] | None = None,
        *,
        selection: Selection | None = None,
    ) -> pd.DataFrame:
        """What each operation had to compute and to move, and the time lost, as the sheet.

        Args:
            device_peaks: see `roofline.peaks.read_peaks`.
            selection: which GPU events are asked about, all by default.

        Raises:
            UsageError: the peaks cannot be read, or nothing is selected.
        """
        from tracelens_ext.roofline.table import roofline_table

        return roofline_table(self.roofline(device_peaks, selection))

    def get_df_performance_model(
        self, family: str, device_peaks: str | os.PathLike[str] | None = None
    ) -> pd.DataFrame:
        """The operations of a family, such as `GEMM`, with their parameters, as its sheet.

        Raises:
            UsageError: there is no such family, or the peaks cannot be read.
        """
        from tracelens_ext.roofline.families import family_table

        return family_table(self.roofline(device_peaks), family)

    def roofline(
        self,
        device_peaks: str | os.PathLike[str] | None = None,
        selection: Selection | None = None,
    ) -> Roofline:
        """The operations judged, found once for each choice; see `get_df_roofline`."""
        from tracelens_ext.roofline.peaks import read_peaks
        from tracelens_ext.roofline.table import judge_operations

        key = (None if device_peaks is None else str(device_peaks), selection)
        if key not in self._rooflines:
            self._rooflines[key] = judge_operations(
                self.work,
                self._launchers,
                None if device_peaks is None else read_peaks(device_peaks),
                None if selection is None else selection.of(self.work),
            )
        return self._rooflines[key]

    @cached_property
    def _rooflines(self) -> dict[tuple[str | None, Selection | None], Roofline]:
        return {}

    def findings(self, device_peaks: str | os.PathLike[str] | None = None) -> Findings:
        """What would save the most wall time, how much, why, and what to do.

        It is found once for each choice of peaks, of which the slow operations are told.

        Raises:
            UsageError: the peaks cannot be read.
        """
        from tracelens_ext.findings.detect import find_findings

        key = None if device_peaks is None else str(device_peaks)
        if key not in self._findings:
            self._findings[key] = find_findings(
                self.work, lambda: self._launchers, lambda: self.roofline(device_peaks)
            )
        return self._findings[key]

    @cached_property
    def _findings(self) -> dict[str | None, Findings]:
        return {}

    def get_df_findings(self, device_peaks: str | os.PathLike[str] | None = None) -> pd.DataFrame:
        """The same as a table, a row a finding, as the sheet `findings`."""
        from tracelens_ext.findings.table import findings_table

        return findings_table(self.findings(device_peaks))

    def get_df_collectives(self) -> pd.DataFrame:
        """Communication by collective, group, size and type, as the sheet `coll_analysis`."""
        from tracelens_ext.analysis.collectives import collectives

        return collectives(self.work)

    def get_df_graph_launches(self) -> pd.DataFrame:
        """A row a site that launches a graph, as the sheet `graph_launches`."""
        from tracelens_ext.analysis.graphs import graph_launches

        return graph_launches(self.work)

    def get_df_graph_operations(self) -> pd.DataFrame:
        """GPU events of graph launches by captured operation, as the sheet `graph_operations`.

        No rows without a `capture`, and where no captured graph fits.
        """
        from tracelens_ext.analysis.graph_operations import graph_operations

        return graph_operations(self.work)

    def get_df_graph_captures(self) -> pd.DataFrame:
        """Which captured graphs the graph launches replay, as the sheet `graph_captures`.

        Raises:
            UsageError: there is no graph launch, or no capture.
        """
        from tracelens_ext.analysis.graph_captures import graph_captures

        if self.graph_replays is None:
            raise UsageError(
                "this needs a trace with graph launches, and"
                " TreePerfAnalyzer(trace, capture=FILE_OR_FOLDER)"
            )
        return graph_captures(self.graph_replays)

    def get_df_nn_modules(self, *, instances: bool = False) -> pd.DataFrame:
        """GPU time by path of `nn.Module` classes, as the sheet `nn_modules`.

        The trace must have been recorded with stacks; `add_python_func` is not needed.

        Args:
            instances: a row for each module (`Block_0`, `Block_1` …), not for each class.
        """
        from tracelens_ext.analysis.modules import nn_modules

        return nn_modules(self.work, instances=instances)

    # Memory, where the profiler recorded it (`profile_memory=True`). `annotation` chooses the
    # iterations, as for `get_df_iterations`.

    def get_df_memory_peaks(self, annotation: str | re.Pattern[str] | None = None) -> pd.DataFrame:
        """How much memory each device had allocated at most, and when, as the sheet."""
        from tracelens_ext.analysis.memory.tables import memory_peaks

        return memory_peaks(self.memory(annotation))

    def get_df_memory_at_peak(
        self, annotation: str | re.Pattern[str] | None = None
    ) -> pd.DataFrame:
        """What was alive at the peak of each device, by who allocated it, as the sheet."""
        from tracelens_ext.analysis.memory.tables import memory_at_peak

        return memory_at_peak(self.memory(annotation))

    def get_df_memory_by_operation(
        self, annotation: str | re.Pattern[str] | None = None
    ) -> pd.DataFrame:
        """What each operation allocated, and for how long, as the sheet."""
        from tracelens_ext.analysis.memory.tables import memory_by_operation

        return memory_by_operation(self.memory(annotation))

    def get_df_memory_blocks(self, largest: int | None = None) -> pd.DataFrame:
        """A row a block of memory; see `analysis.memory.tables.memory_blocks`.

        Args:
            largest: only so many of each device, all by default.
        """
        from tracelens_ext.analysis.memory.tables import memory_blocks

        return memory_blocks(self.memory(), largest)

    def memory(self, annotation: str | re.Pattern[str] | None = None) -> Memory:
        """What the memory events tell, found once."""
        from tracelens_ext.analysis.memory.tables import find_memory

        return find_memory(self.tree, annotation)

    def get_df_cpu_ops(self) -> pd.DataFrame:
        """Host time by CPU op, as the sheet `cpu_ops`."""
        from tracelens_ext.analysis.cpu_ops import cpu_ops

        return cpu_ops(self.tree)

    def get_df_call_tree(
        self, op: str | re.Pattern[str] | None = None, *, merge: bool = True
    ) -> pd.DataFrame:
        """The call tree with GPU time; see `analysis.tree_table.call_tree_table`.

        Args:
            op: a regular expression; only operations whose name matches, and what is below them.
            merge: whether siblings of one name are one row.

        Raises:
            UsageError: `op` is no regular expression.
        """
        from tracelens_ext.analysis.tree_table import call_tree_table

        return call_tree_table(self.work, op=op, merge=merge)

    @cached_property
    def _launchers(self) -> Launchers:
        from tracelens_ext.analysis.launchers import find_launchers

        return find_launchers(self.work)

    @cached_property
    def _launcher_table(self) -> pd.DataFrame:
        from tracelens_ext.analysis.launchers import launcher_table

        return launcher_table(self.work, self._launchers)

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
        from tracelens_ext.analysis.gaps.classified import classify_gaps
        from tracelens_ext.analysis.gaps.tables import gap_list

        if longest is not None and longest < 0:
            raise UsageError(f"longest is how many gaps to list, 0 or more, and not {longest}")
        return gap_list(classify_gaps(self.work, scope, selection), longest=longest)

    def get_df_gap_summary(self, *, selection: Selection | None = None) -> pd.DataFrame:
        """Why the GPU was idle, as the sheet `gap_summary`."""
        from tracelens_ext.analysis.gaps.classified import classify_gaps
        from tracelens_ext.analysis.gaps.tables import gap_summary

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
        from tracelens_ext.analysis.gaps.classified import classify_gaps
        from tracelens_ext.analysis.gaps.hosts import gap_hosts

        return gap_hosts(classify_gaps(self.work, scope, selection))

    def get_df_gap_streams(self, *, selection: Selection | None = None) -> pd.DataFrame:
        """Gaps by stream, most gaps first, as the sheet `gap_streams`."""
        from tracelens_ext.analysis.gaps.classified import classify_gaps
        from tracelens_ext.analysis.gaps.tables import gap_streams

        return gap_streams(classify_gaps(self.work, "stream", selection))

    def get_df_gap_pairs(
        self, sort: GapSort = "avg", *, selection: Selection | None = None
    ) -> pd.DataFrame:
        """Gaps by the kernels around them, as the sheet `gap_pairs`; `sort` by size."""
        from tracelens_ext.analysis.gaps.classified import classify_gaps
        from tracelens_ext.analysis.gaps.tables import gap_pairs

        return gap_pairs(classify_gaps(self.work, "stream", selection), sort=sort)


def _given_or_all(
    analyzer: TreePerfAnalyzer | None, launchers: pd.DataFrame | None
) -> pd.DataFrame:
    """A table of launchers, or that of the whole trace.

    Raises:
        UsageError: there is neither a table nor a trace.
    """
    if launchers is not None:
        return launchers
    if analyzer is None:
        raise UsageError("called on the class, this needs a table: get_df_kernel_launchers()")
    return analyzer._launcher_table
