"""`tracelens-ext iterations`: what each training step took, and which were odd."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.messages import print_json
from tracelens_ext.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelens_ext.iterations.measured import IterationTable
    from tracelens_ext.tree import CallTree
    from tracelens_ext.work.gpu_work import GpuWork

_SUGGESTED = 5
_MOST_TO_PASTE = 200  # characters of an expression
_MOST_ODD = 10
_MOST_COLUMNS = 4
_MOST_STATISTICS = 15
#: What a narrow terminal can do without most easily: both are parts of the busy time.
_SHOWN_LAST = ("computation_time_ms", "exposed_memcpy_time_ms")
_STATISTICS = ("column", "device", "mean", "std", "median", "mad", "odd", "min", "max")


def iterations(
    trace: shared.Trace,
    annotation: shared.Annotation = None,
    json: shared.Json = False,
    top: Annotated[int, typer.Option(help="Iterations to print, the first ones.", min=0)] = 50,
    *,
    analysis: shared.AnalysisOfLinked,
) -> None:
    """Show wall time, GPU time and idle time of each iteration, and the odd ones out."""
    from tracelens_ext.cli.load import analyze
    from tracelens_ext.iterations.measured import iteration_table
    from tracelens_ext.work.patterns import user_pattern

    pattern = user_pattern(annotation, "annotation")
    analyzer = analyze(trace, analysis)
    table = iteration_table(analyzer.work, pattern)
    if not len(table):
        raise UsageError(_nothing_found(trace, analyzer.tree, annotation))
    if json:
        tables = {"iterations": table.frame, "iteration_statistics": table.statistics}
        print_json("Iterations", trace, tables, table.notes)
    else:
        _print(trace, analyzer.work, table, top)


def _nothing_found(path: Path, tree: CallTree, annotation: str | None) -> str:
    """Say that there are no iterations, and what could be taken for them."""
    import shlex

    from tracelens_ext.iterations.iterations import likely_iterations

    found = [name for name in likely_iterations(tree, _SUGGESTED) if len(name) <= _MOST_TO_PASTE]
    wanted = "ProfilerStep#N" if annotation is None else f"annotation that matches {annotation!r}"
    if not found:
        return f"{path}: has no {wanted}, nor any other annotation that launches GPU work"
    quoted = ", ".join(shlex.quote(name) for name in found)
    return f"{path}: has no {wanted}; choose others with --annotation REGEX, such as {quoted}"


def _print(trace: Path, work: GpuWork, table: IterationTable, top: int) -> None:
    from tracelens_ext.cli.screen import console as make_console
    from tracelens_ext.cli.screen import first_lines, show_lines, show_notes
    from tracelens_ext.report.terminal import frame_table, safe_text

    console = make_console()
    frame = table.frame

    def print_line(line: str) -> None:
        console.print(safe_text(line), markup=False, highlight=False)

    show_lines(first_lines(work), console)
    print_line(f"Trace: {trace}")
    console.print()
    if top:
        shown = frame[_shown(frame.columns)]
        console.print(frame_table(shown.head(top), title="Iterations", rows=min(top, len(frame))))
        if len(frame) > top:
            print_line(f"{len(frame) - top:,} more iterations not shown (--top)")
        console.print()
    if len(table.statistics):
        count = int(table.statistics["iterations"].max())
        title = f"Mean and spread of {count:,} whole iteration{'s' if count > 1 else ''}, ms"
        statistics = table.statistics.head(_MOST_STATISTICS)
        console.print(frame_table(statistics, title=title, columns=_STATISTICS))
        console.print()
    for line in _odd_lines(table, console.width):
        print_line(line)
    show_notes(table.notes, console)


def _shown(columns: Iterable[str]) -> list[str]:
    """The columns to print; what does not fit is left out from the end."""
    from tracelens_ext.iterations.measured import is_category_time

    shown = [c for c in columns if c not in ("odd", "whole", *_SHOWN_LAST)]
    at = next((at for at, column in enumerate(shown) if is_category_time(column)), len(shown))
    return [*shown[:at], *_SHOWN_LAST, *shown[at:]]


def _odd_lines(table: IterationTable, width: int) -> list[str]:
    """What each odd iteration took, against the median, in lines of so many cells at most."""
    from tracelens_ext.iterations.measured import ODD_AT_LEAST, ODD_BEYOND
    from tracelens_ext.report.terminal import name_text

    odd = table.frame[table.frame["odd"] != ""]
    if not len(odd):
        return []
    has_device = "device" in table.frame
    keys = ["column", "device"] if has_device else ["column"]
    medians = table.statistics.set_index(keys)["median"].to_dict()
    lines = []
    for row in odd.to_dict("records"):
        where = f", device {row['device']}" if has_device else ""
        away: dict[str, float] = {}
        parts = []
        for column in str(row["odd"]).split(", "):
            median = medians[(column, row["device"]) if has_device else column]
            parts.append(_against(column, row[column], median))
            away[column] = 0.0 if column == "kernels" else abs(row[column] - median)
        if len(parts) > _MOST_COLUMNS:
            parts[_MOST_COLUMNS:] = [f"{len(parts) - _MOST_COLUMNS} more"]
        name = name_text(str(row["iteration"]))
        lines.append((max(away.values()), _folded(f"  {name}{where}:", parts, width)))
    lines.sort(key=lambda line: -line[0])
    shown = [line for _, each in lines[:_MOST_ODD] for line in each]
    if len(lines) > _MOST_ODD:
        shown.append(f"  and {len(lines) - _MOST_ODD:,} more (--json shows all)")
    beyond = f"{ODD_BEYOND} median absolute deviations and {ODD_AT_LEAST:.0%} from the median"
    return [f"Odd (beyond {beyond}):", *shown]


def _against(column: str, value: float, median: float) -> str:
    """A value and its median, with as many decimals: `idle_time 2.461 ms (median 3.907 ms)`."""
    from tracelens_ext.tables.units import Shown

    shown = Shown.of(column, [value, median])
    this, usual, unit = shown.text(value), shown.text(median), shown.unit
    named, symbol = column.removesuffix(f"_{unit.symbol}"), f" {unit.symbol}".rstrip()
    return f"{named} {this}{symbol} (median {usual}{symbol})"


def _folded(heading: str, parts: list[str], width: int) -> list[str]:
    """A heading and what is told of it; parts that have no room in its line stand below it."""
    from rich.cells import cell_len

    from tracelens_ext.report.terminal import safe_text

    lines = [heading]
    for at, part in enumerate(parts):
        text = safe_text(part) + (";" if at < len(parts) - 1 else "")
        if cell_len(lines[-1]) + 1 + cell_len(text) > width:
            lines.append("   ")
        lines[-1] += f" {text}"
    return lines
