"""`tracelens-ext roofline`: shows how far each operation is from the hardware limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tracelens_ext.cli.options import (
    AnalysisOptions,
    Annotation,
    Capture,
    Device,
    DevicePeaks,
    GraphReadingFlags,
    Json,
    Step,
    TraceArgument,
)
from tracelens_ext.cli.screen import (
    Block,
    Part,
    Section,
    fact_text,
    first_lines,
    folded,
    show,
    trace_report,
)
from tracelens_ext.errors import UsageError
from tracelens_ext.hooks import Command
from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    from rich.console import Console

    from tracelens_ext.roofline.analysis import RooflineRow

Sort = Literal["lost", "time", "percent", "count"]


@dataclass(frozen=True)
class _RowOrder:
    """A way to sort operations."""

    column: str
    title: str
    ascending: bool = False


_ORDERS: dict[Sort, _RowOrder] = {
    "lost": _RowOrder("time_lost_ms", "Operations that lose the most time"),
    "time": _RowOrder("gpu_time_ms", "Operations that take longest"),
    "percent": _RowOrder(
        "% of roofline", "Operations furthest from their roofline", ascending=True
    ),
    "count": _RowOrder("count", "Operations called most often"),
}
_MOST_ITERATIONS = 10
_HEADER = f"{'lost ms':>10} {'GPU ms':>10} {'% of roof':>9}  {'bound':7} {'calls':>7}  operation"
_RULE_WIDTH = 79
_INDENT = " " * 12
_MIN_NAME_WIDTH = 16
#: The fact that the screen shows in a sentence instead.
_MODELED = "GPU time modeled (%)"


def roofline(
    trace: TraceArgument,
    device_peaks: DevicePeaks = None,
    sort: Annotated[
        Sort,
        typer.Option(
            "--sort",
            "-s",
            help=(
                "lost: most time lost; time: most GPU time; percent: furthest from "
                "the roofline; count: most calls."
            ),
        ),
    ] = "lost",
    family: Annotated[
        str | None, typer.Option(help="Only operations of this family, such as GEMM.")
    ] = None,
    top: Annotated[
        int, typer.Option("--top", "-t", min=0, help="Number of operations to print.")
    ] = 10,
    annotation: Annotation = None,
    step: Step = None,
    device: Device = None,
    capture: Capture = None,
    json: Json = False,
    *,
    reading: GraphReadingFlags,
) -> None:
    """Show how far each operation is from the hardware limits, and how much time that costs."""
    from tracelens_ext.analysis.iterations.selection import EventFilter
    from tracelens_ext.cli.load import analyze, computed_tables, recording_notes
    from tracelens_ext.cli.messages import show_plugin_problems
    from tracelens_ext.roofline.summary import advice, modelled, roofline_facts

    analysis = AnalysisOptions(
        kernel_categories=False, capture=capture, reading=reading
    )
    analyzer = analyze(trace, analysis)
    selection = EventFilter(step, device=device)
    result = analyzer.roofline(device_peaks, selection)
    show_plugin_problems(analyzer)
    operations = analyzer.get_df_roofline(device_peaks, selection=selection)
    operations = _of_family(_sorted(operations, sort), family)
    facts = roofline_facts(analyzer.trace, result)
    if selection.text:
        facts.append(("Selected", selection.text))
    makers = {
        "roofline": lambda: operations,
        "families": lambda: analyzer.get_df_families(device_peaks, selection=selection),
        "mfu_by_iteration": lambda: analyzer.get_df_mfu_by_iteration(
            device_peaks, annotation, selection=selection
        ),
    }
    tables = computed_tables(analyzer.failures, makers)

    def blocks() -> Iterator[Block]:
        yield from first_lines(analyzer.gpu_events, trace)
        sentences = [fact_text(*fact) for fact in facts if fact[0] != _MODELED]
        sentences.append(f"{modelled(result)}.")
        for sentence in sentences:
            yield partial(_folded_block, sentence)
        if "mfu_by_iteration" in tables:
            yield from _iteration_blocks(tables["mfu_by_iteration"])
        if "families" in tables:
            families = tables["families"]
            yield Part.of("families", families.dropna(axis="columns", how="all"))
        rows = [result.rows[number] for number in operations.index[:top].tolist()]
        title = _ORDERS[sort].title
        yield Section(
            title="operations",
            make=lambda console: [_operation_lines(rows, title, console)],
        )
        more = len(operations) - len(rows)
        if rows and more:
            yield [f"{more:,} more not shown (use --top)"]

    notes = advice(analyzer.gpu_events, result) + recording_notes(
        analyzer, for_json=json
    )
    unique_notes = list(dict.fromkeys(notes))
    report = trace_report(
        title="Roofline", trace=trace, tables=tables, notes=unique_notes, facts=facts
    )
    show(report, blocks(), json=json)


def _folded_block(sentence: str, console: Console) -> list[list[str]]:
    return [folded(sentence, console.width, "  ")]


def _sorted(operations: pd.DataFrame, sort: Sort) -> pd.DataFrame:
    order = _ORDERS[sort]
    column = order.column
    if sort == "lost" and operations[column].isna().all():
        column = "gpu_time_ms"  # without peaks
    return operations.sort_values(column, ascending=order.ascending, kind="stable")


def _of_family(operations: pd.DataFrame, family: str | None) -> pd.DataFrame:
    """Return the operations of a family, regardless of case; all operations for None."""
    if family is None:
        return operations
    families = operations["family"].fillna("")
    of_family = operations[families.str.casefold() == family.casefold()]
    if not len(of_family):
        known_families = ", ".join(sorted(set(families) - {""})) or "none"
        raise UsageError(
            f"no operation belongs to the family {family!r}; this trace has {known_families}"
        )
    return of_family


def _iteration_blocks(steps: pd.DataFrame) -> Iterator[Block]:
    """Yield the first iterations, with the model FLOPs utilization if it is known."""
    shown_steps = steps
    if not steps["mfu_percent"].notna().any():
        shown_steps = steps.drop(columns="mfu_percent")
    yield Part.of("mfu_by_iteration", shown_steps.head(_MOST_ITERATIONS))
    more = len(steps) - _MOST_ITERATIONS
    if more > 0:
        yield [f"{more:,} more iterations (list them all with --json)"]


def _operation_lines(
    rows: Sequence[RooflineRow], title: str, console: Console
) -> list[str]:
    """Return at most three lines for each operation: numbers, shapes, why it is slow."""
    from tracelens_ext.roofline.summary import shape_text

    if not rows:
        return []
    lines = ["", title, _HEADER, "-" * min(console.width, _RULE_WIDTH)]
    for row in rows:
        lines.append(_number_line(row, console.width))
        reason = row.why_slow
        if not reason and row.why_no_model:
            reason = f"no performance model: {row.why_no_model}"
        for text in (shape_text(row), row.device_model, reason):
            if text:
                lines += folded(
                    text=_INDENT + text, width=console.width, indent=_INDENT
                )
    return lines


def _number_line(row: RooflineRow, width: int) -> str:
    """Return the line with the numbers and the name of an operation."""
    from tracelens_ext.report.tables.short_names import cut_middle
    from tracelens_ext.report.terminal import LONGEST_NAME, name_text
    from tracelens_ext.trace import NS_PER_MS

    lost = ""
    percent = ""
    if row.roofline_ns is not None:
        lost = f"{(row.lost_ns or 0.0) / NS_PER_MS:,.3f}"
        if row.gpu_ns:
            percent = f"{100.0 * row.roofline_ns / row.gpu_ns:,.1f}"
    line = f"{lost:>10} {row.gpu_ns / NS_PER_MS:>10,.3f} {percent:>9}"
    line += f"  {row.bound or '':7} {row.count:>7,}  "
    room = max(min(width - len(line), LONGEST_NAME), _MIN_NAME_WIDTH)
    return line + cut_middle(name_text(row.operation.name), room)


COMMAND = Command(
    name="roofline",
    summary="Show how far operations are from the hardware limits.",
    function=roofline,
    group="Diagnose",
    examples=(
        "roofline trace.json.gz",
        "roofline trace.json.gz --family GEMM --sort percent",
        "roofline trace.json.gz --device-peaks peaks.toml",
    ),
)
