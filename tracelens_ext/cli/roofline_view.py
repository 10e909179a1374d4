"""The roofline of a trace on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.cli.screen import fact_text, folded, show_lines
from tracelens_ext.lazy import pd
from tracelens_ext.report.terminal import frame_table, name_text
from tracelens_ext.roofline.found import shape_text
from tracelens_ext.roofline.summary import modelled
from tracelens_ext.tables.short_names import cut_middle
from tracelens_ext.trace import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from tracelens_ext.roofline.found import Roofline, RooflineRow

_MOST_ITERATIONS = 10
_HEADER = f"{'lost ms':>10} {'GPU ms':>10} {'% of roof':>9}  {'bound':7} {'calls':>7}  operation"
_INDENT = " " * 12


def show_summary(
    roofline: Roofline,
    facts: Sequence[tuple[str, object]],
    families: pd.DataFrame,
    steps: pd.DataFrame,
    console: Console,
) -> None:
    """Print the devices, how much is modelled, the MFU of iterations, and the families."""
    lines = []
    for label, value in facts:
        if label != "GPU time modelled (%)":
            lines += folded(fact_text(label, value), console.width, "  ")
    lines += folded(f"{modelled(roofline)}.", console.width, "  ")
    show_lines([*lines, ""], console)
    title = "Model FLOPs utilisation (products, convolutions, attention; by wall time)"
    shown = [column for column in steps if column != "mfu_%" or steps[column].notna().any()]
    console.print(frame_table(steps.head(_MOST_ITERATIONS)[shown], title=title))
    if more := len(steps) - _MOST_ITERATIONS:
        show_lines([f"{more:,} more iterations (--json shows all)"] * (more > 0), console)
    console.print()
    if len(families):
        console.print(frame_table(families.dropna(axis="columns", how="all"), title="By family"))
        console.print()


def show_operations(
    rows: Sequence[RooflineRow], title: str, *, more: int, console: Console
) -> None:
    """Print operations, each in three lines at most: numbers, shapes, why it is slow."""
    if not rows:
        return
    lines = [title, _HEADER, "-" * min(console.width, 79)]
    for row in rows:
        percent = lost = ""
        if row.roofline_ns is not None:
            lost = f"{(row.lost_ns or 0.0) / NS_PER_MS:,.3f}"
            percent = f"{100.0 * row.roofline_ns / row.gpu_ns:,.1f}" if row.gpu_ns else ""
        numbers = f"{lost:>10} {row.gpu_ns / NS_PER_MS:>10,.3f} {percent:>9}"
        head = f"{numbers}  {row.bound or '':7} {row.count:>7,}  "
        room = max(console.width - len(head), 16)
        lines.append(head + cut_middle(name_text(row.operation.name), room))
        why = row.why_slow or (f"no model: {row.why_no_model}" if row.why_no_model else "")
        for text in (shape_text(row), why):
            lines += folded(_INDENT + text, console.width, _INDENT) if text else []
    if more > 0:
        lines.append(f"{more:,} more not shown (--top)")
    show_lines(lines, console)
