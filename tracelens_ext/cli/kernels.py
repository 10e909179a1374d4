"""`tracelens-ext kernels`: which kernels ran, how often and how long; and the gaps between them.

And `tracelens-ext tree`: the call tree with GPU time, or folded stacks for flame graphs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tracelens_ext.categorize.kernel_names import short_name
from tracelens_ext.categorize.user_patterns import user_pattern
from tracelens_ext.cli import gaps as idle
from tracelens_ext.cli import options as shared
from tracelens_ext.cli import screen
from tracelens_ext.cli.load import analyze, show_problems
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.kernel_text import kernel_text
from tracelens_ext.report.tables.short_names import cut_middle, told_apart
from tracelens_ext.report.tables.units import fitting_unit
from tracelens_ext.report.terminal import name_text, safe_text
from tracelens_ext.settings import ReadingOptions

if TYPE_CHECKING:
    from rich.console import Console

    from tracelens_ext.analysis.operations.tree_table import MergedTree

_NAMES_SHOWN = 20  # full names below a row, with --verbose


def kernels(
    trace: Path,
    top: int = 10,
    sort: Literal["count", "duration", "percentage", "duration-percentage"] = "count",
    category: str | None = None,
    verbose: bool = False,
    sources: bool = False,
    output: Path | None = None,
    gaps: bool = False,
    gap_output: Path | None = None,
    json: bool = False,
    force: bool = False,
    *,
    selecting: shared.SelectionOptions,
    options: idle.GapOptions,
    analysis: shared.AnalysisOptions,
) -> None:
    """List kernels by count or duration; with --gaps, the idle time between them too.

    Options:
        top -t 0..: Kernels to print.
        sort -s: count; duration: the average; percentage: of the launches; duration-percentage: of
            the total duration.
        category: Only kernels of this category, such as GEMM.
        verbose -v: Also print full kernel names.
        sources: Also print the source line and layer of each (recorded with with_stack=True).
        output -o FILE: Write every kernel to a text file (- prints it).
        gaps -g: Also analyse the idle time between kernels.
        gap_output FILE: Write all about the gaps to a text file (- prints it).
    """
    from tracelens_ext.analysis.coverage.missing_gpu_work import no_gpu_work
    from tracelens_ext.analysis.kernels import statistics as kernel_tables
    from tracelens_ext.analysis.kernels.sources import kernel_sources

    wants_gaps = gaps or gap_output is not None
    if not wants_gaps and (given := shared.given_options(options)):
        verb = "need" if len(given) > 1 else "needs"
        raise UsageError(f"{', '.join(given)} {verb} --gaps (or --gap-output FILE)")
    selection = selecting.selection(category)
    outputs = [path for path in (output, gap_output) if path]
    screen.check_texts(outputs, trace, force=force, json=json, every=options.all)
    analyzer = analyze(trace, replace(analysis, python_frames=sources), without_tpu=True)
    statistics = kernel_tables.kernel_statistics(analyzer.work, sort, selection=selection)
    names = kernel_tables.kernel_full_names(analyzer.work, sort, selection=selection)
    tables = {"kernel_statistics": statistics, "kernel_full_names": names}
    if sources:
        tables["kernel_sources"] = kernel_sources(analyzer.work, selection=selection)
    notes = []
    if not len(analyzer.work):
        notes = [no_gpu_work(analyzer.work)]
    elif not len(statistics):
        notes = [f"No GPU event is of {selection.text}, so all counts are 0."]
    report = idle.GapReport(analyzer, selection, options) if wants_gaps else None
    show_problems(analyzer.problems)
    selected = shared.selected_text(selection, analyzer.work)
    sorted_by = kernel_tables.SORTS[sort].title
    text = partial(kernel_text, statistics, names, sorted_by=sorted_by, selected=selected)
    texts: dict[Path, Callable[[], str]] = {output: text} if output else {}
    more: dict[str, Any] = {"facts": [("Selected", selected)] if selected else []}
    if report is not None:
        texts |= {gap_output: report.text} if gap_output else {}
        tables, more["members"] = tables | report.tables, report.members
        notes = list(dict.fromkeys([*notes, *report.notes])) if json else []

    def blocks() -> Iterator[screen.Block]:
        yield ["=== GPU KERNEL ANALYSIS ===", ""]
        yield from screen.first_lines(analyzer.work)
        yield from _blocks(statistics, top, sorted_by, selected)
        if verbose and len(statistics):
            yield lambda console: [full_name_lines(names, console, top=top)]
        if sources:
            yield lambda console: [source_lines(tables["kernel_sources"], console, top=top)]
        if report is not None:
            yield [""]
            yield from report.blocks()

    document = screen.trace_report("GPU kernels", trace, tables, notes, **more)
    screen.show(document, blocks(), json=json, texts=texts)


def _blocks(
    statistics: pd.DataFrame, top: int, sorted_by: str, selected: str
) -> Iterator[screen.Block]:
    """The totals and the first rows of `kernel_statistics`."""
    names = int(statistics["full_names"].sum())
    more = f" ({names} full names)" if names > len(statistics) else ""
    yield [
        *([f"Selected: {selected}"] if selected else []),
        f"Total unique kernel types found: {len(statistics)}{more}",
        f"Total kernel launches: {int(statistics['count'].sum())}",
        f"Results sorted by: {sorted_by}",
    ]
    if len(shown := statistics.head(top)):
        yield lambda console: _kernels(shown, sorted_by, console)


def _kernels(shown: pd.DataFrame, sorted_by: str, console: Console) -> Iterator[screen.Block]:
    us = idle.sign("μs", console)
    narrow = console.width < screen.NARROW
    columns = {"rank": "Rank", "count": "Count", "avg_time_us": f"Avg Duration ({us})"}
    columns |= {"total_time_us": f"Total Duration ({us})", "std_time_us": f"Std Dev ({us})"}
    columns |= {"% of launches": "% of Total", "% of duration": "% Duration"}
    if narrow:
        del columns["std_time_us"]
    table = shown[[*columns]].rename(columns=columns)
    names = [*map(name_text, shown["kernel_name"])]
    marks = idle.share_marks(shown, console)
    texts = idle.cut_names(names, marks, idle.name_room(table, console), console)
    table.insert(1, "Kernel Name", texts)
    title = f"TOP {len(shown)} GPU KERNELS BY {sorted_by.upper()}:"
    yield screen.Part(title, table, keep=("Kernel Name", "Count", "% Duration"))
    shared = "N kernels share that name; --verbose shows some, --output FILE all."
    yield idle.remarks(texts, shared, "--output FILE has them whole", console)
    if narrow:
        yield [f"Std Dev needs {screen.NARROW} columns; --output FILE has it."]


def full_name_lines(names: pd.DataFrame, console: Console, *, top: int) -> list[str]:
    """The full names behind the first ranks, the most frequent of each."""
    lines = ["", "FULL KERNEL NAMES:"]
    for rank, of_rank in names[names["rank"] <= top].groupby("rank"):
        full = [name_text(each) for each in of_rank["full_name"]]
        lines.append(f"Rank {rank}: {name_text(of_rank['kernel_name'].iloc[0])}")
        lines += [f"  {each}" for each in full[:_NAMES_SHOWN]]
        if more := len(full[_NAMES_SHOWN:]):
            dots = idle.sign("…", console)
            lines.append(f"  {dots} and {more} more; --output FILE lists them all")
    return lines


def source_lines(sources: pd.DataFrame, console: Console, *, top: int) -> list[str]:
    """The first rows of `kernel_sources`, two lines each; where they are is not cut."""
    shown = sources.head(top)
    counts = [f"{idle.sign('×', console)}{count:,}" for count in shown["count"]]
    beside = max(map(len, counts), default=0)
    names = [name_text(short_name(kernel)) for kernel in shown["kernel_name"]]
    kernels = told_apart(names, max(console.width - beside - 21, 16), idle.sign("…", console))
    lines = ["", "KERNELS BY SOURCE LINE AND LAYER:"]
    rows = shown.to_dict("records")
    for count, kernel, row in zip(counts, kernels, rows, strict=True):
        us = f"{row['total_time_us']:14,.3f} {idle.sign('μs', console)}"
        lines.append(f"{us}  {count:<{beside}}  {kernel}")
        where = [name_text(text) for text in (row["source"], row["layer"]) if text]
        lines.append(f"{'':19}{'  in  '.join(where) or 'no Python frame around the launch'}")
    if len(sources) > top:
        lines.append(
            f"{idle.sign('…', console)} and {len(sources) - top:,} more; --json has them all"
        )
    return lines


_NS_PER_MS = 1e6
_MIN_PERCENT = 1.0
_NAME_AT_LEAST = 24  # columns; deeper levels are told, not indented
#: Characters that are printed, about.
_MOST_PRINTED = 50_000_000


def tree(
    trace: Path,
    op: str | None = None,
    depth: int | None = None,
    min_percent: float | None = None,
    merge: bool = True,
    python: bool = False,
    capture: Path | None = None,
    folded: bool = False,
    as_json: bool = False,
    *,
    reading: ReadingOptions,
) -> None:
    """Show the call tree with the GPU time below each operation.

    Options:
        op REGEX: Only operations whose name matches, and what is below them.
        depth 1..: Levels to show.
        min_percent 0..100: Leave out what has less of the GPU's busy time, in %.  [default: 1, 0
            with --folded and --json]
        merge: Make siblings of one name one line.
        python: Show Python frames too (recorded with with_stack=True).
        folded: Print a;b;c NANOSECONDS lines, for speedscope, inferno and the like.
        as_json --json: Print the tree as JSON.
    """
    from tracelens_ext.analysis.operations.tree_table import folded_stacks, merged_tree, tree_rows

    if folded and as_json:
        raise UsageError("--folded and --json are two forms of the tree; choose one")
    pattern = user_pattern(op, "--op")
    how = shared.AnalysisOptions(
        kernel_categories=False, python_frames=python, capture=capture, reading=reading
    )
    found = merged_tree(analyze(trace, how).work, op=pattern, merge=merge)
    if pattern is not None and not len(found):
        raise UsageError(f"no operation that matches {op!r} has GPU work below it; see `tree`")
    if min_percent is None:
        min_percent = 0.0 if folded or as_json else _MIN_PERCENT
    if as_json:
        left_out = _left_out(found, depth, min_percent)
        tables = {"tree": tree_rows(found, found.kept(depth, min_percent))}
        facts = [("GPU busy time", _busy(found))]
        screen.print_report(screen.trace_report("Call tree", trace, tables, left_out, facts=facts))
        return
    make = folded_stacks if folded else partial(_tree_lines, width=screen.screen_width())
    for line in make(found, depth=depth, min_percent=min_percent):
        sys.stdout.write(f"{safe_text(line)}\n")


def _busy(tree: MergedTree) -> str:
    unit, factor = fitting_unit("ms", tree.total_ns / _NS_PER_MS)
    return f"{tree.total_ns / _NS_PER_MS * factor:,.3f} {unit}"


def _tree_lines(
    tree: MergedTree, *, depth: int | None, min_percent: float, width: int
) -> Iterator[str]:
    """The tree as text, a line a node of at most so many columns, and what was left out."""
    from tracelens_ext.trace import GPU_KINDS

    percent = tree.percent()
    keep = tree.kept(depth, min_percent)
    yield f"GPU busy time: {_busy(tree)}"
    if not len(tree):
        yield "No GPU events."
        return
    yield ""
    unit, factor = fitting_unit("ms", tree.total_ns / _NS_PER_MS)
    scale = _NS_PER_MS / factor
    yield f"{f'busy_time_{unit}':>12}  {'% of GPU':>8}  {'count':>9}  call tree"
    nodes = keep.nonzero()[0].tolist()
    printed = 0
    for at, node in enumerate(nodes):
        if printed > _MOST_PRINTED:
            yield f"… and {len(nodes) - at:,} more lines (--depth, --min-percent, --op, --json)"
            break
        line = f"{tree.busy_ns[node] / scale:12,.3f}  {percent[node]:7.1f}%  "
        line += f"{tree.count[node]:9,}  "
        line += _indentation(int(tree.depth[node]), width - len(line) - _NAME_AT_LEAST)
        name = name_text(tree.label(node))
        room = max(width - len(line), _NAME_AT_LEAST)
        if tree.kind[node] in GPU_KINDS:
            line += f"[{cut_middle(name_text(short_name(name)), room - 2)}]"
        else:
            line += cut_middle(name, room)
        printed += len(line)
        yield line
    for left_out in _left_out(tree, depth, min_percent):
        yield from ("", left_out)


def _indentation(depth: int, room: int) -> str:
    """Blanks before a name; levels deeper than there is room for are told."""
    most = max(room // 2, 0)
    return "  " * depth if depth <= most else "  " * max(most - 4, 0) + f"level {depth + 1:,}: "


def _left_out(tree: MergedTree, depth: int | None, min_percent: float) -> list[str]:
    """What of the tree is not shown, a sentence; none for nothing."""
    big = tree.kept(None, min_percent)
    small = int((~big).sum())
    deep = int((big & ~tree.kept(depth)).sum())
    levels = f"level{'s' if depth != 1 else ''}"
    counts = {
        f"below {min_percent:g} % of the busy time (--min-percent)": small,
        f"deeper than {depth} {levels} (--depth)": deep,
    }
    parts = [f"{count:,} {what}" for what, count in counts.items() if count]
    return [f"Left out: {'; '.join(parts)}"] if parts else []
