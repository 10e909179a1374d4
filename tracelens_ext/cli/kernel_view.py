"""Statistics of kernels, and gaps, on the terminal."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens_ext.cli.screen import NARROW, Block, Part
from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console


_NAME_AT_LEAST = 16  # as of the tables of `report.terminal`
_NAMES_SHOWN = 20  # full names below a row, with --verbose


def kernel_blocks(
    statistics: pd.DataFrame, top: int, sorted_by: str, selected: str
) -> Iterator[Block]:
    """The totals and the first rows of `kernel_statistics`.

    Args:
        statistics: the table, all of it.
        top: rows to show.
        sorted_by: what it is sorted by, in words.
        selected: which events it is about, in words; empty for all.
    """
    names = int(statistics["full_names"].sum())
    more = f" ({names} full names)" if names > len(statistics) else ""
    yield [f"Selected: {selected}"] if selected else []
    yield [
        f"Total unique kernel types found: {len(statistics)}{more}",
        f"Total kernel launches: {int(statistics['count'].sum())}",
        f"Results sorted by: {sorted_by}",
    ]
    if len(shown := statistics.head(top)):
        yield lambda console: _kernels(shown, sorted_by, console)


def _kernels(shown: pd.DataFrame, sorted_by: str, console: Console) -> Iterator[Block]:
    from tracelens_ext.report.terminal import name_text

    us, narrow = signs(console).us, is_narrow(console)
    table = pd.DataFrame(
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
    if narrow:
        table = table.drop(columns=f"Std Dev ({us})")
    marks, room = _marks(shown["full_names"].tolist(), console), name_room(table, console)
    texts = _cut(
        [name_text(name) for name in shown["kernel_name"]], marks, room, signs(console).dots
    )
    table.insert(1, "Kernel Name", texts)
    title = f"TOP {len(shown)} GPU KERNELS BY {sorted_by.upper()}:"
    yield Part(title, table, keep=("Kernel Name", "Count", "% Duration"))
    yield remarks(
        texts,
        shared="N kernels share that name; --verbose shows some, --output FILE all.",
        alike="these look alike at this width; --output FILE has them whole.",
        console=console,
    )
    if narrow:
        yield [f"Std Dev needs {NARROW} columns; --output FILE has it."]


def full_name_lines(names: pd.DataFrame, console: Console, *, top: int) -> list[str]:
    """The full names behind the first ranks, the most frequent of each."""
    from tracelens_ext.report.terminal import name_text

    lines = ["", "FULL KERNEL NAMES:"]
    for rank, of_rank in names[names["rank"] <= top].groupby("rank"):
        full = of_rank["full_name"].tolist()
        lines.append(f"Rank {rank}: {name_text(of_rank['kernel_name'].iloc[0])}")
        lines += [f"  {name_text(each)}" for each in full[:_NAMES_SHOWN]]
        if len(full) > _NAMES_SHOWN:
            more = len(full) - _NAMES_SHOWN
            lines.append(f"  {signs(console).dots} and {more} more; --output FILE lists them all")
    return lines


def source_lines(sources: pd.DataFrame, console: Console, *, top: int) -> list[str]:
    """The first rows of `kernel_sources`, two lines each; where they are is not cut."""
    from tracelens_ext.kernel_names import short_name
    from tracelens_ext.report.terminal import name_text
    from tracelens_ext.tables.short_names import told_apart

    shown = sources.head(top)
    counts = [f"{signs(console).times}{count:,}" for count in shown["count"]]
    beside = max(map(len, counts), default=0)
    kernels = told_apart(
        [name_text(short_name(kernel)) for kernel in shown["kernel_name"]],
        max(console.width - beside - 21, _NAME_AT_LEAST),
        signs(console).dots,
    )
    lines = ["", "KERNELS BY SOURCE LINE AND LAYER:"]
    for count, kernel, (source, layer, total) in zip(
        counts,
        kernels,
        shown[["source", "layer", "total_time_us"]].itertuples(index=False, name=None),
        strict=True,
    ):
        lines.append(f"{total:14,.3f} {signs(console).us}  {count:<{beside}}  {kernel}")
        where = [name_text(text) for text in (source, layer) if text]
        lines.append(f"{'':19}{'  in  '.join(where) or 'no Python frame around the launch'}")
    if len(sources) > top:
        lines.append(f"{signs(console).dots} and {len(sources) - top:,} more; --json has them all")
    return lines


@dataclass(frozen=True)
class Signs:
    """What a terminal can show."""

    arrow: str = "→"
    times: str = "\N{MULTIPLICATION SIGN}"
    dots: str = "…"  #: what stands for the part of a name that is cut out
    us: str = "μs"


def signs(console: Console) -> Signs:
    """Those of this terminal."""
    return Signs("->", "x", "...", "us") if console.options.ascii_only else Signs()


def is_narrow(console: Console) -> bool:
    """Whether names and all the numbers beside them do not fit the terminal."""
    return console.width < NARROW


def transitions(pairs: pd.DataFrame, room: int, console: Console, *, lines: int = 1) -> list[str]:
    """Each pair of kernels as `BEFORE → AFTER` in so many cells, no two alike.

    Args:
        pairs: rows of `gap_pairs`.
        room: cells.
        console: where it will be shown.
        lines: 1; or 2 for two texts a pair, `BEFORE` and `→ AFTER`.
    """
    from tracelens_ext.report.terminal import name_text
    from tracelens_ext.tables.short_names import cut_middle

    arrow, dots = signs(console).arrow, signs(console).dots
    marks = _marks(pairs["full_names"].tolist(), console)
    before = [name_text(name) for name in pairs["kernel_before"]]
    after = [name_text(name) for name in pairs["kernel_after"]]
    if lines == 2:
        first = [cut_middle(name, room, dots) for name in before]
        second = _cut([f"{arrow} {name}" for name in after], marks, room, dots, beside=first)
        return [text for pair in zip(first, second, strict=True) for text in pair]
    longest = max(map(len, marks), default=0)
    both = max(room - len(arrow) - 2 - longest, 12)

    def fitted(one: str, other: str) -> str:
        if len(one) + len(other) > both:
            space = both - len(" #10")  # for those that look alike then
            first = max(space // 2, space - len(other))
            one = cut_middle(one, first, dots)
            other = cut_middle(other, space - len(one), dots)
        return f"{one} {arrow} {other}"

    texts = [fitted(*pair) for pair in zip(before, after, strict=True)]
    return _cut(texts, marks, room, dots)


def name_room(numbers: pd.DataFrame, console: Console) -> int:
    """Cells that are left for a column of names beside these columns."""
    from rich.console import Console as Other

    from tracelens_ext.report.terminal import frame_table

    # Headers are folded where they would leave a name less.
    beside = Other(width=max(console.width - _NAME_AT_LEAST - 2, 1), file=None, color_system=None)
    with beside.capture() as captured:
        beside.print(frame_table(numbers))
    taken = max(len(line.rstrip()) for line in captured.get().splitlines())
    return max(console.width - taken - 2, _NAME_AT_LEAST)


def _marks(full_names: Sequence[int], console: Console) -> list[str]:
    """What is put behind a name that several kernels share."""
    times = signs(console).times
    return [f" {times}{count}" if count > 1 else "" for count in full_names]


def remarks(names: Sequence[str], *, shared: str, alike: str, console: Console) -> list[str]:
    """What the signs behind names mean, if there are such signs.

    Args:
        names: as they are shown.
        shared: what the number of names that share one says.
        alike: what the number of those that look alike says.
        console: where the names are shown.
    """
    times = signs(console).times
    said = []
    if any(re.search(rf" {times}\d+$", name) for name in names):
        said.append(f"{times}N: {shared}")
    if any(re.search(rf" #\d+(?: {times}\d+)?$", name) for name in names):
        said.append(f"#N: {alike}")
    return said


def _cut(
    names: Sequence[str],
    marks: Sequence[str],
    room: int,
    dots: str,
    *,
    beside: Sequence[str] | None = None,
) -> list[str]:
    """Cut names to so many cells, marks included; those that then look alike are numbered.

    Args:
        names: safe to show.
        marks: what is put behind each.
        room: cells.
        dots: what stands for what is cut out.
        beside: texts that tell names apart too.
    """
    from tracelens_ext.tables.short_names import cut_middle

    pairs = list(zip(names, marks, strict=True))
    cut = [cut_middle(name, room - len(mark), dots) + mark for name, mark in pairs]
    keys = list(zip(beside or [""] * len(cut), cut, strict=True))
    often = Counter(keys)
    met: Counter[tuple[str, str]] = Counter()
    result = []
    for key, (name, mark) in zip(keys, pairs, strict=True):
        if often[key] == 1:
            result.append(key[1])
            continue
        met[key] += 1
        number = f" #{met[key]}"
        result.append(cut_middle(name, room - len(mark) - len(number), dots) + number + mark)
    return result
