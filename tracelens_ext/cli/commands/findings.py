"""`tracelens-ext findings`: what would save the most time, why, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracelens_ext.cli.options import AnalysisOptions, DevicePeaks, TracesArgument
from tracelens_ext.cli.screen import Block, Section, show, trace_report
from tracelens_ext.errors import TraceError, UsageError
from tracelens_ext.hooks import Command
from tracelens_ext.settings import Progress, ReadingOptions

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Findings


def findings(
    traces: TracesArgument,
    device_peaks: DevicePeaks = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print JSON instead; for several traces, a list in which each entry "
            "names its `trace`.",
        ),
    ] = False,
    whole: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Show all findings, not only the first eight that save at least 1 %.",
        ),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            help="Show evidence and all places, not only eight lines per finding.",
        ),
    ] = False,
    intervals: Annotated[
        bool,
        typer.Option(
            "--intervals",
            help="With --json: include the time intervals of each finding.",
        ),
    ] = False,
    *,
    analysis: AnalysisOptions,
) -> None:
    """Show what would save the most time: how much, why, where, and what to change."""
    from tracelens_ext.cli.messages import show_problems, tell_errors
    from tracelens_ext.cli.named_traces import find_traces, without_repetitions
    from tracelens_ext.cli.parallel import each_trace
    from tracelens_ext.report.formats import nested_json_text

    if intervals and not json:
        raise UsageError("--intervals needs --json; add it")
    named = find_traces(traces)
    problems = list(named.problems)
    paths = without_repetitions(named.paths)
    are_several = len(paths) + len(problems) > 1
    if problems and not are_several:
        raise problems[0]
    shown_problems: set[str] = set()
    documents = []
    is_first = True
    tasks = [partial(_findings_of, path, analysis, device_peaks) for path in paths]
    with each_trace(paths, tasks, analysis.reading) as results:
        for get_result in results:
            try:
                of_trace = get_result()
            except TraceError as error:
                if not are_several:
                    raise
                problems.append(error)
                continue
            show_problems(of_trace.plugin_problems, shown_problems)
            if json:
                documents.append(_document(of_trace, intervals=intervals))
            else:
                _show(of_trace, whole=whole, verbose=verbose, is_first=is_first)
            is_first = False
    if json and are_several:
        typer.echo(nested_json_text(documents))
    elif json:
        (document,) = documents
        del document["trace"]
        typer.echo(nested_json_text(document))
    tell_errors(problems)
    if problems:
        raise typer.Exit(1)


@dataclass(frozen=True)
class _TraceFindings:
    """The findings of a trace, and the notes about it."""

    path: Path
    findings: Findings
    plugin_problems: Sequence[str]
    notes_of_screen: Sequence[str]
    notes_of_json: Sequence[str]


def _findings_of(
    path: Path,
    analysis: AnalysisOptions,
    device_peaks: str | None,
    reading: ReadingOptions,
    progress: Progress | None,
) -> _TraceFindings:
    """Return the findings of a trace; this is the task of a worker process."""
    from tracelens_ext.cli.load import analyze, recording_notes

    analysis = replace(analysis, reading=reading)
    analyzer = analyze(path, analysis, refuses_tpu=True, progress=progress)
    trace_findings = analyzer.findings(device_peaks)
    failures = analyzer.failures.messages
    return _TraceFindings(
        path=path,
        findings=trace_findings,
        plugin_problems=[p for p in analyzer.problems if p not in failures],
        notes_of_screen=recording_notes(analyzer, for_json=False),
        notes_of_json=recording_notes(analyzer, for_json=True),
    )


def _show(
    of_trace: _TraceFindings, *, whole: bool, verbose: bool, is_first: bool
) -> None:
    """Print the findings of a trace."""
    from tracelens_ext.cli.finding_blocks import finding_blocks

    blocks: list[Block] = [] if is_first else [[""]]
    make_blocks = partial(
        finding_blocks, of_trace.path, of_trace.findings, whole, verbose=verbose
    )
    blocks.append(Section("findings", make_blocks))
    notes = dict.fromkeys(
        list(of_trace.findings.notes) + list(of_trace.notes_of_screen)
    )
    show(
        trace_report(title="Findings", trace=of_trace.path, tables={}, notes=notes),
        blocks,
    )


def _document(of_trace: _TraceFindings, *, intervals: bool) -> dict[str, Any]:
    """Return the JSON of the findings of a trace, which begins with the trace."""
    from tracelens_ext.cli.finding_blocks import finding_documents

    document = of_trace.findings.as_dict(intervals=intervals)
    shown_findings = finding_documents(
        of_trace.findings.findings,
        document["findings"],  # type: ignore[arg-type]  # of JSON values
    )
    notes = dict.fromkeys(list(of_trace.findings.notes) + list(of_trace.notes_of_json))
    return {
        "trace": str(of_trace.path),
        **document,
        "findings": shown_findings,
        "notes": list(notes),
    }


COMMAND = Command(
    name="findings",
    summary="Show what would save the most time, and what to change.",
    function=findings,
    group="Diagnose",
    examples=(
        "findings trace.json.gz",
        "findings trace.json.gz --json --intervals",
        "findings trace.json.gz --device-peaks 'H100 SXM'",
    ),
)
