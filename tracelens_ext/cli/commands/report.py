"""`tracelens-ext report`: writes a report of each trace, and prints a summary."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens_ext.cli.options import (
    AnalysisOptions,
    Force,
    Quiet,
    Total,
    TracesArgument,
    UnlinkedKernels,
)
from tracelens_ext.cli.outputs import OutputOptions
from tracelens_ext.cli.screen import (
    Block,
    Part,
    Section,
    console,
    fact_text,
    show,
    show_blocks,
    tell,
    tell_written,
)
from tracelens_ext.errors import (
    MergedRanksError,
    OutputError,
    TraceError,
    TracelensError,
    UsageError,
)
from tracelens_ext.hooks import Command
from tracelens_ext.lazy import pd
from tracelens_ext.report.report import Report
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.row_command import RowCommand
from tracelens_ext.report.tables.timeline_rows import ANALYZED, analyzed_rows
from tracelens_ext.report.tables.units import FIRST_FACTS
from tracelens_ext.report.writing import Places
from tracelens_ext.trace_files import with_rank

if TYPE_CHECKING:
    from tracelens_ext.compare.comparison import Measurement
    from tracelens_ext.settings import Progress, ReadingOptions

#: The facts that the screen shows above the tables.
_HEADLINES = (
    ("Trace",)
    + FIRST_FACTS
    + ("Duration (ms)", "Set by one event", "Devices", "Rank", "Events dropped")
)
#: Column of the table of several traces → row of `gpu_timeline`.
_SHARES = {
    "busy_percent": "busy_time",
    "computation_percent": "computation_time",
    "exposed_communication_percent": "exposed_comm_time",
    "idle_percent": "idle_time",
}
_NAME_WIDTH = 28  # of a kernel: at 80 columns its category and operation fit beside it
_SUMMARY_KEPT = ("total_time_ms", "busy_percent", "top_finding")


def report(
    traces: TracesArgument,
    *,
    outputs: OutputOptions,
    source_url: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Link Python lines on the page to this URL: "
            "'https://…/{path}#L{line}'.",
            show_default=False,
        ),
    ] = "",
    compare: Annotated[
        bool,
        typer.Option(
            "--compare", help="Also compare all traces with the first, in one workbook."
        ),
    ] = False,
    total: Total = False,
    force: Force = False,
    analysis: AnalysisOptions,
    kernel_categories: Annotated[
        bool,
        typer.Option(
            "--kernel-categories/--no-kernel-categories",
            help="Assign a category to every kernel.",
        ),
    ] = True,
    unlinked_kernels: UnlinkedKernels = True,
    report_options: ReportOptions,
    top: Annotated[int, typer.Option(min=0, help="Number of kernels to print.")] = 10,
    quiet: Quiet = False,
) -> None:
    """Analyze traces: write an Excel report of each, and print the findings and the top kernels."""
    run = _ReportRun(
        outputs=outputs,
        source_url=source_url,
        compare=compare,
        total=total,
        force=force,
        analysis=replace(
            analysis,
            kernel_categories=kernel_categories,
            unlinked_kernels=unlinked_kernels,
        ),
        report_options=report_options,
        top=top,
        quiet=quiet,
    )
    if run.report_on_all(traces):
        raise typer.Exit(1)


@dataclass(frozen=True)
class _TraceResult:
    """The outcome of one trace."""

    report: Report
    blocks: list[Block]  #: what the terminal shows
    written: list[Path]
    problems: list[str]  #: messages about parts that were left out
    measurement: Measurement | None = None  #: the measurement for a comparison


@dataclass(frozen=True)
class _SummaryResult:
    """The outcome of one trace among several."""

    row: dict[str, object]
    written: list[Path]
    problems: list[str]
    measurement: Measurement | None


@dataclass(frozen=True, kw_only=True)
class _ReportRun:
    """One run of the command."""

    outputs: OutputOptions
    source_url: str
    compare: bool
    total: bool
    force: bool
    analysis: AnalysisOptions
    report_options: ReportOptions
    top: int
    quiet: bool

    def __post_init__(self) -> None:
        if self.compare and not self.analysis.kernel_categories:
            raise UsageError(
                "--compare needs kernel categories; leave out --no-kernel-categories"
            )
        if self.source_url:
            from tracelens_ext.report.html_findings import check_source_url

            check_source_url(self.source_url)
            if self.outputs.html is None:
                raise UsageError("--source-url only affects the page; add --html FILE")
        if self.total and not self.compare:
            raise UsageError("--total only affects the comparison; add --compare")

    def report_on_all(self, arguments: Sequence[str]) -> int:
        """Report on all traces, and return how many failed."""
        from tracelens_ext.cli.named_traces import (
            check_files,
            find_traces,
            without_repetitions,
        )

        self.outputs.check_extras()
        named = find_traces(arguments)
        traces = without_repetitions(named.paths)
        is_single = len(traces) + len(named.problems) == 1
        too_few = len(traces) < 2 if self.compare else is_single
        if not too_few:
            failed = self._report_on_several(traces, named.problems)
            return len(named.problems) + failed
        if named.problems:
            raise named.problems[0]
        if self.compare:
            check_files(traces)
            raise UsageError("--compare needs at least two traces")
        self._report_on_one(traces[0])
        return 0

    def _report_on_one(self, trace: Path) -> None:
        from tracelens_ext.cli.messages import show_problems

        try:
            result = self.analyze(trace, self.outputs.for_one(trace), [trace])
        except MergedRanksError as error:
            if not error.ranks:
                raise
            self._report_on_ranks(trace, error.ranks)
            return
        show_problems(result.problems)
        if not self.quiet:
            coverage = _coverage_notes(dict(result.report.facts))
            notes = coverage + list(result.report.notes)
            show(replace(result.report, notes=notes), result.blocks)
            tell_written(result.written)

    def _report_on_ranks(self, trace: Path, ranks: Sequence[int]) -> None:
        """Report on each of the ranks in a merged file."""
        from tracelens_ext.cli.messages import show_problems

        names = [with_rank(trace, rank) for rank in ranks]
        rows = []
        shown_problems = set[str]()
        for rank, places in zip(ranks, self.outputs.for_several(names), strict=True):
            reading = replace(self.analysis.reading, rank=rank)
            result = self.summarize(trace, places, [trace], reading, None)
            show_problems(result.problems, shown_problems)
            rows.append({**result.row, "trace": f"rank {rank}"})
            if not self.quiet:
                tell_written(result.written)
        if not self.quiet:
            summary = Part(
                title=f"Ranks of {trace}", frame=pd.DataFrame(rows), keep=_SUMMARY_KEPT
            )
            file = shlex.quote(str(trace))
            hint = (
                f"See one rank with --rank {ranks[0]}; compare all ranks with: "
                f"tracelens-ext fleet {file} -o results"
            )
            show_blocks([summary, ["", hint]], console())

    def _report_on_several(
        self, traces: Sequence[Path], problems: Sequence[TraceError]
    ) -> int:
        """Report on several traces, even if some fail, and return how many failed."""
        from tracelens_ext.cli.messages import show_problems, tell_errors
        from tracelens_ext.cli.parallel import each_trace

        shown_problems = set[str]()
        rows: list[dict[str, object]] = []
        measurements: list[Measurement | None] = []
        places = self.outputs.for_several(traces)
        tasks = [
            partial(self.summarize, trace, places_of_trace, traces)
            for trace, places_of_trace in zip(traces, places, strict=True)
        ]
        errors: list[TracelensError] = list(problems)
        with each_trace(traces, tasks, self.analysis.reading) as results:
            for get_result in results:
                try:
                    result = get_result()
                except (TraceError, OutputError) as error:
                    errors.append(error)
                    measurements.append(None)
                    continue
                show_problems(result.problems, shown_problems)
                rows.append(result.row)
                measurements.append(result.measurement)
                if not self.quiet:
                    tell_written(result.written)
        tell_errors(errors)
        if rows and not self.quiet:
            summary = Part("Traces", pd.DataFrame(rows), keep=_SUMMARY_KEPT)
            show_blocks([summary], console())
        failed = len(traces) - len(rows)
        if self.compare and not self._compare(traces, measurements):
            failed += 1
        return failed

    def summarize(
        self,
        trace: Path,
        places: Places,
        inputs: Sequence[Path],
        reading: ReadingOptions,
        progress: Progress | None,
    ) -> _SummaryResult:
        """Report on one of several traces, and summarize it. This is the task of a worker."""
        run = replace(self, analysis=replace(self.analysis, reading=reading))
        result = run.analyze(trace, places, inputs, progress)
        return _SummaryResult(
            row=summary_row(trace, result.report),
            written=result.written,
            problems=result.problems,
            measurement=result.measurement,
        )

    def analyze(
        self,
        trace: Path,
        places: Places,
        inputs: Sequence[Path],
        progress: Progress | None = None,
    ) -> _TraceResult:
        """Analyze a trace, or read a memory snapshot, and write its report."""
        from tracelens_ext.analysis.memory.snapshot import may_be_snapshot
        from tracelens_ext.cli.outputs import check_outputs

        check_outputs(places, inputs, force=self.force)
        if may_be_snapshot(trace):
            return self._snapshot(trace, places, inputs)
        return self._trace(trace=trace, places=places, inputs=inputs, progress=progress)

    def _row_commands(self, perf_report: Report) -> Mapping[str, RowCommand]:
        """Return the commands for rows; of a file with several ranks, they name the rank."""
        rank = self.analysis.reading.rank
        if rank is None:
            return perf_report.row_commands
        return {
            name: command.with_option(f"--rank {rank}")
            for name, command in perf_report.row_commands.items()
        }

    def _trace(
        self,
        trace: Path,
        places: Places,
        inputs: Sequence[Path],
        progress: Progress | None,
    ) -> _TraceResult:
        from tracelens_ext.cli.load import analyze
        from tracelens_ext.cli.outputs import write_outputs
        from tracelens_ext.perf_report import build_perf_report

        analyzer = analyze(trace, self.analysis, tells_dropped=False, progress=progress)
        options = self.report_options
        for_page = self.outputs.html is not None
        perf_report = build_perf_report(analyzer, options, for_page=for_page)
        perf_report = replace(
            perf_report,
            source_url=self.source_url,
            row_commands=self._row_commands(perf_report),
        )
        measurement = None
        if self.compare:
            from tracelens_ext.compare.report import measured_for_comparison

            measurement = measured_for_comparison(
                analyzer=analyzer,
                micro_idle_thresh_us=options.micro_idle_thresh_us,
                device_peaks=options.device_peaks,
            )
        written = write_outputs(perf_report, places, inputs, force=self.force)
        return _TraceResult(
            report=perf_report,
            blocks=list(_blocks(perf_report, self.top)),
            written=written,
            problems=list(analyzer.problems),
            measurement=measurement,
        )

    def _snapshot(
        self, snapshot: Path, places: Places, inputs: Sequence[Path]
    ) -> _TraceResult:
        """Report on a snapshot of PyTorch's memory allocator, as `memory` does."""
        from tracelens_ext.cli.outputs import write_outputs
        from tracelens_ext.cli.snapshots import snapshot_blocks, snapshot_report

        if self.compare:
            remedy = "compare two snapshots with: tracelens-ext compare A B"
            raise TraceError(
                path=snapshot,
                problem="is a memory snapshot, not a trace",
                remedy=remedy,
            )
        memory_report = snapshot_report([snapshot], self.analysis.reading)
        written = write_outputs(memory_report, places, inputs, force=self.force)
        return _TraceResult(
            report=memory_report,
            blocks=list(snapshot_blocks(memory_report, self.top)),
            written=written,
            problems=[],
        )

    def _compare(
        self, traces: Sequence[Path], measurements: Sequence[Measurement | None]
    ) -> bool:
        """Write and show the comparison, and return whether there is one."""
        from tracelens_ext.cli.comparison_blocks import comparison_blocks
        from tracelens_ext.cli.outputs import check_outputs, write_outputs
        from tracelens_ext.compare.comparison import compare
        from tracelens_ext.compare.report import comparison_report

        usable = [
            measurement for measurement in measurements if measurement is not None
        ]
        places = self.outputs.for_comparison(traces[0].parent, several=True)
        try:
            if measurements[0] is None:
                raise TracelensError(
                    f"{traces[0]}: is the baseline and could not be analyzed, so "
                    "there is no comparison"
                )
            if len(usable) < 2:
                raise TracelensError(
                    "only one trace could be analyzed, so there is no comparison"
                )
            comparison = compare(usable, total=self.total)
            check_outputs(places, traces, force=self.force)
            report = comparison_report(comparison)
            written = write_outputs(report, places, traces, force=self.force)
        except UsageError:
            raise
        except TracelensError as error:
            tell(str(error))
            return False
        if not self.quiet:
            blocks = comparison_blocks(comparison, report, self.top)
            show(report, [[""]] + list(blocks))
            tell_written(written)
        return True


