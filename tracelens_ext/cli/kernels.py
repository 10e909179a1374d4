"""`tracelens-ext kernels`: which kernels ran, how often and how long; and the gaps between them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens_ext.cli import gap_options
from tracelens_ext.cli import options as shared
from tracelens_ext.lazy import pd
from tracelens_ext.settings import ReadingOptions

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.iterations.selection import Selection
    from tracelens_ext.work.gpu_work import GpuWork


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
    *,
    reading: ReadingOptions,
) -> None:
    """List kernels by count or duration; with --gaps, the idle time between them too."""
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

    options = gap_options.of_kernels(
        gap_sort, gap_top, hist_min, hist_max, log, every, wants_gaps=gaps or gap_output is not None
    )
    selection = gap_options.selection_of(pstep, pstep_by, stream, device, category)
    check_texts([output, gap_output], trace, force=force, json=json, every=every)
    chosen = AnalysisOptions(
        True,
        rules,
        categorizer,
        maps=maps,
        without_packs=without_pack,
        capture=capture,
        python_frames=sources,
        reading=reading,
    )
    analyzer = analyze(trace, chosen, without_tpu=True)
    found = _Found.of(analyzer, sort, selection, sources=sources)
    report = GapReport.of(analyzer.work, selection, options) if options is not None else None
    show_problems(analyzer.problems, set())
    listed = {"sorted_by": found.sorted_by, "selected": found.selected}
    if output is not None:
        write_text(output, kernel_text(found.statistics, found.names, **listed))
    if gap_output is not None and report is not None:
        write_text(gap_output, report.text())
    if json:
        sheets, notes = report.document() if report is not None else ({}, [])
        notes = list(dict.fromkeys([*found.notes, *notes]))
        tables, members = found.sheets() | sheets, report.members if report is not None else {}
        gap_options.print_json("GPU kernels", trace, tables, found.selected, notes, members)
        return
    if STANDARD_OUTPUT not in (output, gap_output):
        screen = kernel_view.console()
        first = kernel_view.first_lines(analyzer.work)
        kernel_view.show_kernels(found.statistics, screen, top=top, first=first, **listed)
        if report is None:
            kernel_view.show_lines([line for note in found.notes for line in ("", note)], screen)
        if verbose and len(found.statistics):
            kernel_view.show_full_names(found.names, screen, top=top)
        if found.sources is not None:
            kernel_view.show_sources(found.sources, screen, top=top)
        if report is not None:
            screen.print()
            show_gaps(report, screen)
    tell_written([output, gap_output])


@dataclass(frozen=True)
class _Found:
    """The kernels that were asked for.

    Attributes:
        work: the GPU events.
        selection: which of them were asked for.
        statistics: `kernel_statistics`.
        sources: `kernel_sources`; None unless asked for.
        sorted_by: what the statistics are sorted by, in words.
        selected: what is selected, in words.
        notes: why there are none.
    """

    work: GpuWork
    selection: Selection
    statistics: pd.DataFrame
    sources: pd.DataFrame | None
    sorted_by: str
    selected: str
    notes: list[str]

    @classmethod
    def of(
        cls, analyzer: TreePerfAnalyzer, sort: KernelSort, selection: Selection, *, sources: bool
    ) -> _Found:
        """Find them."""
        from tracelens_ext.kernels.statistics import SORTS

        statistics = analyzer.get_df_kernel_statistics(sort.value, selection=selection)
        return cls(
            analyzer.work,
            selection,
            statistics,
            analyzer.get_df_kernel_sources(selection=selection) if sources else None,
            SORTS[sort.value][1],
            gap_options.selected_text(selection, analyzer.work),
            [] if len(statistics) else [_why_none(analyzer, selection)],
        )

    @cached_property
    def names(self) -> pd.DataFrame:
        """The full names behind the statistics."""
        from tracelens_ext.kernels.statistics import full_names

        return full_names(self.work, self.statistics, selection=self.selection)

    def sheets(self) -> dict[str, pd.DataFrame]:
        """All of it, as tables of a document."""
        sheets = {"kernels": self.statistics, "kernel_full_names": self.names}
        return sheets if self.sources is None else sheets | {"kernel_sources": self.sources}


def _why_none(analyzer: TreePerfAnalyzer, selection: Selection) -> str:
    """Why no kernel is listed."""
    if len(analyzer.work):
        return f"No GPU event is of {selection.text}, so all counts are 0."
    from tracelens_ext.recording.table import no_gpu_work

    return no_gpu_work(analyzer.work)
