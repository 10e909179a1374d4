"""What commands print: reports, block by block, on a terminal, whatever it can show."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tracelens_ext.isolation import PartFailures
from tracelens_ext.lazy import pd
from tracelens_ext.report import writing
from tracelens_ext.report.report import Report
from tracelens_ext.report.terminal import frame_table, safe_text
from tracelens_ext.report.writing import OutputFormat
from tracelens_ext.text import NO_BREAK_SPACE, ms_text, with_units_attached

if TYPE_CHECKING:
    from rich.console import Console

    from tracelens_ext.report.tables.table import Table
    from tracelens_ext.trace.gpu_events import GpuEvents

#: Columns of a terminal: below it names need the room of numbers that say less.
NARROW = 120
#: Longer lines of text are hard to read.
WIDEST_TEXT = 120
#: What stands for standard output among paths.
STANDARD_OUTPUT = Path("-")
_PIPED_WIDTH = 200
_NARROWEST_TEXT = 40
_NOTE_LINES = 5
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
    #: of the first column, as long as there are columns that do not fit
    name_width: int = 20

    @classmethod
    def of(
        cls, table: Table | str, frame: pd.DataFrame, rows: int | None = None
    ) -> Part:
        """Return a registered table, or that of a name, as its declaration has it on a screen."""
        from tracelens_ext.report.tables.registry import find_table

        if isinstance(table, str):
            table = find_table(table)
        view = table.screen
        return cls(view.title, frame, view.columns or None, rows)

    def __call__(self, _: Console) -> Iterable[Any]:
        """Return what is printed."""
        if not len(self.frame) or self.rows == 0:
            return []
        return [[""], frame_table(**vars(self))]


@dataclass(frozen=True)
class Section:
    """Blocks that are made when they are printed, and what they are called if that fails."""

    title: str
    make: Callable[[Console], Iterable[Any]]

    def __call__(self, screen: Console) -> Iterable[Any]:
        """Return what is printed."""
        return self.make(screen)


#: What is on a screen: a sentence, which is folded; lines as they are; what rich shows; or what
#: makes such of the terminal, as only its width tells what has room, such as a `Part`.
Block = str | Sequence[str] | Callable[["Console"], Iterable[Any]] | Any

#: Whether every note is printed, not five lines of them.
every_note = ContextVar("every_note", default=False)


def show(
    report: Report,
    blocks: Iterable[Block],
    *,
    json: bool = False,
    texts: Mapping[Path, Callable[[], str]] | None = None,
) -> None:
    """Print a report: its blocks, then its notes; or it as JSON.

    A block that cannot be made is left out, and a note says so.

    Args:
        report: What is printed as JSON; of the screen the notes.
        blocks: What is on the screen, above the notes.
        json: Print JSON.
        texts: What is written to files; one that goes to standard output is all that is printed.
    """
    texts = texts or {}
    for path, text in texts.items():
        write_text(path, text())
    if json:
        print_report(report)
        return
    if STANDARD_OUTPUT not in texts:
        screen = console()
        failures = PartFailures()
        show_blocks(blocks, screen, failures)
        notes = failures.messages + list(report.notes)
        if notes:
            screen.print()
            show_notes(notes, screen, whole=every_note.get())
    tell_written(list(texts))


def show_blocks(
    blocks: Iterable[Block], screen: Console, failures: PartFailures | None = None
) -> None:
    """Print blocks one below the other.

    Args:
        blocks: What is printed.
        screen: Where.
        failures: Takes an unexpected error in making a block, and the others are printed; without
            it the error is raised.
    """
    if failures is None:
        for block in blocks:
            for piece in _pieces(block, screen):
                _print_piece(piece, screen)
        return
    for block in _isolated(iter(blocks), failures):
        pieces: list[Any] = []
        with failures.isolate(_part_name(block)):
            pieces = list(_pieces(block, screen))
        for piece in pieces:  # a closed pipe is no failure of the part
            _print_piece(piece, screen)


def _isolated(blocks: Iterator[Block], failures: PartFailures) -> Iterator[Block]:
    """Yield blocks that may be made on the way; an unexpected error in making one ends them."""
    with failures.isolate("A section of the screen"):
        yield from blocks


def _part_name(block: Block) -> str:
    """Return what a block is called when it fails."""
    if isinstance(block, Part | Section):
        return f"The section {block.title!r} of the screen"
    return "A section of the screen"


def _pieces(block: Block, screen: Console) -> Iterator[Any]:
    """Yield what a block consists of: lists of lines, and what rich shows."""
    if isinstance(block, str):
        indent = "    " if block.startswith(" ") else ""
        yield folded(block, screen.width, indent) or [""]
    elif callable(block):
        for inner in block(screen):
            yield from _pieces(inner, screen)
    else:
        yield block


def _print_piece(piece: Any, screen: Console) -> None:  # noqa: ANN401  # whatever rich shows
    if isinstance(piece, list | tuple):
        _show_lines(piece, screen)
    else:
        screen.print(piece)


def bold(text: str) -> Block:
    """Return lines in bold."""
    from rich.text import Text

    return lambda screen: [
        Text(line, "bold") for line in _plain(text.splitlines(), screen)
    ]


def trace_report(
    title: str,
    trace: object,
    tables: Mapping[str, pd.DataFrame],
    notes: Iterable[str] = (),
    *,
    facts: Sequence[tuple[str, object]] = (),
    members: Mapping[str, object] | None = None,
) -> Report:
    """Return tables of a trace as a report."""
    all_facts = [("Trace", str(trace))] + list(facts)
    return Report(
        title=title,
        sheets=tables,
        facts=all_facts,
        notes=list(notes),
        members=members or {},
    )


def print_report(report: Report, output_format: OutputFormat | None = None) -> None:
    """Print a report to standard output, piece by piece."""
    for piece in writing.report_text(report, output_format or OutputFormat.json):
        typer.echo(piece, nl=False)


def print_line(text: str, *, error: bool = False) -> None:
    """Print a line; what could act on a terminal, or break the line, is shown as an escape."""
    typer.echo(safe_text(text), err=error)


def tell(text: str) -> None:
    """Say something about the run on standard error."""
    print_line(f"tracelens-ext: {text}", error=True)


def tell_written(paths: Sequence[Path]) -> None:
    """Say which files were written; on standard error where a text is on standard output."""
    for path in paths:
        if path != STANDARD_OUTPUT:
            print_line(f"Wrote {path}", error=STANDARD_OUTPUT in paths)


def write_text(path: Path, text: str) -> None:
    """Write a whole text or nothing; `-` is standard output."""
    from tracelens_ext.report.manifest import written_beside

    if path == STANDARD_OUTPUT:
        typer.echo(text, nl=False)
        return
    with written_beside(path) as beside:
        beside.write_text(text, encoding="utf-8", newline="\n")


def screen_width() -> int:
    """Return the columns of the terminal; many when the output goes to a file or a program."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return shutil.get_terminal_size().columns
    return _PIPED_WIDTH


