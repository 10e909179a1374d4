"""`tracelens-ext tree`: the call tree with GPU time, or folded stacks for flame graphs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.messages import print_json
from tracelens_ext.errors import UsageError
from tracelens_ext.settings import ReadingOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens_ext.operations.tree_table import MergedTree

_NS_PER_MS = 1e6
_MIN_PERCENT = 1.0
#: Levels that are indented; what is deeper says its level instead, as 70,000 levels of indentation
#: are gigabytes.
_MOST_INDENTED = 100
#: Characters that are printed, about.
_MOST_PRINTED = 50_000_000


def tree(
    trace: shared.Trace,
    op: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX", help="Only operations whose name matches, and what is below them."
        ),
    ] = None,
    depth: Annotated[int | None, typer.Option(help="Levels to show.", min=1)] = None,
    min_percent: Annotated[
        float | None,
        typer.Option(
            help="Leave out what has less of the GPU's busy time, in %.  [default: 1, 0 with"
            " --folded and --json]",
            min=0,
            max=100,
            show_default=False,
        ),
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge/--no-merge", help="Make siblings of one name one line.")
    ] = True,
    python: Annotated[
        bool,
        typer.Option("--python", help="Show Python frames too (recorded with with_stack=True)."),
    ] = False,
    capture: shared.Capture = None,
    folded: Annotated[
        bool,
        typer.Option(
            "--folded", help="Print a;b;c NANOSECONDS lines, for speedscope, inferno and the like."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the tree as JSON.")] = False,
    *,
    reading: ReadingOptions,
) -> None:
    """Show the call tree with the GPU time below each operation."""
    from tracelens_ext.cli.load import analyze
    from tracelens_ext.operations.tree_table import folded_stacks, merged_tree
    from tracelens_ext.work.patterns import user_pattern

    if folded and as_json:
        raise UsageError("--folded and --json are two forms of the tree; choose one")
    pattern = user_pattern(op, "--op")
    options = shared.AnalysisOptions(
        kernel_categories=False, python_frames=python, capture=capture, reading=reading
    )
    analyzer = analyze(trace, options)
    found = merged_tree(analyzer.work, op=pattern, merge=merge)
    if pattern is not None and not len(found):
        raise UsageError(f"no operation that matches {op!r} has GPU work below it; see `tree`")
    if min_percent is None:
        min_percent = 0.0 if folded or as_json else _MIN_PERCENT
    if as_json:
        _print_json(trace, found, depth, min_percent)
    elif folded:
        _print_lines(folded_stacks(found, depth=depth, min_percent=min_percent), None)
    else:
        lines = tree_lines(found, depth=depth, min_percent=min_percent)
        _print_lines(lines, _screen_width())


def _print_lines(lines: Iterator[str], width: int | None) -> None:
    from tracelens_ext.report.terminal import safe_text
    from tracelens_ext.tables.short_names import cut_middle

    for line in lines:
        safe = safe_text(line)
        sys.stdout.write(f"{safe if width is None else cut_middle(safe, width)}\n")


def _print_json(trace: Path, tree: MergedTree, depth: int | None, min_percent: float) -> None:
    from tracelens_ext.operations.tree_table import tree_rows

    left_out = _left_out(tree, depth, min_percent)
    tables = {"tree": tree_rows(tree, tree.kept(depth, min_percent))}
    notes = [left_out] if left_out else []
    print_json("Call tree", trace, tables, notes, facts=[("GPU busy time", _busy(tree))])


def _busy(tree: MergedTree) -> str:
    return f"{tree.total_ns / _NS_PER_MS:,.3f} ms"


def _screen_width() -> int | None:
    """The width of the terminal; None if the output is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def tree_lines(tree: MergedTree, *, depth: int | None, min_percent: float) -> Iterator[str]:
    """The tree as text, a line a node, and what was left out.

    Args:
        tree: the tree.
        depth: levels to show; all by default.
        min_percent: leave out what has less of the GPU's busy time.
    """
    from tracelens_ext.kernel_names import short_name
    from tracelens_ext.report.terminal import name_text
    from tracelens_ext.trace import GPU_KINDS

    percent = tree.percent()
    keep = tree.kept(depth, min_percent)
    yield f"GPU busy time: {_busy(tree)}"
    if not len(tree):
        yield "No GPU events."
        return
    yield ""
    yield f"{'busy_time_ms':>12}  {'% of GPU':>8}  {'count':>9}  call tree"
    nodes, printed = keep.nonzero()[0].tolist(), 0
    for at, node in enumerate(nodes):
        if printed > _MOST_PRINTED:
            yield f"… and {len(nodes) - at:,} more lines (--depth, --min-percent, --op, --json)"
            break
        name = tree.label(node)
        if tree.kind[node] in GPU_KINDS:
            name = f"[{name_text(short_name(name))}]"
        name = name_text(name)
        line = (
            f"{tree.busy_ns[node] / _NS_PER_MS:12,.3f}  {percent[node]:7.1f}%"
            f"  {tree.count[node]:9,}  {_indentation(int(tree.depth[node]))}{name}"
        )
        printed += len(line)
        yield line
    if left_out := _left_out(tree, depth, min_percent):
        yield ""
        yield left_out


def _indentation(depth: int) -> str:
    deep = f"level {depth + 1:,}: " if depth > _MOST_INDENTED else ""
    return "  " * min(depth, _MOST_INDENTED) + deep


def _left_out(tree: MergedTree, depth: int | None, min_percent: float) -> str:
    """What of the tree is not shown, in a sentence; empty for nothing."""
    big = tree.kept(None, min_percent)
    small, deep = int((~big).sum()), int((big & ~tree.kept(depth)).sum())
    parts = []
    if small:
        parts.append(f"{small:,} below {min_percent:g} % of the busy time (--min-percent)")
    if deep:
        parts.append(f"{deep:,} deeper than {depth} level{'s' if depth != 1 else ''} (--depth)")
    return f"Left out: {'; '.join(parts)}" if parts else ""
