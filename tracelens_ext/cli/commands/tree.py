"""`tracelens-ext tree`: prints the call tree with GPU time, or folded stacks for flame graphs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from tracelens_ext.cli.options import (
    AnalysisOptions,
    Capture,
    GraphReadingFlags,
    TraceArgument,
)
from tracelens_ext.cli.screen import print_report, screen_width, trace_report
from tracelens_ext.errors import UsageError
from tracelens_ext.hooks import Command

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens_ext.analysis.idle_time.cpu_stacks import IdleStacks
    from tracelens_ext.analysis.operations.merged_tree import MergedTree

_NS_PER_MS = 1e6
_DEFAULT_MIN_PERCENT = 1.0
_MIN_NAME_WIDTH = 24  # columns; deeper levels are told, not indented
#: Longer outputs are cut at about this many characters.
_MOST_PRINTED = 50_000_000


def tree(
    trace: TraceArgument,
    op: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="Only operations whose name matches, and everything below them.",
        ),
    ] = None,
    depth: Annotated[
        int | None, typer.Option(min=1, help="Number of levels to show.")
    ] = None,
    min_percent: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=100,
            help=(
                "Leave out entries with less than this share of GPU busy time, in %.  "
                "[default: 1; 0 with --op, --folded or --json]"
            ),
        ),
    ] = None,
    merge: Annotated[
        bool,
        typer.Option("--merge/--no-merge", help="Merge siblings with the same name."),
    ] = True,
    python: Annotated[
        bool,
        typer.Option(
            "--python",
            help="Also show Python frames (for traces recorded with with_stack=True).",
        ),
    ] = False,
    cpu: Annotated[
        bool,
        typer.Option(
            "--cpu",
            help="Show what the CPU did while the GPU waited for it, with the idle time.",
        ),
    ] = False,
    capture: Capture = None,
    folded: Annotated[
        bool,
        typer.Option(
            "--folded",
            help="Print folded stacks (a;b;c NANOSECONDS), for speedscope, inferno and "
            "similar tools.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the tree as JSON.")
    ] = False,
    *,
    reading: GraphReadingFlags,
) -> None:
    """Show the call tree with the GPU time below each operation."""
    from tracelens_ext.analysis.operations.merged_tree import merged_tree
    from tracelens_ext.analysis.operations.tree_table import folded_stacks, tree_rows
    from tracelens_ext.categorize.user_patterns import user_pattern
    from tracelens_ext.cli.load import analyze, recording_notes
    from tracelens_ext.report.terminal import safe_text

    if folded and as_json:
        raise UsageError(
            "--folded and --json both set the output format; give only one of them"
        )
    pattern = user_pattern(op, "--op")
    if cpu:
        if pattern is not None:
            raise UsageError("--op and --cpu are of different trees; give one of them")
        _print_cpu_tree(
            trace,
            AnalysisOptions(kernel_categories=False, capture=capture, reading=reading),
            _Shown(depth=depth, min_percent=min_percent, folded=folded, json=as_json),
        )
        return
    analysis = AnalysisOptions(
        kernel_categories=False, python_frames=python, capture=capture, reading=reading
    )
    analyzer = analyze(trace, analysis)
    merged = merged_tree(analyzer.gpu_events, op=pattern, merge=merge)
    if pattern is not None and not len(merged):
        raise UsageError(
            f"no operation that matches {op!r} launches GPU work; list the operations "
            "with `tree`"
        )
    if min_percent is None:
        shows_all = folded or as_json or pattern is not None
        min_percent = 0.0 if shows_all else _DEFAULT_MIN_PERCENT
    if as_json:
        notes = _left_out(merged, depth, min_percent)
        notes += recording_notes(analyzer, for_json=True)
        report = trace_report(
            title="Call tree",
            trace=trace,
            tables={"tree": tree_rows(merged, merged.kept(depth, min_percent))},
            notes=notes,
            facts=[("GPU busy time", _busy_time(merged))],
        )
        print_report(report)
        return
    make_lines = folded_stacks if folded else partial(_tree_lines, width=screen_width())
    for line in make_lines(merged, depth=depth, min_percent=min_percent):
        sys.stdout.write(f"{safe_text(line)}\n")
    if not folded:
        for note in recording_notes(analyzer, for_json=False):
            sys.stdout.write(f"\n{safe_text(note)}\n")


class _Shown(NamedTuple):
    """Which part of a tree is printed, and how."""

    depth: int | None
    min_percent: float | None
    folded: bool
    json: bool


def _print_cpu_tree(trace: Path, analysis: AnalysisOptions, shown: _Shown) -> None:
    """Print what the CPU did while the GPU waited for it."""
    from tracelens_ext.analysis.idle_time.cpu_stacks import idle_call_tree, idle_stacks
    from tracelens_ext.cli.load import analyze, recording_notes
    from tracelens_ext.report.terminal import safe_text

    analyzer = analyze(trace, analysis)
    if shown.json:
        report = trace_report(
            title="CPU during idle time",
            trace=trace,
            tables={"idle_call_tree": idle_call_tree(analyzer.gpu_events)},
            notes=recording_notes(analyzer, for_json=True),
            facts=[],
        )
        print_report(report)
        return
    stacks = idle_stacks(analyzer.gpu_events)
    lines = stacks.folded()
    if not shown.folded:
        lines = _cpu_tree_lines(stacks, shown)
    for line in lines:
        sys.stdout.write(f"{safe_text(line)}\n")
    if not shown.folded:
        for note in recording_notes(analyzer, for_json=False):
            sys.stdout.write(f"\n{safe_text(note)}\n")


def _cpu_tree_lines(stacks: IdleStacks, shown: _Shown) -> Iterator[str]:
    """Yield a line for each node of the tree, and a line about what was left out."""
    from tracelens_ext.report.tables.short_names import cut_middle
    from tracelens_ext.report.tables.units import fitting_unit
    from tracelens_ext.report.terminal import name_text

    unit, factor = fitting_unit("ms", stacks.total_ns / _NS_PER_MS)
    total = stacks.total_ns / _NS_PER_MS * factor
    yield f"Idle time that waits for the CPU: {total:,.3f} {unit}"
    if not len(stacks):
        yield "The GPU does not wait for the CPU."
        return
    min_percent = shown.min_percent
    if min_percent is None:
        min_percent = _DEFAULT_MIN_PERCENT
    width = screen_width()
    percent = stacks.percent()
    yield ""
    yield f"{f'idle_time_{unit}':>12}  {'% of it':>8}  CPU"
    kept = stacks.kept(shown.depth, min_percent)
    for node in kept.nonzero()[0].tolist():
        idle = stacks.idle_ns[node] / _NS_PER_MS * factor
        line = f"{idle:12,.3f}  {percent[node]:7.1f}%  "
        line += _indentation(
            int(stacks.depth[node]), width - len(line) - _MIN_NAME_WIDTH
        )
        room = max(width - len(line), _MIN_NAME_WIDTH)
        yield line + cut_middle(name_text(stacks.labels[node]), room)
    small = int((~stacks.kept(None, min_percent)).sum())
    if small:
        yield ""
        yield f"Left out: {small:,} below {min_percent:g} % of it (--min-percent)"


def _busy_time(tree: MergedTree) -> str:
    """Return the busy time of the GPU in a suitable unit."""
    from tracelens_ext.report.tables.units import fitting_unit

    unit, factor = fitting_unit("ms", tree.total_ns / _NS_PER_MS)
    return f"{tree.total_ns / _NS_PER_MS * factor:,.3f} {unit}"


def _tree_lines(
    tree: MergedTree, *, depth: int | None, min_percent: float, width: int
) -> Iterator[str]:
    """Yield a line of limited width for each node, and a line about what was left out."""
    from tracelens_ext.report.tables.units import fitting_unit

    yield f"GPU busy time: {_busy_time(tree)}"
    if not len(tree):
        yield "No GPU events."
        return
    yield ""
    nodes = tree.kept(depth, min_percent).nonzero()[0].tolist()
    longest_ns = max((int(tree.busy_ns[node]) for node in nodes), default=0)
    unit, factor = fitting_unit("ms", longest_ns / _NS_PER_MS)
    ns_per_unit = _NS_PER_MS / factor
    yield f"{f'busy_time_{unit}':>12}  {'% of GPU':>8}  {'count':>9}  call tree"
    percent = tree.percent()
    printed = 0
    for position, node in enumerate(nodes):
        if printed > _MOST_PRINTED:
            more = len(nodes) - position
            yield f"… and {more:,} more lines (--depth, --min-percent, --op, --json)"
            break
        numbers = f"{tree.busy_ns[node] / ns_per_unit:12,.3f}  {percent[node]:7.1f}%  "
        numbers += f"{tree.count[node]:9,}  "
        line = _node_line(tree=tree, node=node, numbers=numbers, width=width)
        printed += len(line)
        yield line
    for sentence in _left_out(tree, depth, min_percent):
        yield ""
        yield sentence


def _node_line(tree: MergedTree, node: int, numbers: str, width: int) -> str:
    """Return the line of a node: its numbers, then its name, indented and cut to the width."""
    from tracelens_ext.categorize.kernel_names import short_name
    from tracelens_ext.report.tables.short_names import cut_middle
    from tracelens_ext.report.terminal import LONGEST_NAME, name_text
    from tracelens_ext.trace import GPU_KINDS

    line = numbers
    line += _indentation(int(tree.depth[node]), width - len(line) - _MIN_NAME_WIDTH)
    name = name_text(tree.label(node))
    room = max(min(width - len(line), LONGEST_NAME), _MIN_NAME_WIDTH)
    if tree.kind[node] in GPU_KINDS:
        return f"{line}[{cut_middle(name_text(short_name(name)), room - 2)}]"
    return line + cut_middle(name, room)


def _indentation(depth: int, room: int) -> str:
    """Return the indentation of a name; very deep levels are written as a number instead."""
    most = max(room // 2, 0)
    if depth <= most:
        return "  " * depth
    return "  " * max(most - 4, 0) + f"level {depth + 1:,}: "


def _left_out(tree: MergedTree, depth: int | None, min_percent: float) -> list[str]:
    """Return a sentence about the part of the tree that is not shown; empty if all is."""
    is_large = tree.kept(None, min_percent)
    small = int((~is_large).sum())
    deep = int((is_large & ~tree.kept(depth)).sum())
    parts = []
    if small:
        parts.append(
            f"{small:,} below {min_percent:g} % of the busy time (--min-percent)"
        )
    if deep:
        levels = "level" if depth == 1 else "levels"
        parts.append(f"{deep:,} deeper than {depth} {levels} (--depth)")
    return [f"Left out: {'; '.join(parts)}"] if parts else []


COMMAND = Command(
    name="tree",
    summary="Show the call tree with the GPU time below each operation.",
    function=tree,
    group="Inspect",
    examples=(
        "tree trace.json.gz --depth 6",
        "tree trace.json.gz --op Attention --min-percent 0.1",
        "tree trace.json.gz --cpu --folded > stacks.txt",
    ),
)
