"""`tracelens-ext compare`: what changed between traces, and whether a budget holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tracelens_ext.cli.options import (
    AnalysisOptions,
    DevicePeaks,
    Force,
    Quiet,
    Total,
    UnlinkedKernels,
)
from tracelens_ext.cli.screen import print_line, print_report, show, tell, tell_written
from tracelens_ext.errors import UsageError
from tracelens_ext.hooks import Command
from tracelens_ext.report.writing import OutputFormat

if TYPE_CHECKING:
    from tracelens_ext.compare.budgets import BudgetOutcome
    from tracelens_ext.compare.comparison import Comparison
    from tracelens_ext.compare.measurement import Measurement
    from tracelens_ext.settings import ReadingOptions

#: The exit code when a budget is exceeded.
CROSSED = 3
_SAME_AMOUNT = 0.01
#: Formats that are printed if no file is given.
_PRINTED_FORMATS = (OutputFormat.json, OutputFormat.markdown)


@dataclass(frozen=True)
class ComparisonOptions:
    """What is compared, how, and where the result goes."""

    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="Output file: .xlsx, .json or .md.  [default: none]",
        ),
    ] = None
    output_format: Annotated[
        OutputFormat | None,
        typer.Option(
            "--format",
            help="Format of the tables; markdown goes to the terminal without --output.",
        ),
    ] = None
    json: Annotated[
        bool, typer.Option("--json", help="Print the tables as JSON instead.")
    ] = False
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write an HTML page.")
    ] = None
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BUDGET",
            help=(
                "Exit with 3 if this budget is exceeded (repeatable): 'GEMM > +5%', "
                "'total_time > 1.5ms', 'findings > 5%'."
            ),
        ),
    ] = None
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help=(
                "Compare one trace with the median of the most recent traces or "
                "reports in this folder."
            ),
        ),
    ] = None
    last: Annotated[
        int, typer.Option(min=3, help="Number of baseline runs (minimum 3).")
    ] = 5
    total: Total = False
    force: Force = False
    device_peaks: DevicePeaks = None
    normalize: Annotated[
        Literal["roofline"] | None,
        typer.Option(
            help=(
                "Also compare the time each trace loses against the roofline of its "
                "own device."
            ),
        ),
    ] = None
    micro_idle_thresh_us: Annotated[
        float | None,
        typer.Option(
            metavar="US",
            min=0,
            help="Report idle gaps up to this length (µs) separately.",
        ),
    ] = None
    top: Annotated[
        int, typer.Option(min=0, help="Number of operations and kernels to print.")
    ] = 10
    quiet: Quiet = False

    @property
    def printed_format(self) -> OutputFormat | None:
        """The format in which the comparison is printed; None for tables on the screen."""
        if self.json:
            return OutputFormat.json
        if self.output is None and self.output_format in _PRINTED_FORMATS:
            return self.output_format
        return None

    def __post_init__(self) -> None:
        if self.json and self.output_format is not None:
            raise UsageError("--json and --format exclude each other; give one")
        if self.output is None and self.output_format is OutputFormat.json:
            tell(
                "--format json is now --json; the old name will be removed in the next release"
            )

    def paths(self, traces: Sequence[str]) -> list[Path]:
        """Return the traces and reports to compare, the baseline first."""
        from tracelens_ext.cli.named_traces import find_traces
        from tracelens_ext.compare.finished_reports import history_in

        named = find_traces(traces, or_reports=True)
        if named.problems:
            raise named.problems[0]
        paths = named.paths
        if self.baseline is not None:
            if len(paths) != 1:
                raise UsageError(
                    "--baseline compares a single trace with a folder; give only one "
                    "trace"
                )
            paths = (
                history_in(folder=self.baseline, last=self.last, without=paths[0])
                + paths
            )
        if len(paths) < 2:
            raise UsageError(
                "a comparison needs at least two traces; the first is the baseline"
            )
        return paths

    def measure(
        self, paths: Sequence[Path], analysis: AnalysisOptions
    ) -> list[Measurement]:
        """Measure traces and reports one after the other; only the measurements stay in memory."""
        from tracelens_ext.compare.finished_reports import is_report, measure_report
        from tracelens_ext.compare.measurement import TRACELENS

        max_bytes = analysis.reading.max_bytes
        reports = {
            path: measure_report(path, max_bytes) for path in paths if is_report(path)
        }
        if any(measured.report == TRACELENS for measured in reports.values()):
            # As TraceLens: like is compared with like.
            analysis = replace(analysis, unlinked_kernels=False)
        shown_problems: set[str] = set()
        measurements = []
        for path in paths:
            if path in reports:
                measurements.append(reports[path])
            else:
                measured = self._measure_trace(
                    path=path,
                    analysis=analysis,
                    shown_problems=shown_problems,
                    with_reports=bool(reports),
                )
                measurements.append(measured)
        return measurements

    def _measure_trace(
        self,
        path: Path,
        analysis: AnalysisOptions,
        shown_problems: set[str],
        *,
        with_reports: bool,
    ) -> Measurement:
        from tracelens_ext.cli.load import analyze
        from tracelens_ext.cli.messages import show_problems
        from tracelens_ext.compare.finished_reports import with_reference
        from tracelens_ext.compare.report import measured_for_comparison

        analyzer = analyze(path, analysis)
        measured = measured_for_comparison(
            analyzer=analyzer,
            micro_idle_thresh_us=self.micro_idle_thresh_us,
            device_peaks=self.device_peaks,
        )
        show_problems(analyzer.problems, shown_problems)
        if with_reports:
            return with_reference(measured, analyzer)
        return measured


def compare(
    traces: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE",
            help=(
                "Traces, folders or patterns; or finished reports: workbooks (.xlsx) "
                "or folders of CSV or Parquet tables. The first is the baseline."
            ),
        ),
    ],
    *,
    options: ComparisonOptions,
    analysis: AnalysisOptions,
    unlinked_kernels: UnlinkedKernels = True,
) -> None:
    """Compare traces or reports with the first: what changed in time, categories and kernels."""
    from tracelens_ext.analysis.memory.snapshot import may_be_snapshot
    from tracelens_ext.cli.comparison_blocks import comparison_blocks
    from tracelens_ext.cli.outputs import OutputOptions, check_outputs, write_outputs
    from tracelens_ext.compare.budgets import check_budgets, parse_budget
    from tracelens_ext.compare.comparison import compare as compare_measurements
    from tracelens_ext.compare.history import history_report
    from tracelens_ext.compare.report import comparison_report
    from tracelens_ext.findings.engine import offered_detectors

    budgets = [parse_budget(text) for text in options.fail_if or ()]
    printed_format = options.printed_format
    outputs = OutputOptions(
        output=options.output,
        format=None if printed_format else options.output_format,
        html=options.html,
        no_workbook=True,
    )
    places = outputs.for_comparison(Path(), several=False)
    outputs.check_extras()
    if all(map(may_be_snapshot, traces)):
        _compare_snapshots(traces, options, analysis.reading)
        return
    analysis = replace(analysis, unlinked_kernels=unlinked_kernels)
    paths = options.paths(traces)
    check_outputs(places, paths, force=options.force)
    measurements = options.measure(paths, analysis)
    has_history = options.baseline is not None
    comparison = compare_measurements(
        measurements, total=options.total, history=has_history
    )
    if has_history:
        report = history_report(comparison)
    else:
        report = comparison_report(comparison, normalize=options.normalize is not None)
    finding_ids = (
        [offered.item.id for offered in offered_detectors()] if budgets else []
    )
    verdicts = check_budgets(budgets, comparison, finding_ids)
    written = write_outputs(report, places, paths, force=options.force)
    if printed_format:
        print_report(report, printed_format)
    elif not options.quiet:
        show(report, comparison_blocks(comparison, report, options.top))
    if any(budget.unit != "mad" for budget in budgets):
        _warn_of_amounts(comparison)
    is_quiet = options.quiet or printed_format is not None
    if not is_quiet:
        tell_written(written)
    _report_verdicts(verdicts, is_quiet=is_quiet)
    if any(verdict.crossed for verdict in verdicts):
        raise typer.Exit(CROSSED)


def _report_verdicts(verdicts: Sequence[BudgetOutcome], *, is_quiet: bool) -> None:
    """Print which budgets are exceeded; unless quiet, also those that are not."""
    for verdict in verdicts:
        if verdict.crossed:
            tell(f"budget exceeded: {verdict}")
        elif not is_quiet:
            print_line(f"Within budget: {verdict}")


def _compare_snapshots(
    traces: Sequence[str], options: ComparisonOptions, reading: ReadingOptions
) -> None:
    """Show the differences between two snapshots of the memory allocator."""
    from tracelens_ext.cli.snapshots import snapshot_blocks, snapshot_report

    paths = [Path(trace) for trace in traces]
    report = snapshot_report(paths, reading)
    as_json = options.printed_format is OutputFormat.json
    show(report, snapshot_blocks(report, options.top), json=as_json)


def _warn_of_amounts(comparison: Comparison) -> None:
    """Warn on standard error if the traces did different amounts of work."""
    from tracelens_ext.compare.verdict import work_text

    if comparison.basis != "trace":
        return
    baseline, *others = comparison.letters
    for letter, verdict in zip(others, comparison.verdicts, strict=False):
        ratio = verdict.work_ratio
        if ratio is None:
            continue
        deviation = abs(ratio - 1)
        if deviation > _SAME_AMOUNT:
            text = work_text(letter, ratio, baseline)
            tell(f"{text}: budgets on time compare different amounts of work")


COMMAND = Command(
    name="compare",
    summary="Compare traces or reports with a baseline.",
    function=compare,
    group="Compare",
    examples=(
        "compare before.json.gz after.json.gz",
        "compare before.json.gz after.json.gz --html changes.html",
        "compare new.json.gz --baseline nightly/ --fail-if 'total_time > +5%'",
    ),
)
