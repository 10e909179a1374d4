"""`tracelens-ext findings`: what would save the most time, why, and what to do."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.messages import print_line
from tracelens_ext.settings import Progress, ReadingOptions

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens_ext.findings.finding import Findings


def findings(
    traces: shared.Traces,
    device_peaks: shared.DevicePeaks = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print JSON instead; of several traces a list, each with its `trace`."
        ),
    ] = False,
    whole: Annotated[
        bool,
        typer.Option("--all", help="Show all findings, not the first eight that save 1 %."),
    ] = False,
    intervals: Annotated[
        bool,
        typer.Option("--intervals", help="With --json: the stretches of time of each finding."),
    ] = False,
    *,
    analysis: shared.AnalysisOptions,
) -> None:
    """Show what would save the most time, how much, why, where, and what to do about it."""
    from tracelens_ext.cli.findings_view import show_findings
    from tracelens_ext.cli.inputs import find_traces, without_repetitions
    from tracelens_ext.cli.load import show_problems
    from tracelens_ext.cli.parallel import each_trace
    from tracelens_ext.cli.screen import console
    from tracelens_ext.errors import TraceError, UsageError
    from tracelens_ext.roofline.peaks import read_peaks

    if intervals and not json:
        raise UsageError("--intervals needs --json")
    if device_peaks is not None:
        read_peaks(device_peaks)  # before a trace is read that takes long
    named, problems = find_traces(traces)
    paths = without_repetitions(named)
    if len(paths) + len(problems) == 1 and problems:
        raise problems[0]
    found: list[tuple[Path, Findings]] = []
    shown: set[str] = set()
    tasks = [partial(_found, path, analysis, device_peaks) for path in paths]
    with each_trace(paths, tasks, analysis.reading) as results:
        for path, result in zip(paths, results, strict=True):
            try:
                of_trace, of_plugins = result()
            except TraceError as error:
                if len(paths) + len(problems) == 1:
                    raise
                problems.append(error)
                continue
            show_problems(of_plugins, shown)
            found.append((path, of_trace))
            if not json:
                if len(found) > 1:
                    typer.echo()
                show_findings(path, of_trace, console(), whole=whole)
    if json:
        _print_json(found, intervals=intervals, several=len(paths) + len(problems) > 1)
    for problem in problems:
        print_line(f"tracelens-ext: {problem}", error=True)
    if problems:
        raise typer.Exit(1)


def _found(
    path: Path,
    analysis: shared.AnalysisOptions,
    device_peaks: str | None,
    reading: ReadingOptions,
    progress: Progress | None,
) -> tuple[Findings, list[str]]:
    """The findings of a trace, and the problems of plugins."""
    from tracelens_ext.cli.load import analyze

    analysis = replace(analysis, reading=reading)
    analyzer = analyze(path, analysis, without_tpu=True, progress=progress)
    found = analyzer.findings(device_peaks)
    return found, list(analyzer.problems)


def _print_json(found: list[tuple[Path, Findings]], *, intervals: bool, several: bool) -> None:
    from tracelens_ext.report.json_text import nested_json_text

    documents = [
        {"trace": str(path), **of_trace.as_dict(intervals=intervals)} for path, of_trace in found
    ]
    if not several:
        del documents[0]["trace"]
    typer.echo(nested_json_text(documents if several else documents[0]))
