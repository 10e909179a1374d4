"""How far a fleet is, on standard error, on terminals only."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def fleet_progress() -> Iterator[Callable[[int, int, int], None] | None]:
    """What to hand to `run_fleet` as `progress`; None where nobody watches."""
    if not sys.stderr.isatty():
        yield None
        return

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task("Analysing traces", total=None)

    def advance(done: int, failed: int, total: int) -> None:
        label = f"Analysing traces, {failed} failed" if failed else "Analysing traces"
        bar.update(task, description=label, completed=done + failed, total=total)

    with bar:
        yield advance
