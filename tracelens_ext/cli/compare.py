"""`tracelens-ext compare`: what changed between traces, and whether a budget holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.load import analyze, find_traces, show_problems
from tracelens_ext.cli.outputs import Wanted, check_outputs, tell_written, write_outputs
from tracelens_ext.cli.screen import Block, Part, print_line, print_report, show, tell
from tracelens_ext.errors import UsageError
from tracelens_ext.kernel_names import short_name
from tracelens_ext.lazy import pd
from tracelens_ext.report.report import Format, Report

if TYPE_CHECKING:
    from tracelens_ext.compare.budgets import Outcome
    from tracelens_ext.compare.comparison import Comparison
    from tracelens_ext.compare.measurement import Measurement

#: What the command exits with when a budget is crossed.
CROSSED = 3
_SAME_AMOUNT = 0.01
#: Tables in the order of the screen, and their titles.
_TITLES = {
    "history": "Against the median of those before, {basis}",
    "findings": "Findings, {basis}",
    "timeline": "GPU timeline, {basis}",
    "phases": "GPU time by phase of serving, whole traces",
    "categories": "GPU time by category, {basis}",
    "operations": "GPU time by CPU operation, {basis}",
    "kernels": "GPU time by kernel, {basis}",
    "places": "GPU time by place in the program, {basis}",
    "roofline": "Time lost against the best case, {basis}",
}
_LONG = frozenset({"history", "operations", "kernels", "places", "roofline"})


@dataclass(frozen=True)
class Comparing:
    """What is compared how, and where it goes.

    Options:
        output -o PATH: Excel file to write, or .json, .md.  [default: none]
        output_format --format: Format of the tables; json and markdown need no --output.
        html FILE: Write a page for browsers.
        fail_if BUDGET: Exit with 3 if this changed by more (repeatable): 'GEMM > +5%', 'total_time
            > 1.5ms', 'findings > 5%'.
        baseline FOLDER: Compare one trace with the median of the last traces or reports in this
            folder.
        last 3..: How many of them, at least 3.
        normalize: Also compare how much each trace loses against the roofline of its own device.
        top 0..: Operations and kernels to print.
    """

    output: str | None = None
    output_format: Format | None = None
    html: str | None = None
    fail_if: list[str] | None = None
    baseline: Path | None = None
    last: int = 5
    total: bool = False
    force: bool = False
    device_peaks: str | None = None
    normalize: Literal["roofline"] | None = None
    micro_idle_thresh_us: float | None = None
    top: int = 10
    quiet: bool = False

    def paths(self, traces: Sequence[str]) -> list[Path]:
        """What is compared, the baseline first."""
        from tracelens_ext.compare.finished import history_in

        paths, problems = find_traces(traces, or_reports=True)
        if problems:
            raise problems[0]
        if self.baseline is not None:
            if len(paths) != 1:
                raise UsageError("--baseline compares one trace with a folder; name one")
            paths = [*history_in(self.baseline, self.last, paths[0]), *paths]
        if len(paths) < 2:
            raise UsageError("a comparison needs two traces at least; the first is the baseline")
        return paths


def compare(
    traces: list[str],
    *,
    asked: Comparing,
    analysis: shared.AnalysisOptions,
) -> None:
    """Compare traces or their reports with the first: what changed, by category and kernel.

    Operands:
        traces TRACE: Traces, folders of them, patterns; or finished reports of traces: workbooks
            (.xlsx), folders of CSV or Parquet tables.

    Options:
        unlinked_kernels --include-unlinked-kernels/--exclude-unlinked-kernels: Count GPU events
            without a launch, or not.  [default: include]
    """
    from tracelens_ext.compare.budgets import check_budgets, parse_budget
    from tracelens_ext.compare.comparison import compare as compare_measurements
    from tracelens_ext.compare.report import comparison_report, history_report
    from tracelens_ext.findings.detect import offered_detectors
    from tracelens_ext.memory.snapshot import is_snapshot

    budgets = [parse_budget(text) for text in asked.fail_if or ()]
    form, force = asked.output_format, asked.force
    printed = form if asked.output is None and form in (Format.json, Format.markdown) else None
    wanted = Wanted(asked.output, None if printed else form, html=asked.html, no_workbook=True)
    places = wanted.for_comparison(Path(), several=False)
    wanted.check_extras()
    if all(map(is_snapshot, traces)):
        from tracelens_ext.cli.iterations import show_snapshots

        as_json, snapshots = form is Format.json, [*map(Path, traces)]
        show_snapshots(snapshots, asked.top, analysis.reading, json=as_json)
        return
    paths, history = asked.paths(traces), asked.baseline is not None
    check_outputs(places, paths, force=force)
    measured = _measure_all(paths, analysis, asked.micro_idle_thresh_us, asked.device_peaks)
    comparison = compare_measurements(measured, total=asked.total, history=history)
    if history:
        report = history_report(comparison)
    else:
        report = comparison_report(comparison, normalize=asked.normalize is not None)
    findings = [each.item.id for each in offered_detectors()] if budgets else []
    verdicts = check_budgets(budgets, comparison, findings)
    written = write_outputs(report, places, paths, force=force)
    if printed:
        print_report(report, printed)
    elif not asked.quiet:
        show(report, comparison_blocks(comparison, report, asked.top))
    if any(each.unit != "mad" for each in budgets):
        _warn_of_amounts(comparison)
    quiet = asked.quiet or printed is not None
    tell_written([] if quiet else written)
    if _tell(verdicts, quiet=quiet):
        raise typer.Exit(CROSSED)


def _tell(verdicts: Sequence[Outcome], *, quiet: bool) -> bool:
    """Say which budgets hold; crossed ones always, on standard error. Whether any is crossed."""
    for verdict in verdicts:
        if verdict.crossed:
            tell(f"budget crossed: {verdict}")
        elif not quiet:
            print_line(f"Budget holds: {verdict}")
    return any(verdict.crossed for verdict in verdicts)


def _measure_all(
    paths: Sequence[Path],
    options: shared.AnalysisOptions,
    micro_idle_thresh_us: float | None,
    device_peaks: str | None,
) -> list[Measurement]:
    """Measure traces and reports, one after the other: only the measurements stay."""
    from tracelens_ext.compare.finished import is_report, measure_report, with_reference
    from tracelens_ext.compare.measurement import TRACELENS
    from tracelens_ext.compare.report import measured_for_comparison

    shown: set[str] = set()
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
        show_problems(analyzer.problems, shown)
        return with_reference(found, analyzer) if of_reports else found

    return list(map(measured, paths))


def _warn_of_amounts(comparison: Comparison) -> None:
    """Say on standard error that whole traces did not do the same work."""
    from tracelens_ext.compare.verdict import work_text

    verdicts = comparison.verdicts if comparison.basis == "trace" else []
    for letter, verdict in zip(comparison.letters[1:], verdicts, strict=False):
        if verdict.work_ratio is not None and abs(verdict.work_ratio - 1) > _SAME_AMOUNT:
            told = work_text(letter, verdict.work_ratio, comparison.letters[0])
            tell(f"{told}: budgets on time compare different amounts")


def comparison_blocks(comparison: Comparison, report: Report, top: int) -> Iterator[Block]:
    """The verdict, what was compared, and the tables."""
    from tracelens_ext.compare.verdict import time_basis

    facts = dict(report.facts)
    yield str(facts["Verdict"])
    for letter in () if comparison.history else comparison.letters:
        role = f"{letter} (baseline)" if letter == comparison.letters[0] else letter
        line = f"{role}: {facts[role]}; devices: {facts[f'{letter} devices']};"
        yield f"{line} iterations: {facts[f'{letter} iterations']}"
    for name, title in _TITLES.items():
        if (frame := report.sheets.get(name)) is not None and len(frame):
            shown = _of_comparison(frame.head(top) if name in _LONG else frame)
            title = title.format(basis=time_basis(comparison))
            yield Part(title, shown, keep=("difference_ms",))


def _of_comparison(frame: pd.DataFrame) -> pd.DataFrame:
    """Leave out what other columns tell; simplify kernel names, which come first."""
    # Of several traces there is room for the percentages alone.
    several = () if "difference_ms" in frame else ("difference_ms", "by_speed_ms")
    told = ("ratio", "_count", "_calls", "_kernels", "by_calls_ms", "backward", "only_in", *several)
    shown = frame[[c for c in frame if not str(c).endswith(told)]]
    if "path" in shown:
        sides = [c for c in shown if str(c).endswith("_operation")]
        words = shown[sides].fillna("").to_numpy().tolist()
        operation = [" → ".join(dict.fromkeys(filter(None, each))) for each in words]
        shown = shown.drop(columns=[*sides, "path"])
        shown.insert(0, "operation", operation)
        shown.insert(0, "path", frame["path"])
    if "kernel_name" not in shown:
        return shown
    names = [short_name(name) for name in shown["kernel_name"]]
    return shown.drop(columns="kernel_category", errors="ignore").assign(kernel_name=names)
