"""The perf report: which tables, under which names, with which charts and notes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens_ext.analysis import overview
from tracelens_ext.errors import UsageError
from tracelens_ext.report.undisturbed import undisturbed

if TYPE_CHECKING:
    import os
    import re
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.categorize import CategorizerLike
    from tracelens_ext.report.charts import Chart

#: Sheet → what it shows, for the index on the first sheet.
DESCRIPTIONS = {
    "gpu_timeline": "How the GPU spent its time; overlaps counted once",
    "kernel_summary": "Kernels by CPU operation and stream",
    "kernels_by_category": "GPU time by operation, category and kernel",
    "kernel_categories": "GPU time by operation and category",
    "ops_summary_by_category": "GPU time by category of operation, without communication",
    "ops_summary": "GPU time by operation, without communication",
    "ops_unique_args": "GPU time by operation and its arguments, without communication",
    "cpu_ops": "Host time by CPU operation",
    "short_kernel_histogram": "Durations of short kernels",
    "short_kernels_summary": "Short kernels by operation, arguments and name",
    "coll_analysis": "Collectives by size: duration and bandwidth",
    "graph_launches": "Graph launches by the place that launches them",
    "nn_modules": "GPU time by nn.Module",
    "unlinked_kernels": "GPU events whose launch is not in the trace",
    "iterations": "Time of each iteration, and which are odd",
    "iteration_statistics": "Mean and spread over whole iterations",
    "gap_summary": "Why the GPU was idle: gaps by cause",
    "gap_hosts": "What the host was in while the GPU was idle",
    "gap_streams": "Gaps between GPU events by stream",
    "gap_pairs": "Gaps by the kernels around them",
    "gaps_longest": "The longest times without any GPU work, and what the host did",
}

#: Rows of the timeline that do not overlap and add up to the total.
_TIMELINE_PARTS = ("computation_time", "exposed_comm_time", "exposed_memcpy_time", "idle_time")


@dataclass(frozen=True)
class PerfReport:
    """The tables of one trace and what goes with them.

    Attributes:
        sheets: sheet name → table, in order.
        facts: label and value, for the first sheet.
        notes: what the reader should know first, a sentence each.
        page_sheets: tables that only the page for browsers has, by name.
    """

    sheets: dict[str, pd.DataFrame]
    facts: list[tuple[str, object]]
    notes: list[str] = field(default_factory=list)
    page_sheets: dict[str, pd.DataFrame] = field(default_factory=dict)

    def charts(self) -> list[Chart]:
        """The charts that these tables allow."""
        from tracelens_ext.report.charts import Chart

        charts = []
        if "kernel_categories" in self.sheets:
            charts.append(
                Chart(
                    title="GPU time by category",
                    sheet="kernel_categories",
                    label_column="kernel_category",
                    value_column="total_time_ms",
                )
            )
        if "gpu_timeline" in self.sheets:
            several = "device" in self.sheets["gpu_timeline"]
            charts.append(
                Chart(
                    title="GPU timeline",
                    sheet="gpu_timeline",
                    label_column="device" if several else "type",
                    series_column="type" if several else None,
                    value_column="time ms",
                    kind="stacked",
                    only=_TIMELINE_PARTS,
                )
            )
        if "kernels_by_category" in self.sheets:
            charts.append(
                Chart(
                    title="Top operations",
                    sheet="kernels_by_category",
                    label_column="cpu_op",
                    series_column="kernel_category",
                    value_column="total_time_ms",
                    kind="stacked",
                    top=10,
                )
            )
        return charts

    def write_workbook(self, path: str | os.PathLike[str]) -> list[str]:
        """Write everything as one Excel file; returns the notes of its first sheet."""
        from tracelens_ext.report.excel import write_workbook

        return write_workbook(
            path,
            self.sheets,
            facts=self.facts,
            charts=self.charts(),
            notes=self.notes,
            descriptions=DESCRIPTIONS,
        )

    def write_csvs(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write each table as a CSV file."""
        from tracelens_ext.report.csv_files import write_csvs
        from tracelens_ext.report.manifest import finish_folder

        written = write_csvs(folder, self.sheets)
        finish_folder(folder, [path.name for path in written])
        return written


