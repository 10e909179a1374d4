"""A progress bar on standard error, for files that take a while, on terminals only."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PATIENCE_S = 1.0


@contextmanager
def reading_progress(label: str) -> Iterator[Callable[[int, int | None], None] | None]:
    """What to hand to a reader as `progress`; None where nobody watches.

    The bar appears after a second and is gone when the file is read.
    """
    if not sys.stderr.isatty():
        yield None
        return

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    started = time.monotonic()
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(label, total=None)

    def advance(done: int, size: int | None) -> None:
        if time.monotonic() - started > _PATIENCE_S:
            bar.start()
            bar.update(task, completed=done, total=size)

    try:
        yield advance
    finally:
        bar.stop()
