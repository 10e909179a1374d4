"""Tables of pairs of kernels around gaps, for terminals of different widths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.cli.name_columns import cut_names, name_room, share_marks, sign
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.short_names import cut_middle
from tracelens_ext.report.terminal import LONGEST_NAME, name_text

if TYPE_CHECKING:
    from rich.console import Console

_MIN_PAIR_WIDTH = 12


def _pair_numbers(
    pairs: pd.DataFrame, console: Console, *, is_narrow: bool
) -> pd.DataFrame:
    """Return the ranks and numbers of pairs; a narrow terminal has room for the main ones."""
    us = sign("μs", console)
    titles = {
        "count": "Count",
        "avg_gap_us": f"Avg Gap ({us})",
        "max_gap_us": f"Max Gap ({us})",
    }
    if not is_narrow:
        titles["min_gap_us"] = f"Min Gap ({us})"
        titles["std_gap_us"] = f"Std Dev ({us})"
    table = pairs[list(titles)].rename(columns=titles)
    table.insert(0, "Rank", range(1, len(pairs) + 1))
    return table


def pairs_in_two_lines(pairs: pd.DataFrame, console: Console) -> pd.DataFrame:
    """Return a table with a line for the kernel before, and one for the kernel after."""
    table = _pair_numbers(pairs, console, is_narrow=True)
    room = name_room(table, console)
    dots = sign("…", console)
    arrow = sign("→", console)
    before = [
        cut_middle(name_text(name), room, dots) for name in pairs["kernel_before"]
    ]
    after = [f"{arrow} {name_text(name)}" for name in pairs["kernel_after"]]
    after = cut_names(
        names=after,
        marks=share_marks(pairs, console),
        room=room,
        console=console,
        names_beside=before,
    )
    lines = range(2 * len(table))
    table = table.astype({"Rank": "Int64", "Count": "Int64"})
    table = table.set_axis(lines[::2]).reindex(lines)
    names = [name for pair in zip(before, after, strict=True) for name in pair]
    table.insert(1, "Kernel Transition", names)
    return table


def pairs_in_one_line(pairs: pd.DataFrame, console: Console) -> pd.DataFrame:
    """Return a table with both kernels of a pair beside each other."""
    table = _pair_numbers(pairs, console, is_narrow=False)
    room = name_room(table, console, most=2 * LONGEST_NAME)
    dots = sign("…", console)
    arrow = sign("→", console)
    marks = share_marks(pairs, console)
    longest_mark = max(map(len, marks), default=0)
    pair_width = max(room - len(arrow) - 2 - longest_mark, _MIN_PAIR_WIDTH)
    # Pairs that look alike after they are cut get a number such as #10.
    cut_to = pair_width - len(" #10")
    transitions = []
    for before, after in zip(
        pairs["kernel_before"], pairs["kernel_after"], strict=True
    ):
        before = name_text(before)
        after = name_text(after)
        if len(before) + len(after) > pair_width:
            before = cut_middle(before, max(cut_to // 2, cut_to - len(after)), dots)
            after = cut_middle(after, cut_to - len(before), dots)
        transitions.append(f"{before} {arrow} {after}")
    table.insert(
        1,
        "Kernel Transition",
        cut_names(names=transitions, marks=marks, room=room, console=console),
    )
    return table
