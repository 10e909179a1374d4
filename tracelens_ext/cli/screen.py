"""Prints reports block by block, as wide as the terminal is and in characters that it can show."""

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

#: On a terminal with fewer columns, tables leave out minor numbers to make room for names.
NARROW = 120
#: Text is folded at this many columns on wider terminals, as longer lines are hard to read.
WIDEST_TEXT = 120
#: The path that stands for standard output.
STANDARD_OUTPUT = Path("-")
#: The width where the output goes to a file or to another program.
_PIPED_WIDTH = 200
_NARROWEST_TEXT = 40
#: Without `--notes`, notes take at most this many lines.
_NOTE_LINES = 5
#: Smaller numbers have three significant digits instead of three decimals.
_SMALL = 0.1


@dataclass(frozen=True)
class Part:
    """A block with a table, below a blank line; a table without rows is not shown."""

    title: str
    frame: pd.DataFrame
    #: the columns to show, in this order; the last ones are left out where room is short
    columns: Sequence[str] | None = None
    rows: int | None = None  #: how many rows are shown; all if None
    keep: Sequence[str] = ()  #: columns that stay when others are left out
    #: the width of the first column while there is no room for all columns
    name_width: int = 20

    @classmethod
    def of(
        cls, table: Table | str, frame: pd.DataFrame, rows: int | None = None
    ) -> Part:
        """Return the block of a registered table, or of its name, with the columns it declares."""
        from tracelens_ext.report.tables.registry import find_table

        if isinstance(table, str):
            table = find_table(table)
        view = table.screen
        return cls(view.title, frame, view.columns or None, rows)

    def __call__(self, _: Console) -> Iterable[Any]:
        """Return a blank line and the table, as `Block` describes."""
        if not len(self.frame) or self.rows == 0:
            return []
        return [[""], frame_table(**vars(self))]


@dataclass(frozen=True)
class Section:
    """Blocks that are made when they are printed, with a title for messages if that fails."""

    title: str
    make: Callable[[Console], Iterable[Any]]

    def __call__(self, screen: Console) -> Iterable[Any]:
        """Make the blocks."""
        return self.make(screen)


#: A piece of what the screen shows: a sentence, which is folded; a sequence of lines, which are
#: not; an object that rich can print; or a function that returns such blocks for a terminal, whose
#: width it needs. A `Part` is such a function.
Block = str | Sequence[str] | Callable[["Console"], Iterable[Any]] | Any

#: True if all notes are printed, False for the first five lines: the option `--notes`.
every_note = ContextVar("every_note", default=False)


def show(
    report: Report,
    blocks: Iterable[Block],
    *,
    json: bool = False,
    texts: Mapping[Path, Callable[[], str]] | None = None,
) -> None:
    """Print blocks and then the notes of a report, or the whole report as JSON.

    A block that cannot be made is left out, and a note says so.

    Args:
        report: the report that becomes JSON. The screen shows only its notes.
        blocks: what the screen shows above the notes.
        json: print JSON instead.
        texts: texts to write, by file. If one goes to standard output, nothing else is printed.
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
        blocks: what is printed.
        screen: the terminal.
        failures: collects unexpected errors in making a block, and the other blocks are printed.
            Without it, such an error is raised.
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
        # Printing is not isolated: a closed pipe is not a failure of the block.
        for piece in pieces:
            _print_piece(piece, screen)


def _isolated(blocks: Iterator[Block], failures: PartFailures) -> Iterator[Block]:
    """Yield blocks until an unexpected error in the iterator that makes them."""
    with failures.isolate("A section of the screen"):
        yield from blocks


def _part_name(block: Block) -> str:
    """Return the name of a block for the message that it failed."""
    if isinstance(block, Part | Section):
        return f"The section {block.title!r} of the screen"
    return "A section of the screen"


def _pieces(block: Block, screen: Console) -> Iterator[Any]:
    """Yield the lists of lines, and the objects for rich, that a block consists of."""
    if isinstance(block, str):
        indent = "    " if block.startswith(" ") else ""
        yield folded(block, screen.width, indent) or [""]
    elif callable(block):
        for inner in block(screen):
            yield from _pieces(inner, screen)
    else:
        yield block


def _print_piece(piece: Any, screen: Console) -> None:  # noqa: ANN401  # anything that rich prints
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
    """Return a report of tables of a trace, which is its first fact."""
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
    """Print a line; control characters, which a terminal would act on, are shown as escapes."""
    typer.echo(safe_text(text), err=error)


def tell(text: str) -> None:
    """Print a message about the run on standard error."""
    print_line(f"tracelens-ext: {text}", error=True)


def tell_written(paths: Sequence[Path]) -> None:
    """Print which files were written; on standard error if a text went to standard output."""
    for path in paths:
        if path != STANDARD_OUTPUT:
            print_line(f"Wrote {path}", error=STANDARD_OUTPUT in paths)


def write_text(path: Path, text: str) -> None:
    """Write a text to a file, which is replaced only as a whole; `-` is standard output."""
    from tracelens_ext.report.atomic_files import written_beside

    if path == STANDARD_OUTPUT:
        typer.echo(text, nl=False)
        return
    with written_beside(path) as beside:
        beside.write_text(text, encoding="utf-8", newline="\n")


def screen_width() -> int:
    """Return the number of columns of the terminal, or 200 if the output goes elsewhere."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return shutil.get_terminal_size().columns
    return _PIPED_WIDTH