@undisturbed()
def build_perf_report(
    analyzer: TreePerfAnalyzer,
    *,
    kernel_summary: bool = True,
    short_kernel_study: bool = False,
    short_kernel_threshold_us: float = 10,
    short_kernel_histogram_bins: int = 100,
    topk_short_kernels: int | None = None,
    topk_ops: int | None = None,
    group_by_num_kernels: bool = False,
    collective_analysis: bool = True,
    micro_idle_thresh_us: float | None = None,
    gaps: bool = False,
    iterations: bool = False,
    annotation: str | re.Pattern[str] | None = None,
    for_page: bool = False,
) -> PerfReport:
    """The tables of an analyzed trace; see `generate_perf_report_pytorch` for the options.

    A trace without GPU events gives the table of its CPU ops instead of those of the GPU.
    With `for_page`, which says that a page for browsers will be written, the iterations of a trace
    are on that page even if nobody asked for their tables.
    """
    from tracelens_ext.analysis import kernels, short_kernels
    from tracelens_ext.categorize import default_registry

    _check_counts(
        short_kernel_histogram_bins=short_kernel_histogram_bins,
        topk_short_kernels=topk_short_kernels,
        topk_ops=topk_ops,
    )
    work = analyzer.work
    facts = overview.overview(work, analyzer.coverage)
    notes = overview.advice(work, analyzer.coverage)
    if not len(work):
        return PerfReport({"cpu_ops": analyzer.get_df_cpu_ops()}, facts, notes)
    sheets = {"gpu_timeline": analyzer.get_df_gpu_timeline(micro_idle_thresh_us)}
    total_ns = _total_time_ns(sheets["gpu_timeline"])
    if work.categories is not None:
        sheets["kernel_categories"] = analyzer.get_df_kernel_category_summary()
        sheets["kernels_by_category"] = analyzer.get_df_kernel_summary()
    sheets |= _operation_sheets(analyzer, topk_ops, group_by_num_kernels)
    if kernel_summary:
        sheets["kernel_summary"] = kernels.reference_kernel_summary(work, total_ns)
    if short_kernel_study:
        sheets["short_kernel_histogram"] = short_kernels.short_kernel_histogram(
            work, short_kernel_threshold_us, short_kernel_histogram_bins
        )
        sheets["short_kernels_summary"] = short_kernels.short_kernels_summary(
            work, short_kernel_threshold_us, total_ns, topk_short_kernels
        )
    sheets |= _occasional_sheets(analyzer, collective_analysis)
    if gaps:
        from tracelens_ext.analysis.gaps.tables import gap_sheets

        sheets |= gap_sheets(work)
    of_iterations: dict[str, pd.DataFrame] = {}
    if iterations or annotation is not None or for_page:
        of_iterations, said = _iteration_sheets(analyzer, annotation)
        if iterations or annotation is not None:
            sheets |= of_iterations
            notes += said
    sheets |= default_registry().report_sheets(analyzer, taken=sheets)
    notes += _operation_notes(analyzer, sheets)
    notes += [f"Plugin {problem}" for problem in analyzer.problems]
    return PerfReport(
        sheets, facts, notes, {n: t for n, t in of_iterations.items() if n not in sheets}
    )


def _iteration_sheets(
    analyzer: TreePerfAnalyzer, annotation: str | re.Pattern[str] | None
) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """The tables of the iterations, where the trace has any, and what to know about them."""
    from tracelens_ext.analysis.iteration_table import iteration_table
    from tracelens_ext.analysis.patterns import user_pattern

    pattern = user_pattern(annotation, "annotation")
    table = iteration_table(analyzer.work, pattern)
    if not len(table):
        wanted = "ProfilerStep#N" if pattern is None else f"annotation like {pattern.pattern!r}"
        return {}, [f"The trace has no {wanted}, so there are no tables of iterations."]
    sheets = {"iterations": table.frame, "iteration_statistics": table.statistics}
    return sheets, list(table.notes)


