"""Columns of kernel names on a terminal: cut to the width that is left, and told apart."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.short_names import cut_middle
from tracelens_ext.report.terminal import LONGEST_NAME, frame_table

if TYPE_CHECKING:
    from rich.console import Console

#: The same as in the tables of `report.terminal`.
_MIN_NAME_WIDTH = 16
#: Sign → what replaces it on a terminal that shows only ASCII.
_ASCII_SIGNS = {"→": "->", "×": "x", "…": "...", "μs": "us"}


def sign(text: str, console: Console) -> str:
    """Return a sign, such as an arrow, or its replacement on a terminal that shows only ASCII."""
    if console.options.ascii_only:
        return _ASCII_SIGNS[text]
    return text


def name_room(numbers: pd.DataFrame, console: Console, most: int = LONGEST_NAME) -> int:
    """Return the width that columns of numbers leave for a column of names, up to `most` cells."""
    from rich.console import Console as RichConsole

    # Headers are folded if names would otherwise have less than the minimum width.
    width_of_numbers = max(console.width - _MIN_NAME_WIDTH - 2, 1)
    trial = RichConsole(width=width_of_numbers, file=None, color_system=None)
    with trial.capture() as captured:
        trial.print(frame_table(numbers))
    used_width = max(len(line.rstrip()) for line in captured.get().splitlines())
    free = console.width - used_width - 2
    return max(min(free, most), _MIN_NAME_WIDTH)


def share_marks(table: pd.DataFrame, console: Console) -> list[str]:
    """Return a mark such as ` ×3` for each name that several kernels share; empty for others."""
    times = sign("×", console)
    return [f" {times}{count}" if count > 1 else "" for count in table["full_names"]]


def remarks(
    names: Sequence[str], shared: str, whole: str, console: Console
) -> list[str]:
    """Return a line that explains the sign `×N`, and one for `#N`, if any name has that sign.

    Args:
        names: the names, with their signs.
        shared: the explanation of `×N`.
        whole: where the full names can be seen.
        console: the terminal.
    """
    times = sign("×", console)
    lines = []
    if any(re.search(rf" {times}\d+$", name) for name in names):
        lines.append(f"{times}N: {shared}")
    if any(re.search(rf" #\d+(?: {times}\d+)?$", name) for name in names):
        lines.append(f"#N: these look alike at this width; {whole}.")
    return lines


def cut_names(
    names: Sequence[str],
    marks: Sequence[str],
    room: int,
    console: Console,
    names_beside: Sequence[str] | None = None,
) -> list[str]:
    """Cut names to a width, and number those that look alike afterwards.

    Args:
        names: the names.
        marks: the mark behind each name; see `share_marks`.
        room: the width of a name with its mark and number, in cells.
        console: the terminal.
        names_beside: texts in another column of the table; names beside different texts do not
            look alike.
    """
    dots = sign("…", console)
    cut = [
        cut_middle(name, room - len(mark), dots) + mark
        for name, mark in zip(names, marks, strict=True)
    ]
    keys = list(zip(names_beside or cut, cut, strict=True))
    counts = Counter(keys)
    numbers_given = Counter[tuple[str, str]]()
    for position, key in enumerate(keys):
        if counts[key] > 1:
            numbers_given[key] += 1
            ending = f" #{numbers_given[key]}{marks[position]}"
            cut[position] = (
                cut_middle(text=names[position], width=room - len(ending), mark=dots)
                + ending
            )
    return cut
