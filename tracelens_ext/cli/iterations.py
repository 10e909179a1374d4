"""`tracelens-ext iterations`: what each training step took, and which were odd.

And `tracelens-ext counters`: how much work waits for each stream, and how fast copies are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.load import analyze
from tracelens_ext.cli.screen import Block, Part, first_lines, folded, show, trace_report
from tracelens_ext.errors import TraceError, UsageError
from tracelens_ext.report.terminal import name_text
from tracelens_ext.settings import ReadingOptions
from tracelens_ext.tables.units import Shown
from tracelens_ext.work.patterns import user_pattern

if TYPE_CHECKING:
    from rich.console import Console

    from tracelens_ext.iterations.measured import IterationTable
    from tracelens_ext.tree import CallTree

_SUGGESTED = 5
_MOST_TO_PASTE = 200  # characters of an expression
_MOST_ODD = 10
_MOST_COLUMNS = 4
_MOST_STATISTICS = 15
#: What a narrow terminal can do without most easily: both are parts of the busy time.
_SHOWN_LAST = ("computation_time_ms", "exposed_memcpy_time_ms")
_STATISTICS = ("column", "device", "mean", "std", "median", "mad", "odd", "min", "max")


def iterations(
    trace: Path,
    annotation: str | None = None,
    json: bool = False,
    top: int = 50,
    *,
    analysis: shared.AnalysisOptions,
    screen: shared.Screen,
) -> None:
    """Show wall time, GPU time and idle time of each iteration, and the odd ones out.

    Options:
        top 0..: Iterations to print, the first ones.
        unlinked_kernels --include-unlinked-kernels/--exclude-unlinked-kernels: Count GPU events
            without a launch, or not.  [default: include]
    """
    from tracelens_ext.iterations.measured import iteration_table

    pattern = user_pattern(annotation, "annotation")
    analyzer = analyze(trace, analysis)
    table = iteration_table(analyzer.work, pattern)
    if not len(table):
        raise UsageError(_nothing_found(trace, analyzer.tree, annotation))
    tables = {"iterations": table.frame, "iteration_statistics": table.statistics}
    report = trace_report("Iterations", trace, tables, table.notes)
    blocks = [*first_lines(analyzer.work, trace), *_blocks(table, top)]
    show(report, blocks, json=json, all_notes=screen.notes)


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


def _blocks(table: IterationTable, top: int) -> Iterator[Block]:
    frame, statistics = table.frame, table.statistics
    yield Part("Iterations", frame, _shown(frame.columns), top)
    if len(statistics):
        count = int(statistics["iterations"].max())
        title = f"Mean and spread of {count:,} whole iteration{'s' if count > 1 else ''}, ms"
        yield Part(title, statistics.head(_MOST_STATISTICS), _STATISTICS)
    yield lambda console: [_odd_lines(table, console)]


def _shown(columns: Iterable[str]) -> list[str]:
    """The columns to print; what does not fit is left out from the end."""
    from tracelens_ext.iterations.measured import is_category_time

    shown = [c for c in columns if c not in ("odd", "whole", *_SHOWN_LAST)]
    at = next((at for at, column in enumerate(shown) if is_category_time(column)), len(shown))
    return [*shown[:at], *_SHOWN_LAST, *shown[at:]]


def _odd_lines(table: IterationTable, console: Console) -> list[str]:
    """What each odd iteration took, against the median, in lines that fit."""
    from tracelens_ext.iterations.measured import ODD_AT_LEAST, ODD_BEYOND

    odd = table.frame[table.frame["odd"] != ""]
    if not len(odd):
        return []
    has_device = "device" in table.frame
    keys = ["column", "device"] if has_device else ["column"]
    medians = table.statistics.set_index(keys)["median"].to_dict()
    told = []
    for row in odd.to_dict("records"):
        where = f", device {row['device']}" if has_device else ""
        away, parts = 0.0, []
        for column in str(row["odd"]).split(", "):
            median = medians[(column, row["device"]) if has_device else column]
            parts.append(_against(column, row[column], median).replace(" ", "\u00a0"))
            away = max(away, 0.0 if column == "kernels" else abs(row[column] - median))
        if len(parts) > _MOST_COLUMNS:
            parts[_MOST_COLUMNS:] = [f"{len(parts) - _MOST_COLUMNS}\u00a0more"]
        line = f"  {name_text(str(row['iteration']))}{where}: {'; '.join(parts)}"
        told.append((away, folded(line, console.width, "    ")))
    told.sort(key=lambda each: -each[0])
    shown = [line for _, lines in told[:_MOST_ODD] for line in lines]
    if len(told) > _MOST_ODD:
        shown.append(f"  and {len(told) - _MOST_ODD:,} more (--json shows all)")
    beyond = f"{ODD_BEYOND} median absolute deviations and {ODD_AT_LEAST:.0%} from the median"
    return ["", f"Odd (beyond {beyond}):", *shown]


def _against(column: str, value: float, median: float) -> str:
    """A value and its median, with as many decimals: `idle_time 2.461 ms (median 3.907 ms)`."""
    shown = Shown.of(column, [value, median])
    this, usual, unit = shown.text(value), shown.text(median), shown.unit
    named, symbol = column.removesuffix(f"_{unit.symbol}"), f" {unit.symbol}".rstrip()
    return f"{named} {this}{symbol} (median {usual}{symbol})"


def counters(trace: Path, json: bool = False, *, reading: ReadingOptions) -> None:
    """Show the queue length of each stream and the bandwidth of copies."""
    from tracelens_ext.timeline.timeline import COUNTERS, copy_bandwidth, queue_length

    work = analyze(trace, shared.AnalysisOptions(reading=reading)).work
    if not len(work):
        raise TraceError(trace, "has no GPU events", "record a part of the run that uses the GPU")
    tables = {"queue_length": queue_length(work), "copy_bandwidth": copy_bandwidth(work)}
    parts = [Part.of(table, tables[table.name]) for table in COUNTERS]
    show(trace_report("Counters", trace, tables), [[f"Trace: {trace}"], *parts], json=json)
