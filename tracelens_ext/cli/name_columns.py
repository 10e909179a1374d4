"""Columns of kernel names on a terminal: cut to the room that numbers leave, and told apart."""

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

_MIN_NAME_WIDTH = 16  # as of the tables of `report.terminal`
_ASCII = {"→": "->", "×": "x", "…": "...", "μs": "us"}


def sign(text: str, console: Console) -> str:
    """Return what stands for an arrow and the like on a terminal that shows ASCII only."""
    return _ASCII[text] if console.options.ascii_only else text


def name_room(numbers: pd.DataFrame, console: Console, most: int = LONGEST_NAME) -> int:
    """Return the cells that a column of names gets beside these columns, at most `most`."""
    from rich.console import Console as RichConsole

    # Headers are folded where they would leave a name less.
    width_of_numbers = max(console.width - _MIN_NAME_WIDTH - 2, 1)
    trial = RichConsole(width=width_of_numbers, file=None, color_system=None)
    with trial.capture() as captured:
        trial.print(frame_table(numbers))
    taken = max(len(line.rstrip()) for line in captured.get().splitlines())
    free = console.width - taken - 2
    return max(min(free, most), _MIN_NAME_WIDTH)


def share_marks(table: pd.DataFrame, console: Console) -> list[str]:
    """Return what is put behind a name that several kernels share."""
    times = sign("×", console)
    return [f" {times}{count}" if count > 1 else "" for count in table["full_names"]]


def remarks(
    names: Sequence[str], shared: str, whole: str, console: Console
) -> list[str]:
    """Return what the signs behind names mean, `×N` and `#N`, if there are such signs.

    Args:
        names: The names.
        shared: What `×N` means.
        whole: Where the names are not cut.
        console: The terminal.
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
    """Cut names to so many cells, marks included; those that then look alike are numbered.

    Args:
        names: The names.
        marks: What is put behind each.
        room: Cells.
        console: The terminal.
        names_beside: Texts that tell names apart too.
    """
    dots = sign("…", console)
    cut = [
        cut_middle(name, room - len(mark), dots) + mark
        for name, mark in zip(names, marks, strict=True)
    ]
    keys = list(zip(names_beside or cut, cut, strict=True))
    counts = Counter(keys)
    numbers = Counter[tuple[str, str]]()
    for position, key in enumerate(keys):
        if counts[key] > 1:
            numbers[key] += 1
            ending = f" #{numbers[key]}{marks[position]}"
            cut[position] = (
                cut_middle(text=names[position], width=room - len(ending), mark=dots)
                + ending
            )
    return cut
