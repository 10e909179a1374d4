"""The terminal: lines and tables on it, whatever it can show."""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from tracelens_ext.work.gpu_work import GpuWork

_PIPED_WIDTH = 160  # of a file, whose lines are not folded


def console() -> Console:
    """The terminal; a wide one when the output goes to a file or a program."""
    from rich.console import Console

    terminal = Console()
    if terminal.is_terminal or "COLUMNS" in os.environ:
        return terminal
    return Console(width=_PIPED_WIDTH)


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
