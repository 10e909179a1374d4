"""`tracelens-ext compare`: what changed between traces, and whether a budget holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.messages import print_line, print_report
from tracelens_ext.errors import UsageError
from tracelens_ext.report.report import Format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.compare.budgets import Outcome
    from tracelens_ext.compare.comparison import Comparison
    from tracelens_ext.compare.measurement import Measurement

#: What the command exits with when a budget is crossed.
CROSSED = 3
_SAME_AMOUNT = 0.01


def compare(
    traces: shared.TracesOrReports,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="Excel file to write, or .json, .md.  [default: none]",
            show_default=False,
        ),
    ] = None,
    output_format: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="Format of the tables; json and markdown need no --output.",
            show_default=False,
        ),
    ] = None,
    html: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="Write a page for browsers.")
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="BUDGET",
            help="Exit with 3 if this changed by more (repeatable): 'GEMM > +5%',"
            " 'total_time > 1.5ms', 'findings > 5%'.",
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Compare one trace with the median of the last traces or reports in this folder.",
        ),
    ] = None,
    last: Annotated[int, typer.Option(help="How many of them, at least 3.", min=3)] = 5,
    total: shared.Total = False,
    force: shared.Force = False,
    device_peaks: shared.DevicePeaks = None,
    normalize: Annotated[
        Literal["roofline"] | None,
        typer.Option(
            help="Also compare how much each trace loses against the roofline of its own device."
        ),
    ] = None,
    micro_idle_thresh_us: shared.MicroIdle = None,
    top: Annotated[int, typer.Option(help="Operations and kernels to print.", min=0)] = 10,
    quiet: shared.Quiet = False,
    *,
    analysis: shared.AnalysisOfLinked,
) -> None:
    """Compare traces or their reports with the first: what changed, by category and kernel."""
    from tracelens_ext.cli.inputs import find_traces
    from tracelens_ext.cli.outputs import Wanted, write_outputs
    from tracelens_ext.cli.snapshot import show_snapshots
    from tracelens_ext.compare.budgets import check_budgets, parse_budget
    from tracelens_ext.compare.comparison import compare as compare_measurements
    from tracelens_ext.compare.report import comparison_report
    from tracelens_ext.memory.snapshot import is_snapshot
    from tracelens_ext.report.report import check_places

    budgets = [parse_budget(text) for text in fail_if or ()]
    to_stdout = output is None and output_format in (Format.json, Format.markdown)
    wanted = Wanted(output, None if to_stdout else output_format, None, html)
    places = wanted.of_comparison()
    wanted.check_extras()
    if all(map(is_snapshot, traces)):
        show_snapshots(
            [*map(Path, traces)],
            top,
            analysis.reading,
            device=None,
            json=output_format is Format.json,
        )
        return
    paths, problems = find_traces(traces, or_reports=True)
    if problems:
        raise problems[0]
    if baseline is not None:
        paths = _with_history(baseline, last, paths)
    if len(paths) < 2:
        raise UsageError("a comparison needs two traces at least; the first is the baseline")
    for note in check_places(places, paths, force=force):
        print_line(f"tracelens-ext: {note}", error=True)
    measured = _measure_all(paths, analysis, micro_idle_thresh_us, device_peaks)
    comparison = compare_measurements(measured, total=total, history=baseline is not None)
    if baseline is not None:
        from tracelens_ext.compare.history import history_report

        report = history_report(comparison)
    else:
        report = comparison_report(comparison, normalize=normalize is not None)
    verdicts = check_budgets(budgets, comparison, _finding_ids() if budgets else ())
    written = write_outputs(report, places, paths, force=force)
    if to_stdout and output_format is not None:
        print_report(report, output_format)
    elif not quiet:
        from tracelens_ext.cli.report_view import show_comparison
        from tracelens_ext.cli.screen import console

        show_comparison(comparison, report, console(), top=top)
    if any(each.unit != "mad" for each in budgets):
        _warn_of_amounts(comparison)
    _tell(verdicts, written, quiet=quiet or to_stdout)
    if any(verdict.crossed for verdict in verdicts):
        raise typer.Exit(CROSSED)


def _with_history(folder: Path, last: int, paths: Sequence[Path]) -> list[Path]:
    from tracelens_ext.compare.history import history_in

    if len(paths) != 1:
        raise UsageError("--baseline compares one trace with a folder; name one")
    return [*history_in(folder, last, paths[0]), *paths]


def _measure_all(
    paths: Sequence[Path],
    options: shared.AnalysisOptions,
    micro_idle_thresh_us: float | None,
    device_peaks: str | None,
) -> list[Measurement]:
    """Measure traces and reports, one after the other: only the measurements stay."""
    from tracelens_ext.cli.load import analyze, show_problems
    from tracelens_ext.compare.finished import is_report, measure_report, with_reference
    from tracelens_ext.compare.measurement import TRACELENS
    from tracelens_ext.compare.report import measured_for_comparison

    shown_problems: set[str] = set()
    of_reports = {
        path: measure_report(path, options.reading.max_bytes) for path in paths if is_report(path)
    }
    if any(measured.report == TRACELENS for measured in of_reports.values()):
        options = replace(options, unlinked_kernels=False)  # as TraceLens: alike is compared

    def measured(path: Path) -> Measurement:
        if path in of_reports:
            return of_reports[path]
        analyzer = analyze(path, options)
        found = measured_for_comparison(analyzer, micro_idle_thresh_us, device_peaks)
        show_problems(analyzer.problems, shown_problems)
        return with_reference(found, analyzer) if of_reports else found

    return list(map(measured, paths))


def _finding_ids() -> list[str]:
    """All findings that a trace can have."""
    from tracelens_ext.findings.detect import offered_detectors

    return [offered.item.id for offered in offered_detectors()]


def _warn_of_amounts(comparison: Comparison) -> None:
    """Say on standard error that whole traces did not do the same work."""
    verdicts = comparison.verdicts if comparison.basis == "trace" else []
    for letter, verdict in zip(comparison.letters[1:], verdicts, strict=False):
        if verdict.work_ratio is not None and abs(verdict.work_ratio - 1) > _SAME_AMOUNT:
            line = f"{letter} did {verdict.work_ratio:.2f} of {comparison.letters[0]}'s work:"
            line += " budgets on time compare different amounts"
            print_line(f"tracelens-ext: {line}", error=True)


def _tell(verdicts: Sequence[Outcome], written: Sequence[Path], *, quiet: bool) -> None:
    """Say what was written and which budgets hold; crossed ones always, on standard error."""
    for path in written:
        if not quiet:
            print_line(f"Wrote {path}")
    for verdict in verdicts:
        if verdict.crossed:
            print_line(f"tracelens-ext: budget crossed: {verdict}", error=True)
        elif not quiet:
            print_line(f"Budget holds: {verdict}")
