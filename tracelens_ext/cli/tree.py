"""`tracelens-ext tree`: the call tree with GPU time, or folded stacks for flame graphs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.load import analyze
from tracelens_ext.cli.screen import print_report, screen_width, trace_report
from tracelens_ext.errors import UsageError
from tracelens_ext.kernel_names import short_name
from tracelens_ext.report.terminal import name_text, safe_text
from tracelens_ext.settings import ReadingOptions
from tracelens_ext.tables.short_names import cut_middle
from tracelens_ext.tables.units import fitting_unit
from tracelens_ext.work.patterns import user_pattern

if TYPE_CHECKING:
    from tracelens_ext.operations.tree_table import MergedTree

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
    from tracelens_ext.operations.tree_table import folded_stacks, merged_tree, tree_rows

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
        left_out = _left_out(found, depth, min_percent)
        tables = {"tree": tree_rows(found, found.kept(depth, min_percent))}
        facts = [("GPU busy time", _busy(found))]
        print_report(trace_report("Call tree", trace, tables, left_out, facts=facts))
        return
    if folded:
        lines = folded_stacks(found, depth=depth, min_percent=min_percent)
    else:
        lines = _lines(found, depth=depth, min_percent=min_percent, width=screen_width())
    for line in lines:
        sys.stdout.write(f"{safe_text(line)}\n")


def _busy(tree: MergedTree) -> str:
    unit, factor = fitting_unit("ms", tree.total_ns / _NS_PER_MS)
    return f"{tree.total_ns / _NS_PER_MS * factor:,.3f} {unit}"


def _lines(tree: MergedTree, *, depth: int | None, min_percent: float, width: int) -> Iterator[str]:
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
    nodes, printed = keep.nonzero()[0].tolist(), 0
    for at, node in enumerate(nodes):
        if printed > _MOST_PRINTED:
            yield f"… and {len(nodes) - at:,} more lines (--depth, --min-percent, --op, --json)"
            break
        line = (
            f"{tree.busy_ns[node] / scale:12,.3f}  {percent[node]:7.1f}%  {tree.count[node]:9,}  "
        )
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
    small, deep = int((~big).sum()), int((big & ~tree.kept(depth)).sum())
    parts = []
    if small:
        parts.append(f"{small:,} below {min_percent:g} % of the busy time (--min-percent)")
    if deep:
        parts.append(f"{deep:,} deeper than {depth} level{'s' if depth != 1 else ''} (--depth)")
    return [f"Left out: {'; '.join(parts)}"] if parts else []
