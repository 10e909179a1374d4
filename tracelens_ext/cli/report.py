"""`tracelens-ext report`: traces in; a report of each, and a summary on the terminal, out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.inputs import check_files, find_traces, without_repetitions
from tracelens_ext.cli.load import analyze, show_problems
from tracelens_ext.cli.outputs import Wanted, write_outputs
from tracelens_ext.cli.screen import (
    Block,
    Part,
    console,
    fact_text,
    print_line,
    show,
    show_blocks,
    tell,
)
from tracelens_ext.errors import OutputError, TraceError, TracelensError, UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.report import Format
from tracelens_ext.settings import Progress, ReadingOptions
from tracelens_ext.tables.options import ReportOptions
from tracelens_ext.tables.units import FIRST_FACTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.compare.comparison import Measurement
    from tracelens_ext.report.report import Places, Report

#: Facts that are worth a line above the tables.
_HEADLINES = (
    *("Trace", *FIRST_FACTS, "Duration (ms)", "Set by one event", "Devices", "Rank"),
    "Events dropped",
)
#: Column of the table of several traces → row of the timeline.
_SHARES = {
    "busy (%)": "busy_time",
    "computation (%)": "computation_time",
    "exposed comm (%)": "exposed_comm_time",
    "idle (%)": "idle_time",
}
_NAME_WIDTH = 28  # of a kernel: at 80 columns its category and operation fit beside it


def report(
    traces: list[str],
    output: str | None = None,
    output_format: Format | None = None,
    csv_dir: Path | None = None,
    no_workbook: bool = False,
    html: str | None = None,
    source_url: str = "",
    compare: bool = False,
    total: bool = False,
    force: bool = False,
    kernel_categories: bool = True,
    *,
    analysis: shared.AnalysisOfLinked,
    report_options: ReportOptions,
    top: int = 10,
    quiet: bool = False,
    screen: shared.Screen,
) -> None:
    """Analyse traces: write an Excel report of each, print the timeline and the top kernels.

    Options:
        output -o PATH: Excel file to write; a folder for several traces.  [default:
            NAME_perf_report.xlsx beside each trace]
        output_format --format: Write the tables in this format; csv and parquet are a folder of
            files.  [default: what --output is named, else xlsx]
        csv_dir FOLDER: Write each table as a CSV file into this folder.
        no_workbook: Write no more than what other options name.
        html FILE: Write a page for browsers; a folder for several traces.
        source_url URL: Link Python lines on the page: 'https://…/{path}#L{line}'.
        compare: Also compare all traces with the first, in one workbook.
        kernel_categories: Give every kernel a category.
        top 0..: Kernels to print.
    """
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
        all_notes=screen.notes,
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
    all_notes: bool  #: whether to print every note
    shown_problems: set[str] = field(
        default_factory=set
    )  #: the problems of plugins that were shown

    def all(self, arguments: Sequence[str]) -> int:
        """Report on all traces; how many could not be."""
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
        result, written, _, problems = self.one(trace, self.wanted.for_one(trace), [trace])
        show_problems(problems, self.shown_problems)
        if self.quiet:
            return
        noted = replace(result, notes=[*_coverage(dict(result.facts)), *result.notes])
        show(noted, _blocks(result, self.top), all_notes=self.all_notes)
        _tell_written(written)

    def _several(self, traces: Sequence[Path], problems: Sequence[TraceError]) -> int:
        """Report on several traces, whatever becomes of each; how many could not be."""
        from tracelens_ext.cli.parallel import each_trace

        places = self.wanted.for_several(traces)
        for problem in problems:
            tell(str(problem))
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
                    tell(str(error))
                    measured.append(None)
                    continue
                show_problems(of_plugins, self.shown_problems)
                rows.append(row)
                measured.append(measurement)
                if not self.quiet:
                    _tell_written(written)
        if not self.quiet and rows:
            show_blocks([Part("Traces", pd.DataFrame(rows))], console())
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
        from tracelens_ext.perf_report import build_perf_report
        from tracelens_ext.report.report import check_places

        for note in check_places(places, inputs, force=self.force):
            tell(note)
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
            tell(str(error))
            return 1
        if not self.quiet:
            from tracelens_ext.cli.compare import comparison_blocks

            blocks = comparison_blocks(comparison, report, self.top)
            show(report, [[""], *blocks], all_notes=self.all_notes)
            _tell_written(written)
        return 0


def _tell_written(paths: Sequence[Path]) -> None:
    for path in paths:
        print_line(f"Wrote {path}")


def _blocks(report: Report, top: int) -> Iterator[Block]:
    """Headlines, timeline, findings, categories and top kernels."""
    facts = dict(report.facts)
    for label in _HEADLINES:
        value = facts.get(label)
        if value is not None and not (label == "Events dropped" and value == "none"):
            yield fact_text(label, value)
    for answer in report.answers:
        frame, title = report.sheets[answer.sheet], answer.title
        if answer.sheet == "findings":
            from tracelens_ext.cli.findings import first_findings

            yield partial(first_findings, frame, title, str(facts["Trace"]))
            continue
        rows = len(frame)
        if title.startswith("Top "):
            rows = min(top, rows)
            title = f"Top {rows} {title.removeprefix('Top ')}"
        yield Part(title, frame.head(rows), answer.columns, name_width=_NAME_WIDTH)


def summary_row(trace: Path, report: Report) -> dict[str, object]:
    """What is shown of one report among several: total and busy time, what it went to."""
    row: dict[str, object] = {"trace": str(trace), "total_time_ms": None}
    timeline = report.sheets.get("gpu_timeline")
    if timeline is not None and len(timeline):
        times = timeline.groupby("type", sort=False)["time ms"].sum()
        total = float(times["total_time"])
        row["total_time_ms"] = total
        for label, kind in _SHARES.items():
            row[label] = 100 * float(times[kind]) / total if total else 0.0
    findings = report.sheets.get("findings")
    if findings is not None and len(findings):
        largest = findings.iloc[0]
        row["top finding"] = f"{largest['finding']} {largest['% of judged time']:.0f} %"
    categories = report.sheets.get("gpu_time_by_category")
    if categories is not None and len(categories):
        longest = categories.iloc[0]
        row["top category"] = f"{longest['kernel_category']} {longest['% of GPU time']:.0f} %"
    return row


def _coverage(facts: dict[str, object]) -> list[str]:
    lines = []
    unlinked, unknown = facts.get("GPU time unlinked (%)"), facts.get("GPU time uncategorized (%)")
    if isinstance(unlinked, float) and facts.get("GPU events"):
        lines.append(f"Unlinked: {unlinked:.1f} % of GPU time has no launch in the trace.")
    if isinstance(unknown, float) and facts.get("GPU events"):
        names = facts["Kernel names uncategorized"]
        largest = facts.get("Largest uncategorized")
        more = f"; the largest: {largest}" if largest else ""
        lines.append(f"Uncategorized: {unknown:.1f} % of GPU time ({names} kernel names{more}).")
    return lines
