"""`tracelens-ext findings`: what would save the most time, why, and what to do.

And `tracelens-ext what-if`: the wall time if something took longer or shorter, by a replay.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.load import analyze, find_traces, show_problems, without_repetitions
from tracelens_ext.cli.outputs import check_texts, tell_written, write_text
from tracelens_ext.cli.screen import Block, Part, bold, folded, show, tell, trace_report
from tracelens_ext.errors import TraceError, UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.json_text import nested_json_text
from tracelens_ext.report.terminal import safe_text
from tracelens_ext.settings import Progress, ReadingOptions
from tracelens_ext.tables.short_names import cut_middle
from tracelens_ext.text import ms_text

if TYPE_CHECKING:
    from rich.console import Console

    from tracelens_ext.findings.finding import Finding, Findings

_FIRST = 3
_MOST = 8  # of all
_LABEL = 12  # columns of the labels on the left
_NAME = 64  # characters of the name of a place
_WIDEST = 120  # longer lines are hard to read
_SEE = (
    "In brackets: the sheet of the report (gap_… with --gaps) or the command that shows the number."
)


def findings(
    traces: list[str],
    device_peaks: str | None = None,
    json: bool = False,
    whole: bool = False,
    intervals: bool = False,
    *,
    analysis: shared.AnalysisOptions,
    screen: shared.Screen,
) -> None:
    """Show what would save the most time, how much, why, where, and what to do about it.

    Options:
        json: Print JSON instead; of several traces a list, each with its `trace`.
        whole --all: Show all findings, not the first eight that save 1 %.
        intervals: With --json: the stretches of time of each finding.
    """
    from tracelens_ext.cli.parallel import each_trace

    if intervals and not json:
        raise UsageError("--intervals needs --json")
    named, problems = find_traces(traces)
    paths = without_repetitions(named)
    several = len(paths) + len(problems) > 1
    if problems and not several:
        raise problems[0]
    found: list[tuple[Path, Findings]] = []
    shown: set[str] = set()
    tasks = [partial(_found, path, analysis, device_peaks) for path in paths]
    with each_trace(paths, tasks, analysis.reading) as results:
        for path, result in zip(paths, results, strict=True):
            try:
                of_trace, of_plugins = result()
            except TraceError as error:
                if not several:
                    raise
                problems.append(error)
                continue
            show_problems(of_plugins, shown)
            found.append((path, of_trace))
            if not json:
                report = trace_report("Findings", path, {}, of_trace.notes)
                blocks = partial(finding_blocks, path, of_trace, whole)
                again = [[""]] if len(found) > 1 else []
                show(report, [*again, blocks], all_notes=screen.notes)
    if json:
        documents = [
            {"trace": str(path), **of_trace.as_dict(intervals=intervals)}
            for path, of_trace in found
        ]
        if not several:
            del documents[0]["trace"]
        typer.echo(nested_json_text(documents if several else documents[0]))
    for problem in problems:
        tell(str(problem))
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
    analysis = replace(analysis, reading=reading)
    analyzer = analyze(path, analysis, without_tpu=True, progress=progress)
    found = analyzer.findings(device_peaks)
    return found, list(analyzer.problems)


def finding_blocks(trace: Path, found: Findings, whole: bool, console: Console) -> Iterator[Block]:
    """The findings of a trace: the first that are worth it, or all."""
    from tracelens_ext.findings.inspection import LEAST_SHARE_PERCENT
    from tracelens_ext.findings.told import summary_sentence

    width = min(console.width, _WIDEST)
    lines = folded(f"Trace: {trace}", width, "  ")
    recording = f"Recording: {' '.join(found.recording_lines)}"
    for line in [recording, summary_sentence(found)]:
        lines += folded(line, width)
    if found.program:
        told = f"Program: {found.program['kind']} ({found.program['because']})"
        lines += folded(told, width)
    if found.findings and found.model:
        lines += folded(_savings(found.model), width)
    worth = [f for f in found.findings if f.informs_only or f.saving_percent >= LEAST_SHARE_PERCENT]
    shown = found.findings if whole else worth[:_MOST]
    for rank, finding in enumerate(shown, 1):
        yield [*lines, ""]
        head = textwrap.indent("\n".join(folded(finding.title, width - 4)), "    ")
        yield bold(f"{rank:>2}. {head.lstrip()}")
        lines = [line for label, text in _parts(finding) for line in _labelled(label, text, width)]
    if found.findings:
        lines += ["", *folded(_SEE, width)]
    if hidden := len(found.findings) - len(shown):
        less = len(found.findings) - len(worth)
        why = f", {less} of which would save less than 1 % each" if less else ""
        lines += ["", *folded(f"{hidden} more{why}: --all shows them.", width)]
    yield lines


def _savings(model: Mapping[str, object]) -> str:
    """How savings were found."""
    if model["state"] != "good":
        return f"Savings are no more than what is claimed: {model['reason']}."
    error = model["error_percent"]
    return f"Savings overlap. They are a replay's, which misses the wall time by {error:+.2f} %."


def _parts(finding: Finding) -> Iterator[tuple[str, str]]:
    """Label and text of each part, in the order of the page."""
    from tracelens_ext.findings.told import evidence_text, place_texts

    low, high = finding.saving_low_ms, finding.saving_high_ms
    bounds = [f"at least {ms_text(low)}"] if low is not None else []
    bounds += [f"at most {ms_text(high)}"] if high is not None else []
    yield "advice", finding.advice
    if finding.snippet:
        yield "", finding.snippet
    if bounds:
        yield "saves", ", ".join(bounds)
    yield "confidence", f"{finding.confidence}: {finding.confidence_reason}"
    for label, text in place_texts(finding, _cut).items():
        yield label.removeprefix("python "), text
    for number, evidence in enumerate(finding.evidence):
        yield "" if number else "evidence", evidence_text(evidence)
    yield "more", finding.documentation


def _cut(name: str, width: int = _NAME) -> str:
    return cut_middle(safe_text(name), width)


def _labelled(label: str, text: str, width: int) -> list[str]:
    """A text in lines, its label on their left."""
    lines = folded(text, width - 4 - _LABEL) or [""]
    return [
        f"    {part:<{_LABEL}}{line}".rstrip()
        for part, line in zip([label, *[""] * len(lines)], lines, strict=False)
    ]


def first_findings(
    table: pd.DataFrame, title: str, trace: str, console: Console
) -> Iterator[Block]:
    """The first findings of a report's table, two lines each, and who tells more.

    `title` is said above them, or instead of them.
    """
    width = min(console.width, _WIDEST)
    yield [""]
    if not len(table):
        yield folded(f"{title}.", width)
        return
    yield bold(title)
    for rank, row in enumerate(table.head(_FIRST).to_dict("records"), 1):
        yield folded(f"{rank}. {row['title']}", width, "   ")
        second = f"   {row['confidence']} confidence"
        if row["largest_place"]:
            second += "; the largest part: "
            second += _cut(str(row["largest_place"]), width - len(second))
        yield [second]
    more = f", and {len(table) - _FIRST} more" if len(table) > _FIRST else ""
    yield [f"Where, why and what to do{more}: tracelens-ext findings {shlex.quote(trace)}"]


def what_if(
    trace: Path,
    change: list[str] | None = None,
    iteration: int | None = None,
    device: int | None = None,
    waits: Path | None = None,
    device_peaks: str | None = None,
    top: int = 20,
    csv: Path | None = None,
    json: bool = False,
    force: bool = False,
    *,
    analysis: shared.AnalysisOptions,
) -> None:
    """Show what the wall time would be if kernels, copies or the host were faster, or gone.

    Options:
        change NAME=FACTOR: What to multiply, such as GEMM=0.5; joined by commas, together. NAME is
            a category, kernels, kernel:REGEX, op:NAME, copies, communication, launch, gaps, host,
            host:NAME or finding:ID (=0).
        iteration N 0..: Only ProfilerStep#N, not the whole recording.
        waits FILE: How long collectives waited for other ranks: a collective_waits.parquet.
        top -t 0..: Changes to print.
        csv FILE: Write all changes to a file (- prints it).
        json: Print JSON instead, with the critical path.
    """
    from tracelens_ext.findings.detect import tell_claims
    from tracelens_ext.replay.changes import parse_change
    from tracelens_ext.replay.what_if import read_waits

    asked = [parse_change(text) for text in change] if change else None
    table = None if waits is None else read_waits(waits)
    check_texts([csv], trace, force=force, json=json, every=False)
    analyzer = analyze(trace, analysis)
    simulation = analyzer.simulation(iteration, device, table)
    if asked is None or any("finding:" in each for each in change or ()):
        tell_claims(simulation, analyzer.findings(device_peaks).findings)
    frame = simulation.what_if(asked)
    show_problems(analyzer.problems)
    if csv is not None:
        write_text(csv, frame.to_csv(index=False, lineterminator="\n"))
    if json:
        columns = ["change", "factor", "wall_ms", "saved_ms"]
        document = {
            "window": simulation.window(),
            "model": simulation.model(),
            "what_if": frame[columns].to_dict("records"),
            "path": simulation.critical_path.to_dict("records"),
        }
        typer.echo(nested_json_text(document))
    elif str(csv) != "-":
        path = simulation.critical_path_summary()
        parts = [Part("WHAT IF", frame.head(top)), Part("CRITICAL PATH", path.head(top))]
        show(trace_report("What if", trace, {}), [*simulation.lines(), *parts])
        tell_written([csv])
