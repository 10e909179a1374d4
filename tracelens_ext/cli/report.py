"""`tracelens-ext report`: traces in; a report of each, and a summary on the terminal, out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tracelens_ext.cli import load, screen
from tracelens_ext.cli import options as shared
from tracelens_ext.errors import OutputError, TraceError, TracelensError, UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.report import Report
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.units import FIRST_FACTS
from tracelens_ext.report.writing import Places
from tracelens_ext.settings import Progress, ReadingOptions

if TYPE_CHECKING:
    from tracelens_ext.compare.comparison import Measurement

#: Facts that are worth a line above the tables.
_HEADLINES = (
    "Trace",
    *FIRST_FACTS,
    "Duration (ms)",
    "Set by one event",
    "Devices",
    "Rank",
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


@dataclass(kw_only=True)
class ReportRun:
    """One call of the command.

    Options:
        source_url URL: Link Python lines on the page: 'https://…/{path}#L{line}'.
        compare: Also compare all traces with the first, in one workbook.
        top 0..: Kernels to print.
        unlinked_kernels --include-unlinked-kernels/--exclude-unlinked-kernels: Count GPU events
            without a launch, or not.  [default: include]
        kernel_categories: Give every kernel a category.
    """

    wanted: screen.Wanted
    source_url: str = ""
    compare: bool = False
    total: bool = False
    force: bool = False
    analysis: shared.AnalysisOptions
    report_options: ReportOptions
    top: int = 10
    quiet: bool = False

    def __post_init__(self) -> None:
        if self.compare and not self.analysis.kernel_categories:
            raise UsageError("--compare needs kernel categories; leave out --no-kernel-categories")
        if self.source_url:
            from tracelens_ext.report.html_tables import check_source_url

            check_source_url(self.source_url)
            if self.wanted.html is None:
                raise UsageError("--source-url is about the page; add --html FILE")
        if self.total and not self.compare:
            raise UsageError("--total is about comparing; add --compare")

    def all(self, arguments: Sequence[str]) -> int:
        """Report on all traces; how many could not be."""
        self.wanted.check_extras()
        found, problems = load.find_traces(arguments)
        traces = load.without_repetitions(found)
        too_few = len(traces) < 2 if self.compare else len(traces) + len(problems) == 1
        if not too_few:
            return len(problems) + self._several(traces, problems)
        if problems:
            raise problems[0]
        if self.compare:
            load.check_files(traces)
            raise UsageError("--compare needs two traces at least")
        (trace,) = traces
        result, written, _, of_plugins = self.one(trace, self.wanted.for_one(trace), [trace])
        load.show_problems(of_plugins)
        if not self.quiet:
            noted = replace(result, notes=[*_coverage(dict(result.facts)), *result.notes])
            screen.show(noted, _blocks(result, self.top))
            screen.tell_written(written)
        return 0

    def _several(self, traces: Sequence[Path], problems: Sequence[TraceError]) -> int:
        """Report on several traces, whatever becomes of each; how many could not be."""
        from tracelens_ext.cli.parallel import each_trace

        told = set[str]()
        rows = list[dict[str, object]]()
        measured: list[Measurement | None] = []
        tasks = [
            partial(self.one_of_several, trace, its_places, traces)
            for trace, its_places in zip(traces, self.wanted.for_several(traces), strict=True)
        ]
        for problem in problems:
            screen.tell(str(problem))
        with each_trace(traces, tasks, self.analysis.reading) as results:
            for result in results:
                try:
                    row, written, measurement, of_plugins = result()
                except (TraceError, OutputError) as error:
                    screen.tell(str(error))
                    measured.append(None)
                    continue
                load.show_problems(of_plugins, told)
                rows.append(row)
                measured.append(measurement)
                if not self.quiet:
                    screen.tell_written(written)
        if not self.quiet and rows:
            keep = ("total_time_ms", "busy (%)", "top finding")
            screen.show_blocks(
                [screen.Part("Traces", pd.DataFrame(rows), keep=keep)], screen.console()
            )
        failures = len(traces) - len(rows)
        return failures + (self._compare(traces, measured) if self.compare else 0)

    def one_of_several(
        self,
        trace: Path,
        places: Places,
        inputs: Sequence[Path],
        reading: ReadingOptions,
        progress: Progress | None,
    ) -> tuple[dict[str, object], list[Path], Measurement | None, list[str]]:
        """As `one`, of the report no more than its row of the summary."""
        run = replace(self, analysis=replace(self.analysis, reading=reading))
        result, written, measurement, problems = run.one(trace, places, inputs, progress)
        return summary_row(trace, result), written, measurement, problems

    def one(
        self, trace: Path, places: Places, inputs: Sequence[Path], progress: Progress | None = None
    ) -> tuple[Report, list[Path], Measurement | None, list[str]]:
        """Analyse a trace, and write its report; the problems of plugins come last."""
        from tracelens_ext.perf_report import build_perf_report

        screen.check_outputs(places, inputs, force=self.force)
        analyzer = load.analyze(trace, self.analysis, tells_dropped=False, progress=progress)
        options = self.report_options
        for_page = self.wanted.html is not None
        result = build_perf_report(analyzer, options, for_page=for_page)
        result = replace(result, source_url=self.source_url)
        measured = None
        if self.compare:
            from tracelens_ext.compare.report import measured_for_comparison

            idle = options.micro_idle_thresh_us
            peaks = options.device_peaks
            measured = measured_for_comparison(analyzer, idle, peaks)
        written = screen.write_outputs(result, places, inputs, force=self.force)
        return result, written, measured, list(analyzer.problems)

    def _compare(self, traces: Sequence[Path], measured: Sequence[Measurement | None]) -> int:
        """Write and show the comparison; 1 when there is none, else 0."""
        from tracelens_ext.cli.compare import comparison_blocks
        from tracelens_ext.compare.comparison import compare
        from tracelens_ext.compare.report import comparison_report

        usable = [measurement for measurement in measured if measurement is not None]
        places = self.wanted.for_comparison(traces[0].parent, several=True)
        try:
            if not measured[0] or len(usable) < 2:
                one = "only one trace is left" if measured[0] else f"{traces[0]}: is the baseline"
                raise TracelensError(f"{one}; nothing can be compared")
            comparison = compare(usable, total=self.total)
            screen.check_outputs(places, traces, force=self.force)
            report = comparison_report(comparison)
            written = screen.write_outputs(report, places, traces, force=self.force)
        except UsageError:
            raise
        except TracelensError as error:
            screen.tell(str(error))
            return 1
        if not self.quiet:
            blocks = comparison_blocks(comparison, report, self.top)
            screen.show(report, [[""], *blocks])
            screen.tell_written(written)
        return 0


def report(traces: list[str], *, run: ReportRun) -> None:
    """Analyse traces: write an Excel report of each, print the timeline and the top kernels."""
    if run.all(traces):
        raise typer.Exit(1)


def _blocks(report: Report, top: int) -> Iterator[screen.Block]:
    """Headlines, timeline, findings, categories and top kernels."""
    facts = dict(report.facts)
    for label in _HEADLINES:
        value = facts.get(label)
        if value is not None and not (label == "Events dropped" and value == "none"):
            yield screen.fact_text(label, value)
    for answer in report.answers:
        frame = report.sheets[answer.sheet]
        title = answer.title
        if answer.sheet == "findings":
            from tracelens_ext.cli.findings import first_findings

            yield partial(first_findings, frame, title, str(facts["Trace"]))
            continue
        if title.startswith("Top "):
            frame = frame.head(top)
            title = f"Top {len(frame)} {title.removeprefix('Top ')}"
        yield screen.Part(title, frame, answer.columns, name_width=_NAME_WIDTH)


def summary_row(trace: Path, report: Report) -> dict[str, object]:
    """What is shown of one report among several: total and busy time, what it went to."""
    row: dict[str, object] = {"trace": str(trace), "total_time_ms": None}
    none = pd.DataFrame()
    if len(timeline := report.sheets.get("gpu_timeline", none)):
        times = timeline.groupby("type", sort=False)["time ms"].sum().to_dict()
        total = row["total_time_ms"] = times["total_time"]
        row |= {label: 100 * times[k] / total if total else 0.0 for label, k in _SHARES.items()}
    for label, sheet, name, share in (
        ("top finding", "findings", "finding", "% of judged time"),
        ("top category", "gpu_time_by_category", "kernel_category", "% of GPU time"),
    ):
        for first in report.sheets.get(sheet, none).head(1).to_dict("records"):
            row[label] = f"{first[name]} {first[share]:.0f} %"
    return row


def _coverage(facts: dict[str, object]) -> list[str]:
    lines = []
    unlinked = facts.get("GPU time unlinked (%)")
    unknown = facts.get("GPU time uncategorized (%)")
    if isinstance(unlinked, float) and facts.get("GPU events"):
        lines.append(f"Unlinked: {unlinked:.1f} % of GPU time has no launch in the trace.")
    if isinstance(unknown, float) and facts.get("GPU events"):
        largest = facts.get("Largest uncategorized")
        names = f"{facts['Kernel names uncategorized']} kernel names"
        names += f"; the largest: {largest}" if largest else ""
        lines.append(f"Uncategorized: {unknown:.1f} % of GPU time ({names}).")
    return lines
