"""Worker processes that take part in reading small traces too, and what they did."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens_ext.readers.kineto import workers
from tracelens_ext.readers.kineto.slice_worker import READY

if TYPE_CHECKING:
    import pytest


def wait_for_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have readers wait until the workers that they start are there."""
    start = workers.SliceWorkers.start

    def start_and_wait(self: workers.SliceWorkers, count: int) -> None:
        start(self, count)
        for worker in self._workers:
            worker.ready = worker._receive(len(READY)) == READY
            worker.alive = worker.ready

    monkeypatch.setattr(workers.SliceWorkers, "start", start_and_wait)


def note_slices(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """What becomes of each slice that is given to a worker: its events, or None; grows."""
    counts: list[int | None] = []
    take = workers.SliceWorkers.take

    def noted(self: workers.SliceWorkers) -> int | None:
        counts.append(take(self))
        return counts[-1]

    monkeypatch.setattr(workers.SliceWorkers, "take", noted)
    return counts


def children() -> list[int]:
    """The processes that this one has started and that are not gone.

    Without the helpers that `multiprocessing` keeps until the end, of tests that came before.
    """
    me, found = os.getpid(), []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = entry.read_text()
            command = (entry.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(text.rpartition(")")[2].split()[1]) == me and b"multiprocessing" not in command:
            found.append(int(entry.parent.name))
    return found
