"""`tracelens-ext report`: traces in; a report of each, and a summary on the terminal, out."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.messages import say
from tracelens_ext.errors import OutputError, TraceError, TracelensError, UsageError
from tracelens_ext.report.formats import Format

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracelens_ext.analysis.comparison import Measurement
    from tracelens_ext.analysis.gpu_work import GpuWork
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.cli.load import AnalysisOptions
    from tracelens_ext.cli.outputs import Outputs, Wanted
    from tracelens_ext.report.formats import Document
    from tracelens_ext.report.perf_report import PerfReport


def report(
    traces: shared.Traces,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="Excel file to write; a folder for several traces."
            "  [default: NAME_perf_report.xlsx beside each trace]",
            show_default=False,
        ),
    ] = None,
    output_format: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="Write the tables in this format; csv and parquet are a folder of files."
            "  [default: what --output is named, else xlsx]",
            show_default=False,
        ),
    ] = None,
    csv_dir: Annotated[
        Path | None,
        typer.Option("--csv-dir", help="Write each table as a CSV file into this folder."),
    ] = None,
    html: Annotated[
        str | None,
        typer.Option(
            "--html", metavar="FILE", help="Write a page for browsers; a folder for several traces."
        ),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Also compare all traces with the first, in one workbook."),
    ] = False,
    total: shared.Total = False,
    force: shared.Force = False,
    kernel_categories: Annotated[
        bool,
        typer.Option(
            "--kernel-categories/--no-kernel-categories", help="Give every kernel a category."
        ),
    ] = True,
    rules: shared.Rules = None,
    categorizer: shared.Categorizer = None,
    maps: shared.Maps = None,
    unlinked_kernels: shared.UnlinkedKernels = True,
    micro_idle_thresh_us: shared.MicroIdle = None,
    kernel_summary: Annotated[bool, typer.Option(help="Write the sheet kernel_summary.")] = True,
    short_kernel_study: Annotated[
        bool, typer.Option("--short-kernel-study", help="Write the sheets about short kernels.")
    ] = False,
    short_kernel_threshold_us: Annotated[
        float, typer.Option(help="Kernels shorter than this are short, µs.", min=0)
    ] = 10,
    short_kernel_histogram_bins: Annotated[
        int, typer.Option(help="Bins of the histogram of short kernels.", min=1, max=10_000)
    ] = 100,
    topk_short_kernels: Annotated[
        int | None, typer.Option(help="Rows of the table of short kernels.", min=1)
    ] = None,
    topk_ops: Annotated[
        int | None, typer.Option(help="Rows of each of the three ops_ tables.", min=1)
    ] = None,
    group_by_num_kernels: Annotated[
        bool,
        typer.Option(
            "--group-by-num-kernels",
            help="In ops_unique_args, a row for each number of GPU events launched.",
        ),
    ] = False,
    collective_analysis: Annotated[
        bool, typer.Option(help="Write the sheet coll_analysis, where there is communication.")
    ] = True,
    gaps: Annotated[
        bool, typer.Option("--gaps", help="Write the sheets about idle time and its causes.")
    ] = False,
    iterations: Annotated[
        bool,
        typer.Option("--iterations", help="Write the sheets about iterations, if there are any."),
    ] = False,
    annotation: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="Take annotations whose name matches for iterations; implies --iterations."
            "  [default: ProfilerStep#N]",
            show_default=False,
        ),
    ] = None,
    top: Annotated[int, typer.Option(help="Kernels to print.", min=0)] = 10,
    quiet: shared.Quiet = False,
) -> None:
    """Analyse traces: write an Excel report of each, print the timeline and the top kernels."""
    from tracelens_ext.analysis.patterns import user_pattern
    from tracelens_ext.cli.load import AnalysisOptions
    from tracelens_ext.cli.outputs import Wanted
    from tracelens_ext.report.perf_report import build_perf_report

    if compare and not kernel_categories:
        raise UsageError("--compare needs kernel categories; leave out --no-kernel-categories")
    if total and not compare:
        raise UsageError("--total is about comparing; add --compare")
    run = Run(
        wanted=Wanted(output, output_format, csv_dir, html),
        options=AnalysisOptions(
            kernel_categories, rules or (), categorizer, unlinked_kernels, maps or ()
        ),
        build=partial(
            build_perf_report,
            kernel_summary=kernel_summary,
            short_kernel_study=short_kernel_study,
            short_kernel_threshold_us=short_kernel_threshold_us,
            short_kernel_histogram_bins=short_kernel_histogram_bins,
            topk_short_kernels=topk_short_kernels,
            topk_ops=topk_ops,
            group_by_num_kernels=group_by_num_kernels,
            collective_analysis=collective_analysis,
            gaps=gaps,
            iterations=iterations,
            annotation=user_pattern(annotation, "annotation"),
            for_page=html is not None,
            micro_idle_thresh_us=micro_idle_thresh_us,
        ),
        measure=_measuring(micro_idle_thresh_us) if compare else None,
        total=total,
        force=force,
        top=top,
        quiet=quiet,
    )
    if run.all(traces):
        raise typer.Exit(1)


def _measuring(micro_idle_thresh_us: float | None) -> Callable[[GpuWork], Measurement]:
    from tracelens_ext.analysis.comparison import measure

    return partial(measure, micro_idle_thresh_us=micro_idle_thresh_us)


@dataclass
class Run:
    """One call of the command.

    Attributes:
        wanted: what to write.
        options: how to analyse.
        build: makes the tables of an analyzed trace.
        measure: measures one for the comparison; None without `--compare`.
        total: whether whole traces are compared.
        force: whether strangers' files may be written over.
        top: kernels to print.
        quiet: whether to print nothing.
        told: the problems of plugins that were shown.
    """

    wanted: Wanted
    options: AnalysisOptions
    build: Callable[[TreePerfAnalyzer], PerfReport]
    measure: Callable[[GpuWork], Measurement] | None
    total: bool
    force: bool
    top: int
    quiet: bool
    told: set[str] = field(default_factory=set)

    def all(self, arguments: Sequence[str]) -> int:
        """Report on all traces; how many could not be."""
        from tracelens_ext.cli.inputs import find_traces, without_repetitions

        self.wanted.check_extras()
        found, problems = find_traces(arguments)
        traces = without_repetitions(found)
        if len(traces) + len(problems) == 1 and self.measure is None:
            if problems:
                raise problems[0]
            self._single(traces[0])
            return 0
        if self.measure is not None and len(traces) < 2:
            raise UsageError("--compare needs two traces at least")
        return len(problems) + self._several(traces, problems)

    def _single(self, trace: Path) -> None:
        from tracelens_ext.cli.load import show_problems

        result, written, _, problems = self.one(trace, self.wanted.for_one(trace), [trace])
        show_problems(problems, self.told)
        if self.quiet:
            return
        from rich.console import Console

        from tracelens_ext.cli.report_view import show_report

        show_report(result, Console(), top=self.top)
        _tell_written(written)

    def _several(self, traces: Sequence[Path], problems: Sequence[TraceError]) -> int:
        """Report on several traces, whatever becomes of each; how many could not be."""
        from tracelens_ext.cli.load import show_problems
        from tracelens_ext.cli.parallel import each_trace

        outputs = self.wanted.for_several(traces)
        for problem in problems:
            _tell_error(problem)
        rows: list[dict[str, Any]] = []
        measured: list[Measurement | None] = []
        tasks = [
            partial(self.one_of_several, trace, output, traces)
            for trace, output in zip(traces, outputs, strict=True)
        ]
        with each_trace(traces, tasks) as results:
            for result in results:
                try:
                    row, written, measurement, of_plugins = result()
                except (TraceError, OutputError) as error:
                    _tell_error(error)
                    measured.append(None)
                    continue
                show_problems(of_plugins, self.told)
                rows.append(row)
                measured.append(measurement)
                if not self.quiet:
                    _tell_written(written)
        if not self.quiet and rows:
            from rich.console import Console

            from tracelens_ext.cli.report_view import show_summary

            show_summary(rows, Console())
        failures = len(traces) - len(rows)
        if self.measure is not None:
            failures += self._compare(traces, measured)
        return failures

    def one_of_several(
        self, trace: Path, outputs: Outputs, inputs: Sequence[Path]
    ) -> tuple[dict[str, Any], list[Path], Measurement | None, list[str]]:
        """As `one`, of the report no more than its row of the summary."""
        from tracelens_ext.cli.report_view import summary_row

        result, written, measurement, problems = self.one(trace, outputs, inputs)
        return summary_row(trace, result), written, measurement, problems

    def one(
        self, trace: Path, outputs: Outputs, inputs: Sequence[Path]
    ) -> tuple[PerfReport, list[Path], Measurement | None, list[str]]:
        """Analyse a trace, and write its report; what plugins did wrong comes last."""
        from tracelens_ext.cli.load import analyze

        outputs.check(inputs, force=self.force)
        analyzer = analyze(trace, self.options)
        result = self.build(analyzer)
        measurement = self.measure(analyzer.work) if self.measure is not None else None
        written = outputs.write(_document(result), inputs, force=self.force)
        return result, written, measurement, list(analyzer.problems)

    def _compare(self, traces: Sequence[Path], measured: Sequence[Measurement | None]) -> int:
        """Write and show the comparison; 1 when there is none, else 0."""
        from tracelens_ext.analysis.comparison import compare
        from tracelens_ext.report.comparison_report import comparison_document

        usable = [measurement for measurement in measured if measurement is not None]
        try:
            if measured[0] is None:
                raise TracelensError(f"{traces[0]}: is the baseline; nothing can be compared")
            if len(usable) < 2:
                raise TracelensError("only one trace is left; nothing can be compared")
            comparison = compare(usable, per_iteration=False if self.total else None)
            outputs = self.wanted.for_comparison(traces[0])
            outputs.check(traces, force=self.force)
            written = outputs.write(comparison_document(comparison), traces, force=self.force)
        except UsageError:
            raise
        except TracelensError as error:
            _tell_error(error)
            return 1
        if not self.quiet:
            from rich.console import Console

            from tracelens_ext.cli.report_view import show_comparison

            typer.echo()
            show_comparison(comparison, Console(), top=self.top)
            _tell_written(written)
        return 0


def _document(result: PerfReport) -> Document:
    """A perf report, ready for any format."""
    from tracelens_ext.report.formats import Document
    from tracelens_ext.report.perf_report import DESCRIPTIONS

    return Document(
        title="GPU performance report",
        sheets=result.sheets,
        facts=result.facts,
        notes=result.notes,
        descriptions=DESCRIPTIONS,
        charts=result.charts(),
        page_sheets=result.page_sheets,
    )


def _tell_written(paths: Sequence[Path]) -> None:
    for path in paths:
        say(f"Wrote {path}")


def _tell_error(error: TracelensError) -> None:
    say(f"tracelens-ext: {error}", error=True)
