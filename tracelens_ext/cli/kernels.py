"""`tracelens-ext kernels`: which kernels ran, how often and how long; and the gaps between them."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens_ext.cli import gap_options
from tracelens_ext.cli import options as shared
from tracelens_ext.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from tracelens_ext.analysis.selection import Selection
    from tracelens_ext.analyzer import TreePerfAnalyzer


class KernelSort(Enum):
    """What kernels are sorted by, largest first."""

    count = "count"
    duration = "duration"
    percentage = "percentage"
    duration_percentage = "duration-percentage"


def kernels(
    trace: shared.Trace,
    top: Annotated[int, typer.Option("--top", "-t", help="Kernels to print.", min=0)] = 10,
    sort: Annotated[
        KernelSort,
        typer.Option(
            "--sort",
            "-s",
            help="count; duration: the average; percentage: of the launches;"
            " duration-percentage: of the total duration.",
        ),
    ] = KernelSort.count,
    pstep: gap_options.PStep = None,
    pstep_by: gap_options.PStepBy = None,
    stream: gap_options.Stream = None,
    device: gap_options.Device = None,
    category: Annotated[
        str | None, typer.Option("--category", help="Only kernels of this category, such as GEMM.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also print full kernel names.")
    ] = False,
    sources: Annotated[
        bool,
        typer.Option(
            "--sources",
            help="Also print the source line and layer of each (recorded with with_stack=True).",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write every kernel to a text file (- prints it).",
        ),
    ] = None,
    gaps: Annotated[
        bool, typer.Option("--gaps", "-g", help="Also analyse the idle time between kernels.")
    ] = False,
    gap_output: gap_options.GapOutput = None,
    gap_top: gap_options.GapTop = None,
    gap_sort: gap_options.GapSorting = None,
    hist_min: gap_options.HistMin = None,
    hist_max: gap_options.HistMax = None,
    log: gap_options.Log = False,
    json: gap_options.Json = False,
    every: gap_options.All = False,
    rules: shared.Rules = None,
    categorizer: shared.Categorizer = None,
    maps: shared.Maps = None,
    without_pack: shared.WithoutPack = None,
    capture: shared.Capture = None,
    force: shared.Force = False,
) -> None:
    """List kernels by count or duration; with --gaps, the idle time between them too."""
    from tracelens_ext.analysis.kernel_statistics import SORTS, full_names, kernel_statistics
    from tracelens_ext.cli import kernel_view
    from tracelens_ext.cli.gap_view import GapReport, show_gaps
    from tracelens_ext.cli.load import AnalysisOptions, analyze, show_problems
    from tracelens_ext.cli.text_output import (
        STANDARD_OUTPUT,
        check_texts,
        tell_written,
        write_text,
    )
    from tracelens_ext.report.kernel_text import kernel_text

    wants_gaps = gaps or gap_output is not None
    of_gaps = {
        "--gap-top": gap_top is not None,
        "--gap-sort": gap_sort is not None,
        "--hist-min": hist_min is not None,
        "--hist-max": hist_max is not None,
        "--log": log,
        "--all": every,
    }
    given = [option for option, is_given in of_gaps.items() if is_given]
    if given and not wants_gaps:
        verb = "need" if len(given) > 1 else "needs"
        raise UsageError(f"{', '.join(given)} {verb} --gaps (or --gap-output FILE)")
    top_gaps = gap_options.GAP_TOP if gap_top is None else gap_top
    options = gap_options.GapOptions(
        gap_sort or gap_options.GAP_SORT, top_gaps, hist_min, hist_max, log, every
    )
    selection = gap_options.selection_of(pstep, pstep_by, stream, device, category)
    check_texts([output, gap_output], trace, force=force, json=json, every=every)
    chosen = AnalysisOptions(
        True,
        rules or (),
        categorizer,
        maps=maps or (),
        without_packs=without_pack or (),
        capture=capture,
        python_frames=sources,
    )
    analyzer = analyze(trace, chosen)
    selected = gap_options.selected_text(selection, analyzer.work)
    statistics = kernel_statistics(analyzer.work, sort=sort.value, selection=selection)
    of_source = analyzer.get_df_kernel_sources(selection=selection) if sources else None
    report = GapReport.of(analyzer.work, selection, options) if wants_gaps else None
    show_problems(analyzer.problems, set())
    sorted_by = SORTS[sort.value][1]

    def names() -> pd.DataFrame:
        return full_names(analyzer.work, statistics, selection=selection)

    if output is not None:
        text = kernel_text(statistics, names(), sorted_by=sorted_by, selected=selected)
        write_text(output, text)
    if gap_output is not None and report is not None:
        write_text(gap_output, report.text())
    why_none = "" if len(statistics) else _why_none(analyzer, selection)
    if json:
        sheets: dict[str, pd.DataFrame] = {"kernels": statistics, "kernel_full_names": names()}
        if of_source is not None:
            sheets["kernel_sources"] = of_source
        gap_sheets, notes = report.document() if report is not None else ({}, [])
        notes = list(dict.fromkeys([why_none, *notes])) if why_none else notes
        gap_options.print_json("GPU kernels", trace, sheets | gap_sheets, selected, notes)
        return
    if STANDARD_OUTPUT in (output, gap_output):
        tell_written([output, gap_output])
        return
    screen = kernel_view.console()
    kernel_view.show_kernels(statistics, screen, top=top, sorted_by=sorted_by, selected=selected)
    if why_none and report is None:
        screen.print(f"\n{why_none}", highlight=False, markup=False)
    if verbose and len(statistics):
        kernel_view.show_full_names(names(), screen, top=top)
    if of_source is not None:
        kernel_view.show_sources(of_source, screen, top=top)
    if report is not None:
        screen.print()
        show_gaps(report, screen)
    tell_written([output, gap_output])


def _why_none(analyzer: TreePerfAnalyzer, selection: Selection) -> str:
    """Why no kernel is listed."""
    if len(analyzer.work):
        return f"No GPU event is of {selection.text}, so all counts are 0."
    from tracelens_ext.analysis.gaps.answer import NO_GPU_WORK

    return NO_GPU_WORK