def console() -> Console:
    """Return the terminal that everything is shown on."""
    from rich.console import Console

    return Console(width=screen_width())


def _show_lines(lines: Sequence[str], screen: Console) -> None:
    """Print lines as they are, however long."""
    from rich.text import Text

    for line in _plain(lines, screen):
        screen.print(Text(line), soft_wrap=True)


def _plain(lines: Sequence[str], screen: Console) -> Sequence[str]:
    """Return lines as this terminal can show them: one that knows ASCII only, in that."""
    from tracelens_ext.analysis.idle_time.histogram import ascii_lines

    safe_lines = [safe_text(line) for line in lines]
    if not screen.options.ascii_only:
        return safe_lines
    return [
        line.encode("ascii", "backslashreplace").decode()
        for line in ascii_lines(safe_lines)
    ]


def first_lines(work: GpuEvents, trace: object = None) -> list[Block]:
    """Return what is shown first: the file, and what the recording holds.

    Without GPU work nothing is said of the recording.
    """
    from tracelens_ext.analysis.coverage.report_tables import recording_lines

    blocks: list[Block] = []
    if trace is not None:
        blocks.append([f"Trace: {trace}"])
    if len(work):
        lines = recording_lines(work)
        blocks.append(f"Recording: {' '.join(lines)}")
        if trace is None:
            blocks.append([""])
    return blocks


def folded(text: str, width: int, indent: str = "") -> list[str]:
    """Return a text in lines that fit; no word is broken, and no number parted from its unit."""
    text = with_units_attached(safe_text(text))
    lines = textwrap.wrap(
        text,
        max(width, _NARROWEST_TEXT),
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    return [line.replace(NO_BREAK_SPACE, " ") for line in lines]


def fact_text(label: str, value: object) -> str:
    """Return a fact of a report in a line; a time in the unit that fits."""
    if not isinstance(value, float):
        return f"{label}: {value}"
    if label.endswith(" (ms)"):
        return f"{label.removesuffix(' (ms)')}: {ms_text(value)}"
    if value >= _SMALL or value == 0:
        return f"{label}: {value:,.3f}"
    return f"{label}: {value:.3g}"


def show_notes(notes: Sequence[str], screen: Console, *, whole: bool = False) -> None:
    """Print notes; if not `whole`, no more lines of them than have room on a screen."""
    width = min(screen.width, WIDEST_TEXT)
    texts = [folded(note, width) for note in notes]
    lines = [line for text in texts for line in text]
    if len(lines) > _NOTE_LINES and not whole:
        lines = _first_note_lines(texts)
    _show_lines(lines, screen)


def _first_note_lines(texts: Sequence[Sequence[str]]) -> list[str]:
    """Return the notes that have room, and how many more there are.

    Where the first alone has no room it is cut.
    """
    room = _NOTE_LINES - 1
    lines: list[str] = []
    lines_shown = 0
    for text in texts:
        if len(lines) + len(text) > room:
            break
        lines += text
        lines_shown += 1
    more = len(texts) - lines_shown
    if not lines:
        all_lines = [line for text in texts for line in text]
        lines = all_lines[: room - 1]
        lines.append(f"{all_lines[room - 1]} …")
    plural = "s" if more > 1 else ""
    lines.append(f"and {more} more note{plural}; show them with --notes")
    return lines
