"""`tracelens-ext findings`: what would save the most time, why, and what to do.

And `tracelens-ext what-if`: the wall time if something took longer or shorter, by a replay; and
`tracelens-ext roofline`: how good each operation is, and how many milliseconds are lost.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from tracelens_ext.cli import options as shared
from tracelens_ext.cli import screen
from tracelens_ext.cli.load import analyze, find_traces, show_problems, without_repetitions
from tracelens_ext.errors import TraceError, UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.formats import nested_json_text
from tracelens_ext.report.tables.short_names import cut_middle
from tracelens_ext.report.terminal import name_text, safe_text
from tracelens_ext.settings import Progress, ReadingOptions
from tracelens_ext.text import ms_text

if TYPE_CHECKING:
    from rich.console import Console

    from tracelens_ext.findings.finding import Finding, Findings
    from tracelens_ext.roofline.analysis import RooflineRow

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
                blocks: list[screen.Block] = [partial(finding_blocks, path, of_trace, whole)]
                if len(found) > 1:
                    blocks.insert(0, [""])
                screen.show(screen.trace_report("Findings", path, {}, of_trace.notes), blocks)
    if json:
        documents = [of_trace.as_dict(intervals=intervals) for _, of_trace in found]
        if several:
            names = ({"trace": str(path)} for path, _ in found)
            documents = [name | own for name, own in zip(names, documents, strict=True)]
        typer.echo(nested_json_text(documents if several else documents[0]))
    for problem in problems:
        screen.tell(str(problem))
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
    return analyzer.findings(device_peaks), list(analyzer.problems)


def finding_blocks(
    trace: Path, found: Findings, whole: bool, console: Console
) -> Iterator[screen.Block]:
    """The findings of a trace: the first that are worth it, or all."""
    from tracelens_ext.findings.inspection import LEAST_SHARE_PERCENT
    from tracelens_ext.findings.summary import summary_sentence

    width = min(console.width, _WIDEST)
    lines = screen.folded(f"Trace: {trace}", width, "  ")
    first = [f"Recording: {' '.join(found.recording_lines)}", summary_sentence(found)]
    if found.program:
        first.append(f"Program: {found.program['kind']} ({found.program['because']})")
    if found.findings and (model := found.model):
        savings = f"Savings are no more than what is claimed: {model['reason']}."
        if model["state"] == "good":
            wrong = f"{model['error_percent']:+.2f} %"
            savings = (
                f"Savings overlap. They are a replay's, which misses the wall time by {wrong}."
            )
        first.append(savings)
    lines += [line for text in first for line in screen.folded(text, width)]
    worth = [f for f in found.findings if f.informs_only or f.saving_percent >= LEAST_SHARE_PERCENT]
    shown = found.findings if whole else worth[:_MOST]
    for rank, finding in enumerate(shown, 1):
        yield [*lines, ""]
        head = textwrap.indent("\n".join(screen.folded(finding.title, width - 4)), "    ")
        yield screen.bold(f"{rank:>2}. {head.lstrip()}")
        lines = []
        for label, text in _parts(finding):  # labels on the left
            told = zip_longest([label], screen.folded(text, width - 4 - _LABEL), fillvalue="")
            lines += [f"    {left:<{_LABEL}}{line}".rstrip() for left, line in told]
    if found.findings:
        lines += ["", *screen.folded(_SEE, width)]
    if hidden := len(found.findings) - len(shown):
        less = len(found.findings) - len(worth)
        why = f", {less} of which would save less than 1 % each" if less else ""
        lines += ["", *screen.folded(f"{hidden} more{why}: --all shows them.", width)]
    yield lines


def _parts(finding: Finding) -> Iterator[tuple[str, str]]:
    """Label and text of each part, in the order of the page."""
    from tracelens_ext.findings.summary import evidence_text, place_texts

    bounds = {"at least": finding.saving_low_ms, "at most": finding.saving_high_ms}
    saves = ", ".join(f"{word} {ms_text(ms)}" for word, ms in bounds.items() if ms is not None)
    yield "advice", finding.advice
    if finding.snippet:
        yield "", finding.snippet
    if saves:
        yield "saves", saves
    yield "confidence", f"{finding.confidence}: {finding.confidence_reason}"
    for label, text in place_texts(finding, _cut).items():
        yield label.removeprefix("python "), text
    for number, evidence in enumerate(finding.evidence):
        yield "" if number else "evidence", evidence_text(evidence)
    yield "more", finding.documentation


def _cut(name: str, width: int = _NAME) -> str:
    return cut_middle(safe_text(name), width)


def first_findings(
    table: pd.DataFrame, title: str, trace: str, console: Console
) -> Iterator[screen.Block]:
    """The first findings of a report's table, two lines each below a title, and who tells more."""
    width = min(console.width, _WIDEST)
    yield [""]
    if not len(table):
        yield screen.folded(f"{title}.", width)
        return
    yield screen.bold(title)
    for rank, row in enumerate(table.head(_FIRST).to_dict("records"), 1):
        yield screen.folded(f"{rank}. {row['title']}", width, "   ")
        second = f"   {row['confidence']} confidence"
        if place := row["largest_place"]:
            second += "; the largest part: "
            second += _cut(str(place), width - len(second))
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
    from tracelens_ext.findings.engine import tell_claims
    from tracelens_ext.simulation.scenarios import parse_change
    from tracelens_ext.simulation.simulation import read_waits

    asked = [parse_change(text) for text in change] if change else None
    table = None if waits is None else read_waits(waits)
    screen.check_texts([csv] if csv else [], trace, force=force, json=json)
    analyzer = analyze(trace, analysis)
    simulation = analyzer.simulation(iteration, device, table)
    if asked is None or any("finding:" in each for each in change or ()):
        tell_claims(simulation, analyzer.findings(device_peaks).findings)
    frame = simulation.what_if(asked)
    show_problems(analyzer.problems)
    text = frame.to_csv(index=False, lineterminator="\n") if csv else ""
    if csv and json:
        screen.write_text(csv, text)
    if json:
        document = {
            "window": simulation.window(),
            "model": simulation.model(),
            "what_if": frame[["change", "factor", "wall_ms", "saved_ms"]],
            "path": simulation.critical_path,
        }
        typer.echo(nested_json_text(document))
    else:
        shown = {"WHAT IF": frame, "CRITICAL PATH": simulation.critical_path_summary()}
        parts = [screen.Part(title, table.head(top)) for title, table in shown.items()]
        report = screen.trace_report("What if", trace, {})
        screen.show(report, [*simulation.lines(), *parts], texts={csv: lambda: text} if csv else {})


