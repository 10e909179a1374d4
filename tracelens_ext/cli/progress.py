"""Progress bars on standard error, for files that take a while, on terminals only."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.progress import Progress as Bars
    from rich.progress import ProgressColumn

    from tracelens_ext.settings import Progress

_PATIENCE_S = 1.0


@contextmanager
def reading_progress(label: str) -> Iterator[Progress | None]:
    """What to hand to a reader as `progress`; None if standard error is no terminal.

    The bar appears after a second and is gone when the file is read.
    """
    with several_progress([label]) as advance:
        yield None if advance is None else partial(advance, 0)


@contextmanager
def several_progress(
    labels: Sequence[str],
) -> Iterator[Callable[[int, int | None, int | None], None] | None]:
    """What to call with the number of a file, its bytes read so far, and its size; or None.

    There is a bar for each file that is being read; `None` bytes mean that it is done with.
    """
    if not sys.stderr.isatty():
        yield None
        return
    bars, started = _bars(), time.monotonic()
    tasks = [bars.add_task(label, total=None, visible=False) for label in labels]

    def advance(number: int, done: int | None, size: int | None) -> None:
        if time.monotonic() - started > _PATIENCE_S:
            bars.start()
        if done is None:
            bars.update(tasks[number], visible=False)
        else:
            bars.update(tasks[number], completed=done, total=size, visible=True)

    try:
        yield advance
    finally:
        bars.stop()


@contextmanager
def fleet_progress() -> Iterator[Callable[[int, int, int], None] | None]:
    """What to hand to `run_fleet` as `progress`; None if standard error is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import MofNCompleteColumn

    bar = _bars(MofNCompleteColumn())
    task = bar.add_task("Analysing traces", total=None)

    def advance(done: int, failed: int, total: int) -> None:
        label = f"Analysing traces, {failed} failed" if failed else "Analysing traces"
        bar.update(task, description=label, completed=done + failed, total=total)

    with bar:
        yield advance


def _bars(amount: ProgressColumn | None = None) -> Bars:
    """Bars on standard error; beside each the bytes that are read, or another amount."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        amount or DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
