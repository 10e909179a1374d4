"""`tracelens-ext roofline`: how good each operation is, and how many milliseconds are lost."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from tracelens_ext.cli import gap_options
from tracelens_ext.cli import options as shared
from tracelens_ext.settings import ReadingOptions


class RooflineSort(Enum):
    """What operations are sorted by."""

    lost = "lost"
    time = "time"
    percent = "percent"
    count = "count"


#: Column, and whether the largest comes first.
_COLUMNS = {
    RooflineSort.lost: ("time_lost_ms", False),
    RooflineSort.time: ("gpu_time_ms", False),
    RooflineSort.percent: ("% of roofline", True),
    RooflineSort.count: ("count", False),
}
_TITLES = {
    RooflineSort.lost: "Operations that lose the most time",
    RooflineSort.time: "Operations that take longest",
    RooflineSort.percent: "Operations furthest from their roofline",
    RooflineSort.count: "Operations called most often",
}


def roofline(
    trace: shared.Trace,
    device_peaks: shared.DevicePeaks = None,
    sort: Annotated[
        RooflineSort,
        typer.Option(
            "--sort",
            "-s",
            help="lost: the most time lost; time: GPU time; percent: furthest from the roofline;"
            " count: calls.",
        ),
    ] = RooflineSort.lost,
    family: Annotated[
        str | None, typer.Option(help="Only operations of this family, such as GEMM.")
    ] = None,
    top: Annotated[int, typer.Option("--top", "-t", help="Operations to print.", min=0)] = 10,
    annotation: shared.Annotation = None,
    pstep: gap_options.PStep = None,
    device: gap_options.Device = None,
    capture: shared.Capture = None,
    json: shared.Json = False,
    *,
    reading: ReadingOptions,
) -> None:
    """Show how far each operation is from what the GPU can do, and the time that is lost."""
    from tracelens_ext.cli.load import analyze, show_problems
    from tracelens_ext.cli.messages import print_json
    from tracelens_ext.cli.roofline_view import show_operations, show_summary
    from tracelens_ext.cli.screen import console, first_lines, show_lines, show_notes
    from tracelens_ext.errors import UsageError
    from tracelens_ext.iterations.selection import Selection
    from tracelens_ext.roofline.peaks import read_peaks
    from tracelens_ext.roofline.summary import advice, roofline_facts

    if device_peaks is not None:
        read_peaks(device_peaks)  # before a trace is read that takes long
    how = shared.AnalysisOptions(kernel_categories=False, capture=capture, reading=reading)
    analyzer = analyze(trace, how)
    selection = Selection(pstep, device=device)
    found = analyzer.roofline(device_peaks, selection)
    show_problems(analyzer.problems, set())
    frame = analyzer.get_df_roofline(device_peaks, selection=selection)
    column, ascending = _COLUMNS[sort]
    if sort is RooflineSort.lost and frame[column].isna().all():
        column = "gpu_time_ms"  # without peaks
    frame = frame.sort_values(column, ascending=ascending, kind="stable")
    if family is not None:
        names = frame["family"].fillna("")
        chosen = names.str.casefold() == family.casefold()
        if not chosen.any():
            has = ", ".join(sorted(set(names) - {""})) or "none"
            raise UsageError(f"no operation is of the family {family!r}; the trace has {has}")
        frame = frame[chosen]
    facts = [("Trace", str(trace)), *roofline_facts(analyzer.trace, found)]
    if selection.text:
        facts.append(("Selected", selection.text))
    notes = advice(analyzer.work, found)
    families = analyzer.get_df_families(device_peaks, selection=selection)
    steps = analyzer.get_df_mfu_by_iteration(device_peaks, annotation, selection=selection)
    if json:
        tables = {"roofline": frame, "families": families, "mfu_by_iteration": steps}
        print_json("Roofline", trace, tables, notes, facts=facts[1:])
        return
    rows = [found.rows[i] for i in frame.index[:top].tolist()]
    screen = console()
    show_lines(first_lines(analyzer.work), screen)
    show_summary(found, facts, families, steps, screen)
    show_operations(rows, _TITLES[sort], more=len(frame) - len(rows), console=screen)
    if notes:
        screen.print()
        show_notes(notes, screen)
