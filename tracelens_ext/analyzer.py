"""`TreePerfAnalyzer`: a trace, its call tree, its GPU events, and everything computed from them.

The columns of a table are described where the table is declared, in the package of its subject, and
in `docs/reference/tables.md`. The methods that TraceLens has as well are written out here; the
methods for other tables come from the registry.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, cast

from tracelens_ext.analysis.cuda_graphs.replays import GraphReplays, find_replays
from tracelens_ext.analysis.iterations.selection import EventFilter
from tracelens_ext.analysis.kernels import kernel_events, kernels
from tracelens_ext.analysis.memory.usage import Memory, find_memory, memory_blocks
from tracelens_ext.analysis.module_tables import nn_modules
from tracelens_ext.analysis.modules import module_stacks
from tracelens_ext.analysis.operations import summaries as op_tables
from tracelens_ext.analysis.operations.launchers import (
    TEXT_COLUMNS,
    Launchers,
    find_launchers,
    launcher_table,
)
from tracelens_ext.analysis.serving.inferred_steps import serving_steps
from tracelens_ext.analysis.serving.steps import Steps, parse_user_phases
from tracelens_ext.analysis.timeline.overview import (
    CategoryCoverage,
    measure_coverage,
    overview,
)
from tracelens_ext.categorize import (
    CategorizerLike,
    KernelCategorizer,
    builtin_categorizer,
)
from tracelens_ext.compatibility.earlier_arguments import takes_old_arguments
from tracelens_ext.compatibility.tracelens import OnClassToo, knows_tracelens
from tracelens_ext.errors import UsageError
from tracelens_ext.findings.engine import find_findings, tell_claims
from tracelens_ext.findings.finding import Findings
from tracelens_ext.hooks import default_registry
from tracelens_ext.isolation import PartFailures
from tracelens_ext.lazy import pd
from tracelens_ext.processes import return_freed_memory
from tracelens_ext.readers import read_trace
from tracelens_ext.readers.cache.store import TraceCache, open_cache
from tracelens_ext.report.tables.methods import TableMethods
from tracelens_ext.reproduce.reproduction import Reproduction, reproduce
from tracelens_ext.reproduce.selection import DEFAULT_TOP, OperationChoice
from tracelens_ext.roofline.analysis import Roofline, find_roofline
from tracelens_ext.roofline.family_tables import family_table
from tracelens_ext.roofline.peaks import read_peaks
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions
from tracelens_ext.simulation.simulation import Simulation
from tracelens_ext.text import counted, encodable
from tracelens_ext.trace import NS_PER_US, Trace
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.categorization import Categorizers
from tracelens_ext.trace.gpu_events import GpuEvents

if TYPE_CHECKING:
    from tracelens_ext.readers import TraceSource
    from tracelens_ext.report.report import Report


class TreePerfAnalyzer(TableMethods):
    """Answers where the GPU time of one trace went.

    Args:
        trace: a path, an open file, a loaded JSON document, or a `Trace`.
        use_kernel_name_categories: whether tables gain the column `kernel_category`.
        add_python_func: whether Python frames are part of the call tree (needed for `nn.Module`
            columns; the trace must have been recorded with stacks).
        include_unlinked_kernels: whether GPU events whose launch is not in the trace count in the
            GPU timeline. They are in the kernel tables either way.
        rules: TOML files with categorization rules, which take precedence over all others.
        categorizer: `"jax"`, `"vllm:gpt-oss"` …, a class map, or a callable, which is asked before
            the built-in rules. Giving any of these, or `disabled_packs`, switches categories on.
        maps: folders with the engine/model maps that `categorizer` may name.
        disabled_packs: names of rule packs that are not used; these may be built-in packs.
        progress: called with (bytes of the file read so far, its size or None) while reading.
        cache: whether a large trace and its tree are stored in the user's cache and read from it;
            or a cache of your own.
        capture: a trace, or a folder of traces, recorded while the CUDA graphs were captured that
            this trace launches. The kernels in the graphs get their operations, shapes and modules
            from there. Captures in the trace itself are always found.
        allow_truncated: whether a truncated or damaged file is analyzed up to the damage;
            `trace.provenance.notes` then says what is lost.
        reading: further options for reading.

    Raises:
        TraceError: the trace cannot be analyzed; the message says why and what to do.
        RuleError, UsageError: `rules` or `categorizer` cannot be used.
    """

    @takes_old_arguments
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
        disabled_packs: Sequence[str] = (),
        progress: Callable[[int, int | None], None] | None = None,
        cache: TraceCache | bool | None = None,
        capture: str | os.PathLike[str] | None = None,
        allow_truncated: bool = False,
        reading: ReadingOptions = DEFAULT_READING_OPTIONS,
    ) -> None:
        #: the parts of the analysis that failed and were left out
        self.failures = PartFailures()
        #: the last computed findings; a simulation that is made again needs their claims
        self._last_findings: Findings | None = None
        has_choice = rules or disabled_packs or categorizer is not None
        self.use_kernel_name_categories = bool(use_kernel_name_categories or has_choice)
        make_categorizer = partial(
            KernelCategorizer.create,
            rules=rules,
            maps=maps,
            disabled_packs=disabled_packs,
        )
        self.categorizer: KernelCategorizer | None = None
        if self.use_kernel_name_categories:
            # Invalid rules are refused before the trace is read.
            self.categorizer = make_categorizer(categorizer=categorizer)
        reading = replace(
            reading, allow_truncated=allow_truncated or reading.allow_truncated
        )
        store = open_cache(cache, reading)
        self.trace: Trace = read_trace(
            trace, progress=progress, cache=store, reading=reading
        )
        links = None
        if store is not None and not add_python_func:
            links = store.links(self.trace)
        self.tree: CallTree = CallTree(
            self.trace, add_python_func=add_python_func, links=links
        )
        #: what the graph launches replay; None unless captures are known
        self.graph_replays: GraphReplays | None = None
        replays = find_replays(
            tree=self.tree, source=capture, cache=store, reading=reading
        )
        if replays is not None:
            self.tree = replays.tree
            self.trace = replays.tree.trace
            if replays.captures or capture:
                self.graph_replays = replays
        framework = self.trace.conventions.framework
        if self.categorizer is not None and categorizer is None and framework:
            self.categorizer = make_categorizer(framework=framework)
        categorizers = Categorizers(
            chosen=self.categorizer,
            make_builtin=builtin_categorizer,
            make_default=KernelCategorizer.create,
        )
        self.gpu_events: GpuEvents = GpuEvents(
            tree=self.tree,
            categorizers=categorizers,
            include_unlinked=include_unlinked_kernels,
        )
        return_freed_memory()

    @classmethod
    def from_file(
        cls,
        profile_filepath: str | os.PathLike[str],
        **options: Any,  # noqa: ANN401
    ) -> Self:
        """Return the analyzer of a file; `options` are keyword arguments of the constructor."""
        return cls(profile_filepath, **options)

    def __repr__(self) -> str:
        trace = self.trace
        counts = [
            counted(len(self.gpu_events), "GPU event"),
            counted(len(set(trace.device.tolist())), "device"),
            counted(trace.count_of(*trace.operation_kinds), "CPU operation"),
        ]
        if self.categorizer is not None:
            counts.append("kernel categories")
        name = encodable(trace.provenance.path)
        return (
            f"<TreePerfAnalyzer of {name!r}: {', '.join(counts)}; tables: get_df_…()>"
        )

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook: facts of the first sheet, and methods for tables."""
        facts = overview(self.gpu_events, self.coverage)
        rows = [[label, str(value)] for label, value in facts]
        table = pd.DataFrame(rows).to_html(index=False, header=False)
        methods = [
            f"{name}()" for name in dir(type(self)) if name.startswith("get_df_")
        ]
        return (
            f"<b>TreePerfAnalyzer</b>{table}<p>Tables: {escape(', '.join(methods))}</p>"
        )

    def show(self) -> Report:
        """Return the report, which a notebook shows as its page."""
        # a layer above this one
        perf_report = import_module("tracelens_ext.perf_report")
        return cast("Report", perf_report.build_perf_report(self, for_page=True))

    @property
    def work(self) -> GpuEvents:
        """The GPU events, by their earlier name."""
        return self.gpu_events

    @property
    def problems(self) -> list[str]:
        """Errors of plugins so far (`plugin NAME: error`), and messages about parts that failed."""
        plugin_problems = list(default_registry().problems)
        if self.categorizer is not None:
            plugin_problems += self.categorizer.problems
        sentences = [f"plugin {problem}" for problem in plugin_problems]
        sentences += self.failures.messages
        return list(dict.fromkeys(sentences))

    @cached_property
    def coverage(self) -> CategoryCoverage:
        """How much of the GPU time has a launch in the trace, and how much has a category."""
        with self.failures.base("The category coverage"):
            return measure_coverage(self.gpu_events)

    def simulation(
        self,
        iteration: int | None = None,
        device: int | None = None,
        waits: pd.DataFrame | None = None,
    ) -> Simulation:
        """The replay of the whole recording, or of an iteration; see `Simulation`."""
        if iteration is not None or device is not None or waits is not None:
            with self.failures.base("The simulation of a part"):
                return Simulation(
                    gpu_events=self.gpu_events,
                    iteration=iteration,
                    device=device,
                    waits=waits,
                )
        return self._whole_simulation

    @cached_property
    def _whole_simulation(self) -> Simulation:
        with self.failures.base("The simulation"):
            simulation = Simulation(self.gpu_events)
            if self._last_findings is not None:
                # The simulation was discarded after the findings were computed.
                tell_claims(simulation, self._last_findings.findings)
            return simulation

    def forget_replay(self) -> None:
        """Discard the simulation to free its memory; it is made again when it is needed."""
        vars(self).pop("_whole_simulation", None)

    @cached_per_object
    def roofline(
        self,
        device_peaks: str | os.PathLike[str] | None = None,
        selection: EventFilter | None = None,
    ) -> Roofline:
        """Return the operations and their roofline times; see `get_df_roofline`."""
        peaks = None if device_peaks is None else read_peaks(device_peaks)
        selected = None if selection is None else selection.of(self.gpu_events)
        with self.failures.base("The roofline"):
            return find_roofline(
                gpu_events=self.gpu_events,
                launchers=self.launchers,
                own_peaks=peaks,
                selected=selected,
            )

    @cached_property
    def launchers(self) -> Launchers:
        """The operations that launched GPU work."""
        with self.failures.base("The operations that launched GPU work"):
            return find_launchers(self.gpu_events)

    @cached_per_object
    def findings(self, device_peaks: str | os.PathLike[str] | None = None) -> Findings:
        """Return what would save the most wall time, how much, why, and what to do."""
        roofline = partial(self.roofline, device_peaks)
        with self.failures.base("The findings"):
            self._last_findings = find_findings(
                gpu_events=self.gpu_events,
                find_launchers=lambda: self.launchers,
                find_roofline=roofline,
                simulate=self.simulation,
                failures=self.failures,
            )
        return self._last_findings

    def reproduction(
        self,
        op: str | re.Pattern[str] | None = None,
        *,
        row: int | None = None,
        finding: str | None = None,
        top: int = DEFAULT_TOP,
    ) -> Reproduction:
        """Return a script that runs operations of this trace in isolation. It needs only PyTorch.

        Args:
            op: a regular expression; only operations whose name it matches.
            row: only the operation of this row of `ops_unique_args`, from 1.
            finding: only the operations behind the finding with this id.
            top: how many operations at most, those with the most GPU time first; 0 for all.

        Raises:
            UsageError: no operation is chosen.
        """
        return reproduce(
            self, OperationChoice(op=op, row=row, finding=finding, top=top)
        )

    def cited_tables(
        self, device_peaks: str | os.PathLike[str] | None = None
    ) -> frozenset[str]:
        """Return the names of the tables, and commands, that the evidence of findings cites."""
        if not len(self.gpu_events):
            return frozenset()
        names: set[str] = set()
        for finding in self.findings(device_peaks).findings:
            names.update(evidence.see for evidence in finding.evidence)
        return frozenset(names)

    def serving_steps(self, phases: Sequence[str] = ()) -> Steps:
        """Return the steps of a serving engine; see `serving.inferred_steps.serving_steps`."""
        with self.failures.base("The steps of the serving engine"):
            return serving_steps(self.tree, parse_user_phases(phases))

    def memory(self, annotation: str | re.Pattern[str] | None = None) -> Memory:
        """Return the analysis of the memory events; see `memory.usage.find_memory`."""
        with self.failures.base("The memory analysis"):
            return find_memory(self.tree, annotation)

    @knows_tracelens
    def get_df_kernel_launchers(
        self,
        *,
        id_cols: bool = False,
        include_kernel_details: bool = False,
        include_call_stack: bool = False,
        include_first_occurrence_time: bool = False,
    ) -> pd.DataFrame:
        """Return a row for each operation that launched GPU work, in order of start.

        `operations.launchers` has the columns.

        Args:
            id_cols: also `pid`, `tid` and `external_id` (-1 without one).
            include_kernel_details: also `kernel_details`: for each GPU event launched a dictionary
                with `name`, `dur` (µs) and `stream`.
            include_call_stack: also `parent_module`, the class of the innermost `nn.Module` around
                the operation (`NA` for none), and `call_stack`, the names of the operation and its
                modules, a list as text.
            include_first_occurrence_time: also `ts`, its start (µs since the first event).
        """
        trace = self.trace
        rows = self.launchers.rows
        frame = self._launcher_table.astype(dict.fromkeys(TEXT_COLUMNS, "str"))
        if id_cols:
            threads = [trace.threads[thread] for thread in trace.thread[rows].tolist()]
            frame["pid"] = [process for process, _ in threads]
            frame["tid"] = [thread for _, thread in threads]
            frame["external_id"] = trace.external_id[rows]
        if include_kernel_details:
            details = op_tables.kernel_details(self.gpu_events, self.launchers)
            frame["kernel_details"] = pd.Series(details, dtype="object")
        if include_call_stack:
            stacks = module_stacks(
                gpu_events=self.gpu_events,
                launcher_of_gpu=self.launchers.of_gpu,
                names=frame["name"].tolist(),
            )
            frame["parent_module"] = pd.array(stacks.innermost_class, dtype="str")
            frame["call_stack"] = pd.array(stacks.stacks, dtype="str")
        if include_first_occurrence_time:
            frame["ts"] = trace.ts[rows] / NS_PER_US
        return frame

    # The next three can also be called on the class, with a table of launchers. Called on an
    # analyzer without such a table, they use the launchers of the whole trace.

    @OnClassToo
    @knows_tracelens
    def get_df_kernel_launchers_summary(
        self: TreePerfAnalyzer | None, df_kernel_launchers: pd.DataFrame | None = None
    ) -> pd.DataFrame:
        """Return GPU time by operation, longest first, as the sheet `ops_summary`."""
        return op_tables.summary(_given_or_all(self, df_kernel_launchers))

    @OnClassToo
    @knows_tracelens
    def get_df_kernel_launchers_summary_by_category(
        self: TreePerfAnalyzer | None, df_kernel_launchers: pd.DataFrame | None = None
    ) -> pd.DataFrame:
        """Return GPU time by category of operation, as the sheet `ops_summary_by_category`."""
        return op_tables.summary_by_category(_given_or_all(self, df_kernel_launchers))

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
        """Return GPU time by operation and its arguments, as the sheet `ops_unique_args`.

        Called on the class, it has no columns about kernels.

        Args:
            df_kernel_launchers: rows of `get_df_kernel_launchers()`, all of them by default.
            event_name: only operations of this name.
            agg_metrics: statistics over the operations of a row, besides their sum.
            include_pct: whether the two columns of percentages are wanted.
            group_by_num_kernels: a row for each number of GPU events launched.
        """
        table = _given_or_all(self, df_kernel_launchers)
        if event_name is not None:
            table = table[table["name"] == event_name]
        launched = None if self is None else (self.gpu_events, self.launchers)
        frame = op_tables.unique_args(
            table,
            launched,
            metrics=agg_metrics,
            group_by_num_kernels=group_by_num_kernels,
        )
        if include_pct:
            return frame
        return frame.drop(columns=list(op_tables.PERCENTAGES))

    def get_df_kernel_summary(self, *, detail: bool = False) -> pd.DataFrame:
        """Return GPU time by operation and kernel, as the sheet `kernels_by_category`.

        With `detail` also `op category`, `streams` and `% of total time`.
        """
        if detail:
            return kernels.detailed_time_by_operation_and_kernel(self.gpu_events)
        return kernels.time_by_operation_and_kernel(self.gpu_events)

    def get_df_kernels(
        self,
        *,
        launcher_detail: bool = False,
        cpu_op_detail: bool = False,
        nn_module_detail: bool = False,
    ) -> pd.DataFrame:
        """Return a row for each GPU event, in order of start.

        Args:
            launcher_detail: also which launch started it, when, and the CPU op around it.
            cpu_op_detail: also the arguments of the CPU op around the launch, and the share that
                the event has in its GPU time.
            nn_module_detail: also the `nn.Module`s around the launch.
        """
        if nn_module_detail and not self.tree.add_python_func:
            raise UsageError(
                "nn_module_detail needs TreePerfAnalyzer(…, add_python_func=True)"
            )
        return kernel_events.kernel_events(
            self.gpu_events,
            launcher_detail=launcher_detail,
            cpu_op_detail=cpu_op_detail,
            nn_module_detail=nn_module_detail,
        )

    def get_df_memory_blocks(self, largest: int | None = None) -> pd.DataFrame:
        """Return a row for each block of memory, as the table `memory_largest`.

        All of them, or the largest of each device.
        """
        return memory_blocks(self.memory(), largest)

    def get_df_performance_model(
        self, family: str, device_peaks: str | os.PathLike[str] | None = None
    ) -> pd.DataFrame:
        """Return the operations of a family, such as `GEMM`, with their parameters."""
        return family_table(self.roofline(device_peaks), family)

    def get_df_nn_modules(self, *, instances: bool = False) -> pd.DataFrame:
        """Return GPU time by path of `nn.Module` classes, as the sheet `nn_modules`.

        With `instances` a row for each module (`Block_0`, `Block_1` …), not for each class.
        """
        return nn_modules(self.gpu_events, instances=instances)

    @cached_property
    def _launcher_table(self) -> pd.DataFrame:
        return launcher_table(self.gpu_events, self.launchers)


def _given_or_all(
    analyzer: TreePerfAnalyzer | None, launchers: pd.DataFrame | None
) -> pd.DataFrame:
    """Return the table of launchers that was given, or that of the whole trace."""
    if launchers is not None:
        return launchers
    if analyzer is None:
        raise UsageError(
            "called on the class, this needs a table: get_df_kernel_launchers()"
        )
    return analyzer._launcher_table
