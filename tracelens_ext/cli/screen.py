"""The terminal: lines and tables on it, whatever it can show."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from tracelens_ext.work.gpu_work import GpuWork

_PIPED_WIDTH = 200
_WIDEST_TEXT = 120  # longer lines are hard to read
_NOTE_LINES = 5
_SMALL = 0.1  # below it three digits tell more than three decimals
#: Whether `--notes` is given.
all_notes: ContextVar[bool] = ContextVar("all_notes", default=False)


def screen_width() -> int:
    """Columns of the terminal; many when the output goes to a file or a program."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return shutil.get_terminal_size().columns
    return _PIPED_WIDTH


def console() -> Console:
    """The terminal that everything is shown on."""
    from rich.console import Console

    return Console(width=screen_width())


def show_lines(lines: Sequence[str], console: Console, *, style: str = "") -> None:
    """Print lines as they are, however long; for a terminal that knows ASCII only, in that."""
    from rich.text import Text

    from tracelens_ext.gaps.histogram import ascii_lines

    if console.options.ascii_only:
        lines = [line.encode("ascii", "backslashreplace").decode() for line in ascii_lines(lines)]
    for line in lines:
        console.print(Text(line, style), soft_wrap=True)


def first_lines(work: GpuWork) -> list[str]:
    """What the recording holds, to be printed first; nothing without GPU work."""
    from tracelens_ext.recording.told import recording_lines

    return [f"Recording: {' '.join(recording_lines(work))}", ""] if len(work) else []


def folded(text: str, width: int, indent: str = "") -> list[str]:
    """A text in lines that fit; no word is broken."""
    from tracelens_ext.report.terminal import safe_text

    return textwrap.wrap(
        safe_text(text), max(width, 40), subsequent_indent=indent, break_on_hyphens=False
    )


def fact_text(label: str, value: object) -> str:
    """A fact of a report in a line; a time in the unit that fits."""
    from tracelens_ext.text import ms_text

    if isinstance(value, float):
        if label.endswith(" (ms)"):
            return f"{label.removesuffix(' (ms)')}: {ms_text(value)}"
        value = f"{value:,.3f}" if value >= _SMALL or not value else f"{value:.3g}"
    return f"{label}: {value}"


def show_notes(notes: Sequence[str], console: Console) -> None:
    """Print notes; without `--notes` no more lines of them than have room on a screen."""
    texts = [folded(note, min(console.width, _WIDEST_TEXT)) for note in notes]
    lines = [line for text in texts for line in text]
    if len(lines) > _NOTE_LINES and not all_notes.get():
        shown = lines[: _NOTE_LINES - 1]
        whole = sum(sum(map(len, texts[: at + 1])) <= len(shown) for at in range(len(texts)))
        lines = [line for text in texts[:whole] for line in text]
        if not lines:  # the first alone has no room
            lines = [*shown[:-1], f"{shown[-1]} …"]
        more = len(texts) - whole
        lines.append(f"and {more} more note{'s' if more > 1 else ''}: --notes")
    show_lines(lines, console)
