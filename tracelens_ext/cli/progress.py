"""Progress bars on standard error, for whoever watches it on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import ProgressColumn

#: Called with the number of a file, the bytes of it that are read (None when it is done), and its
#: size (None if unknown).
Advance = Callable[[int, int | None, int | None], None]

#: Bars appear only when reading takes longer than this.
_PATIENCE_S = 1.0


@contextmanager
def several_progress(labels: Sequence[str]) -> Iterator[Advance | None]:
    """Yield a function that shows the progress of files; None if standard error is no terminal.

    After a second, each file that is being read has a bar with its label.
    """
    if not sys.stderr.isatty():
        yield None
        return
    bars = progress_bars()
    started = time.monotonic()
    bar_of_file = [bars.add_task(label, total=None, visible=False) for label in labels]

    def advance(number: int, bytes_read: int | None, size: int | None) -> None:
        if time.monotonic() - started > _PATIENCE_S:
            bars.start()
        if bytes_read is None:
            bars.update(bar_of_file[number], visible=False)
        else:
            bars.update(
                bar_of_file[number], completed=bytes_read, total=size, visible=True
            )

    try:
        yield advance
    finally:
        bars.stop()


def progress_bars(amount: ProgressColumn | None = None) -> Bars:
    """Return progress bars for standard error, which disappear when they are done.

    Args:
        amount: the column that shows how much is done; by default the bytes read.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        amount or DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
