"""`tracelens-ext report`: traces in; a report of each, and a summary on the terminal, out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.messages import print_line
from tracelens_ext.errors import OutputError, TraceError, TracelensError, UsageError
from tracelens_ext.report.report import Format
from tracelens_ext.settings import Progress, ReadingOptions
from tracelens_ext.tables.options import ReportOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.cli.outputs import Wanted
    from tracelens_ext.compare.comparison import Measurement
    from tracelens_ext.report.report import Places, Report


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
        typer.Option(
            "--csv-dir", metavar="FOLDER", help="Write each table as a CSV file into this folder."
        ),
    ] = None,
    no_workbook: Annotated[
        bool, typer.Option("--no-workbook", help="Write no more than what other options name.")
    ] = False,
    html: Annotated[
        str | None,
        typer.Option(
            "--html", metavar="FILE", help="Write a page for browsers; a folder for several traces."
        ),
    ] = None,
    source_url: Annotated[
        str,
        typer.Option(
            "--source-url",
            metavar="URL",
            help="Link Python lines on the page: 'https://…/{path}#L{line}'.",
            show_default=False,
        ),
    ] = "",
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
    *,
    analysis: shared.AnalysisOfLinked,
    report_options: ReportOptions,
    top: Annotated[int, typer.Option(help="Kernels to print.", min=0)] = 10,
    quiet: shared.Quiet = False,
) -> None:
    """Analyse traces: write an Excel report of each, print the timeline and the top kernels."""
    from tracelens_ext.cli.outputs import Wanted

    if compare and not kernel_categories:
        raise UsageError("--compare needs kernel categories; leave out --no-kernel-categories")
    if source_url:
        from tracelens_ext.report.html_cards import check_source_url

        check_source_url(source_url)
        if html is None:
            raise UsageError("--source-url is about the page; add --html FILE")
    if total and not compare:
        raise UsageError("--total is about comparing; add --compare")
    run = Run(
        wanted=Wanted(output, output_format, csv_dir, html, not no_workbook),
        options=replace(analysis, kernel_categories=kernel_categories),
        report_options=report_options,
        comparing=compare,
        total=total,
        force=force,
        source_url=source_url,
        top=top,
        quiet=quiet,
    )
    if run.all(traces):
        raise typer.Exit(1)


@dataclass
class Run:
    """One call of the command."""

    wanted: Wanted  #: what to write
    options: shared.AnalysisOptions  #: how to analyse
    report_options: ReportOptions  #: which tables, and what they hold
    comparing: bool  #: whether the traces are also compared
    total: bool  #: whether whole traces are compared
    source_url: str  #: where the page links lines of Python
    force: bool  #: whether strangers' files may be written over
    top: int  #: kernels to print
    quiet: bool  #: whether to print nothing
    shown_problems: set[str] = field(
        default_factory=set
    )  #: the problems of plugins that were shown

    def all(self, arguments: Sequence[str]) -> int:
        """Report on all traces; how many could not be."""
        from tracelens_ext.cli.inputs import check_files, find_traces, without_repetitions

        self.wanted.check_extras()
        found, problems = find_traces(arguments)
        traces = without_repetitions(found)
        if len(traces) + len(problems) == 1 and not self.comparing:
            if problems:
                raise problems[0]
            self._single(traces[0])
            return 0
        if self.comparing and len(traces) < 2:
            if problems:
                raise problems[0]
            check_files(traces)
            raise UsageError("--compare needs two traces at least")
        return len(problems) + self._several(traces, problems)

    def _single(self, trace: Path) -> None:
        from tracelens_ext.cli.load import show_problems

        result, written, _, problems = self.one(trace, self.wanted.for_one(trace), [trace])
        show_problems(problems, self.shown_problems)
        if self.quiet:
            return
        from tracelens_ext.cli.report_view import show_report
        from tracelens_ext.cli.screen import console

        show_report(result, console(), top=self.top)
        _tell_written(written)

    def _several(self, traces: Sequence[Path], problems: Sequence[TraceError]) -> int:
        """Report on several traces, whatever becomes of each; how many could not be."""
        from tracelens_ext.cli.load import show_problems
        from tracelens_ext.cli.parallel import each_trace

        places = self.wanted.for_several(traces)
        for problem in problems:
            _tell_error(problem)
        rows: list[dict[str, Any]] = []
        measured: list[Measurement | None] = []
        tasks = [
            partial(self.one_of_several, trace, its_places, traces)
            for trace, its_places in zip(traces, places, strict=True)
        ]
        with each_trace(traces, tasks, self.options.reading) as results:
            for result in results:
                try:
                    row, written, measurement, of_plugins = result()
                except (TraceError, OutputError) as error:
                    _tell_error(error)
                    measured.append(None)
                    continue
                show_problems(of_plugins, self.shown_problems)
                rows.append(row)
                measured.append(measurement)
                if not self.quiet:
                    _tell_written(written)
        if not self.quiet and rows:
            from tracelens_ext.cli.report_view import show_summary
            from tracelens_ext.cli.screen import console

            show_summary(rows, console())
        failures = len(traces) - len(rows)
        if self.comparing:
            failures += self._compare(traces, measured)
        return failures

    def one_of_several(
        self,
        trace: Path,
        places: Places,
        inputs: Sequence[Path],
        reading: ReadingOptions,
        progress: Progress | None,
    ) -> tuple[dict[str, Any], list[Path], Measurement | None, list[str]]:
        """As `one`, of the report no more than its row of the summary."""
        from tracelens_ext.cli.report_view import summary_row

        run = replace(self, options=replace(self.options, reading=reading))
        result, written, measurement, problems = run.one(trace, places, inputs, progress)
        return summary_row(trace, result), written, measurement, problems

    def one(
        self,
        trace: Path,
        places: Places,
        inputs: Sequence[Path],
        progress: Progress | None = None,
    ) -> tuple[Report, list[Path], Measurement | None, list[str]]:
        """Analyse a trace, and write its report; the problems of plugins come last."""
        from tracelens_ext.cli.load import analyze
        from tracelens_ext.cli.outputs import write_outputs
        from tracelens_ext.perf_report import build_perf_report
        from tracelens_ext.report.report import check_places

        for note in check_places(places, inputs, force=self.force):
            print_line(f"tracelens-ext: {note}", error=True)
        analyzer = analyze(trace, self.options, tells_dropped=False, progress=progress)
        options, for_page = self.report_options, self.wanted.html is not None
        result = build_perf_report(analyzer, options, for_page=for_page)
        result = replace(result, source_url=self.source_url)
        measured = None
        if self.comparing:
            from tracelens_ext.compare.report import measured_for_comparison

            measured = measured_for_comparison(
                analyzer, options.micro_idle_thresh_us, options.device_peaks
            )
        written = write_outputs(result, places, inputs, force=self.force)
        return result, written, measured, list(analyzer.problems)

    def _compare(self, traces: Sequence[Path], measured: Sequence[Measurement | None]) -> int:
        """Write and show the comparison; 1 when there is none, else 0."""
        from tracelens_ext.cli.outputs import write_outputs
        from tracelens_ext.compare.comparison import compare
        from tracelens_ext.compare.report import comparison_report
        from tracelens_ext.report.report import check_places

        usable = [measurement for measurement in measured if measurement is not None]
        try:
            if measured[0] is None:
                raise TracelensError(f"{traces[0]}: is the baseline; nothing can be compared")
            if len(usable) < 2:
                raise TracelensError("only one trace is left; nothing can be compared")
            comparison = compare(usable, total=self.total)
            places = self.wanted.for_comparison(traces[0])
            check_places(places, traces, force=self.force)
            report = comparison_report(comparison)
            written = write_outputs(report, places, traces, force=self.force)
        except UsageError:
            raise
        except TracelensError as error:
            _tell_error(error)
            return 1
        if not self.quiet:
            from tracelens_ext.cli.report_view import show_comparison
            from tracelens_ext.cli.screen import console

            typer.echo()
            show_comparison(comparison, report, console(), top=self.top)
            _tell_written(written)
        return 0


def _tell_written(paths: Sequence[Path]) -> None:
    for path in paths:
        print_line(f"Wrote {path}")


def _tell_error(error: TracelensError) -> None:
    print_line(f"tracelens-ext: {error}", error=True)