def console() -> Console:
    """Return the terminal that everything is printed on."""
    from rich.console import Console

    return Console(width=screen_width())


def _show_lines(lines: Sequence[str], screen: Console) -> None:
    """Print lines as they are, however long."""
    from rich.text import Text

    for line in _plain(lines, screen):
        screen.print(Text(line), soft_wrap=True)


def _plain(lines: Sequence[str], screen: Console) -> Sequence[str]:
    """Return lines in characters that the terminal can show; some know only ASCII."""
    from tracelens_ext.analysis.idle_time.histogram import ascii_lines

    safe_lines = [safe_text(line) for line in lines]
    if not screen.options.ascii_only:
        return safe_lines
    return [
        line.encode("ascii", "backslashreplace").decode()
        for line in ascii_lines(safe_lines)
    ]


def first_lines(gpu_events: GpuEvents, trace: object = None) -> list[Block]:
    """Return the first blocks of a screen: the trace, and how complete the recording is.

    A trace without GPU work has no line about the recording.
    """
    from tracelens_ext.analysis.coverage.report_tables import recording_lines

    blocks: list[Block] = []
    if trace is not None:
        blocks.append([f"Trace: {trace}"])
    if len(gpu_events):
        lines = recording_lines(gpu_events)
        blocks.append(f"Recording: {' '.join(lines)}")
        if trace is None:
            blocks.append([""])
    return blocks


def folded(text: str, width: int, indent: str = "") -> list[str]:
    """Fold a text into lines; words stay whole, and numbers stay with their units."""
    text = with_units_attached(safe_text(text))
    lines = textwrap.wrap(
        text,
        max(width, _NARROWEST_TEXT),
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    return [line.replace(NO_BREAK_SPACE, " ") for line in lines]


def fact_text(label: str, value: object) -> str:
    """Return a fact of a report as a line, with a time in a suitable unit."""
    if not isinstance(value, float):
        return f"{label}: {value}"
    if label.endswith(" (ms)"):
        return f"{label.removesuffix(' (ms)')}: {ms_text(value)}"
    if value >= _SMALL or value == 0:
        return f"{label}: {value:,.3f}"
    return f"{label}: {value:.3g}"


def show_notes(notes: Sequence[str], screen: Console, *, whole: bool = False) -> None:
    """Print notes: all of them if `whole`, and otherwise the first five lines."""
    width = min(screen.width, WIDEST_TEXT)
    texts = [folded(note, width) for note in notes]
    lines = [line for text in texts for line in text]
    if len(lines) > _NOTE_LINES and not whole:
        lines = _first_note_lines(texts)
    _show_lines(lines, screen)


def _first_note_lines(texts: Sequence[Sequence[str]]) -> list[str]:
    """Return the first notes, as many as fit, and a line that counts the others.

    The first note is cut if it does not fit by itself.
    """
    room = _NOTE_LINES - 1
    lines: list[str] = []
    shown_notes = 0
    for text in texts:
        if len(lines) + len(text) > room:
            break
        lines += text
        shown_notes += 1
    more = len(texts) - shown_notes
    if not lines:
        all_lines = [line for text in texts for line in text]
        lines = all_lines[: room - 1]
        lines.append(f"{all_lines[room - 1]} …")
    plural = "s" if more > 1 else ""
    lines.append(f"and {more} more note{plural}; show them with --notes")
    return lines
