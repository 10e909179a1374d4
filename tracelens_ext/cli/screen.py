"""The terminal: a report's headline, tables and notes on it, whatever it can show."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from tracelens_ext.lazy import pd
from tracelens_ext.report.report import Format, Report, report_text
from tracelens_ext.report.terminal import frame_table, safe_text
from tracelens_ext.tables.registry import find_table
from tracelens_ext.tables.table import Table
from tracelens_ext.text import ms_text

if TYPE_CHECKING:
    from rich.console import Console

    from tracelens_ext.work.gpu_work import GpuWork

#: Columns of a terminal: below it names need the room of numbers that say less.
NARROW = 120
_PIPED_WIDTH = 200
_WIDEST_TEXT = 120  # longer lines are hard to read
_NOTE_LINES = 5
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=%|(?:[mµμn]?s|[kMG]?B)\b)")
_SMALL = 0.1  # below it three digits tell more than three decimals


@dataclass(frozen=True)
class Part:
    """A table on the screen, below a blank line; nothing of one without rows."""

    title: str
    frame: pd.DataFrame
    #: to show, in this order, where the table has them: what does not fit goes from the end
    columns: Sequence[str] | None = None
    rows: int | None = None  #: the first ones; all by default
    keep: Sequence[str] = ()  #: columns that are left out last
    name_width: int = 20  #: of the first column, as long as there are columns that do not fit

    @classmethod
    def of(cls, table: Table | str, frame: pd.DataFrame, rows: int | None = None) -> Part:
        """A registered table, or that of a name, as its declaration has it on a screen."""
        if isinstance(table, str):
            table = find_table(table)
        title, _, columns = table.screen.partition(": ")
        return cls(title, frame, columns.split(", ") if columns else None, rows)

    def __call__(self, _: Console) -> Iterable[Any]:
        """What is printed."""
        if len(self.frame) and self.rows != 0:
            yield [""]
            yield frame_table(**vars(self))


#: What is on a screen: a sentence, which is folded; lines as they are; what rich shows; or what
#: makes such of the terminal, as only its width tells what has room, such as a `Part`.
Block = str | Sequence[str] | Callable[["Console"], Iterable[Any]] | Any


#: Whether every note is printed, not five lines of them.
every_note = ContextVar("every_note", default=False)


def show(report: Report, blocks: Iterable[Block], *, json: bool = False) -> None:
    """Print a report: its blocks, then its notes; or it as JSON."""
    if json:
        print_report(report)
        return
    screen = console()
    show_blocks(blocks, screen)
    if report.notes:
        screen.print()
        show_notes(report.notes, screen, whole=every_note.get())


def show_blocks(blocks: Iterable[Block], screen: Console) -> None:
    """Print blocks one below the other."""
    for block in blocks:
        if isinstance(block, str):
            block = folded(block, screen.width, "    " * block.startswith(" ")) or [""]
        if isinstance(block, list | tuple):
            _show_lines(block, screen)
        elif callable(block):
            show_blocks(block(screen), screen)
        else:
            screen.print(block)


def bold(text: str) -> Block:
    """Lines in bold."""
    from rich.text import Text

    return lambda screen: [Text(line, "bold") for line in _plain(text.splitlines(), screen)]


def trace_report(
    title: str,
    trace: object,
    tables: Mapping[str, pd.DataFrame],
    notes: Iterable[str] = (),
    *,
    facts: Sequence[tuple[str, object]] = (),
    members: Mapping[str, object] | None = None,
) -> Report:
    """Tables of a trace as a report."""
    told = [("Trace", str(trace)), *facts]
    return Report(title, tables, told, list(notes), members=members or {})


def print_report(report: Report, form: Format | None = None) -> None:
    """Print a report to standard output, piece by piece."""
    for piece in report_text(report, form or Format.json):
        typer.echo(piece, nl=False)


def print_line(text: str, *, error: bool = False) -> None:
    """Print a line; what could act on a terminal, or break the line, is shown as an escape."""
    typer.echo(safe_text(text), err=error)


def tell(text: str) -> None:
    """Say something about the run on standard error."""
    print_line(f"tracelens-ext: {text}", error=True)


def screen_width() -> int:
    """Columns of the terminal; many when the output goes to a file or a program."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return shutil.get_terminal_size().columns
    return _PIPED_WIDTH


def console() -> Console:
    """The terminal that everything is shown on."""
    from rich.console import Console

    return Console(width=screen_width())


def _show_lines(lines: Sequence[str], screen: Console) -> None:
    """Print lines as they are, however long."""
    from rich.text import Text

    for line in _plain(lines, screen):
        screen.print(Text(line), soft_wrap=True)


def _plain(lines: Sequence[str], screen: Console) -> Sequence[str]:
    """Lines as this terminal can show them: one that knows ASCII only, in that."""
    from tracelens_ext.gaps.told import ascii_lines

    lines = [safe_text(line) for line in lines]
    if not screen.options.ascii_only:
        return lines
    return [line.encode("ascii", "backslashreplace").decode() for line in ascii_lines(lines)]


def first_lines(work: GpuWork, trace: object = None) -> list[Block]:
    """What the recording holds (nothing without GPU work), and its file: what is shown first."""
    from tracelens_ext.recording.told import recording_lines

    told: list[Block] = [f"Recording: {' '.join(recording_lines(work))}"] if len(work) else []
    return [*told, [""]] * bool(told) if trace is None else [[f"Trace: {trace}"], *told]


def folded(text: str, width: int, indent: str = "") -> list[str]:
    """A text in lines that fit; no word is broken, and no number parted from its unit."""
    text = _BEFORE_UNIT.sub("\u00a0", safe_text(text))
    lines = textwrap.wrap(text, max(width, 40), subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines]


def fact_text(label: str, value: object) -> str:
    """A fact of a report in a line; a time in the unit that fits."""
    if isinstance(value, float) and label.endswith(" (ms)"):
        return f"{label.removesuffix(' (ms)')}: {ms_text(value)}"
    if isinstance(value, float):
        value = f"{value:,.3f}" if value >= _SMALL or not value else f"{value:.3g}"
    return f"{label}: {value}"


def show_notes(notes: Sequence[str], screen: Console, *, whole: bool = False) -> None:
    """Print notes; if not `whole`, no more lines of them than have room on a screen."""
    texts = [folded(note, min(screen.width, _WIDEST_TEXT)) for note in notes]
    lines = [line for text in texts for line in text]
    if len(lines) > _NOTE_LINES and not whole:
        room, left = _NOTE_LINES - 1, texts.copy()
        cut = [*lines[: room - 1], f"{lines[room - 1]} …"]  # where the first alone has no room
        lines = []
        while len(lines) + len(left[0]) <= room:
            lines += left.pop(0)
        more, lines = len(left), lines or cut
        lines.append(f"and {more} more note{'s' if more > 1 else ''}: --notes")
    _show_lines(lines, screen)