def _check_counts(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and count < 1:
            raise UsageError(f"{name} is {count}; expected a number of at least 1")


def _operation_sheets(
    analyzer: TreePerfAnalyzer, topk: int | None, group_by_num_kernels: bool
) -> dict[str, pd.DataFrame]:
    """The three `ops_*` tables; none for a trace without CPU ops."""
    if not analyzer.trace.count_of(*analyzer.trace.operation_kinds):
        return {}
    tables = {
        "ops_summary_by_category": analyzer.get_df_kernel_launchers_summary_by_category(),
        "ops_summary": analyzer.get_df_kernel_launchers_summary(),
        "ops_unique_args": analyzer.get_df_kernel_launchers_unique_args(
            group_by_num_kernels=group_by_num_kernels
        ),
    }
    return {name: table.head(topk) if topk is not None else table for name, table in tables.items()}


def _occasional_sheets(
    analyzer: TreePerfAnalyzer, collective_analysis: bool
) -> dict[str, pd.DataFrame]:
    """The tables of what not every trace has, for those that this one has."""
    from tracelens_ext.analysis.modules import has_modules

    work = analyzer.work
    sheets: dict[str, pd.DataFrame] = {}
    if collective_analysis and work.is_communication.any():
        sheets["coll_analysis"] = analyzer.get_df_collectives()
    if work.tree.by_graph.any():
        sheets["graph_launches"] = analyzer.get_df_graph_launches()
    if has_modules(work.trace):
        sheets["nn_modules"] = analyzer.get_df_nn_modules()
    if not work.tree.linked.all():
        sheets["unlinked_kernels"] = analyzer.get_df_unlinked_kernels()
    return sheets


def _operation_notes(analyzer: TreePerfAnalyzer, sheets: Mapping[str, pd.DataFrame]) -> list[str]:
    """What the reader of the `ops_*` sheets should know."""
    if "ops_summary" not in sheets:
        return []
    work = analyzer.work
    notes = []
    if communicating := int(work.is_communication.sum()):
        time = int(work.duration[work.is_communication].sum())
        share = 100.0 * time / max(int(work.duration.sum()), 1)
        where = "; coll_analysis has it" if "coll_analysis" in sheets else ""
        notes.append(
            f"Communication ({communicating:,} kernels, {share:.1f} % of GPU time) is left out of"
            f" the ops_ sheets{where}."
        )
    if work.categories is not None:
        notes.append(
            "An op category says what an operation is for, by its name; a kernel category says what"
            " a kernel does: an operation of the category GEMM may launch copies and fills as well."
        )
    return notes


@undisturbed()
def generate_perf_report_pytorch(
    profile_json_path: str | os.PathLike[str],
    output_xlsx_path: str | os.PathLike[str] | None = None,
    output_csvs_dir: str | os.PathLike[str] | None = None,
    *,
    use_kernel_name_categories: bool = False,
    kernel_summary: bool = True,
    short_kernel_study: bool = False,
    short_kernel_threshold_us: float = 10,
    short_kernel_histogram_bins: int = 100,
    topk_short_kernels: int | None = None,
    topk_ops: int | None = None,
    group_by_num_kernels: bool = False,
    collective_analysis: bool = True,
    micro_idle_thresh_us: float | None = None,
    gaps: bool = False,
    iterations: bool = False,
    annotation: str | None = None,
    include_unlinked_kernels: bool = True,
    rules: Sequence[str | os.PathLike[str]] = (),
    categorizer: CategorizerLike | None = None,
    maps: Sequence[str | os.PathLike[str]] = (),
    salvage: bool = False,
) -> dict[str, pd.DataFrame]:
    """Analyse a PyTorch profiler trace and write the report.

    Args:
        profile_json_path: the trace, `.json` or `.json.gz`.
        output_xlsx_path: the Excel file to write.
        output_csvs_dir: the folder to write a CSV file a sheet to. With neither output given,
            `NAME_perf_report.xlsx` is written beside the trace.
        use_kernel_name_categories: adds the column `kernel_category` and the sheets
            `kernels_by_category` and `kernel_categories`.
        kernel_summary: adds the sheet `kernel_summary`.
        short_kernel_study: adds the sheets `short_kernel_histogram` and `short_kernels_summary`.
        short_kernel_threshold_us: kernels shorter than this many µs are short.
        short_kernel_histogram_bins: number of bins.
        topk_short_kernels: rows of `short_kernels_summary`, all by default.
        topk_ops: rows of each of the three `ops_` sheets, all by default.
        group_by_num_kernels: whether operations with the same arguments are rows of their own in
            `ops_unique_args` when they launched different numbers of GPU events.
        collective_analysis: adds the sheet `coll_analysis` when the trace has communication.
        micro_idle_thresh_us: splits idle time into holes up to this many µs and longer ones.
        gaps: adds the sheets `gap_summary`, `gap_hosts`, `gap_streams`, `gap_pairs` and
            `gaps_longest`.
        iterations: adds the sheets `iterations` and `iteration_statistics`, where the trace has
            iterations.
        annotation: a regular expression for the annotations that are iterations, `ProfilerStep#N`
            by default; switches those sheets on.
        include_unlinked_kernels: whether GPU events without a launch count in the timeline.
        rules: TOML files of categorisation rules; switches categories on.
        categorizer: who is asked before the built-in rules; switches categories on.
        maps: folders of engine/model maps that `categorizer` may name.
        salvage: whether the events before the place where a file is cut off or damaged are
            analysed; the notes of the report say what is lost.

    Returns:
        Sheet name → table.

    Raises:
        TraceError: the trace cannot be analysed.
        OutputError: the report cannot be written, or would take the place of the trace; what was
            there is untouched.
    """
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.report.manifest import check_output

    if output_xlsx_path is not None:
        check_output(output_xlsx_path, [profile_json_path], force=True)
    analyzer = TreePerfAnalyzer(
        profile_json_path,
        use_kernel_name_categories=use_kernel_name_categories,
        include_unlinked_kernels=include_unlinked_kernels,
        rules=rules,
        categorizer=categorizer,
        maps=maps,
        salvage=salvage,
    )
    report = build_perf_report(
        analyzer,
        kernel_summary=kernel_summary,
        short_kernel_study=short_kernel_study,
        short_kernel_threshold_us=short_kernel_threshold_us,
        short_kernel_histogram_bins=short_kernel_histogram_bins,
        topk_short_kernels=topk_short_kernels,
        topk_ops=topk_ops,
        group_by_num_kernels=group_by_num_kernels,
        collective_analysis=collective_analysis,
        micro_idle_thresh_us=micro_idle_thresh_us,
        gaps=gaps,
        iterations=iterations,
        annotation=annotation,
    )
    if output_csvs_dir is not None:
        report.write_csvs(output_csvs_dir)
    if output_xlsx_path is not None or output_csvs_dir is None:
        report.write_workbook(output_xlsx_path or default_report_path(profile_json_path))
    return report.sheets


def default_report_path(trace_path: str | os.PathLike[str]) -> Path:
    """`NAME_perf_report.xlsx` beside the trace."""
    path = Path(trace_path)
    name = path.name.removesuffix(".gz").removesuffix(".json")
    return path.with_name(f"{name}_perf_report.xlsx")


def _total_time_ns(timeline: pd.DataFrame) -> int:
    """Total time of all devices, ns."""
    return round(float(timeline.loc[timeline["type"] == "total_time", "time ms"].sum()) * 1e6)
