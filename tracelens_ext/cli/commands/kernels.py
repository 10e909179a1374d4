"""`tracelens-ext kernels`: lists the kernels by count or duration, and the gaps between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tracelens_ext.cli.gap_options import GapOptions
from tracelens_ext.cli.options import (
    AnalysisOptions,
    Force,
    Json,
    SelectionOptions,
    TraceArgument,
    given_options,
    selected_text,
)
from tracelens_ext.cli.screen import (
    NARROW,
    Block,
    Part,
    Section,
    first_lines,
    show,
    trace_report,
)
from tracelens_ext.errors import UsageError
from tracelens_ext.hooks import Command
from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    from rich.console import Console

    from tracelens_ext.analysis.iterations.selection import EventFilter
    from tracelens_ext.analyzer import TreePerfAnalyzer

Sort = Literal["count", "total", "duration", "percentage", "duration-percentage"]

_NAMES_SHOWN = 20  # full names below a row, with --verbose
_SOURCE_INDENT = 19
_MIN_SOURCE_NAME_WIDTH = 16


def kernels(
    trace: TraceArgument,
    top: Annotated[
        int, typer.Option("--top", "-t", min=0, help="Number of kernels to print.")
    ] = 10,
    sort: Annotated[
        Sort,
        typer.Option(
            "--sort",
            "-s",
            help=(
                "count; total: total duration; duration: average duration; "
                "percentage: share of GPU events; duration-percentage: share of total "
                "duration."
            ),
        ),
    ] = "count",
    category: Annotated[
        str | None, typer.Option(help="Only kernels of this category, such as GEMM.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also print full kernel names.")
    ] = False,
    sources: Annotated[
        bool,
        typer.Option(
            "--sources",
            help=(
                "Also print the source line and layer of each kernel (for traces "
                "recorded with with_stack=True)."
            ),
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write all kernels to a text file (- prints them).",
        ),
    ] = None,
    gaps: Annotated[
        bool,
        typer.Option(
            "--gaps", "-g", help="Also analyze the idle time between kernels."
        ),
    ] = False,
    gap_output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write all gap tables to a text file (- prints them).",
        ),
    ] = None,
    json: Json = False,
    force: Force = False,
    *,
    selecting: SelectionOptions,
    options: GapOptions,
    analysis: AnalysisOptions,
) -> None:
    """List kernels by count or duration; with --gaps, also the idle time between them."""
    from tracelens_ext.cli.gap_report import GapReport
    from tracelens_ext.cli.load import analyze, recording_notes
    from tracelens_ext.cli.messages import show_plugin_problems
    from tracelens_ext.cli.outputs import check_texts

    wants_gaps = gaps or gap_output is not None
    if not wants_gaps:
        _refuse_gap_options(options)
    selection = selecting.selection(category)
    outputs = [path for path in (output, gap_output) if path]
    check_texts(outputs, trace, force=force, json=json, every_gap=options.all)
    analyzer = analyze(
        trace, replace(analysis, python_frames=sources), refuses_tpu=True
    )
    kernel_report = _KernelReport.of(analyzer, selection, sort, with_sources=sources)
    tables = dict(kernel_report.tables)
    notes = kernel_report.notes(analyzer)
    members: dict[str, object] = {}
    gap_report = None
    if wants_gaps:
        gap_report = GapReport(analyzer=analyzer, selection=selection, options=options)
        tables |= gap_report.tables
        members = gap_report.members
        if json:
            notes += gap_report.notes
        else:
            # The blocks of the gap report say in its own words why there is nothing to show.
            notes = []
    notes += recording_notes(analyzer, for_json=json)
    show_plugin_problems(analyzer)
    texts: dict[Path, Callable[[], str]] = {}
    if output:
        texts[output] = kernel_report.text
    if gap_output and gap_report is not None:
        texts[gap_output] = gap_report.text

    def blocks() -> Iterator[Block]:
        yield ["=== GPU KERNEL ANALYSIS ===", ""]
        yield from first_lines(analyzer.gpu_events)
        yield from kernel_report.blocks(top, verbose=verbose)
        if gap_report is not None:
            yield [""]
            yield from gap_report.blocks()

    facts = [("Selected", kernel_report.selected)] if kernel_report.selected else []
    unique_notes = list(dict.fromkeys(notes))
    report = trace_report(
        title="GPU kernels",
        trace=trace,
        tables=tables,
        notes=unique_notes,
        facts=facts,
        members=members,
    )
    show(report, blocks(), json=json, texts=texts)


def _refuse_gap_options(options: GapOptions) -> None:
    """Check that options about gaps are given only together with `--gaps`."""
    given = given_options(options)
    if not given:
        return
    names = ", ".join(given)
    verb = "need" if len(given) > 1 else "needs"
    raise UsageError(f"{names} {verb} --gaps (or --gap-output FILE)")


@dataclass(frozen=True)
class _KernelReport:
    """The kernels of a trace as text, tables and blocks for the terminal."""

    tables: dict[str, pd.DataFrame]
    selection: EventFilter
    selected: str  #: the selection of GPU events in words; empty if all are selected
    sorted_by: str  #: the order of the kernels in words

    @classmethod
    def of(
        cls,
        analyzer: TreePerfAnalyzer,
        selection: EventFilter,
        sort: Sort,
        *,
        with_sources: bool,
    ) -> _KernelReport:
        """Compute the tables and facts about the kernels of a trace."""
        from tracelens_ext.analysis.kernels import statistics as kernel_tables
        from tracelens_ext.analysis.kernels.sources import kernel_sources
        from tracelens_ext.cli.load import computed_tables

        gpu_events = analyzer.gpu_events
        makers: dict[str, Callable[[], pd.DataFrame]] = {
            "kernel_statistics": lambda: kernel_tables.kernel_statistics(
                gpu_events, sort, selection=selection
            ),
            "kernel_full_names": lambda: kernel_tables.kernel_full_names(
                gpu_events, sort, selection=selection
            ),
        }
        if with_sources:
            makers["kernel_sources"] = lambda: kernel_sources(
                gpu_events, selection=selection
            )
        return cls(
            tables=computed_tables(analyzer.failures, makers),
            selection=selection,
            selected=selected_text(selection, gpu_events),
            sorted_by=kernel_tables.SORTS[sort].title,
        )

    def notes(self, analyzer: TreePerfAnalyzer) -> list[str]:
        """Return why there are no kernels, if there are none."""
        from tracelens_ext.analysis.coverage.missing_gpu_work import no_gpu_work

        if not len(analyzer.gpu_events):
            return [no_gpu_work(analyzer.gpu_events)]
        statistics = self.tables.get("kernel_statistics")
        if statistics is None or len(statistics):
            return []
        text = self.selection.text
        return [f"No GPU event matches {text}, so all counts are 0."]

    def text(self) -> str:
        """Return the text for a file."""
        from tracelens_ext.report.kernel_text import kernel_text

        return kernel_text(
            self.tables["kernel_statistics"],
            self.tables["kernel_full_names"],
            sorted_by=self.sorted_by,
            selected=self.selected,
        )

    def blocks(self, top: int, *, verbose: bool) -> Iterator[Block]:
        """Yield the blocks: totals, the first kernels, their full names, and their source lines."""
        statistics = self.tables.get("kernel_statistics")
        if statistics is not None:
            yield Section("totals", lambda _: [self._totals(statistics)])
            rows = statistics.head(top)
            if len(rows):
                yield Section("kernels", partial(_kernel_rows, rows, self.sorted_by))
        names = self.tables.get("kernel_full_names")
        if verbose and names is not None and len(names):
            yield Section(
                title="names",
                make=lambda console: [full_name_lines(names, console, top=top)],
            )
        sources = self.tables.get("kernel_sources")
        if sources is not None:
            yield Section(
                title="sources",
                make=lambda console: [source_lines(sources, console, top=top)],
            )

    def _totals(self, statistics: pd.DataFrame) -> list[str]:
        """Return the lines with the numbers of kernels."""
        names = int(statistics["full_names"].sum())
        launches = int(statistics["count"].sum())
        more = ""
        if names > len(statistics):
            more = f" ({names} full names)"
        lines = []
        if self.selected:
            lines.append(f"Selected: {self.selected}")
        lines += [
            f"Total unique kernel types found: {len(statistics)}{more}",
            f"Total kernel launches: {launches}",
            f"Results sorted by: {self.sorted_by}",
        ]
        return lines


def _kernel_rows(
    rows: pd.DataFrame, sorted_by: str, console: Console
) -> Iterable[Block]:
    from tracelens_ext.cli.name_columns import (
        cut_names,
        name_room,
        remarks,
        share_marks,
        sign,
    )
    from tracelens_ext.report.terminal import name_text

    us = sign("μs", console)
    is_narrow = console.width < NARROW
    titles = {
        "rank": "Rank",
        "count": "Count",
        "avg_time_us": f"Avg Duration ({us})",
        "total_time_us": f"Total Duration ({us})",
        "std_time_us": f"Std Dev ({us})",
        "% of GPU events": "% of Total",
        "% of duration": "% Duration",
    }
    if is_narrow:
        del titles["std_time_us"]
    table = rows[list(titles)].rename(columns=titles)
    names = [name_text(name) for name in rows["kernel_name"]]
    marks = share_marks(rows, console)
    texts = cut_names(
        names=names, marks=marks, room=name_room(table, console), console=console
    )
    table.insert(1, "Kernel Name", texts)
    title = f"TOP {len(rows)} GPU KERNELS BY {sorted_by.upper()}:"
    yield Part(title, table, keep=("Kernel Name", "Count", "% Duration"))
    shared = (
        "N kernels share that name; list some with --verbose, all with --output FILE."
    )
    yield remarks(
        names=texts,
        shared=shared,
        whole="--output FILE lists the full names",
        console=console,
    )
    if is_narrow:
        yield [f"Std Dev is shown at {NARROW} columns or more, and in --output FILE."]


def full_name_lines(names: pd.DataFrame, console: Console, *, top: int) -> list[str]:
    """Return the full names of the first kernels, for each the most frequent ones."""
    from tracelens_ext.cli.name_columns import sign
    from tracelens_ext.report.terminal import name_text

    lines = ["", "FULL KERNEL NAMES:"]
    for rank, names_of_rank in names[names["rank"] <= top].groupby("rank"):
        full_names = [name_text(name) for name in names_of_rank["full_name"]]
        lines.append(f"Rank {rank}: {name_text(names_of_rank['kernel_name'].iloc[0])}")
        lines += [f"  {name}" for name in full_names[:_NAMES_SHOWN]]
        more = len(full_names[_NAMES_SHOWN:])
        if more:
            dots = sign("…", console)
            lines.append(f"  {dots} and {more} more; list them all with --output FILE")
    return lines


def source_lines(sources: pd.DataFrame, console: Console, *, top: int) -> list[str]:
    """Return the first rows of `kernel_sources` in two lines each; the source line is not cut."""
    from tracelens_ext.categorize.kernel_names import short_name
    from tracelens_ext.cli.name_columns import sign
    from tracelens_ext.report.tables.short_names import distinct_short_texts
    from tracelens_ext.report.terminal import name_text

    rows = sources.head(top)
    dots = sign("…", console)
    counts = [f"{sign('×', console)}{count:,}" for count in rows["count"]]
    count_width = max(map(len, counts), default=0)
    names = [name_text(short_name(kernel)) for kernel in rows["kernel_name"]]
    name_width = max(console.width - count_width - 21, _MIN_SOURCE_NAME_WIDTH)
    short_names = distinct_short_texts(names, name_width, dots)
    lines = ["", "KERNELS BY SOURCE LINE AND LAYER:"]
    records = rows.to_dict("records")
    for count, name, record in zip(counts, short_names, records, strict=True):
        total_time = f"{record['total_time_us']:14,.3f} {sign('μs', console)}"
        lines.append(f"{total_time}  {count:<{count_width}}  {name}")
        places = [
            name_text(text) for text in (record["source"], record["layer"]) if text
        ]
        place = "  in  ".join(places) or "no Python frame was recorded"
        lines.append(f"{'':{_SOURCE_INDENT}}{place}")
    if len(sources) > top:
        lines.append(
            f"{dots} and {len(sources) - top:,} more; list them all with --json"
        )
    return lines


COMMAND = Command(
    name="kernels",
    summary="List kernels by count or duration.",
    function=kernels,
    group="Inspect",
    examples=(
        "kernels trace.json.gz --top 20 --sort duration-percentage",
        "kernels trace.json.gz --category GEMM",
        "kernels trace.json.gz --gaps --output kernels.txt",
    ),
)
