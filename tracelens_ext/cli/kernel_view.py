"""Statistics of kernels, and gaps, on the terminal."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from rich.console import Console

    from tracelens_ext.analysis.gpu_work import GpuWork

_NAME_AT_LEAST = 16  # as of the tables of `report.terminal`
_PIPED_WIDTH = 160  # nobody folds the lines of a file
_NAMES_SHOWN = 20  # full names below a row, with --verbose


def console() -> Console:
    """The terminal; a wide one when the output goes to a file or a program."""
    from rich.console import Console

    terminal = Console()
    if terminal.is_terminal or "COLUMNS" in os.environ:
        return terminal
    return Console(width=_PIPED_WIDTH)


def show_lines(lines: Sequence[str], console: Console) -> None:
    """Print lines as they are, however long; for a terminal that knows ASCII only, in that."""
    from rich.text import Text

    from tracelens_ext.report.histogram import ascii_lines

    if console.options.ascii_only:
        lines = [line.encode("ascii", "backslashreplace").decode() for line in ascii_lines(lines)]
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def show_kernels(
    statistics: pd.DataFrame, console: Console, *, top: int, sorted_by: str, selected: str
) -> None:
    """Print the totals and the first rows of `kernel_statistics`.

    Args:
        statistics: the table, all of it.
        console: where to.
        top: rows to print.
        sorted_by: what it is sorted by, in words.
        selected: which events it is about, in words; empty for all.
    """
    import pandas as pd

    from tracelens_ext.report.terminal import frame_table

    names = int(statistics["full_names"].sum())
    more = f" ({names} full names)" if names > len(statistics) else ""
    lines = ["=== GPU KERNEL ANALYSIS ===", ""]
    lines += [f"Selected: {selected}"] if selected else []
    lines += [
        f"Total unique kernel types found: {len(statistics)}{more}",
        f"Total kernel launches: {int(statistics['count'].sum())}",
        f"Results sorted by: {sorted_by}",
    ]
    show_lines(lines, console)
    shown = statistics.head(top)
    if not len(shown):
        return
    us = microseconds(console)
    numbers = pd.DataFrame(
        {
            "Rank": shown["rank"],
            "Count": shown["count"],
            f"Avg Duration ({us})": shown["avg_time_us"],
            f"Total Duration ({us})": shown["total_time_us"],
            f"Std Dev ({us})": shown["std_time_us"],
            "% of Total": shown["% of launches"],
            "% Duration": shown["% of duration"],
        }
    )
    room = name_room(numbers, console)
    marks = _marks(shown["full_names"].tolist(), console)
    table = numbers.copy()
    table.insert(1, "Kernel Name", _cut(shown["kernel_name"].tolist(), marks, room, _dots(console)))
    show_lines(["", f"TOP {len(shown)} GPU KERNELS BY {sorted_by.upper()}:"], console)
    console.print(frame_table(table))
    if any(marks):
        times = _times(console)
        show_lines(
            [f"NAME {times}N: N kernels share that simplified name; --verbose tells."], console
        )


def show_full_names(work: GpuWork, statistics: pd.DataFrame, console: Console, *, top: int) -> None:
    """Print the full names behind the first rows."""
    from tracelens_ext.analysis.kernel_statistics import full_names
    from tracelens_ext.report.terminal import safe_text

    names = full_names(work)
    lines = ["", "FULL KERNEL NAMES:"]
    for rank, name in statistics[["rank", "kernel_name"]].head(top).itertuples(index=False):
        full = names[name]
        lines.append(f"Rank {rank}: {safe_text(name)}")
        lines += [f"  {safe_text(each)}" for each in full[:_NAMES_SHOWN]]
        if len(full) > _NAMES_SHOWN:
            lines.append(f"  … and {len(full) - _NAMES_SHOWN} more")
    show_lines(lines, console)


def transitions(pairs: pd.DataFrame, room: int, console: Console) -> list[str]:
    """Each pair of kernels as `BEFORE → AFTER` in so many cells, no two alike."""
    from tracelens_ext.report.terminal import cut_middle, safe_text

    arrow = " -> " if console.options.ascii_only else " → "
    marks = _marks(pairs["full_names"].tolist(), console)
    longest = max(map(len, marks), default=0)
    both = max(room - len(arrow) - longest, 12)
    dots = _dots(console)

    def fitted(before: str, after: str) -> str:
        if len(before) + len(after) > both:
            space = both - len(" #10")  # for those that look alike then
            first = max(space // 2, space - len(after))
            before = cut_middle(before, first, dots)
            after = cut_middle(after, space - len(before), dots)
        return before + arrow + after

    pair = zip(pairs["kernel_before"], pairs["kernel_after"], strict=True)
    texts = [fitted(safe_text(before), safe_text(after)) for before, after in pair]
    return _cut(texts, marks, room, dots)


def name_room(numbers: pd.DataFrame, console: Console) -> int:
    """Cells that are left for a column of names beside these columns."""
    from rich.console import Console as Other

    from tracelens_ext.report.terminal import frame_table

    wide = Other(width=1000, file=None, color_system=None)
    with wide.capture() as captured:
        wide.print(frame_table(numbers))
    taken = max(len(line.rstrip()) for line in captured.get().splitlines())
    return max(console.width - taken - 2, _NAME_AT_LEAST)


def _marks(full_names: Sequence[int], console: Console) -> list[str]:
    """What is put behind a name that several kernels share."""
    times = _times(console)
    return [f" {times}{count}" if count > 1 else "" for count in full_names]


def _times(console: Console) -> str:
    """The sign of multiplication."""
    return "x" if console.options.ascii_only else "\N{MULTIPLICATION SIGN}"


def _dots(console: Console) -> str:
    """What stands for the part of a name that is cut out."""
    return "..." if console.options.ascii_only else "…"


def microseconds(console: Console) -> str:
    """The unit in headings."""
    return "us" if console.options.ascii_only else "μs"


def _cut(names: Sequence[str], marks: Sequence[str], room: int, dots: str) -> list[str]:
    """Cut names to so many cells, marks included; those that then look alike are numbered."""
    from tracelens_ext.report.terminal import cut_middle, safe_text

    safe = [safe_text(name) for name in names]
    pairs = list(zip(safe, marks, strict=True))
    cut = [cut_middle(name, room - len(mark), dots) + mark for name, mark in pairs]
    often = Counter(cut)
    met: Counter[str] = Counter()
    result = []
    for text, (name, mark) in zip(cut, pairs, strict=True):
        if often[text] == 1:
            result.append(text)
            continue
        met[text] += 1
        number = f" #{met[text]}"
        result.append(cut_middle(name, room - len(mark) - len(number), dots) + number + mark)
    return result
