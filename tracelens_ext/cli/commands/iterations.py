"""`tracelens-ext iterations`: shows how long each training step took, and the outliers."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens_ext.cli.options import (
    AnalysisOptions,
    Annotation,
    Json,
    TraceArgument,
    UnlinkedKernels,
)
from tracelens_ext.cli.screen import (
    Block,
    Part,
    Section,
    first_lines,
    folded,
    show,
    trace_report,
)
from tracelens_ext.errors import UsageError
from tracelens_ext.hooks import Command
from tracelens_ext.text import counted

if TYPE_CHECKING:
    from rich.console import Console

    from tracelens_ext.analysis.iterations.measurement import IterationTable
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.trace.call_tree import CallTree

_SUGGESTED = 5
_MOST_TO_PASTE = 200  # characters
_MOST_ODD = 10
_MOST_COLUMNS = 4
_MOST_STATISTICS = 15
#: The columns that are left out first on a narrow terminal: both are parts of the busy time.
_SHOWN_LAST = ("computation_time_ms", "exposed_memcpy_time_ms")
_STATISTICS = ("column", "device", "mean", "std", "median", "mad", "odd", "min", "max")


def iterations(
    trace: TraceArgument,
    annotation: Annotation = None,
    json: Json = False,
    top: Annotated[
        int, typer.Option(min=0, help="Number of iterations to print, from the first.")
    ] = 50,
    *,
    analysis: AnalysisOptions,
    unlinked_kernels: UnlinkedKernels = True,
) -> None:
    """Show the wall time, GPU time and idle time of each iteration, and the outliers."""
    from tracelens_ext.analysis.iterations.measurement import iteration_table
    from tracelens_ext.categorize.user_patterns import user_pattern
    from tracelens_ext.cli.load import analyze, recording_notes

    pattern = user_pattern(annotation, "annotation")
    analyzer = analyze(trace, replace(analysis, unlinked_kernels=unlinked_kernels))
    if not len(analyzer.gpu_events):
        _show_cpu_iterations(
            analyzer=analyzer, trace=trace, annotation=annotation, top=top, json=json
        )
        return
    table = iteration_table(analyzer.gpu_events, pattern)
    if not len(table):
        raise UsageError(_no_iterations(trace, analyzer.tree, annotation))
    tables = {"iterations": table.frame, "iteration_statistics": table.statistics}
    notes = list(table.notes) + recording_notes(analyzer, for_json=json)
    report = trace_report(title="Iterations", trace=trace, tables=tables, notes=notes)
    show(
        report,
        first_lines(analyzer.gpu_events, trace) + list(_blocks(table, top)),
        json=json,
    )


def _show_cpu_iterations(
    analyzer: TreePerfAnalyzer,
    trace: Path,
    annotation: str | None,
    top: int,
    *,
    json: bool,
) -> None:
    """Show the iterations of a trace without GPU work."""
    from tracelens_ext.analysis.cpu_time.iterations import cpu_iterations
    from tracelens_ext.cli.load import recording_notes

    table = cpu_iterations(analyzer.tree, annotation)
    if not len(table):
        raise UsageError(_no_iterations(trace, analyzer.tree, annotation))
    notes = list(table.notes) + recording_notes(analyzer, for_json=json)
    tables = {"cpu_iterations": table.frame}
    report = trace_report(title="Iterations", trace=trace, tables=tables, notes=notes)
    columns = [name for name in map(str, table.frame) if name not in ("odd", "whole")]
    part = Part(
        title="Iterations on the CPU", frame=table.frame, columns=columns, rows=top
    )
    show(report, first_lines(analyzer.gpu_events, trace) + [part], json=json)


def _blocks(table: IterationTable, top: int) -> Iterator[Block]:
    """Yield the iterations, their statistics, and the outliers."""
    statistics = table.statistics
    count = 0
    if len(statistics):
        count = int(statistics["iterations"].max())
    title = f"Mean and spread of {counted(count, 'complete iteration')}, ms"
    yield Part(
        title="Iterations",
        frame=table.frame,
        columns=_shown_columns(table.frame.columns.tolist()),
        rows=top,
    )
    yield Part(
        title=title, frame=statistics.head(_MOST_STATISTICS), columns=_STATISTICS
    )
    yield Section("odd iterations", lambda console: [_odd_lines(table, console)])


def _no_iterations(path: Path, tree: CallTree, annotation: str | None) -> str:
    """Return the message that there are no iterations, with annotations that could be used."""
    from tracelens_ext.analysis.iterations.candidates import likely_iterations

    likely = [
        name
        for name in likely_iterations(tree, _SUGGESTED)
        if len(name) <= _MOST_TO_PASTE
    ]
    wanted = "ProfilerStep#N"
    if annotation is not None:
        wanted = f"annotation that matches {annotation!r}"
    if not likely:
        return (
            f"{path}: has no {wanted}, nor any other annotation that launches GPU "
            "work; record the trace with profiler.step() or with record_function "
            "around each iteration"
        )
    quoted = ", ".join(map(shlex.quote, likely))
    return (
        f"{path}: has no {wanted}; choose another annotation with --annotation REGEX, "
        f"such as {quoted}"
    )


def _shown_columns(columns: Sequence[str]) -> list[str]:
    """Return the columns to print; where room is short, the last ones are left out."""
    from tracelens_ext.analysis.iterations.measurement import is_category_time

    general: list[str] = []
    by_category: list[str] = []
    for column in columns:
        if column in ("odd", "whole") + _SHOWN_LAST:
            continue
        if by_category or is_category_time(column):
            by_category.append(column)
        else:
            general.append(column)
    return general + list(_SHOWN_LAST) + by_category


@dataclass(frozen=True)
class _OddIteration:
    """An outlier among the iterations."""

    lines: list[str]
    deviation: float  #: the largest deviation of any of its times from the median


def _odd_lines(table: IterationTable, console: Console) -> list[str]:
    """Return the unusual times of each outlier beside the median, folded to the width."""
    from tracelens_ext.analysis.iterations.measurement import ODD_AT_LEAST, ODD_BEYOND

    odd = _odd_iterations(table, console.width)
    if not odd:
        return []
    odd.sort(key=lambda iteration: -iteration.deviation)
    lines = [line for iteration in odd[:_MOST_ODD] for line in iteration.lines]
    if len(odd) > _MOST_ODD:
        lines.append(f"  and {len(odd) - _MOST_ODD:,} more (--json shows all)")
    beyond = (
        f"more than {ODD_BEYOND} median absolute deviations and {ODD_AT_LEAST:.0%} "
        "from the median"
    )
    return ["", f"Outliers ({beyond}):"] + lines


def _odd_iterations(table: IterationTable, width: int) -> list[_OddIteration]:
    """Return the outliers in the order of the iterations."""
    has_device = "device" in table.frame
    keys = ["column", "device"] if has_device else ["column"]
    medians = table.statistics.set_index(keys)["median"].to_dict()
    odd = []
    for row in table.frame[table.frame["odd"] != ""].to_dict("records"):
        device = f", device {row['device']}" if has_device else ""
        deviation = 0.0
        parts = []
        for column in str(row["odd"]).split(", "):
            median = medians[(column, row["device"]) if has_device else column]
            part = _against_median(column, row[column], median)
            parts.append(part.replace(" ", "\u00a0"))
            if column != "kernels":
                deviation = max(deviation, abs(row[column] - median))
        more = len(parts[_MOST_COLUMNS:])
        if more:
            parts[_MOST_COLUMNS:] = [f"{more}\u00a0more"]
        line = f"  {_name(row['iteration'])}{device}: {'; '.join(parts)}"
        odd.append(_OddIteration(folded(line, width, "    "), deviation))
    return odd


def _name(iteration: object) -> str:
    from tracelens_ext.report.terminal import name_text

    return name_text(str(iteration))


def _against_median(column: str, value: float, median: float) -> str:
    """Return a time and its median with equal decimals: `idle_time 2.461 ms (median 3.907 ms)`."""
    from tracelens_ext.report.tables.units import Shown

    shown = Shown.of(column, [value, median])
    symbol = shown.unit.symbol
    name = column.removesuffix(f"_{symbol}")
    suffix = f" {symbol}".rstrip()
    return f"{name} {shown.text(value)}{suffix} (median {shown.text(median)}{suffix})"


COMMAND = Command(
    name="iterations",
    summary="Show the time of each iteration, and the outliers.",
    function=iterations,
    group="Inspect",
    examples=(
        "iterations trace.json.gz",
        "iterations trace.json.gz --annotation 'train_step.*'",
        "iterations trace.json.gz --json",
    ),
)
