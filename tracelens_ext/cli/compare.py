"""`tracelens-ext compare`: what changed between traces, and whether a budget holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.messages import print_line, print_report
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.formats import Format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.compare.budgets import Verdict
    from tracelens_ext.compare.comparison import Comparison, Measurement

#: What the command exits with when a budget is crossed.
CROSSED = 3


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
    total: shared.Total = False,
    force: shared.Force = False,
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
        show_snapshots([*map(Path, traces)], top, device=None, json=output_format is Format.json)
        return
    paths, problems = find_traces(traces, or_reports=True)
    if problems:
        raise problems[0]
    if len(paths) < 2:
        raise UsageError("a comparison needs two traces at least; the first is the baseline")
    for note in check_places(places, paths, force=force):
        print_line(f"tracelens-ext: {note}", error=True)
    measured, rooflines = _measure_all(paths, analysis, micro_idle_thresh_us)
    comparison = compare_measurements(measured, per_iteration=False if total else None)
    verdicts = check_budgets(budgets, comparison, _finding_ids() if budgets else ())
    lost = _compare_lost(rooflines, comparison) if len(rooflines) == len(paths) else None
    report = comparison_report(comparison, lost)
    written = write_outputs(report, places, paths, force=force)
    if to_stdout and output_format is not None:
        print_report(report, output_format)
    elif not quiet:
        from rich.console import Console

        from tracelens_ext.cli.report_view import show_comparison

        show_comparison(
            comparison, Console(), top=top, lost=lost, findings=report.sheets.get("findings")
        )
    _tell(verdicts, written, quiet=quiet or to_stdout)
    if any(verdict.crossed for verdict in verdicts):
        raise typer.Exit(CROSSED)


def _measure_all(
    paths: Sequence[Path], options: shared.AnalysisOptions, micro_idle_thresh_us: float | None
) -> tuple[list[Measurement], list[pd.Series]]:
    """Measure traces and reports; also the time lost of each trace that has shapes."""
    from tracelens_ext.compare.finished import is_report, measure_report
    from tracelens_ext.compare.measurement import TRACELENS

    shown_problems: set[str] = set()
    of_reports = {path: measure_report(path) for path in paths if is_report(path)}
    if any(measured.report == TRACELENS for measured in of_reports.values()):
        options = replace(options, unlinked_kernels=False)  # as TraceLens: alike is compared
    rooflines: list[pd.Series] = []
    measured = [
        of_reports[path]
        if path in of_reports
        else _measured(
            path,
            options,
            micro_idle_thresh_us,
            shown_problems,
            rooflines,
            like_reports=bool(of_reports),
        )
        for path in paths
    ]
    return measured, rooflines


def _measured(
    path: Path,
    options: shared.AnalysisOptions,
    micro_idle_thresh_us: float | None,
    shown_problems: set[str],
    rooflines: list[pd.Series],
    *,
    like_reports: bool,
) -> Measurement:
    """Measure one trace; only the measurement and the time lost (if it has shapes) stay."""
    from tracelens_ext.cli.load import analyze, show_problems
    from tracelens_ext.compare.comparison import measure
    from tracelens_ext.compare.findings import with_findings
    from tracelens_ext.compare.finished import with_reference
    from tracelens_ext.compare.roofline import time_lost

    analyzer = analyze(path, options)
    measured = measure(analyzer.work, micro_idle_thresh_us=micro_idle_thresh_us)
    measured = with_findings(measured, analyzer.findings())
    if like_reports:
        measured = with_reference(measured, analyzer)
    elif (roofline := analyzer.roofline()).has_shapes:
        rooflines.append(time_lost(roofline))
    show_problems(analyzer.problems, shown_problems)
    return measured


def _finding_ids() -> list[str]:
    """All findings that a trace can have."""
    from tracelens_ext.findings.detect import offered_detectors

    return [offered.item.id for offered in offered_detectors()]


def _compare_lost(rooflines: Sequence[pd.Series], comparison: Comparison) -> pd.DataFrame | None:
    """The time lost of all traces; None where none of it is known."""
    from tracelens_ext.compare.roofline import compare_time_lost

    if not all(map(len, rooflines)):
        return None
    return compare_time_lost(rooflines, comparison.letters)


def _tell(verdicts: Sequence[Verdict], written: Sequence[Path], *, quiet: bool) -> None:
    """Say what was written and which budgets hold; crossed ones always, on standard error."""
    for path in written:
        if not quiet:
            print_line(f"Wrote {path}")
    for verdict in verdicts:
        if verdict.crossed:
            print_line(f"tracelens-ext: budget crossed: {verdict}", error=True)
        elif not quiet:
            print_line(f"Budget holds: {verdict}")