Sort = Literal["lost", "time", "percent", "count"]
#: Column, whether the largest comes first, and title.
_SORTS: dict[Sort, tuple[str, bool, str]] = {
    "lost": ("time_lost_ms", False, "Operations that lose the most time"),
    "time": ("gpu_time_ms", False, "Operations that take longest"),
    "percent": ("% of roofline", True, "Operations furthest from their roofline"),
    "count": ("count", False, "Operations called most often"),
}
_MOST_ITERATIONS = 10
_HEADER = f"{'lost ms':>10} {'GPU ms':>10} {'% of roof':>9}  {'bound':7} {'calls':>7}  operation"
_INDENT = " " * 12


def roofline(
    trace: Path,
    device_peaks: str | None = None,
    sort: Sort = "lost",
    family: str | None = None,
    top: int = 10,
    annotation: str | None = None,
    pstep: int | None = None,
    device: int | None = None,
    capture: Path | None = None,
    json: bool = False,
    *,
    reading: ReadingOptions,
) -> None:
    """Show how far each operation is from what the GPU can do, and the time that is lost.

    Options:
        sort -s: lost: the most time lost; time: GPU time; percent: furthest from the roofline;
            count: calls.
        family: Only operations of this family, such as GEMM.
        top -t 0..: Operations to print.
    """
    from tracelens_ext.analysis.iterations.selection import Selection
    from tracelens_ext.roofline.summary import advice, modelled, roofline_facts

    how = shared.AnalysisOptions(kernel_categories=False, capture=capture, reading=reading)
    analyzer = analyze(trace, how)
    selection = Selection(pstep, device=device)
    found = analyzer.roofline(device_peaks, selection)
    show_problems(analyzer.problems)
    frame = analyzer.get_df_roofline(device_peaks, selection=selection)
    column, ascending, title = _SORTS[sort]
    if sort == "lost" and frame[column].isna().all():
        column = "gpu_time_ms"  # without peaks
    frame = frame.sort_values(column, ascending=ascending, kind="stable")
    if family is not None:
        names = frame["family"].fillna("")
        frame = frame[names.str.casefold() == family.casefold()]
        if not len(frame):
            has = ", ".join(sorted(set(names) - {""})) or "none"
            raise UsageError(f"no operation is of the family {family!r}; the trace has {has}")
    facts = roofline_facts(analyzer.trace, found)
    if selection.text:
        facts.append(("Selected", selection.text))
    families = analyzer.get_df_families(device_peaks, selection=selection)
    steps = analyzer.get_df_mfu_by_iteration(device_peaks, annotation, selection=selection)
    tables = {"roofline": frame, "families": families, "mfu_by_iteration": steps}
    notes = advice(analyzer.work, found)

    def blocks() -> Iterator[screen.Block]:
        yield from screen.first_lines(analyzer.work, trace)
        told = [screen.fact_text(*fact) for fact in facts if fact[0] != "GPU time modelled (%)"]
        told.append(f"{modelled(found)}.")
        yield lambda console: [screen.folded(text, console.width, "  ") for text in told]
        known = steps if steps["mfu_%"].notna().any() else steps.drop(columns="mfu_%")
        yield screen.Part.of("mfu_by_iteration", known.head(_MOST_ITERATIONS))
        if (more := len(steps) - _MOST_ITERATIONS) > 0:
            yield [f"{more:,} more iterations (--json shows all)"]
        yield screen.Part.of("families", families.dropna(axis="columns", how="all"))
        rows = [found.rows[i] for i in frame.index[:top].tolist()]
        yield lambda console: [_operations(rows, title, console)]
        if rows and (more := len(frame) - len(rows)):
            yield [f"{more:,} more not shown (--top)"]

    report = screen.trace_report("Roofline", trace, tables, notes, facts=facts)
    screen.show(report, blocks(), json=json)


def _operations(rows: Sequence[RooflineRow], title: str, console: Console) -> list[str]:
    """Operations, each in three lines at most: numbers, shapes, why it is slow."""
    from tracelens_ext.roofline.summary import shape_text
    from tracelens_ext.trace import NS_PER_MS

    if not rows:
        return []
    lines = ["", title, _HEADER, "-" * min(console.width, 79)]
    for row in rows:
        percent = lost = ""
        if row.roofline_ns is not None:
            lost = f"{(row.lost_ns or 0.0) / NS_PER_MS:,.3f}"
            percent = f"{100.0 * row.roofline_ns / row.gpu_ns:,.1f}" if row.gpu_ns else ""
        head = f"{lost:>10} {row.gpu_ns / NS_PER_MS:>10,.3f} {percent:>9}"
        head += f"  {row.bound or '':7} {row.count:>7,}  "
        room = max(console.width - len(head), 16)
        lines.append(head + cut_middle(name_text(row.operation.name), room))
        why = row.why_slow or (f"no model: {row.why_no_model}" if row.why_no_model else "")
        for text in (shape_text(row), row.device_model, why):
            lines += screen.folded(_INDENT + text, console.width, _INDENT) if text else []
    return lines