def _blocks(report: Report, top: int) -> Iterator[Block]:
    """Yield the blocks: headlines, timeline, findings, categories and top kernels."""
    facts = dict(report.facts)
    for label in _HEADLINES:
        value = facts.get(label)
        if value is None:
            continue
        nothing_dropped = label == "Events dropped" and value == "none"
        if not nothing_dropped:
            yield fact_text(label, value)
    for answer in report.answers:
        frame = report.sheets[answer.sheet]
        if answer.choose_rows is not None:
            frame = answer.choose_rows(frame)
        title = answer.title
        if answer.sheet == "findings":
            from tracelens_ext.cli.finding_blocks import first_findings

            trace = str(facts["Trace"])
            yield Section("findings", partial(first_findings, frame, title, trace))
            continue
        if title.startswith("Top "):
            frame = frame.head(top)
            title = f"Top {len(frame)} {title.removeprefix('Top ')}"
        yield Part(
            title=title, frame=frame, columns=answer.columns, name_width=_NAME_WIDTH
        )


def summary_row(trace: Path, report: Report) -> dict[str, object]:
    """Return the row of one report among several: total time, busy time, and their shares."""
    row: dict[str, object] = {"trace": str(trace), "total_time_ms": None}
    timeline = report.sheets.get("gpu_timeline")
    if timeline is not None and len(timeline):
        times = timeline.groupby("type", sort=False)["time ms"].sum().to_dict()
        total = times["total_time"]
        row["total_time_ms"] = total
        prefix = ""
        analyzed = analyzed_rows(timeline)
        if len(analyzed):
            prefix = ANALYZED
            times = analyzed.groupby("type", sort=False)["time ms"].sum().to_dict()
            total = times["analyzed_time"]
        for label, time_name in _SHARES.items():
            row[label] = 0.0
            if total:
                row[label] = 100 * times[prefix + time_name] / total
    findings = report.sheets.get("findings")
    if findings is not None and "% of analyzed time" in findings and len(findings):
        first = findings.iloc[0]
        row["top_finding"] = f"{first['finding']} {first['% of analyzed time']:.0f} %"
    categories = report.sheets.get("gpu_time_by_category")
    if categories is not None and len(categories):
        first = categories.iloc[0]
        row["top_category"] = (
            f"{first['kernel_category']} {first['% of GPU time']:.0f} %"
        )
    return row


def _coverage_notes(facts: Mapping[str, object]) -> list[str]:
    """Return sentences about the GPU time without a launch, and without a category."""
    if not facts.get("GPU events"):
        return []
    notes = []
    unlinked = facts.get("GPU time unlinked (%)")
    if isinstance(unlinked, float):
        notes.append(
            f"Unlinked: {unlinked:.1f} % of GPU time has no launch in the trace."
        )
    uncategorized = facts.get("GPU time uncategorized (%)")
    if isinstance(uncategorized, float):
        names = f"{facts['Kernel names uncategorized']} kernel names"
        largest = facts.get("Largest uncategorized")
        if largest:
            names += f"; the largest: {largest}"
        notes.append(f"Uncategorized: {uncategorized:.1f} % of GPU time ({names}).")
    return notes


COMMAND = Command(
    name="report",
    summary="Write a report: workbook, HTML page, tables.",
    function=report,
    group="Inspect",
    examples=(
        "report trace.json.gz",
        "report trace.json.gz --html report.html --csv-dir tables",
        "report runs/*.json.gz --compare -o reports/",
    ),
)
